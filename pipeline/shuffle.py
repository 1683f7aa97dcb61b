"""Shuffles through files: each task writes one file of compressed Arrow IPC streams, one a partition; a reduce task reads
just its own bytes from every file. It survives dead nodes, works on object stores, and holds nothing in Ray's memory.

File layout: runs, each the streams of all partitions one after another; then for each run partitions + 1 little-endian int64
offsets; then as int64 the number of runs and of partitions, and 8 bytes of magic. A run is what was collected when the writer's
memory was full. The offsets stand in the file and not in the receipt, so that receipts stay small when many parts meet many
partitions.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from manifests.storage import AtomicWriter, Folder, Written

MAGIC = b"cmshuf01"
TAIL = 24
RUN_BYTES = 256 << 20
READERS = 16
"""Files that are read at a time from an object store, where a read is mostly waiting."""
READ_AHEAD_BYTES = 64 << 20
"""Of runs that `gather_runs` has asked an object store for before they are wanted."""
IPC = pa.ipc.IpcWriteOptions(compression="zstd")


class ShuffleError(Exception):
    """A shuffle file that is not one."""


class ShuffleWriter:
    """Takes tables whose row i belongs to partition[i] in [0, partitions); rows keep their order within a partition."""

    def __init__(self, out: AtomicWriter, schema: pa.Schema, partitions: int, run_bytes: int = RUN_BYTES) -> None:
        self.out, self.schema, self.partitions, self.run_bytes = out, schema, partitions, run_bytes
        self.rows = 0
        self._tables: list[pa.Table] = []
        self._where: list[np.ndarray] = []
        self._held = 0
        self._runs: list[np.ndarray] = []

    def add(self, table: pa.Table, partition: np.ndarray) -> None:
        if not table.num_rows:
            return
        self._tables.append(table)
        self._where.append(np.asarray(partition, dtype=np.int64))
        self._held += table.nbytes
        self.rows += table.num_rows
        if self._held >= self.run_bytes:
            self._end_run()

    def finish(self) -> None:
        self._end_run()
        for offsets in self._runs:
            self.out.write(offsets.tobytes())
        self.out.write(np.array([len(self._runs), self.partitions], dtype="<i8").tobytes() + MAGIC)

    def _end_run(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        partition = np.concatenate(self._where)
        self._tables, self._where, self._held = [], [], 0
        order = np.argsort(partition, kind="stable")
        bounds = np.searchsorted(partition[order], np.arange(self.partitions + 1))
        offsets = np.zeros(self.partitions + 1, dtype="<i8")
        for index in range(self.partitions):
            offsets[index] = self.out.size
            if bounds[index] < bounds[index + 1]:
                rows = table.take(pa.array(order[bounds[index] : bounds[index + 1]]))
                sink = io.BytesIO()
                with pa.ipc.new_stream(sink, self.schema, options=IPC) as stream:
                    stream.write_table(rows)
                self.out.write(sink.getbuffer())
        offsets[self.partitions] = self.out.size
        self._runs.append(offsets)


@contextlib.contextmanager
def writing(corpus: Folder, name: str, schema: pa.Schema, partitions: int, run_bytes: int = RUN_BYTES) -> Iterator[ShuffleWriter]:
    """A shuffle file that is there when the block ends; `out.written` and `rows` of the writer then tell of it."""
    with corpus.writer(name) as out:
        writer = ShuffleWriter(out, schema, partitions, run_bytes)
        yield writer
        writer.finish()


def write_partitions(corpus: Folder, name: str, table: pa.Table, partition: np.ndarray, partitions: int) -> Written:
    """A shuffle file of one table."""
    with writing(corpus, name, table.schema, partitions) as writer:
        writer.add(table, partition)
    return writer.out.written


def read_partition(corpus: Folder, name: str, partition: int) -> pa.Table | None:
    """The rows of one partition of one file, or None where it has none."""
    size, runs, partitions = _shape(corpus, name)
    if not 0 <= partition < partitions:
        raise ShuffleError(f"{corpus.url}/{name} has {partitions} partitions, not {partition + 1}")
    return _read(corpus, name, size, runs, partitions, [partition])


def read_residue(corpus: Folder, name: str, column: str, partition: int, partitions: int) -> pa.Table | None:
    """The rows of a file whose `column` (uint64) leaves `partition` when divided by `partitions`, or None where it has none.

    The file's own partitions are the remainders of that column. Both numbers are powers of two and need not be the same: a corpus
    that has grown is cut finer than its older parts were.
    """
    size, runs, own = _shape(corpus, name)
    rows = _read(corpus, name, size, runs, own, list(range(partition % own, own, min(own, partitions))))
    if rows is None or own >= partitions:
        return rows
    mine = rows[column].to_numpy() % np.uint64(partitions) == partition
    return rows.filter(pa.array(mine)) if mine.any() else None


def _shape(corpus: Folder, name: str) -> tuple[int, int, int]:
    """(bytes, runs, partitions) of a file."""
    size = corpus.size(name)
    tail = corpus.read_range(name, max(0, size - TAIL), TAIL)
    if len(tail) != TAIL or tail[16:] != MAGIC:
        raise ShuffleError(f"{corpus.url}/{name} is not a shuffle file")
    runs, partitions = (int(number) for number in np.frombuffer(tail[:16], "<i8"))
    if partitions < 1 or not 0 <= runs * 8 * (partitions + 1) <= size - TAIL:
        raise ShuffleError(f"{corpus.url}/{name} cannot have {runs} runs of {partitions} partitions")
    return size, runs, partitions


def _read(corpus: Folder, name: str, size: int, runs: int, partitions: int, wanted: list[int]) -> pa.Table | None:
    width = 8 * (partitions + 1)
    tables = []
    for run in range(runs):
        for partition in wanted:
            at = size - TAIL - (runs - run) * width + 8 * partition
            start, end = np.frombuffer(corpus.read_range(name, at, 16), "<i8")
            if start < end:
                with pa.ipc.open_stream(corpus.read_range(name, int(start), int(end - start))) as stream:
                    tables.append(stream.read_all())
    return pa.concat_tables(tables) if tables else None


def gather(corpus: Folder, names: list[str], partition: int) -> Iterator[tuple[int, pa.Table]]:
    """(index of the file, its rows) for every file that has rows in this partition, in the order of `names`."""
    return _each(corpus, names, lambda name: read_partition(corpus, name, partition))


def gather_residue(
    corpus: Folder, names: list[str], column: str, partition: int, partitions: int
) -> Iterator[tuple[int, pa.Table]]:
    """The same for files that are partitioned by the remainder of `column`, in whatever numbers (see `read_residue`)."""
    return _each(corpus, names, lambda name: read_residue(corpus, name, column, partition, partitions))


def gather_runs(corpus: Folder, names: list[str], partition: int) -> Iterator[pa.Table]:
    """The rows of one partition of every file, in the order of `names`, a run at a time: for what is larger than memory.

    From an object store they are read ahead, up to READ_AHEAD_BYTES of what lies there.
    """
    if corpus.local:
        for name in names:
            for start, end in _extents(corpus, name, partition):
                yield _read_stream(corpus, name, start, end)
        return
    ahead: deque[tuple[Future[pa.Table], int]] = deque()
    held = 0
    with ThreadPoolExecutor(READERS) as pool:
        for at in range(0, len(names), READERS):
            group = names[at : at + READERS]
            for name, extents in zip(group, pool.map(lambda name: _extents(corpus, name, partition), group), strict=True):
                for start, end in extents:
                    while ahead and held + end - start > READ_AHEAD_BYTES:
                        rows, size = ahead.popleft()
                        held -= size
                        yield rows.result()
                    ahead.append((pool.submit(_read_stream, corpus, name, start, end), end - start))
                    held += end - start
        while ahead:
            yield ahead.popleft()[0].result()


def _extents(corpus: Folder, name: str, partition: int) -> list[tuple[int, int]]:
    """Where in a file the streams of one partition lie, a run each; those that are empty left out."""
    size, runs, partitions = _shape(corpus, name)
    if not 0 <= partition < partitions:
        raise ShuffleError(f"{corpus.url}/{name} has {partitions} partitions, not {partition + 1}")
    width = 8 * (partitions + 1)
    found = []
    for run in range(runs):
        at = size - TAIL - (runs - run) * width + 8 * partition
        start, end = (int(place) for place in np.frombuffer(corpus.read_range(name, at, 16), "<i8"))
        if start < end:
            found.append((start, end))
    return found


def _read_stream(corpus: Folder, name: str, start: int, end: int) -> pa.Table:
    with pa.ipc.open_stream(corpus.read_range(name, start, end - start)) as stream:
        return stream.read_all()


def _each(corpus: Folder, names: list[str], read: Callable[[str], pa.Table | None]) -> Iterator[tuple[int, pa.Table]]:
    with ThreadPoolExecutor(1 if corpus.local else READERS) as pool:
        for index, rows in enumerate(pool.map(read, names)):
            if rows is not None:
                yield index, rows
