"""Shingle sets: what near-duplicate detection compares (Broder 1997; DEFINITIONS, MinHash).

A shingle is 5 consecutive words of the text in NFC, lower-cased, joined by one space; in scripts written without spaces
it is 10 consecutive characters with white space left out. It stands as 64 bits: xxh3_64 of its UTF-8.

- **Scripts.** A language label decides where there is one; without (null, `und`) the text does: more than half of its
  letters belong to an unspaced script (`stages.scripts`). Ten characters, because a Chinese word has about two: ten Han
  characters are as specific as five words.
- **Short texts.** A text with fewer words (characters) than a shingle has one pseudo-shingle, the hash of all of it
  behind a NUL. It equals no shingle of another text, so short texts are compared exactly and share no bucket with
  others.
- **Huge texts.** Of a document with more than `MAX_SHINGLES` distinct shingles the smallest hashes are kept, so many: a
  uniform sample of the whole document (a bottom-k sketch), not its beginning. `stages.minhash.jaccard` knows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from stages.normal_form import NormalForms, characters, move, normal_forms, ones, trailing_zeros, white_space
from stages.scripts import UNSPACED_SCRIPTS
from stages.stage import Options
from stages.xxh3 import LONGEST, avalanche, mix, xxh3_64

VERSION = 1
MAX_SHINGLES = 1 << 20
"""Distinct shingles kept of one document: 8 MiB of hashes, the text of a book of about 7 MB."""

UNSPACED_LANGUAGES = frozenset(["zh", "ja", "th", "lo", "km", "my", "bo", "dz", "yue", "wuu", "lzh", "nan", "gan", "hak"])
"""Written without spaces between words. `nan`, `gan` and `hak` in Han characters, as they mostly are."""


class ShingleOptions(Options):
    words: int = Field(5, ge=1, description="words in a shingle")
    characters: int = Field(10, ge=1, description="characters in a shingle of a script without spaces")
    hash: Literal["xxh3", "sha1"] = Field("xxh3", description="hash of a shingle: xxh3_64, or the first 8 bytes of SHA-1 (slow)")


@dataclass(frozen=True)
class ShingleSets:
    """Document i's distinct shingles are `hashes[offsets[i]:offsets[i + 1]]`, uint64, ascending.

    `offsets` is int64 (n + 1,).
    """

    offsets: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.hashes[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: np.ndarray) -> ShingleSets:
        return ShingleSets.of([self[int(row)] for row in rows])

    @staticmethod
    def of(sets: Sequence[np.ndarray]) -> ShingleSets:
        """From one ascending array a document."""
        offsets = np.zeros(len(sets) + 1, dtype=np.int64)
        np.cumsum([len(each) for each in sets], out=offsets[1:])
        return ShingleSets(offsets, np.concatenate([np.empty(0, dtype=np.uint64), *sets]))


def shingle_sets(
    texts: pa.Array, languages: pa.Array | None = None, options: ShingleOptions | None = None, limit: int = MAX_SHINGLES
) -> ShingleSets:
    """The shingle set of every text (a null counts as the empty text)."""
    options = options or ShingleOptions()
    forms = normal_forms(texts)
    by_character = _by_character(forms, languages)
    sizes = np.where(by_character, options.characters, options.words).astype(np.int64)
    units = np.empty(len(forms.bounds), np.int64)
    _count_units(forms.data, forms.bounds, by_character, units)
    places = np.zeros(len(units) + 1, np.int64)
    np.cumsum(np.maximum(units - sizes + 1, 1), out=places[1:])
    hashes = np.empty(int(places[-1]), np.uint64)
    ends = np.empty(int(units.max(initial=0)) + 1, np.int64)
    longest = LONGEST if options.hash == "xxh3" else -1
    others = _hash_all(forms.data, forms.bounds, by_character, sizes, places, hashes, ends, longest)
    for place, start, end in others.tolist():
        hashes[place] = _hash(forms.data[start:end].tobytes(), options.hash)
    offsets = _keep_distinct(hashes, places, limit)
    return ShingleSets(offsets, hashes[: offsets[-1]].copy())


def is_unspaced(text: str, language: str | None = None) -> bool:
    """Is the text written without spaces between words? See the module for how label and script decide."""
    if language is not None and language != "und":
        return re.split("[-_]", language, maxsplit=1)[0] in UNSPACED_LANGUAGES
    if text.isascii():
        return False
    unspaced = len(_UNSPACED.findall(text))
    if unspaced == 0 or 2 * unspaced > len(text):
        return unspaced > 0
    return unspaced > len(_LETTER.findall(_UNSPACED.sub("", text)))


_UNSPACED = re.compile(
    "[" + "".join(f"{chr(first)}-{chr(last)}" for ranges in UNSPACED_SCRIPTS.values() for first, last in ranges) + "]"
)
_LETTER = re.compile(r"[^\W\d_]")


def _by_character(forms: NormalForms, languages: pa.Array | None) -> np.ndarray:
    """Which texts are shingled by characters: `is_unspaced` of each."""
    by_script = forms.unspaced > forms.letters
    if languages is None:
        return by_script
    labels = languages.to_pylist()
    of_label = {label: is_unspaced("", label) for label in set(labels) - {None, "und"}}
    return np.array([of_label.get(label, script) for label, script in zip(labels, by_script.tolist(), strict=True)], np.bool_)


def _hash(piece: bytes, name: str) -> int:
    """64 bits of a shingle; the low 32 of "sha1" are those of datasketch's sha1_hash32."""
    if name == "sha1":
        return int.from_bytes(hashlib.sha1(piece, usedforsecurity=False).digest()[:8], "little")
    return xxhash.xxh3_64_intdigest(piece)


