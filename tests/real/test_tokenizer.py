"""Texts in every language round-trip through a tokenizer that saw only one of them.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest

from stages.tiktoken_engine import why_not
from stages.tokenizer import Encoder, TokenizerOptions, train_tokenizer
from tests.real.documents import DATA, documents, sample

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    text = gzip.decompress((DATA / "text" / "wikitext-2" / "valid.txt.gz").read_bytes()).decode()
    return Encoder(train_tokenizer(text.split("\n"), TokenizerOptions(vocabulary=2048)))


def check(encoder: Encoder, texts: list[str]) -> None:
    offsets, ids = encoder.encode(pa.array(texts, pa.large_string()))
    for text, start, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
        assert ids[start] == encoder.bos_id
        assert encoder.decode(ids[start:end]) == text.encode()


def test_sentences_of_79_languages_round_trip(encoder: Encoder) -> None:
    with gzip.open(DATA / "langid" / "lingua_sentences.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        rows = [json.loads(line) for line in lines]
    chosen = rows[::5]
    assert len({row["label"] for row in rows}) > 50
    check(encoder, [row["text"] for row in chosen])


def test_damaged_and_odd_texts_round_trip(encoder: Encoder) -> None:
    texts = []
    for path in sorted((DATA / "text" / "garbage").rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            texts.append(data[:200_000].decode("utf-8", errors="replace"))
            texts.append(data[:50_000].decode("latin-1"))
    assert texts
    check(encoder, texts)


@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_tiktoken_gives_the_ids_of_tokenizers_on_books_pages_and_languages(step: int) -> None:
    texts = documents()[::step]
    with gzip.open(DATA / "langid" / "lingua_sentences.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        texts += [json.loads(line)["text"] for line in lines][::step]
    given = train_tokenizer(sample(200), TokenizerOptions(vocabulary=8192))
    assert why_not(given) is None
    slow, fast = Encoder(given), Encoder(given, engine="tiktoken")
    for start in range(0, len(texts), 1000):
        column = pa.array(texts[start : start + 1000], pa.large_string())
        for mine, other in zip(slow.encode(column), fast.encode(column), strict=True):
            np.testing.assert_array_equal(mine, other)
