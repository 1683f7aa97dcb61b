"""What a reader is: it yields every document of one file exactly once, as a page, a text, or a loss with its reason.

Promised for every byte string that a file can hold: no exception (OSError from the stream excepted: that is trouble of the
machine), no silence (at least one row, or one record counted in `skipped`), positions strictly increasing, and memory bounded by
a batch and one record, not by the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, Generic, TypeVar

import pyarrow as pa
from pydantic import Field

from manifests.schemas import RECORDS
from stages.stage import Options

BATCH_ROWS = 256
BATCH_BYTES = 16 << 20
"""A batch is closed before it grows beyond this, so that only a record larger than it makes a larger batch."""
MAX_PAYLOAD_BYTES = 32 << 20
MAX_DETAIL_CHARACTERS = 200
MAX_LABEL_CHARACTERS = 100
MAX_URL_CHARACTERS = 8192


class ReaderOptions(Options):
    """Options that every reader has."""

    max_payload_bytes: int = Field(
        MAX_PAYLOAD_BYTES, gt=0, le=1 << 30, description="decoded bytes of one document above which it is removed as too_large"
    )


OptionsType = TypeVar("OptionsType", bound=ReaderOptions)


class ReaderConfigurationError(ValueError):
    """The recipe asks for something that the file does not have, such as a column; not the fault of any document."""


@dataclass(slots=True)
class Record:
    """One row of `manifests.schemas.RECORDS`, without component and file."""

    position: int
    url: str | None = None
    date: str | None = None
    media_type: str | None = None
    charset: str | None = None
    payload: bytes | None = None
    text: str | None = None
    rule: str | None = None
    value: float | None = None
    detail: str | None = None

    def lose(self, rule: str, detail: str | None = None, value: float | None = None) -> Record:
        """This record as a loss."""
        self.payload = self.text = None
        self.rule, self.detail, self.value = rule, detail, value
        return self


class Reader(ABC, Generic[OptionsType]):
    """Reads the files of one format. `name` is the recipe's word for it; bump `version` whenever its output can change."""

    name: ClassVar[str]
    version: ClassVar[int]
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version can change the output; their installed versions enter the fingerprint."""
    default_files: ClassVar[tuple[str, ...]]
    """Glob patterns of the file names it takes when the recipe names none."""
    removal_rules: ClassVar[dict[str, str]]
    """Every rule that a loss can carry, with its meaning."""
    options_type: ClassVar[type[ReaderOptions]]
    """The class of its options."""

    def __init__(self, options: OptionsType) -> None:
        self.options = options

    @property
    def yields_pages(self) -> bool:
        """Does it give pages, which need extraction, and not texts alone?"""
        return True

    @abstractmethod
    def records(self, stream: BinaryIO, file: str, skipped: Counter[str], row_groups: range | None) -> Iterator[Record]:
        """The file's records in position order; what is no document is counted in `skipped` by kind."""

    def splits(self, stream: BinaryIO) -> list[range] | None:
        """Ranges that can be read as parts of their own (`row_groups` of `read`), or None: the file is read whole."""
        return None

    def read(
        self,
        stream: BinaryIO,
        component: str,
        file: str,
        skipped: Counter[str],
        row_groups: range | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of RECORDS in position order, of at most 256 rows and about 16 MB.

        `stream` is a seekable binary file, read from its start; `file` its path relative to the component's root. A file that
        holds neither a document nor a record to skip gives one row, `unreadable`, at position 0.
        """
        rows: list[Record] = []
        size, found, last = 0, False, -1
        skipped_before = skipped.total()
        for record in self.records(stream, file, skipped, row_groups):
            found = True
            if record.position <= last:
                record.position = last + 1
            last = record.position
            grown = len(record.payload or b"") + len(record.text or "")
            if rows and (len(rows) == BATCH_ROWS or size + grown > BATCH_BYTES):
                yield _batch(component, file, rows)
                rows, size = [], 0
            rows.append(record)
            size += grown
        if not found and row_groups is None and skipped.total() == skipped_before:
            rows.append(Record(0).lose("unreadable", "the file holds nothing that could be read"))
        if rows:
            yield _batch(component, file, rows)


def plain_text(value: bytes | str, limit: int = MAX_DETAIL_CHARACTERS) -> str:
    """A label, URL or message of unknown origin as one line of valid text, cut to `limit` characters: UTF-8, else Latin-1."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
    else:
        text = value
    if len(text) <= limit and text.isprintable():
        return text.strip()
    text = text[: 4 * limit].encode("utf-8", "replace").decode()
    return "".join(c for c in text if c.isprintable()).strip()[:limit]


def _batch(component: str, file: str, rows: list[Record]) -> pa.RecordBatch:
    columns = {
        "component": pa.array([component] * len(rows), pa.string()),
        "file": pa.array([file] * len(rows), pa.string()),
    }
    for field in RECORDS:
        if field.name not in columns:
            columns[field.name] = pa.array([getattr(row, field.name) for row in rows], field.type)
    return pa.RecordBatch.from_arrays([columns[field.name] for field in RECORDS], schema=RECORDS)
