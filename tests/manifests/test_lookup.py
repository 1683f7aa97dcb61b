"""A URL means one thing everywhere: its captures, those of URLs that are the same by RFC 3986, and near misses that are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.audit.takedown import Selection, affected, take_down
from manifests.commands import app
from manifests.logs import Logs
from manifests.lookup import AS_FILE, AS_ID, AS_NEAR, AS_SAME_URL, AS_URL, BARE, HIDDEN, documents_called, urls_called
from manifests.manifest import ManifestError, open_corpus
from stages import audit_commands
from tests.pipeline.crawl import article, build, small_recipe, write_small

assert audit_commands
URLS = [
    "http://example.com/",
    "http://example.com/",
    "http://example.com",
    "https://example.com/",
    "http://example.com/?page=2",
    "http://example.com/About%20us/caf%C3%A9",
    "http://example.com/list?id=1",
    "http://example.com/list?id=2",
    "http://example.com:8080/list",
    "http://jane:secret@example.com/private",
    "http://example.com/a;v=1/b#part",
    "http://example.com/docs/",
    "http://bücher.example/~ada",
    "urn:isbn:12",
    "http://www.gone-shop.co.uk/it's/page",
]


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crawled")
    records = [{"text": article(n), "url": url} for n, url in enumerate(URLS)] + [{"text": article("no URL")}]
    build(write_small(folder, {"a.jsonl": records}, small_recipe([])), folder / "corpus")
    return folder / "corpus"


@pytest.fixture
def logs(crawled: Path) -> Iterator[Logs]:
    with Logs(*open_corpus(str(crawled)), ["documents", "removals"]) as opened:
        yield opened


def numbers(logs: Logs, asked: str) -> dict[int, str]:
    """Place in URLS → how it was matched."""
    called = documents_called(logs, asked)
    return {row["position"]: how for row, how in zip(called.documents, called.matched, strict=True)}


def call(*arguments: str | Path, given: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["audit", *(str(one) for one in arguments)], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("http://example.com/", {0: AS_URL, 1: AS_URL, 2: AS_SAME_URL}),
        ("http://example.com", {0: AS_SAME_URL, 1: AS_SAME_URL, 2: AS_URL}),
        ("HTTP://EXAMPLE.com:80/#top", {0: AS_SAME_URL, 1: AS_SAME_URL, 2: AS_SAME_URL}),
        ("http://example.com/x/../", {0: AS_SAME_URL, 1: AS_SAME_URL, 2: AS_SAME_URL}),
        ("http://example.com/?page=2", {4: AS_URL}),
        ("http://EXAMPLE.com?page=2#x", {4: AS_SAME_URL}),
        ("http://example.com/%41bout us/café", {5: AS_SAME_URL}),
        ("http://example.com/list?id=2", {7: AS_URL}),
        ("http://example.com/./list?i%64=2", {7: AS_SAME_URL}),
        ("http://example.com:8080/list", {8: AS_URL}),
        ("http://jane:secret@example.com/private", {9: AS_URL}),
        ("http://xn--bcher-kva.example/%7Eada", {12: AS_SAME_URL}),
        ("urn:isbn:12", {13: AS_URL}),
        ("docs/a.jsonl#3", {3: AS_ID}),
        ("docs/a.jsonl", dict.fromkeys(range(len(URLS) + 1), AS_FILE)),
        # what is another URL, and is told as a near miss
        ("example.com", {0: AS_NEAR, 1: AS_NEAR, 2: AS_NEAR, 3: AS_NEAR, 4: AS_NEAR}),
        ("http://example.com/list", {6: AS_NEAR, 7: AS_NEAR}),
        ("http://example.com/list?id=3", {6: AS_NEAR, 7: AS_NEAR}),
        ("http://example.com/private", {9: AS_NEAR}),
        ("https://example.com/docs", {11: AS_NEAR}),
        ("http://example.com/DOCS/", {11: AS_NEAR}),
        # what is nothing of the kind
        ("http://example.com/doc", {}),
        ("http://other.example/", {}),
        ("http://example.com.evil.example/", {}),
        ("' or 1=1 --", {}),
        ("http://[::1", {}),
        ("", {}),
    ],
)
def test_what_a_url_finds_and_how(logs: Logs, asked: str, found: dict[int, str]) -> None:
    assert numbers(logs, asked) == found


def test_near_misses_say_what_differs_and_how_many_documents_there_are(logs: Logs) -> None:
    def near(asked: str) -> set[tuple[str, int, str]]:
        return {(one.url, one.documents, one.why) for one in documents_called(logs, asked).near}

    assert near("http://example.com/?secret=1") == {("http://example.com/", 2, BARE), ("http://example.com", 1, BARE), ("http://example.com/", 1, HIDDEN), ("https://example.com/", 1, "another scheme")}  # fmt: skip
    assert near("http://example.com/") == {("http://example.com/", 1, HIDDEN), ("https://example.com/", 1, "another scheme")}
    assert near("https://example.com/docs") == {("http://example.com/docs/", 1, "another scheme, with a slash at its end")}
    assert near("http://example.com/DOCS") == {("http://example.com/docs/", 1, "other capitals in its path")}
    assert near("http://example.com/list?id=1") == {("http://example.com/list", 1, HIDDEN)}
    assert near("http://jane:secret@example.com/private") == set()
    assert near("http://www.example.com/docs/") == {("http://example.com/docs/", 1, "without www. before its host")}
    shop, host = "http://www.gone-shop.co.uk/it's/page", "with www. before its host"
    assert near("http://gone-shop.co.uk/it's/page") == {(shop, 1, host)}
    assert near("https://gone-shop.co.uk/it%27s/page") == {(shop, 1, f"another scheme, {host}, other escapes in its path")}


def test_many_urls_at_once_find_what_each_finds_alone(logs: Logs) -> None:
    asked = [*URLS, "example.com", "http://example.com/?secret=1", "nonsense", "http://example.com/"]
    keys, near = urls_called(logs, asked)
    for one in set(asked):
        alone = documents_called(logs, one)
        assert [miss for miss in near if miss.asked == one] == alone.near
        if alone.found:
            assert {row["url_key"] for row in alone.documents} <= keys[one].keys()


def test_at_most_so_many_captures_are_told(logs: Logs) -> None:
    assert len(documents_called(logs, "http://example.com/", 2).documents) == 2
    assert len(documents_called(logs, "example.com", 2).documents) == 2


def test_every_command_takes_a_url_and_says_how_it_was_matched(crawled: Path) -> None:
    told = call("why", crawled, "http://example.com")
    assert "2 of these were crawled as http://example.com/, which is the same URL" in told.stdout
    assert "not included, for they are other URLs:" in told.stdout
    told = call("why", crawled, "http://example.com/?secret=1", "--json")
    assert {life["matched"] for life in json.loads(told.stdout)} == {AS_NEAR}
    assert "no document has exactly the URL http://example.com/?secret=1; near misses:" in told.stderr
    texts: list[Any] = json.loads(call("text", crawled, "http://EXAMPLE.com/", "--json").stdout)
    assert [one["id"] for one in texts] == [f"docs/a.jsonl#{n}" for n in range(3)] and all(one["text"] for one in texts)
    refused = call("twins", crawled, "http://example.com/list", code=1)
    assert "near misses" in refused.stderr and "has the id or URL" in refused.stderr
    assert "has no twin on record" in call("twins", crawled, "http://example.com/list?id=1", code=1).stderr


def test_a_takedown_takes_the_same_url_and_never_passes_over_what_resembles_it(crawled: Path, logs: Logs, tmp_path: Path) -> None:
    found = affected(logs, Selection(documents=("HTTP://example.com", "http://nowhere.example/")))
    assert [row["position"] for row in found.taken] == [0, 1, 2]
    assert (found.unknown, found.near_misses) == (["http://nowhere.example/"], [])
    printed = "http://example.com/list"  # as every command prints the URL of two documents that had a query
    close = affected(logs, Selection(documents=(printed, "docs/a.jsonl#5")))
    assert [row["position"] for row in close.taken] == [5] and close.unknown == []
    assert [(one.asked, one.url, one.documents, one.why) for one in close.near_misses] == [(printed, printed, 2, HIDDEN)]
    with pytest.raises(ManifestError, match=f"no document has exactly the URL {printed}, and {printed}, {HIDDEN}, resembles it"):
        take_down(*open_corpus(str(crawled)), close, str(tmp_path / "without"), "order", "me")
    assert not (tmp_path / "without").exists()
    shown = call("takedown", crawled, "--ids", "-", given=f"{printed}\n")
    assert "unknown" not in shown.stdout and "name the ids that are meant" in shown.stdout
    told = json.loads(call("takedown", crawled, "--ids", "-", "--json", given=f"{printed}\n").stdout)
    assert told["near_misses"][0]["documents"] == 2


def test_a_takedown_of_a_domain_says_how_many_documents_no_domain_can_match(crawled: Path, logs: Logs) -> None:
    found = affected(logs, Selection(domains=("example.com",)))
    assert found.without_url == 2, "the URN, and the document without a URL"
    assert "without a URL with a host, so that no domain matches them: 2 documents of the corpus" in call("takedown", crawled, "--domain", "example.com").stdout  # fmt: skip
    assert affected(logs, Selection(documents=("http://example.com/",))).without_url == 0
