"""Removes documents by where they come from: domains, exact URLs, words in the URL.

A listed domain covers its subdomains. Hosts are compared in the form of `manifests.domains`: case, port, credentials, punycode
or Unicode make no difference. A word is matched between boundaries (anything that is neither letter nor digit) in the host,
path and query, case-folded, percent-encoding undone: `sex` matches `/sex/`, not `/essex/`. An exact URL is compared without
scheme, `www.`, fragment, port, credentials and trailing slash.

Soft words remove a page when its URL has at least `soft_word_threshold` different ones, and subwords wherever they are found
in the letters and digits of the URL, as in FineWeb's filter (Penedo et al. 2024; datatrove's url_filter.py). Those are many
matches by chance: `ass` in `/massachusetts`, and in `/a-ss`. datatrove looks at words and subwords in the raw URL, scheme and
credentials included; here they are looked for where words are.

A document without URL is kept: there is nothing to judge. So is one whose URL names no host; its words are still matched.
Look-ups take time in the length of the URL, whatever the length of the lists.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from manifests.domains import cleaned, domain_of, host_of, parents_of
from stages.personal_data import scrub_url
from stages.stage import DataPath, Options, Stage, Verdict

HOSTS_REMEMBERED = 65_536


class UrlFilterOptions(Options):
    """Lists stand in the recipe or in files: one entry a line, `#` begins a comment line, `.gz` is unpacked."""

    domains: tuple[str, ...] = ()
    domain_list: DataPath | None = Field(None, description="file of domains")
    subdomains: bool = Field(
        True, description="a listed domain covers its subdomains; false: only where it is a registered one, as in datatrove"
    )
    words: tuple[str, ...] = ()
    word_list: DataPath | None = Field(None, description="file of words")
    urls: tuple[str, ...] = ()
    url_list: DataPath | None = Field(None, description="file of exact URLs")
    soft_words: tuple[str, ...] = ()
    soft_word_list: DataPath | None = Field(None, description="file of words that only remove when several are in the URL")
    soft_word_threshold: int = Field(2, ge=1, description="so many different soft words remove")
    subwords: tuple[str, ...] = ()
    subword_list: DataPath | None = Field(None, description="file of strings that remove wherever they are in the URL")


class UrlFilter(Stage[UrlFilterOptions]):
    """Works on anything with a `url` column, so it can stand before extraction. `detail` is the list's entry that matched."""

    name = "url_filter"
    version = 3
    options_type: ClassVar[type[Options]] = UrlFilterOptions
    removal_rules = (
        "url_filter.domain",
        "url_filter.url",
        "url_filter.word",
        "url_filter.soft_words",
        "url_filter.subword",
    )

    def __init__(self, options: UrlFilterOptions) -> None:
        super().__init__(options)
        for entry in options.domains:
            if not any(_listed_domains(entry.strip())):
                raise ValueError(f"domains: {entry!r} is no domain")
        for name in ("words", "soft_words", "subwords"):
            for entry in getattr(options, name):
                if not _WORD.search(entry):
                    raise ValueError(f"{name}: {entry!r} has neither letter nor digit, so it can never be found")
        self.domains = _domains(_entries(options.domains, options.domain_list))
        if options.domain_list is not None and not self.domains and next(_entries((), options.domain_list), None) is not None:
            raise ValueError(f"{options.domain_list}: no line of it is a domain, so it would remove nothing")
        self.urls = frozenset(map(_page, _entries(options.urls, options.url_list)))
        self.words = _Phrases(_entries(options.words, options.word_list))
        self.soft_words = _Phrases(_entries(options.soft_words, options.soft_word_list))
        subwords = ("".join(_WORD.findall(entry.casefold())) for entry in _entries(options.subwords, options.subword_list))
        self.subwords = _one_of({subword for subword in subwords if subword})
        self._listed = lru_cache(HOSTS_REMEMBERED)(self._listed_parent)

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
        parts = _PLAIN.match(url)
        # Most URLs are read by one regular expression, the others as a browser would.
        host = parts[1] if parts is not None else host_of(url)
        if self.domains and host is not None and (domain := self._listed(host)) is not None:
            return 0, domain
        if self.urls and (page := _page(url) if parts is None else _page_of(parts[1], parts[2])) in self.urls:
            return 1, scrub_url(page) or ""
        if not (self.words or self.soft_words or self.subwords):
            return None
        if parts is None or "%" in url or not url.isascii():
            words = _WORD.findall(_spoken(url, host))
        else:
            words = _ASCII_WORD.findall(url[parts.start(1) : parts.end(1)] + parts[2].lower())
        if (word := next(self.words.found_in(words), None)) is not None:
            return 2, word
        if self.soft_words and len(soft := sorted(set(self.soft_words.found_in(words)))) >= self.options.soft_word_threshold:
            return 3, ", ".join(soft)
        if self.subwords is not None and (subword := self.subwords.search("".join(words))) is not None:
            return 4, subword[0]
        return None

    def _listed_parent(self, host: str) -> str | None:
        if self.options.subdomains:
            return next((domain for domain in parents_of(host) if domain in self.domains), None)
        registered = domain_of(f"//{host}/") if ":" not in host else host
        return next((domain for domain in (registered, host) if domain in self.domains), None)


