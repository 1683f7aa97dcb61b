"""Benchmark items planted in real text are found, and the text alone is clean.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import json
import os
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stages.benchmarks import BenchmarkIndex, Item, load_items
from stages.decontamination import Decontamination, DecontaminationOptions
from stages.ngrams import words
from tests.stages import plain_ngrams

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    with gzip.open(DATA / "benchmarks" / "items.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for number, line in enumerate(lines) if number % 20 == 0]


@pytest.fixture(scope="module")
def stage(items: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Decontamination:
    path = tmp_path_factory.mktemp("benchmarks") / "items.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in items))
    return Decontamination(DecontaminationOptions(benchmarks=str(path)))


@pytest.fixture(scope="module")
def pages() -> list[str]:
    """Pieces of a novel of 1818."""
    path = next((DATA / "text" / "gutenberg" / "Frankenstein_84").glob("84-0.txt.gz"))
    text = gzip.decompress(path.read_bytes()).decode()
    return [text[start : start + 2000] for start in range(20_000, 300_000, 2000)]


def decide(stage: Decontamination, texts: list[str]) -> list[int]:
    return stage.decide(pa.record_batch({"text": pa.array(texts, pa.large_string())})).rule.tolist()


def test_a_novel_is_clean(stage: Decontamination, pages: list[str]) -> None:
    assert set(decide(stage, pages)) == {-1}


def test_every_question_of_eight_words_or_more_is_found_when_planted_at_eight_words_a_line(
    stage: Decontamination, items: list[dict[str, Any]], pages: list[str]
) -> None:
    texts, planted = [], []
    for number, item in enumerate(items):
        question = item["question"].split()
        if len(words(item["question"])) < 8:
            continue
        wrapped = "\n".join(" ".join(question[start : start + 8]) for start in range(0, len(question), 8))
        page = pages[number % len(pages)]
        texts.append(f"{page[:1000]}\n{wrapped}\n{page[1000:]}")
        planted.append(item["id"])
    rules = decide(stage, texts)
    missed = [name for name, rule in zip(planted, rules, strict=True) if rule == -1]
    assert len(planted) > 1000 and missed == []


def test_items_that_cannot_be_checked_are_listed_and_short(stage: Decontamination, items: list[dict[str, Any]]) -> None:
    record = stage.summary([])["benchmarks"]
    assert sum(row["items"] for row in record) == len(items)
    unchecked = {name for row in record for name in row["unchecked"]}
    for item in items:
        if item["id"] in unchecked:
            assert len(words(item["question"])) < 8


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).split(b"\n") if line]


@pytest.fixture(scope="module")
def languages() -> dict[str, str]:
    """Language → about 200 words or more of it, in 75 languages."""
    found: dict[str, str] = {}
    for row in lines(DATA / "langid" / "lingua_sentences.jsonl.gz"):
        text = found.get(row["label"], "")
        if len(text) < 1500:
            found[row["label"]] = f"{text}{row['text']}\n"
    return found


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_in_every_language_the_scan_finds_what_comparing_all_units_finds(languages: dict[str, str], form: Any) -> None:
    items = [
        Item("b", language, [" ".join(text.split()[2:40]) if " " in text.strip() else text[20:150]])
        for language, text in languages.items()
    ]
    shape = (5, 3, 8, 5)
    index = BenchmarkIndex(items, *shape)
    names = list(languages)
    pages = [unicodedata.normalize(form, text) for text in languages.values()]
    found = index.scan_all(pa.array(pages, pa.large_string()))
    assert len(names) > 70
    for row, page in enumerate(pages):
        for other in (row, (row + 1) % len(names)):
            expected = plain_ngrams.matches(page, [items[other]], *shape)
            mine = [replace(match, item=0) for match in found[row] if match.item == other]
            assert mine == expected, names[other]
            assert other != row or mine


def references(kind: str) -> list[Item]:
    rows = lines(DATA / "peer_cases" / "decon_fixtures.jsonl.gz")
    inputs = [row["input"] for row in rows if row["path"].endswith(f"/{kind}_reference.jsonl")]
    return [
        Item(row["eval_key"], str(row["doc_id"]), [row["question"]], [row[key] for key in ("passage", "answer") if key in row])
        for row in inputs
    ]


WORDS_CHANGED = {
    "contaminated_edge_cases.jsonl:0": "words put in: no 13 in a row are left",
    "contaminated_edge_cases.jsonl:4": "words misspelt: no 13 in a row are left",
    "contaminated_mixed.jsonl:1": "a paraphrase",
    "demo.jsonl:0": "of an item that is not among the references",
    "demo.jsonl:1": "of an item that is not among the references",
}
"""Documents of decon's tests that n-grams do not find."""


@pytest.mark.parametrize("kind", ["passage_question_answer", "question_answer", "question"])
def test_documents_of_decon_are_clean_or_found_as_their_file_says_or_listed_with_a_reason(kind: str) -> None:
    index = BenchmarkIndex(references(kind))
    for row in lines(DATA / "peer_cases" / "decon_fixtures.jsonl.gz"):
        if row["kind"] == "reference_item":
            continue
        name = f"{row['path'].split('/')[-1]}:{row['line']}"
        found = {index.names[match.item][1]: match.matched for match in index.scan(row["input"])}
        if row["expected"] == "clean" or name in WORDS_CHANGED:
            assert found == {}, name
        elif name == "contaminated_mixed.jsonl:4":
            assert found == ({} if kind == "question" else {"103": 10}), "it holds the answer, not the question"
        else:
            assert "101" in found, name
            assert ("102" in found) == (name.split(":")[0] in ("contaminated_multiple_in_one.jsonl", "long_document.jsonl")), name
    unchecked = [index.names[number][1] for number in index.unchecked]
    assert unchecked == (["103"] if kind == "question" else []), "a question of six words, without its answer"


@pytest.mark.parametrize(("n", "found"), [(12, {0, 4}), (13, {0})])
def test_documents_of_datatrove_are_found_by_n_grams_inside_a_question(n: int, found: set[int]) -> None:
    """Its filter keeps 0 and 4: without `find_query_ngrams` it looks only for n-grams across question and answer. Documents 1 and 2
    hold items that are not in this half of the data; 3 and 6 have no 12 words of an item, and 5 has none at all."""
    (case,) = (row for row in lines(DATA / "peer_cases" / "datatrove_dedup_decont.jsonl.gz") if row["kind"] == "decontamination")
    hellaswag = [item for item in load_items(str(DATA / "benchmarks")) if item.benchmark == "hellaswag_val"]
    index = BenchmarkIndex(hellaswag, n)
    assert {document["id"] for document in case["input"] if index.scan(document["text"])} == found
