"""Do the receipts of a corpus, the commit records of its parts, say what the manifest says?

They may have been deleted with the work files. Those that are there add up to the manifest's counts, and tell the digests of the
files that the parts wrote and of the input that they read: who edits a log has to edit a receipt and the list of receipts too.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from manifests.manifest import TAKEDOWN, Content, Manifest, ManifestError, TokenizerRecord, receipt_list
from manifests.storage import Folder

READ = "read"
"""The stage whose parts tell of input."""


def check_receipts(corpus: Folder, manifest: Manifest) -> Iterator[str]:
    """Receipts that are missing, changed, or disagree with themselves or the manifest."""
    content = manifest.content
    if content.dropped:
        return  # they tell of the corpus that the components were dropped from
    try:
        found_list = receipt_list(corpus, manifest)
        listed = [str(one["path"]) for one in found_list or []]
    except (ManifestError, ValueError, KeyError, TypeError) as error:
        yield str(error)
        return
    there = set(corpus.names("receipts"))
    if found_list is None:
        if there:
            yield "receipts: the list of receipts is missing, and some receipts are there"
        return
    if missing := [path for path in listed if path not in there]:
        yield f"{missing[0]}: missing, and {len(listed) - len(missing)} other receipts are there"
        return
    told = _Told()
    for one in found_list:
        path = str(one["path"])
        data = corpus.read(path)
        sha256 = hashlib.sha256(data).hexdigest()
        if one.get("sha256", sha256) != sha256:  # lists of an earlier version have none
            yield f"{path}: its SHA-256 is {sha256}, the list of receipts says {one['sha256']}"
        try:
            receipt = json.loads(data)
            yield from _check_part(path, receipt)
            told.add(path, receipt)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{path}: not a receipt"
            return
    yield from _check_counts(content, told.counts)
    yield from _check_outputs(content, told.written)
    yield from _check_inputs(content, told)
    yield from _check_tokenizer(content, told.tokenizer)
    yield from _check_pairs(content, told)


class _Told:
    """What the receipts say, summed up as they are read."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.written: dict[str, tuple[str, str]] = {}
        """Path in the corpus → SHA-256, and the receipt that says so."""
        self.inputs: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
        self.skipped: dict[str, Counter[str]] = defaultdict(Counter)
        self.tokenizer: tuple[str, dict[str, Any]] | None = None
        self.pairs: dict[str, Counter[str]] = defaultdict(Counter)
        """Step → what its parts counted of pairs."""
        self.most_alike = 0.0

    def add(self, path: str, receipt: dict[str, Any]) -> None:
        step, values, files = str(receipt["step"]), receipt["values"], receipt["files"]
        for count in receipt["counts"]:
            self.counts[step, count["stage"]].update(_flow(count))
        for log in values.get("logs", ()):
            self.written[log["path"]] = files[log["role"]]["sha256"], path
        if "shard" in files and "path" in values:
            self.written[values["path"]] = files["shard"]["sha256"], path
            self.written[values["path"].removesuffix(".bin") + ".parquet"] = files["index"]["sha256"], path
        if "tokenizer" in files:
            self.written["tokenizer.json"] = files["tokenizer"]["sha256"], path
            self.tokenizer = path, {**values, "sha256": files["tokenizer"]["sha256"]}
        if any(count["stage"] == READ for count in receipt["counts"]):
            component = step.partition(".")[0]
            self.inputs[component].update((one["path"], (one["bytes"], one["sha256"])) for one in receipt["inputs"])
            self.skipped[component].update(receipt["skipped"])
        pairs = {name: values[name] for name in ("skipped_pairs", "pairs", "compared", "near", "removed") if name in values}
        if "edges" in files:
            pairs["verified"] = files["edges"]["rows"]
        if pairs:
            self.pairs[step].update({name: int(number) for name, number in pairs.items()})
        if "compared" in values:
            self.most_alike = max(self.most_alike, float(values.get("jaccard", 0.0)))


def _flow(count: dict[str, Any]) -> dict[str, int]:
    """What is added up of a part's counts, named."""
    return {
        "in": count["documents_in"],
        "kept": count["documents_kept"],
        "bytes in": count["bytes_in"],
        "bytes kept": count["bytes_kept"],
        **count["removed"],
        **{f"edited {rule}": number for rule, number in count["edited"].items()},
    }


