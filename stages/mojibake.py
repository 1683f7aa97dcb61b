"""Where texts could be mojibake: a compiled test of whole batches that finds every line ftfy could change, and few others.

`suspicious_lines` reads the UTF-8 of a batch without making strings of it. A line is suspicious when

1. it holds what ftfy changes by itself: a C1 control, U+FFFD, a surrogate, U+001A, which stands for a lost byte there, or, where
   they are to go, an invisible control character; or
2. it is bad by ftfy's own expression (ftfy.badness.BADNESS_RE, compiled here into a bit-parallel automaton; Baeza-Yates and
   Gonnet 1992), and
   - it can be written in one of the ten encodings that ftfy knows so that it reads as UTF-8: each first byte is followed by a
     continuation byte, by a blank (which was byte A0) or by `?` (a byte that was lost), and no continuation byte stands alone
     (ftfy.chardata: CHARMAP_ENCODINGS, ALTERED_UTF8_RE, LOSSY_UTF8_RE; ftfy.bad_codecs); or
   - it holds a sequence that ftfy takes for mojibake inside other text (ftfy.chardata: UTF8_DETECTOR_RE); or
3. it is longer than ftfy's segments, which are lines but have at most a million characters.
"""

from __future__ import annotations

import re
from functools import cache

import ftfy
import numpy as np
from ftfy.badness import BADNESS_RE
from ftfy.chardata import CHARMAP_ENCODINGS, UTF8_CLUES
from numba import njit

CONTROLS = "\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc"
"""Characters that no page shows, as a regular expression's class (ftfy.chardata.CONTROL_CHARS)."""

ENCODINGS = len(CHARMAP_ENCODINGS)
CONTINUING_SHIFT = ENCODINGS
EVERY = (1 << ENCODINGS) - 1
FIRST_OF_2, FIRST_OF_3, FIRST_OF_4, CONTINUATION, BY_ITSELF, SPECIAL = (1 << (2 * ENCODINGS + bit) for bit in range(6))
TAB, NEWLINE, VERTICAL_TAB, CARRIAGE_RETURN, BLANK, DELETE = 0x09, 0x0A, 0x0B, 0x0D, 0x20, 0x7F
BLOCK = 32
"""Bytes that are looked at together, which compiles to vector instructions."""
ABOVE = 0x10000
"""Stands for every character above U+FFFF."""
LONGEST_LINE = ftfy.TextFixerConfig().max_decode_length
"""Characters; compared with bytes here, which are as many or more."""

Spans = np.ndarray
"""int64 (k, 3): the row of each suspicious line, and where it begins and ends in the data."""


def suspicious_lines(data: np.ndarray, offsets: np.ndarray, controls: bool = True) -> Spans:
    """The suspicious lines of a batch (`stages.text_buffers.of`), in order; `controls` says whether control characters go."""
    tables = character_classes(controls), *badness_automaton()
    spans = np.empty((64, 3), np.int64)
    found = _find(data, offsets, *tables, spans)
    if found > len(spans):
        spans = np.empty((found, 3), np.int64)
        _find(data, offsets, *tables, spans)
    return spans[:found]


@cache
def character_classes(controls: bool) -> np.ndarray:
    """uint32 by code point up to U+FFFF. Bit e: the character is byte C0 to FF in encoding e, a first byte; bit e + ENCODINGS:
    byte 80 to BF, a continuation byte; the bits named above."""
    table = np.zeros(0x10000, np.uint32)
    for bit, encoding in enumerate(CHARMAP_ENCODINGS):
        for byte in range(0x80, 0x100):
            table[ord(bytes([byte]).decode(encoding))] |= 1 << (bit + (0 if byte >= 0xC0 else CONTINUING_SHIFT))
    for name, bit in (
        ("utf8_first_of_2", FIRST_OF_2),
        ("utf8_first_of_3", FIRST_OF_3),
        ("utf8_first_of_4", FIRST_OF_4),
        ("utf8_continuation", CONTINUATION),
    ):
        for character in re.findall(f"[{UTF8_CLUES[name]}]", _BASIC_PLANE):
            table[ord(character)] |= bit
    for character in re.findall(f"[\x1a\x80-\x9f\ufffd\ud800-\udfff{CONTROLS if controls else ''}]", _BASIC_PLANE):
        table[ord(character)] |= BY_ITSELF
    for character in " ?":
        table[ord(character)] |= SPECIAL
    return table


