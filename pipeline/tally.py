"""What a run has done until now, in numbers: what is shown, written down and exported while it runs all comes from here."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.receipts import Receipt
from pipeline.resources import Resources
from pipeline.work import Work

SHOWN_FAILURES = 20


@dataclass
class StepTally:
    """One step. Times are seconds; `before` counts parts that an earlier run had done, which no rate includes."""

    name: str
    about: str
    number: int
    """From 1 on, in running order."""
    parts: int
    resources: Resources
    before: int = 0
    done: int = 0
    failed: int = 0
    started: float = field(default_factory=time.time)
    seconds: float = 0.0
    """From its start until now, or until it ended."""
    documents: int = 0
    bytes: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    part_seconds: float = 0.0
    peak_bytes: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    """Stage → seconds of its parts, for steps that do several things to a document."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    def tick(self) -> None:
        self.seconds = time.monotonic() - self._began

    def add(self, work: Work, receipt: Receipt) -> None:
        self.done += 1
        self.documents += documents(work, receipt)
        self.bytes += read_bytes(receipt)
        for count in receipt.counts:
            self.removed.update(count.removed)
        self.cpu_seconds += receipt.run.get("cpu_seconds", 0.0)
        self.part_seconds += receipt.run.get("seconds", 0.0)
        self.peak_bytes = max(self.peak_bytes, receipt.run.get("peak_bytes", 0))
        self.stages.update(receipt.run.get("stages", {}))
        self.tick()

    @property
    def left(self) -> float | None:
        """Seconds until it is done at the rate of now, or None where no part tells yet."""
        left = self.parts - self.before - self.done
        return self.seconds * left / self.done if self.done else None

    def as_json(self) -> dict[str, Any]:
        whole = {
            key: getattr(self, key)
            for key in ("name", "about", "number", "parts", "before", "done", "failed", "documents", "bytes")
        }
        times = {key: round(getattr(self, key), 3) for key in ("started", "seconds", "cpu_seconds", "part_seconds")}
        stages = {name: round(seconds, 3) for name, seconds in self.stages.items()}
        memory = {"peak_bytes": self.peak_bytes, "declared_bytes": self.resources.memory, "cpus": self.resources.cpus}
        return {**whole, **times, **memory, "removed": dict(self.removed), "stages": stages, "left_seconds": self.left}


@dataclass
class Tally:
    """A whole run."""

    recipe: str
    corpus: str
    steps_total: int
    run: str = field(default_factory=lambda: run_name())
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    started: float = field(default_factory=time.time)
    ended: float | None = None
    state: str = "running"
    """running, finished, failed (the run says so itself) or stopped (somebody ended it)."""
    message: str = ""
    """Why it failed, and how to go on."""
    digest: str = ""
    steps: list[StepTally] = field(default_factory=list)
    documents_in: int = 0
    removed: dict[str, Counter[str]] = field(default_factory=dict)
    """Stage → rule → documents, those of earlier runs included."""
    failures: list[dict[str, str]] = field(default_factory=list)
    """The first parts that failed: step, part, error."""
    broken: int = 0
    """Documents removed because a stage broke on them."""

    def begin(self, name: str, about: str, parts: int, resources: Resources) -> StepTally:
        self.steps.append(StepTally(name, about, len(self.steps) + 1, parts, resources))
        return self.steps[-1]

    def known(self, receipts: Iterable[Receipt]) -> int:
        """Counts what an earlier run had done for the step that began last; how many parts that are."""
        step = self.steps[-1]
        for receipt in receipts:
            self._count(receipt)
            step.before += 1
        return step.before

    def add(self, work: Work, receipt: Receipt) -> None:
        self._count(receipt)
        self.steps[-1].add(work, receipt)

    def fail(self, work: Work, error: str) -> None:
        self.steps[-1].failed += 1
        if len(self.failures) < SHOWN_FAILURES:
            self.failures.append({"step": work.step, "part": work.part, "error": error})

    @property
    def documents_removed(self) -> int:
        return sum(sum(rules.values()) for rules in self.removed.values())

    def as_json(self) -> dict[str, Any]:
        names = ("run", "state", "message", "digest", "recipe", "corpus", "host", "process", "started", "ended", "steps_total")
        return {
            **{name: getattr(self, name) for name in names},
            "updated": round(time.time(), 3),
            "documents_in": self.documents_in,
            "documents_removed": self.documents_removed,
            "documents_broken": self.broken,
            "removed": {stage: dict(rules) for stage, rules in self.removed.items()},
            "failures": self.failures,
            "steps": [step.as_json() for step in self.steps],
        }

    def _count(self, receipt: Receipt) -> None:
        if "catalogue" in receipt.files:
            self.documents_in += receipt.files["catalogue"].rows
        self.broken += len(receipt.errors)
        for count in receipt.counts:
            if count.removed:
                self.removed.setdefault(count.stage, Counter()).update(count.removed)


def run_name() -> str:
    """Names of runs sort by the time at which they began, as their machines saw it."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


def documents(work: Work, receipt: Receipt) -> int:
    """How many documents a part looked at; 0 for parts that look at keys or pairs."""
    if receipt.counts:
        return receipt.counts[0].documents_in
    state = work.inputs.get("state")
    return int(state["documents_kept"]) if isinstance(state, dict) else 0


def read_bytes(receipt: Receipt) -> int:
    """Of input files, or of the texts of documents."""
    return sum(one.bytes for one in receipt.inputs) or (receipt.counts[0].bytes_in if receipt.counts else 0)
