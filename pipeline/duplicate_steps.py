"""Steps that find and remove duplicates: exact ones by key, near ones by MinHash-LSH (see pipeline.near_duplicates)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

from pipeline.lists import Listed
from pipeline.near_duplicates import SHINGLING
from pipeline.provenance import UNICODE, versions
from pipeline.receipts import Receipts
from pipeline.recipe import StageSpec
from pipeline.relay_steps import Relay, Shape
from pipeline.steps import Done, Layout, path_of, paths, prints, state_of, text_bytes_of, work
from pipeline.work import Work
from stages import exact_dedup, line_dedup, minhash, substring_dedup
from stages.clusters import Union
from stages.exact_dedup import ExactDedupOptions
from stages.line_dedup import UNITS, LineDedupOptions
from stages.minhash import BandOptions, MinHashOptions
from stages.substring_dedup import SubstringDedupOptions

UNITE_MEMORY = 768 << 20
"""What uniting takes beside its union: a run of its shuffle file twice, and the nodes of one partition."""


def add_exact_dedup(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(ExactDedupOptions, spec.options)
    layout.record(name, spec, exact_dedup.VERSION)
    before = dict(layout.latest)
    references = layout.references if options.scope == "corpus" else []
    keys, groups = f"{name}.keys", f"{name}.groups"
    shapes = Shapes(layout, before, references)

    def key_works(done: Done) -> list[Work]:
        arguments = {"version": exact_dedup.VERSION, **UNICODE}
        return layout.over_parts(done, before, keys, "exact_keys", arguments, keyed.residues(done), references)

    def group_works(done: Done) -> list[Work]:
        shared = {
            **layout.numbering(done, before, references),
            "keys": keyed.files(done),
            "widths": {"decisions": decided.width(done)},
        }
        arguments = {"scope": options.scope, "keep": options.keep, **layout.identity_of_parts(references)}
        return layout.over_partitions(groups, "exact_groups", arguments, (prints(done[keys]),), shared, shapes.partitions(done))

    layout.add(keys, "key of every text", [*before.values(), *references], key_works)
    keyed = shapes.to_partitions(keys, "keys", "high")
    layout.add(groups, "group equal keys, choose who stays", [keys, *keyed.steps], group_works)
    decided = shapes.to_parts(groups, "decisions")
    _remove(layout, name, "exact_dedup", exact_dedup.RULE, None, before, decided, groups, None)


def add_minhash(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(MinHashOptions, spec.options)
    layout.record(name, spec, minhash.VERSION)
    before = dict(layout.latest)
    references = layout.references if options.scope == "corpus" else []
    components = verified_components(layout, name, options, options.scope, options.keep, before, references)
    cluster = f"{name}.cluster"
    shapes = Shapes(layout, before, references)

    def cluster_works(done: Done) -> list[Work]:
        partitions = shapes.partitions(done)
        shared = {
            **layout.numbering(done, before, references),
            **components.files(done),
            "widths": {"decisions": decided.width(done), **asking.widths(done)},
        }
        arguments = {
            "chain": options.chain,
            "keep": options.keep,
            "pair_partitions": partitions,
            "version": minhash.VERSION,
            **layout.identity_of_parts(references),
        }
        return layout.over_partitions(cluster, "cluster", arguments, (prints(done[components.step]),), shared, partitions)

    layout.add(cluster, "choose who stays of every component", components.needs, cluster_works)
    decided = shapes.to_parts(cluster, "decisions")
    asking = _Asked(shapes, cluster, relayed=options.chain == "closure")
    compared = None
    if options.chain == "closure":
        compared = _compare(layout, f"{name}.chain", options, asking, shapes, compare=True)
    _remove(layout, name, "minhash", minhash.RULE, options.threshold, before, decided, cluster, compared)


def add_line_dedup(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(LineDedupOptions, spec.options)
    layout.record(name, spec, line_dedup.VERSION)
    before = dict(layout.latest)
    keys, groups, remove = f"{name}.keys", f"{name}.groups", f"{name}.remove"
    identity = {"stage": spec.name, "version": line_dedup.VERSION, **UNICODE}
    shapes = Shapes(layout, before)

    def key_works(done: Done) -> list[Work]:
        arguments = {
            **identity,
            "min_characters": options.min_characters,
            "keep": options.keep,
        }
        return layout.over_parts(done, before, keys, "line_keys", arguments, keyed.residues(done))

    def group_works(done: Done) -> list[Work]:
        shared = {**layout.numbering(done, before), "keys": keyed.files(done), "widths": {"stays": stay.width(done)}}
        arguments = {
            **identity,
            "scope": options.scope,
            "keep": options.keep,
            "max_documents": options.max_documents,
            **layout.identity_of_parts(),
        }
        return layout.over_partitions(groups, "line_groups", arguments, (prints(done[keys]),), shared, shapes.partitions(done))

    def remove_works(done: Done) -> list[Work]:
        stays, upstream = stay.files(done), prints(done[groups])
        arguments = {**identity, "options": options.model_dump(mode="json")}
        return [
            work(
                remove,
                f"{index:05d}",
                "line_remove",
                {**arguments, "of": receipt.fingerprint},
                (receipt.fingerprint, upstream),
                {"state": state_of(receipt), "stays": stays, "index": index},
            )
            for index, receipt in enumerate(layout.plan.everywhere(done, before))
        ]

    unit = UNITS[spec.name]
    layout.add(keys, f"key of every {unit}", list(before.values()), key_works)
    keyed = shapes.to_partitions(keys, "keys", "high")
    layout.add(groups, f"count the documents of every {unit}", [keys, *keyed.steps], group_works)
    stay = shapes.to_parts(groups, "stays")
    layout.add(remove, f"cut boilerplate {unit}s out", [*before.values(), groups, *stay.steps], remove_works)
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

    def arrays_for(size: int) -> int:
        most: int = identity["options"]["max_array_bytes"]
        return max(1, -(-size // most))

    def shape(done: Done) -> Shape:
        parts = receipts(done)
        return Shape(arrays_for(sum(map(text_bytes_of, parts))), len(parts))

    def find_works(done: Done) -> list[Work]:
        parts, arrays = receipts(done), shape(done).files
        states = [state_of(one) for one in parts]
        bases = [0, *accumulate(state["rows"] for state in states[:-1])]
        shared = {"states": Listed(states), "bases": Listed(bases), "widths": {"spans": spanning.width(done)}}
        upstream = (prints(parts),)
        return [
            work(find, f"{array:05d}", "find_substrings", {**identity, "array": array, "arrays": arrays}, upstream, shared)
            for array in range(arrays)
        ]

    def cut_works(done: Done) -> list[Work]:
        spans, upstream = spanning.files(done), prints(done[find])
        return [
            work(
                cut,
                f"{index:05d}",
                "cut_substrings",
                {**identity, "of": receipt.fingerprint},
                (receipt.fingerprint, upstream),
                {"state": state_of(receipt), "spans": spans, "index": index},
            )
            for index, receipt in enumerate(receipts(done))
        ]

    layout.add(find, f"spans of {component} that stand earlier too", [before], find_works)
    parts_here = layout.parts.component.count(number)
    expected = Shape(arrays_for(layout.expected_bytes), parts_here)
    spanning = Relay(layout, find, "spans", expected, lambda done: [shape(done)])
    layout.add(cut, f"cut repeated spans out of {component}", [before, find, *spanning.steps], cut_works)
    layout.decides(cut, component)


class Shapes:
    """The shuffles of a stage that compares the documents of `before`, and of references: between their parts and its
    partitions."""

    def __init__(self, layout: Layout, before: dict[str, str], references: Sequence[str] = ()) -> None:
        self.layout, self.before, self.references = layout, before, references
        self.parts, self.expected = layout.number_of_parts(references), layout.expected_partitions(references)

    def partitions(self, done: Done) -> int:
        return self.layout.partitions(done, self.before, self.references)

    def to_partitions(self, writing: str, role: str, column: str | None = None) -> Relay:
        """From a file of each part."""
        expected = Shape(self.parts, self.expected)
        shapes = lambda done: [Shape(self.parts, self.partitions(done))]  # noqa: E731
        return Relay(self.layout, writing, role, expected, shapes, column=column)

    def to_parts(self, writing: str, role: str) -> Relay:
        """From a file of each partition."""
        expected = Shape(self.expected, self.parts)
        return Relay(self.layout, writing, role, expected, lambda done: [Shape(self.partitions(done), self.parts)])

    def between(self, writing: str, role: str) -> Relay:
        """From partitions to partitions."""
        expected = Shape(self.expected, self.expected)
        return Relay(self.layout, writing, role, expected, lambda done: [Shape(*[self.partitions(done)] * 2)])


class _Asked:
    """What a step that proposes pairs writes: pairs, to where they are compared, and requests for their shingle sets."""

    def __init__(self, shapes: Shapes, step: str, relayed: bool = True) -> None:
        self.step = step
        self.pairs = shapes.between(step, "pairs") if relayed else None
        self.requests = shapes.to_parts(step, "requests") if relayed else None

    def widths(self, done: Done) -> dict[str, int]:
        return {
            "pairs": self.pairs.width(done) if self.pairs else 1,
            "requests": self.requests.width(done) if self.requests else 1,
        }


class Components:
    """Partitions with whole components of verified pairs, which `step` writes."""

    def __init__(self, shapes: Shapes, step: str) -> None:
        self.step = step
        self._edges, self._nodes = (shapes.between(step, role) for role in ("edges", "nodes"))

    @property
    def needs(self) -> list[str]:
        return [self.step, *self._edges.steps, *self._nodes.steps]

    def files(self, done: Done) -> dict[str, Any]:
        return {"edges": self._edges.files(done), "nodes": self._nodes.files(done)}

    def widths(self, done: Done) -> dict[str, int]:
        return {"edges": self._edges.width(done), "nodes": self._nodes.width(done)}


def verified_components(
    layout: Layout,
    name: str,
    options: BandOptions,
    scope: str,
    keep: str,
    before: dict[str, str],
    references: Sequence[str] = (),
) -> Components:
    """Steps sign, candidates, fetch, verify, unite and spread; what the last writes. Documents of `references` (steps) are
    compared too."""
    sign, candidates = f"{name}.sign", f"{name}.candidates"
    signing = {key: getattr(options, key) for key in (*SHINGLING, "bands", "rows", "seed")}
    shapes = Shapes(layout, before, references)

    def sign_works(done: Done) -> list[Work]:
        arguments = {
            **signing,
            "version": minhash.VERSION,
            "libraries": versions(("datasketch",)),
            **UNICODE,
        }
        return layout.over_parts(done, before, sign, "sign", arguments, signed.residues(done), references)

    def candidate_works(done: Done) -> list[Work]:
        partitions = shapes.partitions(done)
        shared = {
            **layout.numbering(done, before, references),
            "bands": signed.files(done),
            "widths": asking.widths(done),
        }
        arguments = {
            "scope": scope,
            "keep": keep,
            "max_bucket": options.max_bucket,
            "bucket_sample": options.bucket_sample,
            "pair_partitions": partitions,
            "version": minhash.VERSION,
            **layout.identity_of_parts(references),
        }
        return layout.over_partitions(candidates, "candidates", arguments, (prints(done[sign]),), shared, partitions)

    layout.add(sign, "signatures", [*before.values(), *references], sign_works)
    signed = shapes.to_partitions(sign, "bands", "key")
    layout.add(candidates, "pairs that share a band", [sign, *signed.steps], candidate_works)
    asking = _Asked(shapes, candidates)
    return _unite(layout, name, _compare(layout, name, options, asking, shapes, compare=False)[0], shapes)


def _unite(layout: Layout, name: str, verify: str, shapes: Shapes) -> Components:
    """Steps unite and spread; what the last writes."""
    unite, spread = f"{name}.unite", f"{name}.spread"

    def unite_works(done: Done) -> list[Work]:
        before = layout.plan.everywhere(done, shapes.before, shapes.references)
        total = sum(state_of(receipt)["rows"] for receipt in before)
        given = {"nodes": paths(done[verify], "nodes"), "documents": total}
        return [work(unite, "all", "unite", {}, (prints(done[verify]),), given)]

    def spread_works(done: Done) -> list[Work]:
        roots, upstream = path_of(done[unite][0], "roots"), prints(done[unite])
        partitions, widths = shapes.partitions(done), components.widths(done)
        return [
            work(
                spread,
                receipt.part,
                "spread",
                {"of": receipt.fingerprint, "partition": index, "partitions": partitions},
                (receipt.fingerprint, upstream),
                {"edges": path_of(receipt, "edges"), "nodes": path_of(receipt, "nodes"), "roots": roots, "widths": widths},
            )
            for index, receipt in enumerate(done[verify])
        ]

    def unite_memory(done: Done) -> int:
        total = sum(state_of(receipt)["rows"] for receipt in layout.plan.everywhere(done, shapes.before, shapes.references))
        members = sum(receipt.files["nodes"].rows for receipt in done[verify])  # who stands in several partitions, several times
        return UNITE_MEMORY + Union.bytes_for(total, min(members, total))

    layout.add(unite, "unite the components of all partitions", [verify], unite_works, memory=unite_memory)
    layout.add(spread, "bring every component together", [verify, unite], spread_works)
    components = Components(shapes, spread)
    return components


def _compare(
    layout: Layout, name: str, options: BandOptions, asking: _Asked, shapes: Shapes, compare: bool
) -> tuple[str, Relay | None]:
    """Steps fetch and verify for the pairs that are asked for; the name of the last, and how its comparisons get to the parts,
    where it writes such."""
    fetch, verify = f"{name}.fetch", f"{name}.verify"
    before, references = shapes.before, shapes.references
    assert asking.pairs is not None and asking.requests is not None
    pairs, requests = asking.pairs, asking.requests

    def fetch_works(done: Done) -> list[Work]:
        asked, upstream = requests.files(done), prints(done[asking.step])
        bases = layout.numbering(done, before, references)["bases"]
        widths = {"sent": sent.width(done)}
        arguments = {
            "pair_partitions": shapes.partitions(done),
            **{key: getattr(options, key) for key in SHINGLING},
            "version": minhash.VERSION,
            **UNICODE,
        }
        works = []
        for index, receipt in enumerate(layout.plan.everywhere(done, before, references)):
            state = state_of(receipt)
            given = {"state": state, "requests": asked, "index": index, "base": bases[index], "widths": widths}
            of = {**arguments, "of": state["digest"], "index": index}
            works.append(work(fetch, f"{index:05d}", "fetch", of, (state["digest"], upstream), given))
        return works

    def verify_works(done: Done) -> list[Work]:
        shared = {
            **layout.numbering(done, before, references),
            "pairs": pairs.files(done),
            "sent": sent.files(done),
            "widths": {"compared": compared.width(done)} if compared else {},
        }
        upstream = (prints(done[asking.step]), prints(done[fetch]))
        arguments = {"threshold": options.threshold, "compare": compare}
        return layout.over_partitions(verify, "verify", arguments, upstream, shared, shapes.partitions(done))

    needs = [*before.values(), *references, asking.step]
    layout.add(fetch, "bring shingle sets to their pairs", [*needs, *requests.steps], fetch_works)
    sent = shapes.to_partitions(fetch, "sent")
    layout.add(verify, "exact Jaccard of every pair", [asking.step, *pairs.steps, fetch, *sent.steps], verify_works)
    compared = shapes.to_parts(verify, "compared") if compare else None
    return verify, compared


def _remove(
    layout: Layout,
    name: str,
    stage: str,
    rule: str,
    threshold: float | None,
    before: dict[str, str],
    decided: Relay,
    deciding: str,
    compared: tuple[str, Relay | None] | None,
) -> None:
    step = f"{name}.remove"
    comparing, later = compared or (None, None)

    def works(done: Done) -> list[Work]:
        decisions, jaccards = decided.files(done), later.files(done) if later else []
        upstream = (prints(done[deciding]), *([prints(done[comparing])] if comparing else []))
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

    needs = [*before.values(), deciding, *decided.steps, *([comparing] if comparing else []), *(later.steps if later else [])]
    layout.add(step, "remove duplicates", needs, works)
    layout.decides(step, *layout.recipe.components)
