"""The report in the browser: the file that `corpusmill report` writes, with links, under a policy that lets nothing in."""

from __future__ import annotations

import html
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from manifests.logs import Logs
from manifests.manifest import open_corpus
from manifests.report.page import report, unlinked

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser import report as report_module
from stages.audit_browser import report_page
from stages.audit_browser.report import Report, page_of
from tests.stages.audit_browser.pages import Asked, Read, Serving, browser_of, client_of, page


@pytest.fixture(scope="module", autouse=True)
def patient() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "AT_ONCE_SECONDS", 600.0)
        yield


@pytest.fixture(scope="module")
def written(finished: Path) -> str:
    return report(*open_corpus(str(finished)))


def test_it_is_the_report_with_links_and_to_be_saved_without(served: TestClient, written: str) -> None:
    answer = served.get("/report")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "script" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    saved = served.get("/report.html")
    assert saved.text == written and "attachment" in saved.headers["content-disposition"]
    assert saved.headers["content-security-policy"] == "sandbox"
    links = [one for one in Read(answer.text).links() if not one.startswith("#")]
    assert links[0] == "/" and len(links) > 10
    for one in links:
        assert served.get(one).status_code == 200, one
    assert "as a file" in page(served, "/").text


def test_links_are_all_that_makes_it_another_page(hostile: Path) -> None:
    plain = report(*open_corpus(str(hostile)))
    linked = report(*open_corpus(str(hostile)), page_of=page_of)
    assert linked != plain and unlinked(linked) == plain and unlinked(plain) == plain
    for tag, one in Read(linked).tags:
        assert tag not in ("script", "img", "iframe") and not [name for name in one if name.startswith("on")]
        assert re.match(r"#|/(rule|removals)?(\?|$)|data:,$", one.get("href") or "#"), one


def test_while_it_is_made_a_page_says_so_and_asks_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setattr(report_page, "AT_ONCE_SECONDS", 0.0)
    browser = browser_of(finished, tmp_path / "r")
    go, asked = threading.Event(), []

    def logs() -> Logs:
        asked.append(1)
        go.wait()
        return type(browser.questions).all_logs(browser.questions)

    monkeypatch.setattr(browser.questions, "all_logs", logs)
    client = client_of(browser)
    for _ in range(3):
        answer = client.get("/report")
        assert answer.status_code == 200 and "is being made" in answer.text
        assert '<meta http-equiv="refresh" content="2">' in answer.text
    assert client.get("/report.html").status_code == 404
    assert client.get("/removals").status_code == 200  # others are answered meanwhile
    go.set()
    assert browser.report.made_within(600)
    assert client.get("/report").status_code == 200 and browser.report.plain() == written
    assert asked == [1]


def test_where_it_cannot_be_made_it_is_said_why_and_tried_again(copied: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(copied, tmp_path / "r"))
    log = next((copied / "logs" / "removals").rglob("*.parquet"))
    whole = log.read_bytes()
    log.write_bytes(whole[:100])
    said = page(client, "/report", 500).text
    assert "corpusmill verify" in said and "Traceback" not in said
    log.write_bytes(whole)
    assert client.get("/report").status_code == 200


def test_it_has_no_more_memory_than_others(finished: Path, tmp_path: Path) -> None:
    browser = browser_of(finished, tmp_path / "r")
    with browser.questions.all_logs() as logs:
        setting = "select current_setting('memory_limit') as memory, current_setting('lock_configuration') as locked"
        assert logs.sql(setting) == [{"memory": "953.6 MiB", "locked": True}]


def test_a_report_that_nobody_will_read_is_stopped(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(corpus: Any, manifest: Any, runs: Any, logs: Logs, page_of: Any) -> str:
        while True:
            begun.set()
            logs.sql("select count(*) from range(100000000000) a, range(1000000) b where a.range * b.range = 7")

    monkeypatch.setattr(report_module, "report", endless)
    made = Report(browser_of(finished, tmp_path / "r").questions)
    assert not made.made_within(0)
    begun.wait()
    made.end()
    assert made.made_within(600) and made.page is None


@pytest.mark.parametrize("width", [1280, 400])
def test_in_chromium_it_has_its_style_and_its_pictures_and_leads_back(
    finished: Path, tmp_path: Path, tab_of: Asked, width: int
) -> None:
    browser = browser_of(finished, tmp_path / "r")
    with Serving(browser) as serving:
        tab = tab_of(viewport={"width": width, "height": 800})
        said: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        assert tab.goto(serving.home + "/report").status == 200
        assert tab.evaluate("getComputedStyle(document.querySelector('.tiles')).display") == "grid"
        assert tab.evaluate("getComputedStyle(document.querySelector('rect.mark.removed')).fill") == "rgb(213, 94, 0)"
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        rule = tab.locator(".bars a").first
        name = rule.text_content()
        rule.click()
        assert tab.text_content("h1") == name
        tab.go_back()
        tab.click("text=Back to the browser")
        assert tab.text_content("h1") == html.unescape("small")
    assert said == []
