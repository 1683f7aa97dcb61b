"""Rewind and skip: a run goes on from an earlier checkpoint, and passes over the steps whose rows upset it.

Steps keep their numbers: step s has the same rows before and after, and a skipped one counts as a step without an update.
Nothing is deleted. What came after the checkpoint is moved to `set-aside/N`, laid out as a run is, and `lineage.jsonl` has a line
for the act: what was done, when and by whom. No digest covers these two, and none of it decides what is computed, but for the
steps that are skipped, which the ledger has too.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manifests.storage import sync_directory
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.run_files import checkpoint, checkpoint_format
from trainer.run_files.ledger import LEDGER
from trainer.run_files.metrics import METRICS

LINEAGE, ASIDE = "lineage.jsonl", "set-aside"
RESULTS = ("result.json", "loss.png")
LOGS = (METRICS, LEDGER, "config.json", "run.json")


class Skipped:
    """Steps that are passed over, as ranges with both ends included."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.ranges = sorted({(int(first), int(last)) for first, last in ranges})

    def __contains__(self, step: int) -> bool:
        return any(first <= step <= last for first, last in self.ranges)


def checkpoint_of(run: Path, step: int) -> Path:
    """The checkpoint of a step; CheckpointError, which names those that are kept, when it is not there or damaged."""
    folder = dict(checkpoint.kept(run)).get(step, run / checkpoint_format.CHECKPOINTS / f"step-{step:08d}")
    if folder.is_symlink() or not folder.exists():
        kept = ", ".join(str(one) for one in steps_kept(run)) or "none"
        raise checkpoint_format.CheckpointError(f"{run}: there is no checkpoint of step {step}; those kept are of steps {kept}")
    if wrong := checkpoint.fault(folder):
        raise checkpoint_format.CheckpointError(wrong)
    return folder


def steps_kept(run: Path) -> list[int]:
    """Steps of the checkpoints that a run keeps and that were completed, in turn."""
    return [step for step, _ in checkpoint.kept(run)]


def skipped_from(config: TrainConfig, state: checkpoint_format.State, run: Path | None = None) -> Skipped:
    """The steps that a resumed run passes over: those it is told now, those it was told before its checkpoint, and those that it
    was told last in `run`, before it died without another checkpoint.

    ConfigurationError for steps that it is told to skip after it has trained on them.
    """
    before = skipped_before(state)
    for first, last in config.skip_steps:
        if first <= state.step and (first, last) not in before:
            raise ConfigurationError(
                f"--skip-steps {first}-{last}: the checkpoint is of step {state.step}, which has trained on step {first}; "
                f"--from-step takes an earlier one"
            )
    told = [one for act in (acts(run)[-1:] if run else []) for one in act["skip_steps"]]
    return Skipped([*before, *config.skip_steps, *((first, last) for first, last in told if first > state.step)])


def skipped_before(state: checkpoint_format.State) -> list[tuple[int, int]]:
    """What the run of a checkpoint was told to skip."""
    try:
        return [(int(first), int(last)) for first, last in state.config.get("skip_steps", ())]
    except (TypeError, ValueError):
        raise checkpoint_format.CheckpointError(f"the checkpoint of step {state.step} names no steps that are skipped") from None


def set_aside(run: Path, step: int, from_step: int | None, config: TrainConfig) -> None:
    """Moves what came after `step` to a new folder in `set-aside` when the run was told to go on `from_step`, and records the
    act. Newest first, so that a run that is killed meanwhile goes on from a checkpoint that its logs lead to."""
    told = [list(one) for one in config.skip_steps]
    known = [act["skip_steps"] for act in acts(run)][-1:]
    if from_step is None and (not told or known == [told] or not step):
        return
    every = sorted((run / checkpoint_format.CHECKPOINTS).glob("step-*"), reverse=True)
    later = [folder for folder in every if _step(folder) > step]
    act: dict[str, Any] = {
        "act": "resume" if from_step is None else "rewind",
        "step": step,
        "skip_steps": told,
        "set_aside": None,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "who": _who(),
    }
    if from_step is not None:
        if (run / ASIDE).is_symlink():
            raise checkpoint_format.CheckpointError(f"{run / ASIDE} is a link: what is set aside stays in the run")
        number = 1 + max([int(one.name) for one in (run / ASIDE).glob("[0-9]*") if one.name.isdecimal()], default=0)
        folder = run / ASIDE / str(number)
        folder.mkdir(parents=True)
        for name in LOGS:
            if (run / name).exists():
                shutil.copy2(run / name, folder / name)
        for name in RESULTS:
            if (run / name).exists():
                os.replace(run / name, folder / name)
        if later:
            (folder / checkpoint_format.CHECKPOINTS).mkdir()
        for one in later:
            os.replace(one, folder / checkpoint_format.CHECKPOINTS / one.name)
        act |= {"set_aside": f"{ASIDE}/{number}", "checkpoints": [one.name for one in reversed(later)]}
        sync_directory(str(folder))
    descriptor = os.open(run / LINEAGE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "a") as file:
        file.write(json.dumps(act, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def acts(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's `lineage.jsonl`, oldest first; none where it was never rewound."""
    path = run / LINEAGE
    if not path.exists():
        return []
    found = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, ValueError) as error:
        raise checkpoint_format.CheckpointError(f"{path}: unreadable: {error}") from None
    for line in lines:
        try:
            act = json.loads(line)
            found.append({**act, "skip_steps": [[int(first), int(last)] for first, last in act["skip_steps"]]})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise checkpoint_format.CheckpointError(f"{path}: not a line that a rewind writes: {line[:80]!r}") from None
    return found


def _step(folder: Path) -> int:
    number = folder.name.removeprefix("step-")
    return int(number) if number.isdecimal() else 0


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError, ImportError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"
