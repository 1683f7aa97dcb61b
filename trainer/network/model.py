"""The model: a pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU, and the options of
`trainer.presets.Architecture` on it.

`GPT(architecture)(tokens)` gives logits (n, t, vocabulary); with `targets` it gives, per position, the negative log
likelihood in nats (float32, 0 where the target is ignored) and log Z squared, without holding all logits at once.
Attention is causal over the row, or causal within each document where a mask from `document_mask` is given; layers with a window
see the end of that only. `row_masks` makes the masks of all layers once for a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from trainer.data.loader import IGNORED
from trainer.network import fused
from trainer.network.feed import SquaredReLU, SwiGLU
from trainer.network.linear import Linear
from trainer.network.spans import Spans, attend, fit, spans
from trainer.presets import GATE_INPUTS, Architecture

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights (GPT-2); projections into the residual stream are divided by sqrt(2 x layers)."""

HEAD_DEVIATION = 0.001
"""Of a head that begins next to zero (nanochat): the first guess is uniform."""
INPUT_SHARE = 0.1
"""What a layer reads of the embedding at first, where it has lambdas (nanochat)."""

Mask = Tensor | BlockMask | Spans
Masks = tuple[Mask | None, Mask | None]
"""Of layers that see everything before them, and of those with a window; None is causal over the row."""


