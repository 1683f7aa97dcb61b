"""What a tokenizer makes of texts: bytes a token, tokens a word, and how much of the vocabulary is used, by group of texts.

A word is a maximal run of characters that are not white space. In scripts without spaces (`stages.scripts.unspaced`, by the
letters of the text) the count is of characters, white space left out, and `unspaced` says so; a group that has both kinds has a
row for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from stages import code_points, scripts, text_buffers
from stages.kernels.reading import ALPHABETIC, SCRIPT_SHIFT, SPACE, decode

WINDOW = 1 << 14
"""Bytes that are decoded at a time: what a text of any size needs is so much."""


@dataclass
class Group:
    """Sums over the texts of a group. words: words, or characters of unspaced texts; tokens: without BOS."""

    documents: int = 0
    bytes: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, other: Group) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.words += other.words
        self.tokens += other.tokens


class Usage:
    """Counts texts that were encoded by one tokenizer, under any names."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.groups: dict[tuple[Hashable, bool], Group] = defaultdict(Group)
        self._used: dict[tuple[Hashable, bool], np.ndarray] = {}

    def count(self, names: Sequence[Hashable], texts: pa.Array, offsets: np.ndarray, ids: np.ndarray) -> None:
        """`texts` (n) with the group of each, and what `Encoder.encode` gave for them: BOS before every text."""
        data, places = text_buffers.of(texts)
        words, characters = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        of_script = np.zeros((len(texts), 1 + len(scripts.UNSPACED_SCRIPTS)), np.int64)
        _count(data, places, code_points.classes(), WINDOW, words, characters, of_script)
        unspaced, _ = scripts.unspaced(of_script)
        words = np.where(unspaced, characters, words)
        sizes, tokens = np.diff(places), np.diff(offsets) - 1
        rows: dict[tuple[Hashable, bool], list[int]] = defaultdict(list)
        for row, key in enumerate(zip(names, unspaced.tolist(), strict=True)):
            rows[key].append(row)
        for key, listed in rows.items():
            mine = np.array(listed, np.int64)
            sums = (int(values[mine].sum()) for values in (sizes, words, tokens))
            self.groups[key].add(Group(len(mine), *sums))
            _mark(ids, offsets, mine, self._used.setdefault(key, np.zeros(self.vocabulary, bool)))

    def used(self, keys: Iterable[tuple[Hashable, bool]]) -> int:
        """How many entries of the vocabulary occur in these groups."""
        total = np.zeros(self.vocabulary, bool)
        for key in keys:
            total |= self._used[key]
        return int(total.sum())

    def sums(self) -> list[dict[str, Any]]:
        """One row a group, by name: `name`, `unspaced` and its sums."""
        keys = sorted(self.groups, key=str)
        return [{"name": name, "unspaced": unspaced, **asdict(self.groups[name, unspaced])} for name, unspaced in keys]

    def rows(self) -> list[dict[str, Any]]:
        """One row a group, the largest first: `name`, `unspaced`, the sums, `bytes_per_token`, `tokens_per_word`, and
        `vocabulary_used`, a share; null where there is nothing to divide by."""
        found = []
        for key in sorted(self.groups, key=lambda key: (-self.groups[key].bytes, str(key))):
            group = self.groups[key]
            found.append(
                {
                    "name": key[0],
                    "unspaced": key[1],
                    "documents": group.documents,
                    "bytes": group.bytes,
                    "words": group.words,
                    "tokens": group.tokens,
                    "bytes_per_token": group.bytes / group.tokens if group.tokens else None,
                    "tokens_per_word": group.tokens / group.words if group.words else None,
                    "vocabulary_used": self.used([key]) / self.vocabulary,
                }
            )
        return found


@njit(cache=True, nogil=True)
def _count(data, places, classes, size, words, characters, of_script):  # type: ignore[no-untyped-def]
    """Of every text: words, characters that are not white space, and characters by script, as `scripts.unspaced` takes them.
    `size` bytes are decoded at a time."""
    points, kinds = np.empty(size, np.int32), np.empty(size, np.uint16)
    window, starts = np.empty(2, np.int64), np.empty(2, np.int64)
    for row in range(places.size - 1):
        begin, stop = places[row], places[row + 1]
        before = np.uint16(SPACE)
        while begin < stop:
            end = min(begin + size, stop)
            while begin + size - 4 < end < stop and data[end] & 0xC0 == 0x80:  # within a character
                end -= 1
            window[0], window[1] = begin, end
            decode(data, window, classes, points, kinds, starts)
            found = spaces = others = 0
            for at in range(starts[1]):
                kind = kinds[at]
                space = kind & np.uint16(SPACE)
                spaces += space
                found += before & (space ^ np.uint16(SPACE))
                before = space
                script = kind >> np.uint16(SCRIPT_SHIFT)
                if script:
                    of_script[row, script] += 1
                else:
                    others += kind & np.uint16(ALPHABETIC)
            words[row] += found
            characters[row] += starts[1] - spaces
            of_script[row, 0] += others // ALPHABETIC
            begin = end


@njit(cache=True, nogil=True)
def _mark(ids, offsets, rows, used):  # type: ignore[no-untyped-def]
    """Sets `used` at every id of the texts of these rows but at BOS, their first."""
    for row in rows:
        for place in range(offsets[row] + 1, offsets[row + 1]):
            used[ids[place]] = True
