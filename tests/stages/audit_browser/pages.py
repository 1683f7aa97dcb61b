"""What tests of the browser share: clients of a corpus, what they read, and what strangers write."""

from __future__ import annotations

import html
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn
from starlette.testclient import TestClient

from manifests.audit.reviews import ReviewFile
from stages.audit_browser import commands
from stages.audit_browser.access import Access
from stages.audit_browser.application import application
from stages.audit_browser.browser import Browser
from stages.audit_browser.pages import link
from stages.audit_browser.questions import Questions
from tests.html_page import Read
from tests.pipeline.crawl import article

assert commands  # adds `serve` to the program
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


HOME = "http://localhost"


OURS = {"sec-fetch-site": "same-origin"}


HOSTILE = [
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "</mark></div><svg onload=document.title='taken'>{{ 7*7 }}",
    "\x1b[31m\u202eevil&lt;b&gt;",
    "javascript:document.title='taken'",
    "'; drop table removals; --",
]


LATE = article("late") * 12 + "\n" + "# " * 400


TEXTS = {
    "<img src=x onerror=document.title=1>.jsonl": "\n".join([*HOSTILE, "<b>bold</b> \ufdfa"]),
    "mail.jsonl": "write to jane.roe@example.org",
    "twin.jsonl": "<script>document.title='taken'</script> and some words more",
    "twin2.jsonl": "<script>document.title='taken'</script> and some words more",
}


STRANGE = [
    *HOSTILE,
    "nul\0<b>\0",
    "\u2066turned\u200f<i>\u2028",
    "<!--",
    "&lt;script&gt;",
    "{% raw %}",
    "</script></textarea></title><b>",
]
"""HOSTILE, and what a command cannot be given."""
Asked = Callable[..., Any]


def browser_of(corpus: Path, reviews: Path, **more: Any) -> Browser:
    questions = Questions(str(corpus))
    access = more.pop("access", None) or Access(trusts_own=True, own=lambda client, server: True)
    return Browser(questions, ReviewFile(reviews, questions.manifest.digest), access, reviewer="Ada", **more)


def client_of(browser: Browser, base: str = HOME) -> TestClient:
    return TestClient(application(browser), base_url=base, follow_redirects=False)


def page(client: TestClient, path: str, code: int = 200) -> Read:
    answer = client.get(path)
    assert answer.status_code == code, answer.text
    return Read(answer.text)


def cells(markup: str) -> list[list[str]]:
    """The rows of every table of a page, cell by cell."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", markup, re.S)
    return [[Read(one).text for one in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)] for row in rows]


def every_page(gone: list[dict[str, Any]]) -> list[str]:
    twin = next(row for row in gone if row["kept_id"])
    filtered = next(row for row in gone if row["stage"] == "filters1")
    return [
        "/",
        "/removals",
        link("/removals", rule=twin["rule"], rows=2, order="highest"),
        *(link("/document", id=row["id"]) for row in (twin, filtered, gone[0])),
        link("/document", id=twin["kept_id"]),
        link("/twins", id=twin["id"]),
        link("/rule", name=filtered["rule"]),
        "/whatif",
        link("/whatif", change="c4.curly_brace=off"),
        link("/review", rule=twin["rule"]),
        "/takedown",
        link("/takedown", id=twin["id"], domain="site0.example"),
        "/reviews",
    ]


def verdict(client: TestClient, path: str, name: str = "Ada", note: str = "", answer: str = "false_positive", **more: str) -> Any:
    form = client.get(path).text
    action = html.unescape(re.search(r'<form method="post" action="([^"]*)"', form)[1])  # type: ignore[index]
    token = re.search(r'name="form_token" value="([^"]*)"', form)[1]  # type: ignore[index]
    data = {"form_token": token, "verdict": answer, "reviewer": name, "note": note}
    return client.post(action, data=data, headers=more or OURS)


def client_token(client: TestClient) -> str:
    found = re.search(r'name="form_token" value="([^"]*)"', client.get(link("/review", rule="minhash.near_duplicate")).text)
    assert found
    return found[1]


def set_column(table: pa.Table, name: str, value: str | list[str | None] | None) -> pa.Table:
    at = table.schema.get_field_index(name)
    values = value if isinstance(value, list) else [value] * table.num_rows
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def rewritten(corpus: Path, kind: str, change: Callable[[pa.Table], pa.Table]) -> None:
    for path in (corpus / "logs" / kind).rglob("*.parquet"):
        pq.write_table(change(pq.ParquetFile(path).read()), path)


class Serving:
    """The application on a free port of this machine, in a thread."""

    def __init__(self, browser: Browser) -> None:
        config = uvicorn.Config(application(browser), host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none")
        self._socket = config.bind_socket()
        self._socket.listen()
        self.port = self._socket.getsockname()[1]
        self.home = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
