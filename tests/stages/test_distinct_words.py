"""How much of a sample fits is counted exactly, whatever the order of its texts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.distinct_words import LEVELS, DistinctWords

LONGEST = 6


def words(text: str) -> set[str]:
    """Runs without white space or control characters of ASCII, in pieces of LONGEST characters."""
    found, word = set(), ""
    for character in f"{text} ":
        if word and (ord(character) <= 0x20 or len(word) == LONGEST):
            found.add(word)
            word = ""
        if ord(character) > 0x20:
            word += character
    return found


def plain(texts: list[tuple[int, str]], most: int) -> tuple[int, int]:
    """The largest number of levels whose distinct words have at most `most` bytes, at least 1; and those bytes."""
    for levels in range(LEVELS, 0, -1):
        seen = set().union(*(words(text) for level, text in texts if level < levels))
        size = sum(len(word.encode()) + 1 for word in seen)
        if size <= most or levels == 1:
            return levels, size
    raise AssertionError


TEXTS = st.lists(st.tuples(st.integers(0, LEVELS - 1), st.text("ab é漢\n\t", max_size=40)), max_size=12)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(1, 200))
def test_levels_that_fit_are_those_of_plain_sets(texts: list[tuple[int, str]], most: int) -> None:
    found = DistinctWords(most, LONGEST)
    for level, text in texts:
        found.add(text.encode(), level)
    levels, size = plain(texts, most)
    assert (found.levels, found.size) == (levels, size) or (levels == found.levels == 1)


@pytest.mark.parametrize("most", [1 << 30, 200_000, 40_000])
def test_a_table_that_grows_and_forgets_finds_the_same_in_any_order(most: int) -> None:
    chance = random.Random(5)
    texts = [(chance.randrange(LEVELS), " ".join(f"{chance.randrange(60_000):x}" for _ in range(300))) for _ in range(400)]
    expected = plain_once(texts, most)
    for _ in range(3):
        chance.shuffle(texts)
        found = DistinctWords(most, 48)
        for level, text in texts:
            found.add(text.encode(), level)
        assert (found.levels, found.size) == expected
    assert expected[0] == LEVELS if most == 1 << 30 else 1 < expected[0] < LEVELS


def plain_once(texts: list[tuple[int, str]], most: int) -> tuple[int, int]:
    lowest: dict[str, int] = {}
    for level, text in texts:
        for word in text.split():
            lowest[word] = min(level, lowest.get(word, LEVELS))
    sizes = [0] * LEVELS
    for word, level in lowest.items():
        sizes[level] += len(word) + 1
    levels = next(levels for levels in range(LEVELS, 0, -1) if sum(sizes[:levels]) <= most)
    return levels, sum(sizes[:levels])


def test_one_text_of_more_words_than_the_table_holds() -> None:
    text = " ".join(map(str, range(100_000)))
    found = DistinctWords(1 << 30, 48)
    found.add(text.encode(), 0)
    assert found.size == len(text) + 1


def test_a_run_without_a_space_counts_once_where_it_repeats() -> None:
    found = DistinctWords(1 << 30, 48)
    found.add(b"x" * 4_800_000, 3)
    assert found.size == 49
