"""Hosts and domains of URLs, as filters match them and logs show them.

`host_of` is the host in lower case and ASCII (punycode), without port, credentials and trailing dot. `domain_of` is the name a
site was registered under, by a rule that needs no list of the world's registries: the last two labels, or three where the
second-level label is one of those that countries register under (`co.uk`, `com.au`). It is for counting and for showing;
filters match hosts and their parents.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

LONGEST_HOST = 253
"""RFC 1035, 2.3.4, as text."""


def host_of(url: str | None) -> str | None:
    """The host of a URL, or None where there is none that could be one. `//host/path` and `host/path` are read as http."""
    if not url:
        return None
    rest = url.strip(_BLANK)
    scheme = _SCHEME.match(rest)
    if scheme:
        rest = rest[scheme.end() :]
        if not rest.startswith(("//", "\\\\", "/\\", "\\/")):
            # `mailto:…` and `urn:…` have no host; `example.org:8080/` is a host with a port.
            if not _PORT.match(rest):
                return None
            rest = scheme[0][:-1]
    elif not rest.startswith("//") and (rest.startswith("/") or "." not in _AUTHORITY_END.split(rest, maxsplit=1)[0]):
        # A path, or a word.
        return None
    host = _AUTHORITY_END.split(rest.lstrip("/\\"), maxsplit=1)[0].rpartition("@")[2]
    if host.startswith("["):
        address = host[1:].partition("]")[0].lower()
        return address if _IPV6.fullmatch(address) else None
    return normal_host(host.partition(":")[0])


@lru_cache(65_536)
def normal_host(host: str) -> str | None:
    """`host` in the form all are compared in: lower case, punycode, no trailing dot; None when it is no host name.

    Unicode is mapped as browsers do (UTS 46, non-transitional, without its validity tests): NFKC, lower case, `ß` stays.
    """
    name = unquote(host) if "%" in host else host
    name = name.strip(_BLANK).lower()
    if not name.isascii():
        name = _IGNORED.sub("", unicodedata.normalize("NFKC", _DOTS.sub(".", name)).lower())
        name = ".".join(_ascii_label(label) for label in name.split("."))
    name = name.rstrip(".")
    if not name or len(name) > LONGEST_HOST or not _HOST.fullmatch(name):
        return None
    return name


def parents_of(host: str) -> Iterator[str]:
    """The host, then each domain above it: `a.b.org` gives `a.b.org`, `b.org`, `org`."""
    yield host
    if ":" in host or _IPV4.fullmatch(host):
        return
    start = host.find(".")
    while start >= 0:
        yield host[start + 1 :]
        start = host.find(".", start + 1)


def domain_of(url: str | None) -> str | None:
    """The registered domain of a URL (see above), an address as it is, or None where there is no host."""
    host = host_of(url)
    if host is None or ":" in host or _IPV4.fullmatch(host):
        return host
    labels = host.split(".")
    under_country = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL
    return ".".join(labels[-3 if under_country else -2 :])


def _ascii_label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


_BLANK = " \t\r\n\f\v\0"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_PORT = re.compile(r"\d{1,5}(?:[/?#]|$)")
_AUTHORITY_END = re.compile(r"[/?#\\]")
_HOST = re.compile(r"(?!-)[a-z0-9_\-]{1,63}(?:\.[a-z0-9_\-]{1,63})*")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_IPV6 = re.compile(r"[0-9a-f:]*:[0-9a-f:.]*(?:%.*)?")
_DOTS = re.compile("[\u3002\uff0e\uff61]")
_IGNORED = re.compile("[\u00ad\u200b-\u200d\u2060\ufe00-\ufe0f\ufeff]")
_SECOND_LEVEL = frozenset(
    ["ac", "co", "com", "edu", "gob", "gov", "gouv", "ltd", "mil", "ne", "net", "nom", "or", "org", "plc", "sch"]
)
"""Labels under which many countries' registries sell names, so that the site is the label before."""
