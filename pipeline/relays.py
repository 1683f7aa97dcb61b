"""Relays: between the many files of a shuffle and its many partitions, tasks that bring together what lies near.

A relay reads one stream of every file and takes it apart into the partitions that share it; a partition's reader then has one
file of few instead of all. Nothing is decided here: rows keep their order, and say in a column which file they come from.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline import shuffle
from pipeline.shuffle import SOURCE, TARGET, ShuffleWriter
from pipeline.work import Task

RUN_BYTES = 128 << 20
"""Of rows that a relay collects before it takes them apart, for which it has them twice."""


def relay(task: Task) -> None:
    """inputs: `files`, and `first`, the number of the first of them; arguments: `stream` of `streams`, and `width` of a stream
    (None: every `streams`-th partition, by the remainder of `column`) of `partitions`."""
    arguments = task.arguments
    stream, streams, partitions, width = (arguments[name] for name in ("stream", "streams", "partitions", "width"))
    files, first = task.inputs["files"], task.inputs["first"]
    if width is None:
        own, found = partitions // streams, shuffle.gather_residue(task.corpus, files, arguments["column"], stream, streams)
    else:
        low = stream * width
        own = min(width, partitions - low)
        found = shuffle.gather_targets(task.corpus, files, low, low + own)
    with task.corpus.writer(task.file("relay.shuffle")) as out:
        writer: ShuffleWriter | None = None
        for source, rows in found:
            if width is None:
                target = (rows[arguments["column"]].to_numpy() % np.uint64(partitions) // np.uint64(streams)).astype(np.int64)
            else:
                target = rows[TARGET.name].to_numpy() - low
                rows = rows.drop_columns(TARGET.name)
            rows = rows.append_column(SOURCE, pa.array(first + source, SOURCE.type))
            writer = writer or ShuffleWriter(out, rows.schema, own, RUN_BYTES)
            writer.add(rows, target)
        writer = writer or ShuffleWriter(out, pa.schema([SOURCE]), own)
        writer.finish()
    task.receipt.add("relay", out.written, writer.rows)
