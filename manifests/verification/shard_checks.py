"""Are the documents of a shard those that the document log puts there, and do their tokens spell them?

A shard is read once, in slices. The document log is read once for all shards, since their documents stand all over it: of either
side one sum of hashes is kept for each shard, and only where the sums differ are rows compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.logs import UnreadableLogError, read_parquet, read_untrusted
from manifests.manifest import Content, Shard, TokenizerRecord
from manifests.shards import ShardError, TokenCheck
from manifests.storage import Folder, StorageError
from manifests.tokenizer_file import Int64, TokenizerFile
from manifests.verification.encoding_checks import Encoding, Sample

SLICE_TOKENS = 1 << 20
"""Looked at together; a longer document is a slice of its own."""
PLACED = ["id", "shard", "split", "start", "tokens", "text_bytes", "text_sha256"]


@dataclass
class Sum:
    """Of rows in any order: how many, and the two halves of their MD5s added up."""

    rows: int = 0
    low: int = 0
    high: int = 0

    def add(self, other: Sum) -> None:
        self.rows, self.low, self.high = self.rows + other.rows, self.low + other.low, self.high + other.high


class Placements:
    """Where the document log puts documents: shard → sum over its rows, log by log. `texts`: with the digests of their texts."""

    def __init__(self, texts: bool) -> None:
        self.texts = texts
        self.sums: dict[str, Sum] = {}
        self._connection = duckdb.connect()
        key = ["split", "start", "tokens", "text_bytes", *(["text_sha256"] if texts else []), "id"]
        joined = ", ' ', ".join(f'"{name}"' for name in key)
        self._query = (
            "select shard, count(*), sum(md5_number_lower(key)), sum(md5_number_upper(key)) "
            f"from (select shard, concat({joined}) as key from placed where shard is not null) group by shard"
        )

    def add(self, documents: pa.Table) -> None:
        """The rows of one log."""
        for shard, sum_ in self.of(documents.select(PLACED)).items():
            self.sums.setdefault(shard, Sum()).add(sum_)

    def of(self, placed: pa.Table) -> dict[str, Sum]:
        """The sums of some rows: of where a row says that it stands, and of what stands there."""
        self._connection.register("placed", placed)
        rows = self._connection.execute(self._query).fetchall()
        self._connection.unregister("placed")
        return {shard: Sum(int(n), int(low), int(high)) for shard, n, low, high in rows}


def check_shard(
    corpus: Folder,
    content: Content,
    shard: Shard,
    tokenizer: TokenizerRecord,
    file: TokenizerFile | None,
    placements: Placements | None,
    encoding: Encoding | None = None,
) -> Iterator[str]:
    """Every disagreement between a shard, its index, the manifest and the document log. `file`: what tokens stand for, if that is
    known; `placements`: what the logs say, if they can be read; `encoding`: the tokenizer at work, by which the first documents
    are encoded again."""
    try:
        index = read_untrusted(corpus, shard.index)
    except UnreadableLogError as error:
        yield str(error)
        return
    starts, lengths, sizes = (index[name].to_numpy() for name in ("start", "tokens", "bytes"))
    expected = np.concatenate([[0], np.cumsum(lengths)])
    width = np.dtype(tokenizer.dtype).itemsize
    tokens = corpus.size(shard.path) // width
    fill = np.array_equal(starts, expected[:-1]) and int(expected[-1]) == tokens
    if not fill or (lengths < 1).any() or (lengths > tokens).any():  # the sum of larger ones may have wrapped around
        yield f"{shard.index}: its documents do not fill the {tokens} tokens of {shard.path}"
        return
    if (sizes < 0).any():
        yield f"{shard.index}: a document has less than no bytes"
        return
    stated, found = (shard.tokens, shard.documents, shard.text_bytes), (tokens, index.num_rows, int(sizes.sum()))
    if found != stated:
        yield f"{shard.path}: tokens, documents and text bytes are {found}, the manifest says {stated}"
    texts = placements is not None and placements.texts and file is not None
    digests: list[str] = []
    try:
        with corpus.open(shard.path) as opened:
            yield from _check_tokens(opened, shard, tokenizer, file, index, digests if texts else None, encoding)
    except ShardError as error:
        yield str(error)
        return
    except (OSError, StorageError) as error:
        yield f"{shard.path}: cannot be read: {error}"
        return
    if placements is None or (placements.texts and len(digests) != index.num_rows):
        return
    columns = {
        "id": index["id"],
        "shard": pa.array([shard.path] * index.num_rows, pa.string()),
        "split": pa.array([shard.split] * index.num_rows, pa.string()),
        "start": index["start"],
        "tokens": index["tokens"],
        "text_bytes": index["bytes"],
        "text_sha256": pa.array(digests, pa.string()) if texts else pa.nulls(index.num_rows, pa.string()),
    }
    here = placements.of(pa.table(columns)).get(shard.path, Sum())
    if here != placements.sums.get(shard.path, Sum()):
        yield from _differing_rows(corpus, content, shard, pa.table(columns), placements.texts)


def _check_tokens(
    opened: BinaryIO,
    shard: Shard,
    tokenizer: TokenizerRecord,
    file: TokenizerFile | None,
    index: pa.Table,
    digests: list[str] | None,
    encoding: Encoding | None,
) -> Iterator[str]:
    """Appends to `digests` the SHA-256 of every text. ShardError where tokens are none of the vocabulary."""
    dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
    starts, lengths, sizes = (index[name].to_numpy() for name in ("start", "tokens", "bytes"))
    ends = starts + lengths
    check = TokenCheck(tokenizer.vocabulary, shard.path)
    special = np.zeros(tokenizer.vocabulary, bool)
    special[[number for number in tokenizer.special_tokens.values() if 0 <= number < tokenizer.vocabulary]] = True
    special[tokenizer.bos_id] = True
    if file is not None and file.vocabulary != tokenizer.vocabulary:
        file = None
    sample = Sample(encoding, file) if encoding is not None and file is not None else None
    row, said = 0, set[str]()

    def once(kind: str, finding: str) -> Iterator[str]:
        if kind not in said:
            said.add(kind)
            yield finding

    while row < len(ends):
        last = max(row + 1, int(np.searchsorted(ends, starts[row] + SLICE_TOKENS, side="right")))
        data = opened.read(int(ends[last - 1] - starts[row]) * dtype.itemsize)
        tokens = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
        if len(tokens) != ends[last - 1] - starts[row]:
            raise ShardError(f"{shard.path}: became shorter while it was read")
        check.add(tokens)
        begins = starts[row:last] - starts[row]
        if (wrong := np.flatnonzero(tokens[begins] != tokenizer.bos_id)).size:
            one = index["id"][row + int(wrong[0])]
            yield from once("begin", f"{shard.path}: document {one} does not begin with the id {tokenizer.bos_id}")
        inside = special[tokens]
        inside[begins] = False
        if inside.any():
            place = int(np.flatnonzero(inside)[0])
            one = index["id"][row + int(np.searchsorted(begins, place, side="right")) - 1]
            yield from once(
                "inside", f"{shard.path}: {one}: the id {tokens[place]} stands inside documents, and is a special token"
            )
        if file is not None:
            spelt = np.add.reduceat(file.lengths[tokens], begins)
            if (wrong := np.flatnonzero(spelt != sizes[row:last])).size:
                at = int(wrong[0])
                one = index["id"][row + at]
                said_ = f"{shard.path}: the tokens of {one} stand for {spelt[at]} bytes, {shard.index} says {sizes[row + at]}"
                yield from once("bytes", said_)
            for at in range(last - row) if sample is not None and row == 0 else ():
                assert sample is not None
                if sample.left <= 0:
                    break
                if (told := sample.difference(tokens[begins[at] : begins[at] + lengths[row + at]])) is not None:
                    yield from once("encoding", f"{shard.path}: {index['id'][row + at]}: {told}")
                    break
            if digests is not None:
                _add_digests(digests, file.decode(tokens), spelt)
        row = last
    check.finish()


def _add_digests(digests: list[str], data: bytes, sizes: Int64) -> None:
    view, begin = memoryview(data), 0
    for size in sizes.tolist():
        digests.append(hashlib.sha256(view[begin : begin + size]).hexdigest())
        begin += size


def _differing_rows(corpus: Folder, content: Content, shard: Shard, here: pa.Table, texts: bool) -> Iterator[str]:
    """The first document of a shard that the log tells otherwise."""
    logged: dict[str, dict[str, Any]] = {}
    for log in content.logs:
        if log.kind == "documents" and log.path.split("/")[2] == shard.component:
            table = read_parquet(corpus, log.path).select(PLACED)
            mine = table.filter(pc.equal(table["shard"], shard.path))
            logged.update((row["id"], row) for row in mine.to_pylist())
    if len(logged) != here.num_rows:
        yield f"{shard.index}: {here.num_rows} documents, the document log places {len(logged)} there"
    for row in here.to_pylist():
        there = logged.get(row["id"])
        if there is None or any(there[name] != row[name] for name in ("start", "tokens", "text_bytes", "split")):
            yield f"{shard.index}: {row['id']} does not stand there by the document log"
            return
        if texts and there["text_sha256"] != row["text_sha256"]:
            yield (
                f"{shard.path}: {row['id']}: its tokens spell a text with the SHA-256 {row['text_sha256']}, "
                f"the document log says {there['text_sha256']}"
            )
            return
