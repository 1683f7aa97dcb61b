"""What must hold for every byte string: no exception, no silence, and damage stays where it is."""

from __future__ import annotations

import gzip
import random
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

gzipped = partial(gzip.compress, mtime=0)
"""With no time of its own: the names of tests hold what they are given, and processes that share them must agree on names."""

RECORDS = 12
STARTS = [b"", b"WARC/1.0\r\n", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x5d\x2a\x4d\x18", b"PK\x03\x04",
          b"filedesc:// 0 2008 text/plain 5\n", b"PAR1", b"{", b"http://a/ 1.2.3.4 20080430204825 text/html 10\n"]  # fmt: skip
PIECES = [
    b"WARC/1.0\r\n", b"WARC/1.1\n", b"WARC-Type: response\r\n", b"WARC-Type: request\r\n", b"WARC-Target-URI: http://a/\r\n",
    b"Content-Length: 10\r\n", b"Content-Length: 99999999999\r\n", b"Content-Type: application/http\r\n", b"\r\n", b"\r\n\r\n", b"\n",
    b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip, br\r\n", b"5\r\nhello\r\n", b"0123456789",
    b"http://a/ 1.2.3.4 20080430204825 text/html 10\n", b"filedesc://a 0.0.0.0 20080430204825 text/plain 3\n", gzipped(b"WARC/1.0\r\n"),
    b"\x1f\x8b\x08", b"\0" * 9, b"\xff\xfe",
]  # fmt: skip
FORMATS = ["warc", "jsonl", "parquet", "folder"]
quick = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def any_bytes() -> st.SearchStrategy[bytes]:
    return st.builds(bytes.__add__, st.sampled_from(STARTS), st.binary(max_size=600))


@pytest.mark.parametrize("format", FORMATS)
@quick
@given(data=any_bytes())
def test_any_bytes_give_rows_and_no_exception(archive, format, data):
    archive.read(data, format, file="a.html")


@quick
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=30),
    packing=st.sampled_from(["plain", "one gzip", "blocked gzip", "one zstd", "lz4"]),
)
def test_pieces_of_archives_in_any_order_give_rows_and_no_exception(archive, pieces, packing):
    archive.read(archive.pack(pieces, packing), "warc")


def a_good_archive(archive, packing: str) -> tuple[list[bytes], list[int]]:
    """(packed records, their places)."""
    noise = random.Random(3)
    packed = [
        archive.pack(
            [archive.page(b"<p>" + noise.randbytes(100).hex().encode() + b" %d" % n, f"http://example.com/{n}")], packing
        )
        for n in range(RECORDS)
    ]
    places = [sum(len(record) for record in packed[:n]) for n in range(RECORDS + 1)]
    return packed, places


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd", "lz4"])
@settings(quick, max_examples=100)
@given(data=st.data())
def test_a_changed_byte_touches_no_record_but_its_own(archive, packing, data):
    packed, places = a_good_archive(archive, packing)
    whole = bytearray(b"".join(packed))
    changed = data.draw(st.integers(0, len(whole) - 1))
    whole[changed] ^= data.draw(st.integers(1, 255))
    rows, _ = archive.read(bytes(whole), "warc")
    touched = max(n for n in range(RECORDS) if places[n] <= changed)
    found = {row["position"]: row for row in rows}
    sound, _ = archive.read(b"".join(packed), "warc")
    for n, row in enumerate(sound):
        if n != touched:
            assert found.get(row["position"]) == row


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd", "lz4"])
@settings(quick, max_examples=60)
@given(data=st.data())
def test_a_file_cut_anywhere_gives_all_whole_records_and_one_row_for_the_rest(archive, packing, data):
    packed, places = a_good_archive(archive, packing)
    cut = data.draw(st.integers(1, places[-1]))
    rows, _ = archive.read(b"".join(packed)[:cut], "warc")
    whole = sum(place <= cut for place in places[1:])
    sound, _ = archive.read(b"".join(packed), "warc")
    assert rows[:whole] == sound[:whole]
    if packing != "plain":  # without its last line ends, a plain record is whole
        assert len(rows) == whole + (cut > places[whole])
    assert all(row["rule"] in ("truncated", "damaged", "unreadable") for row in rows[whole:] if row["rule"])


@pytest.mark.parametrize("start, end", [(145, 507), (145, 509), (12, 509), (4, 509), (30, 509), (200, 505)])
def test_a_header_that_runs_into_the_next_record_loses_its_own_record_only(archive, start, end):
    """Found by the test below: what was left read as one header with two of each field."""
    packed, _ = a_good_archive(archive, "plain")
    whole = b"".join(packed)
    rows, _ = archive.read(whole[:start] + whole[end:], "warc")
    assert [row["url"] for row in rows if row["rule"] is None] == [f"http://example.com/{n}" for n in range(1, RECORDS)]
    assert [row["rule"] for row in rows if row["rule"]] == ["damaged"]


@pytest.mark.parametrize("packing", ["gzip", "plain"])
@settings(quick, max_examples=60)
@given(data=st.data())
def test_a_torn_out_stretch_touches_only_the_records_it_was_part_of(archive, packing, data):
    packed, places = a_good_archive(archive, packing)
    whole = b"".join(packed)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 1500)))
    rows, _ = archive.read(whole[:start] + whole[end:], "warc")
    urls = {row["url"] for row in rows if row["rule"] is None}
    for n in range(RECORDS):
        if places[n + 1] <= start or places[n] >= end:
            assert f"http://example.com/{n}" in urls
