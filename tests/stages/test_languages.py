"""Language files, scripts, and what counts as a word."""

from __future__ import annotations

import itertools
import os
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

from stages import languages, reading, scripts
from stages.gopher_quality import GopherQuality, GopherQualityOptions
from tests.stages import plain

SHIPPED = languages.load()


@pytest.mark.parametrize("code", SHIPPED.codes())
def test_every_list_of_every_language_names_its_source(code: str) -> None:
    language = SHIPPED.find(code)
    assert language is not None
    lists = {"function_words", "terminal_punctuation", "closing_marks", "characters_per_word"}
    given = {name for name in lists & language.model_fields_set if getattr(language, name)}
    assert given <= set(language.source)
    assert all(language.source.values())


@pytest.mark.parametrize("code", SHIPPED.codes())
def test_function_words_are_as_the_rule_compares_them(code: str) -> None:
    language = SHIPPED.find(code)
    assert language is not None
    assert [plain.bare(word) for word in language.function_words] == list(language.function_words)
    assert len(set(language.function_words)) == len(language.function_words) >= 8
    assert all(unicodedata.is_normalized("NFC", word) for word in language.function_words)


@pytest.mark.parametrize("code", SHIPPED.codes())
def test_unspaced_languages_name_their_scripts(code: str) -> None:
    language = SHIPPED.find(code)
    assert language is not None
    assert bool(language.scripts) is not language.spaced
    assert set(language.scripts) <= set(scripts.UNSPACED_SCRIPTS)
    for mark in (*language.terminal_punctuation, *language.closing_marks):
        assert len(mark) == 1
        assert unicodedata.category(mark).startswith("P")


def test_the_ten_languages_that_ship_are_there() -> None:
    assert {"en", "zh", "de", "fr", "es", "ru", "ja", "ar", "hi", "th"} <= set(SHIPPED.codes())


def test_english_function_words_are_gophers() -> None:
    english = SHIPPED.find("en")
    assert english is not None
    assert set(english.function_words) == {"the", "be", "to", "of", "and", "that", "have", "with"}


def test_a_region_does_not_hide_a_language() -> None:
    assert SHIPPED.find("zh-Hant-TW") == SHIPPED.find("ZH") == SHIPPED.find("zh")
    assert SHIPPED.find("pt_BR") == SHIPPED.find("pt")
    assert SHIPPED.find("tlh") is None


def of(code: str | None, text: str, default: str | None = None) -> tuple[languages.Language | None, bool]:
    batch = pa.record_batch({"text": pa.array([text], pa.large_string()), "language": pa.array([code], pa.string())})
    rows = SHIPPED.of_batch(batch, default)
    return rows.languages()[0], bool(rows.spaced[0])


def test_a_language_file_decides_whatever_the_letters_are() -> None:
    assert of("zh", "an English text") == (SHIPPED.find("zh"), False)


def test_a_language_without_a_file_goes_by_its_letters() -> None:
    assert of("lo", "ສະບາຍດີ") == (None, False)
    assert of("und", "plain letters", "en") == (None, True)


def test_without_a_language_letters_decide_and_a_spaced_text_is_in_the_default_language() -> None:
    assert of(None, "plain letters", "de") == (SHIPPED.find("de"), True)
    assert of(None, "plain letters") == (None, True)
    assert of(None, "ภาษาไทย", "de") == (SHIPPED.find("th"), False)


def test_a_batch_without_the_column_has_no_languages() -> None:
    rows = SHIPPED.of_batch(pa.record_batch({"text": pa.array(["汉字", "letters"], pa.large_string())}), "en")
    assert rows.languages() == [SHIPPED.find("zh"), SHIPPED.find("en")]


def test_the_identity_names_every_language_file_and_the_version_of_unicode() -> None:
    identity = SHIPPED.identity()
    assert identity.pop("unicode") == unicodedata.unidata_version
    assert set(identity) == {f"languages/{code}.toml" for code in SHIPPED.codes()}
    assert {len(digest) for digest in identity.values()} == {64}


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
    assert plain.unspaced_script(text) == script
    unspaced, number = scripts.unspaced(reading.of(pa.array([text])).scripts)
    assert (list(scripts.UNSPACED_SCRIPTS)[number[0]] if unspaced[0] else None) == script


def test_scripts_do_not_overlap_and_hold_what_their_names_say() -> None:
    ranges = sorted(pair for pairs in scripts.UNSPACED_SCRIPTS.values() for pair in pairs)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
    names = {"han": "CJK UNIFIED", "thai": "THAI", "lao": "LAO", "tibetan": "TIBETAN", "khmer": "KHMER", "myanmar": "MYANMAR"}
    for point in range(0x110000):
        name = unicodedata.name(chr(point), "")
        for script, word in names.items():
            if name.startswith(f"{word} ") and unicodedata.category(chr(point))[0] == "L":
                assert plain.script_of(chr(point)) == script, name


def test_sentence_terminals_are_punctuation() -> None:
    assert {unicodedata.category(mark)[0] for mark in scripts.SENTENCE_TERMINALS if mark not in "\u2e53\u2e54"} == {"P"}


