"""The browser: every page says what the logs say, whoever wrote what stands in them, and only those may ask who should."""

from __future__ import annotations

import csv
import html
import http.client
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from manifests.audit.flow import quiet_stages
from manifests.audit.removed import NOTHING
from manifests.audit.reviews import Review, ReviewFile
from manifests.audit.unchecked import unchecked
from manifests.commands import app as program
from manifests.identity import url_key
from manifests.life import lives
from manifests.logs import Logs
from manifests.manifest import Manifest, open_corpus
from manifests.schemas import REMOVALS
from manifests.storage import Folder

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

import uvicorn
from starlette.testclient import TestClient

from stages.audit_browser import browser as browser_module
from stages.audit_browser import commands, documents
from stages.audit_browser.access import HEADERS, POLICY, Access, is_loopback, own_connection
from stages.audit_browser.application import application
from stages.audit_browser.browser import Browser
from stages.audit_browser.pages import link
from stages.audit_browser.questions import ClientGone, CorpusUnreadable, Questions, TooLong
from stages.audit_browser.texts import PAGE_CHARACTERS, shown, side_by_side
from stages.audit_texts import sampled
from stages.offending import differences
from tests.pipeline.crawl import article, build, small_recipe, write_small

assert commands

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOME = "http://localhost"
OURS = {"sec-fetch-site": "same-origin"}
HOSTILE = [
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "</mark></div><svg onload=document.title='taken'>{{ 7*7 }}",
    "\x1b[31m\u202eevil&lt;b&gt;",
    "javascript:document.title='taken'",
    "'; drop table removals; --",
]
Asked = Callable[..., Any]


def browser_of(corpus: Path, reviews: Path, **more: Any) -> Browser:
    questions = Questions(str(corpus))
    access = more.pop("access", None) or Access(trusts_own=True, own=lambda client, server: True)
    return Browser(questions, ReviewFile(reviews, questions.manifest.digest), access, reviewer="Ada", **more)


def client_of(browser: Browser, base: str = HOME) -> TestClient:
    return TestClient(application(browser), base_url=base, follow_redirects=False)


@pytest.fixture(scope="module")
def served(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client_of(browser_of(finished, tmp_path_factory.mktemp("reviews") / "reviews.jsonl"))


@pytest.fixture(scope="module")
def gone(finished: Path) -> list[dict[str, Any]]:
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        return logs.sql("select * from removals order by component, file, position")


class Read(HTMLParser):
    """Tags with their attributes, and all words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def links(self) -> list[str]:
        return [str(one["href"]) for tag, one in self.tags if tag == "a"]


def page(client: TestClient, path: str, code: int = 200) -> Read:
    answer = client.get(path)
    assert answer.status_code == code, answer.text
    return Read(answer.text)


def every_page(gone: list[dict[str, Any]]) -> list[str]:
    twin = next(row for row in gone if row["kept_id"])
    filtered = next(row for row in gone if row["stage"] == "filters1")
    return [
        "/",
        "/removals",
        link("/removals", rule=twin["rule"], rows=2, order="highest"),
        *(link("/document", id=row["id"]) for row in (twin, filtered, gone[0])),
        link("/document", id=twin["kept_id"]),
        link("/twins", id=twin["id"]),
        link("/rule", name=filtered["rule"]),
        "/whatif",
        link("/whatif", change="c4.curly_brace=off"),
        link("/review", rule=twin["rule"]),
        "/reviews",
    ]


# what pages say


def test_every_page_has_a_title_landmarks_a_skip_link_and_labels(served: TestClient, gone: list[dict[str, Any]]) -> None:
    for path in every_page(gone):
        read = page(served, path)
        tags = [tag for tag, _ in read.tags]
        for once in ("main", "h1"):
            assert tags.count(once) == 1, (path, once)
        assert {"header", "nav", "footer"} <= set(tags)
        assert read.links()[0] == "#main"
        ids = {one["id"] for _, one in read.tags if one.get("id")}
        labelled = {one["for"] for tag, one in read.tags if tag == "label" and "for" in one}
        assert labelled <= ids
        for tag, one in read.tags:
            if tag in ("input", "select") and one.get("type") not in ("hidden", "checkbox"):
                assert one.get("id") in labelled or one.get("aria-label"), (path, one)
            if tag == "th":
                assert one.get("scope") in ("col", "row"), path


def cells(markup: str) -> list[list[str]]:
    """The rows of every table of a page, cell by cell."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", markup, re.S)
    return [[Read(one).text for one in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)] for row in rows]


def test_the_overview_tells_of_every_rule_what_it_removed_and_what_alone(
    served: TestClient, gone: list[dict[str, Any]], manifest: Manifest
) -> None:
    answer = served.get("/")
    told = {(row[0], row[1]): (row[2], row[4]) for row in cells(answer.text) if len(row) == 7 and row[0] != "rule"}
    counted: dict[tuple[str, str], list[int]] = {}
    for row in gone:
        both = counted.setdefault((row["rule"], row["stage"]), [0, 0])
        both[0] += 1
        both[1] += len(row["failed_rules"] or [row["rule"]]) == 1
    assert told == {key: (f"{removed:,}", f"{alone:,}") for key, (removed, alone) in counted.items()}
    assert any(removed != alone for removed, alone in told.values())
    for rule, _ in told:
        assert link("/rule", name=rule) in Read(answer.text).links()
    said = Read(answer.text).text
    for component in manifest.content.components.values():
        assert component.licence in said
    for gap in unchecked(manifest.content):
        assert gap.said in said
    assert f"Removed nothing: {', '.join(quiet_stages(manifest.content))}." in said


def test_of_many_removals_it_is_counted_on_request_who_removed_them_alone(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_module, "COUNTED_UNASKED", 3)
    client = client_of(browser_of(finished, tmp_path / "r"))
    assert "by it alone" not in page(client, "/").text and "/?alone=1#rules" in page(client, "/").links()
    assert "by it alone" in page(client, "/?alone=1").text
    assert "by it alone" in page(client, "/").text  # and is known from then on


