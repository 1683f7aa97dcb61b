"""From a recipe to steps, and from a step to its parts.

The plan is the DAG in the order in which it runs. Row-local stages of a component are fused, but the chain is cut after
extraction (its text is kept) and between signals and rules (a changed threshold re-decides from stored signals). Corpus-wide
stages run over all parts of all components. Parts of a step are listed when the steps it needs are done, since some follow from
their counts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, cast

from manifests.manifest import StageRecord
from manifests.storage import Folder, sha256_of
from pipeline import inputs, tokens
from pipeline.corpus_log import LOG_ROWS
from pipeline.inputs import PART_BYTES, Slice
from pipeline.receipts import Receipt
from pipeline.recipe import Component, Recipe, StageSpec
from pipeline.work import Work
from stages import exact_dedup, minhash, shards, split, tokenizer
from stages.exact_dedup import ExactDedupOptions
from stages.minhash import BandOptions, MinHashOptions
from stages.shards import ShardOptions
from stages.split import SplitOptions
from stages.stage import Filter, Stage
from stages.tokenizer import TokenizerOptions

PARTITION_BYTES = 128 << 20
MOST_PARTITIONS = 512

Done = dict[str, list[Receipt]]
"""Receipts of finished steps, each list in the order of the step's parts."""


@dataclass(frozen=True)
class Step:
    name: str
    about: str
    needs: tuple[str, ...]
    works: Callable[[Done], list[Work]]
    check: Callable[[list[Receipt]], None] | None = None
    """Looks at the finished parts together; raises when the corpus cannot go on from them."""


@dataclass(frozen=True)
class Parts:
    """All parts of the corpus in id order, and what each component has of them."""

    slices: tuple[tuple[Slice, ...], ...]
    component: tuple[int, ...]
    names: tuple[str, ...]
    unread: tuple[dict[str, int], ...]
    """For each component, the files of its source that match none of its patterns, by ending."""

    def of(self, component: int) -> slice:
        first = self.component.index(component)
        return slice(first, first + self.component.count(component))

    def __len__(self) -> int:
        return len(self.slices)


@dataclass
class Plan:
    recipe: Recipe
    parts: Parts
    steps: list[Step] = field(default_factory=list)
    records: list[tuple[str, StageRecord]] = field(default_factory=list)
    """(component or "", record) in running order."""
    chains: dict[str, list[str]] = field(default_factory=dict)
    """Component → its steps that decide on documents, in order, the corpus-wide ones included."""
    blocks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Component → filter block → the step that measured it."""
    ends: dict[str, str] = field(default_factory=dict)
    """What later steps ask for: split, tokenizer, pack, logs → step name."""
    specs: dict[str, StageSpec] = field(default_factory=dict)
    """Step and stage, joined by a space → how the recipe sets the row-local stage up."""

    def receipts(self, done: Done, step: str, component: int | None = None) -> list[Receipt]:
        """A per-part step's receipts, for one component or for all parts."""
        found = done[step]
        if component is None or len(found) != len(self.parts):
            return found
        return found[self.parts.of(component)]

    def everywhere(self, done: Done, steps: dict[str, str]) -> list[Receipt]:
        """One receipt for every part of the corpus, from each component's own step."""
        return [one for index, name in enumerate(self.parts.names) for one in self.receipts(done, steps[name], index)]


def make_plan(recipe: Recipe, part_bytes: int = PART_BYTES) -> Plan:
    """Lists the inputs and lays out the steps; InputError when there is nothing to read."""
    slices: list[tuple[Slice, ...]] = []
    owner: list[int] = []
    listings = [inputs.discover(component) for component in recipe.components.values()]
    for index, (component, listing) in enumerate(zip(recipe.components.values(), listings, strict=True)):
        for part in inputs.parts(component, listing, part_bytes):
            slices.append(tuple(part))
            owner.append(index)
    unread = tuple(listing.unread for listing in listings)
    plan = Plan(recipe, Parts(tuple(slices), tuple(owner), tuple(recipe.components), unread))
    return _Builder(plan).build()


