"""Do the logs of a corpus agree with each other, row by row? What a recount cannot see: a value, a digest or a twin that was
changed.

File n of every kind of log covers the same records, so one after another is looked at. Each finding names file, document and
both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.blocks import deciding_rules
from manifests.logs import read_parquet
from manifests.manifest import TAKEDOWN, Content
from manifests.rules import Rule, decide
from manifests.schemas import LOG_SCHEMAS
from manifests.storage import Folder

MOST_FINDINGS = 5
"""Of one kind in one file."""


def cross_check(corpus: Folder, content: Content, component: str) -> Iterator[str]:
    """Every disagreement between the logs of a component: documents of files that are no input; edits and signals of documents
    that did not come in; removal rows that tell another origin; rules that decide otherwise from the stored signals than they
    did; edits that do not follow one another up to the final text; figures by language that are not the manifest's."""
    files: dict[str, list[str]] = defaultdict(list)
    for log in content.logs:
        parts = log.path.split("/")
        if parts[2] == component:
            files[log.kind if log.kind != "signals" else f"signals/{parts[3]}"].append(log.path)
    number = len(files["documents"])
    if odd := [kind for kind in [*files, *LOG_SCHEMAS] if len(files[kind]) != number]:
        found = f"{len(files[odd[0]])} log files of its {odd[0]}, and {number} of its documents"
        yield f"component {component}: {found}, which cover the same records"
        return
    rules: dict[str, list[Rule]] = defaultdict(list)
    for name, block, _, rule in deciding_rules(content):
        if name == component:
            rules[block].append(rule)
    for block in rules:
        if number and f"signals/{block}" not in files:
            yield f"component {component}: the manifest lists no signals of {block}, by which its rules decided"
    inputs = pa.array([one.path for one in content.components[component].inputs], pa.string())
    usage: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for at in range(number):
        path = files["documents"][at]
        documents = read_parquet(corpus, path)
        yield from _strangers(path, documents["file"], documents, inputs, f"is of a file that is no input of {component}")
        removals = read_parquet(corpus, files["removals"][at])
        yield from _check_origins(files["removals"][at], removals, documents)
        edits = read_parquet(corpus, files["edits"][at])
        yield from _strangers(files["edits"][at], edits["id"], edits, documents["id"], "was edited and did not come in")
        yield from _check_chain(files["edits"][at], edits, documents)
        for kind, paths in files.items():
            if kind.startswith("signals/"):
                signals = read_parquet(corpus, paths[at])
                yield from _strangers(paths[at], signals["id"], signals, documents["id"], "was measured and did not come in")
                yield from _check_decisions(paths[at], kind.partition("/")[2], rules, signals, removals)
        _add_usage(usage, documents)
    yield from _check_usage(content, component, usage)


def check_twins(corpus: Folder, content: Content) -> Iterator[str]:
    """Documents that are said to have been kept instead of others, and are none; and equal texts in two splits."""
    ids, twins, texts = [], [], []
    for log in content.logs:
        if log.kind == "documents":
            table = read_parquet(corpus, log.path).select(["id", "split", "text_sha256"])
            ids.append(table["id"])
            texts.append(table.filter(pc.is_valid(table["split"])))
        elif log.kind == "removals":
            table = read_parquet(corpus, log.path).select(["id", "kept_id", "linked_id"])
            twins.append((log.path, table.filter(pc.or_(pc.is_valid(table["kept_id"]), pc.is_valid(table["linked_id"])))))
    if not content.references and not content.dropped and ids:  # else the twin may be in a corpus that is not here
        known = pa.chunked_array([chunk for column in ids for chunk in column.chunks], pa.string())
        for path, table in twins:
            for column in ("kept_id", "linked_id"):
                there = table.filter(pc.is_valid(table[column]))
                unknown = there.filter(pc.invert(pc.is_in(there[column], value_set=known)))
                for row in unknown.slice(0, MOST_FINDINGS).to_pylist():
                    yield f"{path}: {row['id']}: its {column} {row[column]} is no document of the corpus"
    if texts:
        held = pa.concat_tables(texts)
        splits = held.group_by("text_sha256").aggregate([("split", "count_distinct"), ("id", "min"), ("id", "max")])
        shared = splits.filter(pc.greater(splits["split_count_distinct"], 1)).sort_by("id_min")
        for row in shared.slice(0, MOST_FINDINGS).to_pylist():
            yield f"documents {row['id_min']} and {row['id_max']} have the same text and its copies stand in two splits"


def _strangers(path: str, column: pa.ChunkedArray, table: pa.Table, known: pa.Array, said: str) -> Iterator[str]:
    strange = np.flatnonzero(~pc.is_in(column, value_set=known).to_numpy(zero_copy_only=False))
    for row in strange[:MOST_FINDINGS].tolist():
        yield f"{path}: row {row}: {table['id'][row]} {said}"


def _check_origins(path: str, removals: pa.Table, documents: pa.Table) -> Iterator[str]:
    """A removal row repeats what the document log says of the document."""
    at = pc.index_in(removals["id"], value_set=documents["id"])
    known = removals.filter(pc.is_valid(at))
    told = documents.take(at.drop_null())
    for column, other in (("url", "url"), ("domain", "domain"), ("language", "language"), ("stage", "removed_by")):
        for row in _unequal(known[column], told[other])[:MOST_FINDINGS].tolist():
            one = known["id"][row]
            yield f"{path}: {one}: {column} is {known[column][row]}, its row in the document log says {told[other][row]}"


