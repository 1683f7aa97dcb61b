"""Checkpoints that are complete, and count only once they are durable.

A checkpoint is a folder `checkpoints/step-00000200`. Every rank writes what it holds as safetensors, shared out where several
hold the same (`model-00002-of-00004.safetensors`, `optimiser-…`; a lone rank `model.safetensors`); `index.json` says which rows
of which tensor lie in which file, `state.json` has everything else. All of it is copied to the host first and written in the
background, into a temporary folder. When every rank's files are synced, the first rank writes `complete.json` with each
file's size and SHA-256, and renames the folder. A save that is killed at any moment leaves the one before in place, and
`newest` passes over whatever is incomplete or damaged.

Any number of ranks, in any layout, reads what any other wrote. Nothing that is read is a pickle, lies outside the folder or is
a link, and nothing is believed: a strange file is refused in one line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from manifests.manifest import digest
from manifests.storage import TEMPORARY_PREFIX, Folder, sha256_of, sync_directory
from trainer.distributed.parallel import ALONE, Layout, local
from trainer.distributed.ranks import Ranks

CHECKPOINTS = "checkpoints"
RECORD = "complete.json"
STATE, INDEX = "state.json", "index.json"
WEIGHTS, OPTIMISER = "model.safetensors", "optimiser.safetensors"
FORMAT = 2
"""1 had one file of weights and a pickle of the optimiser: its weights can be read, its optimiser cannot."""
RANDOM = "random"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STEP_NAME = re.compile(r"step-([0-9]{8,15})")
OPTIMISER_KEY = re.compile(r"(.+)\.([a-z_]+)")
ADAMW_STATES = frozenset({"step", "exp_avg", "exp_avg_sq"})
NAMES_TOLD = 10
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

    shape: list[int]
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


class Saver:
    """Saves a run's checkpoints, one at a time, while it goes on. All ranks call `begin` and `finish` together.

    `shared`: whether all ranks see the run's folder; without that the first rank writes alone, which takes whole models.
    """

    def __init__(self, run: Path, ranks: Ranks, layout: Layout, keep: int | None = None, shared: bool = True) -> None:
        self.run, self.ranks, self.layout, self.keep, self.shared = run, ranks, layout, keep, shared
        self.failures: list[str] = []
        """What went wrong with saves so far, the same on every rank."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._coming: Future[dict[str, Any]] | None = None
        self._folder = run

    def begin(
        self,
        state: State,
        model: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
        ema: dict[str, Tensor] | None = None,
    ) -> None:
        """Copies everything to the host and starts writing. What trains on may change the tensors once this returns. The save
        before it is finished first. `ema`: the running average by parameter."""
        self.finish()
        self._folder = self.run / CHECKPOINTS / f"step-{state.step:08d}"
        temporary = self._folder.with_name(TEMPORARY_PREFIX + self._folder.name)
        trouble = ""
        if self.ranks.first:
            try:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
            except OSError as error:
                trouble = str(error)
        self.ranks.barrier()
        kinds = {"model": _weights(model), "optimiser": _states(model, optimiser), **({"ema": ema} if ema else {})}
        index, files = self._share_out(kinds)
        if self.ranks.first:
            _claim(index["optimiser"], files, "optimiser", self._name("optimiser", 0), RANDOM, torch.get_rng_state())
        held = {
            name: {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
            for name, tensors in files.items()
        }
        texts = {}
        if self.ranks.first:
            texts = {STATE: state.model_dump_json(indent=1) + "\n", INDEX: _text({"format": FORMAT, **index})}

        def write() -> dict[str, Any]:
            if trouble:
                raise OSError(trouble)
            return _write(temporary, held, texts)

        self._coming = self._pool.submit(write)

    @property
    def pending(self) -> bool:
        """Whether a save was begun and not finished; the same on every rank."""
        return self._coming is not None

    @property
    def writing(self) -> bool:
        """Whether this rank's part of it is still being written."""
        return self._coming is not None and not self._coming.done()

    def finish(self) -> bool:
        """Waits for what is being written on all ranks, completes it, and deletes older checkpoints. False when it could not
        be written: the reason is in `failures`, and the checkpoint before it stays the newest."""
        if self._coming is None:
            return True
        coming, self._coming = self._coming, None
        trouble, written = "", dict[str, Any]()
        try:
            written = coming.result()
        except Exception as error:  # whatever kept the thread from writing, the run must hear of it
            trouble = f"{type(error).__name__}: {error}"
        said = self.ranks.texts(_text({"trouble": trouble, "written": written}))
        answers = [json.loads(one) for one in said]
        troubles = [f"rank {rank}: {one['trouble']}" for rank, one in enumerate(answers) if one["trouble"]]
        if not troubles:
            trouble = ""
            if self.ranks.first:
                try:
                    self._complete({name: facts for one in answers for name, facts in one["written"].items()})
                except OSError as error:
                    trouble = f"{type(error).__name__}: {error}"
            troubles = [one for one in self.ranks.texts(trouble) if one]
        if troubles:
            self.failures.append(f"{self._folder.name} was not saved: {'; '.join(troubles)}")
        return not troubles

    def close(self) -> None:
        """Waits for what is still being written: nothing writes to the run once it has ended, however it did."""
        self._pool.shutdown()

    def _complete(self, files: dict[str, Any]) -> None:
        temporary = self._folder.with_name(TEMPORARY_PREFIX + self._folder.name)
        step = int(self._folder.name.removeprefix("step-"))
        Folder(str(temporary.absolute())).write(RECORD, _text({"format": FORMAT, "step": step, "files": files}).encode())
        if self._folder.exists():
            shutil.rmtree(self._folder)
        os.replace(temporary, self._folder)
        sync_directory(str(self._folder.parent))
        if self.keep is not None:
            keep_newest(self.run, self.keep)

    def _share_out(self, kinds: dict[str, dict[str, Tensor]]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Tensor]]]:
        """(index of all that is written, tensors that this rank writes by file). Every rank gives the same index: of those that
        hold a part, the one with the fewest bytes so far writes it."""
        load = [0] * self.layout.world
        index: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
        mine: dict[str, dict[str, Tensor]] = {}
        for kind, tensors in kinds.items():
            for name, tensor in tensors.items():
                parts = []
                cut = bool(tensor.ndim) and not self.layout.everywhere(tensor)
                for shard in range(self.layout.shards if cut else 1):
                    first, rows = self.layout.rows(len(tensor), shard) if cut else (0, len(tensor) if tensor.ndim else 1)
                    holders = self.layout.holders(shard) if cut else list(range(self.layout.world))
                    writer = min(holders, key=lambda rank: (load[rank], rank)) if self.shared else 0
                    if not rows:
                        continue
                    load[writer] += rows * (math.prod(tensor.shape[1:]) if tensor.ndim else 1) * tensor.element_size()
                    file = self._name(kind, writer)
                    parts.append({"file": file, "first": first, "rows": rows})
                    if writer == self.ranks.rank:
                        mine.setdefault(file, {})[name] = local(tensor)
                index[kind][name] = {"shape": list(tensor.shape), "dtype": _dtype_name(tensor.dtype), "parts": parts}
        return index, mine

    def _name(self, kind: str, rank: int) -> str:
        whole = self.layout.world == 1 or not self.shared
        return f"{kind}.safetensors" if whole else f"{kind}-{rank + 1:05d}-of-{self.layout.world:05d}.safetensors"


