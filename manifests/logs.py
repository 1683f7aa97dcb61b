"""The logs of a corpus, for programs: DuckDB views over the Parquet files that the manifest lists, and over nothing else.

Views: `removals`, `edits`, `documents` (schemas in manifests.schemas), `shard_index` (SHARD_INDEX with the shard's path), and
one `signals_<component>_<block>` for every filter block.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import Manifest
from manifests.schemas import LOG_SCHEMAS, SHARD_INDEX
from manifests.storage import Folder, StorageError


class Logs:
    """Questions to the logs of one corpus. Use as a context manager; `sql` takes parameters as `?`, or by name as `$name`.

    `only` names the views that are wanted: no file of another is opened. All are removals, edits, documents, shard_index and
    signals.
    """

    def __init__(self, corpus: Folder, manifest: Manifest, only: Collection[str] | None = None) -> None:
        self.corpus = corpus
        self.manifest = manifest
        self.connection = duckdb.connect()
        blocks = signal_blocks(manifest)
        for name, (paths, schema) in self.sources(manifest).items():
            if only is None or ("signals" if name in blocks else name) in only:
                self._view(name, paths, schema)
        self.signals = blocks if only is None or "signals" in only else {}

    @staticmethod
    def sources(manifest: Manifest) -> dict[str, tuple[list[str], pa.Schema | None]]:
        """View → its files, and their schema where it is known before they are opened."""
        content = manifest.content
        found: dict[str, tuple[list[str], pa.Schema | None]] = {
            name: ([log.path for log in content.logs if log.kind == name], schema) for name, schema in LOG_SCHEMAS.items()
        }
        found["shard_index"] = ([shard.index for shard in content.shards], SHARD_INDEX)
        for view, block in signal_blocks(manifest).items():
            inside = [log.path for log in content.logs if log.kind == "signals" and log.path.startswith(f"logs/signals/{block}/")]
            found[view] = (inside, None)
        return found

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def sql(self, query: str, parameters: list[Any] | dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries."""
        found = self.connection.execute(query, parameters or [])
        names = [column[0] for column in found.description or []]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def tables(self, kind: str, component: str) -> Iterator[pa.Table]:
        """The log files of one kind and component, in id order."""
        for log in self.manifest.content.logs:
            if log.kind == kind and log.path.split("/")[2] == component:
                yield read_parquet(self.corpus, log.path)

    def measured(self, component: str, block: str, file: str, position: int) -> list[dict[str, Any]]:
        """The signals of one document: its row in the log of a filter block, or none. Needs no view: file n of every kind
        covers the same records, so one file of many is opened."""
        found = self._paths("signals", component, block)
        told = self._paths("documents", component)
        if len(found) == len(told) > 1:
            # The last one whose first document is not behind this one.
            at = bisect.bisect_right(told, (file, position), key=self._first_document) - 1
            found = found[max(at, 0) :][:1]
        self._view("one_log", found, None)
        try:
            return self.sql("select * from one_log where file = ? and position = ?", [file, position]) if found else []
        finally:
            self.connection.unregister("one_log")
            self.connection.execute("drop view if exists one_log")

    def _paths(self, kind: str, *folders: str) -> list[str]:
        prefix = "/".join(["logs", kind, *folders]) + "/"
        return [log.path for log in self.manifest.content.logs if log.kind == kind and log.path.startswith(prefix)]

    def _first_document(self, path: str) -> tuple[str, int]:
        """File and position of the first row of a log; the greatest there is where it has no row."""
        source = self.corpus.path(path) if self.corpus.local else pa.BufferReader(self.corpus.read(path))
        with pq.ParquetFile(source) as opened:
            for batch in opened.iter_batches(1, columns=["file", "position"]):
                return str(batch["file"][0]), int(batch["position"][0].as_py())
        return ("\U0010ffff", 0)

    def _view(self, name: str, paths: list[str], schema: pa.Schema | None) -> None:
        if not paths:
            self.connection.register(name, (schema or pa.schema([])).empty_table())
            return
        for path in paths if self.corpus.local else ():
            about = Path(self.corpus.path(path))
            if about.exists() and not about.is_file():  # a pipe would be waited for
                raise StorageError(f"{about} is not a regular file")
        # DuckDB takes these for a pattern of names.
        if self.corpus.local and not set("*?[") & set(self.corpus.root):
            listed = ", ".join("'" + self.corpus.path(path).replace("'", "''") + "'" for path in paths)
            source = f"read_parquet([{listed}], hive_partitioning=false, union_by_name=true, file_row_number=false)"
            self.connection.execute(f'create or replace view "{name}" as select * from {source}')
            return
        import pyarrow.dataset as ds  # brings pandas, a third of a second

        files = [self.corpus.path(path) for path in paths]
        self.connection.register(name, ds.dataset(files, filesystem=self.corpus.fs, format="parquet", schema=schema))


def signal_blocks(manifest: Manifest) -> dict[str, str]:
    """View → "component/block", of every filter block whose signals are stored."""
    blocks = {"/".join(log.path.split("/")[2:4]) for log in manifest.content.logs if log.kind == "signals"}
    views: dict[str, str] = {}
    for block in sorted(blocks):
        name = "signals_" + re.sub(r"\W", "_", block)
        while name in views:  # `a-b/f` and `a_b/f` differ in what a name in SQL cannot hold
            name += "_"
        views[name] = block
    return views


def read_parquet(corpus: Folder, path: str) -> pa.Table:
    """One Parquet file, with the schema that it was written with."""
    # From memory: a reader that still held the file when the interpreter ended has been seen to abort it.
    return pq.ParquetFile(pa.BufferReader(corpus.read(path))).read()


class UnreadableLogError(Exception):
    """A Parquet file whose footer may be whole and whose rows are not. The message names the file."""


def read_untrusted(corpus: Folder, path: str) -> pa.Table:
    """As `read_parquet`, of a file that nobody has vouched for: pages and texts are looked at too. Raises UnreadableLogError."""
    try:
        table = read_parquet(corpus, path)
        table.validate(full=True)
    except (OSError, StorageError, pa.ArrowException) as error:
        told = " ".join(str(error).split())
        raise UnreadableLogError(f"{path}: not a Parquet file that can be read: {told}") from None
    return table
