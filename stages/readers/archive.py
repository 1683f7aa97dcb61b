"""WARC and ARC files as their records, sound or damaged, in the order of the file.

`archive_records` frames records itself, over gzip, zstd, lz4 or nothing, so that a record has the same position whatever it is
packed in and whatever stands before it. What is cut, misframed or cannot be unpacked becomes an item with a `fault`, and reading
goes on at the next member or the next record header.

Positions. In a plain file: the offset of the record's header. In a file of one gzip member or frame: its unpacked offset. In a
file of a member for each record: the offset of the member; a second record in the same member, against the standards, has that
offset plus one, a third plus two. Which of the last two holds is told by the second record: it starts a member, or it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from stages.readers.packing import Damaged, Unpacked
from stages.readers.reader import plain_text

MAX_HEADER_BYTES = 1 << 20
"""A longer header is damage. Crawlers put JSON into WARC headers, some of it long."""
HEAD_BYTES = 4096
"""Looked at to tell whether a record starts here; ARC's line holds a whole URL."""
MAX_LINE_ENDS = 64
MAX_FOLDED_CHARACTERS = 8192
SEARCH_BYTES = 256 << 10
DOCUMENT_TYPES = ("response", "resource", "conversion")
OTHER_TYPES = ("warcinfo", "request", "metadata", "revisit", "continuation")

_WARC_HEAD = re.compile(rb"WARC/\d", re.IGNORECASE)
_WARC_VERSION = re.compile(rb"WARC/\d+\.\d+\s*", re.IGNORECASE)
_WARC_STRICT = re.compile(rb"WARC/\d+\.\d+ ?\r{0,2}\n(?:WARC-|Content-)[A-Za-z-]+[ \t]*:", re.IGNORECASE)
_ARC_HEAD = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9.+-]*:[^\n]*?) (?P<ip>\S+) (?P<date>\d{4,17}|null|-) "
    rb"(?P<rest>[^\n]*?) ?(?P<length>-?\d{1,18})\r*(?:\n|\Z)"
)
_ARC_STRICT = re.compile(
    rb"(?:(?<=\n)|\A)[A-Za-z][A-Za-z0-9.+-]*:[^\n]{1,4000}? [0-9A-Fa-f.:]{3,39} \d{12,14} [^\n]{0,200}? ?\d{1,18}\r*\n"
)
_FILEDESC = b"filedesc:"
_BLANK = b"\r\n\0 \t"
_FOLD = (" ", "\t")
_BLANK_LINE = (b"\n\r\n", b"\n\n", b"\n\r\r\n")


@dataclass(slots=True)
class ArchiveRecord:
    """One record, or (kind "region") a stretch of the file that belongs to none.

    block: its content block, cut to the limit that was asked for; length: as the header says; got: as it is in the file.
    fault: the rule by which it is lost, with detail and value, or None.
    """

    position: int
    kind: Literal["warc", "arc", "region"]
    type: str = ""
    url: str | None = None
    date: str | None = None
    content_type: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    block: bytes = b""
    length: int = -1
    got: int = 0
    fault: str | None = None
    detail: str | None = None
    value: float | None = None

    def fail(self, rule: str, detail: str, value: float | None = None) -> None:
        if self.fault is None:
            self.fault, self.detail, self.value = rule, detail, value


def archive_records(stream: BinaryIO, limit: int) -> Iterator[ArchiveRecord]:
    """Every record and every damaged region of a file, in order. At most `limit` bytes of a block are held."""
    return _Archive(stream, limit).items()


