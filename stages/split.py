"""Train, validation and test: clusters of similar documents, never single documents, are assigned (DESIGN, Dedup 5).

Clusters are the connected components of pairs with Jaccard >= `threshold` over the whole corpus, whatever the scope
of deduplication, so that no document is held out while a near copy of it is trained on. A cluster's place follows
from a keyed hash of its smallest member's id alone: it stays where it is when documents are added elsewhere.

The shares are probabilities, so a small corpus can leave a split empty: N clusters give an empty validation split
with probability (1 - share)^N. `check` says so, and which share would do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numba
import numpy as np
from pydantic import Field, model_validator

from manifests.identity import keyed_hash, splits_of
from manifests.manifest import SPLITS
from stages.minhash import BandOptions, collision_probability
from stages.shingles import ShingleSets

VERSION = 1
NAME = "split"
SAFE = 0.999
"""`check` proposes a share that leaves no split empty with this probability."""
LEAST_RECALL = 0.5
"""Of pairs at the threshold; bands that find fewer do not keep similar documents together."""
SKETCH = 1 << 14
"""Shingles of a document that `HeldOut` looks at. Beyond it the smallest hashes are a fair sample, from which a Jaccard is
estimated with a standard error of 0.004 at most."""


class SplitError(Exception):
    """A split that was asked for and came out empty."""


class SplitOptions(BandOptions):
    """32 bands of 4 rows find a pair of Jaccard 0.5 with probability 0.873, one of 0.6 with 0.988."""

    validation: float = Field(0.005, ge=0, lt=1, description="share of the clusters held out for validation")
    test: float = Field(0.005, ge=0, lt=1, description="share of the clusters held out for test")
    threshold: float = Field(0.5, gt=0, le=1, description="documents with this Jaccard or more stay together")
    bands: int = Field(32, ge=1, description="bands; documents that agree in a whole band are compared")
    rows: int = Field(4, ge=1, description="minima in a band")
    check_sample: int = Field(
        256, ge=0, le=4096, description="held-out documents that are compared with every document of another split, as a check"
    )

    @model_validator(mode="after")
    def _something_to_train_on(self) -> SplitOptions:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        found = collision_probability(self.threshold, self.bands, self.rows)
        if found < LEAST_RECALL:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows find {found:.1%} of the pairs at Jaccard {self.threshold}: "
                "more bands, fewer rows or a `recall` keep similar documents together"
            )
        return self

    @property
    def shares(self) -> dict[str, float]:
        return {"validation": self.validation, "test": self.test}


def sample_key(seed: int, document_id: str) -> int:
    """Held-out documents with the smallest keys are the sample that is checked."""
    return keyed_hash(f"split check {seed}", document_id)


@dataclass(frozen=True)
class Nearest:
    """For n documents. which (int64): the number of the held-out document of another split that is most like it, of several the
    first, -1 where none shares a shingle. jaccard (float64): theirs. near: pairs of all with the threshold or more."""

    which: np.ndarray
    jaccard: np.ndarray
    near: int


class HeldOut:
    """Held-out documents, which others are compared with: all with all, by an index of their shingles.

    Sets hold the `SKETCH` smallest hashes of a document at most.
    """

    def __init__(self, sets: ShingleSets, splits: Sequence[str]) -> None:
        owner = np.repeat(np.arange(len(sets), dtype=np.int32), np.diff(sets.offsets))
        order = np.argsort(sets.hashes, kind="stable")
        hashes = sets.hashes[order]
        self._sets, self._owner = sets, owner[order]
        self._splits = np.array([SPLITS.index(split) for split in splits], dtype=np.int64)
        first = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])) if len(hashes) else np.empty(0, np.int64)
        self._hashes, self._first = hashes[first], np.append(first, len(hashes))
        self._slots = np.full(1 << max(4, (2 * len(first)).bit_length()), -1, dtype=np.int32)
        _fill_slots(self._hashes, self._slots)

    def nearest(self, sets: ShingleSets, splits: Sequence[str], threshold: float) -> Nearest:
        """Who of the held-out documents is most like each of these."""
        which, jaccard = np.full(len(sets), -1, dtype=np.int64), np.zeros(len(sets))
        numbers = np.array([SPLITS.index(split) for split in splits], dtype=np.int64)
        index = (self._slots, self._hashes, self._first, self._owner, self._sets.offsets, self._sets.hashes, self._splits)
        near = _nearest(*index, sets.offsets, sets.hashes, numbers, SKETCH, threshold, which, jaccard)
        return Nearest(which, jaccard, int(near))


def assign(cluster_ids: Sequence[str], seed: int, shares: Mapping[str, float]) -> list[str]:
    """The split of every document, from the printed id of its cluster's smallest member (its own where it is alone).

    `shares` maps "validation" and "test" to a probability each; the rest is "train".
    """
    unknown = set(shares) - set(SPLITS)
    if unknown or sum(shares.values()) > 1:
        raise ValueError(f"shares {dict(shares)} must be of {SPLITS} and add up to 1 at most")
    return splits_of(cluster_ids, seed, shares)


def check(splits: Iterable[str], shares: Mapping[str, float]) -> None:
    """SplitError when a split with a share above 0 has no document, or train has none."""
    counts = Counter(splits)
    documents = sum(counts.values())
    for name in SPLITS:
        share = shares.get(name, 0.0) if name != SPLITS[0] else 1 - sum(shares.values())
        if share <= 0 or counts[name]:
            continue
        wanted = 1 - (1 - SAFE) ** (1 / documents) if documents else 1.0
        advice = "there are no documents to split"
        if documents and name == SPLITS[0]:
            advice = "hold out less, or bring more documents"
        elif documents:
            advice = f"raise its share to about {_rounded_up(wanted)}, set it to 0, or bring more documents"
        raise SplitError(f"the {name} split is empty: share {share:g} of {documents} documents; {advice}")


def _rounded_up(share: float) -> str:
    """Two digits, upwards."""
    scale = 10 ** (1 - math.floor(math.log10(share)))
    return f"{min(1.0, math.ceil(share * scale) / scale):g}"


@numba.njit(cache=True)
def _fill_slots(hashes: np.ndarray, slots: np.ndarray) -> None:  # pragma: no cover - compiled
    mask = np.uint64(len(slots) - 1)
    for number in range(len(hashes)):
        slot = hashes[number] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number


@numba.njit(cache=True)
def _nearest(
    slots: np.ndarray,
    known: np.ndarray,
    first: np.ndarray,
    owner: np.ndarray,
    held_offsets: np.ndarray,
    held_hashes: np.ndarray,
    held_splits: np.ndarray,
    offsets: np.ndarray,
    hashes: np.ndarray,
    splits: np.ndarray,
    limit: int,
    threshold: float,
    which: np.ndarray,
    jaccard: np.ndarray,
) -> int:  # pragma: no cover - compiled
    """Fills `which` and `jaccard`; returns how many pairs reach the threshold. Jaccards are those of `stages.minhash.jaccard`."""
    mask = np.uint64(len(slots) - 1)
    shared = np.zeros(len(held_splits), dtype=np.int64)
    near = 0
    for row in range(len(splits)):
        mine = hashes[offsets[row] : offsets[row + 1]]
        met = False
        for index in range(len(mine)):
            slot = mine[index] & mask
            while slots[slot] >= 0 and known[slots[slot]] != mine[index]:
                slot = (slot + np.uint64(1)) & mask
            if slots[slot] >= 0:
                for place in range(first[slots[slot]], first[slots[slot] + 1]):
                    shared[owner[place]] += 1
                    met = True
        if not met:
            continue
        for held in range(len(shared)):
            both = shared[held]
            shared[held] = 0
            if both == 0 or held_splits[held] == splits[row]:
                continue
            theirs = held_hashes[held_offsets[held] : held_offsets[held + 1]]
            bound = np.uint64(0xFFFFFFFFFFFFFFFF)
            if len(mine) >= limit:
                bound = min(bound, mine[-1])
            if len(theirs) >= limit:
                bound = min(bound, theirs[-1])
            either = np.searchsorted(mine, bound, side="right") + np.searchsorted(theirs, bound, side="right") - both
            similarity = both / either
            near += similarity >= threshold
            if similarity > jaccard[row]:
                which[row], jaccard[row] = held, similarity
    return near
