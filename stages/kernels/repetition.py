"""Repeated lines, paragraphs and n-grams of words (`stages.gopher_repetition`, `stages.fineweb`)."""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.reading import LOWER, NEWLINE, most_points, units_of
from stages.utf8 import put
from stages.xxh3 import read64

# Kinds of pieces and columns of repeated_pieces().
LINE, PARAGRAPH = 0, 1

PIECES, PIECE_POINTS, REPEATS, REPEAT_POINTS = range(4)


@njit(cache=True, nogil=True)
def repeated_pieces(points, starts, lines, line_starts, out):  # type: ignore[no-untyped-def]
    """out[0, row]: lines; out[1, row]: paragraphs, which are pieces between runs of two or more newlines, stripped, empty ones
    left out; how many stood before in the same document, and the code points of all and of those.

    A paragraph runs from the first of its lines to the last. Its hash is made of theirs, which equal paragraphs share; whether
    two are equal is decided on their code points.
    """
    capacity = 2
    for row in range(starts.size - 1):
        capacity = max(capacity, _capacity(line_starts[row + 1] - line_starts[row]))
    hashes = np.empty(capacity, np.uint64)
    begins = np.empty(capacity, np.int64)
    ends = np.empty(capacity, np.int64)
    stamps = np.zeros(capacity, np.int64)
    line_hashes = np.empty(capacity, np.uint64)
    for row in range(starts.size - 1):
        first, last = line_starts[row], line_starts[row + 1]
        mask = np.uint64(_capacity(last - first) - 1)
        for line in range(first, last):
            begin, end = lines[line, 0], lines[line, 1]
            mixed = _hash(points[begin:end])
            line_hashes[line - first] = mixed
            out[0, row, PIECES] += 1
            out[0, row, PIECE_POINTS] += end - begin
            if _stood_before(points, begin, end, mixed, hashes, begins, ends, stamps, 2 * row + 1, mask):
                out[0, row, REPEATS] += 1
                out[0, row, REPEAT_POINTS] += end - begin
        line = first
        while line < last:
            begin = lines[line, 0]
            mixed = line_hashes[line - first]
            line += 1
            while line < last and not _blank_line(points, lines[line - 1, 1], lines[line, 0]):
                mixed = _finish(mixed) + line_hashes[line - first]
                line += 1
            end = lines[line - 1, 1]
            out[1, row, PIECES] += 1
            out[1, row, PIECE_POINTS] += end - begin
            if _stood_before(points, begin, end, mixed, hashes, begins, ends, stamps, 2 * row + 2, mask):
                out[1, row, REPEATS] += 1
                out[1, row, REPEAT_POINTS] += end - begin