class _Archive:
    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self.source = Unpacked(stream)
        self.limit = limit
        self.mode: Literal["", "member", "whole"] = "" if self.source.packed else "whole"
        self.kind: Literal["", "warc", "arc"] = ""
        self.misframed = False
        self.item_of_member = -1
        self.items_in_member = 0

    def items(self) -> Iterator[ArchiveRecord]:
        damage = self._find_beginning()
        if damage is not None:
            yield damage
        while True:
            try:
                if not self._go_to_next():
                    return
                start = self._here()
                if not self._at_record():
                    skipped = self._skip_to_record()
                    self._decide_mode()
                    region = ArchiveRecord(self._placed(start), "region", got=skipped)
                    region.fail("damaged", f"{skipped} bytes that belong to no record", float(skipped))
                    yield region
                    continue
            except Damaged as fault:
                yield from self._after(fault, ArchiveRecord(0, "region"), (fault.offset, self.source.offset))
                continue
            yield from self._record(start)

    # Where an item starts, in both ways to count; `_placed` chooses once the second record has told which one holds.

    def _here(self) -> tuple[int, int]:
        return self.source.member, self.source.offset

    def _placed(self, start: tuple[int, int]) -> int:
        member, offset = start
        if self.mode == "whole":
            return offset
        if member != self.item_of_member:
            self.item_of_member, self.items_in_member = member, 0
        self.items_in_member += 1
        return member + self.items_in_member - 1

    def _decide_mode(self) -> None:
        """Behind the first record, with the cursor on what follows: does it start a member?"""
        if self.mode:
            return
        if self.source.joined:
            self.mode = "whole"
        elif self.source.fill(1) and self._at_record():
            self.mode = "member" if self.source.fresh else "whole"

    def _find_beginning(self) -> ArchiveRecord | None:
        """A file that starts with neither a record nor a known magic number may have lost its first bytes: what is found first
        decides what it is, a record in the plain bytes or a gzip member that holds one."""
        source = self.source
        if source.packed:
            return None
        source.fill(HEAD_BYTES)
        source.at = len(source.data) - len(source.data.lstrip(_BLANK))
        if source.at == len(source.data) or self._at_record():
            return None
        self._skip_to_record()
        record_at = source.offset if source.fill(1) else None
        source.rewind(b"", 0)
        if source.salvage(0, self._at_record, record_at):
            self.mode = "member"
            region = ArchiveRecord(0, "region", got=source.member)
            region.fail("damaged", f"{source.member} bytes that start no gzip member, zstd or lz4 frame", float(source.member))
            return region
        return None

    def _go_to_next(self) -> bool:
        """Passes over blank bytes and ended members; False at the end of the file."""
        source = self.source
        while True:
            while source.fill(1):
                if source.data[source.at] not in _BLANK:
                    return True
                rest = source.data[source.at :]
                source.at += len(rest) - len(rest.lstrip(_BLANK))
            if not source.next_member():
                return False

    def _at_record(self) -> bool:
        """Does a record start at the cursor? Records of the other kind than the file's first must look flawless."""
        source = self.source
        if source.fill(8) and self.kind != "arc" and _WARC_HEAD.match(source.data, source.at):
            return True
        source.fill(HEAD_BYTES)
        head = source.data[source.at : source.at + HEAD_BYTES]
        if head[: len(_FILEDESC)].lower() == _FILEDESC:
            return True
        if self.kind == "arc":
            return bool(_ARC_HEAD.match(head) or _WARC_STRICT.match(head))
        return bool(_ARC_STRICT.match(head))

    def _skip_to_record(self) -> int:
        """Moves the cursor to the next record header, here or later, or to the end of the file; bytes passed over."""
        source = self.source
        start = source.offset
        pattern = _ARC_STRICT if self.kind == "arc" else _WARC_STRICT
        while True:
            available = source.fill(SEARCH_BYTES)
            found = pattern.search(source.data, source.at)
            if found:
                source.at = found.start()
                return source.offset - start
            if available >= SEARCH_BYTES:
                source.at += available - 2 * HEAD_BYTES
                continue
            source.at += available
            if not source.next_member() or self._at_record():
                return source.offset - start

    def _record(self, start: tuple[int, int]) -> Iterator[ArchiveRecord]:
        source = self.source
        record = ArchiveRecord(0, "region")
        block_start = source.offset
        framed = complete = False
        last_member = source.member
        try:
            is_warc = bool(_WARC_HEAD.match(source.data, source.at))
            record = self._warc_header() if is_warc else self._arc_header()
            self.kind = self.kind or ("warc" if is_warc else "arc")
            block_start = source.offset
            if record.length >= 0:
                record.block, record.got = self._block(record.length)
            complete = record.length >= 0 and record.got == record.length
            last_member = source.member if complete else last_member
            framed = True
            self._close(record, block_start)
            self._decide_mode()
        except Damaged as fault:
            elsewhere = framed and fault.offset > last_member
            if elsewhere or (complete and self.mode == "whole"):
                if elsewhere and not self.mode:
                    self.mode = "whole" if source.joined else "member"
                record.position = self._placed(start)
                yield record
                yield from self._after(fault, ArchiveRecord(0, "region"), (fault.offset, source.offset))
            else:
                record.got = source.offset - block_start if record.length >= 0 else 0
                yield from self._after(fault, record, start)
            return
        record.position = self._placed(start)
        yield record

    def _after(self, fault: Damaged, item: ArchiveRecord, start: tuple[int, int]) -> Iterator[ArchiveRecord]:
        """The row of a damaged place, then on to the next sound record behind it."""
        lengths = f"{item.got} of {item.length} bytes: " if item.length >= 0 else ""
        item.kind, item.block, item.fault = "region", b"", None
        item.fail("truncated" if fault.ended else "damaged", lengths + fault.detail, float(item.got) if lengths else None)
        item.position = self._placed(start)
        yield item
        while True:
            try:
                if not self.source.salvage(fault.offset, self._at_record if self.mode == "member" else _anything):
                    self.source.end()
                    return
                if self._at_record():
                    self.mode = self.mode or "member"
                else:
                    self.mode = self.mode or "whole"
                    self._skip_to_record()
                return
            except Damaged as another:
                fault = another

    def _header_bytes(self) -> bytes | None:
        """The lines up to a blank one, taken; None when the header ends before that or is too long."""
        source = self.source
        wanted = 1
        while True:
            available = source.fill(wanted)
            end = _header_end(source.data, source.at, source.at + min(available, MAX_HEADER_BYTES))
            if end >= 0:
                head = source.data[source.at : end]
                source.at = end
                return head
            if available > MAX_HEADER_BYTES:
                return None
            if available < wanted and not source.join(self._at_record):
                return None
            wanted = source.fill(1) + 1

    def _warc_header(self) -> ArchiveRecord:
        record = ArchiveRecord(0, "warc")
        head = self._header_bytes()
        if head is None:
            if self.source.fill(1) > MAX_HEADER_BYTES:
                self.source.at += len(b"WARC/")
                record.fail("damaged", f"the record's header is longer than {MAX_HEADER_BYTES} bytes")
            else:
                record.fail("truncated", "the record ends inside its header")
            return record
        if (inside := _record_inside(head)) > 0:
            self.source.at -= len(head) - inside
            record.fail("damaged", "its header breaks off, and another record begins", float(inside))
            return record
        version, _, rest = head.partition(b"\n")
        fields = _fields(rest)
        record.fields = fields
        record.type = fields.get("warc-type", "").lower()
        record.url = _url(fields.get("warc-target-uri"))
        record.date = _iso_date(fields.get("warc-date", ""))
        record.content_type = fields.get("content-type", "")
        length = fields.get("content-length", "")
        if length.isascii() and length.isdigit() and len(length) < 19:
            record.length = int(length)
        elif record.type not in OTHER_TYPES:
            record.fail("damaged", f"the record has no usable Content-Length ({plain_text(length, 30)!r})")
        if not _WARC_VERSION.fullmatch(version.rstrip(b"\r")):
            record.fail("damaged", f"{plain_text(version, 30)!r} is no WARC version")
        elif not record.type:
            record.fail("damaged", "the record has no WARC-Type")
        return record

    def _arc_header(self) -> ArchiveRecord:
        source = self.source
        record = ArchiveRecord(0, "arc", "response")
        wanted = 1
        while (end := source.data.find(b"\n", source.at)) < 0:
            available = source.fill(wanted)
            if available < wanted or available > MAX_HEADER_BYTES:
                break
            wanted = available + 1
        line = source.data[source.at : end + 1] if end >= 0 else source.data[source.at :]
        source.at += len(line)
        if line[: len(_FILEDESC)].lower() == _FILEDESC:
            record.type = "filedesc"
        parsed = _ARC_HEAD.match(line)
        if parsed is None:
            if record.type != "filedesc":
                record.fail("truncated", "the record ends inside its header")
            return record
        record.url = _url(plain_text(parsed["url"], 8192))
        record.date = _iso_date(parsed["date"].decode())
        # Version 2 has five more words behind the type: result code, checksum, location, offset, file name.
        rest = plain_text(parsed["rest"], HEAD_BYTES).split(" ")
        if len(rest) >= 6 and re.fullmatch(r"\d{3}|-", rest[-5]):
            rest = rest[:-5]
        record.content_type = " ".join(rest)
        length = int(parsed["length"])
        if length < 0:
            record.fail("damaged", f"the record's length is said to be {length}")
        else:
            record.length = length
        return record

    def _block(self, length: int) -> tuple[bytes, int]:
        if not self.source.packed:
            start, size = self.source.offset, self.source.raw.size()
            if start + length > size or (self.misframed and not self._ends_well(start + length)):
                # Not read: what counts of a block that ends in the wrong place is where the next record starts.
                self.source.rewind(b"", min(start + length, size))
                return b"", min(length, size - start)
        block, got = self.source.take(length, self.limit)
        if got == length:
            return block, got
        parts = [block]
        kept = len(block)
        while got < length and self.source.join(self._at_record):
            block, more = self.source.take(length - got, self.limit - kept)
            parts.append(block)
            kept += len(block)
            got += more
        return b"".join(parts), got

    def _ends_well(self, end: int) -> bool:
        """In a plain file: do line ends, a record or nothing follow `end`?"""
        source = self.source
        start = source.offset
        source.rewind(b"", end)
        line_ends = self._pass_line_ends()
        well = line_ends.count(b"\n") >= 2 or not source.fill(1) or self._at_record()
        source.rewind(b"", start)
        return well

    def _close(self, record: ArchiveRecord, block_start: int) -> None:
        """Checks that the record ends where it says, and moves the cursor to what follows it.

        A record whose end is followed neither by the end of the file or member, nor by blank lines (ARC: a line end), nor by
        another record has a wrong length: it is lost as damaged, and a record that it would have swallowed is found.
        """
        source = self.source
        if record.length < 0:
            # Without a length, all up to the next record is this one's.
            self._pass_line_ends()
            if source.fill(1) and not source.fresh and not self._at_record():
                self._skip_to_record()
        elif record.got < record.length:
            record.fail("truncated", f"{record.got} of {record.length} bytes", float(record.got))
            if not (source.packed and source.fresh and source.fill(1)):
                self._reframe(record, block_start)
        else:
            line_ends = self._pass_line_ends()
            needed = 2 if record.kind == "warc" else 1
            if source.fill(1) and not source.fresh and not self._at_record():
                pattern = _ARC_STRICT if record.kind == "arc" else _WARC_STRICT
                if line_ends.count(b"\n") < needed or pattern.search(record.block):
                    record.fail("damaged", "")
                    self._reframe(record, block_start, line_ends)
        if not source.fill(1):
            self._go_to_next()

    def _pass_line_ends(self) -> bytes:
        """Passes over CR and LF at the cursor, within the member, and returns them; at most a few, as writers write."""
        source = self.source
        passed = b""
        while source.fill(4) and len(passed) < MAX_LINE_ENDS:
            if source.data.startswith(b"\r\n\r\n", source.at):
                passed += b"\r\n\r\n"
                source.at += 4
            elif source.data[source.at] in b"\r\n":
                passed += source.data[source.at : source.at + 1]
                source.at += 1
            else:
                break
        return passed

    def _reframe(self, record: ArchiveRecord, block_start: int, line_ends: bytes = b"") -> None:
        """Finds the record behind one of wrong length, in the block that it claims or after it."""
        source = self.source
        source.rewind(record.block + line_ends if source.packed else b"", block_start)
        passed = self._skip_to_record()
        self.misframed = True
        if source.fill(1):
            where = f"the next record starts after {passed}"
        elif record.fault == "truncated":
            return
        else:
            where = f"{passed} follow its header, and then no record"
        record.fault = None
        record.fail("damaged", f"its length is said to be {record.length} bytes, but {where}", float(passed))


