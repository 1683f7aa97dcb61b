"""Gradients that are added where they are computed, beside those that autograd adds."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.ranks_fixture import in_ranks
from trainer.distributed.ranks import Ranks
from trainer.network import linear
from trainer.network.linear import Linear, Sums, add_product
from trainer.network.model import GPT
from trainer.presets import PRESETS
from trainer.run.optimisation import build_adamw

MICRO_BATCHES = 3

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="sums within cuBLAS products need a GPU")


def model_of(chunk: int = 0, **changes: object) -> GPT:
    model = GPT(PRESETS["tiny"].build(64, **{"layers": 2, "width": 32, "heads": 2, "hidden": 64, **changes}), chunk)
    model.initialise(3)
    return model


def tokens_of(number: int) -> Tensor:
    return torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(number))


def backward(model: GPT, forward: torch.nn.Module | None = None) -> None:
    for number in range(MICRO_BATCHES):
        tokens = tokens_of(number).to(model.embedding.weight.device)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            nats, squares = (model if forward is None else forward)(tokens, None, tokens.roll(-1, 1))
        (nats.mean() + 1e-2 * squares.mean()).backward()


def gradients(model: GPT) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk", [0, 16])
def test_sums_are_what_autograd_adds_up(chunk: int, tied: bool) -> None:
    plain, ours = model_of(chunk, tied=tied), model_of(chunk, tied=tied)
    backward(plain)
    sums = Sums(ours)
    sums.begin()
    backward(ours)
    wanted, found = gradients(plain), gradients(ours)
    assert wanted.keys() == found.keys()
    for name, one in wanted.items():
        assert ((found[name] - one).norm() / one.norm()).item() < 1e-2, name


def test_sums_are_the_same_where_what_swiglu_multiplies_is_computed_again() -> None:
    plain, ours = model_of(), model_of()
    for model in (plain, ours):
        sums = Sums(model)
        sums.begin()
    for block in ours.blocks:
        block.feed.again = True
    backward(plain)
    backward(ours)
    for name, one in gradients(plain).items():
        assert ((gradients(ours)[name] - one).norm() / one.norm()).item() < 1e-2, name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_compiled_model_adds_the_same(device: str) -> None:
    plain, compiled = model_of().to(device), model_of().to(device)
    backward(plain)
    for block in list(compiled.blocks)[:1]:
        block.feed.again = True
    sums = Sums(compiled)
    sums.begin()
    backward(compiled, torch.compile(compiled))
    found = gradients(compiled)
    for name, one in gradients(plain).items():
        assert ((found[name] - one).norm() / one.norm()).item() < 2e-2, name


def test_every_step_begins_with_its_own_weights_and_sums_of_nothing() -> None:
    plain, ours = model_of(), model_of()
    sums = Sums(ours)
    optimisers = [build_adamw(model, 1e-2, 0.1) for model in (plain, ours)]
    for _ in range(3):
        sums.begin()
        for model, optimiser in zip((plain, ours), optimisers, strict=True):
            backward(model)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
    sums.begin()
    for layer in ours.modules():
        if isinstance(layer, Linear):
            assert layer.low is not None and layer.total is not None
            assert torch.equal(layer.low, layer.weight.to(torch.bfloat16))
            assert not layer.total.any() and layer.weight.grad is layer.total
    for (name, one), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        # AdamW divides by the gradient's own size, so one as small as its rounding can move by the whole rate
        assert (other - one).norm() < 0.05 * one.norm(), name


def test_what_is_only_read_has_the_weights_as_they_are_now() -> None:
    model = model_of()
    sums = Sums(model)
    sums.begin()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        found = model(tokens_of(0))
        plain = model_of()
        for parameter in plain.parameters():
            parameter.mul_(1.5)
        assert torch.equal(found, plain(tokens_of(0)))


def test_a_sum_keeps_what_bfloat16_would_round_away() -> None:
    total = torch.full((2, 3), 256.0)
    left, right = torch.ones(1, 2, dtype=torch.bfloat16), torch.full((1, 3), 0.25, dtype=torch.bfloat16)
    for _ in range(4):
        add_product(total, left, right)
    assert torch.equal(total, torch.full((2, 3), 257.0))


def test_a_copy_of_a_model_has_gradients_of_its_own() -> None:
    model = model_of()
    Sums(model).begin()
    backward(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.5)
    plain = model_of()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.5)
    backward(copied)
    backward(plain)
    wanted, found = gradients(plain), gradients(copied)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[name], one) for name, one in wanted.items())


def average_in_any_order(ranks: Ranks) -> None:
    """Each rank makes the sums of like layers in another order, and one of them not within `add_product`. Of gradients that are
    no such sums the small ones leave together, and the embedding's alone."""
    model = model_of(layers=3)
    within = {id(layer.weight) for layer in model.modules() if isinstance(layer, Linear)}
    others = [parameter for parameter in model.parameters() if id(parameter) not in within]
    linear.SMALL = min(parameter.numel() for parameter in others)
    assert {parameter.numel() <= linear.SMALL for parameter in others} == {True, False}
    sums = Sums(model)
    sums.begin()
    layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
    totals = [layer.total for layer in layers if layer.total is not None]
    calls: list[int] = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, **more: calls.append(tensor.numel()) or all_reduce(tensor, **more)
    with sums.averaged():
        for number, parameter in enumerate(others):
            parameter.grad = torch.full_like(parameter, float(number + ranks.rank))
        for number in range(len(totals))[:: 1 if ranks.first else -1]:
            rows, columns = totals[number].shape
            ones = torch.ones(1, rows, dtype=torch.bfloat16), torch.ones(1, columns, dtype=torch.bfloat16)
            if number == 4:
                totals[number].add_(2.0 * number + ranks.rank)
            else:
                add_product(totals[number], ones[0] * (2 * number + ranks.rank), ones[1])
        early = len(calls)
    assert early > 0, "no gradient left before the backward pass was over"
    for number, total in enumerate(totals):
        assert torch.equal(total, torch.full_like(total, 2 * number + 0.5)), number
    for number, parameter in enumerate(others):
        assert parameter.grad is not None and torch.equal(parameter.grad, torch.full_like(parameter, number + 0.5)), number


def test_ranks_average_the_same_sums_in_whatever_order_they_make_them() -> None:
    assert in_ranks(2, average_in_any_order) == [0, 0]
