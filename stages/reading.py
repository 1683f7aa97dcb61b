"""The texts of a batch, read once for all filters that measure it: decoded to code points, and cut into words and lines.

What a word, a line and a code point's class are: `stages.code_points`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from stages import code_points, text_buffers
from stages.kernels import reading as kernels
from stages.kernels.repetition import repeated_pieces
from stages.scripts import UNSPACED_SCRIPTS


@dataclass(frozen=True)
class Reading:
    """n texts. Places are positions in `points`; lists of row k go from starts[k] to starts[k + 1] of their own starts.

    texts: the column that was read. data (uint8), offsets (int64, n + 1): its UTF-8.
    points (int32), kinds (uint16), starts (int64, n + 1): code points of all rows in a row, their classes, where each row starts.

    The large arrays lie in memory that the next reading uses again: whoever wants to keep something copies it.
    """

    texts: pa.Array
    data: np.ndarray
    offsets: np.ndarray
    points: np.ndarray
    kinds: np.ndarray
    starts: np.ndarray

    @cached_property
    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """(where each begins and ends, starts) of words, which are maximal runs of characters that are not whitespace."""
        return self._pieces[:2]

    @cached_property
    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """(where each begins and ends, starts) of lines, stripped, without empty ones."""
        return self._pieces[2:4]

    @cached_property
    def newline_starts(self) -> np.ndarray:
        """int64 (n + 1,): how many newlines stand before each row."""
        return self._pieces[4]

    @cached_property
    def repeats(self) -> np.ndarray:
        """int64 (2, n, 4): of lines and of paragraphs how many every text has, their code points, and of those that stood before
        in the text, the same."""
        counts = np.zeros((2, len(self.texts), 4), np.int64)
        repeated_pieces(self.points, self.starts, *self.lines, counts)
        return counts

    @cached_property
    def scripts(self) -> np.ndarray:
        """int64 (n, 1 + k): characters of each of the k scripts of `stages.scripts`, after the letters of all others."""
        counts = np.zeros((len(self.texts), 1 + len(UNSPACED_SCRIPTS)), np.int64)
        kernels.script_counts(self.kinds, self.starts, counts)
        return counts

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        size, rows = int(self.starts[-1]), len(self.texts)
        places = np.int32 if size < np.iinfo(np.int32).max else np.int64
        # Words and lines stand apart, but for the last of a row and the first of the next; the entry behind the last one is
        # written without being counted.
        most = (size + rows) // 2 + 2
        words, lines = (_room(name, 2 * most, places).reshape(-1, 2) for name in ("words", "lines"))
        newlines = _room("newlines", size + 1, places)
        starts = np.empty((3, rows + 1), np.int64)
        kernels.cut(self.points, self.kinds, self.starts, words, starts[0], lines, starts[1], newlines, starts[2])
        return words, starts[0], lines, starts[1], starts[2]


def of(texts: pa.Array) -> Reading:
    """The reading of a text column. That of the latest column is kept, so filters that look at the same batch share it."""
    global _latest
    data, offsets = text_buffers.of(texts)
    if _latest is not None and _is_same(_latest, data, offsets):
        return _latest
    _latest = None  # its arrays are about to be written over
    size = int(offsets[-1] - offsets[0])
    points, kinds = _room("points", size, np.int32), _room("kinds", size, np.uint16)
    starts = np.empty(offsets.size, np.int64)
    kernels.decode(data, offsets, code_points.classes(), points, kinds, starts)
    _latest = Reading(texts, data, offsets, points, kinds, starts)
    return _latest


LENT_ENTRIES = 32 << 20
"""Arrays of more entries, which only the largest documents need, are given back at once."""

_latest: Reading | None = None
_rooms: dict[str, np.ndarray] = {}


def _room(name: str, size: int, dtype: type[np.generic]) -> np.ndarray:
    """An array that is kept and lent again: with fresh memory for every batch, half of the time goes to page faults."""
    if size > LENT_ENTRIES:
        return np.empty(size, dtype)
    if name not in _rooms or _rooms[name].size < size or _rooms[name].dtype != dtype:
        _rooms[name] = np.empty(size, dtype)
    return _rooms[name][:size]


def _is_same(reading: Reading, data: np.ndarray, offsets: np.ndarray) -> bool:
    """Do the views show the same memory? The reading keeps its own alive, so no other column can lie there."""
    return all(
        mine.__array_interface__["data"] == other.__array_interface__["data"] and mine.size == other.size
        for mine, other in ((reading.data, data), (reading.offsets, offsets))
    )
