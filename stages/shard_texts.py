"""The texts of a finished corpus, decoded from its token shards: what is trained on is where the text is kept for good.

Byte-level BPE gives back exactly the text that was encoded. A shard, its index and the tokenizer are checked against the digests
of the manifest, and every text against the length that the index has for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from manifests.manifest import Shard, TokenizerRecord
from manifests.storage import Folder
from stages import text_buffers
from stages.tokenizer import Encoder

BATCH_TOKENS = 1 << 20
"""Tokens that are decoded together; a longer document is a batch of its own."""


class ShardTextError(Exception):
    """A shard that is not what its manifest says, or does not hold the texts that its index lists."""


def load_encoder(corpus: Folder, tokenizer: TokenizerRecord) -> Encoder:
    """The corpus's tokenizer; ShardTextError or TokenizerError when it cannot give texts back."""
    return Encoder(_vouched(corpus, tokenizer.file, tokenizer.sha256).decode())


def texts_of(corpus: Folder, shard: Shard, dtype: str, encoder: Encoder) -> Iterator[tuple[pa.Array, pa.Array]]:
    """(ids, texts as large_string) of the documents of a shard, in its order. ShardTextError names what does not fit."""
    tokens = np.frombuffer(_vouched(corpus, shard.path, shard.sha256), np.dtype(dtype).newbyteorder("<"))
    index = pq.read_table(pa.BufferReader(_vouched(corpus, shard.index, shard.index_sha256)))
    start, length, size = (index[name].to_numpy() for name in ("start", "tokens", "bytes"))
    ends = start + length
    if len(start) and not (start[0] >= 0 and (length >= 0).all() and (ends[:-1] <= start[1:]).all() and ends[-1] <= len(tokens)):
        raise ShardTextError(f"{shard.index}: its places do not lie in {shard.path} one after another")
    if len(tokens) and int(tokens.max()) >= encoder.vocabulary:
        raise ShardTextError(f"{shard.path}: token id {tokens.max()} is not in a vocabulary of {encoder.vocabulary}")
    pieces, edges = encoder.pieces
    first = 0
    while first < len(start):
        last = max(first + 1, int(np.searchsorted(ends, start[first] + BATCH_TOKENS, side="right")))
        offsets = np.concatenate([[0], np.cumsum(size[first:last])]).astype(np.int64)
        data = np.empty(int(offsets[-1]), np.uint8)
        wrong = _decode(tokens, start[first:last], ends[first:last], pieces, edges, offsets, data)
        if wrong >= 0:
            name = index["id"][first + wrong].as_py()
            raise ShardTextError(f"{shard.path}: the tokens of {name} are not a text of {size[first + wrong]} bytes")
        texts = text_buffers.column(data, offsets)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raise ShardTextError(f"{shard.path}: a text among those from {index['id'][first].as_py()} on is not UTF-8") from None
        yield index["id"].slice(first, last - first).combine_chunks(), texts
        first = last


def _vouched(corpus: Folder, path: str, sha256: str) -> bytes:
    data = corpus.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ShardTextError(f"{corpus.url}/{path} is not the file that its manifest lists; `corpusmill verify` says more")
    return data


@njit(cache=True, nogil=True)
def _decode(tokens, starts, ends, pieces, edges, offsets, data):  # type: ignore[no-untyped-def]
    """Writes document k to data[offsets[k]:offsets[k + 1]]; returns the first whose tokens have another length, or -1."""
    for document in range(starts.size):
        at, stop = offsets[document], offsets[document + 1]
        for place in range(starts[document], ends[document]):
            token = np.int64(tokens[place])
            first, last = edges[token], edges[token + 1]
            if at + last - first > stop:
                return document
            for index in range(first, last):
                data[at] = pieces[index]
                at += 1
        if at != stop:
            return document
    return -1
