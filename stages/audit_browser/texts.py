"""A text cut into pieces for a page: as much as a page holds, with the marked places in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.offending import MOST_PLACES

PAGE_CHARACTERS = 50_000
"""Of one text on one page."""
LEAD = 400
"""Characters shown before the first mark where the text is too long to be shown from its start."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a text, and what it is marked as (None: it is not)."""

    text: str
    mark: str | None = None


@dataclass(frozen=True)
class Shown:
    """The stretch [start, end) of a text of `length` characters, in pieces; `kinds`: what is marked in the whole text."""

    pieces: list[Piece]
    start: int
    end: int
    length: int
    marks: int
    kinds: list[str]

    @property
    def capped(self) -> bool:
        """Are there as many marks as are ever made, so that there may be more places like them?"""
        return self.marks >= MOST_PLACES

    @property
    def before(self) -> int | None:
        """Where the page before this one begins."""
        return None if self.start == 0 else max(0, self.start - PAGE_CHARACTERS)

    @property
    def after(self) -> int | None:
        return None if self.end >= self.length else self.end


def shown(text: str, marks: Sequence[dict[str, Any]], start: int | None = None) -> Shown:
    """The text from `start` on, or from before its first mark where the whole does not fit; a mark is start, end and what."""
    length = len(text)
    if start is None:
        start = max(0, marks[0]["start"] - LEAD) if marks and length > PAGE_CHARACTERS else 0
    start = min(max(0, start), max(0, length - 1))
    end = min(length, start + PAGE_CHARACTERS)
    pieces, at = [], start
    for mark in sorted(marks, key=lambda one: (one["start"], one["end"])):
        low, high = max(mark["start"], at), min(mark["end"], end)
        if low >= high:
            continue
        if at < low:
            pieces.append(Piece(text[at:low]))
        pieces.append(Piece(text[low:high], mark["what"]))
        at = high
    if at < end:
        pieces.append(Piece(text[at:end]))
    return Shown(pieces, start, end, length, len(marks), sorted({mark["what"] for mark in marks}))
