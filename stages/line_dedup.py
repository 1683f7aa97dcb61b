"""Lines and paragraphs that stand in many documents: navigation, notices, licences. They are cut out of all but one.

A unit is compared as whole documents are (`stages.normal_form.normalised`): NFC, lower-cased, white space collapsed; equal
128-bit keys are equal units. It is boilerplate when it stands in more than `max_documents` documents, each counted once. It
stays in the document that comes first in the keep order of `stages.clusters.keep_ranks`; `keep: none` leaves it nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from stages.normal_form import normalised
from stages.personal_data import scrub
from stages.stage import PLACE, Options, Stage, Verdict

VERSION = 2
Unit = Literal["line", "paragraph"]
UNITS: dict[str, Unit] = {"line_dedup": "line", "paragraph_dedup": "paragraph"}
"""Stage → what it compares."""
NOWHERE = -1
"""In place of a document's number: the unit stays in no document of this part."""


class LineDedupOptions(Options):
    max_documents: int = Field(10, ge=1, description="a line or paragraph in more documents than this is boilerplate")
    min_characters: int = Field(1, ge=1, description="shorter ones, white space collapsed, are left alone")
    scope: Literal["component", "corpus"] = Field("corpus", description="count documents within each component, or all")
    keep: Literal["longest", "first", "none"] = Field(
        "longest", description="which document of equal priority keeps it: that of the longest text, or of the first id; or none"
    )


def unit_keys(texts: pa.Array, unit: Unit, min_characters: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(uint64 (m, 2), int64 (m,)): the keys of each text's distinct units, and the number of the text. A null has none."""
    digests: list[bytes] = []
    counts = []
    for text in texts.to_pylist():
        distinct = dict.fromkeys(digest for _, digest in _units(text or "", unit, min_characters) if digest)
        digests.extend(distinct)
        counts.append(len(distinct))
    keys = np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64).reshape(-1, 2)
    return keys, np.repeat(np.arange(len(counts)), counts)


class LineDedup(Stage[LineDedupOptions]):
    """Cuts out the units that `stays` names: key → the number (column `place`) of the document in which it stays.

    A line goes with its newline, a paragraph with the blank lines behind it. Newlines that come to stand at the ends of the text
    go too, and a text of which nothing is left is removed.
    """

    version = VERSION
    options_type: ClassVar[type[Options]] = LineDedupOptions
    columns = ("text",)

    def __init__(self, name: str, options: LineDedupOptions, stays: Mapping[bytes, int]) -> None:
        super().__init__(options)
        self.name = name  # type: ignore[misc]  # the one class serves two names
        self.removal_rules = (f"{name}.empty",)  # type: ignore[misc]
        self.unit, self.stays = UNITS[name], stays

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        verdict.value = np.full(batch.num_rows, np.nan)
        texts = batch["text"].to_pylist()
        for row, (number, text) in enumerate(zip(batch[PLACE].to_pylist(), texts, strict=True)):
            left, cut = self.without_boilerplate(text or "", number)
            if not cut:
                continue
            texts[row] = left
            verdict.edits.add(row, f"{self.name}.boilerplate", len(cut), _told(cut))
            if not left.strip():
                verdict.rule[row], verdict.value[row] = 0, 0
        if verdict.edits.rows:
            verdict.columns["text"] = pa.array(texts, batch.schema.field("text").type)
        return verdict

    def without_boilerplate(self, text: str, number: int) -> tuple[str, list[str]]:
        """The text of the document with this number, and the units that were cut out of it, in order."""
        left: list[str] = []
        cut: list[str] = []
        for piece, digest in _units(text, self.unit, self.options.min_characters):
            if digest and self.stays.get(digest, number) != number:
                cut.append(piece)
            else:
                left.append(piece)
        return ("".join(left).strip("\n"), cut) if cut else (text, cut)


SHOWN_UNITS, SHOWN_CHARACTERS = 3, 80
"""Of what was cut out of a text, an edit row quotes so many beginnings."""


def _told(cut: list[str]) -> str:
    """Personal data is replaced before a beginning is cut off, so that no part of it is left."""
    beginnings = [" ".join(scrub(unit[: 4 * SHOWN_CHARACTERS]).split())[:SHOWN_CHARACTERS] for unit in cut[:SHOWN_UNITS]]
    return " | ".join(beginnings) + (" | …" if len(cut) > SHOWN_UNITS else "")


def _units(text: str, unit: Unit, min_characters: int) -> Iterator[tuple[str, bytes]]:
    """Pieces that make up the text, each with the newlines behind it, and its key; b"" for one that is not compared."""
    for piece in (_LINE if unit == "line" else _PARAGRAPH).findall(text):
        form = normalised(piece)
        yield piece, xxhash.xxh3_128_digest(form.encode()) if len(form) >= min_characters else b""


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PARAGRAPH = re.compile(r"[^\n]+(?:\n[^\n]+)*\n*|\n+")
