"""Finished corpora whose documents win: what a new corpus has in common with them is removed from the new one, and they stay as
they are.

A document of a reference is known in logs as `@name/component/file#position`, where `name` is the recipe's word for that corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from manifests.identity import DocumentId
from manifests.manifest import Manifest, ManifestError, Shard, TokenizerRecord
from manifests.schemas import DOCUMENTS, empty_rows
from manifests.storage import Folder, StorageError
from pipeline.documents import STORED
from pipeline.row_local import Stream, written_state
from pipeline.work import Task
from stages.shard_texts import ShardTextError, load_encoder, texts_of

MARK = "@"


class ReferenceCorpusError(Exception):
    """A corpus that cannot be compared with."""


@dataclass(frozen=True)
class Reference:
    """A finished corpus; `digest` is its content's."""

    name: str
    url: str
    digest: str
    tokenizer: TokenizerRecord
    shards: tuple[Shard, ...]

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)


def load(name: str, path: str) -> Reference:
    """The reference at `path`; ReferenceCorpusError when there is no whole corpus with tokens, from which its texts are read."""
    try:
        folder = Folder(path)
        manifest = Manifest.load(folder)
    except (OSError, StorageError, ManifestError) as error:
        raise ReferenceCorpusError(str(error)) from None
    tokenizer, shards = manifest.content.tokenizer, tuple(manifest.content.shards)
    if tokenizer is None or not shards:
        raise ReferenceCorpusError(f"{path} has no token shards, which are what the texts of a finished corpus are read from")
    try:
        load_encoder(folder, tokenizer)
    except (OSError, StorageError, ShardTextError) as error:
        raise ReferenceCorpusError(f"{path}: its tokenizer cannot give texts back: {error}") from None
    return Reference(name, folder.url, manifest.digest, tokenizer, shards)


def read_reference(task: Task) -> None:
    """Per shard. inputs: `corpus` (URL), `name`; arguments: `tokenizer` and `shard`, records of its manifest."""
    corpus = Folder(task.inputs["corpus"])
    tokenizer = TokenizerRecord.model_validate(task.arguments["tokenizer"])
    shard = Shard.model_validate(task.arguments["shard"])
    encoder = load_encoder(corpus, tokenizer)
    rows = 0
    with Stream(task, "documents", STORED) as kept:
        for ids, texts, _ in texts_of(corpus, shard, tokenizer, encoder):
            known = [DocumentId.parse(name) for name in ids.to_pylist()]
            table = empty_rows(
                DOCUMENTS,
                len(known),
                component=pa.array([f"{MARK}{task.arguments['name']}/{one.component}" for one in known]),
                file=pa.array([one.file for one in known]),
                position=pa.array([one.position for one in known]),
                text=texts,
            )
            numbered = table.add_column(0, STORED.field("row"), pa.array(np.arange(rows, rows + len(known))))
            for batch in numbered.combine_chunks().to_batches():
                kept.write(batch)
            rows += len(known)
    task.receipt.state = written_state(task)
