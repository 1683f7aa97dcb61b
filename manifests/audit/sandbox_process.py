"""The process in which SQL of `sandbox` runs. It is killed when the time is up, and the system gives it no more memory than it
may have: DuckDB counts neither what its functions on lists and texts hold, nor does it look at an interrupt within one.

One line of JSON comes in for each message and one goes out. The first tells how to open the logs and is answered by what the
process may hold; each further one is a statement, answered by columns and rows, or by what was wrong.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import resource
import select
import sys
import threading
from typing import IO, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from manifests.storage import Folder

STACK_BYTES = 8 << 20
HEAPS_BYTES = 128 << 20
"""Addresses, not memory, beside what a statement may take: the stack of each thread of Arrow's, which start with it, and the
heap of the second arena (64 MiB, of which glibc takes twice as many and gives half back)."""
NO_LIMIT = 1 << 62
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60}
_BROKEN = (MemoryError, duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InternalException)
"""After these the process is not asked again."""


def main() -> None:
    """Answers what comes in on the standard input until that ends, and then ends, in the middle of a statement too."""
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    requests = sys.stdin.buffer
    try:
        connection, most = _opened(json.loads(requests.readline()))
    except (duckdb.Error, pa.ArrowException, OSError, ValueError) as error:
        _send(replies, {"error": str(error), "memory": isinstance(error, duckdb.Error)})
        return
    _send(replies, {"most": most})
    while line := requests.readline():
        asked = json.loads(line)
        del line
        try:
            reply = _answer(connection, asked)
            if len(reply) > most:
                raise MemoryError
        except _BROKEN as error:
            reply = json.dumps({"error": str(error) or "Out of Memory", "broken": True}).encode()
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError, ValueError, RecursionError) as error:
            reply = json.dumps({"error": str(error)}).encode()
        replies.write(reply + b"\n")
        replies.flush()


def _end_with_the_caller() -> None:
    poll = select.poll()
    poll.register(0, 0)  # tells of its end alone
    poll.poll()
    os._exit(0)


def _send(replies: IO[bytes], message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


def _opened(request: dict[str, Any]) -> tuple[duckdb.DuckDBPyConnection, int]:
    """A locked database with the views, and the bytes that it may take; from here on the process gets no more."""
    connection = duckdb.connect(":memory:", config=request["config"])
    shown = connection.execute("select current_setting('memory_limit')").fetchall()[0][0]
    number, unit = re.fullmatch(r"([\d.]+) (\w+)", shown).groups()  # type: ignore[union-attr]
    most = int(float(number) * (1 << _UNITS[unit]))
    corpus = Folder(request["url"], **request["options"])
    for name, (paths, schema) in request["files"].items():
        known = None if schema is None else pa.ipc.read_schema(pa.BufferReader(base64.b64decode(schema)))
        if paths:
            # Columns are those of the files' schemas: no folder name is taken for a column.
            files = [corpus.path(path) for path in paths]
            data = ds.dataset(files, filesystem=corpus.fs, format="parquet", schema=known, partitioning=None)
        else:
            data = known.empty_table()  # type: ignore[union-attr]
        connection.register(name, data)
    for name, table in request["tables"].items():
        connection.register(name, pa.ipc.open_stream(base64.b64decode(table)).read_all())
    for setting in ("enable_external_access = false", "lock_configuration = true"):
        connection.execute(f"set {setting}")
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):  # it writes no file
        resource.setrlimit(limit, (0, 0))
    if most < NO_LIMIT:
        held = most + _addresses() + HEAPS_BYTES + STACK_BYTES * (pa.cpu_count() + pa.io_thread_count())
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        held = held if hard == resource.RLIM_INFINITY else min(held, hard)
        with contextlib.suppress(OSError, ValueError):  # a system without this limit: DuckDB's own is left
            resource.setrlimit(resource.RLIMIT_AS, (held, held))
    return connection, most


def _addresses() -> int:
    """Bytes of address space that the process has now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _answer(connection: duckdb.DuckDBPyConnection, asked: dict[str, Any]) -> bytes:
    statements = duckdb.extract_statements(asked["statement"])
    if len(statements) != 1:
        raise ValueError(f"one statement is run at a time, and these are {len(statements)}")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name.upper()
        raise ValueError(f"only SELECT is run here, and this is {kind}: the corpus is read-only")
    found = connection.execute(statements[0], asked["parameters"])
    columns = [(str(column[0]), str(column[1])) for column in found.description or []]
    rows = found.fetchall() if asked["limit"] is None else found.fetchmany(asked["limit"] + 1)
    try:
        return json.dumps({"columns": columns, "rows": rows}, default=_as_text).encode()
    except TypeError:  # a key that JSON has not
        return json.dumps({"columns": columns, "rows": _plain(rows)}).encode()


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_as_text(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else _as_text(value)


if __name__ == "__main__":
    main()
