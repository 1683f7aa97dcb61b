"""Golden texts and bounds of Gopher's repetition rules."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from manifests.rules import decide
from stages.gopher_repetition import GopherRepetition, GopherRepetitionOptions

ALPHABET = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima"
GOLDEN_A = f"{ALPHABET} {ALPHABET} " + " ".join(f"w{number:03}x" for number in range(36))
GOLDEN_B = "one two three four five six seven eight"
GOLDEN_C = "the first line\nanother line\nthe first line\na last line"
GOLDEN_D = " ".join(["ha"] * 40)


def batch(text: str, language: str | None) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array([text], pa.large_string()), "language": pa.array([language], pa.string())})


def signals(text: str, language: str | None = "en") -> dict[str, Fraction | None]:
    """The defined signals without their prefix, as exact fractions; None for a ratio over 0."""
    measured = GopherRepetition(GopherRepetitionOptions()).measure(batch(text, language)).signals
    ratios = {name.removeprefix("gopher_repetition."): column[0].as_py() for name, column in measured.items()}
    return {
        name: Fraction(ratio["numerator"], ratio["denominator"]) if ratio["denominator"] else None
        for name, ratio in ratios.items()
        if ratio is not None
    }


def failed(text: str, language: str | None = "en", **options: object) -> list[str]:
    stage = GopherRepetition(GopherRepetitionOptions(**options))
    names = decide(stage.rules(), pa.table(stage.measure(batch(text, language)).signals)).failed[0].as_py()
    return [name.removeprefix("gopher_repetition.") for name in names]


def test_golden_a_counts_every_occurrence_and_each_character_once() -> None:
    measured = signals(GOLDEN_A)
    share = Fraction(2 * len(ALPHABET.replace(" ", "")), len(GOLDEN_A.replace(" ", "")))
    assert round(float(share), 3) == 0.404
    for n in range(5, 11):
        assert measured[f"duplicate_{n}_gram"] == share
    assert failed(GOLDEN_A) == [f"max_duplicate_{n}_gram" for n in range(5, 11)]


def test_golden_b_has_no_top_gram_since_every_gram_occurs_once() -> None:
    measured = signals(GOLDEN_B)
    assert [measured[f"top_{n}_gram"] for n in (2, 3, 4)] == [0, 0, 0]
    assert failed(GOLDEN_B) == []


def test_golden_c_counts_repeats_only() -> None:
    measured = signals(GOLDEN_C)
    assert measured["duplicate_lines"] == Fraction(1, 4)
    assert measured["duplicate_line_characters"] == Fraction(14, 14 + 12 + 14 + 11)
    assert "max_duplicate_lines" not in failed(GOLDEN_C)


def test_golden_d_is_clamped_to_one() -> None:
    measured = signals(GOLDEN_D)
    assert measured["top_2_gram"] == 1
    assert failed(GOLDEN_D) == [f"max_top_{n}_gram" for n in (2, 3, 4)] + [f"max_duplicate_{n}_gram" for n in range(5, 11)]


def test_ten_distinct_lines_with_blank_lines_have_no_duplicates() -> None:
    text = "\n\n\n".join(f"line number {number}" for number in range(10))
    measured = signals(text)
    assert measured["duplicate_lines"] == 0
    assert measured["duplicate_paragraphs"] == 0


def test_a_single_newline_does_not_end_a_paragraph() -> None:
    assert signals("a\nb\n\na\nb\n\nc")["duplicate_paragraphs"] == Fraction(1, 3)
    assert signals("a\nb\n\na\nb\n\nc")["duplicate_paragraph_characters"] == Fraction(3, 7)
    assert signals("a\n \na")["duplicate_paragraphs"] == 0


def test_whitespace_around_lines_does_not_tell_them_apart() -> None:
    assert signals("  same\nsame\t\n\u3000same")["duplicate_lines"] == Fraction(2, 3)


def test_lines_are_compared_with_their_case_and_grams_without() -> None:
    measured = signals("Same line\nsame line")
    assert measured["duplicate_lines"] == 0
    assert measured["top_2_gram"] == 1


def test_punctuation_is_part_of_a_word() -> None:
    assert signals("a b, a b")["top_2_gram"] == 0


def test_case_folding_may_change_a_words_length_and_lengths_are_those_of_the_text() -> None:
    assert signals("straße weg STRASSE weg x")["top_2_gram"] == Fraction(9 + 10, 20)


def test_of_equally_frequent_grams_the_longest_counts() -> None:
    assert signals("a b x longer words y a b z longer words")["top_2_gram"] == Fraction(22, 29)


def test_the_most_frequent_gram_counts_even_if_a_rarer_one_is_longer() -> None:
    text = "a b a b a b longer words longer words"
    assert signals(text)["top_2_gram"] == Fraction(6, 28)


def test_overlapping_occurrences_are_covered_once() -> None:
    assert signals("a b a b a b a b a")["duplicate_5_gram"] == 1


@pytest.mark.parametrize("n", range(5, 11))
def test_only_grams_of_the_named_length_are_covered(n: int) -> None:
    run = " ".join(f"r{index}" for index in range(n))
    measured = signals(f"{run} x {run} y")
    assert measured[f"duplicate_{n}_gram"] == Fraction(4 * n, 4 * n + 2)
    if n < 10:
        assert measured[f"duplicate_{n + 1}_gram"] == 0


@pytest.mark.parametrize("unit, separator", [("lines", "\n"), ("paragraphs", "\n\n")])
@pytest.mark.parametrize("repeats, kept", [(5, True), (6, True), (7, False)])
def test_three_duplicates_in_ten_are_kept(unit: str, separator: str, repeats: int, kept: bool) -> None:
    pieces = ["a"] * (repeats + 1) + [f"piece{number:02}" for number in range(19 - repeats)]
    assert (f"max_duplicate_{unit}" not in failed(separator.join(pieces))) is kept


@pytest.mark.parametrize("unit, separator", [("line", "\n"), ("paragraph", "\n\n")])
@pytest.mark.parametrize("other, kept", [(29, False), (30, True), (31, True)])
def test_a_fifth_of_characters_in_duplicates_is_kept(unit: str, separator: str, other: int, kept: bool) -> None:
    text = separator.join(["tencharact", "tencharact", "x" * other])
    assert (f"max_duplicate_{unit}_characters" not in failed(text)) is kept


@pytest.mark.parametrize("n, percent", [(2, 20), (3, 18), (4, 16)])
@pytest.mark.parametrize("extra, kept", [(-1, False), (0, True), (1, True)])
def test_top_grams_are_kept_at_their_bound(n: int, percent: int, extra: int, kept: bool) -> None:
    occurrences = percent // n
    text = " ".join(f"{' '.join('abcd'[:n])} {number:03}" for number in range(occurrences))
    text += " " + "x" * (100 - percent - 3 * occurrences + extra)
    assert signals(text)[f"top_{n}_gram"] == Fraction(percent, 100 + extra)
    assert (f"max_top_{n}_gram" not in failed(text)) is kept


@pytest.mark.parametrize("n, percent", [(5, 15), (6, 14), (7, 13), (8, 12), (9, 11), (10, 10)])
@pytest.mark.parametrize("extra, kept", [(-1, False), (0, True), (1, True)])
def test_duplicate_grams_are_kept_at_their_bound(n: int, percent: int, extra: int, kept: bool) -> None:
    gram = " ".join(["w" * percent] + [chr(ord("a") + index) * percent for index in range(n - 1)])
    covered = 2 * n * percent
    rest = 2 * n * (100 - percent)
    text = f"{gram} {'x' * (rest - 1 + extra)} {gram} y"
    assert Fraction(covered, covered + rest) == Fraction(percent, 100)
    assert (f"max_duplicate_{n}_gram" not in failed(text)) is kept


def test_bounds_are_those_of_table_a1_in_its_order() -> None:
    rules = GopherRepetition(GopherRepetitionOptions()).rules()
    assert [rule.threshold for rule in rules[:13]] == [
        *(0.30, 0.30, 0.20, 0.20),
        *(0.20, 0.18, 0.16),
        *(0.15, 0.14, 0.13, 0.12, 0.11, 0.10),
    ]
    assert {rule.signal for rule in rules} == set(GopherRepetition.signals)


def test_an_empty_text_is_undefined_and_kept() -> None:
    assert set(signals("").values()) == {None}
    assert failed("") == []


def test_chinese_grams_are_of_characters_and_named_so() -> None:
    text = "".join(chr(0x4E00 + index) for index in range(40))
    measured = signals(text, "zh")
    assert "top_2_gram" not in measured
    assert measured["top_2_gram_unspaced"] == 0
    assert failed("买一送一的好东西" * 30, "zh")[0] == "max_top_2_gram_unspaced"


def test_a_chinese_word_is_taken_for_two_characters() -> None:
    ten = "天地玄黄宇宙洪荒日月"
    other = "".join(chr(0x5000 + index) for index in range(20))
    measured = signals(f"{ten}{other[:10]}{ten}{other[10:]}", "zh")
    assert measured["duplicate_5_gram_unspaced"] == Fraction(20, 40)
    assert measured["duplicate_6_gram_unspaced"] == 0


def han(start: int, count: int) -> str:
    """`count` distinct Han characters."""
    return "".join(chr(0x4E00 + start + index) for index in range(count))


def grams_among_others(length: int, occurrences: int, others: int) -> str:
    """A gram of distinct characters so many times, after each but the last one other character, and the rest of others."""
    gram, rest = han(0, length), han(length, others)
    pieces = [gram + rest[number] for number in range(occurrences - 1)]
    return "".join(pieces) + gram + rest[occurrences - 1 :]


@pytest.mark.parametrize("n, occurrences", [(2, 5), (3, 3), (4, 2)])
@pytest.mark.parametrize("extra, kept", [(-1, False), (0, True), (1, True)])
def test_top_grams_of_characters_are_kept_at_their_bound(n: int, occurrences: int, extra: int, kept: bool) -> None:
    share = 2 * n * occurrences
    text = grams_among_others(2 * n, occurrences, 100 - share + extra)
    assert signals(text, "zh")[f"top_{n}_gram_unspaced"] == Fraction(share, 100 + extra)
    assert (f"max_top_{n}_gram_unspaced" not in failed(text, "zh")) is kept


@pytest.mark.parametrize(
    "n, occurrences, characters", [(5, 3, 200), (6, 7, 600), (7, 13, 1400), (8, 3, 400), (9, 11, 1800), (10, 2, 400)]
)
@pytest.mark.parametrize("extra, kept", [(-1, False), (0, True), (1, True)])
def test_duplicate_grams_of_characters_are_kept_at_their_bound(
    n: int, occurrences: int, characters: int, extra: int, kept: bool
) -> None:
    covered = 2 * n * occurrences
    text = grams_among_others(2 * n, occurrences, characters - covered + extra)
    assert signals(text, "zh")[f"duplicate_{n}_gram_unspaced"] == Fraction(covered, characters + extra)
    assert (f"max_duplicate_{n}_gram_unspaced" not in failed(text, "zh")) is kept


def test_a_latin_name_in_a_chinese_text_is_one_unit() -> None:
    filler = [chr(0x5000 + index) for index in range(20)]
    text = "".join(f"{character}Kubernetes1" for character in filler)
    measured = signals(text, "zh")
    assert measured["top_2_gram_unspaced"] == 0
    assert measured["duplicate_5_gram_unspaced"] == 0


def test_whitespace_is_no_part_of_a_character_gram() -> None:
    assert signals("天 地\n玄黄 天地玄黄", "zh")["top_2_gram_unspaced"] == 1
