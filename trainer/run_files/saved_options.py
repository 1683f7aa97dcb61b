"""What a checkpoint's state says of its model: shape, and the options that it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.configuration import TrainConfig
from trainer.presets import Architecture
from trainer.run_files import checkpoint_format, checkpoint_tensors


def read_shape(folder: Path, state: checkpoint_format.State) -> tuple[Architecture, TrainConfig]:
    """A checkpoint's architecture and options; CheckpointError where its files are too small for a model of that shape, or it is
    of an unknown version."""
    architecture, config = saved_options(folder, state)
    tensors, numbers = checkpoint_tensors.weights_held(folder)
    if architecture.layers > tensors or architecture.parameters() > numbers:
        raise checkpoint_format.CheckpointError(
            f"{folder}: it holds {tensors:,} tensors of {numbers:,} weights, which are no model of {architecture.layers:,} "
            f"layers of width {architecture.width:,} and a vocabulary of {architecture.vocabulary:,}"
        )
    return architecture, config


def saved_options(
    folder: Path, state: checkpoint_format.State, changes: Mapping[str, Any] | None = None
) -> tuple[Architecture, TrainConfig]:
    """Shape and options as a checkpoint's state has them, the options with `changes`; CheckpointError where they are none of this
    version."""
    try:
        config = TrainConfig.model_validate({**state.config, **(changes or {})})
        return Architecture.model_validate(state.architecture), config
    except ValidationError as error:
        told = checkpoint_format.in_a_line(error)
        raise checkpoint_format.CheckpointError(f"{folder / checkpoint_format.STATE}: of another version: {told}") from None
