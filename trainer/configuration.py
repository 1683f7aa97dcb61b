"""What a person can decide about a training run. The whole of it is written to the run's folder as `config.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from manifests.packing import Packing
from trainer.presets import PRESETS, Architecture

DEFAULT_SECONDS = 300.0
"""The budget when none is given: autoresearch's five minutes."""
ROWS_WINDOWS = 8
"""Windows that a row is long. With those of an eighth, a minute of `speedrun` on an H200 scored as well as with those of a half,
as nanochat has them, and went through 7 % more tokens (docs/benchmarks.md)."""


REWARMUP = 0.02
"""Share of the budget in which the rate rises where a run begins with trained weights, unless another is given: the optimiser's
moments are fresh, but the weights are not. Ibrahim et al. (2024, arXiv 2403.08763) saw no difference between 0 and 2 %."""


class ConfigurationError(Exception):
    """Options that cannot work; the message names the option and what would."""


class MixturePhase(BaseModel):
    """A stretch of training: `mixture` gives each component its share of target tokens (empty: natural shares), for `rows` rows
    over all ranks (None: to the end) or for a `share` of the run's target tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mixture: dict[str, float] = Field(default_factory=dict)
    rows: int | None = Field(default=None, ge=1)
    share: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _weights_add_up(self) -> MixturePhase:
        for name, weight in self.mixture.items():
            if not weight >= 0:
                raise ValueError(f"weight {weight} of component {name!r} is not a share")
        if sum(self.mixture.values()) == float("inf"):
            raise ValueError("the weights of a mixture are too large to be added up")
        return self


class TrainConfig(BaseModel):
    """Options of `corpusmill train`. None means: as the preset says.

    `phases` follow one another; every one but the last has a number of rows, and the last has none, or all have shares of a
    budget in tokens or steps. `mixture` is a short way to give a single phase.

    The budget is one of `seconds` (on the clock), `tokens` (targets) or `steps`. `batch_tokens` are the slots of a step over
    all ranks, or `batch_ramp` are: (share of the budget, slots of a step from there on), a budget in tokens or steps.
    `micro_batch` are the rows that one rank computes at a time. `warmup`, `cooldown` and `final_rate` are shares: of the
    budget in which the rate rises, of that in which it falls under `wsd`, and of the peak rate. `learning_rate` is that of
    matrices under Muon, and all others keep their proportion to it. `skip_steps` are ranges of steps, both ends
    included, whose rows are passed over without an update. `parent` is what the run has its first weights from (a run, a
    checkpoint, a release or an exported model), with a short warmup unless another is given, and `gate` the file of what it must
    reach then (`trainer.adaptation.gate`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    manifest: str
    out: str
    preset: str = "small"
    model: dict[str, Any] = Field(default_factory=dict)
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tokens: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    sequence_length: int | None = Field(default=None, ge=2)
    batch_tokens: int | None = Field(default=None, ge=2)
    batch_ramp: tuple[tuple[float, int], ...] = ()
    micro_batch: int | None = Field(default=None, ge=1)
    phases: tuple[MixturePhase, ...] = (MixturePhase(),)
    max_epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    skip_steps: tuple[tuple[int, int], ...] = ()
    packing: Packing = "best-fit"
    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    optimiser: Literal["adamw", "muon"] | None = None
    schedule: Literal["cosine", "wsd"] | None = None
    warmup: float | None = Field(default=None, ge=0, lt=1)
    cooldown: float | None = Field(default=None, ge=0, le=1)
    final_rate: float | None = Field(default=None, ge=0, le=1)
    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    clip: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    z_loss: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, lt=2**63)
    attention: Literal["masked", "sdpa"] = "masked"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool | None = None
    tune: bool = False
    ema: float | None = Field(default=None, gt=0, lt=1)
    noise_scale: bool = False
    watch_logits: int = Field(default=0, ge=0)
    clock: Literal["warm", "cold"] = "warm"
    loss_chunk: int = Field(default=0, ge=0)
    parallel: Literal["ddp", "fsdp", "hsdp"] = "ddp"
    replicas: int | None = Field(default=None, ge=1)
    accumulate: Literal["whole", "sharded"] = "whole"
    recompute: Literal["none", "feed", "selective", "full"] = "none"
    checkpoint_every: int = Field(default=0, ge=0)
    keep: int = Field(default=2, ge=1)
    log_every: int = Field(default=10, ge=1)
    evaluate: bool = True
    tensorboard: bool = False
    wandb: str | None = Field(default=None, min_length=1)
    cache: str | None = None
    parent: str | None = Field(default=None, min_length=1)
    gate: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _one_mixture_is_one_phase(cls, given: Any) -> Any:
        return _with_phases(_with_rewarmup(given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _phases_end(self) -> TrainConfig:
        if any(phase.share is not None for phase in self.phases):
            if any(phase.share is None or phase.rows is not None for phase in self.phases):
                raise ValueError("either all phases are shares of the run, or none is")
            if abs(sum(phase.share or 0 for phase in self.phases) - 1) > 1e-9:
                raise ValueError("the shares of the phases do not add up to 1")
            if self.steps is None and self.tokens is None:
                raise ValueError("phases are shares of a run, so it needs --tokens or --steps")
            return self
        if not self.phases or self.phases[-1].rows is not None or any(phase.rows is None for phase in self.phases[:-1]):
            raise ValueError("every phase but the last has a number of rows, and the last has none")
        return self

    @model_validator(mode="after")
    def _one_budget(self) -> TrainConfig:
        given = [name for name in ("seconds", "tokens", "steps") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a run has one budget, not {' and '.join(given)}")
        if self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r} is not one of {', '.join(PRESETS)}")
        for derived in ("vocabulary",):
            if derived in self.model:
                raise ValueError(f"model option {derived!r} comes from the corpus")
        for batch in self.batches:
            if batch % self.row_tokens:
                near = max(1, round(batch / self.row_tokens)) * self.row_tokens
                raise ValueError(
                    f"{self._batch_option} {batch} is not a multiple of sequence_length {self.row_tokens}; the nearest is {near}"
                )
        return self

    @model_validator(mode="after")
    def _ramp_rises(self) -> TrainConfig:
        if not self.batch_ramp:
            return self
        shares, batches = zip(*self.batch_ramp, strict=True)
        if self.batch_tokens is not None:
            raise ValueError("batch_ramp says what every batch is: leave batch_tokens out")
        if self.steps is None and self.tokens is None:
            raise ValueError(
                "batch_ramp goes by shares of --tokens or --steps: by the clock, the same recipe would give other batches"
            )
        if shares[0] != 0 or not all(a < b < 1 for a, b in pairwise(shares)):
            raise ValueError(f"the shares of batch_ramp begin with 0, rise, and stay below 1; given: {_listed(shares)}")
        if batches[0] < 1 or not all(a < b for a, b in pairwise(batches)):
            raise ValueError(f"the batches of batch_ramp grow; given: {_listed(batches)}")
        return self

    @model_validator(mode="after")
    def _skipped_are_ranges(self) -> TrainConfig:
        for first, last in self.skip_steps:
            if not 1 <= first <= last:
                raise ValueError(f"skip_steps {first}-{last} are no steps, which are counted from 1")
        return self

    @model_validator(mode="after")
    def _rates_fit(self) -> TrainConfig:
        if self.cooldown is not None and self.said("schedule") != "wsd":
            raise ValueError("cooldown is a part of schedule wsd; a cosine falls from the end of the warmup on")
        if self.said("schedule") == "wsd" and self.said("warmup") + self.said("cooldown") > 1:
            raise ValueError(f"warmup {self.said('warmup')} and cooldown {self.said('cooldown')} are more than the whole budget")
        return self

    @model_validator(mode="after")
    def _ranks_fit(self) -> TrainConfig:
        if self.replicas is not None and self.parallel != "hsdp":
            raise ValueError(f"replicas are those of parallel hsdp, not {self.parallel}: leave them out, or use hsdp")
        if self.noise_scale and self.parallel != "ddp":
            raise ValueError(f"noise_scale needs a micro-batch's whole gradient: use parallel ddp, not {self.parallel}")
        if self.watch_logits and self.parallel != "ddp":
            raise ValueError(f"watch_logits computes with whole weights: use parallel ddp, not {self.parallel}")
        if self.accumulate == "sharded" and self.parallel == "ddp":
            raise ValueError("accumulate sharded needs shards: use parallel fsdp or hsdp, or leave it out")
        return self

    @model_validator(mode="after")
    def _tuned_is_compiled(self) -> TrainConfig:
        if self.tune and self.compile is False:
            raise ValueError("tune is a matter of the compiler, which compile=false leaves out")
        return self

    @staticmethod
    def check(**options: Any) -> TrainConfig:
        """A configuration from options; ConfigurationError lists every option that is wrong, one a line."""
        try:
            config = TrainConfig(**options)
            config.architecture(vocabulary=2)
            return config
        except ValidationError as error:
            raise ConfigurationError(_readable(error)) from None

    @property
    def row_tokens(self) -> int:
        return self.sequence_length or PRESETS[self.preset].sequence_length

    @property
    def batches(self) -> tuple[int, ...]:
        """Slots of a step over all ranks, in turn."""
        return tuple(b for _, b in self.batch_ramp) or (self.batch_tokens or PRESETS[self.preset].batch_tokens,)

    @property
    def batch_tokens_a_step(self) -> int:
        """Slots of a step; with a ramp, of its last batch."""
        return self.batches[-1]

    @property
    def rows_a_step(self) -> int:
        return self.batch_tokens_a_step // self.row_tokens

    @property
    def ramp_rows(self) -> list[tuple[float, int]]:
        """(share of the budget, rows of a step from there on), the first from 0; one alone without a ramp."""
        shares = [share for share, _ in self.batch_ramp] or [0.0]
        return [(share, batch // self.row_tokens) for share, batch in zip(shares, self.batches, strict=True)]

    @property
    def _batch_option(self) -> str:
        return "batch_ramp" if self.batch_ramp else "batch_tokens"

    def said(self, name: str) -> Any:
        """An option that the preset decides unless it is given: one of BY_PRESET."""
        given = getattr(self, name)
        return getattr(PRESETS[self.preset], name) if given is None else given

    @property
    def peak_rate(self) -> float:
        preset = PRESETS[self.preset]
        return self.learning_rate or (preset.muon_rate if self.said("optimiser") == "muon" else preset.learning_rate)

    @property
    def norm_limit(self) -> float:
        """Above which gradients are scaled down."""
        return float(self.said("clip")) or float("inf")

    @property
    def seconds_budget(self) -> float | None:
        return DEFAULT_SECONDS if self.seconds is None and self.tokens is None and self.steps is None else self.seconds

    def architecture(self, vocabulary: int) -> Architecture:
        """A window that nothing was said of is an eighth of a row, in tokens: it stays what it is when rows of other lengths are
        read."""
        found = PRESETS[self.preset].build(vocabulary, **self.model)
        if found.window or not any(found.short(layer) for layer in range(found.layers)):
            return found
        return found.model_copy(update={"window": max(1, self.row_tokens // ROWS_WINDOWS)})

    def micro_batches(self, world: int) -> tuple[int, int]:
        """(rows in a micro-batch, micro-batches) of each rank in a step; ConfigurationError when rows cannot be shared out.
        With a ramp, micro-batches have the same number of rows throughout, and the last batch has so many of them."""
        for (_, rows), batch in zip(self.ramp_rows, self.batches, strict=True):
            if rows % world:
                per_rank = self.row_tokens * world
                near = max(1, round(batch / per_rank)) * per_rank
                would = f"{near} there" if self.batch_ramp else f"--batch-tokens {near}"
                raise ConfigurationError(
                    f"{self._batch_option} {batch} is {rows} rows of {self.row_tokens}, which {world} "
                    f"ranks cannot share equally; {would} would do"
                )
        of_a_rank = [rows // world for _, rows in self.ramp_rows]
        rows = math.gcd(*of_a_rank)
        told = f"{rows} rows of a rank" if len(of_a_rank) == 1 else f"{_listed(of_a_rank)} rows of a rank"
        if self.micro_batch is None:
            limit = min(rows, PRESETS[self.preset].micro_batch)
            micro = next(size for size in range(limit, 0, -1) if rows % size == 0)
        elif rows % self.micro_batch:
            fitting = ", ".join(str(size) for size in range(1, rows + 1) if rows % size == 0)
            raise ConfigurationError(f"micro_batch {self.micro_batch} does not divide the {told}; these do: {fitting}")
        else:
            micro = self.micro_batch
        least = of_a_rank[0]
        if self.noise_scale and least // micro < 2:
            fewer = next((size for size in range(least // 2, 0, -1) if rows % size == 0), None)
            would = f"a larger {self._batch_option}" if fewer is None else f"--micro-batch {fewer}"
            raise ConfigurationError(
                f"noise_scale compares the first micro-batch of a step with all of it, and a rank has only one; {would} would do"
            )
        return micro, of_a_rank[-1] // micro

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Options that decide the result and differ from a saved configuration, as `name: there -> here`."""
        mine, other = (_said(of, self.preset) for of in (json.loads(self.model_dump_json()), _with_phases(other)))
        decisive = {"tokens", "steps"} if self.batch_ramp or any(phase.share is not None for phase in self.phases) else set()
        return [
            f"{name}: {other.get(name)!r} -> {mine[name]!r}"
            for name in sorted(mine)
            if name not in MAY_CHANGE - decisive and other.get(name) != mine[name]
        ]


MAY_CHANGE = {
    "manifest", "out", "seconds", "tokens", "steps", "skip_steps", "micro_batch", "max_epochs", "device", "dtype", "compile",
    "tune", "noise_scale", "watch_logits", "clock", "loss_chunk", "parallel", "replicas", "accumulate", "recompute",
    "checkpoint_every", "keep", "log_every", "evaluate", "tensorboard", "wandb", "cache", "parent", "gate",
}  # fmt: skip
"""Options that a resumed run may be given anew: where, how long and how fast, not what is computed. (The corpus itself is
compared by digest, wherever it lies, and so are gates and weights that it began with. Where phases or batches go by shares of the
budget, it decides what is computed.)"""


BY_PRESET = ("optimiser", "schedule", "warmup", "cooldown", "final_rate", "weight_decay", "clip")
"""Options that are as the preset has them where they are None."""


def _with_rewarmup(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "warmup": REWARMUP} if given.get("parent") and given.get("warmup") is None else given


def _with_phases(given: dict[str, Any]) -> dict[str, Any]:
    """Options with `phases` where they have `mixture`."""
    if "mixture" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "mixture"}
    if "phases" in given:
        raise ValueError("mixture is a short way to give a single phase; give it or phases, not both")
    return {**rest, "phases": [{"mixture": given["mixture"] or {}, "rows": None}]}


def _said(given: dict[str, Any], preset: str) -> dict[str, Any]:
    """Options as they work: with what the preset decides put in, and what phases leave open left out, as runs of earlier
    versions saved them."""
    phases = [{name: value for name, value in phase.items() if value is not None} for phase in given["phases"]]
    open_ones = {name: getattr(PRESETS[preset], name) for name in BY_PRESET if given.get(name) is None}
    return {"packing": "best-fit", "batch_ramp": [], **given, **open_ones, "phases": phases}


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" if isinstance(number, float) else str(number) for number in numbers)


def _readable(error: ValidationError) -> str:
    lines = []
    for one in error.errors():
        at = ".".join(str(step) for step in one["loc"])
        message = one["msg"].removeprefix("Value error, ")
        given = f" (given: {one['input']!r})" if at and one["type"] != "extra_forbidden" else ""
        lines.append(f"{at}: {message}{given}" if at else message)
    return "\n".join(lines)
