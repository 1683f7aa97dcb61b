"""C4's cleaning of lines (`stages.c4`)."""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.reading import (
    DIGIT,
    LOWER,
    NEWLINE,
    SCRIPT_SHIFT,
    SPACE,
    TERMINAL,
    ends_in_dots,
    is_mark,
    listed,
    most_points,
    strip,
)
from stages.utf8 import put

KELVIN = 0x212A

BRACE = 0x7B

OPENING, CLOSING = 0x5B, 0x5D

LOWER_A, LOWER_Z = 0x61, 0x7A

EDIT = np.array(list(map(ord, "edit")), np.int32)

CITATION_NEEDED = np.array(list(map(ord, "citation needed")), np.int32)

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
    longest_row = most_points(starts)
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
                    begin, end = strip(line_kinds, 0, length)
                    if begin == end:
                        continue
                    count, longest, characters = _word_lengths(line_kinds, begin, end, spaced[row])
            if (
                terminal
                and ends_sentences[row]
                and (
                    not is_mark(line[end - 1], line_kinds[end - 1], marks, mark_starts, language[row])
                    or ends_in_dots(line, begin, end)
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
        elif not is_mark(line[index], kinds[index], terminals, terminal_starts, language):
            index += 1
            continue
        freely = False
        while index < end and is_mark(line[index], kinds[index], terminals, terminal_starts, language):
            freely |= listed(line[index], free, free_starts, language)
            index += 1
        if freely:
            sentences += 1
            continue
        while index < end and listed(line[index], after, after_starts, language):
            index += 1
        if index == end or kinds[index] & SPACE:
            sentences += 1
    return sentences


@njit(cache=True, nogil=True)
def _holds(data, byte):  # type: ignore[no-untyped-def]
    found = False
    for index in range(data.size):
        found |= data[index] == byte
    return found


@njit(cache=True, nogil=True)
def _encode(points, out, at):  # type: ignore[no-untyped-def]
    """Writes code points as UTF-8 from out[at], returns where it ends."""
    for index in range(points.size):
        at = put(points[index], out, at)
    return at
