"""Gopher's repetition rules (Rae et al. 2021, table A1), and their equivalents for scripts without
spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from manifests.rules import RATIO, Rule
from stages import languages, signals, words
from stages.languages import Language
from stages.stage import Filter, Measurement, Options


class GopherRepetitionOptions(Options):
    """A document is removed when a share is greater than its bound. None switches a rule off.

    Those named `_unspaced` stand for the rules on n-grams of words in scripts without spaces: of n times as
    many `stages.words.units` as the language's `characters_per_word`, with the same bounds. They were
    chosen here.
    """

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
    """Measures and bounds repeated lines, paragraphs and n-grams."""

    name: ClassVar[str] = "gopher_repetition"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = GopherRepetitionOptions
    signals: ClassVar[dict[str, pa.DataType]] = {
        f"gopher_repetition.{option.removeprefix('max_')}": RATIO for option in GopherRepetitionOptions.model_fields
    }

    def identity(self) -> dict[str, str]:
        return languages.identity()

    def rules(self) -> list[Rule]:
        return [
            Rule(
                name=f"gopher_repetition.{option}",
                signal=f"gopher_repetition.{option.removeprefix('max_')}",
                keep_if_at_most=bound,
            )
            for option, bound in self.options.model_dump().items()
            if bound is not None
        ]

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        documents = [
            measure_text(text, *languages.of_document(code, text, None))
            for text, code in zip(batch["text"].to_pylist(), signals.languages(batch), strict=True)
        ]
        return Measurement(signals.columns(self.signals, documents))


def measure_text(text: str, language: Language | None, spaced: bool) -> dict[str, signals.Value]:
    """Every signal of one text: n-grams of words in a spaced text, of characters in an unspaced one."""
    measured: dict[str, signals.Value] = dict.fromkeys(GopherRepetition.signals)
    for name, pieces in (("line", words.lines(text)), ("paragraph", words.paragraphs(text))):
        repeats = repeated(pieces)
        measured[f"gopher_repetition.duplicate_{name}s"] = (len(repeats), len(pieces))
        measured[f"gopher_repetition.duplicate_{name}_characters"] = (
            sum(map(len, repeats)),
            sum(map(len, pieces)),
        )
    units = words.split(text) if spaced else words.units(text)
    form, factor = ("gram", 1) if spaced else ("gram_unspaced", languages.characters_per_word(language))
    lengths = [len(unit) for unit in units]
    folded = [unit.casefold() for unit in units]
    for n in TOP:
        measured[f"gopher_repetition.top_{n}_{form}"] = top_gram(folded, lengths, n * factor)
    for n in DUPLICATE:
        measured[f"gopher_repetition.duplicate_{n}_{form}"] = duplicate_grams(folded, lengths, n * factor)
    return measured


def repeated(pieces: Sequence[str]) -> list[str]:
    """The pieces that stood before: every occurrence after the first."""
    seen: set[str] = set()
    repeats = []
    for piece in pieces:
        if piece in seen:
            repeats.append(piece)
        seen.add(piece)
    return repeats


def top_gram(units: Sequence[str], lengths: Sequence[int], n: int) -> tuple[int, int]:
    """Characters in all occurrences of the most frequent n-gram / characters of all units.

    Characters are those of the text before case folding. Of n-grams that are equally frequent the one with
    the most characters counts. 0 when every n-gram occurs once; never above 1, although occurrences overlap
    (`ha ha ha`).
    """
    total = sum(lengths)
    counts: dict[tuple[str, ...], tuple[int, int]] = {}
    for start in range(len(units) - n + 1):
        gram = tuple(units[start : start + n])
        count, characters = counts.get(gram, (0, 0))
        counts[gram] = (count + 1, characters + sum(lengths[start : start + n]))
    count, characters = max(counts.values(), default=(0, 0))
    return (min(characters, total) if count > 1 else 0), total


def duplicate_grams(units: Sequence[str], lengths: Sequence[int], n: int) -> tuple[int, int]:
    """Characters covered by n-grams that occur at least twice, every occurrence, each character once /
    characters of all units."""
    total = sum(lengths)
    starts: dict[tuple[str, ...], list[int]] = {}
    for start in range(len(units) - n + 1):
        starts.setdefault(tuple(units[start : start + n]), []).append(start)
    covered: set[int] = set()
    for occurrences in starts.values():
        if len(occurrences) > 1:
            for start in occurrences:
                covered.update(range(start, start + n))
    return sum(lengths[index] for index in covered), total
