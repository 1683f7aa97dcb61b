"""Averages of weights over the course of a run: a running one while it trains (EMA), and a mean of late checkpoints afterwards.

Weights bounce about at the end of a run, more so at a high rate; their average often lies lower (Polyak and Juditsky 1992;
Izmailov et al. 2018). An average is weights like any others: it is scored by the same evaluator on the same documents.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.configuration import ConfigurationError
from trainer.distributed.parallel import Layout, local
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors, released, rewind
from trainer.run_files.checkpoint_format import CheckpointError, State
from trainer.run_files.saved_options import saved_options

RECORD = "average.json"
SAME = ("architecture", "tokenizer_sha256", "loader_digest", "continued")
"""Of a checkpoint's state: what those of one run agree on."""


class Ema:
    """The running average of a model's weights: the mean of those after every update so far, where each weighs `decay` times the
    one after it. So initial weights have no part in it, and in a run much shorter than 1 / (1 - decay) it is nearly the plain
    mean. Float32, where the parameters lie and cut as they are: 4 bytes more a parameter.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._parameters = dict(model.named_parameters())
        self.shadow = {
            name: torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            for name, parameter in self._parameters.items()
        }

    @torch.no_grad()
    def add(self) -> None:
        """Takes the weights as they are, after an update."""
        self.updates += 1
        share = (1.0 - self.decay) / (1.0 - self.decay**self.updates)
        averages, weights = self._parts()
        torch._foreach_lerp_(averages, weights, share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the model has the average for weights; afterwards its own again."""
        averages, weights = self._parts()
        own = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, own)

    def restore(self, folder: Path, state: State, layout: Layout) -> None:
        """Goes on from a checkpoint's average."""
        checkpoint_tensors.load_ema(folder, self.shadow, layout)
        self.updates = state.ema_updates

    def _parts(self) -> tuple[list[Tensor], list[Tensor]]:
        """What this rank holds, of the averages and of the weights."""
        return [local(one) for one in self.shadow.values()], [local(one.detach()) for one in self._parameters.values()]


@dataclass(frozen=True)
class Average:
    """`record` is what `average.json` holds."""

    folder: Path
    steps: list[int]
    record: dict[str, Any]


