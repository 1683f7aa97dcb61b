"""Near-duplicates: MinHash signatures, bands, candidate pairs and their exact Jaccard (Broder 1997; FineWeb: Penedo
et al. 2024).

Two documents whose shingle sets have Jaccard similarity J agree in one of `bands` bands of `rows` minima with
probability 1 - (1 - J^rows)^bands (`collision_probability`); each such pair is then verified by its exact Jaccard, so
a removal never rests on an estimate. Signatures are datasketch 2's `affine32` scheme: for a shingle's low 32 bits h,
mixed by MurmurHash3's finaliser, the minimum of (a h + b) mod 2^32 with odd a, a bijection in which wrapping is the
modulus and cannot lose bits. They equal `datasketch.MinHash(num_perm=bands * rows, seed=seed, hashfunc=…).hashvalues`
bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, Self

import numba
import numpy as np
from datasketch import MinHash
from pydantic import Field, model_validator

from stages.shingles import MAX_SHINGLES, ShingleOptions, ShingleSets

VERSION = 1
NAME = "minhash"
RULE = "minhash.near_duplicate"
BLOCK = 2048
"""Shingles that are permuted together; they stay in the nearest cache."""
MOST_MINIMA = 8192
"""bands x rows; beyond, signatures would cost more than comparing texts."""


class BandOptions(ShingleOptions):
    """What finds candidate pairs."""

    bands: int = Field(14, ge=1, description="bands; documents that agree in a whole band are compared")
    rows: int = Field(8, ge=1, description="minima in a band")
    threshold: float = Field(0.8, gt=0, le=1, description="a compared pair is a duplicate from this Jaccard on")
    seed: int = Field(1, ge=0, lt=2**32, description="seed of the permutations")
    recall: float | None = Field(
        None, gt=0, lt=1, description="in place of bands and rows: they are chosen to find a pair at the threshold this often"
    )
    max_permutations: int = Field(256, ge=1, le=MOST_MINIMA, description="minima that `recall` can take: bands x rows at most")
    max_bucket: int = Field(1000, ge=2, description="a larger bucket is compared with its first members only")
    bucket_sample: int = Field(64, ge=1, description="how many members, in keep order, that are")

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, given: Any) -> Any:
        """Bands and rows for a `recall`. Those that it chooses may be written beside it, as the manifest does."""
        if not isinstance(given, dict) or not isinstance(given.get("recall"), int | float):
            return given
        numbers = [given.get(name, cls.model_fields[name].default) for name in ("threshold", "max_permutations")]
        if not (isinstance(numbers[0], int | float) and isinstance(numbers[1], int)):
            return given  # the fields themselves say what is wrong
        chosen = dict(zip(("bands", "rows"), choose_parameters(numbers[0], given["recall"], numbers[1]), strict=True))
        if any(name in given and given[name] != number for name, number in chosen.items()):
            written = " and ".join(f"{name} {given[name]}" for name in chosen if name in given)
            raise ValueError(
                f"recall chooses bands and rows (here {chosen['bands']} x {chosen['rows']}), so {written} cannot stand too"
            )
        return {**given, **chosen}

    @model_validator(mode="after")
    def _sample_within_bucket(self) -> Self:
        if self.bands * self.rows > MOST_MINIMA:
            raise ValueError(f"{self.bands} bands of {self.rows} rows are more than {MOST_MINIMA:,} minima")
        if self.bucket_sample > self.max_bucket:
            raise ValueError(f"bucket_sample {self.bucket_sample} is above max_bucket {self.max_bucket}")
        return self

    @property
    def permutations(self) -> int:
        return self.bands * self.rows


class MinHashOptions(BandOptions):
    """The stage's options; a component of higher priority wins before `keep` is asked."""

    scope: Literal["component", "corpus"] = Field("corpus", description="compare within a component, or across all")
    keep: Literal["longest", "first"] = Field("longest", description="who stays: the longest text, or the first id")
    chain: Literal["closure", "direct"] = Field(
        "closure", description="remove whole components, or only what resembles a kept document"
    )


def signatures(sets: ShingleSets, permutations: int, seed: int = 1) -> np.ndarray:
    """uint32 (n, permutations): each set's minima."""
    a, b = _permutations(permutations, seed)
    return _signatures(sets.offsets, sets.hashes, a, b)


def band_keys(signatures: np.ndarray, bands: int, rows: int, scope: np.ndarray | None = None) -> np.ndarray:
    """uint64 (n, bands): a hash of each band's minima, of the band's index, and of `scope` (integers (n,)) where given."""
    if signatures.shape[1] != bands * rows:
        raise ValueError(f"{bands} bands of {rows} rows need {bands * rows} minima; the signatures have {signatures.shape[1]}")
    scopes = np.zeros(len(signatures), dtype=np.uint64) if scope is None else np.asarray(scope).astype(np.uint64)
    return _band_keys(np.ascontiguousarray(signatures), scopes, bands, rows)


