"""The crawl that the demo starts from, made from what every Python carries: its own documentation.

`write_crawl(folder)` writes WARC files below `folder/warc` and JSON lines below `folder/notes`. The pages are
the docstrings and longer comments of the standard library, read from its sources without importing them; the
notes are the language reference that pydoc shows; and a few pages from `demo/pages`, some of them damaged on
purpose, give every stage something to remove. `PLANTED` says which. The same Python gives the same bytes.
"""

from __future__ import annotations

import ast
import gzip
import html
import io
import json
import os
import re
import shutil
import sysconfig
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pydoc_data.topics import topics

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

HERE = Path(__file__).parent
SITE = "http://docs.pydoc.example"
TOWN = "http://town.example"
BEGAN = datetime(2026, 11, 3, 6, 0, 0, tzinfo=UTC)
PAGES_PER_FILE = 120
LARGE_CLASS = 1500  # characters of HTML: a class or a module's notes with more have a page of their own

# What is planted, by URL. The tests and the demo's questions look here.
PLANTED = {
    "exact copy": f"{TOWN}/print/lighthouse",
    "near copy": "http://coast-news.example/2026/lighthouse-rhythm",
    "near copy of a documentation page": "http://docs-old.pydoc.example/library/heapq.html",
    "personal data": f"{TOWN}/harbour/office",
    "mojibake": f"{TOWN}/stories/bakery",
    "benchmark item": f"{TOWN}/club/quiz",
    "unwanted language": f"{TOWN}/fi/jarvi",
    "chinese": f"{TOWN}/zh/tea",
    "chinese in gb18030": f"{TOWN}/zh/bridge",
    "german": f"{TOWN}/de/moor",
    "german in latin-1": f"{TOWN}/de/uhrmacher",
    "chunked and compressed": f"{TOWN}/de/fahrplan",
    "navigation only": f"{TOWN}/sitemap",
    "repeated lines": f"{TOWN}/offers",
    "lorem ipsum": f"{TOWN}/garden",
    "braces": f"{TOWN}/notes/configuration",
    "too short": f"{TOWN}/closed",
    "blocked domain": "http://www.casino.example/stories/lighthouse",
    "blocked word": f"{TOWN}/porn/bakery",
    "not found": f"{TOWN}/missing",
    "image": f"{TOWN}/harbour.png",
    "empty": f"{TOWN}/empty",
    "truncated": f"{TOWN}/stories/truncated",
}


@dataclass(frozen=True)
class Response:
    """One answer of a web server, as the crawler met it."""

    url: str
    body: bytes
    status: str = "200 OK"
    media_type: str | None = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def write_crawl(folder: Path) -> None:
    """Writes the whole crawl below `folder`, replacing what was there."""
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "warc").mkdir(parents=True)
    (folder / "notes").mkdir()
    documentation = list(documentation_pages())
    planted = list(planted_pages(documentation))
    # Planted pages stand among the others: the first files hold a few each.
    files = [documentation[at : at + PAGES_PER_FILE] for at in range(0, len(documentation), PAGES_PER_FILE)]
    for number, response in enumerate(planted):
        files[number % len(files)].insert(10 + number, response)
    for number, responses in enumerate(files):
        _write_warc(folder / "warc" / f"PYDOC-2026-11-{number:05d}.warc.gz", responses, number)
    _append_truncated(folder / "warc" / f"PYDOC-2026-11-{len(files) - 1:05d}.warc.gz")
    _write_notes(folder / "notes" / "reference.jsonl.gz")
    for path in folder.glob("*/*"):
        # An input that has not changed looks unchanged, so that a second demo finds the work of the first.
        os.utime(path, (BEGAN.timestamp(), BEGAN.timestamp()))


