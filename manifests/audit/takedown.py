"""Taking documents out of a finished corpus: what that touches, and the corpus without them.

`affected` only looks. `take_down` writes a second corpus: shards, indices and logs are rewritten where a document goes, every
other file stays as it is; each document gets a removal row and is counted at a last stage `takedown`, so that in = kept +
removed still holds and `verify` passes. The old corpus is not changed. The same takedown of the same corpus gives the same
content digest; who did it and when is in the manifest's `run` section, the reason in both.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests.copies import EXACT, copies_of, stand_ins
from manifests.domains import domain_of, host_of, parents_of
from manifests.dropping import ALONE
from manifests.logs import Logs, read_parquet
from manifests.lookup import NearMiss, urls_called
from manifests.manifest import MANIFEST, TAKEDOWN, Content, LogFile, Manifest, ManifestError, Shard, listed_files
from manifests.schemas import DOCUMENT_LOG, REMOVALS, SHARD_INDEX
from manifests.storage import Folder, StorageError, Written, sha256_of

VERSION = 1
ROW_GROUP = 65_536
COPY_BYTES = 1 << 20
NearDuplicates = Literal["list", "remove"]


@dataclass(frozen=True)
class Selection:
    """What is to go: documents of these domains or hosts, with these ids or URLs, or of components with these licences."""

    domains: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()


@dataclass
class Affected:
    """taken: rows of the document log that are in the corpus and go, with `rule` (which word of the selection took it) and
    `linked_id` (for a near-duplicate, the selected document). removed_before: stage → selected documents that an earlier stage
    removed: of them no token is in a shard. unknown: ids and URLs of which the corpus knows nothing like it. survivors: documents
    that are kept and not selected though they resemble a selected one: id, of (the selected one), how, jaccard (None where it is
    not known of these two), through (documents between the two, which were removed as copies in turn). orphans: documents
    elsewhere that were removed only because a copy of them stayed which now goes, or one that stood in for it; they do not come
    back."""

    selection: Selection
    taken: list[dict[str, Any]] = field(default_factory=list)
    removed_before: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    survivors: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[dict[str, Any]] = field(default_factory=list)
    saw_it: list[str] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    """What resembles the URLs asked for that no document has exactly; no document of it is selected."""
    without_url: int = 0
    """Documents of the corpus that no domain can select."""

    @property
    def tokens(self) -> int:
        return sum(row["tokens"] or 0 for row in self.taken)

    @property
    def shards(self) -> list[str]:
        return sorted({row["shard"] for row in self.taken if row["shard"] is not None})

    def as_json(self) -> dict[str, Any]:
        return {
            "documents": len(self.taken),
            "tokens": self.tokens,
            "shards": self.shards,
            "taken": [{name: row[name] for name in TOLD} for row in self.taken],
            **{
                name: getattr(self, name)
                for name in ("removed_before", "unknown", "survivors", "orphans", "saw_it", "without_url")
            },
            "near_misses": [one.__dict__ for one in self.near_misses],
        }


TOLD = ("id", "url", "domain", "language", "tokens", "shard", "rule", "linked_id")


@dataclass(frozen=True)
class TakenDown:
    """manifest: of the new corpus, as saved at `where`. rewritten: files that are new; superseded: those of the old corpus that
    the new one does without, which still hold what was taken down."""

    manifest: Manifest
    where: str
    rewritten: list[str]
    superseded: list[str]


def affected(logs: Logs, selection: Selection, near_duplicates: NearDuplicates = "list") -> Affected:
    """What a takedown would touch; needs the views `documents` and `removals`. ManifestError where the selection makes no
    sense."""
    found = Affected(selection)
    selected = _selected(logs, selection, found)
    logs.connection.register("selected_documents", _ids_table(selected))
    found.survivors = _survivors(logs)
    linked: dict[str, str | None] = dict.fromkeys(selected)
    if near_duplicates == "remove":
        copies = [one for one in found.survivors if one["how"] != SIMILAR]
        found.survivors = [one for one in found.survivors if one["how"] == SIMILAR]
        for one in copies:
            selected[one["id"]] = f"{TAKEDOWN}.near_duplicate"
            linked[one["id"]] = one["of"]
        logs.connection.register("selected_documents", _ids_table(selected))
    rows = logs.sql(
        "select documents.* from documents where id in (select id from selected_documents) order by component, file, position"
    )
    for row in rows:
        if row["removed_by"] is not None:
            found.removed_before[row["removed_by"]] = found.removed_before.get(row["removed_by"], 0) + 1
        else:
            found.taken.append({**row, "rule": selected[row["id"]], "linked_id": linked.get(row["id"])})
    taken = [row["id"] for row in found.taken]
    found.orphans = [row for row in copies_of(logs, taken) if row["id"] not in selected]
    if found.taken:
        content = logs.manifest.content
        found.saw_it = [one.stage for one in content.stages if one.stage not in ALONE and one.stage != TAKEDOWN]
    return found


def take_down(
    corpus: Folder, manifest: Manifest, what: Affected, output: str, reason: str, by: str, at: datetime | None = None
) -> TakenDown:
    """Writes the corpus without `what.taken`. `output` is a new folder, which then stands by itself (files that stay are
    linked, or copied where that is impossible), or the name of a manifest beside the old one (`without.json`), where only
    rewritten files are new. ManifestError where there is nothing to take, where a URL that was asked for has near misses and no
    document, where the output is there already or within the corpus, or a file is not the one that the manifest lists; a new
    folder is left empty then.
    """
    if what.near_misses:
        asked = list(dict.fromkeys(one.asked for one in what.near_misses))
        raise ManifestError(
            f"no document has exactly the URL {asked[0]}{f' ({len(asked) - 1:,} more such)' if asked[1:] else ''}, and "
            f"{what.near_misses[0].url}, {what.near_misses[0].why}, resembles it: name the ids that are meant in its place, "
            "or leave it out"
        )
    if not what.taken:
        raise ManifestError("nothing that is in the corpus is selected: there is nothing to take down")
    target = _Target.of(corpus, output)
    try:
        return _written(corpus, manifest, what, target, reason, by, at)
    except BaseException:
        target.clear()
        raise


def _written(
    corpus: Folder, manifest: Manifest, what: Affected, target: _Target, reason: str, by: str, at: datetime | None
) -> TakenDown:
    content = manifest.content
    number = 1 + sum(record.stage == TAKEDOWN for record in content.stages)
    step = f"{TAKEDOWN}.{number}"
    work = _Rewriting(corpus, target, content, step, reason, what.taken)
    raw = work.content()
    options = {
        "of": manifest.digest,
        "domains": sorted(what.selection.domains),
        "licences": sorted(what.selection.licences),
        "listed": len(what.selection.documents),
        "listed_sha256": hashlib.sha256("\n".join(sorted(what.selection.documents)).encode()).hexdigest(),
        "reason": reason,
        "documents": len(what.taken),
        "tokens": what.tokens,
        "surviving_near_duplicates": len(what.survivors),
        "orphans": len(what.orphans),
        "saw_it": what.saw_it,
    }
    raw["stages"].append({"step": step, "stage": TAKEDOWN, "version": VERSION, "options": options})
    moment = (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    acts = [*manifest.run.get("takedowns", []), {"step": step, "by": by, "at": moment, "reason": reason, "of": manifest.digest}]
    sealed = Manifest.seal(Content.model_validate(raw), {**manifest.run, "takedowns": acts})
    superseded = sorted(_listed(content) - _listed(sealed.content)) if target.beside else sorted(work.replaced)
    if not target.beside:
        digests = {path: sha256 for path, sha256, _ in listed_files(sealed.content)}
        for path in sorted(digests.keys() - set(work.written)):
            _check_carried(corpus, path, digests[path])
            target.carry(corpus, path)
        for path in ("recipe.yaml",):
            if corpus.exists(path):
                target.carry(corpus, path)
    if not sealed.save(target.folder, target.name, new=True):
        raise ManifestError(f"{target.where}: is there already")
    return TakenDown(sealed, target.where, sorted(work.written), superseded)


SIMILAR = "in one cluster of the split"
RESEMBLING = f"""
with mine as (select * from removals where id in (select id from selected_documents))
select kept_id as other, id as "of", 'kept instead of it' as how, kept_jaccard as jaccard, 1 as strength
from mine where kept_id is not null
union all select linked_id, id, 'joined it to its cluster', linked_jaccard, 2 from mine where linked_id is not null
union all
select removals.kept_id, mine.id, 'in one cluster of ' || mine.stage, null, 3
from removals join mine on removals.cluster = mine.cluster and removals.stage = mine.stage
union all
select documents.id, chosen.id, '{SIMILAR}', null, 4
from documents join documents chosen on documents.split_cluster = chosen.split_cluster
where chosen.id in (select id from selected_documents)
"""
"""Documents that resemble a selected one by the evidence of one row. Any of them may have been removed since."""
SURVIVORS = f"""
select documents.id, pairs."of",
    pairs.how || case when stands.id is null then '' else ', through ' || array_to_string(stands.through, ', ') end as how,
    case when stands.id is null then pairs.jaccard
         when pairs.jaccard = {EXACT} then stands.jaccard when stands.jaccard = {EXACT} then pairs.jaccard end as jaccard,
    documents.url, documents.tokens, coalesce(stands.through, []) as through
