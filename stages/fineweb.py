"""FineWeb's own quality rules (Penedo et al. 2024, section 3.6), and their equivalents for scripts without
spaces."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import model_validator

from manifests.rules import RATIO, Rule
from stages import languages, scripts, signals, words
from stages.gopher_repetition import repeated
from stages.languages import Language
from stages.stage import Filter, Measurement, Options


class FineWebOptions(Options):
    """Inclusive bounds: a share of exactly 0.12 is kept. None switches a rule off.

    `compat: datatrove` takes that project's bound of 0.01 for characters in duplicate lines, where the
    paper says 0.1; nothing else changes. Those named `_unspaced` stand for the rules on words and line
    lengths in scripts without spaces; they were chosen here.
    """

    compat: Literal["datatrove"] | None = None
    min_lines: int | None = 1
    min_terminal_lines: float | None = 0.12
    max_short_lines: float | None = 0.67
    max_duplicate_line_characters: float | None = 0.1
    max_newlines_per_word: float | None = 0.3
    max_short_lines_unspaced: float | None = 0.67
    max_newlines_per_character_unspaced: float | None = 0.15
    short_line_characters: int = 30
    short_line_characters_unspaced: int = 15

    @model_validator(mode="before")
    @classmethod
    def _bound_of_datatrove(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("compat") == "datatrove":
            return {"max_duplicate_line_characters": 0.01, **given}
        return given


class FineWeb(Filter[FineWebOptions]):
    """Measures and bounds terminal punctuation, short lines, duplicate lines and newlines."""

    name: ClassVar[str] = "fineweb"
    version: ClassVar[int] = 1
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
    measuring_options: ClassVar[frozenset[str]] = frozenset({"short_line_characters", "short_line_characters_unspaced"})

    def identity(self) -> dict[str, str]:
        return languages.identity()

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
        documents = [
            measure_text(text, *languages.of_document(code, text, None), self.options)
            for text, code in zip(batch["text"].to_pylist(), signals.languages(batch), strict=True)
        ]
        return Measurement(signals.columns(self.signals, documents))


TERMINALS = tuple(sorted(scripts.SENTENCE_TERMINALS | {'"', "”"}))
"""What ends a line for FineWeb: every sentence terminal of Unicode, and the quotes that may follow it."""


def measure_text(text: str, language: Language | None, spaced: bool, options: FineWebOptions) -> dict[str, signals.Value]:
    """Every signal of one text.

    terminal_lines: lines that end in terminal punctuation / lines; undefined for languages that have none.
    short_lines: lines of at most 30 code points / lines; in unspaced scripts of at most 15.
    duplicate_line_characters: code points of repeated lines / code points of lines.
    newlines_per_word, newlines_per_character_unspaced: every `\\n` of the text / words, or code points but
    whitespace.
    """
    lines = words.lines(text)
    repeats = repeated(lines)
    measured: dict[str, signals.Value] = dict.fromkeys(FineWeb.signals)
    measured["fineweb.lines"] = len(lines)
    if has_terminals(language, spaced):
        ends = TERMINALS
        if language is not None:
            ends += language.terminal_punctuation + language.closing_marks
        measured["fineweb.terminal_lines"] = (sum(line.endswith(ends) for line in lines), len(lines))
    measured["fineweb.duplicate_line_characters"] = (sum(map(len, repeats)), sum(map(len, lines)))
    newlines = text.count("\n")
    if spaced:
        short = sum(len(line) <= options.short_line_characters for line in lines)
        measured["fineweb.short_lines"] = (short, len(lines))
        measured["fineweb.newlines_per_word"] = (newlines, len(words.split(text)))
    else:
        short = sum(len(line) <= options.short_line_characters_unspaced for line in lines)
        measured["fineweb.short_lines_unspaced"] = (short, len(lines))
        measured["fineweb.newlines_per_character_unspaced"] = (newlines, words.characters(text))
    return measured


def has_terminals(language: Language | None, spaced: bool) -> bool:
    """Does this language end sentences by a mark? Its file says; without one, languages that write spaces
    do."""
    return language.ends_sentences if language is not None else spaced