class _Phrases:
    """Words, and several words in a row, to be looked for among the words of a URL."""

    def __init__(self, entries: Iterable[str]) -> None:
        words = (tuple(_WORD.findall(entry.casefold())) for entry in entries)
        self.phrases = frozenset(word for word in words if word)
        self.first = frozenset(phrase[0] for phrase in self.phrases)
        self.longest = max(map(len, self.phrases), default=0)

    def __bool__(self) -> bool:
        return bool(self.phrases)

    def found_in(self, words: list[str]) -> Iterator[str]:
        """Entries in the order in which they begin, at one place the shortest first."""
        if self.first.isdisjoint(words):
            return
        for start, word in enumerate(words):
            if word in self.first:
                for length in range(1, self.longest + 1):
                    phrase = tuple(words[start : start + length])
                    if len(phrase) == length and phrase in self.phrases:
                        yield " ".join(phrase)


def _one_of(strings: set[str]) -> re.Pattern[str] | None:
    """An expression that finds any of the strings, and looks at each first letter once."""
    return re.compile(_branches(sorted(strings))) if strings else None


def _branches(strings: list[str]) -> str:
    if "" in strings:
        return ""
    by_letter: dict[str, list[str]] = {}
    for string in strings:
        by_letter.setdefault(string[0], []).append(string[1:])
    choices = [re.escape(letter) + _branches(rests) for letter, rests in by_letter.items()]
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


_PLAIN = re.compile(
    r"(?:https?|ftp)://(?=[a-z0-9.\-]{1,253}(?![a-z0-9.\-]))([a-z0-9](?:[a-z0-9\-]{0,62})(?:\.[a-z0-9\-]{1,63})*\.[a-z][a-z0-9\-]{0,62})"
    r"(?::\d*)?(?=[/?#]|\Z)([^\x00-\x20\\]*)\Z"
)
"""A URL whose host is written in the form in which hosts are compared; the host, and what comes after it."""
_ASCII_WORD = re.compile(r"[a-z0-9]+")
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
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: cannot be unpacked: {error}") from None
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text, at byte {error.start}") from None
    for line in lines:
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield entry


_SIMPLE_DOMAIN = re.compile(r"[a-z0-9][a-z0-9\-]*(?:\.[a-z0-9\-]+)*\.[a-z][a-z0-9\-]*")


def _listed_domains(entry: str) -> Iterator[str]:
    """`example.org`, `.example.org`, `*.example.org`, a URL, or a line of a hosts file: an address and names, and a comment
    perhaps. Other lines of several words are sentences, whose words are no domains."""
    if _SIMPLE_DOMAIN.fullmatch(entry):
        yield entry
        return
    words = _COMMENT.split(entry, maxsplit=1)[0].split()
    names = words if len(words) == 1 else words[1:] if words and _ADDRESS.fullmatch(words[0]) else []
    for name in names:
        if "//" in name:
            host = host_of(name)
        elif name.count(":") > 1:
            host = host_of(f"//[{name.strip('[]')}]")
        else:
            host = host_of(f"//{name.removeprefix('*').removeprefix('.')}")
        if host is not None:
            yield host


_COMMENT = re.compile(r"(?:^|\s)#")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?:%\w+)?")


def _domains(entries: Iterable[str]) -> frozenset[str]:
    """Entries in the form that hosts are compared in; those that are no domain are left out. A list of a million simple ones is
    looked through as one array."""
    lines = pa.array(list(entries), pa.large_string())
    simple = pc.match_substring_regex(lines, f"^{_SIMPLE_DOMAIN.pattern}$")
    rest = (domain for entry in lines.filter(pc.invert(simple)).to_pylist() for domain in _listed_domains(entry))
    return frozenset(lines.filter(simple).to_pylist()).union(rest)


def _page(url: str) -> str:
    """What names the page: host and path without what `urls` passes over."""
    host = host_of(url)
    rest = cleaned(url)
    return rest.partition("#")[0] if host is None else _page_of(host, _after_host(rest))


def _page_of(host: str, after: str) -> str:
    return host.removeprefix("www.") + after.partition("#")[0].rstrip("/")


def _spoken(url: str, host: str | None) -> str:
    """What a URL says: scheme and credentials left out, percent-encoding undone."""
    return unquote(url if host is None else f"{host}{_after_host(cleaned(url))}").casefold()


def _after_host(url: str) -> str:
    return _UP_TO_PATH.sub("", url, count=1)


_UP_TO_PATH = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:(?=[/\\]))?[/\\]*[^/?#\\]*")
