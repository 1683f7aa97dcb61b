import gzip
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.schemas import REMOVALS
from stages.benchmarks import BenchmarkError, BenchmarkIndex, Item, load_items, unit_spans
from stages.decontamination import Decontamination, DecontaminationOptions, merge_reports, ngram_documents
from stages.kernels import ngrams as kernels
from stages.ngrams import characters, units_of, words
from stages.registry import find
from stages.stage import Verdict
from tests.stages import plain_ngrams

QUESTION = " ".join(f"item{number}" for number in range(40))
FILLER = [f"filler{number}" for number in range(500)]
CHINESE = "小明的妈妈有三个孩子老大叫大毛老二叫二毛请问老三叫什么名字"


def stage_of(tmp_path: Path, *items: dict[str, Any], **options: Any) -> Decontamination:
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in items))
    return Decontamination(DecontaminationOptions(benchmarks=str(path), **options))


def decided(stage: Decontamination, *texts: str | None) -> Verdict:
    verdict = stage.decide(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    assert len(verdict.rule) == len(texts)
    return verdict


def document(*planted: str, at: int = 250) -> str:
    return " ".join([*FILLER[:at], *planted, *FILLER[at:]])


def test_the_registry_finds_it() -> None:
    assert find("decontamination") is Decontamination and Decontamination.options_type is DecontaminationOptions
    assert {"benchmark", "item", "evidence"} <= set(REMOVALS.names)


def test_an_item_that_is_wrapped_at_eight_words_a_line_has_28_matches(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"benchmark": "b", "id": "i", "text": QUESTION})
    pieces = QUESTION.split()
    wrapped = "\n".join(" ".join(pieces[start : start + 8]) for start in range(0, 40, 8))
    verdict = decided(stage, document(wrapped), document())
    assert verdict.rule.tolist() == [0, -1]
    assert Decontamination.removal_rules[0] == "decontamination.ngram"
    assert verdict.value is not None and verdict.value[0] == 28
    assert verdict.threshold is not None and verdict.threshold[0] == 1
    assert verdict.evidence["benchmark"].to_pylist() == ["b", None]
    assert verdict.evidence["item"].to_pylist() == ["i", None]
    assert verdict.evidence["evidence"].to_pylist() == [" ".join(pieces[:13]), None]
    start = document(wrapped).index("item0")
    assert verdict.detail[0].startswith(f"28 of 28 n-grams, first at characters {start} to ")


def test_case_and_punctuation_do_not_hide_an_item(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"benchmark": "b", "id": "i", "text": QUESTION})
    assert decided(stage, document(QUESTION.upper().replace(" ", ", — “"))).rule.tolist() == [0]


@pytest.mark.parametrize(("shared", "rule"), [(12, -1), (13, 0)])
def test_twelve_words_of_a_long_item_are_no_match_and_thirteen_are(tmp_path: Path, shared: int, rule: int) -> None:
    stage = stage_of(tmp_path, {"benchmark": "b", "id": "i", "text": QUESTION})
    assert decided(stage, document(*QUESTION.split()[5 : 5 + shared])).rule.tolist() == [rule]


def test_the_configured_threshold_is_read_and_the_overlap_below_it_is_recorded(tmp_path: Path) -> None:
    items = [{"benchmark": "b", "id": "a", "text": "A."}, {"benchmark": "b", "id": "dots", "text": "..."}]
    stage = stage_of(tmp_path, *items, {"benchmark": "b", "id": "real", "text": QUESTION}, min_share=0.5)
    one_gram = document(*QUESTION.split()[:13])
    assert decided(stage, one_gram, "A. ... A. a").rule.tolist() == [-1, -1]
    assert stage.report() == {"b": {"real": [1, 28]}}
    summary = stage.summary([stage.report()])
    assert summary["benchmarks"] == [{"benchmark": "b", "items": 3, "found": {"real": [1, 28]}, "unchecked": ["a", "dots"]}]
    assert summary["n"] == 13 and summary["ngrams"] == 28 and "paraphrase" in summary["limits"]
    verdict = decided(stage, document(*QUESTION.split()[:26]), document(*QUESTION.split()[:25]))
    assert verdict.rule.tolist() == [0, -1]
    assert verdict.value is not None and verdict.value[0] == 0.5 == verdict.threshold[0]
    assert stage.report() == {"b": {"real": [14, 28]}}