def test_a_rule_is_told_with_the_share_of_what_came_in_from_where(
    served: TestClient, gone: list[dict[str, Any]], finished: Path
) -> None:
    said = page(served, link("/rule", name="minhash.near_duplicate")).text
    mine = [row for row in gone if row["rule"] == "minhash.near_duplicate"]
    assert f"It removed {len(mine)} documents; removed by it alone: {len(mine)}." in said
    assert f"{len(mine)} documents to review" in said  # of so few, ± 5 points takes all
    with Logs(*open_corpus(str(finished)), ["documents"]) as logs:
        came = {row["language"]: row["n"] for row in logs.sql("select language, count(*) as n from documents group by 1")}
    for language in {row["language"] for row in mine}:
        removed = sum(row["language"] == language for row in mine)
        assert f"({removed:,} of {came[language]:,})" in said


def test_following_next_page_shows_every_removal_once(served: TestClient, gone: list[dict[str, Any]]) -> None:
    for order in ("document", "lowest", "highest"):
        found, path = [], link("/removals", rows=4, order=order)
        while path:
            answer = served.get(path)
            assert answer.status_code == 200
            found += [html.unescape(one) for one in re.findall(r"<a data-row [^>]*>([^<]*)</a>", answer.text)]
            onward = re.search(r'<a href="([^"]*)" data-key="n"', answer.text)
            path = html.unescape(onward[1]) if onward else ""
        assert sorted(found) == sorted(row["id"] for row in gone)
        if order == "document":
            assert found == [row["id"] for row in gone]


def test_removals_are_found_by_rule_language_domain_and_value(served: TestClient, gone: list[dict[str, Any]]) -> None:
    cases: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
        ({"rule": "minhash.near_duplicate"}, lambda row: row["rule"] == "minhash.near_duplicate"),
        ({"language": NOTHING}, lambda row: row["language"] is None),
        ({"domain": "https://play.casino.example/x"}, lambda row: row["domain"] == "casino.example"),
        ({"stage": "filters1", "lowest": "0,9"}, lambda row: row["stage"] == "filters1" and row["value"] >= 0.9),
        ({"rule": HOSTILE[0]}, lambda row: False),
    ]
    for conditions, wanted in cases:
        said = json.loads(served.get(link("/removals.json", **conditions)).text)
        ids = [row["id"] for row in gone if wanted(row)]
        assert [row["id"] for row in said["rows"]] == ids and not said["more"]
        assert f"{len(ids)} removed document" in page(served, link("/removals", **conditions)).text
        rows = list(csv.DictReader(io.StringIO(served.get(link("/removals.csv", **conditions)).text)))
        assert [row["id"] for row in rows] == ids


def test_a_document_s_page_tells_its_life_with_the_evidence_marked(served: TestClient, gone: list[dict[str, Any]]) -> None:
    row = next(one for one in gone if one["rule"] == "c4.curly_brace")
    answer = served.get(link("/document", id=row["id"]))
    assert '<mark class="evidence" title="curly brace" id="m1">{</mark>' in answer.text
    said = Read(answer.text).text
    assert "Removed by c4.curly_brace" in said and "failed" in said
    loss = next(one for one in gone if one["stage"] == "read")
    assert "No text: the reader found no text" in page(served, link("/document", id=loss["id"])).text
    kept = next(one["kept_id"] for one in gone if one["kept_id"])
    said = page(served, link("/document", q=kept)).text
    assert "Kept in train" in said and "Removed as copies of it" in said


def test_a_stage_s_edits_are_one_row_and_rules_without_a_measure_are_folded(
    served: TestClient, gone: list[dict[str, Any]], finished: Path
) -> None:
    with Logs(*open_corpus(str(finished)), ["documents", "removals", "edits"]) as logs:
        query = "select id, count(*) as n, count(distinct step) as stages from edits group by id order by n - stages desc, id"
        edited = logs.sql(query)[0]
        measured = next(row["id"] for row in gone if row["stage"] == "filters1")
        life = lives(logs, measured)[0]
    assert edited["n"] > edited["stages"]
    markup = served.get(link("/document", id=edited["id"])).text
    section = markup[markup.index('id="edits"') :]
    rows = [row for row in cells(section[: section.index("</section>")]) if row[0] != "stage"]
    assert len(rows) == edited["stages"] and sum(row[1].count("×") for row in rows) == edited["n"]
    undefined = [one["rule"] for one in life.rules if one["value"] is None]
    assert undefined
    markup = served.get(link("/document", id=measured)).text
    assert f"{len(undefined)} rules had nothing to measure in it" in Read(markup).text
    assert not {row[0] for row in cells(markup)} & set(undefined)


def test_no_cell_is_blank_and_what_has_no_language_is_called_the_same_everywhere(
    served: TestClient, gone: list[dict[str, Any]]
) -> None:
    loss = next(row for row in gone if row["language"] is None and row["domain"] is None)
    for path in ("/", "/removals", link("/rule", name=loss["rule"]), "/reviews", link("/document", id=loss["id"])):
        for row in cells(served.get(path).text):
            assert "" not in row, (path, row)
    said = page(served, link("/rule", name=loss["rule"]))
    assert f"{NOTHING} " in said.text and link("/removals", rule=loss["rule"], language=NOTHING) in said.links()


def test_copies_stand_side_by_side_with_what_differs_marked(served: TestClient, gone: list[dict[str, Any]]) -> None:
    row = next(one for one in gone if one["rule"] == "minhash.near_duplicate")
    read = page(served, link("/twins", id=row["id"]))
    assert [one["class"] for tag, one in read.tags if tag == "mark"].count("differs") > 1
    assert [one["data-label"] for tag, one in read.tags if tag == "td" and "data-label" in one][:2] == ["removed", "kept"]
    assert link("/document", id=row["kept_id"]) in read.links()
    assert "nor was it removed as a copy" in page(served, link("/twins", id="12e5"), 404).text


def test_the_text_before_the_first_mark_is_short_and_none_of_it_is_lost() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 2000))
    at = [text.index("line 900"), text.index("line 905"), text.index("line 1500")]
    found = shown(text, [{"start": one, "end": one + 8, "what": "here"} for one in at])
    assert "".join(piece.text for piece in found.pieces) == text
    first = next(number for number, piece in enumerate(found.pieces) if piece.mark)
    before = [piece.text for piece in found.pieces[:first] if not piece.folded]
    assert before == ["line 897\nline 898\nline 899\n"]
    assert [piece.place for piece in found.pieces if piece.mark] == [1, None, 2]  # 900 and 905 are seen at once
    assert (found.places, found.first_place, found.last_place) == (2, 1, 2)
    assert sum(len(piece.text) for piece in found.pieces if not piece.folded) < 2000
    assert not any(piece.folded for piece in shown(text, []).pieces)  # where nothing is marked, all of it is to be read


