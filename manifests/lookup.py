"""Documents by what people call them: an id, a file or a URL.

A log shows a URL without credentials, parameters, query and fragment, and has `url_key`, a hash of the whole URL as it was
crawled. So the captures of a whole URL are found exactly, and so are those of URLs that are the same by RFC 3986, 6.2.2 and
6.2.3: other capitals in scheme and host, other percent-encoding, dot segments, the port of the scheme, no path for `/`; and of
the URL without its fragment, which no server sees. What only resembles the URL (as the logs show it, but with a query that they
do not show; with another scheme, with or without `www.`, with other capitals, escapes or a slash at the end of its path) is a
near miss, and never passed off as the URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from manifests.domains import cleaned, domain_of, host_of
from manifests.identity import DocumentId, url_key
from manifests.logs import Logs

MOST_OF_A_FILE = 20
WHOLE_FILE = "select * from documents where component = ? and file = ?"
RESEMBLING = "resembling_urls"
FILES_IN_A_QUERY = 100
"""So many are compared with the statistics of each log, and most are not read."""
AS_ID, AS_FILE, AS_URL, AS_SAME_URL, AS_NEAR = "id", "file", "URL", "same URL, normalised", "near miss"
WWW = "www."
DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21"}
BARE, HIDDEN = "without the query that was asked for", "with a query, parameters or credentials that the logs do not show"


@dataclass(frozen=True)
class NearMiss:
    """A URL, as the logs show it, that resembles the one asked for, how many documents it has, and what differs."""

    asked: str
    url: str
    documents: int
    why: str


@dataclass
class Called:
    """documents: rows of the document log, in id order; `matched` says of each how. Where nothing is called so, they are those of
    the near misses, and `found` is false. near: URLs that resemble it beside those."""

    asked: str
    documents: list[dict[str, Any]] = field(default_factory=list)
    matched: list[str] = field(default_factory=list)
    near: list[NearMiss] = field(default_factory=list)

    @property
    def found(self) -> bool:
        return any(one != AS_NEAR for one in self.matched)

    def in_words(self) -> list[str]:
        """What an answer must say beside its documents; nothing where each is exactly what was asked for, and nothing resembles
        it."""
        said = []
        if same := self.matched.count(AS_SAME_URL):
            urls = sorted({row["url"] for row, how in zip(self.documents, self.matched, strict=True) if how == AS_SAME_URL})
            said.append(
                f"{same:,} of these were crawled as {', '.join(urls[:3])}, which is the same URL (RFC 3986, 6.2.2 and 6.2.3)"
            )
        if self.near:
            said.append(
                "not included, for they are other URLs:"
                if self.found
                else f"no document has exactly the URL {self.asked}; near misses:"
            )
            said += [f"  {one.url}, {one.why}: {_documents(one.documents)}" for one in self.near]
        return said


def documents_called(logs: Logs, asked: str, most: int | None = None) -> Called:
    """The documents with this id or URL, or the first ones of this file (`component/file`); at most `most` captures of a URL.
    Needs the view `documents`."""
    found = Called(asked)
    try:
        wanted = DocumentId.parse(asked)
        query = "select * from documents where component = ? and file = ? and position = ?"
        found.documents, how = logs.sql(query, list(wanted)), AS_ID
    except ValueError:
        pass
    component, _, file = asked.partition("/")
    if not found.documents and file:
        found.documents, how = logs.sql(f"{WHOLE_FILE} order by position limit {MOST_OF_A_FILE}", [component, file]), AS_FILE
    if found.documents:
        found.matched = [how] * len(found.documents)
        return found
    return _captures(logs, found, most)


def urls_called(logs: Logs, asked: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[NearMiss]]:
    """(URL → `url_key` → how it is that URL, of every URL that was crawled or could have been; near misses of all of them)."""
    found = _urls_called(logs, asked)
    logs.connection.execute(f"drop table if exists {RESEMBLING}")
    return found


def _urls_called(logs: Logs, asked: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[NearMiss]]:
    """`urls_called`; leaves the table RESEMBLING of documents."""
    urls = list(dict.fromkeys(asked))
    parsed = [_Url.of(one) for one in urls]
    keys = {one: {str(url_key(one)): AS_URL} for one in urls}
    for url, parts in zip(urls, parsed, strict=True):
        for spelling in parts.spellings() if parts else ():
            keys[url].setdefault(str(url_key(spelling)), AS_SAME_URL)
    near: list[dict[str, Any]] = []
    for row in _of_one_domain(logs, parsed):
        url, wanted, shown = urls[row["number"]], parsed[row["number"]], row["url"]
        there = _Url.of(shown)
        if wanted is None or there is None:
            continue
        if there.bare == wanted.bare or shown == url:
            why = None
            for tail in wanted.tails():
                keys[url].setdefault(str(url_key(shown + tail)), AS_SAME_URL)
        elif there.loose == wanted.loose:
            why = there.differs(wanted)
        else:
            continue
        near.append({"number": row["number"], "asked": url, "url": shown, "bare_key": url_key(shown), "why": why})
    return keys, _near_misses(logs, keys, near)


def _captures(logs: Logs, found: Called, most: int | None) -> Called:
    every, found.near = _urls_called(logs, [found.asked])
    keys = every[found.asked]
    if domain_of(found.asked) is not None:
        found.documents = _resembling(logs, "url_key", list(keys), most)
    if not found.documents:  # no host, or logs whose domains were told by another rule
        listed = ", ".join("?" * len(keys))
        query = f"select * from documents where url_key in ({listed}) order by component, file, position limit ?"
        found.documents = logs.sql(query, [*keys, most])
    found.matched = [keys[row["url_key"]] for row in found.documents]
    if not found.documents and found.near:
        found.documents = _resembling(logs, "url", list(dict.fromkeys(one.url for one in found.near)), most)
        found.matched = [AS_NEAR] * len(found.documents)
    logs.connection.execute(f"drop table if exists {RESEMBLING}")
    return found


def _resembling(logs: Logs, column: str, values: list[str], most: int | None) -> list[dict[str, Any]]:
    """Rows of the document log, of those documents in the table RESEMBLING that have one of these values."""
    logs.connection.execute(
        f"create or replace temp table asked_places as select component, file, position from {RESEMBLING} "
        f"where {column} in ({', '.join('?' * len(values))}) order by all limit ?",
        [*values, most],
    )
    files = [row["file"] for row in logs.sql(f"select distinct file from asked_places limit {FILES_IN_A_QUERY + 1}")]
    if not files:
        return []
    inside = f"where file in ({', '.join('?' * len(files))})" if len(files) <= FILES_IN_A_QUERY else ""
    found = logs.sql(
        f"select documents.* from documents join asked_places using (component, file, position) {inside} "
        "order by component, file, position",
        files if inside else [],
    )
    logs.connection.execute("drop table asked_places")
    return found


def _of_one_domain(logs: Logs, parsed: Sequence[_Url | None]) -> list[dict[str, Any]]:
    """number, url: URLs of the logs that may resemble one of these; more of them than do."""
    rows = [
        {"number": number, "domain": domain_of(f"http://{one.authority}"), "word": one.word, "root": one.path == "/"}
        for number, one in enumerate(parsed)
        if one is not None
    ]
    if not rows:
        return []
    schema = pa.schema([("number", pa.int64()), ("domain", pa.string()), ("word", pa.string()), ("root", pa.bool_())])
    logs.connection.register("asked_urls", pa.Table.from_pylist(rows, schema))
    where = (
        "documents.domain = asked_urls.domain and ((not root and contains(lower(url), word)) "
        "or (root and not regexp_matches(url, '//[^/]*/+[^/.]')) or contains(url, '%') or contains(url, '/.'))"
    )
    values: list[Any] = []
    if len(rows) == 1:  # a value is compared with the statistics of each file, and most are not read
        where, values = f"documents.domain = ? and {where}", [rows[0]["domain"]]
    logs.connection.execute(
        f"create or replace temp table {RESEMBLING} as select number, url, url_key, component, file, position "
        f"from documents join asked_urls on {where}",
        values,
    )
    logs.connection.unregister("asked_urls")
    return logs.sql(f"select distinct number, url from {RESEMBLING} order by number, url")


def _near_misses(logs: Logs, keys: dict[str, dict[str, str]], near: list[dict[str, Any]]) -> list[NearMiss]:
    """Of URLs that resemble the asked ones, those with documents that are not of the asked ones."""
    if not near:
        return []
    schema = pa.schema([("number", pa.int64()), *((name, pa.string()) for name in ("asked", "url", "bare_key", "why"))])
    logs.connection.register("near_urls", pa.Table.from_pylist(near, schema))
    rows = [{"asked": asked, "key": key} for asked, some in keys.items() for key in some]
    logs.connection.register("asked_keys", pa.Table.from_pylist(rows, pa.schema([("asked", pa.string()), ("key", pa.string())])))
    found = logs.sql(
        f"select asked, url, count(*) as documents, "
        f"coalesce(why, case when url_key = bare_key then '{BARE}' else '{HIDDEN}' end) as why "
        f"from near_urls join {RESEMBLING} using (number, url) "
        f"anti join asked_keys on asked_keys.asked = near_urls.asked and asked_keys.key = {RESEMBLING}.url_key "
        "group by all order by asked, why, url"
    )
    for name in ("near_urls", "asked_keys"):
        logs.connection.unregister(name)
    return [NearMiss(**row) for row in found]


@dataclass(frozen=True)
class _Url:
    """A URL by its normal form (RFC 3986, 6.2.2 and 6.2.3). scheme: "" where none was given. tail: parameters, query, fragment,
    as written."""

    scheme: str
    authority: str
    path: str
    tail: str

    @staticmethod
    def of(url: str) -> _Url | None:
        """None of a text that is no URL with a host."""
        text, host = cleaned(url), host_of(url)
        if host is None:
            return None
        scheme = _SCHEME.match(text)
        rest = (text[scheme.end() :] if scheme else text).lstrip("/\\")
        name = scheme[1].lower() if scheme else ""
        authority, path = _AUTHORITY.match(rest).group(1, 2)  # type: ignore[union-attr]
        port = _PORT.search(authority)
        host = f"[{host}]" if ":" in host else host
        if port and port[1].lstrip("0") not in (DEFAULT_PORTS.get(name or "http"), ""):
            host = f"{host}:{port[1].lstrip('0')}"
        cut = _TAIL.search(path)
        at = cut.start() if cut else len(path)
        return _Url(name, host, _without_dots(_escaped(path[:at].replace("\\", "/"))) or "/", path[at:])

    @property
    def bare(self) -> tuple[str, str, str]:
        """What the logs show of it, in normal form."""
        return self.scheme, self.authority, self.path

    @property
    def loose(self) -> tuple[str, str]:
        return self.authority.removeprefix(WWW), unquote(self.path).lower().rstrip("/")

    @property
    def word(self) -> str:
        """What the path of any loosely same URL holds, in lower case, if that escapes nothing and has no dot segments."""
        whole = self.path.lower().rstrip("/")
        return whole if "%" not in whole else max(_WORD.findall(_ESCAPE.sub("/", whole)), key=len, default="")

    def tails(self) -> list[str]:
        """Parameters and query in each spelling that is the same, with fragment and without."""
        bare = self.tail.partition("#")[0]
        return list(dict.fromkeys([self.tail, bare, _escaped(self.tail), _escaped(bare)]))

    def spellings(self) -> list[str]:
        return [f"{self.scheme}://{self.authority}{self.path}{tail}" for tail in self.tails()] if self.scheme else []

    def differs(self, asked: _Url) -> str:
        """Of URLs that are loosely the same: in what."""
        differences = []
        if self.scheme != asked.scheme:
            differences.append("another scheme" if asked.scheme else "with its scheme")
        if self.authority != asked.authority:
            differences.append(f"{'with' if self.authority.startswith(WWW) else 'without'} {WWW} before its host")
        mine, theirs = self.path.rstrip("/"), asked.path.rstrip("/")
        if unquote(mine) != unquote(theirs):
            differences.append("other capitals in its path")
        elif mine != theirs:
            differences.append("other escapes in its path")
        elif self.path != asked.path:
            differences.append(f"{'with' if len(self.path) > len(asked.path) else 'without'} a slash at its end")
        return ", ".join(differences)


def _escaped(text: str) -> str:
    """Percent-encoding in normal form: of what has to be, in capitals, and of no letter, digit, - . _ ~ (6.2.2.1 and 6.2.2.2)."""
    text = quote(text, safe="%/?#[]@!$&'()*+,;=:")
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if chr(int(found[1], 16)) in _UNRESERVED else found[0].upper(), text)


def _without_dots(path: str) -> str:
    """5.2.4."""
    if "/." not in path:
        return path
    left: list[str] = []
    segments = path.split("/")[1:]
    for number, segment in enumerate(segments, 1):
        if segment == "..":
            del left[-1:]
        elif segment != ".":
            left.append(segment)
            continue
        if number == len(segments):
            left.append("")
    return "/" + "/".join(left)


def _documents(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?=[/\\])")
_AUTHORITY = re.compile(r"([^/?#\\]*)(.*)", re.DOTALL)
_PORT = re.compile(r":(\d*)$")
_TAIL = re.compile(r"[;?#]")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_WORD = re.compile(r"[A-Za-z0-9]+")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