@numba.njit(cache=True, nogil=True)
def _count_units(
    form: np.ndarray, bounds: np.ndarray, by_character: np.ndarray, units: np.ndarray
) -> None:  # pragma: no cover - compiled
    """Counts the words of every row, or its characters; takes the spaces out of the rows that are taken by characters."""
    for row in range(len(bounds)):
        place, end = bounds[row, 0], bounds[row, 1]
        count = 0
        if by_character[row]:
            at = place
            while place < end:
                size = min(end - place, 64)
                if white_space(form, place) & _first(size) == 0:
                    if at < place:
                        move(form, place, at)
                    count += ones(characters(form, at) & _first(size))
                    at += size
                else:
                    for here in range(place, place + size):
                        byte = form[here]
                        form[at] = byte
                        at += byte != 32
                        count += byte != 32 and (byte & 0xC0) != 0x80
                place += size
            bounds[row, 1] = at
        else:
            count += end > place
            while place < end:
                count += ones(white_space(form, place) & _first(end - place))
                place += 64
        units[row] = count


@numba.njit(cache=True, nogil=True)
def _first(count: int) -> np.uint64:  # pragma: no cover - compiled
    """The lowest `count` bits, or all 64."""
    return np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - min(count, 64))


@numba.njit(cache=True, nogil=True)
def _hash_all(
    form: np.ndarray,
    bounds: np.ndarray,
    by_character: np.ndarray,
    sizes: np.ndarray,
    places: np.ndarray,
    hashes: np.ndarray,
    ends: np.ndarray,
    longest: int,
) -> np.ndarray:  # pragma: no cover - compiled
    """Writes the hashes of row i's shingles to hashes[places[i]:places[i + 1]]; returns (place, start, end) of those that have
    more than `longest` bytes of `form` and are left to the caller. `ends` is room for the ends of a row's units."""
    others = np.empty((16, 3), np.int64)
    other = 0
    for row in range(len(bounds)):
        begin, end = bounds[row, 0], bounds[row, 1]
        gap = 0 if by_character[row] else 1  # between the end of a unit and the start of the next
        units = 0
        place = begin
        while place < end:
            if by_character[row]:
                found = characters(form, place) & _first(end - place)
                if place == begin:
                    found &= ~np.uint64(1)
            else:
                found = white_space(form, place) & _first(end - place)
            while found:
                ends[units] = place + trailing_zeros(found)
                units += 1
                found &= found - np.uint64(1)
            place += 64
        if end > begin:
            ends[units] = end
            units += 1
        size = sizes[row]
        count = units - size + 1
        if count < 1:
            count, units, size = 1, 1, 1
            begin -= 1  # the NUL before the form
            ends[0] = end
        start = begin
        for shingle in range(count):
            stop = ends[shingle + size - 1]
            length = stop - start
            if gap and 16 < length <= 64 and length <= longest:
                # What xxh3_64 does with this many bytes, which most shingles have; it would guess half of the branches wrong.
                value = np.uint64(length) * np.uint64(0x9E3779B185EBCA87)
                inner = mix(form, start + 16, 32) + mix(form, stop - 32, 48)
                value += inner if length > 32 else np.uint64(0)
                hashes[places[row] + shingle] = avalanche(value + mix(form, start, 0) + mix(form, stop - 16, 16))
            elif length <= longest:
                hashes[places[row] + shingle] = xxh3_64(form, start, stop)
            else:
                if other == len(others):
                    larger = np.empty((2 * other, 3), np.int64)
                    larger[:other] = others
                    others = larger
                others[other, 0] = places[row] + shingle
                others[other, 1] = start
                others[other, 2] = stop
                other += 1
            start = ends[shingle] + gap
    return others[:other]


