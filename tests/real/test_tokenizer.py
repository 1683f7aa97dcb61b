"""Texts in every language round-trip through a tokenizer that saw only one of them.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from stages.tokenizer import Encoder, TokenizerOptions, train_tokenizer

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
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
