"""AdamW, Muon for matrices beside it, and the learning rate's course over a run.

AdamW: betas (.9, .95); weight decay on matrices only, never on norms' gains. Muon (Jordan et al. 2024,
kellerjordan.github.io/posts/muon) moves every matrix of the layers by its momentum with all singular values made one, so that
no direction of a gradient drowns the others; tables, head and single numbers stay with AdamW, at rates of their own.

Rates and decay follow the *share of the budget* that is spent, whether the budget is seconds, tokens or steps.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.configuration import TrainConfig
from trainer.distributed.parallel import ALONE, Layout, local
from trainer.network.feed import SwiGLU
from trainer.network.model import GPT, Attention

BETAS = (0.9, 0.95)
EPSILON = 1e-8

# Of autoresearch (karpathy/autoresearch, train.py), found by search: rates beside MATRIX_RATE, for a width of TUNED_WIDTH.
MATRIX_RATE, EMBEDDING_RATE, HEAD_RATE, SCALAR_RATE, STREAM_SHARE_RATE = 0.04, 0.6, 0.004, 0.5, 0.005
TUNED_WIDTH = 768
MUON_BETAS, INPUT_SHARE_BETAS, MUON_EPSILON = (0.8, 0.95), (0.96, 0.95), 1e-10
"""Of AdamW where Muon has the matrices; of the share of the embedding that layers read."""
MOMENTUM, FIRST_MOMENTUM, MOMENTUM_STEPS = 0.95, 0.85, 300
"""Nesterov momentum, and from what, in how many steps, it rises."""
VARIANCE_BETA = 0.95
GATHERED = 1 << 28
"""Numbers of whole matrices that a rank of a sharded model holds at a time: 1 GiB, and some times that for their moves."""

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Polynomials a x + b x^3 + c x^5, one after the other, that bring all but the smallest singular values of a matrix of norm 1 to
between .85 and 1.15 (Amsel et al. 2025, The Polar Express; with a safety margin of 2 %)."""
MARGIN = 1.02


def build_adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, eps=EPSILON, fused=True)


