"""Is this corpus what its manifest says? Everything is hashed and counted again.

`verify` yields one finding for each disagreement, naming what and where; none means that the corpus is whole. Memory grows
with the largest file of a log, not with the corpus.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import RECIPE, Content, Manifest, listed_files
from manifests.schemas import LOG_SCHEMAS, SHARD_INDEX, signals_schema
from manifests.signature import Signed
from manifests.storage import Folder, StorageError, sha256_of
from manifests.tokenizer_file import TokenizerFile, TokenizerFileError
from manifests.verification.cross_checks import LogChecks
from manifests.verification.encoding_checks import Encoding, EncodingError, check_setting
from manifests.verification.receipt_checks import check_receipts
from manifests.verification.record_checks import check_records
from manifests.verification.shard_checks import check_shard
from manifests.verification.stray_files import check_links, check_strays
from manifests.verification.twin_checks import check_twins


def verify(corpus: Folder, manifest: Manifest, texts: bool = False) -> Iterator[str]:
    """Every disagreement between the files and the manifest, in words. `texts`: every document is decoded too, and the SHA-256 of
    its text compared with that in the document log."""
    content = manifest.content
    damaged = set()
    for path, sha256, size in listed_files(content):
        for finding in _check_file(corpus, path, sha256, size):
            damaged.add(path)
            yield finding
    yield from check_links(corpus, {path for path, _, _ in listed_files(content)} | {RECIPE})
    yield from _check_conservation(content)
    yield from check_receipts(corpus, manifest)
    yield from check_records(corpus, manifest)
    yield from check_strays(corpus, manifest)
    yield from _check_listing(content)
    for path, finding in _check_columns(corpus, content, damaged):
        damaged.add(path)
        yield finding
    tokenizer_file, encoding = None, None
    if content.tokenizer is not None and content.tokenizer.file not in damaged:
        data = corpus.read(content.tokenizer.file)
        try:
            tokenizer_file = TokenizerFile.parse(data)
            for difference in (*tokenizer_file.differences(content.tokenizer), *check_setting(data, content.tokenizer)):
                yield f"{content.tokenizer.file}: {difference}"
            encoding = Encoding(data)
        except (TokenizerFileError, EncodingError) as error:
            yield f"{content.tokenizer.file}: {error}"
    splits: Counter[str] = Counter()
    for component in content.components:
        checks = LogChecks(corpus, content, component, damaged, texts)
        yield from checks.findings()
        splits += checks.splits
        listed = {shard.path: shard for shard in content.shards if shard.component == component}
        for shard in listed.values():
            if content.tokenizer is None:
                yield f"{shard.path}: a shard without a tokenizer in the manifest"
            elif shard.path not in damaged and shard.index not in damaged:
                yield from check_shard(corpus, content, shard, content.tokenizer, tokenizer_file, checks.placements, encoding)
        for path in sorted(checks.placements.sums.keys() - listed.keys()) if checks.placements is not None else ():
            yield f"{path}: the document log puts documents there, and the manifest does not list it"
    logs = {log.path for log in content.logs}
    if logs and not damaged & logs:
        yield from check_twins(corpus, manifest)
    if content.split is not None and not damaged & logs and dict(splits) != content.split.documents:
        yield f"documents by split are {dict(sorted(splits.items()))}, the manifest says {content.split.documents}"


@dataclass
class Verification:
    """What was verified, for people and programs. `findings`: of each `where` (a file, a component or what else is concerned) and
    `what`."""

    whole: bool
    digest: str
    files: int
    documents: int
    stages: int
    texts: int | None
    findings: list[dict[str, str]]
    split: dict[str, Any] | None
    dropped: list[str]
    signature: Signed | None = None

    @staticmethod
    def of(manifest: Manifest, texts: bool) -> Verification:
        """Before anything was found. texts: were they compared, too?"""
        content = manifest.content
        closest = content.split.closest if content.split is not None else None
        return Verification(
            whole=True,
            digest=manifest.digest,
            files=sum(1 for _ in listed_files(content)),
            documents=sum(one.documents_in for one in content.components.values()),
            stages=len(content.counts),
            texts=sum(shard.documents for shard in content.shards) if texts else None,
            findings=[],
            split=closest.model_dump(mode="json") if closest is not None else None,
            dropped=[str(one.get("component")) for one in content.dropped],
        )

    def add(self, finding: str) -> None:
        where, _, what = finding.partition(": ")
        self.findings.append({"where": where, "what": what} if what else {"where": "", "what": finding})
        self.whole = False

    def in_words(self) -> Iterator[str]:
        """Of a corpus without findings."""
        yield f"verified: {self.files} files, {self.documents:,} documents in = kept + removed at each of {self.stages} stages"
        if self.split is not None:
            before = f" (before {', '.join(self.dropped)} was dropped)" if self.dropped else ""
            yield (
                f"split: {self.split['held_out_documents']} held-out documents were compared with all of other splits; "
                f"the highest Jaccard is {abs(self.split['jaccard']):.3f}{before}"
            )
        if self.texts is not None:
            yield f"texts: the tokens of {self.texts:,} documents spell the texts whose SHA-256 is on record"
        yield f"digest {self.digest}"
        if self.signature is not None:
            yield self.signature.in_words()


def _check_columns(corpus: Folder, content: Content, damaged: set[str]) -> Iterator[tuple[str, str]]:
    """(path, finding) of files whose columns or rows are not those of their kind; as they declare them: no row is read."""
    wanted = {log.path: (LOG_SCHEMAS.get(log.kind), log.rows) for log in content.logs}
    wanted |= {shard.index: (SHARD_INDEX, shard.documents) for shard in content.shards}
    for path, (schema, rows) in wanted.items():
        if path in damaged:
            continue
        try:
            with corpus.open(path) as opened, pq.ParquetFile(opened) as file:
                found, number = file.schema_arrow, file.metadata.num_rows
                number = max(number, sum(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)))
        except (OSError, StorageError, pa.ArrowException) as error:
            yield path, f"{path}: not a Parquet file that can be read: {error}"
            continue
        if schema is None:  # the signals of a filter block are its own, behind what all of them have
            leading = signals_schema({})
            if not pa.schema(list(found)[: len(leading)]).equals(leading):
                yield path, f"{path}: its columns are not those of this kind of log"
                continue
        elif not found.equals(schema):
            kind = "a shard index" if schema is SHARD_INDEX else "this kind of log"
            yield path, f"{path}: its columns are not those of {kind}"
            continue
        if number > rows:  # a kilobyte can stand for more rows than there is memory
            yield path, f"{path}: {number} rows, the manifest says {rows}"


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
