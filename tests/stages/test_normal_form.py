"""The compiled form against its definition, on texts chosen to be hard: marks in every order, jamo, white space of all kinds."""

import sys
import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stages import normal_form
from stages.normal_form import normal_forms, normalised

ALL = [chr(point) for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)) not in ("Cn", "Co", "Cs")]
SPACES = [character for character in ALL if character.isspace()]
MARKS = [character for character in ALL if unicodedata.combining(character)]
HARD = [*"aeqZ\u00e9\u1eadŞß", *"\u09c7\u09be\u09d7\u0bc6\u0bbe\u0928\u093c\u0921\u0958", *"\u1100\u1161\u11a8\uac00\uac01\ud7a3", "中", "カ", "\u3099",
        "Σ", "ς", "İ", "ı", "Ⱥ", "K", "Å", "\u0344", "\u0301", "\u0323", "\u0327", "\u0345", "\u0320", "\U0001d15f", "\U0001133e", "\U00011347",
        "𐐀", "ﬁ", "Ǆ", "ẞ", "\u0000", "\u00ad", "\u200b", "9", "٣", "_", *"—“”’", *SPACES]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from([*HARD, "word ", " the Quick brown fox\r\n\r\njumps over the lazy dog; " * 3]), max_size=80).map(
        "".join
    ),
    st.lists(st.sampled_from(HARD + MARKS), max_size=12).map("".join),
)


def forms(texts: list[str | None], kind: pa.DataType | None = None) -> list[str]:
    found = normal_forms(pa.array(texts, kind or pa.large_string()))
    assert all(found.data[start - 1] == 0 for start, _ in found.bounds.tolist())
    return [found.data[start:end].tobytes().decode() for start, end in found.bounds.tolist()]


@given(st.lists(TEXTS, max_size=6))
def test_the_compiled_form_is_the_definition(texts: list[str]) -> None:
    assert forms(texts) == [normalised(text) for text in texts]
    assert [normalised(text) for text in texts] == [
        " ".join(unicodedata.normalize("NFC", text).lower().split()) for text in texts
    ]


def test_every_character_alone_and_among_letters_has_the_form_of_the_definition() -> None:
    for pattern in ("{}", "a{}b", "A {} é{}"):
        texts = [pattern.replace("{}", character) for character in ALL]
        assert forms(texts) == [normalised(text) for text in texts]


def test_every_letter_before_every_mark_it_could_join_is_composed() -> None:
    """All of what can begin a composition before all of what can end one, with and without a mark between."""
    table, _ = normal_form._tables()
    begins = [chr(point) for point in np.flatnonzero(table & normal_form.BEGINS) if not 0xAC00 < point <= 0xD7A3]
    joins = [chr(point) for point in np.flatnonzero(table & normal_form.JOINS)]
    assert len(begins) > 300 and len(joins) > 100
    for join in joins:
        texts = [begin + join for begin in begins] + [begin + "\u0316" + join for begin in begins]
        assert forms(texts) == [normalised(text) for text in texts]


def test_marks_out_of_order_are_put_in_order() -> None:
    for first in MARKS[::7]:
        texts = ["x" + first + second for second in MARKS]
        assert forms(texts) == [normalised(text) for text in texts]


def test_a_sigma_that_ends_a_word_is_a_final_one() -> None:
    assert forms(["ΟΔΟΣ ΟΔΟΣ. ΣΑΣ Σ ΑΣ' Α'Σ Σ'Α \u0301Σ", "ΑΣ", "Σ", "1Σ"]) == [
        "οδος οδος. σας σ ας' α'ς σ'α \u0301σ",
        "ας",
        "σ",
        "1σ",
    ]
    texts = [f"Α{character}Σ Σ{character}Α Α{character}Σ{character} {character}Σ{character}Α Σ{character}" for character in ALL]
    assert forms(texts) == [normalised(text) for text in texts]


def test_lower_case_does_not_change_what_a_character_counts_as() -> None:
    """Characters are counted before they are lower-cased, and words are taken from what is left."""
    table, lower = normal_form._tables()
    for point in range(len(lower)):
        if table[point] & normal_form.LOWERED:
            small = int(lower[point])
            kind = table[small] if small < len(table) else 0
            assert (table[point] ^ kind) & (normal_form.LETTER | normal_form.UNSPACED | normal_form.SPACE) == 0


def test_characters_of_both_kinds_of_script_are_counted() -> None:
    found = normal_forms(
        pa.array(["abc 中文 カナ 9_!é" + " longer than a block" * 5, "", None, "ไทย", "ΑΣ ab"], pa.large_string())
    )
    assert found.unspaced.tolist() == [4, 0, 0, 3, 0]
    assert found.letters.tolist() == [4 + 16 * 5, 0, 0, 0, 4]


def test_white_space_of_any_kind_and_length_is_one_space_and_none_at_the_ends() -> None:
    for length in (1, 2, 63, 64, 65, 200):
        for space in SPACES:
            assert forms([space * length + "a" + space * length + "B" * length + space * length]) == ["a " + "b" * length]
    assert forms([" " * 300, "\u3000\n" * 40, ""]) == ["", "", ""]


def test_slices_strings_of_both_kinds_and_nulls_are_read_where_they_lie() -> None:
    texts = ["left out", "Été " * 30, None, "x" * 63, "y" * 64, "z" * 65, "Σίσυφος ΟΔΟΣ"]
    for kind in (pa.string(), pa.large_string()):
        found = normal_forms(pa.array(texts, kind)[1:])
        got = [found.data[start:end].tobytes().decode() for start, end in found.bounds.tolist()]
        assert got == [normalised(text or "") for text in texts[1:]]


def test_a_form_can_be_longer_than_its_text() -> None:
    assert "Ⱥ".lower().encode() == b"\xe2\xb1\xa5"
    assert forms(["Ⱥ" * 1000, "\U0001d15f" * 500, "ΐ" * 300]) == [
        normalised("Ⱥ" * 1000),
        normalised("\U0001d15f" * 500),
        "ΐ" * 300,
    ]


def test_no_bit_stands_beyond_the_planes_that_are_looked_at() -> None:
    for point in (*range(normal_form.LAST_PLANE, normal_form.TAGS), *range(normal_form.LAST, sys.maxunicode + 1)):
        character = chr(point)
        assert (f"A{character}Σ").lower()[-1] == "σ"
        assert not (unicodedata.combining(character) or character.isspace() or character.isalnum())
        assert unicodedata.normalize("NFC", character) == character == character.lower()
