"""Does a finished corpus hold items of a benchmark that came later?

A finished corpus keeps its texts as tokens. They are decoded with its own tokenizer, which gives every text back byte by byte,
and compared with the items as `decontamination` does it while a corpus is built. Nothing is changed.

Shards, their indexes and the tokenizer are read only where they are the files that the manifest lists, and a shard is decoded in
slices: memory does not grow with the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import Manifest, Shard, TokenizerRecord
from manifests.schemas import SHARD_INDEX
from manifests.storage import Folder, sha256_of
from stages.benchmarks import BenchmarkIndex, Match
from stages.decontamination import LIMITS, Page, Threshold
from stages.tokenizer import Encoder, TokenizerError

SLICE_TOKENS = 1 << 20
"""Decoded at once, but a document is never cut: about 5 MB of text, and 100 MB of memory while it is decoded."""


class ContaminationError(Exception):
    """A corpus whose texts cannot be read; says which file and why."""


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


@dataclass
class Found:
    """An item that stands in the corpus. documents: how many hold enough of it; `below` hold some of it, and not enough.
    most: distinct n-grams that one document has, of `total`; worst: its id, and in which split it is."""

    total: int
    documents: int = 0
    below: int = 0
    most: int = 0
    worst: tuple[str, str] = ("", "")

    def add(self, reached: bool, matched: int, document: str, split: str) -> None:
        self.documents += reached
        self.below += not reached
        if (-matched, document) < (-self.most, self.worst[0]):
            self.most, self.worst = matched, (document, split)


@dataclass
class Report:
    """What `check` found. documents: of every split, those that were read; touched: those with at least one item, of all
    benchmarks, and of each; unread: kept documents that stand in no shard."""

    corpus: str
    documents: dict[str, int]
    found: dict[tuple[str, str], Found] = field(default_factory=dict)
    touched: dict[str, int] = field(default_factory=dict)
    touched_by: dict[str, dict[str, int]] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    unread: int = 0
    limits: str = LIMITS

    @property
    def contaminated(self) -> bool:
        return any(self.touched.values())

    def as_json(self) -> dict[str, Any]:
        """Benchmarks and their items sorted; what is not found is not listed."""
        benchmarks: dict[str, dict[str, Any]] = {
            name: {
                "items": self.items[name],
                "unchecked": self.unchecked[name],
                "documents": self.touched_by.get(name, {}),
                "found": {},
            }
            for name in sorted(self.items)
        }
        for (name, item), found in sorted(self.found.items()):
            benchmarks[name]["found"][item] = {
                "documents": found.documents,
                "below_threshold": found.below,
                "ngrams": found.most,
                "of": found.total,
                "document": found.worst[0],
                "split": found.worst[1],
            }
        splits = {split: {"documents": number, "touched": self.touched[split]} for split, number in self.documents.items()}
        return {
            "corpus": self.corpus,
            "splits": splits,
            "documents_without_tokens": self.unread,
            "benchmarks": benchmarks,
            "limits": self.limits,
        }


def check(
    corpus: Folder,
    manifest: Manifest,
    index: BenchmarkIndex,
    threshold: Threshold,
    rows: Sink | None = None,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Report:
    """Reads every split. ContaminationError where a file is not what the manifest says, or there are no shards to read.

    `rows` is given a line of JSON for every document and item of which it holds enough; `progress` the tokens of each slice.
    """
    content = manifest.content
    if content.tokenizer is None or not content.shards:
        raise ContaminationError(
            "this corpus holds no tokens, which are what a finished corpus keeps its texts in: add the stages `tokenizer` and"
            " `shards` to its recipe and run it again, or add `decontamination` with these benchmarks"
        )
    kept = sum(component.documents_kept for component in content.components.values())
    report = Report(manifest.digest, {shard.split: 0 for shard in content.shards})
    report.unread = kept - sum(shard.documents for shard in content.shards)
    report.touched = dict.fromkeys(report.documents, 0)
    unchecked = set(index.unchecked)
    for number, (benchmark, item) in enumerate(index.names):
        report.items[benchmark] = report.items.get(benchmark, 0) + 1
        report.unchecked.setdefault(benchmark, []).extend([item] if number in unchecked else [])
    encoder = _encoder(corpus, content.tokenizer)
    for shard in content.shards:
        for ids, texts, tokens in _texts(corpus, shard, content.tokenizer, encoder):
            _check(ids, texts, shard, index, threshold, report, rows)
            progress(tokens)
    return report


def _check(
    ids: pa.Array,
    texts: pa.Array,
    shard: Shard,
    index: BenchmarkIndex,
    threshold: Threshold,
    report: Report,
    rows: Sink | None,
) -> None:
    report.documents[shard.split] += len(texts)
    for row, matches in index.scan_all(texts).items():
        document = str(ids[row])
        guilty = []
        for match in matches:
            reached = threshold.reached(match)
            found = report.found.setdefault(index.names[match.item], Found(match.total))
            found.add(reached, match.matched, document, shard.split)
            if reached:
                guilty.append(match)
        if not guilty:
            continue
        report.touched[shard.split] += 1
        for benchmark in {index.names[match.item][0] for match in guilty}:
            of = report.touched_by.setdefault(benchmark, dict.fromkeys(report.documents, 0))
            of[shard.split] += 1
        if rows is not None:
            page = Page(texts[row].as_py())
            for match in guilty:
                rows.write(json.dumps(_row(document, shard, index, page, match), ensure_ascii=False).encode() + b"\n")


def _row(document: str, shard: Shard, index: BenchmarkIndex, page: Page, match: Match) -> dict[str, Any]:
    benchmark, item = index.names[match.item]
    return {
        "document": document,
        "component": shard.component,
        "split": shard.split,
        "benchmark": benchmark,
        "item": item,
        "ngrams": match.matched,
        "of": match.total,
        "where": page.where(match),
        "passage": page.passage(match),
    }


def _encoder(corpus: Folder, record: TokenizerRecord) -> Encoder:
    _vouched(corpus, record.file, record.sha256)
    name = next((name for name, number in record.special_tokens.items() if number == record.bos_id), None)
    try:
        encoder = Encoder(corpus.read(record.file).decode(errors="replace"), name)
    except TokenizerError as error:
        raise ContaminationError(f"{record.file}: {error}") from None
    if encoder.vocabulary != record.vocabulary:
        raise ContaminationError(
            f"{record.file}: its vocabulary of {encoder.vocabulary} is not the {record.vocabulary} of the manifest"
        )
    return encoder


def _texts(
    corpus: Folder, shard: Shard, tokenizer: TokenizerRecord, encoder: Encoder
) -> Iterator[tuple[pa.Array, pa.Array, int]]:
    """(ids, texts, tokens) of the documents of a shard, some at a time."""
    dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
    size = _vouched(corpus, shard.path, shard.sha256)
    _vouched(corpus, shard.index, shard.index_sha256)
    try:
        index = pq.ParquetFile(pa.BufferReader(corpus.read(shard.index))).read()
    except pa.ArrowException as error:
        raise ContaminationError(f"{shard.index}: not a Parquet file that can be read: {error}") from None
    if not index.schema.equals(SHARD_INDEX):
        raise ContaminationError(f"{shard.index}: its columns are not those of a shard index")
    lengths = index["tokens"].to_numpy()
    ends = np.cumsum(lengths)
    starts = ends - lengths
    filled = int(ends[-1]) if len(ends) else 0
    if ((lengths < 1) | (lengths > size)).any() or (index["start"].to_numpy() != starts).any() or filled * dtype.itemsize != size:
        raise ContaminationError(f"{shard.index}: its documents do not fill the {size // dtype.itemsize} tokens of {shard.path}")
    row = 0
    while row < len(ends):
        last = max(row + 1, int(np.searchsorted(ends, starts[row] + SLICE_TOKENS, side="right")))
        first_token, tokens = int(starts[row]), int(ends[last - 1] - starts[row])
        data = corpus.read_range(shard.path, first_token * dtype.itemsize, tokens * dtype.itemsize)
        if len(data) != tokens * dtype.itemsize:
            raise ContaminationError(f"{shard.path}: became shorter while it was read")
        offsets = np.concatenate([[0], ends[row:last] - first_token])
        try:
            texts = encoder.decode_all(np.frombuffer(data, dtype), offsets)
        except ValueError as error:
            raise ContaminationError(f"{shard.path}: documents from {index['id'][row]} on: {error}") from None
        bounds = np.frombuffer(texts.buffers()[1], np.int64)
        wrong = np.flatnonzero(np.diff(bounds) != index["bytes"].to_numpy()[row:last])
        if wrong.size:
            raise ContaminationError(
                f"{shard.path}: the text of {index['id'][row + int(wrong[0])]} has not the bytes that {shard.index} says"
            )
        yield index["id"].slice(row, last - row), texts, tokens
        row = last


def _vouched(corpus: Folder, path: str, sha256: str) -> int:
    """The size of a file that is the one that the manifest lists."""
    with corpus.open(path) as file:
        found, size = sha256_of(file)
    if found != sha256:
        raise ContaminationError(f"{path}: not the file that the manifest lists; `corpusmill verify` says more")
    return size
