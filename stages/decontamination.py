"""Removes documents that hold benchmark items, or cuts the items out (Brown et al. 2020, appendix C).

A document shares an n-gram of 13 words with an item when the words agree after lower-casing and deleting punctuation,
over the whole document, whatever its lines; a hash only proposes, the words decide. Evidence is the number of distinct
n-grams of one item that match (`min_matches`), or their share of the item's n-grams (`min_share`); an item of 8 to 12
words matches as a whole. Items that are shorter are listed as unchecked. How an item is read: `stages.benchmarks`.

Below the threshold a document is kept and the overlap is in `report`. A paraphrase, a translation, or an item spread
over a page with other words in between is out of reach of n-grams.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from manifests.storage import FileStamp, Folder
from stages import code_points
from stages.benchmarks import (
    CHARACTERS,
    SHORT_CHARACTERS,
    SHORT_WORDS,
    BenchmarkError,
    BenchmarkIndex,
    Item,
    Match,
    load_items,
    unit_spans,
)
from stages.ngrams import characters, words
from stages.stage import EXAMPLE, DataPath, Needs, Options, Stage, Verdict

EVIDENCE_CHARACTERS = 400
"""Of the matched text at most so much is stored."""

LEAST_REMAINDER = 200
MOST_PIECES = 10
"""A document that cutting leaves with fewer characters, or in more pieces, is removed (Brown et al. 2020)."""

NAMED_ITEMS = 5
"""An edit row names so many items of a benchmark."""

LIMITS = "n-grams do not find a paraphrase, a translation, or an item with other words in between"

NGRAM, SHORT_ITEM = 0, 1


class DecontaminationOptions(Options):
    """What counts as contaminated, and what happens to it."""

    benchmarks: DataPath = Field(description="a JSONL file, or a folder of them; .gz too")
    n: int = Field(13, ge=2, description="words in an n-gram")
    short: int = Field(SHORT_WORDS, ge=1, description="an item of so many words or more, below n, is matched whole")
    characters: int = Field(CHARACTERS, ge=2, description="characters in an n-gram of a script without spaces")
    short_characters: int = Field(SHORT_CHARACTERS, ge=1, description="the same as `short`, in characters")
    min_matches: int = Field(1, ge=1, description="distinct matching n-grams of one item that make a document contaminated")
    min_share: float | None = Field(
        None, gt=0, le=1, description="instead of min_matches: the share of an item's distinct n-grams"
    )
    action: Literal["remove", "cut"] = Field("remove", description="remove the document, or cut the matches out of it")
    context: int = Field(200, ge=0, description="characters that are cut on either side of a match")
    document_frequencies: DataPath | None = Field(
        None, description="JSONL of {ngram, documents}: in how many documents an n-gram occurs"
    )
    max_document_frequency: int | None = Field(
        None, ge=1, description="n-grams of that file that occur in more documents are common phrases and exempt"
    )

    @model_validator(mode="after")
    def _consistent(self) -> DecontaminationOptions:
        if self.min_share is not None and self.min_matches != 1:
            raise ValueError("min_matches and min_share exclude each other")
        if (self.document_frequencies is None) != (self.max_document_frequency is None):
            raise ValueError("document_frequencies and max_document_frequency need each other")
        return self


@dataclass(frozen=True)
class Threshold:
    """How much of one item makes a document contaminated: distinct n-grams, or a share of the item's; a short item that matches
    whole always does."""

    matches: int = 1
    share: float | None = None

    def value(self, match: Match) -> float:
        """What is compared with the bound."""
        return float(match.matched) if self.share is None else match.share

    def bound(self, match: Match) -> float:
        if self.share is not None:
            return self.share
        return 1.0 if match.whole else float(self.matches)

    def reached(self, match: Match) -> bool:
        return self.value(match) >= self.bound(match)


class Decontamination(Stage[DecontaminationOptions]):
    name: ClassVar[str] = "decontamination"
    version: ClassVar[int] = 2
    needs: ClassVar[Needs] = Needs(memory=512 << 20)
    """The index while it is built."""
    options_type: ClassVar[type[Options]] = DecontaminationOptions
    removal_rules: ClassVar[tuple[str, ...]] = ("decontamination.ngram", "decontamination.short_item")
    columns: ClassVar[tuple[str, ...]] = ("text",)

    def __init__(self, options: DecontaminationOptions) -> None:
        super().__init__(options)
        self.index = index_of(options)
        self.threshold = Threshold(options.min_matches, options.min_share)
        self._found: dict[int, tuple[int, int]] = {}

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        """Removes contaminated documents with the strongest item as evidence; see `report` for the others."""
        rows = batch.num_rows
        verdict = Verdict.keep_all(rows)
        verdict.value, verdict.threshold = np.full(rows, np.nan), np.full(rows, np.nan)
        verdict.detail = [None] * rows
        evidence: dict[str, list[str | None]] = {name: [None] * rows for name in ("benchmark", "item", "evidence")}
        cut: dict[int, str] = {}
        for row, matches in self.index.scan_all(batch["text"]).items():
            self._note(matches)
            guilty = sorted(
                (match for match in matches if self.threshold.reached(match)),
                key=lambda match: (-self.threshold.value(match), -match.matched, match.item),
            )
            if not guilty:
                continue
            page = Page(batch["text"][row].as_py())
            if self.options.action == "cut":
                rest = page.without(guilty, self.options.context)
                if rest is not None:
                    cut[row] = rest
                    for rule, count, detail in self._cuts(page, guilty):
                        verdict.edits.add(row, rule, count, detail)
                    continue
            worst = guilty[0]
            verdict.rule[row] = SHORT_ITEM if worst.whole else NGRAM
            verdict.value[row] = self.threshold.value(worst)
            verdict.threshold[row] = self.threshold.bound(worst)
            evidence["benchmark"][row], evidence["item"][row] = self.index.names[worst.item]
            evidence["evidence"][row] = page.passage(worst)
            others = f"; {len(guilty) - 1} more items" if len(guilty) > 1 else ""
            verdict.detail[row] = f"{worst.matched} of {worst.total} n-grams, first at {page.where(worst)}{others}"
        if cut:
            texts = batch["text"].to_pylist()
            verdict.columns["text"] = pa.array([cut.get(row, text) for row, text in enumerate(texts)], pa.large_string())
        verdict.evidence = {name: pa.array(values, pa.string()) for name, values in evidence.items()}
        return verdict

    def compile(self) -> None:
        self.index.scan_all(EXAMPLE["text"])

    def identity(self) -> dict[str, str]:
        return code_points.identity()

    def report(self) -> dict[str, Any]:
        """benchmark → item → [most distinct n-grams that one document had, the item's n-grams], for items seen so far.

        Items below the threshold are there too. It does not depend on the order of documents.
        """
        report: dict[str, dict[str, list[int]]] = {}
        for index in sorted(self._found):
            benchmark, item = self.index.names[index]
            report.setdefault(benchmark, {})[item] = list(self._found[index])
        return report

    def summary(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """For the manifest: what was looked for, and for each benchmark its items, those found, and those unchecked.

        `found` is as in `report`. What n-grams cannot find is said, so that nobody takes silence for proof.
        """
        found = merge_reports(reports)
        rows: dict[str, dict[str, Any]] = {}
        unchecked = set(self.index.unchecked)
        for index, (benchmark, item) in enumerate(self.index.names):
            row = rows.get(benchmark)
            if row is None:
                row = rows[benchmark] = {"benchmark": benchmark, "items": 0, "found": found.get(benchmark, {}), "unchecked": []}
            row["items"] += 1
            if index in unchecked:
                row["unchecked"].append(item)
        return {
            "n": self.options.n,
            "ngrams": self.index.ngrams,
            "benchmarks": [rows[name] for name in sorted(rows)],
            "limits": LIMITS,
        }

    def _cuts(self, page: Page, guilty: list[Match]) -> Iterator[tuple[str, int, str]]:
        """Of every benchmark of which something is cut: rule, distinct n-grams, and which items, the strongest first."""
        of: dict[str, list[Match]] = {}
        for match in guilty:
            of.setdefault(self.index.names[match.item][0], []).append(match)
        for benchmark in sorted(of):
            mine = of[benchmark]
            said = [
                f"{self.index.names[match.item][1]}: {match.matched} of {match.total} n-grams, first at {page.where(match)}"
                for match in mine[:NAMED_ITEMS]
            ]
            if len(mine) > NAMED_ITEMS:
                said.append(f"{len(mine) - NAMED_ITEMS} more items")
            yield f"{self.name}.cut:{benchmark}", sum(match.matched for match in mine), "; ".join(said)

    def _note(self, matches: list[Match]) -> None:
        for match in matches:
            most, _ = self._found.get(match.item, (0, 0))
            self._found[match.item] = (max(most, match.matched), match.total)


def merge_reports(reports: Iterable[Mapping[str, Mapping[str, list[int]]]]) -> dict[str, dict[str, list[int]]]:
    """One report of several, sorted; the same whatever their order."""
    merged: dict[str, dict[str, list[int]]] = {}
    for report in reports:
        for benchmark, items in report.items():
            for item, (most, total) in items.items():
                known = merged.setdefault(benchmark, {}).get(item, [0, total])
                merged[benchmark][item] = [max(most, known[0]), total]
    return {benchmark: dict(sorted(merged[benchmark].items())) for benchmark in sorted(merged)}


def index_of(options: DecontaminationOptions, paths: Sequence[str] = ()) -> BenchmarkIndex:
    """The index of `options.benchmarks`, or of `paths` instead; BenchmarkError where there is nothing to look for."""
    names = tuple(paths) or (options.benchmarks,)
    exempt = frozenset[str]()
    if options.document_frequencies is not None and options.max_document_frequency is not None:
        exempt = _common(options.document_frequencies, options.max_document_frequency)
    shape = (options.n, options.short, options.characters, options.short_characters)
    return _built(names, tuple(map(_stamps, names)), shape, exempt)


@lru_cache(maxsize=2)
def _built(
    paths: tuple[str, ...], stamps: tuple[Any, ...], shape: tuple[int, int, int, int], exempt: frozenset[str]
) -> BenchmarkIndex:
    """Kept for the next part that this process works on; `stamps` tell when the files have changed."""
    items: list[Item] = load_items(*paths)
    index = BenchmarkIndex(items, *shape, exempt=exempt)
    if not index.ngrams:
        where = ", ".join(paths)
        raise BenchmarkError(
            f"{where}: {len(items)} items, and not one n-gram to look for: all are shorter than {shape[1]} words"
        )
    return index


def _stamps(path: str) -> tuple[FileStamp, ...]:
    folder = Folder(path)
    if not folder.fs.exists(folder.root):
        raise BenchmarkError(f"{path}: no such file or folder")
    if folder.fs.isdir(folder.root):
        return tuple(folder.stamps())
    parent, _, name = path.rpartition("/")
    return (Folder(parent or ("/" if path.startswith("/") else ".")).stamp(name),)


def _common(path: str, most: int) -> frozenset[str]:
    parent, _, name = path.rpartition("/")
    phrases = set()
    for number, line in enumerate(Folder(parent or ("/" if path.startswith("/") else ".")).read(name).split(b"\n")):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record["documents"] > most:
                phrases.add(str(record["ngram"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BenchmarkError(f"{path}:{number + 1}: expected an object with ngram and documents: {error}") from error
    return frozenset(phrases)


class Page:
    """A text in which something was found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._spans: dict[bool, list[tuple[int, int]] | None] = {}

    def where(self, match: Match) -> str:
        """Where the first match stands."""
        first, last = match.spans[0]
        spans = self._of(match.characters)
        if spans is None:
            return f"characters of the text without white space {first} to {last}"
        return f"characters {spans[first][0]} to {spans[last - 1][1]}"

    def passage(self, match: Match) -> str:
        """How the first match reads there, personal data replaced."""
        from stages.personal_data import scrub

        first, last = match.spans[0]
        spans = self._of(match.characters)
        if spans is None:
            passage = characters(self.text)[first:last]
        else:
            passage = " ".join(self.text[spans[first][0] : spans[last - 1][1]].split())
        return scrub(passage)[:EVIDENCE_CHARACTERS]

    def without(self, matches: list[Match], context: int) -> str | None:
        """The text without the matches and `context` characters around each; None where too little is left."""
        holes: list[tuple[int, int]] = []
        for match in matches:
            spans = self._of(match.characters)
            if spans is None:
                return None
            holes += [(spans[first][0] - context, spans[last - 1][1] + context) for first, last in match.spans]
        joined: list[list[int]] = []
        for start, end in sorted(holes):
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([max(0, start), end])
        ends = [0, *(end for _, end in joined)]
        pieces = [self.text[end:start].strip() for end, (start, _) in zip(ends, joined, strict=False)]
        pieces = [piece for piece in [*pieces, self.text[ends[-1] :].strip()] if piece]
        if len(pieces) > MOST_PIECES or sum(map(len, pieces)) < LEAST_REMAINDER:
            return None
        return "\n\n".join(pieces)

    def _of(self, by_character: bool) -> list[tuple[int, int]] | None:
        if by_character not in self._spans:
            self._spans[by_character] = unit_spans(self.text, by_character)
        return self._spans[by_character]


def ngram_documents(texts: Iterable[str], index: BenchmarkIndex) -> dict[str, int]:
    """For `document_frequencies`: each of the index's n-grams that occurs in `texts`, and in how many of them."""
    counts: dict[str, int] = {}
    for text in texts:
        found = set()
        for match in index.scan(text):
            units: Any = characters(text) if match.characters else words(text)
            separator = "" if match.characters else " "
            found |= {separator.join(units[first:last]) for first, last in match.spans}
        for ngram in found:
            counts[ngram] = counts.get(ngram, 0) + 1
    return dict(sorted(counts.items()))