def _check_chain(path: str, edits: pa.Table, documents: pa.Table) -> Iterator[str]:
    """Each stage edited the text that the one before it left, and the last one left the text that the corpus has."""
    rows = edits.num_rows
    if not rows:
        return
    columns = {name: edits[name].combine_chunks() for name in edits.schema.names}

    def same(*names: str, with_: str | None = None) -> np.ndarray:
        """Is column `names` of a row that of the row before (`with_`: column `with_` of the row before)?"""
        found = np.ones(rows - 1, bool)
        for name in names:
            found &= pc.equal(columns[name].slice(1), columns[with_ or name].slice(0, rows - 1)).to_numpy(zero_copy_only=False)
        return found

    one_document, one_stage = same("id"), same("step", "stage")
    together = same("sha256_before", "sha256_after", "bytes_before", "bytes_after")
    follows = same("sha256_before", with_="sha256_after") & same("bytes_before", with_="bytes_after")
    for row in np.flatnonzero(one_document & ~np.where(one_stage, together, follows))[:MOST_FINDINGS].tolist():
        stage, before = columns["stage"][row + 1], columns["stage"][row]
        yield f"{path}: row {row + 1}: {columns['id'][row + 1]}: stage {stage} did not edit the text that {before} left"
    last = np.append(~one_document, True)
    ends = edits.filter(pa.array(last))
    at = pc.index_in(ends["id"], value_set=documents["id"])
    ends, told = ends.filter(pc.is_valid(at)), documents.take(at.drop_null())
    kept = pc.is_null(told["removed_by"])
    ends, told = ends.filter(kept), told.filter(kept)
    for column, other in (("sha256_after", "text_sha256"), ("bytes_after", "text_bytes")):
        for row in _unequal(ends[column], told[other])[:MOST_FINDINGS].tolist():
            one = ends["id"][row]
            yield f"{path}: {one}: the last edit left {column} {ends[column][row]}, the document log has {told[other][row]}"


def _check_decisions(path: str, block: str, rules: dict[str, list[Rule]], signals: pa.Table, removals: pa.Table) -> Iterator[str]:
    """The rules of the manifest, applied to the stored signals, remove what was removed, for the reason on record."""
    decision = decide(rules.get(block, []), signals)
    removed = decision.first >= 0
    decided, gone = signals["id"].filter(pa.array(removed)), removals.filter(pc.equal(removals["stage"], block))
    for row in np.flatnonzero(~pc.is_in(decided, value_set=gone["id"]).to_numpy(zero_copy_only=False))[:MOST_FINDINGS].tolist():
        yield f"{path}: {decided[row]}: its signals fail a rule of {block}, and it was not removed by {block}"
    at = pc.index_in(gone["id"], value_set=signals["id"])
    for row in np.flatnonzero(at.is_null().to_numpy())[:MOST_FINDINGS].tolist():
        yield f"{path}: {gone['id'][row]}: was removed by {block} and has no signals there"
    gone, where = gone.filter(pc.is_valid(at)), at.drop_null().to_numpy()
    if not len(where):
        return
    first = decision.first[where]
    names = pa.array([rule.name for rule in rules.get(block, [])] + [None], pa.string())
    bounds = pa.array([rule.threshold for rule in rules.get(block, [])] + [None], pa.float64())
    picked = pa.array(np.where(first < 0, len(names) - 1, first))
    values = decision.value[where]
    expected = {
        "rule": names.take(picked),
        "value": pa.array(values, pa.float64(), mask=np.isnan(values)),
        "threshold": bounds.take(picked),
        "text_bytes": signals["text_bytes"].take(pa.array(where)),
    }
    for column, wanted in expected.items():
        for row in _unequal(gone[column], wanted)[:MOST_FINDINGS].tolist():
            yield f"{path}: {gone['id'][row]}: by its signals {column} is {wanted[row]}, its removal row says {gone[column][row]}"
    failed = decision.failed.take(pa.array(where))
    for row, (mine, theirs) in enumerate(zip(failed.to_pylist(), gone["failed_rules"].to_pylist(), strict=True)):
        if mine != theirs:
            yield f"{path}: {gone['id'][row]}: by its signals it fails {mine}, its removal row says {theirs}"
            return


def _unequal(mine: pa.ChunkedArray | pa.Array, theirs: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Rows whose values differ; two nulls are equal."""
    equal = pc.fill_null(pc.equal(mine, theirs), False)
    both = pc.and_(pc.is_null(mine), pc.is_null(theirs))
    return np.flatnonzero(~pc.or_(equal, both).to_numpy(zero_copy_only=False))


def _add_usage(usage: dict[str, list[int]], documents: pa.Table) -> None:
    placed = documents.filter(pc.is_valid(documents["shard"]))
    grouped = placed.group_by("language").aggregate([("id", "count"), ("text_bytes", "sum"), ("tokens", "sum")])
    for row in grouped.to_pylist():
        total = usage[row["language"] or "und"]
        total[0] += row["id_count"]
        total[1] += row["text_bytes_sum"] or 0
        total[2] += (row["tokens_sum"] or 0) - row["id_count"]  # without BOS


def _check_usage(content: Content, component: str, usage: dict[str, list[int]]) -> Iterator[str]:
    """After a takedown the figures of some languages are left out."""
    stated: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in content.token_usage:
        if one.component == component:
            for at, number in enumerate((one.documents, one.bytes, one.tokens)):
                stated[one.language][at] += number
    cut = any(record.stage == TAKEDOWN for record in content.stages)
    for language in sorted(stated.keys() | (set() if cut or not content.token_usage else usage.keys())):
        if stated[language] != usage[language]:
            found = f"{usage[language]} by its log, the manifest says {stated[language]}"
            yield f"component {component}, language {language}: documents, bytes and tokens are {found}"
