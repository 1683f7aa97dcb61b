"""Gopher's quality rules (Rae et al. 2021, appendix A1.1), and their equivalents for scripts without
spaces."""

from __future__ import annotations

import unicodedata
from typing import ClassVar

import pyarrow as pa

from manifests.rules import RATIO, Rule
from stages import languages, scripts, signals, words
from stages.languages import Language
from stages.stage import Filter, Measurement, Options


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
    measuring_options: ClassVar[frozenset[str]] = frozenset({"default_language"})

    def identity(self) -> dict[str, str]:
        return languages.identity()

    def rules(self) -> list[Rule]:
        rules = []
        for option, bound in self.options.model_dump().items():
            if option == "default_language" or bound is None:
                continue
            side, _, signal = option.partition("_")
            condition = "keep_if_at_least" if side == "min" else "keep_if_at_most"
            rules.append(Rule(name=f"gopher.{option}", signal=f"gopher.{signal}", **{condition: bound}))
        return rules

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        documents = [
            measure_text(text, *languages.of_document(code, text, self.options.default_language))
            for text, code in zip(batch["text"].to_pylist(), signals.languages(batch), strict=True)
        ]
        return Measurement(signals.columns(self.signals, documents))


BULLETS = ("•", "●", "-", "*")
ELLIPSES = ("...", "…")


def measure_text(text: str, language: Language | None, spaced: bool) -> dict[str, signals.Value]:
    """Every signal of one text.

    rule_set: `words` or `characters`, and the code of the language file used (`words:en`), if any.
    mean_word_length: code points / words. hashes_per_word, ellipses_per_word: occurrences of `#`, and of
    `...` or `…`, / words.
    bullet_lines, ellipsis_lines: lines that start with a bullet, or end in an ellipsis, / lines.
    alphabetic_words: words with at least one alphabetic character / words.
    stop_words: distinct function words of the language found, case-folded, punctuation stripped; undefined
    without a language file.
    characters_unspaced: code points but whitespace. script_share_unspaced: those of the language's own
    script / all of them.
    symbols_unspaced: `#`, `*`, `…`, `•` and code points of category S / all of them.
    stop_characters_unspaced: distinct function words of the language that occur anywhere.
    """
    lines = words.lines(text)
    function_words = language.function_words if language is not None else ()
    rule_set = ("words" if spaced else "characters") + (f":{language.code}" if language is not None else "")
    measured: dict[str, signals.Value] = dict.fromkeys(GopherQuality.signals)
    measured["gopher.rule_set"] = rule_set
    measured["gopher.bullet_lines"] = (sum(line.startswith(BULLETS) for line in lines), len(lines))
    measured["gopher.ellipsis_lines"] = (sum(line.endswith(ELLIPSES) for line in lines), len(lines))
    if spaced:
        found = words.split(text)
        measured["gopher.words"] = len(found)
        measured["gopher.mean_word_length"] = (sum(map(len, found)), len(found))
        measured["gopher.hashes_per_word"] = (text.count("#"), len(found))
        measured["gopher.ellipses_per_word"] = (sum(map(text.count, ELLIPSES)), len(found))
        measured["gopher.alphabetic_words"] = (sum(any(map(str.isalpha, word)) for word in found), len(found))
        if function_words:
            measured["gopher.stop_words"] = len({words.bare(word) for word in found}.intersection(function_words))
        return measured
    characters = "".join(words.split(text))
    measured["gopher.characters_unspaced"] = len(characters)
    measured["gopher.script_share_unspaced"] = (_of_script(characters, language, text), len(characters))
    symbols = sum(character in SYMBOLS or unicodedata.category(character)[0] == "S" for character in characters)
    measured["gopher.symbols_unspaced"] = (symbols, len(characters))
    if function_words:
        measured["gopher.stop_characters_unspaced"] = sum(word in text for word in function_words)
    return measured


SYMBOLS = frozenset("#*…•")


def _of_script(characters: str, language: Language | None, text: str) -> int:
    own = language.scripts if language is not None else (scripts.unspaced_script(text),)
    return sum(scripts.script_of(character) in own for character in characters)
