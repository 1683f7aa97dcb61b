"""Checkpoints that are complete, and count only once they are durable.

A checkpoint is a folder `checkpoints/step-00000200` with `model.safetensors`, `optimiser.pt` (read back as plain tensors
only), `state.json` and, written last, `complete.json` with every file's size and SHA-256. All of it is written into a
temporary folder, synced, and then renamed; a save that is killed at any moment leaves the one before in place, and
`latest` passes over whatever is incomplete or damaged.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from manifests.storage import TEMPORARY_PREFIX, Folder, sha256_of, sync_directory

CHECKPOINTS = "checkpoints"
RECORD = "complete.json"
WEIGHTS, OPTIMISER, STATE = "model.safetensors", "optimiser.pt", "state.json"


class CheckpointError(Exception):
    """A checkpoint that is missing, incomplete, damaged, or of another run."""


class State(BaseModel):
    """Everything of a run that is not a tensor. `position` is the loader's whole state; `spent_seconds` the budget's clock;
    `lineage` names the checkpoints that this one descends from, oldest first."""

    model_config = ConfigDict(extra="forbid")

    step: int
    position: int
    tokens: int
    clipped_steps: int
    spent_seconds: float
    architecture: dict[str, Any]
    config: dict[str, Any]
    loader_digest: str
    manifest_digest: str
    tokenizer_sha256: str
    code_sha256: str
    lineage: list[str]


def save(run: Path, state: State, weights: dict[str, Tensor], optimiser: dict[str, Any]) -> Path:
    """Writes the checkpoint of `state.step` and returns its folder, once it is safe on disk."""
    folder = run / CHECKPOINTS / f"step-{state.step:08d}"
    temporary = folder.with_name(TEMPORARY_PREFIX + folder.name)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
    torch.save({"optimiser": optimiser, "random": torch.get_rng_state()}, temporary / OPTIMISER)
    (temporary / STATE).write_text(state.model_dump_json(indent=1) + "\n")
    files = {}
    for name in (WEIGHTS, OPTIMISER, STATE):
        with open(temporary / name, "rb") as file:
            sha256, size = sha256_of(file)
            os.fsync(file.fileno())
        files[name] = {"bytes": size, "sha256": sha256}
    Folder(temporary.absolute()).write(RECORD, (json.dumps({"step": state.step, "files": files}, indent=1) + "\n").encode())
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(temporary, folder)
    sync_directory(str(folder.parent))
    return folder


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run that is complete and undamaged, or None."""
    if not (run / CHECKPOINTS).is_dir():
        return None
    return next((folder for folder in _newest_first(run) if not fault(folder)), None)


def keep_newest(run: Path, count: int) -> None:
    """Deletes all but the `count` newest complete checkpoints, and what killed saves left behind."""
    for unfinished in (run / CHECKPOINTS).glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(unfinished)
    complete = [folder for folder in _newest_first(run) if (folder / RECORD).exists()]
    for folder in complete[count:]:
        shutil.rmtree(folder)


def fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None: the completion record is there and every file has its digest."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
        for name in (WEIGHTS, OPTIMISER, STATE):
            with open(folder / name, "rb") as file:
                sha256, size = sha256_of(file)
            if size != files[name]["bytes"] or sha256 != files[name]["sha256"]:
                return f"{folder}/{name} is not what the completion record says"
    except FileNotFoundError as error:
        return f"{error.filename} is not there: the save was not completed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{folder}: unreadable: {error}"
    return None


def damaged(run: Path) -> list[Path]:
    """Checkpoints newer than `latest` that it passed over."""
    best = latest(run)
    return [folder for folder in _newest_first(run) if best is None or folder.name > best.name]


def identity(folder: Path) -> str:
    """The SHA-256 of a complete checkpoint's weights."""
    return str(json.loads((folder / RECORD).read_text())["files"][WEIGHTS]["sha256"])


def resolve(path: Path) -> Path:
    """The checkpoint that a person means by a checkpoint's folder or a run's; CheckpointError when there is none."""
    if (path / RECORD).exists() or (path / WEIGHTS).exists():
        wrong = fault(path)
        if wrong:
            raise CheckpointError(wrong)
        return path
    found = latest(path)
    if found is None:
        raise CheckpointError(f"{path}: neither a checkpoint nor a run with a complete one")
    return found


def load_state(folder: Path) -> State:
    try:
        return State.model_validate_json((folder / STATE).read_text())
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{folder / STATE}: {error}") from None


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Fills `model`; CheckpointError names what is missing or has another shape."""
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS}: {error}") from None


def load_optimiser(folder: Path, optimiser: torch.optim.Optimizer) -> None:
    """Fills the optimiser and torch's random state."""
    try:
        held = torch.load(folder / OPTIMISER, map_location="cpu", weights_only=True)
        optimiser.load_state_dict(held["optimiser"])
        torch.set_rng_state(held["random"])
    except (RuntimeError, ValueError, KeyError, OSError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{folder / OPTIMISER}: {error}") from None


def _newest_first(run: Path) -> list[Path]:
    return sorted((run / CHECKPOINTS).glob("step-*"), reverse=True)
