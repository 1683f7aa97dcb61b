"""Nothing that strangers wrote, or ask, becomes anything but words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from manifests.logs import Logs
from manifests.manifest import open_corpus
from manifests.schemas import REMOVALS

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser.pages import link
from tests.stages.audit_browser.pages import (
    HOSTILE,
    OURS,
    STRANGE,
    Read,
    browser_of,
    client_of,
    page,
    rewritten,
    set_column,
    verdict,
)


def test_nothing_that_strangers_wrote_becomes_markup(hostile: Path, tmp_path: Path) -> None:
    mine = browser_of(hostile, tmp_path / "r")
    client = client_of(mine)
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
        *(link("/document", q=one) for one in STRANGE),
        *(link("/removals", rule=one, language=one, component=one, stage=one) for one in STRANGE),
        *(link("/rule", name=one) for one in STRANGE),
        *(link("/run", name=one) for one in STRANGE),
        *(link("/twins", id=one) for one in STRANGE),
        *(link("/review", rule=one) for one in STRANGE),
        *(link("/login", to=one) for one in STRANGE),
        *(link("/enter", once=one) for one in STRANGE),
        *(link("/takedown", id=one) for one in STRANGE),
        *(link("/takedown", licence=one) for one in STRANGE),
        *(link("/takedown", domain=one) for one in STRANGE),
        link("/takedown", id=rows[0]["id"], near_duplicates="remove"),
        link("/takedown", id=twin["id"]),
        *(link("/whatif", change=f"{one}=3") for one in STRANGE),
        *(link("/whatif", **{f"bound:{one}": "3"}) for one in STRANGE),
        *(link("/whatif", **{f"bound:{HOSTILE[0]}c4.curly_brace": one}) for one in STRANGE),
        link("/whatif", change=HOSTILE[1]),
        link("/removals", lowest=HOSTILE[0]),
        link("/removals", domain=HOSTILE[0]),
    ]
    everything = ""
    token = mine.access.form_token("takedown")
    forms = [{"id": one, "reason": one, "output": one, "licence": STRANGE[0], "form_token": token} for one in STRANGE]
    answers = [(path, client.get(path)) for path in paths]
    answers += [(str(form), client.post("/takedown", data=form, headers=OURS)) for form in forms]
    for path, answer in answers:
        assert answer.status_code in (200, 303, 400, 403, 404), path
        read = Read(answer.text)
        everything += read.text
        assert not re.search("[\0\x1b\u202e\u2066\u200f\u2028]", answer.text), path
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


SQL = [
    "' or '1'='1",
    '"; drop table removals; --',
    "') union all select * from documents --",
    "x'; attach '/etc/passwd' as y; --",
    "0) or (1=1",
    "%",
    "_",
    "\\' or 1=1",
    "$1",
    "?",
    "(select max(rule) from removals)",
]


@pytest.mark.parametrize("words", SQL)
def test_what_looks_like_sql_is_a_word_like_others(served: TestClient, gone: list[dict[str, Any]], words: str) -> None:
    for name in ("component", "stage", "rule", "language"):
        assert json.loads(served.get(link("/removals.json", **{name: words})).text)["rows"] == [], name
        assert "0 removed documents." in page(served, link("/removals", **{name: words})).text
    answer = served.get(link("/removals.json", domain=words))
    assert answer.status_code == 400 or (words == "_" and answer.json()["rows"] == [])  # which may be a host
    for name in ("lowest", "highest", "rows", "order", "at_position&at_file"):
        assert served.get(f"/removals?{name}=x&{name.partition('&')[0]}={quote(words)}").status_code == 400, name
    place = {"at_measured": 1, "at_component": words, "at_file": words, "at_position": 1}
    assert served.get(link("/removals", order="highest", **place)).status_code == 200
    for path in (
        link("/rule", name=words),
        link("/document", id=words),
        link("/document", q=f"http://example.org/{words}"),
        link("/twins", id=words),
        link("/review", rule=words),
        link("/run", name=words),
    ):
        assert served.get(path).status_code == 404, path
    for name in ("seed", "n", "at", "from"):
        assert served.get(f"{link('/review', rule='minhash.near_duplicate')}&{name}={quote(words)}").status_code == 400, name
    assert served.get(link("/takedown", licence=words)).status_code == 400
    assert "documents that go 0 " in page(served, link("/takedown", id=words)).text
    assert page(served, link("/whatif", change=words)).text
    assert page(served, link("/whatif", **{"bound:c4.curly_brace": words})).text
    assert f"{len(gone)} removed documents" in page(served, "/removals").text


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


def test_a_question_that_is_too_long_is_answered_on_a_page(served: TestClient) -> None:
    answer = served.get("/document", params={"q": "a" * 10_001})
    assert answer.status_code == 400 and "10,000 are the most" in answer.text
