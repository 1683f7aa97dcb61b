"""JSON Lines, plain or packed with gzip, zstd or lz4 (told by the first bytes): one document a line.

Lines end at LF and nowhere else, so a raw U+2028 or U+0085 within a string is part of it. A position is the line's number from 0,
blank and bad lines counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from pydantic import Field

from stages.readers.media_types import HTML
from stages.readers.packing import Damaged, Unpacked
from stages.readers.reader import MAX_URL_CHARACTERS, Reader, ReaderOptions, Record, plain_text

UTF8_MARK = b"\xef\xbb\xbf"
LINE_OVERHEAD = 1 << 20
"""Room for the other fields of a line and for escapes, beside max_payload_bytes, before a line is given up unread."""


class JsonLinesOptions(ReaderOptions):
    """Options of the format `jsonl`; fields are top-level keys of each object."""

    text_field: str = Field("text", min_length=1, description="field that holds the text")
    html_field: str | None = Field(
        None, min_length=1, description="field that holds HTML instead of text; then pages are read, not texts"
    )
    url_field: str | None = Field("url", description="field that holds the URL, where there is one")
    date_field: str | None = Field(None, description="field that holds the date, where there is one")


class JsonLines(Reader[JsonLinesOptions]):
    """One document a line."""

    name = "jsonl"
    version = 1
    libraries = ("lz4", "zstandard")
    default_files = (
        *(f"*.{kind}{packing}" for kind in ("jsonl", "ndjson") for packing in ("", ".gz", ".zst", ".lz4")),
        "*.json.gz",
        "*.json.zst",
    )
    removal_rules: ClassVar[dict[str, str]] = {
        "bad_json": "the line is no JSON object",
        "bad_utf8": "the line is not UTF-8; value: offset of the first bad byte",
        "lone_surrogate": "the text has an escape of half a character, so that it is no Unicode text",
        "missing_text": "the field of the text is missing, null, or no string",
        "empty_text": "the text has no characters but blanks",
        "too_large": "the text, or a line that cannot be held, has more than max_payload_bytes; value: its bytes",
        "damaged": "the packed file cannot be unpacked from this line on",
        "unreadable": "nothing in the whole file can be read",
    }
    options_type = JsonLinesOptions

    @property
    def yields_pages(self) -> bool:
        return self.options.html_field is not None

    def records(self, stream: BinaryIO, file: str, skipped: Counter[str], row_groups: range | None) -> Iterator[Record]:
        lines = _Lines(Unpacked(stream), self.options.max_payload_bytes + LINE_OVERHEAD)
        try:
            for number, (line, size) in enumerate(lines):
                if size > len(line):
                    yield Record(number).lose("too_large", "bytes of the line", float(size))
                elif not line.strip():
                    skipped["blank"] += 1
                else:
                    yield self._record(number, line)
        except Damaged as fault:
            rule = "damaged" if lines.number else "unreadable"
            yield Record(lines.number).lose(rule, f"{fault.detail}, in the member at byte {fault.offset}")

    def _record(self, number: int, line: bytes) -> Record:
        record = Record(number)
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return record.lose("bad_utf8", f"byte 0x{line[error.start]:02x} at {error.start}", float(error.start))
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else plain_text(str(error))
            return record.lose("bad_json", reason)
        if not isinstance(value, dict):
            return record.lose("bad_json", f"{_kind(value)}, not an object")
        options = self.options
        record.url = _label(value.get(options.url_field)) if options.url_field else None
        record.date = _label(value.get(options.date_field)) if options.date_field else None
        name = options.html_field or options.text_field
        text = value.get(name)
        if not isinstance(text, str):
            found = _kind(text) if name in value else "missing"
            return record.lose("missing_text", f"field {plain_text(name)!r} is {found}")
        return finish(record, text, options.html_field is not None, options.max_payload_bytes)


def finish(record: Record, text: str, is_html: bool, limit: int) -> Record:
    """`record` with its text, or with its page when it is HTML, or as the loss that it is."""
    if not text.strip():
        return record.lose("empty_text", None, 0.0)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        return record.lose("lone_surrogate", f"U+{ord(text[error.start]):04X} at character {error.start}", float(error.start))
    if len(encoded) > limit:
        return record.lose("too_large", "bytes of text", float(len(encoded)))
    if is_html:
        record.media_type, record.charset, record.payload = HTML, "utf-8", encoded
    else:
        record.text = text
    return record


class _Lines:
    """The lines of a file without their LF, as (bytes, size); a line above `limit` comes as b"" with its size."""

    def __init__(self, source: Unpacked, limit: int) -> None:
        self.source, self.limit = source, limit
        self.number = 0
        """Lines that were given whole."""

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        source = self.source
        start = True
        while True:
            parts: list[bytes] = []
            size = 0
            ended = False
            while not ended:
                if not source.fill(1):
                    if not source.next_member():
                        break
                    continue
                end = source.data.find(b"\n", source.at)
                ended = end >= 0
                piece = source.data[source.at : end if ended else len(source.data)]
                source.at += len(piece) + ended
                if start:
                    piece, start = piece.removeprefix(UTF8_MARK), False
                size += len(piece)
                if size <= self.limit:
                    parts.append(piece)
                else:
                    parts.clear()
            if not ended and not size:
                return
            line = b"".join(parts) if size <= self.limit else b""
            yield line, size
            self.number += 1
            if not ended:
                return


def _kind(value: Any) -> str:
    for type_, name in ((bool, "a boolean"), (str, "a string"), (list, "an array"), (dict, "an object")):
        if isinstance(value, type_):
            return name
    return "null" if value is None else "a number"


def _label(value: Any) -> str | None:
    """A URL or date as text; numbers as JSON writes them."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return plain_text(str(value), MAX_URL_CHARACTERS) or None
    except ValueError:  # an integer of more digits than Python prints
        return None
