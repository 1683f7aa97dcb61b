"""Is this corpus what its manifest says? Everything is hashed and counted again.

`verify` yields one finding for each disagreement, naming what and where; none means that the corpus is whole.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests.cross_checks import check_twins, cross_check
from manifests.identity import printed_ids
from manifests.logs import read_parquet
from manifests.manifest import TAKEDOWN, Content, LogFile, Manifest, ManifestError, Shard, SplitRecord, receipt_list
from manifests.schemas import LOG_SCHEMAS, SHARD_INDEX
from manifests.shards import ShardError, check_tokens
from manifests.storage import Folder, StorageError, sha256_of

MOST_FINDINGS_A_FILE = 5
_Place = tuple[str, int] | None


def verify(corpus: Folder, manifest: Manifest) -> Iterator[str]:
    """Every disagreement between the files and the manifest, in words."""
    content = manifest.content
    damaged = set()
    for path, sha256, size in listed_files(content):
        for finding in _check_file(corpus, path, sha256, size):
            damaged.add(path)
            yield finding
    yield from _check_conservation(content)
    yield from _check_receipts(corpus, manifest)
    yield from _check_listing(content)
    schemas = {log.path: LOG_SCHEMAS.get(log.kind) for log in content.logs}
    schemas |= {shard.index: SHARD_INDEX for shard in content.shards}
    stated = {log.path: log.rows for log in content.logs} | {shard.index: shard.documents for shard in content.shards}
    for path in (path for path in schemas if path not in damaged):
        try:
            found, rows = _columns_and_rows(corpus, path)
        except (OSError, StorageError, pa.ArrowException) as error:
            damaged.add(path)
            yield f"{path}: not a Parquet file that can be read: {error}"
            continue
        wanted = schemas[path]
        if wanted is not None and not found.equals(wanted):
            damaged.add(path)
            yield f"{path}: its columns are not those of {'a shard index' if wanted is SHARD_INDEX else 'this kind of log'}"
        elif rows > stated[path]:  # a kilobyte can stand for more rows than there is memory
            damaged.add(path)
            yield f"{path}: {rows} rows, the manifest says {stated[path]}"
    for component in content.components:
        logs = [log for log in content.logs if log.path.split("/")[2] == component and log.path not in damaged]
        yield from _check_component(corpus, content, component, logs)
        if not damaged.intersection(log.path for log in content.logs):
            yield from cross_check(corpus, content, component)
    if not damaged.intersection(log.path for log in content.logs):
        yield from check_twins(corpus, content)
    yield from _check_splits(corpus, content, damaged)
    for component in content.components:
        placed = _placements(corpus, content, component, damaged)
        for shard in (one for one in content.shards if one.component == component):
            if shard.path not in damaged and shard.index not in damaged:
                yield from _check_shard(corpus, content, shard, placed)
        listed = {shard.path for shard in content.shards}
        for path in [] if placed is None else placed["shard"].unique().to_pylist():
            if path is not None and path not in listed:
                yield f"{path}: the document log puts documents there, and the manifest does not list it"


def _columns_and_rows(corpus: Folder, path: str) -> tuple[pa.Schema, int]:
    """As the file declares them; its rows are not read."""
    file = pq.ParquetFile(pa.BufferReader(corpus.read(path)))
    return file.schema_arrow, sum(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))


def listed_files(content: Content) -> Iterator[tuple[str, str, int | None]]:
    """(path, SHA-256, bytes or None) of every file that the manifest vouches for."""
    for shard in content.shards:
        width = np.dtype(content.tokenizer.dtype).itemsize if content.tokenizer else None
        yield shard.path, shard.sha256, None if width is None else shard.tokens * width
        yield shard.index, shard.index_sha256, None
    for log in content.logs:
        yield log.path, log.sha256, log.bytes
    if content.tokenizer is not None:
        yield content.tokenizer.file, content.tokenizer.sha256, None


def _check_file(corpus: Folder, path: str, sha256: str, size: int | None) -> Iterator[str]:
    try:
        with corpus.open(path) as file:
            found, length = sha256_of(file)
    except FileNotFoundError:
        yield f"{path}: missing"
        return
    except (OSError, StorageError) as error:
        yield f"{path}: cannot be read: {error}"
        return
    if size is not None and length != size:
        yield f"{path}: {length} bytes, the manifest says {size}"
    elif found != sha256:
        yield f"{path}: its SHA-256 is {found}, the manifest says {sha256}"


def _check_listing(content: Content) -> Iterator[str]:
    """What a manifest must list, and nothing of components that it does not have."""
    kinds: dict[str, set[str]] = defaultdict(set)
    tokens: dict[str, Counter[str]] = defaultdict(Counter)
    for log in content.logs:
        kinds[log.path.split("/")[2]].add(log.kind)
    for shard in content.shards:
        tokens[shard.component][shard.split] += shard.tokens
    for name, component in content.components.items():
        for kind in sorted(LOG_SCHEMAS.keys() - kinds[name]):
            yield f"component {name}: the manifest lists no log of its {kind}"
        if dict(tokens[name]) != component.tokens:
            yield f"component {name}: its shards have the tokens {dict(tokens[name])}, the manifest says {component.tokens}"
    strangers = {*kinds, *tokens, *(count.component for count in content.counts)} - content.components.keys()
    for name in sorted(strangers):
        yield f"component {name}: has counts, logs or shards, and the manifest does not list it"


def _check_conservation(content: Content) -> Iterator[str]:
    for name, component in content.components.items():
        flow = component.documents_in
        for count in (one for one in content.counts if one.component == name):
            where = f"component {name}, stage {count.stage} (step {count.step})"
            if count.documents_in != flow:
                yield f"{where}: {count.documents_in} documents came in, but {flow} were left before it"
            if count.documents_in != count.documents_kept + sum(count.removed.values()):
                gone = sum(count.removed.values())
                yield f"{where}: {count.documents_in} in is not {count.documents_kept} kept + {gone} removed"
            flow = count.documents_kept
        if flow != component.documents_kept:
            yield f"component {name}: {component.documents_kept} documents kept, but {flow} were left at the end"


def _check_receipts(corpus: Folder, manifest: Manifest) -> Iterator[str]:
    """Receipts may have been deleted with the work files; those that are there must add up to the manifest's counts."""
    if manifest.content.dropped:
        return  # they tell of the corpus that the components were dropped from
    try:
        found_list = receipt_list(corpus, manifest)
    except (ManifestError, ValueError, KeyError, TypeError) as error:
        yield str(error)
        return
    there = set(corpus.names("receipts"))
    if found_list is None:
        if there:
            yield "receipts: the list of receipts is missing, and some receipts are there"
        return
    listed = [one["path"] for one in found_list]
    if missing := [path for path in listed if path not in there]:
        yield f"{missing[0]}: missing, and {len(listed) - len(missing)} other receipts are there"
        return
    summed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for path in listed:
        try:
            receipt = json.loads(corpus.read(path))
            counts = [(receipt["step"], count) for count in receipt["counts"]]
            yield from _check_part(path, receipt)
            for step, count in counts:
                total = summed[step, count["stage"]]
                total.update({"in": count["documents_in"], "kept": count["documents_kept"], **count["removed"]})
        except (ValueError, KeyError, TypeError, AttributeError):
            yield f"{path}: not a receipt"
            return
    stated: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for count in (one for one in manifest.content.counts if one.stage != TAKEDOWN):  # it came after the run
        stated[count.step, count.stage].update({"in": count.documents_in, "kept": count.documents_kept, **count.removed})
    for key in sorted(summed.keys() | stated.keys()):
        if +summed[key] != +stated[key]:
            found, said = dict(+summed[key]), dict(+stated[key])
            yield f"stage {key[1]} (step {key[0]}): the receipts add up to {found}, the manifest says {said}"


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


