"""How sure a share of right answers is, and whether two models' answers to the same questions differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DEVIATIONS = 1.959963984540054
"""Of a normal distribution, on both sides of 95 %."""
RESAMPLES, SEED = 10_000, 0


@dataclass(frozen=True)
class Paired:
    """Answers of two models to the same questions. `gained`: those that only the second has right, `lost`: only the first.

    `difference`: in shares of right answers, second minus first, with a 95 % bootstrap interval over questions. `p`: two-sided,
    exact (McNemar 1947 by the binomial): how often as uneven a split of gained and lost would come of a fair coin.
    """

    questions: int
    gained: int
    lost: int
    difference: float
    interval: tuple[float, float]
    p: float


def wilson(right: int, questions: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927); (0, 1) of no question. It stays within 0 and 1, and has a width at either end."""
    if not 0 <= right <= questions:
        raise ValueError(f"{right} of {questions} cannot be right")
    if not questions:
        return 0.0, 1.0
    share, square = right / questions, DEVIATIONS**2
    middle = (share + square / (2 * questions)) / (1 + square / questions)
    wide = DEVIATIONS / (1 + square / questions) * math.sqrt(share * (1 - share) / questions + square / (4 * questions**2))
    return (0.0 if not right else middle - wide), (1.0 if right == questions else middle + wide)


def paired(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Of answers in the same order, of one question at least."""
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} answers are no pairs")
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    count = len(first)
    shares = [gained / count, lost / count, (count - gained - lost) / count]
    drawn = np.random.default_rng(SEED).multinomial(count, shares, size=RESAMPLES)  # as if questions were drawn anew
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / count, [0.025, 0.975])
    return Paired(count, gained, lost, (gained - lost) / count, (float(low), float(high)), _mcnemar(gained, lost))


def _mcnemar(gained: int, lost: int) -> float:
    uneven = gained + lost
    tail = sum(math.comb(uneven, n) for n in range(min(gained, lost) + 1))
    return min(1.0, float(2 * tail / 2**uneven))
