"""What a run tells Prometheus, through the exporter that Ray runs on every node of a cluster (`ray start --metrics-export-port`).

Ray's exporter needs `ray[default]` (here: `corpusmill[cluster]`) and puts `ray_` before each name. Without it, and for runs that
do not use Ray, nothing is exported; `corpusmill status` tells the same numbers."""

from __future__ import annotations

import sys
from typing import Any

from pipeline.receipts import Receipt
from pipeline.tally import StepTally, read_bytes
from pipeline.work import Work

SECONDS = [0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0]
"""Bounds of the histogram of part times."""
COUNTERS = {
    "documents_in": ("documents that a stage looked at", ("stage",)),
    "documents_kept": ("documents that it kept", ("stage",)),
    "documents_removed": ("documents that it removed, by rule", ("stage", "rule")),
    "documents_edited": ("documents that it edited, by rule", ("stage", "rule")),
    "bytes_read": ("bytes of input files, or of the documents of later steps", ()),
    "parts_done": ("parts that are done", ()),
    "parts_failed": ("parts that failed after all retries", ()),
    "cpu_seconds": ("processor time of parts, their child processes included", ()),
}


class Metrics:
    """Counters of one run, labelled by corpus and step. They start with the first part that ends while Ray is connected."""

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus
        self._made: dict[str, Any] | None = None

    def step(self, step: StepTally) -> None:
        if made := self._metrics():
            labels = {"corpus": self.corpus, "step": step.name}
            made["parts"].set(step.parts, labels)
            made["parts_left"].set(step.parts - step.before - step.done, labels)

    def part_done(self, step: StepTally, work: Work, receipt: Receipt) -> None:
        made = self._metrics()
        if made is None:
            return
        labels = {"corpus": self.corpus, "step": work.step}
        for count in receipt.counts:
            of = {**labels, "stage": count.stage}
            _add(made["documents_in"], count.documents_in, of)
            _add(made["documents_kept"], count.documents_kept, of)
            for kind in ("removed", "edited"):
                for rule, number in getattr(count, kind).items():
                    _add(made[f"documents_{kind}"], number, {**of, "rule": rule})
        _add(made["bytes_read"], read_bytes(receipt), labels)
        _add(made["parts_done"], 1, labels)
        _add(made["cpu_seconds"], receipt.run.get("cpu_seconds", 0), labels)
        made["part_seconds"].observe(receipt.run.get("seconds", 0), labels)
        self.step(step)

    def part_failed(self, step: StepTally, work: Work) -> None:
        if made := self._metrics():
            _add(made["parts_failed"], 1, {"corpus": self.corpus, "step": work.step})
            self.step(step)

    def _metrics(self) -> dict[str, Any] | None:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return None
        if self._made is None:
            from ray.util.metrics import Counter, Gauge, Histogram

            every = ("corpus", "step")
            self._made = {
                name: Counter(f"corpusmill_{name}", description=about, tag_keys=(*every, *keys))
                for name, (about, keys) in COUNTERS.items()
            }
            for name, about in (("parts", "parts of a step"), ("parts_left", "parts that are not done yet")):
                self._made[name] = Gauge(f"corpusmill_{name}", description=about, tag_keys=every)
            name, about = "part_seconds", "time from the start of a part to its receipt"
            self._made[name] = Histogram(f"corpusmill_{name}", description=about, boundaries=SECONDS, tag_keys=every)
        return self._made


def _add(counter: Any, number: float, labels: dict[str, str]) -> None:
    if number > 0:  # Ray refuses to add nothing
        counter.inc(number, labels)
