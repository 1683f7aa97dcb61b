"""Removed documents, a page at a time: which removals meet some conditions, in the order of the corpus or of what was
measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from manifests.logs import Logs
from manifests.wording import ABSENT

MOST_ROWS = 10_000
"""That are given at once."""
NOTHING = ABSENT
"""As a language or domain: documents without one. No code of a language is called so, and no domain."""
ORDERS = ("document", "lowest", "highest")
_MEASURED = "coalesce(value, kept_jaccard)"
_COLUMNS = (
    *("id", "component", "file", "position", "url", "domain", "language", "stage", "rule"),
    *("threshold", "failed_rules", "detail", "text_bytes", "kept_id"),
)


class QuestionError(Exception):
    """A condition that means nothing; the message says why."""


@dataclass(frozen=True)
class Conditions:
    """What removals are wanted; None is any. lowest, highest: of what was measured, both ends included: the rule's value, or of a
    copy the Jaccard similarity to the document that stayed. A removal without such a value meets neither."""

    component: str | None = None
    stage: str | None = None
    rule: str | None = None
    language: str | None = None
    domain: str | None = None
    lowest: float | None = None
    highest: float | None = None

    def __post_init__(self) -> None:
        for one in (self.lowest, self.highest):
            if one is not None and not math.isfinite(one):
                raise QuestionError(f"{one} is no value to compare with")

    def by_counts(self) -> bool:
        """Can the manifest's counts tell how many there are?"""
        return self.language is None and self.domain is None and self.lowest is None and self.highest is None


@dataclass(frozen=True)
class Page:
    """rows: removals, with `measured`. after: the place to go on from, None on the last page."""

    rows: list[dict[str, Any]]
    after: tuple[Any, ...] | None


def removals_page(
    logs: Logs, conditions: Conditions, order: str = "document", after: tuple[Any, ...] | None = None, rows: int = 50
) -> Page:
    """The next `rows` removals behind the place `after`, as an earlier page gave it. Pages are found by key, so one is as
    quick as another and none is shown twice. Needs the view `removals`.

    Order `lowest` and `highest` are by what was measured, then as `document` is: by component, file and position; removals
    without a value come last."""
    if order not in ORDERS:
        raise QuestionError(f"{order!r} is no order: {', '.join(ORDERS)}")
    if not 1 <= rows <= MOST_ROWS:
        raise QuestionError(f"a page has 1 to {MOST_ROWS} rows, not {rows}")
    where, given = _where(conditions)
    key = "component, file, position"
    if after is not None:
        measured, component, file, position = after
        given |= {"at_component": component, "at_file": file, "at_position": position}
        behind = f"({key}) > ($at_component, $at_file, $at_position)"
        if order == "document":
            where.append(behind)
        elif measured is None:
            where.append(f"{_MEASURED} is null and {behind}")
        else:
            given["at_measured"] = measured
            beyond = ">" if order == "lowest" else "<"
            where.append(
                f"({_MEASURED} {beyond} $at_measured or {_MEASURED} is null or ({_MEASURED} = $at_measured and {behind}))"
            )
    direction = {"document": "", "lowest": f"{_MEASURED} asc nulls last, ", "highest": f"{_MEASURED} desc nulls last, "}[order]
    # Bare columns inside: DuckDB then finds the few rows by their keys alone and reads the rest of these only.
    inside = f"select * from removals {_all(where)} order by {direction}{key} limit {rows + 1}"
    found = logs.sql(f"select {', '.join(_COLUMNS)}, {_MEASURED} as measured from ({inside}) order by {direction}{key}", given)
    last = found[rows - 1] if len(found) > rows else None
    place = None if last is None else tuple(last[name] for name in ("measured", "component", "file", "position"))
    return Page(found[:rows], place)


def removals_counted(logs: Logs, conditions: Conditions) -> int:
    """How many removals meet the conditions: from the manifest where it says, else from the log."""
    if conditions.by_counts():
        return sum(
            documents
            for count in logs.manifest.content.counts
            if conditions.component in (None, count.component) and conditions.stage in (None, count.stage)
            for rule, documents in count.removed.items()
            if conditions.rule in (None, rule)
        )
    where, given = _where(conditions)
    return int(logs.sql(f"select count(*) as n from removals {_all(where)}", given)[0]["n"])


def _where(conditions: Conditions) -> tuple[list[str], dict[str, Any]]:
    where, given = [], {}
    for name in ("component", "stage", "rule", "language", "domain"):
        wanted = getattr(conditions, name)
        if wanted == NOTHING and name in ("language", "domain"):
            where.append(f"{name} is null")
        elif wanted is not None:
            where.append(f"{name} = ${name}")
            given[name] = wanted
    if conditions.lowest is not None:
        where.append(f"{_MEASURED} >= $lowest")
        given["lowest"] = conditions.lowest
    if conditions.highest is not None:
        where.append(f"{_MEASURED} <= $highest")
        given["highest"] = conditions.highest
    return where, given


def _all(where: list[str]) -> str:
    return "where " + " and ".join(where) if where else ""
