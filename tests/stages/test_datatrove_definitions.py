"""`compat: datatrove`: golden texts with that project's values, and what its rules do at their bounds.

The comparison with datatrove itself is tests/real/test_datatrove.py.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from importlib import metadata

import pyarrow as pa
import pytest

from manifests.rules import decide
from stages import datatrove_definitions, registry
from stages.fineweb import FineWeb, FineWebOptions
from stages.gopher_repetition import GopherRepetition, GopherRepetitionOptions
from stages.stage import Filter

try:
    metadata.version("spacy")
    SPACY = True
except metadata.PackageNotFoundError:
    SPACY = False
needs_spacy = pytest.mark.skipif(not SPACY, reason="spaCy is not installed (extra `compat`)")

ALPHABET = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima"
GOLDEN_A = f"{ALPHABET} {ALPHABET} " + " ".join(f"w{number:03}x" for number in range(36))
GOLDEN_B = "one two three four five six seven eight"
GOLDEN_C = "the first line\nanother line\nthe first line\na last line"
GOLDEN_D = " ".join(["ha"] * 40)
LONG = "a line of words that is longer than thirty characters"


def built(name: str, **options: object) -> Filter:
    found = registry.find(name)
    return found(found.options_type(compat="datatrove", **options))


def batch(*texts: str | None, language: str | None = "en") -> pa.RecordBatch:
    return pa.record_batch(
        {"text": pa.array(texts, pa.large_string()), "language": pa.array([language] * len(texts), pa.string())}
    )


def signals(name: str, text: str, language: str | None = "en", **options: object) -> dict:
    found = {}
    for signal, column in built(name, **options).measure(batch(text, language=language)).signals.items():
        value = column[0].as_py()
        if isinstance(value, dict):
            value = Fraction(value["numerator"], value["denominator"]) if value["denominator"] else None
        found[signal.removeprefix(f"{name}.")] = value
    return found


def failed(name: str, text: str, language: str | None = "en", **options: object) -> list[str]:
    stage = built(name, **options)
    names = decide(stage.rules(), pa.table(stage.measure(batch(text, language=language)).signals)).failed[0].as_py()
    return [rule.removeprefix(f"{name}.") for rule in names]


@needs_spacy
def test_golden_a_counts_the_second_occurrence_alone() -> None:
    measured = signals("gopher_repetition", GOLDEN_A)
    assert round(float(measured["duplicate_5_gram"]), 3) == 0.147  # two 5-grams fit into the 12 words
    assert round(float(measured["duplicate_10_gram"]), 3) == 0.147
    assert measured["duplicate_5_gram"] == Fraction(len("alphabravocharliedeltaechofoxtrotgolfhotelindiajuliet"), len(GOLDEN_A))


@needs_spacy
def test_golden_b_has_a_top_gram_though_every_gram_occurs_once() -> None:
    assert signals("gopher_repetition", GOLDEN_B)["top_3_gram"] == Fraction(len("one two three"), len(GOLDEN_B))


@needs_spacy
def test_golden_c_counts_repeated_lines_only() -> None:
    measured = signals("gopher_repetition", GOLDEN_C)
    assert measured["duplicate_lines"] == Fraction(1, 4)
    assert measured["duplicate_line_characters"] == Fraction(14, len(GOLDEN_C))


@needs_spacy
def test_golden_d_is_above_one() -> None:
    assert signals("gopher_repetition", GOLDEN_D)["top_2_gram"] == Fraction(39 * len("ha ha"), len(GOLDEN_D))
    assert round(float(signals("gopher_repetition", GOLDEN_D)["top_2_gram"]), 2) == 1.64


@needs_spacy
def test_punctuation_marks_are_words_and_case_is_kept() -> None:
    assert datatrove_definitions.words("Hello, it's a  test.\n\n\u00a0(Really.)") == [
        "Hello", ",", "it", "'s", "a", "test", ".", "(", "Really", ".", ")",
    ]  # fmt: skip
    assert signals("gopher_repetition", "Ab cd ef ab CD")["top_2_gram"] == Fraction(5, 14)


@needs_spacy
def test_of_equally_frequent_grams_the_first_counts_and_not_the_longest() -> None:
    text = "a b x longer words y a b z longer words"
    assert signals("gopher_repetition", text)["top_2_gram"] == Fraction(2 * len("a b"), len(text))


@needs_spacy
def test_duplicate_grams_are_jumped_over_and_compared_without_spaces() -> None:
    text = "a b c d e a b c d e a b c d e"
    assert signals("gopher_repetition", text)["duplicate_5_gram"] == Fraction(10, len(text))
    text = "ab c d e f x a bc d e f"
    assert signals("gopher_repetition", text)["duplicate_5_gram"] == Fraction(6, len(text))


@needs_spacy
def test_lines_and_paragraphs_are_not_stripped_and_the_empty_ends_of_a_text_are_lines() -> None:
    assert signals("gopher_repetition", " same\nsame\nsame ")["duplicate_lines"] == 0
    assert signals("gopher_repetition", "\na\nb\n")["duplicate_lines"] == Fraction(1, 4)
    assert signals("gopher_repetition", "\n\na\n\n\nb\n\na")["duplicate_paragraphs"] == Fraction(1, 3)


@needs_spacy
@pytest.mark.parametrize("unit, separator", [("lines", "\n"), ("paragraphs", "\n\n")])
@pytest.mark.parametrize("repeats, kept", [(5, True), (6, True), (7, False)])
def test_three_duplicates_in_ten_are_kept(unit: str, separator: str, repeats: int, kept: bool) -> None:
    text = separator.join(["a"] * (repeats + 1) + [f"piece{number:02}" for number in range(19 - repeats)])
    assert (f"max_duplicate_{unit}" not in failed("gopher_repetition", text)) is kept


@needs_spacy
def test_paragraphs_decide_before_lines_and_lines_before_grams() -> None:
    assert [rule.name.removeprefix("gopher_repetition.max_") for rule in built("gopher_repetition").rules()][:6] == [
        "duplicate_paragraphs",
        "duplicate_paragraph_characters",
        "duplicate_lines",
        "duplicate_line_characters",
        "top_2_gram",
        "top_3_gram",
    ]


@needs_spacy
def test_an_empty_text_is_removed_and_one_word_is_not() -> None:
    assert failed("gopher_repetition", "")[0] == "max_duplicate_paragraphs"
    assert failed("fineweb", "") == ["min_lines"]
    assert failed("gopher_repetition", "word") == []
    assert built("gopher_repetition").measure(batch()).signals["gopher_repetition.top_2_gram"].to_pylist() == []
    assert signals("gopher_repetition", "word")["top_2_gram"] == 0


@needs_spacy
@pytest.mark.parametrize("ended, kept", [(2, False), (3, True), (4, True)])
def test_twelve_percent_of_lines_that_end_a_sentence_are_enough(ended: int, kept: bool) -> None:
    lines = [f"{LONG} {number}." for number in range(ended)] + [f"{LONG} {number}" for number in range(25 - ended)]
    assert failed("fineweb", "\n".join(lines)) == ([] if kept else ["min_terminal_lines"])


@needs_spacy
def test_quotes_end_no_line_and_neither_does_a_mark_before_a_space() -> None:
    assert signals("fineweb", f'{LONG}."\n{LONG}. \n{LONG}.')["terminal_lines"] == Fraction(1, 3)
    assert signals("fineweb", "។\n៖\n𑗌\n۔\n。\n…")["terminal_lines"] == Fraction(5, 6)


@needs_spacy
@pytest.mark.parametrize("length, share", [(29, 1), (30, 1), (31, 0)])
def test_a_short_line_has_at_most_thirty_characters_with_its_spaces(length: int, share: int) -> None:
    assert signals("fineweb", " " + "é" * (length - 1))["short_lines"] == share


@needs_spacy
@pytest.mark.parametrize("other, kept", [(979, False), (980, True), (981, True)])
def test_a_hundredth_of_characters_in_duplicate_lines_is_kept(other: int, kept: bool) -> None:
    text = "\n".join(["ten chars.", "ten chars.", "word " * ((other - 10) // 5) + "w" * ((other - 10) % 5) + "ten chars."])
    assert failed("fineweb", text) == ([] if kept else ["max_duplicate_line_characters"])
    assert failed("fineweb", text, max_duplicate_line_characters=0.1) == []


@needs_spacy
def test_newlines_are_counted_for_words_and_marks() -> None:
    assert signals("fineweb", "one.\n\n\n \ntwo words.")["newlines_per_word"] == Fraction(4, 5)


@needs_spacy
def test_chinese_is_measured_as_without_compat() -> None:
    text = "图书馆在上个月重新开放了。\n图书馆在上个月重新开放了。"
    for name, plain in (
        ("gopher_repetition", GopherRepetition(GopherRepetitionOptions())),
        ("fineweb", FineWeb(FineWebOptions())),
    ):
        ours, theirs = plain.measure(batch(text, language="zh")), built(name).measure(batch(text, language="zh"))
        assert ours.signals == theirs.signals


@needs_spacy
def test_a_language_that_spacy_lacks_or_that_needs_another_library_has_the_multi_language_tokenizer() -> None:
    assert datatrove_definitions.words("don't", "en") == ["do", "n't"]
    assert datatrove_definitions.words("don't", None) == ["do", "n't"]
    assert datatrove_definitions.words("don't", "en-GB") == ["do", "n't"]
    for language in ("tlh", "ko", "vi", "../en", ""):
        assert datatrove_definitions.words("don't", language) == ["don't"]


@needs_spacy
def test_a_tokenizer_that_has_seen_many_words_is_replaced_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datatrove_definitions, "MOST_WORD_FORMS", 2000)
    text = "Don't IS_ALPHA, e.g. U.S. words."
    before = datatrove_definitions.words(text)
    many = " ".join(f"word{number}" for number in range(3000))
    for _ in range(2):
        assert len(datatrove_definitions.words(many)) == 3000
        assert datatrove_definitions.words(text) == before


@needs_spacy
@pytest.mark.parametrize("mark", ["(", "!", ")", "'s"])
def test_a_long_run_of_marks_takes_linear_time_and_has_the_words_of_a_short_one(mark: str) -> None:
    assert datatrove_definitions.words(mark * 600) == [mark] * 600
    assert datatrove_definitions.words(f"before {mark * 60_000} after") == ["before", *[mark] * 60_000, "after"]


@needs_spacy
def test_long_runs_of_letters_are_one_word() -> None:
    assert datatrove_definitions.words("a" * 5000) == ["a" * 5000]


@needs_spacy
def test_a_run_longer_than_any_word_comes_in_pieces_whatever_it_holds() -> None:
    assert datatrove_definitions.words(f"b {'a' * 45_000} c") == ["b", "a" * 20_000, "a" * 20_000, "a" * 5000, "c"]
    address = "httpaaaaaaaaaa:" * 20_000
    assert "".join(datatrove_definitions.words(address)) == address


@needs_spacy
def test_spacys_version_is_in_the_identity_in_this_mode_alone() -> None:
    for name in ("gopher_repetition", "fineweb"):
        found = registry.find(name)
        assert built(name).identity()["spacy"] == metadata.version("spacy")
        assert "spacy" not in found(found.options_type()).identity()


@pytest.mark.parametrize("name", ["gopher_repetition", "fineweb"])
def test_without_spacy_the_error_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry.find(name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ValueError, match=r"spaCy.*pip install 'corpusmill\[compat\]'"):
        found(found.options_type(compat="datatrove"))
    found(found.options_type())


@pytest.mark.parametrize("name", ["gopher_repetition", "fineweb"])
def test_compat_is_read_while_measuring(name: str) -> None:
    assert "compat" not in registry.find(name).threshold_options


def test_compat_takes_the_bound_of_the_released_code_unless_one_is_given() -> None:
    assert FineWebOptions(compat="datatrove").max_duplicate_line_characters == 0.01
    assert FineWebOptions(compat="datatrove", max_duplicate_line_characters=0.1).max_duplicate_line_characters == 0.1
    assert FineWebOptions().max_duplicate_line_characters == 0.1
