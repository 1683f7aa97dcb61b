"""Texts in every language round-trip through a tokenizer that saw only one of them.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stages.tiktoken_engine import why_not
from stages.tokenizer import Encoder, Engine, TokenizerOptions, train_tokenizer
from tests.real.documents import DATA, documents, sample

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    text = gzip.decompress((DATA / "text" / "wikitext-2" / "valid.txt.gz").read_bytes()).decode()
    return Encoder(train_tokenizer(text.split("\n"), TokenizerOptions(vocabulary=2048)))


@pytest.fixture(scope="module")
def given() -> str:
    return train_tokenizer(sample(200), TokenizerOptions(vocabulary=8192))


def check(encoder: Encoder, texts: list[str]) -> None:
    offsets, ids = encoder.encode(pa.array(texts, pa.large_string()))
    for text, start, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
        assert ids[start] == encoder.bos_id
        assert encoder.decode(ids[start:end]) == text.encode()


TEXTS = ("text", "tinystories", "langid", "mojibake", "benchmarks", "peer_cases", "debian", "charset", "html_gold", "url_lists")
"""All folders but warc, whose texts are pages to be extracted."""
SLOW = pytest.param(1, marks=pytest.mark.slow)
SLOW_ROUND_TRIP = pytest.param("tiktoken", 1, marks=pytest.mark.slow)
"""That `tokenizers` gives the same ids on text and langid is the last test's."""


def texts_of(*folders: str) -> Iterator[str]:
    """Every file as a text, and every string in those of JSON Lines. What is no UTF-8 is read as Latin-1: of all bytes."""
    for path in sorted(path for folder in folders for path in (DATA / folder).rglob("*") if path.is_file()):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        yield text
        if ".jsonl" in path.name:
            with contextlib.suppress(json.JSONDecodeError):  # some lines are damaged on purpose
                for line in filter(str.strip, text.split("\n")):
                    for one in strings(json.loads(line)):
                        yield one.encode(errors="replace").decode()  # half characters are the readers' to refuse


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def columns_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of up to about 4 MB."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size > 4_000_000:
            yield held
            held, size = [], 0
    yield held


@pytest.mark.parametrize(("engine", "step"), [("tiktoken", 40), ("tokenizers", 100), SLOW_ROUND_TRIP])
def test_every_text_of_the_test_data_round_trips_with_its_bytes(engine: Engine, step: int, given: str) -> None:
    encoder = Encoder(given, engine=engine)
    seen = 0
    for texts in columns_of(itertools.islice(texts_of(*TEXTS), 0, None, step)):
        column = pa.array(texts, pa.large_string())
        offsets, ids = encoder.encode(column)
        back = encoder.decode_all(ids, offsets)
        assert back.equals(column)
        assert pc.binary_length(back).to_pylist() == [len(text.encode()) for text in texts]
        assert (ids[offsets[:-1]] == encoder.bos_id).all()
        assert np.count_nonzero(ids == encoder.bos_id) == len(texts)
        seen += len(texts)
    assert seen > 200_000 / step


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


@pytest.mark.parametrize("step", [64, SLOW])
def test_tiktoken_gives_the_ids_of_tokenizers_on_all_texts_and_languages(step: int, given: str) -> None:
    assert why_not(given) is None
    slow, fast = Encoder(given), Encoder(given, engine="tiktoken")
    taken = itertools.chain(documents()[::step], itertools.islice(texts_of("text", "langid"), 0, None, step))
    for texts in columns_of(taken):
        column = pa.array(texts, pa.large_string())
        for mine, other in zip(slow.encode(column), fast.encode(column), strict=True):
            np.testing.assert_array_equal(mine, other)
