"""Steps of a run computed again, from the checkpoint before them, without a trace in the run.

The rows of a step are a function of its number, and the rate follows the share of the budget that metrics.jsonl recorded, so on a
CPU with as many ranks as the run had, losses and gradient norms come out bit for bit; on GPUs, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests.trained_on import LedgerError, read_ledger
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.distributed.ranks import Ranks
from trainer.run.loop import Outcome, Run
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format, rewind
from trainer.run_files.ledger import Ledger
from trainer.run_files.metrics import METRICS, DivergedError, Metrics, Readings, read_rows
from trainer.run_files.saved_options import saved_options


@dataclass(frozen=True)
class Step:
    """A step as it is now and as it was recorded; nothing was recorded of steps that the run did not reach."""

    step: int
    loss: float | None
    grad_norm: float | None
    recorded_loss: float | None
    recorded_grad_norm: float | None

    @property
    def same(self) -> bool:
        return (self.loss, self.grad_norm) == (self.recorded_loss, self.recorded_grad_norm)


@dataclass(frozen=True)
class Replayed:
    """`checkpoint`: what the steps were computed from. `passed_over`: what is wrong with those between it and the steps, by their
    folder. `diverged`: why it ended early, where a loss was no number."""

    checkpoint: str
    passed_over: dict[str, str]
    steps: list[Step]
    diverged: str | None


def replay(
    run: Path,
    first: int,
    last: int,
    scratch: Path,
    ranks: Ranks,
    progress: RunProgress,
    manifest: str | None = None,
    watch: Callable[[Replay], None] | None = None,
) -> Replayed:
    """Steps `first` to `last` of a run, or of what a rewind has set aside, computed again; what that writes goes to the empty
    folder `scratch`. `watch` is called with the run before it begins. ConfigurationError and CheckpointError say what is missing.
    """
    if not 1 <= first <= last:
        raise ConfigurationError(f"steps {first} to {last} cannot be replayed: steps are counted from 1")
    found, passed_over = _checkpoint_before(run, first)
    rows = {row["step"]: row for row in read_rows(run / METRICS)}
    state = checkpoint.load_state(found)
    config = _configuration(run, found, state, scratch, manifest)
    again = Replay(config, ranks, progress, found, last, {step: row.get("budget_spent") for step, row in rows.items()})
    if watch:
        watch(again)
    diverged = None
    try:
        again.go()
    except DivergedError as error:
        diverged = str(error)
    now = read_rows(scratch / METRICS)
    steps = []
    for row in now:
        was = rows.get(row["step"], {})
        steps.append(Step(row["step"], row["loss"], row["grad_norm"], was.get("loss"), was.get("grad_norm")))
    return Replayed(str(found), passed_over, [one for one in steps if one.step >= first], diverged)


class Replay(Run):
    """A run from a given checkpoint up to a given step, with the budget spent as it was."""

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        progress: RunProgress,
        found: Path,
        last: int,
        spent: dict[int, float | None],
    ) -> None:
        self.found, self.last, self.recorded = found, last, spent
        super().__init__(config, ranks, progress, resume=False)

    def _beginning(self, resume: bool, from_step: int | None) -> tuple[Path | None, dict[str, str]]:
        return self.found, {}

    def _held_to(self, state: checkpoint_format.State | None) -> None:
        """Steps are what they are, whatever the gate says at the end."""

    def _set_aside(self, from_step: int | None) -> None:
        pass

    def _agree(self) -> tuple[float, int]:
        if self.step >= self.last:
            return 1.0, 0
        _, stop = super()._agree()
        return self._spent(), stop

    def _spent(self) -> float:
        recorded = self.recorded.get(self.step + 1)
        if recorded is not None:
            return recorded
        if self.step + 1 in self.skipped:
            return 0.0
        if self.config.seconds_budget is not None:
            raise ConfigurationError(
                f"step {self.step + 1}: the run's rate followed the clock, and {METRICS} does not say what share of the budget "
                "was spent then"
            )
        return min(super()._spent(), 1.0 - 1e-9)

    def _save(self, readings: Readings, metrics: Metrics | None, ledger: Ledger | None) -> None:
        self._look(readings, metrics, all_of_them=True)
        self._end_if_diverged(self._diverged is not None)
        self.saved_step = self.step

    def _write_result(self, outcome: Outcome) -> None:
        pass


def _checkpoint_before(run: Path, step: int) -> tuple[Path, dict[str, str]]:
    """(the newest whole checkpoint of a step before this one; what is wrong with each that is newer). What a rewind has set aside
    goes back to what its run kept."""
    places = [run, *([run.parent.parent] if run.parent.name == rewind.ASIDE else [])]
    there = [folder for place in places for folder in checkpoint.newest_first(place) if checkpoint.step_of(folder) < step]
    passed_over = dict[str, str]()
    for folder in sorted(there, key=checkpoint.step_of, reverse=True):
        wrong = checkpoint.fault(folder)
        if wrong is None:
            return folder, passed_over
        passed_over[str(folder)] = wrong.replace(f"{folder}/", "")
    told = "".join(f"; {name}: {why}" for name, why in passed_over.items())
    kept = ", ".join(str(one) for one in rewind.steps_kept(run)) or "none"
    raise checkpoint_format.CheckpointError(
        f"{run}: no whole checkpoint of a step before {step:,} is kept (there are: {kept}{told}); --checkpoint-every "
        "and --keep decide how many a run keeps"
    )


def _configuration(run: Path, found: Path, state: checkpoint_format.State, scratch: Path, manifest: str | None) -> TrainConfig:
    skipped = rewind.skipped_before(state)
    try:
        ranges = read_ledger(run).ranges
    except LedgerError:
        ranges = []  # of a run that ended before its first checkpoint was counted
    skipped += [(one.first_step, one.last_step) for one in ranges if one.skipped and one.first_step > state.step]
    changes: dict[str, Any] = {
        "out": str(scratch), "clock": "cold", "evaluate": False, "checkpoint_every": 0, "max_epochs": None, "skip_steps": skipped,
        "tensorboard": False, "wandb": None,
    }  # fmt: skip
    if manifest is not None:
        changes["manifest"] = manifest
    return saved_options(found, state, changes)[1]
