"""Every page says what the logs say."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from manifests.audit.flow import quiet_stages
from manifests.audit.removed import NOTHING
from manifests.audit.unchecked import unchecked
from manifests.identity import url_key
from manifests.life import lives
from manifests.logs import Logs
from manifests.manifest import Manifest, open_corpus

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser import browser as browser_module
from stages.audit_browser.pages import link
from tests.stages.audit_browser.pages import HOSTILE, Read, browser_of, cells, client_of, every_page, page, rewritten, set_column


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
            if tag in ("input", "select", "textarea") and one.get("type") not in ("hidden", "checkbox"):
                assert one.get("id") in labelled or one.get("aria-label"), (path, one)
            if tag == "th":
                assert one.get("scope") in ("col", "row"), path


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


def test_a_url_with_several_captures_lists_them(copied: Path, tmp_path: Path) -> None:
    def same(table: pa.Table) -> pa.Table:
        return set_column(set_column(table, "url", "https://twice.example/"), "url_key", url_key("https://twice.example/"))

    rewritten(copied, "documents", same)
    read = page(client_of(browser_of(copied, tmp_path / "r")), link("/document", q="https://twice.example/"))
    assert "More than 50 documents" in read.text
    assert sum(one.startswith("/document?id=") for one in read.links()) == 50


def test_personal_data_in_a_text_is_replaced_unless_it_is_asked_for(with_hostile_texts: Path, tmp_path: Path) -> None:
    path = link("/document", id="docs/mail.jsonl#0")
    said = page(client_of(browser_of(with_hostile_texts, tmp_path / "r")), path).text
    assert "write to" in said and "jane.roe" not in said
    assert (
        "jane.roe@example.org" in page(client_of(browser_of(with_hostile_texts, tmp_path / "r", personal_data=True)), path).text
    )
