"""Repeated spans: which tokens are cut, and what is left of the text."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.stage import PLACE
from stages.substring_dedup import SubstringDedup, SubstringDedupOptions, repeated_spans, tokens_of

DOCUMENTS = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=4)


def by_hand(documents: list[list[int]], length: int) -> list[list[bool]]:
    """Quadratic, in the words of the definition."""
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    cut = [[False] * len(document) for document in documents]
    for index, document in enumerate(documents):
        for place in range(len(document) - length + 1):
            window = tuple(document[place : place + length])
            first = seen.setdefault(window, (index, place))
            if first[0] < index or first[1] + length <= place:
                cut[index][place : place + length] = [True] * length
    return cut


def as_flags(spans: np.ndarray, size: int) -> list[bool]:
    flags = [False] * size
    for first, last in spans.tolist():
        assert 0 <= first < last <= size
        flags[first:last] = [True] * (last - first)
    return flags


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.integers(2, 5))
@example([[0] * 14], 3)
@example([[0, 1, 2], [0, 1, 2], [0, 1], [1, 2, 0, 1, 2]], 3)
def test_spans_are_those_of_the_definition(documents: list[list[int]], length: int) -> None:
    found = repeated_spans([np.array(document, np.uint64) for document in documents], [length] * len(documents))
    assert [as_flags(spans, len(document)) for spans, document in zip(found, documents, strict=True)] == by_hand(
        documents, length
    )


def test_windows_are_compared_with_those_of_their_own_length() -> None:
    same = np.arange(6, dtype=np.uint64)
    assert [len(spans) for spans in repeated_spans([same, same, same, same], [3, 5, 3, 7])] == [0, 0, 1, 0]


def test_a_million_equal_tokens_take_linear_time() -> None:
    """Nothing is timed; with quadratic loops this would take hours."""
    [spans] = repeated_spans([np.zeros(1_000_000, np.uint64)], [50])
    assert spans.tolist() == [[50, 1_000_000]]


def test_many_distinct_tokens_are_told_apart() -> None:
    tokens = np.arange(300_000, dtype=np.uint64) * np.uint64(1 << 40)
    first, second = repeated_spans([tokens, np.concatenate([tokens[7:], tokens[:7]])], [50, 50])
    assert first.tolist() == []
    assert second.tolist() == [[0, 299_993]]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=4))
@example(["a b", "", "ä\u2028ö\u3000x", "z" * 600, "汉字。ab 12 汉"])
def test_tokens_are_words_in_their_places(texts: list[str]) -> None:
    tokens = tokens_of(pa.array(texts, pa.large_string()))
    for row, text in enumerate(texts):
        if tokens.spaced[row]:
            places = tokens.places[tokens.starts[row] : tokens.starts[row + 1]].tolist()
            assert [text.encode()[begin:end].decode() for begin, end in places] == text.split()


def test_unspaced_texts_have_units_for_tokens() -> None:
    texts = ["汉字汉字汉字。Python3 汉", "two words"]
    tokens = tokens_of(pa.array(texts, pa.large_string()))
    assert tokens.spaced.tolist() == [False, True]
    pieces = [texts[0].encode()[begin:end].decode() for begin, end in tokens.places[: tokens.starts[1]].tolist()]
    assert pieces == [*"汉字汉字汉字。", "Python3", "汉"]


def test_equal_words_have_equal_hashes_and_others_do_not() -> None:
    words = ["a", "b", "A", "a.", "ä", "z" * 240, "z" * 241, "z" * 500, "y" + "z" * 499, "z" * 499 + "y"]
    hashes = tokens_of(pa.array([" ".join([*words, *words])])).hashes
    assert hashes[: len(words)].tolist() == hashes[len(words) :].tolist()
    assert len(set(hashes.tolist())) == len(words)


def left_of(texts: list[str], **options: int) -> tuple[list[str | None], list[tuple[int, int]]]:
    """Texts after the stage (None: removed), and (row, spans) of the edits; the texts are in keep order."""
    chosen = SubstringDedupOptions(keep="first", **options)
    tokens = tokens_of(pa.array(texts))
    documents = [tokens.hashes[first:last] for first, last in zip(tokens.starts[:-1], tokens.starts[1:], strict=True)]
    least = [chosen.min_tokens if spaced else chosen.min_units_unspaced for spaced in tokens.spaced]
    spans = {row: found for row, found in enumerate(repeated_spans(documents, least)) if len(found)}
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string()), PLACE: pa.array(range(len(texts)))})
    verdict = SubstringDedup(chosen, spans).decide(batch)
    after = verdict.columns["text"].to_pylist() if verdict.columns else texts
    kept = [text if rule < 0 else None for text, rule in zip(after, verdict.rule.tolist(), strict=True)]
    return kept, list(zip(verdict.edits.rows, verdict.edits.counts, strict=True))


@pytest.mark.parametrize(
    "text, left",
    [
        ("before one two  three four after", "before after"),
        ("before\none two\nthree four\n\nafter", "before\nafter"),
        ("one two three four\nafter", "after"),
        ("before one two three four", "before"),
        ("x one two three four y one two three four z", "x y z"),
        ("one two three", "one two three"),
        ("One two three four", "One two three four"),
    ],
)
def test_a_repeat_goes_with_what_stands_within_it(text: str, left: str) -> None:
    kept, _ = left_of(["- one two three four -", text], min_tokens=4)
    assert kept[1] == left


def test_the_first_occurrence_stays_and_an_empty_text_is_removed() -> None:
    kept, edits = left_of(["one two three four", "one two three four", "five six"], min_tokens=4)
    assert kept == ["one two three four", None, "five six"]
    assert edits == [(1, 1)]


def test_chinese_is_cut_by_characters() -> None:
    kept, _ = left_of(["图书馆在上个月重新开放了。", "昨天图书馆在上个月重新开放了，很好。"], min_units_unspaced=6)
    assert kept[1] == "昨天，很好。"


def test_a_circle_keeps_its_first_round() -> None:
    kept, _ = left_of(["one two three " * 20], min_tokens=6)
    assert kept == [re.sub(r" $", "", "one two three " * 2)]
