"""Texts as pages show them: in pieces and side by side, with none of them lost."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")


from stages.audit_browser.texts import PAGE_CHARACTERS, shown, side_by_side
from stages.offending import differences


def test_the_text_before_the_first_mark_is_short_and_none_of_it_is_lost() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 2000))
    at = [text.index("line 900"), text.index("line 905"), text.index("line 1500")]
    found = shown(text, [{"start": one, "end": one + 8, "what": "here"} for one in at])
    assert "".join(piece.text for piece in found.pieces) == text
    first = next(number for number, piece in enumerate(found.pieces) if piece.mark)
    before = [piece.text for piece in found.pieces[:first] if not piece.folded]
    assert before == ["line 897\nline 898\nline 899\n"]
    assert [piece.place for piece in found.pieces if piece.mark] == [1, None, 2]  # 900 and 905 are seen at once
    assert (found.places, found.first_place, found.last_place) == (2, 1, 2)
    assert sum(len(piece.text) for piece in found.pieces if not piece.folded) < 2000
    assert not any(piece.folded for piece in shown(text, []).pieces)  # where nothing is marked, all of it is to be read


def marks_of(left: str, right: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    mine, theirs = differences(left, right)
    return [dict(place.__dict__) for place in mine], [dict(place.__dict__) for place in theirs]


def random_texts(seed: int) -> tuple[str, str]:
    chosen = random.Random(seed)
    mine = [chosen.choice(["a", "b", "C", "d\n", "e  ", "\nf"]) for _ in range(chosen.randrange(600))]
    theirs = [chosen.choice([one, "X\n", "y"]) if chosen.random() < 0.05 else one for one in mine if chosen.random() < 0.95]
    return " ".join(mine), " ".join(theirs) if seed % 5 else ("", " ".join(mine), " \n")[seed // 5 % 3]


@pytest.mark.parametrize("seed", range(40))
def test_texts_side_by_side_hold_all_of_both_and_differ_only_where_marked(seed: int) -> None:
    left, right = random_texts(seed)
    marks = marks_of(left, right)
    found = side_by_side(left, right, marks[0], marks[1])
    assert found is not None and found.before is None and found.after is None
    sides = [["".join(piece.text for piece in (row.left, row.right)[side]) for row in found.rows] for side in (0, 1)]
    assert "".join(sides[0]) == left
    for row, mine, theirs in zip(found.rows, *sides, strict=True):
        plain = [" ".join(piece.text for piece in pieces if piece.mark is None).split() for pieces in (row.left, row.right)]
        if row.folded:
            assert not theirs and row.place is None
        else:
            assert [word.casefold() for word in plain[0]] == [word.casefold() for word in plain[1]]
            assert (row.place is None) == (mine.casefold().split() == theirs.casefold().split())
    if not any(row.folded for row in found.rows):
        assert "".join(sides[1]) == right
    marked = " ".join(piece.text for row in found.rows for piece in row.left if piece.mark).split()
    assert marked == [word for place in marks[0] for word in left[place["start"] : place["end"]].split()]
    assert [row.place for row in found.rows if row.place] == list(range(1, found.differences + 1))


def test_long_equal_stretches_are_folded_in_both_texts_and_long_texts_have_pages() -> None:
    lines = [f"{number} is a line that both texts have" for number in range(5000)]
    other = [*lines]
    other[10], other[150], other[4990] = "another line", "one more", "and another"
    left, right = "\n".join(lines), "\n".join(other)
    found = side_by_side(left, right, *marks_of(left, right))
    assert found is None  # too long to be compared word by word
    left, right = "\n".join(lines[:200]), "\n".join(other[:200])
    found = side_by_side(left, right, *marks_of(left, right))
    assert found is not None and [row.folded for row in found.rows].count(True) == 2
    assert [row.left[0].text.split()[0] for row in found.rows if row.place is not None] == ["10", "150"]
    assert side_by_side("a " * 300_000, "a " * 300_000, [], []) is None
    whole = [{"start": 0, "end": len(left), "what": "differs"}]
    long = side_by_side("x\n" * 90_000 + "y", "y", [{"start": 0, "end": 180_000, "what": "differs"}], [])
    assert long is not None and long.differences == 1
    assert side_by_side(left, "", whole, []) is not None and side_by_side(left, right, [], []) is None
    equal = side_by_side(left, left, [], [])
    assert equal is not None and equal.differences == 0 and [row.folded for row in equal.rows] == [True]
    many = "\n".join(f"{number} " + "w " * 300 for number in range(300))
    spots = [{"start": one.start(), "end": one.start() + 1, "what": "differs"} for one in re.finditer("(?<=[0-9] )w", many)]
    pages, start = [], 0
    while True:
        one = side_by_side(many, many, spots, spots, start)
        assert one is not None
        pages.append(one)
        if one.after is None:
            break
        start = one.after
    assert len(pages) > 2 and pages[1].before == 0
    assert "".join(piece.text for one in pages for row in one.rows for piece in row.left) == many


def test_a_mark_that_lies_past_the_page_is_shown_first() -> None:
    text = "a" * 3 * PAGE_CHARACTERS
    marks = [{"start": 2 * PAGE_CHARACTERS, "end": 2 * PAGE_CHARACTERS + 5, "what": "here"}]
    found = shown(text, marks)
    assert [(piece.mark, piece.folded) for piece in found.pieces] == [
        (None, False),
        ("here", False),
        (None, False),
        (None, True),
    ]
    assert found.before is not None and found.after is not None
    assert sum(len(piece.text) for piece in found.pieces) == PAGE_CHARACTERS == found.end - found.start
    assert (
        "".join(piece.text for start in range(0, len(text), PAGE_CHARACTERS) for piece in shown(text, marks, start).pieces)
        == text
    )
    assert shown("", []).pieces == [] and shown("ab", [], 10**9).end == 2
