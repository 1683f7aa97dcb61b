"""Compressed files as their members: gzip members, zstd and lz4 frames, or one plain stretch of bytes.

`Unpacked` gives the decompressed bytes of one member after the other, tells where in the file a member starts, and goes on behind
a damaged one. How a file is packed is decided by its first bytes, never by its name. Memory is bounded: a call unpacks at most
`PIECE` bytes more than it was asked for, whatever the compression ratio.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol

import lz4.frame
import zstandard

CHUNK = 64 << 10
PIECE = 256 << 10
GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LZ4_MAGIC = b"\x04\x22\x4d\x18"
SKIPPABLE_MAGIC_TAIL = b"\x2a\x4d\x18"
DICTIONARY_MAGIC = b"\x5d\x2a\x4d\x18"
"""A leading skippable frame 0x184D2A5D holds the dictionary of all frames (the IIPC's WARC-zstd proposal)."""
MAGIC_BYTES = 4
MAX_DICTIONARY_BYTES = 16 << 20
MAX_ZSTD_WINDOW = 128 << 20
"""What the zstd tool accepts without being told otherwise (windowLog 27)."""
MAX_ZSTD_BLOCK = 128 << 10
TRIAL_BYTES = 4096
"""A candidate found by its magic bytes counts as a member when this much of it can be unpacked."""


class Damaged(Exception):
    """Packed bytes that cannot be unpacked. `offset` is where in the file the damaged member starts; `ended` says that the
    file ends inside it."""

    def __init__(self, offset: int, detail: str, ended: bool = False) -> None:
        super().__init__(detail)
        self.offset, self.detail, self.ended = offset, detail, ended


class Unpacked:
    """The unpacked bytes of a seekable stream, one member at a time. A plain file is one member that starts at 0.

    `data[at:]` are the bytes at hand of the current member; `fill` gets more. `member` is the current member's offset in the
    file, `offset` the unpacked offset of `data[at]` within the file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.raw = _Raw(stream)
        self.data = b""
        self.at = 0
        self.member = 0
        self.base = 0
        self.joined = False
        self._dictionary: zstandard.ZstdCompressionDict | None = None
        self._pending: Damaged | None = None
        self._member: _Member | None = None
        self.packed = _is_packed(self.raw.need(MAGIC_BYTES))
        if not self.packed:
            self._member = _Plain()

    @property
    def offset(self) -> int:
        return self.base + self.at

    @property
    def fresh(self) -> bool:
        """No byte of the current member was taken yet."""
        return self.offset == self._member_base

    _member_base = 0

    def fill(self, wanted: int) -> int:
        """Bytes at hand, at least `wanted` unless the member ends before; Damaged when it cannot be unpacked that far."""
        have = len(self.data) - self.at
        if have >= wanted or self._member is None:
            return have
        self.base += self.at
        if not have:
            self.data, self.at = b"", 0
            self.data = self._piece()
            have = len(self.data)
            if have >= wanted or not have:
                return have
        parts = [self.data[self.at :]]
        self.at = 0
        try:
            while have < wanted:
                piece = self._piece()
                if not piece:
                    break
                parts.append(piece)
                have += len(piece)
        finally:
            self.data = b"".join(parts)
        return have

    def take(self, count: int, keep: int) -> tuple[bytes, int]:
        """(the first `keep` of the next bytes, how many were passed over): at most `count`, fewer when the member ends."""
        parts: list[bytes] = []
        kept = passed = 0
        while passed < count and self.fill(1):
            piece = self.data[self.at : self.at + count - passed]
            self.at += len(piece)
            passed += len(piece)
            if kept < keep:
                parts.append(piece[: keep - kept])
                kept += len(parts[-1])
            elif not self.packed:
                passed += self._leap(count - passed)
        return b"".join(parts), passed

    def next_member(self) -> bool:
        """Goes on to the next member, passing over what is left of this one; False at the end of the file.

        Zero bytes between members are padding. Damaged when other bytes stand there.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending
        self.at = len(self.data)
        while self._member is not None and self.fill(1):
            self.at = len(self.data)
        if not self.packed:
            return False
        self.raw.skip_zeros()
        return self._begin()

    def join(self, starts_anew: Callable[[], bool]) -> bool:
        """Where a member ended too early: goes on to the next one as if there were no border, if there is one and it does not
        start a record of its own (`starts_anew`, asked with its first bytes at hand). False: the cursor stands behind the border.
        """
        tail = self.data[self.at :]
        try:
            if not self.next_member():
                return False
            self.fill(1)
        except Damaged as damage:
            self._pending = damage
            self._member = None
            return False
        if starts_anew():
            return False
        self.data = tail + self.data[self.at :]
        self.base = self.offset - len(tail)
        self._member_base = self.base - 1
        self.at = 0
        self.joined = True
        return True

    def rewind(self, block: bytes, start: int) -> bool:
        """Back to the unpacked offset `start`, from which `block` was taken; False when that is no longer possible."""
        if self.packed:
            if start + len(block) != self.offset:
                return False
            self.data = block + self.data[self.at :]
        else:
            self.raw.seek(start)
            self.data = b""
        self.base, self.at = start, 0
        return True

    def end(self) -> None:
        """Goes to the end of the file."""
        self._pending = None
        self._leave()
        self.raw.seek(self.raw.size())

    def salvage(self, after: int, acceptable: Callable[[], bool], before: int | None = None) -> bool:
        """Goes on to the first sound member that starts behind file offset `after` (and in front of `before`), and is
        `acceptable` with its first bytes at hand; False when there is none."""
        self._pending = None
        self.joined = False
        was_plain = not self.packed
        for candidate in _Candidates(self.raw, after + 1):
            if before is not None and candidate >= before:
                break
            self.raw.seek(candidate)
            base = self.offset
            try:
                if not self._begin() or self.member != candidate:
                    continue
                self.fill(TRIAL_BYTES)
            except Damaged:
                self._member = None
                self.data, self.at, self.base = b"", 0, base
                continue
            if acceptable():
                self.packed = True
                return True
            self._member = None
            self.data, self.at, self.base = b"", 0, base
        if was_plain:
            self._member = _Plain()
            self.rewind(b"", 0)
        return False

    def _begin(self) -> bool:
        """Starts the member at the raw cursor; False at the end of the file."""
        self._leave()
        while True:
            start = self.raw.offset
            magic = self.raw.need(MAGIC_BYTES)
            if not magic:
                return False
            if len(magic) == MAGIC_BYTES and magic[1:] == SKIPPABLE_MAGIC_TAIL and magic[0] & 0xF0 == 0x50:
                self._skippable(start, magic)
                continue
            break
        if magic[:3] == GZIP_MAGIC:
            self._member = _Gzip(start)
        elif magic == ZSTD_MAGIC:
            self._member = _Zstd(start, self._dictionary)
        elif magic == LZ4_MAGIC:
            self._member = _Lz4(start)
        else:
            raise Damaged(start, "bytes that start no gzip member, zstd or lz4 frame")
        self.member = start
        return True

    def _leave(self) -> None:
        self.base = self.offset
        self.data, self.at = b"", 0
        self._member_base = self.base
        self._member = None

    def _skippable(self, start: int, magic: bytes) -> None:
        head = self.raw.need(8)
        size = int.from_bytes(head[4:8], "little")
        self.raw.skip(len(head))
        if magic != DICTIONARY_MAGIC or start != 0:
            self.raw.seek(self.raw.offset + size)
            return
        if size > MAX_DICTIONARY_BYTES:
            raise Damaged(start, f"the zstd dictionary is said to have {size} bytes")
        raw = self.raw.need(size)
        self.raw.skip(len(raw))
        if raw[:4] == ZSTD_MAGIC:
            raw = _small_frame(raw, start)
        try:
            self._dictionary = zstandard.ZstdCompressionDict(raw)
        except (zstandard.ZstdError, ValueError) as error:
            raise Damaged(start, f"the zstd dictionary: {error}") from None

    def _piece(self) -> bytes:
        assert self._member is not None
        try:
            piece = self._member.piece(self.raw)
        except Damaged:
            self._member = None
            raise
        if not piece and self.packed:
            self._member = None
        return piece

    def _leap(self, count: int) -> int:
        """In a plain file: passes over up to `count` bytes behind those at hand without reading them."""
        if self.at < len(self.data):
            return 0
        leap = min(count, self.raw.size() - self.offset)
        if leap <= 0:
            return 0
        target = self.offset + leap
        self.raw.seek(target)
        self.base, self.data, self.at = target, b"", 0
        return leap


class _Raw:
    """The file as it lies there: buffered, with its offset, and always read in full chunks so that results do not depend on how
    much a file system returns at once."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.data = b""
        self.at = 0
        self.base = 0
        self._size: int | None = None
        stream.seek(0)

    @property
    def offset(self) -> int:
        return self.base + self.at

    def size(self) -> int:
        if self._size is None:
            self._size = self.stream.seek(0, io.SEEK_END)
            self.stream.seek(self.base + len(self.data))
        return self._size

    def need(self, count: int) -> bytes:
        """The next `count` bytes without taking them; fewer at the end of the file."""
        while len(self.data) - self.at < count:
            more = self._read(max(CHUNK, count - len(self.data) + self.at))
            if not more:
                break
            self.base += self.at
            self.data = self.data[self.at :] + more
            self.at = 0
        return self.data[self.at : self.at + count]

    def view(self) -> memoryview:
        """The bytes at hand, at least one unless the file is at its end."""
        if self.at >= len(self.data):
            self.base += len(self.data)
            self.data, self.at = self._read(CHUNK), 0
        return memoryview(self.data)[self.at :]

    def skip(self, count: int) -> None:
        self.at += count

    def seek(self, offset: int) -> None:
        if self.base <= offset <= self.base + len(self.data):
            self.at = offset - self.base
            return
        self.stream.seek(offset)
        self.base, self.data, self.at = offset, b"", 0

    def skip_zeros(self) -> None:
        while view := self.view():
            left = len(bytes(view).lstrip(b"\0")) if view[0] == 0 else len(view)
            self.skip(len(view) - left)
            if left:
                return

    def _read(self, count: int) -> bytes:
        data = self.stream.read(count)
        while data and len(data) < count:
            more = self.stream.read(count - len(data))
            if not more:
                break
            data += more
        return data


class _Candidates:
    """Offsets from `offset` on at which a member may start: magic bytes, and of gzip a header without reserved flags (RFC 1952,
    2.3) and with an XFL that some writer sets."""

    pattern = re.compile(
        rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04]|" + re.escape(ZSTD_MAGIC) + b"|" + re.escape(LZ4_MAGIC), re.DOTALL
    )
    longest = 9

    def __init__(self, raw: _Raw, offset: int) -> None:
        self.raw, self.offset = raw, offset

    def __iter__(self) -> _Candidates:
        return self

    def __next__(self) -> int:
        while True:
            self.raw.seek(self.offset)
            if len(self.raw.need(self.longest)) < MAGIC_BYTES:
                raise StopIteration
            found = self.pattern.search(self.raw.data, self.raw.at)
            if found:
                place = self.raw.base + found.start()
                self.offset = place + 1
                return place
            self.offset = max(self.offset + 1, self.raw.base + len(self.raw.data) - self.longest + 1)


class _Member(Protocol):
    def piece(self, raw: _Raw) -> bytes:
        """The next bytes, b"" at the end of the member, and then the raw cursor stands behind it."""


class _Plain:
    def piece(self, raw: _Raw) -> bytes:
        piece = bytes(raw.view())
        raw.skip(len(piece))
        return piece


class _Gzip:
    def __init__(self, start: int) -> None:
        self.start = start
        self.inflate = zlib.decompressobj(31)
        self.error = ""
        self.begun = False

    def piece(self, raw: _Raw) -> bytes:
        if self.error:
            raise Damaged(self.start, self.error)
        inflate = self.inflate
        while not inflate.eof:
            view = raw.view()
            if not view:
                raise Damaged(self.start, "the file ends inside a gzip member", ended=True)
            # A call that fails returns nothing of what it had unpacked: from a copy, the bytes before the fault are had.
            before = inflate.copy() if self.begun else None
            try:
                piece = inflate.decompress(view, PIECE)
            except zlib.error as error:
                self.error = f"gzip: {_zlib_reason(error)}"
                piece = _until_fault(before or zlib.decompressobj(31), view)
                if not piece:
                    raise Damaged(self.start, self.error) from None
                return piece
            self.begun = True
            raw.skip(len(view) - len(inflate.unused_data if inflate.eof else inflate.unconsumed_tail))
            if piece:
                return piece
        return b""


class _Zstd:
    """A zstd frame, block by block: no block unpacks to more than 128 KiB, and the frame's end is known exactly."""

    def __init__(self, start: int, dictionary: zstandard.ZstdCompressionDict | None) -> None:
        self.start = start
        unpacker = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=MAX_ZSTD_WINDOW)
        self.unpack = unpacker.decompressobj()
        self.begun = self.last = self.checksum = False

    def piece(self, raw: _Raw) -> bytes:
        while not self.last:
            if self.begun:
                packed = self._block(raw)
            else:
                packed = self._header(raw)
                self.begun = True
            try:
                piece = self.unpack.decompress(packed)
            except zstandard.ZstdError as error:
                raise Damaged(self.start, f"zstd: {error}") from None
            if piece:
                return piece
        return b""

    def _header(self, raw: _Raw) -> bytes:
        descriptor = self._need(raw, 5)[4]
        single, self.checksum = descriptor >> 5 & 1, bool(descriptor >> 2 & 1)
        size = 5 + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6] + 1 - single
        return self._take(raw, size)

    def _block(self, raw: _Raw) -> bytes:
        header = int.from_bytes(self._need(raw, 3), "little")
        self.last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3 or size > MAX_ZSTD_BLOCK:
            raise Damaged(self.start, "zstd: a block that cannot be")
        return self._take(raw, 3 + (1 if kind == 1 else size) + (4 if self.last and self.checksum else 0))

    def _need(self, raw: _Raw, count: int) -> bytes:
        data = raw.need(count)
        if len(data) < count:
            raise Damaged(self.start, "the file ends inside a zstd frame", ended=True)
        return data

    def _take(self, raw: _Raw, count: int) -> bytes:
        data = self._need(raw, count)
        raw.skip(count)
        return data


