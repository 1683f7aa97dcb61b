"""Web archives made for the tests, and a way to read any bytes with any reader."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from typing import Any

import lz4.frame
import pytest
import zstandard

from manifests.schemas import RECORDS
from stages.readers import find_reader

GZIP_TIME = 0  # so that packed bytes do not depend on the clock


class Archive:
    """Builders of records, and `read`."""

    packings = ("plain", "gzip", "one gzip", "blocked gzip", "zstd", "one zstd", "zstd dictionary", "lz4", "one lz4")

    @staticmethod
    def http(body: bytes, *headers: str, status: str = "200 OK", content_type: str | None = "text/html; charset=utf-8") -> bytes:
        lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {content_type}"] if content_type else []), *headers, "", ""]
        return "\r\n".join(lines).encode("latin-1") + body

    @staticmethod
    def record(
        block: bytes, type_: str = "response", url: str | None = "http://example.com/", *headers: str, **fields: str
    ) -> bytes:
        content_type = "application/http; msgtype=response" if type_ == "response" else "text/plain"
        values = {
            "WARC-Type": type_,
            "WARC-Record-ID": "<urn:uuid:00000000-0000-0000-0000-000000000000>",
            "WARC-Date": "2024-05-06T07:08:09Z",
            **({"WARC-Target-URI": url} if url else {}),
            "Content-Type": content_type,
            "Content-Length": str(len(block)),
            **{name.replace("_", "-"): value for name, value in fields.items()},
        }
        lines = ["WARC/1.0", *(f"{name}: {value}" for name, value in values.items()), *headers, "", ""]
        return "\r\n".join(lines).encode() + block + b"\r\n\r\n"

    @classmethod
    def page(cls, html: bytes, url: str = "http://example.com/", *headers: str) -> bytes:
        return cls.record(cls.http(html, *headers), "response", url)

    @staticmethod
    def pack(records: list[bytes], packing: str) -> bytes:
        whole = b"".join(records)
        if packing == "plain":
            return whole
        if packing == "gzip":
            return b"".join(gzip.compress(record, mtime=GZIP_TIME) for record in records)
        if packing == "one gzip":
            return gzip.compress(whole, mtime=GZIP_TIME)
        if packing == "blocked gzip":
            return b"".join(gzip.compress(whole[at : at + 300], mtime=GZIP_TIME) for at in range(0, len(whole), 300))
        if packing == "zstd":
            return b"".join(zstandard.compress(record) for record in records)
        if packing == "one zstd":
            return zstandard.compress(whole)
        if packing == "zstd dictionary":
            dictionary = zstandard.ZstdCompressionDict((b"WARC/1.0\r\nWARC-Type: response\r\n" + whole)[:4096].ljust(64, b" "))
            packed = zstandard.compress(dictionary.as_bytes())
            frame = b"\x5d\x2a\x4d\x18" + len(packed).to_bytes(4, "little") + packed
            compressor = zstandard.ZstdCompressor(dict_data=dictionary)
            return frame + b"".join(compressor.compress(record) for record in records)
        if packing == "lz4":
            return b"".join(lz4.frame.compress(record) for record in records)
        assert packing == "one lz4"
        return lz4.frame.compress(whole)

    @staticmethod
    def read(
        data: bytes | Any, format: str = "warc", file: str = "a", row_groups: range | None = None, **options: Any
    ) -> tuple[list[dict[str, Any]], Counter[str]]:
        """(rows, skipped), after a check of what holds for every file."""
        reader_type = find_reader(format)
        reader = reader_type(reader_type.options_type(**options))
        skipped: Counter[str] = Counter()
        rows: list[dict[str, Any]] = []
        stream = io.BytesIO(data) if isinstance(data, bytes) else data
        for batch in reader.read(stream, "web", file, skipped, row_groups):
            batch.validate(full=True)
            assert batch.schema == RECORDS
            assert 0 < batch.num_rows <= 256
            rows += batch.to_pylist()
        positions = [row["position"] for row in rows]
        assert positions == sorted(set(positions)), "positions are unique and increasing"
        assert rows or skipped, "no file is passed over in silence"
        for row in rows:
            assert (row["component"], row["file"]) == ("web", file)
            assert sum(row[name] is not None for name in ("payload", "text", "rule")) == 1
            assert row["rule"] is None or row["rule"] in reader_type.removal_rules
        return rows, skipped

    @staticmethod
    def pages(rows: list[dict[str, Any]]) -> list[bytes]:
        return [row["payload"] for row in rows if row["rule"] is None]


@pytest.fixture(scope="session")
def archive() -> type[Archive]:
    return Archive
