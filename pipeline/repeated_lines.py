"""Lines and paragraphs across documents: keys per part, counted per partition, cut out per part (stages.line_dedup)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline import documents, shuffle
from pipeline.duplicates import shuffle_out
from pipeline.receipts import State
from pipeline.rewriting import rewrite
from pipeline.work import Task
from stages.clusters import Keep, keep_ranks
from stages.line_dedup import NOWHERE, UNITS, LineDedup, LineDedupOptions, unit_keys

COUNTED = pa.schema(
    [
        pa.field("high", pa.uint64(), nullable=False),
        pa.field("low", pa.uint64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ]
)
"""A key, how many documents of a part have it, and of the best-ranked of these the row in the documents file and the bytes."""
STAYS = pa.schema([pa.field("high", pa.uint64()), pa.field("low", pa.uint64()), pa.field("row", pa.int64())])
HELD_KEYS = 1 << 20
"""Keys that a part collects before it counts equal ones together."""


def line_keys(task: Task) -> None:
    """Per part. inputs: `state`, `partitions`; arguments: `stage`, `min_characters`, `keep`."""
    state = State.model_validate(task.inputs["state"])
    unit, least, keep = UNITS[task.arguments["stage"]], task.arguments["min_characters"], task.arguments["keep"]
    partitions = task.inputs["partitions"]
    with shuffle.writing(task.corpus, task.file("keys.shuffle"), COUNTED, partitions) as writer:
        held: list[np.ndarray] = []

        def count() -> None:
            if held:
                table = _counted(np.concatenate(held), keep)
                held.clear()
                writer.add(table, (table["high"].to_numpy() % np.uint64(partitions)).astype(np.int64))

        for rows, batch in documents.read_state(task.corpus, state, ["text"]):
            keys, texts = unit_keys(batch["text"], unit, least)
            numbers, lengths = rows[texts], documents.text_bytes(batch["text"])[texts]
            held.append(np.column_stack([keys, numbers.astype(np.uint64), lengths.astype(np.uint64)]))
            if sum(map(len, held)) >= HELD_KEYS:
                count()
        count()
    task.receipt.add("keys", writer.out.written, writer.rows)


def line_groups(task: Task) -> None:
    """Per partition of keys: what is boilerplate, and where it stays. inputs: `keys` (one file a part), `bases`, `components`
    (numbers); arguments: `partition`, `scope`, `keep`, `max_documents`, `priorities`."""
    which = task.arguments["partition"], task.arguments["partitions"]
    found = list(shuffle.gather_residue(task.corpus, task.inputs["keys"], "high", *which))
    part = np.concatenate([np.zeros(0, np.int64), *(sources for sources, _ in found)])
    table = pa.concat_tables([COUNTED.empty_table(), *(rows for _, rows in found)])
    high, low, number, row, length = (table[name].to_numpy() for name in COUNTED.names)
    component = np.asarray(task.inputs["components"], dtype=np.int64)[part]
    priority = np.asarray(task.arguments["priorities"], dtype=np.int64)[component]
    keep = task.arguments["keep"]
    rank = keep_ranks(priority, length, np.asarray(task.inputs["bases"], dtype=np.int64)[part] + row, _order(keep))
    scope = component if task.arguments["scope"] == "component" else np.zeros_like(component)
    order = np.lexsort((rank, low, high, scope))
    starts = _starts(scope[order], high[order], low[order])
    total = np.add.reduceat(number[order], starts) if len(starts) else np.zeros(0, np.int64)
    crowded = np.repeat(total > task.arguments["max_documents"], np.diff([*starts, len(order)]))
    best = np.zeros(len(order), dtype=bool)
    best[starts] = keep != "none"
    row = np.where(best, row[order], NOWHERE)[crowded]
    table = pa.table([pa.array(column) for column in (high[order][crowded], low[order][crowded], row)], schema=STAYS)
    parts = len(task.inputs["bases"])
    shuffle_out(task, "stays", table, part[order][crowded], parts)
    task.receipt.values = {"units": len(starts), "boilerplate": int((total > task.arguments["max_documents"]).sum())}


def line_remove(task: Task) -> None:
    """Per part. inputs: `state`, `stays` (files), `index` of the part; arguments: `stage`, `options`."""
    state = State.model_validate(task.inputs["state"])
    name = task.arguments["stage"]
    stays: dict[bytes, int] = {}
    for _, table in shuffle.gather(task.corpus, task.inputs["stays"], task.inputs["index"]):
        keys = np.column_stack([table["high"].to_numpy(), table["low"].to_numpy()]).astype(">u8").tobytes()
        for at, place in enumerate(table["row"].to_pylist()):
            key = keys[16 * at : 16 * at + 16]
            stays[key] = max(place, stays.get(key, NOWHERE))
    rewrite(task, state, LineDedup(name, LineDedupOptions.model_validate(task.arguments["options"]), stays))


def _counted(held: np.ndarray, keep: str) -> pa.Table:
    """COUNTED of rows of (high, low, number, length)."""
    rank = keep_ranks(np.zeros(len(held), np.int64), held[:, 3].astype(np.int64), held[:, 2].astype(np.int64), _order(keep))
    order = np.lexsort((rank, held[:, 1], held[:, 0]))
    held = held[order]
    starts = _starts(held[:, 0], held[:, 1])
    number = np.diff([*starts, len(held)])
    columns = (held[starts, 0], held[starts, 1], number, held[starts, 2].astype(np.int64), held[starts, 3].astype(np.int64))
    return pa.table([pa.array(column) for column in columns], schema=COUNTED)


def _starts(*columns: np.ndarray) -> np.ndarray:
    """Where runs of equal rows start."""
    size = len(columns[0])
    new = np.zeros(size, dtype=bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def _order(keep: str) -> Keep:
    return "longest" if keep == "longest" else "first"
