"""Compiled loops over the UTF-8 buffers of a batch: what the filters count, at tens of megabytes a second.

`decode` and `cut` read a batch once for all filters of a block (`stages.reading`): its code points with their
classes, its words and its lines. The others count in what those found. A plain twin of each filter stands in
tests/stages/plain.py; both must agree on every text.

The innermost loops run from 0 over views, or over unsigned places: an index that might be negative is tested each time, which
also keeps the compiler from using vector instructions.
"""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import numpy as np
from numba import njit

from stages.utf8 import put
from stages.xxh3 import read64

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
ELLIPSIS = 0x2026
HASH = 0x23
KELVIN = 0x212A
BRACE = 0x7B
OPENING, CLOSING = 0x5B, 0x5D
LOWER_A, LOWER_Z = 0x61, 0x7A
EDIT = np.array(list(map(ord, "edit")), np.int32)
CITATION_NEEDED = np.array(list(map(ord, "citation needed")), np.int32)
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

# Columns of line_shapes().
SHAPED_LINES, SHORT_LINES, TERMINAL_LINES, SHAPED_POINTS = range(4)

# Kinds of pieces and columns of repeated_pieces().
LINE, PARAGRAPH = 0, 1
PIECES, PIECE_POINTS, REPEATS, REPEAT_POINTS = range(4)

