"""What stages after a filter block may let into the corpus when the block decides otherwise: an upper bound.

A document's own text decides in most stages, so that what later ones removed stays removed. Those that look at other documents
are the exception, and each is bounded by what it left on record:

- Twins (COMPARING). A removed document has a verified pair with `linked_id`, which joins it to its cluster, and went because
  `kept_id` stayed. It can only come back where the kept one goes, or where any document of its cluster goes and its pair is
  with another than the kept one: then that document may have been the bridge between them. Documents that are added only make
  clusters larger, of which the best-ranked one stays.
- Texts that change with others' (REWRITING): from there on, anything may be decided otherwise, and all removals are counted.
- `chain: direct`, and twins sought again after near-duplicates were removed: one document that takes another's place can free
  the other's twins in turn, and all removals of the stage are counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from manifests.logs import Logs
from manifests.manifest import Content

COMPARING = frozenset(["exact_dedup", "minhash"])
"""Stages that remove a document because another is in the corpus."""
REWRITING = frozenset(["line_dedup", "paragraph_dedup", "substring_dedup"])
"""Stages that change a text because of others."""
Step = tuple[str, str]
"""A step and its stage, as counts and removals name them."""
GONE = pa.schema([pa.field(name, pa.string()) for name in ("step", "stage", "kept_id", "linked_id", "cluster")])
"""Of a removal row, what tells whether its document is counted in a bound."""


class Later:
    """The stages after some filter blocks in which other documents have a say."""

    def __init__(self, content: Content, blocks: Iterable[tuple[str, str]]) -> None:
        """`blocks`: (component, block) whose verdicts change."""
        wanted = set(blocks)
        first = {(one.step, one.stage) for one in content.counts if (one.component, one.stage) in wanted}
        self._content = content
        self._after: list[list[Step]] = []
        before: set[str] = set()
        for name in content.components:
            counts = [one for one in content.counts if one.component == name]
            begin = next((n + 1 for n, one in enumerate(counts) if (one.step, one.stage) in first), 0)
            comparing = next((n for n, one in enumerate(counts) if n >= begin and one.stage in COMPARING), len(counts) - 1)
            before |= {one.stage for one in counts[: comparing + 1]}
            self._after.append([(one.step, one.stage) for one in counts[begin:]])
        self.before = frozenset(before)
        """What was removed by one of these was never kept for another document by a later stage: they come before any that does
        so, or are the first of them."""

    @property
    def stages(self) -> frozenset[str]:
        """Those whose removals may be counted."""
        bounded, every = self.steps(True)
        return frozenset(stage for _, stage in (*bounded, *every))

    def steps(self, something_is_added: bool) -> tuple[list[Step], list[Step]]:
        """(steps whose clusters bound what comes back, steps of which all removals are counted)."""
        bounded: dict[Step, None] = {}
        every: dict[Step, None] = {}
        for after in self._after:
            rewritten = displaced = False
            compared = 0
            for step, stage in after:
                rewritten = rewritten or stage in REWRITING
                if rewritten or (stage in COMPARING and (displaced or self._option(step, stage, "chain") == "direct")):
                    every[step, stage] = None
                elif stage in COMPARING:
                    bounded[step, stage] = None
                compared += stage in COMPARING
                if stage in COMPARING and stage != "exact_dedup":  # an exact copy in another's place has the same twins
                    displaced = displaced or something_is_added or compared > 1
        return list(bounded), list(every)

    def _option(self, step: str, stage: str, name: str) -> object:
        """An option of the corpus-wide stage that this step is of."""
        mine = (one for one in self._content.stages if one.stage == stage and f"{step}.".startswith(f"{one.step}."))
        record = next(mine, None)
        return None if record is None else record.options.get(name)


def freed(logs: Logs, later: Later, ids: pa.Array, gone: pa.Table, something_is_added: bool) -> tuple[int, bool, int]:
    """(removals that may not happen at most, whether that counts all of a stage, clusters whose kept document goes while another
    stays), once documents go from the blocks. Of each such cluster one document is likely to come back.

    ids: of these, those that can have been kept for another, `later.before` aside. gone: GONE, the removal rows that they have in
    `later.stages`. Needs the view `removals`.
    """
    bounded, every = later.steps(something_is_added)
    clusters = 0
    tables = {
        "newly_removed_ids": pa.table({"id": ids}),
        "newly_removed_rows": gone,
        "bounded_steps": _steps_table(bounded),
        "open_steps": _steps_table(every),
    }
    for name, table in tables.items():
        logs.connection.register(name, table)
    try:
        number = 0
        if len(ids) or gone.num_rows:
            logs.connection.execute(_COPIES)
            number, clusters = logs.connection.execute(_BOUNDED).fetchall()[0]
        if every:
            number += _counted(logs, "(step, stage) in (select (step, stage) from open_steps)")
    finally:
        for name in tables:
            logs.connection.unregister(name)
        logs.connection.execute("drop table if exists copies_of_gone")
    return number, bool(every), clusters


_COPIES = (
    "create or replace temp table copies_of_gone as with found as ("
    + " union all ".join(
        f"select {sign} as n, step, stage, cluster, kept_id in (select id from newly_removed_ids) as orphaned, "
        "linked_id <> kept_id and (step, cluster) in "
        "(select (step, cluster) from newly_removed_rows where cluster is not null) as bridged "
        f"from {table} where kept_id is not null"
        for sign, table in ((1, "removals"), (-1, "newly_removed_rows"))
    )
    + ") select * from found where orphaned or bridged"
)
"""Removals whose kept document goes, or whose cluster loses a document that may have been the bridge to it; those of documents
that go themselves count -1."""
_BOUNDED = (
    "select (select coalesce(sum(n), 0)::bigint from copies_of_gone "
    "where (step, stage) in (select (step, stage) from bounded_steps)), "
    "(select count(*) from (select 1 from copies_of_gone where orphaned group by step, cluster having sum(n) > 0))"
)


def _counted(logs: Logs, condition: str) -> int:
    """Removals that meet a condition, without those of documents that go themselves."""
    inside, own = (
        logs.sql(f"select count(*) as n from {table} where {condition}")[0]["n"] for table in ("removals", "newly_removed_rows")
    )
    return int(inside) - int(own)


def _steps_table(steps: list[Step]) -> pa.Table:
    return pa.table({name: pa.array([one[n] for one in steps], pa.string()) for n, name in enumerate(("step", "stage"))})
