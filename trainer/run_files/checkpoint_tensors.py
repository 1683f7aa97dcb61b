"""The tensors of a checkpoint, read where they lie, by any number of ranks in any layout."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.distributed.parallel import ALONE, Layout, local
from trainer.run_files.checkpoint_format import (
    FILE_NAME,
    FORMAT,
    INDEX,
    RANDOM,
    RECORD,
    WEIGHTS,
    CheckpointError,
    Entry,
    Index,
    Part,
    dtype_name,
    in_a_line,
    plain_file,
    read_record,
    read_text,
    states_of,
    weights_of,
)

OPTIMISER_KEY = re.compile(r"(.+)\.([a-z_]+)")
ADAMW_STATES = frozenset({"step", "exp_avg", "exp_avg_sq"})
NAMES_TOLD = 10


def load_weights(folder: Path, model: torch.nn.Module, layout: Layout = ALONE) -> None:
    """Fills `model`, or this rank's shards of it; CheckpointError names what is missing or has another shape."""
    wanted = weights_of(model)
    with _opened(folder) as held:
        _same_names(folder, set(wanted), set(held.index.model))
        for name, tensor in wanted.items():
            held.fill(name, held.index.model[name], tensor, layout)


def load_ema(folder: Path, shadow: dict[str, Tensor], layout: Layout = ALONE) -> None:
    """Fills the running average of the weights, by parameter, or this rank's shards of it."""
    with _opened(folder) as held:
        _same_names(folder, set(shadow), set(held.index.ema))
        for name, tensor in shadow.items():
            held.fill(name, held.index.ema[name], tensor, layout)


def load_optimiser(folder: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, layout: Layout = ALONE) -> None:
    """Fills the optimiser's state, or this rank's shards of it, and torch's random state. Rates and decay are the run's own."""
    with _opened(folder) as held:
        index = held.index.optimiser
        if not index and (folder / INDEX).exists():
            raise CheckpointError(f"{folder}: it holds weights alone; it can be scored or begun with (--from), but not resumed")
        if RANDOM not in index:
            raise CheckpointError(
                f"{folder}: saved by an earlier version, whose optimiser is a pickle that is not read any more; it can be scored "
                "by corpusmill evaluate, but not trained on"
            )
        steps_on_device = {
            id(parameter): bool(group.get("fused") or group.get("capturable"))
            for group in optimiser.param_groups
            for parameter in group["params"]
        }
        parameters = weights_of(model)
        wanted = states_of(model, optimiser)  # where it has a state of other shapes than its parameters have
        random = torch.empty_like(torch.get_rng_state())
        held.fill(RANDOM, index[RANDOM], random, ALONE)
        optimiser.state.clear()
        for name, entry in index.items():
            found = OPTIMISER_KEY.fullmatch(name)
            if name == RANDOM:
                continue
            if found is None or found[1] not in parameters:
                raise CheckpointError(f"{folder / INDEX}: {name} belongs to no parameter of this model")
            parameter = parameters[found[1]]
            if entry.shape == list(parameter.shape):
                state = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            elif not entry.shape:
                place = parameter.device if steps_on_device[id(parameter)] else "cpu"
                state = torch.zeros((), dtype=torch.float32, device=place)
            elif name in wanted and entry.shape == list(wanted[name].shape):
                state = torch.zeros_like(wanted[name], dtype=torch.float32)
            else:
                raise CheckpointError(f"{folder / INDEX}: {name} has shape {entry.shape}, its parameter {list(parameter.shape)}")
            held.fill(name, entry, state, ALONE if layout.everywhere(state) else layout)
            optimiser.state[parameter][found[2]] = state
        _refuse_other_states(folder, parameters, optimiser, wanted)
        try:
            torch.set_rng_state(random)
        except RuntimeError as error:
            raise CheckpointError(f"{folder}: {error}") from None


def weights_in(folder: Path, ema: bool = False) -> Iterator[tuple[str, Tensor]]:
    """The weights, or their running average, whole, one tensor at a time, by name."""
    weights_held(folder)
    with _opened(folder) as held:
        index = held.index.ema if ema else held.index.model
        if not index:
            raise CheckpointError(f"{folder}: it holds no {'running average: its run had no --ema' if ema else 'weights'}")
        for name, entry in sorted(index.items()):
            if name not in held.index.model or entry.shape != held.index.model[name].shape:
                raise CheckpointError(f"{folder / INDEX}: {name} is no average of a weight")
            tensor = torch.empty(entry.shape, dtype=torch.float32)
            held.fill(name, entry, tensor, ALONE)
            yield name, tensor


def weights_held(folder: Path) -> tuple[int, int]:
    """(tensors, numbers in them) of the weights that a checkpoint's files are large enough to hold. CheckpointError where its
    index says more: whoever builds a model of that size would wait for memory that is not there."""
    with _opened(folder) as held:
        entries = held.index.model.values()
        numbers = sum(math.prod(entry.shape) for entry in entries if all(size >= 0 for size in entry.shape))
        files = {part.file for entry in entries for part in entry.parts}
        size = sum(os.lstat(folder / name).st_size for name in files if FILE_NAME.fullmatch(name))
    if numbers > size:
        raise CheckpointError(f"{folder / INDEX}: {numbers:,} numbers, in files of {size:,} bytes")
    return len(entries), numbers