def documentation_pages() -> Iterator[Response]:
    """A page for each module in modules.txt that this Python has, and one for each of its large classes."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in (HERE / "modules.txt").read_text("utf-8").split():
        path = library.joinpath(*name.split("."))
        candidates = (path.with_suffix(".py"), path / "__init__.py")
        source = next((file for file in candidates if file.is_file()), None)
        if source is None:
            continue
        text = source.read_text("utf-8", errors="replace")
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for title, body in _module_pages(name, tree, text):
            yield _page(f"{SITE}/library/{title}.html", title, body)


def planted_pages(documentation: list[Response]) -> Iterator[Response]:
    """The pages that stages are expected to catch or to repair, and good ones in other languages."""
    lighthouse = _article("lighthouse")
    yield _page(f"{TOWN}/stories/lighthouse", *lighthouse)
    yield _page(PLANTED["exact copy"], *lighthouse)
    title, body = lighthouse
    edits = {"two hundred miles": "two hundred kilometres", "in 1958": "in 1957", "a child": "a boy"}
    for old, new in edits.items():
        body = body.replace(old, new)
    yield _page(PLANTED["near copy"], title, body)
    heapq = next((page for page in documentation if page.url == f"{SITE}/library/heapq.html"), None)
    if heapq is not None:
        older = heapq.body.replace(b"<p>Heap queue algorithm", b"<p>The heap queue algorithm")
        yield Response(PLANTED["near copy of a documentation page"], older)

    for kind, name in (
        ("personal data", "harbour_office"),
        ("mojibake", "bakery_letters"),
        ("benchmark item", "reading_club"),
        ("unwanted language", "finnish"),
        ("chinese", "zh_tea"),
        ("german", "de_moor"),
        ("lorem ipsum", "lorem"),
        ("braces", "braces"),
    ):
        yield _page(PLANTED[kind], *_article(name))
    yield _page(f"{TOWN}/zh/library", *_article("zh_library"))
    # The server names no charset: only the page itself does.
    yield _page(PLANTED["chinese in gb18030"], *_article("zh_bridge"), "gb18030", announced=False)
    yield _page(PLANTED["german in latin-1"], *_article("de_uhrmacher"), "iso-8859-1", announced=False)
    yield _chunked(_page(PLANTED["chunked and compressed"], *_article("de_fahrplan")))

    links = "".join(f'<li><a href="/{n}">Street {n}</a></li>' for n in range(1, 120))
    yield _page(PLANTED["navigation only"], "Site map", f"<ul>{links}</ul>")
    offers = (
        "The market on the old square has fresh bread and good cheese for you today.",
        "Come in the morning if you want to choose, and in the evening if you want to save.",
    )
    yield _page(PLANTED["repeated lines"], "Offers of the week", f"<p>{'<br>'.join(offers * 15)}</p>")
    yield _page(PLANTED["too short"], "Closed", "<p>The library of the town is closed on Monday.</p>")
    yield _page(PLANTED["blocked domain"], *_article("harbour_office"))
    yield _page(PLANTED["blocked word"], *_article("bakery_letters"))
    missing = _page(PLANTED["not found"], "Not found", "<p>There is no page of this name on the server.</p>")
    yield Response(missing.url, missing.body, status="404 Not Found")
    yield Response(PLANTED["image"], b"\x89PNG\r\n\x1a\n" + bytes(range(256)), media_type="image/png")
    yield Response(PLANTED["empty"], b"")


# Standard library sources as pages


def _module_pages(name: str, tree: ast.Module, source: str) -> Iterator[tuple[str, str]]:
    """(title, HTML body) of each class that has a lot to say, of the notes, and of the rest of the module."""
    parts = [_prose(ast.get_docstring(tree) or "")]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(_described(node, "h2"))
        elif isinstance(node, ast.ClassDef):
            body = _described(node, "h2") + "".join(
                _described(member, "h3")
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            )
            if len(body) > LARGE_CLASS:
                yield f"{name}.{node.name}", body
            else:
                parts.append(body)
    notes = [_prose(comment) for comment in _long_comments(source)]
    if sum(map(len, notes)) > LARGE_CLASS:
        yield f"{name}.notes", "<h2>Notes from the source</h2>" + "".join(notes)
    yield name, "".join(parts)


def _described(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, heading: str) -> str:
    docstring = ast.get_docstring(node)
    return f"<{heading}>{html.escape(node.name)}</{heading}>{_prose(docstring)}" if docstring else ""


def _long_comments(source: str) -> Iterator[str]:
    """Runs of at least five comment lines: explanations, and now and then an old copyright notice."""
    run: list[str] = []
    for line in [*source.splitlines(), ""]:
        comment = re.match(r"\s*#(?!!) ?(.*)", line)
        if comment:
            run.append(comment[1].rstrip())
            continue
        if len(run) >= 5:
            yield "\n".join(run)
        run = []


def _prose(text: str) -> str:
    """Plain text as HTML: paragraphs, lists, and examples as they are."""
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = textwrap.dedent(block).splitlines()
        if not any(line.strip() for line in lines):
            continue
        if lines[0].startswith(">>>") or all(line.startswith(("    ", "\t")) for line in block.splitlines()):
            out.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
        elif len(lines) > 1 and all(re.match(r"[-*] |\s", line) for line in lines):
            items = (item.lstrip("-* ") for item in re.split(r"\n(?=[-*] )", "\n".join(lines)))
            out.append("<ul>" + "".join(f"<li>{_flowing(item)}</li>" for item in items) + "</ul>")
        else:
            out.append(f"<p>{_flowing(' '.join(lines))}</p>")
    return "".join(out)


def _flowing(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False)


# Pages


def _article(name: str) -> tuple[str, str]:
    """(title, HTML body) of a text in demo/pages: a title, then paragraphs, with blank lines between."""
    title, *paragraphs = (HERE / "pages" / f"{name}.txt").read_text("utf-8").strip().split("\n\n")
    return title, "".join(f"<p>{html.escape(paragraph, quote=False)}</p>" for paragraph in paragraphs)


def _page(url: str, title: str, body: str, charset: str = "utf-8", announced: bool = True) -> Response:
    """A page with the furniture that extraction has to tell from the text."""
    text = f"""<!DOCTYPE html>