# Columns of the lines that clean_lines() drops or edits, and of what it counts in the page.
(
    WHITESPACE,
    LONG_WORD,
    CITATION,
    NO_TERMINAL,
    TOO_FEW,
    JAVASCRIPT,
    POLICY,
    LOREM_IPSUM,
    CURLY_BRACE,
    SENTENCES,
    CLEAN_POINTS,
) = range(11)


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
            first, last = _strip(kinds, begin, end)
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
            if points[end - 1] == ELLIPSIS or _ends_in_dots(points, begin, end):
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
def line_shapes(  # type: ignore[no-untyped-def]
    points, kinds, starts, lines, line_starts, short, marks, mark_starts, language, out
):
    """What FineWeb's rules count. `short[row]` is the length up to which a line is short; a line also ends
    a sentence in one of the marks of its row's language, marks[mark_starts[k]:mark_starts[k+1]]; the last
    group is of rows without one.
    """
    for row in range(starts.size - 1):
        row_kinds = kinds[starts[row] : starts[row + 1]]
        characters = np.int64(0)
        for index in range(row_kinds.size):
            characters += 1 - (np.int64(row_kinds[index]) & SPACE)
        out[row, SHAPED_POINTS] = characters
        for line in range(line_starts[row], line_starts[row + 1]):
            begin, end = lines[line, 0], lines[line, 1]
            out[row, SHAPED_LINES] += 1
            if end - begin <= short[row]:
                out[row, SHORT_LINES] += 1
            if _is_mark(points[end - 1], kinds[end - 1], marks, mark_starts, language[row]):
                out[row, TERMINAL_LINES] += 1


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
    folded = np.empty(3 * _longest(offsets) + 8, np.uint8)
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
def clean_lines(  # type: ignore[no-untyped-def]
    data, offsets, points, kinds, starts, words, word_starts, lines, line_starts,
    newline_starts, spaced, language, ends_sentences, marks, mark_starts, terminals, terminal_starts,
    free, free_starts, after, after_starts, phrases, phrase_starts, limits, out, out_data, out_offsets
):  # fmt: skip
    """C4's rules on lines, in their order: writes what is left to out_data and counts in `out`.

    Of the row's language: `marks` may end a line and `terminals` a sentence beside Unicode's terminals,
    `free` end a sentence wherever they stand, `after` may follow the end of a sentence. phrases: `lorem
    ipsum`, `javascript`, then the policies, in lower case. limits: longest word, whether citations are cut,
    whether lines must end in a mark, least words, least characters, whether `javascript` drops, whether a
    policy does; -1 and 0 switch off.
    """
    longest_row = _longest(starts)
    cut_points, cut_kinds = np.empty(longest_row, np.int32), np.empty(longest_row, np.uint16)
    longest_word, citations, terminal, least_words, least_points, javascript, policies = limits
    written = 0
    out_offsets[0] = 0
    for row in range(starts.size - 1):
        row_start, row_stop = starts[row], starts[row + 1]
        if offsets[row] == offsets[row + 1]:
            out_offsets[row + 1] = written
            continue
        ascii_only = row_stop - row_start == offsets[row + 1] - offsets[row]
        brackets = citations and _holds(data[offsets[row] : offsets[row + 1]], OPENING)
        suspected = _may_hold_phrases(data[offsets[row] : offsets[row + 1]])
        kept = whole = 0
        word = word_starts[row]
        for entry in range(line_starts[row], line_starts[row + 1]):
            begin, end = lines[entry, 0], lines[entry, 1]
            whole += (begin == row_start or points[begin - 1] == NEWLINE) and (end == row_stop or points[end] == NEWLINE)
            found = 0
            if spaced[row]:
                first = word
                longest = characters = 0
                while word < word_starts[row + 1] and words[word, 0] < end:
                    longest = max(longest, words[word, 1] - words[word, 0])
                    word += 1
                count = word - first
            else:
                count, longest, characters = _word_lengths(kinds, begin, end, spaced[row])
            if longest_word >= 0 and longest > longest_word:
                out[row, LONG_WORD] += 1
                continue
            line, line_kinds = points, kinds
            if brackets:
                length, found = _without_citations(points, kinds, begin, end, cut_points, cut_kinds)
                if found:
                    out[row, CITATION] += found
                    line, line_kinds = cut_points, cut_kinds
                    begin, end = _strip(line_kinds, 0, length)
                    if begin == end:
                        continue
                    count, longest, characters = _word_lengths(line_kinds, begin, end, spaced[row])
            if (
                terminal
                and ends_sentences[row]
                and (
                    not _is_mark(line[end - 1], line_kinds[end - 1], marks, mark_starts, language[row])
                    or _ends_in_dots(line, begin, end)
                )
            ):
                out[row, NO_TERMINAL] += 1
                continue
            if count < least_words if spaced[row] else characters < least_points:
                out[row, TOO_FEW] += 1
                continue
            # A citation that was cut out can have stood within a phrase.
            if suspected or found:
                lorem, script, policy, brace = _phrases(line, begin, end, phrases, phrase_starts)
                out[row, LOREM_IPSUM] += lorem
                if javascript and script:
                    out[row, JAVASCRIPT] += 1
                    continue
                out[row, CURLY_BRACE] += brace
                if policies and policy:
                    out[row, POLICY] += 1
                    continue
            if ends_sentences[row]:
                out[row, SENTENCES] += _sentences(
                    line[begin:end],
                    line_kinds[begin:end],
                    language[row],
                    terminals,
                    terminal_starts,
                    free,
                    free_starts,
                    after,
                    after_starts,
                )
            if kept:
                out_data[written] = NEWLINE
                written += 1
            if ascii_only and not found:
                source = offsets[row] + begin - row_start
                out_data[written : written + end - begin] = data[source : source + end - begin]
                written += end - begin
            else:
                written = _encode(line[begin:end], out_data, written)
            out[row, CLEAN_POINTS] += end - begin + (kept > 0)
            kept += 1
        out[row, WHITESPACE] = newline_starts[row + 1] - newline_starts[row] + 1 - whole
        out_offsets[row + 1] = written


@njit(cache=True, nogil=True)
def _word_lengths(kinds, begin, end, spaced):  # type: ignore[no-untyped-def]
    """Words, the longest word, and characters but whitespace. In an unspaced text only runs without
    unspaced scripts are words."""
    words = longest = characters = length = 0
    for index in range(begin, end):
        kind = kinds[index]
        space = kind & SPACE
        characters += 1 - space
        gap = space != 0 or (not spaced and kind >> SCRIPT_SHIFT != 0)
        words += length == 0 and not gap
        length = 0 if gap else length + 1
        longest = max(longest, length)
    return words, longest, characters


