"""Documents that are unrelated, and copies of known Jaccard among them: what a comparison of near-duplicate removal runs on.

An unrelated document is made of sentences drawn from all of the test data's texts, so two of them share one by chance at most.
A copy has some words of its original replaced by words that stand nowhere else, far enough apart that each of them changes five
5-grams: of n words with k replaced, the Jaccard of copy and original is (n - 4 - 5k) / (n - 4 + 5k) where no 5-gram stands twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.real.documents import documents

SENTENCES = 25
"""In a document: about 2.6 kB."""
COPIES = 0.15
WORDS = 5
"""In a shingle."""
TARGETS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
"""Jaccards that copies come near to, in turns."""


@dataclass(frozen=True)
class Planted:
    """texts, in an order in which copies stand anywhere; copies: number of the copy → (number of its original, their Jaccard)."""

    texts: list[str]
    copies: dict[int, tuple[int, float]]


def planted(count: int, seed: int = 1) -> Planted:
    """`count` documents, of which the share COPIES are copies of others, each of another original."""
    chance = np.random.default_rng(seed)
    pool = sentences()
    copied = int(COPIES * count)
    originals = [" ".join(pool[index] for index in chance.integers(len(pool), size=SENTENCES)) for _ in range(count - copied)]
    place = chance.permutation(count)
    texts = [""] * count
    for number, text in enumerate(originals):
        texts[place[number]] = text
    copies = {}
    for number in range(copied):
        text, similarity = copy_of(originals[number], TARGETS[number % len(TARGETS)], number, chance)
        texts[place[len(originals) + number]] = text
        copies[int(place[len(originals) + number])] = int(place[number]), similarity
    return Planted(texts, copies)


def copy_of(text: str, target: float, number: int, chance: np.random.Generator) -> tuple[str, float]:
    """(copy, its Jaccard with `text`), the nearest to `target` that replaced words can reach."""
    words = text.split(" ")
    shingles = len(words) - WORDS + 1
    room = np.arange(WORDS - 1, len(words) - WORDS + 1, WORDS)
    replaced = min(len(room), round(shingles * (1 - target) / (1 + target) / WORDS))
    for at in chance.choice(room, replaced, replace=False):
        words[at] = f"copy{number}word{at}"
    mine, copied = ({tuple(each[at : at + WORDS]) for at in range(shingles)} for each in (text.lower().split(" "), words))
    copied = {tuple(word.lower() for word in shingle) for shingle in copied}
    return " ".join(words), len(mine & copied) / len(mine | copied)


@cache
def sentences() -> list[str]:
    """Every distinct sentence of 8 to 40 words, white space collapsed."""
    found: dict[str, None] = {}
    for text in documents():
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            words = sentence.split()
            if 8 <= len(words) <= 40:
                found[" ".join(words)] = None
    return list(found)
