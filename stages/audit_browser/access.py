"""Who may ask: the person who started the server, or who has its token; and no page of another site in their name.

A port of 127.0.0.1 is open to every user of the machine, and to whoever reaches a program that passes bytes on to it. So
everybody needs a cookie. The first browser that opens the printed address gets one for the secret in it, which is worth nothing
from then on; others type in the token.

Where the server is told to do without (`trusts_own`), a connection is let in if the system says that the socket at its other end
belongs to the user who runs the server, and no proxy says that it asks for another. A program of that user which passes bytes on
and says nothing, such as an SSH tunnel, then lets in whoever reaches it."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import quote

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Address = tuple[str, int]

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
LOGIN = "/login"
ENTER = "/enter"
OPEN_TO_ALL = frozenset([LOGIN, ENTER, "/static/style.css"])
FORWARDED = frozenset([b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip"])
FORWARDED_PREFIXES = (b"x-forwarded-", b"x-original-", b"x-envoy-", b"cf-")
"""Headers of a proxy: the socket is then its own, and who asks is another."""
TOKEN_BYTES = 32
_ESTABLISHED = "01"
_LOCAL, _REMOTE, _STATE, _USER = 1, 2, 3, 7
"""Columns of /proc/net/tcp (proc_net_tcp of the kernel's documentation)."""


def is_loopback(host: str) -> bool:
    """Is this an address that only this machine reaches?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_connection(client: Address | None, server: Address | None) -> bool:
    """Does the socket at the other end belong to the user of this process? False where the system does not say."""
    if client is None or server is None:
        return False
    user = str(os.getuid())
    if user == _nobody():
        return False  # what every user of another name space is shown as
    for table, ends in _ends(client, server):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > _USER and (columns[_LOCAL], columns[_REMOTE]) == ends:
                # A closing socket is shown as root's.
                return columns[_STATE] == _ESTABLISHED and columns[_USER] == user
    return False


def _nobody() -> str:
    try:
        return Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii").strip()
    except OSError:
        return "65534"


def _ends(client: Address, server: Address) -> Iterable[tuple[str, tuple[str, str]]]:
    """The tables that may have the client's socket, and how it is written there."""
    try:
        both = [ipaddress.ip_address(one[0]) for one in (client, server)]
    except ValueError:
        return
    ports = client[1], server[1]
    if all(one.version == 4 for one in both):
        yield "tcp", _written([one.packed for one in both], ports)
        yield "tcp6", _written([b"\0" * 10 + b"\xff\xff" + one.packed for one in both], ports)
    elif all(one.version == 6 for one in both):
        yield "tcp6", _written([one.packed for one in both], ports)


def _written(addresses: list[bytes], ports: tuple[int, int]) -> tuple[str, str]:
    words = ("".join(f"{word:08X}" for word in struct.unpack(f"={len(one) // 4}I", one)) for one in addresses)
    first, second = (f"{word}:{port:04X}" for word, port in zip(words, ports, strict=True))
    return first, second


@dataclass
class Access:
    """token: what lets a person in, as often as it is given; once: what lets in the first browser that comes with it. trusts_own:
    are connections of the user's own processes let in without? names: host names by which the server may be called, beside
    numbers and `localhost`: a name that a stranger has made to point here is refused."""

    trusts_own: bool = False
    names: frozenset[str] = frozenset()
    own: Callable[[Address | None, Address | None], bool] = own_connection
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    once: str | None = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    """None from when it has been used."""
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))

    def admits(self, scope: Scope) -> bool:
        """May whoever asks see pages of the corpus?"""
        names = {name.lower() for name, _ in scope["headers"]}
        forwarded = any(name in FORWARDED or name.startswith(FORWARDED_PREFIXES) for name in names)
        if self.trusts_own and not forwarded and self.own(scope.get("client"), scope.get("server")):
            return True
        cookie = cookies_of(scope).get(self.cookie_name(scope), "")
        return hmac.compare_digest(cookie.encode(), self._session.encode())

    def session(self, given: str) -> str | None:
        """The value of the cookie for somebody who gives the token; None for another one."""
        return self._session if hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()) else None

    def enter(self, given: str) -> str | None:
        """The value of the cookie for the first who comes with `once`; None for everybody else."""
        if self.once is None or not hmac.compare_digest(given.encode("utf-8", "replace"), self.once.encode()):
            return None
        self.once = None
        return self._session

    def form_token(self, purpose: str) -> str:
        """What a form of ours carries, and none of another site can know."""
        return hmac.digest(self._secret, purpose.encode(), "sha256").hex()

    def form_is_ours(self, purpose: str, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.form_token(purpose).encode())

    @staticmethod
    def cookie_name(scope: Scope) -> str:
        """Cookies of one host are sent to all its ports, so the port is part of the name."""
        server = scope.get("server")
        return f"corpusmill_{server[1] if server else 0}"

    def knows_host(self, given: str) -> bool:
        host = given.rpartition(":")[0] if given.rpartition(":")[2].isdigit() else given
        host = host.removeprefix("[").removesuffix("]").lower().rstrip(".")
        if host == "localhost" or host in self.names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


