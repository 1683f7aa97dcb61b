"""Compiled loops over the tokens of many texts, for stages.substring_dedup."""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.reading import units_of
from stages.xxh3 import LONGEST, xxh3_64


def units(
    kinds: np.ndarray, starts: np.ndarray, words: np.ndarray, word_starts: np.ndarray, spaced: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(int64 (m, 2), int64 (n + 1,)): where each word begins and ends, or each unit of a row that is not spaced, and where the
    rows start."""
    if spaced.all():
        return words[: word_starts[-1]].astype(np.int64), word_starts.copy()
    sizes = np.where(spaced, np.diff(word_starts), np.diff(starts))
    room = np.empty((int(sizes.sum()), 2), np.int64)
    row_starts = np.empty(starts.size, np.int64)
    return room[: _units(kinds, starts, words, word_starts, spaced, room, row_starts)], row_starts


@njit(cache=True, nogil=True)
def _units(kinds, starts, words, word_starts, spaced, room, row_starts):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(starts.size - 1):
        row_starts[row] = at
        if spaced[row]:
            for word in range(word_starts[row], word_starts[row + 1]):
                room[at, 0], room[at, 1] = words[word, 0], words[word, 1]
                at += 1
        else:
            at += units_of(kinds, starts[row], starts[row + 1], room[at:])
    row_starts[starts.size - 1] = at
    return at


@njit(cache=True, nogil=True)
def hashes(data, offsets, places, starts):  # type: ignore[no-untyped-def]
    """xxh3_64 of every token's UTF-8; places are bytes within each row. One longer than LONGEST bytes is hashed in pieces."""
    found = np.empty(places.shape[0], np.uint64)
    for row in range(starts.size - 1):
        for token in range(starts[row], starts[row + 1]):
            begin, end = offsets[row] + places[token, 0], offsets[row] + places[token, 1]
            value = np.uint64(0)
            while end - begin > LONGEST:
                value = (value ^ xxh3_64(data, begin, begin + LONGEST)) * np.uint64(0x9E3779B97F4A7C15)
                begin += LONGEST
            found[token] = value ^ xxh3_64(data, begin, end)
    return found


@njit(cache=True, nogil=True)
def numbered(tokens, starts, numbers):  # type: ignore[no-untyped-def]
    """Gives equal tokens equal numbers from 0 in order of appearance, and writes those of document k to numbers[starts[k]:] with
    a gap of one behind each document; returns how many distinct ones there are."""
    capacity = 1 << 16
    keys, values = np.empty(capacity, np.uint64), np.full(capacity, -1, np.int64)
    known = at = 0
    for document in range(starts.size - 1):
        for place in range(starts[document], starts[document + 1] - 1):
            if 2 * known >= capacity:
                old_keys, old_values = keys, values
                capacity *= 4
                keys, values = np.empty(capacity, np.uint64), np.full(capacity, -1, np.int64)
                for slot in range(old_keys.size):
                    if old_values[slot] >= 0:
                        fresh = _slot(keys, values, old_keys[slot])
                        keys[fresh], values[fresh] = old_keys[slot], old_values[slot]
            slot = _slot(keys, values, tokens[at])
            if values[slot] < 0:
                keys[slot], values[slot] = tokens[at], known
                known += 1
            numbers[place] = values[slot]
            at += 1
    return known


@njit(cache=True, nogil=True)
def _slot(keys, values, token):  # type: ignore[no-untyped-def]
    mask = np.uint64(keys.size - 1)
    mixed = (token ^ (token >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    while values[slot] >= 0 and keys[slot] != token:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True, nogil=True)
def aligned(order, suffixes):  # type: ignore[no-untyped-def]
    """Of the suffixes of bytes those that begin a number of four bytes, as positions of numbers."""
    at = 0
    for index in range(order.size):
        if order[index] & 3 == 0:
            suffixes[at] = order[index] >> 2
            at += 1
    return suffixes


@njit(cache=True, nogil=True)
def repeats(numbers, suffixes, length):  # type: ignore[no-untyped-def]
    """True for every number that a window of `length` covers which stands earlier too, without overlap."""
    size = numbers.size
    covered = np.zeros(size, np.bool_)
    start = 0
    first = size
    for index in range(suffixes.size + 1):
        ends = index == suffixes.size
        if not ends and index > start:
            ends = not _agree(numbers, suffixes[index - 1], suffixes[index], length)
        if ends:
            # suffixes[start:index] begin with the same window.
            if index - start > 1:
                for entry in range(start, index):
                    place = suffixes[entry]
                    if place >= first + length:
                        covered[place] = True
            start, first = index, size
        if index < suffixes.size:
            first = min(first, suffixes[index])
    # So far the windows' first tokens are marked; each covers `length`.
    until = 0
    for place in range(size):
        if covered[place]:
            until = place + length
        covered[place] = place < until
    return covered


@njit(cache=True, nogil=True)
def _agree(numbers, left, right, length):  # type: ignore[no-untyped-def]
    """Do the windows at both places hold the same numbers?"""
    if max(left, right) + length > numbers.size:
        return False
    for step in range(length):
        if numbers[left + step] != numbers[right + step]:
            return False
    return True
