"""Steps of the split: components of similar documents, and a split for each of them."""

from __future__ import annotations

from collections import Counter
from typing import cast

from pipeline.duplicate_steps import Shapes, verified_components
from pipeline.near_duplicates import SHINGLING
from pipeline.provenance import UNICODE
from pipeline.receipts import Receipts
from pipeline.recipe import StageSpec
from pipeline.steps import Done, Layout, path_of, paths, prints, state_of, work
from pipeline.work import Work
from stages import split
from stages.split import SplitOptions


def add_split(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(SplitOptions, spec.options)
    layout.record(name, spec, split.VERSION)
    before = dict(layout.latest)
    components = verified_components(layout, name, options, "corpus", "longest", before)
    group, assign, pick, closest = (f"{name}.{step}" for step in ("group", "assign", "pick", "closest"))
    shapes = Shapes(layout, before)
    shingling = {key: getattr(options, key) for key in SHINGLING}

    def group_works(done: Done) -> list[Work]:
        shared = {
            **layout.numbering(done, before),
            **components.files(done),
            "widths": {"groups": grouped.width(done)},
        }
        upstream = (prints(done[components.step]),)
        return layout.over_partitions(group, "group", {"version": split.VERSION}, upstream, shared, shapes.partitions(done))

    def assign_works(done: Done) -> list[Work]:
        groups, upstream = grouped.files(done), prints(done[group])
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
                (receipt.fingerprint, upstream),
                {"state": state_of(receipt), "groups": groups, "index": index},
            )
            for index, receipt in enumerate(layout.plan.everywhere(done, before))
        ]

    def pick_works(done: Done) -> list[Work]:
        given = {"held_out": paths(done[assign], "held_out")}
        return [work(pick, "all", "pick_held_out", {"check_sample": options.check_sample}, (prints(done[assign]),), given)]

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
        split.check(documents, options.shares)  # which counts a Counter without a step for every document

    layout.add(group, "name every cluster", components.needs, group_works)
    grouped = shapes.to_parts(group, "groups")
    layout.plan.ends["split"] = layout.add(
        assign, "train, validation, test by cluster", [*before.values(), group, *grouped.steps], assign_works, check
    )
    if options.check_sample and options.shares != dict.fromkeys(options.shares, 0.0):
        layout.add(pick, "a sample of what is held out", [assign], pick_works)
        layout.plan.ends["closest"] = layout.add(closest, "compare it with all of other splits", [assign, pick], closest_works)
