"""Compiled loops that read a batch once for all filters of a block (`stages.reading`): its code points with their classes, its
words and its lines; and what the loops of several filters ask of them.

All loops over text stand in this package and work on the UTF-8 buffers of a batch, at tens of megabytes a second. A plain twin of
each filter stands in tests/stages/plain.py; both must agree on every text.

The innermost loops run from 0 over views, or over unsigned places: an index that might be negative is tested each time, which
also keeps the compiler from using vector instructions.
"""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import numpy as np
from numba import njit

# Bits of code_points.classes(). The script is in bits 8 to 10, from 1; 0 is none.
SPACE, ALPHABETIC, ALPHANUMERIC, PUNCTUATION, SYMBOL, TERMINAL, DIGIT = 1, 2, 4, 8, 16, 32, 64

SCRIPT_SHIFT = 8

BLOCK = 128
"""Bytes that are looked at together, where one loop without branches over all is faster than one that may stop."""

LOWER = 0x20
"""The bit that makes a lower-case letter of an ASCII capital."""

REPLACEMENT = 0xFFFD

NEWLINE = 0x0A

DOT = 0x2E


@njit(cache=True, nogil=True)
def decode(data, offsets, classes, points, kinds, starts):  # type: ignore[no-untyped-def]
    """Row k's code points are points[starts[k]:starts[k + 1]], and their classes stand in `kinds` alike. A byte that starts no
    whole character is U+FFFD."""
    at = 0
    for row in range(offsets.size - 1):
        starts[row] = at
        index, stop = offsets[row], offsets[row + 1]
        while index < stop:
            block = data[index : min(index + BLOCK, stop)]
            if _is_ascii(block):
                into, into_kinds = points[at : at + block.size], kinds[at : at + block.size]
                for step in range(block.size):
                    into[step] = block[step]
                    into_kinds[step] = classes[block[step]]
                at += block.size
                index += block.size
            else:
                index, at = _decode(data, index, index + block.size, stop, classes, points, kinds, at)
    starts[offsets.size - 1] = at


@njit(cache=True, nogil=True)
def cut(  # type: ignore[no-untyped-def]
    points, kinds, starts, words, word_starts, lines, line_starts, newlines, newline_starts
):
    """Places in `points`: of every word where it begins and ends, row k's being those from word_starts[k] to
    word_starts[k + 1]; of lines, stripped and without empty ones, the same; and newlines.

    The list of words is written without branches, for words are short and of any length; the entry behind the last one is
    written before it is known whether it counts.
    """
    flat = words.reshape(words.size)
    bounds = np.uint64(0)
    line = breaks = 0
    for row in range(starts.size - 1):
        start, stop = starts[row], starts[row + 1]
        word_starts[row], line_starts[row], newline_starts[row] = bounds >> np.uint64(1), line, breaks
        before = np.uint64(SPACE)
        row_points, row_kinds = points[start:stop], kinds[start:stop]
        for index in range(stop - start):
            space = np.uint64(row_kinds[index]) & np.uint64(SPACE)
            flat[bounds] = start + index
            bounds += space ^ before
            before = space
            if row_points[index] == NEWLINE:
                newlines[breaks] = start + index
                breaks += 1
        if bounds & np.uint64(1):
            flat[bounds] = stop
            bounds += np.uint64(1)
        begin = start
        for entry in range(newline_starts[row], breaks + 1):
            end = newlines[entry] if entry < breaks else stop
            first, last = strip(kinds, begin, end)
            begin = end + 1
            if first < last:
                lines[line, 0], lines[line, 1] = first, last
                line += 1
    rows = starts.size - 1
    word_starts[rows], line_starts[rows], newline_starts[rows] = bounds >> np.uint64(1), line, breaks


@njit(cache=True, nogil=True)
def script_counts(kinds, starts, counts):  # type: ignore[no-untyped-def]
    """counts[row, script]: characters of each unspaced script; counts[row, 0]: other alphabetic ones."""
    for row in range(starts.size - 1):
        others = 0
        for index in range(starts[row], starts[row + 1]):
            kind = kinds[index]
            script = kind >> SCRIPT_SHIFT
            if script:
                counts[row, script] += 1
            else:
                others += kind & ALPHABETIC
        counts[row, 0] = others // ALPHABETIC


