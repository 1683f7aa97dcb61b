"""The pages in a real browser."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from manifests.logs import Logs
from manifests.manifest import open_corpus

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")


from stages.audit_browser import report_page
from stages.audit_browser.access import Access
from stages.audit_browser.commands import leading_to
from stages.audit_browser.pages import link
from tests.stages.audit_browser.pages import HOSTILE, LATE, STRANGE, TEXTS, Asked, Serving, browser_of


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
        of_rule = (link("/rule", name=rows[0]["rule"]), link("/review", rule=rows[0]["rule"]))
        others = ("/whatif", "/reviews", link("/takedown", id="\n".join([rows[0]["id"], *STRANGE[:6]])), "/login", "/report")
        for path in ("/", "/removals", *documents, *of_rule, *others):
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


@pytest.mark.parametrize("start", ["file", "site"])
def test_in_chromium_the_printed_address_leads_in_from_a_file_and_from_another_site(
    finished: Path, tmp_path: Path, tab_of: Asked, start: str
) -> None:
    access = Access()
    page = tmp_path / "open.html"
    with Serving(browser_of(finished, tmp_path / "r", access=access)) as serving:
        address = serving.home + link("/enter", once=access.once)
        if start == "file":
            page.write_text(leading_to(address))
            tab = tab_of(java_script_enabled=False)
            tab.goto(page.as_uri())
        else:
            tab = tab_of()
            tab.route("http://elsewhere.example/", lambda route: route.fulfill(body=f'<a href="{address}">go</a>'))
            tab.goto("http://elsewhere.example/")
            tab.click("a")
        tab.wait_for_url(serving.home + "/")
        assert "small" in tab.text_content("h1")
        assert tab.evaluate("document.cookie") == ""  # not for scripts
        (cookie,) = tab.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert tab.goto(serving.home + "/removals").status == 200
        assert tab_of().goto(address).status == 403


@pytest.mark.parametrize("width", [1280, 400])
def test_in_chromium_a_takedown_is_looked_at_by_keys_and_its_command_copied(
    hostile: Path, tmp_path: Path, tab_of: Asked, width: int
) -> None:
    with Logs(*open_corpus(str(hostile)), ["removals"]) as logs:
        copy = logs.sql("select id from removals where kept_id is not null order by id")[0]["id"]
    with Serving(browser_of(hostile, tmp_path / "r", access=Access(trusts_own=True))) as serving:
        tab = tab_of(viewport={"width": width, "height": 800}, permissions=["clipboard-read", "clipboard-write"])
        tab.goto(serving.home + "/takedown")
        tab.locator("#ids").focus()
        tab.keyboard.type(f"{copy}\njkm/u <script>document.title='taken'</script>")  # keys of the pages are letters here
        tab.locator("#reason").focus()
        tab.keyboard.type("it's theirs")
        tab.keyboard.press("Tab")
        tab.keyboard.press("Tab")
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        assert "taken" not in tab.title().partition("·")[0]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert "Copies that stay" in tab.text_content("main") and "jkm/u <script>" in tab.text_content(".wrong")
        button = tab.locator("text=Copy").first
        button.focus()
        tab.keyboard.press("Enter")
        tab.wait_for_selector("text=Copied")
        copied = tab.evaluate("navigator.clipboard.readText()")
        assert copied == tab.text_content("pre.command") and "--reason='it'\"'\"'s theirs'" in copied
        tab.keyboard.press("j")
        assert tab.evaluate("document.activeElement.closest('tr') !== null")


@pytest.mark.slow
def test_in_chromium_a_report_that_is_made_meanwhile_appears_by_itself(
    finished: Path, tmp_path: Path, tab_of: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_page, "AT_ONCE_SECONDS", 0.0)
    browser = browser_of(finished, tmp_path / "r", access=Access(trusts_own=True))
    go = threading.Event()

    def logs() -> Logs:
        go.wait()
        return type(browser.questions).all_logs(browser.questions)

    monkeypatch.setattr(browser.questions, "all_logs", logs)
    with Serving(browser) as serving:
        tab = tab_of(java_script_enabled=False)
        tab.goto(serving.home + "/report")
        assert "is being made" in tab.text_content("main")
        go.set()
        tab.wait_for_selector("#funnel .funnel")
        assert tab.locator("text=Back to the browser").count() == 1


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