def _check_part(path: str, receipt: dict[str, Any]) -> Iterator[str]:
    """One part conserves at each of its stages, and wrote a row for every document that it removed."""
    part = f"{path} (part {receipt['part']})"
    gone = 0
    for count in receipt["counts"]:
        removed = sum(count["removed"].values())
        gone += removed
        if count["documents_in"] != count["documents_kept"] + removed:
            told = f"{count['documents_in']} in is not {count['documents_kept']} kept + {removed} removed"
            yield f"{part}: stage {count['stage']}: {told}"
    rows = receipt["files"].get("removals", {}).get("rows", gone)
    if receipt["counts"] and rows != gone:  # a part without counts, such as one that writes logs, removes nothing itself
        yield f"{part}: {rows} removal rows for {gone} documents removed"


def _check_counts(content: Content, summed: dict[tuple[str, str], Counter[str]]) -> Iterator[str]:
    stated: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for count in (one for one in content.counts if one.stage != TAKEDOWN):  # it came after the run
        stated[count.step, count.stage].update(_flow(count.model_dump()))
    for key in sorted(summed.keys() | stated.keys()):
        if +summed[key] != +stated[key]:
            found, said = dict(+summed[key]), dict(+stated[key])
            yield f"stage {key[1]} (step {key[0]}): the receipts add up to {found}, the manifest says {said}"


def _check_outputs(content: Content, written: dict[str, tuple[str, str]]) -> Iterator[str]:
    """The files of the corpus are those that the parts wrote. After a takedown some are others, under other names."""
    listed = {log.path: log.sha256 for log in content.logs}
    for shard in content.shards:
        listed |= {shard.path: shard.sha256, shard.index: shard.index_sha256}
    if content.tokenizer is not None:
        listed[content.tokenizer.file] = content.tokenizer.sha256
    cut = any(record.stage == TAKEDOWN for record in content.stages)
    for path in sorted(listed.keys() | written.keys()):
        said, receipt = written.get(path, (None, ""))
        if path not in listed:
            if not cut:
                yield f"{path}: was written by {receipt}, and the manifest does not list it"
        elif said is None:
            if not cut:
                yield f"{path}: no receipt says that a part wrote it"
        elif said != listed[path]:
            yield f"{path}: its SHA-256 is {listed[path]} by the manifest, and {said} by {receipt}, the part that wrote it"


def _check_inputs(content: Content, told: _Told) -> Iterator[str]:
    for name, component in content.components.items():
        if name not in told.inputs and name not in told.skipped:
            continue
        mine, theirs = {one.path: (one.bytes, one.sha256) for one in component.inputs}, told.inputs[name]
        for path in sorted(mine.keys() | theirs.keys()):
            if mine.get(path) != theirs.get(path):
                said, found = mine.get(path), theirs.get(path)
                yield f"component {name}: its input {path} is {said} by the manifest, {found} by the receipts"
        if +told.skipped[name] != +Counter(component.skipped_records):
            counted = f"skipped records are {dict(+told.skipped[name])} by the receipts"
            yield f"component {name}: {counted}, the manifest says {component.skipped_records}"


def _check_tokenizer(content: Content, told: tuple[str, dict[str, Any]] | None) -> Iterator[str]:
    if content.tokenizer is None or told is None:
        return
    path, values = told
    try:
        wanted = TokenizerRecord.model_validate(values).model_dump()
    except ValidationError:
        yield f"{path}: says nothing of a tokenizer that could be"
        return
    for name, said in content.tokenizer.model_dump().items():
        if said != wanted[name] and name != "sha256":
            yield f"tokenizer: {name} is not what {path} says, the part that made it"


def _check_pairs(content: Content, told: _Told) -> Iterator[str]:
    """What was counted while documents were compared with each other."""
    for row in content.deduplication:
        step = str(row.get("step"))
        parts = {
            "skipped_pairs": (f"{step}.candidates", "skipped_pairs"),
            "candidate_pairs": (f"{step}.verify", "pairs"),
            "verified_pairs": (f"{step}.verify", "verified"),
        }
        for name, (of, key) in parts.items():
            if name in row and of in told.pairs and told.pairs[of][key] != row[name]:
                yield f"deduplication, {step}: {name} is {told.pairs[of][key]} by the receipts, the manifest says {row[name]}"
    closest = content.split.closest if content.split is not None else None
    steps = [step for step, counted in told.pairs.items() if "compared" in counted]
    if closest is None or len(steps) != 1:
        return
    found = told.pairs[steps[0]]["compared"], told.pairs[steps[0]]["near"], told.most_alike
    said = closest.documents, closest.pairs_at_threshold, closest.jaccard
    if found != said:
        yield f"split, closest: documents, pairs_at_threshold and jaccard are {found} by the receipts, the manifest says {said}"
