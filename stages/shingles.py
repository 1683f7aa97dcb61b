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

from stages.exact_dedup import normalised
from stages.scripts import UNSPACED_SCRIPTS
from stages.stage import Options
from stages.xxh3 import LONGEST, xxh3_64

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
    data, bounds, by_character = _prepared(texts, languages)
    sizes = np.where(by_character, options.characters, options.words).astype(np.int64)
    room = np.maximum(np.where(by_character, bounds[:, 1] - bounds[:, 0], (bounds[:, 1] - bounds[:, 0]) // 2 + 1), 1)
    places = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
    hashes = np.empty(int(places[-1]), dtype=np.uint64)
    longest = LONGEST if options.hash == "xxh3" else -1
    form, counts, others = _hash_all(data, bounds, by_character, sizes, places, hashes, longest)
    for place, start, end in others.tolist():
        hashes[place] = _hash(form[start:end].tobytes(), options.hash)
    for row in range(len(bounds)):
        hashes[places[row] : places[row] + counts[row]].sort()
    offsets = _keep_distinct(hashes, places, counts, limit)
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


def _prepared(texts: pa.Array, languages: pa.Array | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """UTF-8 of all texts in one buffer, where each lies in it (int64 (n, 2)), and which are shingled by characters.

    ASCII texts lie there as they are, all others in their normalised form; the kernel lower-cases ASCII and collapses
    white space, which changes nothing in the latter.
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = texts.cast(pa.large_string()).fill_null("")
    _, offset_buffer, data_buffer = texts.buffers()
    ends = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    bounds = np.stack([ends[:-1], ends[1:]], axis=1)
    labels: Sequence[str | None] = [None] * len(texts) if languages is None else languages.to_pylist()
    beyond_ascii = _beyond_ascii(raw, bounds)
    by_character = np.zeros(len(texts), dtype=np.bool_)
    forms: list[bytes] = []
    size = len(raw)
    for row, label in enumerate(labels):
        if beyond_ascii[row]:
            form = normalised(texts[row].as_py())
            forms.append(form.encode())
            by_character[row] = is_unspaced(form, label)
            bounds[row] = size, size + len(forms[-1])
            size += len(forms[-1])
        elif label is not None:
            by_character[row] = is_unspaced("", label)
    # Always a copy: an array that may not be written to is another type, for which the kernel would be compiled again.
    raw = np.concatenate([raw, np.frombuffer(b"".join(forms), dtype=np.uint8)])
    return raw, bounds, by_character


def _hash(piece: bytes, name: str) -> int:
    """64 bits of a shingle; the low 32 of "sha1" are those of datasketch's sha1_hash32."""
    if name == "sha1":
        return int.from_bytes(hashlib.sha1(piece, usedforsecurity=False).digest()[:8], "little")
    return xxhash.xxh3_64_intdigest(piece)


@numba.njit(cache=True)
def _beyond_ascii(data: np.ndarray, bounds: np.ndarray) -> np.ndarray:  # pragma: no cover - compiled
    found = np.zeros(len(bounds), dtype=np.bool_)
    for row in range(len(bounds)):
        every = np.uint8(0)
        for at in range(bounds[row, 0], bounds[row, 1]):
            every |= data[at]
        found[row] = every >= 0x80
    return found


@numba.njit(cache=True)
def _hash_all(
    data: np.ndarray,
    bounds: np.ndarray,
    by_character: np.ndarray,
    sizes: np.ndarray,
    places: np.ndarray,
    hashes: np.ndarray,
    longest: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    """Hashes of row i's shingles from `hashes[places[i]]` on.

    Returns the forms that were hashed, the number of shingles of each row, and (place, start, end) of those in `form`
    that have more than `longest` bytes and are left to the caller.
    """
    total, largest = 0, 0
    for row in range(len(bounds)):
        length = bounds[row, 1] - bounds[row, 0]
        total += length + 1
        largest = max(largest, length)
    form = np.empty(total, dtype=np.uint8)
    starts = np.empty(largest + 1, dtype=np.int64)
    ends = np.empty(largest + 1, dtype=np.int64)
    counts = np.zeros(len(bounds), dtype=np.int64)
    others = np.empty((16, 3), dtype=np.int64)
    other = 0
    at = 0
    for row in range(len(bounds)):
        origin = at
        form[at] = 0
        at += 1
        units = 0
        if by_character[row]:
            for place in range(bounds[row, 0], bounds[row, 1]):
                byte = data[place]
                if byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31:
                    continue
                if (byte & 0xC0) != 0x80:
                    starts[units] = at
                    if units:
                        ends[units - 1] = at
                    units += 1
                form[at] = byte + 32 if 65 <= byte <= 90 else byte
                at += 1
            if units:
                ends[units - 1] = at
        else:
            inside = False
            for place in range(bounds[row, 0], bounds[row, 1]):
                byte = data[place]
                if byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31:  # ASCII's white space, as str.split has it
                    if inside:
                        ends[units] = at
                        units += 1
                        inside = False
                    continue
                if not inside:
                    if units:
                        form[at] = 32
                        at += 1
                    starts[units] = at
                    inside = True
                form[at] = byte + 32 if 65 <= byte <= 90 else byte
                at += 1
            if inside:
                ends[units] = at
                units += 1
        size = sizes[row]
        count = units - size + 1
        whole = count < 1
        count = max(count, 1)
        for shingle in range(count):
            start = origin if whole else starts[shingle]
            end = at if whole else ends[shingle + size - 1]
            if end - start <= longest:
                hashes[places[row] + shingle] = xxh3_64(form, start, end)
                continue
            if other == len(others):
                larger = np.empty((2 * other, 3), dtype=np.int64)
                larger[:other] = others
                others = larger
            others[other, 0] = places[row] + shingle
            others[other, 1] = start
            others[other, 2] = end
            other += 1
        counts[row] = count
    return form, counts, others[:other]


@numba.njit(cache=True)
def _keep_distinct(
    hashes: np.ndarray, places: np.ndarray, counts: np.ndarray, limit: int
) -> np.ndarray:  # pragma: no cover - compiled
    """Moves each row's distinct hashes, at most `limit`, to the front of `hashes`; returns their offsets."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    at = 0
    for row in range(len(counts)):
        first = at
        for place in range(places[row], places[row] + counts[row]):
            if at == first or hashes[place] != hashes[at - 1]:
                if at - first == limit:
                    break
                hashes[at] = hashes[place]
                at += 1
        offsets[row + 1] = at
    return offsets