@njit(cache=True, nogil=True)
def _without_citations(points, kinds, begin, end, line, line_kinds):  # type: ignore[no-untyped-def]
    """Copies the line without `[`, digits or `edit` or `citation needed`, `]`; returns its length and how
    many there were."""
    length = found = 0
    index = begin
    while index < end:
        if points[index] == OPENING:
            stop = index + 1
            while stop < end and kinds[stop] & DIGIT:
                stop += 1
            if stop == index + 1:
                if _starts_with(points, stop, end, EDIT):
                    stop += len(EDIT)
                elif _starts_with(points, stop, end, CITATION_NEEDED):
                    stop += len(CITATION_NEEDED)
            if stop < end and points[stop] == CLOSING:
                found += 1
                index = stop + 1
                continue
        line[length] = points[index]
        line_kinds[length] = kinds[index]
        length += 1
        index += 1
    return length, found


@njit(cache=True, nogil=True)
def _starts_with(points, begin, end, word):  # type: ignore[no-untyped-def]
    if end - begin < len(word):
        return False
    for index in range(len(word)):
        if points[begin + index] != word[index]:
            return False
    return True


@njit(cache=True, nogil=True)
def _may_hold_phrases(data):  # type: ignore[no-untyped-def]
    """False only for a text that holds neither `{` nor, in any case, `ipsu`, `java`, `olic`, `of u` or `oki`, and so no phrase
    that _phrases() looks for. Most texts end here."""
    found = _holds(data, BRACE)
    size = data.size - 3
    if size <= 0:
        return found
    one, two, three, four = data[:size], data[1 : size + 1], data[2 : size + 2], data[3 : size + 3]
    for index in range(size):
        first, second, third, fourth = one[index] | LOWER, two[index] | LOWER, three[index] | LOWER, four[index] | LOWER
        found |= (first == 0x69) & (second == 0x70) & (third == 0x73) & (fourth == 0x75)  # ipsu
        found |= (first == 0x6A) & (second == 0x61) & (third == 0x76) & (fourth == 0x61)  # java
        found |= (first == 0x6F) & (second == 0x6C) & (third == 0x69) & (fourth == 0x63)  # olic
        found |= (first == 0x6F) & (second == 0x66) & (third == 0x20) & (fourth == 0x75)  # of u
        found |= (second == 0x6F) & (third == 0x6B) & (fourth == 0x69)  # oki
        found |= (one[index] == 0xE2) & (two[index] == 0x84) & (three[index] == 0xAA)  # the Kelvin sign, a capital k
    return found


@njit(cache=True, nogil=True)
def _phrases(line, begin, end, phrases, phrase_starts):  # type: ignore[no-untyped-def]
    """Does the lower-cased line hold `lorem ipsum`, `javascript`, any policy; and does the line hold
    `{`?"""
    lorem = script = policy = brace = False
    initials = 0
    for phrase in range(phrase_starts.size - 1):
        initials |= 1 << (phrases[phrase_starts[phrase]] - LOWER_A)
    # `initials` has a bit for every letter that a phrase begins with.
    for index in range(begin, end):
        point = line[index]
        if point == BRACE:
            brace = True
        lowered = _lower(point)
        if lowered < LOWER_A or lowered > LOWER_Z or not initials >> (lowered - LOWER_A) & 1:
            continue
        for phrase in range(phrase_starts.size - 1):
            first, last = phrase_starts[phrase], phrase_starts[phrase + 1]
            if lowered != phrases[first] or end - index < last - first:
                continue
            same = True
            for offset in range(1, last - first):
                if _lower(line[index + offset]) != phrases[first + offset]:
                    same = False
                    break
            if same:
                if phrase == 0:
                    lorem = True
                elif phrase == 1:
                    script = True
                else:
                    policy = True
    return lorem, script, policy, brace


