"""The one place where documents are removed, edits recorded and both counted.

Stages and filters only say what they think of a batch; `Applied` carries it out, so that in = kept + removed holds for every
stage by construction. A stage that raises is asked again for each document alone; a document on which it raises twice is
removed as `error` with the exception as evidence. OSError and MemoryError are the machine's trouble and fail the part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.domains import domain_of
from manifests.identity import printed_ids
from manifests.rules import Rule, decide
from manifests.schemas import EDITS, REMOVALS, empty_rows
from pipeline.documents import text_bytes
from pipeline.receipts import Count
from stages.personal_data import scrub, scrub_url
from stages.stage import Edits, Filter, Measurement, Stage, Verdict

READ = "read"
"""The stage name under which a reader's losses are logged."""
BROKEN_RULES = frozenset({"crash", "timeout", "memory", "error"})
DETAIL_CHARACTERS = 500
MACHINE_TROUBLE = (OSError, MemoryError)


class ConservationError(Exception):
    """A stage whose verdict does not fit its batch: a bug in the stage, never in a document."""


class Applied:
    """Removals, edits, counts and broken documents of one part of one step, in the order in which batches came."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.counts: dict[str, Count] = {}
        self.errors: list[dict[str, str]] = []
        self._removals: list[pa.Table] = []
        self._edits: list[pa.Table] = []

    def removals(self) -> pa.Table:
        return pa.concat_tables(self._removals) if self._removals else REMOVALS.empty_table()

    def edits(self) -> pa.Table:
        return pa.concat_tables(self._edits) if self._edits else EDITS.empty_table()

    def expect(self, stage: str) -> Count:
        """The stage's count, which exists from the start: a stage that saw no document is counted as 0 = 0 + 0."""
        return self.counts.setdefault(stage, Count(stage=stage))

    def losses(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Takes a reader's batch, logs the records that are no documents, and returns the rest."""
        count = self.expect(READ)
        lost = batch["rule"].is_valid().to_numpy(zero_copy_only=False)
        count.documents_in += batch.num_rows
        count.documents_kept += int((~lost).sum())
        if not lost.any():
            return batch
        gone = batch.filter(pa.array(lost))
        rules = [f"{READ}.{rule}" for rule in gone["rule"].to_pylist()]
        self._log(gone, READ, rules, gone["value"].to_numpy(zero_copy_only=False), None, None, gone["detail"].to_pylist(), {})
        return batch.filter(pa.array(~lost))

    def stage(self, stage: Stage[Any], batch: pa.RecordBatch) -> pa.RecordBatch:
        """Applies a row-local stage; returns the kept rows with the stage's columns in place."""
        verdict, broken = _decided(stage, batch)
        _check(stage.name, verdict, batch.num_rows, len(stage.removal_rules))
        names = [stage.removal_rules[index] if index >= 0 else "" for index in verdict.rule.tolist()]
        details: list[str | None] = list(verdict.detail or [None] * batch.num_rows)
        for row, message in broken.items():
            names[row], details[row] = f"{stage.name}.error", message
        removed = np.array([bool(name) for name in names], dtype=bool)
        before = batch["text"]
        batch = _with_columns(batch, verdict.columns)
        if "text" in verdict.columns and before.null_count == 0:
            self._edited(stage.name, batch, before, verdict.edits, removed)
        return self._apply(
            stage.name, batch, before, removed, names, verdict.value, verdict.threshold, None, details, verdict.evidence
        )

    def measure(
        self, filters: list[Filter[Any]], block: str, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
        """Measures a filter block: (kept rows with the edited text, every signal of those rows). Only documents that a filter
        breaks on are removed here; the block's rules decide in a step of their own."""
        broken: dict[int, str] = {}
        measured = []
        for one in filters:
            measurement, failed = _measured(one, batch)
            measured.append((one, measurement))
            broken.update({row: f"{one.name}: {message}" for row, message in failed.items() if row not in broken})
        before = batch["text"]
        signals: dict[str, pa.Array] = {}
        removed = np.zeros(batch.num_rows, dtype=bool)
        removed[list(broken)] = True
        after = batch
        for one, measurement in measured:
            signals.update(measurement.signals)
            if measurement.text is not None:
                after = _with_columns(after, {"text": measurement.text})
                self._edited(one.name, after, before, measurement.edits, removed, counted=block)
        names = [f"{block}.error" if row in broken else "" for row in range(batch.num_rows)]
        details = [broken.get(row) for row in range(batch.num_rows)]
        kept = self._apply(block, after, before, removed, names, None, None, None, details, {})
        signals["text_bytes"] = pa.array(text_bytes(before))
        signals["text_bytes_after"] = pa.array(text_bytes(after["text"]))
        if removed.any():
            mask = pa.array(~removed)
            signals = {name: column.filter(mask) for name, column in signals.items()}
        return kept, signals

    def rules(self, block: str, rules: list[Rule], batch: pa.RecordBatch, signals: pa.Table) -> np.ndarray:
        """Applies a block's rules to measured documents; returns a boolean for every row, True where kept."""
        decision = decide(rules, signals)
        removed = decision.first >= 0
        names = [rules[index].name if index >= 0 else "" for index in decision.first.tolist()]
        bounds = np.array([np.nan if rule.threshold is None else rule.threshold for rule in rules] or [np.nan])
        threshold = np.where(removed, bounds[np.maximum(decision.first, 0)], np.nan)
        measured, left = (signals[name].to_numpy() for name in ("text_bytes", "text_bytes_after"))
        details = _said(signals, removed)
        self._apply(block, batch, left, removed, names, decision.value, threshold, decision.failed, details, {}, measured)
        return ~removed

    def removed(
        self, stage: str, batch: pa.RecordBatch, lengths: np.ndarray, removed: np.ndarray, rule: str, **evidence: pa.Array
    ) -> None:
        """Logs what a corpus-wide stage removed; `value` and `threshold` may stand among the evidence."""
        value, threshold = (
            evidence.pop(name).to_numpy(zero_copy_only=False) if name in evidence else None for name in ("value", "threshold")
        )
        names = [rule if gone else "" for gone in removed.tolist()]
        self._apply(stage, batch, lengths, removed, names, value, threshold, None, None, evidence)

    def _apply(
        self,
        stage: str,
        batch: pa.RecordBatch,
        before: pa.Array | np.ndarray,
        removed: np.ndarray,
        names: list[str],
        value: np.ndarray | None,
        threshold: np.ndarray | None,
        failed: pa.Array | None,
        details: list[str | None] | None,
        evidence: dict[str, pa.Array],
        seen: np.ndarray | None = None,
    ) -> pa.RecordBatch:
        """`before` are the texts that came in, or their lengths; `seen` the lengths of those that were judged, where these are
        others: the rules of a block judge the text that entered it, and count the one that it leaves."""
        count = self.expect(stage)
        lengths = before if isinstance(before, np.ndarray) else text_bytes(before)
        count.documents_in += batch.num_rows
        count.bytes_in += int(lengths.sum())
        count.documents_kept += int((~removed).sum())
        mask = pa.array(~removed)
        kept = batch.filter(mask)
        count.bytes_kept += int(text_bytes(kept["text"]).sum()) if "text" in kept.schema.names else int(lengths[~removed].sum())
        if removed.any():
            rows = np.flatnonzero(removed)
            picked = pa.array(rows)
            self._log(
                batch.take(picked),
                stage,
                [names[row] for row in rows],
                None if value is None else value[rows],
                None if threshold is None else threshold[rows],
                None if failed is None else failed.take(picked),
                None if details is None else [details[row] for row in rows],
                {name: column.take(picked) for name, column in evidence.items()},
                None if not isinstance(before, np.ndarray) and before.null_count else (lengths if seen is None else seen)[rows],
            )
        return kept

    def _log(
        self,
        gone: pa.RecordBatch,
        stage: str,
        rules: list[str],
        value: np.ndarray | None,
        threshold: np.ndarray | None,
        failed: pa.Array | None,
        details: list[str | None] | None,
        evidence: dict[str, pa.Array],
        lengths: np.ndarray | None = None,
    ) -> None:
        rows = gone.num_rows
        counts = Counter(rules)
        removed = self.expect(stage).removed
        for rule, number in counts.items():
            removed[rule] = removed.get(rule, 0) + number
        details = [_shown(text) for text in details or [None] * rows]
        ids = printed_ids(gone)
        for row, rule in enumerate(rules):
            if rule.rpartition(".")[2] in BROKEN_RULES:
                self.errors.append({"id": str(ids[row]), "stage": stage, "rule": rule, "detail": details[row] or ""})
        urls = gone["url"].to_pylist()
        columns: dict[str, pa.Array] = {
            "id": ids,
            **{name: gone[name] for name in ("component", "file", "position")},
            "url": pa.array([scrub_url(url) for url in urls], pa.string()),
            "domain": pa.array([domain_of(url) for url in urls], pa.string()),
            "step": pa.array([self.step] * rows),
            "stage": pa.array([stage] * rows),
            "rule": pa.array(rules),
            "failed_rules": failed if failed is not None else pa.array([[rule] for rule in rules], pa.list_(pa.string())),
            "detail": pa.array(details, pa.string()),
            **evidence,
        }
        if "evidence" in evidence:
            said = evidence["evidence"].to_pylist()
            columns["evidence"] = pa.array([None if text is None else scrub(text) for text in said], pa.string())
        for name, numbers in (("value", value), ("threshold", threshold)):
            if numbers is not None:
                columns[name] = pa.array(numbers, pa.float64(), mask=np.isnan(numbers))
        if lengths is not None:
            columns["text_bytes"] = pa.array(lengths, pa.int64())
        if "language" in gone.schema.names:
            columns["language"] = gone["language"]
        self._removals.append(empty_rows(REMOVALS, rows, **columns))

    def _edited(
        self, stage: str, batch: pa.RecordBatch, before: pa.Array, edits: Edits, removed: np.ndarray, counted: str | None = None
    ) -> None:
        """Logs one row a document and rule, counted under the stage or its block. A change without an edit is a bug."""
        changed = set(np.flatnonzero(pc.not_equal(before, batch["text"]).to_numpy(zero_copy_only=False)).tolist())
        if unexplained := changed - set(edits.rows):
            raise ConservationError(f"stage {stage} changed the text of row {min(unexplained)} without an edit")
        wanted = [i for i, row in enumerate(edits.rows) if row in changed and not removed[row]]
        if not wanted:
            return
        edited = self.expect(counted or stage).edited
        for index in wanted:
            edited[edits.rules[index]] = edited.get(edits.rules[index], 0) + 1
        # Several rules may have changed one text, which is measured and digested once.
        rows, of = np.unique([edits.rows[index] for index in wanted], return_inverse=True)
        old, new = before.take(pa.array(rows)), batch["text"].take(pa.array(rows))
        digests = [pa.array(text_digests(texts)).take(pa.array(of)) for texts in (old, new)]
        picked = batch.select(["component", "file", "position"]).take(pa.array(rows[of]))
        self._edits.append(
            empty_rows(
                EDITS,
                len(wanted),
                id=printed_ids(picked),
                component=picked["component"],
                file=picked["file"],
                position=picked["position"],
                step=pa.array([self.step] * len(wanted)),
                stage=pa.array([stage] * len(wanted)),
                rule=pa.array([edits.rules[index] for index in wanted]),
                count=pa.array([edits.counts[index] for index in wanted], pa.int64()),
                bytes_before=pa.array(text_bytes(old)[of]),
                bytes_after=pa.array(text_bytes(new)[of]),
                sha256_before=digests[0],
                sha256_after=digests[1],
                detail=pa.array([_shown(edits.details[index]) for index in wanted], pa.string()),
            )
        )


def _shown(detail: str | None) -> str | None:
    """A detail as logs hold it: without personal data, and cut."""
    return None if detail is None else scrub(str(detail))[:DETAIL_CHARACTERS]


def text_digests(texts: pa.Array) -> list[str]:
    """Hex SHA-256 of every text's UTF-8."""
    return [hashlib.sha256(text.as_buffer()).hexdigest() for text in texts]


def _said(signals: pa.Table, removed: np.ndarray) -> list[str | None] | None:
    """What the signals that are words say of each removed document, such as the rule set that measured it."""
    rows = np.flatnonzero(removed)
    words = [field.name for field in signals.schema if "." in field.name and pa.types.is_string(field.type)]
    if not words or not rows.size:
        return None
    details: list[str | None] = [None] * len(removed)
    taken = signals.select(words).take(pa.array(rows)).to_pylist()
    for row, values in zip(rows, taken, strict=True):
        details[row] = ", ".join(f"{name}: {value}" for name, value in values.items() if value is not None) or None
    return details


def _decided(stage: Stage[Any], batch: pa.RecordBatch) -> tuple[Verdict, dict[int, str]]:
    """The stage's verdict, and the message for each row on which it raised twice."""
    try:
        return stage.decide(batch), {}
    except MACHINE_TROUBLE:
        raise
    except Exception:
        broken: dict[int, str] = {}
        verdicts = []
        for row in range(batch.num_rows):
            verdict, message = _alone(stage.decide, batch.slice(row, 1))
            if message is not None:
                broken[row] = message
            verdicts.append(verdict or Verdict.keep_all(1))
        return _joined(verdicts, batch), broken


def _measured(one: Filter[Any], batch: pa.RecordBatch) -> tuple[Measurement, dict[int, str]]:
    try:
        measurement = one.measure(batch)
    except MACHINE_TROUBLE:
        raise
    except Exception:
        measurement = None
    broken: dict[int, str] = {}
    if measurement is None:
        single = []
        for row in range(batch.num_rows):
            alone, message = _alone(one.measure, batch.slice(row, 1))
            if message is not None:
                broken[row] = message
            single.append(alone)
        measurement = _joined_measurements(one, single, batch)
    for name, type_ in one.signals.items():
        column = measurement.signals.get(name)
        if column is None or len(column) != batch.num_rows or column.type != type_:
            raise ConservationError(f"filter {one.name} gave no {type_} signal {name} of {batch.num_rows} rows")
    return measurement, broken


def _alone(call: Any, row: pa.RecordBatch) -> tuple[Any, str | None]:
    """(result, None), or (None, the exception in words) when it raises twice."""
    message = ""
    for _ in range(2):
        try:
            return call(row), None
        except MACHINE_TROUBLE:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
    return None, message


def _joined(verdicts: list[Verdict], batch: pa.RecordBatch) -> Verdict:
    """One verdict of many single-row ones; a row without a column of its own keeps the batch's, or null."""
    joined = Verdict(np.concatenate([one.rule for one in verdicts]))
    nothing = np.array([np.nan])
    joined.value = np.concatenate([nothing if one.value is None else one.value for one in verdicts])
    joined.threshold = np.concatenate([nothing if one.threshold is None else one.threshold for one in verdicts])
    joined.detail = [None if one.detail is None else one.detail[0] for one in verdicts]
    for kind in ("columns", "evidence"):
        types = {name: column.type for one in verdicts for name, column in getattr(one, kind).items()}
        for name, type_ in types.items():
            pieces = []
            for row, one in enumerate(verdicts):
                own = getattr(one, kind).get(name)
                if own is None:
                    known = kind == "columns" and name in batch.schema.names
                    own = batch[name].slice(row, 1) if known else pa.nulls(1, type_)
                pieces.append(own.cast(type_))
            getattr(joined, kind)[name] = pa.concat_arrays(pieces)
    for row, one in enumerate(verdicts):
        for rule, count, detail in zip(*one.edits.columns, strict=True):
            joined.edits.add(row, rule, count, detail)
    return joined


def _joined_measurements(one: Filter[Any], single: list[Measurement | None], batch: pa.RecordBatch) -> Measurement:
    signals = {
        name: pa.concat_arrays([pa.nulls(1, type_) if each is None else each.signals[name] for each in single])
        for name, type_ in one.signals.items()
    }
    joined = Measurement(signals)
    if one.edits_text:
        texts = [
            batch["text"].slice(row, 1) if each is None or each.text is None else each.text for row, each in enumerate(single)
        ]
        joined.text = pa.concat_arrays(texts)
        for row, each in enumerate(single):
            for rule, count, detail in zip(*each.edits.columns, strict=True) if each else ():
                joined.edits.add(row, rule, count, detail)
    return joined


def _check(stage: str, verdict: Verdict, rows: int, rules: int) -> None:
    lengths = {len(verdict.rule), *(len(column) for column in (*verdict.columns.values(), *verdict.evidence.values()))}
    lengths |= {len(column) for column in (verdict.value, verdict.threshold, verdict.detail) if column is not None}
    if lengths != {rows}:
        raise ConservationError(f"stage {stage} was given {rows} documents and decided on {sorted(lengths)}")
    if rows and not -1 <= int(verdict.rule.min()) <= int(verdict.rule.max()) < rules:
        raise ConservationError(f"stage {stage} gave a rule that it does not declare")


def _with_columns(batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    for name, column in columns.items():
        index = batch.schema.get_field_index(name)
        if index >= 0:
            batch = batch.set_column(
                index, pa.field(name, batch.schema.field(index).type), column.cast(batch.schema.field(index).type)
            )
        else:
            batch = batch.append_column(name, column)
    return batch