class Guard:
    """Stands before an application: every answer has HEADERS, and what is not from a known host name, an admitted person
    and, for a POST, a page of our own, goes no further."""

    def __init__(self, application: Callable[[Scope, Receive, Send], Awaitable[None]], access: Access) -> None:
        self.application, self.access = application, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                taken = {name.lower() for name, _ in message.get("headers", [])}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in taken]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        hosts = _header(scope, b"host")
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            await _refuse(with_headers, 421, "this server is not known by that host name; name it with --also-host")
            return
        if why := _loaded_elsewhere(scope):
            await _refuse(with_headers, 403, why)
            return
        if scope["method"] == "POST" and (why := _strange_origin(scope, hosts[0])):
            await _refuse(with_headers, 403, why)
            return
        if scope["path"] not in OPEN_TO_ALL and not self.access.admits(scope):
            if scope["method"] == "POST":
                await _refuse(with_headers, 403, "give the token first: open /login")
                return
            place = scope["path"] + (f"?{scope['query_string'].decode('ascii', 'replace')}" if scope["query_string"] else "")
            target = f"{LOGIN}?to={quote(place, safe='')}"
            await with_headers(
                {"type": "http.response.start", "status": 303, "headers": [(b"location", target.encode("ascii", "replace"))]}
            )
            await with_headers({"type": "http.response.body", "body": b""})
            return
        await self.application(scope, receive, with_headers)


def cookies_of(scope: Scope) -> dict[str, str]:
    """Name → value; none where they cannot be read."""
    found: dict[str, str] = {}
    for header in _header(scope, b"cookie"):
        for one in header.split(";"):
            try:
                found |= {name: morsel.value for name, morsel in SimpleCookie(one).items()}
            except CookieError:
                continue
    return found


def host_names(host: str) -> frozenset[str]:
    """What a server that listens on `host` may be called: the name, if it is one, or for all addresses that of the machine."""
    if host in ("0.0.0.0", "::", ""):
        return frozenset([socket.gethostname().lower(), socket.getfqdn().lower()])
    return frozenset([host.lower()])


def _loaded_elsewhere(scope: Scope) -> str | None:
    """Why a page of another site may not load this as its picture, script or frame; None for a link that a person follows."""
    site, use = _header(scope, b"sec-fetch-site"), _header(scope, b"sec-fetch-dest")
    if site and site[0] not in ("same-origin", "none") and use and use[0] != "document":
        return "pages of other sites load nothing from here"
    return None


def _strange_origin(scope: Scope, host: str) -> str | None:
    """Why a POST is not from a page of ours; None where nothing speaks against it. `no-referrer` makes the origin of our
    own forms `null`, which proves nothing either way: the token in the form then decides."""
    site = _header(scope, b"sec-fetch-site")
    if site and site[0] not in ("same-origin", "none"):
        return "a form of another site is not taken"
    origin = _header(scope, b"origin")
    # Not by its scheme: before a proxy it may be another.
    if origin and origin[0] != "null" and origin[0].lower().partition("://")[2] != host.lower():
        return "a form of another origin is not taken"
    return None


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


async def _refuse(send: Send, status: int, why: str) -> None:
    body = f"{status}: {why}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
