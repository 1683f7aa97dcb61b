"""Attention where each query sees a run of keys that ends with itself: documents packed into rows, windows, or whole rows.

`Spans` says of each position where its run begins and, as a key, which query sees it last; both never fall along a row, so that
a tile of queries needs one run of keys and a tile of keys one run of queries. `attend` computes it as Triton kernels in one pass
over the keys (Dao et al. 2022, FlashAttention), whose runs begin at the very key where they are to, where block masks begin at a
multiple of 128 and take blocks that are seen whole in a loop of their own. Sums have a fixed order: the same input gives the same
bits. FlexAttention with `trainer.network.model.block_mask` is the plain twin.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # builds of torch for the CPU come without it
    triton = None

AVAILABLE = triton is not None and torch.cuda.is_available()

MULTIPLE = 128
"""Of a row's length: tiles do not reach over its end."""
WIDTHS = (64, 128)
"""Of heads."""
HOPPER = 9
"""Major compute capability whose shared memory, tensor memory accelerator and matrix units these tiles were measured on."""


class Spans(NamedTuple):
    """int32 (rows, length) both: the first key that a query sees (the last is itself), and the last query that sees a key."""

    first: Tensor
    last: Tensor


class Tiling(NamedTuple):
    """Queries and keys of a tile, warps of a program, and tiles that are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD = Tiling(64, 64, 4, 3)
OF_QUERIES = Tiling(64, 64, 4, 2)
OF_KEYS = Tiling(64, 64, 4, 2)
"""The fastest on an H200 of those that `python -m bench.gpu_parts tilings` tries, on documents of 450 to 670 seen keys a query:
several small programs on a multiprocessor can hide each other's beginnings and ends."""
EXACT = Tiling(32, 32, 4, 1)
"""For float32, whose products are not for the matrix units."""


def spans(segments: Tensor, window: int = 0, masked: bool = True) -> Spans:
    """Of rows (n, t) whose neighbours of equal number are one document; without `masked`, of whole rows. With `window`, a query
    sees that many positions at most, itself included."""
    rows, length = segments.shape
    place = torch.arange(length, device=segments.device, dtype=torch.int32).expand(rows, length)
    if masked:
        changes = segments[:, 1:] != segments[:, :-1]
        edge = torch.ones_like(changes[:, :1])
        begins, ends = torch.cat((edge, changes), 1), torch.cat((changes, edge), 1)
        first = torch.where(begins, place, 0).cummax(1).values
        last = torch.where(ends, place, length).flip(1).cummin(1).values.flip(1)
    else:
        first, last = torch.zeros_like(place), torch.full_like(place, length - 1)
    if window:
        first, last = torch.maximum(first, place - (window - 1)), torch.minimum(last, place + (window - 1))
    return Spans(first.to(torch.int32).contiguous(), last.to(torch.int32).contiguous())


def fit(length: int, width: int) -> bool:
    """Whether `attend` takes rows of this length and heads of this width, on this machine."""
    if not AVAILABLE or length % MULTIPLE or width not in WIDTHS:
        return False
    return torch.cuda.get_device_capability()[0] == HOPPER


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Spans) -> Tensor:
    """(rows, length, heads, width), from queries of that shape and keys and values (rows, length, kv_heads, width). Scores are
    divided by sqrt(width)."""
    out: Tensor = _attended(query, key, value, seen.first, seen.last)[0]
    return out


