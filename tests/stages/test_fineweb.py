"""Every bound of FineWeb's rules at, below and above."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from manifests.rules import decide
from stages.fineweb import FineWeb, FineWebOptions

LONG = "a line of words that is longer than thirty characters"


def batch(text: str, language: str | None) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array([text], pa.large_string()), "language": pa.array([language], pa.string())})


def signals(text: str, language: str | None = "en", **options: object) -> dict:
    measured = FineWeb(FineWebOptions(**options)).measure(batch(text, language)).signals
    found = {}
    for name, column in measured.items():
        value = column[0].as_py()
        if isinstance(value, dict):
            value = Fraction(value["numerator"], value["denominator"]) if value["denominator"] else None
        found[name.removeprefix("fineweb.")] = value
    return found


def failed(text: str, language: str | None = "en", **options: object) -> list[str]:
    stage = FineWeb(FineWebOptions(**options))
    names = decide(stage.rules(), pa.table(stage.measure(batch(text, language)).signals)).failed[0].as_py()
    return [name.removeprefix("fineweb.") for name in names]


def distinct(count: int, ending: str) -> list[str]:
    return [f"{LONG} {number}{ending}" for number in range(count)]


@pytest.mark.parametrize("ended, kept", [(2, False), (3, True), (4, True)])
def test_twelve_percent_of_lines_that_end_a_sentence_are_enough(ended: int, kept: bool) -> None:
    text = "\n".join([*distinct(ended, "."), *distinct(25 - ended, " w")])
    assert failed(text) == ([] if kept else ["min_terminal_lines"])


@pytest.mark.parametrize("mark", [".", "?", "!", '"', "”", "。", "।", "؟"])
def test_sentences_end_in_the_marks_of_any_script(mark: str) -> None:
    assert signals(f"{LONG}{mark}\n{LONG}")["terminal_lines"] == Fraction(1, 2)


@pytest.mark.parametrize("mark", [",", ":", "…", ")", "'"])
def test_other_punctuation_ends_no_sentence(mark: str) -> None:
    assert signals(f"{LONG}{mark}")["terminal_lines"] == 0


@pytest.mark.parametrize("short, kept", [(66, True), (67, True), (68, False)])
def test_two_thirds_of_short_lines_are_kept(short: int, kept: bool) -> None:
    lines = [f"{number:029}." for number in range(short)] + distinct(100 - short, ".")
    assert failed("\n".join(lines), max_newlines_per_word=None) == ([] if kept else ["max_short_lines"])


@pytest.mark.parametrize("length, share", [(29, 1), (30, 1), (31, 0)])
def test_a_short_line_has_at_most_thirty_characters(length: int, share: int) -> None:
    assert signals("é" * length)["short_lines"] == share


@pytest.mark.parametrize("other, kept", [(79, False), (80, True), (81, True)])
def test_a_tenth_of_characters_in_duplicate_lines_is_kept(other: int, kept: bool) -> None:
    text = "\n".join(["ten chars.", "ten chars.", "x" * (other - 1) + "."])
    assert failed(text, max_newlines_per_word=None) == ([] if kept else ["max_duplicate_line_characters"])


@pytest.mark.parametrize("newlines, kept", [(5, True), (6, True), (7, False)])
def test_three_newlines_for_ten_words_are_kept(newlines: int, kept: bool) -> None:
    text = "word " * 19 + "word." + "\n" * newlines
    assert failed(text, max_short_lines=None) == ([] if kept else ["max_newlines_per_word"])


def test_blank_lines_are_no_lines_but_their_newlines_count() -> None:
    measured = signals("one.\n\n\n \ntwo words.")
    assert measured["lines"] == 2
    assert measured["newlines_per_word"] == Fraction(4, 3)


@pytest.mark.parametrize("lines, kept", [(0, False), (1, True), (2, True)])
def test_one_line_is_enough(lines: int, kept: bool) -> None:
    text = " \n".join(distinct(lines, "."))
    assert failed(text) == ([] if kept else ["min_lines"])


def test_a_text_without_a_line_is_removed() -> None:
    assert failed("") == ["min_lines"]
    assert failed("\n \n")[0] == "min_lines"


def test_chinese_lines_are_measured_in_characters() -> None:
    measured = signals("这是一行字。\n这是另外的一行字。", "zh")
    assert measured["terminal_lines"] == 1
    assert measured["short_lines"] is None
    assert measured["short_lines_unspaced"] == 1
    assert measured["newlines_per_word"] is None
    assert measured["newlines_per_character_unspaced"] == Fraction(1, 15)


@pytest.mark.parametrize("short, kept", [(66, True), (67, True), (68, False)])
def test_two_thirds_of_short_chinese_lines_are_kept(short: int, kept: bool) -> None:
    lines = ["短" * 14 + chr(0x4E00 + number) for number in range(short)]
    lines += ["长" * 15 + chr(0x4E00 + number) for number in range(100 - short)]
    text = "。\n".join(lines) + "。"
    assert failed(text, "zh", short_line_characters_unspaced=16) == ([] if kept else ["max_short_lines_unspaced"])


@pytest.mark.parametrize("length, share", [(14, 1), (15, 1), (16, 0)])
def test_a_short_chinese_line_has_at_most_fifteen_characters(length: int, share: int) -> None:
    assert signals("短" * length, "zh")["short_lines_unspaced"] == share


@pytest.mark.parametrize("newlines, kept", [(14, True), (15, True), (16, False)])
def test_fifteen_newlines_for_a_hundred_chinese_characters_are_kept(newlines: int, kept: bool) -> None:
    text = "字" * 99 + "。" + "\n" * newlines
    assert failed(text, "zh") == ([] if kept else ["max_newlines_per_character_unspaced"])


def test_a_line_in_chinese_may_end_in_a_closing_quote() -> None:
    assert signals("他说：“这是一行字。”\n他说：「这是一行字。」", "zh")["terminal_lines"] == 1


def test_thai_has_no_terminal_punctuation_and_no_such_rule() -> None:
    assert signals("การทดสอบภาษาไทยที่ยาวพอสมควร", "th")["terminal_lines"] is None


def test_line_lengths_are_read_while_measuring_and_bounds_are_not() -> None:
    assert signals("twelve chars", short_line_characters=11)["short_lines"] == 0
    assert set(FineWebOptions.model_fields) - FineWeb.threshold_options == {
        "compat",
        "languages",
        "short_line_characters",
        "short_line_characters_unspaced",
    }


def test_rules_decide_from_declared_signals_alone() -> None:
    rules = FineWeb(FineWebOptions()).rules()
    assert {rule.signal for rule in rules} == set(FineWeb.signals)
    assert {rule.name: rule.threshold for rule in rules} == {
        "fineweb.min_lines": 1,
        "fineweb.min_terminal_lines": 0.12,
        "fineweb.max_short_lines": 0.67,
        "fineweb.max_duplicate_line_characters": 0.1,
        "fineweb.max_newlines_per_word": 0.3,
        "fineweb.max_short_lines_unspaced": 0.67,
        "fineweb.max_newlines_per_character_unspaced": 0.15,
    }
