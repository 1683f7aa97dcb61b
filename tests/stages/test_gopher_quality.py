"""Every bound of Gopher's quality rules at, below and above, and the rule set for scripts without spaces."""

from __future__ import annotations

import pyarrow as pa
import pytest

from manifests.rules import decide
from stages.gopher_quality import GopherQuality, GopherQualityOptions

STOP = ["the", "and"]


def documents(*texts: str, language: str | None = "en") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "text": pa.array(texts, pa.large_string()),
            "language": pa.array([language] * len(texts), pa.string()),
        }
    )


def signals(text: str, language: str | None = "en", **options: object) -> dict:
    measured = GopherQuality(GopherQualityOptions(**options)).measure(documents(text, language=language)).signals
    return {name.removeprefix("gopher."): column[0].as_py() for name, column in measured.items()}


def failed(text: str, language: str | None = "en", **options: object) -> list[str]:
    stage = GopherQuality(GopherQualityOptions(**options))
    decision = decide(stage.rules(), pa.table(stage.measure(documents(text, language=language)).signals))
    return decision.failed[0].as_py()


def prose(words: int, word: str = "words") -> str:
    return " ".join([*STOP, *[word] * (words - len(STOP))])


def ratio(numerator: int, denominator: int) -> dict:
    return {"numerator": numerator, "denominator": denominator}


@pytest.mark.parametrize("words, kept", [(49, False), (50, True), (51, True)])
def test_fifty_words_are_enough(words: int, kept: bool) -> None:
    assert ("gopher.min_words" not in failed(prose(words))) is kept


@pytest.mark.parametrize("words, kept", [(99_999, True), (100_000, True), (100_001, False)])
def test_a_hundred_thousand_words_are_not_too_many(words: int, kept: bool) -> None:
    assert failed(prose(words)) == ([] if kept else ["gopher.max_words"])


@pytest.mark.parametrize("extra, kept", [(-1, False), (0, True), (1, True)])
def test_a_mean_word_length_of_exactly_three_is_kept(extra: int, kept: bool) -> None:
    text = " ".join([*STOP, "a" * (3 + extra), *["abc"] * 57])
    assert failed(text) == ([] if kept else ["gopher.min_mean_word_length"])


@pytest.mark.parametrize("extra, kept", [(-1, True), (0, True), (1, False)])
def test_a_mean_word_length_of_exactly_ten_is_kept(extra: int, kept: bool) -> None:
    text = " ".join([*STOP, "a" * (24 + extra), *["abcdefghij"] * 57])
    assert failed(text) == ([] if kept else ["gopher.max_mean_word_length"])


def test_word_length_counts_code_points_and_not_bytes() -> None:
    assert signals("straße ЖЖ é", "de")["mean_word_length"] == ratio(9, 3)


@pytest.mark.parametrize("symbol, rule", [("#", "hashes"), ("...", "ellipses"), ("…", "ellipses")])
@pytest.mark.parametrize("count, kept", [(5, True), (6, True), (7, False)])
def test_one_symbol_for_ten_words_is_kept(symbol: str, rule: str, count: int, kept: bool) -> None:
    text = " ".join([*STOP, *[f"w{symbol}rd"] * count, *["words"] * (58 - count)])
    assert failed(text) == ([] if kept else [f"gopher.max_{rule}_per_word"])


def test_hashes_and_ellipses_are_counted_apart() -> None:
    text = " ".join([*STOP, *["w#rd"] * 6, *["w…rd"] * 6, *["words"] * 46])
    assert failed(text) == []
    assert signals(text)["hashes_per_word"] == ratio(6, 60)
    assert signals(text)["ellipses_per_word"] == ratio(6, 60)


def test_six_dots_are_two_ellipses() -> None:
    assert signals("wait...... and … so....")["ellipses_per_word"] == ratio(4, 4)


def lines(special: str, count: int, total: int) -> str:
    return "\n\n".join([special] * count + ["the words and words"] * (total - count))


