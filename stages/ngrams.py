"""Texts as they are compared with benchmarks, and an index of n-grams that a batch of texts is scanned with.

A text is compared as *units*: words after NFC, lower-casing (`str.lower`), deletion of punctuation and symbols (Unicode
categories P and S), and splitting at white space, over the whole text, lines or not; or, in scripts without spaces, the
characters that are left after the same deletion, white space deleted as well.

Words are read from the UTF-8 of a batch by tables of code points (`stages.kernels.ngrams`). A text whose normal form or lower
case depends on more than single code points (some combining marks, the capital sigma, the dotted I) is first prepared by
Python itself and then read like any other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import numpy as np
import pyarrow as pa

from stages import code_points, text_buffers
from stages.kernels import ngrams as kernels

BITS_A_GRAM = 8
"""Of the Bloom filter: one place in sixteen that holds nothing passes it, and it stays in a cache of a megabyte or two."""

PREPARED_AT_ONCE = 1 << 12
"""Texts of a benchmark; more memory is not needed for Python's copies of them."""

EXEMPT = -1
"""Instead of an item: a phrase that is not looked for."""


@dataclass(frozen=True)
class Hit:
    """An n-gram of the index that stands in a text: units first to last of it (words, or characters)."""

    first: int
    last: int
    gram: int


@dataclass(frozen=True)
class Passages:
    """What n-grams are taken from: passage i gives all of lengths[i] units that stand in units starts[i] to ends[i] of `units`;
    it belongs to items[i], or is not looked for where that is EXEMPT."""

    units: Units
    starts: np.ndarray
    ends: np.ndarray
    lengths: np.ndarray
    items: np.ndarray


@dataclass(frozen=True)
class Units:
    """The units of n texts, one after the other: text k has those from starts[k] to starts[k + 1]; see `Grams`."""

    plain: np.ndarray
    bounds: np.ndarray
    hashes: np.ndarray
    starts: np.ndarray


def words(text: str) -> list[str]:
    """The words that are compared."""
    prepared = _prepared(text)
    if not prepared.isascii():
        prepared = _BEYOND_ASCII.sub(lambda run: _deleted().sub("", run.group()), prepared)
    return prepared.translate(_DELETED_ASCII).split()


def characters(text: str) -> str:
    """The characters that are compared: as `words`, joined by nothing."""
    return "".join(words(text))


def without_surrogates(text: str) -> str:
    """With U+FFFD, which is a symbol, for every half surrogate: JSON can spell what UTF-8 cannot."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def unit_counts(texts: Sequence[str], by_character: bool) -> np.ndarray:
    """How many units each text has, int64."""
    data, offsets = _buffers(texts)
    counts = np.empty(len(texts), np.int64)
    kernels.unit_counts(data, offsets, _trusting(), by_character, counts)
    return counts


def units_of(texts: Sequence[str], by_character: bool) -> Units:
    """The units of texts."""
    data, offsets = _buffers(texts)
    counts = np.empty(len(texts), np.int64)
    size = kernels.unit_counts(data, offsets, _trusting(), by_character, counts)
    total = int(counts.sum())
    units = Units(
        np.empty(size, np.uint8),
        np.empty(total + 1, np.int32 if size <= np.iinfo(np.int32).max else np.int64),
        np.empty(total, np.uint64),
        np.concatenate([[0], np.cumsum(counts)]),
    )
    kernels.units(data, offsets, _trusting(), by_character, units.plain, units.bounds, units.hashes)
    return units


def _buffers(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The prepared UTF-8 of texts."""
    chunks = [pa.array([], pa.large_string())]
    for first in range(0, len(texts), PREPARED_AT_ONCE):
        some = texts[first : first + PREPARED_AT_ONCE]
        chunks.append(pa.array([_prepared(without_surrogates(text)) for text in some], pa.large_string()))
    return text_buffers.of(pa.concat_arrays(chunks))


