"""Where a loss is heading: L(D) = L_inf + a D^-g, fitted to a run's first part, and whether the rest went elsewhere.

D are the run's target tokens. The part that is fitted begins after its first tenth and after the rate's peak. It is cut into
blocks of as many steps, and medians of these are fitted: a spike moves none. For every g the other two are a linear least-squares
fit, both 0 or more; g is searched. What the curve leaves of the blocks is the noise (1.4826 times the median absolute residual).

The fit is repeated on parts that begin later or end earlier. How far these disagree says more of what is known about the end of
the run than the residuals of one fit do, since L_inf and g trade against each other over a short part. A departure is two blocks
or more in a row beyond all of these curves, by more than three noises.

The curve knows nothing of learning rates. Under a schedule that falls, losses end below what an earlier part foretells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.steps import Steps
from trainer.run_files.run_record import RunRecord, number

Floats = npt.NDArray[np.float64]
BLOCKS, FEWEST_BLOCKS, STEPS_A_BLOCK = 25, 10, 2
SKIPPED = 0.10
"""Share of the part, by tokens, that is left out at its beginning: there losses fall as no power of D does."""
TRIMS = (0.0, 0.15, 0.3)
"""Shares by which parts begin later, and end earlier, to see how much that matters."""
SMALLEST_POWER, LARGEST_POWER, POWERS = 0.01, 4.0, 400
NOISES, IN_A_ROW = 3.0, 2
MAD_TO_DEVIATION = 1.4826
"""Of a normal distribution: its standard deviation over its median absolute deviation."""


class ForecastError(Exception):
    """Too few steps, or losses that no such curve describes."""


@dataclass(frozen=True)
class Curve:
    """L(D) = floor + factor (D / scale)^-power, nats a token."""

    floor: float
    factor: float
    power: float
    scale: float

    def at(self, tokens: float | Floats) -> Any:
        return self.floor + self.factor * (np.asarray(tokens, np.float64) / self.scale) ** -self.power


@dataclass(frozen=True)
class Part:
    """Steps that a curve was fitted to, by their tokens, and what it foretells."""

    first_tokens: int
    last_tokens: int
    curve: Curve
    foretold: float


@dataclass(frozen=True)
class Block:
    """Some steps of the rest of a run. `low`, `high`: the band of all curves and three noises; `side`: -1 below it, 1 above."""

    first_step: int
    last_step: int
    tokens: float
    loss: float
    foretold: float
    low: float
    high: float
    side: int


@dataclass(frozen=True)
class Departure:
    first_step: int
    last_step: int
    side: str
    """`above` or `below`."""
    furthest: float
    """The largest distance from the curve, in nats."""


@dataclass(frozen=True)
class Forecast:
    """`at`: the tokens that are asked about. `parts`: the whole one first. `low`, `high`: what they foretell."""

    at: float
    steps: int
    noise: float
    parts: list[Part]
    low: float
    high: float
    blocks: list[Block] = field(default_factory=list)
    departures: list[Departure] = field(default_factory=list)
    observed: float | None = None
    """The median of as many steps as a block has, the last ones, where the run got to `at`."""
    warnings: list[str] = field(default_factory=list)

    @property
    def part(self) -> Part:
        return self.parts[0]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def forecast(record: RunRecord, until: float | None = None, at: float | None = None) -> Forecast:
    """`until`: tokens at which the fitted part ends (None: half of the run). `at`: tokens to foretell the loss of (None: the
    run's budget, or its last step where that is in seconds)."""
    if not record.lines:
        raise ForecastError(f"{record.folder}: no step has a loss")
    tokens = np.array([line["tokens"] for line in record.lines], np.float64)
    losses = np.array([line["loss"] for line in record.lines], np.float64)
    steps = [int(line["step"]) for line in record.lines]
    own = _budget(record, steps[-1], tokens[-1])
    budget = own if at is None else at
    end = own / 2 if until is None else until
    for name, value in (("--until", end), ("--at", budget)):
        if not (math.isfinite(value) and value > 0):
            raise ForecastError(f"{name} {value:g}: a number of tokens above 0 is needed")
    inside = int(np.searchsorted(tokens, end, side="right"))
    begin = _begin(record, tokens, inside)
    size = max(STEPS_A_BLOCK, (inside - begin) // BLOCKS)
    if (inside - begin) // size < FEWEST_BLOCKS:
        raise ForecastError(
            f"{record.folder}: {max(0, inside - begin)} steps after the warm-up and up to {end:,.0f} tokens are too few for a "
            f"fit; {FEWEST_BLOCKS * STEPS_A_BLOCK} are needed"
        )
    if budget < tokens[begin]:
        raise ForecastError(
            f"--at {budget:,.0f}: the steps that are fitted begin at {tokens[begin]:,.0f} tokens; before them losses fall in "
            "another way"
        )
    scale = float(tokens[inside - 1])
    parts: list[Part] = []
    noise = 0.0
    for late in TRIMS:
        for early in TRIMS:
            # by steps, so that every part has its share of the blocks
            first, last = begin + round(late * (inside - begin)), inside - round(early * (inside - begin))
            x, y = _blocks(tokens[first:last], losses[first:last], min(size, max(1, (last - first) // FEWEST_BLOCKS)))
            curve = fit(x, y, scale)
            if not parts:
                noise = MAD_TO_DEVIATION * float(np.median(np.abs(y - curve.at(x))))
                if curve.factor == 0:
                    raise ForecastError(f"{record.folder}: the loss does not fall over the steps that were to be fitted")
            parts.append(Part(int(tokens[first]), int(tokens[last - 1]), curve, float(curve.at(budget))))
    foretold = [part.foretold for part in parts]
    blocks = _rest(tokens[inside:], losses[inside:], steps[inside:], size, parts, noise)
    reached = tokens[-1] >= budget * (1 - 1e-9) and bool(blocks)
    return Forecast(
        float(budget), inside - begin, noise, parts, min(foretold), max(foretold), blocks, _departures(blocks),
        float(np.median(losses[-size:])) if reached else None, _warnings(record, inside, budget, scale),
    )  # fmt: skip


def fit(tokens: Floats, losses: Floats, scale: float) -> Curve:
    """The least-squares curve with floor and factor of 0 or more; ties go to the smallest power."""
    x = tokens / scale
    grid = np.geomspace(SMALLEST_POWER, LARGEST_POWER, POWERS)
    costs = [_linear(x, losses, power)[2] for power in grid]
    best = int(np.argmin(costs))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(POWERS - 1, best + 1)])
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if _linear(x, losses, left)[2] <= _linear(x, losses, right)[2]:
            high = right
        else:
            low = left
    power = (low + high) / 2
    floor, factor, _ = _linear(x, losses, power)
    return Curve(floor, factor, power, scale)


def _linear(x: Floats, y: Floats, power: float) -> tuple[float, float, float]:
    """(floor, factor, sum of squares) of the best fit at this power."""
    z = x**-power
    spread = z - z.mean()
    factor = float(spread @ (y - y.mean()) / (spread @ spread)) if float(spread @ spread) > 0 else 0.0
    floor = float(y.mean() - factor * z.mean())
    if factor <= 0:
        floor, factor = float(y.mean()), 0.0
    elif floor < 0:
        floor, factor = 0.0, float(z @ y / (z @ z))
    residual = y - floor - factor * z
    return floor, factor, float(residual @ residual)


def _blocks(tokens: Floats, losses: Floats, size: int) -> tuple[Floats, Floats]:
    """(mean tokens, median loss) of blocks of `size` steps; a rest at the beginning is left out."""
    count = len(tokens) // size
    start = len(tokens) - count * size
    return tokens[start:].reshape(count, size).mean(axis=1), np.median(losses[start:].reshape(count, size), axis=1)


def _begin(record: RunRecord, tokens: Floats, inside: int) -> int:
    """The first step that is fitted."""
    if not inside:
        return 0
    skipped = int(np.searchsorted(tokens, SKIPPED * tokens[inside - 1]))
    rates = [number(line.get("learning_rate")) or 0.0 for line in record.lines[:inside]]
    return max(skipped, int(np.argmax(rates)))


def _budget(record: RunRecord, last_step: int, last_tokens: float) -> float:
    """Target tokens of the whole run; of one in steps, as many a row as so far."""
    config = record.config
    if config.tokens is not None:
        return float(config.tokens)
    if config.steps is not None:
        placed = Steps.of(config)
        return float(last_tokens * placed.position(config.steps + 1) / placed.position(last_step + 1))
    return float(last_tokens)


def _rest(tokens: Floats, losses: Floats, steps: Sequence[int], size: int, parts: Sequence[Part], noise: float) -> list[Block]:
    found = []
    for first in range(0, len(tokens) - size + 1, size):
        last = first + size
        at, loss = float(tokens[first:last].mean()), float(np.median(losses[first:last]))
        foretold = [float(part.curve.at(at)) for part in parts]
        low, high = min(foretold) - NOISES * noise, max(foretold) + NOISES * noise
        side = int(loss > high) - int(loss < low)
        found.append(Block(steps[first], steps[last - 1], at, loss, foretold[0], low, high, side))
    return found


def _departures(blocks: Sequence[Block]) -> list[Departure]:
    found, start = [], 0
    for n in range(1, len(blocks) + 1):
        if n < len(blocks) and blocks[n].side == blocks[start].side:
            continue
        some, side = blocks[start:n], blocks[start].side
        if side and len(some) >= IN_A_ROW:
            furthest = max((block.loss - block.foretold for block in some), key=abs)
            found.append(Departure(some[0].first_step, some[-1].last_step, "above" if side > 0 else "below", furthest))
        start = n
    return found


def _warnings(record: RunRecord, inside: int, budget: float, fitted: float) -> list[str]:
    found = []
    rates = [number(line.get("learning_rate")) for line in record.lines]
    then, last = rates[inside - 1], rates[-1]
    if inside < len(rates) and then and last is not None and last < then * 0.9:
        found.append(
            f"the rate falls from {then:.3g} to {last:.3g} after the part that was fitted: losses end below what it foretells"
        )
    elif inside == len(rates) and budget > fitted and record.config.said("final_rate") < 1:
        share = record.config.said("final_rate")
        found.append(
            f"the schedule takes the rate down to {share:g} of its peak: losses end below what a part at a higher rate foretells"
        )
    if budget > 4 * fitted:
        found.append(f"{budget:,.0f} tokens are {budget / fitted:.1f} times those that were fitted: little is known that far out")
    if record.left_out:
        found.append(f"{record.left_out:,} steps have no loss that a model can have, and are left out")
    return found
