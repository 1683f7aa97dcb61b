"""A folder of pages and texts: each file is one document, at position 0, and its name says what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO, ClassVar

from stages.readers.media_types import HTML, PLAIN, XHTML, signature
from stages.readers.packing import Damaged, Unpacked
from stages.readers.reader import Reader, ReaderOptions, Record, plain_text

MEDIA_TYPES = {
    ".html": HTML,
    ".htm": HTML,
    ".xhtml": XHTML,
    ".xht": XHTML,
    ".txt": PLAIN,
    ".text": PLAIN,
    ".md": PLAIN,
}
PACKINGS = (".gz", ".zst", ".lz4")


class PagesOptions(ReaderOptions):
    """Options of the format `folder`."""


class Pages(Reader[PagesOptions]):
    """One document a file."""

    name = "folder"
    version = 1
    libraries = ("lz4", "zstandard")
    default_files = tuple(f"*{ending}{packing}" for ending in MEDIA_TYPES for packing in ("", *PACKINGS))
    removal_rules: ClassVar[dict[str, str]] = {
        "media_type": "a name, or a signature of the bytes, of something else than HTML or text; detail: which",
        "empty_payload": "no bytes but blanks",
        "undecodable": "a packed file that cannot be unpacked",
        "too_large": "more than max_payload_bytes, unpacked; value: that limit",
    }
    options_type = PagesOptions

    def records(self, stream: BinaryIO, file: str, skipped: Counter[str], row_groups: range | None) -> Iterator[Record]:
        record = Record(0)
        path = PurePosixPath(file.lower())
        if path.suffix in PACKINGS:
            path = path.with_suffix("")
        media_type = MEDIA_TYPES.get(path.suffix)
        if media_type is None:
            yield record.lose("media_type", plain_text(path.suffix) or "a name without an ending")
            return
        record.media_type = media_type
        limit = self.options.max_payload_bytes
        parts, size = [], 0
        try:
            source = Unpacked(stream)
            while True:
                part, passed = source.take(limit + 1 - size, limit)
                parts.append(part)
                size += passed
                if size > limit:
                    yield record.lose("too_large", "unpacked" if source.packed else "bytes of the file", float(limit))
                    return
                if not source.next_member():
                    break
        except Damaged as fault:
            yield record.lose("undecodable", fault.detail)
            return
        payload = b"".join(parts)
        other = signature(payload)
        if not payload.strip():
            yield record.lose("empty_payload", None, float(size))
        elif other:
            yield record.lose("media_type", f"{media_type} by its name, but the bytes are {other}")
        else:
            record.payload = payload
            yield record