class NgramIndex:
    """Distinct n-grams of passages, and which items each of them belongs to.

    totals (int64): of every item, its distinct n-grams, exempt ones left out.
    """

    def __init__(self, passages: Passages, items: int) -> None:
        units = passages.units
        counts = passages.ends - passages.starts - passages.lengths + 1
        before = np.cumsum(counts) - counts
        places = np.repeat(passages.starts - before, counts)
        places += np.arange(len(places))
        sizes = np.repeat(passages.lengths.astype(np.int32), counts)
        mixed = np.empty(len(places), np.uint64)
        kernels.gram_hashes(units.hashes, places, sizes, mixed)
        numbers, firsts = np.empty(len(places), np.int32), np.empty(len(places), np.int32)
        known = kernels.number(units.plain, units.bounds, places, sizes, mixed, _slots(len(places)), numbers, firsts)
        firsts = firsts[:known]
        of_item = np.repeat(passages.items.astype(np.int32), counts)
        # N-grams that are exempt are left out, and so are those of exempt phrases alone.
        wanted = np.zeros(known, bool)
        wanted[numbers[of_item >= 0]] = True
        wanted[numbers[of_item < 0]] = False
        kept = firsts[wanted]
        renumbered = np.cumsum(wanted) - 1
        rows = (of_item >= 0) & wanted[numbers]
        pairs = renumbered[numbers[rows]] * np.int64(items) + of_item[rows]
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        gram_of, item_of = np.divmod(pairs, max(items, 1))
        self.items = item_of.astype(np.int32)
        """Items of n-gram g, ascending: items[first[g]:first[g + 1]]."""
        self.first = np.concatenate([[0], np.cumsum(np.bincount(gram_of, minlength=len(kept)))]).astype(np.int32)
        self.totals = np.bincount(self.items, minlength=items)
        lengths = np.flatnonzero(np.bincount(sizes[kept]))
        leads = np.empty(len(kept), np.uint64)
        if len(kept):
            kernels.gram_hashes(units.hashes, places[kept], np.full(len(kept), lengths[0], np.int32), leads)
        slots, bits = _slots(len(kept)), np.zeros(_power(BITS_A_GRAM * len(kept) // 64), np.uint64)
        kernels.enter(mixed[kept], leads, slots, bits)
        self.grams = kernels.Grams(
            plain=units.plain,
            bounds=units.bounds,
            places=places[kept].astype(units.bounds.dtype),
            sizes=sizes[kept],
            hashes=mixed[kept],
            slots=slots,
            bits=bits,
            lengths=lengths,
            powers=np.array([pow(int(kernels.MULTIPLIER), int(length), 1 << 64) for length in lengths], np.uint64),
        )

    def __len__(self) -> int:
        return len(self.grams.hashes)

    @property
    def bytes(self) -> int:
        """Of memory."""
        return sum(array.nbytes for array in (*self.grams, self.items, self.first, self.totals))

    def of_gram(self, gram: int) -> list[int]:
        found: list[int] = self.items[self.first[gram] : self.first[gram + 1]].tolist()
        return found


def scan(texts: pa.Array, by_word: NgramIndex, by_character: NgramIndex) -> Iterator[tuple[int, bool, list[Hit]]]:
    """(row, by character or by word, hits in the order of the text) for every text, and kind of unit, with hits; rows ascending.

    A null is an empty text. Characters are compared only in texts with one that is not ASCII.
    """
    data, offsets = text_buffers.of(texts)
    rows = len(offsets) - 1
    if rows == 0 or offsets[0] == offsets[-1]:
        return
    unread = np.zeros(rows, np.bool_)
    hits = kernels.scan(data, offsets, _tables(), by_word.grams, by_character.grams, unread)
    others = np.flatnonzero(unread)
    if others.size:
        prepared = pa.array([_prepared(texts[int(row)].as_py()) for row in others], pa.large_string())
        data, offsets = text_buffers.of(prepared)
        found = kernels.scan(data, offsets, _trusting(), by_word.grams, by_character.grams, np.zeros(rows, np.bool_))
        found[:, kernels.ROW] = others[found[:, kernels.ROW]]
        hits = np.concatenate([hits, found])
        hits = hits[np.argsort(hits[:, kernels.ROW], kind="stable")]
    for (row, kind), group in groupby(hits.tolist(), key=lambda hit: hit[: kernels.PLACE]):
        sizes = (by_character if kind else by_word).grams.sizes
        yield row, bool(kind), [Hit(place, place + int(sizes[gram]), gram) for _, _, place, gram in group]


def _prepared(text: str) -> str:
    """The text in NFC and lower case."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text).lower()


_SURROGATE = re.compile("[\ud800-\udfff]")
_BEYOND_ASCII = re.compile("[^\0-\x7f]+")
_DELETED_ASCII = {point: None for point in range(0x80) if unicodedata.category(chr(point))[0] in "PS"}


@cache
def _deleted() -> re.Pattern[str]:
    """A run of code points of the categories P and S; in ASCII it would be slow."""
    marks = (character for character in _characters() if unicodedata.category(character)[0] in "PS")
    return re.compile("[" + "".join(map(re.escape, marks)) + "]+")


@cache
def _tables() -> kernels.Tables:
    classes, lower = _classes(), _lower()
    forms, pairs = _forms()
    ascii_table = np.array([classes[point] or lower[point] for point in range(0x80)], np.uint8)
    changed = np.flatnonzero(lower != np.arange(lower.size))[-1] + 1
    return kernels.Tables(ascii_table, _trimmed(classes), lower[:changed].copy(), _trimmed(forms), pairs)


@cache
def _trusting() -> kernels.Tables:
    """For prepared texts, which are taken as they are."""
    return _tables()._replace(forms=np.empty(0, np.uint16))


def _classes() -> np.ndarray:
    classes = np.zeros(code_points.LAST_PLANE, np.uint8)
    classes[[category[0] in "PS" for category in map(unicodedata.category, _characters())]] = kernels.DELETED
    classes[list(map(str.isspace, _characters()))] = kernels.SPACE
    return classes


def _lower() -> np.ndarray:
    """`str.lower` of single code points; those that become several are left as they are, and must be prepared."""
    lower = np.arange(code_points.LAST_PLANE, dtype=np.int32)
    for point, changed in enumerate(map(str.lower, _characters())):
        if len(changed) == 1:
            lower[point] = ord(changed)
    return lower


def _forms() -> tuple[np.ndarray, np.ndarray]:
    """(uint16 by code point, int64 pairs), see `kernels.Tables`: whether NFC may be another text (Unicode's quick check says no,
    or maybe and the pair composes: UAX 15), or lower case depends on neighbours or has more than one character."""
    forms = np.fromiter(map(unicodedata.combining, _characters()), np.uint16, code_points.LAST_PLANE)
    unsure = [ord(CAPITAL_SIGMA), *(point for first, last in HANGUL_SECOND for point in range(first, last + 1))]
    unsure += [point for point, lowered in enumerate(map(str.lower, _characters())) if len(lowered) > 1]
    pairs = []
    for point, decomposition in enumerate(map(unicodedata.decomposition, _characters())):
        if not decomposition or decomposition[0] == "<":  # "<": a compatible one, which NFC does not look at
            continue
        parts = [int(part, 16) for part in decomposition.split()]
        if unicodedata.is_normalized("NFC", chr(point)):
            pairs.append(parts)
        else:
            unsure.append(point)
    forms[[second for _, second in pairs]] |= kernels.MAYBE
    forms[unsure] |= kernels.PREPARE
    return forms, np.array(sorted(first << kernels.POINT_BITS | second for first, second in pairs), np.int64)


def _characters() -> Iterator[str]:
    return map(chr, range(code_points.LAST_PLANE))


CAPITAL_SIGMA = "Σ"
"""Its lower case is another letter at the end of a word."""

HANGUL_SECOND = ((0x1161, 0x1175), (0x11A8, 0x11C2))
"""Vowels and final consonants that compose with what stands before them, by rule and not by table."""


def _slots(entries: int) -> np.ndarray:
    """A free hash table, at most three quarters of which they will fill."""
    return np.full(_power(entries + entries // 3), kernels.UNKNOWN, np.int32)


def _power(least: int) -> int:
    """The smallest power of two that is larger."""
    return 1 << int(least).bit_length()


def _trimmed(table: np.ndarray) -> np.ndarray:
    return table[: np.flatnonzero(table)[-1] + 1].copy()
