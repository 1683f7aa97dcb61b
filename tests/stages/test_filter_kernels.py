"""The compiled filters say of every text what their plain twins say."""

from __future__ import annotations

import itertools
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages import code_points, languages, reading, text_buffers
from stages.c4 import C4, C4Options
from stages.fineweb import FineWeb, FineWebOptions
from stages.gopher_quality import GopherQuality, GopherQualityOptions
from stages.gopher_repetition import GopherRepetition, GopherRepetitionOptions
from stages.kernels import reading as kernels
from tests.stages import plain

CODES = [None, "en", "de", "zh", "ja", "th", "hi", "ar", "und", "lo", "zh-TW"]

# Single code points with a property that some rule looks at, and pieces of text that rules look for.
PIECES = st.one_of(
    st.sampled_from(
        [
            *(" ", "  ", "\n", "\n\n", "\n \n", "\t", "\r\n", "\u00a0", "\u2028", "\u3000", "\x1c", "\x85"),
            *("...", "…", "..", ".", "!", "?", '"', "”", "’", "'", ")", "]", "。", "！", "？", "｡", "．", "।", "؟", "၊"),
            *("- ", "* ", "• ", "● ", "#", "{", "}", "[1]", "[", "[edit]", "[citation needed]", "[٣]", "[1"),
            *("the", "and", "of", "The", "WITH,", "“that”", "der", "und", "de", "है", "في", "а"),
            *("lorem ipsum", "Lorem Ipsum", "JavaScript", "javascript", "privacy policy", "use coo\u212aies", "Terms of Use"),
            *("的", "是", "在", "汉字", "漢字", "かな", "カナ", "ภาษา", "การ", "ที่", "ລາວ", "မြ", "한국어", "Python3", "１２"),
            *(
                "ß",
                "SS",
                "ﬁ",
                "fi",
                "İ",
                "i̇",
                "ΐ",
                "ς",
                "σ",
                "Σ",
                "ǰ",
                "K",
                "\u212a",
                "å",
                "Å",
                "\ufeff",
                "\u200b",
                "é",
                "e\u0301",
            ),
            *("𐐀", "𐐨", "𠀀", "😀", "\U000e0001", "\U0010ffff", "\x00"),
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.text("ab \n", max_size=8),
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=40).map("".join),
    st.lists(PIECES, min_size=1, max_size=4).flatmap(lambda pieces: st.lists(st.sampled_from(pieces), max_size=60).map(" ".join)),
    st.lists(PIECES, min_size=1, max_size=4).flatmap(lambda pieces: st.lists(st.sampled_from(pieces), max_size=60).map("".join)),
)
DOCUMENTS = st.lists(st.tuples(TEXTS, st.sampled_from(CODES)), max_size=4)
SETTINGS = settings(max_examples=100, deadline=None)


def batch_of(documents: list[tuple[str, str | None]]) -> pa.RecordBatch:
    """A batch that starts in the middle of longer buffers, as a slice of a file does."""
    padded = [("before, 汉字 and the", "en"), *documents, ("after and the", "en")]
    whole = pa.record_batch(
        {
            "text": pa.array([text for text, _ in padded], pa.large_string()),
            "language": pa.array([code for _, code in padded], pa.string()),
        }
    )
    return whole.slice(1, len(documents))


def rows(measured: dict[str, pa.Array]) -> list[dict]:
    """One dict a row, ratios as pairs."""
    table = pa.table(measured).to_pylist()
    return [{name: tuple(value.values()) if isinstance(value, dict) else value for name, value in row.items()} for row in table]


@SETTINGS
@given(DOCUMENTS, st.sampled_from(["en", None, "de"]))
def test_gopher_quality(documents: list, default: str | None) -> None:
    measured = GopherQuality(GopherQualityOptions(default_language=default)).measure(batch_of(documents))
    expected = [plain.quality(text, *plain.of_document(code, text, default)) for text, code in documents]
    assert rows(measured.signals) == expected


@SETTINGS
@given(DOCUMENTS)
@example([("a b " * 40, "en"), ("a b c " * 30, None)])
@example([("汉字汉字" * 40, "zh"), ("การ" * 60, "th")])
def test_gopher_repetition(documents: list) -> None:
    measured = GopherRepetition(GopherRepetitionOptions()).measure(batch_of(documents))
    expected = [plain.repetition(text, *plain.of_document(code, text, None)) for text, code in documents]
    assert rows(measured.signals) == expected


@SETTINGS
@given(DOCUMENTS, st.integers(0, 12))
def test_fineweb(documents: list, short: int) -> None:
    options = FineWebOptions(short_line_characters=short, short_line_characters_unspaced=short // 2)
    measured = FineWeb(options).measure(batch_of(documents))
    expected = [plain.fineweb(text, *plain.of_document(code, text, None), options) for text, code in documents]
    assert rows(measured.signals) == expected


C4_OPTIONS = st.builds(
    C4Options,
    max_word_characters=st.sampled_from([None, 1000, 3]),
    citations=st.booleans(),
    terminal_punctuation=st.booleans(),
    min_words=st.sampled_from([None, 5, 2, 1]),
    min_characters_unspaced=st.sampled_from([None, 10, 2]),
    javascript=st.booleans(),
    policy=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, C4_OPTIONS)
def test_c4(documents: list, options: C4Options) -> None:
    measurement = C4(options).measure(batch_of(documents))
    pages = [plain.Page(text, *plain.of_document(code, text, None), options) for text, code in documents]
    assert measurement.text is not None
    assert measurement.text.to_pylist() == [page.text for page in pages]
    assert rows(measurement.signals) == [page.signals for page in pages]
    edits = measurement.edits
    assert list(zip(edits.rows, edits.rules, edits.counts, strict=True)) == [
        (row, rule, count) for row, page in enumerate(pages) for rule, count in page.edits.items() if count
    ]


def test_tables_hold_what_python_says_of_every_code_point() -> None:
    classes, (fold, expansions) = code_points.classes(), code_points.case_folding()
    for point in range(sys.maxunicode + 1):
        character = chr(point)
        kind = int(classes[point]) if point < classes.size else 0
        category = unicodedata.category(character)
        assert bool(kind & kernels.SPACE) is character.isspace()
        assert bool(kind & kernels.ALPHABETIC) is character.isalpha()
        assert bool(kind & kernels.ALPHANUMERIC) is character.isalnum()
        assert bool(kind & kernels.PUNCTUATION) is (category[0] in "PS")
        assert bool(kind & kernels.DIGIT) is (category == "Nd")
        target = int(fold[point]) if point < fold.size else point
        folded = chr(target) if target >= 0 else "".join(chr(part) for part in expansions[-target - 1] if part)
        assert folded == character.casefold()
        if category != "Cs":  # no UTF-8 holds a surrogate
            assert len(folded.encode()) <= 3 * len(character.encode()), "the kernel has room for no more"


def test_only_the_kelvin_sign_has_a_lower_case_that_a_phrase_could_hold() -> None:
    """Ī with a dot above has two code points in lower case, of which no phrase holds the second."""
    letters = set("abcdefghijklmnopqrstuvwxyz")
    others = [chr(point) for point in range(0x80, sys.maxunicode + 1) if set(chr(point).lower()) & letters]
    assert others == ["İ", "\u212a"]


def test_a_batch_without_rows_has_every_signal() -> None:
    empty = batch_of([])
    stages = [
        GopherQuality(GopherQualityOptions()),
        GopherRepetition(GopherRepetitionOptions()),
        C4(C4Options()),
        FineWeb(FineWebOptions()),
    ]
    for stage in stages:
        measured = stage.measure(empty)
        assert {name: column.type for name, column in measured.signals.items()} == stage.signals
        assert {len(column) for column in measured.signals.values()} == {0}


def test_columns_have_the_declared_types_and_order() -> None:
    batch = batch_of([("the words and 汉字.", None), ("汉字。", "zh")])
    for stage in (
        GopherQuality(GopherQualityOptions()),
        GopherRepetition(GopherRepetitionOptions()),
        C4(C4Options()),
        FineWeb(FineWebOptions()),
    ):
        measured = stage.measure(batch).signals
        assert [(name, column.type) for name, column in measured.items()] == list(stage.signals.items())


def test_a_document_is_measured_alike_whatever_stands_beside_it() -> None:
    documents = [("the and. " * 30, "en"), ("汉字，汉字。" * 20, None), ("", None), ("x\n\nx\n\ny.", "de")]
    for stage in (
        GopherQuality(GopherQualityOptions()),
        GopherRepetition(GopherRepetitionOptions()),
        C4(C4Options()),
        FineWeb(FineWebOptions()),
    ):
        together = rows(stage.measure(batch_of(documents)).signals)
        alone = [rows(stage.measure(batch_of([document])).signals)[0] for document in documents]
        assert together == alone


@pytest.mark.parametrize("tail", [b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3", b"\xff"])
def test_bytes_that_break_off_in_a_character_are_read_within_the_document(tail: bytes) -> None:
    data = np.frombuffer(b"ab" + tail + b"\x80\x80\x80", np.uint8)
    offsets = np.array([0, 2 + len(tail)], np.int64)
    points, kinds, starts = np.empty(9, np.int32), np.empty(9, np.uint16), np.empty(2, np.int64)
    kernels.decode(data, offsets, code_points.classes(), points, kinds, starts)
    assert points[: starts[1]].tolist() == [ord("a"), ord("b"), *[kernels.REPLACEMENT] * len(tail)]


@pytest.mark.parametrize(
    "piece", ["\n", ".", "[1", "a\n", "a b ", '."', "\n\n\u3000", "การ", "[citation neede", "privacy polic", "。", "{"]
)
@pytest.mark.parametrize("language", ["en", "zh", "th"])
def test_a_repetitive_megabyte_takes_linear_time(piece: str, language: str) -> None:
    """With quadratic loops these would take hours; nothing here is timed."""
    text = piece * (1_000_000 // len(piece.encode()))
    batch = batch_of([(text, language)])
    shares = rows(GopherRepetition(GopherRepetitionOptions()).measure(batch).signals)[0]
    assert all(value is None or value[0] <= value[1] for value in shares.values())
    left = C4(C4Options(max_word_characters=None)).measure(batch).text
    assert left is not None
    assert len(left[0].as_py()) <= len(text)
    lines = rows(FineWeb(FineWebOptions()).measure(batch).signals)[0]["fineweb.lines"]
    assert lines == len(plain.lines_of(text))
    assert rows(GopherQuality(GopherQualityOptions()).measure(batch).signals)[0]["gopher.rule_set"].endswith(language)


def test_many_documents_of_one_word_are_read_each_for_itself() -> None:
    read = reading.of(pa.array(["a", "", "b", "\n", "c d"] * 1000))
    (words, word_starts), (lines, line_starts) = read.words, read.lines
    assert np.diff(word_starts).tolist() == [1, 0, 1, 0, 2] * 1000
    assert np.diff(line_starts).tolist() == [1, 0, 1, 0, 1] * 1000
    assert np.diff(read.newline_starts).tolist() == [0, 0, 0, 1, 0] * 1000
    assert words[: word_starts[-1]].tolist()[:4] == [[0, 1], [1, 2], [3, 4], [5, 6]]
    assert lines[: line_starts[-1]].tolist()[:3] == [[0, 1], [1, 2], [3, 6]]


def test_the_last_group_of_marks_is_of_no_language() -> None:
    points, starts = languages.load().groups(lambda language: "x" if language is None else "")
    assert points.tolist() == [ord("x")]
    assert starts.tolist() == [0] * (len(languages.load().codes()) + 1) + [1]


def test_text_buffers_come_back_as_the_same_texts() -> None:
    texts = pa.array(["a", None, "汉字", ""], pa.string()).slice(1)
    data, offsets = text_buffers.of(texts)
    assert [bytes(data[start:stop]).decode() for start, stop in itertools.pairwise(offsets)] == ["", "汉字", ""]
    assert text_buffers.column(data, offsets).to_pylist() == ["", "汉字", ""]
    assert text_buffers.of(pa.chunked_array([["a"], ["b"]]))[1].tolist() == [0, 1, 2]
    assert text_buffers.of(pa.array([], pa.large_string()))[1].tolist() == [0]
