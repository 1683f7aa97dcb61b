"""C4's rules on lines in their order, the edits they log, and what removes a page."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from manifests.rules import decide
from stages.c4 import C4, C4Options

GOOD = "\n".join(
    [
        "The first of the lines is a sentence.",
        "Is the second of the lines a question?",
        "The third of the lines ends here!",
    ]
)


class Result:
    """One text through C4: what is left, the edits, the signals, and the rules that fail."""

    def __init__(self, text: str, language: str | None = "en", **options: object) -> None:
        stage = C4(C4Options(**options))
        batch = pa.record_batch({"text": pa.array([text], pa.large_string()), "language": pa.array([language], pa.string())})
        measurement = stage.measure(batch)
        edits = measurement.edits
        self.text = measurement.text[0].as_py()
        self.edits = {rule.removeprefix("c4."): count for rule, count in zip(edits.rules, edits.counts, strict=True)}
        self.signals = {name.removeprefix("c4."): column[0].as_py() for name, column in measurement.signals.items()}
        names = decide(stage.rules(), pa.table(measurement.signals)).failed[0].as_py()
        self.failed = [name.removeprefix("c4.") for name in names]


def with_line(line: str) -> str:
    return f"{GOOD}\n{line}"


def test_good_lines_stay_byte_for_byte_and_leave_no_edit() -> None:
    result = Result(GOOD)
    assert result.text == GOOD
    assert result.edits == {}
    assert result.failed == []
    assert result.signals == {
        "lorem_ipsum_lines": 0,
        "curly_brace_lines": 0,
        "sentences": 3,
        "characters": len(GOOD),
        "blocklist_words": None,
    }


@pytest.mark.parametrize(
    "line, rule",
    [
        ("this line has a word like " + "a" * 1001 + ".", "line_too_long_word"),
        ("this line has no terminal punctuation", "no_terminal_punctuation"),
        ("this line trails off into silence...", "no_terminal_punctuation"),
        ("this line ends in another way…", "no_terminal_punctuation"),
        ("this line ends with a colon:", "no_terminal_punctuation"),
        ("only four words here.", "too_few_words"),
        ("please enable JavaScript to see this page.", "javascript"),
        ("you accept our Terms of Use by reading.", "policy"),
        ("you accept our privacy policy by reading.", "policy"),
        ("you accept our cookie policy by reading.", "policy"),
        ("this web site uses cookies to count.", "policy"),
        ("we inform about the use of cookies.", "policy"),
        ("on this site we use cookies often.", "policy"),
    ],
)
def test_a_line_is_taken_out_and_the_edit_names_the_rule(line: str, rule: str) -> None:
    result = Result(with_line(line))
    assert result.text == GOOD
    assert result.edits == {rule: 1}


@pytest.mark.parametrize("length, kept", [(999, True), (1000, True), (1001, False)])
def test_a_word_of_a_thousand_characters_is_kept(length: int, kept: bool) -> None:
    line = f"this line has a word {'é' * length} in it."
    assert (Result(with_line(line)).text == with_line(line)) is kept


@pytest.mark.parametrize("words, kept", [(4, False), (5, True), (6, True)])
def test_five_words_are_enough_for_a_line(words: int, kept: bool) -> None:
    line = " ".join(["word"] * words) + "."
    assert (Result(with_line(line)).text == with_line(line)) is kept


@pytest.mark.parametrize("mark", [".", "?", "!", '"'])
def test_a_line_may_end_in_any_of_four_marks(mark: str) -> None:
    line = f"this is a line of words{mark}"
    assert Result(with_line(line)).edits == {}


@pytest.mark.parametrize("citation", ["[1]", "[23]", "[]", "[edit]", "[citation needed]"])
def test_citations_are_cut_out_before_the_end_of_the_line_is_looked_at(citation: str) -> None:
    line = f"Water{citation} boils at one hundred degrees.{citation}"
    result = Result(with_line(line))
    assert result.text == with_line("Water boils at one hundred degrees.")
    assert result.edits == {"citation": 2}


def test_a_space_before_a_citation_does_not_cost_the_line() -> None:
    assert Result(with_line("Water boils at one hundred degrees. [1]")).text == with_line("Water boils at one hundred degrees.")


def test_a_line_of_citations_only_goes() -> None:
    result = Result(with_line("[edit] [1]"), terminal_punctuation=False, min_words=None)
    assert result.text == GOOD
    assert result.edits == {"citation": 2}


def test_other_brackets_are_no_citations() -> None:
    line = "These [sic] are the [1a] brackets [Edit] of others."
    assert Result(with_line(line)).text == with_line(line)


def test_a_curly_brace_removes_the_page_only_in_a_line_still_alive() -> None:
    assert Result(with_line("function f() { return 1; }")).failed == []
    assert Result(with_line("The set {a, b} has two of them.")).failed == ["curly_brace"]
    assert Result(with_line("Our javascript has a { in every line.")).failed == []
    assert Result(with_line("Our privacy policy has a { in every line.")).failed == ["curly_brace"]


def test_lorem_ipsum_removes_the_page_only_in_a_line_still_alive_and_before_javascript() -> None:
    assert Result(with_line("Lorem ipsum dolor sit amet")).failed == []
    assert Result(with_line("Lorem Ipsum dolor sit amet, consectetur.")).failed == ["lorem_ipsum"]
    assert Result(with_line("The javascript prints lorem ipsum every day.")).failed == ["lorem_ipsum"]


def test_both_page_rules_are_reported_and_the_first_decides() -> None:
    assert Result(with_line("Lorem ipsum { dolor sit amet.")).failed == ["lorem_ipsum", "curly_brace"]


@pytest.mark.parametrize("count, kept", [(2, False), (3, True), (4, True)])
def test_three_sentences_are_enough(count: int, kept: bool) -> None:
    text = " ".join(["This is one of the sentences."] * count)
    result = Result(text)
    assert result.signals["sentences"] == count
    assert (result.failed == []) is kept


@pytest.mark.parametrize(
    "line, count",
    [
        ("The one and only sentence is this.", 1),
        ("Was it? It was! So it ended.", 3),
        ("Was it?! It was... So it ended!!!", 3),
        ('He said "It was." Then he left."', 2),
        ("He said “It was.” Then he (the man) left. (Or so.)", 3),
        ("The value of pi is 3.14 says example.org.", 1),
        ("This sentence ends. this piece does not", 1),
    ],
)
def test_sentences_end_in_marks_that_whitespace_follows(line: str, count: int) -> None:
    assert Result(line, terminal_punctuation=False).signals["sentences"] == count


def test_sentences_are_counted_in_the_lines_that_are_left() -> None:
    text = "One. Two. Three. Four. Five. Six. Seven\nThis is the only line left."
    assert Result(text).signals["sentences"] == 1


@pytest.mark.parametrize("extra, kept", [(-1, True), (0, True), (1, False)])
def test_a_page_may_have_190000_characters(extra: int, kept: bool) -> None:
    line = "This is a line with an é in it."
    lines = [line] * (190_000 // (len(line) + 1))
    missing = 190_000 - len("\n".join(lines)) + extra
    lines[0] = lines[0].replace("line", "line" + "e" * missing)
    result = Result("\n".join(lines))
    assert result.signals["characters"] == 190_000 + extra
    assert result.failed == ([] if kept else ["max_characters"])


def test_whitespace_and_blank_lines_go_and_are_an_edit() -> None:
    result = Result(f"\n  {GOOD}\n\n")
    assert result.text == GOOD
    assert result.edits == {"whitespace": 4}


@pytest.mark.parametrize("text", ["", " ", "\n\n", "no", "a\r\nb"])
def test_a_page_without_lines_is_empty_and_removed(text: str) -> None:
    result = Result(text)
    assert result.text == ""
    assert result.failed == ["min_sentences"]
    assert (result.edits == {}) is (text == "")


def test_fineweb_runs_c4_without_the_rule_on_terminal_punctuation() -> None:
    line = "this is a headline of six words"
    result = Result(with_line(line), terminal_punctuation=False)
    assert result.text == with_line(line)
    assert result.edits == {}


def test_every_rule_on_lines_can_be_switched_off() -> None:
    text = "javascript\nprivacy policy\n" + "a" * 2000 + "\n[1] no."
    options = dict.fromkeys(["max_word_characters", "citations", "terminal_punctuation", "min_words", "javascript", "policy"])
    result = Result(text, **options)
    assert result.text == text
    assert result.edits == {}


def test_every_rule_on_pages_can_be_switched_off() -> None:
    options = dict.fromkeys(["lorem_ipsum", "curly_brace", "min_sentences", "max_characters"])
    assert C4(C4Options(**options)).rules() == []


def test_page_rules_stand_in_the_reference_codes_order() -> None:
    assert [rule.name for rule in C4(C4Options()).rules()] == [
        "c4.lorem_ipsum",
        "c4.curly_brace",
        "c4.min_sentences",
        "c4.max_characters",
    ]


def test_the_blocklist_counts_whole_words_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("Lines\n\nbad phrase\n", encoding="utf-8")
    assert Result(GOOD, blocklist=str(path)).signals["blocklist_words"] == 3
    assert Result(GOOD, blocklist=str(path)).failed == ["blocklist"]
    other = GOOD.replace("lines", "lineses")
    assert Result(other, blocklist=str(path)).failed == []
    assert Result(with_line("That is a Bad Phrase to use."), blocklist=str(path)).signals["blocklist_words"] == 4


def test_in_chinese_the_blocklist_counts_words_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("赌场\n", encoding="utf-8")
    assert Result("这里有一个大赌场开门营业了。", "zh", blocklist=str(path)).signals["blocklist_words"] == 1


def test_an_empty_blocklist_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"empty\.txt"):
        C4(C4Options(blocklist=str(path)))


def test_a_blocklist_of_windows_loses_no_word_to_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("first\r\nquestion\r\n".encode("utf-8-sig"))
    assert Result(GOOD, blocklist=str(path)).signals["blocklist_words"] == 2
    path.write_bytes("caf\xe9\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"words\.txt is not UTF-8 text, at byte 3"):
        C4(C4Options(blocklist=str(path)))


@pytest.mark.parametrize("option", ["max_word_characters", "min_words", "min_characters_unspaced"])
@pytest.mark.parametrize("number", [-1, 10**20])
def test_a_number_that_compiled_code_cannot_count_to_is_refused(option: str, number: int) -> None:
    with pytest.raises(ValidationError):
        C4Options(**{option: number})


CHINESE = "图书馆在上个月重新开放了。\n馆长问：“你们准备好了吗？”\n孩子们大声回答说准备好了！"


def test_chinese_lines_end_in_chinese_marks_and_are_measured_in_characters() -> None:
    result = Result(CHINESE, "zh")
    assert result.text == CHINESE
    assert result.edits == {}
    assert result.signals["sentences"] == 3
    assert result.failed == []


@pytest.mark.parametrize(
    "line, rule", [("图书馆重新开放了。", "too_few_words"), ("图书馆在上个月重新开放了", "no_terminal_punctuation")]
)
def test_short_and_unended_chinese_lines_go(line: str, rule: str) -> None:
    result = Result(f"{CHINESE}\n{line}", "zh")
    assert result.text == CHINESE
    assert result.edits == {rule: 1}


def test_a_long_chinese_paragraph_is_not_one_long_word() -> None:
    text = "图书馆在上个月重新开放了。" * 100
    assert Result(text, "zh").text == text
    assert Result("图书馆在上个月" + "x" * 1001 + "。", "zh").edits == {"line_too_long_word": 1}


@pytest.mark.parametrize("characters, kept", [(9, False), (10, True), (11, True)])
def test_ten_characters_are_enough_for_a_chinese_line(characters: int, kept: bool) -> None:
    line = "书" * (characters - 1) + "。"
    assert (Result(f"{CHINESE}\n{line}", "zh").text == f"{CHINESE}\n{line}") is kept


@pytest.mark.parametrize("length, kept", [(999, True), (1000, True), (1001, False)])
def test_a_latin_run_of_a_thousand_characters_in_a_chinese_line_is_kept(length: int, kept: bool) -> None:
    line = f"图书馆{'x' * length}书。"
    assert (Result(f"{CHINESE}\n{line}", "zh").text == f"{CHINESE}\n{line}") is kept


def test_sentences_in_one_chinese_line_need_no_space_between_them() -> None:
    assert Result("他来了。你也来了！我们走吧？", "zh").signals["sentences"] == 3


def test_hindi_lines_end_in_a_danda() -> None:
    line = "यह एक वाक्य है और यह लंबा है।"
    assert Result(line, "hi").text == line
    assert Result(line, None).text == line


def test_thai_has_no_end_marks_so_those_rules_do_not_apply() -> None:
    line = "ห้องสมุดเปิดให้บริการอีกครั้งเมื่อเดือนที่แล้ว"
    result = Result(line, "th")
    assert result.text == line
    assert result.signals["sentences"] is None
    assert result.failed == []


def test_a_million_dots_take_linear_time() -> None:
    text = "This line has dots " + "." * 1_000_000 + "x and so it goes."
    assert Result(text, max_word_characters=None).signals["sentences"] == 1


def test_rows_are_measured_alone_and_edits_name_their_row() -> None:
    texts = [GOOD, with_line("short."), "", with_line("this line has no end")]
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    measurement = C4(C4Options()).measure(batch)
    assert measurement.text.to_pylist() == [GOOD, GOOD, "", GOOD]
    assert measurement.text.type == pa.large_string()
    assert list(zip(measurement.edits.rows, measurement.edits.rules, strict=True)) == [
        (1, "c4.too_few_words"),
        (3, "c4.no_terminal_punctuation"),
    ]


def test_every_changed_text_has_an_edit() -> None:
    for text in ["a\t\nb", f"{GOOD} ", f"{GOOD}\n", "[1]", "\u3000", with_line("x")]:
        result = Result(text)
        changed = hashlib.sha256(text.encode()).digest() != hashlib.sha256(result.text.encode()).digest()
        assert changed is bool(result.edits)
