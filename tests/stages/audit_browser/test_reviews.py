"""What people think of removals is stored outside the corpus, and counted as it should be."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from manifests.audit.reviews import Review, ReviewFile
from manifests.logs import Logs

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser import browser as browser_module
from stages.audit_browser.pages import link
from stages.audit_texts import sampled
from tests.stages.audit_browser.pages import HOSTILE, OURS, browser_of, client_of, client_token, every_page, page, verdict


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


def test_whoever_jumps_in_a_sample_picks_by_hand(finished: Path, tmp_path: Path) -> None:
    mine = browser_of(finished, tmp_path / "r.jsonl")
    client = client_of(mine)
    for at, counted in ((3, 0), (1, 1), (2, 3)):
        assert verdict(client, link("/review", rule="minhash.near_duplicate", seed=5, n=4, at=at)).status_code == 303
        (rates,) = client.get("/reviews.json").json()["rules"]
        assert rates["sampled"] == counted
    assert [one.place for one in mine.reviews.read()] == [3, 1, 2]


def test_half_a_character_in_a_review_is_shown_as_an_escape(finished: Path, tmp_path: Path) -> None:
    browser = browser_of(finished, tmp_path / "r")
    browser.reviews.add("Ada \ud800", "1", "a.b", "right", "a note \udfff of half")
    answer = client_of(browser).get("/reviews")
    assert answer.status_code == 200 and "Ada \\ud800" in answer.text and "a note \\udfff of half" in answer.text