def _check_component(corpus: Folder, content: Content, component: str, logs: list[LogFile]) -> Iterator[str]:
    counts = [one for one in content.counts if one.component == component]
    removed: Counter[tuple[str, ...]] = Counter()
    edited: Counter[tuple[str, ...]] = Counter()
    totals = Counter[str]()
    removed_by: dict[str, str] = {}
    kinds: dict[str, dict[str, pa.Table]] = defaultdict(dict)
    for log in logs:
        kinds[log.kind if log.kind != "signals" else log.path][log.path] = read_parquet(corpus, log.path)
    for kind, tables in kinds.items():
        previous: _Place = None
        for path, table in tables.items():
            stated = next(log.rows for log in logs if log.path == path)
            if table.num_rows != stated:
                yield f"{path}: {table.num_rows} rows, the manifest says {stated}"
            yield from _check_identity(path, table, component)
            previous = yield from _check_order(path, table, previous, unique=kind != "edits")
            if kind == "removals":
                removed.update(zip(*(table[name].to_pylist() for name in ("step", "stage", "rule")), strict=True))
                removed_by.update(zip(table["id"].to_pylist(), table["stage"].to_pylist(), strict=True))
            elif kind == "edits":
                edited.update(zip(*(table[name].to_pylist() for name in ("step", "rule")), strict=True))
    for path, table in kinds.get("documents", {}).items():
        totals["in"] += table.num_rows
        gone = dict(zip(table["id"].to_pylist(), table["removed_by"].to_pylist(), strict=True))
        totals["kept"] += sum(stage is None for stage in gone.values())
        odd = [one for one, stage in gone.items() if removed_by.get(one) != stage]
        for one in odd[:MOST_FINDINGS_A_FILE]:
            yield f"{path}: {one} is said to be removed by {gone[one]}, its removal row says {removed_by.get(one)}"
    stated_removed: dict[tuple[str, ...], int] = {
        (one.step, one.stage, rule): number for one in counts for rule, number in one.removed.items()
    }
    stated_edited: dict[tuple[str, ...], int] = {
        (one.step, rule): number for one in counts for rule, number in one.edited.items()
    }
    for what, mine, theirs in (("removals", removed, stated_removed), ("edits", edited, stated_edited)):
        if what in kinds:
            for key in sorted(mine.keys() | theirs.keys()):
                if mine.get(key, 0) != theirs.get(key, 0):
                    found, said = mine.get(key, 0), theirs.get(key, 0)
                    yield f"component {component}, rule {key[-1]}: {found} rows in {what}, the manifest says {said}"
    record = content.components[component]
    if "documents" in kinds:
        for what, number in (("in", record.documents_in), ("kept", record.documents_kept)):
            if totals[what] != number:
                yield f"component {component}: {totals[what]} documents {what} by its log, the manifest says {number}"
        known = {one for table in kinds["documents"].values() for one in table["id"].to_pylist()}
        strangers = [one for one in removed_by if one not in known]
        for one in strangers[:MOST_FINDINGS_A_FILE]:
            yield f"component {component}: a removal row of {one}, which is not among its documents"


