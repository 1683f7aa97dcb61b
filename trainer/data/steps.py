"""Which positions a step takes: as many rows in every step, or more and more of them (`--batch-ramp`).

Worked out before the first step, in stretches of steps of the same number of rows. So the rows of a step are a function of its
number, whatever is skipped, replayed or resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trainer.configuration import TrainConfig


class Targets(Protocol):
    def targets(self, position: int) -> int:
        """Target tokens in positions 0 to `position`."""


@dataclass(frozen=True)
class Stretch:
    """Steps from `first_step` (from 1) on, each of `rows` rows over all ranks; the first row stands at `first_position`."""

    first_step: int
    first_position: int
    rows: int

    def position(self, step: int) -> int:
        return self.first_position + (step - self.first_step) * self.rows


@dataclass(frozen=True)
class Steps:
    """Stretches in turn; the last goes on for ever."""

    stretches: tuple[Stretch, ...]

    @staticmethod
    def of(config: TrainConfig, order: Targets | None = None) -> Steps:
        """A ramp's next batch begins with the first step before which its share of the budget was spent: of the steps, or of the
        target tokens that `order`, needed for a budget in tokens only, says positions to hold, passed over or not."""
        (_, rows), *ramp = config.ramp_rows
        found = [Stretch(1, 0, rows)]
        for share, rows in ramp:
            last = found[-1]
            first = _first(_reached(config, order, last, share), last.first_step)
            if first == last.first_step:  # a step of a short run can pass several shares
                found.pop()
            found.append(Stretch(first, last.position(first), rows))
        return Steps(tuple(found))

    @staticmethod
    def that_fit(config: TrainConfig, rows: int) -> int:
        """The largest budget in steps, with the ramp of a run that has one in steps, that needs `rows` rows or fewer."""
        return _first(lambda steps: Steps.of(config.model_copy(update={"steps": steps})).position(steps + 1) > rows, 1) - 1

    @property
    def most_rows(self) -> int:
        return self.stretches[-1].rows

    def rows(self, step: int) -> int:
        return self._holding(step).rows

    def position(self, step: int) -> int:
        """The first position of a step, at which the step before it ends."""
        return self._holding(step).position(step)

    def within(self, position: int) -> int:
        """How many steps end at or before a position."""
        one = next(one for one in reversed(self.stretches) if one.first_position <= position)
        return one.first_step - 1 + (position - one.first_position) // one.rows

    def _holding(self, step: int) -> Stretch:
        return next(one for one in reversed(self.stretches) if one.first_step <= step)


def _reached(config: TrainConfig, order: Targets | None, last: Stretch, share: float) -> Callable[[int], bool]:
    """Whether `share` of the budget is spent before a step that the stretch `last` goes up to."""
    if config.steps is not None:
        steps = config.steps
        return lambda step: (step - 1) / steps >= share
    assert order is not None and config.tokens is not None
    tokens = config.tokens
    return lambda step: order.targets(last.position(step)) / tokens >= share


def unit(config: TrainConfig) -> int:
    """The largest number of rows of which every step ends at a multiple, whatever the budget."""
    return math.gcd(*(rows for _, rows in config.ramp_rows))


def _first(reached: Callable[[int], bool], step: int) -> int:
    """The first step from `step` on that is `reached`, after which all are."""
    if reached(step):
        return step
    before, jump = step, 1
    while not reached(before + jump):
        before, jump = before + jump, 2 * jump
    after = before + jump
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if reached(middle) else (middle, after)
    return after
