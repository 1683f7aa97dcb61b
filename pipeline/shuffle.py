"""Shuffles through files: each task writes one file of compressed Arrow IPC streams, one a partition; a reduce task reads
just its own bytes from every file. It survives dead nodes, works on object stores, and holds nothing in Ray's memory.

File layout: runs, each the streams of all partitions one after another; then for each run partitions + 1 little-endian int64
offsets; then as int64 the number of runs and of partitions, and 8 bytes of magic. A run is what was collected when the writer's
memory was full. The offsets stand in the file and not in the receipt, so that receipts stay small when many parts meet many
partitions.

Where many files meet many partitions, a file has one stream for `width` neighbouring partitions, whose rows say in a column of
their own which they belong to; its width stands before the number of runs, and its magic is another. Such files can be read as
they are. It is cheaper to let relays (`pipeline.relays`) take those of one stream apart first: files x streams and then
partitions x relays of one stream are read, and not files x partitions. Rows of a relay's file say in a column which file they
come from. All orders are the same on either way.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from manifests.storage import AtomicWriter, Folder, Written

MAGIC, WIDE_MAGIC = b"cmshuf01", b"cmshuf02"
TAIL, WIDE_TAIL = 24, 32
TARGET = pa.field("target", pa.int32(), nullable=False)
"""The partition of a row whose stream has those of several."""
SOURCE = pa.field("source", pa.int32(), nullable=False)
"""The number of the file that a row of a relay's file comes from."""
RUN_BYTES = 256 << 20
READERS = 16
"""Files that are read at a time from an object store, where a read is mostly waiting."""
READ_AHEAD_BYTES = 64 << 20
"""Of runs that `gather_runs` has asked an object store for before they are wanted."""
IPC = pa.ipc.IpcWriteOptions(compression="zstd")
Files = Sequence[str] | Mapping[str, Any]
"""Names of shuffle files, in the order of the parts that wrote them; or what `pipeline.relays` says of relays' files: `files`, so
many `groups` for each stream, each with partitions that are `width` neighbours, or every `streams`-th where there is no width."""
Found = TypeVar("Found")


class ShuffleError(Exception):
    """A shuffle file that is not one."""


