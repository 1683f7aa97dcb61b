"""Parquet: one document a row; a position is the row's index in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from stages.readers.jsonl import finish
from stages.readers.reader import (
    BATCH_BYTES,
    BATCH_ROWS,
    MAX_URL_CHARACTERS,
    Reader,
    ReaderConfigurationError,
    ReaderOptions,
    Record,
    plain_text,
)

SPLIT_BYTES = 64 << 20
"""Row groups are put together to parts of about this much, compressed."""
READ_BUFFER_BYTES = 1 << 20


class ParquetOptions(ReaderOptions):
    """Options of the format `parquet`."""

    text_column: str = Field("text", description="column that holds the text: string, or binary of UTF-8")
    html_column: str | None = Field(None, description="column that holds HTML instead of text; then pages are read, not texts")
    url_column: str | None = Field("url", description="column that holds the URL, where there is one")
    date_column: str | None = Field(None, description="column that holds the date, where there is one")


class Parquet(Reader[ParquetOptions]):
    """One document a row."""

    name = "parquet"
    version = 1
    libraries = ("pyarrow",)
    default_files = ("*.parquet",)
    removal_rules: ClassVar[dict[str, str]] = {
        "bad_utf8": "the text is not UTF-8; value: offset of the first bad byte",
        "missing_text": "the text is null",
        "empty_text": "the text has no characters but blanks",
        "too_large": "the text has more than max_payload_bytes; value: its bytes",
        "damaged": "a row group cannot be read from this row on; value: the rows lost",
        "unreadable": "nothing in the whole file can be read",
    }
    options_type = ParquetOptions

    @property
    def yields_pages(self) -> bool:
        return self.options.html_column is not None

    def records(self, stream: BinaryIO, file: str, skipped: Counter[str], row_groups: range | None) -> Iterator[Record]:
        watched = _Watched(stream)
        parquet = watched.attempt(
            lambda: pq.ParquetFile(pa.PythonFile(watched, "r"), pre_buffer=False, buffer_size=READ_BUFFER_BYTES)
        )
        if isinstance(parquet, Exception):
            if row_groups is None:
                yield Record(0).lose("unreadable", f"no Parquet file: {_reason(parquet)}")
                return
            raise ReaderConfigurationError(f"{file}: row groups {row_groups} of a file that is no Parquet: {_reason(parquet)}")
        columns = self._columns(parquet, file)
        metadata = parquet.metadata
        wanted = row_groups if row_groups is not None else range(metadata.num_row_groups)
        if wanted and (wanted[0] < 0 or wanted[-1] >= metadata.num_row_groups):
            raise ReaderConfigurationError(f"{file}: row groups {row_groups} of {metadata.num_row_groups}")
        starts = [0]
        for group in range(metadata.num_row_groups):
            starts.append(starts[-1] + metadata.row_group(group).num_rows)
        for group in wanted:
            position = starts[group]
            rows = _batch_rows(metadata.row_group(group), columns[0])
            batches = parquet.iter_batches(rows, [group], columns, use_threads=False)
            while position <= starts[group + 1]:
                batch = watched.attempt(lambda batches=batches: next(batches, None))
                if batch is None:
                    break
                if isinstance(batch, Exception):
                    lost = starts[group + 1] - position
                    yield Record(position).lose("damaged", f"row group {group}: {_reason(batch)}", float(lost))
                    break
                yield from self._rows(batch, position)
                position += batch.num_rows

    def splits(self, stream: BinaryIO) -> list[range] | None:
        """Ranges of row groups of about SPLIT_BYTES; None for a file of one such range, or that cannot be read."""
        watched = _Watched(stream)
        metadata = watched.attempt(lambda: pq.read_metadata(pa.PythonFile(watched, "r")))
        if isinstance(metadata, Exception):
            return None
        ranges, start, size = [], 0, 0
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            size += sum(max(row_group.column(c).total_compressed_size, 0) for c in range(row_group.num_columns))
            if size >= SPLIT_BYTES:
                ranges.append(range(start, group + 1))
                start, size = group + 1, 0
        if start < metadata.num_row_groups:
            ranges.append(range(start, metadata.num_row_groups))
        return ranges if len(ranges) > 1 else None

    def _columns(self, parquet: pq.ParquetFile, file: str) -> list[str]:
        """The columns to read, the text's first; ReaderConfigurationError when it is missing or holds no text."""
        options = self.options
        schema = parquet.schema_arrow
        text = options.html_column or options.text_column
        if schema.names.count(text) != 1:
            known = ", ".join(schema.names) or "none"
            raise ReaderConfigurationError(f"{file}: there is no column {text!r}; its columns are {known}")
        type_ = schema.field(text).type
        if pa.types.is_dictionary(type_):
            type_ = type_.value_type
        if not (_is_text(type_) or pa.types.is_null(type_)):
            raise ReaderConfigurationError(f"{file}: column {text!r} is {type_}, not string or binary")
        others = [c for c in (options.url_column, options.date_column) if c and c != text and schema.names.count(c) == 1]
        return [text, *dict.fromkeys(others)]

    def _rows(self, batch: pa.RecordBatch, position: int) -> Iterator[Record]:
        options = self.options
        names = batch.schema.names
        urls, dates = (
            _values(batch, name) if name in names else [None] * batch.num_rows
            for name in (options.url_column or "", options.date_column or "")
        )
        is_html = options.html_column is not None
        # Parquet does not check its strings: as bytes, a bad one is one row's loss.
        texts = _values(batch, names[0])
        for index, (text, url, when) in enumerate(zip(texts, urls, dates, strict=True)):
            record = Record(position + index, _label(url), _label(when))
            if text is None:
                yield record.lose("missing_text", f"column {plain_text(names[0])!r} is null")
                continue
            try:
                yield finish(record, text.decode(), is_html, options.max_payload_bytes)
            except UnicodeDecodeError as error:
                yield record.lose("bad_utf8", f"byte 0x{text[error.start]:02x} at {error.start}", float(error.start))