@njit(cache=True, nogil=True)
def _is_ascii(data):  # type: ignore[no-untyped-def]
    bits = np.uint8(0)
    for index in range(data.size):
        bits |= data[index]
    return bits < 0x80


@njit(cache=True, nogil=True)
def _decode(data, index, enough, stop, classes, points, kinds, at):  # type: ignore[no-untyped-def]
    """Decodes characters until one begins at `enough` or beyond; returns where that is in `data`, and in `points`."""
    while index < enough:
        byte = np.int32(data[index])
        if byte < 0x80:
            points[at] = byte
            kinds[at] = classes[byte]
            index += 1
            at += 1
            continue
        if 0xC0 <= byte < 0xE0 and index + 1 < stop:
            points[at] = (byte & 0x1F) << 6 | (np.int32(data[index + 1]) & 0x3F)
            index += 2
        elif 0xE0 <= byte < 0xF0 and index + 2 < stop:
            points[at] = (byte & 0x0F) << 12 | (np.int32(data[index + 1]) & 0x3F) << 6 | (np.int32(data[index + 2]) & 0x3F)
            index += 3
        elif byte >= 0xF0 and index + 3 < stop:
            points[at] = (
                (byte & 0x07) << 18
                | (np.int32(data[index + 1]) & 0x3F) << 12
                | (np.int32(data[index + 2]) & 0x3F) << 6
                | (np.int32(data[index + 3]) & 0x3F)
            )
            index += 4
        else:
            points[at] = REPLACEMENT
            index += 1
        kinds[at] = _kind(classes, points[at])
        at += 1
    return index, at


@njit(cache=True, nogil=True)
def most_points(starts):  # type: ignore[no-untyped-def]
    longest = 0
    for row in range(starts.size - 1):
        longest = max(longest, starts[row + 1] - starts[row])
    return longest


@njit(cache=True, nogil=True)
def units_of(kinds, start, stop, units):  # type: ignore[no-untyped-def]
    """Where each unit of an unspaced text begins and ends; how many there are."""
    count = 0
    index = start
    while index < stop:
        if kinds[index] & SPACE:
            index += 1
            continue
        units[count, 0] = index
        inside = _joins(kinds[index])
        index += 1
        while inside and index < stop and _joins(kinds[index]):
            index += 1
        units[count, 1] = index
        count += 1
    return count


@njit(cache=True, nogil=True)
def _kind(classes, point):  # type: ignore[no-untyped-def]
    return np.int32(classes[point]) if point < classes.size else np.int32(0)


@njit(cache=True, nogil=True)
def strip(kinds, begin, end):  # type: ignore[no-untyped-def]
    while begin < end and kinds[begin] & SPACE:
        begin += 1
    while end > begin and kinds[end - 1] & SPACE:
        end -= 1
    return begin, end


@njit(cache=True, nogil=True)
def ends_in_dots(points, begin, end):  # type: ignore[no-untyped-def]
    return end - begin >= 3 and points[end - 1] == DOT and points[end - 2] == DOT and points[end - 3] == DOT


@njit(cache=True, nogil=True)
def is_mark(point, kind, marks, starts, language):  # type: ignore[no-untyped-def]
    """Is this one of Unicode's sentence terminals, or listed for the language?"""
    return kind & TERMINAL != 0 or listed(point, marks, starts, language)


@njit(cache=True, nogil=True)
def listed(point, marks, starts, language):  # type: ignore[no-untyped-def]
    """Is this in the language's group of marks? The last group is of rows without a language."""
    group = language if language >= 0 else starts.size - 2
    for index in range(starts[group], starts[group + 1]):
        if marks[index] == point:
            return True
    return False


@njit(cache=True, nogil=True)
def _joins(kind):  # type: ignore[no-untyped-def]
    """Is this the class of a letter or digit of a script that writes spaces?"""
    return kind & ALPHANUMERIC != 0 and kind >> SCRIPT_SHIFT == 0