class GPT(nn.Module):
    """`loss_chunk`: positions whose logits exist at a time while training (0: all); they are computed again in the backward
    pass, so this trades a third of the head's arithmetic for memory."""

    def __init__(self, architecture: Architecture, loss_chunk: int = 0) -> None:
        super().__init__()
        self.architecture = architecture
        self.loss_chunk = loss_chunk
        self.embedding = nn.Embedding(architecture.vocabulary, architecture.width)
        self.embedding_norm = _norm(architecture, architecture.width) if architecture.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(architecture, layer) for layer in range(architecture.layers))
        self.norm = _norm(architecture, architecture.width)
        self.head = None if architecture.tied else Linear(architecture.width, architecture.vocabulary)

    def initialise(self, seed: int, place: Callable[[Tensor, Tensor], Any] = Tensor.copy_) -> None:
        """Draws all weights anew; the same seed gives the same weights on any device, since they are drawn on the CPU, one
        whole parameter at a time. `place(parameter, drawn)` puts them where they belong, or a rank's share of them."""
        generator = torch.Generator().manual_seed(seed)
        draw = _gpt2_weights if self.architecture.initialisation == "gpt2" else _uniform_weights
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim < 2:
                    place(parameter, torch.full(parameter.shape, INPUT_SHARE if name.endswith("input_share") else 1.0))
                else:
                    place(parameter, draw(name, parameter.shape, self.architecture, generator))

    def forward(
        self, tokens: Tensor, mask: Mask | Masks | None = None, targets: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`mask`: those of `row_masks`, or one of `document_mask` where no layer has a window."""
        whole, short = self._masks(mask, tokens)
        stream = start = self.embedding_norm(in_autocast(self.embedding(tokens)))
        rotation = rotary(tokens.shape[1], self.architecture, tokens.device)
        for layer, block in enumerate(self.blocks):
            stream = block(stream, start, tokens, rotation, short if self.architecture.short(layer) else whole)
        stream = self.norm(stream)
        if targets is None:
            return capped(self.logits(stream), self.architecture.soft_cap)
        return self._nats(stream.flatten(0, 1), targets)

    def logits(self, stream: Tensor) -> Tensor:
        """Of the normed stream, before a soft cap."""
        return F.linear(stream, self.embedding.weight) if self.head is None else cast(Tensor, self.head(stream))

    def _masks(self, mask: Mask | Masks | None, tokens: Tensor) -> Masks:
        length, window = tokens.shape[1], self.architecture.window
        if isinstance(mask, tuple) and not isinstance(mask, Spans):
            return mask
        if not self.architecture.short_layers or length <= window:
            return mask, mask
        if mask is None:
            return None, window_mask(length, window, tokens.device)
        if isinstance(mask, Tensor):
            return mask, mask & window_mask(length, window, mask.device)
        raise ValueError("a mask of whole documents for a GPU says nothing of a layer's window: use row_masks")

    def _nats(self, stream: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        flat = targets.flatten()
        if not self.loss_chunk or len(flat) <= self.loss_chunk:
            nats, squares = self._nats_at_once(stream, flat)
        else:
            parts = [
                cast(tuple[Tensor, Tensor], checkpoint(self._nats_at_once, s, t, use_reentrant=False))
                for s, t in zip(torch.split(stream, self.loss_chunk), torch.split(flat, self.loss_chunk), strict=True)
            ]
            nats, squares = (torch.cat(part) for part in zip(*parts, strict=True))
        return nats.view_as(targets), squares.view_as(targets)

    def _nats_at_once(self, stream: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return token_nats(self.logits(stream), targets, self.architecture.soft_cap)


def _gpt2_weights(name: str, shape: torch.Size, architecture: Architecture, generator: torch.Generator) -> Tensor:
    into_residual = INITIAL_DEVIATION / (2 * architecture.layers) ** 0.5
    deviation = into_residual if name.endswith(INTO_STREAM) else INITIAL_DEVIATION
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, deviation, generator=generator)


def _uniform_weights(name: str, shape: torch.Size, architecture: Architecture, generator: torch.Generator) -> Tensor:
    """What goes into the stream is zero, and gates are half open, so that every layer begins as nothing (nanochat)."""
    drawn = torch.zeros(shape, dtype=torch.float32)
    if name.endswith((*INTO_STREAM, "value_gate.weight")):
        return drawn
    if name in ("embedding.weight", "head.weight"):
        return drawn.normal_(0.0, 1.0 if name == "embedding.weight" else HEAD_DEVIATION, generator=generator)
    bound = (3.0 / architecture.width) ** 0.5
    return drawn.uniform_(-bound, bound, generator=generator)


INTO_STREAM = ("output.weight", "down.weight")
"""Projections into the residual stream."""


def in_autocast(stream: Tensor) -> Tensor:
    """In the type of the products around it: a residual stream of float32 would double the memory that every layer moves."""
    device = stream.device.type
    return stream.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else stream


def capped(logits: Tensor, soft_cap: float) -> Tensor:
    """Logits within (-soft_cap, soft_cap), float32; as they are where it is 0."""
    return soft_cap * torch.tanh(logits.float() / soft_cap) if soft_cap else logits


class RMSNorm(nn.RMSNorm):
    """With the gain in the input's type, as autocast leaves it out: mixed types would keep the fused kernel away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = cast(Tensor | None, self.weight)
        return F.rms_norm(x, self.normalized_shape, None if weight is None else weight.to(x.dtype), self.eps)


def _norm(architecture: Architecture, width: int) -> RMSNorm:
    return RMSNorm(width, eps=architecture.norm_epsilon, elementwise_affine=architecture.norm_gains)


class Block(nn.Module):
    """`recompute`: keep nothing of the forward pass but the input, and compute the rest again in the backward pass."""

    recompute = False

    def __init__(self, architecture: Architecture, layer: int) -> None:
        super().__init__()
        self.lambdas = architecture.lambdas
        if self.lambdas:
            self.stream_share, self.input_share = (nn.Parameter(torch.ones(1)) for _ in range(2))
        self.attention_norm = _norm(architecture, architecture.width)
        self.attention = Attention(architecture, layer)
        self.feed_norm = _norm(architecture, architecture.width)
        self.feed = SwiGLU(architecture) if architecture.feed == "swiglu" else SquaredReLU(architecture)

    def forward(
        self, stream: Tensor, start: Tensor, tokens: Tensor, rotation: tuple[Tensor, Tensor], mask: Mask | None
    ) -> Tensor:
        """`stream` and the embeddings that it started as, both (rows, length, width)."""
        if self.recompute and torch.is_grad_enabled():  # nothing here is random, so no random state has to be kept
            again = checkpoint(self.compute, stream, start, tokens, rotation, mask, use_reentrant=False, preserve_rng_state=False)
            return cast(Tensor, again)
        return self.compute(stream, start, tokens, rotation, mask)

    def compute(
        self, stream: Tensor, start: Tensor, tokens: Tensor, rotation: tuple[Tensor, Tensor], mask: Mask | None
    ) -> Tensor:
        stream = self.mixed(stream, start)
        stream = stream + self.attention(self.attention_norm(stream), tokens, rotation, mask)
        return cast(Tensor, stream + self.feed(self.feed_norm(stream)))

    def mixed(self, stream: Tensor, start: Tensor) -> Tensor:
        """What the layer reads."""
        if not self.lambdas:
            return stream
        return self.stream_share[0] * stream + self.input_share[0] * start  # these have no dimension, and leave its type as it is


class Attention(nn.Module):
    """Grouped-query attention; queries, keys and values come from one matrix, in this order."""

    def __init__(self, architecture: Architecture, layer: int = 0) -> None:
        super().__init__()
        self.heads, self.kv_heads = architecture.heads, architecture.kv_heads
        self.head_width = architecture.head_width
        self.norm_epsilon = architecture.norm_epsilon
        inner, values = self.heads * self.head_width, self.kv_heads * self.head_width
        self.projection = Linear(architecture.width, inner + 2 * values)
        self.output = Linear(inner, architecture.width)
        norms = architecture.qk_norm
        self.query_norm = _norm(architecture, self.head_width) if norms else nn.Identity()
        self.key_norm = _norm(architecture, self.head_width) if norms else nn.Identity()
        self.values: nn.Embedding | None = None
        if architecture.has_values(layer):
            self.values = nn.Embedding(architecture.vocabulary, values)
            self.value_gate = nn.Linear(min(GATE_INPUTS, architecture.width), self.kv_heads, bias=False)

    def forward(self, stream: Tensor, tokens: Tensor, rotation: tuple[Tensor, Tensor], mask: Mask | None) -> Tensor:
        rows, length, _ = stream.shape
        packed = self.projection(stream).view(rows, length, self.heads + 2 * self.kv_heads, self.head_width)
        query, key, value = self._heads(packed, rotation)
        if self.values is not None:
            gate = 2 * torch.sigmoid(self.value_gate(stream[..., : self.value_gate.in_features]))
            value = value + gate[..., None] * self.values(tokens).to(value.dtype).view_as(value)
        if isinstance(mask, Spans):
            return cast(Tensor, self.output(attend(query, key, value, mask).view(rows, length, -1)))
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        grouped = self.heads != self.kv_heads
        if isinstance(mask, BlockMask):
            found = _flex()(query, key, value, block_mask=mask, enable_gqa=grouped)
        else:
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return cast(Tensor, self.output(found.transpose(1, 2).reshape(rows, length, -1)))

    def _heads(self, packed: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        if not (fused.AVAILABLE and packed.is_cuda and self.head_width & (self.head_width - 1) == 0):
            return self.plain_heads(packed, rotation)  # Triton's ranges are powers of two
        normed = isinstance(self.query_norm, RMSNorm)
        gains = (self.query_norm.weight, self.key_norm.weight) if normed else (None, None)
        found = fused.Heads.apply(packed, self.heads, self.kv_heads, *rotation, *gains, self.norm_epsilon, normed)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, ...], found)

    def plain_heads(self, packed: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Queries, keys and values, each (rows, length, its heads, head width); the first two normed and rotated."""
        query, key, value = torch.split(packed, [self.heads, self.kv_heads, self.kv_heads], dim=2)
        return _rotate(self.query_norm(query), rotation), _rotate(self.key_norm(key), rotation), value


def token_nats(logits: Tensor, targets: Tensor, soft_cap: float = 0.0) -> tuple[Tensor, Tensor]:
    """(nats, log Z squared) of each position of logits (n, vocabulary), float32 and 0 where the target is IGNORED."""
    if fused.AVAILABLE and logits.is_cuda:
        nats, log_z = fused.token_nats(logits, targets, soft_cap)
        return nats, log_z.square() * (targets != IGNORED)
    logits = capped(logits, soft_cap).float()
    nats = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
    valid = targets != IGNORED
    chosen = logits.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)
    return nats, (nats + chosen).square() * valid


def row_masks(architecture: Architecture, segments: Tensor, masked: bool, half: bool = False) -> Mask | Masks | None:
    """The masks of all layers for rows of these segments (n, t); with `masked`, none sees another document. One is made for
    whole rows or documents, one for those with a window. With `half`, products are bfloat16, which `spans` is for."""
    window, length = architecture.window, segments.shape[1]
    if half and segments.device.type == "cuda" and fit(length, architecture.head_width):
        runs = spans(segments) if masked else None
        short = architecture.short_layers and length > window
        return (runs, spans(segments, window, masked)) if short else runs
    whole = document_mask(segments) if masked else None
    if not architecture.short_layers or length <= window:
        return whole
    if segments.device.type == "cuda":
        if not masked:
            return None, window_blocks(length, window, segments.device)
        return whole, block_mask(segments, compiled=True, window=window)
    band = window_mask(length, window, segments.device)
    return whole, cast(Tensor, whole) & band if masked else band


@lru_cache(maxsize=16)
def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Boolean (t, t): each query sees the last `window` positions, itself included. For rows of any length, as they are scored:
    kernels for blocks are compiled anew for many lengths."""
    with torch.inference_mode(False):  # it is kept, and may be asked for by a model that is only read
        return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)