@pytest.mark.parametrize(("matches", "rule"), [(3, 0), (4, -1)])
def test_the_number_of_matches_that_is_asked_for_decides(tmp_path: Path, matches: int, rule: int) -> None:
    stage = stage_of(tmp_path, {"benchmark": "b", "id": "i", "text": QUESTION}, min_matches=matches)
    verdict = decided(stage, document(*QUESTION.split()[:15]))
    assert verdict.rule.tolist() == [rule]


def test_repeating_one_ngram_is_one_match(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"benchmark": "b", "id": "i", "text": QUESTION}, min_matches=2)
    assert decided(stage, " x ".join([" ".join(QUESTION.split()[:13])] * 5)).rule.tolist() == [-1]


def test_matches_of_different_items_are_not_added_up(tmp_path: Path) -> None:
    other = QUESTION.replace("item", "other")
    stage = stage_of(tmp_path, {"id": "1", "text": QUESTION}, {"id": "2", "text": other}, min_matches=2)
    text = document(*QUESTION.split()[:13], "x", *other.split()[:13])
    assert decided(stage, text).rule.tolist() == [-1]
    assert stage.report() == {"bench": {"1": [1, 28], "2": [1, 28]}}


def test_the_item_with_the_strongest_evidence_is_named(tmp_path: Path) -> None:
    other = QUESTION.replace("item", "other")
    stage = stage_of(tmp_path, {"id": "1", "text": QUESTION}, {"id": "2", "text": other})
    verdict = decided(stage, document(*QUESTION.split()[:13], "x", *other.split()[:20]))
    assert verdict.evidence["item"].to_pylist() == ["2"]
    assert verdict.detail[0].startswith("8 of 28 n-grams") and verdict.detail[0].endswith("; 1 more items")


@pytest.mark.parametrize(("size", "rule"), [(7, -1), (8, 1), (12, 1)])
def test_items_of_8_to_12_words_are_matched_whole_and_shorter_ones_listed(tmp_path: Path, size: int, rule: int) -> None:
    short = QUESTION.split()[:size]
    long = {"id": "long", "text": QUESTION.replace("item", "long")}
    stage = stage_of(tmp_path, {"id": "short", "question": " ".join(short) + "?"}, long, min_matches=3)
    verdict = decided(stage, document(*short), document(*short[:-1]))
    assert verdict.rule.tolist() == [rule, -1]
    assert stage.summary([])["benchmarks"][0]["unchecked"] == (["short"] if rule == -1 else [])
    if rule == 1:
        assert verdict.value is not None and verdict.value[0] == 1 == verdict.threshold[0]
        assert verdict.evidence["item"].to_pylist() == ["short", None]


def test_a_prompt_label_around_a_short_question_does_not_hide_it(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"id": "i", "question": "Question: who wrote the story about a white whale hunt?\nAnswer:"})
    assert decided(stage, document("who wrote the story about a white whale hunt")).rule.tolist() == [1]


def test_a_question_too_short_alone_is_looked_for_with_its_answer(tmp_path: Path) -> None:
    item = {"id": "i", "question": "Who wrote Moby Dick?", "answer": "Herman Melville wrote it in 1851"}
    stage = stage_of(tmp_path, item)
    assert decided(
        stage, document("Who wrote Moby Dick"), document("Who wrote Moby Dick? Herman Melville wrote it in 1851")
    ).rule.tolist() == [-1, 1]


def test_long_choices_and_answers_count_and_short_ones_do_not(tmp_path: Path) -> None:
    long = QUESTION.replace("item", "choice")
    item = {"id": "i", "question": QUESTION, "choices": [long, "a short choice of eight words or some more"], "answer": 3}
    stage = stage_of(tmp_path, item, {"id": "arc", "question": "x", "choices": {"text": [long + " end"], "label": ["A"]}})
    assert decided(stage, document(*long.split()[-13:])).rule.tolist() == [0]
    assert decided(stage, document("a short choice of eight words or some more")).rule.tolist() == [-1]


