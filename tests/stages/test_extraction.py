"""Pages become text by either engine, and one bad page costs one document."""

from __future__ import annotations

import importlib.util
import sys
import unicodedata
from collections.abc import Iterator
from importlib import metadata
from typing import Literal

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


Engine = Literal["trafilatura", "resiliparse"]
with_resiliparse = pytest.mark.skipif(importlib.util.find_spec("resiliparse") is None, reason="resiliparse is not installed")
ENGINES = ["trafilatura", pytest.param("resiliparse", marks=with_resiliparse)]


@pytest.fixture(scope="module", params=ENGINES)
def stage(request: pytest.FixtureRequest) -> Iterator[Extraction]:
    made = Extraction(ExtractionOptions(engine=request.param))
    yield made
    made.close()


def text_of(stage: Extraction, html: str | bytes, media_type: str = "text/html") -> str | None:
    return texts(stage.decide(records([html if isinstance(html, bytes) else html.encode()], media_type)))[0]


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


@pytest.mark.parametrize("engine", ["trafilatura", pytest.param("resiliparse", marks=(with_resiliparse, pytest.mark.slow))])
def test_limits_decide_at_their_bounds(engine: Engine) -> None:
    page = article()
    elements = page.count(b"<") - page.count(b"</")
    for options, rule, value, threshold in [
        (ExtractionOptions(engine=engine, max_bytes=len(page)), None, np.nan, np.nan),
        (ExtractionOptions(engine=engine, max_bytes=len(page) - 1), "extraction.too_large", len(page), len(page) - 1),
        (ExtractionOptions(engine=engine, max_elements=elements), None, np.nan, np.nan),
        (ExtractionOptions(engine=engine, max_elements=elements - 1), "extraction.too_many_elements", elements, elements - 1),
        (ExtractionOptions(engine=engine, max_depth=4), None, np.nan, np.nan),
        (ExtractionOptions(engine=engine, max_depth=3), "extraction.too_deep", 4, 3),
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


@pytest.mark.slow
def test_a_table_of_a_million_rows_times_out_alone_where_limits_let_it_pass() -> None:
    table = b"<html><body><table>" + b"<tr><td>1" * 1_000_000 + b"</table></body></html>"
    stage = Extraction(ExtractionOptions(max_elements=10_000_000, cpu_seconds=1))
    pages = [article(number) for number in range(10)]
    verdict = stage.decide(records([*pages[:5], table, *pages[5:]]))
    stage.close()
    assert rules(verdict) == [None] * 5 + ["extraction.timeout"] + [None] * 5
    assert verdict.threshold is not None and verdict.threshold[5] == 1
    assert all(text is not None for row, text in enumerate(texts(verdict)) if row != 5)


@pytest.mark.parametrize(
    ("engine", "megabytes"),
    [("trafilatura", 300), ("trafilatura", 512), pytest.param("resiliparse", 300, marks=with_resiliparse)],
)
def test_a_page_that_eats_the_memory_is_removed_alone(engine: Engine, megabytes: int) -> None:
    # Less memory than the tree needs, then enough for the tree and too little for what comes after.
    options = ExtractionOptions(engine=engine, max_elements=100_000_000, max_bytes=1 << 30, memory_bytes=megabytes << 20)
    stage = Extraction(options)
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


def test_joiners_and_signs_that_readers_see_stay_and_controls_go(stage: Extraction) -> None:
    persian = "می\u200cخواهم کتاب\u200cهای خوب را بخوانم و نمی\u200cدانم کدام را برگزینم. " * 6
    text = text_of(
        stage,
        f"<html><body><p>{persian}</p><p>नमस्ते क्\u200dष \U0001f468\u200d\U0001f469 \u06dd\u0661 {SENTENCE * 2}</p></body></html>",
    )
    assert text is not None
    assert persian.strip() in text and "क्\u200dष" in text and "\U0001f468\u200d\U0001f469" in text and "\u06dd\u0661" in text
    newer = "\U0002ebf0"  # of Unicode 15.1, which Python 3.11 does not know
    text = text_of(
        stage, f"<html><body><p>con&#1;trol soft\u00adhyphen &#x200e;mark {newer} e\u0301 &#x9f; {SENTENCE * 3}</p></body></html>"
    )
    assert text is not None and "control softhyphen mark" in text and newer in text and "\u00e9" in text
    assert not any(unicodedata.category(character) == "Cc" for character in text if character not in "\n\t")


@pytest.mark.parametrize("reference", ["&#1;", "&#x1;", "&#X001F;", "&#31", "&#65534;", "&#xFFFF;", "\x01", "\x1f", "\ufffe"])
def test_a_control_character_does_not_cost_the_page(stage: Extraction, reference: str) -> None:
    text = text_of(stage, f"<html><body><p title='{reference}'>con{reference}trol {SENTENCE * 3}</p></body></html>")
    assert text is not None and text.startswith("control The harbour")


def test_feeds_and_tabs_part_words_and_other_references_stay(stage: Extraction) -> None:
    written = "one\x0ctwo\x0bthree&#12;four&#xB;five&#x000c;six&#11;seven &#65;&#x42;&#1234; &#111; &#x1f600; &#128;"
    text = text_of(stage, f"<html><body><p>{written} {SENTENCE * 3}</p></body></html>")
    assert text is not None and text.startswith("one two three four five six seven ABӒ o \U0001f600 €")


def test_an_element_with_an_impossible_name_does_not_cost_the_page() -> None:
    stage = Extraction(ExtractionOptions())
    for name in ('b"class=x', "stro]ng", "strong'", "p,"):
        odd = f"<ul><li>FIRST <{name}>SECOND</li><li>THIRD</li></ul><blockquote>QUOTED <{name}>WORDS</blockquote>"
        text = text_of(
            stage, f"<html><body><article><p>{SENTENCE * 3}</p>{odd}<p>AFTER {SENTENCE * 2}</p></article></body></html>"
        )
        assert text is not None and all(word in text for word in "FIRST SECOND THIRD QUOTED WORDS AFTER".split()), name
    stage.close()


def test_xml_is_read_by_its_declared_encoding(stage: Extraction) -> None:
    body = "".join(f"<p>Grüße aus Köln, {SENTENCE}</p>" for _ in range(4))
    page = f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>T</title></head><body>{body}</body></html>'
    for label, codec in [("ISO-8859-1", "latin-1"), ("UTF-8", "utf-8"), ("utf-16", "utf-16")]:
        source = f'<?xml version="1.0" encoding="{label}"?>{page}'.encode(codec)
        for media_type in ("application/xhtml+xml", "text/xml", "text/html"):
            text = text_of(stage, source, media_type)
            assert text is not None and text.count("Grüße aus Köln") == 4, (label, media_type)
    prefixed = (
        f'<?xml version="1.0"?><h:html xmlns:h="http://www.w3.org/1999/xhtml"><h:body><h:p>{SENTENCE * 3}</h:p></h:body></h:html>'
    )
    assert (text_of(stage, prefixed, "application/xhtml+xml") or "").count("harbour") == 3


def test_what_browsers_without_scripts_see_is_read_where_there_is_nothing_else(stage: Extraction) -> None:
    assert (text_of(stage, f"<html><body><noscript><p>{SENTENCE * 3}</p></noscript></body></html>") or "").count("harbour") == 3
    both = (
        f"<html><body><article><p>{SENTENCE * 5}</p></article><noscript><p>NOSCRIPT {SENTENCE * 3}</p></noscript></body></html>"
    )
    assert "NOSCRIPT" not in (text_of(stage, both) or "NOSCRIPT")


def test_a_page_of_frames_is_empty_and_has_a_row(stage: Extraction) -> None:
    frames = (
        b'<html><head><title>F</title></head><frameset cols="20%,80%"><frame src="a.html"><frame src="b.html"></frameset></html>'
    )
    assert rules(stage.decide(records([frames, article()]))) == ["extraction.empty", None]


def test_nuls_in_a_page_cost_nothing_but_themselves(stage: Extraction) -> None:
    whole = text_of(stage, article())
    assert whole is not None
    assert text_of(stage, article().replace(b"harbour", b"har\0bour")) == whole
    assert text_of(stage, b"\0" * 700 + article()) == whole


def test_a_page_of_a_hundred_megabytes_is_removed_unread() -> None:
    stage = Extraction(ExtractionOptions())
    verdict = stage.decide(records([b"<p>" + b"word " * 20_000_000]))
    stage.close()
    assert rules(verdict) == ["extraction.too_large"] and stage.sandbox._child is None


@with_resiliparse
def test_the_whole_page_is_an_option_of_resiliparse() -> None:
    stage = Extraction(ExtractionOptions(engine="resiliparse", main_content=False))
    page = f"<html><body><nav><a href='/'>NAVIGATION</a></nav><article><p>{SENTENCE * 5}</p></article></body></html>"
    whole = text_of(stage, page)
    stage.close()
    assert whole is not None and "NAVIGATION" in whole and whole.count("harbour") == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_and_links_are_options_of_both_engines(engine: Engine) -> None:
    page = f"<html><body><article><p>{SENTENCE * 5}</p><table><tr><td>CELL</td><td>{SENTENCE}</td></tr></table><p>{SENTENCE} <a href='http://x.example/y'>LINK</a> {SENTENCE}</p></article></body></html>"
    for tables in (True, False):
        stage = Extraction(ExtractionOptions(engine=engine, include_tables=tables, include_links=True))
        text = text_of(stage, page)
        stage.close()
        assert text is not None and ("CELL" in text) is tables and "http://x.example/y" in text, tables


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"engine": "resiliparse", "favor": "precision"}, "favor"),
        ({"engine": "resiliparse", "fast": True}, "fast"),
        ({"engine": "resiliparse", "include_formatting": True}, "include_formatting"),
        ({"main_content": False}, "main_content"),
        ({"engine": "justext"}, "engine"),
    ],
)
def test_an_option_that_an_engine_does_not_have_is_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ExtractionOptions.model_validate(options)
    assert ExtractionOptions.model_validate(ExtractionOptions(engine="resiliparse").model_dump())


@with_resiliparse
def test_the_version_of_resiliparse_decides_where_it_is_used() -> None:
    assert Extraction(ExtractionOptions()).identity() == {}
    assert Extraction(ExtractionOptions(engine="resiliparse")).identity() == {"resiliparse": metadata.version("resiliparse")}


def test_an_engine_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resiliparse", None)  # Python's own way to forbid an import
    Extraction(ExtractionOptions())
    with pytest.raises(ModuleNotFoundError, match=r"pip install corpusmill\[resiliparse\]"):
        Extraction(ExtractionOptions(engine="resiliparse"))