def average(run: Path, out: Path, last: int | None = None, steps: Sequence[int] = (), ema: bool = False) -> Average:
    """Writes the mean of a run's `last` checkpoints, or of those of `steps`, to the new folder `out`, as a checkpoint without an
    optimiser: summed in float64, rounded to float32 once. With `ema`, the running average that the newest checkpoint (or that of
    the one step) holds; `run` can be a checkpoint or a release then. The same checkpoints give the same bytes.

    ConfigurationError for what cannot be averaged, CheckpointError for what is missing, damaged, not finite, or of another run.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is there already; name a new folder")
    if (run / checkpoint_format.CHECKPOINTS).resolve() in out.resolve().parents:
        raise ConfigurationError(f"{out} is among the run's own checkpoints; name another folder")
    alone = _alone(run) if ema else None
    if alone is not None and (last is not None or steps):
        raise ConfigurationError(f"{run} is one checkpoint, with one running average: leave --last and --steps out")
    folders = [alone] if alone else [rewind.checkpoint_of(run, step) for step in _chosen(run, last, steps, ema)]
    states = [checkpoint.load_state(folder) for folder in folders]
    _refuse_strangers(folders, states)
    state, chosen = states[-1], [one.step for one in states]
    called = [f"step-{step:08d}" for step in chosen]
    names = [f"{name} {checkpoint.identity(folder)}" for name, folder in zip(called, folders, strict=True)]
    record: dict[str, Any] = {
        "kind": "ema" if ema else "mean",
        "of": [
            {"checkpoint": name, "step": one.step, "tokens": one.tokens, "weights_sha256": checkpoint.identity(folder)}
            for name, folder, one in zip(called, folders, states, strict=True)
        ],
        **({"decay": state.config.get("ema"), "updates": state.ema_updates} if ema else {}),
        "manifest_digest": state.manifest_digest,
        "tokenizer_sha256": state.tokenizer_sha256,
        "loader_digest": state.loader_digest,
    }
    tensors = dict(checkpoint_tensors.weights_in(folders[0], ema=True)) if ema else _mean(folders)
    if endless := next((name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()), None):
        raise CheckpointError(f"{folders[-1]}: {endless} is not finite in one of the checkpoints at least: there is no average")
    told = json.dumps(record, indent=1) + "\n"
    lineage = [*state.lineage, *(name for name in names if name not in state.lineage)]
    averaged = state.model_copy(update={"lineage": lineage, "ema_updates": 0})
    checkpoint.write_weights(out, averaged, tensors, {RECORD: told})
    return Average(out, chosen, record)


def _alone(run: Path) -> Path | None:
    """The checkpoint that `run` is, or holds as a release does; None of a run. CheckpointError where it is damaged."""
    folder = released.weights_folder(run)
    if not (folder / checkpoint_format.RECORD).exists():
        return None
    if wrong := checkpoint.fault(folder):
        raise CheckpointError(wrong)
    return folder


def _chosen(run: Path, last: int | None, steps: Sequence[int], ema: bool) -> list[int]:
    """The steps of the checkpoints that are averaged, in turn."""
    if last is not None and steps:
        raise ConfigurationError("checkpoints are the last ones, or those of the steps that are named: give --last or --steps")
    kept = rewind.steps_kept(run)
    if not kept:
        raise CheckpointError(f"{run}: not a run with a complete checkpoint")
    if not steps:
        _refuse_gaps(run, kept[-(1 if ema or not last else last) :])
    if ema:
        if last is not None or len(steps) > 1:
            raise ConfigurationError("a checkpoint holds one running average: leave --last out, and give one step at most")
        return list(steps) or kept[-1:]
    chosen = sorted(set(steps)) if steps else kept[-last:] if last else []
    if len(chosen) < 2 and (last or 0) < 2:
        raise ConfigurationError("an average is one of two checkpoints or more: --last K, or --steps for each of them")
    if last is not None and len(kept) < last:
        raise CheckpointError(
            f"{run} keeps checkpoints of steps {', '.join(map(str, kept))}, not {last}; a run that is trained with "
            f"--checkpoint-every N --keep {last} (or more) keeps its last {last}"
        )
    return chosen


def _refuse_gaps(run: Path, chosen: list[int]) -> None:
    """The newest are those that nobody named, so none that is not whole may be passed over."""
    for folder in checkpoint.newest_first(run):
        if (step := checkpoint.step_of(folder)) < chosen[0]:
            return
        if step not in chosen:
            wrong = checkpoint.fault(folder) or "it is not whole"
            raise CheckpointError(f"{wrong}; name the checkpoints to be averaged: --steps {' --steps '.join(map(str, chosen))}")


def _refuse_strangers(folders: Sequence[Path], states: Sequence[State]) -> None:
    newest = states[-1]
    _, config = saved_options(folders[-1], newest)
    for folder, state in zip(folders, states, strict=True):
        differing = [name for name in SAME if getattr(state, name) != getattr(newest, name)]
        try:
            differing += config.differences(state.config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder}: of another version: {error!r}") from None
        if differing:
            raise CheckpointError(
                f"{folder} and {folders[-1].name} are not of one run, and have no average: they differ in {'; '.join(differing)}"
            )


def _mean(folders: Sequence[Path]) -> dict[str, Tensor]:
    """One tensor of all checkpoints at a time is in memory, beside the result."""
    found: dict[str, Tensor] = {}
    for parts in zip(*(checkpoint_tensors.weights_in(folder) for folder in folders), strict=True):
        names = {name for name, _ in parts}
        shapes = {tuple(tensor.shape) for _, tensor in parts}
        if len(names) > 1 or len(shapes) > 1:
            raise CheckpointError(f"{folders[0].parent}: {', '.join(sorted(names))} is not the same tensor in all of them")
        total = torch.zeros(parts[0][1].shape, dtype=torch.float64)
        for _, tensor in parts:
            total += tensor.double()
        found[parts[0][0]] = (total / len(folders)).float()
    return found