def test_chinese_items_are_matched_by_characters_even_when_wrapped(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"id": "zh", "text": CHINESE + "？"}, {"id": "short", "text": "中国的首都是哪一座城市呢？"})
    page = "这是一个网页。" * 10 + "\n".join([CHINESE[:9], CHINESE[9:18], "，".join(CHINESE[18:])]) + "网页到此结束。" * 10
    verdict = decided(stage, page, "这是一个网页。" * 20, "问：中国的首都\n是哪一座城市呢")
    assert verdict.rule.tolist() == [0, -1, 1]
    assert verdict.value is not None and verdict.value[0] == len(CHINESE) - 19
    assert verdict.evidence["evidence"].to_pylist()[0].replace(" ", "") == CHINESE[:18] + CHINESE[18:20].replace("", "，")[1:-1]


def test_a_benchmark_without_a_single_ngram_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="2 items, and not one n-gram"):
        stage_of(tmp_path, {"text": "A."}, {"text": "..."})
    with pytest.raises(BenchmarkError, match="no benchmark items"):
        stage_of(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", r"b\.jsonl:2: not a line of JSON"), ("[1]", "2: a benchmark item is a JSON object"), ('{"id": 1}', "2: no text")],
)
def test_a_bad_line_is_an_error_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": QUESTION}) + "\n" + line)
    with pytest.raises(BenchmarkError, match=message):
        load_items(str(tmp_path))


def test_a_folder_is_read_whole_gzipped_or_not(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": "a\u2028b \u0085 c"}, ensure_ascii=False) + "\n\n")
    (tmp_path / "sub" / "two.jsonl.gz").write_bytes(
        gzip.compress(json.dumps({"benchmark": "x", "item": 7, "text": "t"}).encode())
    )
    (tmp_path / "readme.txt").write_text("no benchmark")
    items = [(item.benchmark, item.name, item.questions) for item in load_items(str(tmp_path))]
    assert items == [("one", "0", ["a\u2028b \u0085 c"]), ("x", "7", ["t"])]
    with pytest.raises(BenchmarkError, match=r"no file, and no folder with files named"):
        load_items(str(tmp_path / "missing"))


def test_a_truncated_gzip_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}' * 100)[:-9])
    with pytest.raises(BenchmarkError, match="not a whole gzip file"):
        load_items(str(tmp_path / "b.jsonl.gz"))


def test_common_phrases_can_be_exempted_by_the_number_of_documents_they_stand_in(tmp_path: Path) -> None:
    common = " ".join(QUESTION.split()[:13])
    items = {"id": "i", "text": QUESTION}
    index = stage_of(tmp_path, items).index
    counts = ngram_documents([document(common.upper())] * 5 + [document(*QUESTION.split()[1:15])], index)
    assert counts[common] == 5 and sorted(counts.values()) == [1, 1, 5]
    frequencies = tmp_path / "frequencies.json"
    frequencies.write_text("\n".join(json.dumps({"ngram": ngram, "documents": count}) for ngram, count in counts.items()))
    limited = {"document_frequencies": str(frequencies), "max_document_frequency": 4}
    stage = stage_of(tmp_path, items, **limited)
    assert decided(stage, document(common), document(*QUESTION.split()[1:14])).rule.tolist() == [-1, 0]
    assert decided(stage_of(tmp_path, items), document(common)).rule.tolist() == [0]


def test_cutting_leaves_the_rest_and_logs_the_edit(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"id": "i", "text": QUESTION}, action="cut", context=20)
    text = document(QUESTION)
    verdict = decided(stage, text, document())
    start, end = text.index("item0"), text.index("item39") + len("item39")
    assert verdict.rule.tolist() == [-1, -1]
    expected = text[: start - 20].strip() + "\n\n" + text[end + 20 :].strip()
    assert verdict.columns["text"].to_pylist() == [expected, document()]
    assert (verdict.edits.rows, verdict.edits.rules, verdict.edits.counts) == ([0], ["decontamination.cut:bench"], [28])
    where = f"characters {start} to {text.index('item12') + len('item12')}"
    assert verdict.edits.details == [f"i: 28 of 28 n-grams, first at {where}"]
    assert decided(stage, expected).rule.tolist() == [-1] and "text" not in decided(stage, expected).columns


