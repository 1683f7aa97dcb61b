"""A folder: each file is one document."""

from __future__ import annotations

import gzip
from functools import partial

import pytest
import zstandard

gzipped = partial(gzip.compress, mtime=0)
"""With no time of its own: the names of tests hold what they are given, and processes that share them must agree on names."""


@pytest.mark.parametrize(
    ("file", "media_type"),
    [("a.html", "text/html"), ("b/c.HTM", "text/html"), ("x.xhtml", "application/xhtml+xml"), ("x.txt", "text/plain"), ("README.md", "text/plain")],
)  # fmt: skip
def test_a_page_or_text_by_its_name(archive, file, media_type):
    [row], _ = archive.read(b"<p>some words", "folder", file)
    assert (row["position"], row["media_type"], row["payload"], row["charset"]) == (0, media_type, b"<p>some words", None)


@pytest.mark.parametrize(
    ("file", "pack"),
    [("a.html.gz", gzip.compress), ("a.html.zst", zstandard.compress), ("a.html", gzip.compress), ("a.htm.gz", bytes)],
)
def test_a_packed_page_is_unpacked_by_its_bytes(archive, file, pack):
    [row], _ = archive.read(pack(b"<p>some words"), "folder", file)
    assert (row["media_type"], row["payload"]) == ("text/html", b"<p>some words")


@pytest.mark.parametrize(
    ("file", "data", "rule"),
    [
        ("a.pdf", b"%PDF", "media_type"),
        ("Makefile", b"all:", "media_type"),
        ("a.html", b"\x89PNG\r\n\x1a\n", "media_type"),
        ("a.html", b"", "empty_payload"),
        ("a.txt", b" \n", "empty_payload"),
        ("a.txt.gz", gzipped(b""), "empty_payload"),
        ("a.html.gz", gzipped(b"<p>words" * 100)[:-12], "undecodable"),
        ("a.html", b"x" * 1001, "too_large"),
        ("a.html.gz", gzipped(bytes(50 << 20)), "too_large"),
    ],
)
def test_what_is_no_document_is_one_loss(archive, file, data, rule):
    [row], _ = archive.read(data, "folder", file, max_payload_bytes=1000)
    assert (row["position"], row["rule"]) == (0, rule)
