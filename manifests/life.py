"""The whole life of one document: where it came from, what was changed, what removed it or where its tokens are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from manifests.copies import copies_of, stand_ins
from manifests.identity import DocumentId, url_key
from manifests.logs import Logs, signal_blocks
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

    def as_json(self) -> str:
        return json.dumps(self.__dict__, ensure_ascii=False, indent=1)


MOST_OF_A_FILE = 20
WHOLE_FILE = "select * from documents where component = ? and file = ?"


def lives(logs: Logs, id_or_url: str, most_twins: int | None = None) -> list[Life]:
    """Needs the views `documents`, `removals` and `edits`. The documents with this id or URL, or the first ones of this file
    (`component/file`); a URL may have been crawled several times. Empty when none came in.
    `most_twins`: how many documents that were removed because of one are told."""
    return [_life(logs, document, most_twins) for document in documents_called(logs, id_or_url)]


def documents_called(logs: Logs, id_or_url: str, most: int | None = None) -> list[dict[str, Any]]:
    """Rows of the document log for an id, a URL or a file, as `lives` finds them; at most `most` captures of a URL."""
    try:
        wanted = DocumentId.parse(id_or_url)
        found = logs.sql(
            "select * from documents where component = ? and file = ? and position = ?",
            [wanted.component, wanted.file, wanted.position],
        )
    except ValueError:
        found = []
    component, _, file = id_or_url.partition("/")
    if not found and file:
        found = logs.sql(f"{WHOLE_FILE} order by position limit {MOST_OF_A_FILE}", [component, file])
    by_url = "order by component, file, position limit ?"
    if not found:
        found = logs.sql(f"select * from documents where url_key = ? {by_url}", [url_key(id_or_url), most])
    if not found:
        bare = id_or_url.split("#")[0].split("?")[0]
        found = logs.sql(f"select * from documents where url = ? {by_url}", [bare, most])
    return found


def _life(logs: Logs, document: dict[str, Any], most_twins: int | None) -> Life:
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
    return Life(document, removal, edits, signals, rules, twins, stand_in.as_json() if stand_in else None)


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