def save(run: Path, state: State, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> Path:
    """Writes the checkpoint of a lone process and returns its folder, once it is safe on disk; CheckpointError when it cannot."""
    saver = Saver(run, Ranks(0, 1, 0, torch.device("cpu")), ALONE)
    saver.begin(state, model, optimiser)
    if not saver.finish():
        raise CheckpointError("; ".join(saver.failures))
    return run / CHECKPOINTS / f"step-{state.step:08d}"


def newest(run: Path, ranks: Ranks | None = None) -> tuple[Path | None, dict[str, str]]:
    """(the newest checkpoint of a run that is complete and undamaged, or None; what is wrong with each that is newer).

    Ranks that see the same folder look at a share of the files each. CheckpointError for one of an unknown format.
    """
    passed_over = {name: "no folder of a checkpoint" for name in _strangers(run)}
    together = _together(ranks, [folder.name for folder in newest_first(run)])
    for folder in newest_first(run):
        wrong = fault(folder, together)
        if wrong is None:
            return folder, passed_over
        passed_over[folder.name] = wrong
    return None, passed_over


def to_resume(run: Path, ranks: Ranks | None = None) -> tuple[Path | None, dict[str, str]]:
    """`newest`. CheckpointError where there are checkpoints and none is whole: a run that began anew would lose its logs."""
    found, passed_over = newest(run, ranks)
    if found is None and (wrong := [why for name, why in passed_over.items() if STEP_NAME.fullmatch(name)]):
        raise CheckpointError(f"{run}: none of its checkpoints is whole ({wrong[0]}); begin anew in another folder")
    return found, passed_over


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run that is complete and undamaged, or None."""
    return newest(run)[0]


def keep_newest(run: Path, count: int) -> None:
    """Deletes all but the `count` newest complete checkpoints, and what killed saves left behind."""
    for unfinished in (run / CHECKPOINTS).glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    complete = [folder for folder in newest_first(run) if (folder / RECORD).is_file()]
    for folder in complete[count:]:
        shutil.rmtree(folder)


def fault(folder: Path, ranks: Ranks | None = None) -> str | None:
    """What is wrong with a checkpoint, or None: the completion record is there and every file has its digest. With `ranks`, each
    looks at a share of the files, and all give the same answer. CheckpointError for a format that is unknown here."""
    wrong = _fault(folder, *((ranks.rank, ranks.world) if ranks else (0, 1)))
    if ranks:
        wrong = next((one for one in ranks.texts(wrong) if one), "")
    if wrong.startswith(UNKNOWN_FORMAT):
        raise CheckpointError(f"{folder}: {wrong}")
    return wrong or None


def kept(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints that a run keeps and that were completed, in turn."""
    return [(step_of(folder), folder) for folder in reversed(newest_first(run)) if (folder / RECORD).is_file()]


def newest_first(run: Path) -> list[Path]:
    """Folders that have the name of a checkpoint; a link is none, since what it leads to is not the run's."""
    found = [one for one in (run / CHECKPOINTS).glob("step-*") if STEP_NAME.fullmatch(one.name) and not one.is_symlink()]
    return sorted(found, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def identity(folder: Path) -> str:
    """The SHA-256 of a complete checkpoint's weights: of their file, or of the list of their files and digests."""
    files = _record(folder)["files"]
    weights = {name: str(facts["sha256"]) for name, facts in files.items() if name.startswith("model")}
    return next(iter(weights.values())) if len(weights) == 1 else digest(weights)


def resolve(path: Path, ranks: Ranks | None = None) -> Path:
    """The checkpoint that a person means by a checkpoint's folder or a run's; CheckpointError when there is none, or the newest
    of a run is not whole: a figure of an older one would pass for a figure of the run, so that one has to be named."""
    if (path / RECORD).exists() or (path / STATE).exists():
        wrong = fault(path, _together(ranks, [str((path / RECORD).exists())]))
        if wrong:
            raise CheckpointError(wrong)
        return path
    found, passed_over = newest(path, ranks)
    after = -1 if found is None else step_of(found)
    newer = [
        f"{name}: {why}" for name, why in passed_over.items() if (step := STEP_NAME.fullmatch(name)) and int(step[1]) > after
    ]
    if found is None:
        told = f"; {newer[0]}" if newer else ""
        raise CheckpointError(f"{path}: neither a checkpoint nor a run with a complete one{told}")
    if newer:
        raise CheckpointError(
            f"{path}: its newest checkpoint is not whole ({'; '.join(newer)}), and an older one is taken only where it is named; "
            f"the newest whole one is {found}"
        )
    return found


def load_state(folder: Path) -> State:
    try:
        state = State.model_validate_json(_text_of(folder / STATE))
        step = _record(folder).get("step", state.step)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / STATE}: {in_a_line(error)}") from None
    if state.step != step:
        raise CheckpointError(f"{folder / STATE}: of step {state.step}, and the completion record is of step {step}")
    return state


def in_a_line(error: Exception) -> str:
    """What is wrong with a file, in one line, whatever a stranger put into it."""
    if isinstance(error, ValidationError):
        first, *more = error.errors()
        at = ".".join(str(step) for step in first["loc"])
        return f"{f'{at}: ' if at else ''}{first['msg']}{f' (and {len(more)} more)' if more else ''}"
    return " ".join(str(error).split()) or type(error).__name__


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


def load_weights(folder: Path, model: torch.nn.Module, layout: Layout = ALONE) -> None:
    """Fills `model`, or this rank's shards of it; CheckpointError names what is missing or has another shape."""
    wanted = _weights(model)
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
            tensor = torch.empty(entry.shape, dtype=held.dtype(name, entry))
            held.fill(name, entry, tensor, ALONE)
            yield name, tensor


def write_weights(folder: Path, state: State, tensors: dict[str, Tensor], texts: dict[str, str]) -> None:
    """Writes a checkpoint without an optimiser to a new folder, whole or not at all, with `texts` as files beside the weights. It
    can be scored and begun with, but not resumed."""
    parts = {name: [{"file": WEIGHTS, "first": 0, "rows": len(tensor)}] for name, tensor in tensors.items()}
    model = {name: {"shape": list(t.shape), "dtype": _dtype_name(t.dtype), "parts": parts[name]} for name, t in tensors.items()}
    index = {"format": FORMAT, "model": model, "optimiser": {}}
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder.parent))
    try:
        os.chmod(temporary, 0o755)
        own = {STATE: state.model_dump_json(indent=1) + "\n", INDEX: _text(index)}
        files = _write(temporary, {WEIGHTS: tensors}, {**texts, **own})
        record = {"format": FORMAT, "step": state.step, "files": files}
        Folder(str(temporary.absolute())).write(RECORD, _text(record).encode())
        if folder.exists():
            folder.rmdir()  # an empty one
        os.rename(temporary, folder)
        sync_directory(str(folder.absolute().parent))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
        parameters = _weights(model)
        wanted = _states(model, optimiser)  # where it has a state of other shapes than its parameters have
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
                state = torch.zeros_like(parameter, dtype=held.dtype(name, entry), requires_grad=False)
            elif not entry.shape:
                place = parameter.device if steps_on_device[id(parameter)] else "cpu"
                state = torch.zeros((), dtype=held.dtype(name, entry), device=place)
            elif name in wanted and entry.shape == list(wanted[name].shape):
                state = torch.zeros_like(wanted[name], dtype=held.dtype(name, entry))
            else:
                raise CheckpointError(f"{folder / INDEX}: {name} has shape {entry.shape}, its parameter {list(parameter.shape)}")
            held.fill(name, entry, state, ALONE if layout.everywhere(state) else layout)
            optimiser.state[parameter][found[2]] = state
        _refuse_other_states(folder, parameters, optimiser, wanted)
        try:
            torch.set_rng_state(random)
        except RuntimeError as error:
            raise CheckpointError(f"{folder}: {error}") from None


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


