"""Repeated substrings (Lee et al. 2022, Deduplicating Training Data Makes Language Models Better): spans of at least `min_tokens`
tokens that stand somewhere before, in the same document or another, are cut out; the first occurrence stays.

A token is a word with its punctuation, or in scripts without spaces a unit (`stages.code_points`), as it is written: case counts.
Documents are taken in the keep order of `stages.clusters.keep_ranks` and laid end to end with a separator between each two. A
window of `min_tokens` tokens is a repeat when the same tokens stand earlier and end before it begins; what repeats cover is cut.
So every token that is cut stands earlier between the same neighbours, the first of equal windows is nobody's repeat, and a text
that goes round in a circle keeps its first round.

Windows are found by a suffix array (libdivsufsort by way of pydivsufsort) over the tokens' numbers, four bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pydivsufsort
from pydantic import Field

from stages import reading, scripts
from stages.kernels import repeated_tokens
from stages.stage import PLACE, Options, Stage, Verdict

VERSION = 1
NAME = "substring_dedup"


class SubstringDedupOptions(Options):
    min_tokens: int = Field(50, ge=2, le=10_000, description="the shortest span that counts, in words")
    min_units_unspaced: int = Field(100, ge=2, le=10_000, description="the same in scripts without spaces, in characters")
    keep: Literal["longest", "first"] = Field("longest", description="whose span stays: the longest text's, or the first id's")
    max_array_bytes: int = Field(
        256 << 20, ge=1 << 10, description="text in one suffix array; larger components have several, which are not compared"
    )


@dataclass(frozen=True)
class Tokens:
    """Tokens of n texts: hashes (uint64), where each begins and ends in its text's UTF-8 (int64 (m, 2)), where each text's tokens
    start (int64 (n + 1,)), and whether its words are separated by spaces (bool (n,))."""

    hashes: np.ndarray
    places: np.ndarray
    starts: np.ndarray
    spaced: np.ndarray


def tokens_of(texts: pa.Array) -> Tokens:
    """The tokens of a text column; a null has none."""
    read = reading.of(texts)
    unspaced, _ = scripts.unspaced(read.scripts)
    spaced = ~np.asarray(unspaced, dtype=bool)
    lengths = 1 + (read.points >= 0x80).astype(np.int64) + (read.points >= 0x800) + (read.points >= 0x10000)
    ends = np.cumsum(lengths)
    units, starts = repeated_tokens.units(read.kinds, read.starts, *read.words, spaced)
    edges = np.concatenate([np.zeros(1, np.int64), ends])
    first = np.repeat(edges[read.starts[:-1]], np.diff(starts)).reshape(-1, 1)
    places = edges[units] - first
    hashes = repeated_tokens.hashes(read.data, read.offsets, places, starts)
    return Tokens(hashes, places, starts, spaced)


def repeated_spans(documents: Sequence[np.ndarray], least: Sequence[int]) -> list[np.ndarray]:
    """For every document, given as the hashes of its tokens in keep order, the spans to cut: int64 (k, 2), from the first token
    to behind the last. `least[i]` is the length of the windows of document i, which are compared with those of equal length."""
    cut = [np.zeros((0, 2), np.int64) for _ in documents]
    for length in sorted(set(least)):
        chosen = [index for index, own in enumerate(least) if own == length and len(documents[index]) >= length]
        if chosen:
            for index, spans in zip(chosen, _repeated([documents[index] for index in chosen], length), strict=True):
                cut[index] = spans
    return cut


def _repeated(documents: list[np.ndarray], length: int) -> list[np.ndarray]:
    sizes = np.array([len(hashes) for hashes in documents], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes + 1)])
    numbers = np.empty(int(starts[-1]), np.uint32)
    known = repeated_tokens.numbered(np.concatenate(documents), starts, numbers)
    # A separator is like no other token, so no window that holds one is a repeat.
    numbers[starts[1:] - 1] = known + np.arange(len(documents), dtype=np.uint32)
    order = pydivsufsort.divsufsort(numbers.astype(">u4").view(np.uint8))
    suffixes = repeated_tokens.aligned(order, np.empty(numbers.size, order.dtype))
    del order
    covered = repeated_tokens.repeats(numbers, suffixes, length)
    return [_spans(covered[start : start + size]) for start, size in zip(starts[:-1], sizes, strict=True)]


class SubstringDedup(Stage[SubstringDedupOptions]):
    """Cuts out `spans`: document number (column `place`) → int64 (k, 2) of token numbers. What stands between two tokens that are
    cut goes with them; where text is left on both sides, one white space stays, a newline if one was cut."""

    name = NAME
    version = VERSION
    options_type: ClassVar[type[Options]] = SubstringDedupOptions
    removal_rules = (f"{NAME}.empty",)
    columns = ("text",)

    def __init__(self, options: SubstringDedupOptions, spans: dict[int, np.ndarray]) -> None:
        super().__init__(options)
        self.spans = spans

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        verdict.value = np.full(batch.num_rows, np.nan)
        places = batch[PLACE].to_pylist()
        if not any(place in self.spans for place in places):
            return verdict
        tokens = tokens_of(batch["text"])
        texts = batch["text"].to_pylist()
        for row, place in enumerate(places):
            spans = self.spans.get(place)
            if spans is None:
                continue
            own = tokens.places[tokens.starts[row] : tokens.starts[row + 1]]
            texts[row] = _without(texts[row].encode(), own, spans).decode()
            verdict.edits.add(row, f"{NAME}.repeated", len(spans))
            if not texts[row].strip():
                verdict.rule[row], verdict.value[row] = 0, 0
        verdict.columns["text"] = pa.array(texts, batch.schema.field("text").type)
        return verdict


def _without(text: bytes, places: np.ndarray, spans: np.ndarray) -> bytes:
    left, at = [], 0
    for first, last in spans.tolist():
        begin = int(places[first - 1, 1]) if first else 0
        end = int(places[last, 0]) if last < len(places) else len(text)
        left.append(text[at:begin])
        if first and last < len(places):
            gap = text[begin:end]
            left.append(b"\n" if b"\n" in gap else b" " if gap[:1].isspace() else b"")
        at = end
    return b"".join([*left, text[at:]])


def _spans(covered: np.ndarray) -> np.ndarray:
    """Runs of True as (first, behind the last)."""
    edges = np.flatnonzero(np.diff(covered.astype(np.int8), prepend=0, append=0))
    return edges.reshape(-1, 2)
