"""The split steps: every surviving document gets a split and the id that names its cluster; then a sample of the held-out
documents is compared with every document of another split."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from manifests.manifest import SPLITS
from manifests.storage import Folder
from pipeline import documents, shuffle
from pipeline.near_duplicates import GROUPED, shingle_options
from pipeline.receipts import State
from pipeline.sample_budget import SizeCounter
from pipeline.work import Task
from stages.shingles import ShingleSets, shingle_sets
from stages.split import SKETCH, HeldOut, assign, sample_key

SPLIT = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
    ]
)


HELD_OUT = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("hashes", pa.large_list(pa.uint64()), nullable=False),
    ]
)


def assign_splits(task: Task) -> None:
    """inputs: `state`, `groups` (files), `index` of the part; arguments: `seed`, `shares`, `check_sample`, and what a shingle is.

    Writes the split of every document, and those held-out documents of the part that may be in the sample. The receipt's values
    have documents and UTF-8 bytes by split, and what the tokenizer's sample asks about `training` documents.
    """
    state = State.model_validate(task.inputs["state"])
    grouped = pa.concat_tables(
        [GROUPED.empty_table(), *(rows for _, rows in shuffle.gather(task.corpus, task.inputs["groups"], task.inputs["index"]))]
    )
    cluster_of = dict(zip(grouped["row"].to_pylist(), grouped["cluster"].to_pylist(), strict=True))
    tables, count, size, training = [SPLIT.empty_table()], Counter[str](), Counter[str](), SizeCounter()
    held = HELD_OUT.empty_table()
    for rows, batch in documents.read_state(task.corpus, state, ["component", "file", "position", "language", "text"]):
        ids = printed_ids(batch).to_pylist()
        clusters = [cluster_of.get(row, own) for row, own in zip(rows.tolist(), ids, strict=True)]
        splits = assign(clusters, task.arguments["seed"], task.arguments["shares"])
        tables.append(pa.table([pa.array(rows), pa.array(splits), pa.array(clusters)], schema=SPLIT))
        count.update(splits)
        lengths = documents.text_bytes(batch["text"])
        for split, length in zip(splits, lengths.tolist(), strict=True):
            size[split] += length
        train = np.array([split == SPLITS[0] for split in splits], bool)
        training.add(lengths[train], batch["language"].filter(pa.array(train)).to_pylist())
        held = _smallest(pa.concat_tables([held, *_held_out(task, batch, ids, splits, held)]), task.arguments["check_sample"])
    task.receipt.add("held_out", documents.write_table(task.corpus, task.file("held_out.arrow"), held), held.num_rows)
    table = pa.concat_tables(tables)
    task.receipt.add("split", documents.write_table(task.corpus, task.file("split.arrow"), table), table.num_rows)
    values = {"documents": count, "bytes": size}
    task.receipt.values = {**{name: dict(sorted(of.items())) for name, of in values.items()}, "training": training.values()}
    task.receipt.state = state


def pick_held_out(task: Task) -> None:
    """inputs: `held_out` (files); arguments: `check_sample`: the sample of the whole corpus, by id."""
    sample = HELD_OUT.empty_table()
    for name in task.inputs["held_out"]:
        sample = _smallest(pa.concat_tables([sample, documents.read_table(task.corpus, name)]), task.arguments["check_sample"])
    sample = sample.sort_by("id")
    task.receipt.add("sample", documents.write_table(task.corpus, task.file("sample.arrow"), sample), sample.num_rows)


def compare_held_out(task: Task) -> None:
    """inputs: `state`, `split` and `sample` (files); arguments: `threshold`, and what a shingle is.

    The receipt's values: `compared`, the documents of the part; `near`, pairs of them and the sample that reach the threshold
    though they are of different splits; `jaccard`, the highest of all pairs of different splits, and its `held_out` and `other`
    id (of several the first).
    """
    state = State.model_validate(task.inputs["state"])
    options = shingle_options(task.arguments)
    names, held_out = _indexed(task.corpus.url, task.inputs["sample"])
    splits = PartSplits(task.corpus, task.inputs["split"])
    compared, near = 0, 0
    best: tuple[float, str, str] | None = None
    for rows, batch in documents.read_state(task.corpus, state, ["component", "file", "position", "language", "text"]):
        sets = shingle_sets(batch["text"], batch["language"], options, SKETCH)
        found = held_out.nearest(sets, splits.of(rows)["split"].to_pylist(), task.arguments["threshold"])
        compared, near = compared + len(rows), near + found.near
        ids = printed_ids(batch)
        for row in np.flatnonzero((found.which >= 0) & (found.jaccard == found.jaccard.max(initial=0))).tolist():
            pair = (-float(found.jaccard[row]), names[found.which[row]], ids[row].as_py())
            best = pair if best is None else min(best, pair)
    values = {"jaccard": -best[0], "held_out": best[1], "other": best[2]} if best else {}
    task.receipt.values = {"compared": compared, "near": near, **values}


@lru_cache(maxsize=1)
def _indexed(corpus: str, name: str) -> tuple[list[str], HeldOut]:
    """Ids of a sample, and the sample to compare with: kept for the next part, since its index takes longer than a small part."""
    sample = documents.read_table(Folder(corpus), name)
    return sample["id"].to_pylist(), HeldOut(_sets(sample), sample["split"].to_pylist())


def _held_out(task: Task, batch: pa.RecordBatch, ids: list[str], splits: list[str], held: pa.Table) -> list[pa.Table]:
    """Documents of a batch that are held out and may be in the sample beside those of `held`, which are sorted."""
    wanted = task.arguments["check_sample"]
    bound = held["key"][wanted - 1].as_py() if 0 < wanted <= held.num_rows else 1 << 64
    keys = {
        row: key
        for row, split in enumerate(splits)
        if wanted and split != "train" and (key := sample_key(task.arguments["seed"], ids[row])) < bound
    }
    if not keys:
        return []
    rows = sorted(keys, key=lambda row: (keys[row], ids[row]))[:wanted]
    chosen = batch.take(pa.array(rows))
    sets = shingle_sets(chosen["text"], chosen["language"], shingle_options(task.arguments), SKETCH)
    columns = (
        pa.array([keys[row] for row in rows], pa.uint64()),
        pa.array([ids[row] for row in rows], pa.large_string()),
        pa.array([splits[row] for row in rows]),
        pa.LargeListArray.from_arrays(pa.array(sets.offsets), pa.array(sets.hashes)),
    )
    return [pa.table(columns, schema=HELD_OUT)]


def _smallest(held: pa.Table, count: int) -> pa.Table:
    return held.sort_by([("key", "ascending"), ("id", "ascending")]).slice(0, count)


def _sets(sample: pa.Table) -> ShingleSets:
    if not sample.num_rows:
        return ShingleSets.of([])
    hashes = sample["hashes"].combine_chunks()
    offsets = hashes.offsets.to_numpy()
    return ShingleSets(offsets - offsets[0], hashes.flatten().to_numpy())


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
