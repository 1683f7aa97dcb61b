"""Row-local steps: read, look at each document alone, write what is kept and why the rest is not.

`read_and_decide` reads input files or an earlier step's documents, applies fused stages and may end by measuring a filter
block; `apply_rules` re-decides a block from its stored signals, without looking at a text again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from manifests.rules import Rule
from manifests.schemas import signals_schema
from manifests.storage import AtomicWriter, Folder
from pipeline import documents
from pipeline.compilation import compile_once
from pipeline.decisions import Applied
from pipeline.documents import CATALOGUE, STORED
from pipeline.inputs import HashingStream, Slice, check_unchanged, input_record
from pipeline.provenance import check_data, check_identity, check_libraries
from pipeline.receipts import State
from pipeline.resources import Clock
from pipeline.shuffle import IPC
from pipeline.work import Task
from stages import registry
from stages.readers import find_reader
from stages.stage import Filter, Stage


def build(spec: dict[str, Any]) -> Any:
    """A stage or filter from what the plan says of it (`pipeline.steps.spec_of`); ProvenanceError when this worker has other
    data, models or libraries than the plan saw."""
    check_libraries(spec["libraries"])
    check_data(spec["paths"], spec["data"])
    implementation = registry.find(spec["name"])
    built = implementation(implementation.options_type.model_validate(spec["options"]))
    check_identity(spec["name"], spec["data"], built.identity())
    return built


def read_and_decide(task: Task) -> None:
    """inputs: `slices` and `source` of a component, or `state` of an earlier part; `stages`; `filters` with their `block`."""
    specs, filter_specs = task.inputs["stages"], task.inputs["filters"]
    applied = Applied(task.work.step)
    clock = Clock(task.receipt.run)
    with contextlib.ExitStack() as stack:
        with clock.times("set up"):
            stages: list[Stage[Any]] = []
            for spec in specs:
                stage = build(spec)
                stack.callback(stage.close)
                stages.append(stage)
            filters: list[Filter[Any]] = [build(spec) for spec in filter_specs]
            block = task.arguments.get("block")
            compile_once([*stages, *filters])
        for name in _stage_names(task, stages, block):
            applied.expect(name)
        kept = stack.enter_context(Stream(task, "documents", STORED))
        catalogue = stack.enter_context(Stream(task, "catalogue", CATALOGUE)) if "slices" in task.inputs else None
        signals = None
        if filters:
            schema = signals_schema({name: type_ for one in filters for name, type_ in one.signals.items()})
            signals = stack.enter_context(Stream(task, "signals", schema))
        records = size = 0
        for batch in clock.reading(_batches(task)):
            if catalogue is not None:
                catalogue.write(batch.select(CATALOGUE.names))
                numbers = pa.array(np.arange(records, records + batch.num_rows, dtype=np.int64))
                records += batch.num_rows
                batch = applied.losses(batch.append_column("row", numbers))
            for stage in stages:
                if batch.num_rows:
                    with clock.times(stage.name):
                        batch = applied.stage(stage, batch)
            if batch.num_rows and signals is not None:
                with clock.times("measure"):
                    batch, measured = applied.measure(filters, f"{block}.measure", batch)
                columns = {name: batch[name] for name in ("component", "file", "position")}
                arrays = {"id": printed_ids(batch), **columns, **measured}
                with clock.times("write"):
                    signals.write(pa.record_batch([arrays[name] for name in signals.schema.names], schema=signals.schema))
            if batch.num_rows:
                with clock.times("write"):
                    kept.write(_stored(batch))
                size += int(documents.text_bytes(batch["text"]).sum())
        reports = {stage.name: stage.report() for stage in stages} | {one.name: one.report() for one in filters}
    task.receipt.values["text_bytes"] = size
    task.receipt.values["reports"] = {name: report for name, report in reports.items() if report}
    write_logs(task, applied)
    task.receipt.state = written_state(task)


def apply_rules(task: Task) -> None:
    """inputs: `state` and `signals` of the measuring part; arguments: `block` and `rules`."""
    rules = [Rule.model_validate(rule) for rule in task.arguments["rules"]]
    block = task.arguments["block"]
    state = State.model_validate(task.inputs["state"])
    applied = Applied(task.work.step)
    applied.expect(block)
    kept = []
    with task.corpus.open(task.inputs["signals"]) as file, pa.ipc.open_file(file) as reader:
        columns = ["component", "file", "position", "url", "language"]
        for index, (rows, batch) in enumerate(documents.read_state(task.corpus, state, columns)):
            signals = pa.Table.from_batches([reader.get_batch(index)])
            kept.append(rows[applied.rules(block, rules, batch, signals)])
    write_logs(task, applied)
    survivors = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
    narrow(task, state, survivors)


def narrow(task: Task, state: State, survivors: np.ndarray) -> None:
    """Commits that of `state` only the rows `survivors` (numbers within its documents file) are left."""
    written = documents.write_kept(task.corpus, task.file("kept.arrow"), survivors)
    task.receipt.add("kept", written, len(survivors))
    task.receipt.state = state.narrowed(written, len(survivors))


def written_state(task: Task) -> State:
    """The state of a part whose documents this task has written, all of which are kept."""
    written = task.receipt.files["documents"]
    return State(documents=written.path, rows=written.rows, documents_kept=written.rows, digest=written.sha256)


def write_logs(task: Task, applied: Applied) -> None:
    """Writes the part's removals and edits and puts counts and errors on its receipt."""
    for role, table in (("removals", applied.removals()), ("edits", applied.edits())):
        written = documents.write_table(task.corpus, task.file(f"{role}.arrow"), table)
        task.receipt.add(role, written, table.num_rows)
    task.receipt.counts = list(applied.counts.values())
    task.receipt.errors = applied.errors


