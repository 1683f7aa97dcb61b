"""The logs of a finished corpus, in id order and re-cut so that their bytes do not depend on parts.

A log file covers a fixed range of a component's records: record number n of the component (in id order, whatever became of it)
is told of in file n // LOG_ROWS. One task writes the removals, edits, signals and documents of one range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.domains import domain_of
from manifests.identity import printed_ids, url_key
from manifests.schemas import DOCUMENT_LOG, EDITS, REMOVALS, empty_rows
from pipeline import documents, shuffle
from pipeline.decisions import text_digests
from pipeline.provenance import check_libraries
from pipeline.receipts import State
from pipeline.splitting import PartSplits
from pipeline.tokens import PLACED, write_parquet
from pipeline.work import Task
from stages.personal_data import scrub_url

LOG_ROWS = 100_000


def write_logs(task: Task) -> None:
    """inputs: `parts`, those that overlap the range, each with `base` (its first record number), `records`, `catalogue`,
    `removals` and `edits` (files in step order), `signals` (block → file), `state`, `split`; `placed` (files of all shards).
    arguments: `component`, `chunk`, `log_rows`.
    """
    check_libraries(task.arguments["libraries"])
    chunk, size = task.arguments["chunk"], task.arguments["log_rows"]
    removals, edits, logged = [REMOVALS.empty_table()], [EDITS.empty_table()], [DOCUMENT_LOG.empty_table()]
    signals: dict[str, list[pa.Table]] = {}
    placed = _placed(task)
    for part in task.inputs["parts"]:
        first, last = (min(max(edge - part["base"], 0), part["records"]) for edge in (chunk * size, (chunk + 1) * size))
        if first == last:
            continue
        catalogue = documents.read_table(task.corpus, part["catalogue"])
        extent = _Extent(catalogue, first, last)
        gone = pa.concat_tables(
            [REMOVALS.empty_table(), *(extent.cut(documents.read_table(task.corpus, name)) for name in part["removals"])]
        )
        removals.append(_in_order(gone))
        changed = [extent.cut(documents.read_table(task.corpus, name)) for name in part["edits"]]
        # Parts of an earlier version have no column `detail`.
        edits.append(_in_order(pa.concat_tables([EDITS.empty_table(), *changed], promote_options="default")))
        for block, name in part["signals"].items():
            signals.setdefault(block, []).append(extent.cut(documents.read_table(task.corpus, name)))
        logged.append(_document_rows(task, part, catalogue.slice(first, last - first), first, gone, placed))
    base = f"logs/{{}}/{task.arguments['component']}"
    files = {
        "removals": (base.format("removals"), pa.concat_tables(removals)),
        "edits": (base.format("edits"), pa.concat_tables(edits)),
        "documents": (base.format("documents"), pa.concat_tables(logged)),
        **{
            f"signals:{block}": (f"{base.format('signals')}/{block}", pa.concat_tables(tables))
            for block, tables in signals.items()
        },
    }
    task.receipt.values["logs"] = []
    for role, (folder, table) in files.items():
        kind, _, block = role.partition(":")
        written = write_parquet(task.corpus, task.file(f"{kind}{'-' if block else ''}{block}.parquet"), table)
        task.receipt.add(role, written, table.num_rows)
        task.receipt.values["logs"].append({"role": role, "kind": kind, "path": f"{folder}/{chunk:05d}.parquet"})


@dataclass
class _Extent:
    """The records [first, last) of a part, told from others by (file, position)."""

    catalogue: pa.Table
    first: int
    last: int

    def cut(self, table: pa.Table) -> pa.Table:
        records = self.catalogue.num_rows
        if self.first > 0:
            table = table.filter(self._at_or_after(table, self.first))
        if self.last < records:
            table = table.filter(pc.invert(self._at_or_after(table, self.last)))
        return table

    def _at_or_after(self, table: pa.Table, record: int) -> pa.ChunkedArray:
        file, position = (self.catalogue[name][record].as_py() for name in ("file", "position"))
        same = pc.and_(pc.equal(table["file"], file), pc.greater_equal(table["position"], position))
        return pc.or_(pc.greater(table["file"], file), same)


def _in_order(table: pa.Table) -> pa.Table:
    """By file and position; what one document has several of stays in the order of steps."""
    return table.take(pc.sort_indices(table, [("file", "ascending"), ("position", "ascending")]))


def _document_rows(
    task: Task, part: dict[str, Any], catalogue: pa.Table, first: int, gone: pa.Table, placed: pa.Table
) -> pa.Table:
    rows = catalogue.num_rows
    ids = printed_ids(catalogue)
    at = pc.index_in(gone["id"], value_set=ids).to_numpy(zero_copy_only=False)
    urls = catalogue["url"].to_pylist()
    columns: dict[str, list[Any]] = {
        name: [None] * rows
        for name in (
            *("removed_by", "language", "language_score", "text_bytes", "text_sha256"),
            *("split", "split_cluster", "shard", "start", "tokens"),
        )
    }
    for row, stage, language in zip(at.tolist(), gone["stage"].to_pylist(), gone["language"].to_pylist(), strict=True):
        columns["removed_by"][row] = stage
        columns["language"][row] = language
    state = State.model_validate(part["state"])
    split_of = PartSplits(task.corpus, part["split"]) if part["split"] is not None else None
    for numbers, batch in documents.read_state(task.corpus, state):
        local = batch["row"].to_numpy() - first
        inside = (local >= 0) & (local < rows)
        if not inside.any():
            continue
        batch, numbers, local = batch.filter(pa.array(inside)), numbers[inside], local[inside]
        found = {
            "language": batch["language"].to_pylist(),
            "language_score": batch["language_score"].to_pylist(),
            "text_bytes": documents.text_bytes(batch["text"]).tolist(),
            "text_sha256": text_digests(batch["text"]),
        }
        if split_of is not None:
            splits = split_of.of(numbers)
            found.update(split=splits["split"].to_pylist(), split_cluster=splits["cluster"].to_pylist())
        for name, values in found.items():
            for row, value in zip(local.tolist(), values, strict=True):
                columns[name][row] = value
    # The reader's own number of a record in its component says where its tokens are.
    numbers = placed["ordinal"].to_numpy()
    low, high = np.searchsorted(numbers, [part["base"] + first, part["base"] + first + rows])
    mine = placed.slice(int(low), int(high - low))
    for name in ("shard", "start", "tokens"):
        for number, value in zip(mine["ordinal"].to_pylist(), mine[name].to_pylist(), strict=True):
            columns[name][number - part["base"] - first] = value
    arrays = {name: pa.array(values, DOCUMENT_LOG.field(name).type) for name, values in columns.items()}
    return empty_rows(
        DOCUMENT_LOG,
        rows,
        id=ids,
        component=catalogue["component"],
        file=catalogue["file"],
        position=catalogue["position"],
        url=pa.array([scrub_url(url) for url in urls], pa.string()),
        url_key=pa.array([url_key(url) for url in urls], pa.string()),
        domain=pa.array([domain_of(url) for url in urls], pa.string()),
        date=catalogue["date"],
        media_type=catalogue["media_type"],
        **arrays,
    )


def _placed(task: Task) -> pa.Table:
    """Where documents' tokens are, for this range, by record number."""
    names = task.inputs["placed"] or []
    found = [rows for _, rows in shuffle.gather(task.corpus, names, task.arguments["chunk"])]
    return pa.concat_tables([PLACED.empty_table(), *found]).sort_by("ordinal")