class _Lz4:
    def __init__(self, start: int) -> None:
        self.start = start
        self.unpack = lz4.frame.LZ4FrameDecompressor()

    def piece(self, raw: _Raw) -> bytes:
        while not self.unpack.eof:
            view = b""
            if self.unpack.needs_input:
                view = bytes(raw.view())
                if not view:
                    raise Damaged(self.start, "the file ends inside an lz4 frame", ended=True)
                raw.skip(len(view))
            try:
                piece: bytes = self.unpack.decompress(view, PIECE)
            except (RuntimeError, MemoryError) as error:
                raise Damaged(self.start, f"lz4: {error}") from None
            if self.unpack.eof:
                raw.skip(-len(self.unpack.unused_data or b""))
            if piece:
                return piece
        return b""


def _is_packed(magic: bytes) -> bool:
    skippable = len(magic) == MAGIC_BYTES and magic[1:] == SKIPPABLE_MAGIC_TAIL and magic[0] & 0xF0 == 0x50
    return magic[:2] == GZIP_MAGIC[:2] or magic in (ZSTD_MAGIC, LZ4_MAGIC) or skippable


def _until_fault(inflate: zlib._Decompress, packed: memoryview) -> bytes:
    """What can be unpacked of `packed` before the byte at which it fails."""
    unpacked = []
    try:
        for index in range(len(packed)):
            unpacked.append(inflate.decompress(packed[index : index + 1]))
    except zlib.error:
        pass
    return b"".join(unpacked)


def _small_frame(frame: bytes, start: int) -> bytes:
    member, raw, parts, size = _Zstd(start, None), _Raw(io.BytesIO(frame)), [], 0
    while piece := member.piece(raw):
        parts.append(piece)
        size += len(piece)
        if size > MAX_DICTIONARY_BYTES:
            raise Damaged(start, f"the zstd dictionary has more than {MAX_DICTIONARY_BYTES} bytes")
    return b"".join(parts)


def _zlib_reason(error: zlib.error) -> str:
    return str(error).rpartition(": ")[2]