class _Watched:
    """A file for Arrow to read that remembers the stream's own errors: Arrow raises OSError for bad content too, and only
    trouble of the machine may propagate."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def attempt(self, action: Any) -> Any:
        """What `action` returns, or the exception that the file's content made it raise."""
        try:
            return action()
        except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
            if self.error is not None:
                raise self.error from None
            if isinstance(error, pa.ArrowMemoryError):
                raise
            return error

    def read(self, size: int = -1) -> bytes:
        return self._watch(lambda: self.stream.read(size))  # type: ignore[no-any-return]

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._watch(lambda: self.stream.seek(offset, whence))  # type: ignore[no-any-return]

    def tell(self) -> int:
        return self._watch(self.stream.tell)  # type: ignore[no-any-return]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """The stream belongs to the caller."""

    def _watch(self, action: Any) -> Any:
        try:
            return action()
        except OSError as error:
            self.error = error
            raise


def _is_text(type_: pa.DataType) -> bool:
    tests = ("is_string", "is_large_string", "is_binary", "is_large_binary", "is_string_view", "is_binary_view")
    return any(getattr(pa.types, test)(type_) for test in tests if hasattr(pa.types, test))


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch[name]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_temporal(column.type):
        # Python's times end at the year 9999 and at microseconds, and know fewer time zones: Arrow writes them itself.
        try:
            column = column.cast(pa.large_string()).cast(pa.large_binary())
        except pa.ArrowException:
            return [None] * len(column)
    return column.to_pylist()  # type: ignore[no-any-return]


def _batch_rows(row_group: Any, column: str) -> int:
    """Rows to read at once so that a batch stays near BATCH_BYTES, by the row group's mean."""
    sizes = [row_group.column(c) for c in range(row_group.num_columns)]
    text_bytes = sum(c.total_uncompressed_size for c in sizes if c.path_in_schema.split(".")[0] == column)
    mean = max(text_bytes, 1) / max(row_group.num_rows, 1)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / 2 / max(mean, 1))))


def _label(value: Any) -> str | None:
    if isinstance(value, bytes):
        return plain_text(value, MAX_URL_CHARACTERS) or None
    if isinstance(value, datetime | date):
        return value.isoformat()
    return plain_text(str(value), MAX_URL_CHARACTERS) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _reason(error: Exception) -> str:
    return plain_text(str(error).partition("\n")[0])
