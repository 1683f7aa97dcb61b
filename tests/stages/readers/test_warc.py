"""What records of web archives become, sound ones and broken ones."""

from __future__ import annotations

import gzip
import io
import random
import zipfile
import zlib
from collections import Counter
from functools import partial

import brotli
import pytest
import zstandard

from stages.readers import UnknownFormat, find_reader

gzipped = partial(gzip.compress, mtime=0)
"""With no time of its own: the names of tests hold what they are given, and processes that share them must agree on names."""

HTML = b"<html><title>t</title><p>Some text.</p></html>"


def chunked(body: bytes, size: int = 7) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def only(rows):
    assert len(rows) == 1
    return rows[0]


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(UnknownFormat, match="did you mean 'parquet'"):
        find_reader("parqet")


def test_a_page_carries_url_date_media_type_and_the_declared_charset(archive):
    block = archive.http("<p>Grüße".encode("latin-1"), content_type='TEXT/HTML; Charset="ISO-8859-1"')
    row = only(archive.read(archive.record(block, url="http://example.com/a"))[0])
    assert row["url"] == "http://example.com/a" and row["date"] == "2024-05-06T07:08:09Z"
    assert (row["media_type"], row["charset"]) == ("text/html", "ISO-8859-1")
    assert row["payload"] == "<p>Grüße".encode("latin-1")


@pytest.mark.parametrize(
    "packing", ["plain", "gzip", "one gzip", "blocked gzip", "zstd", "one zstd", "zstd dictionary", "lz4", "one lz4"]
)
def test_the_same_records_give_the_same_pages_in_every_packing(archive, packing):
    records = [archive.page(b"<p>%d" % n + b"x" * n * 40, f"http://example.com/{n}") for n in range(20)]
    records.insert(3, archive.record(b"GET / HTTP/1.1\r\n\r\n", "request"))
    rows, skipped = archive.read(archive.pack(records, packing))
    assert [row["url"] for row in rows] == [f"http://example.com/{n}" for n in range(20)]
    assert archive.pages(rows) == [b"<p>%d" % n + b"x" * n * 40 for n in range(20)]
    assert skipped == {"request": 1}


@pytest.mark.parametrize(("packing", "whole"), [("plain", True), ("one gzip", True), ("blocked gzip", True), ("one zstd", True),
                                                ("gzip", False), ("zstd", False), ("lz4", False)])  # fmt: skip
def test_a_position_is_the_members_offset_or_in_one_member_the_unpacked_offset(archive, packing, whole):
    records = [archive.page(b"<p>%d" % n * 50) for n in range(5)]
    offsets = [0]
    for record in records[:-1]:
        offsets.append(offsets[-1] + len(record if whole else archive.pack([record], packing)))
    rows, _ = archive.read(archive.pack(records, packing))
    assert [row["position"] for row in rows] == offsets


def test_several_records_in_one_of_many_members_have_positions_of_their_own(archive):
    a, b, c = (archive.page(b"<p>%d" % n) for n in range(3))
    rows, _ = archive.read(gzip.compress(a) + gzip.compress(b + c) + gzip.compress(a))
    second = len(gzip.compress(a))
    assert [row["position"] for row in rows] == [0, second, second + 1, second + len(gzip.compress(b + c))]


def test_case_2_stumps_give_rows_and_the_records_around_them_are_read(archive):
    good = archive.page(HTML)
    for stump in (gzip.compress(b"WARC/1.0\r\n"), gzip.compress(archive.page(HTML * 50))[:40]):
        members = gzip.compress(good) + stump + gzip.compress(archive.record(archive.http(HTML), url=None)) + gzip.compress(good)
        rows, _ = archive.read(members)
        assert archive.pages(rows) == [HTML, HTML]
        assert [row["rule"] for row in rows][1:3] in (["truncated", "missing_url"], ["damaged", "missing_url"])
        assert len(rows) == 4


