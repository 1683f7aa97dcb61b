"""Pieces of a training step that are one pass over memory each, as Triton kernels for CUDA.

A compiler writes them as several passes, or computes the same angles for every head. Each has its plain twin beside its caller in
`trainer.network.model`, which runs everywhere else and is what these are compared with. Arithmetic is float32; what comes in and
goes out has the model's type. Sums have a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.data.loader import IGNORED

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # builds of torch for the CPU come without it
    triton = None

AVAILABLE = triton is not None and torch.cuda.is_available()

POSITIONS = 32
"""Positions that one program of a kernel over heads takes."""
COLUMNS = 4_096
"""Logits that a program holds at a time."""
ELEMENTS = 1_024
"""Elements of a row that a program of the feed-forward's kernels takes."""
TILE = (128, 256, 64)
"""Rows, columns, and terms at a time of a product: what the shared memory of an H100 holds three times over, and the result."""
STAGES = 3
PRODUCTS = True
"""Whether squared ReLU is a part of the products around it (`SquaredFeed`). On an H200 a step of `speedrun` is 4 % faster so and
takes 9 GB less; `python -m bench.gpu_parts speedrun=documents,documents-products` compares."""


@torch.library.custom_op("corpusmill::token_nats", mutates_args=())
def token_nats(logits: Tensor, targets: Tensor, soft_cap: float = 0.0) -> tuple[Tensor, Tensor]:
    """(nats, log Z) of each row of logits (n, vocabulary), float32; nats are 0 where the target is IGNORED. With `soft_cap`, of
    soft_cap x tanh(logits / soft_cap)."""
    rows, vocabulary = logits.shape
    nats, log_z = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    _nats_kernel[(rows,)](
        logits, targets, nats, log_z, vocabulary, logits.stride(0), soft_cap, IGNORED, COLUMNS, soft_cap > 0, num_warps=8
    )
    return nats, log_z


@token_nats.register_fake
def _(logits: Tensor, targets: Tensor, soft_cap: float = 0.0) -> tuple[Tensor, Tensor]:
    found = logits.new_empty(logits.shape[0], dtype=torch.float32)
    return found, torch.empty_like(found)


@torch.library.custom_op("corpusmill::token_nats_backward", mutates_args=())
def _token_nats_backward(
    logits: Tensor, targets: Tensor, log_z: Tensor, of_nats: Tensor, of_log_z: Tensor, soft_cap: float
) -> Tensor:
    rows, vocabulary = logits.shape
    gradient = torch.empty_like(logits)
    _nats_backward_kernel[(rows,)](
        logits, targets, log_z, of_nats, of_log_z, gradient, vocabulary, logits.stride(0), gradient.stride(0), soft_cap, IGNORED,
        COLUMNS, soft_cap > 0, num_warps=8,
    )  # fmt: skip
    return gradient


@_token_nats_backward.register_fake
def _(logits: Tensor, targets: Tensor, log_z: Tensor, of_nats: Tensor, of_log_z: Tensor, soft_cap: float) -> Tensor:
    return torch.empty_like(logits)


def _nats_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    logits, targets, ctx.soft_cap = inputs
    ctx.save_for_backward(logits, targets, output[1])


def _nats_gradient(ctx: Any, of_nats: Tensor, of_log_z: Tensor) -> tuple[Tensor, None, None]:
    logits, targets, log_z = ctx.saved_tensors
    gradient = _token_nats_backward(logits, targets, log_z, of_nats.contiguous(), of_log_z.contiguous(), ctx.soft_cap)
    return gradient, None, None


token_nats.register_autograd(_nats_gradient, setup_context=_nats_context)


@torch.library.custom_op("corpusmill::rotated_heads", mutates_args=())
def rotated_heads(
    packed: Tensor,
    heads: int,
    kv_heads: int,
    cos: Tensor,
    sin: Tensor,
    query_gain: Tensor | None,
    key_gain: Tensor | None,
    epsilon: float,
    normed: bool,
) -> tuple[Tensor, Tensor]:
    """Queries (rows, length, heads, width) and keys (rows, length, kv_heads, width) of a projection that holds queries, keys and
    values, (rows, length, heads + 2 kv_heads, width): divided by their root mean square where `normed`, scaled where gains are
    given, then rotated by angles whose cosines and sines are (length, width / 2), float32."""
    rows, length, _, width = packed.shape
    query, key = (packed.new_empty(rows, length, number, width) for number in (heads, kv_heads))
    grid = (rows * triton.cdiv(length, POSITIONS), heads + kv_heads)
    gains = (cos, cos) if query_gain is None else (query_gain, key_gain)
    _heads_kernel[grid](
        packed, query, key, cos, sin, *gains, epsilon, length, heads, kv_heads,
        width // 2, normed, query_gain is not None, POSITIONS, num_warps=4,
    )  # fmt: skip
    return query, key