from resembling_documents pairs left join stand_ins stands on stands.other = pairs.other
join documents on documents.id = coalesce(stands.id, pairs.other)
where documents.removed_by is null and documents.id not in (select id from selected_documents)
order by component, file, position, strength, jaccard desc nulls last, "of"
"""


def _survivors(logs: Logs) -> list[dict[str, Any]]:
    """Documents of the corpus that resemble a selected one, or stand in for one that did and was removed as a copy itself; of
    each the strongest evidence."""
    logs.connection.execute(f"create or replace temp table resembling_documents as {RESEMBLING}")
    others = logs.sql(
        "select distinct other from resembling_documents join removals on removals.id = other where removals.kept_id is not null"
    )
    found = stand_ins(logs, [row["other"] for row in others])
    rows = [
        {"other": other, "id": one.id, "through": [step.id for step in one.steps], "jaccard": one.jaccard}
        for other, one in found.items()
        if one.in_corpus
    ]
    logs.connection.register("stand_ins", pa.Table.from_pylist(rows, STAND_INS))
    return _each_once(logs.sql(SURVIVORS))


STAND_INS = pa.schema(
    [("other", pa.string()), ("id", pa.string()), ("through", pa.list_(pa.string())), ("jaccard", pa.float64())]
)


def _each_once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each document the first row, which is the strongest evidence."""
    return list({row["id"]: row for row in reversed(rows)}.values())[::-1]