def _refuse_other_states(
    folder: Path, parameters: dict[str, Tensor], optimiser: torch.optim.Optimizer, wanted: dict[str, Tensor]
) -> None:
    """An optimiser that lacks a state would fail at its next step, or begin anew without a sign of it."""
    own = {name: {key.rpartition(".")[2] for key in wanted if key.rpartition(".")[0] == name} for name in parameters}
    there = {name: set(optimiser.state.get(parameter, {})) for name, parameter in parameters.items()}
    begun = any(there[name] for name in parameters if not own[name])
    for name in parameters:
        expected = own[name] or (ADAMW_STATES if begun else set())
        if there[name] != expected:
            has, should = (", ".join(sorted(one)) or "none" for one in (there[name], expected))
            raise CheckpointError(f"{folder / INDEX}: the optimiser's states of {name} are {has}, and should be {should}")


class _Held:
    """The tensors of a checkpoint, read where they lie."""

    def __init__(self, folder: Path, open_file: Callable[[str], Any]) -> None:
        self.folder, self._open = folder, open_file
        path = folder / INDEX
        try:
            if os.path.lexists(path):
                self.index = Index.model_validate_json(read_text(path))
            else:  # of format 1
                file = open_file(WEIGHTS)
                names = list(file.keys())
                self.index = Index(format=FORMAT, model={name: _whole(file, name) for name in names}, optimiser={})
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {in_a_line(error)}") from None

    def dtype(self, name: str, entry: Entry) -> torch.dtype:
        found = getattr(torch, entry.dtype, None)
        if not isinstance(found, torch.dtype):
            raise CheckpointError(f"{self.folder / INDEX}: {name} is of {entry.dtype!r}, which is no type of tensors")
        return found

    def fill(self, name: str, entry: Entry, into: Tensor, layout: Layout) -> None:
        """Copies this rank's rows of a tensor from the parts that hold them. CheckpointError unless shapes agree and the parts
        make up the whole."""
        where = f"{self.folder / INDEX}: {name}"
        if entry.shape != list(into.shape):
            raise CheckpointError(f"{where} has shape {entry.shape}, and this model needs {list(into.shape)}")
        if self.dtype(name, entry) != into.dtype:
            raise CheckpointError(f"{where} is of {entry.dtype}, and not of {dtype_name(into.dtype)}")
        own, count = local(into), entry.shape[0] if entry.shape else 1
        first, rows = layout.rows(count) if entry.shape else (0, 1)
        at = 0
        for part in sorted(entry.parts, key=lambda part: part.first):
            if part.first != at or at + part.rows > count:
                raise CheckpointError(f"{where}: its parts do not make up {count} rows")
            at += part.rows
            low, high = max(first, part.first), min(first + rows, part.first + part.rows)
            if low < high:
                self._copy(name, entry, part, own, (low, high), first)
        if at != count:
            raise CheckpointError(f"{where}: its parts make up {at} of {count} rows")

    def _copy(self, name: str, entry: Entry, part: Part, own: Tensor, rows: tuple[int, int], first: int) -> None:
        if not FILE_NAME.fullmatch(part.file):
            raise CheckpointError(f"{self.folder / INDEX}: {part.file!r} is not the name of a file beside it")
        source = self._open(part.file)
        low, high = rows
        with torch.no_grad():
            if not entry.shape:
                read = source.get_tensor(name)
            else:
                read = source.get_slice(name)[low - part.first : high - part.first]
                own = own[low - first : high - first]
            if read.shape != own.shape or read.dtype != self.dtype(name, entry):
                raise CheckpointError(f"{self.folder / part.file}: {name} is not the tensor that the index says")
            if read.is_floating_point() and not bool(torch.isfinite(read).all()):
                raise CheckpointError(f"{self.folder / part.file}: {name} has numbers that are not finite")
            own.copy_(read)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[_Held]:
    files: dict[str, Any] = {}
    try:
        listed = set(read_record(folder)["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / RECORD}: {in_a_line(error)}") from None
    with contextlib.ExitStack() as stack:

        def open_file(name: str) -> Any:
            if name not in files:
                if name not in listed:
                    raise CheckpointError(f"{folder / INDEX}: names {name!r}, which the completion record does not list")
                plain_file(folder / name).close()
                files[name] = stack.enter_context(safe_open(folder / name, "pt"))
            return files[name]

        try:
            yield _Held(folder, open_file)
        except (SafetensorError, OSError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"{folder}: {in_a_line(error)}") from None


def _whole(file: Any, name: str) -> Entry:
    tensor = file.get_tensor(name)
    shape = list(tensor.shape)
    return Entry(shape=shape, dtype=dtype_name(tensor.dtype), parts=[Part(file=WEIGHTS, first=0, rows=shape[0] if shape else 1)])


def _same_names(folder: Path, wanted: set[str], there: set[str]) -> None:
    if wanted != there:
        missing, more = sorted(wanted - there), sorted(there - wanted)
        raise CheckpointError(f"{folder}: missing: {_listed(missing)}; not of this model: {_listed(more)}")


def _listed(names: list[str]) -> str:
    some = ", ".join(names[:NAMES_TOLD]) or "none"
    return f"{some} and {len(names) - NAMES_TOLD:,} more" if len(names) > NAMES_TOLD else some