@pytest.mark.parametrize("bullet", ["•", "●", "-", "*"])
@pytest.mark.parametrize("count, kept", [(17, True), (18, True), (19, False)])
def test_nine_bullets_in_ten_lines_are_kept(bullet: str, count: int, kept: bool) -> None:
    text = lines(f"  {bullet} the words and words", count, 20)
    assert failed(text, min_alphabetic_words=None) == ([] if kept else ["gopher.max_bullet_lines"])


@pytest.mark.parametrize("ellipsis", ["...", "…"])
@pytest.mark.parametrize("count, kept", [(5, True), (6, True), (7, False)])
def test_three_ellipsis_lines_in_ten_are_kept(ellipsis: str, count: int, kept: bool) -> None:
    text = lines(f"the words and words{ellipsis} ", count, 20)
    assert failed(text) == ([] if kept else ["gopher.max_ellipsis_lines"])


@pytest.mark.parametrize("alphabetic, kept", [(47, False), (48, True), (49, True)])
def test_four_alphabetic_words_in_five_are_kept(alphabetic: int, kept: bool) -> None:
    text = " ".join([*STOP, *["w0rds"] * (alphabetic - 2), *["12345"] * (60 - alphabetic)])
    assert failed(text) == ([] if kept else ["gopher.min_alphabetic_words"])


def test_one_stop_word_repeated_is_not_two() -> None:
    assert failed(" ".join(["the"] * 60)) == ["gopher.min_stop_words"]


@pytest.mark.parametrize("words, kept", [(["the"], False), (["the", "and"], True), (["the", "and", "of"], True)])
def test_two_distinct_stop_words_are_enough(words: list[str], kept: bool) -> None:
    text = " ".join([*words, *["words"] * 57])
    assert failed(text) == ([] if kept else ["gopher.min_stop_words"])


def test_stop_words_are_found_in_capitals_and_beside_punctuation() -> None:
    assert signals("“The” (AND) to, of; theme that's")["stop_words"] == 4
    assert signals("The.and.that")["stop_words"] == 0


def test_stop_words_are_those_of_the_documents_language() -> None:
    german = "Die Katze und der Hund."
    assert signals(german, "de")["stop_words"] == 3
    assert signals(german, "en")["stop_words"] == 0
    assert signals(german, "de-AT")["rule_set"] == "words:de"


def test_a_language_without_a_file_has_no_stop_word_rule_and_says_so() -> None:
    measured = signals(prose(60), "tlh")
    assert measured["stop_words"] is None
    assert measured["rule_set"] == "words"
    assert failed(" ".join(["qapla"] * 60), "tlh") == []


def test_a_spaced_text_without_a_language_is_judged_as_the_default_language() -> None:
    assert signals("der Hund und die Katze", None)["stop_words"] == 0
    assert signals("der Hund und die Katze", None, default_language="de")["stop_words"] == 3
    assert signals("der Hund und die Katze", None, default_language=None)["stop_words"] is None


def test_an_empty_text_is_removed_for_having_no_words() -> None:
    assert failed("")[0] == "gopher.min_words"
    assert failed("\n \t\u3000")[0] == "gopher.min_words"


def test_none_switches_a_rule_off() -> None:
    names = [rule.name for rule in GopherQuality(GopherQualityOptions(min_words=None)).rules()]
    assert "gopher.min_words" not in names
    assert "gopher.max_words" in names


def test_every_bound_is_an_option_and_the_first_ten_are_gophers_in_its_order() -> None:
    rules = GopherQuality(GopherQualityOptions()).rules()
    assert [rule.name.removeprefix("gopher.") for rule in rules[:10]] == [
        "min_words",
        "max_words",
        "min_mean_word_length",
        "max_mean_word_length",
        "max_hashes_per_word",
        "max_ellipses_per_word",
        "max_bullet_lines",
        "max_ellipsis_lines",
        "min_alphabetic_words",
        "min_stop_words",
    ]
    assert [rule.threshold for rule in rules[:10]] == [50, 100_000, 3, 10, 0.1, 0.1, 0.9, 0.3, 0.8, 2]


def test_rules_decide_from_declared_signals_alone() -> None:
    assert {rule.signal for rule in GopherQuality(GopherQualityOptions()).rules()} <= set(GopherQuality.signals)