def _ids_table(selected: Iterable[str]) -> pa.Table:
    return pa.table({"id": pa.array(list(selected), pa.string())})


def _selected(logs: Logs, selection: Selection, found: Affected) -> dict[str, str]:
    """Id → rule, of every document that the words of the selection name."""
    content = logs.manifest.content
    selected: dict[str, str] = {}
    for licence in selection.licences:
        components = [name for name, one in content.components.items() if one.licence == licence]
        if not components:
            known = ", ".join(sorted({one.licence for one in content.components.values()}))
            raise ManifestError(f"no component has the licence {licence!r}; there are {known}")
        rows = logs.sql("select id from documents where list_contains($1::varchar[], component)", [components])
        selected |= dict.fromkeys((row["id"] for row in rows), f"{TAKEDOWN}.licence")
    for asked in selection.domains:
        host = host_of(asked if "://" in asked else f"http://{asked}")
        domain = domain_of(f"http://{host}") if host is not None and ":" not in host else host
        if host is None or domain is None:
            raise ManifestError(f"{asked!r} is no domain")
        rows = logs.sql("select id, url from documents where domain = ?", [domain])
        if host != domain:  # only a part of the domain was asked for
            rows = [row for row in rows if host in set(parents_of(host_of(row["url"]) or ""))]
        if not rows:
            found.unknown.append(asked)
        selected |= dict.fromkeys((row["id"] for row in rows), f"{TAKEDOWN}.domain")
    if selection.domains:
        found.without_url = logs.sql("select count(*) as n from documents where domain is null and removed_by is null")[0]["n"]
    if selection.documents:
        wanted = list(dict.fromkeys(selection.documents))
        keys, near = urls_called(logs, wanted)
        pairs = [(one, key) for one, some in keys.items() for key in some]
        columns = {name: pa.array([pair[at] for pair in pairs], pa.string()) for at, name in enumerate(("asked", "key"))}
        logs.connection.register("asked", pa.table(columns))
        rows = logs.sql(
            "select asked.asked, documents.id from (select distinct asked from asked) asked "
            "join documents on documents.id = asked.asked "
            "union all select asked.asked, documents.id from asked join documents on documents.url_key = asked.key"
        )
        met = {row["asked"] for row in rows}
        found.near_misses = [one for one in near if one.asked not in met]
        close = {one.asked for one in found.near_misses}
        found.unknown += [one for one in wanted if one not in met and one not in close]
        selected |= dict.fromkeys((row["id"] for row in rows), f"{TAKEDOWN}.listed")
    return selected