@lru_cache(maxsize=16)
def window_blocks(length: int, window: int, device: torch.device) -> BlockMask:
    """`window_mask` for FlexAttention, which passes over what no query sees."""

    def within(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    return create_block_mask(within, None, None, length, length, device=device)


def document_mask(segments: Tensor) -> Mask:
    """Causal attention within each segment of rows (n, t): a block mask for FlexAttention on CUDA, else a boolean one
    (n, 1, t, t). Padding sees padding only."""
    return block_mask(segments, compiled=True) if segments.device.type == "cuda" else plain_mask(segments)


def plain_mask(segments: Tensor) -> Tensor:
    """Boolean (n, 1, t, t): which keys (t) each query (t) sees, those of its own segment up to itself. On any device."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return (segments[:, None, :, None] == segments[:, None, None, :]) & causal


def block_mask(segments: Tensor, compiled: bool, block: int = 128, window: int = 0) -> BlockMask:
    """`document_mask` for FlexAttention, on any device; `block` queries and keys are skipped or computed together. With
    `window`, a query sees that many positions at most, itself included."""
    rows, length = segments.shape

    def within(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segments[row, query] == segments[row, key])

    def near(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segments[row, query] == segments[row, key]) & (query - key < window)

    allowed = near if window else within
    return create_block_mask(allowed, rows, None, length, length, device=segments.device, BLOCK_SIZE=block, _compile=compiled)


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