UNKNOWN_FORMAT = "saved in format "


def _fault(folder: Path, share: int, shares: int) -> str:
    try:
        record = _record(folder)
        if record.get("format", 1) not in (1, FORMAT):
            return f"{UNKNOWN_FORMAT}{record['format']}, which this version does not know (it reads 1 and {FORMAT})"
        files = record["files"]
        needed = (STATE, WEIGHTS) if record.get("format", 1) == 1 else (STATE, INDEX)
        missing = [name for name in needed if name not in files]
        if missing or not all(FILE_NAME.fullmatch(name) for name in files):
            return f"{folder / RECORD} is not that of a checkpoint"
        if STEP_NAME.fullmatch(folder.name) and record["step"] != step_of(folder):
            return f"{folder / RECORD} is that of step {record['step']}"
        for name in sorted(files)[share::shares]:
            with _plain_file(folder / name) as file:
                same = os.fstat(file.fileno()).st_size == files[name]["bytes"] and sha256_of(file)[0] == files[name]["sha256"]
            if not same:
                return f"{folder}/{name} is not what the completion record says"
    except FileNotFoundError as error:
        return f"{error.filename} is not there: the save was not completed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{folder}: unreadable: {in_a_line(error)}"
    return ""


def _record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_text_of(folder / RECORD))
    return found


