"""Corpus-wide stages that change texts: what was found over the whole corpus is carried out on one part."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pipeline import documents
from pipeline.decisions import Applied
from pipeline.documents import STORED
from pipeline.receipts import State
from pipeline.row_local import Stream, write_logs, written_state
from pipeline.work import Task
from stages.stage import PLACE, Stage


def rewrite(task: Task, state: State, stage: Stage[Any]) -> None:
    """Applies `stage` to the documents of `state`, numbered by their rows in the column `PLACE`; what it leaves is the part's
    state from now on."""
    applied = Applied(task.work.step)
    applied.expect(stage.name)
    with Stream(task, "documents", STORED) as kept:
        for rows, batch in documents.read_state(task.corpus, state):
            left = applied.stage(stage, batch.append_column(PLACE, pa.array(rows)))
            if left.num_rows:
                kept.write(left.drop_columns([PLACE]))
    write_logs(task, applied)
    task.receipt.state = written_state(task)