def _check_identity(path: str, table: pa.Table, component: str) -> Iterator[str]:
    if table.num_rows and pc.any(pc.not_equal(table["id"], printed_ids(table))).as_py():
        row = pc.index(pc.not_equal(table["id"], printed_ids(table)), True).as_py()
        yield f"{path}: row {row}: id {table['id'][row]} is not that of its component, file and position"
    if table.num_rows and pc.any(pc.not_equal(table["component"], component)).as_py():
        yield f"{path}: has rows of another component than {component}"


def _check_order(path: str, table: pa.Table, previous: _Place, unique: bool) -> Generator[str, None, _Place]:
    keys = list(zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True))
    for row, key in enumerate(keys):
        if previous is not None and (key < previous or (unique and key == previous)):
            wrong = "stands twice" if key == previous else "is out of order"
            yield f"{path}: row {row}: {table['id'][row]} {wrong}"
            break
        previous = key
    return keys[-1] if keys else previous


def _check_splits(corpus: Folder, content: Content, damaged: set[str]) -> Iterator[str]:
    """No cluster of similar documents stands in two splits."""
    if content.split is None:
        return
    split_of: dict[str, str] = {}
    counted: Counter[str] = Counter()
    for log in content.logs:
        if log.kind != "documents" or log.path in damaged:
            continue
        table = read_parquet(corpus, log.path)
        for one, split, cluster in zip(*(table[name].to_pylist() for name in ("id", "split", "split_cluster")), strict=True):
            if split is None:
                continue
            counted[split] += 1
            if split_of.setdefault(cluster, split) != split:
                yield f"{log.path}: {one} is in {split}, others of its cluster {cluster} in {split_of[cluster]}"
    yield from _check_closest(content.split)
    if not damaged and dict(counted) != content.split.documents:
        yield f"documents by split are {dict(sorted(counted.items()))}, the manifest says {content.split.documents}"


