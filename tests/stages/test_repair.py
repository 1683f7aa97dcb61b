"""Mojibake is put right, and clean text is not touched."""

from __future__ import annotations

import ftfy
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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


@given(st.text(_ALPHABET, max_size=60))
@example("Ã ")
@example("Â?")
@example("ð ˜€")
def test_the_gate_lets_through_whatever_ftfy_would_fix(text: str) -> None:
    assert repair(text)[0] == ftfy.fix_text(text, ENCODING_ONLY)
    assert repair(text, CONFIG)[0] == ftfy.fix_text(text, CONFIG)


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
