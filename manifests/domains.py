"""Hosts and domains of URLs, as filters match them and logs show them.

`host_of` is the host in lower case and ASCII (punycode), without port, credentials and trailing dot. `domain_of` is the name a
site was registered under, by a rule that needs no list of the world's registries: the last two labels, or three where the
second-level label is one of those that countries register under (`co.uk`, `com.au`). It is for counting and for showing;
filters match hosts and their parents.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

LONGEST_HOST = 253
"""RFC 1035, 2.3.4, as text."""
LONGEST_ESCAPE = 12
"""`%F0%9F%98%80` is one character."""


def host_of(url: str | None) -> str | None:
    """The host of a URL, or None where there is none that could be one.

    Read as browsers read it (URL Standard): tabs and line breaks inside do not count, backslashes are slashes, and `http:host`
    and `http:/host` are `http://host`. `//host/path` and `host/path` are read as http.
    """
    if not url:
        return None
    rest = cleaned(url)
    scheme = _SCHEME.match(rest)
    if scheme is None:
        if not rest.startswith("//") and (rest.startswith("/") or "." not in _AUTHORITY_END.split(rest, maxsplit=1)[0]):
            # A path, or a word.
            return None
        rest = rest.lstrip("/\\")
    elif scheme[0].lower() in _SPECIAL_SCHEMES:
        rest = rest[scheme.end() :].lstrip("/\\")
    elif rest.startswith("//", scheme.end()):
        rest = rest[scheme.end() + 2 :]
    elif _PORT.match(rest, scheme.end()):
        # `example.org:8080/` is a host with a port; `mailto:…` and `urn:…` have no host.
        rest = scheme[0][:-1]
    else:
        return None
    host = _AUTHORITY_END.split(rest, maxsplit=1)[0].rpartition("@")[2]
    if host.startswith("["):
        return _ipv6(host[1:].partition("]")[0])
    return normal_host(host.partition(":")[0])


def cleaned(url: str) -> str:
    """`url` as browsers begin to read it: without blanks and control characters around it, and tabs and line breaks in it."""
    return url.strip(_BLANK).translate(_UNSEEN) if _CONTROL.search(url) else url.strip(_BLANK)


def normal_host(host: str) -> str | None:
    """`host` in the form all are compared in: lower case, punycode, no trailing dot; None when it is no host name.

    Unicode is mapped as browsers do (UTS 46, non-transitional, without its validity tests): NFKC, lower case, `ß` stays. IPv4
    addresses are four decimal numbers, however they were written.
    """
    # Longer than any host can be with every character encoded; it is not worth a place in the cache.
    return _normal_host(host) if len(host) <= LONGEST_HOST * LONGEST_ESCAPE else None


@lru_cache(65_536)
def _normal_host(host: str) -> str | None:
    name = unquote(host) if "%" in host else host
    name = name.strip(_BLANK).lower()
    if not name.isascii():
        name = _IGNORED.sub("", unicodedata.normalize("NFKC", _DOTS.sub(".", name)).lower())
        name = ".".join(_ascii_label(label) for label in name.split("."))
    name = name.rstrip(".")
    if not name or len(name) > LONGEST_HOST or not _HOST.fullmatch(name):
        return None
    return _ipv4(name) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


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


def _ipv4(name: str) -> str | None:
    """An address whose parts are decimal, octal or hexadecimal, the last of which fills what is left; None when it is none."""
    parts = name.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        return None
    try:
        numbers = [int(part, 16) if part[:2] == "0x" else int(part, 8 if part[0] == "0" else 10) for part in map(_digits, parts)]
    except ValueError:
        return None
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(numbers)):
        return None
    return str(ipaddress.IPv4Address(sum(part << (24 - 8 * place) for place, part in enumerate(numbers[:-1])) + numbers[-1]))


def _digits(part: str) -> str:
    return "0x0" if part == "0x" else part


def _ipv6(address: str) -> str | None:
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return None
    if parsed.ipv4_mapped is not None:
        # Versions of Python print these in two ways.
        high, low = divmod(int(parsed.ipv4_mapped), 1 << 16)
        return f"::ffff:{high:x}:{low:x}"
    return str(parsed)


def _ascii_label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


_BLANK = "".join(map(chr, range(0x21)))
_CONTROL = re.compile("[\t\n\r]")
_UNSEEN = dict.fromkeys(map(ord, "\t\n\r"))
_SPECIAL_SCHEMES = frozenset(["http:", "https:", "ftp:", "ws:", "wss:"])
"""Schemes whose URLs have a host, whatever stands before it (URL Standard, special schemes but `file`)."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_PORT = re.compile(r"\d{1,5}(?:[/?#]|$)")
_AUTHORITY_END = re.compile(r"[/?#\\]")
_HOST = re.compile(r"(?!-)[a-z0-9_\-]{1,63}(?:\.[a-z0-9_\-]{1,63})*")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_DOTS = re.compile("[\u3002\uff0e\uff61]")
_IGNORED = re.compile("[\u00ad\u200b-\u200d\u2060\ufe00-\ufe0f\ufeff]")
_SECOND_LEVEL = frozenset(
    ["ac", "co", "com", "edu", "gob", "gov", "gouv", "ltd", "mil", "ne", "net", "nom", "or", "org", "plc", "sch"]
)
"""Labels under which many countries' registries sell names, so that the site is the label before."""
