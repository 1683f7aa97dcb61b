"""`trainer.network.spans` beside FlexAttention's twin, a boolean mask. The kernels need CUDA, or Triton's interpreter:
`TRITON_INTERPRET=1 pytest tests/trainer/test_spans.py` where Triton is installed."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.network import spans
from trainer.network.model import window_mask
from trainer.network.spans import Spans

INTERPRETED = spans.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if spans.AVAILABLE else "cpu")
needs_kernels = pytest.mark.skipif(
    not spans.AVAILABLE and not INTERPRETED, reason="Triton has no GPU here, nor is it interpreted"
)


def segments_of(*rows: list[int]) -> Tensor:
    """Documents of these lengths in a row each; numbers repeat, as those of padding do."""
    return torch.tensor([[n % 7 for n, size in enumerate(row) for _ in range(size)] for row in rows], device=DEVICE)


def allowed(segments: Tensor, window: int, masked: bool) -> Tensor:
    """Boolean (n, t, t), by the definition."""
    length = segments.shape[1]
    found = window_mask(length, window or length, segments.device).expand(len(segments), length, length)
    if not masked:
        return found
    number = F.pad((segments[:, 1:] != segments[:, :-1]).cumsum(1), (1, 0))
    return found & (number[:, :, None] == number[:, None, :])


CASES = pytest.mark.parametrize(("window", "masked"), [(0, True), (40, True), (300, True), (40, False), (0, False)])
ROWS = ([1, 127, 100, 28, 1, 1, 126], [384], [5, 60, 200, 119], [129, 255])


@CASES
def test_spans_are_what_the_boolean_mask_allows(window: int, masked: bool) -> None:
    segments = segments_of(*ROWS)
    found = spans.spans(segments, window, masked)
    place = torch.arange(segments.shape[1], device=DEVICE)
    seen = (place[None, None] >= found.first[:, :, None]) & (place[None, None] <= place[None, :, None])
    wanted = allowed(segments, window, masked)
    assert torch.equal(seen, wanted)
    by_key = (place[None, :, None] <= found.last[:, None, :]) & (place[None, None] <= place[None, :, None])
    assert torch.equal(by_key, wanted)
    assert (found.first.diff() >= 0).all()
    assert (found.last.diff() >= 0).all()


@needs_kernels
@CASES
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("width", [64, 128])
def test_attention_over_spans_and_its_gradients_are_those_of_a_boolean_mask(
    window: int, masked: bool, heads: int, kv_heads: int, width: int
) -> None:
    segments = segments_of(*ROWS)
    rows, length = segments.shape
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(rows, length, heads + 2 * kv_heads, width, generator=generator).to(DEVICE)
    gradient = torch.randn(rows, length, heads, width, generator=generator).to(DEVICE)
    mask = allowed(segments, window, masked)[:, None]
    found, wanted = [], []
    for kept, ours in ((found, True), (wanted, False)):
        leaf = packed.clone().requires_grad_()
        query, key, value = torch.split(leaf, [heads, kv_heads, kv_heads], dim=2)  # none of them contiguous
        if ours:
            out = spans.attend(query, key, value, spans.spans(segments, window, masked))
        else:
            by_head = (one.transpose(1, 2).double() for one in (query, key, value))
            out = F.scaled_dot_product_attention(*by_head, attn_mask=mask, enable_gqa=True).transpose(1, 2).float()
        out.backward(gradient)
        kept += [out.detach(), leaf.grad]
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@needs_kernels
def test_half_precision_is_as_near_to_float64_as_its_own_rounding() -> None:
    half = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter multiplies bfloat16's bits as integers
    segments = segments_of(*ROWS)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(len(ROWS), 384, 2, 64, generator=generator).to(DEVICE, half) for _ in range(3))
    found = spans.attend(query, key, value, spans.spans(segments)).double()
    by_head = (one.transpose(1, 2).double() for one in (query, key, value))
    wanted = F.scaled_dot_product_attention(*by_head, attn_mask=allowed(segments, 0, True)[:, None]).transpose(1, 2)
    assert (found - wanted).norm() <= 1e-2 * wanted.norm()


def test_rows_and_heads_that_tiles_do_not_fit_are_left_to_flex_attention() -> None:
    assert not spans.fit(200, 128)
    assert not spans.fit(256, 48)
    assert isinstance(spans.spans(torch.zeros(1, 4)), Spans)
