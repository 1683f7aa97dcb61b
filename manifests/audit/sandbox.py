"""SQL over the logs of a corpus, for questions that nobody foresaw; the statement may come from a stranger.

What keeps it in: it runs in a process of its own (`sandbox_process`), which is killed when the time is up and gets no more
memory than it may have. There DuckDB is handed Arrow data sets and is then forbidden every access to files and network, its
configuration is locked, and one SELECT is all that is run. The process answers in JSON. It holds no credentials but those of
the environment, of which no function of SQL tells.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.rules import Rule
from manifests.storage import Folder

MEMORY = "2GB"
SECONDS = 60.0
PROCESS = "manifests.audit.sandbox_process"
ARENAS = 2
"""Heaps of the process's allocator, each of which takes 64 MiB of addresses at once."""
PIECE = 1 << 20
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
    """A process with a locked DuckDB that has the views of one corpus. Use as a context manager. After a statement that was
    killed the next one has a new process."""

    def __init__(self, corpus: Folder, manifest: Manifest, memory: str = MEMORY, threads: int | None = None) -> None:
        config: dict[str, Any] = {"python_enable_replacements": "false", "memory_limit": memory, "temp_directory": ""}
        config |= {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        if threads is not None:
            config["threads"] = str(threads)
        files = _files(manifest)
        tables = _tables(manifest)
        self.memory = memory
        self.views = dict(VIEWS)
        for name in files:
            self.views.setdefault(name, "one row a document that this filter block measured, a column each signal")
        self._opening = _line(
            {
                "config": config,
                "url": corpus.url,
                "options": corpus.options,
                "files": files,
                "tables": {name: base64.b64encode(_stream(table)).decode() for name, table in tables.items()},
            }
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._most = 0
        self._start()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    @property
    def process_id(self) -> int | None:
        """Of the process that answers; None where the next statement starts one."""
        return None if self._process is None else self._process.pid

    def columns(self, view: str) -> list[tuple[str, str]]:
        """Names and types of a view's columns."""
        asked = "select column_name, data_type from duckdb_columns() where table_name = ?"
        return [(str(name), str(kind)) for name, kind in self._ask(asked, [view], None, SECONDS).rows]

    def ask(self, statement: str, limit: int | None = None, seconds: float = SECONDS) -> Answer:
        """The rows of one SELECT (WITH, FROM, DESCRIBE, SHOW and SUMMARIZE are such); SandboxError where it is something else,
        fails, takes longer than `seconds`, or more memory than it may. Values are those that JSON has: times, decimals and the
        like are texts, bytes are written in hex."""
        return self._ask(statement, [], limit, seconds)

    def _ask(self, statement: str, parameters: list[str], limit: int | None, seconds: float) -> Answer:
        if self._process is None:
            self._start()
        try:
            reply = self._told(_line({"statement": statement, "parameters": parameters, "limit": limit}), seconds)
        except BaseException:
            self._end()
            raise
        if reply.get("broken"):
            self._end()
        if "error" in reply:
            raise SandboxError(str(reply["error"]))
        columns = [(str(name), str(kind)) for name, kind in reply["columns"]]
        rows = [tuple(row) for row in reply["rows"]]
        return Answer(columns, rows if limit is None else rows[:limit], limit is not None and len(rows) > limit)

    def _start(self) -> None:
        environment = dict(os.environ)
        environment.update(
            PYTHONPATH=os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            PYTHONUTF8="1",
            # Others reserve gigabytes of addresses that they do not use, which the limit counts.
            ARROW_DEFAULT_MEMORY_POOL="system",
            MALLOC_ARENA_MAX=str(ARENAS),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROCESS],  # not from the folder in which the caller stands: it may be a stranger's
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl+C ends the caller, which ends it
        )
        try:
            reply = self._told(self._opening, None)
        except BaseException:
            self._end()
            raise
        if "error" in reply:
            self._end()
            raise SandboxError(f"memory of {self.memory!r}: {reply['error']}" if reply["memory"] else str(reply["error"]))
        self._most = int(reply["most"])

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _told(self, request: bytes, seconds: float | None) -> dict[str, Any]:
        """What the process answers; SandboxError where it ends, or has not answered in time."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        end = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
        answers = self._process.stdout.fileno()
        found: list[bytes] = []
        size = 0
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        while not found or not found[-1].endswith(b"\n"):
            left = None if end is None else max(0.0, end - time.monotonic())
            if not poll.poll(None if left is None else 1000 * left):
                raise SandboxError(f"stopped after {seconds:g} seconds")
            piece = os.read(answers, PIECE)
            if not piece:
                raise SandboxError(self._how_it_ended())
            found.append(piece)
            size += len(piece)
            if self._most and size > self._most + PIECE:
                raise SandboxError(f"the answer has more than {self.memory}: ask for fewer rows, or give more with --memory")
        try:
            reply = json.loads(b"".join(found))
        except (ValueError, RecursionError) as error:
            raise SandboxError(f"the answer cannot be read: {error}") from None
        if not isinstance(reply, dict):
            raise SandboxError("the answer cannot be read")
        return reply

    def _how_it_ended(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        if self._most:
            return (
                f"the statement took more than {self.memory} of memory, or broke the process that it ran in (exit status {code})"
            )
        return f"the process for SQL did not start (exit status {code})"


def _line(message: dict[str, Any]) -> bytes:
    """ASCII alone: a line for every reader, whatever half a character is in it."""
    return json.dumps(message).encode("ascii") + b"\n"


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _files(manifest: Manifest) -> dict[str, tuple[list[str], str | None]]:
    """View → the files that it shows, and their schema where it is known before they are opened."""
    return {
        name: (paths, None if schema is None else base64.b64encode(bytes(schema.serialize())).decode())
        for name, (paths, schema) in Logs.sources(manifest).items()
        if paths or schema is not None
    }


def _tables(manifest: Manifest) -> dict[str, pa.Table]:
    """View → what the manifest itself says."""
    content = manifest.content
    found: dict[str, pa.Table] = {}
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
