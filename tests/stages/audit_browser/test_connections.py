"""Connections that never say what they want keep nobody out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

import uvicorn

from stages.audit_browser.application import application
from stages.audit_browser.connections import within
from tests.stages.audit_browser.pages import browser_of

PATIENCE = 30
"""Seconds after which a test gives up."""
MOST = 4
"""Connections at the same time."""


@pytest.fixture(scope="module")
def port(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    browser = browser_of(finished, tmp_path_factory.mktemp("reviews") / "reviews.jsonl")
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
