"""Shuffles through files: each task writes one file of compressed Arrow IPC streams, one a partition; a reduce task reads
just its own bytes from every file. It survives dead nodes, works on object stores, and holds nothing in Ray's memory.

File layout: the streams one after another, then partitions + 1 little-endian int64 offsets, the number of partitions as
int64, and 8 bytes of magic. The offsets stand in the file and not in the receipt, so that receipts stay small when many
parts meet many partitions.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from manifests.storage import Folder, Written

MAGIC = b"cmshuf01"
TAIL = 16
IPC = pa.ipc.IpcWriteOptions(compression="zstd")


class ShuffleError(Exception):
    """A shuffle file that is not one."""


def write_partitions(corpus: Folder, name: str, table: pa.Table, partition: np.ndarray, partitions: int) -> Written:
    """Writes `table`, whose row i belongs to partition[i] in [0, partitions). Rows keep their order within a partition."""
    order = np.argsort(partition, kind="stable")
    bounds = np.searchsorted(partition[order], np.arange(partitions + 1))
    offsets = np.zeros(partitions + 1, dtype="<i8")
    with corpus.writer(name) as out:
        for index in range(partitions):
            offsets[index] = out.size
            if bounds[index] < bounds[index + 1]:
                rows = table.take(pa.array(order[bounds[index] : bounds[index + 1]]))
                sink = io.BytesIO()
                with pa.ipc.new_stream(sink, table.schema, options=IPC) as stream:
                    stream.write_table(rows)
                out.write(sink.getbuffer())
        offsets[partitions] = out.size
        out.write(offsets.tobytes())
        out.write(np.array([partitions], dtype="<i8").tobytes() + MAGIC)
    return out.written


def read_partition(corpus: Folder, name: str, partition: int) -> pa.Table | None:
    """The rows of one partition of one file, or None where it has none."""
    size = corpus.size(name)
    tail = corpus.read_range(name, size - TAIL, TAIL)
    if len(tail) != TAIL or tail[8:] != MAGIC:
        raise ShuffleError(f"{corpus.url}/{name} is not a shuffle file")
    partitions = int(np.frombuffer(tail[:8], "<i8")[0])
    if not 0 <= partition < partitions:
        raise ShuffleError(f"{corpus.url}/{name} has {partitions} partitions, not {partition + 1}")
    at = size - TAIL - 8 * (partitions + 1) + 8 * partition
    start, end = np.frombuffer(corpus.read_range(name, at, 16), "<i8")
    if start == end:
        return None
    with pa.ipc.open_stream(corpus.read_range(name, int(start), int(end - start))) as stream:
        return stream.read_all()


def gather(corpus: Folder, names: list[str], partition: int) -> Iterator[tuple[int, pa.Table]]:
    """(index of the file, its rows) for every file that has rows in this partition, in the order of `names`."""
    for index, name in enumerate(names):
        rows = read_partition(corpus, name, partition)
        if rows is not None:
            yield index, rows
