"""What training runs had of a document, from their ledgers: `ledger.jsonl` names the corpus, the loader's parameters and the
positions (rows of T targets) that were consumed.

Which rows hold which document follows from the packing, which belongs to the trainer. From the ledger alone three things are
sure: another corpus, another split, or a component that had no weight was never served. For the rest the number of passes
through the document's component is told, which each of its rows was served as often as, rounded down or up.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manifests.manifest import Manifest

LEDGER = "ledger.jsonl"
TRAINED_SPLIT = "train"


class LedgerError(Exception):
    """A ledger that is missing or is none."""


@dataclass(frozen=True)
class Consumed:
    """consumed: "no", "yes", or "possibly". passes: **estimate** of how often the run went through the document's component."""

    run: str
    steps: int
    consumed: str
    passes: float | None
    because: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def consumed(run: str, manifest: Manifest, document: dict[str, Any]) -> Consumed:
    """What the run in folder `run` had of a document, by its row in the document log. LedgerError where there is no ledger."""
    header, ranges = _read(run)
    steps = max((one["last_step"] for one in ranges), default=0)
    if header["manifest_digest"] != manifest.digest:
        return Consumed(
            run, steps, "no", None, f"it was trained on the corpus {str(header['manifest_digest'])[:12]}…, not on this one"
        )
    if document["removed_by"] is not None:
        return Consumed(run, steps, "no", None, f"the document was removed by {document['removed_by']}")
    if document["split"] != TRAINED_SPLIT:
        return Consumed(run, steps, "no", None, f"the document is in the split {document['split']}, which is not trained on")
    passes = _passes(header["loader"], ranges, manifest, document["component"])
    if passes == 0:
        return Consumed(run, steps, "no", 0.0, f"the run took nothing of component {document['component']}")
    low, high = math.floor(passes * (1 - SLACK)), math.ceil(passes * (1 + SLACK))
    often = f"each of its rows {low} or {high} times" if low != high else f"each of its rows {low} times"
    said = "yes" if low >= 1 else "possibly"
    return Consumed(run, steps, said, passes, f"it went through component {document['component']} {passes:.2f} times: {often}")


SLACK = 0.02
"""Rows are a little shorter than T on average, and rows are what is counted."""


def _passes(parameters: dict[str, Any], ranges: list[dict[str, int]], manifest: Manifest, component: str) -> float:
    names = [name for name, _ in parameters["shards"]]
    if component not in names:
        return 0.0
    sizes = {name: manifest.content.components[name].tokens.get(TRAINED_SPLIT, 0) for name in names}
    rows, start = 0.0, 0
    for weights, length in parameters["phases"]:
        stop = math.inf if length is None else start + length
        taken = sum(max(0, min(one["end_position"], stop) - max(one["first_position"], start)) for one in ranges)
        shares = weights or sizes
        total = sum(shares.values())
        rows += taken * (shares.get(component, 0) / total if total else 0.0)
        start = 0 if length is None else int(stop)
    return rows * parameters["sequence_length"] / sizes[component] if sizes[component] else 0.0


def _read(run: str) -> tuple[dict[str, Any], list[dict[str, int]]]:
    path = Path(run)
    path = path / LEDGER if path.is_dir() else path
    try:
        # A killed run can leave half a line, of steps that no checkpoint counts.
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
        header, *ranges = lines
        loader = header["loader"]
        shards, phases = [name for name, _ in loader["shards"]], [rows for _, rows in loader["phases"]]
        numbers = [int(one[key]) for one in ranges for key in ("first_position", "end_position", "last_step")]
        assert (
            isinstance(header["manifest_digest"], str)
            and loader["sequence_length"] > 0
            and shards
            and phases
            and len(numbers) >= 0
        )
    except (OSError, ValueError, KeyError, TypeError, AssertionError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no ledger of a training run"
        raise LedgerError(f"{path}: {reason}") from None
    return header, ranges
