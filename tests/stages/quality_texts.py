"""Two classes of texts that a classifier can learn to tell apart, made of words by a seeded generator."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

GOOD = (
    "valley harbour library gardener teacher winter lantern patient curious because although remember described returned".split()
)
SPAM = "casino bonus cheap click offer deal subscribe winner jackpot discount shipping coupon promo viral".split()
SHARED = "the of and a to in is it was for on with as his that he be at by this".split()
FAST = ("--dimensions", "5", "--epochs", "20", "--rate", "0.5")
"""Options of `quality train` for a small model that is sure of itself."""


def text(kind: str, number: int, words: int = 60) -> str:
    """A text of `kind`, the same for the same number."""
    chance = random.Random(f"{kind} {number}")
    own = {"good": GOOD, "spam": SPAM, "mixed": GOOD + SPAM}[kind]
    return " ".join(chance.choice(SHARED if chance.random() < 0.5 else own) for _ in range(words)).capitalize() + "."


def texts(kind: str, count: int, first: int = 0) -> list[str]:
    return [text(kind, number) for number in range(first, first + count)]


def write(path: Path, contents: Iterable[str]) -> Path:
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in contents), encoding="utf-8")
    return path
