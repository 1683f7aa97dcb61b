"""Does a finished corpus hold items of a benchmark that came later?

A finished corpus keeps its texts as tokens. They are decoded (`stages.shard_texts`) and compared with the items as
`decontamination` does it while a corpus is built. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from manifests.manifest import Manifest, Shard
from manifests.storage import Folder
from stages.benchmarks import BenchmarkIndex, Match
from stages.decontamination import LIMITS, Page, Threshold
from stages.shard_texts import ShardTextError, load_encoder, texts_of


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
    try:
        encoder = load_encoder(corpus, content.tokenizer)
        for shard in content.shards:
            for ids, texts, tokens in texts_of(corpus, shard, content.tokenizer, encoder):
                _check(ids, texts, shard, index, threshold, report, rows)
                progress(tokens)
    except ShardTextError as error:
        raise ContaminationError(str(error)) from None
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