def marks_of(left: str, right: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    mine, theirs = differences(left, right)
    return [dict(place.__dict__) for place in mine], [dict(place.__dict__) for place in theirs]


def random_texts(seed: int) -> tuple[str, str]:
    chosen = random.Random(seed)
    mine = [chosen.choice(["a", "b", "C", "d\n", "e  ", "\nf"]) for _ in range(chosen.randrange(600))]
    theirs = [chosen.choice([one, "X\n", "y"]) if chosen.random() < 0.05 else one for one in mine if chosen.random() < 0.95]
    return " ".join(mine), " ".join(theirs) if seed % 5 else ("", " ".join(mine), " \n")[seed // 5 % 3]


@pytest.mark.parametrize("seed", range(40))
def test_texts_side_by_side_hold_all_of_both_and_differ_only_where_marked(seed: int) -> None:
    left, right = random_texts(seed)
    marks = marks_of(left, right)
    found = side_by_side(left, right, marks[0], marks[1])
    assert found is not None and found.before is None and found.after is None
    sides = [["".join(piece.text for piece in (row.left, row.right)[side]) for row in found.rows] for side in (0, 1)]
    assert "".join(sides[0]) == left
    for row, mine, theirs in zip(found.rows, *sides, strict=True):
        plain = [" ".join(piece.text for piece in pieces if piece.mark is None).split() for pieces in (row.left, row.right)]
        if row.folded:
            assert not theirs and row.place is None
        else:
            assert [word.casefold() for word in plain[0]] == [word.casefold() for word in plain[1]]
            assert (row.place is None) == (mine.casefold().split() == theirs.casefold().split())
    if not any(row.folded for row in found.rows):
        assert "".join(sides[1]) == right
    marked = " ".join(piece.text for row in found.rows for piece in row.left if piece.mark).split()
    assert marked == [word for place in marks[0] for word in left[place["start"] : place["end"]].split()]
    assert [row.place for row in found.rows if row.place] == list(range(1, found.differences + 1))


def test_long_equal_stretches_are_folded_in_both_texts_and_long_texts_have_pages() -> None:
    lines = [f"{number} is a line that both texts have" for number in range(5000)]
    other = [*lines]
    other[10], other[150], other[4990] = "another line", "one more", "and another"
    left, right = "\n".join(lines), "\n".join(other)
    found = side_by_side(left, right, *marks_of(left, right))
    assert found is None  # too long to be compared word by word
    left, right = "\n".join(lines[:200]), "\n".join(other[:200])
    found = side_by_side(left, right, *marks_of(left, right))
    assert found is not None and [row.folded for row in found.rows].count(True) == 2
    assert [row.left[0].text.split()[0] for row in found.rows if row.place is not None] == ["10", "150"]
    assert side_by_side("a " * 300_000, "a " * 300_000, [], []) is None
    whole = [{"start": 0, "end": len(left), "what": "differs"}]
    long = side_by_side("x\n" * 90_000 + "y", "y", [{"start": 0, "end": 180_000, "what": "differs"}], [])
    assert long is not None and long.differences == 1
    assert side_by_side(left, "", whole, []) is not None and side_by_side(left, right, [], []) is None
    equal = side_by_side(left, left, [], [])
    assert equal is not None and equal.differences == 0 and [row.folded for row in equal.rows] == [True]
    many = "\n".join(f"{number} " + "w " * 300 for number in range(300))
    spots = [{"start": one.start(), "end": one.start() + 1, "what": "differs"} for one in re.finditer("(?<=[0-9] )w", many)]
    pages, start = [], 0
    while True:
        one = side_by_side(many, many, spots, spots, start)
        assert one is not None
        pages.append(one)
        if one.after is None:
            break
        start = one.after
    assert len(pages) > 2 and pages[1].before == 0
    assert "".join(piece.text for one in pages for row in one.rows for piece in row.left) == many


def test_a_url_with_several_captures_lists_them(copied: Path, tmp_path: Path) -> None:
    def same(table: pa.Table) -> pa.Table:
        return set_column(set_column(table, "url", "https://twice.example/"), "url_key", url_key("https://twice.example/"))

    rewritten(copied, "documents", same)
    read = page(client_of(browser_of(copied, tmp_path / "r")), link("/document", q="https://twice.example/"))
    assert "More than 50 documents" in read.text
    assert sum(one.startswith("/document?id=") for one in read.links()) == 50


def test_what_if_says_what_is_exact_what_a_bound_and_what_an_estimate(served: TestClient, finished: Path) -> None:
    told = json.loads(CliRunner().invoke(program, ["audit", "whatif", str(finished), "c4.curly_brace=off", "--json"]).stdout)
    for path in (link("/whatif", change="c4.curly_brace=off"), "/whatif?bound%3Ac4.curly_brace=off&bound%3Agopher.min_words=50"):
        said = Read(served.get(path, follow_redirects=True).text).text
        for one in told["exact"]["rules"]:
            assert f"{one['failed']:,} documents failed it, {one['would_fail']:,} would" in said
        assert f"newly kept exact {told['exact']['newly_kept']['documents']} by their filter block" in said
        assert f"upper bound {told['upper_bound']['documents_that_come_in']}" in said
        assert f"estimate {told['estimate']['documents_that_come_in']:,.0f}" in said
        assert "gopher.min_words of" not in said  # as it is now: no change
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        alone = logs.sql("select count(*) as n from removals where failed_rules = ['c4.curly_brace']")[0]["n"]
    assert told["exact"]["newly_kept"]["documents"] == alone > 0  # what failed nothing else passes the block
    assert "no rule is called 'x.y'" in page(served, link("/whatif", change="x.y=3")).text
    assert "is not a number" in page(served, link("/whatif", **{"bound:gopher.min_words": HOSTILE[0]})).text
    assert "no rule is called x.y" in page(served, link("/whatif", **{"bound:x.y": "1"}), 400).text


def test_what_if_keeps_in_its_address_only_what_was_changed(served: TestClient) -> None:
    form = page(served, link("/whatif", rule="c4.curly_brace"))
    fields = {str(one["name"]): one.get("value") or "" for tag, one in form.tags if one.get("name") and tag == "input"}
    fields.pop("q")
    assert sum(name.startswith("bound:") for name in fields) > 20
    answer = served.get(link("/whatif", **{**fields, "bound:c4.curly_brace": "off"}))
    assert answer.status_code == 303
    assert answer.headers["location"] == link("/whatif", rule="c4.curly_brace", **{"bound:c4.curly_brace": "off"})
    assert "not applied" in page(served, answer.headers["location"]).text


def test_a_mark_that_lies_past_the_page_is_shown_first() -> None:
    text = "a" * 3 * PAGE_CHARACTERS
    marks = [{"start": 2 * PAGE_CHARACTERS, "end": 2 * PAGE_CHARACTERS + 5, "what": "here"}]
    found = shown(text, marks)
    assert [(piece.mark, piece.folded) for piece in found.pieces] == [
        (None, False),
        ("here", False),
        (None, False),
        (None, True),
    ]
    assert found.before is not None and found.after is not None
    assert sum(len(piece.text) for piece in found.pieces) == PAGE_CHARACTERS == found.end - found.start
    assert (
        "".join(piece.text for start in range(0, len(text), PAGE_CHARACTERS) for piece in shown(text, marks, start).pieces)
        == text
    )
    assert shown("", []).pieces == [] and shown("ab", [], 10**9).end == 2


LATE = article("late") * 12 + "\n" + "# " * 400
TEXTS = {
    "<img src=x onerror=document.title=1>.jsonl": "\n".join([*HOSTILE, "<b>bold</b> \ufdfa"]),
    "mail.jsonl": "write to jane.roe@example.org",
    "twin.jsonl": "<script>document.title='taken'</script> and some words more",
    "twin2.jsonl": "<script>document.title='taken'</script> and some words more",
}


@pytest.fixture(scope="module")
def with_hostile_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose removed documents have hostile texts and names."""
    folder = tmp_path_factory.mktemp("hostile")
    written = small_recipe([], ["exact_dedup"])
    written["components"]["docs"]["stages"] = ["gopher_quality"]
    written["components"]["docs"]["files"] = ["*"]
    short = {name: [{"text": text, "url": HOSTILE[0]}] for name, text in TEXTS.items()}
    files = {**short, "late.jsonl": [{"text": LATE}], "good.jsonl": [{"text": article("good")}, {"text": article("good")}]}
    build(write_small(folder, files, written), folder / "corpus")
    return folder / "corpus"


def test_personal_data_in_a_text_is_replaced_unless_it_is_asked_for(with_hostile_texts: Path, tmp_path: Path) -> None:
    path = link("/document", id="docs/mail.jsonl#0")
    said = page(client_of(browser_of(with_hostile_texts, tmp_path / "r")), path).text
    assert "write to" in said and "jane.roe" not in said
    assert (
        "jane.roe@example.org" in page(client_of(browser_of(with_hostile_texts, tmp_path / "r", personal_data=True)), path).text
    )


# reviews


def verdict(client: TestClient, path: str, name: str = "Ada", note: str = "", answer: str = "false_positive", **more: str) -> Any:
    form = client.get(path).text
    action = html.unescape(re.search(r'<form method="post" action="([^"]*)"', form)[1])  # type: ignore[index]
    token = re.search(r'name="form_token" value="([^"]*)"', form)[1]  # type: ignore[index]
    data = {"form_token": token, "verdict": answer, "reviewer": name, "note": note}
    return client.post(action, data=data, headers=more or OURS)


def test_a_review_is_stored_outside_and_gives_the_rule_a_rate(finished: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    path = tmp_path / "reviews.jsonl"
    client = client_of(browser_of(finished, path))
    start = link("/review", rule="minhash.near_duplicate", seed=3, n=4)
    answer = verdict(client, start, note=HOSTILE[0])
    assert answer.status_code == 303 and answer.headers["location"].endswith("at=2")
    assert "httponly" in answer.headers["set-cookie"].lower() and "samesite=strict" in answer.headers["set-cookie"].lower()
    assert verdict(client, link("/review", rule="minhash.near_duplicate", seed=3, n=4, at=2), answer="right").status_code == 303
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["verdict"], one["seed"], one["reviewer"]) for one in stored] == [
        ("false_positive", 3, "Ada"),
        ("right", 3, "Ada"),
    ]
    said = page(client, link("/rule", name="minhash.near_duplicate")).text
    assert "50.0 % 1 of 2 sampled" in said and "16.7 % to 83.3 % of the 6 that it removed" in said
    assert "4 more documents to review: 2 of 6 are decided" in said
    read = page(client, start)
    assert "3 of 4 by seed 3, 2 done by you" in read.text
    assert HOSTILE[0] in page(client, "/reviews").text
    assert [row["note"] for row in csv.DictReader(io.StringIO(client.get("/reviews.csv").text))] == [HOSTILE[0], ""]
    assert json.loads(client.get("/reviews.json").text)["rules"][0]["rate"] == 0.5
    verdict(client, link("/review", rule="minhash.near_duplicate", seed=3, n=4, at=1), answer="withdrawn")
    said = page(client, link("/rule", name="minhash.near_duplicate")).text
    assert "no sampled document is decided" in said and "1 picked by hand" in said  # the second one without the first
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_document_picked_by_hand_counts_in_no_rate(
    served: TestClient, gone: list[dict[str, Any]], finished: Path, tmp_path: Path
) -> None:
    client = client_of(browser_of(finished, tmp_path / "reviews.jsonl"))
    row = next(one for one in gone if one["rule"] == "c4.curly_brace")
    assert verdict(client, link("/document", id=row["id"])).headers["location"] == link("/document", id=row["id"])
    said = page(client, link("/rule", name="c4.curly_brace")).text
    assert "no sampled document is decided" in said and "1 picked by hand" in said
    # naming a sample that does not hold it makes it no sampled one
    token = client_token(client)
    path = link("/review", id=row["id"], of=row["rule"], rule="minhash.near_duplicate", seed=0, n=3)
    data = {"form_token": token, "verdict": "right", "reviewer": "Ben"}
    assert client.post(path, data=data, headers=OURS).status_code == 303
    assert "2 picked by hand" not in page(client, link("/rule", name="c4.curly_brace")).text
    assert json.loads((tmp_path / "reviews.jsonl").read_text().splitlines()[1])["seed"] is None


def client_token(client: TestClient) -> str:
    found = re.search(r'name="form_token" value="([^"]*)"', client.get(link("/review", rule="minhash.near_duplicate")).text)
    assert found
    return found[1]


class CountingReviews(ReviewFile):
    reads = 0

    def read(self) -> list[Review]:
        self.reads += 1
        return super().read()


def test_a_page_reads_the_reviews_once(finished: Path, tmp_path: Path, gone: list[dict[str, Any]]) -> None:
    browser = browser_of(finished, tmp_path / "r")
    browser.reviews = CountingReviews(browser.reviews.path, browser.reviews.corpus)
    client = client_of(browser)
    for path in every_page(gone):
        browser.reviews.reads = 0
        page(client, path)
        assert browser.reviews.reads <= 1, path


def test_the_samples_that_are_asked_for_stay_remembered(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(logs: Logs, rule: str, n: int, seed: int) -> list[dict[str, Any]]:
        made.append(seed)
        return sampled(logs, rule, n, seed)

    monkeypatch.setattr(browser_module, "sampled", counted)
    monkeypatch.setattr(browser_module, "SAMPLES_KEPT", 2)
    client = client_of(browser_of(finished, tmp_path / "r"))
    for seed in (1, 2, 1, 3, 1, 2):
        page(client, link("/review", rule="minhash.near_duplicate", n=2, seed=seed))
    assert made == [1, 2, 3, 2]  # 1, looked at again and again, is the one that stays


def test_what_is_no_review_is_refused_and_said(finished: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(finished, tmp_path / "reviews.jsonl"))
    start = link("/review", rule="minhash.near_duplicate")
    assert verdict(client, start, name="  ").status_code == 400
    assert verdict(client, start, answer="maybe").status_code == 400
    assert verdict(client, start, note="n" * 3000).status_code == 400
    assert verdict(client, start, note="n" * 100_000).status_code == 413
    token = client_token(client)
    nothing = client.post(link("/review", id="12e5", of="a.b"), data={"form_token": token, "verdict": "right"}, headers=OURS)
    assert nothing.status_code == 404
    assert not (tmp_path / "reviews.jsonl").exists()


# who may ask


def test_every_answer_has_the_headers_of_its_defence(served: TestClient, gone: list[dict[str, Any]]) -> None:
    paths = [
        *every_page(gone),
        "/static/style.css",
        "/static/keys.js",
        "/nowhere",
        "/document",
        "/removals.csv",
        "/static/..%2fx",
    ]
    for path in paths:
        answer = served.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
    assert served.get("/", headers={"host": "evil.example"}).headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY


def test_pages_have_no_script_or_style_of_their_own(served: TestClient, gone: list[dict[str, Any]]) -> None:
    for path in every_page(gone):
        for tag, one in page(served, path).tags:
            assert tag != "style" and not [name for name in one if name == "style" or name.startswith("on")]
            assert tag != "script" or one["src"] == "/static/keys.js"


@pytest.mark.parametrize("name", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765", "192.168.0.7", "LOCALHOST"])
def test_a_host_that_is_a_number_or_this_machine_is_known(served: TestClient, name: str) -> None:
    assert served.get("/", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "a b"])
def test_a_name_that_a_stranger_has_pointed_here_is_refused(served: TestClient, name: str) -> None:
    answer = served.get("/", headers={"host": name})
    assert answer.status_code == 421 and "small" not in answer.text


def test_forms_of_other_sites_are_not_taken(finished: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(finished, tmp_path / "reviews.jsonl"))
    start = link("/review", rule="minhash.near_duplicate")
    for headers in (
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": "null"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost:81"},
        {"origin": "http://localhost.evil.example"},
    ):
        assert verdict(client, start, **headers).status_code == 403
    for data in ({}, {"form_token": ""}, {"form_token": "é"}, {"form_token": "0" * 64}):
        filled = {"verdict": "right", "reviewer": "Ada", **data}
        assert client.post("/review?id=a&of=b", data=filled, headers=OURS).status_code == 403
    assert not (tmp_path / "reviews.jsonl").exists()
    assert verdict(client, start, origin="null").status_code == 303  # ours, by the token


def test_pages_of_other_sites_load_nothing_but_may_link_here(served: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        for use in ("image", "script", "iframe", "empty"):
            headers = {"sec-fetch-site": site, "sec-fetch-dest": use}
            assert served.get(link("/whatif", change="c4.curly_brace=off"), headers=headers).status_code == 403
        assert served.get("/", headers={"sec-fetch-site": site, "sec-fetch-dest": "document"}).status_code == 200
    assert (
        served.get("/static/style.css", headers={"sec-fetch-site": "same-origin", "sec-fetch-dest": "style"}).status_code == 200
    )


@pytest.mark.parametrize("name", ["forwarded", "x-forwarded-for", "X-Real-IP"])
def test_what_a_proxy_of_one_s_own_passes_on_is_not_one_s_own(served: TestClient, name: str) -> None:
    assert served.get("/", headers={name: "127.0.0.1"}).status_code == 303


def test_without_the_token_nothing_is_shown_and_with_it_all(finished: Path, tmp_path: Path, gone: list[dict[str, Any]]) -> None:
    access = Access(trusts_own=False)
    client = client_of(browser_of(finished, tmp_path / "r", access=access))
    for path in [*every_page(gone), "/removals.csv", "/reviews.json", "/static/keys.js", "/nowhere"]:
        answer = client.get(path)
        assert answer.status_code == 303 and answer.text == ""
        assert answer.headers["location"] == f"/login?to={quote(path, safe='')}"
    assert client.post("/review?id=a&of=b").status_code == 403
    form = client.get("/login?to=%2Freviews").text
    assert "small" not in form and access.token not in form
    token = re.search(r'name="form_token" value="([^"]*)"', form)[1]  # type: ignore[index]
    assert token != access.form_token("review")
    for wrong in ("", "é", access.token[:-1], access.token + "x"):
        answer = client.post("/login?to=/reviews", data={"form_token": token, "token": wrong}, headers=OURS)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers and "not the token" in answer.text
    assert client.post("/login", data={"token": access.token}, headers=OURS).status_code == 403
    answer = client.post("/login?to=/reviews", data={"form_token": token, "token": access.token}, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/reviews")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and access.token.lower() not in cookie
    assert client.get("/").status_code == 200
    client.cookies.clear()
    client.cookies.set(Access.cookie_name({"server": ("localhost", 80)}), access.token)
    assert client.get("/").status_code == 303  # the token is no cookie


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/\t/evil.example", ""]
)
def test_nobody_is_sent_to_another_site_after_giving_the_token(finished: Path, tmp_path: Path, to: str) -> None:
    access = Access(trusts_own=False)
    client = client_of(browser_of(finished, tmp_path / "r", access=access))
    data = {"form_token": access.form_token("login"), "token": access.token}
    assert client.post(link("/login", to=to), data=data, headers=OURS).headers["location"] == "/"


def test_a_connection_is_one_s_own_only_if_the_system_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            assert own_connection(accepted.getpeername(), accepted.getsockname()) == (Path("/proc/net/tcp").exists())
            assert not own_connection(("127.0.0.1", 1), accepted.getsockname())
            assert not own_connection(("::1", client.getsockname()[1]), accepted.getsockname())
        assert not own_connection(client_name := ("127.0.0.1", 9), server.getsockname()), client_name
    for nothing in (None, ("testclient", 50000)):
        assert not own_connection(nothing, ("127.0.0.1", 80)) and not own_connection(("127.0.0.1", 80), nothing)


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_of_this_machine_needs_the_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ready, go = os.pipe()
        "localhost".encode("idna")  # somebody else may not be allowed to read the interpreter's modules
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65000)
                with socket.create_connection(("127.0.0.1", port)):
                    os.read(ready, 1)
            finally:
                os._exit(0)
        with server.accept()[0] as accepted:
            own = own_connection(accepted.getpeername(), accepted.getsockname())
        os.write(go, b"x")
        os.waitpid(child, 0)
    assert not own


def test_addresses_that_others_reach_are_told_apart() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


# strangers


def set_column(table: pa.Table, name: str, value: str | list[str | None] | None) -> pa.Table:
    at = table.schema.get_field_index(name)
    values = value if isinstance(value, list) else [value] * table.num_rows
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def rewritten(corpus: Path, kind: str, change: Callable[[pa.Table], pa.Table]) -> None:
    for path in (corpus / "logs" / kind).rglob("*.parquet"):
        pq.write_table(change(pq.ParquetFile(path).read()), path)


@pytest.fixture
def hostile(copied: Path) -> Path:
    """A corpus in which everything that strangers can name is hostile."""

    def names(table: pa.Table) -> pa.Table:
        for column in ("url", "domain", "language", "detail", "evidence", "benchmark", "item", "media_type", "date"):
            if column in table.schema.names:
                table = set_column(table, column, [HOSTILE[n % len(HOSTILE)] for n in range(table.num_rows)])
        return table

    for kind in ("documents", "removals", "edits"):
        rewritten(copied, kind, names)
    folder = Folder(copied)
    manifest = Manifest.load(folder)
    content = manifest.content.model_copy(deep=True)
    content.name = HOSTILE[2]
    for count in content.counts:
        if count.removed:
            count.removed = {HOSTILE[0] + rule: documents for rule, documents in count.removed.items()}
    rewritten(
        copied, "removals", lambda table: set_column(table, "rule", [HOSTILE[0] + one for one in table["rule"].to_pylist()])
    )
    Manifest.seal(content, manifest.run).save(folder)
    return copied


def test_nothing_that_strangers_wrote_becomes_markup(hostile: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(hostile, tmp_path / "r"))
    with Logs(*open_corpus(str(hostile)), ["removals"]) as logs:
        rows = logs.sql("select * from removals order by id")
    twin = next(row for row in rows if row["kept_id"])
    verdict(client, link("/review", rule=rows[0]["rule"]), name=HOSTILE[1], note=HOSTILE[0])
    paths = [
        "/",
        "/removals",
        "/reviews",
        "/whatif",
        *(link("/document", id=row["id"]) for row in rows),
        link("/twins", id=twin["id"]),
        link("/review", rule=rows[0]["rule"]),
        link("/rule", name=rows[0]["rule"]),
        *(link("/document", q=one) for one in HOSTILE),
        *(link("/removals", rule=one, language=one, component=one) for one in HOSTILE),
        *(link("/rule", name=one) for one in HOSTILE),
        link("/whatif", change=HOSTILE[1]),
        link("/removals", lowest=HOSTILE[0]),
        link("/removals", domain=HOSTILE[0]),
    ]
    everything = ""
    for path in paths:
        answer = client.get(path)
        assert answer.status_code in (200, 400, 404), path
        read = Read(answer.text)
        everything += read.text
        assert "\x1b" not in answer.text and "\u202e" not in answer.text
        for tag, one in read.tags:
            assert tag not in ("img", "iframe", "object", "style", "base"), path
            assert tag != "script" or one == {"src": "/static/keys.js", "defer": None}
            assert not [name for name in one if name.startswith("on") or name == "style"], (path, one)
            for name in ("href", "action", "src"):
                assert (one.get(name) or "/").startswith(("/", "#main", "?", "data:,")) and not (one.get(name) or "").startswith(
                    "//"
                )
    assert HOSTILE[0] in everything and HOSTILE[4] in everything and "{{ 7*7 }}" in everything
    assert "\\x1b[31m\\u202eevil&lt;b&gt;" in everything


def test_columns_that_are_all_null_and_ids_like_numbers_are_shown(copied: Path, tmp_path: Path) -> None:
    def bare(table: pa.Table) -> pa.Table:
        for field in table.schema:
            if field.nullable:
                at = table.schema.get_field_index(field.name)
                table = table.set_column(at, field, pa.nulls(table.num_rows, field.type))
        return set_column(table, "file", "12e5")

    rewritten(copied, "removals", bare)
    rewritten(copied, "documents", lambda table: set_column(table, "file", "12e5"))
    client = client_of(browser_of(copied, tmp_path / "r"))
    for order in ("document", "lowest", "highest"):
        said = json.loads(client.get(link("/removals.json", order=order)).text)["rows"]
        assert said and all(row["file"] == "12e5" and row["measured"] is None for row in said)
        assert page(client, link("/removals", order=order, rows=3)).links()
        assert "Nothing" in page(client, link("/removals", order=order, lowest=0)).text
    assert set(REMOVALS.names) >= {"value", "kept_jaccard"}
    assert page(client, link("/rule", name="c4.curly_brace")).text


@pytest.mark.parametrize(
    "path",
    [
        "/removals?rows=0",
        "/removals?rows=201",
        "/removals?rows=1e3",
        "/removals?lowest=nan",
        "/removals?highest=inf",
        "/removals?order=value",
        "/removals?domain=a%20b",
        "/removals?at_file=x&at_position=-1",
        "/removals?at_file=x&at_position=99999999999999999999",
        "/review?rule=c4.curly_brace&n=501",
        "/review?rule=c4.curly_brace&seed=x",
        "/review",
        "/rule",
        "/twins",
        "/document",
        "/rule?name=c4.curly_brace&half=x",
        "/document?id=" + "x" * 20_000,
        "/whatif?change=" + "a.b=1+" * 41,
    ],
)
def test_what_means_nothing_is_answered_with_what_is_wrong(served: TestClient, path: str) -> None:
    read = page(served, path, 400)
    assert any(one.get("role") == "alert" for _, one in read.tags)
    assert "Traceback" not in read.text


def test_no_page_and_no_method_that_is_not_there(served: TestClient) -> None:
    assert "no such page" in page(served, "/nowhere", 404).text
    assert served.request("DELETE", "/").status_code == 405
    for name in ("x", "..%2fapplication.py", "%2e%2e/pages.py", "style.css%00"):
        assert served.get(f"/static/{name}").status_code == 404


# what breaks


def test_a_log_that_is_gone_or_broken_is_named(copied: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(copied, tmp_path / "r"))
    log = next((copied / "logs" / "removals").rglob("*.parquet"))
    log.write_bytes(log.read_bytes()[:100])
    said = page(client, link("/removals", language="en"), 500).text
    assert "corpusmill verify" in said and "Traceback" not in said
    log.unlink()
    assert log.name in page(client, link("/removals", language="en"), 500).text
    assert page(client, "/").text  # of the manifest alone


def test_another_corpus_in_the_same_place_is_not_taken_for_the_first(copied: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(copied, tmp_path / "r"))
    assert client.get("/removals").status_code == 200
    folder = Folder(copied)
    manifest = Manifest.load(folder)
    other = Manifest.seal(manifest.content.model_copy(update={"name": "other"}), manifest.run)
    other.save(folder)
    said = page(client, "/removals", 500).text
    assert "another corpus now" in said and other.digest in said
    (copied / "manifest.json").unlink()
    assert "no corpus that can be read" in page(client, "/removals", 500).text


def test_what_is_no_corpus_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CorpusUnreadable, match="no corpus"):
        Questions(str(tmp_path))
    result = CliRunner().invoke(program, ["audit", "serve", str(tmp_path)])
    assert result.exit_code == 1 and "no corpus" in result.output


def test_reviews_inside_the_corpus_are_refused_at_the_start(finished: Path) -> None:
    result = CliRunner().invoke(program, ["audit", "serve", str(finished), "--reviews", str(finished / "reviews.jsonl")])
    assert result.exit_code == 1 and "lies in the corpus" in result.output


def test_without_its_libraries_the_command_says_what_to_install(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    result = CliRunner().invoke(program, ["audit", "serve", str(finished)])
    assert result.exit_code == 1 and "pip install 'corpusmill[audit]'" in result.output


def test_the_program_serves_until_it_is_interrupted(finished: Path, tmp_path: Path) -> None:
    program_ = str(Path(sys.executable).parent / "corpusmill")
    command = [program_, "audit", "serve", str(finished), "--port", "0", "--reviews", str(tmp_path / "r.jsonl")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        first, _, third = (server.stdout.readline() for _ in range(3))
        assert third.startswith("token")
        address = first.split()[0].removeprefix("http://").rstrip("/")
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/removals")
        answer = connection.getresponse()
        assert answer.status == 200 and b"c4.curly_brace" in answer.read()
        connection.close()
        taken = subprocess.run([*command, "--port", address.rpartition(":")[2]], capture_output=True, text=True, check=False)
        assert taken.returncode == 1 and "cannot be listened on" in taken.stderr
        server.send_signal(signal.SIGINT)
        said = server.communicate()
    assert "Traceback" not in said[1]


ENDLESS = "select count(*) from range(100000000000) a, range(1000000) b where a.range * b.range = 7"


def test_a_question_that_takes_too_long_is_stopped_and_the_next_is_answered(finished: Path) -> None:
    questions = Questions(str(finished), seconds=0.3)

    async def nobody_left() -> bool:
        return False

    async def ask() -> int:
        with pytest.raises(TooLong, match="stopped after"):
            await questions.ask(nobody_left, lambda logs, stop: logs.sql(ENDLESS))
        questions.seconds = 30.0
        return len(await questions.ask(nobody_left, lambda logs, stop: logs.sql("select id from removals")))

    assert anyio.run(ask) > 0


def test_a_question_ends_when_the_client_leaves(finished: Path) -> None:
    questions = Questions(str(finished))

    async def left() -> bool:
        return True

    async def ask() -> None:
        with pytest.raises(ClientGone):
            await questions.ask(left, lambda logs, stop: logs.sql(ENDLESS))

    anyio.run(ask)


def test_a_question_cannot_reach_other_files_or_more_memory(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    questions = Questions(str(finished), memory="50MB")

    async def nobody_left() -> bool:
        return False

    async def refused(statement: str) -> str:
        with pytest.raises(CorpusUnreadable) as error:
            await questions.ask(nobody_left, lambda logs, stop: logs.sql(statement))
        return str(error.value)

    for statement in (
        f"select * from read_csv('{tmp_path / 'secret.csv'}')",
        f"copy (select 1) to '{tmp_path / 'out'}'",
        "set memory_limit = '10GB'",
        "select list(range) from range(100000000)",
    ):
        assert anyio.run(refused, statement)
    assert not (tmp_path / "out").exists()


def test_a_page_that_fails_says_so_without_a_traceback(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("\x1b[31mat a place")

    monkeypatch.setattr(documents, "twins_of", broken)
    said = page(client_of(browser_of(finished, tmp_path / "r")), "/twins?id=a", 500).text
    assert "this page has failed: ZeroDivisionError" in said and "at a place" not in said
    assert "\x1b" not in capsys.readouterr().err


# a real browser


class Serving:
    """The application on a free port of this machine, in a thread."""

    def __init__(self, browser: Browser) -> None:
        config = uvicorn.Config(application(browser), host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none")
        self._socket = config.bind_socket()
        self.home = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def tab_of() -> Iterator[Asked]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield lambda **more: browser.new_context(**more).new_page()
        browser.close()


def test_in_chromium_no_script_of_a_document_runs(hostile: Path, with_hostile_texts: Path, tmp_path: Path, tab_of: Asked) -> None:
    browser = browser_of(hostile, tmp_path / "r", access=Access(trusts_own=True))
    with Logs(*open_corpus(str(hostile)), ["removals"]) as logs:
        rows = logs.sql("select * from removals order by id")
    texts = browser_of(with_hostile_texts, tmp_path / "r", access=Access(trusts_own=True))
    with Serving(browser) as serving, Serving(texts) as second:
        tab = tab_of(viewport={"width": 400, "height": 800})
        said: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        documents = [link("/document", id=row["id"]) for row in rows[:6]]
        for path in ("/", "/removals", *documents, link("/rule", name=rows[0]["rule"]), link("/review", rule=rows[0]["rule"])):
            assert tab.goto(serving.home + path).status == 200
            assert tab.title() != "taken"
            assert tab.evaluate("document.documentElement.scrollWidth") <= 400, path
        shown_as_text = ""
        for name in TEXTS:
            assert tab.goto(second.home + link("/document", id=f"docs/{name}#0")).status == 200
            assert tab.title() != "taken" and tab.evaluate("document.documentElement.scrollWidth") <= 400
            shown_as_text += tab.text_content(".text")
        assert tab.goto(second.home + link("/twins", id="docs/good.jsonl#1")).status == 200
        assert HOSTILE[0] in shown_as_text and HOSTILE[1] in shown_as_text
        assert said == []
        assert all(url.startswith((serving.home, second.home, "data:,")) for url in asked)


def test_in_chromium_a_sample_is_reviewed_by_keys(finished: Path, tmp_path: Path, tab_of: Asked) -> None:
    path = tmp_path / "reviews.jsonl"
    browser = browser_of(finished, path, access=Access(trusts_own=True))
    with Serving(browser) as serving:
        tab = tab_of()
        tab.goto(serving.home + link("/review", rule="minhash.near_duplicate", n=3, seed=1))
        for key, at in (("f", 2), ("r", 3), ("k", 2), ("j", 3), ("u", 3)):
            with tab.expect_navigation():
                tab.keyboard.press(key)
            assert f"{at} of 3" in tab.title(), key
        tab.keyboard.press("/")
        tab.keyboard.type("rfu")
        assert tab.input_value("#find") == "rfu"
        tab.goto(serving.home + "/removals")
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
        tab.keyboard.press("j")
        tab.keyboard.press("j")
        tab.keyboard.press("k")
        first = tab.evaluate("document.activeElement.textContent")
        assert first == tab.text_content("tbody tr:first-child th a")
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        assert tab.text_content("h1") == first
        tab.goto(serving.home + link("/whatif", rule="gopher.min_words"))
        tab.locator("input[type=range]").first.focus()
        tab.keyboard.press("ArrowRight")
        assert tab.input_value("[name='bound:gopher.min_words']") == "51"
    assert [json.loads(line)["verdict"] for line in path.read_text().splitlines()] == ["false_positive", "right", "unsure"]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 800)])
def test_in_chromium_what_is_judged_and_the_verdict_are_in_view_at_once(
    with_hostile_texts: Path, tmp_path: Path, tab_of: Asked, width: int, height: int
) -> None:
    assert len(LATE) > 8_000
    path = link("/review", rule="gopher.max_hashes_per_word", n=1)
    with Serving(browser_of(with_hostile_texts, tmp_path / "r", access=Access(trusts_own=True))) as serving:
        tab = tab_of(viewport={"width": width, "height": height})
        assert tab.goto(serving.home + path).status == 200
        assert "late.jsonl#0" in tab.text_content("main")
        mark = tab.locator("mark").first.bounding_box()
        verdict_at = tab.locator("button[value=right]").bounding_box()
        assert mark["y"] + mark["height"] <= verdict_at["y"] and verdict_at["y"] + verdict_at["height"] <= height
        assert tab.evaluate("document.documentElement.scrollHeight") < 2 * height
        tab.goto(serving.home + "/removals")
        tops = {round(one.bounding_box()["y"]) for one in tab.locator(".filter select, .filter input, .filter button").all()}
        assert width < 1280 or len(tops) == 1  # one row
        for one in tab.locator(".filter input[placeholder]").all():
            assert one.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_in_chromium_a_key_goes_from_place_to_place(finished: Path, tmp_path: Path, tab_of: Asked) -> None:
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        row = logs.sql("select id from removals where rule = 'minhash.near_duplicate' order by id")[0]
    with Serving(browser_of(finished, tmp_path / "r", access=Access(trusts_own=True))) as serving:
        tab = tab_of(viewport={"width": 400, "height": 800})
        tab.goto(serving.home + link("/twins", id=row["id"]))
        places = tab.locator("[data-place]").all_text_contents()
        assert len(places) > 1 and places[0].startswith("1 of ")
        for expected in (*places, places[0]):
            tab.keyboard.press("m")
            assert tab.evaluate("document.activeElement.textContent") == expected
        tab.locator("[data-place]").first.click()
        assert tab.url.endswith("#d1-2")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400


def test_in_chromium_everything_works_without_scripts(finished: Path, tmp_path: Path, tab_of: Asked) -> None:
    path = tmp_path / "reviews.jsonl"
    access = Access(trusts_own=False)
    with Serving(browser_of(finished, path, access=access)) as serving:
        tab = tab_of(java_script_enabled=False)
        tab.goto(serving.home + link("/review", rule="minhash.near_duplicate", n=3))
        assert tab.url.startswith(serving.home + "/login")
        tab.fill("#token", access.token)
        with tab.expect_navigation():
            tab.click("main button")
        assert "1 of 3" in tab.title()
        with tab.expect_navigation():
            tab.click("button[value=false_positive]")
        assert "2 of 3" in tab.title()
        tab.goto(serving.home + "/whatif")
        tab.fill("[name='bound:c4.curly_brace']", "off")
        with tab.expect_navigation():
            tab.click("form.thresholds button")
        assert "newly kept" in tab.text_content("main")
    assert len(path.read_text().splitlines()) == 1
