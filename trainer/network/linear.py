"""Linear layers whose weights' gradients are added where they are computed.

Autocast casts every weight to bfloat16 in every micro-batch, and hands its gradient over in bfloat16, to be cast to float32 and
added to the sum of those before: 24 bytes of memory traffic for a weight in a micro-batch. Where a process has the whole model,
`Sums` keeps a bfloat16 copy of each weight for a step, and the product that makes a gradient adds it to the float32 sum as it
ends (what Megatron-LM calls gradient accumulation fusion). So a gradient is not rounded to bfloat16 on its way, either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from trainer.network.model import GPT

SMALL = 1 << 16
"""Numbers of a gradient that is sent together with others of that size, as those of gains are: on its own it is all latency."""


class Linear(nn.Linear):
    """Without a bias; one that `Sums` took up computes gradients its way."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.low: Tensor | None = None
        self.total: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, which no `Sums` has taken up: it would compute with what its weights were, and lose its gradients."""
        return {**self.__dict__, "low": None, "total": None}

    def forward(self, x: Tensor) -> Tensor:
        if self.low is None or self.total is None or not torch.is_grad_enabled():
            return F.linear(x, self.weight)
        found: Tensor = product(x.flatten(0, -2).to(self.low.dtype), self.low, self.total)
        return found.view(*x.shape[:-1], -1)


class Sums:
    """Takes up the model's `Linear` layers. A step is `begin`, its micro-batches, the last of them within `averaged` where ranks
    have a model each, and what reads the weights' `grad`."""

    def __init__(self, model: GPT) -> None:
        self._parameters = list(model.parameters())
        self._layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
        for layer in self._layers:
            layer.low = layer.weight.detach().to(torch.bfloat16)
            layer.total = torch.zeros_like(layer.weight, memory_format=torch.contiguous_format)
        # As a backward pass makes them. The head is left out: where the loss is computed in chunks, it has a product for each.
        layers = [layer for layer in model.blocks.modules() if isinstance(layer, Linear)]
        self._in_turn = [layer.total for layer in reversed(layers) if layer.total is not None]

    @torch.no_grad()
    def begin(self) -> None:
        """Copies the weights as they are now, and begins sums of 0, which are the weights' `grad` from here on."""
        lows = [layer.low for layer in self._layers if layer.low is not None]
        totals = [layer.total for layer in self._layers if layer.total is not None]
        torch._foreach_copy_(lows, [layer.weight for layer in self._layers])
        torch._foreach_zero_(totals)
        for layer, total in zip(self._layers, totals, strict=True):
            layer.weight.grad = total

    def check(self) -> None:
        """Raises RuntimeError unless gradients are those of a step that was begun."""
        if any(layer.weight.grad is not layer.total for layer in self._layers):
            raise RuntimeError("a step was not begun, so that it has no gradients: call begin before its first forward pass")

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Around the backward pass after which gradients are means over all ranks. Those of blocks leave as soon as they are
        made, while others are computed, and in one order: what is sent first by one rank is added to what others send first, and
        their compilers need not have come to the same order of products."""
        places = [total.data_ptr() for total in self._in_turn]
        made: set[int] = set()
        sent: list[Any] = []

        def send(gradient: Tensor) -> None:
            sent.append(dist.all_reduce(gradient, async_op=True))

        def ready(total: Tensor) -> None:
            made.add(total.data_ptr())
            while len(sent) < len(places) and places[len(sent)] in made:
                send(self._in_turn[len(sent)])

        _ready.update(dict.fromkeys(places, ready))
        try:
            yield
        finally:
            for place in places:
                _ready.pop(place, None)
        for total in self._in_turn[len(sent) :]:  # that a compiler added up elsewhere and copied
            send(total)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        others = [gradient for gradient in gradients if gradient.data_ptr() not in places]
        for gradient in others:
            if gradient.numel() > SMALL:
                send(gradient)
        small = [gradient for gradient in others if gradient.numel() <= SMALL]
        together = torch.cat([gradient.flatten() for gradient in small]) if small else None
        if together is not None:
            send(together)
        for one in sent:
            one.wait()
        if together is not None:
            parts = torch.split(together, [gradient.numel() for gradient in small])
            torch._foreach_copy_(small, [part.view_as(gradient) for part, gradient in zip(parts, small, strict=True)])
        torch._foreach_div_(gradients, dist.get_world_size())


_ready: dict[int, Callable[[Tensor], None]] = {}
"""By the address of a sum: what is called when it is complete."""


@torch.library.custom_op("corpusmill::product", mutates_args=())
def product(x: Tensor, low: Tensor, total: Tensor) -> Tensor:
    """x @ low.T of matrices (n, k) and (m, k). Its backward pass adds the gradient of `low` to `total` (m, k), float32."""
    return torch.mm(x, low.T)


@product.register_fake
def _(x: Tensor, low: Tensor, total: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], low.shape[0])


@torch.library.custom_op("corpusmill::add_product", mutates_args=("total",))
def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left.T @ right, of matrices (m, k), (n, m) and (n, k); `total` and the sums of products are float32."""
    if total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, left.T, right, torch.float32, out=total)
    else:
        total.addmm_(left.T.float(), right.float())
    if _ready and (ready := _ready.get(total.data_ptr())):
        ready(total)


def _context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    x, low, total = ctx.saved_tensors
    gradient = gradient.contiguous()
    add_product(total, gradient, x)
    return gradient @ low, None, None


product.register_autograd(_gradients, setup_context=_context)
