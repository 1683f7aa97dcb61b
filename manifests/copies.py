"""Copies: which document stands in today for one that was removed as a copy, and which were removed because one stayed.

The stage that removed a copy names the document that stayed in its place (`kept_id`). A later stage may have removed that one as
a copy of yet another, or for what it is: so the evidence is followed to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from manifests.logs import Logs

EXACT = 1.0
"""Jaccard similarity of documents that the same shingles were taken from."""
ASKED = "asked_copies"
IN_THE_QUERY = 100


@dataclass(frozen=True)
class Replaced:
    """One removal of a copy: `stage` removed `id` and kept `kept_id`; jaccard: of the two, None where it is on no record."""

    stage: str
    id: str
    kept_id: str
    jaccard: float | None


@dataclass(frozen=True)
class StandIn:
    """What became of the documents that stayed in place of a removed one: `steps`, each kept by the one before and removed later,
    up to the last. in_corpus: whether the last one is in the corpus. removed_by: the stage that removed it for another reason
    than a copy; None too where the corpus has no such document, as after its component was dropped."""

    steps: tuple[Replaced, ...]
    in_corpus: bool
    removed_by: str | None

    @property
    def id(self) -> str:
        """The last one: the document that stands in, where that is in the corpus."""
        return self.steps[-1].kept_id

    @property
    def jaccard(self) -> float | None:
        """Of the document and the last one. Known where no more than one pair on the way are not exact copies."""
        different = [step.jaccard for step in self.steps if step.jaccard != EXACT]
        return EXACT if not different else different[0] if len(different) == 1 else None

    def in_words(self) -> str:
        """ "web/a#3 is in the corpus in its place, through web/a#2", or what became of the last one."""
        through = [step.kept_id for step in self.steps[:-1]]
        way = f", through {', '.join(through)}" if through else ""
        if self.in_corpus:
            return f"{self.id} is in the corpus in its place{way}"
        fate = f"was removed by {self.removed_by}" if self.removed_by else "is not in this corpus"
        return f"nothing is in the corpus in its place: {self.id} {fate} later{way}"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "in_corpus": self.in_corpus,
            "removed_by": self.removed_by,
            "jaccard": self.jaccard,
            "steps": [step.__dict__ for step in self.steps],
            "told": self.in_words(),
        }


def stand_ins(logs: Logs, ids: Iterable[str]) -> dict[str, StandIn]:
    """Id → what stands in for it today, of those of the documents that were removed as copies. Needs the views `documents` and
    `removals`."""
    wanted = list(dict.fromkeys(ids))
    steps: dict[str, Replaced] = {}
    asked: list[str] = wanted
    while asked:
        with _asked(logs, asked) as (those, values):
            rows = logs.sql(
                f"select stage, id, kept_id, kept_jaccard as jaccard from removals where kept_id is not null and id {those}",
                values,
            )
        steps |= {row["id"]: Replaced(**row) for row in rows}
        asked = sorted({row["kept_id"] for row in rows} - steps.keys())
    chains = {one: tuple(_followed(steps, one)) for one in wanted if one in steps}
    ends = sorted({chain[-1].kept_id for chain in chains.values()})
    fates: dict[str, str | None] = {}
    if ends:
        with _asked(logs, ends) as (those, values):
            rows = logs.sql(f"select id, removed_by from documents where id {those}", values)
        fates = {row["id"]: row["removed_by"] for row in rows}
    found = {}
    for one, chain in chains.items():
        last = chain[-1].kept_id
        found[one] = StandIn(chain, last in fates and fates[last] is None, fates.get(last))
    return found


def copies_of(logs: Logs, ids: Sequence[str], most: int | None = None) -> list[dict[str, Any]]:
    """Documents that were removed because one of these stayed, or because one that these were kept in place of stayed: id,
    component, stage, kept_id (of whom it was held to be a copy), linked_id, kept_jaccard. Nearest first, then in id order; `most`
    of them. Needs the view `removals`."""
    found: dict[str, dict[str, Any]] = {}
    asked = list(dict.fromkeys(ids))
    given = set(asked)
    while asked and (most is None or len(found) < most):
        with _asked(logs, asked) as (those, values):
            rows = logs.sql(
                f"select id, component, stage, kept_id, linked_id, kept_jaccard from removals where kept_id {those} "
                "order by component, file, position limit ?",
                [*values, None if most is None else most - len(found)],
            )
        rows = [row for row in rows if row["id"] not in found and row["id"] not in given]
        found |= {row["id"]: row for row in rows}
        asked = [row["id"] for row in rows]
    return list(found.values())


def _followed(steps: dict[str, Replaced], first: str) -> Iterator[Replaced]:
    """From a removed document to the last one that stayed in its place; damaged logs may lead round in a circle, once."""
    met, at = set[str](), first
    while at in steps and at not in met:
        met.add(at)
        yield steps[at]
        at = steps[at].kept_id


@contextlib.contextmanager
def _asked(logs: Logs, ids: Sequence[str]) -> Generator[tuple[str, list[Any]], None, None]:
    """SQL to stand behind a column that is to be one of the ids, and its parameters."""
    if len(ids) <= IN_THE_QUERY:  # such a list is compared with the statistics of each file, and most are not read
        yield f"in ({', '.join('?' * len(ids))})", list(ids)
        return
    logs.connection.register(ASKED, pa.table({"id": pa.array(ids, pa.string())}))
    try:
        yield f"in (select id from {ASKED})", []
    finally:
        logs.connection.unregister(ASKED)