def _text_of(path: Path) -> str:
    with _plain_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > TEXT_BYTES:
            raise ValueError(f"{size:,} bytes are too many")
        return str(file.read().decode())


def _plain_file(path: Path) -> BinaryIO:
    """Opened for reading. OSError for a link, which can lead anywhere, and for a pipe or device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a plain file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


class _Held:
    """The tensors of a checkpoint, read where they lie."""

    def __init__(self, folder: Path, open_file: Callable[[str], Any]) -> None:
        self.folder, self._open = folder, open_file
        path = folder / INDEX
        try:
            if os.path.lexists(path):
                self.index = Index.model_validate_json(_text_of(path))
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
        listed = set(_record(folder)["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / RECORD}: {in_a_line(error)}") from None
    with contextlib.ExitStack() as stack:

        def open_file(name: str) -> Any:
            if name not in files:
                if name not in listed:
                    raise CheckpointError(f"{folder / INDEX}: names {name!r}, which the completion record does not list")
                _plain_file(folder / name).close()
                files[name] = stack.enter_context(safe_open(folder / name, "pt"))
            return files[name]

        try:
            yield _Held(folder, open_file)
        except (SafetensorError, OSError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"{folder}: {in_a_line(error)}") from None


def _whole(file: Any, name: str) -> Entry:
    tensor = file.get_tensor(name)
    shape = list(tensor.shape)
    return Entry(shape=shape, dtype=_dtype_name(tensor.dtype), parts=[Part(file=WEIGHTS, first=0, rows=shape[0] if shape else 1)])


def _weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def _states(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Tensors of an optimiser's state by parameter and name; each is as its parameter is, or the same on every rank."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in sorted(optimiser.state.get(parameter, {}).items())
        if isinstance(value, Tensor)
    }


def _claim(index: dict[str, Any], files: dict[str, dict[str, Tensor]], kind: str, file: str, name: str, tensor: Tensor) -> None:
    files.setdefault(file, {})[name] = tensor
    parts = [{"file": file, "first": 0, "rows": len(tensor)}]
    index[name] = {"shape": list(tensor.shape), "dtype": _dtype_name(tensor.dtype), "parts": parts}


def _write(folder: Path, files: dict[str, dict[str, Tensor]], texts: dict[str, str]) -> dict[str, Any]:
    """Writes and syncs; gives the size and digest of each file."""
    for name, tensors in files.items():
        save_file(tensors, folder / name)
        os.chmod(folder / name, 0o644)  # the library leaves files that only their owner can read
    for name, text in texts.items():
        (folder / name).write_text(text)
    written = {}
    for name in (*files, *texts):
        with open(folder / name, "rb") as file:
            sha256, size = sha256_of(file)
            os.fsync(file.fileno())
        written[name] = {"bytes": size, "sha256": sha256}
    return written


def _together(ranks: Ranks | None, seen: list[str]) -> Ranks | None:
    """The ranks, when all of them see the same; else None, and each is on its own."""
    return None if ranks is None or ranks.world == 1 or ranks.differing({"seen": digest(seen)}) else ranks


def _same_names(folder: Path, wanted: set[str], there: set[str]) -> None:
    if wanted != there:
        missing, more = sorted(wanted - there), sorted(there - wanted)
        raise CheckpointError(f"{folder}: missing: {_listed(missing)}; not of this model: {_listed(more)}")


def _listed(names: list[str]) -> str:
    some = ", ".join(names[:NAMES_TOLD]) or "none"
    return f"{some} and {len(names) - NAMES_TOLD:,} more" if len(names) > NAMES_TOLD else some


def _strangers(run: Path) -> list[str]:
    """What lies among a run's checkpoints under such a name and is none."""
    found = [one.name for one in (run / CHECKPOINTS).glob("step-*")]
    return sorted(set(found) - {one.name for one in newest_first(run)})


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"
