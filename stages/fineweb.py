"""FineWeb's own quality rules (Penedo et al. 2024, section 3.6), and their equivalents for scripts without
spaces."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from manifests.rules import RATIO, Rule
from stages import datatrove_definitions, languages, reading, signals
from stages.kernels import fineweb as kernels
from stages.kernels import repetition
from stages.languages import Language
from stages.stage import EXAMPLE, DataPath, Filter, Measurement, Options

MOST_CHARACTERS = 2**31
"""More than any text has; compiled code counts to no more than 64 bits."""


class FineWebOptions(Options):
    """Inclusive bounds: a share of exactly 0.12 is kept. None switches a rule off.

    `compat: datatrove` measures as that project does (`stages.datatrove_definitions`), and takes its bound of 0.01
    for characters in duplicate lines, where the paper says 0.1. Those named `_unspaced` stand for the rules on words and line
    lengths in scripts without spaces; they were chosen here.
    """

    compat: Literal["datatrove"] | None = None
    languages: DataPath | None = Field(None, description="folder of language files beside the shipped ones, or instead of them")
    min_lines: int | None = 1
    min_terminal_lines: float | None = 0.12
    max_short_lines: float | None = 0.67
    max_duplicate_line_characters: float | None = 0.1
    max_newlines_per_word: float | None = 0.3
    max_short_lines_unspaced: float | None = 0.67
    max_newlines_per_character_unspaced: float | None = 0.15
    short_line_characters: int = Field(30, ge=0, le=MOST_CHARACTERS)
    short_line_characters_unspaced: int = Field(15, ge=0, le=MOST_CHARACTERS)

    @model_validator(mode="before")
    @classmethod
    def _bound_of_datatrove(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("compat") == "datatrove":
            return {"max_duplicate_line_characters": 0.01, **given}
        return given


class FineWeb(Filter[FineWebOptions]):
    """Measures and bounds terminal punctuation, short lines, duplicate lines and newlines.

    terminal_lines: lines that end in terminal punctuation / lines; undefined for languages that have none.
    short_lines: lines of at most 30 code points / lines; in unspaced scripts of at most 15.
    duplicate_line_characters: code points of lines that stood before / code points of lines.
    newlines_per_word, newlines_per_character_unspaced: every `\\n` of the text / words, or code points but
    whitespace.
    """

    name: ClassVar[str] = "fineweb"
    version: ClassVar[int] = 2
    options_type: ClassVar[type[Options]] = FineWebOptions
    signals: ClassVar[dict[str, pa.DataType]] = {
        "fineweb.lines": pa.int64(),
        "fineweb.terminal_lines": RATIO,
        "fineweb.short_lines": RATIO,
        "fineweb.duplicate_line_characters": RATIO,
        "fineweb.newlines_per_word": RATIO,
        "fineweb.short_lines_unspaced": RATIO,
        "fineweb.newlines_per_character_unspaced": RATIO,
    }
    threshold_options: ClassVar[frozenset[str]] = frozenset(FineWebOptions.model_fields) - {
        "compat",
        "languages",
        "short_line_characters",
        "short_line_characters_unspaced",
    }

    def __init__(self, options: FineWebOptions) -> None:
        super().__init__(options)
        self.languages = languages.load(options.languages)
        self.compat = datatrove_definitions.identity() if options.compat is not None else {}

    def identity(self) -> dict[str, str]:
        return self.languages.identity() | self.compat

    def compile(self) -> None:
        self.measure(EXAMPLE)

    def rules(self) -> list[Rule]:
        rules = []
        for option, bound in self.options.model_dump().items():
            side, _, signal = option.partition("_")
            if f"fineweb.{signal}" not in self.signals or bound is None:
                continue
            condition = "keep_if_at_least" if side == "min" else "keep_if_at_most"
            rules.append(Rule(name=f"fineweb.{option}", signal=f"fineweb.{signal}", **{condition: bound}))
        return rules

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        rows = self.languages.of_batch(batch)
        if self.compat:
            plain = FineWeb(self.options.model_copy(update={"compat": None}))
            return datatrove_definitions.fineweb(batch, plain.measure(batch), rows.spaced, self.options.short_line_characters)
        read = reading.of(batch["text"])
        repeats = read.repeats[repetition.LINE]
        options = self.options
        short = np.where(rows.spaced, options.short_line_characters, options.short_line_characters_unspaced)
        counts = np.zeros((batch.num_rows, 4), np.int64)
        kernels.line_shapes(
            read.points, read.kinds, read.starts, *read.lines, short, *self.languages.groups(line_marks), rows.number, counts
        )
        count = counts.T
        newlines, words = np.diff(read.newline_starts), np.diff(read.words[-1])
        no_words, no_characters = ~rows.spaced, rows.spaced
        lines = count[kernels.SHAPED_LINES]
        measured = [
            signals.integers(lines),
            signals.ratios(count[kernels.TERMINAL_LINES], lines, ~ends_sentences(rows)),
            signals.ratios(count[kernels.SHORT_LINES], lines, no_words),
            signals.ratios(repeats[:, repetition.REPEAT_POINTS], repeats[:, repetition.PIECE_POINTS]),
            signals.ratios(newlines, words, no_words),
            signals.ratios(count[kernels.SHORT_LINES], lines, no_characters),
            signals.ratios(newlines, count[kernels.SHAPED_POINTS], no_characters),
        ]
        return Measurement(dict(zip(self.signals, measured, strict=True)))


def line_marks(language: Language | None) -> str:
    """What ends a line for FineWeb beside Unicode's sentence terminals: closing quotes, and the language's
    marks."""
    return '"”' + "".join((*language.terminal_punctuation, *language.closing_marks) if language is not None else ())


def ends_sentences(rows: languages.Rows) -> np.ndarray:
    """Does the language of a row end sentences by a mark? Its file says; without one, those that write
    spaces do."""
    by_file = rows.per_language(lambda language: language.ends_sentences if language is not None else False)
    return np.where(rows.number >= 0, by_file > 0, rows.spaced)