def _anything() -> bool:
    return True


def _header_end(data: bytes, start: int, stop: int) -> int:
    """The index behind the first blank line, or -1; lines end in LF, CRLF, or CRCRLF where a tool wrote CRLF as text."""
    best = -1
    for mark in _BLANK_LINE:
        found = data.find(mark, start, stop)
        if found >= 0:
            best = found + len(mark)
            stop = found + 1
    return best


def _record_inside(head: bytes) -> int:
    """Where in a WARC header another one begins, because what stood between them was lost; or -1. In the middle of a line a
    version alone is none: a field's value may end so."""
    for found in _WARC_STRICT.finditer(head, 1):
        if head[found.start() - 1 : found.start()] == b"\n" or b"\nwarc-type:" in head[found.start() :].lower():
            return found.start()
    return -1


def _fields(head: bytes) -> dict[str, str]:
    """Header fields by lower-case name; the first of a name counts, folded lines are joined, lines without a
    colon ignored."""
    try:
        lines = head.decode().split("\n")
    except UnicodeDecodeError:
        lines = [
            plain_text(line, len(line)) if line[:1] not in b" \t" else " " + plain_text(line, len(line))
            for line in head.split(b"\n")
        ]
    fields: dict[str, str] = {}
    last = ""
    for line in lines:
        name, colon, value = line.partition(":")
        if last and line[:1] in _FOLD and line.strip():
            if len(fields[last]) < MAX_FOLDED_CHARACTERS:
                fields[last] += " " + line.strip()
        elif colon:
            name = name.strip().lower()
            last = "" if name in fields else name
            fields.setdefault(name, value.strip())
    return fields


def _url(value: str | None) -> str | None:
    """A target URI without the angle brackets that some writers put around it; None when there is none."""
    if value is None:
        return None
    value = plain_text(value, 8192)
    if value.startswith("<") and value.endswith(">"):
        value = value[1:-1]
    return value or None


_ISO = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?)?)?", re.ASCII)


def _iso_date(value: str) -> str | None:
    """WARC's date as it stands, ARC's 12 or 14 digits in the same form, or None."""
    if _ISO.fullmatch(value):
        return value
    if value.isascii() and value.isdigit() and len(value) in (12, 14):
        seconds = value[12:14] or "00"
        return f"{value[:4]}-{value[4:6]}-{value[6:8]}T{value[8:10]}:{value[10:12]}:{seconds}Z"
    return None