@dataclass(frozen=True)
class _Target:
    """Where the new corpus goes: `folder`, its manifest's `name`, and whether that lies beside the old one."""

    folder: Folder
    name: str
    beside: bool

    @staticmethod
    def of(corpus: Folder, output: str) -> _Target:
        if output.endswith(".json") and "/" not in output:
            if output == MANIFEST or corpus.exists(output):
                raise ManifestError(f"{output}: is there already; the old corpus is not changed")
            return _Target(corpus, output, True)
        if not output or output.endswith(".json"):
            raise ManifestError(f"{output!r}: name a new folder, or NAME.json without a folder for a manifest beside the old one")
        folder = Folder(output)
        if folder.root == corpus.root:
            raise ManifestError(f"{output}: is the old corpus, which is not changed")
        if corpus.local and folder.local and Path(os.path.realpath(corpus.root)) in Path(os.path.realpath(folder.root)).parents:
            raise ManifestError(f"{output}: is within the old corpus, where a later run deletes it; name a folder of its own")
        if folder.names():
            raise ManifestError(f"{output}: there are files already; a takedown writes into a new folder")
        return _Target(folder, MANIFEST, False)

    def clear(self) -> None:
        """Leaves a folder as it was found, empty, where its corpus did not come about."""
        if not self.beside:
            for name in self.folder.names():
                self.folder.delete(name)

    @property
    def where(self) -> str:
        return f"{self.folder.url}/{self.name}" if self.beside else self.folder.url

    def path(self, old: str, data: bytes) -> str:
        """The name of what `old` becomes. Beside it the number gets eight more digits, which its bytes decide."""
        if not self.beside:
            return old
        stem, _, ending = old.rpartition(".")
        return f"{stem[:-5]}{stem[-5:]}{int(hashlib.sha256(data).hexdigest()[:12], 16) % 10**8:08d}.{ending}"

    def carry(self, corpus: Folder, path: str) -> None:
        """`path` as it is in the old corpus: a hard link, or a copy."""
        source, goal = corpus.path(path), self.folder.path(path)
        if corpus.local and self.folder.local:
            os.makedirs(os.path.dirname(goal), exist_ok=True)
            try:
                os.link(source, goal)
                return
            except OSError:
                pass  # another disk, or a file system without links
        elif corpus.fs.protocol == self.folder.fs.protocol:
            self.folder.fs.copy(source, goal)
            return
        with corpus.open(path) as file, self.folder.writer(path) as out:
            while chunk := file.read(COPY_BYTES):
                out.write(chunk)


