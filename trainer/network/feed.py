"""The feed-forward half of a block: SwiGLU, or a squared ReLU.

What is as wide as the layer gets takes most of the memory that a block keeps for its backward pass. `SwiGLU.again` keeps the gate
and the up projection only, and multiplies them again.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.network import fused
from trainer.network.linear import Linear, add_product
from trainer.presets import Architecture


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), Shazeer 2020; gate and up are one matrix, in this order."""

    again = False

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.gate_and_up = Linear(architecture.width, 2 * architecture.hidden)
        self.down = Linear(architecture.hidden, architecture.width)

    def forward(self, stream: Tensor) -> Tensor:
        both = self.gate_and_up(stream)
        if not self.again or not torch.is_grad_enabled():
            return cast(Tensor, self.down(_multiplied(both)))
        flat, low, total = both.flatten(0, -2), self.down.low, self.down.total
        if low is None or total is None:
            found = multiplied_product(flat, self.down.weight.to(both.dtype))
        else:
            found = summed_product(flat, low, total)
        return cast(Tensor, found.view(*stream.shape[:-1], -1))


class SquaredReLU(nn.Module):
    """down(relu(up(x)) squared), So et al. 2021."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.up = nn.Linear(architecture.width, architecture.hidden, bias=False)
        self.down = nn.Linear(architecture.hidden, architecture.width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        if fused.products_fit(stream, self.up.out_features):
            weights = (self.up.weight.to(stream.dtype), self.down.weight.to(stream.dtype))
            found = fused.SquaredFeed.apply(stream.flatten(0, -2), *weights)  # type: ignore[no-untyped-call]
            return cast(Tensor, found.view(stream.shape))
        return cast(Tensor, self.down(_Squared.apply(self.up(stream))))  # type: ignore[no-untyped-call]


class _Squared(torch.autograd.Function):
    """relu(x) squared, which keeps only what comes out: its root is half the slope. What went in, as wide as the layer gets, need
    not be kept beside it, nor what came out be computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = F.relu(x).square()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return cast(Tensor, 2.0 * out.sqrt() * gradient)


def _multiplied(both: Tensor) -> Tensor:
    """silu(gate) * up of (…, 2 x hidden)."""
    if fused.AVAILABLE and both.is_cuda:
        return cast(Tensor, fused.swiglu(both))
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def _of_both(both: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of `both`, from that of what `_multiplied` gives."""
    if fused.AVAILABLE and both.is_cuda:
        return cast(Tensor, fused.swiglu_backward(both, gradient))
    gate, up = both.float().chunk(2, dim=-1)
    slope, share = gradient.float(), torch.sigmoid(gate)
    return torch.cat((slope * up * share * (1.0 + gate * (1.0 - share)), slope * gate * share), dim=-1).to(both.dtype)


# Each is one operation for the compiler, which would find that the same is computed twice and keep it.


@torch.library.custom_op("corpusmill::multiplied_product", mutates_args=())
def multiplied_product(both: Tensor, weight: Tensor) -> Tensor:
    """(silu(gate) * up) @ weight.T of (n, 2 x hidden) and (width, hidden), which keeps its two inputs only."""
    return torch.mm(_multiplied(both), weight.T)


@torch.library.custom_op("corpusmill::multiplied_product_backward", mutates_args=())
def _multiplied_product_backward(both: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return _of_both(both, gradient @ weight), gradient.T @ _multiplied(both)


@torch.library.custom_op("corpusmill::summed_product", mutates_args=())
def summed_product(both: Tensor, low: Tensor, total: Tensor) -> Tensor:
    """`multiplied_product`, whose backward pass adds the gradient of `low` to `total`, as `linear.product`'s does."""
    return torch.mm(_multiplied(both), low.T)


@torch.library.custom_op("corpusmill::summed_product_backward", mutates_args=("total",))
def _summed_product_backward(both: Tensor, low: Tensor, total: Tensor, gradient: Tensor) -> Tensor:
    add_product(total, gradient, _multiplied(both))
    return _of_both(both, gradient @ low)


@multiplied_product.register_fake
def _(both: Tensor, weight: Tensor) -> Tensor:
    return both.new_empty(both.shape[0], weight.shape[0])


@_multiplied_product_backward.register_fake
def _(both: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(both), torch.empty_like(weight)


@summed_product.register_fake
def _(both: Tensor, low: Tensor, total: Tensor) -> Tensor:
    return both.new_empty(both.shape[0], low.shape[0])


@_summed_product_backward.register_fake
def _(both: Tensor, low: Tensor, total: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(both)


def _context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _multiplied_product_backward(*ctx.saved_tensors, gradient.contiguous())
    return found


def _summed_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return _summed_product_backward(*ctx.saved_tensors, gradient.contiguous()), None, None


multiplied_product.register_autograd(_gradients, setup_context=_context)
summed_product.register_autograd(_summed_gradients, setup_context=_context)
