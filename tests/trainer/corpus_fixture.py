"""Small corpora with real files: shards, indexes, tokenizer and a sealed manifest, as the pipeline leaves them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import ComponentRecord, Content, LogFile, Manifest, Shard, TokenizerRecord
from manifests.schemas import DOCUMENT_LOG, SHARD_INDEX, empty_rows
from manifests.storage import Folder

BOS = 0
VOCABULARY = 64
Documents = Sequence[Sequence[int]]
"""Token ids of each document's text, without BOS."""


def build_corpus(
    folder: Path,
    shards: Mapping[tuple[str, str], Sequence[Documents]],
    vocabulary: int = VOCABULARY,
    dtype: str = "uint16",
    bytes_a_token: int = 3,
    language: Callable[[str], str | None] | None = None,
) -> Path:
    """Writes a corpus of `(component, split): shards` and returns its manifest's path. Every token stands for
    `bytes_a_token` bytes of text. With `language`, of an id, there is a document log too."""
    target = Folder(str(folder))
    tokenizer = target.write("tokenizer.json", b'{"version": "1.0"}')
    listed: list[Shard] = []
    for (component, split), several in shards.items():
        for number, documents in enumerate(several):
            listed.append(_write_shard(target, component, split, number, documents, dtype, bytes_a_token))
    names = sorted({component for component, _ in shards})
    content = Content(
        name="small",
        recipe_sha256=hashlib.sha256(b"recipe").hexdigest(),
        seed=0,
        components={
            name: ComponentRecord(
                source=name, format="text", licence="CC0-1.0", inputs=[], stages=[], documents_in=0, documents_kept=0
            )
            for name in names
        },
        stages=[],
        counts=[],
        shards=listed,
    )
    # Not validated, so that a test can write the manifest of a careless stranger.
    content.tokenizer = TokenizerRecord.model_construct(
        sha256=tokenizer.sha256, vocabulary=vocabulary, dtype=dtype, bos_id=BOS, special_tokens={"<|bos|>": BOS}
    )
    if language is not None:
        content.logs = [_write_documents(target, name, listed, language) for name in names]
    Manifest.seal(content, {}).save(target)
    return folder / "manifest.json"


def documents_of_lengths(lengths: Sequence[int], first: int = 1) -> list[list[int]]:
    """Documents that hold `length` tokens with BOS; their texts run on through the ids 1 … VOCABULARY - 1."""
    ids = iter(range(first, first + sum(lengths)))
    return [[1 + next(ids) % (VOCABULARY - 1) for _ in range(length - 1)] for length in lengths]


def sentences(count: int, seed: int, words: int = 12) -> list[list[int]]:
    """Documents that can be learned: each word (ids 2 to 61) is followed by one of two words that depend on it, and ends
    with id 1."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        word, text = int(generator.integers(2, 62)), []
        for _ in range(int(generator.integers(words // 2, 2 * words))):
            text.append(word)
            word = 2 + (word * 7 + (3 if generator.random() < 0.8 else 11)) % 60
        found.append([*text, 1])
    return found


def learnable_corpus(folder: Path, train: int = 400, held_out: int = 40) -> Path:
    return build_corpus(
        folder,
        {
            ("toy", "train"): [sentences(train // 2, 1), sentences(train - train // 2, 2)],
            ("toy", "validation"): [sentences(held_out, 3)],
            ("toy", "test"): [sentences(held_out, 4)],
        },
    )


def _write_shard(
    target: Folder, component: str, split: str, number: int, documents: Documents, dtype: str, bytes_a_token: int
) -> Shard:
    name = f"tokens/{component}/{split}/{number:05d}"
    tokens = np.array([token for text in documents for token in (BOS, *text)], np.dtype(dtype).newbyteorder("<"))
    lengths = np.array([1 + len(text) for text in documents], np.int64)
    sizes = (lengths - 1) * bytes_a_token
    ids = [f"{component}/{split}.jsonl#{number * 1_000_000 + n}" for n in range(len(documents))]
    columns = [pa.array(ids), np.cumsum(lengths) - lengths, lengths, sizes]
    shard = target.write(f"{name}.bin", tokens.tobytes())
    with target.writer(f"{name}.parquet") as out:
        pq.write_table(pa.table(columns, schema=SHARD_INDEX), out)
    return Shard(
        path=f"{name}.bin",
        index=f"{name}.parquet",
        component=component,
        split=split,
        tokens=len(tokens),
        documents=len(documents),
        text_bytes=int(sizes.sum()),
        sha256=shard.sha256,
        index_sha256=out.written.sha256,
    )


def _write_documents(target: Folder, component: str, shards: list[Shard], language: Callable[[str], str | None]) -> LogFile:
    """One log of a component's documents, by id and so in another order than the shards."""
    rows = []
    for shard in (shard for shard in shards if shard.component == component):
        index = pq.read_table(target.path(shard.index)).to_pylist()
        rows += [{**row, "split": shard.split, "shard": shard.path, "text_bytes": row["bytes"]} for row in index]
    rows.sort(key=lambda row: str(row["id"]))
    columns = {name: pa.array([row[name] for row in rows]) for name in ("id", "split", "shard", "start", "tokens", "text_bytes")}
    columns["component"] = pa.array([component] * len(rows))
    columns["file"] = pa.array([str(row["id"]).split("/", 1)[1].rsplit("#")[0] for row in rows])
    columns["position"] = pa.array([int(str(row["id"]).rsplit("#")[1]) for row in rows])
    columns["language"] = pa.array([language(str(row["id"])) for row in rows], pa.string())
    path = f"logs/documents/{component}/00000.parquet"
    with target.writer(path) as out:
        pq.write_table(empty_rows(DOCUMENT_LOG, len(rows), **columns), out, row_group_size=7)
    return LogFile(kind="documents", path=path, rows=len(rows), bytes=out.written.size, sha256=out.written.sha256)
