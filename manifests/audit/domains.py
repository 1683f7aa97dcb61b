"""What became of one domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manifests.domains import domain_of, host_of
from manifests.logs import Logs

EXAMPLES = 10


@dataclass(frozen=True)
class DomainAnswer:
    """domain: the registered one that was looked up. documents: that came in; kept: of these; tokens: in shards. by: rows of
    component, language, removed_by (None: kept), rule, documents. examples: documents, removed ones first."""

    domain: str
    documents: int
    kept: int
    tokens: int
    by: list[dict[str, Any]]
    examples: list[dict[str, Any]]


def normal_domain(asked: str) -> str | None:
    """The registered domain that logs hold, of a domain, a host or a URL; None where it is none."""
    url = asked if "://" in asked else f"http://{asked}"
    return domain_of(url) if host_of(url) is not None else None


def ask_domain(logs: Logs, domain: str, examples: int = EXAMPLES) -> DomainAnswer:
    """All documents of `domain` (as `normal_domain` gives it); needs the views `removals` and `documents`."""
    by = logs.sql(
        "with mine as (select component, file, position, language, removed_by, tokens from documents where domain = $1), "
        "gone as (select component, file, position, rule from removals where domain = $1) "
        "select component, language, removed_by, rule, count(*) as documents, coalesce(sum(tokens), 0)::bigint as tokens "
        "from mine left join gone using (component, file, position) group by all "
        "order by documents desc, component, language, removed_by, rule",
        [domain],
    )
    found = logs.sql(
        "with mine as (select id, url, date, language, removed_by, tokens, component, file, position "
        "from documents where domain = $1 order by removed_by is null, component, file, position limit $2), "
        "gone as (select component, file, position, rule, value, threshold from removals where domain = $1) "
        "select mine.* exclude (component, file, position), rule, value, threshold "
        "from mine left join gone using (component, file, position) order by removed_by is null, mine.component, file, position",
        [domain, examples],
    )
    return DomainAnswer(
        domain,
        sum(row["documents"] for row in by),
        sum(row["documents"] for row in by if row["removed_by"] is None),
        sum(row["tokens"] for row in by),
        by,
        found,
    )
