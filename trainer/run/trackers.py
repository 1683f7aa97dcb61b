"""TensorBoard and Weights & Biases, where they are installed and asked for: the rows of metrics.jsonl, and nothing else.

W&B writes to the run's folder and sends nothing unless WANDB_MODE says `online`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.configuration import ConfigurationError, TrainConfig

TENSORBOARD, WANDB = "tensorboard", "wandb"


class Trackers:
    """Those that a run has; `write` takes a line of the metrics."""

    def __init__(self, config: TrainConfig, run: Path) -> None:
        self._write: list[Callable[[dict[str, float], int], Any]] = []
        self._close: list[Callable[[], Any]] = []
        if config.tensorboard:
            board: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(run / TENSORBOARD))
            self._write.append(lambda figures, step: [board.add_scalar(name, value, step) for name, value in figures.items()])
            self._close.append(board.close)
        if config.wandb is not None:
            mode = os.environ.get("WANDB_MODE", "offline")
            online: Any = importlib.import_module(WANDB).init(
                project=config.wandb, dir=str(run), name=run.name, mode=mode, config=config.model_dump(mode="json")
            )
            self._write.append(lambda figures, step: online.log(figures, step=step))
            self._close.append(online.finish)

    def write(self, row: dict[str, Any]) -> None:
        figures = dict(flat(row))
        for write in self._write:
            write(figures, row["step"])

    def close(self) -> None:
        for close in self._close:
            close()


def check(config: TrainConfig) -> None:
    """ConfigurationError, before anything is done, when a package that the options ask for is not installed."""
    for wanted, package in ((config.tensorboard, TENSORBOARD), (config.wandb is not None, WANDB)):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigurationError(f"--{package} needs the package {package}, which is not installed: pip install {package}")


def flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a row, `loss_by_component/web` for what is nested; what is not finite is left out."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", value
