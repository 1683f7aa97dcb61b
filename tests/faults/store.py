"""An S3 server on this machine (moto's, over HTTP), and a proxy before it that fails as object stores fail.

`FaultyStore.strike` takes the switches; README.md in this folder lists them.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

BUCKET = "corpora"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
Kind = Literal["500", "503", "cut-upload", "cut-answer", "cut-download"]
REASONS = {"500": ("InternalError", "We encountered an internal error."), "503": ("SlowDown", "Please reduce your request rate.")}


@dataclass
class Strike:
    """Every `every`th of the requests that `kind` can hit, `at_most` times (None: for ever)."""

    kind: Kind
    every: int = 1
    at_most: int | None = None
    path: str = ""
    """Hits only requests whose path holds this."""
    seen: int = 0
    hits: int = 0

    def hit(self, method: str, path: str, length: int) -> bool:
        fits = {"cut-upload": method == "PUT" and length > 1, "cut-download": method == "GET"}.get(self.kind, True)
        if not fits or self.path not in path or (self.at_most is not None and self.hits >= self.at_most):
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.hits += 1
        return True


class FaultyStore:
    """`endpoint` is the proxy's; `direct` the server's own. Both are one store, whose bucket is BUCKET."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.host, self.port = self.server.get_host_and_port()
        self.direct = f"http://{self.host}:{self.port}"
        # moto's servers in one process share what they hold: another module's bucket may be there.
        urllib.request.urlopen(f"{self.direct}/moto-api/reset", data=b"").close()
        self.strikes: list[Strike] = []
        self.lock = threading.Lock()
        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.proxy.daemon_threads = True
        threading.Thread(target=self.proxy.serve_forever, daemon=True, name="faulty store").start()
        self.endpoint = f"http://127.0.0.1:{self.proxy.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}

    @contextlib.contextmanager
    def strike(self, kind: Kind, *, every: int = 1, at_most: int | None = None, path: str = "") -> Iterator[Strike]:
        struck = Strike(kind, every, at_most, path)
        self.strikes.append(struck)
        try:
            yield struck
        finally:
            self.strikes.remove(struck)

    def folder(self) -> str:
        """The URL of a folder that nobody has used."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def age(self, url: str, seconds: float) -> None:
        """The store says of an object that it was written so much earlier."""
        from moto.s3.models import s3_backends

        bucket, _, name = url.removeprefix("s3://").partition("/")
        for account in s3_backends.values():
            for backend in account.values():
                if bucket in backend.buckets:
                    backend.buckets[bucket].keys[name].last_modified -= timedelta(seconds=seconds)

    def close(self) -> None:
        self.proxy.shutdown()
        self.proxy.server_close()
        self.server.stop()

    def _struck(self, method: str, path: str, length: int) -> Kind | None:
        with self.lock:
            return next((one.kind for one in list(self.strikes) if one.hit(method, path, length)), None)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def log_message(self, *_: Any) -> None:
                pass

            def forward(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                kind = store._struck(self.command, self.path, length)
                if kind == "cut-upload":
                    self.rfile.read(length // 2)
                    return self.cut()
                body = self.rfile.read(length)
                if kind in REASONS:
                    return self.refuse(int(kind), *REASONS[kind])
                upstream = http.client.HTTPConnection(store.host, store.port)
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
                upstream.close()
                if kind == "cut-answer":
                    return self.cut()
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(data)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                if kind == "cut-download":
                    self.wfile.write(data[: len(data) // 2])
                    return self.cut()
                self.wfile.write(data)

            def refuse(self, status: int, code: str, words: str) -> None:
                said = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{words}</Message></Error>".encode()
                self.send_response_only(status, code)
                self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(said)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(said)

            def cut(self) -> None:
                self.wfile.flush()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(2)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

        return Handler


@contextlib.contextmanager
def faulty_store() -> Iterator[FaultyStore]:
    """A store with its bucket, which the environment names as a person would."""
    import pytest
    import s3fs

    store = FaultyStore()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment.items():
            environment.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield store
        s3fs.S3FileSystem.clear_instance_cache()
    store.close()
