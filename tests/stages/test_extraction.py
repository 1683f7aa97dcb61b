"""Pages become text, and one bad page costs one document."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from manifests.schemas import RECORDS, empty_rows
from stages.extraction import Extraction, ExtractionOptions
from stages.stage import Verdict

SENTENCE = "The harbour was quiet that morning, and the boats lay still under a pale sky while the keeper walked his round. "


def article(number: int = 0, extra: str = "") -> bytes:
    body = "".join(f"<p>{SENTENCE}This is paragraph {line} of page {number}.</p>" for line in range(6))
    return f"<html><head><title>Page {number}</title></head><body><article>{body}{extra}</article></body></html>".encode()


def records(
    payloads: list[bytes | None],
    media_type: str | None = "text/html",
    charset: str | None = None,
    texts: list[str | None] | None = None,
) -> pa.RecordBatch:
    rows = len(payloads)
    table = empty_rows(
        RECORDS,
        rows,
        component=pa.array(["web"] * rows),
        file=pa.array(["a.warc"] * rows),
        position=pa.array(range(rows), pa.int64()),
        payload=pa.array(payloads, pa.large_binary()),
        media_type=pa.array([media_type] * rows, pa.string()),
        charset=pa.array([charset] * rows, pa.string()),
        text=pa.array(texts or [None] * rows, pa.large_string()),
    )
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=RECORDS)


def texts(verdict: Verdict) -> list[str | None]:
    found: list[str | None] = verdict.columns["text"].to_pylist()
    return found


def rules(verdict: Verdict) -> list[str | None]:
    return [None if index < 0 else Extraction.removal_rules[index] for index in verdict.rule]


@pytest.fixture(scope="module")
def stage() -> Iterator[Extraction]:
    made = Extraction(ExtractionOptions())
    yield made
    made.close()


def test_the_same_page_gives_the_same_text_however_often_it_comes(stage: Extraction) -> None:
    found = texts(stage.decide(records([article()] * 6)))
    assert found[0] is not None and found[0].count("harbour") == 6
    assert set(found) == {found[0]}
    alone = texts(stage.decide(records([article()])))
    among_others = texts(stage.decide(records([article(number) for number in range(5)] + [article()])))
    assert alone[0] == among_others[-1] == found[0]


@pytest.mark.parametrize(
    ("written", "label", "words"),
    [
        ("latin-1", "ISO-8859-1", "Grüße aus Köln"),
        ("cp1251", "windows-1251", "Привет из Москвы"),
        ("cp932", "Shift_JIS", "日本語のページです"),
    ],
)
def test_letters_survive_with_the_charset_in_meta_only(stage: Extraction, written: str, label: str, words: str) -> None:
    html = (
        f'<html><head><meta http-equiv="Content-Type" content="text/html; charset={label}"></head><body>'
        + f"<p>{words}. {words}, {words}.</p>" * 5
        + "</body></html>"
    )
    text = texts(stage.decide(records([html.encode(written)])))[0]
    assert text is not None and words in text and "\ufffd" not in text


def test_plain_text_stays_as_it_is_but_for_line_ends(stage: Extraction) -> None:
    verdict = stage.decide(records([b"one\r\n  two <b>\rthree\n\n\xc3\xa9", b"  \n", b""], "text/plain"))
    assert texts(verdict) == ["one\n  two <b>\nthree\n\né", None, None]
    assert rules(verdict) == [None, "extraction.empty", "extraction.empty"]


def test_rows_that_have_a_text_pass_through(stage: Extraction) -> None:
    verdict = stage.decide(records([None, article()], texts=["kept <p>as</p> it is", None]))
    assert rules(verdict) == [None, None]
    assert texts(verdict)[0] == "kept <p>as</p> it is"


def test_html_is_recognised_without_a_media_type(stage: Extraction) -> None:
    untyped = texts(stage.decide(records([article(), b"just words, a < b"], None)))
    assert untyped[0] == texts(stage.decide(records([article()])))[0]
    assert untyped[1] == "just words, a < b"
    mislabelled = texts(stage.decide(records([b"<!DOCTYPE html>\n" + article()], "text/plain")))
    assert mislabelled[0] == untyped[0]


def test_a_page_with_nothing_to_read_is_empty(stage: Extraction) -> None:
    verdict = stage.decide(
        records([b"<html><body></body></html>", b"<html><body><script>x()</script></body></html>", b" \n ", b"<!-- x -->"])
    )
    assert rules(verdict) == ["extraction.empty"] * 4


def test_bytes_that_are_no_text_are_undecodable(stage: Extraction) -> None:
    assert rules(stage.decide(records([bytes(range(256)) * 20, article()]))) == ["extraction.undecodable", None]


def test_limits_decide_at_their_bounds() -> None:
    page = article()
    elements = page.count(b"<") - page.count(b"</")
    for options, rule, value, threshold in [
        (ExtractionOptions(max_bytes=len(page)), None, np.nan, np.nan),
        (ExtractionOptions(max_bytes=len(page) - 1), "extraction.too_large", len(page), len(page) - 1),
        (ExtractionOptions(max_elements=elements), None, np.nan, np.nan),
        (ExtractionOptions(max_elements=elements - 1), "extraction.too_many_elements", elements, elements - 1),
        (ExtractionOptions(max_depth=4), None, np.nan, np.nan),
        (ExtractionOptions(max_depth=3), "extraction.too_deep", 4, 3),
    ]:
        stage = Extraction(options)
        verdict = stage.decide(records([page]))
        assert rules(verdict) == [rule]
        np.testing.assert_array_equal([verdict.value, verdict.threshold], [[value], [threshold]])
        stage.close()


@pytest.mark.parametrize("levels", [250, 300, 1_000, 1_900])
def test_text_in_and_after_deep_nesting_is_found(stage: Extraction, levels: int) -> None:
    inner, after = f"<p>INNER {SENTENCE * 3}</p>", f"<p>AFTER {SENTENCE * 3}</p>"
    html = f"<html><body>{'<div>' * levels}{inner}{'</div>' * levels}{after}</body></html>"
    text = texts(stage.decide(records([html.encode()])))[0]
    assert text is not None and "INNER" in text and "AFTER" in text


@pytest.mark.parametrize("levels", [2_000, 5_000, 49_990])
def test_nesting_that_the_parser_would_lose_is_removed(stage: Extraction, levels: int) -> None:
    html = f"<html><body>{'<div>' * levels}deep{'</div>' * levels}<p>{SENTENCE * 5}</p></body></html>"
    verdict = stage.decide(records([html.encode(), article()]))
    assert rules(verdict) == ["extraction.too_deep", None]
    assert verdict.value is not None and verdict.value[0] > 2_000


def test_a_table_of_a_million_rows_is_removed_before_it_is_parsed(stage: Extraction) -> None:
    table = b"<html><body><table>" + b"<tr><td>1" * 1_000_000 + b"</table></body></html>"
    pages = [article(number) for number in range(10)]
    verdict = stage.decide(records([*pages[:5], table, *pages[5:]]))
    assert rules(verdict) == [None] * 5 + ["extraction.too_many_elements"] + [None] * 5


def test_a_table_of_a_million_rows_times_out_alone_where_limits_let_it_pass() -> None:
    table = b"<html><body><table>" + b"<tr><td>1" * 1_000_000 + b"</table></body></html>"
    stage = Extraction(ExtractionOptions(max_elements=10_000_000, cpu_seconds=1))
    pages = [article(number) for number in range(10)]
    verdict = stage.decide(records([*pages[:5], table, *pages[5:]]))
    stage.close()
    assert rules(verdict) == [None] * 5 + ["extraction.timeout"] + [None] * 5
    assert verdict.threshold is not None and verdict.threshold[5] == 1
    assert all(text is not None for row, text in enumerate(texts(verdict)) if row != 5)


@pytest.mark.parametrize("megabytes", [300, 512])
def test_a_page_that_eats_the_memory_is_removed_alone(megabytes: int) -> None:
    # Less memory than the tree needs, then enough for the tree and too little for what comes after.
    stage = Extraction(ExtractionOptions(max_elements=100_000_000, max_bytes=1 << 30, memory_bytes=megabytes << 20))
    bomb = b"<html><body>" + b"<p>x<br>" * 1_500_000
    verdict = stage.decide(records([article(1), bomb, article(2)]))
    stage.close()
    assert rules(verdict) == [None, "extraction.memory", None]


def test_comments_of_readers_are_left_out(stage: Extraction) -> None:
    comments = '<div id="comments"><div class="comment"><p>First! Great article, thanks for sharing all this.</p></div></div>'
    text = texts(stage.decide(records([article(0, comments)])))[0]
    assert text is not None and "First!" not in text


def test_a_batch_without_pages_starts_no_child() -> None:
    stage = Extraction(ExtractionOptions())
    assert texts(stage.decide(records([None], texts=["x"]))) == ["x"]
    assert texts(stage.decide(records([]))) == []
    assert stage.sandbox._child is None
    stage.close()


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="favour"):
        ExtractionOptions(favour="precision")  # type: ignore[call-arg]
