"""A takedown is looked at in the browser, and done by the command that it shows: both speak of the same documents."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manifests.audit.takedown import Affected, Selection, affected
from manifests.commands import app as program
from manifests.logs import Logs
from manifests.manifest import Manifest, open_corpus

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser import takedown
from stages.audit_browser.pages import link
from stages.audit_browser.takedown import shell_word
from tests.stages.audit_browser.pages import HOSTILE, OURS, Read, browser_of, client_of, page

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def pairs(gone: Rows, finished: Path) -> Rows:
    """Removals of which another document stayed that is in the corpus."""
    with Logs(*open_corpus(str(finished)), ["documents"]) as logs:
        kept = {row["id"] for row in logs.sql("select id from documents where removed_by is null")}
    return [row for row in gone if row["kept_id"] in kept]


def looked_at(corpus: Path, selection: Selection, near_duplicates: Any = "list") -> Affected:
    with Logs(*open_corpus(str(corpus)), ["documents", "removals"]) as logs:
        return affected(logs, selection, near_duplicates)


def posted(client: TestClient, path: str = "/takedown", **fields: Any) -> Any:
    token = re.search(r'name="form_token" value="([^"]*)"', client.get("/takedown").text)
    assert token
    data = {"form_token": token[1], **{name: value for name, value in fields.items() if value}}
    return client.post(path, data=data, headers=OURS)


def command_of(markup: str) -> str:
    found = re.search(r'<pre class="command"[^>]*>(.*?)</pre>', markup, re.S)
    assert found
    return html.unescape(found[1])


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As somebody's shell would."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )


def selections(pairs: Rows) -> list[Selection]:
    return [
        Selection(domains=("site0.example",)),
        Selection(domains=("https://north.example/1/2",), documents=(pairs[0]["id"], "nobody/knows#1")),
        Selection(documents=tuple(row["id"] for row in pairs)),
        Selection(licences=("PD",)),
    ]


@pytest.mark.parametrize("near_duplicates", ["list", "remove"])
def test_the_page_tells_what_the_command_would_touch(
    served: TestClient, finished: Path, pairs: Rows, near_duplicates: str
) -> None:
    found = {"copies": 0, "orphans": 0, "removed": 0}
    for selection in selections(pairs):
        what = looked_at(finished, selection, near_duplicates)
        fields = {
            "domain": "\n".join(selection.domains),
            "id": "\r\n".join(selection.documents),
            "licence": "\n".join(selection.licences),
        }
        answer = posted(served, near_duplicates=near_duplicates, **fields)
        assert answer.status_code == 200
        read = Read(answer.text)
        assert f"documents that go {len(what.taken):,} " in read.text and f"tokens {what.tokens:,} " in read.text
        copies = [one for one in what.survivors if "split" not in one["how"]]
        assert f"copies that stay {len(copies):,} " in read.text
        for one in [*what.taken[:50], *what.survivors[:50], *what.orphans[:50]]:
            assert link("/document", id=one["id"]) in read.links()
        for stage, number in what.removed_before.items():
            assert f"{number:,} by {stage}" in read.text
        for one in what.unknown:
            assert f"nothing of them is selected: {one}" in read.text
        if selection.domains:
            assert f"{what.without_url} documents of the corpus have no URL" in read.text and what.without_url > 0
        found["copies"] += len(copies)
        found["orphans"] += len(what.orphans)
        found["removed"] += bool(what.removed_before)
        # what the form shows again is what was asked
        shown = re.search(r'name="id"[^>]*>\n(.*?)</textarea>', answer.text, re.S)
        assert shown and html.unescape(shown[1]) == "\n".join(selection.documents)
        rows = list(csv.DictReader(io.StringIO(posted(served, "/takedown.csv", near_duplicates=near_duplicates, **fields).text)))
        assert [row["id"] for row in rows] == [row["id"] for row in what.taken]
    assert found["orphans"] and found["removed"] and bool(found["copies"]) == (near_duplicates == "list")


def test_a_link_asks_as_the_form_does(served: TestClient, pairs: Rows) -> None:
    path = link("/takedown", id=pairs[0]["id"], domain="site0.example")
    said = page(served, path).text
    assert (
        said.partition("What is to go")[0]
        == Read(posted(served, id=pairs[0]["id"], domain="site0.example").text).text.partition("What is to go")[0]
    )
    assert link("/takedown", id=pairs[0]["id"]) in page(served, link("/document", id=pairs[0]["id"])).links()


def test_a_name_with_characters_that_are_not_seen_comes_back_as_it_was(served: TestClient) -> None:
    name = "books/\u202eslj.\x85%2f+a\x1b.jsonl#1"
    read = Read(posted(served, id=f"books/x.jsonl#2\n{name}").text)
    boxes = {one["name"]: one["value"] for tag, one in read.tags if tag == "input" and "checked" in one}
    shown = {"id": "books/x.jsonl#2", **boxes}
    again = posted(served, **shown).text
    assert command_of(again) == command_of(posted(served, id=f"books/x.jsonl#2\n{name}").text)
    assert shell_word(name) in command_of(again)


def test_a_link_does_not_say_where_a_command_writes_or_why(served: TestClient) -> None:
    shown = command_of(served.get(link("/takedown", domain="site0.example", output="/elsewhere", reason="theirs")).text)
    assert "elsewhere" not in shown and "theirs" not in shown and "--reason=''" in shown


def test_the_command_does_what_the_page_showed_and_looking_did_nothing(
    copied: Path, tmp_path: Path, pairs: Rows, manifest: Manifest
) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    client = client_of(browser_of(copied, tmp_path / "r"))
    reason = "the author's wish; $(touch ran) `touch ran`"
    names = [pairs[0]["id"], *HOSTILE, "$(touch ran)", "`touch ran`", "';touch ran;'", "-x", "EOF", "\u0085a\\b'c"]
    output = tmp_path / "out put"
    fields = {"id": "\n".join(names), "domain": "site0.example", "near_duplicates": "remove", "reason": reason}
    answer = posted(client, output=str(output), **fields)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before and not output.exists()
    what = looked_at(copied, Selection(("site0.example",), tuple(one.strip() for one in names)), "remove")
    done = run(command_of(answer.text), tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("ran")) and not (copied / "ran").exists()
    written = open_corpus(str(output))[1]
    (act,) = written.run["takedowns"]
    assert act["reason"] == reason
    kept = sum(one.documents_kept for one in manifest.content.components.values())
    assert sum(one.documents_kept for one in written.content.components.values()) == kept - len(what.taken)
    with Logs(*open_corpus(str(output)), ["removals"]) as logs:
        rows = logs.sql("select id from removals where stage = 'takedown'")
    assert {row["id"] for row in rows} == {row["id"] for row in what.taken}
    assert f"documents that go {len(what.taken):,} " in Read(answer.text).text
    options = next(one.options for one in written.content.stages if one.stage == "takedown")
    assert options["listed"] == len(names)  # each name came through the shell as it was


@pytest.mark.parametrize(
    "word",
    [
        *HOSTILE,
        "",
        " ",
        "a b",
        "it's",
        "\\",
        "$x",
        "!!",
        "~",
        "*",
        "é\u202e",
        "\x01f",
        "\x1b]0;x\x07",
        "tab\there",
        "\x7f",
        "#",
        "\n",
    ],
    ids=repr,
)
def test_any_word_comes_through_a_shell_as_it_is_and_is_shown_whole(word: str) -> None:
    written = shell_word(word)
    assert Read(html.escape(written)).words == [written]
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", written)
    said = subprocess.run(["bash", "-c", f"printf %s {written}"], capture_output=True, check=True).stdout
    assert said.decode() == word


def test_it_is_told_why_the_command_would_be_refused(served: TestClient, copied: Path, tmp_path: Path, pairs: Rows) -> None:
    near = "https://private.example/page?token=9"
    gone = next(row["id"] for row in pairs)
    for fields, said in (
        ({"id": near, "reason": "because"}, "resemble some of these"),
        ({"id": gone, "reason": "because"}, "nothing that is in the corpus is selected"),
        ({"domain": "site0.example"}, "recorded with its reason"),
    ):
        answer = posted(served, **fields, output=str(tmp_path / "out"))
        assert f"would be refused: {said}" in Read(answer.text).text or said in Read(answer.text).text
        listed, _, shell = command_of(answer.text).rpartition("|\n")
        given = "\n".join(shlex.split(listed)[2:])
        done = CliRunner().invoke(program, shlex.split(shell)[1:], input=given)
        assert done.exit_code != 0 and not (tmp_path / "out" / "manifest.json").exists()
    said = Read(posted(served, id=near).text).text
    assert f"{near} → https://private.example/page" in said


def test_many_documents_are_not_looked_at_one_by_one(served: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takedown, "MOST_SELECTED", 5)
    for fields in ({"licence": "PD"}, {"domain": "site0.example"}, {"id": "\n".join("abcdef")}):
        answer = posted(served, **fields, reason="r")
        assert answer.status_code == 200 and "a page looks at 5 at most" in Read(answer.text).text
        assert command_of(answer.text)
        assert posted(served, "/takedown.csv", **fields).status_code == 400


def test_what_is_no_takedown_is_refused(served: TestClient) -> None:
    assert served.post("/takedown", data={"id": "a"}, headers=OURS).status_code == 403
    assert posted(served, id="a\0b").status_code == 400
    assert posted(served, licence="nobody's").status_code == 400
    assert posted(served, domain="a b").status_code == 400
    assert posted(served, id="a", near_duplicates="maybe").status_code == 400
    assert posted(served, id="a" * 10_001).status_code == 400
    assert posted(served, id="a\n" * 600_000).status_code == 413
    assert served.get("/takedown.csv").status_code == 400
    assert posted(served).status_code == 200  # an empty form is the page as it was


def test_the_csv_is_that_of_the_command(served: TestClient, finished: Path) -> None:
    told = CliRunner().invoke(program, ["audit", "takedown", str(finished), "--domain", "site0.example", "--csv"])
    assert posted(served, "/takedown.csv", domain="site0.example").text == told.stdout
    told = CliRunner().invoke(program, ["audit", "takedown", str(finished), "--domain", "site0.example", "--json"])
    assert len(json.loads(told.stdout)["taken"]) == 7
