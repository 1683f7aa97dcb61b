"""JSON Lines: one document a line, whatever is wrong with it."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from functools import partial

import lz4.frame
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

gzipped = partial(gzip.compress, mtime=0)
"""With no time of its own: the names of tests hold what they are given, and processes that share them must agree on names."""


def rows_of(archive, data: bytes, **options):
    return archive.read(data, "jsonl", **options)


def test_case_40_a_raw_line_separator_within_a_string_is_part_of_the_text(archive):
    text = "one\u2028two\u0085three\u2029four\x1c\x0bfive"
    raw = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
    assert "\u2028".encode() in raw and "\u0085".encode() in raw
    rows, _ = rows_of(archive, raw)
    assert [row["text"] for row in rows] == [text]


def test_positions_are_line_numbers_that_count_blank_and_bad_lines(archive):
    data = b'{"text": "a"}\n\n  \r\nnot json\n{"text": "b"}\r\n{"text": "c"}'
    rows, skipped = rows_of(archive, data)
    assert [(row["position"], row["text"], row["rule"]) for row in rows] == [
        (0, "a", None),
        (3, None, "bad_json"),
        (4, "b", None),
        (5, "c", None),
    ]
    assert skipped == {"blank": 2}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"[1, 2]", "bad_json"),
        (b'"text"', "bad_json"),
        (b"nul", "bad_json"),
        (b'{"text": "a"', "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b'{"text": ' + b"9" * 10_000 + b"}", "bad_json"),
        (b'{"other": "a"}', "missing_text"),
        (b'{"text": null}', "missing_text"),
        (b'{"text": 12}', "missing_text"),
        (b'{"text": ["a"]}', "missing_text"),
        (b'{"text": " \\n"}', "empty_text"),
        (b'{"text": "a \\ud83d b"}', "lone_surrogate"),
        (b'{"text": "\xe4"}', "bad_utf8"),
        (b'{"text": "a"}\x00', "bad_json"),
    ],
)
def test_a_line_that_is_no_document_is_a_loss_and_the_next_is_read(archive, line, rule):
    rows, _ = rows_of(archive, line + b'\n{"text": "next"}\n')
    assert [(row["position"], row["rule"]) for row in rows] == [(0, rule), (1, None)]
    assert rule == "empty_text" or rows[0]["detail"]


def test_a_pair_of_surrogate_escapes_is_one_character(archive):
    assert rows_of(archive, b'{"text": "\\ud83d\\ude00"}')[0][0]["text"] == "\U0001f600"


def test_url_and_date_are_taken_and_never_make_a_loss(archive):
    data = b'{"text": "a", "url": "http://a/", "when": 20240101}\n{"text": "b", "url": ["x"], "when": null}\n{"text": "c", "url": "\\ud800"}\n'
    rows, _ = rows_of(archive, data, date_field="when")
    assert [(row["url"], row["date"]) for row in rows] == [("http://a/", "20240101"), (None, None), ("?", None)]


def test_html_comes_as_a_page(archive):
    row = rows_of(archive, '{"html": "<p>Größe", "text": "x"}'.encode(), html_field="html")[0][0]
    assert (row["payload"], row["media_type"], row["charset"], row["text"]) == ("<p>Größe".encode(), "text/html", "utf-8", None)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress, lz4.frame.compress])
def test_packing_is_told_by_the_first_bytes_and_changes_nothing(archive, pack):
    plain = b"\xef\xbb\xbf" + b"".join(json.dumps({"text": f"text {n} " * n}).encode() + b"\n" for n in range(1, 700))
    packed = pack(plain[:5000]) + pack(plain[5000:])
    rows, _ = rows_of(archive, packed)
    assert [row["text"] for row in rows] == [f"text {n} " * n for n in range(1, 700)]
    assert [row["position"] for row in rows] == list(range(699))


def test_a_damaged_gzip_tail_is_one_row_at_the_line_that_was_reached(archive):
    plain = b"".join(json.dumps({"text": f"text {n}"}).encode() + b"\n" for n in range(5000))
    packed = gzip.compress(plain)
    rows, _ = rows_of(archive, packed[: len(packed) // 2])
    assert [row["rule"] for row in rows[:-1]] == [None] * (len(rows) - 1) and len(rows) > 1000
    assert (rows[-1]["rule"], rows[-1]["position"]) == ("damaged", len(rows) - 1)
    assert rows[-2]["text"] == f"text {len(rows) - 2}"


def test_a_line_longer_than_memory_should_hold_is_too_large_and_is_not_held(archive):
    long = b'{"text": "' + b"x" * (60 << 20) + b'"}'
    data = gzip.compress(long + b'\n{"text": "next"}\n', 1)
    del long
    tracemalloc.start()
    rows, _ = rows_of(archive, data, max_payload_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(row["rule"], row["value"]) for row in rows] == [("too_large", float((60 << 20) + 12)), (None, None)]
    assert peak < 12 << 20


def test_a_text_of_exactly_the_limit_is_kept_and_one_byte_more_is_not(archive):
    rows, _ = rows_of(
        archive,
        json.dumps({"text": "ä" * 50}).encode() + b"\n" + json.dumps({"text": "ä" * 50 + "x"}).encode(),
        max_payload_bytes=100,
    )
    assert [(row["rule"], row["value"]) for row in rows] == [(None, None), ("too_large", 101.0)]


@pytest.mark.parametrize("data", [b"", gzipped(b""), b"\x1f\x8b\x08\x00garbage", gzipped(b'{"text": "a"}')[:12]])
def test_a_file_without_a_line_is_unreadable(archive, data):
    rows, _ = rows_of(archive, data)
    assert [(row["position"], row["rule"]) for row in rows] == [(0, "unreadable")]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1))
def test_any_text_comes_back_as_it_was(archive, texts):
    data = b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts)
    assert [row["text"] for row in rows_of(archive, data)[0]] == texts