def test_case_2_in_a_plain_file(archive):
    good = archive.page(HTML)
    rows, _ = archive.read(good + b"WARC/1.0\r\n" + archive.record(archive.http(HTML), url=None) + good)
    assert archive.pages(rows) == [HTML, HTML]
    assert {row["rule"] for row in rows} - {None} <= {"truncated", "damaged", "missing_url"} and 3 <= len(rows) <= 4


def test_case_3_chunks_are_undone_where_they_are_and_plain_bodies_left_alone(archive):
    framed = archive.record(archive.http(chunked(HTML), "Transfer-Encoding: chunked"))
    plain = archive.record(archive.http(HTML, "Transfer-Encoding: chunked"))
    rows, _ = archive.read(framed + plain)
    assert archive.pages(rows) == [HTML, HTML]


def test_a_chunked_body_with_extensions_trailers_and_bare_newlines_is_undone(archive):
    body = b"5;name=value\nhello\n0005\r\n html\r\n0\r\nTrailer: x\r\n\r\n"
    row = only(archive.read(archive.record(archive.http(body, "Transfer-Encoding: chunked")))[0])
    assert row["payload"] == b"hello html"


def test_a_chunked_body_cut_by_the_crawler_gives_what_is_there(archive):
    body = chunked(HTML, 16)[:-20]
    row = only(archive.read(archive.record(archive.http(body, "Transfer-Encoding: chunked")))[0])
    assert row["payload"] and HTML.startswith(row["payload"])


def test_chunk_framing_that_breaks_off_in_the_middle_is_undecodable(archive):
    body = b"5\r\nhello\r\n" + b"this is no chunk size, and a good deal more of it\r\n"
    row = only(archive.read(archive.record(archive.http(body, "Transfer-Encoding: chunked")))[0])
    assert row["rule"] == "undecodable"


def raw_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(data) + deflate.flush()


CODINGS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "br": brotli.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("coding", CODINGS)
def test_a_content_coding_is_undone(archive, coding):
    row = only(archive.read(archive.record(archive.http(CODINGS[coding](HTML), f"Content-Encoding: {coding}")))[0])
    assert row["payload"] == HTML


def test_bare_deflate_is_undone(archive):
    row = only(archive.read(archive.record(archive.http(raw_deflate(HTML), "Content-Encoding: deflate")))[0])
    assert row["payload"] == HTML


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Encoding: gzip, gzip"], gzipped(gzipped(HTML))),
        (["Content-Encoding: gzip", "Content-Encoding: br"], brotli.compress(gzipped(HTML))),
        (["Content-Encoding: br, gzip", "Transfer-Encoding: chunked"], chunked(gzipped(brotli.compress(HTML)))),
        (["Transfer-Encoding: gzip, chunked"], chunked(gzipped(HTML))),
        (["Content-Encoding: gzip"], gzipped(gzipped(HTML))),
        ([], gzipped(HTML)),
    ],
)
def test_case_4_stacked_and_undeclared_codings_are_undone(archive, headers, body):
    row = only(archive.read(archive.record(archive.http(body, *headers)))[0])
    assert row["payload"] == HTML


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "gzip, gzip", "utf-8", "identity", "none"])
def test_a_plain_body_whose_header_claims_a_coding_is_taken_as_it_is(archive, coding):
    row = only(archive.read(archive.record(archive.http(HTML, f"Content-Encoding: {coding}")))[0])
    assert row["payload"] == HTML


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", brotli.compress(HTML * 30)),
        ("compress", raw_deflate(bytes(range(256)) * 4)),
        ("gzip", gzipped(HTML * 9)[:-8] + bytes(8)),
        ("br", raw_deflate(bytes(range(256)) * 4)),
        ("deflate", b"\x07" + brotli.compress(bytes(range(256)))),
    ],
)
def test_case_4_bytes_that_do_not_bear_their_coding_never_reach_extraction(archive, coding, body):
    row = only(archive.read(archive.record(archive.http(body, f"Content-Encoding: {coding}")))[0])
    assert row["rule"] == "undecodable"


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_too_large_and_stops_at_the_limit(archive, coding):
    bomb = CODINGS[coding](b"<p>" + bytes(50 << 20))
    row = only(archive.read(archive.record(archive.http(bomb, f"Content-Encoding: {coding}")), max_payload_bytes=1 << 20)[0])
    assert (row["rule"], row["value"]) == ("too_large", float(1 << 20))


