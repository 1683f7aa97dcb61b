"""What a training run will cost and whether it fits, by arithmetic, before anything is bought or built. Imports no torch.

Conventions, which other people's planners do not always share:

- FLOPs a token, forward and backward: 6 x the parameters that a token is multiplied with (all but looked-up tables; gains of
  norms count) + 12 x layers x attention width x the keys a query sees, T / 2 in a causal row of T. The shortcut is 6 x all
  parameters. (`trainer.network.flops`, which measures, leaves the gains out and has its own two conventions of keys.)
- Model states are those of mixed precision with Adam: 2 bytes of weights, 2 of gradients, 12 of float32 weights and two moments
  (Rajbhandari et al. 2020, ZeRO), 16 a parameter. ZeRO-1 divides the 12 by the GPUs, ZeRO-2 the gradients too, ZeRO-3 (FSDP)
  everything. This package's trainer keeps weights, gradients and moments in float32: 16 too, and copies of them beside these.
  A running average of the weights (`--ema`) is 4 more, divided as the weights are.
- Activations are what the backward pass needs of a block, in bfloat16, where attention keeps no scores (FlashAttention): what
  goes into the block, the first norm's output, queries, keys, values, attention's output, the stream after attention, the second
  norm's output, and of SwiGLU the gate, the up projection and their product. Checkpointed, every block's input is kept, and one
  block is whole at a time.
- Logits are one float32 copy of a micro-batch. GB are 10^9 bytes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer.configuration import ConfigurationError
from trainer.network.flops import peak_flops
from trainer.planning import chinchilla
from trainer.presets import Architecture
from trainer.run_files.run_record import RunRecord

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMISER_BYTES = 2, 2, 12
FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2
YOUNG_HOLDS = 0.5
"""Young's formula is of first order: an interval of more than so much of the time between failures is outside of it."""
GPU_HOURS_A_FAILURE = 16_384 * 54 * 24 / 419
"""Llama 3's record (Dubey et al. 2024): 419 unexpected interruptions of 16,384 GPUs in 54 days, one in 3.09 h."""
DEFAULT_MFU = 0.40
DEFAULT_HEADROOM = 0.10
"""Share of a GPU's memory that is left to kernels' workspaces, communication and fragmentation."""


class PlanError(ValueError):
    """Figures that no run can have; the message names the option."""


@dataclass(frozen=True)
class Gpu:
    """`memory` in bytes as sold, `peak` in dense bfloat16 FLOP/s; None where it is not known."""

    name: str
    memory: float
    peak: float | None


GPUS = {
    name: Gpu(name, memory, peak_flops(driver, "bfloat16"))
    for name, memory, driver in (
        ("a100", 80e9, "NVIDIA A100-SXM4-80GB"),
        ("h100", 80e9, "NVIDIA H100 80GB HBM3"),
        ("h200", 141e9, "NVIDIA H200"),
    )
}


