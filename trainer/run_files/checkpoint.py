"""Checkpoints that are complete, and count only once they are durable.

A checkpoint is a folder `checkpoints/step-00000200`. Every rank writes what it holds as safetensors, shared out where several
hold the same (`model-00002-of-00004.safetensors`, `optimiser-…`; a lone rank `model.safetensors`); `index.json` says which rows
of which tensor lie in which file, `state.json` has everything else. All of it is copied to the host first and written in the
background, into a temporary folder. When every rank's files are synced, the first rank writes `complete.json` with each
file's size and SHA-256, and renames the folder. A save that is killed at any moment leaves the one before in place, and
`newest` passes over whatever is incomplete or damaged.

`checkpoint_tensors` reads what was written, for any number of ranks in any layout; `checkpoint_format` says what may be read.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from manifests.manifest import digest
from manifests.storage import TEMPORARY_PREFIX, Folder, sha256_of, sync_directory
from trainer.distributed.parallel import ALONE, Layout, local
from trainer.distributed.ranks import Ranks
from trainer.run_files.checkpoint_format import (
    CHECKPOINTS,
    FILE_NAME,
    FORMAT,
    INDEX,
    RANDOM,
    RECORD,
    STATE,
    STEP_NAME,
    WEIGHTS,
    CheckpointError,
    State,
    dtype_name,
    in_a_line,
    plain_file,
    read_record,
    read_text,
    states_of,
    weights_of,
)


class Saver:
    """Saves a run's checkpoints, one at a time, while it goes on. All ranks call `begin` and `finish` together.

    `shared`: whether all ranks see the run's folder; without that the first rank writes alone, which takes whole models.
    """

    def __init__(self, run: Path, ranks: Ranks, layout: Layout, keep: int | None = None, shared: bool = True) -> None:
        self.run, self.ranks, self.layout, self.keep, self.shared = run, ranks, layout, keep, shared
        self.failures: list[str] = []
        """What went wrong with saves so far, the same on every rank."""
        self.left_over: list[str] = []
        """What was to be deleted and could not be, as the first rank saw it."""
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
        kinds = {"model": weights_of(model), "optimiser": states_of(model, optimiser), **({"ema": ema} if ema else {})}
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
            if self.ranks.first:  # what was written of it may be what fills the disk
                shutil.rmtree(self._folder.with_name(TEMPORARY_PREFIX + self._folder.name), ignore_errors=True)
        return not troubles

    def close(self) -> None:
        """Waits for what is still being written: nothing writes to the run once it has ended, however it did."""
        self._pool.shutdown()

    def _complete(self, files: dict[str, Any]) -> None:
        temporary = self._folder.with_name(TEMPORARY_PREFIX + self._folder.name)
        step = int(self._folder.name.removeprefix("step-"))
        Folder(str(temporary.absolute())).write(RECORD, _text({"format": FORMAT, "step": step, "files": files}).encode())
        aside = self._folder.with_name(f"{TEMPORARY_PREFIX}replaced-{self._folder.name}")
        if self._folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(self._folder, aside)
        os.replace(temporary, self._folder)
        sync_directory(str(self._folder.parent))
        try:
            shutil.rmtree(aside, ignore_errors=True)
            if self.keep is not None:
                keep_newest(self.run, self.keep)
        except OSError as error:  # this one is saved
            self.left_over.append(f"an older checkpoint could not be deleted: {error}")

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
                index[kind][name] = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype), "parts": parts}
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
    files = read_record(folder)["files"]
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
        state = State.model_validate_json(read_text(folder / STATE))
        step = read_record(folder).get("step", state.step)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / STATE}: {in_a_line(error)}") from None
    if state.step != step:
        raise CheckpointError(f"{folder / STATE}: of step {state.step}, and the completion record is of step {step}")
    return state


def write_weights(folder: Path, state: State, tensors: dict[str, Tensor], texts: dict[str, str]) -> None:
    """Writes a checkpoint without an optimiser to a new folder, whole or not at all, with `texts` as files beside the weights. It
    can be scored and begun with, but not resumed."""
    parts = {name: [{"file": WEIGHTS, "first": 0, "rows": len(tensor)}] for name, tensor in tensors.items()}
    model = {name: {"shape": list(t.shape), "dtype": dtype_name(t.dtype), "parts": parts[name]} for name, t in tensors.items()}
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


UNKNOWN_FORMAT = "saved in format "


def _fault(folder: Path, share: int, shares: int) -> str:
    try:
        record = read_record(folder)
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
            with plain_file(folder / name) as file:
                same = os.fstat(file.fileno()).st_size == files[name]["bytes"] and sha256_of(file)[0] == files[name]["sha256"]
            if not same:
                return f"{folder}/{name} is not what the completion record says"
    except FileNotFoundError as error:
        return f"{error.filename} is not there: the save was not completed"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{folder}: unreadable: {in_a_line(error)}"
    return ""


def _claim(index: dict[str, Any], files: dict[str, dict[str, Tensor]], kind: str, file: str, name: str, tensor: Tensor) -> None:
    files.setdefault(file, {})[name] = tensor
    parts = [{"file": file, "first": 0, "rows": len(tensor)}]
    index[name] = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype), "parts": parts}


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


def _strangers(run: Path) -> list[str]:
    """What lies among a run's checkpoints under such a name and is none."""
    found = [one.name for one in (run / CHECKPOINTS).glob("step-*")]
    return sorted(set(found) - {one.name for one in newest_first(run)})


def _text(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"
