"""Megatron-LM's indexed dataset (MMapIndexedDataset, version 1): a `.bin` of token ids and an `.idx` of where documents are.

`.bin`: the ids of all documents one after another, uint16, or int32 where the corpus has uint32, of which Megatron knows nothing.
`.idx`, little-endian: the 9 bytes `MMIDIDX\\0\\0`; uint64 1, the version; uint8, the code of the ids' type; uint64 n, sequences;
uint64 n + 1; int32 (n,), tokens of each sequence; int64 (n,), the byte at which it begins; int64 (n + 1,), the sequence at which
each document begins, and n. A sequence is a document here, as `tools/preprocess_data.py` of Megatron-LM writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field

from manifests.manifest import Shard
from stages.exports.format import ExportError, Format, Kind, Tally
from stages.exports.framing import Framing, FramingOptions
from stages.exports.output import Output
from stages.exports.source import Group, Source
from stages.shard_texts import read_index

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
CODES = {"uint16": (8, "<u2"), "uint32": (4, "<i4")}
"""Type in the corpus: code and type in the export."""
LARGEST = 2**31 - 1
"""The largest number of tokens of a document that int32 holds; every id of a corpus is far below it."""
COUNTED_AT_ONCE = 1 << 20


class MegatronOptions(FramingOptions):
    per_shard: bool = Field(False, description="a pair of files for each shard, instead of one for each component and split")


class Megatron(Format[MegatronOptions]):
    """`<component>/<split>.bin` and `.idx`, or `<component>/<split>/00000.bin` and `.idx`; and the tokenizer."""

    name = "megatron"
    version = 1
    reads: ClassVar[frozenset[Kind]] = frozenset({"tokens"})
    options_type = MegatronOptions

    def check(self, source: Source) -> None:
        self.framing = Framing(self.options, source.tokenizer)

    def expected(self, tally: Tally) -> Tally:
        return self.framing.expected(tally)

    def write(self, source: Source, output: Output, progress: Callable[[int], object]) -> list[Tally]:
        code, dtype = CODES[source.tokenizer.dtype]
        counts, pairs = [], []
        for group in source.groups:
            tally = group.nothing
            for name, shards in self._pairs(group):
                with output.writer(f"{name}.bin") as out:
                    for shard in shards:
                        for part in source.slices(shard):
                            tokens, _ = self.framing.frame(part)
                            out.write(np.ascontiguousarray(tokens, dtype))
                            tally = tally.add(len(part.ids), len(part.tokens), len(tokens))
                            progress(len(part.tokens))
                pairs.append((name, shards))
            counts.append(tally)
        with source.corpus.open(source.tokenizer.file) as file:
            output.write(source.tokenizer.file, file.read())
        for name, shards in pairs:
            self._write_index(source, output, f"{name}.idx", shards, code, np.dtype(dtype).itemsize)
        return counts

    def _pairs(self, group: Group) -> Iterator[tuple[str, list[Shard]]]:
        name = f"{group.component}/{group.split}"
        if not self.options.per_shard:
            yield name, group.shards
            return
        for shard in group.shards:
            yield f"{name}/{shard.path.rpartition('/')[2].removesuffix('.bin')}", [shard]

    def _write_index(self, source: Source, output: Output, name: str, shards: list[Shard], code: int, width: int) -> None:
        """The indexes of the shards are read once for each of two columns: all lengths together may be more than memory holds."""
        documents = sum(shard.documents for shard in shards)
        with output.writer(name) as out:
            out.write(MAGIC + struct.pack("<QBQQ", VERSION, code, documents, documents + 1))
            for lengths in self._lengths(source, shards):
                if lengths.max() > LARGEST:
                    raise ExportError(f"{name}: a document has {lengths.max():,} tokens, and the format counts to {LARGEST:,}")
                out.write(lengths.astype("<i4"))
            begin = 0
            for lengths in self._lengths(source, shards):
                ends = begin + np.cumsum(lengths * width)
                out.write((ends - lengths * width).astype("<i8"))
                begin = int(ends[-1])
            for first in range(0, documents + 1, COUNTED_AT_ONCE):
                out.write(np.arange(first, min(first + COUNTED_AT_ONCE, documents + 1), dtype="<i8"))

    def _lengths(self, source: Source, shards: list[Shard]) -> Iterator[np.ndarray]:
        for shard in shards:
            yield read_index(source.corpus, shard)["tokens"].to_numpy() + self.framing.longer
