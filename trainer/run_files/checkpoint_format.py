"""What a checkpoint is on disk: its files, what they hold, and how one of them is opened.

Nothing that is read is a pickle, lies outside the folder or is a link, and nothing is believed: a strange file is refused in one
line.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

CHECKPOINTS = "checkpoints"
RECORD = "complete.json"
STATE, INDEX = "state.json", "index.json"
WEIGHTS, OPTIMISER = "model.safetensors", "optimiser.safetensors"
FORMAT = 2
"""1 had one file of weights and a pickle of the optimiser: its weights can be read, its optimiser cannot."""
RANDOM = "random"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STEP_NAME = re.compile(r"step-([0-9]{8,15})")
TEXT_BYTES = 128 << 20
"""A state, index or record larger than this is none: an index has some hundred bytes for each tensor and rank."""


class CheckpointError(Exception):
    """A checkpoint that is missing, incomplete, damaged, or of another run."""


class State(BaseModel):
    """Everything of a run that is not a tensor. `position` is the loader's whole state; `spent_seconds` the budget's clock;
    `lineage` names the checkpoints that this one descends from, oldest first; `continued` is what
    `trainer.adaptation.continued` holds a run to that began with other weights; `ema_updates` are those that the running average
    of the weights has taken in."""

    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=0, lt=2**53)
    position: int = Field(ge=0, lt=2**63)
    tokens: int = Field(ge=0, lt=2**63)
    clipped_steps: int = Field(ge=0, lt=2**53)
    spent_seconds: float = Field(ge=0, allow_inf_nan=False)
    architecture: dict[str, Any]
    config: dict[str, Any]
    loader_digest: str
    manifest_digest: str
    tokenizer_sha256: str
    code_sha256: str
    lineage: list[str]
    continued: dict[str, Any] | None = None
    ema_updates: int = Field(default=0, ge=0, lt=2**53)


class Part(BaseModel):
    """Rows `first` to `first + rows` of a tensor (of one without dimensions: 0 and 1)."""

    model_config = ConfigDict(extra="forbid")

    file: str
    first: int = Field(ge=0)
    rows: int = Field(ge=1)


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    shape: list[Annotated[int, Field(ge=0, lt=2**48)]]
    dtype: str
    parts: list[Part]


class Index(BaseModel):
    """Where each tensor lies: `model` by parameter, `optimiser` by parameter and name of the state, `exp_avg` and so on, and
    `ema`, of a run that has one, by parameter."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[2]
    model: dict[str, Entry]
    optimiser: dict[str, Entry]
    ema: dict[str, Entry] = Field(default_factory=dict)


def in_a_line(error: Exception) -> str:
    """What is wrong with a file, in one line, whatever a stranger put into it."""
    if isinstance(error, ValidationError):
        first, *more = error.errors()
        at = ".".join(str(step) for step in first["loc"])
        return f"{f'{at}: ' if at else ''}{first['msg']}{f' (and {len(more)} more)' if more else ''}"
    return " ".join(str(error).split()) or type(error).__name__


def read_record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_text(folder / RECORD))
    return found


def read_text(path: Path) -> str:
    with plain_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > TEXT_BYTES:
            raise ValueError(f"{size:,} bytes are too many")
        return str(file.read().decode())


def plain_file(path: Path) -> BinaryIO:
    """Opened for reading. OSError for a link, which can lead anywhere, and for a pipe or device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a plain file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def states_of(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Tensors of an optimiser's state by parameter and name; each is as its parameter is, or the same on every rank."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in sorted(optimiser.state.get(parameter, {}).items())
        if isinstance(value, Tensor)
    }


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
