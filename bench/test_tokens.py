"""Encoding and writing of shards beside other people's, in one run on one core: `make bench` prints a row for each.

Ours is all that the steps `encode` and `pack` do: documents from their file, ids by tiktoken, usage by language, the shuffle,
shards in the order of a keyed hash with index and log, each file synced to disk. The peers get the texts in memory; of them only
datatrove and dolma write. The same tokenizer.json for all. dolma wants older versions of what stands here:
CORPUSMILL_BENCH_DOLMA names the program of an environment of its own, and without it there is no row.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tokenizers import Tokenizer

from bench.race import Side, cpu_seconds, one_core, race, report
from manifests.storage import Folder
from pipeline.provenance import versions
from pipeline.token_steps import LIBRARIES
from stages.tiktoken_engine import pattern_of
from stages.tokenizer import Encoder, TokenizerOptions, train_tokenizer
from tests.pipeline.token_parts import BATCH, encode_part, pack_shard, write_part
from tests.real.documents import DATA, documents, sample

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")
VOCABULARY = 32_768
SHARDS = 4
WARM = 400
"""Documents before the clock starts. The first of all are one letter 100,000 times, and a shard of little else is refused."""


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    with one_core():
        yield


@pytest.fixture(scope="module")
def tokenizer() -> str:
    given = train_tokenizer(sample(4000), TokenizerOptions(vocabulary=VOCABULARY))
    texts = documents()
    size = sum(len(text.encode()) for text in texts) / 1e6
    what = f"{len(texts):,} documents, {size:.1f} MB, vocabulary {VOCABULARY:,}"
    print(f"\n{versions(LIBRARIES)}; {what}; MB/s of CPU time on one core")
    print("\n| work | other | ours | ratio | wanted |\n|---|---|---|---|---|", end="")
    return given


class Ours:
    """`prepare` writes the documents of a turn, `work` makes shards of them; `tokens` (with BOS) and `documents` count both."""

    def __init__(self, tokenizer: str, folder: Path, engine: str = "tiktoken") -> None:
        self.tokenizer, self.folder, self.engine, self.turns = tokenizer, folder, engine, 0
        self.tokens = self.documents = 0

    def prepare(self, texts: list[str]) -> tuple[Folder, int]:
        self.turns += 1
        corpus = Folder(self.folder / str(self.turns))
        corpus.write("tokenizer.json", self.tokenizer.encode())
        return corpus, write_part(corpus, (texts[start : start + BATCH] for start in range(0, len(texts), BATCH)))

    def work(self, prepared: tuple[Folder, int]) -> None:
        corpus, rows = prepared
        encoded = encode_part(corpus, rows, SHARDS, self.engine).files["tokens"].path
        made = [pack_shard(corpus, [encoded], number, VOCABULARY, "uint16") for number in range(SHARDS)]
        self.tokens += sum(one.values["tokens"] for one in made)
        self.documents += sum(one.values["documents"] for one in made)


def compare(name: str, peer: Callable[[list[str]], Any], ours: Ours, bar: float | None) -> None:
    """A row in MB/s: of all documents where there is a bar, else of a third."""
    texts = documents() if bar is not None else documents()[::3]
    size = sum(len(text.encode()) for text in texts) / 1e6
    left, right = Side(peer, texts), Side(ours.work, texts, ours.prepare)
    race(left, right, warm=WARM)
    assert ours.documents == len(texts) + WARM
    report("encode and write shards", name, size / left.seconds, size / right.seconds, bar, "MB/s")


def test_beside_tokenizers(tokenizer: str, tmp_path: Path) -> None:
    theirs = Tokenizer.from_str(tokenizer)
    theirs.encode_special_tokens = True
    counted = 0

    def peer(texts: list[str]) -> None:
        nonlocal counted
        counted += sum(map(len, theirs.encode_batch_fast(texts, add_special_tokens=False)))

    ours = Ours(tokenizer, tmp_path)
    compare("`tokenizers`, `encode_batch_fast`, in memory", peer, ours, 3)
    assert counted == ours.tokens - ours.documents


def test_beside_bare_tiktoken(tokenizer: str, tmp_path: Path) -> None:
    description = json.loads(tokenizer)
    pattern = pattern_of(description)
    assert pattern is not None
    ranks = {piece: number for number, piece in enumerate(Encoder(tokenizer)._bytes_of) if piece}
    theirs = tiktoken.Encoding("bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    counted = 0

    def peer(texts: list[str]) -> None:
        nonlocal counted
        counted += sum(map(len, theirs.encode_ordinary_batch(texts, num_threads=1)))

    ours = Ours(tokenizer, tmp_path)
    compare("bare tiktoken, `encode_ordinary_batch`, in memory", peer, ours, 0.9)
    assert counted == ours.tokens - ours.documents


def test_our_other_engine(tokenizer: str, tmp_path: Path) -> None:
    theirs = Tokenizer.from_str(tokenizer)
    compare(
        "`tokenizers` beside `engine: tokenizers`",
        lambda texts: theirs.encode_batch_fast(texts, add_special_tokens=False),
        Ours(tokenizer, tmp_path, "tokenizers"),
        None,
    )


@pytest.mark.parametrize("shuffled", [False, True], ids=["as they come", "shuffled"])
def test_beside_datatrove(tokenizer: str, shuffled: bool, tmp_path: Path) -> None:
    pytest.importorskip("datatrove")
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer
    from loguru import logger

    logger.disable("datatrove")

    (tmp_path / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    out = tmp_path / "theirs"

    def peer(texts: list[str]) -> None:
        shutil.rmtree(out, ignore_errors=True)
        step = DocumentTokenizer(str(out), str(tmp_path / "tokenizer.json"), shuffle_documents=shuffled, seed=1)
        step.tokenizer.encode_special_tokens = True
        step.run(Document(text=text, id=str(number)) for number, text in enumerate(texts))

    few = sample(300)
    peer(few)
    [file] = out.glob("*.ds")
    ids = np.fromfile(file, "<u2")
    plain = Tokenizer.from_str(tokenizer).encode_batch_fast(few, add_special_tokens=False)
    assert sorted(ids.tolist()) == sorted(number for one in plain for number in one.ids)
    name = "datatrove `DocumentTokenizer`, documents shuffled" if shuffled else "datatrove `DocumentTokenizer`, as they come"
    compare(name, peer, Ours(tokenizer, tmp_path / "ours"), None)


def test_beside_dolma(tokenizer: str, tmp_path: Path) -> None:
    program = os.environ.get("CORPUSMILL_BENCH_DOLMA")
    if program is None:
        pytest.skip("CORPUSMILL_BENCH_DOLMA names no dolma")
    description = json.loads(tokenizer)
    merges = description["model"]["merges"]
    description["model"]["merges"] = [" ".join(pair) if isinstance(pair, list) else pair for pair in merges]  # as it was once
    (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")

    def peer(texts: list[str]) -> float:
        """CPU seconds of a run, its start included."""
        shutil.rmtree(tmp_path / "theirs", ignore_errors=True)
        (tmp_path / "in").mkdir(exist_ok=True)
        with gzip.open(tmp_path / "in" / "documents.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as lines:
            lines.writelines(json.dumps({"id": str(n), "text": text, "source": "bench"}) + "\n" for n, text in enumerate(texts))
        began = cpu_seconds()
        subprocess.run(
            [
                *[program, "tokens", "--documents", str(tmp_path / "in"), "--destination", str(tmp_path / "theirs")],
                *["--tokenizer.name_or_path", str(tmp_path / "tokenizer.json"), "--tokenizer.eos_token_id", "0"],
                *["--tokenizer.pad_token_id", "1", "--dtype", "uint16", "--processes", "1", "--seed", "1"],
                *["--no-tokenizer.segment_before_tokenization", "--tokenizer.encode_special_tokens"],
            ],
            check=True,
            capture_output=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        return cpu_seconds() - began

    texts, few = documents()[::3], sample(600)
    less, all_ = peer(few), peer(texts)
    more = sum(len(text.encode()) for text in texts) - sum(len(text.encode()) for text in few)
    ours = Ours(tokenizer, tmp_path / "ours")
    ours.work(ours.prepare(few))
    prepared = ours.prepare(texts)
    began = time.process_time()
    ours.work(prepared)
    rate = sum(len(text.encode()) for text in texts) / (time.process_time() - began)
    report("encode and write shards", "dolma `tokens`, without its start", more / (all_ - less) / 1e6, rate / 1e6, None, "MB/s")