def test_words_are_separated_by_any_unicode_whitespace() -> None:
    _, starts = reading.of(pa.array(["a\u00a0b\u3000c\u2028d\te\u200bf"])).words
    assert starts.tolist() == [0, 5]


def test_only_a_newline_ends_a_line() -> None:
    assert plain.lines_of("a\u2028b\x0bc\n \nd\r\n") == ["a\u2028b\x0bc", "d"]


def test_two_newlines_or_more_end_a_paragraph() -> None:
    assert plain.paragraphs("\n\na\nb\n\n\n\n c \n\n\n") == ["a\nb", "c"]


def test_units_are_characters_and_runs_of_other_letters_and_digits() -> None:
    assert plain.units_of("用Python3写，2024 年 iPhone15") == ["用", "Python3", "写", "，", "2024", "年", "iPhone15"]
    assert plain.units_of("a b") == ["a", "b"]


TURKISH = """
name = "Turkish"
function_words = ["ve", "bir", "bu", "için"]
[source]
function_words = "frequent in any Turkish text"
"""


def languages_folder(folder: Path, **files: str) -> str:
    for code, text in files.items():
        (folder / f"{code}.toml").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_folder_adds_a_language_without_code(tmp_path: Path) -> None:
    own = languages.load(languages_folder(tmp_path, tr=TURKISH))
    assert own.codes() == sorted([*SHIPPED.codes(), "tr"])
    text = "Bu bir deneme ve bir sınama için yazıldı. " * 10
    batch = pa.record_batch({"text": pa.array([text], pa.large_string()), "language": pa.array(["tr"])})
    for folder, rule_set, stop_words in ((None, "words", None), (str(tmp_path), "words:tr", 4)):
        measured = GopherQuality(GopherQualityOptions(languages=folder)).measure(batch).signals
        assert measured["gopher.rule_set"].to_pylist() == [rule_set]
        assert measured["gopher.stop_words"].to_pylist() == [stop_words]


def test_the_mark_before_utf_8_of_windows_is_passed_over(tmp_path: Path) -> None:
    assert languages.load(languages_folder(tmp_path, tr="\ufeff" + TURKISH)).find("tr") == languages.load(
        languages_folder(tmp_path, tr=TURKISH)
    ).find("tr")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tr.toml")
    with pytest.raises(ValueError, match=r"tr\.toml: a pipe"):
        languages.load(str(tmp_path))


def test_a_file_of_the_same_code_replaces_the_shipped_one_and_its_digest(tmp_path: Path) -> None:
    own = languages.load(languages_folder(tmp_path, en=TURKISH))
    english = own.find("en")
    assert english is not None
    assert english.name == "Turkish"
    assert own.codes() == SHIPPED.codes()
    assert {name for name, digest in own.identity().items() if digest != SHIPPED.identity()[name]} == {"languages/en.toml"}


@pytest.mark.parametrize(
    "code, text, complaint",
    [
        ("tr", "name = ", "not TOML"),
        ("tr", 'source = {}\nname = "T"\nwords = ["ve"]', "words"),
        ("tr", TURKISH.replace('"ve"', '"Ve"'), "'Ve' can never be found"),
        ("tr", TURKISH.replace('"ve"', '"ve,"'), "'ve,' can never be found"),
        ("tr", TURKISH.replace("[source]\nfunction_words", "[source]\nother"), "where function_words comes from"),
        ("tr", 'spaced = false\nscripts = ["runes"]\n' + TURKISH, "unknown script 'runes'; known: han"),
        ("tr", "spaced = false\n" + TURKISH, "scripts are named for languages that are not spaced"),
        ("tr", 'closing_marks = ["»»"]\n' + TURKISH, "'»»' is not one character"),
        ("Turkish", TURKISH, "ISO 639"),
        ("tr", "#" * (languages.MOST_BYTES + 1), "more than"),
        ("tr", 'code = "de"\n' + TURKISH, "code: the file's name says it"),
    ],
)
def test_a_language_file_that_is_not_right_is_named_with_what_is_wrong(
    tmp_path: Path, code: str, text: str, complaint: str
) -> None:
    with pytest.raises(ValueError) as raised:
        languages.load(languages_folder(tmp_path, **{code: text}))
    assert f"{code}.toml" in str(raised.value)
    assert complaint in str(raised.value)


def test_a_folder_without_language_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no file like de\.toml"):
        languages.load(str(tmp_path))


def test_documents_of_languages_without_a_file_are_counted_over_all_parts() -> None:
    quality = GopherQuality(GopherQualityOptions())
    batch = pa.record_batch(
        {"text": pa.array(["a", "b", "汉字", "ລາວ"], pa.large_string()), "language": pa.array(["en", "tlh", "zh", None])}
    )
    quality.measure(batch)
    assert quality.summary([quality.report(), quality.report()]) == {
        "rule_sets": {"characters": 2, "characters:zh": 2, "words": 2, "words:en": 2},
        "languages_without_file": {"tlh": 2, "unknown": 2},
    }