def build_optimiser(
    kind: Literal["adamw", "muon"], model: GPT, rate: float, weight_decay: float, layout: Layout = ALONE, compiled: bool = False
) -> torch.optim.Optimizer:
    """`rate` is AdamW's, or that of matrices under Muon. `compiled`: Muon's step, not the model."""
    return Muon(model, rate, weight_decay, layout, compiled) if kind == "muon" else build_adamw(model, rate, weight_decay)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of a model's layers, AdamW for all else, in one optimiser.

    The direction of a matrix is the polar factor of its Nesterov momentum, found by POLAR_EXPRESS in bfloat16 on CUDA and float32
    on a CPU; queries, keys and values, or gate and up, which share a parameter, are matrices of their own. Each row (or column,
    of a wide matrix) is then divided by the root of its running mean square, and the whole brought back to its norm (NorMuon, Li
    et al. 2025). Decay pulls only at weights that the direction makes smaller (Chen et al. 2025, cautious weight decay). A step
    is `rate` x sqrt(max(1, rows / columns)). Matrices of one shape are computed together.

    Of a sharded model, a rank keeps momentum for its rows, gathers the whole direction's input, and applies its rows of it, for
    GATHERED numbers at a time: memory that no number of ranks divides. That step is not compiled.
    """

    def __init__(self, model: GPT, rate: float, weight_decay: float, layout: Layout = ALONE, compiled: bool = False) -> None:
        kinds = _by_kind(model)
        self.layout = layout
        self._cuts = _cuts(model)
        super().__init__(
            [{"params": kinds.pop("matrix"), "lr": rate, "weight_decay": weight_decay, "peak_decay": weight_decay}], defaults={}
        )
        groups = [
            {"params": parameters, "betas": betas, "scale": at / MATRIX_RATE}
            for parameters, (at, betas) in zip(kinds.values(), _rates(kinds, model.architecture.width), strict=True)
        ]
        self._rest = torch.optim.AdamW(groups, lr=rate, eps=MUON_EPSILON, weight_decay=0.0, fused=True)
        self.param_groups += self._rest.param_groups
        self._rest.state = self.state  # one place, which checkpoints fill and clear
        compiled = compiled and not layout.sharded  # each portion would be compiled for itself
        self._directions: Callable[..., list[Tensor]] = _compiled(directions) if compiled else directions
        self._apply: Callable[..., None] = _compiled(apply) if compiled else apply
        set_rate(self, rate)
        for parameter in self._matrices:
            self._state(parameter)

    @functools.cached_property
    def _together(self) -> list[list[int]]:
        """Numbers of the matrices that are moved together: all, or of a sharded model portions of one shape."""
        if not self.layout.sharded:
            return [list(range(len(self._matrices)))]
        by_shape = defaultdict(list)
        for number, matrix in enumerate(self._matrices):
            by_shape[matrix.shape].append(number)
        portions = []
        for shape, numbers in by_shape.items():
            size = max(1, GATHERED // shape.numel())
            portions += [numbers[at : at + size] for at in range(0, len(numbers), size)]
        return portions

    @property
    def _matrices(self) -> list[Tensor]:
        return cast(list[Tensor], self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._rest.step()
        matrices, group = self._matrices, self.param_groups[0]
        states = [self._state(parameter) for parameter in matrices]
        warm = min(float(states[0]["step"]) / MOMENTUM_STEPS, 1.0)
        keep = FIRST_MOMENTUM + (MOMENTUM - FIRST_MOMENTUM) * warm
        gradients = [local(torch.zeros_like(p) if p.grad is None else p.grad) for p in matrices]
        momenta = [local(state["momentum"]) for state in states]
        torch._foreach_lerp_(momenta, gradients, 1.0 - keep)
        low = torch.bfloat16 if gradients[0].is_cuda else torch.float32
        rate, decay = (torch.tensor(float(number)) for number in (group["lr"], group["weight_decay"]))
        inputs = torch._foreach_lerp(gradients, momenta, keep)
        for members in self._together:
            ahead = [self._whole(inputs[one], matrices[one]) for one in members]
            cuts = [self._cuts[id(matrices[one])] for one in members]
            found = self._directions(ahead, [states[one]["variance"] for one in members], cuts, low)
            self._apply([local(matrices[one]) for one in members], [self._part(one) for one in found], rate, decay)
        for state in states:
            state["step"] += 1

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = cast(dict[str, Tensor], self.state[parameter])
        if not state:
            sizes = _sums(parameter, self._cuts[id(parameter)])
            state["step"] = torch.zeros(())
            state["momentum"] = torch.zeros_like(parameter, requires_grad=False)
            state["variance"] = torch.zeros(sum(sizes), device=parameter.device)
        return state

    def _whole(self, part: Tensor, parameter: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor):
            return part
        shape, stride = parameter.shape, parameter.stride()
        shared = DTensor.from_local(
            part, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
        )
        return shared.full_tensor()

    def _part(self, whole: Tensor) -> Tensor:
        first, rows = self.layout.rows(len(whole))
        return whole[first : first + rows]


def directions(ahead: list[Tensor], variances: list[Tensor], cuts: list[list[int]], low: torch.dtype) -> list[Tensor]:
    """Where to move each of `ahead`, float32, of the same shapes: for matrices that follow one another in it with `cuts` rows
    each. `variances` are updated: running mean squares of rows, or of columns, one matrix after the other."""
    places = defaultdict(list)
    for number, (one, sizes) in enumerate(zip(ahead, cuts, strict=True)):
        for matrix, variance in zip(torch.split(one, sizes), torch.split(variances[number], _sums(one, sizes)), strict=True):
            places[matrix.shape].append((number, matrix, variance))
    found: list[list[Tensor]] = [[] for _ in ahead]
    for shape, members in places.items():
        rows, columns = shape
        by = -1 if rows >= columns else -2
        square = polar(torch.stack([matrix for _, matrix, _ in members]), low).float()
        mean = square.square().mean(dim=by, keepdim=True)
        before = torch.stack([variance for _, _, variance in members])
        running = before.view_as(mean).lerp(mean, 1.0 - VARIANCE_BETA)
        scale = running.clamp_min(1e-10).rsqrt()
        norms = [(mean * one).sum(dim=(-2, -1), keepdim=True) for one in (torch.ones_like(mean), scale.square())]
        step = square * scale * (norms[0] / norms[1].clamp_min(1e-20)).sqrt() * max(1.0, rows / columns) ** 0.5
        for (number, _, variance), new, move in zip(members, running, step, strict=True):
            variance.copy_(new.flatten())
            found[number].append(move)
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in found]


def polar(matrices: Tensor, low: torch.dtype) -> Tensor:
    """Matrices (n, rows, columns) with all singular values near 1, in the type `low`. Zero stays zero."""
    wide = matrices.shape[-2] <= matrices.shape[-1]
    found: Tensor = matrices.to(low)
    found = found / (found.norm(dim=(-2, -1), keepdim=True) * MARGIN + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        squares = found @ found.mT if wide else found.mT @ found
        factor = b * squares + c * (squares @ squares)
        found = a * found + (factor @ found if wide else found @ factor)
    return found


def apply(parameters: list[Tensor], moves: list[Tensor], rate: Tensor, decay: Tensor) -> None:
    """p -= rate x (move + decay x p, the latter only where both have the same sign)."""
    for parameter, move in zip(parameters, moves, strict=True):
        parameter.sub_(rate * (move + decay * parameter * (move * parameter >= 0)))


@dataclass(frozen=True)
class WarmupCosine:
    """peak x (linear up to `warmup`, then a cosine down to `final` at 1); `warmup` and `final` are shares."""

    peak: float
    warmup: float
    final: float

    def rate(self, spent: float) -> float:
        """The learning rate when the share `spent` (0 to 1, cut there) of the budget is used; never 0 before the end."""
        spent = min(max(spent, 0.0), 1.0)
        if spent < self.warmup:
            return self.peak * max(spent / self.warmup, 1e-3)
        falling = (spent - self.warmup) / (1.0 - self.warmup)
        return self.peak * (self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * falling)))


@dataclass(frozen=True)
class WarmupStableDecay:
    """peak x (linear up to `warmup`, then 1, then linear to `final` over the last `cooldown`), all shares (Hu et al. 2024)."""

    peak: float
    warmup: float
    cooldown: float
    final: float

    def rate(self, spent: float) -> float:
        """As WarmupCosine's."""
        spent = min(max(spent, 0.0), 1.0)
        if spent < self.warmup:
            return self.peak * max(spent / self.warmup, 1e-3)
        left = min(1.0, (1.0 - spent) / self.cooldown) if self.cooldown else 1.0
        return self.peak * (self.final + (1.0 - self.final) * left)


