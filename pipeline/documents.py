"""Reading and writing the documents of a part.

A documents file is an Arrow IPC file (manifests.schemas.DOCUMENTS and `row`, the record's number among all records of its
part). Steps that only remove do not copy text: they write the numbers of the rows they keep.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.schemas import DOCUMENTS, IDENTITY
from manifests.storage import Folder, Written
from pipeline.receipts import State
from pipeline.shuffle import IPC

STORED = pa.schema([pa.field("row", pa.int64(), nullable=False), *DOCUMENTS])
KEPT = pa.schema([pa.field("row", pa.int64(), nullable=False)])


class StateError(Exception):
    """Files of one part that do not fit together."""


CATALOGUE = pa.schema([*IDENTITY, *(DOCUMENTS.field(name) for name in ("url", "date", "media_type"))])
"""One row for every record that came in, whatever became of it."""


def read_state(corpus: Folder, state: State, columns: list[str] | None = None) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """(rows, batch) for the surviving documents of a part, in id order; `rows` are int64 numbers within the documents file."""
    kept = kept_mask(corpus, state)
    start = 0
    with corpus.open(state.documents) as file:
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=_fields(columns)))
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            rows = np.arange(start, start + batch.num_rows, dtype=np.int64)
            start += batch.num_rows
            if kept is not None:
                mask = kept[rows]
                if not mask.any():
                    continue
                rows, batch = rows[mask], batch.filter(pa.array(mask))
            if batch.num_rows:
                yield rows, batch


def kept_mask(corpus: Folder, state: State) -> np.ndarray | None:
    """A boolean for every row of the documents file, or None when all are kept."""
    if state.kept is None:
        return None
    mask = np.zeros(state.rows, dtype=bool)
    mask[read_table(corpus, state.kept)["row"].to_numpy()] = True
    return mask


def write_kept(corpus: Folder, name: str, rows: np.ndarray) -> Written:
    return write_table(corpus, name, pa.table({"row": pa.array(rows, pa.int64())}, schema=KEPT))


def write_table(corpus: Folder, name: str, table: pa.Table) -> Written:
    """An Arrow IPC file of one table, compressed."""
    with corpus.writer(name) as out, pa.ipc.new_file(out, table.schema, options=IPC) as sink:
        sink.write_table(table, max_chunksize=65_536)
    return out.written


def read_table(corpus: Folder, name: str, columns: list[str] | None = None) -> pa.Table:
    with corpus.open(name) as file:
        if columns is None:
            return pa.ipc.open_file(file).read_all()
        known = pa.ipc.open_file(file).schema
        file.seek(0)
        fields = [known.get_field_index(column) for column in columns]
        return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()


def text_bytes(texts: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """UTF-8 length of every text, int64; null counts 0."""
    lengths: np.ndarray = pc.fill_null(pc.cast(pc.binary_length(texts), pa.int64()), 0).to_numpy(zero_copy_only=False)
    return lengths


def _fields(columns: list[str] | None) -> list[int] | None:
    return None if columns is None else [STORED.get_field_index(name) for name in columns]
