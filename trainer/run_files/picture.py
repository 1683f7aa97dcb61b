"""The picture of a run: loss over tokens, with the learning rate below it, as PNG."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from trainer.run_files.metrics import METRICS, read_rows

PICTURE = "loss.png"
SMOOTHING_SHARE = 50
"""The smoothed line averages over a fiftieth of the run; one of a step would be the loss itself, and is not drawn."""


def draw(run: Path, title: str) -> Path | None:
    """Draws `loss.png` from a run's metrics and returns its path; None when matplotlib or the metrics are not there."""
    rows = [row for row in read_rows(run / METRICS) if row["loss"] is not None]
    if not rows or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    tokens = [row["tokens"] for row in rows]
    losses = [row["loss"] for row in rows]
    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    lines = list(curves(losses).items())
    for name, values in lines[:-1]:
        above.plot(tokens, values, color="0.75", linewidth=0.8, label=name)
    above.plot(tokens, lines[-1][1], color="C0", linewidth=1.8, label=lines[-1][0])
    above.set_ylabel("loss, nats per token")
    above.set_title(title)
    above.legend()
    below.plot(tokens, [row["learning_rate"] for row in rows], color="C1")
    below.set_ylabel("rate")
    below.set_xlabel("tokens")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    (run / PICTURE).unlink(missing_ok=True)  # a link would be written through
    figure.savefig(run / PICTURE, dpi=120)
    return run / PICTURE


def curves(losses: list[float]) -> dict[str, list[float]]:
    """What is drawn, by its name in the legend: each step, and above it a smoothed line where that is another one."""
    window = len(losses) // SMOOTHING_SHARE
    return {"each step": losses, **({"smoothed": _smoothed(losses, window)} if window > 1 else {})}


def _smoothed(values: list[float], window: int) -> list[float]:
    """An average that forgets, corrected for its start."""
    keep = 1 - 1 / window
    smoothed, total, weight = [], 0.0, 0.0
    for value in values:
        total = keep * total + value
        weight = keep * weight + 1
        smoothed.append(total / weight)
    return smoothed
