"""Compiled loops that read texts as they are compared with benchmarks, and look for n-grams in them.

`stages.ngrams` says what is compared and makes the tables; a plain twin stands in tests/stages/plain_ngrams.py. A hash only
proposes: `_same` compares the UTF-8 and the bounds of every unit before anything is a match.
"""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from stages.utf8 import put
from stages.xxh3 import read64

SPACE, DELETED = 0x20, 0xFF
"""In the table of ASCII: what ends a word, and what is left out of it. Neither is a character that a word has."""

CLASS, MAYBE, PREPARE = 0xFF, 0x100, 0x200
"""In the table of forms: the canonical combining class; a code point that composes with some others before it; one that makes
Python prepare the text before it is read here."""

POINT_BITS = 21
"""Of a code point, in a pair of two."""

SLACK = 8
"""Bytes that can be read behind a text."""

GROWTH = 4
"""What is compared has at most so many times the bytes of the text: 3 of 2 where a letter is lower-cased, 4 of 1 where UTF-8 is
damaged."""

WINDOW = 1 << 16
"""Characters that are looked at together: arrays of 8 bytes for each of a large text would be many times its size."""

UNKNOWN = -1

# Columns of hits.
ROW, BY_CHARACTER, PLACE, GRAM = range(4)

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio (Knuth, volume 3, 6.4), odd: a power of it never vanishes modulo 2^64."""


class Tables(NamedTuple):
    """By code point. ascii (uint8, 128): the byte in a word, or SPACE or DELETED. classes (uint8): 0, SPACE or DELETED. lower
    (int32). forms (uint16): bits as above. Above its end a table is 0, and `lower` the identity. pairs (int64), ascending: what
    composes, the first code point in the higher bits."""

    ascii: np.ndarray
    classes: np.ndarray
    lower: np.ndarray
    forms: np.ndarray
    pairs: np.ndarray


class Grams(NamedTuple):
    """Distinct n-grams of one kind of unit; number g is units[places[g]:places[g] + sizes[g]].

    plain (uint8), bounds (int64): unit u is plain[bounds[u]:bounds[u + 1]]. hashes (uint64): of every n-gram. slots (int32): a
    hash table of numbers, open addressing. lengths (int64): the sizes that occur, ascending, and powers (uint64): of MULTIPLIER,
    one each. bits (uint64): a Bloom filter of the first lengths[0] units of every n-gram.
    """

    plain: np.ndarray
    bounds: np.ndarray
    places: np.ndarray
    sizes: np.ndarray
    hashes: np.ndarray
    slots: np.ndarray
    bits: np.ndarray
    lengths: np.ndarray
    powers: np.ndarray


@njit(cache=True, nogil=True)
def scan(data, offsets, tables, words, characters, unread):  # type: ignore[no-untyped-def]
    """(row, by character, place, n-gram) of every n-gram that stands in a text, ascending: place is the first unit's number.

    Sets unread[row] where the text has to be prepared first, and looks for nothing there. Characters are looked at only where
    one of them is not ASCII.
    """
    longest = 0
    for row in range(offsets.size - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    plain = np.empty(GROWTH * longest + SLACK, np.uint8)
    by_character = characters.hashes.size > 0
    overlap = characters.lengths[-1] - 1 if by_character else 0
    window = min(longest, WINDOW + overlap) if by_character else 0
    # A word has a character and a space behind it, all but the last.
    most = max(longest // 2 + 1, window)
    bounds = np.empty(most + 1, np.int64)
    hashes = np.empty(most + 1, np.uint64)
    prefixes = np.empty(most + 1, np.uint64)
    hits = np.empty((16, 4), np.int64)
    found = 0
    for row in range(offsets.size - 1):
        count, beyond_ascii = _read(data[offsets[row] : offsets[row + 1]], tables, plain, bounds, hashes)
        if count == UNKNOWN:
            unread[row] = True
            continue
        size = bounds[count]
        found, hits = _find(words, plain, bounds, hashes, prefixes, count, count, 0, row, 0, found, hits)
        if by_character and beyond_ascii:
            begin = before = np.int64(0)
            while begin < size:
                count = _characters(plain, begin, size, window, bounds, hashes)
                end = bounds[count]
                # What begins in the overlap may be longer than what is left: it is looked for in the next window.
                places = count if end == size else count - overlap
                found, hits = _find(characters, plain, bounds, hashes, prefixes, count, places, before, row, 1, found, hits)
                begin = bounds[places]
                before += places
    return hits[:found]


@njit(cache=True, nogil=True)
def unit_counts(data, offsets, tables, by_character, counts):  # type: ignore[no-untyped-def]
    """Counts the units of every text, which must be prepared; returns how many bytes all of them have."""
    plain, bounds, hashes = _room(offsets)
    size = np.int64(0)
    for row in range(offsets.size - 1):
        counts[row] = _units(data[offsets[row] : offsets[row + 1]], tables, by_character, plain, bounds, hashes)
        size += bounds[counts[row]]
    return size


@njit(cache=True, nogil=True)
def units(data, offsets, tables, by_character, plain, bounds, hashes):  # type: ignore[no-untyped-def]
    """The units of all texts, which must be prepared, one after the other, as in `Grams`."""
    own_plain, own_bounds, own_hashes = _room(offsets)
    bounds[0] = 0
    at = total = np.int64(0)
    for row in range(offsets.size - 1):
        count = _units(data[offsets[row] : offsets[row + 1]], tables, by_character, own_plain, own_bounds, own_hashes)
        size = own_bounds[count]
        plain[at : at + size] = own_plain[:size]
        for unit in range(count):
            hashes[total] = own_hashes[unit]
            total += 1
            bounds[total] = at + own_bounds[unit + 1]
        at += size


@njit(cache=True, nogil=True)
def gram_hashes(unit_hashes, places, sizes, mixed):  # type: ignore[no-untyped-def]
    for index in range(places.size):
        value = np.uint64(0)
        for unit in range(places[index], places[index] + sizes[index]):
            value = value * MULTIPLIER + unit_hashes[unit]
        mixed[index] = _finish(value)


@njit(cache=True, nogil=True)
def number(plain, bounds, places, sizes, mixed, slots, numbers, firsts):  # type: ignore[no-untyped-def]
    """Gives equal n-grams one number, by first occurrence, which firsts[number] tells; returns how many there are. `slots` must
    be UNKNOWN, a power of two, and more than there are n-grams."""
    mask = np.uint64(slots.size - 1)
    known = 0
    for index in range(places.size):
        slot = mixed[index] & mask
        while True:
            other = slots[slot]
            if other == UNKNOWN:
                slots[slot] = numbers[index] = known
                firsts[known] = index
                known += 1
                break
            first = firsts[other]
            if (
                mixed[first] == mixed[index]
                and sizes[first] == sizes[index]
                and _same(plain, bounds, places[first], plain, bounds, places[index], sizes[index])
            ):
                numbers[index] = other
                break
            slot = (slot + np.uint64(1)) & mask
    return known


@njit(cache=True, nogil=True)
def enter(hashes, leads, slots, bits):  # type: ignore[no-untyped-def]
    """Fills a hash table with the numbers of distinct n-grams, and a Bloom filter with the hashes of their first units."""
    mask = np.uint64(slots.size - 1)
    for gram in range(hashes.size):
        slot = hashes[gram] & mask
        while slots[slot] != UNKNOWN:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = gram
        bits[_word_of(leads[gram], bits)] |= _bits_of(leads[gram])


@njit(cache=True, nogil=True)
def _room(offsets):  # type: ignore[no-untyped-def]
    """For the plain text, the bounds and the hashes of the units of any one of the texts."""
    longest = 0
    for row in range(offsets.size - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    plain = np.empty(GROWTH * longest + SLACK, np.uint8)
    return plain, np.empty(longest + 2, np.int64), np.empty(longest + 2, np.uint64)


@njit(cache=True, nogil=True)
def _units(text, tables, by_character, plain, bounds, hashes):  # type: ignore[no-untyped-def]
    count, _ = _read(text, tables, plain, bounds, hashes)
    if by_character:
        return _characters(plain, 0, bounds[count], text.size, bounds, hashes)
    return count


@njit(cache=True, nogil=True)
def _read(text, tables, plain, bounds, hashes):  # type: ignore[no-untyped-def]
    """Writes the words of a text; returns how many, or UNKNOWN if it has to be prepared first, and whether a character that is
    not deleted is not ASCII."""
    at = begin = count = 0
    before = np.uint16(0)
    previous = np.int32(0)
    beyond_ascii = False
    bounds[0] = 0
    ascii_table = tables.ascii
    for index in range(text.size):
        byte = text[index]
        if byte < 0x80:
            kind = ascii_table[byte]
            before = np.uint16(0)
            if kind != SPACE:
                plain[at] = kind
                at += kind != DELETED
                continue
        else:
            if byte & 0xC0 == 0x80:
                continue
            point = _point(text, index)
            form = tables.forms[point] if point < tables.forms.size else np.uint16(0)
            if form != 0:
                if form & PREPARE or 0 != form & CLASS < before:
                    return UNKNOWN, False
                if form & MAYBE:
                    if index > 0 and text[index - 1] < 0x80:
                        previous = np.int32(text[index - 1])
                    if before != 0 or _composes(previous, point, tables.pairs):
                        return UNKNOWN, False
            before = form & np.uint16(CLASS)
            previous = point
            if point < tables.lower.size:
                point = tables.lower[point]
            kind = tables.classes[point] if point < tables.classes.size else np.uint8(0)
            if kind == DELETED:
                continue
            beyond_ascii |= point >= 0x80
            if kind != SPACE:
                at = put(point, plain, at)
                continue
        if at > begin:
            hashes[count] = _unit_hash(plain, begin, at)
            count += 1
            bounds[count] = begin = at
    if at > begin:
        hashes[count] = _unit_hash(plain, begin, at)
        count += 1
        bounds[count] = at
    return count, beyond_ascii


@njit(cache=True, nogil=True)
def _composes(first, second, pairs):  # type: ignore[no-untyped-def]
    wanted = np.int64(first) << POINT_BITS | second
    place = np.searchsorted(pairs, wanted)
    return place < pairs.size and pairs[place] == wanted


@njit(cache=True, nogil=True)
def _characters(plain, begin, end, most, bounds, hashes):  # type: ignore[no-untyped-def]
    """The units of plain[begin:end] that are its characters, at most so many; returns how many."""
    text = plain[begin:end]
    count = 0
    stop = end
    for index in range(text.size):
        if text[index] & 0xC0 != 0x80:
            if count == most:
                stop = begin + index
                break
            bounds[count] = begin + index
            count += 1
    bounds[count] = stop
    for unit in range(count):
        hashes[unit] = _unit_hash(plain, bounds[unit], bounds[unit + 1])
    return count


@njit(cache=True, nogil=True)
def _find(  # type: ignore[no-untyped-def]
    grams, plain, bounds, hashes, prefixes, count, places, before, row, kind, found, hits
):
    """Hits that begin at the first `places` of `count` units; `before` is how many units of the text stand before them.

    prefixes[u] is the hash of the first u units, h = h·m + unit; that of n units from u on is the difference of prefixes[u + n]
    and prefixes[u]·m^n. Nearly all places are dismissed by the filter of the shortest length.
    """
    if grams.hashes.size == 0 or count < grams.lengths[0]:
        return found, hits
    value = np.uint64(0)
    prefixes[0] = value
    for unit in range(count):
        value = value * MULTIPLIER + hashes[unit]
        prefixes[unit + 1] = value
    shortest, power = grams.lengths[0], grams.powers[0]
    bits, slots = grams.bits, grams.slots
    mask = np.uint64(slots.size - 1)
    starts, ends = prefixes[: count + 1 - shortest], prefixes[shortest : count + 1]
    for place in range(min(places, count + 1 - shortest)):
        lead = _finish(ends[place] - starts[place] * power)
        wanted = _bits_of(lead)
        if bits[_word_of(lead, bits)] & wanted != wanted:
            continue
        for step in range(grams.lengths.size):
            length = grams.lengths[step]
            if place + length > count:
                break
            mixed = _finish(prefixes[place + length] - prefixes[place] * grams.powers[step])
            slot = mixed & mask
            while slots[slot] != UNKNOWN:
                gram = slots[slot]
                if (
                    grams.hashes[gram] == mixed
                    and grams.sizes[gram] == length
                    and _same(grams.plain, grams.bounds, grams.places[gram], plain, bounds, place, length)
                ):
                    if found == len(hits):
                        larger = np.empty((2 * found, 4), np.int64)
                        larger[:found] = hits
                        hits = larger
                    hits[found, ROW], hits[found, BY_CHARACTER] = row, kind
                    hits[found, PLACE], hits[found, GRAM] = before + place, gram
                    found += 1
                    break
                slot = (slot + np.uint64(1)) & mask
    return found, hits


@njit(cache=True, nogil=True)
def _same(plain, bounds, place, other_plain, other_bounds, other_place, length):  # type: ignore[no-untyped-def]
    """Are `length` units from two places the same, one by one?"""
    begin, other = bounds[place], other_bounds[other_place]
    for unit in range(1, length + 1):
        if bounds[place + unit] - begin != other_bounds[other_place + unit] - other:
            return False
    for index in range(bounds[place + length] - begin):
        if plain[begin + index] != other_plain[other + index]:
            return False
    return True


@njit(cache=True, nogil=True)
def _unit_hash(plain, first, last):  # type: ignore[no-untyped-def]
    """Of plain[first:last], which must have SLACK behind it; one to one below eight bytes."""
    size = last - first
    if size < 8:
        bits = np.uint64(8 * size)
        return _finish((read64(plain, first) & ((np.uint64(1) << bits) - np.uint64(1))) | np.uint64(size) << np.uint64(56))
    mixed = np.uint64(size)
    for place in range(first, last - 8, 8):
        mixed = _finish(mixed + read64(plain, place))
    return _finish(mixed + read64(plain, last - 8))


@njit(cache=True, nogil=True)
def _finish(mixed):  # type: ignore[no-untyped-def]
    """Brings the high bits, which are mixed best, down to where tables look."""
    mixed = (mixed ^ (mixed >> np.uint64(32))) * MULTIPLIER
    return mixed ^ (mixed >> np.uint64(29))


@njit(cache=True, nogil=True)
def _word_of(mixed, bits):  # type: ignore[no-untyped-def]
    return mixed & np.uint64(bits.size - 1)


@njit(cache=True, nogil=True)
def _bits_of(mixed):  # type: ignore[no-untyped-def]
    """Two of the 64 bits of a word, so that the filter is read at one place."""
    one, other = mixed >> np.uint64(58), mixed >> np.uint64(52) & np.uint64(63)
    return np.uint64(1) << one | np.uint64(1) << other


@njit(cache=True, nogil=True)
def _point(text, index):  # type: ignore[no-untyped-def]
    """The code point that begins at text[index], which is not ASCII; U+FFFD where it is not whole."""
    byte, left = np.int32(text[index]), text.size - index
    if byte < 0xE0 and left > 1:
        return (byte & 0x1F) << 6 | (np.int32(text[index + 1]) & 0x3F)
    if 0xE0 <= byte < 0xF0 and left > 2:
        return (byte & 0x0F) << 12 | (np.int32(text[index + 1]) & 0x3F) << 6 | (np.int32(text[index + 2]) & 0x3F)
    if byte >= 0xF0 and left > 3:
        return (
            (byte & 0x07) << 18
            | (np.int32(text[index + 1]) & 0x3F) << 12
            | (np.int32(text[index + 2]) & 0x3F) << 6
            | (np.int32(text[index + 3]) & 0x3F)
        )
    return np.int32(0xFFFD)
