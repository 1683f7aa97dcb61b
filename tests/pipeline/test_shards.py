"""Shards from end to end: what any prefix of one is a sample of, what widths there are, and how a stranger reads one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer

from manifests.manifest import Manifest, digest
from manifests.shards import ShardError
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline import shuffle, tokens
from pipeline.run import RunFailed
from pipeline.tokens import ENCODED, token_column
from stages.tokenizer import Encoder, Engine, TokenizerOptions, train_tokenizer
from tests.pipeline.crawl import article, build, small_recipe, write_small
from tests.pipeline.token_parts import encode_part, pack_shard, write_part
from trainer.data.corpus import Corpus, CorpusError

DOCUMENTS = 4000
KS_1_IN_1000 = 1.95
"""Kolmogorov–Smirnov: the distance of a sample of n from its population is above this over √n once in a thousand samples."""
CHI_1_IN_1000 = 27.88
"""χ² of nine degrees of freedom, which is above this once in a thousand."""
CORPUS_WIDE: list[Any] = [{"split": {"validation": 0, "test": 0}}, {"tokenizer": {"vocabulary": 520}}, "shards"]


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return train_tokenizer([article(number) for number in range(40)], TokenizerOptions(vocabulary=600))


def test_every_prefix_of_a_shard_is_a_fair_sample_of_its_component(tokenizer: str, tmp_path: Path) -> None:
    """The first documents of the files are the short ones; nothing of that is left in a shard."""
    corpus = Folder(tmp_path)
    corpus.write("tokenizer.json", tokenizer.encode())
    texts = ["word " * (1 + number // 40) for number in range(DOCUMENTS)]
    rows = write_part(corpus, [texts[first : first + 500] for first in range(0, DOCUMENTS, 500)])
    encoded = encode_part(corpus, rows, 2, "tiktoken").files["tokens"].path
    for shard in range(2):
        made = pack_shard(corpus, [encoded], shard, 640, "uint16")
        ids = pq.read_table(corpus.path(made.files["index"].path))["id"].to_pylist()
        place = np.array([int(one.rpartition("#")[2]) for one in ids]) / DOCUMENTS  # of the document in its file, below 1
        assert 0.45 * DOCUMENTS < len(place) < 0.55 * DOCUMENTS
        for share in (0.05, 0.1, 0.25, 0.5, 1.0):
            prefix = np.sort(place[: int(share * len(place))])
            steps = np.arange(len(prefix) + 1) / len(prefix)
            distance = max(np.abs(steps[1:] - prefix).max(), np.abs(prefix - steps[:-1]).max())
            assert distance < KS_1_IN_1000 / np.sqrt(len(prefix))
            expected = len(prefix) / 10
            tenths = np.bincount((10 * prefix).astype(int), minlength=10)
            assert float(((tenths - expected) ** 2 / expected).sum()) < CHI_1_IN_1000


def test_neither_batches_nor_parts_change_a_shard(tokenizer: str, tmp_path: Path) -> None:
    texts = [article(number) for number in range(90)] + ["", "word"]
    found = set()
    for name, sizes in (("one", [92]), ("few", [40, 40, 12]), ("many", [1] * 92)):
        corpus = Folder(tmp_path / name)
        corpus.write("tokenizer.json", tokenizer.encode())
        bounds = np.cumsum([0, *sizes]).tolist()
        rows = write_part(corpus, [texts[first:last] for first, last in pairwise(bounds)])
        encoded = encode_part(corpus, rows, 1, "tiktoken").files["tokens"].path
        made = pack_shard(corpus, [encoded], 0, 640, "uint16")
        found.add((made.files["shard"].sha256, made.files["index"].sha256))
        whole = shuffle.read_partition(corpus, encoded, 0)
        assert whole is not None
        for pieces in (2, 7):  # the same rows from several files, in another order
            names = [f"{pieces}/{number}" for number in range(pieces)]
            for number, part in enumerate(names):
                some = whole.take(pa.array(range(number, len(whole), pieces)))
                shuffle.write_partitions(corpus, part, some, np.zeros(len(some), np.int64), 1)
            made = pack_shard(corpus, names[::-1], 0, 640, "uint16")
            found.add((made.files["shard"].sha256, made.files["index"].sha256))
    assert len(found) == 1


def widened(tokenizer: str, entries: int) -> str:
    """The same with reserved tokens up to so many entries, and a byte for the last: the largest id occurs in text."""
    description = json.loads(tokenizer)
    vocabulary: dict[str, int] = description["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    given = Tokenizer.from_str(tokenizer)
    given.add_special_tokens([AddedToken(f"<|x{n}|>", special=True) for n in range(entries - 1 - given.get_vocab_size())])
    description = json.loads(given.to_str())
    description["model"]["vocab"][last] = entries - 1
    return json.dumps(description)


@pytest.mark.parametrize("engine", get_args(Engine))
@pytest.mark.parametrize(("entries", "dtype"), [pytest.param(65_536, "uint16", marks=pytest.mark.slow), (65_537, "uint32")])
def test_the_largest_id_of_a_boundary_vocabulary_comes_back(
    tokenizer: str, entries: int, dtype: str, engine: Engine, tmp_path: Path
) -> None:
    wide = widened(tokenizer, entries)
    encoder = Encoder(wide, engine=engine)
    assert (encoder.vocabulary, np.dtype(encoder.dtype)) == (entries, np.dtype(dtype))
    texts = [article(number) for number in range(5)] + [encoder.decode(np.array([entries - 1])).decode()]
    corpus = Folder(tmp_path)
    corpus.write("tokenizer.json", wide.encode())
    encoded = encode_part(corpus, write_part(corpus, [texts]), 1, engine).files["tokens"].path
    made = pack_shard(corpus, [encoded], 0, entries, dtype)
    ids = np.frombuffer(corpus.read(made.files["shard"].path), np.dtype(dtype).newbyteorder("<"))
    assert ids.max() == entries - 1
    index = pq.read_table(corpus.path(made.files["index"].path)).to_pylist()
    for row in index:
        text = encoder.decode(ids[row["start"] : row["start"] + row["tokens"]])
        assert text == texts[int(row["id"].rpartition("#")[2])].encode()
        assert len(text) == row["bytes"]
    if entries == 65_537:
        with pytest.raises(ShardError, match="token id 65536 is not in a vocabulary of 65536"):
            pack_shard(corpus, [encoded], 0, 65_536, dtype)


def write_tokens(corpus: Folder, documents: list[list[int]]) -> list[str]:
    flat = np.array([token for one in documents for token in one], np.uint16)
    offsets = np.cumsum([0, *map(len, documents)])
    names, sizes = [f"web/a#{number}" for number in range(len(documents))], [len(one) for one in documents]
    columns = [pa.array(names), pa.array(range(len(names)), pa.uint64()), pa.array(range(len(names))), pa.array(sizes)]
    table = pa.table([*columns, token_column(offsets, flat)], schema=ENCODED)
    shuffle.write_partitions(corpus, "tokens.shuffle", table, np.zeros(len(names), np.int64), 1)
    return ["tokens.shuffle"]


@pytest.mark.parametrize(
    ("document", "complaint"),
    [([0, *range(1, 101)], "token id 100 is not in a vocabulary of 100"), ([0, *[7] * 99], "99 of its 100 tokens are the id 7")],
)
def test_what_cannot_be_text_becomes_no_shard(document: list[int], complaint: str, tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    names = write_tokens(corpus, [document])
    with pytest.raises(ShardError, match=f"tokens/bench/train/00000.bin: {complaint}"):
        pack_shard(corpus, names, 0, 100, "uint16")
    assert [name for name in corpus.names() if "shard" in name] == []
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["tokens.shuffle"]


def test_a_shard_of_no_document_is_empty(tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    made = pack_shard(corpus, [], 0, 100, "uint16")
    assert (made.files["shard"].bytes, made.files["index"].rows, made.values["tokens"]) == (0, 0, 0)


def test_a_document_without_text_is_its_beginning(tokenizer: str, tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    corpus.write("tokenizer.json", tokenizer.encode())
    encoded = encode_part(corpus, write_part(corpus, [["", "", "word"]]), 1, "tiktoken").files["tokens"].path
    made = pack_shard(corpus, [encoded], 0, 640, "uint16")
    sizes = {
        row["id"][-1]: (row["tokens"], row["bytes"]) for row in pq.read_table(corpus.path(made.files["index"].path)).to_pylist()
    }
    assert sizes["0"] == sizes["1"] == (1, 0)
    assert sizes["2"][1] == 4


# A stranger's view


STRANGER = """
import json, pathlib, sys
import numpy as np, pyarrow.parquet as pq
from tokenizers import Tokenizer

