"""Steps from split documents to shards: train the tokenizer on a sample, encode, pack."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import cast

from manifests.manifest import SPLITS
from pipeline import sample_budget, tokens
from pipeline.provenance import data_digests, versions
from pipeline.receipts import Receipts
from pipeline.recipe import StageSpec
from pipeline.relay_steps import Relay, Shape
from pipeline.resources import Resources
from pipeline.steps import EXPECTED_DOCUMENT, Done, Layout, once, path_of, paths, prints, state_of, work
from pipeline.work import Work
from stages import shards, tokenizer
from stages.shards import ShardOptions
from stages.tokenizer import PARITY_BYTES, TokenizerOptions

MEMORY, MEMORY_OF_DISTINCT = 512 << 20, 150
"""Bytes that making a tokenizer takes at most, and for each byte of a distinct word of its sample (docs/tokens.md)."""
LIBRARIES = ("tokenizers", "tiktoken")
"""What encodes; see stages.tiktoken_engine."""


def add_tokenizer(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(TokenizerOptions, spec.options)
    layout.record(name, spec, tokenizer.VERSION, LIBRARIES)
    splits = layout.plan.ends["split"]
    sample, make = f"{name}.sample", f"{name}.make"
    identity = {
        "options": {**options.model_dump(mode="json"), **{key: spec.written.get(key) for key in spec.data}},
        "data": data_digests(spec.data),
        "version": tokenizer.VERSION,
        "libraries": versions(LIBRARIES),
    }

    def counted(done: Done) -> dict[str, sample_budget.Counted]:
        return {
            name: sample_budget.Counted.of(one.values["training"] for one in layout.plan.receipts(done, splits, index))
            for index, name in enumerate(layout.parts.names)
        }

    def sample_works(done: Done) -> list[Work]:
        training = counted(done)
        wanted = options.sample_bytes if options.file is None else 0
        parity = PARITY_BYTES if options.engine == "auto" else 0
        cap = options.document_cap_bytes
        bounds = sample_budget.bounds(max(wanted, parity), sample_budget.shares(options.mixture, training), training, cap)
        arguments = {"seed": layout.recipe.seed, "cap": cap, "version": tokenizer.VERSION}
        return [
            work(
                sample,
                receipt.part,
                "sample",
                {**arguments, "bound": bounds[layout.parts.names[layout.parts.component[index]]]},
                (receipt.fingerprint,),
                {"state": state_of(receipt), "split": path_of(receipt, "split")},
            )
            for index, receipt in enumerate(done[splits])
        ]

    def make_works(done: Done) -> list[Work]:
        samples = {
            name: paths(layout.plan.receipts(done, sample, index), "sample") for index, name in enumerate(layout.parts.names)
        }
        given = {"samples": samples, "options": options.model_dump(mode="json"), "paths": spec.data}
        arguments = {**identity, "shares": sample_budget.shares(options.mixture, counted(done))}
        return [work(make, "all", "make_tokenizer", arguments, (prints(done[sample]),), given)]

    layout.add(sample, "sample training documents", [splits], sample_works)
    memory = MEMORY + MEMORY_OF_DISTINCT * (min(options.distinct_bytes, options.sample_bytes) if options.file is None else 0)
    layout.plan.ends["tokenizer"] = layout.add(
        make, "train or check the tokenizer", [sample], make_works, resources=Resources(memory=memory)
    )


def add_shards(layout: Layout, name: str, spec: StageSpec) -> None:
    options = cast(ShardOptions, spec.options)
    layout.record(name, spec, shards.VERSION, (*LIBRARIES, "pyarrow"))
    splits, make = layout.plan.ends["split"], layout.plan.ends["tokenizer"]
    encode, pack = f"{name}.encode", f"{name}.pack"
    bos = next(cast(TokenizerOptions, one.options).bos for one in layout.recipe.stages if one.name == "tokenizer")
    libraries = versions(LIBRARIES)

    def counted(done: Done) -> list[dict[str, int]]:
        """Component → split → number of shards."""
        found = []
        for index in range(len(layout.parts.names)):
            values = [receipt.values for receipt in layout.plan.receipts(done, splits, index)]
            totals = [
                {key: sum(value[kind].get(key, 0) for value in values) for key in ("train", "validation", "test")}
                for kind in ("documents", "bytes")
            ]
            found.append(tokens.shard_counts(totals[0], totals[1], options.target_tokens))
        return found

    counts = once(splits, counted)

    def lanes(done: Done) -> list[int]:
        """Shards of each component."""
        return [sum(one.values()) for one in counts(done)]

    def encoded_shapes(done: Done) -> list[Shape]:
        return [Shape(layout.parts.component.count(index), total) for index, total in enumerate(lanes(done))]

    def encoded_receipts(done: Done) -> list[Receipts]:
        return [layout.plan.receipts(done, encode, index) for index in range(len(layout.parts.names))]

    def encode_works(done: Done) -> list[Work]:
        shard_counts, bases = counts(done), layout.record_bases(done)
        widths = [encoded.width(done, index) for index in range(len(layout.parts.names))]
        made = done[make][0]
        return [
            work(
                encode,
                f"{index:05d}",
                "encode",
                {
                    "seed": layout.recipe.seed,
                    "shards": shard_counts[layout.parts.component[index]],
                    "of": receipt.fingerprint,
                    "base": bases[index],
                    "version": shards.VERSION,
                    "libraries": libraries,
                },
                (receipt.fingerprint, made.fingerprint),
                {
                    "state": state_of(receipt),
                    "split": path_of(receipt, "split"),
                    "tokenizer": path_of(made, "tokenizer"),
                    "bos": bos,
                    "engine": made.values["engine"],
                    "width": widths[layout.parts.component[index]],
                },
            )
            for index, receipt in enumerate(done[splits])
        ]

    def pack_works(done: Done) -> list[Work]:
        made = done[make][0].values
        works = []
        for index, (component, shard_counts) in enumerate(zip(layout.parts.names, counts(done), strict=True)):
            starts = tokens.shard_starts(shard_counts)
            receipts, given = layout.plan.receipts(done, encode, index), {"tokens": encoded.files(done, index)}
            given |= {"chunks": layout.chunks(done, index), "width": placed.width(done, index)}
            upstream = prints(receipts)
            for which, number in ((which, number) for which, total in shard_counts.items() for number in range(total)):
                arguments = {
                    "component": component,
                    "split": which,
                    "number": number,
                    "partition": starts[which] + number,
                    "vocabulary": made["vocabulary"],
                    "dtype": made["dtype"],
                    "log_rows": layout.log_rows,
                    "version": shards.VERSION,
                    "libraries": versions(("pyarrow",)),
                }
                works.append(work(pack, f"{component}-{which}-{number:05d}", "pack", arguments, (upstream,), given))
        return works

    placed_shapes = once(
        splits, lambda done: [Shape(total, layout.chunks(done, index)) for index, total in enumerate(lanes(done))]
    )

    def placed_receipts(done: Done) -> list[Receipts]:
        """As `pack_works` orders them: component by component."""
        edges = [0, *accumulate(lanes(done))]
        return [done[pack][first:last] for first, last in pairwise(edges)]

    shards_at_most = layout.expected_bytes // tokens.BYTES_PER_TOKEN // options.target_tokens + len(SPLITS)
    chunks_at_most = layout.expected_bytes // EXPECTED_DOCUMENT // layout.log_rows + 1
    layout.add(encode, "encode every document", [splits, make], encode_works)
    expected = Shape(len(layout.parts), shards_at_most)
    encoded = Relay(layout, encode, "tokens", expected, encoded_shapes, encoded_receipts)
    layout.plan.ends["pack"] = layout.add(pack, "write the shards", [encode, *encoded.steps], pack_works)
    placed = Relay(layout, pack, "placed", Shape(shards_at_most, chunks_at_most), placed_shapes, placed_receipts)
    layout.placed = placed
