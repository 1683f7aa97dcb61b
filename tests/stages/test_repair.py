"""Mojibake is put right, and clean text is not touched."""

from __future__ import annotations

import re

import ftfy
import numpy as np
import pyarrow as pa
import pytest
from ftfy.badness import is_bad
from hypothesis import example, given
from hypothesis import strategies as st

from stages import mojibake, text_buffers
from stages.mojibake import suspicious_lines
from stages.repair import CONFIG, ENCODING_ONLY, Repair, RepairOptions, repair


def batch(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array(texts, pa.large_string())})


@pytest.mark.parametrize(
    "clean",
    [
        "“Hi” it’s ＡＢＣ",
        "NÃO É",
        "if (a &lt; b)",
        "if (a &lt; b) <p>",
        "ﬁne ﬂour, Ǳ, ĳs",
        "cafe\u0301 and café",
        'It\'s "straight"',
        "Größe, naïve, señor, Ångström, façade — 5 €…",
        "Это обычный русский текст, «в кавычках» — её и ёлка.",
        "Це звичайний український текст, її та ї.",
        "Αυτό είναι ένα κείμενο.",
        "普通の日本語テキスト。ｶﾀｶﾅ",
        "zero\u200bwidth, soft\u00adhyphen, line\u2028separator",
        "tab\there\r\nand there\f",
        "",
    ],
)
def test_clean_text_stays_byte_for_byte(clean: str) -> None:
    assert repair(clean) == (clean, 0, 0)


@pytest.mark.parametrize(
    ("damaged", "right"),
    [
        ("amis’ rÃ©union", "amis’ réunion"),
        ("â€”", "—"),
        ("voilÃ  le travail", "voilà le travail"),
        ("â€œquotedâ€\x9d", "“quoted”"),
        ("schÃ¶n", "schön"),
        ("ÐŸÑ€Ð¸Ð²ÐµÑ‚, Ð¼Ð¸Ñ€", "Привет, мир"),
        ("l’humanitÃ©", "l’humanité"),
        ("It\x92s", "It’s"),
    ],
)
def test_mojibake_becomes_what_it_was(damaged: str, right: str) -> None:
    assert repair(damaged) == (right, 1, 0)


def test_an_edit_counts_the_lines_that_changed() -> None:
    text = "clean line\nschÃ¶n\nclean “line”\nrÃ©union\n"
    verdict = Repair(RepairOptions()).decide(batch("clean", text, "â€”"))
    assert verdict.columns["text"].to_pylist() == ["clean", "clean line\nschön\nclean “line”\nréunion\n", "—"]
    assert list(zip(verdict.edits.rows, verdict.edits.rules, verdict.edits.counts, strict=True)) == [
        (1, "repair.mojibake", 2),
        (2, "repair.mojibake", 1),
    ]
    assert (verdict.rule == -1).all()


def test_a_batch_of_clean_texts_is_not_rewritten() -> None:
    verdict = Repair(RepairOptions()).decide(batch("clean", "“clean”"))
    assert verdict.columns == {} and verdict.edits.rows == []


def test_control_characters_go_only_on_request_and_by_a_rule_of_their_own() -> None:
    text = "red \x1b[31malert\x1b[0m\x00\ufeff\nschÃ¶n\x07\nfine\n"
    kept = Repair(RepairOptions()).decide(batch(text))
    assert kept.columns["text"].to_pylist() == [text.replace("Ã¶", "ö")]
    gone = Repair(RepairOptions(control_characters=True)).decide(batch(text))
    assert gone.columns["text"].to_pylist() == ["red alert\nschön\nfine\n"]
    assert dict(zip(gone.edits.rules, gone.edits.counts, strict=True)) == {"repair.mojibake": 1, "repair.control_characters": 1}


def test_a_normal_form_is_imposed_only_on_request() -> None:
    verdict = Repair(RepairOptions(normalization="NFC")).decide(batch("cafe\u0301\nplain\n", "plain"))
    assert verdict.columns["text"].to_pylist() == ["café\nplain\n", "plain"]
    assert (verdict.edits.rules, verdict.edits.counts) == (["repair.normalization"], [1])


# Characters that ftfy's encodings know, and some that they do not, so that chance often makes mojibake.
_HIGH = "".join(
    sorted(
        {
            c
            for name in ("latin-1", "cp1252", "cp1251", "cp1253", "mac-roman", "cp437")
            for c in bytes(range(128, 256)).decode(name, "ignore")
        }
    )
)
_ALPHABET = st.sampled_from(_HIGH + " \n?abcXYZ.\ufffd\x1a\x85\u2028日😀")