def test_a_payload_of_exactly_the_limit_is_kept_and_one_byte_more_is_not(archive):
    for extra, rule in ((0, None), (1, "too_large")):
        row = only(archive.read(archive.page(b"<p>" + b"x" * (997 + extra)), max_payload_bytes=1000)[0])
        assert row["rule"] == rule
        assert rule is None or row["value"] == 1001


@pytest.mark.parametrize("packing", ["plain", "gzip"])
def test_a_record_larger_than_memory_should_hold_gives_its_size_and_the_next_record_is_read(archive, packing):
    giant = archive.page(b"<p>" + bytes(40 << 20))
    rows, _ = archive.read(archive.pack([giant, archive.page(HTML)], packing), max_payload_bytes=1 << 20)
    assert [row["rule"] for row in rows] == ["too_large", None]
    assert rows[0]["value"] > 40 << 20


@pytest.mark.parametrize("status", [200, 203, 206, 299])
def test_every_2xx_is_kept(archive, status):
    row = only(archive.read(archive.record(archive.http(HTML, status=f"{status} Fine")))[0])
    assert row["payload"] == HTML


@pytest.mark.parametrize("status", ["199 X", "300 X", "301", "404 Not Found", "503 "])
def test_other_statuses_are_losses_with_the_status_as_value(archive, status):
    row = only(archive.read(archive.record(archive.http(HTML, status=status)))[0])
    assert (row["rule"], row["value"]) == ("status", float(status[:3]))


def test_an_interim_response_is_passed_over(archive):
    block = b"HTTP/1.1 100 Continue\r\n\r\n" + archive.http(HTML)
    assert archive.pages(archive.read(archive.record(block))[0]) == [HTML]


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/html", HTML, "text/html"),
        ("application/xhtml+xml; charset=utf-8", HTML, "application/xhtml+xml"),
        ("text/plain", b"words", "text/plain"),
        (None, b"\xef\xbb\xbf \n<!-- note --><!DOCTYPE html><p>x", "text/html"),
        ("application/octet-stream", b"<html><p>x", "text/html"),
        ("unknown", b"<HTML><p>x", "text/html"),
        ("application/xml", b"<?xml version='1.0'?><html xmlns='x'><p>x</p></html>", "application/xhtml+xml"),
        (None, "<html><p>x".encode("utf-16"), "text/html"),
        (None, b"words without markup", None),
        ("application/json", b"{}", None),
        ("text/css", b"p {}", None),
        ("text/javascript", b"<html>", None),
        ("image/png", b"\x89PNG\r\n\x1a\n", None),
        ("text/html", b"\x89PNG\r\n\x1a\nrest", None),
        ("text/html", b"%PDF-1.4 rest", None),
        ("application/rss+xml", b"<rss>", None),
    ],
)  # fmt: skip
def test_documents_are_html_xhtml_and_plain_text_declared_or_seen(archive, content_type, body, expected):
    row = only(archive.read(archive.record(archive.http(body, content_type=content_type)))[0])
    if expected is None:
        assert row["rule"] == "media_type" and row["detail"]
    else:
        assert (row["rule"], row["media_type"], row["payload"]) == (None, expected, body)


@pytest.mark.parametrize("body", [b"", b" \r\n\t "])
def test_an_empty_body_is_a_loss(archive, body):
    assert only(archive.read(archive.record(archive.http(body)))[0])["rule"] == "empty_payload"


