"""Steps of the split: components of similar documents, and a split for each of them."""

from __future__ import annotations

from collections import Counter
from typing import cast

from pipeline.duplicate_steps import verified_components
from pipeline.near_duplicates import SHINGLING
from pipeline.provenance import UNICODE
from pipeline.receipts import Receipts
from pipeline.recipe import StageSpec
from pipeline.steps import Done, Layout, path_of, prints, state_of, work
from pipeline.work import Work
from stages import split
from stages.split import SplitOptions


def add_split(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(SplitOptions, spec.options)
    layout.record(name, spec, split.VERSION)
    before = dict(layout.latest)
    components = verified_components(layout, name, options, "corpus", "longest", before)
    group, assign, pick, closest = (f"{name}.{step}" for step in ("group", "assign", "pick", "closest"))
    shingling = {key: getattr(options, key) for key in SHINGLING}

    def group_works(done: Done) -> list[Work]:
        receipts = done[components]
        shared = {
            **layout.numbering(done, before),
            "edges": [path_of(one, "edges") for one in receipts],
            "nodes": [path_of(one, "nodes") for one in receipts],
        }
        return layout.over_partitions(group, "group", {"version": split.VERSION}, prints(receipts), shared)

    def assign_works(done: Done) -> list[Work]:
        groups, upstream = [path_of(one, "groups") for one in done[group]], prints(done[group])
        arguments = {
            "seed": layout.recipe.seed,
            "shares": options.shares,
            "check_sample": options.check_sample,
            **shingling,
            "version": split.VERSION,
            **UNICODE,
        }
        return [
            work(
                assign,
                f"{index:05d}",
                "assign",
                {**arguments, "of": receipt.fingerprint},
                (receipt.fingerprint, *upstream),
                {"state": state_of(receipt), "groups": groups, "index": index},
            )
            for index, receipt in enumerate(layout.plan.everywhere(done, before))
        ]

    def pick_works(done: Done) -> list[Work]:
        given = {"held_out": [path_of(one, "held_out") for one in done[assign]]}
        return [work(pick, "all", "pick_held_out", {"check_sample": options.check_sample}, prints(done[assign]), given)]

    def closest_works(done: Done) -> list[Work]:
        sample = done[pick][0]
        arguments = {"threshold": options.threshold, **shingling, "version": split.VERSION, **UNICODE}
        return [
            work(
                closest,
                receipt.part,
                "compare_held_out",
                {**arguments, "of": receipt.fingerprint},
                (receipt.fingerprint, sample.fingerprint),
                {"state": state_of(receipt), "split": path_of(receipt, "split"), "sample": path_of(sample, "sample")},
            )
            for receipt in done[assign]
        ]

    def check(receipts: Receipts) -> None:
        documents = Counter[str]()
        for receipt in receipts:
            documents.update(receipt.values["documents"])
        split.check(documents.elements(), options.shares)

    layout.add(group, "name every cluster", [components], group_works)
    layout.plan.ends["split"] = layout.add(
        assign, "train, validation, test by cluster", [*before.values(), group], assign_works, check
    )
    if options.check_sample and options.shares != dict.fromkeys(options.shares, 0.0):
        layout.add(pick, "a sample of what is held out", [assign], pick_works)
        layout.plan.ends["closest"] = layout.add(closest, "compare it with all of other splits", [assign, pick], closest_works)
