"""The kernels of `trainer.network.fused` beside plain operations, in float32. They need CUDA, or Triton's interpreter:
`TRITON_INTERPRET=1 pytest tests/trainer/test_fused.py` where Triton is installed."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data.loader import IGNORED
from trainer.network import fused
from trainer.network.model import Attention, rotary
from trainer.presets import Architecture

INTERPRETED = fused.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if fused.AVAILABLE else "cpu")

pytestmark = pytest.mark.skipif(not fused.AVAILABLE and not INTERPRETED, reason="Triton has no GPU here, nor is it interpreted")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def assert_close(found: Tensor | None, wanted: Tensor | None) -> None:
    assert found is not None
    assert wanted is not None
    assert (found - wanted).abs().max().item() <= 1e-5 * max(1.0, wanted.abs().max().item())


@pytest.mark.parametrize("soft_cap", [0.0, 4.0])
def test_nats_and_log_z_are_those_of_cross_entropy_with_their_gradients(soft_cap: float) -> None:
    logits = 3 * drawn(7, 5_001)  # more than a program holds at a time, and no multiple of it
    targets = torch.randint(0, 5_001, (7,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    targets[2] = IGNORED
    of_nats, of_log_z = drawn(7, seed=2), 0.1 * drawn(7, seed=3)
    ours, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    nats, log_z = fused.token_nats(ours, targets, soft_cap)
    limited = soft_cap * torch.tanh(plain / soft_cap) if soft_cap else plain
    wanted = F.cross_entropy(limited, targets, reduction="none", ignore_index=IGNORED)
    torch.autograd.backward([nats, log_z], [of_nats, of_log_z])
    torch.autograd.backward([wanted, torch.logsumexp(limited, -1)], [of_nats, of_log_z])
    assert nats[2] == 0
    assert_close(nats, wanted)
    assert_close(log_z, torch.logsumexp(limited, -1))
    assert_close(ours.grad, plain.grad)


def test_swiglu_is_silu_times_up_with_its_gradient() -> None:
    both, gradient = drawn(3, 5, 2 * 1_500), drawn(3, 5, 1_500, seed=1)
    ours, plain = both.clone().requires_grad_(), both.clone().requires_grad_()
    found = fused.swiglu(ours)
    gate, up = plain.chunk(2, -1)
    wanted = F.silu(gate) * up
    found.backward(gradient)
    wanted.backward(gradient)
    assert_close(found, wanted)
    assert_close(ours.grad, plain.grad)


def test_squares_within_products_are_those_of_plain_operations_with_all_gradients() -> None:
    dtype = torch.bfloat16 if fused.AVAILABLE else torch.float32
    given = [drawn(150, 72), 0.2 * drawn(280, 72, seed=1), 0.2 * drawn(72, 280, seed=2)]  # no multiples of a tile
    found: list[list[Tensor]] = []
    for take in (fused.SquaredFeed.apply, lambda stream, up, down: F.relu(stream @ up.T).square() @ down.T):
        leaves = [one.to(dtype).requires_grad_() for one in given]
        out = take(*leaves)
        out.backward(drawn(150, 72, seed=3).to(dtype))
        found.append([out.detach().float(), *(leaf.grad.float() for leaf in leaves if leaf.grad is not None)])
    assert len(found[0]) == 4
    for ours, plain in zip(*found, strict=True):
        assert (ours - plain).norm() <= (1e-2 if fused.AVAILABLE else 1e-5) * plain.norm()


@pytest.mark.parametrize(("norms", "gained"), [(True, True), (True, False), (False, True)])
def test_heads_are_normed_and_rotated_as_by_plain_operations_with_all_gradients(norms: bool, gained: bool) -> None:
    options = {"vocabulary": 50, "layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 8, "norm_gains": gained}
    shape = Architecture.model_validate({**options, "qk_norm": norms})
    attention = Attention(shape).to(DEVICE)
    gains = [module.weight for module in (attention.query_norm, attention.key_norm)] if norms and gained else []
    for number, gain in enumerate(gains):
        gain.data = 1 + 0.3 * drawn(16, seed=number)
    packed = drawn(2, 37, 8, 16)  # no multiple of the positions that a program takes
    rotation = rotary(37, shape, DEVICE)
    found: list[list[Tensor]] = []
    for take in (
        lambda given: fused.Heads.apply(given, 4, 2, *rotation, *(gains or [None, None]), shape.norm_epsilon, norms),
        lambda given: attention.plain_heads(given, rotation),
    ):
        given = packed.clone().requires_grad_()
        attention.zero_grad()
        heads = take(given)
        torch.autograd.backward(heads, [drawn(*one.shape, seed=5 + number) for number, one in enumerate(heads)])
        assert given.grad is not None
        found.append([*heads, given.grad, *(gain.grad.clone() for gain in gains if gain.grad is not None)])
    assert len(found[0]) == (6 if norms and gained else 4)
    for ours, plain in zip(*found, strict=True):
        assert_close(ours, plain)


def test_heads_of_a_width_that_no_kernel_takes_are_plain() -> None:
    shape = Architecture(vocabulary=50, layers=1, width=96, heads=4, kv_heads=2, hidden=8, qk_norm=True)
    attention = Attention(shape).to(DEVICE)
    packed, rotation = drawn(2, 5, 8, 24), rotary(5, shape, DEVICE)
    for ours, plain in zip(attention._heads(packed, rotation), attention.plain_heads(packed, rotation), strict=True):
        assert_close(ours, plain)
