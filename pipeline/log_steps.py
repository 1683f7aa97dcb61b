"""The last step: logs of the whole corpus, re-cut so that they do not depend on parts (see pipeline.corpus_log)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from pipeline.lists import Listed
from pipeline.provenance import versions
from pipeline.steps import Done, Layout, path_of, prints, state_of, work
from pipeline.work import Work


def add_logs(layout: Layout) -> None:
    splits, pack = layout.plan.ends.get("split"), layout.plan.ends.get("pack")
    latest = dict(layout.latest)
    placed = layout.placed
    needs = [
        *(placed.steps if placed else []),
        *(step for chain in layout.plan.chains.values() for step in chain),
        *(end for end in (splits, pack) if end),
    ]

    def works(done: Done) -> list[Work]:
        made = []
        bases = layout.record_bases(done)
        for index, component in enumerate(layout.parts.names):
            where = layout.parts.of(index)
            chain = layout.plan.chains[component]
            receipts = {step: layout.plan.receipts(done, step, index) for step in chain}
            split_receipts = layout.plan.receipts(done, splits, index) if splits else None
            put = placed.files(done, index) if placed else None
            put_prints = prints(placed.receipts(done)[index] if placed else [])
            described = []
            for number in range(where.stop - where.start):
                mine = {step: receipts[step][number] for step in chain}
                described.append(
                    {
                        "base": bases[where.start + number],
                        "records": mine[chain[0]].files["catalogue"].rows,
                        "catalogue": path_of(mine[chain[0]], "catalogue"),
                        "removals": [path_of(one, "removals") for one in mine.values()],
                        "edits": [path_of(one, "edits") for one in mine.values() if "edits" in one.files],
                        "signals": {
                            block: path_of(mine[step], "signals") for block, step in layout.plan.blocks[component].items()
                        },
                        "state": state_of(mine[latest[component]]),
                        "split": path_of(split_receipts[number], "split") if split_receipts else None,
                    }
                )
            parts, extents = Listed(described), Listed([[one["base"], one["records"]] for one in described])
            upstream = [prints(receipts[step]) for step in chain] + ([prints(split_receipts)] if split_receipts else [])
            starts, ends = [one["base"] for one in described], [one["base"] + one["records"] for one in described]
            for chunk in range(layout.chunks(done, index)):
                low, high = chunk * layout.log_rows, (chunk + 1) * layout.log_rows
                first = bisect_right(ends, low)
                last = max(first, bisect_left(starts, high))
                arguments = {
                    "component": component,
                    "chunk": chunk,
                    "log_rows": layout.log_rows,
                    "extents": extents.part(first, last),
                    "libraries": versions(("pyarrow",)),
                }
                given = {"parts": parts.part(first, last), "placed": put}
                both = (*(one.part(first, last) for one in upstream), put_prints)
                made.append(work("logs", f"{component}-{chunk:05d}", "logs", arguments, both, given))
        return made

    layout.plan.ends["logs"] = layout.add("logs", "removals, edits, signals, documents in id order", needs, works)
