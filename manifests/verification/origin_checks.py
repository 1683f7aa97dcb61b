"""Does what a document log says of where documents come from follow from their URLs, as far as the log shows them?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.domains import domain_of
from manifests.verification.findings import first_of, flags

_PLAIN = r"^(?P<host>https?://[A-Za-z0-9.\-]+)(?::[0-9]*)?/"
"""URLs whose host is all that the domain depends on."""
REPLACED = "<EMAIL>"
"""What stands in a URL in place of an address (stages.personal_data)."""


class OriginChecks:
    """The document logs of one component, one after another."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def findings(self, path: str, documents: pa.Table) -> Iterator[str]:
        """Domains that are not those of the URLs beside them. What the shown URL lost, and the domain can depend on, is left
        out."""
        urls = documents["url"].combine_chunks()
        said = documents["domain"].combine_chunks()
        plain = pc.struct_field(pc.extract_regex(urls, pattern=_PLAIN), "host").dictionary_encode()
        hosts = plain.dictionary.to_pylist()
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        domains = pa.array([self._domain(host) for host in hosts], pa.string())
        expected = domains.take(plain.indices)
        others = np.flatnonzero(flags(pc.and_(urls.is_valid(), plain.indices.is_null())))
        if others.size:
            chosen, given = urls.take(pa.array(others)).to_pylist(), said.take(pa.array(others)).to_pylist()
            values = [_expected(url, domain) for url, domain in zip(chosen, given, strict=True)]
            mask = np.zeros(len(urls), bool)
            mask[others] = True
            expected = pc.replace_with_mask(expected, pa.array(mask), pa.array(values, pa.string()))
        equal = pc.or_(pc.fill_null(pc.equal(said, expected), False), pc.and_(said.is_null(), expected.is_null()))
        for row in first_of(~flags(equal)):
            yield f"{path}: {documents['id'][row]}: domain is {said[row]}, its url {urls[row]} is of {expected[row]}"

    def _domain(self, host: str) -> str | None:
        if host not in self._known:
            self._known[host] = domain_of(f"{host}/")
        return self._known[host]


MOST_KNOWN = 1_000_000
"""Hosts that are remembered."""


def _expected(url: str, said: str | None) -> str | None:
    """The domain; or what is said, where that may be of what was cut off: within the host, or an address."""
    domain = domain_of(url)
    if domain == said:
        return domain
    authority = url.split("://", 1)[-1].lstrip("/\\")
    cut_in_host = "/" not in authority and "\\" not in authority
    if REPLACED in url or (cut_in_host and said is None):
        return said
    return domain