ARTICLE = (
    "这座城市的图书馆在上个月重新开放了。馆长说，他们用了两年的时间整理旧书，也为孩子们准备了新的阅读室。"
    "许多居民一早就来排队，有人带着孩子，有人想借一本很久没有看过的小说。"
)


def test_a_chinese_article_is_judged_by_characters_and_not_by_words() -> None:
    measured = signals(ARTICLE * 2, "zh")
    assert measured["rule_set"] == "characters:zh"
    assert measured["words"] is None
    assert measured["mean_word_length"] is None
    assert measured["characters_unspaced"] == len(ARTICLE) * 2
    assert failed(ARTICLE * 2, "zh") == []


def test_a_spaced_text_has_no_signals_of_unspaced_ones() -> None:
    measured = signals(prose(60))
    assert measured["rule_set"] == "words:en"
    assert [name for name, value in measured.items() if name.endswith("_unspaced") and value is not None] == []


def test_without_a_language_the_letters_say_which_rule_set_applies() -> None:
    assert signals(ARTICLE, None)["rule_set"] == "characters:zh"
    assert signals("私は日本語のテキストを分割します。", None)["rule_set"] == "characters:ja"
    assert signals("สวัสดีครับ ยินดีต้อนรับ", None)["rule_set"] == "characters:th"
    assert signals("ສະບາຍດີ", None)["rule_set"] == "characters"
    assert signals("모든 인간은 태어날 때부터", None)["rule_set"] == "words:en"


@pytest.mark.parametrize("characters, kept", [(99, False), (100, True), (101, True)])
def test_a_hundred_characters_are_enough_for_an_unspaced_text(characters: int, kept: bool) -> None:
    text = ("的是" + "书" * characters)[:characters]
    assert failed(text, "zh") == ([] if kept else ["gopher.min_characters_unspaced"])


@pytest.mark.parametrize("characters, kept", [(199_999, True), (200_000, True), (200_001, False)])
def test_two_hundred_thousand_characters_are_not_too_many(characters: int, kept: bool) -> None:
    text = "的是" + "书" * (characters - 2)
    assert failed(text, "zh") == ([] if kept else ["gopher.max_characters_unspaced"])


@pytest.mark.parametrize("han, kept", [(59, False), (60, True), (61, True)])
def test_three_han_characters_in_ten_are_enough(han: int, kept: bool) -> None:
    text = "的是" + "书" * (han - 2) + "w" * (200 - han)
    assert failed(text, "zh") == ([] if kept else ["gopher.min_script_share_unspaced"])


@pytest.mark.parametrize("function, kept", [("的", False), ("的是", True), ("的是在", True)])
def test_two_distinct_function_characters_are_enough(function: str, kept: bool) -> None:
    text = function * 2 + "书" * 100
    assert failed(text, "zh") == ([] if kept else ["gopher.min_stop_characters_unspaced"])


def test_a_chinese_keyword_list_lacks_function_characters() -> None:
    assert "gopher.min_stop_characters_unspaced" in failed("手机壳批发厂家直销优惠价格" * 20, "zh")


def test_a_page_of_links_labelled_chinese_lacks_chinese() -> None:
    text = "\n".join(f"新闻 https://news.example.com/article/{number}.html" for number in range(50))
    assert "gopher.min_script_share_unspaced" in failed(text, "zh")


@pytest.mark.parametrize("symbols, kept", [(19, True), (20, True), (21, False)])
def test_one_symbol_in_ten_characters_is_kept(symbols: int, kept: bool) -> None:
    text = "的是" + "书" * (198 - symbols) + "★" * symbols
    assert failed(text, "zh") == ([] if kept else ["gopher.max_symbols_unspaced"])


def test_a_default_language_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="default_language: no language file has the code 'english'"):
        GopherQuality(GopherQualityOptions(default_language="english"))


def test_a_text_that_is_null_is_measured_as_an_empty_one() -> None:
    batch = pa.record_batch({"text": pa.array([None, ""], pa.large_string()), "language": pa.array(["zh", "zh"], pa.string())})
    for name, column in GopherQuality(GopherQualityOptions()).measure(batch).signals.items():
        assert column[0] == column[1], name