class _Rewriting:
    """The files of a component that a document goes from, written anew; the rest of the content follows from them."""

    def __init__(
        self, corpus: Folder, target: _Target, content: Content, step: str, reason: str, taken: list[dict[str, Any]]
    ) -> None:
        self.corpus, self.target, self.old = corpus, target, content
        self.step, self.reason = step, reason
        self.taken: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for row in taken:
            self.taken[row["component"]][row["id"]] = row
        self.written: list[str] = []
        self.replaced: list[str] = []
        self._shards: dict[str, Shard | None] = {}
        self._logs: dict[str, LogFile] = {}

    def content(self) -> dict[str, Any]:
        """The new content as plain JSON, its files being written."""
        for component in self.taken:
            self._tell_logs(component, self._cut_shards(component))
        raw = self.old.model_dump(mode="json")
        shards = [self._shards.get(one.path, one) for one in self.old.shards]
        raw["shards"] = [one.model_dump(mode="json") for one in shards if one is not None]
        raw["logs"] = [self._logs.get(one.path, one).model_dump(mode="json") for one in self.old.logs]
        for name, component in raw["components"].items():
            mine = self.taken.get(name, {})
            last = [count for count in raw["counts"] if count["component"] == name][-1:]
            size = last[0]["bytes_kept"] if last else 0
            rules: dict[str, int] = {}
            for row in mine.values():
                rules[row["rule"]] = rules.get(row["rule"], 0) + 1
            kept = component["documents_kept"] - len(mine)
            gone = sum(row["text_bytes"] or 0 for row in mine.values())
            count = {"component": name, "step": self.step, "stage": TAKEDOWN, "documents_in": component["documents_kept"]}
            sizes = {"bytes_in": size, "bytes_kept": size - gone}
            raw["counts"].append({**count, "documents_kept": kept, "removed": dict(sorted(rules.items())), **sizes})
            component["documents_kept"] = kept
            if mine:
                tokens: dict[str, int] = {}
                for shard in (one for one in raw["shards"] if one["component"] == name):
                    tokens[shard["split"]] = tokens.get(shard["split"], 0) + shard["tokens"]
                component["tokens"] = dict(sorted(tokens.items()))
        self._recount(raw)
        return raw

    def _recount(self, raw: dict[str, Any]) -> None:
        if raw["split"] is not None:
            for row in (row for rows in self.taken.values() for row in rows.values() if row["split"] is not None):
                raw["split"]["documents"][row["split"]] -= 1
            raw["split"]["documents"] = {name: number for name, number in raw["split"]["documents"].items() if number}
        # Words are counted on texts, which are not read here: no figure rather than a wrong one.
        changed = {(name, row["language"] or "und") for name, rows in self.taken.items() for row in rows.values()}
        raw["token_usage"] = [one for one in raw["token_usage"] if (one["component"], one["language"]) not in changed]

    def _cut_shards(self, component: str) -> pa.Table:
        """The documents that stay in a shard that others leave: id, shard (its new name), start (the first token there)."""
        assert self.old.tokenizer is not None or not self.old.shards
        moved = [MOVED.empty_table()]
        touched: set[str | None] = {row["shard"] for row in self.taken[component].values()} - {None}
        for shard in (one for one in self.old.shards if one.path in touched):
            assert self.old.tokenizer is not None
            dtype = np.dtype(self.old.tokenizer.dtype).newbyteorder("<")
            tokens = np.frombuffer(self._vouched(shard.path, shard.sha256), dtype)
            index = pq.ParquetFile(pa.BufferReader(self._vouched(shard.index, shard.index_sha256))).read()
            goes = pc.is_in(index["id"], value_set=pa.array(self.taken[component], pa.string())).to_numpy()
            lengths = index["tokens"].to_numpy()
            left = tokens[np.repeat(~goes, lengths)].tobytes()
            index = index.filter(pa.array(~goes))
            starts = pa.array(np.concatenate([[0], np.cumsum(lengths[~goes])])[:-1].astype(np.int64))
            index = index.set_column(1, SHARD_INDEX.field("start"), starts)
            self.replaced += [shard.path, shard.index]
            if not index.num_rows:
                self._shards[shard.path] = None
                continue
            written = self._write(self.target.path(shard.path, left), left)
            indexed = self._write(f"{written.path.removesuffix('.bin')}.parquet", _parquet(index.cast(SHARD_INDEX)))
            self._shards[shard.path] = shard.model_copy(
                update={
                    **{"path": written.path, "index": indexed.path, "sha256": written.sha256, "index_sha256": indexed.sha256},
                    **{"tokens": len(left) // dtype.itemsize, "documents": index.num_rows},
                    "text_bytes": int(index["bytes"].to_numpy().sum()),
                }
            )
            name = pa.array([written.path] * index.num_rows, pa.string())
            moved.append(pa.table([index["id"], name, starts], schema=MOVED))
        return pa.concat_tables(moved).combine_chunks()

    def _tell_logs(self, component: str, moved: pa.Table) -> None:
        """Rewrites the document and removal logs; file n of one kind covers the records of file n of the other."""
        logs: dict[str, list[LogFile]] = defaultdict(list)
        for log in self.old.logs:
            if log.path.split("/")[2] == component:
                logs[log.kind].append(log)
        if len(logs["documents"]) != len(logs["removals"]):
            raise ManifestError(f"component {component}: its logs of documents and of removals do not cover the same records")
        mine = pa.array(self.taken[component], pa.string())
        for told, removed in zip(logs["documents"], logs["removals"], strict=True):
            table = self._log(told)
            goes = pc.is_in(table["id"], value_set=mine)
            place = pc.index_in(table["id"], value_set=moved["id"])
            if not (pc.any(goes).as_py() or place.null_count < table.num_rows):
                continue
            gone = [self._gone(row) for row in table.filter(goes).to_pylist()]
            columns = {name: table[name] for name in table.schema.names}
            for name in ("shard", "start"):
                columns[name] = pc.coalesce(
                    moved[name].combine_chunks().take(place.combine_chunks()), columns[name].combine_chunks()
                )
            columns |= {name: pc.if_else(goes, pa.scalar(None, columns[name].type), columns[name]) for name in EMPTIED}
            columns["removed_by"] = pc.if_else(goes, TAKEDOWN, columns["removed_by"])
            self._rewrite(told, pa.table(list(columns.values()), schema=DOCUMENT_LOG))
            if gone:
                added = pa.Table.from_pylist(gone, REMOVALS)
                both = pa.concat_tables([self._log(removed), added])
                self._rewrite(removed, both.take(pc.sort_indices(both, [("file", "ascending"), ("position", "ascending")])))

    def _gone(self, row: dict[str, Any]) -> dict[str, Any]:
        about = self.taken[row["component"]][row["id"]]
        shared = {name: row[name] for name in ("id", "component", "file", "position", "url", "domain", "text_bytes", "language")}
        said = {
            "step": self.step,
            "stage": TAKEDOWN,
            "rule": about["rule"],
            "failed_rules": [about["rule"]],
            "detail": self.reason,
        }
        return {**dict.fromkeys(REMOVALS.names), **shared, **said, "linked_id": about["linked_id"]}

    def _log(self, log: LogFile) -> pa.Table:
        self._vouched(log.path, log.sha256)
        return read_parquet(self.corpus, log.path)

    def _rewrite(self, log: LogFile, table: pa.Table) -> None:
        data = _parquet(table)
        written = self._write(self.target.path(log.path, data), data)
        self.replaced.append(log.path)
        update = {"path": written.path, "rows": table.num_rows, "bytes": written.size, "sha256": written.sha256}
        self._logs[log.path] = log.model_copy(update=update)

    def _write(self, path: str, data: bytes) -> Written:
        written = self.target.folder.write(path, data)
        self.written.append(path)
        return written

    def _vouched(self, path: str, sha256: str) -> bytes:
        data = self.corpus.read(path)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ManifestError(f"{path}: not the file that the manifest lists; `corpusmill verify` says more")
        return data


MOVED = pa.schema([SHARD_INDEX.field("id"), DOCUMENT_LOG.field("shard"), DOCUMENT_LOG.field("start")])
EMPTIED = ("text_bytes", "text_sha256", "split", "split_cluster", "shard", "start", "tokens")
"""What the document log says of kept documents alone."""


def _parquet(table: pa.Table) -> bytes:
    """As the pipeline writes logs, so that bytes depend on rows alone."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, compression="zstd", row_group_size=ROW_GROUP, write_page_index=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _check_carried(corpus: Folder, path: str, sha256: str) -> None:
    """The new manifest vouches for a file that nobody has read since the old one did."""
    try:
        with corpus.open(path) as file:
            found, _ = sha256_of(file)
    except (OSError, StorageError) as error:
        raise ManifestError(f"{path}: cannot be read: {error}") from None
    if found != sha256:
        raise ManifestError(f"{path}: not the file that the manifest lists; `corpusmill verify` says more")


def _listed(content: Content) -> set[str]:
    files = {path for shard in content.shards for path in (shard.path, shard.index)} | {log.path for log in content.logs}
    return files | ({content.tokenizer.file} if content.tokenizer is not None else set())
