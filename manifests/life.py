"""The whole life of one document: where it came from, what was changed, what removed it or where its tokens are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from manifests.copies import copies_of, stand_ins
from manifests.logs import Logs, signal_blocks
from manifests.lookup import AS_ID, Called, documents_called
from manifests.rules import RATIO


@dataclass
class Life:
    """document: its row in the document log. removal: its removal row, or None. edits: in running order. signals: filter block →
    signal → value; `rules` has, for each block's rules in order, what was needed."""

    document: dict[str, Any]
    removal: dict[str, Any] | None
    edits: list[dict[str, Any]]
    signals: dict[str, dict[str, Any]]
    rules: list[dict[str, Any]]
    twins: list[dict[str, Any]] = field(default_factory=list)
    """Documents that were removed because of this one, directly or through others (`manifests.copies.copies_of`)."""
    stand_in: dict[str, Any] | None = None
    """Of a copy: what is in the corpus in its place today (`manifests.copies.StandIn`)."""
    matched: str = AS_ID
    """How it is what was asked for (`manifests.lookup`)."""

    def as_json(self) -> str:
        return json.dumps(self.__dict__, ensure_ascii=False, indent=1)


def lives(logs: Logs, called: str | Called, most_twins: int | None = None) -> list[Life]:
    """Needs the views `documents`, `removals` and `edits`. Of the documents that are called so (`manifests.lookup`); none where
    none came in. Of near misses too where there is nothing else: look at `matched`.
    `most_twins`: how many documents that were removed because of one are told."""
    called = documents_called(logs, called) if isinstance(called, str) else called
    return [_life(logs, document, how, most_twins) for document, how in zip(called.documents, called.matched, strict=True)]


def _life(logs: Logs, document: dict[str, Any], matched: str, most_twins: int | None) -> Life:
    key = [document["component"], document["file"], document["position"]]
    where = "component = ? and file = ? and position = ?"
    removals = logs.sql(f"select * from removals where {where}", key)
    edits = logs.sql(f"select * from edits where {where}", key)
    signals: dict[str, dict[str, Any]] = {}
    rules: list[dict[str, Any]] = []
    for name in signal_blocks(logs.manifest).values():
        component, block = name.split("/")
        for row in (
            logs.measured(component, block, document["file"], document["position"]) if component == document["component"] else []
        ):
            measured = {name: _value(value) for name, value in row.items() if name not in ("id", "component", "file", "position")}
            signals[block] = measured
            rules += _rules(logs, document["component"], measured)
    twins = copies_of(logs, [document["id"]], most_twins)
    removal = removals[0] if removals else None
    stand_in = stand_ins(logs, [document["id"]]).get(document["id"]) if removal and removal["kept_id"] else None
    return Life(document, removal, edits, signals, rules, twins, stand_in.as_json() if stand_in else None, matched)


def _rules(logs: Logs, component: str, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rule that these signals decided, with the value it saw."""
    content = logs.manifest.content
    stages = [*content.components[component].stages, *content.stages]
    found = []
    for rule in (rule for stage in stages for rule in stage.rules if rule.signal in measured):
        keep_if = rule.condition.removeprefix("keep_if_")
        found.append({"rule": rule.name, "value": measured[rule.signal], "keep_if": keep_if, "bound": rule.bound})
    return found


def _value(value: Any) -> Any:
    """A ratio as the number that rules see."""
    if isinstance(value, dict) and set(value) == {one.name for one in RATIO}:
        return value["numerator"] / value["denominator"] if value["denominator"] else None
    return value
