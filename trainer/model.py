"""The model: a pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

`GPT(architecture)(tokens)` gives logits (n, t, vocabulary); with `targets` it gives, per position, the negative log
likelihood in nats (float32, 0 where the target is ignored) and log Z squared, without holding all logits at once.
Attention is causal over the row, or causal within each document where a mask from `document_mask` is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from trainer import fused
from trainer.loader import IGNORED
from trainer.presets import Architecture

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights (GPT-2); projections into the residual stream are divided by sqrt(2 x layers)."""

Mask = Tensor | BlockMask


class GPT(nn.Module):
    """`loss_chunk`: positions whose logits exist at a time while training (0: all); they are computed again in the backward
    pass, so this trades a third of the head's arithmetic for memory."""

    def __init__(self, architecture: Architecture, loss_chunk: int = 0) -> None:
        super().__init__()
        self.architecture = architecture
        self.loss_chunk = loss_chunk
        self.embedding = nn.Embedding(architecture.vocabulary, architecture.width)
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.layers))
        self.norm = RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.head = None if architecture.tied else nn.Linear(architecture.width, architecture.vocabulary, bias=False)

    def initialise(self, seed: int, place: Callable[[Tensor, Tensor], Any] = Tensor.copy_) -> None:
        """Draws all weights anew; the same seed gives the same weights on any device, since they are drawn on the CPU, one
        whole parameter at a time. `place(parameter, drawn)` puts them where they belong, or a rank's share of them."""
        generator = torch.Generator().manual_seed(seed)
        into_residual = INITIAL_DEVIATION / (2 * self.architecture.layers) ** 0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim < 2:
                    place(parameter, torch.ones(parameter.shape))
                    continue
                deviation = into_residual if name.endswith(("output.weight", "down.weight")) else INITIAL_DEVIATION
                drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, deviation, generator=generator)
                place(parameter, drawn)

    def forward(self, tokens: Tensor, mask: Mask | None = None, targets: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        stream = in_autocast(self.embedding(tokens))
        rotation = rotary(tokens.shape[1], self.architecture, tokens.device)
        for block in self.blocks:
            stream = block(stream, rotation, mask)
        stream = self.norm(stream)
        weight = self.embedding.weight if self.head is None else self.head.weight
        if targets is None:
            return F.linear(stream, weight)
        return self._nats(stream.flatten(0, 1), weight, targets)

    def _nats(self, stream: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        flat = targets.flatten()
        if not self.loss_chunk or len(flat) <= self.loss_chunk:
            nats, squares = token_nats(stream, weight, flat)
        else:
            parts = [
                cast(tuple[Tensor, Tensor], checkpoint(token_nats, s, weight, t, use_reentrant=False))
                for s, t in zip(torch.split(stream, self.loss_chunk), torch.split(flat, self.loss_chunk), strict=True)
            ]
            nats, squares = (torch.cat(part) for part in zip(*parts, strict=True))
        return nats.view_as(targets), squares.view_as(targets)


def in_autocast(stream: Tensor) -> Tensor:
    """In the type of the products around it: a residual stream of float32 would double the memory that every layer moves."""
    device = stream.device.type
    return stream.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else stream


class RMSNorm(nn.RMSNorm):
    """With the gain in the input's type, as autocast leaves it out: mixed types would keep the fused kernel away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Block(nn.Module):
    """`recompute`: keep nothing of the forward pass but the input, and compute the rest again in the backward pass."""

    recompute = False

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.attention = Attention(architecture)
        self.feed_norm = RMSNorm(architecture.width, eps=architecture.norm_epsilon)
        self.feed = SwiGLU(architecture)

    def forward(self, stream: Tensor, rotation: tuple[Tensor, Tensor], mask: Mask | None) -> Tensor:
        if self.recompute and torch.is_grad_enabled():  # nothing here is random, so no random state has to be kept
            again = checkpoint(self.compute, stream, rotation, mask, use_reentrant=False, preserve_rng_state=False)
            return cast(Tensor, again)
        return self.compute(stream, rotation, mask)

    def compute(self, stream: Tensor, rotation: tuple[Tensor, Tensor], mask: Mask | None) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream), rotation, mask)
        return cast(Tensor, stream + self.feed(self.feed_norm(stream)))


class Attention(nn.Module):
    """Grouped-query attention; queries, keys and values come from one matrix, in this order."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.heads, self.kv_heads = architecture.heads, architecture.kv_heads
        self.head_width = architecture.head_width
        self.norm_epsilon = architecture.norm_epsilon
        inner = self.heads * self.head_width
        self.projection = nn.Linear(architecture.width, inner + 2 * self.kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(inner, architecture.width, bias=False)
        norms = architecture.qk_norm
        self.query_norm = RMSNorm(self.head_width, eps=architecture.norm_epsilon) if norms else nn.Identity()
        self.key_norm = RMSNorm(self.head_width, eps=architecture.norm_epsilon) if norms else nn.Identity()

    def forward(self, stream: Tensor, rotation: tuple[Tensor, Tensor], mask: Mask | None) -> Tensor:
        rows, length, _ = stream.shape
        packed = self.projection(stream).view(rows, length, self.heads + 2 * self.kv_heads, self.head_width)
        query, key, value = (heads.transpose(1, 2) for heads in self._heads(packed, rotation))
        grouped = self.heads != self.kv_heads
        if isinstance(mask, BlockMask):
            found = _flex()(query, key, value, block_mask=mask, enable_gqa=grouped)
        else:
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return cast(Tensor, self.output(found.transpose(1, 2).reshape(rows, length, -1)))

    def _heads(self, packed: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        if not (fused.AVAILABLE and packed.is_cuda and self.head_width & (self.head_width - 1) == 0):
            return self.plain_heads(packed, rotation)  # Triton's ranges are powers of two
        gains = (self.query_norm.weight, self.key_norm.weight) if isinstance(self.query_norm, RMSNorm) else (None, None)
        found = fused.Heads.apply(packed, self.heads, self.kv_heads, *rotation, *gains, self.norm_epsilon)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, ...], found)

    def plain_heads(self, packed: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Queries, keys and values, each (rows, length, its heads, head width); the first two normed and rotated."""
        query, key, value = torch.split(packed, [self.heads, self.kv_heads, self.kv_heads], dim=2)
        return _rotate(self.query_norm(query), rotation), _rotate(self.key_norm(key), rotation), value


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), Shazeer 2020; gate and up are one matrix, in this order."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.gate_and_up = nn.Linear(architecture.width, 2 * architecture.hidden, bias=False)
        self.down = nn.Linear(architecture.hidden, architecture.width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        both = self.gate_and_up(stream)
        if fused.AVAILABLE and both.is_cuda:
            return cast(Tensor, self.down(fused.swiglu(both)))
        gate, up = both.chunk(2, dim=-1)
        return cast(Tensor, self.down(F.silu(gate) * up))


def token_nats(stream: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(nats, log Z squared) of each position, float32 and 0 where the target is IGNORED."""
    logits = F.linear(stream, weight)
    if fused.AVAILABLE and logits.is_cuda:
        nats, log_z = fused.token_nats(logits, targets)
        return nats, log_z.square() * (targets != IGNORED)
    logits = logits.float()
    nats = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
    valid = targets != IGNORED
    chosen = logits.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)
    return nats, (nats + chosen).square() * valid


def document_mask(segments: Tensor) -> Mask:
    """Causal attention within each segment of rows (n, t): a block mask for FlexAttention on CUDA, else a boolean one
    (n, 1, t, t). Padding sees padding only."""
    if segments.device.type == "cuda":
        return block_mask(segments, compiled=True)
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return (segments[:, None, :, None] == segments[:, None, None, :]) & causal


def block_mask(segments: Tensor, compiled: bool, block: int = 128) -> BlockMask:
    """`document_mask` for FlexAttention, on any device; `block` queries and keys are skipped or computed together."""
    rows, length = segments.shape

    def within(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segments[row, query] == segments[row, key])

    return create_block_mask(within, rows, None, length, length, device=segments.device, BLOCK_SIZE=block, _compile=compiled)


def rotary(length: int, architecture: Architecture, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin) of rotary positions (Su et al. 2021), each (length, head_width / 2), float32."""
    return cast(
        tuple[Tensor, Tensor],
        fused.rotary(torch.empty(0, device=device), length, architecture.head_width // 2, architecture.rope_theta),
    )


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs (i, i + half) of each head of (rows, length, heads, width), as Llama's weights are laid out; float32."""
    cos, sin = (angles[:, None] for angles in rotation)
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


_compiled_flex: Any = None


def _flex() -> Any:
    """FlexAttention is only fast when compiled; that is done once, at its first use."""
    global _compiled_flex
    if _compiled_flex is None:
        _compiled_flex = torch.compile(flex_attention)
    return _compiled_flex
