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
from manifests.schemas import SHARD_INDEX
from manifests.shards import ShardError as ShardError  # for those who catch what the functions here raise
from manifests.shards import check_tokens
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


def pack_shard(
    ids: pa.Array | Sequence[str], keys: np.ndarray, offsets: np.ndarray, tokens: np.ndarray, text_bytes: np.ndarray
) -> tuple[np.ndarray, pa.Table]:
    """The shard's tokens and its SHARD_INDEX: documents by key, equal keys by printed id.

    Document i, of `text_bytes[i]` bytes of UTF-8, has `tokens[offsets[i]:offsets[i + 1]]`. The order in which they are
    given does not matter.
    """
    printed = ids.to_pylist() if isinstance(ids, (pa.Array, pa.ChunkedArray)) else list(ids)
    if not len(printed) == len(keys) == len(offsets) - 1 == len(text_bytes):
        raise ValueError(f"{len(printed)} ids, {len(keys)} keys, {len(offsets) - 1} documents, {len(text_bytes)} sizes")
    by_id = np.array(sorted(range(len(printed)), key=printed.__getitem__), dtype=np.int64)
    order = by_id[np.argsort(np.asarray(keys)[by_id], kind="stable")]
    offsets = np.asarray(offsets, dtype=np.int64)
    lengths = np.diff(offsets)[order]
    packed = np.empty(int(lengths.sum()), dtype=tokens.dtype)
    starts = document_offsets(lengths)
    for place, document in enumerate(order.tolist()):
        packed[starts[place] : starts[place + 1]] = tokens[offsets[document] : offsets[document + 1]]
    index = pa.table(
        {
            "id": pa.array([printed[document] for document in order.tolist()], pa.string()),
            "start": pa.array(starts[:-1]),
            "tokens": pa.array(lengths),
            "bytes": pa.array(np.asarray(text_bytes, dtype=np.int64)[order]),
        },
        schema=SHARD_INDEX,
    )
    return packed, index


def token_dtype(vocabulary: int) -> np.dtype:
    """Little-endian uint16 iff every id below `vocabulary` fits, else uint32."""
    return np.dtype("<u2" if vocabulary <= UINT16_VOCABULARY else "<u4")


def read_tokens(data: bytes, vocabulary: int, tokens: int, where: str = "shard") -> np.ndarray:
    """The ids in a shard file's bytes, checked against the vocabulary and the number of tokens that it is declared to have.

    ShardError when the file's size is not that of `tokens` ids of the vocabulary's type: the width is never guessed.
    """
    dtype = token_dtype(vocabulary)
    if len(data) != tokens * dtype.itemsize:
        raise ShardError(
            f"{where}: {tokens} tokens of {dtype.name} (vocabulary {vocabulary}) are {tokens * dtype.itemsize} bytes, "
            f"but it has {len(data)}"
        )
    ids = np.frombuffer(data, dtype=dtype)
    check_tokens(ids, vocabulary, where)
    return ids
