"""What became of one domain, or of a host within it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from manifests.domains import domain_of, host_of, parents_of
from manifests.logs import Logs
from manifests.wording import ABSENT

EXAMPLES = 10
WITHIN = "domain = $1"


@dataclass(frozen=True)
class DomainAnswer:
    """domain: the registered one, None: no domain. host: the part of it that was asked for with all that is below, None: all of
    it. documents: that came in; kept: of these; tokens: in shards. by: rows of component, language, removed_by (None: kept),
    rule, documents.
    examples: documents, removed ones first. others: documents of the domain's other hosts."""

    domain: str | None
    host: str | None
    documents: int
    kept: int
    tokens: int
    by: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    others: int = 0

    @property
    def name(self) -> str:
        """What the figures are about."""
        return self.host or self.domain or ABSENT


def normal_domain(asked: str) -> str | None:
    """The registered domain that logs hold, of a domain, a host or a URL; None where it is none."""
    url = asked if "://" in asked else f"http://{asked}"
    return domain_of(url) if host_of(url) is not None else None


def host_within(asked: str) -> str | None:
    """The host that a domain, host or URL names, where it is but a part of its registered domain. `www.` before the domain itself
    is no part: sites are crawled with and without."""
    url = asked if "://" in asked else f"http://{asked}"
    host, domain = host_of(url), domain_of(url)
    return None if host in (domain, f"www.{domain}") else host


def ask_domain(logs: Logs, domain: str | None, examples: int = EXAMPLES, host: str | None = None) -> DomainAnswer:
    """All documents of `domain` (as `normal_domain` gives it), or of a `host` within it and those below; of None, those whose
    URL has no domain, or that have no URL. Needs the views `removals` and `documents`."""
    urls = [] if host is None else logs.sql("select url, count(*) as n from documents where domain = ? group by url", [domain])
    own = [row["url"] for row in urls if host in set(parents_of(host_of(row["url"]) or ""))]
    logs.connection.register("urls_of_host", pa.table({"url": pa.array(own, pa.string())}))
    wanted = WITHIN if domain is not None else "$1::varchar is null and domain is null"
    if host is not None:
        wanted += " and url in (select url from urls_of_host)"
    try:
        answer = _answer(logs, domain, host, examples, wanted)
    finally:
        logs.connection.unregister("urls_of_host")
    return answer if host is None else replace(answer, others=sum(row["n"] for row in urls) - answer.documents)


def _answer(logs: Logs, domain: str | None, host: str | None, examples: int, wanted: str) -> DomainAnswer:
    theirs = wanted if host is None else WITHIN
    by = logs.sql(
        f"with mine as (select component, file, position, language, removed_by, tokens from documents where {wanted}), "
        f"gone as (select component, file, position, rule from removals where {theirs}) "
        "select component, language, removed_by, rule, count(*) as documents, coalesce(sum(tokens), 0)::bigint as tokens "
        "from mine left join gone using (component, file, position) group by all "
        "order by documents desc, component, language, removed_by, rule",
        [domain],
    )
    found = logs.sql(
        "with mine as (select id, url, date, language, removed_by, tokens, component, file, position "
        f"from documents where {wanted} order by removed_by is null, component, file, position limit $2), "
        f"gone as (select component, file, position, rule, value, threshold from removals where {theirs}) "
        "select mine.* exclude (component, file, position), rule, value, threshold "
        "from mine left join gone using (component, file, position) order by removed_by is null, mine.component, file, position",
        [domain, examples],
    )
    return DomainAnswer(
        domain,
        host,
        sum(row["documents"] for row in by),
        sum(row["documents"] for row in by if row["removed_by"] is None),
        sum(row["tokens"] for row in by),
        by,
        found,
    )