def test_records_of_other_kinds_are_counted_by_type(archive):
    kinds = ["warcinfo", "request", "metadata", "revisit", "continuation", "monkeys"]
    records = [archive.record(b"x: y\r\n", kind) for kind in kinds]
    records.append(archive.record(b"20240101\n1.2.3.4", "response", "dns:example.com", Content_Type="text/dns"))
    rows, skipped = archive.read(b"".join(records))
    assert not rows
    assert skipped == dict.fromkeys([*kinds[:-1], "unknown type", "dns"], 1)


def test_resource_and_conversion_records_are_documents(archive):
    resource = archive.record(HTML, "resource", Content_Type="text/html; charset=koi8-r")
    wet = archive.record("Größe".encode(), "conversion")
    rows, _ = archive.read(resource + wet)
    assert [(row["media_type"], row["charset"], row["payload"]) for row in rows] == [
        ("text/html", "koi8-r", HTML),
        ("text/plain", "utf-8", "Größe".encode()),
    ]


def test_a_target_uri_in_angle_brackets_loses_them(archive):
    assert only(archive.read(archive.page(HTML, "<http://example.com/x>"))[0])["url"] == "http://example.com/x"


def test_header_lines_that_end_in_lf_alone_are_read(archive):
    record = archive.page(HTML)
    head, _, block = record.partition(b"\r\n\r\n")
    lf_only = head.replace(b"\r\n", b"\n") + b"\n\n" + block
    rows, _ = archive.read(lf_only + lf_only)
    assert archive.pages(rows) == [HTML, HTML]


def test_names_in_any_case_folded_lines_and_foreign_bytes_in_headers_are_read(archive):
    record = (
        archive.page(HTML)
        .replace(b"WARC-Target-URI: http", b"warc-TARGET-uri:\r\n http")
        .replace(b"WARC-Date", b"X: \xff\xfe\r\nwarc-date")
    )
    row = only(archive.read(record)[0])
    assert (row["url"], row["date"], row["payload"]) == ("http://example.com/", "2024-05-06T07:08:09Z", HTML)


