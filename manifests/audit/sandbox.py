"""SQL over the logs of a corpus, for questions that nobody foresaw; the statement may come from a stranger.

What keeps it in: DuckDB is handed Arrow data sets and is then forbidden every access to files and network, its configuration is
locked, no Python variable is visible to it, one SELECT is all that is run, and memory and time end. It holds no credentials.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.rules import Rule
from manifests.storage import Folder

MEMORY = "2GB"
SECONDS = 60.0
VIEWS = {
    "documents": "one row a document that came in, kept or not: what it is, which stage removed it, where its tokens are",
    "removals": "one row a removed document: stage, rule, value, threshold, all failed rules, evidence",
    "edits": "one row a document, stage and rule that changed its text",
    "shard_index": "one row a document in a shard: id, first token, tokens, bytes",
    "counts": "one row a component and stage: documents in, kept, removed",
    "rules": "one row a rule that decided: its stage, signal, condition and bound",
    "components": "one row a component: source, licence, documents in and kept",
}
"""What `signals_<component>_<block>` holds beside these: one row a document that the filter block measured, a column each
signal."""


class SandboxError(Exception):
    """A statement that is not run, or that failed; the message is for the person who wrote it."""


@dataclass(frozen=True)
class Answer:
    """columns: name and type of each. rows: at most `limit` of them; `more` says that there were more."""

    columns: list[tuple[str, str]]
    rows: list[tuple[Any, ...]]
    more: bool

    def as_rows(self) -> list[dict[str, Any]]:
        names = _distinct([name for name, _ in self.columns])
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class Sandbox:
    """A locked DuckDB with the views of one corpus. Use as a context manager."""

    def __init__(self, corpus: Folder, manifest: Manifest, memory: str = MEMORY, threads: int | None = None) -> None:
        config: dict[str, Any] = {"python_enable_replacements": "false", "memory_limit": memory, "temp_directory": ""}
        config |= {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        if threads is not None:
            config["threads"] = str(threads)
        try:
            self.connection = duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise SandboxError(f"memory of {memory!r}: {error}") from None
        self.views = dict(VIEWS)
        for name, data in _data(corpus, manifest).items():
            self.connection.register(name, data)
            self.views.setdefault(name, "one row a document that this filter block measured, a column each signal")
        for setting in ("enable_external_access = false", "lock_configuration = true"):
            self.connection.execute(f"set {setting}")

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def columns(self, view: str) -> list[tuple[str, str]]:
        """Names and types of a view's columns."""
        found = self.connection.execute("select column_name, data_type from duckdb_columns() where table_name = ?", [view])
        return [(str(name), str(kind)) for name, kind in found.fetchall()]

    def ask(self, statement: str, limit: int | None = None, seconds: float = SECONDS) -> Answer:
        """The rows of one SELECT (WITH, FROM, DESCRIBE, SHOW and SUMMARIZE are such); SandboxError where it is something else,
        fails, or takes longer than `seconds`."""
        try:
            statements = duckdb.extract_statements(statement)
        except duckdb.Error as error:
            raise SandboxError(str(error)) from None
        if len(statements) != 1:
            raise SandboxError(f"one statement is run at a time, and these are {len(statements)}")
        if statements[0].type != duckdb.StatementType.SELECT:
            raise SandboxError(f"only SELECT is run here, and this is {statements[0].type.name.upper()}: the corpus is read-only")
        over = threading.Event()

        def stop() -> None:
            over.set()
            self.connection.interrupt()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            found = self.connection.execute(statements[0])
            columns = [(str(column[0]), str(column[1])) for column in found.description or []]
            rows = found.fetchall() if limit is None else found.fetchmany(limit + 1)
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            if over.is_set():
                raise SandboxError(f"stopped after {seconds:g} seconds") from None
            raise SandboxError(str(error)) from None
        except RuntimeError as error:  # DuckDB's interrupt in the middle of an Arrow stream
            raise SandboxError(f"stopped after {seconds:g} seconds" if over.is_set() else str(error)) from None
        finally:
            timer.cancel()
        return Answer(columns, rows if limit is None else rows[:limit], limit is not None and len(rows) > limit)


def _data(corpus: Folder, manifest: Manifest) -> dict[str, Any]:
    """View → what it shows. Columns are those of the files' schemas: no folder name is taken for a column."""
    content = manifest.content
    found: dict[str, Any] = {}
    for name, (paths, schema) in Logs.sources(manifest).items():
        if paths:
            files = [corpus.path(path) for path in paths]
            found[name] = ds.dataset(files, filesystem=corpus.fs, format="parquet", schema=schema, partitioning=None)
        elif schema is not None:
            found[name] = schema.empty_table()
    found["counts"] = _table(COUNTS, ([*_picked(one, COUNTS), sum(one.removed.values())] for one in content.counts))
    owned = [(name, record) for name, one in content.components.items() for record in one.stages]
    found["rules"] = _table(
        RULES,
        (
            [component, record.step, record.stage, rule.name, rule.signal, *_condition(rule), rule.when_undefined]
            for component, record in [*owned, *((None, record) for record in content.stages)]
            for rule in record.rules
        ),
    )
    found["components"] = _table(
        COMPONENTS,
        ([name, *_picked(one, COMPONENTS), sum(one.tokens.values())] for name, one in content.components.items()),
    )
    return found


def _fields(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


COUNTS = pa.schema(
    [
        *_fields(pa.string(), "component", "step", "stage"),
        *_fields(pa.int64(), "documents_in", "documents_kept", "bytes_in", "bytes_kept", "removed"),
    ]
)
RULES = pa.schema(
    [
        *_fields(pa.string(), "component", "step", "stage", "rule", "signal", "keep_if"),
        *_fields(pa.float64(), "bound"),
        *_fields(pa.list_(pa.string()), "keep_if_in"),
        *_fields(pa.string(), "when_undefined"),
    ]
)
COMPONENTS = pa.schema(
    [
        *_fields(pa.string(), "component", "source", "format", "licence", "snapshot"),
        *_fields(pa.int64(), "priority", "documents_in", "documents_kept", "tokens"),
    ]
)


def _picked(record: Any, schema: pa.Schema) -> list[Any]:
    """What the record has of the columns; the last one is worked out."""
    return [getattr(record, name) for name in schema.names[:-1] if hasattr(record, name)]


def _condition(rule: Rule) -> list[Any]:
    """keep_if, bound, keep_if_in."""
    return [rule.condition.removeprefix("keep_if_"), rule.threshold, None if rule.keep_if_in is None else list(rule.keep_if_in)]


def _table(schema: pa.Schema, rows: Iterable[list[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema)


def _distinct(names: list[str]) -> list[str]:
    """Columns of one name get a number, so that none hides another."""
    taken: dict[str, int] = {}
    found = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return found
