"""Compiled loops over the UTF-8 buffers of a batch: what the filters count, at tens of megabytes a second.

Every function takes whole batches, `data` and `offsets` as `stages.text_buffers.of` gives them, and the
tables of `stages.code_points` as arguments. A plain twin of each stands in tests/stages/plain.py; both must
agree on every text. All loops are in this one file, because numba notices a change only in the file of the
function that it has cached. Scratch memory is bounded by the largest document of the batch.
"""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import numpy as np
from numba import njit

# Bits of code_points.classes(). The script is in bits 8 to 10, from 1; 0 is none.
SPACE, ALPHABETIC, ALPHANUMERIC, PUNCTUATION, SYMBOL, TERMINAL, DIGIT = 1, 2, 4, 8, 16, 32, 64
SCRIPT_SHIFT = 8

# How many newlines end a piece, for repeated_pieces().
LINE, PARAGRAPH = 1, 2

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
NEWLINES, SHAPED_LINES, SHORT_LINES, TERMINAL_LINES, SHAPED_WORDS, SHAPED_POINTS = range(6)

# Columns of repeated_pieces().
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
def script_counts(data, offsets, classes, counts):  # type: ignore[no-untyped-def]
    """counts[row, script]: characters of each unspaced script; counts[row, 0]: other alphabetic ones."""
    points, kinds = _scratch(offsets)
    for row in range(offsets.size - 1):
        others = 0
        for index in range(_decode(data, offsets[row], offsets[row + 1], classes, points, kinds)):
            kind = kinds[index]
            script = kind >> SCRIPT_SHIFT
            if script:
                counts[row, script] += 1
            else:
                others += kind & ALPHABETIC
        counts[row, 0] = others // ALPHABETIC


@njit(cache=True, nogil=True)
def quality(  # type: ignore[no-untyped-def]
    data, offsets, classes, fold, expansions, spaced, language, own, words, word_starts, language_starts, out
):
    """What Gopher's quality rules count. `own[row]` has a bit for each script of the row's language; the
    function words of language k are words[word_starts[j]:word_starts[j+1]], case-folded, for j from
    language_starts[k] to language_starts[k+1].
    """
    points, kinds = _scratch(offsets)
    starts, ends = np.empty(points.size, np.int32), np.empty(points.size, np.int32)
    found = np.zeros(word_starts.size, np.int64)
    for row in range(offsets.size - 1):
        size = _decode(data, offsets[row], offsets[row + 1], classes, points, kinds)
        _count_lines(points, kinds, size, out[row])
        _count_symbols(points, size, out[row])
        if not spaced[row]:
            _count_characters(kinds, size, own[row], out[row])
            continue
        count = _words(kinds, size, starts, ends)
        first = last = longest = 0
        initials = np.uint64(0)
        if language[row] >= 0:
            first, last = language_starts[language[row]], language_starts[language[row] + 1]
        for candidate in range(first, last):
            longest = max(longest, word_starts[candidate + 1] - word_starts[candidate])
            initials |= np.uint64(1) << np.uint64(words[word_starts[candidate]] & 63)
        length = stop_words = 0
        for word in range(count):
            begin, end = starts[word], ends[word]
            length += end - begin
            while begin < end and kinds[begin] & PUNCTUATION:
                begin += 1
            while end > begin and kinds[end - 1] & PUNCTUATION:
                end -= 1
            if begin == end or end - begin > longest:
                continue
            initial = fold[points[begin]] if points[begin] < fold.size else points[begin]
            if initial < 0:
                initial = expansions[-initial - 1, 0]
            if not initials >> np.uint64(initial & 63) & np.uint64(1):
                continue
            for candidate in range(first, last):
                if found[candidate] != row + 1 and _folds_to(
                    points, begin, end, fold, expansions, words, word_starts[candidate], word_starts[candidate + 1]
                ):
                    found[candidate] = row + 1
                    stop_words += 1
                    break
        out[row, WORDS] = count
        out[row, WORD_POINTS] = length
        out[row, ALPHABETIC_WORDS] = _alphabetic_words(kinds, size)
        out[row, STOP_WORDS] = stop_words