@pytest.mark.parametrize("packing", ["gzip", "zstd", "lz4"])
def test_a_body_shorter_than_content_length_is_truncated_with_both_lengths(archive, packing):
    good = archive.page(HTML)
    block = archive.http(HTML)
    short = archive.record(block, Content_Length=str(len(block) + 100)).removesuffix(b"\r\n\r\n")
    rows, _ = archive.read(archive.pack([good, short, good], packing))
    assert archive.pages(rows) == [HTML, HTML]
    assert (rows[1]["rule"], rows[1]["value"]) == ("truncated", float(len(block)))
    assert f"{len(block)} of {len(block) + 100} bytes" in rows[1]["detail"]


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd", "lz4"])
def test_a_file_that_ends_within_a_record_gives_it_as_truncated(archive, packing):
    first, second = archive.page(HTML), archive.page(HTML + bytes(range(256)) * 8)
    whole, start = archive.pack([first, second], packing), len(archive.pack([first], packing))
    rows, _ = archive.read(whole[: (start + len(whole)) // 2])
    assert archive.pages(rows) == [HTML]
    assert [row["rule"] for row in rows] == [None, "truncated"]


def test_a_page_that_the_crawler_truncated_is_kept(archive):
    row = only(archive.read(archive.record(archive.http(HTML), "response", "http://example.com/", "WARC-Truncated: length"))[0])
    assert row["payload"] == HTML


@pytest.mark.parametrize("packing", ["plain", "one gzip", "one zstd"])
@pytest.mark.parametrize("change", [-20, -1, 7, 300, 100_000])
def test_a_record_of_wrong_length_is_damaged_and_swallows_no_other(archive, packing, change):
    good = archive.page(HTML)
    block = archive.http(HTML)
    wrong = archive.record(block, Content_Length=str(len(block) + change))
    rows, _ = archive.read(archive.pack([good, wrong, good, good], packing))
    assert archive.pages(rows) == [HTML] * 3
    assert [row["rule"] for row in rows] == [None, "damaged", None, None]
    assert rows[1]["position"] == len(good)


def test_garbage_between_records_is_one_row_at_its_offset(archive):
    good = archive.page(HTML)
    rows, _ = archive.read(good + b"The monkeys are coming!\r\n" + good)
    assert [(row["position"], row["rule"]) for row in rows] == [(0, None), (len(good), "damaged"), (len(good) + 25, None)]
    packed = gzip.compress(good)
    rows, _ = archive.read(packed + b"monkeys" + packed)
    assert [(row["position"], row["rule"]) for row in rows] == [(0, None), (len(packed), "damaged"), (len(packed) + 7, None)]


def test_zero_bytes_and_empty_members_between_members_are_padding(archive):
    packed, empty = gzip.compress(archive.page(HTML)), gzip.compress(b"")
    rows, _ = archive.read(empty + packed + empty + bytes(1000) + packed + bytes(70_000))
    assert archive.pages(rows) == [HTML, HTML]
    assert rows[0]["position"] == len(empty)


def test_a_damaged_one_member_file_gives_the_records_before_the_damage_and_a_row(archive):
    noise = random.Random(5)
    records = [archive.page(b"<p>" + noise.randbytes(1500).hex().encode()) for _ in range(40)]
    data = bytearray(gzip.compress(b"".join(records)))
    middle = len(data) // 2
    data[middle : middle + 50] = bytes(50)
    rows, _ = archive.read(bytes(data))
    pages = archive.pages(rows)
    assert 15 <= len(pages) < 30
    assert all(page in record for page, record in zip(pages[:15], records[:15], strict=True))
    assert rows[-1]["rule"] == "damaged"


def test_a_segmented_record_is_not_taken_for_a_whole_page(archive):
    row = only(archive.read(archive.record(archive.http(HTML), "response", "http://a/", "WARC-Segment-Number: 1"))[0])
    assert row["rule"] == "segmented"


def test_an_http_record_without_a_status_line_is_a_loss(archive):
    assert only(archive.read(archive.record(b"<html>no header</html>"))[0])["rule"] == "bad_http"


ARC_VERSION = b"1 0 Someone\nURL IP-address Archive-date Content-type Archive-length\n"
ARC_START = b"filedesc://x.arc 0.0.0.0 20080430204825 text/plain %d\n%s\n" % (len(ARC_VERSION), ARC_VERSION)


def arc(url: str, block: bytes, version: int = 1) -> bytes:
    more = " 200 checksum - 1234 x.arc" if version == 2 else ""
    return f"{url} 1.2.3.4 20080430204825 text/html{more} {len(block)}\n".encode() + block + b"\n"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("packing", ["plain", "gzip", "one gzip", "zstd"])
def test_arc_documents_are_read(archive, version, packing):
    urls = ["http://example.com/", "http://example.com/with a space?q=1 2"]
    records = [ARC_START, *(arc(url, archive.http(HTML, content_type="text/html; charset=gbk"), version) for url in urls)]
    records.append(arc("dns:example.com", b"1.2.3.4"))
    rows, skipped = archive.read(archive.pack(records, packing))
    assert [(row["url"], row["date"], row["charset"], row["payload"]) for row in rows] == [
        (url, "2008-04-30T20:48:25Z", "gbk", HTML) for url in urls
    ]
    assert skipped == {"filedesc": 1, "dns": 1}


def test_an_arc_document_without_http_header_has_the_type_of_its_line(archive):
    row = only(archive.read(ARC_START + arc("http://example.com/", HTML))[0])
    assert (row["media_type"], row["payload"]) == ("text/html", HTML)


def test_a_wrong_length_in_an_arc_is_damaged_and_swallows_no_other(archive):
    good = arc("http://example.com/", archive.http(HTML))
    wrong = good.replace(b"text/html %d" % (len(archive.http(HTML))), b"text/html 9999", 1)
    rows, _ = archive.read(ARC_START + good + wrong + good)
    assert [row["rule"] for row in rows] == [None, "damaged", None]


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\n", b"<html><p>a page named x.warc</html>", b"WA", b"\0" * 5000, b"\x1f\x8b\x08", b"BZh91AY", gzipped(b""), bytes(range(256)) * 400,
     gzipped(b"plain words, no record " * 1000), zstandard.compress(b"no record"), b"PK\x03\x04", b"\x28\xb5\x2f\xfd\xff\xff\xff\xff"],
)  # fmt: skip
def test_a_file_in_which_nothing_is_a_record_gives_one_unreadable_row(archive, data):
    row = only(archive.read(data)[0])
    assert (row["position"], row["rule"]) == (0, "unreadable") and row["detail"]