FEW = 24
"""Values that are sorted by insertion; more of one bucket, which only repeated shingles give, are sorted by numba."""
MOST_BUCKETS = 1 << 16


@numba.njit(cache=True, nogil=True)
def _keep_distinct(hashes: np.ndarray, places: np.ndarray, limit: int) -> np.ndarray:  # pragma: no cover - compiled
    """Moves each row's distinct hashes, ascending and at most `limit`, to the front of `hashes`; returns their offsets.

    Hashes are spread evenly, so a bucket for each by its leading bits leaves next to nothing to sort.
    """
    offsets = np.zeros(len(places), np.int64)
    largest = 0
    for row in range(len(places) - 1):
        largest = max(largest, places[row + 1] - places[row])
    sorted_ = np.empty(largest, np.uint64)
    starts = np.empty(min(2 * largest, MOST_BUCKETS) + 2, np.int64)
    at = 0
    for row in range(len(places) - 1):
        mine = hashes[places[row] : places[row + 1]]
        bits = 1
        while (1 << bits) < min(len(mine), MOST_BUCKETS):
            bits += 1
        shift = np.uint64(64 - bits)
        starts[: (1 << bits) + 1] = 0
        for index in range(len(mine)):
            starts[(mine[index] >> shift) + np.uint64(1)] += 1
        for bucket in range(1 << bits):
            starts[bucket + 1] += starts[bucket]
        for index in range(len(mine)):
            bucket = mine[index] >> shift
            sorted_[starts[bucket]] = mine[index]
            starts[bucket] += 1
        # Now starts[b] is where bucket b ends.
        first = at
        begin = 0
        for bucket in range(1 << bits):
            end = starts[bucket]
            if end - begin > FEW:
                sorted_[begin:end].sort()
            else:
                for index in range(begin + 1, end):
                    value = sorted_[index]
                    other = index - 1
                    while other >= begin and sorted_[other] > value:
                        sorted_[other + 1] = sorted_[other]
                        other -= 1
                    sorted_[other + 1] = value
            begin = end
        for index in range(len(mine)):
            if at - first == limit:
                break
            if at == first or sorted_[index] != hashes[at - 1]:
                hashes[at] = sorted_[index]
                at += 1
        offsets[row + 1] = at
    return offsets