class Stream:
    """An Arrow IPC file that grows batch by batch and enters the receipt when it is complete."""

    def __init__(self, task: Task, role: str, schema: pa.Schema) -> None:
        self.task, self.role, self.schema, self.rows = task, role, schema, 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Stream:
        self.out: AtomicWriter = self._stack.enter_context(self.task.corpus.writer(self.task.file(f"{self.role}.arrow")))
        self.sink = self._stack.enter_context(pa.ipc.new_file(self.out, self.schema, options=IPC))
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self.sink.write_batch(batch.cast(self.schema) if batch.schema != self.schema else batch)
        self.rows += batch.num_rows

    def __exit__(self, *exception: Any) -> bool | None:
        swallowed = self._stack.__exit__(*exception)
        if exception[0] is None:
            self.task.receipt.add(self.role, self.out.written, self.rows)
        return swallowed


def _stage_names(task: Task, stages: list[Stage[Any]], block: str | None) -> list[str]:
    read = ["read"] if "slices" in task.inputs else []
    return [*read, *(stage.name for stage in stages), *([f"{block}.measure"] if block else [])]


def _batches(task: Task) -> Iterator[pa.RecordBatch]:
    if "state" in task.inputs:
        for _, batch in documents.read_state(task.corpus, State.model_validate(task.inputs["state"])):
            yield batch
        return
    component = task.inputs["component"]
    check_libraries(task.inputs["reader_libraries"])
    reader_type = find_reader(task.inputs["format"])
    reader = reader_type(reader_type.options_type.model_validate(task.inputs["reader"]))
    folder = Folder(task.inputs["source"])
    skipped: Counter[str] = Counter()
    for raw in task.inputs["slices"]:
        planned = Slice(**{**raw, "row_groups": tuple(raw["row_groups"]) if raw["row_groups"] else None})
        check_unchanged(folder, planned)
        with folder.open(planned.path) as file:
            stream = HashingStream(file)
            groups = range(*planned.row_groups) if planned.row_groups else None
            yield from reader.read(cast(BinaryIO, stream), component, planned.path, skipped, groups)
            if planned.row_groups is None or planned.row_groups[0] == 0:  # of a file in several parts the first one tells
                task.receipt.inputs.append(input_record(planned, *stream.finish()))
        check_unchanged(folder, planned)
    task.receipt.skipped = dict(sorted(skipped.items()))


def _stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        batch[field.name] if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type) for field in STORED
    ]
    return pa.record_batch([column.cast(field.type) for column, field in zip(columns, STORED, strict=True)], schema=STORED)
