"""Readers on real archives of many projects: every record found, nothing raised, nothing passed over."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stages.readers import find_reader

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
WARCS = DATA / "warc"
DOCUMENTS = ("response", "resource", "conversion")
pytestmark = pytest.mark.skipif(not WARCS.is_dir(), reason=f"no test data at {WARCS}; set CORPUSMILL_TEST_DATA")


def facts() -> dict[str, dict[str, Any]]:
    with gzip.open(WARCS / "facts.jsonl.gz") as file:
        known = {fact["path"]: fact for fact in map(json.loads, file)}
    return {path: fact for path, fact in known.items() if (DATA / path).is_file()}


def read(path: Path, format: str = "warc", **options: Any) -> tuple[list[dict[str, Any]], Counter[str]]:
    reader_type = find_reader(format)
    skipped: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    with open(path, "rb") as stream:
        for batch in reader_type(reader_type.options_type(**options)).read(stream, "web", path.name, skipped):
            rows += batch.to_pylist()
    return rows, skipped


def test_every_file_gives_rows_at_increasing_positions_or_counted_records():
    for path in facts():
        rows, skipped = read(DATA / path)
        positions = [row["position"] for row in rows]
        assert positions == sorted(set(positions)), path
        assert rows or skipped, path


def test_where_two_parsers_agree_on_the_records_ours_finds_the_same():
    """Documents and records of other kinds, by type; a response about DNS is no document here."""
    compared = 0
    for path, fact in facts().items():
        warcio, fastwarc = fact.get("warcio", {}), fact.get("fastwarc", {})
        if warcio.get("error") or fastwarc.get("error") or not warcio.get("types") or warcio["types"] != fastwarc.get("types"):
            continue
        if "null" in warcio["types"]:
            continue
        rows, skipped = read(DATA / path)
        kinds = Counter({kind.lower(): 0 for kind in warcio["types"]})
        for kind, count in warcio["types"].items():
            kinds[kind.lower()] += count
        regions = sum(row["rule"] == "damaged" for row in rows)
        documents = sum(kinds.pop(kind, 0) for kind in DOCUMENTS)
        assert documents <= len(rows) + skipped["dns"] <= documents + regions, path
        for kind, count in kinds.items():
            assert count - regions <= skipped[kind] <= count, (path, kind)
        compared += 1
    assert compared >= 80


def test_every_html_response_that_warcio_counted_is_a_row():
    """As HTML, kept or with a status; or as a row that says how the record is damaged."""
    for path, fact in facts().items():
        expected = fact.get("warcio", {}).get("html_responses") or 0
        rows, _ = read(DATA / path)
        html = sum(row["media_type"] in ("text/html", "application/xhtml+xml") for row in rows)
        broken = sum(row["rule"] in ("damaged", "truncated", "media_type", "bad_http", "segmented") for row in rows)
        assert html + broken >= expected, path


@pytest.mark.parametrize(
    ("plain", "packed"),
    [
        ("N0taN3rd__node-warc/parseMe.warc", "N0taN3rd__node-warc/parseMe.warc.gz"),
        ("chatnoir-eu__chatnoir-resiliparse/warcfile.warc", "chatnoir-eu__chatnoir-resiliparse/warcfile.warc.gz"),
        ("chatnoir-eu__chatnoir-resiliparse/warcfile.warc", "chatnoir-eu__chatnoir-resiliparse/warcfile.warc.lz4"),
        ("commoncrawl__ia-web-commons/IAH-urls-wget.warc", "commoncrawl__ia-web-commons/IAH-urls-wget.warc.gz"),
    ],
)
def test_the_same_archive_plain_and_packed_gives_the_same_records(plain, packed):
    def content(name: str) -> list[Any]:
        rows, skipped = read(WARCS / name)
        return [[{k: v for k, v in row.items() if k not in ("file", "position")} for row in rows], skipped]

    if not (WARCS / plain).is_file() or not (WARCS / packed).is_file():
        pytest.skip("this pair is not here")
    assert content(plain) == content(packed)


def test_compressed_bytes_never_come_out_as_a_page():
    for path in facts():
        for row in read(DATA / path)[0]:
            assert row["payload"] is None or not row["payload"].startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")), (
                path,
                row["position"],
            )


def test_a_record_of_400_mb_in_2_mb_is_read_in_bounded_memory(tmp_path):
    giant = WARCS / "internetarchive__CDX-Writer" / "giant_html.warc.gz"
    if giant.is_file():
        data = giant.read_bytes()
    else:  # the same in kind: one HTML response of 431 MB
        size = 431_000_000
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
        head = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a/\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n"
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
            file.write(head % (len(block) + size) + block)
            for _ in range(size // 1000):
                file.write(b"<p>giant</p>" * 83 + b"....")
            file.write(b"\r\n\r\n")
        data = out.getvalue()
    reader_type = find_reader("warc")
    tracemalloc.start()
    skipped: Counter[str] = Counter()
    batches = list(reader_type(reader_type.options_type()).read(io.BytesIO(data), "web", "giant", skipped))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["rule"] for row in rows].count("too_large") == 1
    assert peak < 120 << 20