@njit(cache=True, nogil=True)
def line_shapes(data, offsets, classes, short, marks, mark_starts, language, out):  # type: ignore[no-untyped-def]
    """What FineWeb's rules count. `short[row]` is the length up to which a line is short; a line also ends
    a sentence in one of the marks of its row's language, marks[mark_starts[k]:mark_starts[k+1]]; the last
    group is of rows without one.
    """
    points, kinds = _scratch(offsets)
    for row in range(offsets.size - 1):
        size = _decode(data, offsets[row], offsets[row + 1], classes, points, kinds)
        before = SPACE
        words = characters = 0
        for index in range(size):
            space = kinds[index] & SPACE
            characters += 1 - space
            words += before & ~space
            before = space
        out[row, SHAPED_WORDS] = words
        out[row, SHAPED_POINTS] = characters
        out[row, NEWLINES] = _count_bytes(data, offsets[row], offsets[row + 1], NEWLINE)
        start = 0
        while start <= size:
            stop = _line_end(points, start, size)
            begin, end = _strip(kinds, start, stop)
            start = stop + 1
            if begin == end:
                continue
            out[row, SHAPED_LINES] += 1
            if end - begin <= short[row]:
                out[row, SHORT_LINES] += 1
            if _is_mark(points[end - 1], kinds[end - 1], marks, mark_starts, language[row]):
                out[row, TERMINAL_LINES] += 1


@njit(cache=True, nogil=True)
def repeated_pieces(data, offsets, classes, newlines, out):  # type: ignore[no-untyped-def]
    """out[k, row]: pieces between runs of at least newlines[k] newlines (1: lines, 2: paragraphs),
    stripped, empty ones left out; how many stood before in the same document, and the code points of all
    and of those.
    """
    points, kinds = _scratch(offsets)
    capacity = _capacity(_most_newlines(data, offsets) + 1)
    hashes = np.empty(capacity, np.uint64)
    begins = np.empty(capacity, np.int64)
    ends = np.empty(capacity, np.int64)
    stamps = np.zeros(capacity, np.int64)
    stamp = 0
    for row in range(offsets.size - 1):
        size = _decode(data, offsets[row], offsets[row + 1], classes, points, kinds)
        mask = np.uint64(_capacity(_count_bytes(data, offsets[row], offsets[row + 1], NEWLINE) + 1) - 1)
        for k in range(newlines.size):
            stamp += 1
            start = 0
            pieces = piece_points = repeats = repeat_points = 0
            while start <= size:
                stop, following = _piece_end(points, start, size, newlines[k])
                begin, end = _strip(kinds, start, stop)
                start = following
                if begin == end:
                    continue
                pieces += 1
                piece_points += end - begin
                mixed = _hash(points, begin, end)
                slot = mixed & mask
                while True:
                    if stamps[slot] != stamp:
                        stamps[slot] = stamp
                        hashes[slot] = mixed
                        begins[slot] = begin
                        ends[slot] = end
                        break
                    if hashes[slot] == mixed and _same(points, begin, end, begins[slot], ends[slot]):
                        repeats += 1
                        repeat_points += end - begin
                        break
                    slot = (slot + np.uint64(1)) & mask
            out[k, row, PIECES] = pieces
            out[k, row, PIECE_POINTS] = piece_points
            out[k, row, REPEATS] = repeats
            out[k, row, REPEAT_POINTS] = repeat_points


