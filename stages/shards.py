"""Token shards: documents in the order of a keyed hash of their id, as one flat array and an index (DESIGN, On disk).

The hash picks the shard and the place in it, so every shard, and every prefix of one, is a fair sample of its
component, and shards depend on neither parts nor workers. All offsets are int64: a shard, or a corpus, may hold more
than 2^31 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pydantic import Field

from manifests.identity import keyed_hash
from manifests.manifest import UINT16_VOCABULARY
from stages.stage import Options

VERSION = 1
NAME = "shards"


class ShardOptions(Options):
    target_tokens: int = Field(100_000_000, ge=1, description="tokens a shard is to have, on average at most")


def order_keys(seed: int, ids: pa.Array | Sequence[str]) -> np.ndarray:
    """uint64 (n,): a document's place in its component's order, from its printed id."""
    printed = ids.to_pylist() if isinstance(ids, (pa.Array, pa.ChunkedArray)) else ids
    return np.array([keyed_hash(f"shard {seed}", each) for each in printed], dtype=np.uint64)


def shard_count(tokens: int, target: int) -> int:
    """How many shards hold `tokens` with about `target` each; at least one."""
    return max(1, -(-tokens // target))


def shard_of(keys: np.ndarray, shards: int) -> np.ndarray:
    """int64 (n,): the shard of each key; shards are equal, consecutive ranges of keys."""
    if not 1 <= shards < 1 << 32:
        raise ValueError(f"{shards} shards: between 1 and 2^32 - 1 are possible")
    return (((keys >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32)).astype(np.int64)


def document_offsets(lengths: np.ndarray) -> np.ndarray:
    """int64 (n + 1,): where each document starts, and the end, from lengths of any integer type."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def document_order(ids: pa.Array | pa.ChunkedArray, keys: np.ndarray) -> np.ndarray:
    """int64 (n,): the order of a shard's documents, by key, equal keys by printed id; whatever order they are given in."""
    if len(ids) != len(keys):
        raise ValueError(f"{len(ids)} ids, {len(keys)} keys")
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(keys) else np.zeros(0, np.int64)
    ends = np.append(starts[1:], len(keys))
    for start, end in zip(starts[ends > starts + 1].tolist(), ends[ends > starts + 1].tolist(), strict=True):
        rows = order[start:end]
        printed = ids.take(pa.array(rows)).to_pylist()
        order[start:end] = rows[sorted(range(len(printed)), key=printed.__getitem__)]
    return order


def token_dtype(vocabulary: int) -> np.dtype:
    """Little-endian uint16 iff every id below `vocabulary` fits, else uint32."""
    return np.dtype("<u2" if vocabulary <= UINT16_VOCABULARY else "<u4")
