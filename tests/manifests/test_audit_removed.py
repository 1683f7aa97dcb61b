"""Pages of removals: together they are all of them, each once, in the order that was asked for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from manifests.audit.removed import NOTHING, Conditions, QuestionError, removals_counted, removals_page
from manifests.logs import Logs
from manifests.manifest import open_corpus


def turned(logs: Logs, conditions: Conditions, order: str, rows: int) -> list[dict[str, Any]]:
    """Page after page."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = removals_page(logs, conditions, order, after, rows)
        assert len(page.rows) <= rows
        found += page.rows
        after = page.after
        if after is None:
            return found


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("order", ["document", "lowest", "highest"])
def test_pages_hold_every_removal_once_and_in_order(finished: Path, order: str, rows: int) -> None:
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        found = turned(logs, Conditions(), order, rows)
        every = logs.sql("select id, component, file, position, coalesce(value, kept_jaccard) as measured from removals")

    def key(row: dict[str, Any]) -> Any:
        place = (row["component"], row["file"], row["position"])
        measured = row["measured"]
        if order == "document":
            return place
        return (measured is None, 0 if measured is None else measured if order == "lowest" else -measured, place)

    assert [row["id"] for row in found] == [row["id"] for row in sorted(every, key=key)]
    assert {row["measured"] is None for row in every} == {True, False}


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(rule="minhash.near_duplicate"),
        Conditions(stage="filters1", component="books"),
        Conditions(language="en"),
        Conditions(language=NOTHING),
        Conditions(domain=NOTHING, component="books"),
        Conditions(domain="casino.example"),
        Conditions(lowest=0.5, highest=1.0),
        Conditions(rule="' or 1=1 --"),
    ],
    ids=str,
)
def test_conditions_pick_what_the_log_says_and_the_count_is_theirs(finished: Path, conditions: Conditions) -> None:
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        found = turned(logs, conditions, "document", 3)
        every = logs.sql("select * from removals")
        total = removals_counted(logs, conditions)

    def meets(row: dict[str, Any]) -> bool:
        for name in ("component", "stage", "rule", "language", "domain"):
            wanted = getattr(conditions, name)
            if wanted is not None and row[name] != (None if wanted == NOTHING else wanted):
                return False
        measured = row["value"] if row["value"] is not None else row["kept_jaccard"]
        if conditions.lowest is not None:
            return measured is not None and conditions.lowest <= measured <= (conditions.highest or math.inf)
        return True

    wanted = {row["id"] for row in every if meets(row)}
    assert {row["id"] for row in found} == wanted and total == len(found) == len(wanted)
    assert wanted or conditions.rule


def test_what_means_nothing_is_refused(finished: Path) -> None:
    with pytest.raises(QuestionError, match="no value"):
        Conditions(lowest=math.nan)
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        with pytest.raises(QuestionError, match="no order"):
            removals_page(logs, Conditions(), "value; drop table removals")
        with pytest.raises(QuestionError, match="rows"):
            removals_page(logs, Conditions(), rows=0)