@njit(cache=True, nogil=True)
def repeated_grams(  # type: ignore[no-untyped-def]
    data, offsets, points, kinds, starts, words, word_starts, fold, expansions, spaced, factor, tops, duplicates, out
):
    """out[row, 0]: code points of all units. out[row, 1+k]: those of the most frequent n-gram, all its
    occurrences, for n = tops[k]·factor[row]. Then those covered by n-grams that occur at least twice, for n
    = duplicates[k]·factor[row]. Units are words in spaced rows.

    A repeated n-gram consists of two overlapping repeated (n-1)-grams and is known by their two numbers, so
    every level looks only at what was repeated on the one before, and no two different n-grams are ever
    taken for one.

    Units are compared as folded UTF-8. One of less than 8 bytes is a number with its length in the highest byte, which
    _finish() maps one to one; so only longer ones are compared byte by byte.
    """
    most = 0
    for row in range(starts.size - 1):
        # A unit has a code point at least.
        most = max(most, word_starts[row + 1] - word_starts[row] if spaced[row] else starts[row + 1] - starts[row])
    own_units = np.empty((0 if spaced.all() else most, 2), np.int64)
    keys, numbers = np.empty(_capacity(most), np.uint64), np.empty(_capacity(most), np.int32)
    before, folded_at, first_of, gram, places, count, characters = _lists(most)
    # Case folding makes at most three bytes of one (`code_points.case_folding`).
    folded = np.empty(3 * most_points(offsets) + 8, np.uint8)
    for row in range(starts.size - 1):
        ascii_only = starts[row + 1] - starts[row] == offsets[row + 1] - offsets[row]
        if ascii_only:
            _fold_ascii(data[offsets[row] : offsets[row + 1]], folded)
        if spaced[row]:
            units = word_starts[row + 1] - word_starts[row]
        else:
            units = units_of(kinds, starts[row], starts[row + 1], own_units)
        mask = _clear(numbers, units)
        known = 0
        folded_size = 0
        before[0] = 0
        for unit in range(units):
            if spaced[row]:
                begin, end = words[word_starts[row] + unit, 0], words[word_starts[row] + unit, 1]
            else:
                begin, end = own_units[unit, 0], own_units[unit, 1]
            before[unit + 1] = before[unit] + end - begin
            if ascii_only:
                first, last = begin - starts[row], end - starts[row]
            else:
                first = folded_size
                last = folded_size = _fold(points, begin, end, fold, expansions, folded, folded_size)
            folded_at[unit, 0], folded_at[unit, 1] = first, last
            mixed = _unit_hash(folded, first, last)
            slot = mixed & mask
            while True:
                number = numbers[slot]
                if number < 0:
                    numbers[slot] = known
                    keys[slot] = mixed
                    first_of[known] = unit
                    gram[unit] = known
                    count[known] = 1
                    known += 1
                    break
                if keys[slot] == mixed:
                    other, other_last = folded_at[first_of[number], 0], folded_at[first_of[number], 1]
                    short = last - first < 8 and other_last - other < 8
                    if short or _same(folded, first, last, other, other_last):
                        gram[unit] = number
                        count[number] += 1
                        break
                slot = (slot + np.uint64(1)) & mask
        total = before[units]
        out[row, 0] = total
        repeated = 0
        for unit in range(units):
            places[repeated] = unit
            repeated += count[gram[unit]] > 1
        length = factor[row]
        for n in range(2, max(tops[-1], duplicates[-1]) * length + 1):
            if repeated < 2:
                break
            mask = _clear(numbers, repeated)
            known = 0
            kept = 0
            for entry in range(repeated - 1):
                place = places[entry]
                if places[entry + 1] != place + 1:
                    continue
                key = (np.uint64(gram[place]) << np.uint64(32)) | np.uint64(gram[place + 1])
                slot = _finish(key) & mask
                while numbers[slot] >= 0 and keys[slot] != key:
                    slot = (slot + np.uint64(1)) & mask
                number = numbers[slot]
                if number < 0:
                    number = known
                    numbers[slot] = known
                    keys[slot] = key
                    count[known] = 0
                    characters[known] = 0
                    known += 1
                count[number] += 1
                characters[number] += before[place + n] - before[place]
                # Number of place + 1 is read before it is replaced: entries ascend.
                gram[place] = number
                places[kept] = place
                kept += 1
            best_count, best = 1, 0
            repeated = 0
            covered, until = 0, 0
            for entry in range(kept):
                place = places[entry]
                number = gram[place]
                if count[number] < 2:
                    continue
                places[repeated] = place
                repeated += 1
                if count[number] > best_count or (count[number] == best_count and characters[number] > best):
                    best_count, best = count[number], characters[number]
                covered += before[place + n] - before[max(place, until)]
                until = place + n
            if n % length == 0:
                for column in range(tops.size):
                    if n == tops[column] * length:
                        out[row, 1 + column] = min(best, total)
                for column in range(duplicates.size):
                    if n == duplicates[column] * length:
                        out[row, 1 + tops.size + column] = covered


@njit(cache=True, nogil=True)
def _blank_line(points, start, stop):  # type: ignore[no-untyped-def]
    """Do two newlines stand next to each other?"""
    for index in range(start + 1, stop):
        if points[index] == NEWLINE and points[index - 1] == NEWLINE:
            return True
    return False


@njit(cache=True, nogil=True)
def _stood_before(points, begin, end, mixed, hashes, begins, ends, stamps, stamp, mask):  # type: ignore[no-untyped-def]
    """Is points[begin:end] in the table, under the hash `mixed`? If not it is put there. Entries of other stamps are free."""
    slot = mixed & mask
    while stamps[slot] == stamp:
        if hashes[slot] == mixed and _same(points, begin, end, begins[slot], ends[slot]):
            return True
        slot = (slot + np.uint64(1)) & mask
    stamps[slot], hashes[slot], begins[slot], ends[slot] = stamp, mixed, begin, end
    return False


