"""How much distinct text a sample has: that is what training a tokenizer holds in memory.

The library keeps every distinct piece of the text it has seen, with the places of all pairs in it: 105 to 145 bytes for each
byte of a distinct piece, measured (docs/tokens.md), however often it occurs. Where words are set apart by spaces, distinct ones
are few. In a script without spaces nearly every clause is one, and 256 MiB of it would take more than 30 GB.

Here a word is a run of bytes above 0x20, cut where it has `stages.tokenizer.LONGEST_PIECE` characters, and takes its UTF-8 bytes
and one for the space before it. Pieces are parts of words, so distinct words are never much less than distinct pieces.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LEVELS = 256
"""Texts are ranked by this many levels: the first n are what would be left of the sample at n of 256 of its size."""
FIRST_SLOTS = 1 << 14
BASIS, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""FNV-1a, 64 bits (Fowler, Noll and Vo)."""
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: its product has good high bits, which say where a hash is looked for."""


class DistinctWords:
    """Finds how much of a sample has at most `most` bytes of distinct words. Two words of one 64-bit hash count as one.

    levels: texts of levels below it fit; LEVELS at first, and at least 1. Memory: some 20 bytes for each distinct word that fits.
    """

    def __init__(self, most: int, longest: int) -> None:
        self.most = most
        self.levels = LEVELS
        self._longest = longest
        self._taken = np.zeros(LEVELS, np.int64)
        self._words = 0
        self._resize(FIRST_SLOTS)

    @property
    def size(self) -> int:
        """Of distinct words in the texts that fit."""
        return int(self._taken[: self.levels].sum())

    def add(self, text: bytes, level: int) -> None:
        """A text of the sample, or a part of one, in UTF-8; level from 0 to LEVELS - 1."""
        data = np.frombuffer(text, np.uint8)
        at = 0
        while at < len(data) and level < self.levels:
            at, self._words = _count(
                data, at, level, self._longest, self._hashes, self._level, self._size, self._taken, self._words
            )
            while self.levels > 1 and self.size > self.most:
                self.levels -= 1
            if self._words * 2 >= len(self._hashes):
                self._forget()

    def _forget(self) -> None:
        """Leaves out words of levels that do not fit, and doubles the table unless that made room."""
        stay = (self._size > 0) & (self._level < self.levels)
        kept = self._hashes[stay], self._level[stay], self._size[stay]
        slots = len(self._hashes)
        self._resize(slots * 2 if int(stay.sum()) * 4 >= slots else slots)
        _insert(*kept, self._hashes, self._level, self._size)
        self._words = int(stay.sum())

    def _resize(self, slots: int) -> None:
        self._hashes = np.zeros(slots, np.uint64)
        self._level = np.zeros(slots, np.uint8)
        self._size = np.zeros(slots, np.uint8)  # 0: the slot is free


@njit(cache=True, nogil=True)
def _slot(found, hashes, size):  # type: ignore[no-untyped-def]
    """Where a hash is, or would be."""
    mask = np.uint64(len(hashes) - 1)
    at = (found * SPREAD >> np.uint64(20)) & mask
    while size[at] and hashes[at] != found:
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True, nogil=True)
def _count(data, at, level, longest, hashes, levels, size, taken, words):  # type: ignore[no-untyped-def]
    """Counts words of `data` from `at` on, beside the `words` in the table: (where it ended, words in the table). It ends at the
    end of the text, or when the table is half full. `taken`: bytes of distinct words by the lowest level that they occur at."""
    while at < len(data) and 2 * words < len(hashes):
        if data[at] <= 0x20:
            at += 1
            continue
        found, start, characters = BASIS, at, 0
        while at < len(data) and data[at] > 0x20:
            if data[at] & 0xC0 != 0x80:
                if characters == longest:
                    break
                characters += 1
            found = (found ^ np.uint64(data[at])) * PRIME
            at += 1
        slot = _slot(found, hashes, size)
        if not size[slot]:
            hashes[slot], levels[slot], size[slot] = found, level, min(255, at - start + 1)
            taken[level] += size[slot]
            words += 1
        elif level < levels[slot]:
            taken[levels[slot]] -= size[slot]
            taken[level] += size[slot]
            levels[slot] = level
    return at, words


@njit(cache=True, nogil=True)
def _insert(found, found_levels, found_size, hashes, levels, size):  # type: ignore[no-untyped-def]
    for index in range(len(found)):
        slot = _slot(found[index], hashes, size)
        hashes[slot], levels[slot], size[slot] = found[index], found_levels[index], found_size[index]
