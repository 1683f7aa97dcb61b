"""Running a recipe: step after step, part by part, resuming where an earlier run ended."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, field

from manifests.manifest import MANIFEST, Manifest, ManifestError
from manifests.storage import Folder
from manifests.verify import listed_files
from pipeline import lock, receipts
from pipeline.execution import Executor
from pipeline.finish import finish, plan_digest
from pipeline.inputs import PART_BYTES, InputError, source_folder
from pipeline.plan import make_plan
from pipeline.progress import Progress
from pipeline.receipts import Receipt
from pipeline.recipe import Recipe
from pipeline.steps import Done, Plan, Step
from pipeline.summary import changes, removals_so_far
from pipeline.work import STEPS, Work

SHOWN_FAILURES = 5
MOST_FAILURES = 20
"""A step that has so many failed parts is broken: no more of it is started."""


class RunFailed(Exception):
    """A run that ended incomplete: which parts, why, and how to go on."""


@dataclass
class StepReport:
    """A step as `corpusmill plan` shows it; `parts` is None where it follows from counts that are not there yet."""

    step: Step
    parts: int | None
    finished: int = 0


@dataclass
class Result:
    manifest: Manifest
    ran: dict[str, int] = field(default_factory=dict)
    """Step → parts that ran now; the others were done before."""


def run(recipe: Recipe, corpus: Folder, executor: Executor, progress: Progress, part_bytes: int = PART_BYTES) -> Result:
    """Builds the corpus and returns its manifest. RunFailed when a part cannot be done; starting again goes on from there."""
    started = time.time()
    check_apart(recipe, corpus)
    with lock.exclusive(corpus) as held:
        plan = make_plan(recipe, part_bytes)
        known = _known(plan, corpus)
        if len(known) == len(plan.steps) and (manifest := _finished_before(corpus, recipe, plan, known)) is not None:
            return Result(manifest, dict.fromkeys(known, 0))
        there = {f"{STEPS}/{stamp.path}": stamp.size for stamp in corpus.folder(STEPS).stamps()} if corpus.exists(STEPS) else {}
        done: Done = {}
        ran: dict[str, int] = {}
        for step in plan.steps:
            held.check()
            done[step.name], ran[step.name] = _run_step(step, done, corpus, executor, progress, recipe, there)
        held.check()
        progress.line("writing the manifest")
        manifest = finish(
            corpus,
            plan,
            done,
            {
                "started": round(started, 3),
                "ended": round(time.time(), 3),
                "host": socket.gethostname(),
                "process": os.getpid(),
                "parts": len(plan.parts),
                "parts_run": sum(ran.values()),
            },
        )
        return Result(manifest, ran)


def check_apart(recipe: Recipe, corpus: Folder) -> None:
    """InputError when the corpus lies in a component's source, or the source in the corpus: a run would read what it wrote. So it
    would, and replace it, if the corpus were one of its own references."""
    mine = os.path.realpath(corpus.root) if corpus.local else corpus.url
    for name, path in recipe.references.items():
        reference = Folder(path)
        other = os.path.realpath(reference.root) if reference.local else reference.url
        if reference.local == corpus.local and (f"{mine}/".startswith(f"{other}/") or f"{other}/".startswith(f"{mine}/")):
            raise InputError(f"the corpus {corpus.url} is, or lies in or around, its reference {name}: name another folder")
    for component in recipe.components.values():
        folder, only = source_folder(component)
        theirs = os.path.realpath(folder.root) if folder.local else folder.url
        if folder.local != corpus.local:
            continue
        inside = f"{mine}/".startswith(f"{theirs}/") and only is None
        if inside or f"{theirs}/".startswith(f"{mine}/"):
            where = "in the source" if inside else "around the source"
            raise InputError(
                f"the corpus {corpus.url} lies {where} of component {component.name}, {component.source}: name another folder"
            )


def survey(recipe: Recipe, corpus: Folder, part_bytes: int = PART_BYTES) -> tuple[list[StepReport], list[str]]:
    """What is done and what will run, without running anything; and what has changed since the corpus was built."""
    plan = make_plan(recipe, part_bytes)
    try:
        changed = changes(Manifest.load(corpus).content, plan) if corpus.exists(MANIFEST) else []
    except ManifestError as error:
        changed = [str(error)]
    done: Done = {}
    reports = []
    for step in plan.steps:
        if any(need not in done for need in step.needs):
            reports.append(StepReport(step, None))
            continue
        works = step.works(done)
        prints = [work.fingerprint for work in works]
        found = receipts.finished(corpus, step.name, prints)
        finished = [found[one] for one in prints if one in found]
        reports.append(StepReport(step, len(works), len(finished)))
        if len(finished) == len(works):
            done[step.name] = finished
    return reports, changed


def _known(plan: Plan, corpus: Folder) -> Done:
    """Receipts of the steps that are done; it ends at the first that is not."""
    known: Done = {}
    for step in plan.steps:
        prints = [work.fingerprint for work in step.works(known)]
        found = receipts.finished(corpus, step.name, prints)
        if len(found) < len(set(prints)):
            break
        known[step.name] = [found[one] for one in prints]
    return known


def _run_step(
    step: Step, done: Done, corpus: Folder, executor: Executor, progress: Progress, recipe: Recipe, there: dict[str, int]
) -> tuple[list[Receipt], int]:
    """`there` are the work files that were left when the run began."""
    works = step.works(done)
    prints = [work.fingerprint for work in works]
    found = receipts.finished(corpus, step.name, prints)
    for one, receipt in list(found.items()):
        if any(there.get(entry.path) != entry.bytes for entry in receipt.files.values()):
            # Work files may be deleted once a corpus is built. A part that lost them is as good as never run.
            corpus.delete(receipts.receipt_name(step.name, one))
            del found[one]
    # Parts that hold the same, which only empty ones do, are one piece of work.
    todo = list({one: work for work, one in zip(works, prints, strict=True) if one not in found}.values())
    if todo:
        failures: list[tuple[Work, str]] = []
        with (
            progress.step(step.name, step.about, len(set(prints)), len(found)) as bar,
            contextlib.closing(executor.run(corpus.url, todo)) as outcomes,
        ):
            for outcome in outcomes:
                if outcome.receipt is not None:
                    found[outcome.receipt.fingerprint] = outcome.receipt
                    bar.advance(outcome.receipt)
                    continue
                failures.append((outcome.work, outcome.error or "unknown"))
                progress.failure(step.name, outcome.work.part, outcome.error or "", outcome.trace)
                if len(failures) >= MOST_FAILURES:
                    break
        if failures:
            raise RunFailed(_failure_text(step, failures, len(works)))
    ordered = [found[one] for one in prints]
    _check_errors(step, ordered, recipe, corpus)
    if step.check is not None:
        try:
            step.check(ordered)
        except Exception as error:
            raise RunFailed(f"{step.name}: {error}; {removals_so_far(done)}") from error
    return ordered, len(todo)


def _check_errors(step: Step, ordered: list[Receipt], recipe: Recipe, corpus: Folder) -> None:
    """A bug in a stage must not empty a corpus successfully: too many crashes, time-outs and exceptions fail the run. The parts
    with them are forgotten, so that they run again when the cause is mended."""
    broken: Counter[str] = Counter(error["stage"] for receipt in ordered for error in receipt.errors)
    documents: Counter[str] = Counter()
    for receipt in ordered:
        for count in receipt.counts:
            documents[count.stage] += count.documents_in
    for stage, number in broken.items():
        if number > recipe.max_errors and number > recipe.max_error_share * documents[stage]:
            for receipt in ordered:
                if any(error["stage"] == stage for error in receipt.errors):
                    corpus.delete(receipts.receipt_name(step.name, receipt.fingerprint))
            example = next(error for receipt in ordered for error in receipt.errors if error["stage"] == stage)
            raise RunFailed(
                f"{step.name}: stage {stage} broke on {number} of {documents[stage]} documents, more than max_error_share "
                f"{recipe.max_error_share:g} allows; the first: {example['id']}: {example['rule']}: {example['detail']}"
            )


def _finished_before(corpus: Folder, recipe: Recipe, plan: Plan, done: Done) -> Manifest | None:
    """The manifest that is there, if it is of this recipe and these very parts."""
    if not corpus.exists(MANIFEST):
        return None
    try:
        manifest = Manifest.load(corpus)
    except ManifestError:
        return None
    wanted = plan_digest(plan, done)
    if manifest.run.get("plan") != wanted or manifest.content.recipe_sha256 != recipe.digest:
        return None
    there = {}
    for name in ("tokens", "logs"):
        if corpus.exists(name):
            there.update({f"{name}/{stamp.path}": stamp.size for stamp in corpus.folder(name).stamps()})
    for path, _, size in listed_files(manifest.content):
        found = there.get(path) if "/" in path else corpus.size(path) if corpus.exists(path) else None
        if found is None or (size is not None and found != size):
            return None
    return manifest


def _failure_text(step: Step, failures: list[tuple[Work, str]], parts: int) -> str:
    lines = [f"{step.name}: {len(failures)} of {parts} parts failed:"]
    lines += [f"  {work.part}: {error}" for work, error in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        lines.append(f"  and {len(failures) - SHOWN_FAILURES} more")
    lines.append("what is finished is kept: mend the cause and start the same command again to go on")
    return "\n".join(lines)
