"""Repeated substrings of a component: found in one task a suffix array, cut out per part (stages.substring_dedup)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from manifests.identity import keyed_hash, printed_ids
from pipeline import documents, shuffle
from pipeline.duplicates import by_part, shuffle_out
from pipeline.receipts import State
from pipeline.rewriting import rewrite
from pipeline.work import Task
from stages.clusters import keep_ranks
from stages.substring_dedup import SubstringDedup, SubstringDedupOptions, repeated_spans, tokens_of

SPANS = pa.schema([pa.field("row", pa.int64()), pa.field("first", pa.int64()), pa.field("last", pa.int64())])
"""A document's row in the documents file, and the tokens to cut: from the first to behind the last."""
ARRAY_KEY = "substring_dedup array"
"""The key of the hash that deals the documents of a large component to its suffix arrays."""


def find_substrings(task: Task) -> None:
    """Per suffix array. inputs: `states` of the component's parts, `bases` (their numbers over the component); arguments:
    `options`, `array`, `arrays`."""
    options = SubstringDedupOptions.model_validate(task.arguments["options"])
    arrays, mine = task.arguments["arrays"], task.arguments["array"]
    hashes: list[np.ndarray] = []
    least: list[int] = []
    lengths: list[np.ndarray] = []
    numbers: list[np.ndarray] = []
    for base, raw in zip(task.inputs["bases"], task.inputs["states"], strict=True):
        columns = ["component", "file", "position", "text"]
        for rows, batch in documents.read_state(task.corpus, State.model_validate(raw), columns):
            if arrays > 1:
                own = np.array([keyed_hash(ARRAY_KEY, name) % arrays == mine for name in printed_ids(batch).to_pylist()], bool)
                rows, batch = rows[own], batch.filter(pa.array(own))
            tokens = tokens_of(batch["text"])
            hashes += [tokens.hashes[tokens.starts[row] : tokens.starts[row + 1]].copy() for row in range(batch.num_rows)]
            least += [options.min_tokens if spaced else options.min_units_unspaced for spaced in tokens.spaced.tolist()]
            lengths.append(documents.text_bytes(batch["text"]))
            numbers.append(base + rows)
    number = np.concatenate([np.zeros(0, np.int64), *numbers])
    length = np.concatenate([np.zeros(0, np.int64), *lengths])
    order = np.argsort(keep_ranks(np.zeros_like(number), length, number, options.keep))
    spans = repeated_spans([hashes[index] for index in order], [least[index] for index in order])
    rows = np.repeat(number[order], [len(one) for one in spans])
    edges = np.concatenate([np.zeros((0, 2), np.int64), *spans])
    part, row = by_part(task.inputs["bases"], rows)
    table = pa.table([pa.array(column, pa.int64()) for column in (row, edges[:, 0], edges[:, 1])], schema=SPANS)
    shuffle_out(task, "spans", table, part, len(task.inputs["bases"]))
    task.receipt.values = {
        "documents": len(number),
        "tokens": sum(map(len, hashes)),
        "repeated_tokens": int((edges[:, 1] - edges[:, 0]).sum()),
        "spans": len(edges),
    }


def cut_substrings(task: Task) -> None:
    """Per part. inputs: `state`, `spans` (files of all arrays), `index` of the part in its component; arguments: `options`."""
    state = State.model_validate(task.inputs["state"])
    found = [table for _, table in shuffle.gather(task.corpus, task.inputs["spans"], task.inputs["index"])]
    table = pa.concat_tables([SPANS.empty_table(), *found]).sort_by([("row", "ascending"), ("first", "ascending")])
    row, edges = table["row"].to_numpy(), np.column_stack([table["first"].to_numpy(), table["last"].to_numpy()])
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    spans = {int(row[first]): edges[first:last] for first, last in pairwise([*starts.tolist(), len(row)])}
    rewrite(task, state, SubstringDedup(SubstringDedupOptions.model_validate(task.arguments["options"]), spans))
