"""Who gets into the browser, and who keeps others out of it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser.access import HEADERS, POLICY, Access, is_loopback, own_connection
from stages.audit_browser.pages import link
from tests.stages.audit_browser.pages import OURS, Serving, browser_of, client_of, every_page, page, verdict


def test_every_answer_has_the_headers_of_its_defence(served: TestClient, gone: list[dict[str, Any]]) -> None:
    paths = [
        *every_page(gone),
        "/static/style.css",
        "/static/keys.js",
        "/nowhere",
        "/document",
        "/removals.csv",
        "/static/..%2fx",
    ]
    for path in paths:
        answer = served.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
    assert served.get("/", headers={"host": "evil.example"}).headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY


def test_pages_have_no_script_or_style_of_their_own(served: TestClient, gone: list[dict[str, Any]]) -> None:
    for path in every_page(gone):
        for tag, one in page(served, path).tags:
            assert tag != "style" and not [name for name in one if name == "style" or name.startswith("on")]
            assert tag != "script" or one["src"] == "/static/keys.js"


@pytest.mark.parametrize("name", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765", "192.168.0.7", "LOCALHOST"])
def test_a_host_that_is_a_number_or_this_machine_is_known(served: TestClient, name: str) -> None:
    assert served.get("/", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "a b"])
def test_a_name_that_a_stranger_has_pointed_here_is_refused(served: TestClient, name: str) -> None:
    answer = served.get("/", headers={"host": name})
    assert answer.status_code == 421 and "small" not in answer.text


def test_forms_of_other_sites_are_not_taken(finished: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(finished, tmp_path / "reviews.jsonl"))
    start = link("/review", rule="minhash.near_duplicate")
    for headers in (
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site", "origin": "null"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost:81"},
        {"origin": "http://localhost.evil.example"},
    ):
        assert verdict(client, start, **headers).status_code == 403
    for data in ({}, {"form_token": ""}, {"form_token": "é"}, {"form_token": "0" * 64}):
        filled = {"verdict": "right", "reviewer": "Ada", **data}
        assert client.post("/review?id=a&of=b", data=filled, headers=OURS).status_code == 403
    assert not (tmp_path / "reviews.jsonl").exists()
    assert verdict(client, start, origin="null").status_code == 303  # ours, by the token


def test_pages_of_other_sites_load_nothing_but_may_link_here(served: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        for use in ("image", "script", "iframe", "empty"):
            headers = {"sec-fetch-site": site, "sec-fetch-dest": use}
            assert served.get(link("/whatif", change="c4.curly_brace=off"), headers=headers).status_code == 403
        assert served.get("/", headers={"sec-fetch-site": site, "sec-fetch-dest": "document"}).status_code == 200
    assert (
        served.get("/static/style.css", headers={"sec-fetch-site": "same-origin", "sec-fetch-dest": "style"}).status_code == 200
    )


@pytest.mark.parametrize(
    "name",
    ["forwarded", "Via", "X-Real-IP", "X-Forwarded-Proto", "x-forwarded-host", "X-Forwarded-For", "X-Client-IP", "CF-Ray"],
)
def test_whoever_asks_through_a_proxy_needs_the_token(served: TestClient, name: str) -> None:
    assert served.get("/").status_code == 200
    assert served.get("/", headers={name: "1"}).status_code == 303


def test_without_the_token_nothing_is_shown_and_with_it_all(finished: Path, tmp_path: Path, gone: list[dict[str, Any]]) -> None:
    access = Access(trusts_own=False)
    client = client_of(browser_of(finished, tmp_path / "r", access=access))
    for path in [*every_page(gone), "/removals.csv", "/reviews.json", "/static/keys.js", "/nowhere"]:
        answer = client.get(path)
        assert answer.status_code == 303 and answer.text == ""
        assert answer.headers["location"] == f"/login?to={quote(path, safe='')}"
    assert client.post("/review?id=a&of=b").status_code == 403
    form = client.get("/login?to=%2Freviews").text
    assert "small" not in form and access.token not in form
    token = re.search(r'name="form_token" value="([^"]*)"', form)[1]  # type: ignore[index]
    assert token != access.form_token("review")
    for wrong in ("", "é", access.token[:-1], access.token + "x"):
        answer = client.post("/login?to=/reviews", data={"form_token": token, "token": wrong}, headers=OURS)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers and "not the token" in answer.text
    assert client.post("/login", data={"token": access.token}, headers=OURS).status_code == 403
    answer = client.post("/login?to=/reviews", data={"form_token": token, "token": access.token}, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/reviews")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and access.token.lower() not in cookie
    assert client.get("/").status_code == 200
    client.cookies.clear()
    client.cookies.set(Access.cookie_name({"server": ("localhost", 80)}), access.token)
    assert client.get("/").status_code == 303  # the token is no cookie


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/\t/evil.example", ""]
)
def test_nobody_is_sent_to_another_site_after_giving_the_token(finished: Path, tmp_path: Path, to: str) -> None:
    access = Access(trusts_own=False)
    client = client_of(browser_of(finished, tmp_path / "r", access=access))
    data = {"form_token": access.form_token("login"), "token": access.token}
    assert client.post(link("/login", to=to), data=data, headers=OURS).headers["location"] == "/"


def test_a_connection_is_one_s_own_only_if_the_system_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            assert own_connection(accepted.getpeername(), accepted.getsockname()) == (Path("/proc/net/tcp").exists())
            assert not own_connection(("127.0.0.1", 1), accepted.getsockname())
            assert not own_connection(("::1", client.getsockname()[1]), accepted.getsockname())
        assert not own_connection(client_name := ("127.0.0.1", 9), server.getsockname()), client_name
    for nothing in (None, ("testclient", 50000)):
        assert not own_connection(nothing, ("127.0.0.1", 80)) and not own_connection(("127.0.0.1", 80), nothing)


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_of_this_machine_needs_the_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ready, go = os.pipe()
        "localhost".encode("idna")  # somebody else may not be allowed to read the interpreter's modules
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65000)
                with socket.create_connection(("127.0.0.1", port)):
                    os.read(ready, 1)
            finally:
                os._exit(0)
        with server.accept()[0] as accepted:
            own = own_connection(accepted.getpeername(), accepted.getsockname())
        os.write(go, b"x")
        os.waitpid(child, 0)
    assert not own


def test_addresses_that_others_reach_are_told_apart() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def entered(client: TestClient, access: Access) -> Any:
    return client.get(link("/enter", once=access.once))


def test_the_printed_address_lets_one_browser_in_once(finished: Path, tmp_path: Path) -> None:
    access = Access()
    browser = browser_of(finished, tmp_path / "r", access=access)
    first, second = client_of(browser), client_of(browser)
    address = link("/enter", once=access.once)
    answer = first.get(address)
    assert answer.status_code == 200 and 'content="0; url=/"' in answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "domain" not in cookie
    for secret in (access.token, address.partition("once=")[2]):
        assert secret not in answer.text and secret.lower() not in cookie
    assert first.get("/").status_code == 200
    used = second.get(address)
    assert used.status_code == 403 and "set-cookie" not in used.headers and "somebody else has" in used.text
    assert second.get("/").status_code == 303
    again = first.get(address)  # who is in already is not asked again
    assert (again.status_code, again.headers["location"]) == (303, "/")


@pytest.mark.parametrize("given", ["", "é", "x" * 43, "the token"])
def test_what_is_not_the_secret_of_the_address_lets_nobody_in_and_uses_nothing_up(
    finished: Path, tmp_path: Path, given: str
) -> None:
    access = Access()
    client = client_of(browser_of(finished, tmp_path / "r", access=access))
    answer = client.get(link("/enter", once=access.token if given == "the token" else given))
    assert answer.status_code == 403 and "set-cookie" not in answer.headers
    assert entered(client, access).status_code == 200


def test_who_only_looks_whether_the_address_is_there_does_not_use_it_up(finished: Path, tmp_path: Path) -> None:
    access = Access()
    client = client_of(browser_of(finished, tmp_path / "r", access=access))
    address = link("/enter", once=access.once)
    looked = [
        client.head(address),
        client.get(address, headers={"sec-purpose": "prefetch;prerender"}),
        client.get(address, headers={"purpose": "prefetch"}),
        client.get(address, headers={"host": "evil.example"}),
        client.get(address, headers={"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}),
    ]
    assert not any("set-cookie" in answer.headers for answer in looked)
    assert entered(client, access).status_code == 200


def test_after_the_address_is_used_the_token_still_lets_others_in(finished: Path, tmp_path: Path) -> None:
    access = Access()
    browser = browser_of(finished, tmp_path / "r", access=access)
    assert entered(client_of(browser), access).status_code == 200
    other = client_of(browser)
    data = {"form_token": access.form_token("login"), "token": access.token}
    assert other.post("/login", data=data, headers=OURS).status_code == 303
    assert other.get("/").status_code == 200


def test_a_program_of_one_s_own_that_passes_bytes_on_needs_the_token(finished: Path, tmp_path: Path) -> None:
    """To the system its connections are the user's, and it adds no header."""
    answer = b""
    with (
        Serving(browser_of(finished, tmp_path / "r", access=Access())) as serving,
        socket.create_connection(("127.0.0.1", serving.port)) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while piece := connection.recv(1 << 16):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 303 ") and b"location: /login" in answer and b"set-cookie" not in answer
