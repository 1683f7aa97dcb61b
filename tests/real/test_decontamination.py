"""Benchmark items planted in real text are found, and the text alone is clean.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stages.decontamination import Decontamination, DecontaminationOptions
from stages.ngrams import words

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
