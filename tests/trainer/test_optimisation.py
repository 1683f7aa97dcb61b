"""Muon beside a plain twin in NumPy, its groups, and the course of rates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trainer.network.model import GPT
from trainer.presets import PRESETS
from trainer.run.optimisation import (
    EMBEDDING_RATE,
    FIRST_MOMENTUM,
    HEAD_RATE,
    MARGIN,
    MATRIX_RATE,
    MOMENTUM,
    MOMENTUM_STEPS,
    POLAR_EXPRESS,
    SCALAR_RATE,
    STREAM_SHARE_RATE,
    VARIANCE_BETA,
    Muon,
    WarmupStableDecay,
    build_optimiser,
    polar,
    set_decay,
    set_rate,
)  # fmt: skip

Matrix = NDArray[np.float64]
SHAPE = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 80}


def model_of(preset: str = "speedrun-tiny", **changes: object) -> GPT:
    model = GPT(PRESETS[preset].build(50, **{**SHAPE, **changes}))
    model.initialise(3)
    return model


def with_gradients(model: GPT, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (32, 8), (4, 32), (64, 256)])
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
def test_singular_values_become_nearly_one_and_vectors_stay(shape: tuple[int, int], low: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(3, *shape, generator=generator), full_matrices=False)
    values = torch.logspace(0, -1.5, min(shape)) * 7.0
    found = polar((left * values) @ right, low).float()
    assert torch.linalg.svdvals(found).sub(1).abs().max() < (0.15 if low == torch.float32 else 0.2)
    if low == torch.float32:
        inner = left.mT @ found @ right.mT
        assert (inner - torch.diag_embed(torch.diagonal(inner, dim1=-2, dim2=-1))).abs().max() < 1e-3


def test_nothing_to_follow_moves_nothing() -> None:
    assert not polar(torch.zeros(2, 4, 8), torch.float32).any()


class Twin:
    """Muon for one matrix, written as a reader would."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix, self.momentum = matrix.copy(), np.zeros_like(matrix)
        self.variance = np.zeros(max(matrix.shape))

    def step(self, number: int, gradient: Matrix, rate: float, decay: float) -> None:
        keep = FIRST_MOMENTUM + (MOMENTUM - FIRST_MOMENTUM) * min(number / MOMENTUM_STEPS, 1)
        self.momentum = keep * self.momentum + (1 - keep) * gradient
        x = keep * self.momentum + (1 - keep) * gradient
        x = x / (np.linalg.norm(x) * MARGIN + 1e-6)
        for a, b, c in POLAR_EXPRESS:
            squares = x @ x.T
            x = a * x + (b * squares + c * squares @ squares) @ x
        rows, columns = x.shape
        mean = (x**2).mean(axis=1 if rows >= columns else 0)
        self.variance = VARIANCE_BETA * self.variance + (1 - VARIANCE_BETA) * mean
        scaled = x / np.sqrt(self.variance[:, None] if rows >= columns else self.variance)
        x = scaled * np.linalg.norm(x) / np.linalg.norm(scaled) * max(1, rows / columns) ** 0.5
        pulls = (x * self.matrix >= 0) * self.matrix
        self.matrix = self.matrix - rate * (x + decay * pulls)


@pytest.mark.parametrize("preset", ["speedrun-tiny", "tiny"])
def test_steps_are_those_of_a_plain_twin_for_every_matrix_of_a_parameter(preset: str) -> None:
    model = model_of(preset)
    optimiser = build_optimiser("muon", model, 0.05, 0.3)
    parts = {"projection.weight": [32, 16, 16], "gate_and_up.weight": [80, 80]}

    def matrices(of: torch.Tensor, name: str) -> list[Matrix]:
        ending = ".".join(name.split(".")[-2:])
        return [part.detach().double().numpy().copy() for part in torch.split(of, parts.get(ending, [len(of)]))]

    blocks = {name: p for name, p in model.blocks.named_parameters() if p.ndim == 2 and not name.endswith("values.weight")}
    twins = {name: [Twin(matrix) for matrix in matrices(p, name)] for name, p in blocks.items()}
    for number in range(4):
        with_gradients(model, number)
        for name, parameter in blocks.items():
            assert parameter.grad is not None
            for twin, gradient in zip(twins[name], matrices(parameter.grad, name), strict=True):
                twin.step(number, gradient, 0.05, 0.3)
        optimiser.step()
    for name, parameter in blocks.items():
        for twin, matrix in zip(twins[name], matrices(parameter, name), strict=True):
            assert matrix == pytest.approx(twin.matrix, abs=2e-4), name
    assert len(blocks) == {"speedrun-tiny": 2 * 4 + 1, "tiny": 2 * 4}[preset]


def test_each_parameter_is_moved_once_at_the_rate_of_its_kind() -> None:
    model = model_of()
    optimiser = build_optimiser("muon", model, 2 * MATRIX_RATE, 0.2)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(rates) == len(list(model.parameters()))
    wide = (32 / 768) ** -0.5
    assert model.head is not None
    expected = [
        (model.embedding.weight, EMBEDDING_RATE * wide), (model.head.weight, HEAD_RATE * wide),
        (model.get_parameter("blocks.1.attention.values.weight"), EMBEDDING_RATE * wide),
        (model.get_parameter("blocks.0.input_share"), SCALAR_RATE),
        (model.get_parameter("blocks.0.stream_share"), STREAM_SHARE_RATE),
        (model.get_parameter("blocks.0.feed.up.weight"), MATRIX_RATE),
        (model.get_parameter("blocks.1.attention.value_gate.weight"), MATRIX_RATE),
    ]  # fmt: skip
    for parameter, rate in expected:
        assert rates[id(parameter)] == pytest.approx(2 * rate)
    set_rate(optimiser, 0.0)
    assert {group["lr"] for group in optimiser.param_groups} == {0.0}


def test_a_rate_of_nothing_changes_no_weight() -> None:
    model = model_of()
    before = [p.detach().clone() for p in model.parameters()]
    optimiser = Muon(model, 0.0, 0.2)
    with_gradients(model, 0)
    optimiser.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))


def test_muon_s_decay_falls_to_nothing_with_the_budget_and_adamw_s_stays() -> None:
    muon, adamw = (build_optimiser(kind, model_of(), 0.1, 0.2) for kind in ("muon", "adamw"))
    for optimiser in (muon, adamw):
        set_decay(optimiser, 0.75)
    assert [group["weight_decay"] for group in muon.param_groups] == pytest.approx([0.05, *[0.0] * (len(muon.param_groups) - 1)])
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.2, 0.0]
    set_decay(muon, 1.5)
    assert muon.param_groups[0]["weight_decay"] == 0.0


def test_the_rate_stays_level_until_it_falls_in_a_line() -> None:
    schedule = WarmupStableDecay(2.0, warmup=0.1, cooldown=0.5, final=0.1)
    assert schedule.rate(0.0) > 0
    assert schedule.rate(0.05) == pytest.approx(1.0)
    assert schedule.rate(0.1) == schedule.rate(0.3) == schedule.rate(0.5) == 2.0
    assert schedule.rate(0.75) == pytest.approx(2 * (0.1 + 0.9 * 0.5))
    assert schedule.rate(1.0) == schedule.rate(3.0) == pytest.approx(0.2)
    assert WarmupStableDecay(2.0, 0.0, 0.0, 0.0).rate(1.0) == WarmupStableDecay(2.0, 0.0, 0.5, 0.0).rate(0.0) == 2.0