SURE = 1e-4
"""Bands that would miss a pair so seldom have kept it together, unless something went wrong."""


def _check_closest(split: SplitRecord) -> Iterator[str]:
    """No measured pair of two splits is so alike that it should have been in one cluster."""
    pair = split.closest
    if pair is None or pair.jaccard < split.threshold or not {"bands", "rows"} <= split.options.keys():
        return
    bands, rows = split.options["bands"], split.options["rows"]
    missed = (1 - pair.jaccard**rows) ** bands
    if missed < SURE:
        yield (
            f"split: {pair.held_out} and {pair.other} are in two splits, and their Jaccard is {pair.jaccard:.3f}: "
            f"{bands} bands of {rows} rows miss such a pair with probability {missed:.0e}, and the threshold is {split.threshold}"
        )


def _check_shard(corpus: Folder, content: Content, shard: Shard, placed: pa.Table | None) -> Iterator[str]:
    tokenizer = content.tokenizer
    if tokenizer is None:
        yield f"{shard.path}: a shard without a tokenizer in the manifest"
        return
    index = read_parquet(corpus, shard.index)
    tokens = np.frombuffer(corpus.read(shard.path), dtype=np.dtype(tokenizer.dtype).newbyteorder("<"))
    starts, lengths = index["start"].to_numpy(), index["tokens"].to_numpy()
    expected = np.concatenate([[0], np.cumsum(lengths)])
    fill = np.array_equal(starts, expected[:-1]) and int(expected[-1]) == len(tokens)
    if not fill or (lengths < 1).any() or (lengths > len(tokens)).any():  # the sum of larger ones may have wrapped around
        yield f"{shard.index}: its documents do not fill the {len(tokens)} tokens of {shard.path}"
        return
    try:
        check_tokens(tokens, tokenizer.vocabulary, shard.path)
    except ShardError as error:
        yield str(error)
    if len(starts) and (tokens[starts] != tokenizer.bos_id).any():
        row = int(np.flatnonzero(tokens[starts] != tokenizer.bos_id)[0])
        yield f"{shard.path}: document {index['id'][row]} does not begin with the id {tokenizer.bos_id}"
    if (tokens == tokenizer.bos_id).sum() != len(starts):
        yield f"{shard.path}: the id {tokenizer.bos_id} stands inside documents"
    stated = (shard.tokens, shard.documents, shard.text_bytes)
    found = (len(tokens), index.num_rows, int(index["bytes"].to_numpy().sum()))
    if found != stated:
        yield f"{shard.path}: tokens, documents and text bytes are {found}, the manifest says {stated}"
    if placed is not None:
        yield from _check_against_documents(shard, index, placed)


def _placements(corpus: Folder, content: Content, component: str, damaged: set[str]) -> pa.Table | None:
    """Where the document log puts every document of a component, or None where a log cannot be read."""
    logs = [log.path for log in content.logs if log.kind == "documents" and log.path.split("/")[2] == component]
    if damaged.intersection(logs) or not logs:
        return None
    columns = ["id", "shard", "split", "start", "tokens", "text_bytes"]
    return pa.concat_tables([read_parquet(corpus, path).select(columns) for path in logs])


def _check_against_documents(shard: Shard, index: pa.Table, placed: pa.Table) -> Iterator[str]:
    logged = {row["id"]: row for row in placed.filter(pc.equal(placed["shard"], shard.path)).to_pylist()}
    if len(logged) != index.num_rows:
        yield f"{shard.index}: {index.num_rows} documents, the document log places {len(logged)} there"
    for row in index.to_pylist():
        mine = logged.get(row["id"])
        stated = (row["start"], row["tokens"], row["bytes"], shard.split)
        if mine is None or (mine["start"], mine["tokens"], mine["text_bytes"], mine["split"]) != stated:
            yield f"{shard.index}: {row['id']} does not stand there by the document log"
            return
