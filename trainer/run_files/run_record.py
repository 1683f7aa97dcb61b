"""What a training run left behind, read without torch: its shape, its options and the lines of its metrics."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from manifests.storage import json_object
from trainer.configuration import TrainConfig
from trainer.presets import Architecture

SETTLED_SHARE = 0.5
"""Speed is the median of the last half of the steps: the first ones compile, allocate and fill caches."""
LARGEST_LOSS = 1e6
"""Nats a token: the trainer ends a run long before. What is larger, or below 0, is no loss."""
CONFIG, RUN, METRICS = "config.json", "run.json", "metrics.jsonl"


class RecordError(Exception):
    """A folder that is no run, or whose files say something impossible; names the file."""


@dataclass(frozen=True)
class RunRecord:
    """`lines` are those of metrics.jsonl with a loss, a number from 0 to LARGEST_LOSS, by step; `left_out` had none."""

    folder: Path
    config: TrainConfig
    architecture: Architecture
    ranks: int
    shards: int
    device: str
    dtype: str
    manifest_digest: str
    lines: list[dict[str, Any]]
    left_out: int

    @staticmethod
    def read(folder: Path) -> RunRecord:
        config, run = (
            json_object(folder / name, RecordError, f"{folder / name} is not there: {folder} is no run") for name in (CONFIG, RUN)
        )
        try:
            ranks = int(run["ranks"])
            found = RunRecord(
                folder,
                TrainConfig.model_validate(config),
                Architecture.model_validate(run["architecture"]),
                ranks,
                int(run.get("shards", 1)),
                str(run["device"]),
                str(run["dtype"]),
                str(run["manifest_digest"]),
                *_lines(folder / METRICS),
            )
        except ValidationError as error:
            raise RecordError(f"{folder}: of another version: {error.errors()[0]['msg']}") from None
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RecordError(f"{folder / RUN}: not what a run writes: {error}") from None
        if ranks < 1 or found.shards < 1:
            raise RecordError(f"{folder / RUN}: {ranks} ranks in {found.shards} shards are none")
        return found

    @property
    def tokens_per_second(self) -> float | None:
        """Targets a second over all ranks."""
        return self._settled("tokens_per_second")

    @property
    def mfu(self) -> dict[str, float | None]:
        """The two figures of the metrics, in their own conventions."""
        return {name: self._settled(name) for name in ("mfu_palm", "mfu_causal_exact")}

    @property
    def memory(self) -> float | None:
        """Peak, in bytes: of the first rank's GPU, or of its process where there is none."""
        found = [value for line in self.lines if (value := number(line.get("memory_gb"))) is not None]
        return max(found) * 1e9 if found else None

    def _settled(self, name: str) -> float | None:
        late = self.lines[int(len(self.lines) * SETTLED_SHARE) :]
        found = [value for line in late if (value := number(line.get(name))) is not None and value > 0]
        return statistics.median(found) if found else None


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return found if math.isfinite(found) else None


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """A run that was killed can leave half a last line, which does not count."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], 0
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: unreadable: {error}") from None
    kept: list[dict[str, Any]] = []
    left_out = 0
    for place, line in enumerate(text.split("\n")[:-1], 1):
        try:
            row = json.loads(line)
            step, tokens, loss = row["step"], row["tokens"], number(row["loss"])
            if not isinstance(step, int):
                raise ValueError("steps are whole numbers")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RecordError(f"{path}: line {place} is not a step of a run") from None
        if (before := kept[-1]["step"] if kept else 0) >= step:
            raise RecordError(f"{path}: line {place} is step {step}, after step {before}")
        if loss is None or not 0 <= loss <= LARGEST_LOSS or (number(tokens) or 0) <= 0:
            left_out += 1
        else:
            kept.append(row)
    return kept, left_out
