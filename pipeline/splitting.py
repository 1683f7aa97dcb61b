"""The split step: every surviving document gets a split and the id that names its cluster."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from manifests.storage import Folder
from pipeline import documents, shuffle
from pipeline.near_duplicates import GROUPED
from pipeline.receipts import State
from pipeline.work import Task
from stages.split import assign

SPLIT = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
    ]
)


def assign_splits(task: Task) -> None:
    """inputs: `state`, `groups` (files), `index` of the part; arguments: `seed`, `shares`.

    The receipt's values have documents and UTF-8 bytes by split.
    """
    state = State.model_validate(task.inputs["state"])
    grouped = pa.concat_tables(
        [GROUPED.empty_table(), *(rows for _, rows in shuffle.gather(task.corpus, task.inputs["groups"], task.inputs["index"]))]
    )
    cluster_of = dict(zip(grouped["row"].to_pylist(), grouped["cluster"].to_pylist(), strict=True))
    tables, count, size = [SPLIT.empty_table()], Counter[str](), Counter[str]()
    for rows, batch in documents.read_state(task.corpus, state, ["component", "file", "position", "text"]):
        clusters = [cluster_of.get(row, own) for row, own in zip(rows.tolist(), printed_ids(batch).to_pylist(), strict=True)]
        splits = assign(clusters, task.arguments["seed"], task.arguments["shares"])
        tables.append(pa.table([pa.array(rows), pa.array(splits), pa.array(clusters)], schema=SPLIT))
        count.update(splits)
        for split, length in zip(splits, documents.text_bytes(batch["text"]).tolist(), strict=True):
            size[split] += length
    table = pa.concat_tables(tables)
    task.receipt.add("split", documents.write_table(task.corpus, task.file("split.arrow"), table), table.num_rows)
    task.receipt.values = {"documents": dict(sorted(count.items())), "bytes": dict(sorted(size.items()))}
    task.receipt.state = state


class PartSplits:
    """Split and cluster of the documents of a part, by their rows; StateError when its file lacks one."""

    def __init__(self, corpus: Folder, name: str) -> None:
        self.name = name
        self.table = documents.read_table(corpus, name)
        self.rows = self.table["row"].to_numpy()

    def of(self, rows: np.ndarray) -> pa.Table:
        at = np.searchsorted(self.rows, rows)
        if len(rows) and (at.max() >= len(self.rows) or not np.array_equal(self.rows[at], rows)):
            raise documents.StateError(f"{self.name} does not have every document of its part")
        return self.table.take(pa.array(at))
