"""How large a model's logits are while it trains: where attention's grow without bound, or log Z drifts, a run soon diverges
(Dehghani et al. 2023; Wortsman et al. 2023).

What is measured is computed beside training, from the weights as they are, without gradients or a random number, and changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.data.loader import IGNORED
from trainer.data.prefetch import MicroBatch
from trainer.distributed.ranks import Ranks
from trainer.network.model import GPT, Block, capped, in_autocast, plain_mask, rotary, window_mask

WATCHED_ROWS = 4
"""Of a step's first micro-batch: enough for a maximum, and a small part of a step."""
CHUNK = 1_024
"""Positions whose logits exist at a time."""


@dataclass(frozen=True)
class Sizes:
    """`attention`: the largest q·k / sqrt(head width) of each layer, over heads and over pairs of positions that see each other;
    padding does not count. `log_z`: the sum over targets of log Z, in nats, and `targets` their number."""

    attention: list[float]
    log_z: float
    targets: int


def watched(model: GPT, micro_batch: MicroBatch, ranks: Ranks, masked: bool, dtype: str) -> dict[str, float]:
    """`attention_logit_max`, the largest of all layers, and `log_z`, the mean over targets, of the first WATCHED_ROWS rows that
    each rank is about to train on; not a number where there are no targets, or one of the figures is none."""
    tokens, targets, segments, _ = (part[:WATCHED_ROWS] for part in micro_batch)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        sizes = logit_sizes(model, tokens, targets, segments, masked)
    (largest,) = ranks.maximum([float(np.max(sizes.attention))])  # `max` would pass over what is not a number
    log_z, count = ranks.total(np.array([sizes.log_z, sizes.targets], np.float64))
    return {"attention_logit_max": largest, "log_z": float(log_z / count) if count else float("nan")}


@torch.no_grad()
def logit_sizes(model: GPT, tokens: Tensor, targets: Tensor, segments: Tensor, masked: bool) -> Sizes:
    """Of rows (n, t) as `trainer.data.loader.Batch` has them; with `masked`, attention is within each document."""
    architecture = model.architecture
    allowed = plain_mask(segments if masked else torch.zeros_like(segments))
    stream = start = model.embedding_norm(in_autocast(model.embedding(tokens)))
    rotation = rotary(tokens.shape[1], architecture, tokens.device)
    found = []
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        seen = allowed
        if architecture.short(layer) and 0 < architecture.window < tokens.shape[1]:
            seen = allowed & window_mask(tokens.shape[1], architecture.window, tokens.device)
        found.append(_largest(block, block.mixed(stream, start), rotation, seen, segments))
        stream = Block.compute(block, stream, start, tokens, rotation, seen)  # not the compiled one, which knows other shapes
    log_z, count = _log_z(model, model.norm(stream).flatten(0, 1), targets.flatten())
    largest: list[float] = torch.stack(found).tolist()
    return Sizes(largest, float(log_z), int(count))


def _largest(block: Block, stream: Tensor, rotation: tuple[Tensor, Tensor], seen: Tensor, segments: Tensor) -> Tensor:
    attention = block.attention
    rows, length, _ = stream.shape
    heads = attention.heads + 2 * attention.kv_heads
    packed = attention.projection(block.attention_norm(stream)).view(rows, length, heads, attention.head_width)
    query, key, _ = attention.plain_heads(packed, rotation)
    key = key.repeat_interleave(attention.heads // attention.kv_heads, dim=2)
    real = segments >= 0
    counted = seen & (real[:, None, :, None] & real[:, None, None, :])
    largest = torch.full((), float("-inf"), device=stream.device)
    for head in range(attention.heads):  # one at a time: all of them would be heads x t x t numbers
        scores = query[:, :, head].float() @ key[:, :, head].float().mT / attention.head_width**0.5
        largest = torch.maximum(largest, scores.masked_fill(~counted[:, 0], float("-inf")).amax())
    return largest


def _log_z(model: GPT, stream: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    head = model.embedding if model.head is None else model.head
    assert isinstance(head, (nn.Embedding, nn.Linear))
    valid = targets != IGNORED
    parts: list[Tensor] = [
        capped(F.linear(part, head.weight), model.architecture.soft_cap).float().logsumexp(dim=-1).double().sum()
        for part in torch.split(stream[valid], CHUNK)
    ]
    return torch.stack(parts).sum(), valid.sum()
