"""What each rule costs: documents removed, those removed by it alone, and where they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manifests.audit.flow import removed_by_rule
from manifests.logs import Logs
from manifests.manifest import Content

DIMENSIONS = ("component", "language", "domain")
LARGEST = 5
_Rule = tuple[str, str]
"""Its stage and its name."""


@dataclass(frozen=True)
class Share:
    """Documents of one component, language or domain (None: without one) that a rule removed, of all that came in from there."""

    name: str | None
    removed: int
    documents: int

    @property
    def share(self) -> float | None:
        return self.removed / self.documents if self.documents else None

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "removed": self.removed, "documents": self.documents, "share": self.share}


@dataclass(frozen=True)
class RuleCost:
    """removed: documents that went by this rule. alone: of these, those that no other rule of the same filter block failed, so
    that they would have left the block without it; later stages might still have removed them. failed: documents that failed it,
    whichever rule was named as the reason. documents: all that came in. by: dimension → shares, those that lost most first."""

    stage: str
    rule: str
    removed: int
    alone: int
    failed: int
    documents: int
    by: dict[str, list[Share]] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        return self.removed / self.documents if self.documents else None

    def as_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("stage", "rule", "removed", "alone", "failed", "documents", "share")}
        return {**plain, "by": {dimension: [one.as_json() for one in shares] for dimension, shares in self.by.items()}}


def rule_costs(
    logs: Logs, dimensions: Sequence[str] = DIMENSIONS, largest: int = LARGEST, only: Mapping[str, str | None] | None = None
) -> list[RuleCost]:
    """Every rule that removed anything, in order of documents removed; needs the views `removals` and `documents`.

    `largest`: how many components, languages and domains are told of each rule. `only`: of documents of this component, language
    and domain (None: without one).
    """
    where, values = _where(only or {})
    if only:
        removed = {
            (stage, rule): number
            for stage, rule, number in logs.connection.execute(
                f"select stage, rule, count(*) as n from removals where {where} group by all order by n desc, stage, rule", values
            ).fetchall()
        }
        ((documents,),) = logs.connection.execute(f"select count(*) from documents where {where}", values).fetchall()
    else:
        removed = removed_by_rule(logs.manifest.content)  # what the manifest does not say is who failed several rules
        documents = sum(one.documents_in for one in logs.manifest.content.components.values())
    alone, failed = Counter(removed), Counter(removed)
    several = f"select stage, rule, failed_rules, count(*) from removals where len(failed_rules) > 1 and {where} group by all"
    for stage, rule, failing, number in logs.connection.execute(several, values).fetchall():
        alone[stage, rule] -= number
        failed.update({(stage, one): number for one in failing if one != rule})
    by = {dimension: _shares(logs, dimension, largest, only or {}) for dimension in dimensions}
    return [
        RuleCost(
            *rule,
            removed[rule],
            alone[rule],
            failed[rule],
            documents,
            {dimension: by[dimension].get(rule, []) for dimension in dimensions},
        )
        for rule in removed
    ]


def _where(only: Mapping[str, str | None]) -> tuple[str, list[str | None]]:
    """A condition, and its values."""
    if unknown := set(only) - set(DIMENSIONS):
        raise ValueError(f"{sorted(unknown)[0]!r} is none of {', '.join(DIMENSIONS)}")
    return " and ".join(["true", *(f"{name} is not distinct from ?" for name in only)]), list(only.values())


def _shares(logs: Logs, dimension: str, largest: int, only: Mapping[str, str | None]) -> dict[_Rule, list[Share]]:
    if dimension not in DIMENSIONS:
        raise ValueError(f"{dimension!r} is none of {', '.join(DIMENSIONS)}")
    if dimension == "component" and not only:  # which the manifest counts
        return _component_shares(logs.manifest.content, largest)
    where, values = _where(only)
    found = logs.sql(
        f"with gone as (select stage, rule, {dimension} as name, count(*) as removed from removals where {where} group by all) "
        "select * from gone qualify row_number() over (partition by stage, rule order by removed desc, name nulls last) <= ?",
        [*values, largest],
    )
    wanted = list({row["name"] for row in found if row["name"] is not None})
    totals = {
        row["name"]: row["documents"]
        for row in logs.sql(
            f"select {dimension} as name, count(*) as documents from documents "
            f"where ({dimension} is null or {dimension} in (select unnest(?::varchar[]))) and {where} group by name",
            [wanted, *values],
        )
    }
    shares: dict[_Rule, list[Share]] = {}
    for row in sorted(found, key=lambda one: (-one["removed"], one["name"] is None, one["name"] or "")):
        share = Share(row["name"], row["removed"], totals.get(row["name"], 0))
        shares.setdefault((row["stage"], row["rule"]), []).append(share)
    return shares


def _component_shares(content: Content, largest: int) -> dict[_Rule, list[Share]]:
    removed: dict[_Rule, Counter[str]] = {}
    for count in content.counts:
        for rule, number in count.removed.items():
            removed.setdefault((count.stage, rule), Counter())[count.component] += number
    shares = {}
    for key, by_component in removed.items():
        most = sorted(by_component.items(), key=lambda item: (-item[1], item[0]))[:largest]
        shares[key] = [Share(name, number, content.components[name].documents_in) for name, number in most if number]
    return shares
