"""What Gopher's quality filter counts in a text (`stages.gopher_quality`)."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.reading import ALPHABETIC, DOT, PUNCTUATION, SCRIPT_SHIFT, SPACE, SYMBOL, ends_in_dots

ELLIPSIS = 0x2026

HASH = 0x23

BULLETS = (0x2022, 0x25CF, 0x2D, 0x2A)  # • ● - *

# Columns of quality().
(
    WORDS,
    WORD_POINTS,
    HASHES,
    ELLIPSES,
    LINES,
    BULLET_LINES,
    ELLIPSIS_LINES,
    ALPHABETIC_WORDS,
    STOP_WORDS,
    POINTS,
    SYMBOLS,
    OWN_SCRIPT,
) = range(12)


@njit(cache=True, nogil=True)
def quality(  # type: ignore[no-untyped-def]
    data, offsets, points, kinds, starts, words, word_starts, lines, line_starts,
    fold, expansions, spaced, language, own, listed, listed_starts, language_starts, out
):  # fmt: skip
    """What Gopher's quality rules count. `own[row]` has a bit for each script of the row's language; the
    function words of language k are listed[listed_starts[j]:listed_starts[j+1]], case-folded, for j from
    language_starts[k] to language_starts[k+1].
    """
    found = np.zeros(listed_starts.size, np.int64)
    for row in range(starts.size - 1):
        for line in range(line_starts[row], line_starts[row + 1]):
            begin, end = lines[line, 0], lines[line, 1]
            out[row, LINES] += 1
            for bullet in BULLETS:
                if points[begin] == bullet:
                    out[row, BULLET_LINES] += 1
            if points[end - 1] == ELLIPSIS or ends_in_dots(points, begin, end):
                out[row, ELLIPSIS_LINES] += 1
        if not spaced[row]:
            _count_characters(kinds[starts[row] : starts[row + 1]], own[row], out[row])
            continue
        _count_symbols(data[offsets[row] : offsets[row + 1]], points[starts[row] : starts[row + 1]], out[row])
        first = last = 0
        if language[row] >= 0:
            first, last = language_starts[language[row]], language_starts[language[row] + 1]
        longest, initials = _sought(listed, listed_starts, first, last, found, row + 1)
        length = alphabetic = stop_words = 0
        for word in range(word_starts[row], word_starts[row + 1]):
            begin, end = words[word, 0], words[word, 1]
            length += end - begin
            # Nearly all words begin with a letter.
            place = begin
            while place < end and not kinds[place] & ALPHABETIC:
                place += 1
            alphabetic += place < end
            while begin < end and kinds[begin] & PUNCTUATION:
                begin += 1
            if begin == end:
                continue
            initial = fold[points[begin]] if points[begin] < fold.size else points[begin]
            if initial < 0:
                initial = expansions[-initial - 1, 0]
            if not initials >> np.uint64(initial & 63) & np.uint64(1):
                continue
            while end > begin and kinds[end - 1] & PUNCTUATION:
                end -= 1
            if end - begin > longest:
                continue
            for candidate in range(first, last):
                if found[candidate] != row + 1 and _folds_to(
                    points, begin, end, fold, expansions, listed, listed_starts[candidate], listed_starts[candidate + 1]
                ):
                    found[candidate] = row + 1
                    stop_words += 1
                    longest, initials = _sought(listed, listed_starts, first, last, found, row + 1)
                    break
        out[row, WORDS] = word_starts[row + 1] - word_starts[row]
        out[row, WORD_POINTS] = length
        out[row, ALPHABETIC_WORDS] = alphabetic
        out[row, STOP_WORDS] = stop_words


@njit(cache=True, nogil=True)
def _sought(words, group_starts, first, last, found, stamp):  # type: ignore[no-untyped-def]
    """Of the function words not yet found: the length of the longest, and a bit for every letter that one begins with (modulo
    64)."""
    longest = 0
    initials = np.uint64(0)
    for candidate in range(first, last):
        if found[candidate] != stamp:
            longest = max(longest, group_starts[candidate + 1] - group_starts[candidate])
            initials |= np.uint64(1) << np.uint64(words[group_starts[candidate]] & 63)
    return longest, initials


@njit(cache=True, nogil=True)
def _count_symbols(data, points, counts):  # type: ignore[no-untyped-def]
    """`#`, and `...` without overlap or `…`, in a text given as UTF-8 and as code points."""
    hashes = ellipses = 0
    for index in range(data.size):
        hashes += data[index] == HASH
    if points.size != data.size:
        for index in range(points.size):
            ellipses += points[index] == ELLIPSIS
    triple = False
    size = max(data.size - 2, 0)
    one, two, three = data[:size], data[1 : size + 1], data[2 : size + 2]
    for index in range(size):
        triple |= (one[index] == DOT) & (two[index] == DOT) & (three[index] == DOT)
    # Most texts have no three dots, and runs are counted only where there are some.
    dots = 0
    for index in range(points.size if triple else 0):
        dots = dots + 1 if points[index] == DOT else 0
        if dots == 3:
            ellipses += 1
            dots = 0
    counts[HASHES] = hashes
    counts[ELLIPSES] = ellipses


@njit(cache=True, nogil=True)
def _count_characters(kinds, own, counts):  # type: ignore[no-untyped-def]
    characters = symbols = of_script = np.int64(0)
    for index in range(kinds.size):
        kind = np.int64(kinds[index])
        character = 1 - (kind & SPACE)
        characters += character
        symbols += (kind & SYMBOL) != 0
        of_script += own >> (kind >> SCRIPT_SHIFT) & 1 & character
    counts[POINTS] = characters
    counts[SYMBOLS] = symbols
    counts[OWN_SCRIPT] = of_script


@njit(cache=True, nogil=True)
def _folds_to(points, begin, end, fold, expansions, words, first, last):  # type: ignore[no-untyped-def]
    """Is points[begin:end], case-folded, words[first:last]?"""
    if begin == end or end - begin > last - first:
        return False
    at = first
    for position in range(begin, end):
        point = points[position]
        target = fold[point] if point < fold.size else point
        if target >= 0:
            if at == last or words[at] != target:
                return False
            at += 1
        else:
            for part in expansions[-target - 1]:
                if part != 0:
                    if at == last or words[at] != part:
                        return False
                    at += 1
    return at == last