@njit(cache=True, nogil=True)
def repeated_grams(  # type: ignore[no-untyped-def]
    data, offsets, classes, fold, expansions, spaced, factor, tops, duplicates, out
):
    """out[row, 0]: code points of all units. out[row, 1+k]: those of the most frequent n-gram, all its
    occurrences, for n = tops[k]·factor[row]. Then those covered by n-grams that occur at least twice, for n
    = duplicates[k]·factor[row]. Units are words in spaced rows.

    A repeated n-gram consists of two overlapping repeated (n-1)-grams and is known by their two numbers, so
    every level looks only at what was repeated on the one before, and no two different n-grams are ever
    taken for one.
    """
    points, kinds = _scratch(offsets)
    starts, ends = np.empty(points.size, np.int32), np.empty(points.size, np.int32)
    # Case folding makes at most three code points of one.
    folded = np.empty(3 * points.size, np.int32)
    most = 256
    keys, numbers, stamps = _table(_capacity(most))
    before, folded_at, first_of, gram, places, count, characters = _lists(most)
    stamp = 0
    for row in range(offsets.size - 1):
        size = _decode(data, offsets[row], offsets[row + 1], classes, points, kinds)
        units = _words(kinds, size, starts, ends) if spaced[row] else _units(kinds, size, starts, ends)
        if units > most:
            most = 2 * units
            keys, numbers, stamps = _table(_capacity(most))
            before, folded_at, first_of, gram, places, count, characters = _lists(most)
        mask = np.uint64(_capacity(units) - 1)
        stamp += 1
        known = 0
        folded_size = 0
        before[0] = 0
        for unit in range(units):
            before[unit + 1] = before[unit] + ends[unit] - starts[unit]
            folded_at[unit] = folded_size
            mixed = np.uint64(0)
            for position in range(starts[unit], ends[unit]):
                point = points[position]
                target = fold[point] if point < fold.size else point
                if target >= 0:
                    folded[folded_size] = target
                    folded_size += 1
                    mixed = _mix(mixed, target)
                else:
                    for part in expansions[-target - 1]:
                        if part != 0:
                            folded[folded_size] = part
                            folded_size += 1
                            mixed = _mix(mixed, part)
            folded_at[unit + 1] = folded_size
            mixed = _finish(mixed)
            slot = mixed & mask
            while True:
                if stamps[slot] != stamp:
                    stamps[slot] = stamp
                    keys[slot] = mixed
                    numbers[slot] = known
                    first_of[known] = unit
                    gram[unit] = known
                    count[known] = 1
                    known += 1
                    break
                if keys[slot] == mixed:
                    other = first_of[numbers[slot]]
                    if _same(folded, folded_at[unit], folded_size, folded_at[other], folded_at[other + 1]):
                        gram[unit] = numbers[slot]
                        count[gram[unit]] += 1
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
            stamp += 1
            known = 0
            kept = 0
            for entry in range(repeated - 1):
                place = places[entry]
                if places[entry + 1] != place + 1:
                    continue
                key = (np.uint64(gram[place]) << np.uint64(32)) | np.uint64(gram[place + 1])
                slot = _finish(key) & mask
                while stamps[slot] == stamp and keys[slot] != key:
                    slot = (slot + np.uint64(1)) & mask
                if stamps[slot] != stamp:
                    stamps[slot] = stamp
                    keys[slot] = key
                    numbers[slot] = known
                    count[known] = 0
                    characters[known] = 0
                    known += 1
                number = numbers[slot]
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
    data, offsets, classes, spaced, language, ends_sentences, marks, mark_starts, terminals, terminal_starts,
    free, free_starts, after, after_starts, phrases, phrase_starts, limits, out, out_data, out_offsets
):  # fmt: skip
    """C4's rules on lines, in their order: writes what is left to out_data and counts in `out`.

    Of the row's language: `marks` may end a line and `terminals` a sentence beside Unicode's terminals,
    `free` end a sentence wherever they stand, `after` may follow the end of a sentence. phrases: `lorem
    ipsum`, `javascript`, then the policies, in lower case. limits: longest word, whether citations are cut,
    whether lines must end in a mark, least words, least characters, whether `javascript` drops, whether a
    policy does; -1 and 0 switch off.
    """
    points, kinds = _scratch(offsets)
    cut, cut_kinds = _scratch(offsets)
    initials = 0
    for phrase in range(phrase_starts.size - 1):
        initials |= 1 << (phrases[phrase_starts[phrase]] - LOWER_A)
    longest_word, citations, terminal, least_words, least_points, javascript, policies = limits
    written = 0
    out_offsets[0] = 0
    for row in range(offsets.size - 1):
        size = _decode(data, offsets[row], offsets[row + 1], classes, points, kinds)
        ascii_only = size == offsets[row + 1] - offsets[row]
        brackets = citations and _count_bytes(data, offsets[row], offsets[row + 1], OPENING) > 0
        out_start = written
        kept = 0
        start = 0
        while start <= size:
            stop = _line_end(points, start, size)
            begin, end = _strip(kinds, start, stop)
            if begin != start or end != stop or begin == end:
                out[row, WHITESPACE] += 1
            start = stop + 1
            if begin == end:
                continue
            found = 0
            words, longest, characters = _word_lengths(kinds, begin, end, spaced[row])
            if longest_word >= 0 and longest > longest_word:
                out[row, LONG_WORD] += 1
                continue
            line, line_kinds = points, kinds
            if brackets:
                length, found = _without_citations(points, kinds, begin, end, cut, cut_kinds)
                if found:
                    out[row, CITATION] += found
                    line, line_kinds = cut, cut_kinds
                    begin, end = _strip(line_kinds, 0, length)
                    if begin == end:
                        continue
                    words, longest, characters = _word_lengths(line_kinds, begin, end, spaced[row])
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
            if words < least_words if spaced[row] else characters < least_points:
                out[row, TOO_FEW] += 1
                continue
            lorem, script, policy, brace = _phrases(line, begin, end, phrases, phrase_starts, initials)
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
                    line,
                    line_kinds,
                    begin,
                    end,
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
                for index in range(begin, end):
                    out_data[written] = points[index]
                    written += 1
            else:
                written = _encode(line, begin, end, out_data, written)
            out[row, CLEAN_POINTS] += end - begin + (kept > 0)
            kept += 1
        out_offsets[row + 1] = written
        if _same_bytes(data, offsets[row], offsets[row + 1], out_data, out_start, written):
            for column in range(POLICY + 1):
                out[row, column] = 0


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
def _phrases(line, begin, end, phrases, phrase_starts, initials):  # type: ignore[no-untyped-def]
    """Does the lower-cased line hold `lorem ipsum`, `javascript`, any policy; and does the line hold
    `{`?"""
    lorem = script = policy = brace = False
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
    line, kinds, begin, end, language, terminals, terminal_starts, free, free_starts, after, after_starts
):
    """Runs of marks that end a sentence: those with a free mark, and those that whitespace or the end
    follows."""
    sentences = 0
    index = begin
    while index < end:
        if not _is_mark(line[index], kinds[index], terminals, terminal_starts, language):
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
def _scratch(offsets):  # type: ignore[no-untyped-def]
    """Room for the code points of the longest document, and for their classes."""
    longest = _longest(offsets)
    return np.empty(longest, np.int32), np.empty(longest, np.uint16)


