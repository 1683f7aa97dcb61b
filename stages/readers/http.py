"""An HTTP response as a crawler stored it: status, the headers that matter, and the body with its codings undone.

Archives are not what servers sent: bodies were dechunked or decompressed while the headers still say otherwise. So a coding is
undone where the bytes bear it out, and a body that neither bears it out nor looks like text cannot be decoded.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import brotli
import zstandard

from stages.readers.media_types import looks_binary
from stages.readers.packing import GZIP_MAGIC, MAX_ZSTD_WINDOW, ZSTD_MAGIC
from stages.readers.reader import plain_text

MAX_HEADER_BYTES = 1 << 20
MAX_CODINGS = 5
"""More stacked codings than this are refused; real stacks have two."""
FEED = 16 << 10

_STATUS = re.compile(rb"HTTP(?:/\d+(?:\.\d+)?)?[ \t]+(\d{3})(?!\d)", re.IGNORECASE)
_HEADER_END = re.compile(rb"\n\r{0,2}\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]{0,4096})?\r?\n")
_NO_CODING = ("", "identity", "none", "binary", "8bit", "7bit")
_GZIP = ("gzip", "x-gzip")


class Undecodable(Exception):
    """A body whose codings cannot be undone."""


class TooLarge(Exception):
    """A body that decodes to more bytes than allowed; decoding stopped there."""


@dataclass
class Response:
    """status 100 to 999; content_type as it stands; codings in the order in which they are to be undone."""

    status: int
    content_type: str
    codings: list[str]
    body: bytes


def parse_response(block: bytes) -> Response | None:
    """The response in a record's block, or None when it does not start with a status line."""
    while True:
        status = _STATUS.match(block)
        if status is None:
            return None
        end = _HEADER_END.search(block, 0, MAX_HEADER_BYTES)
        head, body = (block[: end.start()], block[end.end() :]) if end else (block, b"")
        # An interim response (100 Continue, 103 Early Hints) stands in front of the real one.
        if not (status[1].startswith(b"1") and _STATUS.match(body)):
            break
        block = body
    content_type, content, transfer = "", [], []
    for line in head.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        name = name.strip().lower()
        if name == b"content-type":
            # Of several, browsers take the last that is a media type (WHATWG Fetch, "extract a MIME type").
            if b"/" in value or not content_type:
                content_type = plain_text(value)
        elif name == b"content-encoding":
            content += plain_text(value).lower().split(",")
        elif name == b"transfer-encoding":
            transfer += plain_text(value).lower().split(",")
    codings = [coding.strip() for coding in reversed(content + transfer)]
    return Response(int(status[1]), content_type, [c for c in codings if c not in _NO_CODING], body)


def decode_body(body: bytes, codings: list[str], limit: int) -> bytes:
    """`body` with `codings` undone where it bears them. Undecodable, or TooLarge above `limit` bytes after any step.

    A body that was cut while it was fetched gives what can be decoded of it. gzip and zstd data that no header speaks of are
    undone too, and so is what claims to be HTML but starts as gzip.
    """
    if len(codings) > MAX_CODINGS:
        raise Undecodable(f"{len(codings)} stacked codings")
    undone = 0
    for coding in codings:
        body = _undo(body, coding, limit)
    while body.startswith((GZIP_MAGIC, ZSTD_MAGIC)) and undone < MAX_CODINGS:
        body = _undo(body, "gzip" if body.startswith(GZIP_MAGIC) else "zstd", limit)
        undone += 1
    if len(body) > limit:
        raise TooLarge
    return body


def _undo(body: bytes, coding: str, limit: int) -> bytes:
    if not body:
        return body
    if coding == "chunked":
        return _dechunked(body)
    # Bytes of another packing than the header says: crawlers and servers mix them up, and magic numbers do not lie.
    if body.startswith(GZIP_MAGIC):
        return _gunzipped(body, limit)
    if body.startswith(ZSTD_MAGIC):
        return _collected(_zstd_pieces(body), limit)
    if coding == "br":
        return _plain_unless(body, lambda: _collected(_brotli_pieces(body), limit))
    if coding == "deflate":
        return _plain_unless(body, lambda: _inflated(body, limit))
    if looks_binary(body):
        raise Undecodable(f"Content-Encoding {plain_text(coding, 30)!r} and bytes that are no text")
    return body


def _plain_unless(body: bytes, decode: Callable[[], bytes]) -> bytes:
    """`decode()`, or the body itself when it does not bear its coding and looks like text."""
    try:
        return decode()
    except Undecodable:
        if looks_binary(body):
            raise
        return body


def _dechunked(body: bytes) -> bytes:
    """The chunks' data. A body that does not start with a chunk was dechunked before and is returned as it is; one that ends
    early gives what is there."""
    parts: list[bytes] = []
    at = 0
    while size_line := _CHUNK_SIZE.match(body, at):
        start = size_line.end()
        size = int(size_line[1], 16)
        end = start + size
        if size == 0:
            return b"".join(parts)
        if end < len(body) and body[end : end + 1] not in b"\r\n":
            break
        parts.append(body[start:end])
        at = end
        if body[at : at + 1] == b"\r":
            at += 1
        if body[at : at + 1] == b"\n":
            at += 1
        if at >= len(body):
            return b"".join(parts)
    if not parts:
        return body
    rest = body[at : at + 64]
    if len(body) - at < 20 and re.fullmatch(rb"[0-9A-Fa-f]*\r?", rest):
        return b"".join(parts)
    raise Undecodable(f"chunked, but at byte {at} stands no chunk size")


def _gunzipped(body: bytes, limit: int) -> bytes:
    return _collected(_zlib_pieces(body, 31), limit)


def _inflated(body: bytes, limit: int) -> bytes:
    """`deflate` means zlib's format, but many servers send it bare."""
    try:
        return _collected(_zlib_pieces(body, 15), limit)
    except Undecodable:
        return _collected(_zlib_pieces(body, -15), limit)


def _collected(pieces: Iterator[bytes], limit: int) -> bytes:
    parts, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLarge
        parts.append(piece)
    return b"".join(parts)


def _zlib_pieces(body: bytes, window: int) -> Iterator[bytes]:
    rest = body
    while True:
        inflate = zlib.decompressobj(window)
        try:
            while rest and not inflate.eof:
                yield inflate.decompress(rest, 16 * FEED)
                rest = inflate.unconsumed_tail
        except zlib.error as error:
            raise Undecodable(str(error)) from None
        rest = inflate.unused_data
        # Bytes behind the last member that start none are ignored, as browsers do.
        if window != 31 or not rest.startswith(GZIP_MAGIC):
            return


def _zstd_pieces(body: bytes) -> Iterator[bytes]:
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).stream_reader(body, read_across_frames=True) as reader:
            while piece := reader.read(16 * FEED):
                yield piece
    except zstandard.ZstdError as error:
        raise Undecodable(f"zstd: {error}") from None


def _brotli_pieces(body: bytes) -> Iterator[bytes]:
    unpack = brotli.Decompressor()
    at = 0
    try:
        while at < len(body) and not unpack.is_finished():
            piece = unpack.process(body[at : at + FEED], output_buffer_limit=16 * FEED)
            at += FEED
            yield piece
            while not unpack.can_accept_more_data():
                piece = unpack.process(b"", output_buffer_limit=16 * FEED)
                yield piece
    except brotli.error as error:
        raise Undecodable(f"brotli: {error}") from None
