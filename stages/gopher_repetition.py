"""Gopher's repetition rules (Rae et al. 2021, table A1), and their equivalents for scripts without
spaces."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from manifests.rules import RATIO, Rule
from stages import code_points, datatrove_definitions, languages, reading, signals
from stages.kernels import repetition as kernels
from stages.stage import EXAMPLE, DataPath, Filter, Measurement, Options


class GopherRepetitionOptions(Options):
    """A document is removed when a share is greater than its bound. None switches a rule off.

    Those named `_unspaced` stand for the rules on n-grams of words in scripts without spaces: of n times as
    many units (`stages.code_points`) as the language's `characters_per_word`, with the same bounds. They
    were chosen here.

    `compat: datatrove` measures and removes as that project does (`stages.datatrove_definitions`).
    """

    compat: Literal["datatrove"] | None = None
    languages: DataPath | None = Field(None, description="folder of language files beside the shipped ones, or instead of them")
    max_duplicate_lines: float | None = 0.30
    max_duplicate_paragraphs: float | None = 0.30
    max_duplicate_line_characters: float | None = 0.20
    max_duplicate_paragraph_characters: float | None = 0.20
    max_top_2_gram: float | None = 0.20
    max_top_3_gram: float | None = 0.18
    max_top_4_gram: float | None = 0.16
    max_duplicate_5_gram: float | None = 0.15
    max_duplicate_6_gram: float | None = 0.14
    max_duplicate_7_gram: float | None = 0.13
    max_duplicate_8_gram: float | None = 0.12
    max_duplicate_9_gram: float | None = 0.11
    max_duplicate_10_gram: float | None = 0.10
    max_top_2_gram_unspaced: float | None = 0.20
    max_top_3_gram_unspaced: float | None = 0.18
    max_top_4_gram_unspaced: float | None = 0.16
    max_duplicate_5_gram_unspaced: float | None = 0.15
    max_duplicate_6_gram_unspaced: float | None = 0.14
    max_duplicate_7_gram_unspaced: float | None = 0.13
    max_duplicate_8_gram_unspaced: float | None = 0.12
    max_duplicate_9_gram_unspaced: float | None = 0.11
    max_duplicate_10_gram_unspaced: float | None = 0.10


TOP = (2, 3, 4)
DUPLICATE = (5, 6, 7, 8, 9, 10)


class GopherRepetition(Filter[GopherRepetitionOptions]):
    """Measures and bounds repeated lines, paragraphs and n-grams.

    duplicate_lines, duplicate_paragraphs: those that stood before in the text, to the character, / all;
    duplicate_line_characters, duplicate_paragraph_characters: the code points of those / of all.
    top_n_gram: code points of words in all occurrences of the most frequent n-gram / code points of all
    words. Of equally frequent ones the n-gram with the most characters counts; 0 when every n-gram occurs
    once; at most 1, although occurrences may overlap (`ha ha ha`).
    duplicate_n_gram: code points of words that any n-gram covers which occurs at least twice, all its
    occurrences, each character once, / code points of all words.

    Words are compared case-folded and with their punctuation; code points are counted before folding. What
    a
    word, a line and a paragraph are: `stages.code_points`.
    """

    name: ClassVar[str] = "gopher_repetition"
    version: ClassVar[int] = 2
    options_type: ClassVar[type[Options]] = GopherRepetitionOptions
    signals: ClassVar[dict[str, pa.DataType]] = {
        f"gopher_repetition.{option.removeprefix('max_')}": RATIO
        for option in GopherRepetitionOptions.model_fields
        if option.startswith("max_")
    }

    threshold_options: ClassVar[frozenset[str]] = frozenset(GopherRepetitionOptions.model_fields) - {"compat", "languages"}

    def __init__(self, options: GopherRepetitionOptions) -> None:
        super().__init__(options)
        self.languages = languages.load(options.languages)
        self.compat = datatrove_definitions.identity() if options.compat is not None else {}

    def identity(self) -> dict[str, str]:
        return self.languages.identity() | self.compat

    def compile(self) -> None:
        self.measure(EXAMPLE)

    def rules(self) -> list[Rule]:
        rules = [
            Rule(
                name=f"gopher_repetition.{option}",
                signal=f"gopher_repetition.{option.removeprefix('max_')}",
                keep_if_at_most=bound,
            )
            for option, bound in self.options.model_dump(exclude={"compat", "languages"}).items()
            if bound is not None
        ]
        return datatrove_definitions.repetition_rules(rules) if self.compat else rules

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        rows = self.languages.of_batch(batch)
        if self.compat:
            plain = GopherRepetition(self.options.model_copy(update={"compat": None}))
            return datatrove_definitions.repetition(batch, plain.measure(batch), rows.spaced)
        read = reading.of(batch["text"])
        lines, paragraphs = read.repeats
        factor = np.where(rows.spaced, 1, rows.per_language(languages.characters_per_word))
        grams = np.zeros((batch.num_rows, 1 + len(TOP) + len(DUPLICATE)), np.int64)
        kernels.repeated_grams(
            read.data,
            read.offsets,
            read.points,
            read.kinds,
            read.starts,
            *read.words,
            *code_points.case_folding(),
            rows.spaced,
            factor,
            np.array(TOP),
            np.array(DUPLICATE),
            grams,
        )
        measured = [
            signals.ratios(lines[:, kernels.REPEATS], lines[:, kernels.PIECES]),
            signals.ratios(paragraphs[:, kernels.REPEATS], paragraphs[:, kernels.PIECES]),
            signals.ratios(lines[:, kernels.REPEAT_POINTS], lines[:, kernels.PIECE_POINTS]),
            signals.ratios(paragraphs[:, kernels.REPEAT_POINTS], paragraphs[:, kernels.PIECE_POINTS]),
        ]
        for undefined in (~rows.spaced, rows.spaced):
            measured += [signals.ratios(grams[:, column], grams[:, 0], undefined) for column in range(1, grams.shape[1])]
        return Measurement(dict(zip(self.signals, measured, strict=True)))
