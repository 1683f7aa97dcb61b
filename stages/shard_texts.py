"""The texts of a finished corpus, decoded from its token shards: what is trained on is where the text is kept for good.

Byte-level BPE gives back exactly the text that was encoded. A shard, its index and the tokenizer are read only where they are the
files that the manifest lists, and every text has the length that the index says. A shard is decoded in slices: memory does not
grow with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import Shard, TokenizerRecord
from manifests.schemas import SHARD_INDEX
from manifests.storage import Folder, sha256_of
from stages.tokenizer import Encoder, TokenizerError

SLICE_TOKENS = 1 << 20
"""Decoded at once, about 5 MB of text; a longer document is a slice of its own."""


class ShardTextError(Exception):
    """A file that is not what its manifest says, or does not hold the texts that it should; the message names it."""


def load_encoder(corpus: Folder, tokenizer: TokenizerRecord) -> Encoder:
    """The tokenizer of a corpus; ShardTextError where it is not what the manifest describes, or cannot give texts back."""
    data = _vouched(corpus, tokenizer.file, tokenizer.sha256)
    bos = next((name for name, number in tokenizer.special_tokens.items() if number == tokenizer.bos_id), None)
    try:
        encoder = Encoder(data.decode(errors="replace"), bos)
    except TokenizerError as error:
        raise ShardTextError(f"{tokenizer.file}: {error}") from None
    if encoder.vocabulary != tokenizer.vocabulary:
        raise ShardTextError(
            f"{tokenizer.file}: its vocabulary of {encoder.vocabulary} is not the {tokenizer.vocabulary} of the manifest"
        )
    return encoder


def read_index(corpus: Folder, shard: Shard) -> pa.Table:
    """The index of a shard (`manifests.schemas.SHARD_INDEX`); ShardTextError where its documents do not fill the shard."""
    data = _vouched(corpus, shard.index, shard.index_sha256)
    try:
        index = pq.ParquetFile(pa.BufferReader(data)).read()
    except pa.ArrowException as error:
        raise ShardTextError(f"{shard.index}: not a Parquet file that can be read: {error}") from None
    if not index.schema.equals(SHARD_INDEX):
        raise ShardTextError(f"{shard.index}: its columns are not those of a shard index")
    if any(column.null_count for column in index.columns):
        raise ShardTextError(f"{shard.index}: it has rows without a value")
    starts, lengths = index["start"].to_numpy(), index["tokens"].to_numpy()
    ends = np.cumsum(lengths)
    possible = ((lengths >= 1) & (lengths <= shard.tokens)).all()
    if not possible or (ends - lengths != starts).any() or (ends[-1] if len(ends) else 0) != shard.tokens:
        raise ShardTextError(f"{shard.index}: its documents do not fill the {shard.tokens} tokens of {shard.path}")
    return index


def texts_of(
    corpus: Folder, shard: Shard, tokenizer: TokenizerRecord, encoder: Encoder
) -> Iterator[tuple[pa.Array, pa.Array, int]]:
    """(ids, texts as large_string, tokens) of the documents of a shard in its order, some at a time."""
    for part in slices_of(corpus, shard, tokenizer):
        try:
            texts = encoder.decode_all(part.tokens, part.offsets)
        except ValueError as error:
            raise ShardTextError(f"{shard.path}: documents from {part.ids[0]} on: {error}") from None
        bounds = np.frombuffer(texts.buffers()[1], np.int64)
        wrong = np.flatnonzero(np.diff(bounds) != part.bytes)
        if wrong.size:
            raise ShardTextError(f"{shard.path}: the text of {part.ids[int(wrong[0])]} has not the bytes that {shard.index} says")
        yield part.ids, texts, len(part.tokens)


@dataclass(frozen=True)
class TokenSlice:
    """Documents that stand in a shard one after another. Document i has the id `ids[i]` and the tokens
    `tokens[offsets[i]:offsets[i + 1]]`, BOS first, which stand for `bytes[i]` bytes of UTF-8."""

    ids: pa.Array
    tokens: np.ndarray
    offsets: np.ndarray
    bytes: np.ndarray


def slices_of(corpus: Folder, shard: Shard, tokenizer: TokenizerRecord) -> Iterator[TokenSlice]:
    """The documents of a shard in its order, as tokens, some at a time."""
    dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
    with corpus.open(shard.path) as file:
        found, size = sha256_of(file)
    if found != shard.sha256:
        raise _changed(shard.path)
    index = read_index(corpus, shard)
    if size != shard.tokens * dtype.itemsize:
        raise ShardTextError(f"{shard.path}: {size} bytes are not {shard.tokens} tokens")
    starts, text_bytes = index["start"].to_numpy(), index["bytes"].to_numpy()
    ends = starts + index["tokens"].to_numpy()
    row = 0
    while row < len(ends):
        last = max(row + 1, int(np.searchsorted(ends, starts[row] + SLICE_TOKENS, side="right")))
        first_token, tokens = int(starts[row]), int(ends[last - 1] - starts[row])
        data = corpus.read_range(shard.path, first_token * dtype.itemsize, tokens * dtype.itemsize)
        if len(data) != tokens * dtype.itemsize:
            raise ShardTextError(f"{shard.path}: became shorter while it was read")
        ids = index["id"].slice(row, last - row).combine_chunks()
        offsets = np.concatenate([[0], ends[row:last] - first_token])
        yield TokenSlice(ids, np.frombuffer(data, dtype), offsets, text_bytes[row:last])
        row = last


def _vouched(corpus: Folder, path: str, sha256: str) -> bytes:
    data = corpus.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise _changed(path)
    return data


def _changed(path: str) -> ShardTextError:
    return ShardTextError(f"{path}: not the file that the manifest lists; `corpusmill verify` says more")
