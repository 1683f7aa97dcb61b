"""Shingle sets: what near-duplicate detection compares (Broder 1997; DEFINITIONS, MinHash).

A shingle is 5 consecutive words of the text in NFC, lower-cased, joined by one space; in scripts written without spaces it is 10
consecutive characters with white space left out. It stands as 64 bits: xxh3_64 of its UTF-8.

- **Scripts.** A language label decides where it names a language written with or without spaces; without one (null, `und`) the
  text decides: more than half of its characters that are no white space are in an unspaced script. Ten characters, because a
  Chinese word has about two: ten Han characters are as specific as five words.
- **Short texts.** A text with fewer words (characters) than a shingle has one pseudo-shingle, the hash of its whole normalised
  form behind a NUL. It equals no shingle of any other text, so short texts are compared exactly and share no bucket with others.
- **Huge texts.** Of a document with more than `MAX_SHINGLES` distinct shingles the smallest `MAX_SHINGLES` hashes are kept: a uniform
  sample over the whole document (a bottom-k sketch), not its beginning. `stages.minhash.jaccard` knows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from stages.exact_dedup import normalised
from stages.stage import Options

VERSION = 1
MAX_SHINGLES = 1 << 20
"""Distinct shingles kept of one document: 8 MiB of hashes, the text of a book of about 7 MB."""

UNSPACED_LANGUAGES = frozenset(["zh", "ja", "th", "lo", "km", "my", "bo", "dz", "yue", "wuu", "lzh", "nan", "gan", "hak"])
"""Written without spaces between words; `nan`, `gan`, `hak` in Han characters, as fastText's training data has them."""

UNSPACED_CHARACTERS = re.compile(
    "[\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff"  # Tibetan
    "\u1000-\u109f\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b\u300a-\u300f]"  # their punctuation
)


class ShingleOptions(Options):
    words: int = Field(5, ge=1, description="words in a shingle")
    characters: int = Field(10, ge=1, description="characters in a shingle of a script without spaces")
    hash: Literal["xxh3", "sha1"] = Field("xxh3", description="hash of a shingle: xxh3_64, or the first 8 bytes of SHA-1")


@dataclass(frozen=True)
class ShingleSets:
    """Document i's distinct shingles are `hashes[offsets[i]:offsets[i + 1]]`, ascending uint64; `offsets` is int64 (n + 1,)."""

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
    labels = [None] * len(texts) if languages is None else languages.to_pylist()
    sets = []
    for text, label in zip(texts.to_pylist(), labels, strict=True):
        hashes = np.unique(_hashes(text or "", label, options))
        sets.append(hashes[:limit])
    return ShingleSets.of(sets)


def is_unspaced(text: str, language: str | None = None) -> bool:
    """Is the text written without spaces between words? See the module for how label and script decide."""
    if language is not None and language != "und":
        return re.split("[-_]", language, maxsplit=1)[0] in UNSPACED_LANGUAGES
    if text.isascii():
        return False
    visible = "".join(text.split())
    return 2 * len(UNSPACED_CHARACTERS.findall(visible)) > len(visible)


def _hashes(text: str, language: str | None, options: ShingleOptions) -> np.ndarray:
    """uint64 hashes of every shingle of one text, repeats included; never empty."""
    form = normalised(text)
    pieces = form.split(" ")
    if is_unspaced(form, language):
        size, letters = options.characters, "".join(pieces)
        joined = letters.encode()
        bounds = _character_bounds(letters, joined)
        starts, ends = bounds[:-size], bounds[size:]
    else:
        size, joined = options.words, form.encode()
        spaces = np.flatnonzero(np.frombuffer(joined, dtype=np.uint8) == ord(" "))
        starts = np.concatenate([[0], spaces + 1])[: max(0, len(spaces) + 2 - size)]
        ends = np.concatenate([spaces, [len(joined)]])[size - 1 :]
        if not joined:
            starts = starts[:0]
    if not len(starts):
        return np.array([_hash(b"\0" + form.encode(), options.hash)], dtype=np.uint64)
    if options.hash == "sha1":
        found = [_hash(joined[start:end], "sha1") for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    else:
        digest = xxhash.xxh3_64_intdigest
        found = [digest(joined[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(found, dtype=np.uint64)


def _hash(piece: bytes, name: str) -> int:
    """64 bits of a shingle; the low 32 of "sha1" are those of datasketch's sha1_hash32."""
    if name == "sha1":
        return int.from_bytes(hashlib.sha1(piece, usedforsecurity=False).digest()[:8], "little")
    return xxhash.xxh3_64_intdigest(piece)


def _character_bounds(text: str, encoded: bytes) -> np.ndarray:
    """Byte offsets at which the characters of `text` start in its UTF-8, and its end."""
    lead = (np.frombuffer(encoded, dtype=np.uint8) & 0xC0) != 0x80
    return np.concatenate([np.flatnonzero(lead), [len(encoded)]])