@cache
def badness_automaton() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(kinds, accepts, starts, ends) of an automaton that runs over a line and stops where BADNESS_RE matches.

    The expression is a choice among short sequences of characters, and bit k of the state is the k-th character of all the
    sequences laid end to end. `accepts[kinds[point]]` has the bits that this character may stand at (the last kind: any above
    U+FFFF); `starts[0]` has the bits where sequences begin, `starts[1]` those that may begin only a line, `ends` those where
    they end. A sequence is cut before what is not understood here, so that another version of ftfy can only make more lines
    suspicious.
    """
    sequences = _sequences(BADNESS_RE.pattern)
    words = (sum(len(atoms) for _, atoms in sequences) + 63) // 64
    starts, ends = np.zeros((2, words), np.uint64), np.zeros(words, np.uint64)
    members = np.zeros((ABOVE + 1, words), np.uint64)
    known: dict[str, np.ndarray] = {}
    position = 0
    for anchored, atoms in sequences:
        for index, atom in enumerate(atoms):
            word, bit = position >> 6, np.uint64(1 << (position & 63))
            if atom not in known:
                known[atom] = _members(atom)
            members[known[atom], word] |= bit
            if index == 0:
                starts[int(anchored), word] |= bit
            if index == len(atoms) - 1:
                ends[word] |= bit
            position += 1
    accepts, kinds = np.unique(members, axis=0, return_inverse=True)
    return kinds.reshape(-1).astype(np.uint16), accepts, starts, ends


def _sequences(pattern: str) -> list[tuple[bool, list[str]]]:
    """The choices of a verbose expression, each as (begins a line, an expression for each of its characters)."""
    sequences: list[tuple[bool, list[str]]] = []
    open_, anchored, cut = [[]], False, False  # type: tuple[list[list[str]], bool, bool]
    for token in [*_TOKEN.findall(pattern), "|"]:
        if token == "|":
            # Of a choice of which nothing is understood, all that is known is that it may match.
            sequences += [(anchored, atoms or [r"[\s\S]"]) for atoms in open_]
            open_, anchored, cut = [[]], False, False
        elif token[0].isspace() or token[0] == "#" or cut:
            continue
        elif token == "^" and open_ == [[]]:
            anchored = True
        elif token == "?":
            open_ += [atoms[:-1] for atoms in open_]
        elif token in "*+{}()$^" or (token[0] == "\\" and token[1] in "bBAZdDSW" + "0123456789"):
            open_, cut = [atoms[:-1] if token in "*{" else atoms for atoms in open_], True
        else:
            open_ = [[*atoms, token] for atoms in open_]
    return sequences


_TOKEN = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\x[0-9A-Fa-f]{2}|\\.|#[^\n]*|\s+|.", re.S)
_BASIC_PLANE = "".join(map(chr, range(0x10000)))
_ABOVE = "\U0001f600\U00020000\U0001d7d8"
"""A symbol, a letter and a digit above the basic plane."""


def _members(atom: str) -> np.ndarray:
    """bool (ABOVE + 1,): the characters that an expression for one character takes; last, whether it takes any above U+FFFF."""
    expression = re.compile(atom, re.S)
    found = np.zeros(ABOVE + 1, bool)
    found[[ord(character) for character in expression.findall(_BASIC_PLANE)]] = True
    found[ABOVE] = expression.search(_ABOVE) is not None
    return found


@njit(cache=True, nogil=True)
def _find(data, offsets, classes, kinds, accepts, starts, ends, spans):  # type: ignore[no-untyped-def]
    """Fills `spans` as far as it reaches and returns how many lines are suspicious."""
    found = 0
    for row in range(offsets.size - 1):
        end = offsets[row + 1]
        index = offsets[row]
        while index < end:
            index = _calm_until(data, index, end, classes)
            if index == end:
                break
            # Most lines never come here, so that only now it is asked where the line begins.
            begin = index
            while begin > offsets[row] and data[begin - 1] != NEWLINE:
                begin -= 1
            index, suspicious, readable = _line(data, index, end, classes)
            if (
                suspicious
                or index - begin > LONGEST_LINE
                or (readable and _is_bad(data, begin, index, kinds, accepts, starts, ends))
            ):
                if found < spans.shape[0]:
                    spans[found, 0], spans[found, 1], spans[found, 2] = row, begin, index
                found += 1
    return found


@njit(cache=True, nogil=True)
def _calm_until(data, index, end, classes):  # type: ignore[no-untyped-def]
    """The first byte that is not ASCII or is a control character."""
    while index + BLOCK <= end:
        calm = True
        for place in range(index, index + BLOCK):
            byte = data[place]
            calm &= (byte < DELETE) & ((byte >= BLANK) | ((byte >= TAB) & (byte <= CARRIAGE_RETURN) & (byte != VERTICAL_TAB)))
        if not calm:
            break
        index += BLOCK
    while index < end and data[index] < 0x80 and not classes[data[index]] & BY_ITSELF:
        index += 1
    return index


@njit(cache=True, nogil=True)
def _line(data, index, end, classes):  # type: ignore[no-untyped-def]
    """(where the line ends, whether ftfy may change it by itself, whether some encoding makes UTF-8 of it or of a part). All
    before `index` is ASCII."""
    suspicious = embedded = False
    # Encodings in which the line can still be UTF-8, those in which it has a sequence, and the last three characters.
    alive, seen = np.int64(EVERY), np.int64(0)
    last = last_but_one = last_but_two = np.int64(0)
    while index < end:
        byte = data[index]
        if byte < 0x80:
            index += 1
            if byte == NEWLINE:
                break
            here = np.int64(classes[byte])
            if here & BY_ITSELF:
                suspicious = True
            if last:
                leading = last & EVERY
                if here & SPECIAL:
                    seen |= leading
                else:
                    alive &= ~leading
                embedded |= bool(here & CONTINUATION) and _ends_sequence(last, last_but_one, last_but_two)
                last_but_two, last_but_one, last = last_but_one, last, here
            continue
        if byte < 0xE0:
            point = np.int64(byte & 0x1F) << 6 | np.int64(data[index + 1] & 0x3F)
            index += 2
        elif byte < 0xF0:
            point = np.int64(byte & 0x0F) << 12 | np.int64(data[index + 1] & 0x3F) << 6 | np.int64(data[index + 2] & 0x3F)
            index += 3
        else:
            # No encoding has these, and ftfy leaves them alone.
            index += 4
            alive, last = np.int64(0), np.int64(0)
            continue
        here = np.int64(classes[point])
        if here & BY_ITSELF:
            suspicious = True
        if not last:
            last_but_one = last_but_two = np.int64(0)
        leading, continuing = here & EVERY, here >> CONTINUING_SHIFT & EVERY
        before = last & EVERY
        alive &= (leading | continuing) & (~before | continuing)
        if not last & SPECIAL:
            alive &= leading | before | (last >> CONTINUING_SHIFT & EVERY)
        seen |= before & continuing
        embedded |= bool(here & CONTINUATION) and _ends_sequence(last, last_but_one, last_but_two)
        last_but_two, last_but_one, last = last_but_one, last, here
    alive &= ~(last & EVERY)
    return index, suspicious, embedded or (alive & seen) != 0


@njit(cache=True, nogil=True)
def _ends_sequence(last, last_but_one, last_but_two):  # type: ignore[no-untyped-def]
    """Whether a continuation character ends a sequence of two, three or four."""
    if last & FIRST_OF_2:
        return True
    if not last & CONTINUATION:
        return False
    if last_but_one & FIRST_OF_3:
        return True
    return bool(last_but_one & CONTINUATION) and bool(last_but_two & FIRST_OF_4)


@njit(cache=True, nogil=True)
def _is_bad(data, begin, end, kinds, accepts, starts, ends):  # type: ignore[no-untyped-def]
    words = ends.size
    state = np.zeros(words, np.uint64)
    index = begin
    one, top = np.uint64(1), np.uint64(63)
    while index < end:
        byte = data[index]
        first = index == begin
        if byte < 0x80:
            point = np.int64(byte)
            index += 1
        elif byte < 0xE0:
            point = np.int64(byte & 0x1F) << 6 | np.int64(data[index + 1] & 0x3F)
            index += 2
        elif byte < 0xF0:
            point = np.int64(byte & 0x0F) << 12 | np.int64(data[index + 1] & 0x3F) << 6 | np.int64(data[index + 2] & 0x3F)
            index += 3
        else:
            point = np.int64(ABOVE)
            index += 4
        kind = kinds[point]
        carry = np.uint64(0)
        for word in range(words):
            before = state[word]
            reached = before << one | carry | starts[0, word]
            if first:
                reached |= starts[1, word]
            carry = before >> top
            # No sequence runs into the next: its last bit ends the search.
            reached &= accepts[kind, word]
            state[word] = reached
            if reached & ends[word]:
                return True
    return False
