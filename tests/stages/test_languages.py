"""Language files, scripts, and what counts as a word."""

from __future__ import annotations

import itertools
import unicodedata

import pytest

from stages import languages, scripts, words


@pytest.mark.parametrize("code", languages.known())
def test_every_list_of_every_language_names_its_source(code: str) -> None:
    language = languages.find(code)
    assert language is not None
    lists = {"function_words", "terminal_punctuation", "closing_marks", "characters_per_word"}
    given = {name for name in lists & language.model_fields_set if getattr(language, name)}
    assert given <= set(language.source)
    assert all(language.source.values())


@pytest.mark.parametrize("code", languages.known())
def test_function_words_are_as_the_rule_compares_them(code: str) -> None:
    language = languages.find(code)
    assert language is not None
    assert [words.bare(word) for word in language.function_words] == list(language.function_words)
    assert len(set(language.function_words)) == len(language.function_words) >= 8
    assert all(unicodedata.is_normalized("NFC", word) for word in language.function_words)


@pytest.mark.parametrize("code", languages.known())
def test_unspaced_languages_name_their_scripts(code: str) -> None:
    language = languages.find(code)
    assert language is not None
    assert bool(language.scripts) is not language.spaced
    assert set(language.scripts) <= set(scripts.UNSPACED_SCRIPTS)
    for mark in (*language.terminal_punctuation, *language.closing_marks):
        assert len(mark) == 1
        assert unicodedata.category(mark).startswith("P")


def test_the_ten_languages_that_ship_are_there() -> None:
    assert {"en", "zh", "de", "fr", "es", "ru", "ja", "ar", "hi", "th"} <= set(languages.known())


def test_english_function_words_are_gophers() -> None:
    english = languages.find("en")
    assert english is not None
    assert set(english.function_words) == {"the", "be", "to", "of", "and", "that", "have", "with"}


def test_a_region_does_not_hide_a_language() -> None:
    assert languages.find("zh-Hant-TW") == languages.find("ZH") == languages.find("zh")
    assert languages.find("pt_BR") == languages.find("pt")
    assert languages.find("tlh") is None


def test_a_language_file_decides_whatever_the_letters_are() -> None:
    language, spaced = languages.of_document("zh", "an English text", None)
    assert (language, spaced) == (languages.find("zh"), False)


def test_a_language_without_a_file_goes_by_its_letters() -> None:
    assert languages.of_document("lo", "ສະບາຍດີ", None) == (None, False)
    assert languages.of_document("und", "plain letters", "en") == (None, True)


def test_the_identity_changes_with_any_language_file() -> None:
    assert set(languages.identity()) == {f"languages/{code}.toml" for code in languages.known()}
    assert {len(digest) for digest in languages.identity().values()} == {64}


@pytest.mark.parametrize(
    "text, script",
    [
        ("", None),
        ("1234 ...", None),
        ("English", None),
        ("한국어는 띄어쓰기를 한다", None),
        ("汉字", "han"),
        ("汉字ab", None),
        ("汉字汉a", "han"),
        ("漢字かな交じり文", "kana"),
        ("漢字" * 20 + "の", "han"),
        ("ภาษาไทย", "thai"),
        ("မြန်မာ", "myanmar"),
        ("ភាសាខ្មែរ", "khmer"),
        ("བོད་ཡིག", "tibetan"),
    ],
)
def test_a_text_is_unspaced_when_most_of_its_letters_are(text: str, script: str | None) -> None:
    assert scripts.unspaced_script(text) == script


def test_scripts_do_not_overlap_and_hold_what_their_names_say() -> None:
    ranges = sorted(pair for pairs in scripts.UNSPACED_SCRIPTS.values() for pair in pairs)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
    names = {"han": "CJK UNIFIED", "thai": "THAI", "lao": "LAO", "tibetan": "TIBETAN", "khmer": "KHMER", "myanmar": "MYANMAR"}
    for point in range(0x110000):
        name = unicodedata.name(chr(point), "")
        for script, word in names.items():
            if name.startswith(f"{word} ") and unicodedata.category(chr(point))[0] == "L":
                assert scripts.script_of(chr(point)) == script, name


def test_sentence_terminals_are_punctuation() -> None:
    assert {unicodedata.category(mark)[0] for mark in scripts.SENTENCE_TERMINALS if mark not in "\u2e53\u2e54"} == {"P"}


def test_words_are_separated_by_any_unicode_whitespace() -> None:
    assert words.split("a\u00a0b\u3000c\u2028d\te\u200bf") == ["a", "b", "c", "d", "e\u200bf"]


def test_only_a_newline_ends_a_line() -> None:
    assert words.lines("a\u2028b\x0bc\n \nd\r\n") == ["a\u2028b\x0bc", "d"]


def test_two_newlines_or_more_end_a_paragraph() -> None:
    assert words.paragraphs("\n\na\nb\n\n\n\n c \n\n\n") == ["a\nb", "c"]


def test_units_are_characters_and_runs_of_other_letters_and_digits() -> None:
    assert words.units("用Python3写，2024 年 iPhone15") == ["用", "Python3", "写", "，", "2024", "年", "iPhone15"]
    assert words.units("a b") == ["a", "b"]
