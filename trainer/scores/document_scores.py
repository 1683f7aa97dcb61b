"""What a model loses on each held-out document, as a file: for whoever compares two models document by document.

A Parquet file of one corpus and one split: `component`, `id`, `nats`, `tokens` (of text, without BOS) and `bytes` of each
document, in the order of the shards, and in the file's metadata, under `corpusmill`, what was scored and how.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.storage import Folder
from trainer.data.corpus import Corpus, CorpusError

if TYPE_CHECKING:
    from trainer.scores.evaluation import Scored

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        pa.field("component", pa.dictionary(pa.int32(), pa.string()), False),
        pa.field("id", pa.string(), False),
        pa.field("nats", pa.float64(), False),
        pa.field("tokens", pa.int64(), False),
        pa.field("bytes", pa.int64(), False),
    ]
)
METADATA = b"corpusmill"
ABOUT = {
    "manifest_digest": str, "split": str, "sequence_length": int, "dtype": str, "documents_sha256": str,
    "tokenizer_sha256": str, "evaluator_sha256": str, "val_bpb": float,
}  # fmt: skip
"""What the metadata hold, at least."""


class DocumentScoresError(CorpusError):
    """A file that is not what `DocumentScores.write` writes."""


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """`components`: names, of which `owner` (n) numbers each document's. `ids` are known where they were read or will be
    written. `about`: see ABOUT."""

    about: dict[str, Any]
    components: list[str]
    owner: Int64
    nats: Float64
    tokens: Int64
    text_bytes: Int64
    ids: pa.Array | None = None

    @staticmethod
    def of_evaluation(scored: Scored, corpus: Corpus) -> DocumentScores:
        score = scored.score
        about = {name: getattr(score, name) for name in ABOUT if name != "manifest_digest"}
        return DocumentScores(
            {**about, "manifest_digest": corpus.manifest.digest},
            [component.name for component in scored.components],
            np.repeat(np.arange(len(scored.components)), [len(one.lengths) for one in scored.components]),
            np.concatenate(scored.nats),
            np.concatenate([one.lengths - 1 for one in scored.components]),
            np.concatenate([one.text_bytes for one in scored.components]),
            pa.concat_arrays([chunk for one in scored.components for chunk in one.ids().chunks]),
        )

    @staticmethod
    def read(path: Path, sha256: str | None = None) -> DocumentScores:
        """DocumentScoresError when it is not such a file, or not the one with this digest."""
        try:
            data = path.read_bytes()
            if sha256 not in (None, hashlib.sha256(data).hexdigest()):
                raise DocumentScoresError(f"{path}: not the file that the run wrote: its digest is another")
            table = pq.read_table(pa.BufferReader(data))
            about = json.loads((table.schema.metadata or {})[METADATA])
            if table.schema.names != SCHEMA.names or any(not isinstance(about[name], kind) for name, kind in ABOUT.items()):
                raise ValueError("other columns or facts")
            table = table.cast(SCHEMA)
            component = table["component"].combine_chunks()
            nats, tokens, text_bytes = (table[name].to_numpy() for name in ("nats", "tokens", "bytes"))
            if table.num_rows and (not np.isfinite(nats).all() or min(tokens.min(), text_bytes.min()) < 0):
                raise ValueError("figures that no document has")
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, RecursionError) as error:
            raise DocumentScoresError(f"{path}: no scores of documents, as evaluate --documents writes them: {error}") from None
        owner = component.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        names = [str(name) for name in component.dictionary.to_pylist()]
        return DocumentScores(about, names, owner, nats, tokens, text_bytes, table["id"].combine_chunks())

    def write(self, folder: Folder, name: str) -> str:
        """Writes the file, and gives its SHA-256."""
        codes = pa.DictionaryArray.from_arrays(pa.array(self.owner, pa.int32()), pa.array(self.components, pa.string()))
        table = pa.table([codes, self.ids, self.nats, self.tokens, self.text_bytes], schema=SCHEMA)
        table = table.replace_schema_metadata({METADATA: json.dumps(self.about, ensure_ascii=False)})
        with folder.writer(name) as out:
            pq.write_table(table, out)
        return str(out.written.sha256)

    def of(self, components: tuple[str, ...]) -> DocumentScores:
        """The documents of some components; of none that is named, all."""
        if not components:
            return self
        mine = np.isin(self.owner, [self.components.index(name) for name in components])
        ids = None if self.ids is None else self.ids.filter(pa.array(mine))
        return DocumentScores(
            self.about, self.components, self.owner[mine], self.nats[mine], self.tokens[mine], self.text_bytes[mine], ids
        )

    @property
    def counts(self) -> dict[str, int]:
        """Documents of each component."""
        counted = np.bincount(self.owner, minlength=len(self.components)).tolist()
        return dict(zip(self.components, counted, strict=True))