def wacz(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive_:
        for name, data in files.items():
            archive_.writestr(name, data)
    return out.getvalue()


def test_warcs_in_a_wacz_are_read_and_their_positions_are_offsets_in_it(archive):
    members = [gzip.compress(archive.page(b"<p>%d" % n)) for n in range(4)]
    data = wacz(
        {"datapackage.json": b"{}", "archive/a.warc.gz": members[0] + members[1], "archive/b.warc.gz": members[2] + members[3]}
    )
    rows, _ = archive.read(data)
    assert archive.pages(rows) == [b"<p>0", b"<p>1", b"<p>2", b"<p>3"]
    assert [data[row["position"] :].startswith(member) for row, member in zip(rows, members, strict=True)] == [True] * 4


def test_a_wacz_with_compressed_or_no_warcs_says_so(archive):
    assert "unpack" in only(archive.read(wacz({"archive/a.warc": archive.page(HTML) * 9}, zipfile.ZIP_DEFLATED))[0])["detail"]
    assert only(archive.read(wacz({"pages.jsonl": b"{}"}))[0])["rule"] == "unreadable"


def test_trouble_of_the_machine_is_raised_not_logged(archive):
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 100_000:
                raise OSError(5, "Input/output error")
            return super().read(size)

    data = archive.pack([archive.page(HTML + b"%d" % n) for n in range(4000)], "gzip")
    with pytest.raises(OSError, match="Input/output"):
        archive.read(Failing(data))


def test_batches_are_bounded_by_rows_and_bytes(archive):
    reader_type = find_reader("warc")
    small = b"".join(archive.page(HTML) for _ in range(600))
    sizes = [batch.num_rows for batch in reader_type(reader_type.options_type()).read(io.BytesIO(small), "a", "b", Counter())]
    assert sizes == [256, 256, 88]
    large = b"".join(archive.page(b"<p>" + b"x" * (6 << 20)) for _ in range(5))
    sizes = [batch.num_rows for batch in reader_type(reader_type.options_type()).read(io.BytesIO(large), "a", "b", Counter())]
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 99999999\r\n\r\n" * 3000,
        b"\x1f\x8b\x08\0" * 20_000,
        b"\x28\xb5\x2f\xfd" * 5_000,
        ARC_START + (b"a: " + b"1.1.1.1 200804302048 " * 150 + b"\n") * 20,
        b"WARC/1.0\r\nA: b\r\n" + b" x\r\n" * 100_000 + b"\r\n",
    ],
    ids=[
        "records that claim the whole file",
        "gzip magic numbers",
        "zstd magic numbers",
        "lines that almost start a record",
        "folded lines",
    ],
)
def test_files_made_to_be_slow_are_read_in_about_linear_time(archive, data):
    """Each of these took minutes, or would have, when one place was looked at again for each other place."""
    archive.read(data)


def test_a_page_that_starts_with_hundreds_of_comments_is_looked_through_once(archive):
    body = b"<!---->" * 100_000 + b"1"
    assert only(archive.read(archive.record(archive.http(body, content_type=None)))[0])["rule"] == "media_type"
