"""The form in which texts are compared: NFC, lower-cased (`str.lower`), runs of Unicode white space one space, none at the ends.

Deduplication asks for it: whole documents, lines, and the words of shingles. `normalised` is the definition; `normal_forms`
does the same to a batch of UTF-8, 64 bytes at a time where they are ASCII and by tables of code points where they are not. A
text that may not be in NFC goes through Python's own function first; few do.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stages import text_buffers
from stages.code_points import LAST_PLANE
from stages.scripts import UNSPACED_SCRIPTS

_intrinsic: Any = intrinsic  # it takes the typing context away from what it decorates, which no type says

SLACK = 64
"""Bytes that can be read behind the last form, and before the first."""

COMBINING = 0xFF
SPACE, UNSPACED, LETTER, LOWERED, BEGINS, JOINS, NOT_NFC, CASED, PASSED_OVER = (1 << bit for bit in range(8, 17))
"""Bits of the table. COMBINING: the canonical combining class. LETTER: of a script with spaces. LOWERED: has another lower case.
BEGINS: may be composed with what follows; JOINS: with what stands before it. NOT_NFC: stands in no text that is in NFC. CASED and
PASSED_OVER decide with the neighbours of a capital sigma whether a word ends there (Unicode 3.13, Final_Sigma)."""

UNCOMMON = COMBINING | SPACE | LOWERED | JOINS | NOT_NFC
"""A character with none of these bits stands in the form as it stands in the text."""

SIGMA, DOTTED_I = ord("Σ"), ord("İ")
SMALL_SIGMA, FINAL_SIGMA, DOT_ABOVE = ord("σ"), ord("ς"), 0x0307


class NormalForms(NamedTuple):
    """n texts in their form. `data` is uint8; text i is data[bounds[i, 0]:bounds[i, 1]] (bounds is int64 (n, 2)), and the byte
    before it is 0. `unspaced` and `letters`, int64 (n,), count characters of scripts without spaces and letters of all others.

    `data` lies in memory that the next call uses again: whoever wants to keep something copies it.
    """

    data: np.ndarray
    bounds: np.ndarray
    unspaced: np.ndarray
    letters: np.ndarray


def normalised(text: str) -> str:
    """`text` in its form."""
    if not text.isascii():  # ASCII is in NFC already
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.lower().split())


def normal_forms(texts: pa.Array) -> NormalForms:
    """The form of every text of a column; a null counts as the empty text."""
    data, offsets = text_buffers.of(texts)
    rows = len(offsets) - 1
    bounds, counts = np.empty((rows, 2), np.int64), np.empty((rows, 2), np.int64)
    table, lower = _tables()
    form = _room(_size_of_forms(offsets))
    end = _read(data, offsets, table, lower, False, form, SLACK, bounds, counts)
    left = np.flatnonzero(bounds[:, 1] < 0)
    if len(left):
        prepared = [unicodedata.normalize("NFC", texts[int(row)].as_py()) for row in left]
        more, more_offsets = text_buffers.of(pa.array(prepared, pa.large_string()))
        if end + _size_of_forms(more_offsets) > len(form):
            larger = np.empty(end + _size_of_forms(more_offsets), np.uint8)
            larger[:end] = form[:end]
            form = larger
        some_bounds, some_counts = np.empty((len(left), 2), np.int64), np.empty((len(left), 2), np.int64)
        _read(more, more_offsets, table, lower, True, form, end, some_bounds, some_counts)
        bounds[left], counts[left] = some_bounds, some_counts
    return NormalForms(form, bounds, counts[:, 0].copy(), counts[:, 1].copy())


LENT_BYTES = 64 << 20
"""Larger forms, which only the largest documents have, get memory that is given back at once."""

_lent = np.empty(0, np.uint8)


def _room(size: int) -> np.ndarray:
    """Memory that is kept and lent again: with fresh memory for every batch, much of the time goes to page faults."""
    global _lent
    if size > LENT_BYTES:
        return np.empty(size, np.uint8)
    if len(_lent) < size:
        _lent = np.empty(2 * size if 2 * size <= LENT_BYTES else size, np.uint8)
    return _lent


def _size_of_forms(offsets: np.ndarray) -> int:
    """A character of two bytes can have a lower case of three at most; every form has a byte before it."""
    size = int(offsets[-1] - offsets[0])
    return SLACK + size + size // 2 + len(offsets) + SLACK


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """(uint32 by code point: the bits above; int32 by code point: its lower case). What stands above their ends has no bit."""
    table, lower = np.zeros(LAST, np.uint32), np.arange(LAST, dtype=np.int32)
    for point in (*range(LAST_PLANE), *range(TAGS, LAST)):
        character = chr(point)
        category = unicodedata.category(character)
        if category in ("Cn", "Co", "Cs"):
            continue
        small = character.lower()
        table[point] |= (
            unicodedata.combining(character)
            | SPACE * character.isspace()
            | LETTER * (character.isalnum() and category != "Nd")
            | LOWERED * (small != character)
            | NOT_NFC * (unicodedata.normalize("NFC", character) != character)
            | CASED * _ends_with_final_sigma(character)
            | PASSED_OVER * (_ends_with_final_sigma("A" + character) and not _ends_with_final_sigma(character))
        )
        lower[point] = ord(small[0])
        parts = [int(part, 16) for part in unicodedata.decomposition(character).split() if part[0] != "<"]
        if len(parts) == 2 and unicodedata.normalize("NFC", chr(parts[0]) + chr(parts[1])) == character:
            table[point] |= BEGINS  # what it is composed of may be composed otherwise with a mark that follows
            table[parts[0]] |= BEGINS
            table[parts[1]] |= JOINS
    for first, last, bit in HANGUL:
        table[first : last + 1] |= bit
    for ranges in UNSPACED_SCRIPTS.values():
        for first, last in ranges:
            table[first : last + 1] &= ~np.uint32(LETTER)
            table[first : last + 1] |= UNSPACED
    return table[: np.flatnonzero(table)[-1] + 1].copy(), lower[: np.flatnonzero(table & LOWERED)[-1] + 1].copy()


def _ends_with_final_sigma(before: str) -> bool:
    return (before + "Σ").lower()[-1] == "ς"


TAGS, LAST = 0xE0000, 0xE0200
"""Tags and variation selectors are passed over. Beyond the end and in the planes between, no code point has a bit."""

HANGUL = ((0x1100, 0x1112, BEGINS), (0x1161, 0x1175, JOINS), (0x11A8, 0x11C2, JOINS), (0xAC00, 0xD7A3, BEGINS))
"""Syllables are composed by arithmetic (Unicode 3.12): leading, vowel and trailing letters, and what is composed."""


@numba.njit(cache=True, nogil=True)
def _read(  # pragma: no cover - compiled
    data: np.ndarray,
    offsets: np.ndarray,
    table: np.ndarray,
    lower: np.ndarray,
    prepared: bool,
    form: np.ndarray,
    at: int,
    bounds: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Writes the form of every row to `form` from `at` on; returns where the last one ends. A row that has to be prepared
    gets -1 for its end. Where `prepared` says so, rows are in NFC."""
    for row in range(len(offsets) - 1):
        place, end = offsets[row], offsets[row + 1]
        form[at] = 0
        at += 1
        origin = at
        unspaced, letters = 0, 0
        spaced = True  # the last byte of the form is a space, or there is none yet
        before, mark = np.uint32(0), np.uint32(0)  # the last character that is no mark, and the class of the last mark
        while place < end:
            if data[place] < 0x80 and place + 64 <= len(data):
                size = min(end - place, 64)
                inside = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - size)
                white = white_space(data, place) & inside
                spare = white & ((white << np.uint64(1)) | np.uint64(spaced))
                stop = trailing_zeros(spare | _beyond_ascii(data, place) | ~inside)
                if stop:
                    _copy_lower(data, place, form, at)
                    seen = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - stop)
                    letters += ones(_letters(data, place) & seen)
                    spaced = (white >> np.uint64(stop - 1)) & np.uint64(1) != 0
                    place += stop
                    at += stop
                    before, mark = table[data[place - 1]], np.uint32(0)
                if stop < size and (spare >> np.uint64(stop)) & np.uint64(1):
                    place += trailing_zeros(~(white >> np.uint64(stop)))
                continue
            point, size = _point(data, place, end)
            if size == 0:
                at = -1
                break
            kind = table[point] if point < len(table) else np.uint32(0)
            unspaced += (kind & UNSPACED) != 0
            letters += (kind & LETTER) != 0
            if kind & UNCOMMON == 0:
                before, mark, spaced = kind, np.uint32(0), False
                if place + 4 <= len(data):
                    _copy_four(data, place, form, at)
                    at += size
                else:
                    at = _write(form, at, point)
                place += size
                continue
            order = kind & np.uint32(COMBINING)
            if not prepared and (kind & NOT_NFC or (kind & JOINS and before & BEGINS) or (order and order < mark)):
                at = -1
                break
            mark = order
            if order == 0:
                before = kind
            if kind & SPACE:
                form[at] = 32
                at += not spaced
                spaced = True
            else:
                spaced = False
                if point == SIGMA:
                    at = _write(form, at, FINAL_SIGMA if _ends_a_word(data, offsets[row], place, end, table) else SMALL_SIGMA)
                elif point == DOTTED_I:
                    form[at] = 0x69
                    at = _write(form, at + 1, DOT_ABOVE)
                else:
                    at = _write(form, at, lower[point] if kind & LOWERED else point)
            place += size
        if at < 0:
            bounds[row, 0], bounds[row, 1] = 0, -1
            at = origin - 1
            continue
        if at > origin and spaced:
            at -= 1
        bounds[row, 0], bounds[row, 1] = origin, at
        counts[row, 0], counts[row, 1] = unspaced, letters
    return at