@rotated_heads.register_fake
def _(
    packed: Tensor,
    heads: int,
    kv_heads: int,
    cos: Tensor,
    sin: Tensor,
    query_gain: Tensor | None,
    key_gain: Tensor | None,
    epsilon: float,
    normed: bool,
) -> tuple[Tensor, Tensor]:
    rows, length, _, width = packed.shape
    return packed.new_empty(rows, length, heads, width), packed.new_empty(rows, length, kv_heads, width)


@torch.library.custom_op("corpusmill::rotated_heads_backward", mutates_args=())
def _rotated_heads_backward(
    packed: Tensor, of_query: Tensor, of_key: Tensor, of_value: Tensor, cos: Tensor, sin: Tensor,
    query_gain: Tensor | None, key_gain: Tensor | None, epsilon: float, normed: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of `packed`, and of the gains (2, width), or of nothing where there are none."""
    rows, length, _, width = packed.shape
    heads, kv_heads = of_query.shape[2], of_key.shape[2]
    gradient = torch.empty_like(packed)
    blocks = rows * triton.cdiv(length, POSITIONS)
    gained = query_gain is not None
    sums = packed.new_empty((heads + kv_heads, blocks, width) if gained else (0,), dtype=torch.float32)
    gains = (cos, cos) if query_gain is None else (query_gain, key_gain)
    _heads_backward_kernel[(blocks, heads + 2 * kv_heads)](
        packed, of_query, of_key, of_value, gradient, sums, cos, sin, *gains, epsilon, length, heads, kv_heads,
        *of_query.stride()[:3], *of_key.stride()[:3], *of_value.stride()[:3],
        width // 2, normed, gained, POSITIONS, num_warps=4,
    )  # fmt: skip
    if not gained:
        return gradient, sums
    by_head = sums.sum(dim=1)
    return gradient, torch.stack((by_head[:heads].sum(dim=0), by_head[heads:].sum(dim=0)))


@_rotated_heads_backward.register_fake
def _(
    packed: Tensor, of_query: Tensor, of_key: Tensor, of_value: Tensor, cos: Tensor, sin: Tensor,
    query_gain: Tensor | None, key_gain: Tensor | None, epsilon: float, normed: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape = (0,) if query_gain is None else (2, packed.shape[-1])
    return torch.empty_like(packed), packed.new_empty(shape, dtype=torch.float32)


class Heads(torch.autograd.Function):
    """`rotated_heads` with the values beside it, so that one pass writes the gradient of all three."""

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor,
        query_gain: Tensor | None, key_gain: Tensor | None, epsilon: float, normed: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        query, key = rotated_heads(packed, heads, kv_heads, cos, sin, query_gain, key_gain, epsilon, normed)
        ctx.save_for_backward(packed, cos, sin, query_gain, key_gain)
        ctx.epsilon, ctx.normed = epsilon, normed
        return query, key, packed.narrow(2, heads + kv_heads, kv_heads)

    @staticmethod
    def backward(ctx: Any, of_query: Tensor, of_key: Tensor, of_value: Tensor) -> tuple[Tensor | None, ...]:
        packed, cos, sin, query_gain, key_gain = ctx.saved_tensors
        gradient, gains = _rotated_heads_backward(
            packed, _dense(of_query), _dense(of_key), _dense(of_value), cos, sin, query_gain, key_gain, ctx.epsilon, ctx.normed
        )
        of_gains = (None, None) if query_gain is None else (gains[0], gains[1])
        return gradient, None, None, None, None, *of_gains, None, None


def _dense(gradient: Tensor) -> Tensor:
    """With each head's numbers side by side, as the kernels read them."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


@torch.library.custom_op("corpusmill::swiglu", mutates_args=())
def swiglu(gate_and_up: Tensor) -> Tensor:
    """silu(gate) * up of (…, 2 x hidden), whose halves they are."""
    hidden = gate_and_up.shape[-1] // 2
    out = gate_and_up.new_empty(*gate_and_up.shape[:-1], hidden)
    rows = out.numel() // hidden
    _swiglu_kernel[(rows, triton.cdiv(hidden, ELEMENTS))](gate_and_up, out, hidden, ELEMENTS, num_warps=4)
    return out


@swiglu.register_fake
def _(gate_and_up: Tensor) -> Tensor:
    return gate_and_up.new_empty(*gate_and_up.shape[:-1], gate_and_up.shape[-1] // 2)


@torch.library.custom_op("corpusmill::swiglu_backward", mutates_args=())
def swiglu_backward(gate_and_up: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of `gate_and_up`, from that of what `swiglu` gives."""
    hidden = gradient.shape[-1]
    out = torch.empty_like(gate_and_up)
    rows = gradient.numel() // hidden
    _swiglu_backward_kernel[(rows, triton.cdiv(hidden, ELEMENTS))](gate_and_up, gradient, out, hidden, ELEMENTS, num_warps=4)
    return out


@swiglu_backward.register_fake
def _(gate_and_up: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(gate_and_up)


swiglu.register_autograd(
    lambda ctx, gradient: swiglu_backward(ctx.saved_tensors[0], gradient.contiguous()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("corpusmill::squared_product", mutates_args=())
def squared_product(left: Tensor, right: Tensor) -> Tensor:
    """relu(left @ right.T) squared, of matrices (n, k) and (m, k)."""
    return _product(left, right, None)


@squared_product.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[0])


@torch.library.custom_op("corpusmill::squared_slope", mutates_args=())
def squared_slope(left: Tensor, right: Tensor, squared: Tensor) -> Tensor:
    """left @ right.T x the slope of squared ReLU where it gave `squared` (n, m)."""
    return _product(left, right, squared)


@squared_slope.register_fake
def _(left: Tensor, right: Tensor, squared: Tensor) -> Tensor:
    return torch.empty_like(squared)


def _product(left: Tensor, right: Tensor, squared: Tensor | None) -> Tensor:
    rows, columns, terms = TILE
    left, right = left.contiguous(), right.contiguous()
    out = left.new_empty(left.shape[0], right.shape[0])
    kept = out if squared is None else squared.contiguous()
    half = [rows, columns // 2]
    programs = torch.cuda.get_device_properties(left.device).multi_processor_count if left.is_cuda else 3
    _product_kernel[(programs,)](
        TensorDescriptor.from_tensor(left, [rows, terms]), TensorDescriptor.from_tensor(right, [columns, terms]),
        TensorDescriptor.from_tensor(kept, half), TensorDescriptor.from_tensor(out, half),
        *out.shape, left.shape[1], programs, squared is not None, *TILE, num_warps=8, num_stages=STAGES,
    )  # fmt: skip
    return out


class SquaredFeed(torch.autograd.Function):
    """down(relu(up(stream)) squared) of (n, width), whose squares are made where the product before them is, so that they are
    written once and nothing else as wide is; the same for their slope."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, up: Tensor, down: Tensor) -> Tensor:
        squared = squared_product(stream, up)
        ctx.save_for_backward(stream, up, down, squared)
        return torch.mm(squared, down.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stream, up, down, squared = ctx.saved_tensors
        of_inner = squared_slope(gradient, down.T, squared)
        return of_inner @ up, of_inner.T @ stream, gradient.T @ squared


def products_fit(stream: Tensor, hidden: int) -> bool:
    """Whether `SquaredFeed` may take these: its tiles are for Hopper's shared memory, whose tensor memory accelerator moves whole
    16 bytes."""
    if not (PRODUCTS and AVAILABLE and stream.is_cuda and stream.dtype == torch.bfloat16):
        return False
    return torch.cuda.get_device_capability(stream.device)[0] == 9 and stream.shape[-1] % 8 == 0 and hidden % 8 == 0


@torch.library.custom_op("corpusmill::rotary", mutates_args=())
def rotary(like: Tensor, length: int, half: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, half), float32: numbers in memory, since a compiler that sees the formula repeats it for every
    head."""
    steps = torch.arange(half, device=like.device, dtype=torch.float32) / half
    angles = torch.outer(torch.arange(length, device=like.device, dtype=torch.float32), theta**-steps)
    return angles.cos(), angles.sin()


@rotary.register_fake
def _(like: Tensor, length: int, half: int, theta: float) -> tuple[Tensor, Tensor]:
    found = like.new_empty((length, half), dtype=torch.float32)
    return found, torch.empty_like(found)


if triton is not None:

    @triton.jit
    def _capped(some, soft_cap):  # type: ignore[no-untyped-def]
        return soft_cap * (2.0 * tl.sigmoid(some * (2.0 / soft_cap)) - 1.0)  # tanh, which not every backend has

    @triton.jit
    def _nats_kernel(  # type: ignore[no-untyped-def]
        logits, targets, nats, log_z, vocabulary, stride, soft_cap,
        ignored: tl.constexpr, columns: tl.constexpr, cap: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        place = tl.arange(0, columns)
        most = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        for start in range(0, vocabulary, columns):
            inside = start + place < vocabulary
            some = tl.load(logits + row * stride + start + place, mask=inside, other=float("-inf")).to(tl.float32)
            if cap:
                some = tl.where(inside, _capped(some, soft_cap), float("-inf"))
            higher = tl.maximum(most, tl.max(some, 0))
            total = total * tl.exp(most - higher) + tl.sum(tl.exp(some - higher), 0)
            most = higher
        whole = most + tl.log(total)
        target = tl.load(targets + row)
        valid = target != ignored
        chosen = tl.load(logits + row * stride + tl.where(valid, target, 0)).to(tl.float32)
        if cap:
            chosen = _capped(chosen, soft_cap)
        tl.store(nats + row, tl.where(valid, whole - chosen, 0.0))
        tl.store(log_z + row, whole)

    @triton.jit
    def _nats_backward_kernel(  # type: ignore[no-untyped-def]
        logits, targets, log_z, of_nats, of_log_z, gradient, vocabulary, stride, out_stride, soft_cap,
        ignored: tl.constexpr, columns: tl.constexpr, cap: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        place = tl.arange(0, columns)
        target = tl.load(targets + row)
        by_nats = tl.where(target != ignored, tl.load(of_nats + row), 0.0)
        by_softmax = by_nats + tl.load(of_log_z + row)
        whole = tl.load(log_z + row)
        for start in range(0, vocabulary, columns):
            inside = start + place < vocabulary
            some = tl.load(logits + row * stride + start + place, mask=inside, other=float("-inf")).to(tl.float32)
            if cap:
                some = tl.where(inside, _capped(some, soft_cap), float("-inf"))
            slope = tl.exp(some - whole) * by_softmax - tl.where(start + place == target, by_nats, 0.0)
            if cap:
                share = tl.where(inside, some / soft_cap, 0.0)
                slope = slope * (1.0 - share * share)
            tl.store(gradient + row * out_stride + start + place, slope.to(gradient.dtype.element_ty), mask=inside)

    @triton.jit
    def _heads_kernel(  # type: ignore[no-untyped-def]
        packed, query, key, cos, sin, query_gain, key_gain, epsilon, length, heads, kv_heads,
        half: tl.constexpr, normed: tl.constexpr, gained: tl.constexpr, positions: tl.constexpr,
    ):  # fmt: skip
        blocks = tl.cdiv(length, positions)
        row, head = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
        at = (tl.program_id(0) % blocks) * positions + tl.arange(0, positions)
        inside = (at < length)[:, None]
        within = tl.arange(0, half)[None, :]
        tokens = (row * length + at)[:, None]
        source = packed + (tokens * (heads + 2 * kv_heads) + head) * (2 * half) + within
        first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
        if normed:
            scale = 1.0 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * half) + epsilon)[:, None]
            first, second = first * scale, second * scale
        if gained:
            gain = query_gain if head < heads else key_gain
            first = first * tl.load(gain + within).to(tl.float32)
            second = second * tl.load(gain + half + within).to(tl.float32)
        c = tl.load(cos + at[:, None] * half + within, mask=inside, other=0.0)
        s = tl.load(sin + at[:, None] * half + within, mask=inside, other=0.0)
        if head < heads:
            target = query + (tokens * heads + head) * (2 * half) + within
        else:
            target = key + (tokens * kv_heads + head - heads) * (2 * half) + within
        tl.store(target, (first * c - second * s).to(packed.dtype.element_ty), mask=inside)
        tl.store(target + half, (second * c + first * s).to(packed.dtype.element_ty), mask=inside)

    @triton.jit
    def _heads_backward_kernel(  # type: ignore[no-untyped-def]
        packed, of_query, of_key, of_value, gradient, sums, cos, sin, query_gain, key_gain, epsilon, length, heads, kv_heads,
        query_row, query_token, query_head, key_row, key_token, key_head, value_row, value_token, value_head,
        half: tl.constexpr, normed: tl.constexpr, gained: tl.constexpr, positions: tl.constexpr,
    ):  # fmt: skip
        blocks = tl.cdiv(length, positions)
        row, head = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
        at = (tl.program_id(0) % blocks) * positions + tl.arange(0, positions)
        inside = (at < length)[:, None]
        within = tl.arange(0, half)[None, :]
        tokens = (row * length + at)[:, None]
        place = (tokens * (heads + 2 * kv_heads) + head) * (2 * half) + within
        if head >= heads + kv_heads:
            source = of_value + row * value_row + at[:, None] * value_token + (head - heads - kv_heads) * value_head + within
            tl.store(gradient + place, tl.load(source, mask=inside, other=0.0), mask=inside)
            tl.store(gradient + place + half, tl.load(source + half, mask=inside, other=0.0), mask=inside)
        else:
            if head < heads:
                source = of_query + row * query_row + at[:, None] * query_token + head * query_head + within
            else:
                source = of_key + row * key_row + at[:, None] * key_token + (head - heads) * key_head + within
            a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
            c = tl.load(cos + at[:, None] * half + within, mask=inside, other=0.0)
            s = tl.load(sin + at[:, None] * half + within, mask=inside, other=0.0)
            of_first, of_second = a * c + b * s, b * c - a * s
            if normed:
                first = tl.load(packed + place, mask=inside, other=0.0).to(tl.float32)
                second = tl.load(packed + place + half, mask=inside, other=0.0).to(tl.float32)
                scale = 1.0 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * half) + epsilon)[:, None]
                first, second = first * scale, second * scale
                if gained:
                    gain = query_gain if head < heads else key_gain
                    share = sums + (head * (tl.num_programs(0)) + tl.program_id(0)).to(tl.int64) * (2 * half) + tl.arange(0, half)
                    tl.store(share, tl.sum(of_first * first, 0))
                    tl.store(share + half, tl.sum(of_second * second, 0))
                    of_first = of_first * tl.load(gain + within).to(tl.float32)
                    of_second = of_second * tl.load(gain + half + within).to(tl.float32)
                mean = ((tl.sum(of_first * first, 1) + tl.sum(of_second * second, 1)) / (2 * half))[:, None]
                of_first = (of_first - first * mean) * scale
                of_second = (of_second - second * mean) * scale
            tl.store(gradient + place, of_first.to(packed.dtype.element_ty), mask=inside)
            tl.store(gradient + place + half, of_second.to(packed.dtype.element_ty), mask=inside)

    @triton.jit
    def _swiglu_kernel(gate_and_up, out, hidden, elements: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * elements + tl.arange(0, elements)
        inside = at < hidden
        gate = tl.load(gate_and_up + row * 2 * hidden + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_and_up + row * 2 * hidden + hidden + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * hidden + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _swiglu_backward_kernel(gate_and_up, gradient, out, hidden, elements: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * elements + tl.arange(0, elements)
        inside = at < hidden
        place = row * 2 * hidden + at
        gate = tl.load(gate_and_up + place, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_and_up + place + hidden, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(gradient + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
        share = tl.sigmoid(gate)
        of_gate = slope * up * share * (1.0 + gate * (1.0 - share))
        tl.store(out + place, of_gate.to(out.dtype.element_ty), mask=inside)
        tl.store(out + place + hidden, (slope * gate * share).to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _product_kernel(  # type: ignore[no-untyped-def]
        left, right, kept, out, count, hidden, width, programs,
        slope: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, terms: tl.constexpr,
    ):  # fmt: skip
        across = tl.cdiv(hidden, columns)  # neighbours share rows of `left`, and all of `right` stays in the cache
        for tile in tl.range(tl.program_id(0), tl.cdiv(count, rows) * across, programs, flatten=True):
            row, column = (tile // across) * rows, (tile % across) * columns
            sums = tl.zeros((rows, columns), tl.float32)
            for at in range(0, width, terms):
                sums = tl.dot(left.load([row, at]), right.load([column, at]).T, sums)
            # halves, so that what goes out needs half the memory
            first, second = tl.split(tl.permute(tl.reshape(sums, (rows, 2, columns // 2)), (0, 2, 1)))
            if slope:
                first = first * 2.0 * tl.sqrt(kept.load([row, column]).to(tl.float32))
                out.store([row, column], first.to(out.dtype))
                second = second * 2.0 * tl.sqrt(kept.load([row, column + columns // 2]).to(tl.float32))
                out.store([row, column + columns // 2], second.to(out.dtype))
            else:
                first = tl.maximum(first, 0.0)
                out.store([row, column], (first * first).to(out.dtype))
                second = tl.maximum(second, 0.0)
                out.store([row, column + columns // 2], (second * second).to(out.dtype))
