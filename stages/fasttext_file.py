"""fastText model files, checked byte by byte before the library sees them.

The library trusts a file once its first eight bytes are right. Of a file that was cut short it scores with what was left in
memory, a damaged header ends the process or hangs it, and nothing of that can be caught. `check` walks the whole file, so that
what it lets through has every number that it announces, at the places where the library looks for them.

Layout (fastText 0.9, version 12, and 11 before it; little-endian): header, dictionary, input matrix, output matrix; either
matrix may be quantised (Joulin et al. 2016, *FastText.zip*).
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

import numpy as np

MAGIC = 793_712_314
VERSIONS = (11, 12)
SUPERVISED = 3
LOSSES = range(1, 5)
"""Hierarchical softmax, negative sampling, softmax, one against all."""
CENTROIDS = 256
"""Of a product quantiser: each code is a byte."""
WORD, LABEL = 0, 1
LARGEST_DIMENSION = 1 << 14
MOST_NGRAMS = 64
"""Far more words or characters in an n-gram than anybody uses."""
MOST_OCCURRENCES = 10**15
"""Of all labels together: the library takes this number for an infinite one when it builds the tree of hierarchical softmax."""
CHECKED_AT_ONCE = 1 << 22
"""Floats looked at together."""


class ModelFileError(ValueError):
    """A file that is no classifier of fastText, or not all of one; the message starts with its path."""


@dataclass(frozen=True)
class ModelFile:
    """What a file says of itself: its labels with their prefix in the model's order, and numbers of words and dimensions."""

    labels: tuple[str, ...]
    words: int
    dimensions: int


def check(path: str | os.PathLike[str]) -> ModelFile:
    """Reads a supervised model's whole file; ModelFileError says what is wrong with it. OSError where it cannot be read."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ModelFileError(f"{os.fspath(path)}: not a fastText model: the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            walk = _Walk(data)
            try:
                return walk.model()
            except (_Wrong, struct.error, UnicodeDecodeError) as error:
                reason = str(error) if isinstance(error, _Wrong) else f"it is cut short or damaged at byte {walk.at:,}"
                raise ModelFileError(f"{os.fspath(path)}: not a fastText model: {reason}") from None


class _Wrong(Exception):
    pass


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def model(self) -> ModelFile:
        magic, version = self.take("ii")
        self.must(magic == MAGIC, "it does not begin as one does")
        self.must(version in VERSIONS, f"version {version} of the format is unknown")
        dimensions, _, _, _, _, ngrams, loss, model, buckets, shortest, longest, _, _ = self.take("12id")
        self.must(model == SUPERVISED, "it holds word vectors and no classifier")
        self.must(0 < dimensions <= LARGEST_DIMENSION, f"it has {dimensions} dimensions")
        self.must(loss in LOSSES, f"its loss is number {loss}")
        self.must(0 <= ngrams <= MOST_NGRAMS and 0 <= shortest <= MOST_NGRAMS and 0 <= longest <= MOST_NGRAMS, "odd n-grams")
        self.must(buckets > 0 or (buckets == 0 and ngrams <= 1 and longest == 0), f"{buckets} buckets for its n-grams")
        words, labels, kept = self.dictionary()
        self.must(len(labels) > 0, "it has no labels")
        rows = words + (buckets if kept < 0 else kept)
        quantised = self.flag()
        self.must(quantised or kept < 0, "its dictionary is pruned and its matrix is not")
        self.matrix("input", quantised, rows, dimensions)
        self.matrix("output", self.flag() and quantised, len(labels), dimensions)
        self.must(self.at == len(self.data), f"{len(self.data) - self.at:,} bytes follow its end")
        return ModelFile(tuple(labels), words, dimensions)

    def dictionary(self) -> tuple[int, list[str], int]:
        """(words, labels, n-grams kept or -1 when all are)."""
        size, words, number_of_labels, _, kept = self.take("iiiqq")
        self.must(min(words, number_of_labels) >= 0 and size == words + number_of_labels, "its dictionary's sizes disagree")
        labels, occurrences = [], 0
        for index in range(size):
            end = self.data.find(b"\0", self.at)
            self.must(end >= 0, f"entry {index} of its dictionary has no end")
            text = self.data[self.at : end]
            self.at = end + 1
            count, kind = self.take("qb")
            self.must(count >= 0 and kind == (WORD if index < words else LABEL), f"entry {index} of its dictionary is damaged")
            if kind == LABEL:
                labels.append(text.decode())
                occurrences += count
        self.must(occurrences < MOST_OCCURRENCES, "its labels occur more often than can be")
        if kept > 0:
            pairs = self.numbers(2 * kept, np.dtype("<i4")).reshape(-1, 2)
            self.must(int(pairs[:, 1].min()) >= 0 and int(pairs[:, 1].max()) < kept, "its pruned n-grams are damaged")
        return words, labels, kept

    def matrix(self, name: str, quantised: bool, rows: int, columns: int) -> None:
        norms = self.flag() if quantised else False
        found = self.take("qq")
        self.must(found == (rows, columns), f"its {name} matrix is {found[0]} x {found[1]} and should be {rows} x {columns}")
        if not quantised:
            self.floats(rows * columns, name)
            return
        (size,) = self.take("i")
        self.skip(size)
        self.must(size == rows * self.quantiser(columns, name), f"the {name} matrix has {size} codes")
        if norms:
            self.skip(rows)
            self.must(self.quantiser(1, name) == 1, f"the norms of the {name} matrix are damaged")

    def quantiser(self, columns: int, name: str) -> int:
        """The number of codes a row."""
        dimensions, parts, each, last = self.take("4i")
        fits = dimensions == columns and 0 < each <= columns and parts == -(-columns // each)
        self.must(fits and last == columns - (parts - 1) * each, f"the codes of the {name} matrix are damaged")
        self.floats(dimensions * CENTROIDS, name)
        return int(parts)

    def floats(self, count: int, name: str) -> None:
        self.room(count * 4)
        while count:
            here = min(count, CHECKED_AT_ONCE)
            finite = np.isfinite(self.numbers(here, np.dtype("<f4"))).all()
            self.must(bool(finite), f"its {name} matrix holds what is no number")
            count -= here

    def numbers(self, count: int, dtype: np.dtype) -> np.ndarray:
        size = count * dtype.itemsize
        self.room(size)
        # A copy: an array over the map itself would keep it from being closed.
        values = np.frombuffer(self.data[self.at : self.at + size], dtype)
        self.at += size
        return values

    def skip(self, size: int) -> None:
        self.room(size)
        self.at += size

    def room(self, size: int) -> None:
        self.must(0 <= size <= len(self.data) - self.at, f"it is cut short: {size:,} bytes should follow byte {self.at:,}")

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def flag(self) -> bool:
        (value,) = self.take("B")
        self.must(value in (0, 1), f"byte {self.at - 1:,} is {value} where 0 or 1 stands")
        return bool(value)

    def must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise _Wrong(otherwise)
