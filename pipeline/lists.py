"""Lists that grow with the corpus, such as the files of all parts, and how tasks get them: each is written once for a step, as a
file of the corpus, and a task is sent its name. So what is sent is of one size, whatever the size of the corpus.

A list lies under its digest while its step runs, in a folder of that run alone: one that lost its lock to another clears away its
own and not the other's. It says nothing that receipts do not say, and is deleted when the step ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import pyarrow as pa

from manifests.manifest import canonical
from manifests.storage import Folder

LISTS = "lists"
BATCH = 1024
"""Values that are read together where a task wants a few of a list."""
HELD_LISTS = 4
"""That a worker keeps for the next task: those of one step."""
SCHEMA = pa.schema([pa.field("value", pa.large_string(), nullable=False)])
IPC = pa.ipc.IpcWriteOptions(compression="zstd")


class ListError(Exception):
    """A list that is not the one that was written."""


class Listed(Sequence[Any]):
    """JSON values, or [first, last) of those of another list, which is then what is written."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.all: Sequence[Any] = values if isinstance(values, (list, tuple)) else list(values)
        self.first, self.last = 0, len(self.all)
        self._inner: bytes | None = None

    def part(self, first: int, last: int) -> Listed:
        if not 0 <= first <= last <= len(self):
            raise IndexError(f"[{first}, {last}) of {len(self)} values")
        found = Listed(())
        found.all, found.first, found.last = self.all, self.first + first, self.first + last
        return found

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[Any]:
        return (self.all[at] for at in range(self.first, self.last))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.all[self.first : self.last][index]

    def inner(self) -> bytes:
        """The values as they stand between the brackets of their canonical JSON."""
        if self._inner is None:
            self._inner = canonical(list(self))[1:-1]
        return self._inner


@dataclass(frozen=True)
class ListFile:
    """Where the values [first, last) of a list stand in the corpus."""

    path: str
    first: int
    last: int
    whole: bool


class Lists:
    """Writes the lists of one step, each once, in a folder below `folder` that nobody else has."""

    def __init__(self, corpus: Folder, folder: str) -> None:
        self._corpus, self._shared = corpus, folder
        self._folder = f"{folder}/{uuid.uuid4().hex}"
        self._paths: dict[int, str] = {}
        self._kept: list[Sequence[Any]] = []
        """So that no other list can have the place in memory by which one is known."""

    def file(self, listed: Listed) -> ListFile:
        path = self._paths.get(id(listed.all))
        if path is None:
            data = _packed(listed.all)
            path = f"{self._folder}/{hashlib.sha256(data).hexdigest()}.arrow"
            self._corpus.write(path, data)
            self._paths[id(listed.all)] = path
            self._kept.append(listed.all)
        return ListFile(path, listed.first, listed.last, (listed.first, listed.last) == (0, len(listed.all)))

    def delete(self) -> None:
        if self._paths:
            self._corpus.delete(self._folder)
            self._paths.clear()
            if self._corpus.local:
                with contextlib.suppress(OSError):  # what a killed run left is there
                    os.rmdir(self._corpus.path(self._shared))


def read(corpus: Folder, file: ListFile) -> Sequence[Any]:
    """The values; ListError when a whole list does not have the digest that its name says."""
    return _read(corpus.url, file)


@lru_cache(maxsize=HELD_LISTS)
def _read(url: str, file: ListFile) -> tuple[Any, ...]:
    corpus = Folder(url)
    if not file.whole:
        with corpus.open(file.path) as source, pa.ipc.open_file(source) as reader:
            return tuple(_values(reader, file.first, file.last))
    data = corpus.read(file.path)
    if f"{hashlib.sha256(data).hexdigest()}.arrow" != file.path.rpartition("/")[2]:
        raise ListError(f"{url}/{file.path} is not what was written there")
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        return tuple(_values(reader, file.first, file.last))


def _values(reader: pa.RecordBatchFileReader, first: int, last: int) -> Iterator[Any]:
    for number in range(first // BATCH, -(-last // BATCH)):
        start = number * BATCH
        rows = reader.get_batch(number).slice(max(0, first - start), min(last, start + BATCH) - max(first, start))
        for value in rows["value"].to_pylist():
            yield json.loads(value)


def _packed(values: Sequence[Any]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, SCHEMA, options=IPC) as out:
        for start in range(0, len(values), BATCH):
            texts = [canonical(value).decode() for value in values[start : start + BATCH]]
            out.write_batch(pa.record_batch([pa.array(texts, pa.large_string())], schema=SCHEMA))
    return sink.getvalue()