corpus = pathlib.Path(sys.argv[1])
content = json.loads((corpus / "manifest.json").read_text())["content"]
tokenizer = Tokenizer.from_file(str(corpus / content["tokenizer"]["file"]))
dtype = np.dtype(content["tokenizer"]["dtype"]).newbyteorder("<")
for shard in content["shards"]:
    ids = np.fromfile(corpus / shard["path"], dtype)
    assert len(ids) == shard["tokens"]
    starts = np.flatnonzero(ids == content["tokenizer"]["bos_id"]).tolist()
    assert len(starts) == shard["documents"]
    names = pq.read_table(corpus / shard["index"])["id"].to_pylist()
    for name, start, end in zip(names, starts, [*starts[1:], len(ids)], strict=True):
        print(json.dumps([name, tokenizer.decode(ids[start + 1 : end].tolist(), skip_special_tokens=False)]))
assert not [name for name in sys.modules if name.split(".")[0] in ("manifests", "stages", "pipeline", "trainer")]
"""


def test_who_knows_the_manifest_alone_reads_every_text_back(tmp_path: Path) -> None:
    odd = ["汉字 и слова 🙂", "a\u0000b\r\n\tc ", "<|bos|> is text", "\ufffd\u2028 \u0301", " " * 300 + "x" + "\n" * 300]
    texts = [*(article(number) for number in range(40)), *odd]
    files = {"a.jsonl": [{"text": text} for text in texts[::2]], "b.jsonl": [{"text": text} for text in texts[1::2]]}
    recipe = write_small(tmp_path, files, small_recipe([], CORPUS_WIDE))
    build(recipe, tmp_path / "corpus")
    command = [sys.executable, "-I", "-c", STRANGER, str(tmp_path / "corpus")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    expected = {f"docs/{name}#{row}": one["text"] for name, rows in files.items() for row, one in enumerate(rows)}
    assert found == expected


# What does not match is refused


def reseal(folder: Path, change: Any) -> list[str]:
    """Changes the manifest as one would who hides it; what verify finds."""
    raw = json.loads((folder / "manifest.json").read_text())
    change(raw["content"])
    raw["digest"] = digest(raw["content"])
    (folder / "manifest.json").write_text(json.dumps(raw))
    return list(verify(Folder(folder), Manifest.load(Folder(folder))))


def refused(folder: Path, *words: str) -> bool:
    """Does the trainer name what is wrong?"""
    try:
        corpus = Corpus.open(folder)
        for split in ("train", "validation", "test"):
            for name in {shard.component for shard in corpus.manifest.shards(split)}:
                corpus.component(name, split)
    except CorpusError as error:
        return all(word in str(error) for word in words)
    return False


def test_another_width_than_was_written_is_refused(copied: Path) -> None:
    findings = reseal(copied, lambda content: content["tokenizer"].update(dtype="uint32", vocabulary=70_000))
    assert any(".bin" in one for one in findings)
    assert refused(copied)


def test_another_tokenizer_than_was_used_is_refused(copied: Path) -> None:
    (copied / "tokenizer.json").write_bytes((copied / "tokenizer.json").read_bytes() + b" ")
    assert any("tokenizer.json" in one for one in reseal(copied, lambda content: None))
    assert refused(copied, "tokenizer")


@pytest.mark.parametrize(("value", "complaint"), [(60_000, "not in a vocabulary"), (20, "are the id 20: this is not text")])
def test_ids_that_cannot_be_are_refused_though_every_digest_is_right(copied: Path, value: int, complaint: str) -> None:
    shard = max(Manifest.load(Folder(copied)).content.shards, key=lambda one: one.tokens)
    ids = np.fromfile(copied / shard.path, "<u2")
    starts = pq.read_table(copied / shard.index)["start"].to_numpy()
    ids[: len(ids) * 3 // 4] = value
    ids[starts] = 0
    ids.tofile(copied / shard.path)

    def tell(content: dict[str, Any]) -> None:
        for one in content["shards"]:
            if one["path"] == shard.path:
                one["sha256"] = hashlib.sha256(ids.tobytes()).hexdigest()

    assert any(complaint in one and shard.path in one for one in reseal(copied, tell))
    assert refused(copied, shard.path, complaint)


def test_the_memory_of_a_part_s_tokens_is_given_out_in_runs(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With runs of a few documents the shard is the same."""
    corpus = Folder(tmp_path)
    corpus.write("tokenizer.json", tokenizer.encode())
    rows = write_part(corpus, [[article(10 * batch + number) for number in range(10)] for batch in range(8)])
    made = []
    for size in (tokens.RUN_BYTES, 3000):
        monkeypatch.setattr(tokens, "RUN_BYTES", size)
        encoded = encode_part(corpus, rows, 2, "tiktoken", str(size)).files["tokens"].path
        made.append([pack_shard(corpus, [encoded], number, 640, "uint16").files["shard"].sha256 for number in range(2)])
        assert len(list(shuffle.gather_runs(corpus, [encoded], 0))) == (1 if size > 3000 else 8)
    assert made[0] == made[1]


def test_a_shard_of_mostly_one_id_is_refused_with_the_document_that_makes_it_so(tmp_path: Path) -> None:
    rows = [{"text": article("one")}, {"text": "a" * 40_000}, {"text": article("two")}]
    recipe = write_small(
        tmp_path, {"a.jsonl": rows}, small_recipe([], [CORPUS_WIDE[0], {"tokenizer": {"vocabulary": 600}}, "shards"])
    )
    with pytest.raises(
        RunFailed, match=r"tokens are the id \d+, and [\d,]+ of them stand in document docs/a\.jsonl#\d+: a trainer would"
    ):
        build(recipe, tmp_path / "corpus")