class _Builder:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        self.parts = plan.parts
        self.latest: dict[str, str] = {}
        total = sum(one.size for part in self.parts.slices for one in part)
        self.partitions = min(MOST_PARTITIONS, 1 << max(0, (total // PARTITION_BYTES)).bit_length())
        self.priorities = [component.priority for component in self.recipe.components.values()]
        self._prepared: dict[int, dict[str, Any]] = {}

    def build(self) -> Plan:
        for index, component in enumerate(self.recipe.components.values()):
            self._component(index, component)
        for number, spec in enumerate(self.recipe.stages, 1):
            name = f"corpus.{number}.{spec.name}"
            if spec.name == "exact_dedup":
                self._exact(name, spec)
            elif spec.name == "minhash":
                self._minhash(name, spec)
            elif spec.name == "split":
                self._split(name, spec)
            elif spec.name == "tokenizer":
                self._tokenizer(name, spec)
            elif spec.name == "shards":
                self._shards(name, spec)
            else:
                self._row_local(name, spec)
        self._logs()
        return self.plan

    def _add(
        self,
        name: str,
        about: str,
        needs: list[str],
        works: Callable[[Done], list[Work]],
        check: Callable[[list[Receipt]], None] | None = None,
    ) -> str:
        self.plan.steps.append(Step(name, about, tuple(dict.fromkeys(needs)), works, check))
        return name

    # Row-local steps -------------------------------------------------------------------------------------------------

    def _component(self, index: int, component: Component) -> None:
        self.plan.chains[component.name] = []
        self.plan.blocks[component.name] = {}
        waiting: list[StageSpec] = []
        number = 0
        first = True
        specs = list(component.stages)
        while specs or first:
            block: list[StageSpec] = []
            while specs and not block:
                if _is_filter(specs[0]):
                    while specs and _is_filter(specs[0]):
                        block.append(specs.pop(0))
                else:
                    waiting.append(specs.pop(0))
                    if waiting[-1].name == "extraction":
                        break
            number += 1
            words = (["read"] if first else []) + [spec.name for spec in waiting] + (["measure"] if block else [])
            block_name = f"filters{len(self.plan.blocks[component.name]) + 1}" if block else None
            step = f"{component.name}.{number}.{words[-1]}"
            self._read_and_decide(step, " + ".join(words), index, component, waiting, block, block_name, first)
            if block_name:
                number += 1
                self.plan.blocks[component.name][block_name] = step
                self._rules(f"{component.name}.{number}.rules", index, component, block, block_name, step)
            waiting, first = [], False

    def _read_and_decide(
        self,
        step: str,
        about: str,
        index: int,
        component: Component,
        stages: list[StageSpec],
        block: list[StageSpec],
        block_name: str | None,
        first: bool,
    ) -> None:
        before = self.latest.get(component.name)
        arguments: dict[str, Any] = {
            "component": component.name,
            "stages": [self._identity(step, component.name, spec) for spec in stages],
            "filters": [self._identity(step, component.name, spec, measuring=True) for spec in block],
        }
        if block_name:
            arguments["block"] = block_name
        given: dict[str, Any] = {"stages": [_spec(spec) for spec in stages], "filters": [_spec(spec) for spec in block]}
        reader = component.reader
        if first:
            record = StageRecord(
                step=step,
                stage="read",
                version=reader.version,
                options={"format": component.format, "files": list(component.files), **reader.options.model_dump(mode="json")},
                libraries=_versions(reader.libraries),
            )
            self.plan.records.insert(_first_of(self.plan.records, component.name), (component.name, record))
            arguments["reader"] = record.model_dump(mode="json")
            arguments["source"] = component.source
            folder, _ = inputs.source_folder(component)
            given.update(
                component=component.name,
                format=component.format,
                reader=reader.options.model_dump(mode="json"),
                source=folder.url,
            )

        def works(done: Done) -> list[Work]:
            made = []
            if first:
                for number, part in enumerate(self.parts.slices[self.parts.of(index)]):
                    described = [one.as_json() for one in part]
                    made.append(
                        Work(
                            step,
                            _part_label(number, part),
                            FUNCTIONS["read"],
                            {**arguments, "slices": described},
                            (),
                            {**given, "slices": described},
                        )
                    )
                return made
            assert before is not None
            for receipt in self.plan.receipts(done, before, index):
                state = {"state": _state(receipt)}
                made.append(Work(step, receipt.part, FUNCTIONS["read"], arguments, (receipt.fingerprint,), {**given, **state}))
            return made

        self._add(step, about, [before] if before else [], works)
        self._decides(step, component.name)

    def _rules(self, step: str, index: int, component: Component, block: list[StageSpec], block_name: str, measured: str) -> None:
        rules = [rule.model_dump(mode="json") for spec in block for rule in cast("Filter[Any]", spec.build()).rules()]
        arguments = {"component": component.name, "block": block_name, "rules": rules}
        for _, record in self.plan.records:
            if record.step == measured and record.stage in {spec.name for spec in block}:
                record.rules = [
                    rule for spec in block if spec.name == record.stage for rule in cast("Filter[Any]", spec.build()).rules()
                ]

        def works(done: Done) -> list[Work]:
            return [
                Work(
                    step,
                    receipt.part,
                    FUNCTIONS["rules"],
                    arguments,
                    (receipt.fingerprint,),
                    {"state": _state(receipt), "signals": receipt.files["signals"].path},
                )
                for receipt in self.plan.receipts(done, measured, index)
            ]

        self._add(step, f"decide by the rules of {block_name}: {', '.join(spec.name for spec in block)}", [measured], works)
        self._decides(step, component.name)

    def _row_local(self, name: str, spec: StageSpec) -> None:
        """A row-local stage, or a filter, that stands among the corpus-wide ones: a step of its own over all parts."""
        before = dict(self.latest)
        is_filter = _is_filter(spec)
        block = f"filters-{name}" if is_filter else None
        arguments: dict[str, Any] = {
            "stages": [] if is_filter else [self._identity(name, "", spec)],
            "filters": [self._identity(name, "", spec, measuring=True)] if is_filter else [],
        }
        if block:
            arguments["block"] = block
        given = {"stages": [] if is_filter else [_spec(spec)], "filters": [_spec(spec)] if is_filter else []}

        def works(done: Done) -> list[Work]:
            return [
                Work(
                    name,
                    f"{index:05d}",
                    FUNCTIONS["read"],
                    arguments,
                    (receipt.fingerprint,),
                    {**given, "state": _state(receipt)},
                )
                for index, receipt in enumerate(self.plan.everywhere(done, before))
            ]

        self._add(name, spec.name, list(before.values()), works)
        self._decides(name, *self.recipe.components)
        if block is not None:
            rules = cast("Filter[Any]", spec.build()).rules()
            self.plan.records[-1][1].rules = rules
            self._corpus_rules(f"{name}.rules", name, block, [rule.model_dump(mode="json") for rule in rules])

    def _corpus_rules(self, step: str, measured: str, block: str, rules: list[dict[str, Any]]) -> None:
        for component in self.recipe.components:
            self.plan.blocks[component][block] = measured

        def works(done: Done) -> list[Work]:
            return [
                Work(
                    step,
                    f"{index:05d}",
                    FUNCTIONS["rules"],
                    {"block": block, "rules": rules},
                    (receipt.fingerprint,),
                    {"state": _state(receipt), "signals": receipt.files["signals"].path},
                )
                for index, receipt in enumerate(done[measured])
            ]

        self._add(step, f"decide by the rules of {block}", [measured], works)
        self._decides(step, *self.recipe.components)

    # Duplicates ------------------------------------------------------------------------------------------------------

    def _exact(self, name: str, spec: StageSpec) -> None:
        options = cast(ExactDedupOptions, spec.options)
        self._record(name, spec, exact_dedup.VERSION)
        before = dict(self.latest)
        keys, groups = f"{name}.keys", f"{name}.groups"

        def key_works(done: Done) -> list[Work]:
            arguments = {"partitions": self.partitions, "version": exact_dedup.VERSION}
            return self._over_parts(done, before, keys, "exact_keys", arguments)

        def group_works(done: Done) -> list[Work]:
            receipts = done[keys]
            shared = {**self._layout(done, before), "keys": [_path(one, "keys") for one in receipts]}
            arguments = {"scope": options.scope, "keep": options.keep, **self._identity_of_parts()}
            return self._over_partitions(groups, "exact_groups", arguments, _prints(receipts), shared)

        self._add(keys, "key of every text", list(before.values()), key_works)
        self._add(groups, "group equal keys, choose who stays", [keys], group_works)
        self._remove(name, "exact_dedup", exact_dedup.RULE, None, before, groups, None)

    def _minhash(self, name: str, spec: StageSpec) -> None:
        options = cast(MinHashOptions, spec.options)
        self._record(name, spec, minhash.VERSION)
        before = dict(self.latest)
        verified = self._verified_edges(name, options, options.scope, options.keep, before)
        cluster = f"{name}.cluster"

        def cluster_works(done: Done) -> list[Work]:
            receipts = done[verified]
            shared = {**self._layout(done, before), "edges": [_path(one, "edges") for one in receipts]}
            arguments = {
                "chain": options.chain,
                "keep": options.keep,
                "pair_partitions": self.partitions,
                "version": minhash.VERSION,
                **self._identity_of_parts(),
            }
            return [Work(cluster, "all", FUNCTIONS["cluster"], arguments, _prints(receipts), shared)]

        self._add(cluster, "unite verified pairs, choose who stays", [verified], cluster_works)
        compared = None
        if options.chain == "closure":
            compared = self._compare(f"{name}.chain", f"{name}.sign", cluster, before, 0.0, compare=True)
        self._remove(name, "minhash", minhash.RULE, options.threshold, before, cluster, compared)

    def _verified_edges(self, name: str, options: BandOptions, scope: str, keep: str, before: dict[str, str]) -> str:
        """Steps sign, candidates, fetch and verify; the name of the last."""
        sign, candidates = f"{name}.sign", f"{name}.candidates"
        signing = {key: getattr(options, key) for key in ("words", "characters", "hash", "bands", "rows", "seed")}

        def sign_works(done: Done) -> list[Work]:
            arguments = {
                **signing,
                "partitions": self.partitions,
                "version": minhash.VERSION,
                "libraries": _versions(("datasketch",)),
            }
            return self._over_parts(done, before, sign, "sign", arguments)

        def candidate_works(done: Done) -> list[Work]:
            receipts = done[sign]
            shared = {**self._layout(done, before), "bands": [_path(one, "bands") for one in receipts]}
            arguments = {
                "scope": scope,
                "keep": keep,
                "max_bucket": options.max_bucket,
                "bucket_sample": options.bucket_sample,
                "pair_partitions": self.partitions,
                "version": minhash.VERSION,
                **self._identity_of_parts(),
            }
            return self._over_partitions(candidates, "candidates", arguments, _prints(receipts), shared)

        self._add(sign, "shingle sets and signatures", list(before.values()), sign_works)
        self._add(candidates, "pairs that share a band", [sign], candidate_works)
        return self._compare(name, sign, candidates, before, options.threshold, compare=False)

    def _compare(self, name: str, sign: str, asking: str, before: dict[str, str], threshold: float, compare: bool) -> str:
        """Steps fetch and verify for the pairs that `asking` proposes; the name of the last."""
        fetch, verify = f"{name}.fetch", f"{name}.verify"

        def fetch_works(done: Done) -> list[Work]:
            asked = [_path(one, "requests") for one in done[asking]]
            layout = self._layout(done, before)
            arguments = {"pair_partitions": self.partitions}
            return [
                Work(
                    fetch,
                    f"{index:05d}",
                    FUNCTIONS["fetch"],
                    {**arguments, "signed": receipt.fingerprint},
                    (receipt.fingerprint, *_prints(done[asking])),
                    {"sets": _path(receipt, "sets"), "requests": asked, "index": index, "base": layout["bases"][index]},
                )
                for index, receipt in enumerate(done[sign])
            ]

        def verify_works(done: Done) -> list[Work]:
            shared = {
                **self._layout(done, before),
                "pairs": [_path(one, "pairs") for one in done[asking]],
                "sent": [_path(one, "sent") for one in done[fetch]],
            }
            upstream = (*_prints(done[asking]), *_prints(done[fetch]))
            arguments = {"threshold": threshold, "compare": compare}
            return self._over_partitions(verify, "verify", arguments, upstream, shared)

        self._add(fetch, "bring shingle sets to their pairs", [sign, asking], fetch_works)
        self._add(verify, "exact Jaccard of every pair", [asking, fetch], verify_works)
        return verify

    def _remove(
        self,
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
            decisions = [_path(one, "decisions") for one in done[deciding]]
            jaccards = [_path(one, "compared") for one in later]
            upstream = (*_prints(done[deciding]), *_prints(later))
            arguments = {"stage": stage, "rule": rule, "threshold": threshold}
            return [
                Work(
                    step,
                    f"{index:05d}",
                    FUNCTIONS["remove"],
                    {**arguments, "of": receipt.fingerprint},
                    (receipt.fingerprint, *upstream),
                    {"state": _state(receipt), "decisions": decisions, "compared": jaccards, "index": index},
                )
                for index, receipt in enumerate(self.plan.everywhere(done, before))
            ]

        self._add(step, "remove duplicates", [*before.values(), deciding, *([compared] if compared else [])], works)
        self._decides(step, *self.recipe.components)

    # Split, tokenizer, shards ----------------------------------------------------------------------------------------

    def _split(self, name: str, spec: StageSpec) -> None:
        options = cast(SplitOptions, spec.options)
        self._record(name, spec, split.VERSION)
        before = dict(self.latest)
        verified = self._verified_edges(name, options, "corpus", "longest", before)
        group, assign = f"{name}.group", f"{name}.assign"

        def group_works(done: Done) -> list[Work]:
            receipts = done[verified]
            shared = {**self._layout(done, before), "edges": [_path(one, "edges") for one in receipts]}
            return [Work(group, "all", FUNCTIONS["group"], {"version": split.VERSION}, _prints(receipts), shared)]

        def assign_works(done: Done) -> list[Work]:
            groups = [_path(one, "groups") for one in done[group]]
            arguments = {"seed": self.recipe.seed, "shares": options.shares, "version": split.VERSION}
            return [
                Work(
                    assign,
                    f"{index:05d}",
                    FUNCTIONS["assign"],
                    {**arguments, "of": receipt.fingerprint},
                    (receipt.fingerprint, *_prints(done[group])),
                    {"state": _state(receipt), "groups": groups, "index": index},
                )
                for index, receipt in enumerate(self.plan.everywhere(done, before))
            ]

        def check(receipts: list[Receipt]) -> None:
            documents = Counter[str]()
            for receipt in receipts:
                documents.update(receipt.values["documents"])
            split.check(documents.elements(), options.shares)

        self._add(group, "unite verified pairs", [verified], group_works)
        self.plan.ends["split"] = self._add(
            assign, "train, validation, test by cluster", [*before.values(), group], assign_works, check
        )

    def _tokenizer(self, name: str, spec: StageSpec) -> None:
        options = cast(TokenizerOptions, spec.options)
        self._record(name, spec, tokenizer.VERSION, ("tokenizers",))
        splits = self.plan.ends["split"]
        sample, make = f"{name}.sample", f"{name}.make"
        identity = {
            "options": {**options.model_dump(mode="json"), **{key: spec.written.get(key) for key in spec.data}},
            "data": _data_digests(spec),
            "version": tokenizer.VERSION,
            "libraries": _versions(("tokenizers",)),
        }

        def sample_works(done: Done) -> list[Work]:
            if options.file is not None:
                return []
            training = sum(receipt.values["bytes"].get("train", 0) for receipt in done[splits])
            share = tokens.SAMPLE_MARGIN * options.sample_bytes / max(1, training)
            arguments = {
                "seed": self.recipe.seed,
                "share": min(1.0, share),
                "cap": options.document_cap_bytes,
                "version": tokenizer.VERSION,
            }
            return [
                Work(
                    sample,
                    receipt.part,
                    FUNCTIONS["sample"],
                    arguments,
                    (receipt.fingerprint,),
                    {"state": _state(receipt), "split": _path(receipt, "split")},
                )
                for receipt in done[splits]
            ]

        def make_works(done: Done) -> list[Work]:
            given = {"samples": [_path(one, "sample") for one in done[sample]], "options": options.model_dump(mode="json")}
            return [Work(make, "all", FUNCTIONS["make_tokenizer"], identity, _prints(done[sample]), given)]

        self._add(sample, "sample training documents", [splits], sample_works)
        self.plan.ends["tokenizer"] = self._add(make, "train or check the tokenizer", [sample], make_works)

    def _shards(self, name: str, spec: StageSpec) -> None:
        options = cast(ShardOptions, spec.options)
        self._record(name, spec, shards.VERSION, ("tokenizers", "tiktoken"))
        splits, make = self.plan.ends["split"], self.plan.ends["tokenizer"]
        encode, pack = f"{name}.encode", f"{name}.pack"
        bos = next(cast(TokenizerOptions, one.options).bos for one in self.recipe.stages if one.name == "tokenizer")
        libraries = _versions(("tokenizers", "tiktoken"))

        def counts(done: Done) -> list[dict[str, int]]:
            """Component → split → number of shards."""
            found = []
            for index in range(len(self.parts.names)):
                values = [receipt.values for receipt in self.plan.receipts(done, splits, index)]
                totals = [
                    {key: sum(value[kind].get(key, 0) for value in values) for key in ("train", "validation", "test")}
                    for kind in ("documents", "bytes")
                ]
                found.append(tokens.shard_counts(totals[0], totals[1], options.target_tokens))
            return found

        def encode_works(done: Done) -> list[Work]:
            shard_counts, bases = counts(done), self.record_bases(done)
            made = done[make][0]
            return [
                Work(
                    encode,
                    f"{index:05d}",
                    FUNCTIONS["encode"],
                    {
                        "seed": self.recipe.seed,
                        "shards": shard_counts[self.parts.component[index]],
                        "of": receipt.fingerprint,
                        "base": bases[index],
                        "version": shards.VERSION,
                        "libraries": libraries,
                    },
                    (receipt.fingerprint, made.fingerprint),
                    {
                        "state": _state(receipt),
                        "split": _path(receipt, "split"),
                        "tokenizer": _path(made, "tokenizer"),
                        "bos": bos,
                        "base": bases[index],
                    },
                )
                for index, receipt in enumerate(done[splits])
            ]

        def pack_works(done: Done) -> list[Work]:
            made = done[make][0].values
            works = []
            for index, component in enumerate(self.parts.names):
                shard_counts = counts(done)[index]
                starts = tokens.shard_starts(shard_counts)
                encoded = self.plan.receipts(done, encode, index)
                for which, number in ((which, number) for which, total in shard_counts.items() for number in range(total)):
                    arguments = {
                        "component": component,
                        "split": which,
                        "number": number,
                        "partition": starts[which] + number,
                        "vocabulary": made["vocabulary"],
                        "dtype": made["dtype"],
                        "log_rows": LOG_ROWS,
                        "version": shards.VERSION,
                    }
                    given = {"tokens": [_path(one, "tokens") for one in encoded], "chunks": self._chunks(done, index)}
                    works.append(
                        Work(pack, f"{component}-{which}-{number:05d}", FUNCTIONS["pack"], arguments, _prints(encoded), given)
                    )
            return works

        self._add(encode, "encode every document", [splits, make], encode_works)
        self.plan.ends["pack"] = self._add(pack, "write the shards", [encode], pack_works)

    # Logs ------------------------------------------------------------------------------------------------------------

    def _logs(self) -> None:
        splits, pack = self.plan.ends.get("split"), self.plan.ends.get("pack")
        latest = dict(self.latest)
        needs = [*(step for chain in self.plan.chains.values() for step in chain), *(end for end in (splits, pack) if end)]

        def works(done: Done) -> list[Work]:
            made = []
            bases = self.record_bases(done)
            for index, component in enumerate(self.parts.names):
                where = self.parts.of(index)
                chain = self.plan.chains[component]
                receipts = {step: self.plan.receipts(done, step, index) for step in chain}
                split_receipts = self.plan.receipts(done, splits, index) if splits else None
                packed = [one for one in done[pack] if one.values["component"] == component] if pack else []
                described = []
                for number in range(where.stop - where.start):
                    mine = {step: receipts[step][number] for step in chain}
                    described.append(
                        {
                            "base": bases[where.start + number],
                            "records": mine[chain[0]].files["catalogue"].rows,
                            "catalogue": _path(mine[chain[0]], "catalogue"),
                            "removals": [_path(one, "removals") for one in mine.values()],
                            "edits": [_path(one, "edits") for one in mine.values() if "edits" in one.files],
                            "signals": {
                                block: _path(mine[step], "signals") for block, step in self.plan.blocks[component].items()
                            },
                            "state": _state(mine[latest[component]]),
                            "split": _path(split_receipts[number], "split") if split_receipts else None,
                        }
                    )
                upstream = [one.fingerprint for step in chain for one in receipts[step]]
                upstream += [*_prints(split_receipts or []), *_prints(packed)]
                for chunk in range(self._chunks(done, index)):
                    low, high = chunk * LOG_ROWS, (chunk + 1) * LOG_ROWS
                    parts = [one for one in described if one["base"] < high and one["base"] + one["records"] > low]
                    given = {"parts": parts, "placed": [_path(one, "placed") for one in packed]}
                    arguments = {"component": component, "chunk": chunk, "log_rows": LOG_ROWS}
                    made.append(Work("logs", f"{component}-{chunk:05d}", FUNCTIONS["logs"], arguments, tuple(upstream), given))
            return made

        self.plan.ends["logs"] = self._add("logs", "removals, edits, signals, documents in id order", needs, works)

    # What steps share ------------------------------------------------------------------------------------------------

    def record_bases(self, done: Done) -> list[int]:
        """For every part, the number of its first record within its component."""
        bases = []
        for index, component in enumerate(self.parts.names):
            total = 0
            for receipt in self.plan.receipts(done, self.plan.chains[component][0], index):
                bases.append(total)
                total += receipt.files["catalogue"].rows
        return bases

    def _chunks(self, done: Done, index: int) -> int:
        first = self.plan.chains[self.parts.names[index]][0]
        records = sum(receipt.files["catalogue"].rows for receipt in self.plan.receipts(done, first, index))
        return max(1, -(-records // LOG_ROWS))

    def _decides(self, step: str, *components: str) -> None:
        for component in components:
            self.latest[component] = step
            self.plan.chains[component].append(step)

    def _layout(self, done: Done, before: dict[str, str]) -> dict[str, Any]:
        """Numbers of documents over the corpus: where each part starts, and whose it is."""
        bases, total = [], 0
        for receipt in self.plan.everywhere(done, before):
            assert receipt.state is not None
            bases.append(total)
            total += receipt.state.rows
        return {"bases": bases, "components": list(self.parts.component)}

    def _identity_of_parts(self) -> dict[str, Any]:
        """What decides among documents of several components, beside the parts themselves."""
        return {"priorities": self.priorities, "components": list(self.parts.names)}

    def _over_parts(self, done: Done, before: dict[str, str], step: str, function: str, arguments: dict[str, Any]) -> list[Work]:
        return [
            Work(step, f"{index:05d}", FUNCTIONS[function], arguments, (receipt.fingerprint,), {"state": _state(receipt)})
            for index, receipt in enumerate(self.plan.everywhere(done, before))
        ]

    def _over_partitions(
        self, step: str, function: str, arguments: dict[str, Any], upstream: tuple[str, ...], shared: dict[str, Any]
    ) -> list[Work]:
        return [
            Work(
                step,
                f"{index:05d}",
                FUNCTIONS[function],
                {**arguments, "partition": index, "partitions": self.partitions},
                upstream,
                shared,
            )
            for index in range(self.partitions)
        ]

    def _identity(self, step: str, component: str, spec: StageSpec, measuring: bool = False) -> dict[str, Any]:
        """What a stage's output depends on, beside its input. A filter's thresholds are left out where it only measures."""
        record = self._record_of(step, spec)
        self.plan.records.append((component, record))
        self.plan.specs[f"{step} {spec.name}"] = spec
        described = record.model_dump(mode="json", exclude={"rules", "step"})
        if measuring:
            implementation = cast("type[Filter[Any]]", spec.implementation)
            described["options"] = {key: described["options"][key] for key in sorted(implementation.measuring_options)}
        return described

    def _record_of(self, step: str, spec: StageSpec) -> StageRecord:
        implementation = spec.implementation
        assert implementation is not None
        options = {**spec.options.model_dump(mode="json"), **{key: spec.written[key] for key in spec.data if key in spec.written}}
        extra = {}
        if implementation.identity not in (Stage.identity, Filter.identity):
            built = spec.build()
            extra = built.identity()
            if isinstance(built, Stage):
                built.close()
        return StageRecord(
            step=step,
            stage=spec.name,
            version=implementation.version,
            options=options,
            libraries=_versions(implementation.libraries),
            data={**_data_digests(spec), **extra},
        )

    def _record(self, step: str, spec: StageSpec, version: int, libraries: tuple[str, ...] = ()) -> None:
        options = {**spec.options.model_dump(mode="json"), **{key: spec.written[key] for key in spec.data if key in spec.written}}
        record = StageRecord(
            step=step, stage=spec.name, version=version, options=options, libraries=_versions(libraries), data=_data_digests(spec)
        )
        self.plan.records.append(("", record))


FUNCTIONS = {
    "read": "pipeline.row_local:read_and_decide",
    "rules": "pipeline.row_local:apply_rules",
    "exact_keys": "pipeline.duplicates:exact_keys",
    "exact_groups": "pipeline.duplicates:exact_groups",
    "remove": "pipeline.duplicates:remove",
    "sign": "pipeline.near_duplicates:sign",
    "candidates": "pipeline.near_duplicates:candidates",
    "fetch": "pipeline.near_duplicates:fetch",
    "verify": "pipeline.near_duplicates:verify",
    "cluster": "pipeline.near_duplicates:cluster",
    "group": "pipeline.near_duplicates:group",
    "assign": "pipeline.splitting:assign_splits",
    "sample": "pipeline.tokens:sample",
    "make_tokenizer": "pipeline.tokens:make_tokenizer",
    "encode": "pipeline.tokens:encode",
    "pack": "pipeline.tokens:pack",
    "logs": "pipeline.corpus_log:write_logs",
}


def _is_filter(spec: StageSpec) -> bool:
    implementation = spec.implementation
    return implementation is not None and issubclass(implementation, Filter)


def _spec(spec: StageSpec) -> dict[str, Any]:
    return {"name": spec.name, "options": spec.options.model_dump(mode="json")}


def _state(receipt: Receipt) -> dict[str, Any]:
    assert receipt.state is not None, f"{receipt.step} has no documents"
    return receipt.state.model_dump(mode="json")


def _path(receipt: Receipt, role: str) -> str | None:
    return receipt.files[role].path if role in receipt.files else None


def _prints(receipts: list[Receipt]) -> tuple[str, ...]:
    return tuple(receipt.fingerprint for receipt in receipts)


def _part_label(number: int, part: tuple[Slice, ...]) -> str:
    more = f" and {len(part) - 1} more" if len(part) > 1 else ""
    groups = f" [{part[0].row_groups[0]}:{part[0].row_groups[1]}]" if part[0].row_groups else ""
    return f"{number:05d} {part[0].path}{groups}{more}"


def _first_of(records: list[tuple[str, StageRecord]], component: str) -> int:
    return next((index for index, (name, _) in enumerate(records) if name == component), len(records))


def _versions(libraries: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _data_digests(spec: StageSpec) -> dict[str, str]:
    return {option: data_digest(path) for option, path in sorted(spec.data.items())}


def data_digest(path: str) -> str:
    """SHA-256 of a file, or of the sorted names and SHA-256s of a folder's files."""
    folder = Folder(path)
    if folder.fs.isfile(folder.root):
        with folder.fs.open(folder.root, "rb") as file:
            return sha256_of(file)[0]
    listing = hashlib.sha256()
    for name in folder.names():
        with folder.open(name) as file:
            listing.update(f"{sha256_of(file)[0]}  {name}\n".encode())
    return listing.hexdigest()