class ShuffleWriter:
    """Takes tables whose row i belongs to partition[i] in [0, partitions); rows keep their order within a partition. `width`
    partitions share a stream."""

    def __init__(self, out: AtomicWriter, schema: pa.Schema, partitions: int, run_bytes: int = RUN_BYTES, width: int = 1) -> None:
        self.out, self.partitions, self.run_bytes, self.width = out, partitions, run_bytes, width
        self.schema = schema if width == 1 else schema.append(TARGET)
        self.streams = -(-partitions // width)
        self.rows = 0
        self._tables: list[pa.Table] = []
        self._where: list[np.ndarray] = []
        self._held = 0
        self._runs: list[np.ndarray] = []

    def add(self, table: pa.Table, partition: np.ndarray) -> None:
        if not table.num_rows:
            return
        if self.width > 1:
            table = table.append_column(TARGET, pa.array(partition, TARGET.type))
            partition = np.asarray(partition, dtype=np.int64) // self.width
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
        told = [len(self._runs), self.partitions]
        if self.width > 1:
            self.out.write(np.array([self.width, *told], dtype="<i8").tobytes() + WIDE_MAGIC)
        else:
            self.out.write(np.array(told, dtype="<i8").tobytes() + MAGIC)

    def _end_run(self) -> None:
        if not self._tables:
            return
        # In one piece: rows are picked for every stream, and each time the pieces would be copied together first.
        table = pa.concat_tables(self._tables).combine_chunks()
        partition = np.concatenate(self._where)
        self._tables, self._where, self._held = [], [], 0
        order = np.argsort(partition, kind="stable")
        bounds = np.searchsorted(partition[order], np.arange(self.streams + 1))
        offsets = np.zeros(self.streams + 1, dtype="<i8")
        for index in range(self.streams):
            offsets[index] = self.out.size
            if bounds[index] < bounds[index + 1]:
                rows = table.take(pa.array(order[bounds[index] : bounds[index + 1]]))
                sink = io.BytesIO()
                with pa.ipc.new_stream(sink, self.schema, options=IPC) as stream:
                    stream.write_table(rows)
                self.out.write(sink.getbuffer())
        offsets[self.streams] = self.out.size
        self._runs.append(offsets)


@contextlib.contextmanager
def writing(
    corpus: Folder, name: str, schema: pa.Schema, partitions: int, run_bytes: int = RUN_BYTES, width: int = 1
) -> Iterator[ShuffleWriter]:
    """A shuffle file that is there when the block ends; `out.written` and `rows` of the writer then tell of it."""
    with corpus.writer(name) as out:
        writer = ShuffleWriter(out, schema, partitions, run_bytes, width)
        yield writer
        writer.finish()


def write_partitions(
    corpus: Folder, name: str, table: pa.Table, partition: np.ndarray, partitions: int, width: int = 1
) -> Written:
    """A shuffle file of one table."""
    with writing(corpus, name, table.schema, partitions, width=width) as writer:
        writer.add(table, partition)
    return writer.out.written


def read_partition(corpus: Folder, name: str, partition: int) -> pa.Table | None:
    """The rows of one partition of one file, or None where it has none."""
    file = _file(corpus, name)
    return _joined(_of_target(rows, partition) for rows in map(file.read, file.extents(partition, partition + 1)))


def read_residue(corpus: Folder, name: str, column: str, partition: int, partitions: int) -> pa.Table | None:
    """The rows of a file whose `column` (uint64) leaves `partition` when divided by `partitions`, or None where it has none.

    The file's own partitions are the remainders of that column. Both numbers are powers of two and need not be the same: a corpus
    that has grown is cut finer than its older parts were.
    """
    file = _file(corpus, name)
    own = file.partitions
    wanted = range(partition % own, own, min(own, partitions))
    rows = _joined(map(file.read, (extent for one in wanted for extent in file.extents(one, one + 1))))
    if rows is None or own >= partitions:
        return rows
    mine = rows[column].to_numpy() % np.uint64(partitions) == partition
    return rows.filter(pa.array(mine)) if mine.any() else None


def gather_targets(corpus: Folder, names: Sequence[str], first: int, last: int) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """`gather` for the partitions [first, last) of files that are not relays', with a column TARGET; the rows of a partition are
    in order."""
    return _each(corpus, names, lambda name: _targets(corpus, name, first, last))


def _targets(corpus: Folder, name: str, first: int, last: int) -> pa.Table | None:
    file = _file(corpus, name)
    if file.width == 1:
        found = ((target, extent) for target in range(first, last) for extent in file.extents(target, target + 1))
        return _joined(
            rows.append_column(TARGET, pa.array(np.full(rows.num_rows, target), TARGET.type))
            for target, rows in ((target, file.read(extent)) for target, extent in found)
        )
    rows = _joined(map(file.read, file.extents(first, last)))
    if rows is None:
        return None
    target = rows[TARGET.name].to_numpy()
    return rows.filter(pa.array((first <= target) & (target < last)))


def gather(corpus: Folder, files: Files, partition: int) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """(number of the file that each row comes from, rows) of this partition, in the order of the files."""
    if not isinstance(files, Mapping):
        return _each(corpus, files, lambda name: read_partition(corpus, name, partition))
    names, place = _relayed(files, partition)
    return _sourced(_each(corpus, names, lambda name: read_partition(corpus, name, place)))


def gather_residue(
    corpus: Folder, files: Files, column: str, partition: int, partitions: int
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """The same for files that are partitioned by the remainder of `column`, in whatever numbers (see `read_residue`)."""
    if isinstance(files, Mapping):
        return gather(corpus, files, partition)
    return _each(corpus, files, lambda name: read_residue(corpus, name, column, partition, partitions))


def gather_runs(corpus: Folder, files: Files, partition: int) -> Iterator[pa.Table]:
    """The rows of one partition of every file, in the order of the files, a run at a time: for what is larger than memory.

    From an object store they are read ahead, up to READ_AHEAD_BYTES of what lies there.
    """
    names, place = _relayed(files, partition) if isinstance(files, Mapping) else (files, partition)
    for rows in _runs(corpus, names, place):
        mine = _of_target(rows, place)
        if mine is not None:
            yield mine.drop_columns(SOURCE.name) if SOURCE.name in mine.schema.names else mine


def _runs(corpus: Folder, names: Sequence[str], partition: int) -> Iterator[pa.Table]:
    if corpus.local:
        for name in names:
            file = _file(corpus, name)
            yield from map(file.read, file.extents(partition, partition + 1))
        return
    ahead: deque[tuple[Future[pa.Table], int]] = deque()
    held = 0
    with ThreadPoolExecutor(READERS) as pool:
        for at in range(0, len(names), READERS):
            files = list(pool.map(lambda name: _file(corpus, name), names[at : at + READERS]))
            for file, extents in zip(files, pool.map(lambda file: file.extents(partition, partition + 1), files), strict=True):
                for start, end in extents:
                    while ahead and held + end - start > READ_AHEAD_BYTES:
                        rows, size = ahead.popleft()
                        held -= size
                        yield rows.result()
                    ahead.append((pool.submit(file.read, (start, end)), end - start))
                    held += end - start
        while ahead:
            yield ahead.popleft()[0].result()


@dataclass(frozen=True)
class _File:
    """A shuffle file, as its tail describes it."""

    corpus: Folder
    name: str
    offsets: int
    """Where the offsets of its first run stand."""
    runs: int
    partitions: int
    width: int

    def extents(self, first: int, last: int) -> list[tuple[int, int]]:
        """Where the streams lie that have the partitions [first, last), a run each; those that are empty left out."""
        if not 0 <= first < last <= self.partitions:
            raise ShuffleError(f"{self.corpus.url}/{self.name} has {self.partitions} partitions, not {last}")
        streams = -(-self.partitions // self.width)
        low, high = first // self.width, -(-last // self.width)
        found = []
        for run in range(self.runs):
            at = self.offsets + 8 * (run * (streams + 1) + low)
            places = np.frombuffer(self.corpus.read_range(self.name, at, 8 * (high - low + 1)), "<i8")
            if places[0] < places[-1]:
                found.append((int(places[0]), int(places[-1])))
        return found

    def read(self, extent: tuple[int, int]) -> pa.Table:
        """The rows of the streams of an extent."""
        start, end = extent
        source = pa.BufferReader(self.corpus.read_range(self.name, start, end - start))
        tables = []
        while source.tell() < end - start:
            with pa.ipc.open_stream(source) as stream:
                tables.append(stream.read_all())
        return pa.concat_tables(tables)


def _file(corpus: Folder, name: str) -> _File:
    size = corpus.size(name)
    raw = corpus.read_range(name, max(0, size - WIDE_TAIL), WIDE_TAIL)
    wide = raw[-8:] == WIDE_MAGIC
    tail = WIDE_TAIL if wide else TAIL
    if len(raw) < tail or raw[-8:] not in (MAGIC, WIDE_MAGIC):
        raise ShuffleError(f"{corpus.url}/{name} is not a shuffle file")
    *widths, runs, partitions = (int(number) for number in np.frombuffer(raw[-tail:-8], "<i8"))
    [width] = widths or [1]
    if partitions < 1 or width < 1 or not 0 <= runs * 8 * (-(-partitions // width) + 1) <= size - tail:
        raise ShuffleError(f"{corpus.url}/{name} cannot have {runs} runs of {partitions} partitions")
    return _File(corpus, name, size - tail - runs * 8 * (-(-partitions // width) + 1), runs, partitions, width)


def _relayed(files: Mapping[str, Any], partition: int) -> tuple[Sequence[str], int]:
    """The files of relays that have a partition, and which of theirs it is."""
    if files["width"] is None:
        place, stream = divmod(partition, files["streams"])
    else:
        stream, place = divmod(partition, files["width"])
    return files["files"][stream * files["groups"] : (stream + 1) * files["groups"]], place


def _sourced(found: Iterator[tuple[np.ndarray, pa.Table]]) -> Iterator[tuple[np.ndarray, pa.Table]]:
    for _, rows in found:
        yield rows[SOURCE.name].to_numpy().astype(np.int64), rows.drop_columns(SOURCE.name)


def _of_target(rows: pa.Table, partition: int) -> pa.Table | None:
    """Those of one partition, where a stream has several."""
    if TARGET.name not in rows.schema.names:
        return rows
    mine = rows[TARGET.name].to_numpy() == partition
    return rows.filter(pa.array(mine)).drop_columns(TARGET.name) if mine.any() else None


def _joined(tables: Iterator[pa.Table | None]) -> pa.Table | None:
    found = [one for one in tables if one is not None]
    return pa.concat_tables(found) if found else None


def _each(corpus: Folder, names: Sequence[str], read: Callable[[str], pa.Table | None]) -> Iterator[tuple[np.ndarray, pa.Table]]:
    for index, rows in enumerate(_ahead(corpus, names, read)):
        if rows is not None:
            yield np.full(rows.num_rows, index), rows


def _ahead(corpus: Folder, names: Sequence[str], read: Callable[[str], Found]) -> Iterator[Found]:
    """What is read of each, in order; from an object store, several at a time and as many again before they are wanted."""
    if corpus.local:
        yield from map(read, names)
        return
    with ThreadPoolExecutor(READERS) as pool:
        waiting: deque[Future[Found]] = deque()
        for name in names:
            waiting.append(pool.submit(read, name))
            if len(waiting) >= 2 * READERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
