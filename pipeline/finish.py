"""Finishing a corpus: put shards and logs in their places, and write the manifest last."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections import Counter
from importlib import metadata
from typing import Any

from manifests.manifest import (
    MANIFEST,
    RECIPE,
    ClosestPair,
    ComponentRecord,
    Content,
    InputFile,
    LogFile,
    Manifest,
    ManifestError,
    ReferenceRecord,
    Shard,
    SplitRecord,
    StageCount,
    StageRecord,
    TokenizerRecord,
    TokenUsage,
    digest,
    listed_files,
)
from manifests.storage import Folder, sync_directory
from pipeline.lock import Held
from pipeline.receipts import FileEntry, Receipts, receipt_name
from pipeline.steps import Done, Plan
from stages.line_dedup import UNITS
from stages.stage import Filter, Stage

RECEIPT_LIST = "receipts/list.jsonl"
"""The receipts of the parts that this corpus is made of, among others that earlier runs left."""
SOFTWARE = (
    "corpusmill",
    "ray",
    "pyarrow",
    "numpy",
    "numba",
    "trafilatura",
    "ftfy",
    "fasttext-modern",
    "datasketch",
    "tokenizers",
)


def finish(corpus: Folder, plan: Plan, done: Done, run: dict[str, Any], held: Held) -> Manifest:
    """Links shards, logs, tokenizer and recipe into place and writes manifest.json; files of an earlier corpus that are no
    longer part of it are deleted. While this happens there is no manifest, so that none ever describes a half-changed corpus.
    Locked when another run has taken the corpus over: of two that finish, one writes the manifest."""
    places: list[tuple[str, FileEntry]] = []
    shards = _shards(plan, done, places)
    logs = _logs(plan, done, places)
    tokenizer = _tokenizer(plan, done, places)
    summaries = _summaries(plan, done)
    content = Content(
        name=plan.recipe.corpus,
        recipe_sha256=plan.recipe.digest,
        seed=plan.recipe.seed,
        components={name: _component(plan, done, name, shards) for name in plan.recipe.components},
        stages=[record for component, record in plan.records if not component],
        counts=_counts(plan, done),
        tokenizer=tokenizer,
        split=_split(plan, done),
        references={
            name: ReferenceRecord(corpus=plan.recipe.written_references[name], digest=one.digest, documents=one.documents)
            for name, one in plan.references.items()
        },
        decontamination=[one for one in summaries if one["stage"] == "decontamination"],
        summaries=[one for one in summaries if one["stage"] != "decontamination"],
        deduplication=_deduplication(plan, done),
        token_usage=_token_usage(plan, done),
        shards=shards,
        logs=logs,
    )
    before = _listed_before(corpus)
    held.confirm()
    corpus.delete(MANIFEST)
    wanted = {name for name, _ in places}
    for name in (*corpus.names("tokens"), *corpus.names("logs")):
        if name not in wanted:
            corpus.delete(name)
    for name, entry in places:
        held.check()
        if before.get(name) != entry.sha256 or corpus.local:
            place(corpus, entry.path, name)
    if corpus.local:
        for directory in {os.path.dirname(corpus.path(name)) for name in wanted}:
            sync_directory(directory)
    recipe = corpus.write(RECIPE, plan.recipe.text)
    with corpus.writer(RECEIPT_LIST) as listing:
        for step in plan.steps:
            for one in done[step.name]:
                observed = {key: value for key, value in one.run.items() if key != "stages"}
                about = {"path": receipt_name(one.step, one.fingerprint), "part": one.part, "sha256": one.sha256, **observed}
                listing.write(json.dumps(about, ensure_ascii=False).encode() + b"\n")
    number = sum(len(done[step.name]) for step in plan.steps)
    about_receipts = {"path": RECEIPT_LIST, "number": number, "sha256": listing.written.sha256}
    about_software = {"software": software(), "python": platform.python_version()}
    files = {"recipe": {"path": RECIPE, "sha256": recipe.sha256}, "receipts": about_receipts}
    manifest = Manifest.seal(content, {**run, **about_software, "plan": plan_digest(plan, done), **files})
    held.confirm()
    # On a store, a manifest that is there now is of another run: one that finishes though this one has taken the corpus over, or
    # the other way round. The lock says which.
    if not manifest.save(corpus, new=not corpus.local):
        held.confirm()
        manifest.save(corpus)
    return manifest


def plan_digest(plan: Plan, done: Done) -> str:
    """One digest of all parts of all steps, by which a later run knows that it has nothing to do."""
    return digest([[step.name, done[step.name].fingerprints] for step in plan.steps])


def _listed_before(corpus: Folder) -> dict[str, str]:
    """Path → SHA-256 of the files that the corpus has had until now, where they are still as long as they were."""
    try:
        manifest = Manifest.load(corpus)
    except ManifestError:
        return {}
    return {
        path: sha256
        for path, sha256, size in listed_files(manifest.content)
        if size is not None and corpus.exists(path) and corpus.size(path) == size
    }


def place(corpus: Folder, source: str, target: str) -> None:
    """`target` becomes the same file as `source`: a hard link locally, a copy made by the store elsewhere."""
    if not corpus.local:
        corpus.fs.copy(corpus.path(source), corpus.path(target))
        return
    path, temporary = corpus.path(target), corpus.path(f"{target}.linking")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        os.link(corpus.path(source), temporary)
        os.replace(temporary, path)
        # Replacing a link by another link to the same file does nothing, and leaves the temporary name.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    except OSError:
        with corpus.open(source) as file, corpus.writer(target) as out:
            while chunk := file.read(1 << 20):
                out.write(chunk)


def software() -> dict[str, str]:
    found = {}
    for name in SOFTWARE:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _shards(plan: Plan, done: Done, places: list[tuple[str, FileEntry]]) -> list[Shard]:
    shards = []
    for receipt in done[plan.ends["pack"]] if "pack" in plan.ends else []:
        data, index = receipt.files["shard"], receipt.files["index"]
        path = receipt.values["path"]
        index_path = path.removesuffix(".bin") + ".parquet"
        places += [(path, data), (index_path, index)]
        shards.append(Shard(**receipt.values, index=index_path, sha256=data.sha256, index_sha256=index.sha256))
    return shards


def _logs(plan: Plan, done: Done, places: list[tuple[str, FileEntry]]) -> list[LogFile]:
    logs = []
    for receipt in done[plan.ends["logs"]]:
        for one in receipt.values["logs"]:
            entry = receipt.files[one["role"]]
            places.append((one["path"], entry))
            logs.append(LogFile(kind=one["kind"], path=one["path"], rows=entry.rows, bytes=entry.bytes, sha256=entry.sha256))
    return sorted(logs, key=lambda log: log.path)


def _tokenizer(plan: Plan, done: Done, places: list[tuple[str, FileEntry]]) -> TokenizerRecord | None:
    if "tokenizer" not in plan.ends:
        return None
    receipt = done[plan.ends["tokenizer"]][0]
    places.append(("tokenizer.json", receipt.files["tokenizer"]))
    return TokenizerRecord(sha256=receipt.files["tokenizer"].sha256, **receipt.values)


def _token_usage(plan: Plan, done: Done) -> list[TokenUsage]:
    """Sums over parts, by component and language."""
    if "pack" not in plan.ends:
        return []
    step = plan.ends["pack"].removesuffix("pack") + "encode"
    found = []
    for index, component in enumerate(plan.parts.names):
        sums: dict[tuple[str, bool], Counter[str]] = {}
        for receipt in plan.receipts(done, step, index):
            for row in receipt.values["usage"]:
                counts = sums.setdefault((row["name"], row["unspaced"]), Counter())
                counts.update({name: row[name] for name in ("documents", "bytes", "words", "tokens")})
        for (language, unspaced), counts in sorted(sums.items()):
            found.append(TokenUsage(component=component, language=language, unspaced=unspaced, **counts))
    return found


def _component(plan: Plan, done: Done, name: str, shards: list[Shard]) -> ComponentRecord:
    component = plan.recipe.components[name]
    index = plan.parts.names.index(name)
    chain = plan.chains[name]
    first = plan.receipts(done, chain[0], index)
    last = plan.receipts(done, chain[-1], index)
    tokens: Counter[str] = Counter()
    for shard in shards:
        if shard.component == name:
            tokens[shard.split] += shard.tokens
    skipped: Counter[str] = Counter()
    for receipt in first:
        skipped.update(receipt.skipped)
    return ComponentRecord(
        source=component.written_source,
        format=component.format,
        licence=component.licence,
        snapshot=component.snapshot,
        priority=component.priority,
        inputs=_inputs(first),
        stages=[record for owner, record in plan.records if owner == name],
        documents_in=sum(receipt.files["catalogue"].rows for receipt in first),
        documents_kept=sum(receipt.state.documents_kept for receipt in last if receipt.state),
        skipped_records=dict(sorted(skipped.items())),
        unread_files=plan.parts.unread[index],
        tokens=dict(sorted(tokens.items())),
    )


def _inputs(receipts: Receipts) -> list[InputFile]:
    """Every input file once."""
    return sorted((one for receipt in receipts for one in receipt.inputs), key=lambda one: one.path)


def _counts(plan: Plan, done: Done) -> list[StageCount]:
    """One row a component and stage, in running order."""
    counts = []
    for index, name in enumerate(plan.parts.names):
        for step in plan.chains[name]:
            total: dict[str, StageCount] = {}
            for receipt in plan.receipts(done, step, index):
                for one in receipt.counts:
                    row = total.setdefault(
                        one.stage,
                        StageCount(
                            component=name, step=step, stage=one.stage, documents_in=0, documents_kept=0, bytes_in=0, bytes_kept=0
                        ),
                    )
                    for key in ("documents_in", "documents_kept", "bytes_in", "bytes_kept"):
                        setattr(row, key, getattr(row, key) + getattr(one, key))
                    for kind in ("removed", "edited"):
                        mine = getattr(row, kind)
                        for rule, number in getattr(one, kind).items():
                            mine[rule] = mine.get(rule, 0) + number
            for row in total.values():
                row.removed, row.edited = (dict(sorted(getattr(row, kind).items())) for kind in ("removed", "edited"))
                counts.append(row)
    return counts


def _split(plan: Plan, done: Done) -> SplitRecord | None:
    if "split" not in plan.ends:
        return None
    options = next(record.options for _, record in plan.records if record.stage == "split")
    documents: Counter[str] = Counter()
    for receipt in done[plan.ends["split"]]:
        documents.update(receipt.values["documents"])
    shares = {name: options[name] for name in ("validation", "test")}
    return SplitRecord(
        threshold=options["threshold"],
        shares=shares,
        documents=dict(sorted(documents.items())),
        options=options,
        closest=_closest(plan, done),
    )


def _closest(plan: Plan, done: Done) -> ClosestPair | None:
    """The most alike of all parts; of several the first by id."""
    if "closest" not in plan.ends:
        return None
    step = plan.ends["closest"]
    values = [one.values for one in done[step]]
    found = [(-one["jaccard"], one["held_out"], one["other"]) for one in values if "jaccard" in one]
    jaccard, held_out, other = min(found, default=(0.0, None, None))
    return ClosestPair(
        held_out_documents=done[f"{step.removesuffix('closest')}pick"][0].files["sample"].rows,
        documents=sum(one["compared"] for one in values),
        jaccard=-jaccard,
        held_out=held_out,
        other=other,
        pairs_at_threshold=sum(one["near"] for one in values),
    )


def _deduplication(plan: Plan, done: Done) -> list[dict[str, Any]]:
    """What each corpus-wide comparison did: candidates, pairs left out of crowded buckets, verified pairs, removals."""
    found = []
    for component, record in plan.records:
        if not component and record.stage == "substring_dedup":
            found += _substrings(plan, done, record)
        if component or record.stage not in ("exact_dedup", "minhash", "split", *UNITS):
            continue
        row: dict[str, Any] = {"step": record.step, "stage": record.stage}
        if record.stage in UNITS:
            for counted in ("units", "boilerplate"):
                row[counted] = sum(one.values[counted] for one in done[f"{record.step}.groups"])
        if record.stage in ("minhash", "split"):
            row["skipped_pairs"] = sum(one.values["skipped_pairs"] for one in done[f"{record.step}.candidates"])
            row["candidate_pairs"] = sum(one.values["pairs"] for one in done[f"{record.step}.verify"])
            row["verified_pairs"] = sum(one.files["edges"].rows for one in done[f"{record.step}.verify"])
        for deciding in (f"{record.step}.groups", f"{record.step}.cluster"):
            if deciding in done and record.stage not in UNITS:
                row["removed"] = sum(one.values["removed"] for one in done[deciding])
        found.append(row)
    return found


def _substrings(plan: Plan, done: Done, record: StageRecord) -> list[dict[str, Any]]:
    """What `substring_dedup` found, component by component."""
    found = []
    for component in plan.recipe.components:
        arrays = done[f"{component}.{record.step.removeprefix('corpus.')}.find"]
        row = {"step": record.step, "stage": record.stage, "component": component, "arrays": len(arrays)}
        for counted in ("documents", "tokens", "repeated_tokens", "spans"):
            row[counted] = sum(one.values[counted] for one in arrays)
        found.append(row)
    return found


def _summaries(plan: Plan, done: Done) -> list[dict[str, Any]]:
    """What stages report beside their rows (decontamination: items found and not checked), summed up over parts."""
    found = []
    for component, record in plan.records:
        spec = plan.specs.get(f"{record.step} {record.stage}")
        implementation = spec.implementation if spec else None
        if spec is None or implementation is None or implementation.summary in (Stage.summary, Filter.summary):
            continue
        receipts = plan.receipts(done, record.step, plan.parts.names.index(component) if component else None)
        reports = [one.values.get("reports", {}).get(record.stage) for one in receipts]
        built = spec.build()
        summary = built.summary([report for report in reports if report])
        if isinstance(built, Stage):
            built.close()
        found.append({"component": component or None, "step": record.step, "stage": record.stage, **summary})
    return found
