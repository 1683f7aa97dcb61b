"""Who gets into the browser, and who keeps others out of it."""

from __future__ import annotations

import html
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests.manifest import open_corpus

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

import uvicorn
from starlette.testclient import TestClient

from manifests.audit.reviews import ReviewFile
from stages.audit_browser.access import Access
from stages.audit_browser.application import application
from stages.audit_browser.browser import Browser
from stages.audit_browser.connections import within
from stages.audit_browser.questions import Questions

PATIENCE = 30
"""Seconds after which a test gives up."""
MOST = 4
"""Connections at the same time."""


@pytest.fixture(scope="module")
def browser(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    digest = open_corpus(str(finished))[1].digest
    reviews = ReviewFile(tmp_path_factory.mktemp("reviews") / "reviews.jsonl", digest)
    return Browser(Questions(str(finished)), reviews, Access(trusts_own=True, own=lambda client, server: True))


def client_of(browser: Browser) -> TestClient:
    return TestClient(application(browser), base_url="http://localhost", follow_redirects=False)


@pytest.mark.parametrize("name", ["Via", "X-Forwarded-Proto", "x-forwarded-host", "X-Forwarded-For", "X-Client-IP", "CF-Ray"])
def test_whoever_asks_through_a_proxy_needs_the_token(browser: Browser, name: str) -> None:
    client = client_of(browser)
    assert client.get("/").status_code == 200
    assert client.get("/", headers={name: "1"}).status_code == 303


@pytest.fixture(scope="module")
def port(browser: Browser) -> Iterator[int]:
    config = uvicorn.Config(
        application(browser),
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan="off",
        ws="none",
        http=within(0.3),
        limit_concurrency=MOST,
    )
    listening = config.bind_socket()
    listening.listen()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


WHOLE = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


def called(port: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def until_closed(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return found


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: local", FORM, FORM + b"token=", WHOLE + b"GET / HT", WHOLE + FORM], ids=repr
)
def test_connections_that_never_end_a_request_do_not_keep_others_out(port: int, sent: bytes) -> None:
    held = [called(port, sent) for _ in range(MOST)]
    for one in held:
        assert until_closed(one).count(b"HTTP/1.1 ") <= 2
        one.close()
    with called(port, WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as next_one:
        assert until_closed(next_one).startswith(b"HTTP/1.1 200 ")


def test_a_byte_now_and_then_is_no_request(port: int) -> None:
    with called(port, b"GET / HTTP/1.1\r\n") as connection:
        connection.settimeout(0.05)
        ended, sent = False, 0
        while not ended and sent < 20 * PATIENCE:
            try:
                ended = not connection.recv(1)
            except TimeoutError:
                connection.sendall(b"a")
                sent += 1
            except ConnectionError:
                ended = True
        assert ended


@pytest.mark.parametrize("path", ["/", "/reviews", "/removals", "/whatif"])
def test_of_a_corpus_that_is_gone_nothing_is_shown(copied: Path, tmp_path: Path, path: str) -> None:
    questions = Questions(str(copied))
    reviews = ReviewFile(tmp_path / "reviews.jsonl", questions.manifest.digest)
    client = client_of(Browser(questions, reviews, Access(trusts_own=True, own=lambda client, server: True)))
    assert client.get(path).status_code == 200
    (copied / "manifest.json").rename(copied / "gone.json")
    answer = client.get(path)
    assert answer.status_code == 500 and "is no corpus that can be read" in answer.text
    assert client.get("/static/style.css").status_code == 200
    (copied / "gone.json").rename(copied / "manifest.json")
    assert client.get(path).status_code == 200


def test_a_bound_beyond_all_numbers_is_no_bound(browser: Browser) -> None:
    answer = client_of(browser).get("/whatif", params={"change": "gopher_quality.min_words=1e309"})
    assert answer.status_code == 200 and "is not a number" in answer.text


def test_whoever_jumps_in_a_sample_picks_by_hand(browser: Browser, finished: Path, tmp_path: Path) -> None:
    mine = Browser(browser.questions, ReviewFile(tmp_path / "r.jsonl", browser.manifest.digest), browser.access, reviewer="Ada")
    client = client_of(mine)
    for at, sampled in ((3, 0), (1, 1), (2, 3)):
        form = client.get("/review", params={"rule": "minhash.near_duplicate", "seed": 5, "n": 4, "at": at}).text
        action = html.unescape(re.search(r'<form method="post" action="([^"]*)"', form)[1])  # type: ignore[index]
        data = {"form_token": mine.access.form_token("review"), "verdict": "right", "reviewer": "Ada"}
        assert client.post(action, data=data, headers={"sec-fetch-site": "same-origin"}).status_code == 303
        (rates,) = client.get("/reviews.json").json()["rules"]
        assert rates["sampled"] == sampled
    assert [one.place for one in mine.reviews.read()] == [3, 1, 2]


def test_half_a_character_in_a_review_is_shown_as_an_escape(browser: Browser) -> None:
    browser.reviews.add("Ada \ud800", "1", "a.b", "right", "a note \udfff of half")
    answer = client_of(browser).get("/reviews")
    assert answer.status_code == 200 and "Ada \\ud800" in answer.text and "a note \\udfff of half" in answer.text


def test_a_question_that_is_too_long_is_answered_on_a_page(browser: Browser) -> None:
    answer = client_of(browser).get("/document", params={"q": "a" * 10_001})
    assert answer.status_code == 400 and "10,000 are the most" in answer.text