def ftfys(text: str, config: ftfy.TextFixerConfig) -> str:
    """What ftfy makes of a text, but for lines in which `Ã` before a blank may be a letter by itself."""
    lines = []
    for line in _LINE.findall(text):
        without = line.replace("Ã ", "A ")
        others = any(character.isalpha() and not character.isascii() for character in without)
        is_letter = "Ã " in line and others and ftfy.fix_text(without, config) == without
        lines.append(line if is_letter else ftfy.fix_text(line, config))
    return "".join(lines)


_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@given(st.text(_ALPHABET, max_size=60))
@example("Ã ")
@example("Â?")
@example("ð ˜€")
@example("C Ã é")
@example("a\n")
def test_the_gate_lets_through_whatever_ftfy_would_fix(text: str) -> None:
    for config in (ENCODING_ONLY, CONFIG):
        assert repair(text, config)[0] == ftfys(text, config)
        if "Ã " not in text:
            assert ftfys(text, config) == ftfy.fix_text(text, config)


@given(st.lists(st.text(_ALPHABET, max_size=30), max_size=8), st.integers(0, 3), st.integers(0, 3))
def test_every_line_that_ftfy_would_fix_is_suspicious_and_in_the_text_it_names(texts: list[str], before: int, after: int) -> None:
    column = pa.array(["é"] * before + texts + ["\x00"] * after, pa.large_string()).slice(before, len(texts))
    data, offsets = text_buffers.of(column)
    found = suspicious_lines(data, offsets).tolist()
    for row, begin, end in found:
        assert offsets[row] <= begin < end <= offsets[row + 1]
        assert begin == offsets[row] or data[begin - 1] == 10
        assert end == offsets[row + 1] or data[end - 1] == 10
    lines = {(row, data[begin:end].tobytes().decode()) for row, begin, end in found}
    assert [row for row, _, _ in found] == sorted(row for row, _, _ in found)
    for row, text in enumerate(texts):
        for line in _LINE.findall(text):
            assert (row, line) in lines or ftfy.fix_text(line, CONFIG) == line


@given(st.text(st.one_of(_ALPHABET, st.characters(exclude_categories=["Cs"])), max_size=30))
@example("à²")
@example("Ã ")
@example("ГўВЂВ™s")
@example("a\u2028Â ")
@example("œ😀")
def test_the_compiled_expression_says_what_ftfys_says(text: str) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    found = mojibake._is_bad(data, 0, len(data), *mojibake.badness_automaton())
    # All characters above the basic plane are one, whatever they are.
    assert found == is_bad(text) or (found and max(text) > "\uffff")


def test_what_is_not_understood_of_an_expression_makes_more_suspicious_and_never_less() -> None:
    assert mojibake._sequences("a b? | ^[|c] \\s # note | here") == [
        (False, ["a", "b"]),
        (False, ["a"]),
        (True, ["[|c]", "\\s"]),
    ]
    assert mojibake._sequences("ab*c | d(e|f)g | (h) | i\\bj | kl+m") == [
        (False, ["a"]),
        (False, ["d"]),
        (False, ["f"]),
        (False, [r"[\s\S]"]),
        (False, ["i"]),
        (False, ["k", "l"]),
    ]


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("Ã jia Jesu tíre to tuaa mehne to yoa ñochʉ ñʉa", True),
        ("irmÃ é", True),
        ("voilÃ le travail", False),
        ("voilÃ la rÃ©union déjà", False),
        ("Ã la carte", False),
    ],
)
def test_a_capital_a_with_tilde_before_a_blank_may_be_a_letter_by_itself(line: str, stays: bool) -> None:
    assert (repair(line)[0] == line) == stays
    assert ftfy.fix_text(line, ENCODING_ONLY) != line


def test_only_what_changes_is_rewritten_and_nulls_stay() -> None:
    texts = ["é", "schÃ¶n\nfine", None, "", "日本", "rÃ©union"]
    column = pa.array(["out", *texts, "out"], pa.large_string()).slice(1, len(texts))
    verdict = Repair(RepairOptions()).decide(pa.record_batch({"text": column}))
    assert verdict.columns["text"].to_pylist() == ["é", "schön\nfine", None, "", "日本", "réunion"]
    assert verdict.columns["text"].type == pa.large_string()


def test_an_empty_batch_has_an_empty_verdict() -> None:
    verdict = Repair(RepairOptions(normalization="NFC")).decide(batch())
    assert len(verdict.rule) == 0 and verdict.columns == {}


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["latin-1", "cp1252", "cp1251", "cp1250", "mac-roman", "cp437"]),
)
def test_text_read_in_the_wrong_encoding_reaches_ftfy(text: str, encoding: str) -> None:
    damaged = text.encode().decode(encoding, "replace") + "\n" + text
    assert repair(damaged)[0] == ftfy.fix_text(damaged, ENCODING_ONLY)


def test_a_line_of_more_than_a_million_characters_is_repaired_as_ftfy_does() -> None:
    text = "schÃ¶n " * 150_000
    assert repair(text)[0] == ftfy.fix_text(text, ENCODING_ONLY)
