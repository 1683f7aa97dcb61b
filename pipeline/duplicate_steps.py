"""Steps that find and remove duplicates: exact ones by key, near ones by MinHash-LSH (see pipeline.near_duplicates)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

from pipeline.near_duplicates import SHINGLING
from pipeline.provenance import UNICODE, versions
from pipeline.receipts import Receipts
from pipeline.recipe import StageSpec
from pipeline.steps import Done, Layout, path_of, prints, state_of, text_bytes_of, work
from pipeline.work import Work
from stages import exact_dedup, line_dedup, minhash, substring_dedup
from stages.exact_dedup import ExactDedupOptions
from stages.line_dedup import UNITS, LineDedupOptions
from stages.minhash import BandOptions, MinHashOptions
from stages.substring_dedup import SubstringDedupOptions


def add_exact_dedup(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(ExactDedupOptions, spec.options)
    layout.record(name, spec, exact_dedup.VERSION)
    before = dict(layout.latest)
    references = layout.references if options.scope == "corpus" else []
    keys, groups = f"{name}.keys", f"{name}.groups"

    def key_works(done: Done) -> list[Work]:
        arguments = {"version": exact_dedup.VERSION, **UNICODE}
        return layout.over_parts(done, before, keys, "exact_keys", arguments, references)

    def group_works(done: Done) -> list[Work]:
        receipts = done[keys]
        shared = {**layout.numbering(done, before, references), "keys": [path_of(one, "keys") for one in receipts]}
        arguments = {"scope": options.scope, "keep": options.keep, **layout.identity_of_parts(references)}
        return layout.over_partitions(groups, "exact_groups", arguments, prints(receipts), shared)

    layout.add(keys, "key of every text", [*before.values(), *references], key_works)
    layout.add(groups, "group equal keys, choose who stays", [keys], group_works)
    _remove(layout, name, "exact_dedup", exact_dedup.RULE, None, before, groups, None)


def add_minhash(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(MinHashOptions, spec.options)
    layout.record(name, spec, minhash.VERSION)
    before = dict(layout.latest)
    references = layout.references if options.scope == "corpus" else []
    components = verified_components(layout, name, options, options.scope, options.keep, before, references)
    cluster = f"{name}.cluster"

    def cluster_works(done: Done) -> list[Work]:
        receipts = done[components]
        shared = {
            **layout.numbering(done, before, references),
            "edges": [path_of(one, "edges") for one in receipts],
            "nodes": [path_of(one, "nodes") for one in receipts],
        }
        arguments = {
            "chain": options.chain,
            "keep": options.keep,
            "pair_partitions": layout.partitions,
            "version": minhash.VERSION,
            **layout.identity_of_parts(references),
        }
        return layout.over_partitions(cluster, "cluster", arguments, prints(receipts), shared)

    layout.add(cluster, "choose who stays of every component", [components], cluster_works)
    compared = None
    if options.chain == "closure":
        compared = _compare(layout, f"{name}.chain", options, cluster, before, references, compare=True)
    _remove(layout, name, "minhash", minhash.RULE, options.threshold, before, cluster, compared)


def add_line_dedup(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(LineDedupOptions, spec.options)
    layout.record(name, spec, line_dedup.VERSION)
    before = dict(layout.latest)
    keys, groups, remove = f"{name}.keys", f"{name}.groups", f"{name}.remove"
    identity = {"stage": spec.name, "version": line_dedup.VERSION, **UNICODE}

    def key_works(done: Done) -> list[Work]:
        arguments = {
            **identity,
            "min_characters": options.min_characters,
            "keep": options.keep,
        }
        return layout.over_parts(done, before, keys, "line_keys", arguments)

    def group_works(done: Done) -> list[Work]:
        receipts = done[keys]
        shared = {**layout.numbering(done, before), "keys": [path_of(one, "keys") for one in receipts]}
        arguments = {
            **identity,
            "scope": options.scope,
            "keep": options.keep,
            "max_documents": options.max_documents,
            **layout.identity_of_parts(),
        }
        return layout.over_partitions(groups, "line_groups", arguments, prints(receipts), shared)

    def remove_works(done: Done) -> list[Work]:
        stays, upstream = [path_of(one, "stays") for one in done[groups]], prints(done[groups])
        arguments = {**identity, "options": options.model_dump(mode="json")}
        return [
            work(
                remove,
                f"{index:05d}",
                "line_remove",
                {**arguments, "of": receipt.fingerprint},
                (receipt.fingerprint, *upstream),
                {"state": state_of(receipt), "stays": stays, "index": index},
            )
            for index, receipt in enumerate(layout.plan.everywhere(done, before))
        ]

    unit = UNITS[spec.name]
    layout.add(keys, f"key of every {unit}", list(before.values()), key_works)
    layout.add(groups, f"count the documents of every {unit}", [keys], group_works)
    layout.add(remove, f"cut boilerplate {unit}s out", [*before.values(), groups], remove_works)
    layout.decides(remove, *layout.recipe.components)


def add_substring_dedup(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(SubstringDedupOptions, spec.options)
    layout.record(name, spec, substring_dedup.VERSION, ("pydivsufsort",))
    before = dict(layout.latest)
    identity = {
        "options": options.model_dump(mode="json"),
        "version": substring_dedup.VERSION,
        "libraries": versions(("pydivsufsort",)),
        **UNICODE,
    }
    for number, component in enumerate(layout.recipe.components):
        own = f"{component}.{name.removeprefix('corpus.')}"
        _add_substring_steps(layout, own, before[component], number, component, identity)


def _add_substring_steps(layout: Layout, name: str, before: str, number: int, component: str, identity: dict[str, Any]) -> None:
    find, cut = f"{name}.find", f"{name}.cut"

    def receipts(done: Done) -> Receipts:
        return layout.plan.receipts(done, before, number)

    def find_works(done: Done) -> list[Work]:
        parts = receipts(done)
        size = sum(map(text_bytes_of, parts))
        arrays = max(1, -(-size // identity["options"]["max_array_bytes"]))
        states = [state_of(one) for one in parts]
        bases = [0, *accumulate(state["rows"] for state in states[:-1])]
        shared = {"states": states, "bases": bases}
        return [
            work(find, f"{array:05d}", "find_substrings", {**identity, "array": array, "arrays": arrays}, prints(parts), shared)
            for array in range(arrays)
        ]

    def cut_works(done: Done) -> list[Work]:
        spans, upstream = [path_of(one, "spans") for one in done[find]], prints(done[find])
        return [
            work(
                cut,
                f"{index:05d}",
                "cut_substrings",
                {**identity, "of": receipt.fingerprint},
                (receipt.fingerprint, *upstream),
                {"state": state_of(receipt), "spans": spans, "index": index},
            )
            for index, receipt in enumerate(receipts(done))
        ]

    layout.add(find, f"spans of {component} that stand earlier too", [before], find_works)
    layout.add(cut, f"cut repeated spans out of {component}", [before, find], cut_works)
    layout.decides(cut, component)


def verified_components(
    layout: Layout,
    name: str,
    options: BandOptions,
    scope: str,
    keep: str,
    before: dict[str, str],
    references: Sequence[str] = (),
) -> str:
    """Steps sign, candidates, fetch, verify, unite and spread; the name of the last, whose partitions have whole components of
    verified pairs. Documents of `references` (steps) are compared too."""
    sign, candidates = f"{name}.sign", f"{name}.candidates"
    signing = {key: getattr(options, key) for key in (*SHINGLING, "bands", "rows", "seed")}

    def sign_works(done: Done) -> list[Work]:
        arguments = {
            **signing,
            "version": minhash.VERSION,
            "libraries": versions(("datasketch",)),
            **UNICODE,
        }
        return layout.over_parts(done, before, sign, "sign", arguments, references)

    def candidate_works(done: Done) -> list[Work]:
        receipts = done[sign]
        shared = {**layout.numbering(done, before, references), "bands": [path_of(one, "bands") for one in receipts]}
        arguments = {
            "scope": scope,
            "keep": keep,
            "max_bucket": options.max_bucket,
            "bucket_sample": options.bucket_sample,
            "pair_partitions": layout.partitions,
            "version": minhash.VERSION,
            **layout.identity_of_parts(references),
        }
        return layout.over_partitions(candidates, "candidates", arguments, prints(receipts), shared)

    layout.add(sign, "signatures", [*before.values(), *references], sign_works)
    layout.add(candidates, "pairs that share a band", [sign], candidate_works)
    return _unite(
        layout, name, _compare(layout, name, options, candidates, before, references, compare=False), before, references
    )


def _unite(layout: Layout, name: str, verify: str, before: dict[str, str], references: Sequence[str]) -> str:
    """Steps unite and spread; the name of the last."""
    unite, spread = f"{name}.unite", f"{name}.spread"

    def unite_works(done: Done) -> list[Work]:
        total = sum(state_of(receipt)["rows"] for receipt in layout.plan.everywhere(done, before, references))
        given = {"nodes": [path_of(one, "nodes") for one in done[verify]], "documents": total}
        return [work(unite, "all", "unite", {}, prints(done[verify]), given)]

    def spread_works(done: Done) -> list[Work]:
        roots, upstream = path_of(done[unite][0], "roots"), prints(done[unite])
        return [
            work(
                spread,
                receipt.part,
                "spread",
                {"of": receipt.fingerprint, "partition": index, "partitions": layout.partitions},
                (receipt.fingerprint, *upstream),
                {"edges": path_of(receipt, "edges"), "nodes": path_of(receipt, "nodes"), "roots": roots},
            )
            for index, receipt in enumerate(done[verify])
        ]

    layout.add(unite, "unite the components of all partitions", [verify], unite_works)
    layout.add(spread, "bring every component together", [verify, unite], spread_works)
    return spread


def _compare(
    layout: Layout,
    name: str,
    options: BandOptions,
    asking: str,
    before: dict[str, str],
    references: Sequence[str],
    compare: bool,
) -> str:
    """Steps fetch and verify for the pairs that `asking` proposes; the name of the last."""
    fetch, verify = f"{name}.fetch", f"{name}.verify"

    def fetch_works(done: Done) -> list[Work]:
        asked, upstream = [path_of(one, "requests") for one in done[asking]], prints(done[asking])
        bases = layout.numbering(done, before, references)["bases"]
        arguments = {
            "pair_partitions": layout.partitions,
            **{key: getattr(options, key) for key in SHINGLING},
            "version": minhash.VERSION,
            **UNICODE,
        }
        works = []
        for index, receipt in enumerate(layout.plan.everywhere(done, before, references)):
            state = state_of(receipt)
            given = {"state": state, "requests": asked, "index": index, "base": bases[index]}
            of = {**arguments, "of": state["digest"], "index": index}
            works.append(work(fetch, f"{index:05d}", "fetch", of, (state["digest"], *upstream), given))
        return works

    def verify_works(done: Done) -> list[Work]:
        shared = {
            **layout.numbering(done, before, references),
            "pairs": [path_of(one, "pairs") for one in done[asking]],
            "sent": [path_of(one, "sent") for one in done[fetch]],
        }
        upstream = (*prints(done[asking]), *prints(done[fetch]))
        arguments = {"threshold": options.threshold, "compare": compare}
        return layout.over_partitions(verify, "verify", arguments, upstream, shared)

    layout.add(fetch, "bring shingle sets to their pairs", [*before.values(), *references, asking], fetch_works)
    layout.add(verify, "exact Jaccard of every pair", [asking, fetch], verify_works)
    return verify


def _remove(
    layout: Layout,
    name: str,
    stage: str,
    rule: str,
    threshold: float | None,
    before: dict[str, str],
    deciding: str,
    compared: str | None,
) -> None:
    step = f"{name}.remove"

    def works(done: Done) -> list[Work]:
        later = done[compared] if compared else []
        decisions = [path_of(one, "decisions") for one in done[deciding]]
        jaccards = [path_of(one, "compared") for one in later]
        upstream = (*prints(done[deciding]), *prints(later))
        arguments = {"stage": stage, "rule": rule, "threshold": threshold}
        return [
            work(
                step,
                f"{index:05d}",
                "remove",
                {**arguments, "of": receipt.fingerprint},
                (receipt.fingerprint, *upstream),
                {"state": state_of(receipt), "decisions": decisions, "compared": jaccards, "index": index},
            )
            for index, receipt in enumerate(layout.plan.everywhere(done, before))
        ]

    layout.add(step, "remove duplicates", [*before.values(), deciding, *([compared] if compared else [])], works)
    layout.decides(step, *layout.recipe.components)
