"""Tokens of a shard while they are collected: on local disk in the order in which they came, and read in the order of the shard.

A shard is as large as its recipe asks for; what is held of it is a few megabytes. The file has no name, so it is gone when it is
closed or when the process ends, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from manifests.storage import TEMPORARY_PREFIX, Folder
from stages.shards import document_offsets

CHUNK_BYTES = 4 << 20
"""Read and handed on together."""
LISTED = 1 << 14
"""Documents of which the places are looked up together."""


class TokenSpill:
    """Documents as one run of ids after another. `where` names what is written, for errors."""

    def __init__(self, file: BinaryIO, dtype: np.dtype, where: str) -> None:
        self.dtype, self.where = dtype, where
        self._file = file
        self._lengths: list[np.ndarray] = []
        self._size = 0

    def add(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Documents of these lengths, whose ids stand in `tokens` one after another. OSError when the disk is full."""
        data = np.ascontiguousarray(tokens, self.dtype).data.cast("B")
        written = 0
        while written < len(data):
            try:
                written += self._file.write(data[written:])
            except OSError as error:
                place = f"{self._size + written:,} bytes of {self.where} are written"
                raise OSError(error.errno, f"no scratch file for tokens, of which {place}: {error.strerror}") from None
        self._size += written
        self._lengths.append(np.asarray(lengths, np.int64))

    def read(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """The ids of all documents in this order, in chunks that the next one is written over."""
        places = document_offsets(np.concatenate([np.zeros(0, np.int64), *self._lengths])) * self.dtype.itemsize
        chunk = np.empty(CHUNK_BYTES // self.dtype.itemsize, self.dtype)
        room = chunk.data.cast("B")
        handle, filled = self._file.fileno(), 0
        for place, stop in _pairs(places, order):
            while place < stop:
                size = os.preadv(handle, [room[filled : filled + stop - place]], place)
                if not size:
                    raise OSError(f"the scratch file of {self.where} became shorter while it was read")
                place += size
                filled += size
                if filled == len(room):
                    yield chunk
                    filled = 0
        if filled:
            yield chunk[: filled // self.dtype.itemsize]


@contextlib.contextmanager
def spill(corpus: Folder, name: str, dtype: np.dtype) -> Iterator[TokenSpill]:
    """A spill for the shard that will be the file `name`: beside it where the corpus lies on this machine, else in TMPDIR."""
    folder = os.path.dirname(corpus.path(name)) if corpus.local else None
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(buffering=0, prefix=TEMPORARY_PREFIX, dir=folder) as file:
        yield TokenSpill(file, dtype, name)


def _pairs(places: np.ndarray, order: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where each document lies, some at a time: Python's integers are large."""
    for at in range(0, len(order), LISTED):
        rows = order[at : at + LISTED]
        yield from zip(places[rows].tolist(), places[rows + 1].tolist(), strict=True)