def bucket_pairs(keys: np.ndarray, documents: np.ndarray, rank: np.ndarray, options: BandOptions) -> tuple[np.ndarray, int]:
    """Candidate pairs, int64 (p, 2), and the number of pairs skipped.

    `keys` are band keys, uint64 (m,) or (m, bands); row i is of document `documents[i]`; `rank` is indexed by
    document number. A pair has its better-ranked document left; pairs are distinct and sorted. Members of a bucket
    (rows with one key) are all paired; one with more than `max_bucket` pairs its first `bucket_sample` members in
    keep order with each other and with all others, and the pairs left out are counted, once for each such bucket that
    holds them. Documents are best numbered densely: a number is held for each up to the greatest.
    """
    keys = np.asarray(keys, dtype=np.uint64)
    documents = np.asarray(documents, dtype=np.int64)
    if keys.ndim == 2:
        documents = np.repeat(documents, keys.shape[1])
    keys = keys.ravel()
    if not len(keys):
        return np.empty((0, 2), dtype=np.int64), 0
    order = np.lexsort((np.asarray(rank)[documents], keys))
    keys, documents = keys[order], documents[order]
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])
    members = np.diff(starts)
    leaders = np.where(members > options.max_bucket, np.minimum(members, options.bucket_sample), members)
    wanted = leaders * (leaders - 1) // 2 + leaders * (members - leaders)
    skipped = int((members * (members - 1) // 2 - wanted).sum())
    # Rows that lead a bucket, by document, and where each one's bucket ends.
    leading = np.flatnonzero(np.arange(len(keys)) - np.repeat(starts[:-1], members) < np.repeat(leaders, members))
    leading = leading[np.argsort(documents[leading], kind="stable")]
    ends = np.repeat(starts[1:], members)[leading]
    met = np.full(int(documents.max()) + 1, -1, dtype=np.int64)
    count = _bucket_pairs(documents, leading, ends, met, np.empty((0, 2), dtype=np.int64))
    met[:] = -1
    pairs = np.empty((count, 2), dtype=np.int64)
    _bucket_pairs(documents, leading, ends, met, pairs)
    return pairs, skipped


def distinct(values: np.ndarray) -> np.ndarray:
    """`values` sorted, each once."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def distinct_pairs(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers from 0 to 2^32 - 1, each once, sorted by `left` and then `right`."""
    packed = distinct(np.asarray(left).astype(np.uint64) << np.uint64(32) | np.asarray(right).astype(np.uint64))
    return (packed >> np.uint64(32)).astype(np.int64), (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)


def jaccard(sets: ShingleSets, left: np.ndarray, right: np.ndarray, limit: int = MAX_SHINGLES) -> np.ndarray:
    """float64 (p,): |A and B| / |A or B| of rows `left[i]` and `right[i]` of `sets`.

    Exact for sets below `limit`. A set that was cut to its `limit` smallest hashes is a uniform sample of those up to
    its largest; the quotient is then taken over the hashes that both samples would hold, an unbiased estimate from
    about `limit` hashes.
    """
    left, right = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
    return _jaccard(sets.offsets, sets.hashes, left, right, limit)


def collision_probability(similarity: float, bands: int, rows: int) -> float:
    """P(candidate) of a pair with this Jaccard: 1 - (1 - J^rows)^bands."""
    return float(1 - (1 - similarity**rows) ** bands)


def choose_parameters(threshold: float, recall: float = 0.95, max_permutations: int = 256) -> tuple[int, int]:
    """(bands, rows) that find a pair of Jaccard `threshold` with at least probability `recall`.

    Of all choices within `max_permutations` minima it is the one with the fewest candidates below the threshold,
    taking pairs as evenly spread over [0, threshold); at equal numbers the one with fewer minima. ValueError when
    none reaches the recall.
    """
    if not (0 < threshold < 1 and 0 < recall < 1):
        raise ValueError(f"threshold and recall lie between 0 and 1, not {threshold} and {recall}")
    below = (np.arange(200) + 0.5) / 200 * threshold
    choices: list[tuple[float, int, int, int]] = []
    for rows in range(1, max_permutations + 1):
        for bands in range(1, max_permutations // rows + 1):
            if collision_probability(threshold, bands, rows) < recall:
                continue
            choices.append((float(np.mean(1 - (1 - below**rows) ** bands)), bands * rows, bands, rows))
            break  # more bands of these rows only add candidates
    if not choices:
        raise ValueError(f"no bands and rows within {max_permutations} minima reach recall {recall} at Jaccard {threshold}")
    _, _, bands, rows = min(choices)
    return bands, rows


@lru_cache(maxsize=8)
def _permutations(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = MinHash(num_perm=count, seed=seed, scheme="affine32").permutations
    return np.ascontiguousarray(a, dtype=np.uint32), np.ascontiguousarray(b, dtype=np.uint32)


@numba.njit(cache=True)
def _signatures(
    offsets: np.ndarray, hashes: np.ndarray, a: np.ndarray, b: np.ndarray
) -> np.ndarray:  # pragma: no cover - compiled
    """One permutation after the other over a block of shingles: a minimum over a block is what vectors are good at."""
    rows = len(offsets) - 1
    minima = np.full((rows, len(a)), np.uint32(0xFFFFFFFF), dtype=np.uint32)
    mixed = np.empty(BLOCK, dtype=np.uint32)
    for row in range(rows):
        for begin in range(offsets[row], offsets[row + 1], BLOCK):
            some = hashes[begin : min(begin + BLOCK, offsets[row + 1])]
            block = mixed[: len(some)]
            for index in range(len(some)):
                h = np.uint32(some[index] & np.uint64(0xFFFFFFFF))
                h ^= h >> np.uint32(16)
                h = np.uint32(h * np.uint32(0x85EBCA6B))
                h ^= h >> np.uint32(13)
                h = np.uint32(h * np.uint32(0xC2B2AE35))
                block[index] = h ^ (h >> np.uint32(16))
            for permutation in range(len(a)):
                times, plus, minimum = a[permutation], b[permutation], minima[row, permutation]
                for index in range(len(block)):
                    minimum = min(minimum, np.uint32(times * block[index] + plus))
                minima[row, permutation] = minimum
    return minima


@numba.njit(cache=True)
def _mixed(value: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    """The finaliser of SplitMix64 (Steele et al. 2014), a bijection of 64 bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True)
def _band_keys(minima: np.ndarray, scopes: np.ndarray, bands: int, rows: int) -> np.ndarray:  # pragma: no cover - compiled
    keys = np.empty((len(minima), bands), dtype=np.uint64)
    step = np.uint64(0x9E3779B97F4A7C15)
    for document in range(len(minima)):
        for band in range(bands):
            key = _mixed(_mixed(scopes[document] + step) ^ np.uint64(band))
            for row in range(rows):
                key = _mixed((key + step) ^ np.uint64(minima[document, band * rows + row]))
            keys[document, band] = key
    return keys


@numba.njit(cache=True)
def _bucket_pairs(
    documents: np.ndarray, leading: np.ndarray, ends: np.ndarray, met: np.ndarray, pairs: np.ndarray
) -> int:  # pragma: no cover - compiled
    """Counts the distinct pairs of leading rows' documents with those behind them in their buckets; fills `pairs` where it has
    room for them. One document's buckets are looked at together, so that pairs met in several bands take no memory."""
    at = 0
    first = 0
    for place in range(len(leading)):
        row = leading[place]
        left = documents[row]
        if place and documents[leading[place - 1]] != left:
            first = at
        for other in range(row + 1, ends[place]):
            right = documents[other]
            if right != left and met[right] != left:
                met[right] = left
                if len(pairs):
                    pairs[at, 0] = left
                    pairs[at, 1] = right
                at += 1
        if len(pairs) and (place + 1 == len(leading) or documents[leading[place + 1]] != left):
            pairs[first:at, 1].sort()
    return at


@numba.njit(cache=True)
def _jaccard(
    offsets: np.ndarray, hashes: np.ndarray, left: np.ndarray, right: np.ndarray, limit: int
) -> np.ndarray:  # pragma: no cover - compiled
    result = np.empty(len(left), dtype=np.float64)
    for pair in range(len(left)):
        i, i_end = offsets[left[pair]], offsets[left[pair] + 1]
        j, j_end = offsets[right[pair]], offsets[right[pair] + 1]
        bound = np.uint64(0xFFFFFFFFFFFFFFFF)
        if i_end - i >= limit:
            bound = min(bound, hashes[i_end - 1])
        if j_end - j >= limit:
            bound = min(bound, hashes[j_end - 1])
        both, either = 0, 0
        while True:
            left_open = i < i_end and hashes[i] <= bound
            right_open = j < j_end and hashes[j] <= bound
            if not left_open and not right_open:
                break
            either += 1
            if left_open and right_open and hashes[i] == hashes[j]:
                both += 1
                i += 1
                j += 1
            elif not right_open or (left_open and hashes[i] < hashes[j]):
                i += 1
            else:
                j += 1
        result[pair] = both / either if either else 1.0
    return result
