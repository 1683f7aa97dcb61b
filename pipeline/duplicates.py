"""Removing duplicates, whatever found them: decisions travel back to the parts whose documents they concern.

Documents are numbered in id order over the whole corpus: a part's `base` plus the row in its documents file. The number is
only used between the steps of one run; logs carry ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.identity import printed_ids
from manifests.schemas import REMOVALS
from pipeline import documents, shuffle
from pipeline.decisions import Applied
from pipeline.receipts import State
from pipeline.row_local import narrow, write_logs
from pipeline.work import Task
from stages.clusters import Clusters, group_duplicates, keep_ranks
from stages.exact_dedup import document_keys

EVIDENCE = ("linked_id", "linked_jaccard", "kept_id", "kept_jaccard", "cluster", "cluster_size")
DECISIONS = pa.schema([pa.field("row", pa.int64(), nullable=False), *(REMOVALS.field(name) for name in EVIDENCE)])
KEYS = pa.schema(
    [
        pa.field("high", pa.uint64(), nullable=False),
        pa.field("low", pa.uint64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("id", pa.large_string(), nullable=False),
    ]
)
IDENTIFYING = ["component", "file", "position", "url", "language"]


def exact_keys(task: Task) -> None:
    """Per part: 128-bit keys, shuffled by key. inputs: `state`, `partitions`."""
    state = State.model_validate(task.inputs["state"])
    partitions = task.inputs["partitions"]
    with shuffle.writing(task.corpus, task.file("keys.shuffle"), KEYS, partitions) as writer:
        for rows, batch in documents.read_state(task.corpus, state, ["component", "file", "position", "text"]):
            keys = document_keys(batch["text"])
            columns = (keys[:, 0], keys[:, 1], rows, documents.text_bytes(batch["text"]))
            table = pa.table([*(pa.array(column) for column in columns), printed_ids(batch).cast(pa.large_string())], schema=KEYS)
            writer.add(table, (keys[:, 0] % np.uint64(partitions)).astype(np.int64))
    task.receipt.add("keys", writer.out.written, writer.rows)


def exact_groups(task: Task) -> None:
    """Per partition of keys: who stays. inputs: `keys` (one file a part), `bases`, `components` (numbers), `own`, and
    `widths` of what is written (role → partitions that share a stream); arguments: `partition`, `scope`, `keep`, `priorities`."""
    which = task.arguments["partition"], task.arguments["partitions"]
    found = list(shuffle.gather_residue(task.corpus, task.inputs["keys"], "high", *which))
    decisions = DECISIONS.empty_table()
    targets = np.zeros(0, dtype=np.int64)
    if found:
        part = np.concatenate([sources for sources, _ in found])
        table = pa.concat_tables([rows for _, rows in found])
        ordinal = np.asarray(task.inputs["bases"])[part] + table["row"].to_numpy()
        component = np.asarray(task.inputs["components"])[part]
        priority = np.asarray(task.arguments["priorities"])[component]
        rank = keep_ranks(priority, table["length"].to_numpy(), ordinal, task.arguments["keep"])
        keys = np.column_stack([table["high"].to_numpy(), table["low"].to_numpy()])
        scope = component if task.arguments["scope"] == "component" else None
        clusters = group_duplicates(keys, rank, scope=scope)
        decisions = decision_table(clusters, table["id"].combine_chunks(), table["row"].to_numpy())
        targets = part[clusters.removed]
    send_back(task, decisions, targets)


def remove(task: Task) -> None:
    """Per part: carries the decisions out. inputs: `state`, `decisions` (files), `index` of the part, `compared` (files with
    the Jaccards of removed and kept documents that were computed later, or []); arguments: `stage`, `rule`, `threshold`."""
    state = State.model_validate(task.inputs["state"])
    index = task.inputs["index"]
    decisions = pa.concat_tables(
        [DECISIONS.empty_table(), *(rows for _, rows in shuffle.gather(task.corpus, task.inputs["decisions"], index))]
    )
    later = [rows for _, rows in shuffle.gather(task.corpus, task.inputs["compared"], index)]
    row = decisions["row"].to_numpy()
    order = np.argsort(row, kind="stable")
    decisions, row = decisions.take(pa.array(order)), row[order]
    kept_jaccard = decisions["kept_jaccard"].to_numpy().copy()
    if later:
        compared = pa.concat_tables(later)
        kept_jaccard[np.searchsorted(row, compared["row"].to_numpy())] = compared["jaccard"].to_numpy()
    evidence = {name: decisions[name].combine_chunks() for name in EVIDENCE}
    evidence["kept_jaccard"] = pa.array(kept_jaccard, mask=np.isnan(kept_jaccard))
    stage, rule, threshold = (task.arguments[name] for name in ("stage", "rule", "threshold"))
    applied = Applied(task.work.step)
    applied.expect(stage)
    survivors = []
    for rows, batch in documents.read_state(task.corpus, state, [*IDENTIFYING, "text"]):
        removed = np.isin(rows, row)
        picked = pa.array(np.searchsorted(row, rows), mask=~removed)
        columns = {name: column.take(picked) for name, column in evidence.items()}
        if threshold is not None:
            columns["value"] = columns["linked_jaccard"]
            columns["threshold"] = pc.if_else(pa.array(removed), threshold, None).cast(pa.float64())
        lengths = documents.text_bytes(batch["text"])
        applied.removed(stage, batch.drop_columns(["text"]), lengths, removed, rule, **columns)
        survivors.append(rows[~removed])
    write_logs(task, applied)
    narrow(task, state, np.concatenate(survivors) if survivors else np.zeros(0, dtype=np.int64))


def decision_table(clusters: Clusters, ids: pa.Array, rows: np.ndarray) -> pa.Table:
    """Decisions of documents that `ids` and `rows` describe by number."""

    def named(numbers: np.ndarray) -> pa.Array:
        return ids.take(pa.array(numbers)).cast(pa.string())

    kept_jaccard = clusters.kept_jaccard
    return pa.table(
        [
            pa.array(rows[clusters.removed], pa.int64()),
            named(clusters.linked),
            pa.array(clusters.linked_jaccard),
            named(clusters.kept),
            pa.array(kept_jaccard),
            named(clusters.cluster),
            pa.array(clusters.size, pa.int64()),
        ],
        schema=DECISIONS,
    )


def send_back(task: Task, decisions: pa.Table, targets: np.ndarray) -> None:
    """Writes decisions where each part finds its own: `targets` are the parts' numbers. Those on documents of a reference corpus,
    which stays as it is, are left out."""
    parts = len(task.inputs["bases"])
    own = targets < task.inputs["own"]
    decisions, targets = decisions.filter(pa.array(own)), targets[own]
    shuffle_out(task, "decisions", decisions, targets, parts)
    task.receipt.values["removed"] = decisions.num_rows


def shuffle_out(task: Task, role: str, table: pa.Table, partition: np.ndarray, partitions: int) -> None:
    """A shuffle file of one table; how many partitions share a stream of it, the inputs' `widths` say."""
    width = task.inputs["widths"][role]
    written = shuffle.write_partitions(task.corpus, task.file(f"{role}.shuffle"), table, partition, partitions, width)
    task.receipt.add(role, written, table.num_rows)


def by_part(bases: Sequence[int], ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(part, row within it) of documents numbered over the corpus."""
    starts = np.asarray(bases, dtype=np.int64)
    part = np.searchsorted(starts, ordinals, side="right") - 1
    return part, ordinals - starts[part]
