"""MosaicML Streaming's shards (MDS, version 2): what `StreamingDataset` reads.

A shard, little-endian: uint32 n, samples; uint32 (n + 1,), the bytes of the file at which samples begin, and its end; JSON that
says how columns are encoded; the samples. A sample: uint32 for each column, its bytes; then the columns, in the order of their
names: `id` is UTF-8, `tokens` is an `ndarray` of one dimension: a byte 4 | w, its length in 2^w bytes, its ids. `index.json`
lists the shards.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from stages.exports.format import ExportError, Format, Kind, Tally
from stages.exports.framing import Framing, FramingOptions
from stages.exports.output import Output, json_bytes
from stages.exports.source import Source

VERSION = 2
INDEX = "index.json"
LARGEST_FILE = 2**32 - 1
"""Places in a shard are uint32."""
ONE_DIMENSION = 1 << 2


class MdsOptions(FramingOptions):
    shard_bytes: int = Field(
        64 << 20, ge=1, le=LARGEST_FILE, description="bytes of a shard at most; a longer document has its own"
    )


class Mds(Format[MdsOptions]):
    """`<component>/<split>/index.json` and `shard.00000.mds`: a stream for each component, to be mixed; and the tokenizer."""

    name = "mds"
    version = 1
    reads: ClassVar[frozenset[Kind]] = frozenset({"tokens"})
    options_type = MdsOptions

    def check(self, source: Source) -> None:
        self.framing = Framing(self.options, source.tokenizer)

    def expected(self, tally: Tally) -> Tally:
        return self.framing.expected(tally)

    def write(self, source: Source, output: Output, progress: Callable[[int], object]) -> list[Tally]:
        counts, indexes = [], []
        dtype = np.dtype(source.tokenizer.dtype).newbyteorder("<")
        for group in source.groups:
            tally = group.nothing
            shards = _Shards(output, f"{group.component}/{group.split}", source.tokenizer.dtype, self.options.shard_bytes)
            for shard in group.shards:
                for part in source.slices(shard):
                    tokens, offsets = self.framing.frame(part)
                    data = np.ascontiguousarray(tokens, dtype).tobytes()
                    places = (offsets * dtype.itemsize).tolist()
                    for row, name in enumerate(part.ids.to_pylist()):
                        length = int(offsets[row + 1] - offsets[row])
                        if not length:
                            raise ExportError(
                                f"{name} has no tokens without BOS, and MDS has no empty arrays: keep BOS, or add an EOD"
                            )
                        shards.add(name.encode(), _shape(length) + data[places[row] : places[row + 1]])
                    tally = tally.add(len(part.ids), len(part.tokens), len(tokens))
                    progress(len(part.tokens))
            indexes.append(shards.finish())
            counts.append(tally)
        with source.corpus.open(source.tokenizer.file) as file:
            output.write(source.tokenizer.file, file.read())
        for name, index in indexes:
            output.write(name, json_bytes(index))
        return counts


def _shape(length: int) -> bytes:
    """The head of an array of one dimension."""
    width = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    return bytes([ONE_DIMENSION | width]) + length.to_bytes(1 << width, "little")


class _Shards:
    """Samples are held until a shard is full."""

    def __init__(self, output: Output, folder: str, dtype: str, limit: int) -> None:
        self._output, self._folder, self._limit = output, folder, limit
        self._about = {
            "column_encodings": ["str", f"ndarray:{dtype}"],
            "column_names": ["id", "tokens"],
            "column_sizes": [None, None],
            "compression": None,
            "format": "mds",
            "hashes": ["sha256"],
            "size_limit": limit,
            "version": VERSION,
        }
        self._config = json.dumps(self._about, sort_keys=True).encode()
        self._written: list[dict[str, Any]] = []
        self._empty()

    def _empty(self) -> None:
        self._samples: list[bytes] = []
        self._size = 4 + 4 + len(self._config)

    def add(self, name: bytes, tokens: bytes) -> None:
        sample = struct.pack("<II", len(name), len(tokens)) + name + tokens
        if self._samples and self._size + 4 + len(sample) > self._limit:
            self._write()
        self._samples.append(sample)
        self._size += 4 + len(sample)
        if self._size > LARGEST_FILE:
            raise ExportError(f"{name.decode()} is {len(sample):,} bytes long, and places in a shard count to {LARGEST_FILE:,}")

    def finish(self) -> tuple[str, dict[str, Any]]:
        """The name and the content of the index."""
        if self._samples:
            self._write()
        return f"{self._folder}/{INDEX}", {"shards": self._written, "version": VERSION}

    def _write(self) -> None:
        basename = f"shard.{len(self._written):05d}.mds"
        begin = 4 + 4 * (len(self._samples) + 1) + len(self._config)
        places = begin + np.cumsum([0, *map(len, self._samples)])
        with self._output.writer(f"{self._folder}/{basename}") as out:
            out.write(struct.pack("<I", len(self._samples)))
            out.write(places.astype("<u4"))
            out.write(self._config)
            for sample in self._samples:
                out.write(sample)
        raw = {"basename": basename, "bytes": out.written.size, "hashes": {"sha256": out.written.sha256}}
        self._written.append({**self._about, "raw_data": raw, "samples": len(self._samples), "zip_data": None})
        self._empty()
