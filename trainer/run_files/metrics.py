"""metrics.jsonl: one line a step, and the check that stops a run whose loss is not a number or above LOSS_LIMIT.

Readings are made on the device and copied to the host without waiting; they are looked at DELAY steps later, so neither
logging nor the check makes the host wait for the step that is running.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifests.storage import Folder

METRICS = "metrics.jsonl"
LOSS_LIMIT = 100.0
"""A loss in nats that no working model has: a uniform guess over 2^32 tokens costs 22."""
DELAY = 2
"""Steps between a reading and the look at it; it also keeps the host from running further ahead of the device."""


class DivergedError(Exception):
    """The loss is not finite or above LOSS_LIMIT: going on would waste the machine."""


class MetricsError(Exception):
    """A metrics file that no run has written; names the line."""


@dataclass
class _Reading:
    facts: dict[str, Any]
    values: Tensor
    event: torch.cuda.Event | None
    since: torch.cuda.Event | None
    """When the step before it ended."""


class Readings:
    """A queue of per-step values on their way from the device; `take` yields those that are old enough."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._waiting: deque[_Reading] = deque()
        self._since: torch.cuda.Event | None = None

    def mark(self) -> None:
        """The next step begins now, by the device's clock."""
        self._since = self._now()

    def put(self, facts: dict[str, Any], values: Tensor) -> None:
        if self.device.type == "cuda":
            held = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            held.copy_(values, non_blocking=True)
        else:
            held = values.clone()
        event = self._now()
        self._waiting.append(_Reading(facts, held, event, self._since))
        self._since = event

    def take(self, all_of_them: bool = False) -> Iterator[tuple[dict[str, Any], list[float], float | None]]:
        """(facts, values, seconds that the step took on the device, or None where only the host has a clock)."""
        delay = 0 if all_of_them or self.device.type != "cuda" else DELAY
        while len(self._waiting) > delay:
            reading = self._waiting.popleft()
            if reading.event is not None:
                reading.event.synchronize()
            took = None if reading.since is None or reading.event is None else reading.since.elapsed_time(reading.event) / 1e3
            yield reading.facts, reading.values.tolist(), took

    def _now(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class Metrics:
    """The metrics file of a run. A resumed run first forgets the lines after its checkpoint's step. `follow` gets rows too."""

    def __init__(self, run: Path, step: int, follow: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.path = run / METRICS
        rows = zip(read_lines(self.path), read_rows(self.path), strict=True) if step else ()
        Folder(str(run.absolute())).write(METRICS, "".join(line + "\n" for line, row in rows if row["step"] <= step).encode())
        self._file = open(self.path, "a")  # noqa: SIM115 - open as long as the run is
        self._follow = follow

    def write(self, row: dict[str, Any]) -> None:
        """Figures that are not finite are written as null: JSON has no other word for them."""
        try:
            self._file.write(json.dumps(_finite(row)) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        if self._follow:
            self._follow(row)

    def close(self) -> None:
        self._file.close()


def check_step(step: int, loss: float, gradient_norm: float) -> DivergedError | None:
    """What is to be raised when a step's loss, or the gradient it was updated with, shows that going on is useless."""
    if not math.isfinite(loss) or loss > LOSS_LIMIT:
        what = f"the loss is {loss:g} (limit {LOSS_LIMIT:g})"
    elif not math.isfinite(gradient_norm):
        what = f"the gradient norm is {gradient_norm:g}"
    else:
        return None
    return DivergedError(f"step {step}: {what}; stopped. A lower --learning-rate or a longer --warmup usually helps")


def read_lines(path: Path) -> list[str]:
    """Complete lines of a file that may not exist; a killed run can leave half a line. MetricsError when it is no text."""
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise MetricsError(f"{path}: unreadable: {error}") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines as they were written; MetricsError names one that is none of a run."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json.loads(line)
            if type(row["step"]) is not int:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise MetricsError(f"{path}: line {number} is not a step of a run") from None
        rows.append(row)
    return rows


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