@numba.njit(cache=True, nogil=True)
def _ends_a_word(data: np.ndarray, start: int, place: int, end: int, table: np.ndarray) -> bool:  # pragma: no cover - compiled
    """Is the sigma at `place` of the text data[start:end] the last letter of a word of two or more?"""
    at = place
    kind = np.uint32(PASSED_OVER)
    while kind & PASSED_OVER:
        if at == start:
            return False
        at -= 1
        while at > start and (data[at] & 0xC0) == 0x80:
            at -= 1
        point, _ = _point(data, at, end)
        kind = table[point] if point < len(table) else np.uint32(0)
    if not kind & CASED:
        return False
    at = place + 2
    kind = np.uint32(PASSED_OVER)
    while kind & PASSED_OVER:
        if at >= end:
            return True
        point, size = _point(data, at, end)
        if size == 0:
            return True
        at += size
        kind = table[point] if point < len(table) else np.uint32(0)
    return not kind & CASED


@numba.njit(cache=True, nogil=True)
def _point(data: np.ndarray, place: int, end: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """(code point, its bytes); 0 bytes where the text ends within a character."""
    first: int = data[place]
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        if place + 2 > end:
            return 0, 0
        return (first & 0x1F) << 6 | (data[place + 1] & 0x3F), 2
    if first < 0xF0:
        if place + 3 > end:
            return 0, 0
        return (first & 0x0F) << 12 | (data[place + 1] & 0x3F) << 6 | (data[place + 2] & 0x3F), 3
    if place + 4 > end:
        return 0, 0
    return ((first & 0x07) << 18 | (data[place + 1] & 0x3F) << 12 | (data[place + 2] & 0x3F) << 6 | (data[place + 3] & 0x3F)), 4


@numba.njit(cache=True, nogil=True)
def _write(form: np.ndarray, at: int, point: int) -> int:  # pragma: no cover - compiled
    """The UTF-8 of a code point to `form` at `at`; where it ends."""
    if point < 0x80:
        form[at] = point
        return at + 1
    if point < 0x800:
        form[at] = 0xC0 | point >> 6
        form[at + 1] = 0x80 | point & 0x3F
        return at + 2
    if point < 0x10000:
        form[at] = 0xE0 | point >> 12
        form[at + 1] = 0x80 | point >> 6 & 0x3F
        form[at + 2] = 0x80 | point & 0x3F
        return at + 3
    form[at] = 0xF0 | point >> 18
    form[at + 1] = 0x80 | point >> 12 & 0x3F
    form[at + 2] = 0x80 | point >> 6 & 0x3F
    form[at + 3] = 0x80 | point & 0x3F
    return at + 4


# 64 bytes at a time. LLVM's vectors become whatever vectors the machine has.

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_BLOCK = ir.VectorType(_BYTE, 64)


def _every(value: int) -> ir.Constant:
    return ir.Constant(_BLOCK, [value] * 64)


def _within(builder: Any, block: Any, first: int, count: int) -> Any:
    """Which bytes are among the `count` from `first` on."""
    return builder.icmp_unsigned("<", builder.sub(block, _every(first)), _every(count))


def _is_space(builder: Any, block: Any) -> Any:
    """ASCII's white space as str.split has it: tab to carriage return, the four separators, space."""
    controls = builder.or_(_within(builder, block, 0x09, 5), _within(builder, block, 0x1C, 4))
    return builder.or_(controls, builder.icmp_unsigned("==", block, _every(0x20)))


def _is_letter(builder: Any, block: Any) -> Any:
    return _within(builder, builder.or_(block, _every(0x20)), 0x61, 26)


def _is_beyond_ascii(builder: Any, block: Any) -> Any:
    return builder.icmp_unsigned(">=", block, _every(0x80))


def _begins_a_character(builder: Any, block: Any) -> Any:
    return builder.icmp_unsigned("!=", builder.and_(block, _every(0xC0)), _every(0x80))


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    found = context.make_array(kind)(context, builder, array)
    return builder.bitcast(builder.gep(found.data, [at]), _BLOCK.as_pointer())


def _mask(test: Callable[[Any, Any], Any]) -> Any:
    """A compiled function of (data, at): bit i says whether `test` holds for byte at + i, i < 64."""

    def function(typing_context: Any, data: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            block = builder.load(_address(context, builder, signature.args[0], *arguments), align=1)
            return builder.bitcast(test(builder, block), _WORD)

        return types.uint64(data, types.intp), generate

    return _intrinsic(function)


white_space, characters = _mask(_is_space), _mask(_begins_a_character)
_letters, _beyond_ascii = _mask(_is_letter), _mask(_is_beyond_ascii)


@_intrinsic
def move(typing_context: Any, form: Any, at: Any, to: Any) -> Any:
    """Copies 64 bytes within an array; both places may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = builder.load(_address(context, builder, signature.args[0], *arguments[:2]), align=1)
        builder.store(block, _address(context, builder, signature.args[0], arguments[0], arguments[2]), align=1)
        return context.get_dummy_value()

    return types.void(form, types.intp, types.intp), generate


@_intrinsic
def _copy_four(typing_context: Any, data: Any, at: Any, form: Any, to: Any) -> Any:
    """Copies four bytes; a loop over one to four would be a call."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        four = ir.IntType(32).as_pointer()
        source, target = (_address(context, builder, signature.args[i], *arguments[i : i + 2]) for i in (0, 2))
        value = builder.load(builder.bitcast(source, four), align=1)
        builder.store(value, builder.bitcast(target, four), align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, form, types.intp), generate


@_intrinsic
def _copy_lower(typing_context: Any, data: Any, at: Any, form: Any, to: Any) -> Any:
    """Copies 64 bytes: capitals become small, white space becomes a space."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = builder.load(_address(context, builder, signature.args[0], *arguments[:2]), align=1)
        small = builder.select(_within(builder, block, 0x41, 26), builder.or_(block, _every(0x20)), block)
        result = builder.select(_is_space(builder, block), _every(0x20), small)
        builder.store(result, _address(context, builder, signature.args[2], *arguments[2:]), align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, form, types.intp), generate


@_intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Of a uint64; 64 of 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), generate


@_intrinsic
def ones(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.intp(types.uint64), generate
