"""Where a corpus stands, asked from another terminal or another machine: from its journal (`pipeline.journal`), its lock and its
manifest.

Nothing is locked and nothing written. A run that has not been heard of for STALE_SECONDS is watched for a moment before it is
called dead, so that two clocks which differ make no dead run of a living one."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from manifests.manifest import MANIFEST, Content, Manifest, ManifestError
from manifests.storage import Folder
from manifests.terminal import visible
from pipeline import lock
from pipeline.journal import LOCAL_SECONDS, REMOTE_SECONDS, latest, said
from pipeline.progress import rates, span
from pipeline.resources import Resources
from pipeline.tally import StepTally

STALE_SECONDS = 60.0
"""Silence after which a run is looked at more closely: many times the pause between two states."""
SHOWN_RULES = 12
SHOWN_FAILURES = 5
ON = "start the same command again to go on: what is finished is kept"

State = Literal["running", "finished", "failed", "stopped", "dead", "none"]
ENDED = ("finished", "failed", "stopped")
LARGEST = 1e15
"""More than any count, and than any time in seconds, of a run."""
LATEST_TIME = 2.5e11
"""The year 9892."""


@dataclass
class Status:
    """`progress` is the last that the latest run said of itself; `owner` who holds the corpus by its lock, if that can be
    told."""

    corpus: str
    state: State
    progress: dict[str, Any]
    owner: dict[str, Any]
    content: Content | None
    digest: str
    age: float
    """Seconds since `progress`, by two clocks."""

    def as_json(self) -> dict[str, Any]:
        told = {"state": self.state, "age_seconds": round(self.age, 1), "owner": self.owner, "manifest_digest": self.digest}
        return {**self.progress, "corpus": self.corpus, **told}


def look(corpus: Folder) -> Status:
    """The corpus as it stands now. A run that seems dead is watched for as long as it may be silent. OSError when the corpus
    cannot be read: then nothing is known of a run."""
    progress = latest(corpus)
    content, digest = None, ""
    try:
        if corpus.exists(MANIFEST):
            manifest = Manifest.load(corpus)
            content, digest = manifest.content, manifest.digest
    except ManifestError as error:
        digest = f"not readable: {error}"
    told = progress.get("state")
    age = time.time() - _number(progress.get("updated"))
    state: State = "finished" if content else "none"
    if told == "running":
        state = "running" if _lives(corpus, progress, age) else "dead"
    elif told in ENDED:
        state = cast(State, told)
    return Status(corpus.url, state, progress, said(corpus, lock.LOCK), content, digest, age)


def shown(status: Status) -> Group:
    """What a person reads."""
    progress = status.progress
    lines = [_head(status)]
    table = None
    steps = [_step(one) for one in _rows(progress.get("steps"))]
    if status.state in ("running", "dead", "failed", "stopped"):
        if steps:
            lines += _current(steps[-1], int(_number(progress.get("steps_total"))))
        else:
            lines.append("no step has begun yet")
        documents, removed = int(_number(progress.get("documents_in"))), int(_number(progress.get("documents_removed")))
        lines.append(f"so far {documents:,} documents in, {removed:,} removed, {documents - removed:,} left")
        table = _removed(progress.get("removed"), documents)
        lines += _trouble(status)
    elif status.content is not None:
        content = status.content
        documents = sum(one.documents_in for one in content.components.values())
        kept = sum(one.documents_kept for one in content.components.values())
        tokens = sum(shard.tokens for shard in content.shards)
        lines.append(f"{documents:,} documents in, {documents - kept:,} removed, {kept:,} kept")
        lines.append(f"{tokens:,} tokens in {len(content.shards):,} shards")
        removed_by: dict[str, Counter[str]] = {}
        for count in content.counts:
            removed_by.setdefault(count.stage, Counter()).update(count.removed)
        table = _removed(removed_by, documents)
        lines.append(f"digest {status.digest}")
    text = Text(visible("\n".join(lines)), no_wrap=False)
    return Group(text, table) if table is not None and table.row_count else Group(text)


def _head(status: Status) -> str:
    progress = status.progress
    if status.state == "none":
        return f"{status.corpus}: no run has begun here" + (f"; its manifest is {status.digest}" if status.digest else "")
    if not progress:
        return f"{status.corpus}: finished"
    who = f"process {progress.get('process')} on {progress.get('host')}"
    since = f"{_when(progress.get('started'))}"
    ended = _number(progress.get("ended"))
    took = span(max(0.0, (ended or _number(progress.get("updated"))) - _number(progress.get("started"))))
    heard = f"last heard of {span(abs(status.age))} {'ago' if status.age >= 0 else 'ahead of this clock'}"
    words = {
        "running": f"running: {who}, since {since} ({took}); {heard}",
        "dead": f"dead: {who} began at {since} and is gone; {heard}",
        "finished": f"finished: by {who}, {since}, in {took}",
        "failed": f"failed: {who}, begun {since}, failed after {took}",
        "stopped": f"stopped: {who}, begun {since}, was stopped after {took}",
    }
    return f"{status.corpus}: {words[status.state]}\nrun {progress.get('run')} of {progress.get('recipe')}"


def _current(step: StepTally, total: int) -> list[str]:
    done = step.before + step.done
    again = f" ({step.before:,} done before)" if step.before else ""
    failed = f", {step.failed:,} failed" if step.failed else ""
    left = f"; about {span(step.left)} left in this step" if step.left and done < step.parts else ""
    lines = [f"step {step.number} of {total}, {step.name} ({step.about}): {done:,} of {step.parts:,} parts{again}{failed}{left}"]
    return [*lines, *(f"  {one}" for one in (rates(step) if step.done else []))]


def _trouble(status: Status) -> list[str]:
    progress, lines = status.progress, []
    failures = _rows(progress.get("failures"))
    if failures and status.state in ("running", "dead"):
        lines.append("failed parts:")
        lines += [f"  {one.get('step')} part {one.get('part')}: {one.get('error')}" for one in failures[:SHOWN_FAILURES]]
        if len(failures) > SHOWN_FAILURES:
            lines.append(f"  and {len(failures) - SHOWN_FAILURES} more")
    if message := str(progress.get("message") or ""):
        lines += ["why:", *(f"  {line}" for line in message.splitlines())]
    if status.state in ("dead", "stopped") or (status.state == "failed" and "to go on" not in message):
        lines.append(ON)
    return lines


def _removed(rules: object, documents: int) -> Table | None:
    """Stages and rules that removed most."""
    if not isinstance(rules, dict) or not documents:
        return None
    table = Table(box=None, pad_edge=False)
    for heading in ("removed by", "documents", "of all"):
        table.add_column(heading, justify="left" if heading == "removed by" else "right", no_wrap=True)
    every = [(rule, int(_number(count))) for found in rules.values() if isinstance(found, dict) for rule, count in found.items()]
    every.sort(key=lambda one: (-one[1], one[0]))
    for rule, number in every[:SHOWN_RULES]:
        table.add_row(visible(rule), f"{number:,}", f"{number / documents:.1%}")
    if rest := sum(number for _, number in every[SHOWN_RULES:]):
        table.add_row(f"{len(every) - SHOWN_RULES} more rules", f"{rest:,}", f"{rest / documents:.1%}")
    return table


def _lives(corpus: Folder, progress: dict[str, Any], age: float) -> bool:
    if progress.get("host") == socket.gethostname() and not _is_here(int(_number(progress.get("process"))), progress):
        return False
    if -STALE_SECONDS < age < STALE_SECONDS:
        return True
    until = time.monotonic() + 3 * (LOCAL_SECONDS if corpus.local else REMOTE_SECONDS)
    while time.monotonic() < until:
        time.sleep(LOCAL_SECONDS / 2)
        if latest(corpus).get("updated") != progress.get("updated"):
            return True
    return False


def _is_here(process: int, progress: dict[str, Any]) -> bool:
    """May the process that began the run live on this machine? False where it surely does not. No clock of the day is asked, for
    one may be set while a run lasts; of a machine before it was started anew, or of another container, nothing is known here."""
    here, told = lock._process(os.getpid()), progress.get("identity")
    told = told if isinstance(told, dict) else {}
    if not here or (told and any(told.get(key) != here[key] for key in ("boot", "namespace"))):
        return True
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            state, *numbers = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return False
    return state not in (b"Z", b"X") and (not told or told.get("began") == numbers[18].decode())


def _step(told: dict[str, Any]) -> StepTally:
    step = StepTally(str(told.get("name")), str(told.get("about")), 0, 0, Resources())
    for name in ("number", "parts", "before", "done", "failed", "documents", "bytes"):
        setattr(step, name, int(_number(told.get(name))))
    step.seconds = _number(told.get("seconds"))
    removed = told.get("removed")
    step.removed = Counter(
        {str(rule): int(_number(number)) for rule, number in removed.items()} if isinstance(removed, dict) else {}
    )
    return step


def _number(value: object) -> float:
    """0 for what is no number that a run could have meant."""
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else 0.0


def _rows(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _when(value: object) -> str:
    seconds = _number(value)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if 0 <= seconds < LATEST_TIME else "an unknown time"