<html><head><meta charset="{charset}"><title>{html.escape(title)}</title>
<style>nav li {{ display: inline }}</style></head>
<body><header><nav><ul><li><a href="/">Home</a></li><li><a href="/news">News</a></li>
<li><a href="/search">Search</a></li></ul></nav></header>
<main><article><h1>{html.escape(title)}</h1>{body}</article></main>
<aside><h4>Read next</h4><a href="/popular">Popular pages</a></aside>
<footer><p>All rights reserved. <a href="/terms">Terms of use</a> <a href="/privacy">Privacy policy</a></p>
</footer>
<script>document.title = document.title.trim();</script></body></html>
"""
    media_type = f"text/html; charset={charset}" if announced else "text/html"
    return Response(url, text.encode(charset), media_type=media_type)


def _chunked(page: Response) -> Response:
    """The same page as a server sends it that compresses on the fly: gzip in chunks of 1,000 bytes."""
    packed = gzip.compress(page.body, mtime=0)
    pieces = [packed[at : at + 1000] for at in range(0, len(packed), 1000)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    headers = (("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked"))
    return Response(page.url, body, headers=headers)


# Files


def _write_warc(path: Path, responses: list[Response], number: int) -> None:
    began = BEGAN + timedelta(hours=number)
    with path.open("wb") as out:
        writer = WARCWriter(out, gzip=True)
        fields = b"software: corpusmill demo\r\nformat: WARC File Format 1.0\r\n"
        about = {"WARC-Record-ID": _record_id(path.name), "WARC-Date": _date(began)}
        about["WARC-Filename"] = path.name
        record = writer.create_warc_record(
            "", "warcinfo", payload=io.BytesIO(fields), length=len(fields), warc_headers_dict=about
        )
        writer.write_record(record)
        for second, response in enumerate(responses):
            writer.write_record(_record(writer, response, began + timedelta(seconds=second)))


def _record(writer: WARCWriter, response: Response, when: datetime):
    headers = [("Date", f"{when:%a, %d %b %Y %H:%M:%S} GMT"), *response.headers]
    if response.media_type:
        headers.append(("Content-Type", response.media_type))
    return writer.create_warc_record(
        response.url,
        "response",
        payload=io.BytesIO(response.body),
        length=len(response.body),
        http_headers=StatusAndHeaders(response.status, headers, protocol="HTTP/1.1"),
        warc_headers_dict={"WARC-Record-ID": _record_id(response.url), "WARC-Date": _date(when)},
    )


def _append_truncated(path: Path) -> None:
    """A last record of which the second half never reached the disk."""
    packed = io.BytesIO()
    writer = WARCWriter(packed, gzip=True)
    page = _page(PLANTED["truncated"], *_article("lighthouse"))
    writer.write_record(_record(writer, page, BEGAN + timedelta(days=1)))
    whole = packed.getvalue()
    with path.open("ab") as out:
        out.write(whole[: len(whole) // 2])


def _write_notes(path: Path) -> None:
    """The language reference that pydoc carries, one line a section."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as out:
        for name in sorted(topics):
            for number, section in enumerate(_sections(topics[name])):
                url = f"http://reference.pydoc.example/{name}" + (f"/{number}" if number else "")
                line = {"url": url, "text": section, "date": _date(BEGAN)}
                out.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _sections(text: str) -> list[str]:
    """A reference text cut at its underlined headings, its hard line breaks undone."""
    pieces = re.split(r"\n(?=\S[^\n]*\n[=*\-~]{4,}\n)", text)
    return ["\n\n".join(" ".join(p.split()) for p in re.split(r"\n\s*\n", piece)).strip() for piece in pieces]


def _record_id(name: str) -> str:
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>"


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"
