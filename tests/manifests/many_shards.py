"""A corpus of many small shards with all its logs, made up in a second: a hundred shards a component, three documents a shard."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import (
    RECIPE,
    ComponentRecord,
    Content,
    InputFile,
    LogFile,
    Manifest,
    Shard,
    StageCount,
    StageRecord,
    TokenizerRecord,
    TokenUsage,
    digest,
)
from manifests.schemas import DOCUMENT_LOG, EDITS, REMOVALS, SHARD_INDEX, empty_rows
from manifests.storage import Folder

SHARDS, DOCUMENTS, TOKENS = 100, 3, 20
BYTES = TOKENS - 1
LICENCES = ("CC0-1.0", "CC-BY-4.0")
VOCABULARY = 1 + 256
"""BOS, and every byte."""


MINHASH = StageRecord(step="corpus.1.minhash", stage="minhash", version=1, options={"threshold": 0.8})


def many_shards(folder: Path, components: int = 10) -> Manifest:
    """Component n has the source `source-(n // 2)` and, in turn, one of two licences. Its last document is a copy of one in the next
    component, where it stayed."""
    target = Folder(folder)
    names = [f"c{number}" for number in range(components)]
    shards: list[Shard] = []
    logs: list[LogFile] = []
    counts: list[StageCount] = []
    records: dict[str, ComponentRecord] = {}
    for number, name in enumerate(names):
        rows = [_write_shard(folder, name, one, shards) for one in range(SHARDS)]
        documents = pa.concat_tables([table for table, _ in rows])
        kept = documents.num_rows
        _log(folder, name, "documents", _documents(name, documents, [shard for _, shard in rows]), logs)
        twin = names[(number + 1) % components]
        removed = empty_rows(
            REMOVALS,
            1,
            **_identity(name, [kept]),
            step=pa.array([f"{MINHASH.step}.remove"]),
            stage=pa.array(["minhash"]),
            rule=pa.array(["minhash.near_duplicate"]),
            value=pa.array([0.9]),
            threshold=pa.array([0.8]),
            failed_rules=pa.array([["minhash.near_duplicate"]], pa.list_(pa.string())),
            linked_id=pa.array([f"{twin}/a.jsonl#0"]),
            linked_jaccard=pa.array([0.9]),
            kept_id=pa.array([f"{twin}/a.jsonl#0"]),
            kept_jaccard=pa.array([0.9]),
            cluster=pa.array([min(f"{twin}/a.jsonl#0", f"{name}/a.jsonl#{kept}")]),
            cluster_size=pa.array([2]),
        )
        _log(folder, name, "removals", removed, logs)
        _log(folder, name, "edits", EDITS.empty_table(), logs)
        removals = {"minhash.near_duplicate": 1}
        read = StageRecord(step=f"{name}.1.measure", stage="read", version=1, options={"format": "jsonl"})
        came, left = {"documents_in": kept + 1, "documents_kept": kept + 1}, {"documents_in": kept + 1, "documents_kept": kept}
        counts.append(StageCount(component=name, step=read.step, stage="read", **came))
        counts.append(StageCount(component=name, step=f"{MINHASH.step}.remove", stage="minhash", removed=removals, **left))
        records[name] = ComponentRecord(
            source=f"source-{number // 2}",
            format="jsonl",
            licence=LICENCES[number % 2],
            inputs=[InputFile(path="a.jsonl", bytes=0, sha256="0" * 64)],
            stages=[read],
            documents_in=kept + 1,
            documents_kept=kept,
            tokens={"train": kept * TOKENS},
        )
    tokenizer = target.write("tokenizer.json", json.dumps(_tokenizer()).encode())
    recipe = {
        "corpus": "many",
        "components": {
            name: {"source": one.source, "format": one.format, "licence": one.licence} for name, one in records.items()
        },
        "stages": [{"minhash": {"threshold": 0.8}}, {"tokenizer": {"file": "bytes.json"}}, "shards"],
    }
    target.write(RECIPE, json.dumps(recipe).encode())  # which is YAML
    content = Content(
        name="many",
        recipe_sha256=digest(recipe),
        seed=0,
        components=records,
        deduplication=[{"step": MINHASH.step, "stage": MINHASH.stage}],
        stages=[
            MINHASH,
            StageRecord(step="corpus.2.tokenizer", stage="tokenizer", version=1, options={"file": "bytes.json"}),
            StageRecord(step="corpus.3.shards", stage="shards", version=1, options={}),
        ],
        counts=counts,
        token_usage=[
            TokenUsage(
                component=name,
                language="und",
                unspaced=False,
                documents=one.documents_kept,
                bytes=BYTES * one.documents_kept,
                words=one.documents_kept,
                tokens=(TOKENS - 1) * one.documents_kept,
            )
            for name, one in records.items()
        ],
        tokenizer=TokenizerRecord(
            sha256=tokenizer.sha256, vocabulary=VOCABULARY, dtype="uint16", bos_id=0, special_tokens={"<|bos|>": 0}
        ),
        shards=shards,
        logs=logs,
    )
    manifest = Manifest.seal(content, {})
    manifest.save(target)
    return manifest


def _write_shard(folder: Path, component: str, number: int, shards: list[Shard]) -> tuple[pa.Table, str]:
    stem = f"tokens/{component}/train/{number:05}"
    tokens = 1 + 32 + np.arange(DOCUMENTS * TOKENS, dtype="<u2") * (number + 7) % 95  # printable ASCII
    tokens[::TOKENS] = 0
    first = number * DOCUMENTS
    index = pa.table(
        [
            pa.array([f"{component}/a.jsonl#{first + one}" for one in range(DOCUMENTS)]),
            pa.array([one * TOKENS for one in range(DOCUMENTS)]),
            pa.array([TOKENS] * DOCUMENTS),
            pa.array([BYTES] * DOCUMENTS),
        ],
        schema=SHARD_INDEX,
    )
    digest = _write(folder / f"{stem}.bin", tokens.tobytes())
    shards.append(
        Shard(
            path=f"{stem}.bin",
            index=f"{stem}.parquet",
            component=component,
            split="train",
            tokens=len(tokens),
            documents=DOCUMENTS,
            text_bytes=BYTES * DOCUMENTS,
            sha256=digest,
            index_sha256=_write(folder / f"{stem}.parquet", _parquet(index)),
        )
    )
    return index, f"{stem}.bin"


def _documents(component: str, kept: pa.Table, shards: list[str]) -> pa.Table:
    """The kept documents, and behind them the one that was removed."""
    count = kept.num_rows
    places = list(itertools.chain.from_iterable([shard] * DOCUMENTS for shard in shards))
    return empty_rows(
        DOCUMENT_LOG,
        count + 1,
        **_identity(component, list(range(count + 1))),
        removed_by=pa.array([None] * count + ["minhash"]),
        text_bytes=pa.array([BYTES] * count + [None]),
        text_sha256=pa.array([*_digests(kept["id"].to_pylist()), None]),
        split=pa.array(["train"] * count + [None]),
        shard=pa.array([*places, None]),
        start=pa.array([*kept["start"].to_pylist(), None]),
        tokens=pa.array([TOKENS] * count + [None]),
    )


def _digests(ids: list[str]) -> list[str]:
    """Not those of the texts, which `verify --texts` alone would see."""
    return [hashlib.sha256(one.encode()).hexdigest() for one in ids]


def _tokenizer() -> dict[str, Any]:
    """tokenizer.json of bytes alone: printable ones are written as they are, others from U+0100 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = {byte: 256 + number for number, byte in enumerate(one for one in range(256) if one not in plain)}
    vocabulary = {chr(others.get(byte, byte)): 1 + byte for byte in range(256)}
    bos = {
        "id": 0,
        "content": "<|bos|>",
        **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        "special": True,
    }
    cuts = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [bos],
        "pre_tokenizer": cuts,
        "decoder": cuts,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def _identity(component: str, positions: list[int]) -> dict[str, pa.Array]:
    return {
        "id": pa.array([f"{component}/a.jsonl#{position}" for position in positions]),
        "component": pa.array([component] * len(positions)),
        "file": pa.array(["a.jsonl"] * len(positions)),
        "position": pa.array(positions, pa.int64()),
    }


def _log(folder: Path, component: str, kind: str, table: pa.Table, logs: list[LogFile]) -> None:
    path, data = f"logs/{kind}/{component}/00000.parquet", _parquet(table)
    digest = _write(folder / path, data)
    logs.append(
        LogFile.model_validate({"kind": kind, "path": path, "rows": table.num_rows, "bytes": len(data), "sha256": digest})
    )


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def _write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()
