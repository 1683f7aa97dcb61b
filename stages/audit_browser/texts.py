"""Texts as a page shows them: as much as a page holds, what is marked at the top, and long stretches without a mark folded away;
two texts in rows, where what they share stands side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.offending import MOST_PLACES

PAGE_CHARACTERS = 50_000
"""Of one text on one page."""
LEAD = 400
"""Characters shown before the first mark where the text is too long to be shown from its start."""
AROUND, LINES_AROUND = 300, 4
"""Characters and lines that stay beside a mark, at most."""
FOLDED_FROM = 1_200
"""Characters: a longer stretch without a mark is folded away but for those beside marks."""
APART = 200
"""Characters: marks that are closer to each other are one place to look at."""
LONGEST_IN_ROWS = 500_000
"""Characters of two texts together that are put side by side in rows: half a second of processor."""
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Piece:
    """A stretch of a text, and what it is marked as (None: it is not). place: the number of the place that begins with it.
    folded: it is to be opened before it is read."""

    text: str
    mark: str | None = None
    place: int | None = None
    folded: bool = False


@dataclass(frozen=True)
class Shown:
    """The stretch [start, end) of a text of `length` characters, in pieces; `kinds`: what is marked in the whole text. places: to
    look at in the whole text, several marks each; the last one here is `last_place`."""

    pieces: list[Piece]
    start: int
    end: int
    length: int
    marks: int
    kinds: list[str]
    places: int

    @property
    def capped(self) -> bool:
        """Are there as many marks as are ever made, so that there may be more places like them?"""
        return self.marks >= MOST_PLACES

    @property
    def first_place(self) -> int | None:
        return next((piece.place for piece in self.pieces if piece.place is not None), None)

    @property
    def last_place(self) -> int | None:
        return max((piece.place for piece in self.pieces if piece.place is not None), default=None)

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
    marks = sorted(marks, key=lambda one: (one["start"], one["end"]))
    if start is None:
        start = max(0, marks[0]["start"] - LEAD) if marks and length > PAGE_CHARACTERS else 0
    start = min(max(0, start), max(0, length - 1))
    end = min(length, start + PAGE_CHARACTERS)
    pieces: list[Piece] = []
    at, place, reached = start, 0, -APART - 1
    for mark in marks:
        begins = mark["start"] - reached > APART
        place += begins
        reached = max(reached, mark["end"])
        low, high = max(mark["start"], at), min(mark["end"], end)
        if low >= high:
            continue
        pieces += _plain(text[at:low], after_mark=bool(pieces), before_mark=True)
        named = {piece.place for piece in pieces}
        pieces.append(Piece(text[low:high], mark["what"], None if place in named else place))
        at = high
    if at < end:
        pieces += _plain(text[at:end], after_mark=bool(pieces), before_mark=False)
    return Shown(pieces, start, end, length, len(marks), sorted({mark["what"] for mark in marks}), place)


def _plain(text: str, after_mark: bool, before_mark: bool) -> list[Piece]:
    """A stretch without a mark; of a long one the middle is folded away, if there is a mark on either side."""
    if not text:
        return []
    if len(text) <= FOLDED_FROM or not (after_mark or before_mark):
        return [Piece(text)]
    breaks = [match.start() for match in re.finditer("\n", text)]
    low, high = 0, len(text)
    if after_mark:
        low = _cut(text, AROUND)
        low = min(low, breaks[LINES_AROUND] + 1) if len(breaks) > LINES_AROUND else low
    if before_mark:
        high = _cut(text, len(text) - AROUND)
        high = max(high, breaks[-LINES_AROUND] + 1) if len(breaks) >= LINES_AROUND else high
    parts = [Piece(text[:low]), Piece(text[low:high], folded=True), Piece(text[high:])]
    return [one for one in parts if one.text]


def _cut(text: str, near: int) -> int:
    """A place at or behind `near` where a line or a word begins, if one is at hand."""
    for between in ("\n", " "):
        found = text.find(between, near, near + AROUND // 3)
        if found >= 0:
            return found + 1
    return near


@dataclass(frozen=True)
class Row:
    """What stands side by side in two texts. place: the number of the difference, None where nothing differs; folded: both are
    the same here, and `right` is empty."""

    left: list[Piece]
    right: list[Piece]
    place: int | None = None
    folded: bool = False

    @property
    def characters(self) -> int:
        return sum(len(piece.text) for piece in (*self.left, *self.right))


@dataclass(frozen=True)
class SideBySide:
    """Rows of two texts from number `start` on; before, after: where the pages beside this one begin. differences: rows that
    differ, in the whole."""

    rows: list[Row]
    start: int
    before: int | None
    after: int | None
    differences: int

    @property
    def last_place(self) -> int | None:
        return max((row.place for row in self.rows if row.place is not None), default=None)


def side_by_side(
    left: str, right: str, marks: Sequence[dict[str, Any]], other_marks: Sequence[dict[str, Any]], start: int | None = None
) -> SideBySide | None:
    """Two texts in rows that begin where a line does in both; the marks are of what the other has not (`stages.offending`). None
    where what is not marked is not the same in both, word for word, as of texts that were too long to be compared so, and of
    texts of more than LONGEST_IN_ROWS."""
    if len(left) + len(right) > LONGEST_IN_ROWS:
        return None
    sides = [_words(text, given) for text, given in ((left, marks), (right, other_marks))]
    same = [[word.casefold() for word, _, marked in side if not marked] for side in sides]
    if same[0] != same[1]:
        return None
    rows = _folded(_numbered(list(_rows(left, right, sides[0], sides[1]))))
    pages, held = [0], 0
    for number, row in enumerate(rows):
        if held and held + row.characters > 2 * PAGE_CHARACTERS:
            pages.append(number)
            held = 0
        held += row.characters
    at = max(number for number, begin in enumerate(pages) if begin <= max(0, start or 0))
    ends = [*pages[1:], len(rows)]
    return SideBySide(
        rows[pages[at] : ends[at]],
        pages[at],
        pages[at - 1] if at else None,
        ends[at] if at + 1 < len(pages) else None,
        sum(row.place is not None for row in rows),
    )


_Words = list[tuple[str, int, bool]]


def _words(text: str, marks: Sequence[dict[str, Any]]) -> _Words:
    """(word, where it begins, is it marked?)"""
    found, ends = [], iter(sorted((one["start"], one["end"]) for one in marks))
    low, high = next(ends, (len(text), len(text)))
    for match in _WORD.finditer(text):
        while match.start() >= high and high < len(text):
            low, high = next(ends, (len(text), len(text)))
        found.append((match[0], match.start(), low <= match.start() < high))
    return found


def _rows(left: str, right: str, mine: _Words, theirs: _Words) -> Iterator[Row]:
    """Rows in order that hold all of both texts."""
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    begun = [0, 0]  # up to where either text is in a row
    at = [0, 0]  # which word comes next
    texts, words = (left, right), (mine, theirs)

    def begins(side: int) -> int:
        return words[side][at[side]][1] if at[side] < len(words[side]) else len(texts[side])

    def take(mark: str | None, ends: Sequence[int]) -> None:
        for side in (0, 1):
            taken = texts[side][begun[side] : ends[side]]
            begun[side] = ends[side]
            marked = len(taken.rstrip()) if mark else 0  # the space behind a word is not what differs
            parts = (Piece(taken[:marked], mark), Piece(taken[marked:]))
            pieces[side].extend(part for part in parts if part.text)

    while any(at[side] < len(words[side]) for side in (0, 1)):
        equal = [begins(0), begins(1)]
        for side in (0, 1):
            while at[side] < len(words[side]) and words[side][at[side]][2]:
                at[side] += 1
        if [begins(0), begins(1)] != equal:
            for side in (0, 1):  # what stands before the first word belongs to nobody
                if begun[side] < equal[side]:
                    pieces[side].append(Piece(texts[side][begun[side] : equal[side]]))
                    begun[side] = equal[side]
            take("differs", [begins(0), begins(1)])
        length = 0
        while all(at[side] < len(words[side]) and not words[side][at[side]][2] for side in (0, 1)):
            word_ends = [words[side][at[side]][1] + len(words[side][at[side]][0]) for side in (0, 1)]
            length += word_ends[0] - words[0][at[0]][1]
            for side in (0, 1):
                at[side] += 1
            ends = [begins(0), begins(1)]
            breaks = all("\n" in texts[side][word_ends[side] : ends[side]] for side in (0, 1))
            if breaks or length > 2 * AROUND:
                take(None, ends)
                yield Row(list(pieces[0]), list(pieces[1]))
                pieces[0].clear()
                pieces[1].clear()
                length = 0
        take(None, [begins(0), begins(1)])
    take(None, [len(left), len(right)])
    if pieces[0] or pieces[1]:
        yield Row(list(pieces[0]), list(pieces[1]))


def _numbered(rows: list[Row]) -> list[Row]:
    """Rows with their differences counted."""
    found, number = [], 0
    for row in rows:
        differs = any(piece.mark for piece in (*row.left, *row.right))
        number += differs
        found.append(replace(row, place=number if differs else None))
    return found


def _folded(rows: list[Row]) -> list[Row]:
    """The rows with those folded together that are the same in both and not beside a difference."""
    found: list[Row] = []
    quiet: list[Row] = []

    def close(last: bool) -> None:
        before = [] if not found else quiet[:1]
        behind = [] if last else quiet[len(before) :][-1:]
        middle = quiet[len(before) : len(quiet) - len(behind)]
        found.extend(before)
        if sum(row.characters for row in middle) > 2 * AROUND:
            text = "".join(piece.text for row in middle for piece in row.left)
            found.append(Row([Piece(text)], [], folded=True))
        else:
            found.extend(middle)
        found.extend(behind)
        quiet.clear()

    for row in rows:
        if row.place is None:
            quiet.append(row)
        else:
            close(last=False)
            found.append(row)
    close(last=True)
    return found
