"""Removes documents by where they come from: domains, words in the URL, exact URLs.

A listed domain covers its subdomains. Hosts are compared in the form of `manifests.domains`: case, port, credentials, punycode
or Unicode make no difference. A word is matched between boundaries (anything that is neither letter nor digit) in the host,
path and query, case-folded, percent-encoding undone: `sex` matches `/sex/`, not `/essex/`. An exact URL is compared without
scheme, `www.`, fragment, port, credentials and trailing slash.

A document without URL is kept: there is nothing to judge. So is one whose URL names no host; its words are still matched.
Look-ups take time in the length of the URL, whatever the length of the lists.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pydantic import Field

from manifests.domains import host_of, normal_host, parents_of
from stages.personal_data import scrub_url
from stages.stage import DataPath, Options, Stage, Verdict


class UrlFilterOptions(Options):
    """Lists stand in the recipe or in files: one entry a line, `#` begins a comment line, `.gz` is unpacked."""

    domains: tuple[str, ...] = ()
    domain_list: DataPath | None = Field(None, description="file of domains")
    words: tuple[str, ...] = ()
    word_list: DataPath | None = Field(None, description="file of words")
    urls: tuple[str, ...] = ()
    url_list: DataPath | None = Field(None, description="file of exact URLs")


class UrlFilter(Stage[UrlFilterOptions]):
    """Works on anything with a `url` column, so it can stand before extraction. `detail` is the list's entry that matched."""

    name = "url_filter"
    version = 1
    options_type: ClassVar[type[Options]] = UrlFilterOptions
    removal_rules = ("url_filter.domain", "url_filter.url", "url_filter.word")

    def __init__(self, options: UrlFilterOptions) -> None:
        super().__init__(options)
        self.domains = frozenset(
            host for entry in _entries(options.domains, options.domain_list) if (host := _listed_domain(entry)) is not None
        )
        for entry in options.domains:
            if _listed_domain(entry) is None:
                raise ValueError(f"domains: {entry!r} is no domain")
        self.urls = frozenset(map(_plain_url, _entries(options.urls, options.url_list)))
        words = (tuple(_WORD.findall(entry.casefold())) for entry in _entries(options.words, options.word_list))
        self.words = frozenset(word for word in words if word)
        self.longest = max(map(len, self.words), default=0)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        verdict.detail = [None] * batch.num_rows
        for row, url in enumerate(batch["url"].to_pylist()):
            found = self.match(url)
            if found is not None:
                verdict.rule[row], verdict.detail[row] = np.int32(found[0]), found[1]
        return verdict

    def match(self, url: str | None) -> tuple[int, str] | None:
        """The index of the first rule that removes `url` and the entry that matched, or None."""
        if not url:
            return None
        if self.domains:
            host = host_of(url)
            if host is not None:
                for domain in parents_of(host):
                    if domain in self.domains:
                        return 0, domain
        if self.urls and (plain := _plain_url(url)) in self.urls:
            return 1, scrub_url(plain) or ""
        if self.words:
            words = _WORD.findall(_spoken(url))
            for start in range(len(words)):
                for length in range(1, self.longest + 1):
                    phrase = tuple(words[start : start + length])
                    if phrase in self.words:
                        return 2, " ".join(phrase)
        return None


_WORD = re.compile(r"[^\W_]+")


def _entries(inline: Iterable[str], path: str | None) -> Iterator[str]:
    for entry in inline:
        if entry.strip():
            yield entry.strip()
    if path is None:
        return
    with open(path, "rb") as file:
        data = file.read()
    # By content, so that a list which a browser unpacked under its old name is read as well.
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text, at byte {error.start}") from None
    for line in lines:
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield entry


_SIMPLE_DOMAIN = re.compile(r"[a-z0-9][a-z0-9\-]*(?:\.[a-z0-9\-]+)+")


def _listed_domain(entry: str) -> str | None:
    """`example.org`, `.example.org`, `*.example.org`, a URL, or a line of a hosts file."""
    if _SIMPLE_DOMAIN.fullmatch(entry):
        return entry
    last = entry.split()[-1]
    if "/" in last or "@" in last:
        return host_of(last)
    return normal_host(last.removeprefix("*").removeprefix("."))


def _plain_url(url: str) -> str:
    host = host_of(url)
    rest = url.strip().partition("#")[0]
    if host is None:
        return rest
    after = re.sub(r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:)?[/\\]*[^/?\\]*", "", rest, count=1)
    return host.removeprefix("www.") + after.rstrip("/")


def _spoken(url: str) -> str:
    """What a URL says: scheme and credentials left out, percent-encoding undone."""
    host = host_of(url)
    if host is None:
        return unquote(url).casefold()
    after = re.sub(r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:)?[/\\]*[^/?#\\]*", "", url.strip(), count=1)
    return unquote(f"{host}{after}").casefold()