@njit(cache=True, nogil=True)
def _clear(numbers, entries):  # type: ignore[no-untyped-def]
    """Empties the part of a table that has room for so many entries; returns its mask. An entry below 0 is free."""
    capacity = _capacity(entries)
    part = numbers[:capacity]
    for slot in range(capacity):
        part[slot] = -1
    return np.uint64(capacity - 1)


@njit(cache=True, nogil=True)
def _fold_ascii(data, folded):  # type: ignore[no-untyped-def]
    for index in range(data.size):
        folded[index] = _fold_letter(data[index])


@njit(cache=True, nogil=True)
def _fold_letter(point):  # type: ignore[no-untyped-def]
    """Of ASCII."""
    return point | (LOWER if 0x41 <= point <= 0x5A else 0)


@njit(cache=True, nogil=True)
def _fold(points, begin, end, fold, expansions, folded, at):  # type: ignore[no-untyped-def]
    """Writes points[begin:end], case-folded, as UTF-8 from folded[at], returns where it ends. A view would cost more than most
    words do."""
    for index in range(begin, end):
        point = points[np.uint64(index)]
        if point < 0x80:
            folded[np.uint64(at)] = _fold_letter(point)
            at += 1
            continue
        target = fold[point] if point < fold.size else point
        if target >= 0:
            at = put(target, folded, at)
        else:
            for part in expansions[-target - 1]:
                if part != 0:
                    at = put(part, folded, at)
    return at


@njit(cache=True, nogil=True)
def _unit_hash(folded, first, last):  # type: ignore[no-untyped-def]
    """Of folded[first:last]. There must be eight readable bytes behind it."""
    size = last - first
    if size < 8:
        bits = np.uint64(8 * size)
        return _finish((read64(folded, first) & ((np.uint64(1) << bits) - np.uint64(1))) | np.uint64(size) << np.uint64(56))
    mixed = np.uint64(size)
    for place in range(first, last - 8, 8):
        mixed = _mix(mixed, read64(folded, place))
    return _finish(_mix(mixed, read64(folded, last - 8)))


@njit(cache=True, nogil=True)
def _lists(most):  # type: ignore[no-untyped-def]
    """Of every unit: code points before it, where it begins and ends in the folded text, the first unit of each number,
    the number of the n-gram that starts at it, where repeated n-grams start, ascending; and of every number its
    occurrences and their code points."""
    return (
        np.empty(most + 1, np.int64),
        np.empty((most, 2), np.int64),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most + 1, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int64),
    )


@njit(cache=True, nogil=True)
def _capacity(entries):  # type: ignore[no-untyped-def]
    """A power of two of which `entries` fill at most half."""
    capacity = 2
    while capacity < 2 * entries:
        capacity *= 2
    return capacity


@njit(cache=True, nogil=True)
def _hash(points):  # type: ignore[no-untyped-def]
    """Four lanes, since each multiplication waits for the one before."""
    first = second = third = fourth = np.uint64(0)
    for index in range(points.size >> 2):
        first = _mix(first, points[4 * index])
        second = _mix(second, points[4 * index + 1])
        third = _mix(third, points[4 * index + 2])
        fourth = _mix(fourth, points[4 * index + 3])
    for index in range(points.size & ~3, points.size):
        first = _mix(first, points[index])
    return _finish(_finish(_finish(_finish(first) + second) + third) + fourth)


@njit(cache=True, nogil=True)
def _mix(mixed, point):  # type: ignore[no-untyped-def]
    """Multiplies by 2^64 divided by the golden ratio (Knuth, volume 3, 6.4)."""
    return (mixed + np.uint64(point) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _finish(mixed):  # type: ignore[no-untyped-def]
    """Brings the high bits, which are mixed best, down to where the table looks."""
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@njit(cache=True, nogil=True)
def _same(points, begin, end, other_begin, other_end):  # type: ignore[no-untyped-def]
    if end - begin != other_end - other_begin:
        return False
    for index in range(end - begin):
        if points[begin + index] != points[other_begin + index]:
            return False
    return True