@torch.library.custom_op("corpusmill::attended", mutates_args=())
def _attended(query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """What is attended to, and log2 of the sum of the scores' exponentials, (rows, heads, length) float32."""
    rows, length, heads, width = query.shape
    tiling = FORWARD if query.element_size() == 2 else EXACT
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    log_sums = torch.empty(rows, heads, length, dtype=torch.float32, device=query.device)
    _forward_kernel[(length // tiling.queries, rows * heads)](
        _tiles(query, tiling.queries), _tiles(key, tiling.keys), _tiles(value, tiling.keys), _tiles(out, tiling.queries),
        log_sums, first, length, heads, heads // key.shape[2], _scale(width), tiling.queries, tiling.keys, width,
        _precision(query), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out, log_sums


@_attended.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    rows, length, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty((rows, heads, length), dtype=torch.float32)


@torch.library.custom_op("corpusmill::attended_backward", mutates_args=())
def _attended_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, length, heads, width = query.shape
    half = query.element_size() == 2
    of_query, of_key, of_value = (torch.empty_like(one, memory_format=torch.contiguous_format) for one in (query, key, value))
    shares = torch.empty_like(log_sums)
    kv_heads = key.shape[2]
    group, scale, precision = heads // kv_heads, _scale(width), _precision(query)
    tiling = OF_QUERIES if half else EXACT
    _of_queries_kernel[(length // tiling.queries, rows * heads)](
        *(_tiles(one, tiling.queries) for one in (query, gradient, out, of_query)),
        *(_tiles(one, tiling.keys) for one in (key, value)),
        log_sums, shares, first, length, heads, group, scale, tiling.queries, tiling.keys, width, precision,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    tiling = OF_KEYS if half else EXACT
    _of_keys_kernel[(length // tiling.keys, rows * kv_heads)](
        *(_tiles(one, tiling.queries) for one in (query, gradient)),
        *(_tiles(one, tiling.keys) for one in (key, value, of_key, of_value)),
        log_sums, shares, first, last, length, kv_heads, group, scale, tiling.queries, tiling.keys, width, precision,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return of_query, of_key, of_value


@_attended_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, first, last = inputs
    ctx.save_for_backward(query, key, value, *output, first, last)


def _gradients(ctx: Any, gradient: Tensor, of_log_sums: Tensor) -> tuple[Tensor | None, ...]:
    return (*_attended_backward(gradient, *ctx.saved_tensors), None, None)


_attended.register_autograd(_gradients, setup_context=_context)


def _tiles(heads: Tensor, positions: int) -> Any:
    """Tiles (positions, width) of (rows, length, heads, width), found at [row x length + position, head x width]."""
    rows, length, number, width = heads.shape
    outer = heads.stride(1)
    if heads.stride()[2:] != (width, 1) or heads.stride(0) != length * outer or outer * heads.element_size() % 16:
        heads, outer = heads.contiguous(), number * width
    return TensorDescriptor(heads, [rows * length, number * width], [outer, 1], [positions, width])


def _scale(width: int) -> float:
    return 1.0 / math.sqrt(width)


def _precision(heads: Tensor) -> str:
    return "ieee" if heads.dtype == torch.float32 else "tf32"


UNSEEN = -1e30
"""Of a score, in place of minus infinity: a query that sees no key of a tile adds ones, and its first true score makes them 0."""
LOG2_E = 1.4426950408889634


if triton is not None:
    _UNSEEN, _LOG2_E = tl.constexpr(UNSEEN), tl.constexpr(LOG2_E)

    @triton.jit
    def _forward_kernel(  # type: ignore[no-untyped-def]
        query, key, value, out, log_sums, first, length, heads, group, scale,
        queries: tl.constexpr, keys: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
    ):  # fmt: skip
        begin, head = tl.program_id(0) * queries, tl.program_id(1) % heads
        row = tl.program_id(1) // heads
        base = row * length
        some = query.load([base + begin, head * width])
        i = begin + tl.arange(0, queries)
        run = tl.load(first + base + i)
        most = tl.full((queries,), _UNSEEN, tl.float32)
        total = tl.zeros((queries,), tl.float32)
        sums = tl.zeros((queries, width), tl.float32)
        column = (head // group) * width
        whole = tl.load(first + base + begin + queries - 1)
        for at in range(tl.load(first + base + begin), begin + queries, keys):
            scores = tl.dot(some, key.load([base + at, column]).T, input_precision=precision)
            if at < whole or at + keys > begin + 1:  # else all of it is seen
                j = at + tl.arange(0, keys)
                scores = tl.where((j[None, :] >= run[:, None]) & (j[None, :] <= i[:, None]), scores, _UNSEEN)
            higher = tl.maximum(most, tl.max(scores, 1) * (scale * _LOG2_E))
            shares = tl.exp2(scores * (scale * _LOG2_E) - higher[:, None])
            less = tl.exp2(most - higher)
            total = total * less + tl.sum(shares, 1)
            sums = sums * less[:, None]
            sums = tl.dot(shares.to(value.dtype), value.load([base + at, column]), sums, input_precision=precision)
            most = higher
        out.store([base + begin, head * width], (sums / total[:, None]).to(out.dtype))
        tl.store(log_sums + (row * heads + head) * length + i, most + tl.log2(total))

    @triton.jit
    def _of_queries_kernel(  # type: ignore[no-untyped-def]
        query, gradient, out, of_query, key, value, log_sums, shares, first, length, heads, group, scale,
        queries: tl.constexpr, keys: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
    ):  # fmt: skip
        begin, head = tl.program_id(0) * queries, tl.program_id(1) % heads
        row = tl.program_id(1) // heads
        base = row * length
        i = begin + tl.arange(0, queries)
        place = (row * heads + head) * length + i
        slope = gradient.load([base + begin, head * width])
        mean = tl.sum(slope.to(tl.float32) * out.load([base + begin, head * width]).to(tl.float32), 1)
        tl.store(shares + place, mean)
        some = query.load([base + begin, head * width])
        run = tl.load(first + base + i)
        log_sum = tl.load(log_sums + place)
        sums = tl.zeros((queries, width), tl.float32)
        column = (head // group) * width
        for at in range(tl.load(first + base + begin), begin + queries, keys):
            there = key.load([base + at, column])
            scores = tl.dot(some, there.T, input_precision=precision)
            j = at + tl.arange(0, keys)
            scores = tl.where((j[None, :] >= run[:, None]) & (j[None, :] <= i[:, None]), scores, _UNSEEN)
            weights = tl.exp2(scores * (scale * _LOG2_E) - log_sum[:, None])
            of_weights = tl.dot(slope, value.load([base + at, column]).T, input_precision=precision)
            of_scores = weights * (of_weights - mean[:, None])
            sums = tl.dot(of_scores.to(key.dtype), there, sums, input_precision=precision)
        of_query.store([base + begin, head * width], (sums * scale).to(of_query.dtype))

    @triton.jit
    def _of_keys_kernel(  # type: ignore[no-untyped-def]
        query, gradient, key, value, of_key, of_value, log_sums, shares, first, last, length, kv_heads, group, scale,
        queries: tl.constexpr, keys: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
    ):  # fmt: skip
        begin, kv_head = tl.program_id(0) * keys, tl.program_id(1) % kv_heads
        row = tl.program_id(1) // kv_heads
        base = row * length
        some = key.load([base + begin, kv_head * width])
        other = value.load([base + begin, kv_head * width])
        j = begin + tl.arange(0, keys)
        end = tl.load(last + base + begin + keys - 1) + 1
        of_some = tl.zeros((keys, width), tl.float32)
        of_other = tl.zeros((keys, width), tl.float32)
        tiles = tl.cdiv(end - begin, queries)
        for tile in range(group * tiles):  # one loop over the group's heads, so that tiles are loaded ahead from head to head
            head = kv_head * group + tile // tiles
            at = begin + (tile % tiles) * queries
            place = (row * kv_heads * group + head) * length
            i = at + tl.arange(0, queries)
            asked = query.load([base + at, head * width])
            scores = tl.dot(some, asked.T, input_precision=precision)
            run = tl.load(first + base + i)
            scores = tl.where((j[:, None] >= run[None, :]) & (j[:, None] <= i[None, :]), scores, _UNSEEN)
            weights = tl.exp2(scores * (scale * _LOG2_E) - tl.load(log_sums + place + i)[None, :])
            slope = gradient.load([base + at, head * width])
            of_other = tl.dot(weights.to(value.dtype), slope, of_other, input_precision=precision)
            of_weights = tl.dot(other, slope.T, input_precision=precision)
            of_scores = weights * (of_weights - tl.load(shares + place + i)[None, :])
            of_some = tl.dot(of_scores.to(key.dtype), asked, of_some, input_precision=precision)
        of_key.store([base + begin, kv_head * width], (of_some * scale).to(of_key.dtype))
        of_value.store([base + begin, kv_head * width], of_other.to(of_value.dtype))
