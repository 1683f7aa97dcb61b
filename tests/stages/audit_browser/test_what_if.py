"""What a moved threshold would have decided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manifests.commands import app as program
from manifests.logs import Logs
from manifests.manifest import open_corpus

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser.pages import link
from tests.stages.audit_browser.pages import HOSTILE, Read, page


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


def test_a_bound_beyond_all_numbers_is_no_bound(served: TestClient) -> None:
    answer = served.get("/whatif", params={"change": "gopher_quality.min_words=1e309"})
    assert answer.status_code == 200 and "is not a number" in answer.text
