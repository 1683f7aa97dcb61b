"""Where an export goes, and its record: which corpus, format and options it is of, what was counted, and every file's SHA-256."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manifests.storage import AtomicWriter, Folder, StorageError, Written, sha256_of
from stages.exports.format import ExportError, Tally

RECORD = "export.json"


class File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str
    bytes: int
    sha256: str


class Record(BaseModel):
    """export.json. `components` and `splits` are those that were asked for, None for all."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["corpusmill-export/1"] = "corpusmill-export/1"
    export: str
    version: int
    corpus: str
    corpus_digest: str
    components: list[str] | None
    splits: list[str] | None
    options: dict[str, Any]
    counts: list[dict[str, Any]] = Field(default_factory=list)
    files: list[File] = Field(default_factory=list)

    def asks_for_the_same(self, other: Record) -> bool:
        unasked = {"counts", "files"}
        return self.model_dump(exclude=unasked) == other.model_dump(exclude=unasked)


class Output:
    """A folder to be filled by one export. ExportError when it lies in the corpus."""

    def __init__(self, folder: Folder, corpus: Folder) -> None:
        self.folder = folder
        self.written: list[Written] = []
        mine, theirs = (os.path.realpath(one.root) if one.local else one.root for one in (folder, corpus))
        if folder.fs.protocol == corpus.fs.protocol and (mine == theirs or mine.startswith(f"{theirs.rstrip('/')}/")):
            raise ExportError(f"{folder.url} lies in the corpus, to which nothing is added; name a folder elsewhere")
        if folder.fs.isfile(folder.root):
            raise ExportError(f"{folder.url} is a file, and an export is a folder")

    def finished(self, wanted: Record) -> Record | None:
        """The record of this very export if it is here already and undamaged, None if the folder is empty; else ExportError."""
        names = self.folder.names()
        if not names:
            return None
        if RECORD not in names:
            raise ExportError(
                f"{self.folder.url} is not empty, and holds no finished export ({names[0]} is there): "
                "give another folder, or empty it"
            )
        try:
            found = Record.model_validate(json.loads(self.folder.read(RECORD)))
        except (ValueError, RecursionError, ValidationError):
            raise ExportError(f"{self.folder.url}/{RECORD} is not the record of an export") from None
        if not found.asks_for_the_same(wanted):
            raise ExportError(
                f"{self.folder.url} holds another export ({found.export} of {found.corpus} {found.corpus_digest[:12]}): "
                "give another folder"
            )
        listed = {RECORD, *(file.path for file in found.files)}
        if listed != set(names):
            first = min(listed.symmetric_difference(names))
            what = "is missing" if first in listed else "is not one of its files"
            raise ExportError(f"{self.folder.url} holds this export, but {first} {what}: give another folder")
        for file in found.files:
            with self.folder.open(file.path) as opened:
                sha256, _ = sha256_of(opened)
            if sha256 != file.sha256:
                raise ExportError(f"{self.folder.url} holds this export, but {file.path} was changed: give another folder")
        return found

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[AtomicWriter]:
        with self.folder.writer(name) as out:
            yield out
        self.written.append(out.written)

    def write(self, name: str, data: bytes) -> None:
        with self.writer(name) as out:
            out.write(data)

    def finish(self, record: Record, counts: list[Tally]) -> Record:
        """Writes the record, last of all."""
        files = [File(path=one.path, bytes=one.size, sha256=one.sha256) for one in sorted(self.written, key=lambda one: one.path)]
        record = record.model_copy(update={"counts": [asdict(one) for one in counts], "files": files})
        self.folder.write(RECORD, json_bytes(record.model_dump(mode="json")))
        return record

    def discard(self) -> None:
        """Deletes what was written, as far as it can be."""
        for one in self.written:
            with contextlib.suppress(OSError, StorageError):
                self.folder.delete(one.path)
        self.written = []


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
