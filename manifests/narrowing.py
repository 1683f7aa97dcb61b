"""What a filter narrows a corpus to: how much of each component, language and domain its rules remove, beside the average.

A document *fails* when at least one rule of the filter does not keep it, whichever rule of its block came first and is named
as the reason; so the figures do not depend on the order of filters. Counted are the documents that the filter measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manifests.logs import Logs
from manifests.manifest import StageRecord
from manifests.rules import RATIO, Rule

DIMENSIONS = ("component", "language", "domain")
SPREAD_OVER = ("component", "language")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
STANDS_OUT_RATIO = 1.5
STANDS_OUT_DEVIATIONS = 3.0
"""A group stands out when so many times the average share of it fails, or its share of what passes is so many times smaller than
of what came; and when more of it fail by so many standard deviations than of as many draws: small groups are often far off
by chance."""


class NarrowingError(Exception):
    """A question that this corpus cannot answer."""


@dataclass(frozen=True)
class Group:
    """Documents that have a component, language or domain in common; `name` is None where there is none.

    documents: measured. failed: of these, not kept by the filter's rules. removed: of these, with one of its rules as the reason.
    average: share that fails over all documents. before, after: the group's share of all measured and of all that pass.
    """

    name: str | None
    documents: int
    failed: int
    removed: int
    average: float
    before: float
    after: float | None

    @property
    def share(self) -> float | None:
        return self.failed / self.documents if self.documents else None

    @property
    def ratio(self) -> float | None:
        """Share that fails / average; None where nothing fails anywhere."""
        return self.share / self.average if self.share is not None and self.average else None

    @property
    def shrinkage(self) -> float | None:
        """Share of all that pass / share of all measured, as 1 where the group keeps its weight; None where nothing passes."""
        return self.after / self.before if self.after is not None and self.before else None

    @property
    def excess(self) -> float:
        """Documents that fail beyond those of an average group of this size; negative where fewer do."""
        return self.failed - self.documents * self.average

    @property
    def stands_out(self) -> bool:
        deviation = math.sqrt(self.documents * self.average * (1 - self.average))
        far = (self.ratio or 0) >= STANDS_OUT_RATIO or (self.shrinkage is not None and self.shrinkage <= 1 / STANDS_OUT_RATIO)
        return far and self.excess > 0 and self.excess >= STANDS_OUT_DEVIATIONS * deviation


@dataclass(frozen=True)
class Spread:
    """The values of one signal in a group: documents measured, those where it is undefined, and QUANTILES of the others."""

    name: str | None
    documents: int
    undefined: int
    quantiles: tuple[float | None, ...]


@dataclass(frozen=True)
class Narrowing:
    """by: dimension → groups, those that lose most beyond the average first. signals: signal → dimension → groups, the largest
    first; empty where the corpus does not store them."""

    stage: str
    rules: tuple[Rule, ...]
    all: Group
    by: dict[str, list[Group]]
    signals: dict[str, dict[str, list[Spread]]]
    quantiles: tuple[float, ...] = QUANTILES

    def vanished(self, dimension: str) -> int:
        """Groups of which nothing passes."""
        return sum(one.documents == one.failed for one in self.by[dimension])

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "rules": [rule.model_dump(mode="json", exclude_none=True) for rule in self.rules],
            "all": _as_json(self.all),
            "by": {dimension: [_as_json(one) for one in groups] for dimension, groups in self.by.items()},
            "vanished": {dimension: self.vanished(dimension) for dimension in self.by},
            "quantiles": list(self.quantiles),
            "signals": {
                signal: {dimension: [dict(one.__dict__) for one in groups] for dimension, groups in dimensions.items()}
                for signal, dimensions in self.signals.items()
            },
        }


def narrowing(logs: Logs, stage: str, signals: Sequence[str] = (), shown: Sequence[str] = ()) -> Narrowing:
    """What the filter `stage` removed. `signals` are all that it measures, by which its blocks are found; the spread of those
    in `shown` is told.

    A document that two blocks measured counts once, and fails if it fails in either; its signals count twice. NarrowingError
    when the corpus has no such filter, or no log of its signals.
    """
    records = _records(logs)
    of_stage = [record for record in records if record.stage == stage]
    if not of_stage:
        filters = sorted({record.stage for record in records if record.rules})
        raise NarrowingError(f"no stage {stage!r} ran; filters that did: {', '.join(filters) or 'none'}")
    rules = {(rule.name, str(rule.threshold)): rule for record in of_stage for rule in record.rules}
    wanted = {*signals, *(rule.signal for rule in rules.values())}
    if not wanted:
        raise NarrowingError(f"{stage} has no rules and no signals: it is no filter")
    stored = _measured(logs, wanted, shown)
    if stored is None:
        raise NarrowingError(f"it stores no signals of {stage}, so it cannot be said what that filter measured")
    logs.sql(
        "create or replace temp table measured as "
        f"with stored as ({stored}), fell as (select component, file, position, stage, rule, failed_rules from removals) "
        "select stored.*, documents.language, documents.domain, "
        "coalesce(list_has_any(fell.failed_rules, $1), false) as failed, "
        "coalesce(list_contains($1, fell.rule), false) as removed "
        "from stored left join documents using (component, file, position) "
        "left join fell on stored.component = fell.component and stored.file = fell.file "
        "and stored.position = fell.position and stored.block = fell.stage",
        [sorted({name for name, _ in rules})],
    )
    logs.sql(
        "create or replace temp table judged as select component, any_value(language) as language, any_value(domain) as domain, "
        "bool_or(failed) as failed, bool_or(removed) as removed from measured group by component, file, position"
    )
    whole = _groups(logs, "null::varchar", None)[0]
    return Narrowing(
        stage,
        tuple(rules.values()),
        whole,
        {dimension: _groups(logs, dimension, whole) for dimension in DIMENSIONS},
        {signal: {one: _spread(logs, signal, one) for one in SPREAD_OVER} for signal in shown},
    )


def _records(logs: Logs) -> list[StageRecord]:
    content = logs.manifest.content
    return [*(record for component in content.components.values() for record in component.stages), *content.stages]


def _measured(logs: Logs, wanted: set[str], shown: Sequence[str]) -> str | None:
    """A query for one row each document and block: identity, block, and the shown signals as numbers."""
    selects = []
    for view, name in logs.signals.items():
        types = {row["column_name"]: row["column_type"] for row in logs.sql(f'describe "{view}"')}
        if not wanted & types.keys():
            continue
        values = ", ".join(f'{_number(signal, types)} as "{signal}"' for signal in shown)
        block = name.partition("/")[2].replace("'", "''")
        selects.append(f"select component, file, position, '{block}' as block{', ' if values else ''}{values} from \"{view}\"")
    return " union all ".join(selects) or None


def _number(signal: str, types: dict[str, str]) -> str:
    if signal not in types:
        return "null::double"
    if types[signal].startswith("STRUCT"):
        numerator, denominator = (f'"{signal}".{field.name}' for field in RATIO)
        return f"{numerator}::double / nullif({denominator}, 0)"
    return f'"{signal}"::double'


def _groups(logs: Logs, dimension: str, whole: Group | None) -> list[Group]:
    rows = logs.sql(
        f"select {dimension} as name, count(*) as documents, count(*) filter (failed) as failed, "
        "count(*) filter (removed) as removed from judged group by name"
    ) or [{"name": None, "documents": 0, "failed": 0, "removed": 0}]
    found = []
    for row in rows:
        documents, failed = (whole.documents, whole.failed) if whole else (row["documents"], row["failed"])
        passed = documents - failed
        average = failed / documents if documents else 0.0
        before = row["documents"] / documents if documents else 0.0
        after = (row["documents"] - row["failed"]) / passed if passed else None
        found.append(Group(**row, average=average, before=before, after=after))
    return sorted(found, key=lambda one: (-one.excess, -one.documents, one.name is None, one.name or ""))


def _spread(logs: Logs, signal: str, dimension: str) -> list[Spread]:
    rows = logs.sql(
        f'select {dimension} as name, count(*) as documents, count(*) - count("{signal}") as undefined, '
        f'quantile_cont("{signal}", {list(QUANTILES)}) as quantiles from measured group by name'
    )
    found = [
        Spread(row["name"], row["documents"], row["undefined"], tuple(row["quantiles"] or [None] * len(QUANTILES)))
        for row in rows
    ]
    return sorted(found, key=lambda one: (-one.documents, one.name is None, one.name or ""))


def _as_json(one: Group) -> dict[str, Any]:
    derived = {name: getattr(one, name) for name in ("share", "ratio", "shrinkage", "excess", "stands_out")}
    return {**one.__dict__, **derived}