def test_what_cutting_leaves_too_little_of_is_removed(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, {"id": "i", "text": QUESTION}, action="cut")
    scattered = ("  ".join([" ".join(QUESTION.split()[:13]), *FILLER[:80]]) + " ") * 12
    verdict = decided(stage, "a few words " + QUESTION + " and others", scattered)
    assert verdict.rule.tolist() == [0, 0] and "text" not in verdict.columns


def test_evidence_holds_no_personal_data(tmp_path: Path) -> None:
    item = "please send your answer to jane.doe@example.org before the end of next week or call us today"
    verdict = decided(stage_of(tmp_path, {"id": "i", "text": item}), document(item))
    evidence = verdict.evidence["evidence"].to_pylist()[0]
    assert "jane" not in evidence and "<EMAIL>" in evidence


def test_the_verdict_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    chooser = random.Random(2)
    items = [{"id": str(n), "text": " ".join(chooser.choices("abc", k=chooser.randint(6, 30)))} for n in range(40)]
    texts = [" ".join(chooser.choices("abc", k=400)) for _ in range(20)]
    stage = stage_of(tmp_path, *items)
    together = decided(stage, *texts)
    alone = [decided(stage, text) for text in texts]
    assert together.rule.tolist() == [one.rule[0] for one in alone] and len(set(together.rule.tolist())) > 1
    assert together.evidence["item"].to_pylist() == [one.evidence["item"][0].as_py() for one in alone]
    assert decided(stage, None, "").rule.tolist() == [-1, -1]


def test_reports_of_parts_join_to_the_report_of_the_whole() -> None:
    parts = [{"b": {"i": [3, 9]}, "a": {"z": [1, 2]}}, {"b": {"i": [5, 9], "c": [1, 1]}}, {}]
    merged = merge_reports(parts)
    assert merged == merge_reports(parts[::-1]) == {"a": {"z": [1, 2]}, "b": {"c": [1, 1], "i": [5, 9]}}
    assert list(merged["b"]) == ["c", "i"]


LETTERS = (
    *("a", "b", "K", "ab", " ", " ", " ", "\n", "\u00a0", "\u2003", "\x1c", "\u200b", "\0"),
    *("-", ".", "…", "“", "$", "´", "\u00b4", "\u2260", "="),  # deleted; two of them are others after NFC
    *("É", "e\u0301", "\u0301", "\u0327", "\u0323", "ß", "İ", "i\u0307", "\u212a", "\u2126", "Ⱥ", "ﬁ", "Ǆ", "ǅ"),
    *("Σ", "σ", "ς", "ΑΣ", "Σ.", "ΟΔΟΣ"),  # the capital's lower case is another one at the end of a word
    *("\u093c", "न", "न\u093c", "ड\u093c", "\u09c7", "\u09be", "\u09c7\u09be", "ا\u0654", "ب\u0654", "\u0653"),  # some compose
    *("क", "ि", "क़", "ά", "\u1f71", "각", "\u1100", "\u1161", "\u11a8", "가"),
    *("中", "国", "的", "\uf900", "豈", "か\u3099", "が", "สวัส", "ดี", "\U0001f600", "\U00020000", "\U0010ffff", "\ufffd"),
)
strings = st.lists(st.sampled_from(LETTERS), max_size=40).map("".join)
drawn_items = st.builds(
    lambda name, questions, others: Item("b", name, questions or others[:1] or ["a"], others),
    st.just("i"),
    st.lists(st.one_of(strings, strings.map("Question: {}".format)), max_size=2),
    st.lists(strings, max_size=2),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(drawn_items, min_size=1, max_size=4), st.lists(strings, min_size=1, max_size=4), st.data())
def test_matches_are_those_of_comparing_all_units(items: list[Item], pages: list[str], data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(4, 2, 4, 2), (3, 1, 3, 1), (2, 2, 2, 2), (5, 4, 8, 6)]))
    pages += ["".join(pages), " ".join([pages[0], *items[0].questions]), *items[-1].others]
    index = BenchmarkIndex(items, *shape)
    found = index.scan_all(pa.array(pages, pa.large_string()))
    assert found == {row: expected for row, page in enumerate(pages) if (expected := plain_ngrams.matches(page, items, *shape))}
    assert index.unchecked == [number for number, item in enumerate(items) if not plain_ngrams.all_grams(item, *shape)]