@dataclass(frozen=True)
class Request:
    """What is asked. `tokens`: targets of the run. `sequence_length` T, `micro_batch` rows of it that a GPU computes at a time,
    `batch_tokens` of a step over all GPUs. `achieved`: FLOP/s that one GPU reaches. `headroom`: share of its memory left free.
    `stages`, `micro_batches`: of a pipeline, None for none. `mtbf_hours`: between failures of the whole cluster; None: by Llama
    3's record. `ema`: a running average of the weights is kept.
    """

    architecture: Architecture
    tokens: float
    sequence_length: int
    micro_batch: int
    batch_tokens: int
    gpus: int
    gpu: Gpu
    achieved: float
    headroom: float = DEFAULT_HEADROOM
    stages: int | None = None
    micro_batches: int | None = None
    mtbf_hours: float | None = None
    checkpoint_seconds: float = 60.0
    ema: bool = False

    def __post_init__(self) -> None:
        for name in ("tokens", "sequence_length", "micro_batch", "batch_tokens", "gpus", "achieved", "checkpoint_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise PlanError(f"--{name.replace('_', '-')} {value:g}: a number above 0 is needed")
        if not 0 <= self.headroom < 1:
            raise PlanError(f"--headroom {self.headroom:g}: a share from 0 on, below 1")
        if not (math.isfinite(self.gpu.memory) and self.gpu.memory > 0):
            raise PlanError(f"--gpu-memory {self.gpu.memory / 1e9:g}: gigabytes above 0 are needed")
        if self.gpu.peak is not None and self.achieved > self.gpu.peak:
            raise PlanError(
                f"--achieved {self.achieved:g}: more than the {self.gpu.peak:g} FLOP/s of a {self.gpu.name} (dense bfloat16)"
            )
        if self.mtbf_hours is not None and not (math.isfinite(self.mtbf_hours) and self.mtbf_hours > 0):
            raise PlanError(f"--mtbf-hours {self.mtbf_hours:g}: a number above 0 is needed")
        if self.batch_tokens % self.sequence_length:
            near = max(1, round(self.batch_tokens / self.sequence_length)) * self.sequence_length
            raise PlanError(
                f"--batch-tokens {self.batch_tokens} is not a multiple of {self.sequence_length}; the nearest is {near}"
            )
        if self.micro_batches is not None and self.stages is None:
            raise PlanError("--micro-batches are those of a pipeline: give --stages too")
        if self.stages is not None and not 1 <= self.stages <= self.architecture.layers:
            raise PlanError(f"--stages {self.stages}: from 1 to {self.architecture.layers}, the layers of the model")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise PlanError(f"--micro-batches {self.micro_batches}: 1 at least")


@dataclass(frozen=True)
class Fit:
    """The bytes of one GPU under a layout, and whether they are within the memory that headroom leaves."""

    layout: str
    checkpointed: bool
    states: float
    total: float
    fits: bool


@dataclass(frozen=True)
class Checkpoints:
    """`interval` in seconds by Young's formula; `share` of the time goes into writing and into work that a failure undoes."""

    mtbf: float
    writing: float
    interval: float
    share: float


@dataclass(frozen=True)
class TrainingPlan:
    """`flops`: of the whole run; `shortcut`: 6 N D. Times are of GPUs that reach `achieved`; memory is in bytes a GPU."""

    request: Request
    parameters: dict[str, int]
    flops: float
    shortcut: float
    gpu_hours: float
    days: float
    days_with_failures: float
    steps: float
    states: dict[str, float]
    activations: float
    checkpointed: float
    logits: float
    fits: list[Fit]
    bubble: float | None
    checkpoints: Checkpoints
    optimum: chinchilla.Point
    rule_of_thumb: chinchilla.Point
    planned: chinchilla.Point
    payback: chinchilla.Payback
    warnings: list[str] = field(default_factory=list)

    @property
    def mfu(self) -> float | None:
        return None if self.request.gpu.peak is None else self.request.achieved / self.request.gpu.peak

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["request"]["architecture"] = self.request.architecture.model_dump(mode="json")
        points = ("optimum", "rule_of_thumb", "planned")
        told.update({name: getattr(self, name).as_json() for name in points})
        told["payback"]["cheapest"] = self.payback.cheapest.as_json()
        return {**told, "mfu": self.mfu}


def plan(request: Request) -> TrainingPlan:
    """PlanError where the figures are too large or too small to be reckoned with."""
    try:
        found = _plan(request)
        if math.isfinite(found.days_with_failures) and math.isfinite(found.activations):
            return found
    except (OverflowError, ZeroDivisionError):
        pass
    raise PlanError("these figures are beyond all reckoning: look at --tokens, --achieved, --mtbf-hours and the model's shape")


def _plan(request: Request) -> TrainingPlan:
    architecture, tokens = request.architecture, request.tokens
    parts = parameters_by_part(architecture)
    total = architecture.parameters()
    flops = flops_per_token(architecture, request.sequence_length) * tokens
    gpu_hours = flops / request.achieved / 3_600
    days = gpu_hours / request.gpus / 24
    slots = request.micro_batch * request.sequence_length
    states = model_states(total, request.gpus, request.ema)
    activations = activation_bytes(architecture, slots)
    again = checkpointed_bytes(architecture, slots)
    logits = logit_bytes(architecture, slots)
    mtbf = (request.mtbf_hours or GPU_HOURS_A_FAILURE / request.gpus) * 3_600
    checkpoints = checkpoint_interval(mtbf, request.checkpoint_seconds)
    usable = request.gpu.memory * (1 - request.headroom)
    fits = [
        Fit(layout, less, held, held + kept + logits, held + kept + logits <= usable)
        for layout, held in states.items()
        for less, kept in ((False, activations), (True, again))
    ]
    passing = request.micro_batches or max(1, round(request.batch_tokens / slots))
    planned = chinchilla.Point(total, tokens)
    return TrainingPlan(
        request,
        parts,
        flops,
        chinchilla.TRAINING_FLOPS * total * tokens,
        gpu_hours,
        days,
        days * (1 + checkpoints.share),
        tokens / request.batch_tokens,
        states,
        activations,
        again,
        logits,
        fits,
        None if request.stages is None else bubble(request.stages, passing),
        checkpoints,
        chinchilla.optimum(planned.flops),
        chinchilla.rule_of_thumb(planned.flops),
        planned,
        chinchilla.payback(planned),
        _warnings(request, checkpoints, fits),
    )


@dataclass(frozen=True)
class Measured:
    """A run's own figures, and the estimate for it as it ran: with its layout, precision, recomputing and logits, and what this
    package's trainer holds beside the states. Memory is in bytes a rank, and `memory_of` says of what it was measured; `achieved`
    (FLOP/s of a rank) and `mfu` are in this module's convention, the other two in those of the metrics. None where not known."""

    parameters: int
    device: str
    ranks: int
    tokens_per_second: float | None
    achieved: float | None
    mfu: float | None
    mfu_palm: float | None
    mfu_causal_exact: float | None
    estimated_memory: float
    memory: float | None
    memory_of: str


def measured(record: RunRecord) -> Measured:
    """PlanError where the run's options do not belong together."""
    architecture, config = record.architecture, record.config
    try:
        rows, micro_batches = config.micro_batches(record.ranks)
    except ConfigurationError as error:
        raise PlanError(f"{record.folder}: {error}") from None
    slots, size = rows * config.row_tokens, BFLOAT16_BYTES if record.dtype == "bfloat16" else FLOAT32_BYTES
    if config.recompute in ("none", "feed"):
        kept = activation_bytes(architecture, slots, size)
        if config.recompute == "feed":
            kept -= architecture.layers * slots * architecture.hidden * size
    else:
        kept = checkpointed_bytes(architecture, slots, size, every=1 if config.recompute == "full" else 2)
    logits = logit_bytes(architecture, min(slots, config.loss_chunk or slots))
    estimate = _held(record, size, micro_batches) + kept + logits
    speed = record.tokens_per_second
    achieved = None if speed is None else speed / record.ranks * flops_per_token(architecture, config.row_tokens)
    peak = peak_flops(record.device, record.dtype)
    return Measured(
        architecture.parameters(),
        record.device,
        record.ranks,
        speed,
        achieved,
        None if achieved is None or peak is None else achieved / peak,
        record.mfu["mfu_palm"],
        record.mfu["mfu_causal_exact"],
        estimate,
        record.memory,
        "the whole process, Python and libraries too" if "CPU" in record.device else "of a GPU, at its peak",
    )


def parameters_by_part(architecture: Architecture) -> dict[str, int]:
    """Parts that add up to `Architecture.parameters`; those that have none are left out."""
    width, layers, inner = architecture.width, architecture.layers, architecture.kv_heads * architecture.head_width
    table = architecture.vocabulary * width
    tables = sum(map(architecture.has_values, range(layers)))
    parts = {
        "embedding": table,
        "head": 0 if architecture.tied else table,
        "attention": layers * width * (2 * architecture.heads * architecture.head_width + 2 * inner),
        "feed-forward": layers * (3 if architecture.feed == "swiglu" else 2) * width * architecture.hidden,
        "value embeddings": tables * architecture.vocabulary * inner,
    }
    rest = architecture.parameters() - sum(parts.values())
    return {name: number for name, number in {**parts, "norms and single numbers": rest}.items() if number}


def flops_per_token(architecture: Architecture, sequence_length: int) -> float:
    """Forward and backward, in this module's convention. A query of a layer with a window w sees w - w^2 / 2T keys on average."""
    parts = parameters_by_part(architecture)
    looked_up = parts.get("value embeddings", 0) + (0 if architecture.tied else parts["embedding"])
    whole, near = sequence_length / 2, float(min(architecture.window, sequence_length))
    short = architecture.short_layers
    keys = (architecture.layers - short) * whole + short * (near - near**2 / (2 * sequence_length))
    attention = 12.0 * architecture.heads * architecture.head_width * keys
    return 6.0 * (architecture.parameters() - looked_up) + attention


def model_states(parameters: int, gpus: int, ema: bool = False) -> dict[str, float]:
    """Layout → bytes of weights, gradients and optimiser on each of `gpus`, 16 a parameter where nothing is divided. `ema`: 4
    more for a running average, which lies where the weights do."""
    weights, gradients, optimiser = (parameters * size for size in (WEIGHT_BYTES, GRADIENT_BYTES, OPTIMISER_BYTES))
    weights += parameters * FLOAT32_BYTES if ema else 0
    return {
        "DP": float(weights + gradients + optimiser),
        "ZeRO-1": weights + gradients + optimiser / gpus,
        "ZeRO-2": weights + (gradients + optimiser) / gpus,
        "ZeRO-3 (FSDP)": (weights + gradients + optimiser) / gpus,
    }


def activation_bytes(architecture: Architecture, slots: int, number_bytes: int = BFLOAT16_BYTES) -> float:
    """All blocks keep what their backward pass needs of `slots` tokens."""
    return float(architecture.layers * _block_bytes(architecture, slots, number_bytes))


def checkpointed_bytes(architecture: Architecture, slots: int, number_bytes: int = BFLOAT16_BYTES, every: int = 1) -> float:
    """Every block's input, and the one block that is being computed again. `every` 2: only every second block is."""
    again = -(-architecture.layers // every)
    inputs = again * slots * architecture.width * number_bytes
    return float(inputs + (architecture.layers - again + 1) * _block_bytes(architecture, slots, number_bytes))


def logit_bytes(architecture: Architecture, slots: int) -> float:
    return float(slots * architecture.vocabulary * FLOAT32_BYTES)


def bubble(stages: int, micro_batches: int) -> float:
    """Share of the time in which a stage of a pipeline waits (GPipe, 1F1B): (p - 1) / (m + p - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def checkpoint_interval(mtbf: float, writing: float) -> Checkpoints:
    """Young (1974), in seconds: every sqrt(2 x writing x mtbf). What is lost is writing / interval + interval / (2 mtbf); loading
    and starting again after a failure come on top."""
    interval = math.sqrt(2 * writing * mtbf)
    return Checkpoints(mtbf, writing, interval, writing / interval + interval / (2 * mtbf))


def _held(record: RunRecord, number_bytes: int, micro_batches: int) -> float:
    """Bytes of weights, gradients, moments and running average of a rank, float32 each, and of what is made of them: weights in
    bfloat16, and the buckets in which DistributedDataParallel shares gradients of float32, which are the gradients themselves
    where each micro-batch is shared. `--accumulate whole` gathers weights, and sums whole gradients instead of the rank's share
    of them, which is made of these at the end of a step. What is gathered block by block is there twice, one block being
    computed and one on its way; tables and head are one such group, and stay."""
    architecture = record.architecture
    parameters, several = architecture.parameters(), micro_batches > 1
    held = 3 * FLOAT32_BYTES * parameters / record.shards  # weights and both moments
    held += 0 if record.config.ema is None else FLOAT32_BYTES * parameters / record.shards
    if record.shards == 1:
        copies = 0 if number_bytes == FLOAT32_BYTES else number_bytes
        buckets = FLOAT32_BYTES if not copies and several and record.ranks > 1 else 0
        return held + (FLOAT32_BYTES + copies + buckets) * parameters
    parts = parameters_by_part(architecture)
    tables = sum(parts.get(name, 0) for name in ("embedding", "head", "value embeddings"))
    two_blocks = 2 * (parameters - tables) / architecture.layers
    reduced = FLOAT32_BYTES * (tables + two_blocks)  # gradients as they are sent
    if record.config.accumulate == "whole" and several:
        return held + (FLOAT32_BYTES + number_bytes) * parameters + reduced
    gathered = 2 * number_bytes * tables + number_bytes * two_blocks  # of tables with their gradients
    return held + FLOAT32_BYTES * parameters / record.shards + gathered + reduced


def _block_bytes(architecture: Architecture, slots: int, number_bytes: int) -> float:
    """Of one block on average: only some have value embeddings. Norms of queries and keys keep these as they were before, too;
    a share of the embedding keeps what it is added to; of squared ReLU its output alone is kept."""
    queries, keys = architecture.heads * architecture.head_width, architecture.kv_heads * architecture.head_width
    kept = 4 * architecture.width + 2 * queries + 2 * keys
    kept += (3 if architecture.feed == "swiglu" else 1) * architecture.hidden
    kept += queries + keys if architecture.qk_norm else 0
    kept += architecture.width if architecture.lambdas else 0
    tables = sum(map(architecture.has_values, range(architecture.layers)))
    return slots * number_bytes * (kept + keys * tables / architecture.layers)


def _warnings(request: Request, checkpoints: Checkpoints, fits: list[Fit]) -> list[str]:
    found = []
    rows, at_once = request.batch_tokens // request.sequence_length, request.micro_batch * request.gpus
    if rows % at_once:
        found.append(
            f"a step has {rows:,} rows, which {request.gpus:,} GPUs cannot share in micro-batches of {request.micro_batch}; "
            f"--batch-tokens {max(1, round(rows / at_once)) * at_once * request.sequence_length} would do"
        )
    sizes, data = chinchilla.FITTED_PARAMETERS, chinchilla.FITTED_TOKENS
    if not (sizes[0] <= request.architecture.parameters() <= sizes[1] and data[0] <= request.tokens <= data[1]):
        found.append(
            f"Chinchilla's fit is of {sizes[0] / 1e6:g}M to {sizes[1] / 1e9:g}B parameters and {data[0] / 1e9:g}B to "
            f"{data[1] / 1e9:g}B tokens; beyond them it extrapolates"
        )
    if request.tokens < request.batch_tokens:
        found.append(f"the whole run, {request.tokens:,.0f} tokens, is less than a step of {request.batch_tokens:,}")
    if not any(one.fits for one in fits):
        least = min(one.total for one in fits)
        found.append(
            f"no layout fits: {least / 1e9:.1f} GB at least, and {request.gpu.memory * (1 - request.headroom) / 1e9:.1f} there "
            "are; more GPUs, a smaller --micro-batch, or train's --loss-chunk help"
        )
    if checkpoints.interval > YOUNG_HOLDS * checkpoints.mtbf:
        found.append(
            f"a checkpoint takes {checkpoints.writing:,.0f} s and failures come every {checkpoints.mtbf:,.0f} s: Young's "
            "formula does not hold there, and more is lost than it says"
        )
    if request.stages is not None and request.gpus % request.stages:
        found.append(f"{request.gpus:,} GPUs are no multiple of {request.stages} stages")
    if request.stages is not None and request.stages > 1:
        found.append("the trainer of this package has no pipeline: the bubble is for planning with others")
    return found
