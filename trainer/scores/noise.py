"""Seed noise: how far val_bpb differs between runs that differ in nothing but their seed, and whether two groups of runs differ
by more than that.

The noise is the standard deviation of a single run (n - 1 in the denominator), pooled over both groups. Two groups are said to
differ when their means are further apart than NOISES of it and the 95 % interval of the difference (Welch 1947, whose groups need
not have the same variance) does not hold 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

NOISES = 3.0
CONFIDENCE = 0.95
SAME = ("split", "sequence_length", "documents_sha256", "evaluator_sha256")
"""What scores must agree on to be compared."""
MAY_DIFFER = {"seed", "out", "manifest", "cache"}
RESULT, CONFIG = "result.json", "config.json"


class NoiseError(Exception):
    """Runs that cannot be compared, or too few of them."""


@dataclass(frozen=True)
class Group:
    """Runs that are alike: their scores, and `differing` names of options in which they are not."""

    runs: list[str]
    seeds: list[int | None]
    scores: list[float]
    mean: float
    deviation: float | None
    differing: list[str]


@dataclass(frozen=True)
class Comparison:
    """`difference`: second mean minus first. `noise`: of a single run. `interval`: of the difference, 95 %."""

    difference: float
    noise: float
    noises: float
    interval: tuple[float, float]
    differ: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def group(runs: Sequence[Path]) -> Group:
    """The scores of some finished runs. NoiseError names a run that has none, or whose score does not compare."""
    if not runs:
        raise NoiseError("there is no run")
    results = [_read(run / RESULT) for run in runs]
    configs = [_read(run / CONFIG) for run in runs]
    _comparable(runs, results)
    scores = [float(result["score"]["val_bpb"]) for result in results]
    names = sorted({name for config in configs for name in config} - MAY_DIFFER)
    differing = [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]
    return Group(
        [str(run) for run in runs],
        [config.get("seed") for config in configs],
        scores,
        float(np.mean(scores)),
        float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        differing,
    )


def compare(first: Group, second: Group) -> Comparison:
    """Whether two groups of two runs or more differ; NoiseError for fewer, or when their scores do not compare."""
    if first.deviation is None or second.deviation is None:
        raise NoiseError("a group of one run says nothing of noise: give at least two runs, with other seeds, on both sides")
    runs = [Path(run) for run in (*first.runs, *second.runs)]
    _comparable(runs, [_read(run / RESULT) for run in runs])
    counts = len(first.scores), len(second.scores)
    noise = math.sqrt(
        ((counts[0] - 1) * first.deviation**2 + (counts[1] - 1) * second.deviation**2) / (counts[0] + counts[1] - 2)
    )
    difference = second.mean - first.mean
    low, high = welch(difference, (first.deviation, second.deviation), counts)
    noises = abs(difference) / noise if noise else math.inf if difference else 0.0
    return Comparison(difference, noise, noises, (low, high), noises > NOISES and not low <= 0 <= high)


def welch(difference: float, deviations: tuple[float, float], counts: tuple[int, int]) -> tuple[float, float]:
    """The 95 % interval of a difference of means, with Welch's degrees of freedom."""
    parts = [deviation**2 / count for deviation, count in zip(deviations, counts, strict=True)]
    if not sum(parts):
        return difference, difference
    degrees = sum(parts) ** 2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    wide = student((1 + CONFIDENCE) / 2, degrees) * math.sqrt(sum(parts))
    return difference - wide, difference + wide


def student(probability: float, degrees: float) -> float:
    """The quantile of Student's t (for 1 degree or more), to about 1e-6: with t = sqrt(v) tan(a), the density of a is in
    proportion to cos(a)^(v - 1)."""
    angle = np.linspace(-math.pi / 2, math.pi / 2, 400_001)
    density = np.cos(angle).clip(min=0) ** (degrees - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(degrees) * math.tan(float(np.interp(probability, below / below[-1], angle)))


def _comparable(runs: Sequence[Path], results: Sequence[dict[str, Any]]) -> None:
    for run, result in zip(runs, results, strict=True):
        if not isinstance(result.get("score"), dict) or not isinstance(result["score"].get("val_bpb"), (int, float)):
            raise NoiseError(f"{run / RESULT}: the run was not scored")
    for name in SAME:
        said = [result["score"].get(name) for result in results]
        other = next((n for n, one in enumerate(said) if one != said[0]), None)
        if other is not None:
            raise NoiseError(
                f"{runs[other]} and {runs[0]} do not compare: {name} is {said[other]!r}, and {said[0]!r}"
                + ("; score both with one version: corpusmill evaluate" if name == "evaluator_sha256" else "")
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NoiseError(f"{path} is not there: {path.parent} is no finished run") from None
    except (OSError, ValueError) as error:
        raise NoiseError(f"{path}: unreadable: {error}") from None
    if not isinstance(found, dict):
        raise NoiseError(f"{path}: not what a run writes")
    return found