@njit(cache=True, nogil=True)
def _lower(point):  # type: ignore[no-untyped-def]
    """Lower case as far as a phrase in ASCII can tell: A to Z, and the Kelvin sign, whose lower case is
    k."""
    if 0x41 <= point <= 0x5A:
        return point + 0x20
    return np.int32(0x6B) if point == KELVIN else point


@njit(cache=True, nogil=True)
def _sentences(  # type: ignore[no-untyped-def]
    line, kinds, language, terminals, terminal_starts, free, free_starts, after, after_starts
):
    """Runs of marks that end a sentence: those with a free mark, and those that whitespace or the end
    follows."""
    sentences = 0
    group = language if language >= 0 else terminal_starts.size - 2
    own = terminal_starts[group] < terminal_starts[group + 1]
    index, end = 0, line.size
    while index < end:
        if not own:
            while index < end and not kinds[index] & TERMINAL:
                index += 1
            if index == end:
                break
        elif not _is_mark(line[index], kinds[index], terminals, terminal_starts, language):
            index += 1
            continue
        freely = False
        while index < end and _is_mark(line[index], kinds[index], terminals, terminal_starts, language):
            freely |= _listed(line[index], free, free_starts, language)
            index += 1
        if freely:
            sentences += 1
            continue
        while index < end and _listed(line[index], after, after_starts, language):
            index += 1
        if index == end or kinds[index] & SPACE:
            sentences += 1
    return sentences


@njit(cache=True, nogil=True)
def _is_ascii(data):  # type: ignore[no-untyped-def]
    bits = np.uint8(0)
    for index in range(data.size):
        bits |= data[index]
    return bits < 0x80


@njit(cache=True, nogil=True)
def _holds(data, byte):  # type: ignore[no-untyped-def]
    found = False
    for index in range(data.size):
        found |= data[index] == byte
    return found


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
def _longest(starts):  # type: ignore[no-untyped-def]
    longest = 0
    for row in range(starts.size - 1):
        longest = max(longest, starts[row + 1] - starts[row])
    return longest


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
def _kind(classes, point):  # type: ignore[no-untyped-def]
    return np.int32(classes[point]) if point < classes.size else np.int32(0)


@njit(cache=True, nogil=True)
def _strip(kinds, begin, end):  # type: ignore[no-untyped-def]
    while begin < end and kinds[begin] & SPACE:
        begin += 1
    while end > begin and kinds[end - 1] & SPACE:
        end -= 1
    return begin, end


@njit(cache=True, nogil=True)
def _ends_in_dots(points, begin, end):  # type: ignore[no-untyped-def]
    return end - begin >= 3 and points[end - 1] == DOT and points[end - 2] == DOT and points[end - 3] == DOT


@njit(cache=True, nogil=True)
def _is_mark(point, kind, marks, starts, language):  # type: ignore[no-untyped-def]
    """Is this one of Unicode's sentence terminals, or listed for the language?"""
    return kind & TERMINAL != 0 or _listed(point, marks, starts, language)


@njit(cache=True, nogil=True)
def _listed(point, marks, starts, language):  # type: ignore[no-untyped-def]
    """Is this in the language's group of marks? The last group is of rows without a language."""
    group = language if language >= 0 else starts.size - 2
    for index in range(starts[group], starts[group + 1]):
        if marks[index] == point:
            return True
    return False


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


@njit(cache=True, nogil=True)
def _joins(kind):  # type: ignore[no-untyped-def]
    """Is this the class of a letter or digit of a script that writes spaces?"""
    return kind & ALPHANUMERIC != 0 and kind >> SCRIPT_SHIFT == 0


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


@njit(cache=True, nogil=True)
def _encode(points, out, at):  # type: ignore[no-untyped-def]
    """Writes code points as UTF-8 from out[at], returns where it ends."""
    for index in range(points.size):
        at = put(points[index], out, at)
    return at
