"""How much of each component the tokenizer's sample takes, from what the split counted: as much as the run that the corpus is
made for will, by its mixture.

Tokens are not known before there is a tokenizer, so shares are of training bytes. A component that has less than its share is
used whole, and what it lacks is given to the others in proportion to theirs.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from manifests.mixture import MixtureError, MixtureRecipe, read_mixture, weights_of
from manifests.storage import Folder, StorageError
from pipeline.inputs import InputError

WHOLE = 10**9
"""Shares are whole billionths, so that what follows from them is exact arithmetic on any machine."""
NEVER = 1e-12
"""Chance at most that a component offers less than is wanted of it, though it has that much."""
WITHOUT_LANGUAGE = "und"


@dataclass
class Counted:
    """Training documents of a component: `sizes`, class → documents and UTF-8 bytes, where class c holds those of 2^(c-1) to
    2^c - 1 bytes (class 0: the empty ones); `languages`, language → bytes."""

    sizes: dict[int, tuple[int, int]]
    languages: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.languages.values())

    @staticmethod
    def of(values: Iterable[Mapping[str, Any]]) -> Counted:
        """The sum of what `SizeCounter.values` gave for parts."""
        sizes: dict[int, tuple[int, int]] = {}
        languages: Counter[str] = Counter()
        for one in values:
            languages.update(one["languages"])
            for name, (documents, size) in one["sizes"].items():
                before = sizes.get(int(name), (0, 0))
                sizes[int(name)] = (before[0] + documents, before[1] + size)
        return Counted(dict(sorted(sizes.items())), dict(sorted(languages.items())))

    def capped(self, cap: int) -> tuple[int, int]:
        """(least, most) bytes that can remain when every document is cut to `cap` bytes between characters; equal where no class
        lies on both sides of the cap."""
        least = most = 0
        shortest = max(1, cap - 3)  # a cut that falls into a character of four bytes
        for number, (documents, size) in self.sizes.items():
            low, high = (1 << number) >> 1, (1 << number) - 1
            if high <= cap:
                least, most = least + size, most + size
            else:
                # min(length, shortest) is concave in the length: least when every document is as short or as long as it can be.
                base = min(low, shortest)
                least += documents * base + (size - documents * low) * (shortest - base) // max(1, high - low)
                most += min(size, documents * cap)
        return least, most


class SizeCounter:
    """Counts the training documents of a part."""

    def __init__(self) -> None:
        self.sizes: dict[int, list[int]] = {}
        self.languages: Counter[str] = Counter()

    def add(self, lengths: np.ndarray, languages: list[str | None]) -> None:
        """UTF-8 bytes and language of each document."""
        classes = np.frexp(lengths.astype(np.float64))[1]  # bit length: lengths are far below 2^53
        for number in np.unique(classes).tolist():
            mine = lengths[classes == number]
            total = self.sizes.setdefault(number, [0, 0])
            total[0], total[1] = total[0] + len(mine), total[1] + int(mine.sum())
        for language, length in zip(languages, lengths.tolist(), strict=True):
            self.languages[language or WITHOUT_LANGUAGE] += length

    def values(self) -> dict[str, Any]:
        """JSON whose size does not grow with the number of documents."""
        sizes = {str(number): total for number, total in sorted(self.sizes.items())}
        return {"sizes": sizes, "languages": dict(sorted(self.languages.items()))}


def check_mixture(path: str, components: Collection[str]) -> None:
    """MixtureError when the file at `path` is no mixture of these components."""
    for phase in _read(path).phases:
        for name in phase.weights or {}:
            if name not in components:
                near = difflib.get_close_matches(name, components, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(components))}"
                raise MixtureError(f"there is no component {name!r}{hint}")


def shares(path: str | None, counted: Mapping[str, Counted]) -> dict[str, int]:
    """Billionths of the sample that each component should have: over the phases of the mixture, the sum of share times weight.

    Without a mixture each has its share of the training bytes. Components without training documents count as empty.
    """
    try:
        mixture = MixtureRecipe() if path is None else _read(path)
    except MixtureError as error:  # it was right when the recipe was read
        raise InputError(f"{path}: {error}") from None
    sizes = {name: one.bytes for name, one in counted.items()}
    if not sum(sizes.values()):
        return dict.fromkeys(counted, 0)
    languages = {name: one.languages for name, one in counted.items()}
    phases = [weights_of(phase, sizes, languages) for phase in mixture.phases]
    return {
        name: round(WHOLE * math.fsum(part * phase[name] for part, phase in zip(mixture.shares, phases, strict=True)))
        for name in counted
    }


def budgets(total: int, wanted: Mapping[str, int], available: Mapping[str, int]) -> dict[str, int]:
    """Component → bytes, in the proportions `wanted`, of at most `total` bytes and of what is `available`.

    Components that have no more than their share are taken whole; what they lack is divided among the others in proportion, until
    none has less than its share or none is left.
    """
    found = dict.fromkeys(wanted, 0)
    left, others = total, [name for name in wanted if wanted[name]]
    while others:
        parts = sum(wanted[name] for name in others)
        short = [name for name in others if available[name] * parts <= left * wanted[name]]
        if not short:
            found.update({name: left * wanted[name] // parts for name in others})
            break
        found.update({name: available[name] for name in short})
        left -= sum(available[name] for name in short)
        others = [name for name in others if name not in short]
    return found


def bounds(total: int, wanted: Mapping[str, int], counted: Mapping[str, Counted], cap: int) -> dict[str, int]:
    """Component → the largest 64-bit sample key with which a document is offered, -1 for none: together they offer what
    `budgets` will take of `total` bytes, whatever lies between the least and the most that documents of a class can have."""
    least = {name: one.capped(cap)[0] for name, one in counted.items()}
    # The less a component has, the more is asked of the others: with the least of all, every budget is as large as it can be.
    budget = budgets(total, wanted, least)
    found = {}
    for name, one in counted.items():
        longest = min(cap, (1 << max(one.sizes, default=0)) - 1)
        found[name] = offered(budget[name], least[name], longest)
    return found


def offered(budget: int, least: int, longest: int) -> int:
    """Documents whose 64-bit sample key is at most this are offered: they hold `budget` bytes, but for a chance of `NEVER`.

    least: bytes the component has at least; longest: bytes of its longest document at most, after the cap.
    With every document taken with probability p, the sum lies t below its mean with a chance of at most
    exp(-t² / 2 Σ E x²) (Maurer 2003), and Σ E x² is at most p · least · longest.
    """
    everything = (1 << 64) - 1
    if budget >= least:
        return everything
    if not budget:
        return -1
    spread = math.sqrt(2 * -math.log(NEVER) * longest)
    root = (spread + math.sqrt(spread * spread + 4 * budget)) / 2  # of the mean, p · least
    return min(everything, int(root * root / least * everything))


def _read(path: str) -> MixtureRecipe:
    parent, _, name = path.rpartition("/")
    try:
        text = Folder(parent or "/").read(name).decode()
    except (OSError, StorageError, UnicodeDecodeError) as error:
        raise MixtureError(f"cannot be read: {error}") from None
    return read_mixture(text)
