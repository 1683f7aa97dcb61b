"""The language of each held-out document, from the document log that lies beside the shards.

A shard index has no languages: a document's row in the log says where its tokens begin, and that joins the two.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests.storage import StorageError
from trainer.data.corpus import Component, Corpus, Int64

UNKNOWN = "und"
"""Of documents whose language nobody determined (ISO 639-2)."""
COLUMNS = ["split", "shard", "start", "language"]


class LanguagesError(Exception):
    """A corpus whose log cannot say the languages of its documents; the message says why."""


def document_languages(corpus: Corpus, component: Component) -> tuple[Int64, list[str]]:
    """(code of each document in the order of the shards, language of each code). LanguagesError when the log is not there, is
    damaged, or leaves out a document of the shards."""
    paths = [
        log.path for log in corpus.manifest.content.logs if log.kind == "documents" and log.path.split("/")[2] == component.name
    ]
    if not paths:
        raise LanguagesError(f"the manifest lists no document log of component {component.name!r}")
    order = pa.array([shard.path for shard in component.shards])
    codes = np.full(len(component.starts), -1, np.int64)
    names: dict[str, int] = {}
    for path in paths:
        try:
            with corpus.folder.open(path) as source, pq.ParquetFile(source) as opened:
                for group in range(opened.num_row_groups):
                    _take(opened.read_row_group(group, columns=COLUMNS), component, order, codes, names)
        except FileNotFoundError:
            raise LanguagesError(f"{path} is not beside the shards") from None
        except (StorageError, OSError, KeyError, pa.ArrowException) as error:
            raise LanguagesError(f"{path}: cannot be read: {error}") from None
    if missing := int((codes < 0).sum()):
        raise LanguagesError(f"the document log leaves out {missing:,} documents of component {component.name!r}")
    return codes, list(names)


def _take(rows: pa.Table, component: Component, order: pa.Array, codes: Int64, names: dict[str, int]) -> None:
    shard = pc.index_in(rows["shard"], order)
    rows = rows.append_column("number", shard)
    rows = rows.filter(pc.and_(pc.equal(rows["split"], component.split), pc.is_valid(rows["number"])))
    if not rows.num_rows:
        return
    begin = component.shard_starts[rows["number"].to_numpy()] + rows["start"].to_numpy()
    document = component.document(begin)
    if not np.array_equal(component.starts[document], begin):
        raise LanguagesError("the document log names places in the shards at which no document begins")
    spoken = pc.fill_null(rows["language"], UNKNOWN).combine_chunks().dictionary_encode()
    here = np.array([names.setdefault(name, len(names)) for name in spoken.dictionary.to_pylist()], np.int64)
    codes[document] = here[spoken.indices.to_numpy(zero_copy_only=False)]