def test_every_character_is_read_as_python_reads_it() -> None:
    """Between letters, so that marks and cases that depend on neighbours show."""
    points = [point for point in range(0x40000) if not 0xD800 <= point < 0xE000]
    texts = [" ".join(f"A{chr(point)}b" for point in points[start : start + 256]) for start in range(0, len(points), 256)]
    for by_character in (False, True):
        units = units_of(texts, by_character)
        bounds = units.bounds.tolist()
        plain = units.plain.tobytes()
        read = [plain[bounds[place] : bounds[place + 1]].decode() for place in range(len(bounds) - 1)]
        assert read == [unit for text in texts for unit in plain_ngrams.units(text, by_character)]
    index = BenchmarkIndex([Item("b", str(number), [text]) for number, text in enumerate(texts)], 2)
    found = index.scan_all(pa.array(texts, pa.large_string()))
    own = [next(match for match in found[row] if match.item == row) for row in range(len(texts))]
    assert all(match.matched == match.total for match in own)


def test_characters_of_a_large_text_are_read_in_windows_that_overlap() -> None:
    word = "".join(chr(0x4E00 + number) for number in range(300))
    index = BenchmarkIndex([Item("b", "i", [word])])
    for place in (
        kernels.WINDOW - 1,
        kernels.WINDOW - 19,
        kernels.WINDOW - 150,
        2 * kernels.WINDOW - 280,
        3 * kernels.WINDOW - 400,
    ):
        (match,) = index.scan("é" * place + word + "é" * 100)
        assert match.matched == match.total == 281
        assert match.spans == tuple((place + number, place + number + 20) for number in range(281))


def test_a_sliced_column_with_nulls_is_read_where_it_begins() -> None:
    index = BenchmarkIndex([Item("b", "i", [QUESTION])])
    column = pa.array(["x", QUESTION, None, "", QUESTION.upper(), "é " + QUESTION, None], pa.large_string())
    for kind in (pa.large_string(), pa.string()):
        assert list(index.scan_all(column.cast(kind).slice(2))) == [2, 3]
    assert index.scan_all(pa.chunked_array([column, column])).keys() == {1, 4, 5, 8, 11, 12}
    assert index.scan_all(column.slice(7)) == index.scan_all(pa.array(["", None], pa.large_string())) == {}


@pytest.mark.parametrize("page", [f"{QUESTION.rpartition(' ')[0]} another", QUESTION.replace("0 item1", "0it em1"), QUESTION])
def test_a_hash_is_not_a_match(page: str) -> None:
    """The only n-gram of the index is given the hash of the page's."""
    index = BenchmarkIndex([Item("b", "i", [QUESTION])], n=40)
    units, mixed = units_of([page], False), np.empty(1, np.uint64)
    kernels.gram_hashes(units.hashes, np.zeros(1, np.int64), np.full(1, 40, np.int32), mixed)
    grams = index._grams[False].grams
    grams.hashes[:], grams.slots[:], grams.bits[:] = mixed, 0, np.uint64(2**64 - 1)
    grams.slots[int(mixed[0]) + 1 & len(grams.slots) - 1] = kernels.UNKNOWN
    assert len(index.scan(page)) == (page == QUESTION)


@given(st.text())
def test_punctuation_and_symbols_are_deleted_by_category(text: str) -> None:
    lower = unicodedata.normalize("NFC", text).lower()
    kept = "".join(each for each in lower if unicodedata.category(each)[0] not in "PS")
    assert words(text) == kept.split()


@given(st.text())
def test_units_are_found_where_they_stand(text: str) -> None:
    spans = unit_spans(text, False)
    assert spans is not None
    assert [word for start, end in spans for word in words(text[start:end])] == words(text)
    by_character = unit_spans(text, True)
    if by_character is not None:
        assert len(by_character) == len(characters(text))
