"""WARC, ARC and WET files, packed in any way, and the WARCs inside a WACZ.

Documents are response, resource and conversion records and ARC documents. See docs/readers.md for what each damaged thing gives.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import BinaryIO, ClassVar, cast

from stages.readers.archive import DOCUMENT_TYPES, OTHER_TYPES, ArchiveRecord, archive_records
from stages.readers.http import MAX_HEADER_BYTES, TooLarge, Undecodable, decode_body, parse_response
from stages.readers.media_types import PLAIN, could_be_document, declared_type, document_type, signature
from stages.readers.reader import MAX_LABEL_CHARACTERS, Reader, ReaderOptions, Record, plain_text

ZIP_MAGIC = b"PK\x03\x04"
NEWLINE = b"\n"
WARC_IN_ZIP = re.compile(r".*\.w?arc(\.gz|\.zst|\.lz4)?", re.IGNORECASE | re.DOTALL)
FOREIGN_MAGIC = {b"BZh": "bzip2", b"\xfd7zX": "xz", b"PK\x03\x04": "zip", b"Rar!": "rar", b"7z\xbc\xaf": "7z"}


class WarcOptions(ReaderOptions):
    """Options of the format `warc`."""


class Warc(Reader[WarcOptions]):
    """Records of web archives; a position is the byte offset of the record (see `stages.readers.archive`)."""

    name = "warc"
    version = 1
    libraries = ("brotli", "lz4", "zstandard")
    default_files = (
        *(f"*.{kind}{packing}" for kind in ("warc", "arc", "wet") for packing in ("", ".gz", ".zst", ".lz4")),
        "*.wacz",
    )
    removal_rules: ClassVar[dict[str, str]] = {
        "status": "an HTTP status other than 2xx; value: the status",
        "media_type": "neither HTML, XHTML nor plain text; detail: the type, as declared or by the signature of the bytes",
        "empty_payload": "no bytes but blanks",
        "undecodable": "a transfer or content coding that the bytes do not bear out",
        "too_large": "more than max_payload_bytes, decoded; value: the bytes where they are known, else the limit",
        "bad_http": "an HTTP record without a status line",
        "missing_url": "a document without a target URI",
        "segmented": "the first segment of a record that goes on in continuation records, which are not put together",
        "truncated": "a record cut short; value: bytes present",
        "damaged": "a place in the file that cannot be read, or a record of wrong length; reading goes on behind it",
        "unreadable": "nothing in the whole file can be read",
    }
    options_type = WarcOptions

    def records(self, stream: BinaryIO, file: str, skipped: Counter[str], row_groups: range | None) -> Iterator[Record]:
        stream.seek(0)
        magic = stream.read(4)
        if magic == ZIP_MAGIC:
            yield from self._wacz(stream, skipped)
            return
        yield from self._archive(stream, skipped, magic)

    def _archive(self, stream: BinaryIO, skipped: Counter[str], magic: bytes) -> Iterator[Record]:
        """Regions in front of the first record are held back: if none comes, the whole file is unreadable."""
        regions: list[Record] = []
        readable = False
        for item in archive_records(stream, self.options.max_payload_bytes + MAX_HEADER_BYTES):
            record = self._record(item, skipped)
            if item.kind == "region" and not readable and not item.type:
                if not regions:
                    regions.append(cast(Record, record))
                continue
            readable = True
            yield from regions
            regions = []
            if record is not None:
                yield record
        if regions:
            packing = FOREIGN_MAGIC.get(magic) or FOREIGN_MAGIC.get(magic[:3])
            found = f"the file is packed with {packing}: unpack it" if packing else f"no record found; {regions[0].detail}"
            yield Record(0).lose("unreadable", found)

    def _record(self, item: ArchiveRecord, skipped: Counter[str]) -> Record | None:
        """The row of one item, or None when it is no document and counted."""
        record = Record(item.position, item.url, item.date)
        if item.kind == "region" or (item.fault is not None and item.type not in OTHER_TYPES):
            return record.lose(item.fault or "damaged", item.detail, item.value)
        if item.fault == "damaged":
            return record.lose(item.fault, f"a {item.type} record: {item.detail}", item.value)
        if item.type not in DOCUMENT_TYPES:
            skipped[item.type if item.type in (*OTHER_TYPES, "filedesc") else "unknown type"] += 1
            return None
        declared, charset = declared_type(item.content_type)
        if declared == "text/dns" or (item.url or "").startswith("dns:"):
            skipped["dns"] += 1
            return None
        if item.url is None:
            return record.lose("missing_url", f"a {item.type} record without a target URI")
        if "warc-segment-number" in item.fields:
            return record.lose("segmented", f"segment {plain_text(item.fields['warc-segment-number'], 20)}")
        return self._document(item, record, declared, charset)

    def _document(self, item: ArchiveRecord, record: Record, declared: str, charset: str | None) -> Record:
        body, codings = item.block, []
        is_http = declared == "application/http" or item.type == "response"
        response = parse_response(item.block) if is_http else None
        if response is not None:
            http_type, charset = declared_type(response.content_type)
            declared = http_type or (declared if item.kind == "arc" else "")
            body, codings = response.body, response.codings
        elif not item.block.strip():
            return record.lose("empty_payload", f"a {item.type} record without content", 0.0)
        elif declared == "application/http":
            return record.lose("bad_http", f"starts with {plain_text(item.block[:80].partition(NEWLINE)[0])!r}")
        record.media_type = plain_text(declared, MAX_LABEL_CHARACTERS) or None
        record.charset = plain_text(charset, MAX_LABEL_CHARACTERS) or None if charset else None
        if response is not None and not 200 <= response.status <= 299:
            return record.lose("status", f"HTTP status {response.status}", float(response.status))
        if item.type == "conversion" and declared in ("", PLAIN):
            # WET: Common Crawl writes UTF-8 and says nothing.
            declared, record.charset = PLAIN, record.charset or "utf-8"
        if not could_be_document(declared):
            return record.lose("media_type", record.media_type)
        if item.got > len(item.block):
            return record.lose("too_large", "bytes of the record's block", float(item.got))
        try:
            payload = decode_body(body, codings, self.options.max_payload_bytes)
        except Undecodable as error:
            return record.lose("undecodable", plain_text(str(error)))
        except TooLarge:
            size = len(body) if not codings else self.options.max_payload_bytes
            return record.lose("too_large", "decoded" if codings else "bytes of payload", float(size))
        if not payload.strip():
            return record.lose("empty_payload", None, float(len(payload)))
        media_type = document_type(declared, payload)
        if media_type is None:
            found = signature(payload)
            name = record.media_type or "none declared"
            return record.lose("media_type", f"{name}, but the bytes are {found}" if found else name)
        record.media_type, record.payload = media_type, payload
        return record

    def _wacz(self, stream: BinaryIO, skipped: Counter[str]) -> Iterator[Record]:
        """The WARCs of a WACZ in the order of their place; positions are offsets in the WACZ."""
        try:
            with zipfile.ZipFile(stream) as archive:
                entries = [entry for entry in archive.infolist() if WARC_IN_ZIP.fullmatch(entry.filename)]
        except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError, IndexError) as error:
            yield Record(0).lose("unreadable", f"a zip whose directory cannot be read: {plain_text(str(error))}")
            return
        if not entries:
            yield Record(0).lose("unreadable", "a zip without a WARC in it")
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            name = plain_text(entry.filename)
            stream.seek(entry.header_offset)
            header = stream.read(30)
            start = entry.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                yield Record(entry.header_offset).lose("unreadable", f"{name} is compressed within the zip: unpack it")
            elif header[:4] != ZIP_MAGIC:
                yield Record(entry.header_offset).lose("unreadable", f"{name} does not start where the zip says")
            else:
                found = False
                before = skipped.total()
                section = cast(BinaryIO, _Section(stream, start, entry.compress_size))
                for record in self._archive(section, skipped, b""):
                    found = True
                    record.position += start
                    yield record
                if not found and skipped.total() == before:
                    yield Record(start).lose("unreadable", f"{name} holds no record")


class _Section(RawIOBase):
    """A stretch of a file as a file of its own."""

    def __init__(self, stream: BinaryIO, start: int, size: int) -> None:
        self.stream, self.start, self.length, self.at = stream, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        self.at = offset + {SEEK_SET: 0, SEEK_CUR: self.at, SEEK_END: self.length}[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        left = max(self.length - self.at, 0)
        self.stream.seek(self.start + self.at)
        data = self.stream.read(left if size < 0 else min(size, left))
        self.at += len(data)
        return data
