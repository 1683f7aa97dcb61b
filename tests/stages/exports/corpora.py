"""Exports of the finished corpus, and corpora that are made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from typer.testing import CliRunner, Result

from manifests.manifest import Manifest, Shard
from manifests.storage import Folder
from stages.commands import app
from stages.exports import Exported, export, find


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "200"})


def written(name: str, corpus: Path, output: Path, **options: Any) -> Exported:
    """An export with options that the command does not offer as small."""
    format_ = find(name)
    return export(Folder(corpus), Manifest.load(Folder(corpus)), Folder(output), format_(format_.options_type(**options)))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def groups(manifest: Manifest) -> dict[tuple[str, str], list[Shard]]:
    found: dict[tuple[str, str], list[Shard]] = {}
    for shard in manifest.content.shards:
        found.setdefault((shard.component, shard.split), []).append(shard)
    return found


def documents(corpus: Path, manifest: Manifest, shards: list[Shard]) -> Iterator[tuple[str, np.ndarray]]:
    """(id, tokens) of every document, read with numpy and the index alone."""
    assert manifest.content.tokenizer is not None
    for shard in shards:
        tokens = np.fromfile(corpus / shard.path, np.dtype(manifest.content.tokenizer.dtype).newbyteorder("<"))
        for row in pq.read_table(corpus / shard.index).to_pylist():
            yield row["id"], tokens[row["start"] : row["start"] + row["tokens"]]


def reseal(corpus: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest of a corpus and lists the files that are there now: a corpus that vouches for what is wrong in it."""
    folder = Folder(corpus)
    manifest = Manifest.load(folder)
    raw = manifest.content.model_dump(mode="json")
    change(raw)
    for shard in raw["shards"]:
        for path, digest in (("path", "sha256"), ("index", "index_sha256")):
            shard[digest] = hashlib.sha256((corpus / shard[path]).read_bytes()).hexdigest()
    for log in raw["logs"]:
        data = (corpus / log["path"]).read_bytes()
        log["sha256"], log["bytes"] = hashlib.sha256(data).hexdigest(), len(data)
    Manifest.seal(type(manifest.content).model_validate(raw), manifest.run).save(folder)


def widen(corpus: Path, vocabulary: int = 70_000, more: int = 65_000) -> None:
    """The corpus with uint32 ids, those of text moved up by `more`; its tokenizer.json is not the one for them."""
    manifest = Manifest.load(Folder(corpus))
    assert manifest.content.tokenizer is not None
    bos = manifest.content.tokenizer.bos_id
    for shard in manifest.content.shards:
        tokens = np.fromfile(corpus / shard.path, "<u2").astype("<u4")
        tokens[tokens != bos] += more
        tokens.tofile(corpus / shard.path)
    reseal(corpus, lambda raw: raw["tokenizer"].update(vocabulary=vocabulary, dtype="uint32"))
