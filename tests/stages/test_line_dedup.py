"""Lines and paragraphs as units that are compared and cut out."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.exact_dedup import document_keys
from stages.line_dedup import NOWHERE, LineDedup, LineDedupOptions, Unit, unit_keys
from stages.normal_form import normalised
from stages.stage import PLACE

TEXTS = st.text(alphabet="ab A\n\u00e9", max_size=30)


def keys_of(*units: str) -> list[bytes]:
    return [bytes(key) for key in document_keys(pa.array(list(units))).astype(">u8").view("V16").ravel()]


def cut(name: str, text: str, *boilerplate: str, place: int = 0, stays: int = NOWHERE, **options: object) -> tuple[str, int]:
    stage = LineDedup(name, LineDedupOptions(**options), dict.fromkeys(keys_of(*boilerplate), stays))
    left, gone = stage.without_boilerplate(text, place)
    return left, len(gone)


@pytest.mark.parametrize("unit, pattern", [("line", r"\n"), ("paragraph", r"\n{2,}")])
@given(text=TEXTS)
@example(text="a\n\n\nb\n")
def test_keys_are_those_of_the_distinct_pieces_between_newlines(unit: Unit, pattern: str, text: str) -> None:
    pieces = {normalised(piece) for piece in re.split(pattern, text)} - {""}
    keys, rows = unit_keys(pa.array([text]), unit)
    assert sorted(map(tuple, keys.tolist())) == sorted(map(tuple, document_keys(pa.array(sorted(pieces), pa.string())).tolist()))
    assert rows.tolist() == [0] * len(pieces)


def test_units_are_equal_whatever_their_case_and_white_space() -> None:
    keys, rows = unit_keys(pa.array(["  Read\u00a0MORE \nread more", None, "READ more\n"]), "line")
    assert rows.tolist() == [0, 2]
    assert len(np.unique(keys, axis=0)) == 1


def test_short_units_are_not_compared() -> None:
    assert len(unit_keys(pa.array(["abcd\nabcde"]), "line", 5)[0]) == 1
    assert cut("line_dedup", "abcd\nabcde\nx", "abcd", "abcde", min_characters=5) == ("abcd\nx", 1)


@pytest.mark.parametrize(
    "name, text, left, number",
    [
        ("line_dedup", "Home\none\nHOME \ntwo", "one\ntwo", 2),
        ("line_dedup", "one\nHome", "one", 1),
        ("line_dedup", "one\n\nHome\n\ntwo\n", "one\n\n\ntwo", 1),
        ("line_dedup", "one\nHomes\n", "one\nHomes\n", 0),
        ("line_dedup", "Home", "", 1),
        ("line_dedup", "", "", 0),
        ("paragraph_dedup", "one\n\nHome\n\ntwo\nHome\n", "one\n\ntwo\nHome", 1),
        ("paragraph_dedup", "Home\n\n\n\none", "one", 1),
        ("paragraph_dedup", "one\n\n\nHome\n\n", "one", 1),
        ("paragraph_dedup", "one\nHome", "one\nHome", 0),
        ("paragraph_dedup", "\n\none", "\n\none", 0),
    ],
)
def test_what_is_cut_and_what_is_left(name: str, text: str, left: str, number: int) -> None:
    assert cut(name, text, "home") == (left, number)


def test_a_unit_stays_in_its_own_document_however_often_it_stands_there() -> None:
    assert cut("line_dedup", "home\nhome\nx", "home", place=7, stays=7) == ("home\nhome\nx", 0)
    assert cut("line_dedup", "home\nhome\nx", "home", place=6, stays=7) == ("x", 2)


@given(text=TEXTS)
def test_a_text_without_boilerplate_is_left_to_the_byte(text: str) -> None:
    for name in ("line_dedup", "paragraph_dedup"):
        assert cut(name, text, "something else") == (text, 0)


def test_a_text_of_boilerplate_alone_is_removed_and_others_are_edited() -> None:
    stage = LineDedup("line_dedup", LineDedupOptions(), dict.fromkeys(keys_of("home", "about"), NOWHERE))
    texts = ["Home\nAbout\n \n", "Home\nnews", "news"]
    verdict = stage.decide(pa.record_batch({"text": pa.array(texts, pa.large_string()), PLACE: pa.array([0, 1, 2])}))
    assert verdict.rule.tolist() == [0, -1, -1]
    assert stage.removal_rules == ("line_dedup.empty",)
    assert verdict.columns["text"].to_pylist()[1:] == ["news", "news"]
    assert (verdict.edits.rows, verdict.edits.counts) == ([0, 1], [2, 1])
    assert verdict.edits.details == ["Home | About", "Home"]


def test_what_an_edit_quotes_holds_no_personal_data() -> None:
    line = (
        "Call us at any hour of the day or the night, all year round, on the line +49 30 901820 or write to a.person@example.org."
    )
    stage = LineDedup("line_dedup", LineDedupOptions(), dict.fromkeys(keys_of(line), NOWHERE))
    verdict = stage.decide(pa.record_batch({"text": pa.array([f"{line}\nrest"], pa.large_string()), PLACE: pa.array([0])}))
    [detail] = verdict.edits.details
    assert detail is not None
    assert detail.startswith("Call us at any hour")
    assert "901" not in detail and "person" not in detail
