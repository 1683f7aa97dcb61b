"""Gopher's quality rules (Rae et al. 2021, appendix A1.1), and their equivalents for scripts without
spaces."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from manifests.rules import RATIO, Rule
from stages import code_points, languages, reading, signals
from stages.kernels import quality as kernels
from stages.stage import EXAMPLE, DataPath, Filter, Measurement, Options


class GopherQualityOptions(Options):
    """Inclusive bounds: exactly 50 words are kept. None switches a rule off.

    The first ten are Gopher's. Those named `_unspaced` stand for the rules on words in scripts without
    spaces, where two characters are taken for a word; they were chosen here. `default_language` is the
    language of a spaced text whose language is null.
    """

    min_words: int | None = 50
    max_words: int | None = 100_000
    min_mean_word_length: float | None = 3
    max_mean_word_length: float | None = 10
    max_hashes_per_word: float | None = 0.1
    max_ellipses_per_word: float | None = 0.1
    max_bullet_lines: float | None = 0.9
    max_ellipsis_lines: float | None = 0.3
    min_alphabetic_words: float | None = 0.8
    min_stop_words: int | None = 2
    min_characters_unspaced: int | None = 100
    max_characters_unspaced: int | None = 200_000
    min_script_share_unspaced: float | None = 0.3
    max_symbols_unspaced: float | None = 0.1
    min_stop_characters_unspaced: int | None = 2
    default_language: str | None = "en"
    languages: DataPath | None = Field(None, description="folder of language files beside the shipped ones, or instead of them")


class GopherQuality(Filter[GopherQualityOptions]):
    """Measures and bounds length, word length, symbols, bullets, ellipses, alphabetic words and stop
    words."""

    name: ClassVar[str] = "gopher_quality"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = GopherQualityOptions
    signals: ClassVar[dict[str, pa.DataType]] = {
        "gopher.rule_set": pa.string(),
        "gopher.words": pa.int64(),
        "gopher.mean_word_length": RATIO,
        "gopher.hashes_per_word": RATIO,
        "gopher.ellipses_per_word": RATIO,
        "gopher.bullet_lines": RATIO,
        "gopher.ellipsis_lines": RATIO,
        "gopher.alphabetic_words": RATIO,
        "gopher.stop_words": pa.int64(),
        "gopher.characters_unspaced": pa.int64(),
        "gopher.script_share_unspaced": RATIO,
        "gopher.symbols_unspaced": RATIO,
        "gopher.stop_characters_unspaced": pa.int64(),
    }
    threshold_options: ClassVar[frozenset[str]] = frozenset(GopherQualityOptions.model_fields) - {"default_language", "languages"}

    def __init__(self, options: GopherQualityOptions) -> None:
        super().__init__(options)
        self.languages = languages.load(options.languages)
        if options.default_language is not None and self.languages.find(options.default_language) is None:
            raise ValueError(f"default_language: no language file has the code {options.default_language!r}")
        self._documents: Counter[tuple[str, str]] = Counter()

    def identity(self) -> dict[str, str]:
        return self.languages.identity()

    def compile(self) -> None:
        self.measure(EXAMPLE)
        self._documents.clear()

    def rules(self) -> list[Rule]:
        rules = []
        for option, bound in self.options.model_dump().items():
            side, _, signal = option.partition("_")
            if f"gopher.{signal}" not in self.signals or bound is None:
                continue
            condition = "keep_if_at_least" if side == "min" else "keep_if_at_most"
            rules.append(Rule(name=f"gopher.{option}", signal=f"gopher.{signal}", **{condition: bound}))
        return rules

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        rows = self.languages.of_batch(batch, self.options.default_language)
        read = reading.of(batch["text"])
        counts = np.zeros((batch.num_rows, 12), np.int64)
        kernels.quality(
            read.data,
            read.offsets,
            read.points,
            read.kinds,
            read.starts,
            *read.words,
            *read.lines,
            *code_points.case_folding(),
            rows.spaced,
            rows.number,
            rows.scripts,
            *self.languages.function_words,
            counts,
        )
        count = counts.T
        listed = rows.per_language(lambda language: len(language.function_words) if language else 0) > 0
        no_words, no_characters = ~rows.spaced, rows.spaced
        words, points, lines = count[kernels.WORDS], count[kernels.POINTS], count[kernels.LINES]
        sets = rule_sets(rows)
        measured = [
            pa.array(sets, pa.string()),
            signals.integers(words, no_words),
            signals.ratios(count[kernels.WORD_POINTS], words, no_words),
            signals.ratios(count[kernels.HASHES], words, no_words),
            signals.ratios(count[kernels.ELLIPSES], words, no_words),
            signals.ratios(count[kernels.BULLET_LINES], lines),
            signals.ratios(count[kernels.ELLIPSIS_LINES], lines),
            signals.ratios(count[kernels.ALPHABETIC_WORDS], words, no_words),
            signals.integers(count[kernels.STOP_WORDS], no_words | ~listed),
            signals.integers(points, no_characters),
            signals.ratios(count[kernels.OWN_SCRIPT], points, no_characters),
            signals.ratios(count[kernels.SYMBOLS], points, no_characters),
            signals.integers(stop_characters(batch["text"], rows), no_characters | ~listed),
        ]
        codes = batch["language"].to_pylist() if "language" in batch.schema.names else [None] * batch.num_rows
        self._documents.update(zip(sets, (code or "" for code in codes), strict=True))
        return Measurement(dict(zip(self.signals, measured, strict=True)))

    def report(self) -> dict[str, Any]:
        """How many documents each rule set measured, by the language that they have."""
        return {"rule_sets": [[*key, number] for key, number in sorted(self._documents.items())]}

    def summary(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """The documents of every rule set; and those of every language that has no file, to which no rule on function words
        applied."""
        sets: Counter[str] = Counter()
        without: Counter[str] = Counter()
        for report in reports:
            for rule_set, code, number in report["rule_sets"]:
                sets[rule_set] += number
                if ":" not in rule_set:
                    without[code or "unknown"] += number
        return {"rule_sets": dict(sorted(sets.items())), "languages_without_file": dict(sorted(without.items()))}


def rule_sets(rows: languages.Rows) -> list[str]:
    """`words` or `characters`, and the code of the language file used (`words:en`), if any."""
    kinds = {True: "words", False: "characters"}
    return [
        kinds[bool(spaced)] + (f":{language.code}" if language is not None else "")
        for spaced, language in zip(rows.spaced, rows.languages(), strict=True)
    ]


def stop_characters(texts: pa.Array, rows: languages.Rows) -> np.ndarray:
    """Distinct function words of the language that occur anywhere in an unspaced text; 0 for spaced
    ones."""
    found = np.zeros(len(rows.spaced), np.int64)
    for row in np.flatnonzero(~rows.spaced & (rows.number >= 0)):
        text = texts[int(row)].as_py() or ""
        found[row] = sum(word in text for word in rows.known[rows.number[row]].function_words)
    return found