def build_schedule(config: TrainConfig) -> WarmupCosine | WarmupStableDecay:
    """The course of the learning rate that the options ask for."""
    peak, warmup, final = config.peak_rate, config.said("warmup"), config.said("final_rate")
    if config.said("schedule") == "wsd":
        return WarmupStableDecay(peak, warmup, config.said("cooldown"), final)
    return WarmupCosine(peak, warmup, final)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Of all groups, in the proportions that they have."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


def set_decay(optimiser: torch.optim.Optimizer, spent: float) -> None:
    """Muon's weight decay falls to 0 with the budget (as in autoresearch); AdamW's stays."""
    for group in optimiser.param_groups:
        if "peak_decay" in group:
            group["weight_decay"] = group["peak_decay"] * (1.0 - min(max(spent, 0.0), 1.0))


def _by_kind(model: GPT) -> dict[str, list[Tensor]]:
    """Parameters by how they are moved; kinds that this model lacks are left out."""
    kinds: dict[str, list[Tensor]] = {kind: [] for kind in ("matrix", "embedding", "head", "input_share", "gain")}
    head = model.embedding.weight if model.head is None else model.head.weight
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if parameter is head:
            kind = "head"
        elif id(parameter) in tables:
            kind = "embedding"
        elif parameter.ndim >= 2:
            kind = "matrix"
        else:
            kind = "input_share" if name.endswith("input_share") else "gain"
        kinds[kind].append(parameter)
    return {kind: parameters for kind, parameters in kinds.items() if parameters}


def _rates(kinds: Iterable[str], width: int) -> list[tuple[float, tuple[float, float]]]:
    by_width = (width / TUNED_WIDTH) ** -0.5
    rates = {
        "embedding": (EMBEDDING_RATE * by_width, MUON_BETAS),
        "head": (HEAD_RATE * by_width, MUON_BETAS),
        "input_share": (SCALAR_RATE, INPUT_SHARE_BETAS),
        "gain": (STREAM_SHARE_RATE, MUON_BETAS),
    }
    return [rates[kind] for kind in kinds]


def _cuts(model: GPT) -> dict[int, list[int]]:
    """Of each matrix, by its id, the rows of the matrices that it holds one after another."""
    found = {id(p): [p.shape[0]] for p in model.parameters() if p.ndim >= 2}
    for module in model.modules():
        if isinstance(module, Attention):
            query, value = module.heads * module.head_width, module.kv_heads * module.head_width
            found[id(module.projection.weight)] = [query, value, value]
        elif isinstance(module, SwiGLU):
            half = module.gate_and_up.out_features // 2
            found[id(module.gate_and_up.weight)] = [half, half]
    return found


def _sums(matrix: Tensor, rows: Sequence[int]) -> list[int]:
    """How many running mean squares each matrix has that `matrix` holds: one a row, or one a column of a wide one."""
    return [max(each, matrix.shape[1]) for each in rows]


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True)