@njit(cache=True, nogil=True)
def _table(capacity):  # type: ignore[no-untyped-def]
    """Keys, numbers and stamps of a hash table; an entry counts if its stamp is the present one."""
    return np.empty(capacity, np.uint64), np.empty(capacity, np.int64), np.zeros(capacity, np.int64)


@njit(cache=True, nogil=True)
def _lists(most):  # type: ignore[no-untyped-def]
    """Of every unit: code points before it, where it starts in the folded text, the first unit of each number,
    the number of the n-gram that starts at it, where repeated n-grams start, ascending; and of every number its
    occurrences and their code points."""
    return (
        np.empty(most + 1, np.int64),
        np.empty(most + 1, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most + 1, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )


@njit(cache=True, nogil=True)
def _longest(offsets):  # type: ignore[no-untyped-def]
    longest = 0
    for row in range(offsets.size - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    return longest


@njit(cache=True, nogil=True)
def _count_bytes(data, start, stop, byte):  # type: ignore[no-untyped-def]
    count = 0
    for index in range(start, stop):
        count += data[index] == byte
    return count


@njit(cache=True, nogil=True)
def _most_newlines(data, offsets):  # type: ignore[no-untyped-def]
    most = 0
    for row in range(offsets.size - 1):
        most = max(most, _count_bytes(data, offsets[row], offsets[row + 1], NEWLINE))
    return most


@njit(cache=True, nogil=True)
def _decode(data, start, stop, classes, points, kinds):  # type: ignore[no-untyped-def]
    """Writes the code points of data[start:stop] and their classes, returns how many; a byte that starts no whole character
    is U+FFFD."""
    size = 0
    index = start
    while index < stop:
        byte = np.int32(data[index])
        if byte < 0x80:
            points[size] = byte
            kinds[size] = classes[byte]
            index += 1
            size += 1
            continue
        if 0xC0 <= byte < 0xE0 and index + 1 < stop:
            points[size] = (byte & 0x1F) << 6 | (np.int32(data[index + 1]) & 0x3F)
            index += 2
        elif 0xE0 <= byte < 0xF0 and index + 2 < stop:
            points[size] = (byte & 0x0F) << 12 | (np.int32(data[index + 1]) & 0x3F) << 6 | (np.int32(data[index + 2]) & 0x3F)
            index += 3
        elif byte >= 0xF0 and index + 3 < stop:
            points[size] = (
                (byte & 0x07) << 18
                | (np.int32(data[index + 1]) & 0x3F) << 12
                | (np.int32(data[index + 2]) & 0x3F) << 6
                | (np.int32(data[index + 3]) & 0x3F)
            )
            index += 4
        else:
            points[size] = REPLACEMENT
            index += 1
        kinds[size] = _kind(classes, points[size])
        size += 1
    return size


@njit(cache=True, nogil=True)
def _kind(classes, point):  # type: ignore[no-untyped-def]
    return np.int32(classes[point]) if point < classes.size else np.int32(0)


@njit(cache=True, nogil=True)
def _line_end(points, start, size):  # type: ignore[no-untyped-def]
    stop = start
    while stop < size and points[stop] != NEWLINE:
        stop += 1
    return stop


@njit(cache=True, nogil=True)
def _piece_end(points, start, size, newlines):  # type: ignore[no-untyped-def]
    """Where the piece from `start` ends, and where the next one starts (size + 1 after the last). A run of newlines is
    read once, so a text of nothing else takes linear time."""
    stop = start
    while stop < size:
        if points[stop] != NEWLINE:
            stop += 1
            continue
        if newlines == 1:
            return stop, stop + 1
        following = stop
        while following < size and points[following] == NEWLINE:
            following += 1
        if following - stop >= newlines:
            return stop, following
        stop = following
    return size, size + 1


@njit(cache=True, nogil=True)
def _strip(kinds, begin, end):  # type: ignore[no-untyped-def]
    while begin < end and kinds[begin] & SPACE:
        begin += 1
    while end > begin and kinds[end - 1] & SPACE:
        end -= 1
    return begin, end


@njit(cache=True, nogil=True)
def _count_lines(points, kinds, size, counts):  # type: ignore[no-untyped-def]
    start = 0
    while start <= size:
        stop = _line_end(points, start, size)
        begin, end = _strip(kinds, start, stop)
        start = stop + 1
        if begin == end:
            continue
        counts[LINES] += 1
        for bullet in BULLETS:
            if points[begin] == bullet:
                counts[BULLET_LINES] += 1
        if points[end - 1] == ELLIPSIS or _ends_in_dots(points, begin, end):
            counts[ELLIPSIS_LINES] += 1


@njit(cache=True, nogil=True)
def _count_symbols(points, size, counts):  # type: ignore[no-untyped-def]
    hashes = ellipses = triples = dots = 0
    for index in range(size):
        hashes += points[index] == HASH
        ellipses += points[index] == ELLIPSIS
    for index in range(2, size):
        triples += (points[index] == DOT) & (points[index - 1] == DOT) & (points[index - 2] == DOT)
    # Most texts have no three dots, and runs are counted only where there are some.
    for index in range(size if triples else 0):
        dots = dots + 1 if points[index] == DOT else 0
        if dots == 3:
            ellipses += 1
            dots = 0
    counts[HASHES] = hashes
    counts[ELLIPSES] = ellipses


@njit(cache=True, nogil=True)
def _alphabetic_words(kinds, size):  # type: ignore[no-untyped-def]
    """Words with an alphabetic character."""
    words = found = np.int64(0)
    for index in range(size):
        space = np.int64(kinds[index]) & SPACE
        words += found & space
        found = (found | (np.int64(kinds[index]) & ALPHABETIC) // ALPHABETIC) & (1 - space)
    return words + found


@njit(cache=True, nogil=True)
def _count_characters(kinds, size, own, counts):  # type: ignore[no-untyped-def]
    characters = symbols = of_script = np.int64(0)
    for index in range(size):
        kind = np.int64(kinds[index])
        character = 1 - (kind & SPACE)
        characters += character
        symbols += (kind & SYMBOL) != 0
        of_script += own >> (kind >> SCRIPT_SHIFT) & 1 & character
    counts[POINTS] = characters
    counts[SYMBOLS] = symbols
    counts[OWN_SCRIPT] = of_script


@njit(cache=True, nogil=True)
def _words(kinds, size, starts, ends):  # type: ignore[no-untyped-def]
    """Where each word starts and ends; how many there are. Without branches: words are short and of any length."""
    count = ended = np.int64(0)
    before = np.int64(SPACE)
    for index in range(size):
        space = np.int64(kinds[index]) & SPACE
        starts[count] = index
        count += before & ~space
        # At most as many words have ended as have started, so this stays within the list.
        ends[ended] = index
        ended += space & ~before
        before = space
    if ended < count:
        ends[ended] = size
    return count


@njit(cache=True, nogil=True)
def _units(kinds, size, starts, ends):  # type: ignore[no-untyped-def]
    """Where each unit of an unspaced text starts and ends; how many there are."""
    count = index = 0
    while index < size:
        if kinds[index] & SPACE:
            index += 1
            continue
        starts[count] = index
        inside = _joins(kinds[index])
        index += 1
        while inside and index < size and _joins(kinds[index]):
            index += 1
        ends[count] = index
        count += 1
    return count


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
def _hash(points, begin, end):  # type: ignore[no-untyped-def]
    """Four lanes, since each multiplication waits for the one before."""
    first = second = third = fourth = np.uint64(0)
    index = begin
    while index + 4 <= end:
        first = _mix(first, points[index])
        second = _mix(second, points[index + 1])
        third = _mix(third, points[index + 2])
        fourth = _mix(fourth, points[index + 3])
        index += 4
    while index < end:
        first = _mix(first, points[index])
        index += 1
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
def _same_bytes(data, begin, end, other, other_begin, other_end):  # type: ignore[no-untyped-def]
    if end - begin != other_end - other_begin:
        return False
    for index in range(end - begin):
        if data[begin + index] != other[other_begin + index]:
            return False
    return True


@njit(cache=True, nogil=True)
def _encode(points, begin, end, out, at):  # type: ignore[no-untyped-def]
    """Writes points[begin:end] as UTF-8 from out[at], returns where it ends."""
    for index in range(begin, end):
        point = points[index]
        if point < 0x80:
            out[at] = point
            at += 1
        elif point < 0x800:
            out[at] = 0xC0 | point >> 6
            out[at + 1] = 0x80 | (point & 0x3F)
            at += 2
        elif point < 0x10000:
            out[at] = 0xE0 | point >> 12
            out[at + 1] = 0x80 | (point >> 6 & 0x3F)
            out[at + 2] = 0x80 | (point & 0x3F)
            at += 3
        else:
            out[at] = 0xF0 | point >> 18
            out[at + 1] = 0x80 | (point >> 12 & 0x3F)
            out[at + 2] = 0x80 | (point >> 6 & 0x3F)
            out[at + 3] = 0x80 | (point & 0x3F)
            at += 4
    return at
