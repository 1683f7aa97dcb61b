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

from pydantic import Field, model_validator

from manifests.identity import keyed_hash
from manifests.manifest import SPLITS
from stages.minhash import BandOptions

VERSION = 1
NAME = "split"
SAFE = 0.999
"""`check` proposes a share that leaves no split empty with this probability."""


class SplitError(Exception):
    """A split that was asked for and came out empty."""


class SplitOptions(BandOptions):
    """32 bands of 4 rows find a pair of Jaccard 0.5 with probability 0.873, one of 0.6 with 0.988."""

    validation: float = Field(0.005, ge=0, lt=1, description="share of the clusters held out for validation")
    test: float = Field(0.005, ge=0, lt=1, description="share of the clusters held out for test")
    threshold: float = Field(0.5, gt=0, le=1, description="documents with this Jaccard or more stay together")
    bands: int = Field(32, ge=1, description="bands; documents that agree in a whole band are compared")
    rows: int = Field(4, ge=1, description="minima in a band")

    @model_validator(mode="after")
    def _something_to_train_on(self) -> SplitOptions:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        return self

    @property
    def shares(self) -> dict[str, float]:
        return {"validation": self.validation, "test": self.test}


def assign(cluster_ids: Sequence[str], seed: int, shares: Mapping[str, float]) -> list[str]:
    """The split of every document, from the printed id of its cluster's smallest member (its own where it is alone).

    `shares` maps "validation" and "test" to a probability each; the rest is "train".
    """
    unknown = set(shares) - set(SPLITS)
    if unknown or sum(shares.values()) > 1:
        raise ValueError(f"shares {dict(shares)} must be of {SPLITS} and add up to 1 at most")
    bounds: list[tuple[int, str]] = []
    total = 0.0
    for name in SPLITS[1:]:
        total += shares.get(name, 0.0)
        bounds.append((int(total * 2**64), name))
    found: dict[str, str] = {}
    for cluster in cluster_ids:
        if cluster not in found:
            place = keyed_hash(f"split {seed}", cluster)
            found[cluster] = next((name for bound, name in bounds if place < bound), SPLITS[0])
    return [found[cluster] for cluster in cluster_ids]


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
