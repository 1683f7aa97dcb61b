"""Plain twins of stages.kernels: one text at a time, in the words of the definitions.

Each function takes a text, its language file or None, and whether it is spaced, and gives every signal of
the filter.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from stages import languages
from stages.c4 import C4, C4Options
from stages.fineweb import FineWeb, FineWebOptions
from stages.gopher_quality import GopherQuality
from stages.gopher_repetition import GopherRepetition
from stages.languages import Language
from stages.scripts import SENTENCE_TERMINALS, UNSPACED_SCRIPTS

Value = int | str | tuple[int, int] | None

BULLETS = ("•", "●", "-", "*")
ELLIPSES = ("...", "…")


def quality(text: str, language: Language | None, spaced: bool) -> dict[str, Value]:
    lines = lines_of(text)
    function_words = language.function_words if language is not None else ()
    rule_set = ("words" if spaced else "characters") + (f":{language.code}" if language is not None else "")
    measured: dict[str, Value] = dict.fromkeys(GopherQuality.signals)
    measured["gopher.rule_set"] = rule_set
    measured["gopher.bullet_lines"] = (sum(line.startswith(BULLETS) for line in lines), len(lines))
    measured["gopher.ellipsis_lines"] = (sum(line.endswith(ELLIPSES) for line in lines), len(lines))
    if spaced:
        found = text.split()
        measured["gopher.words"] = len(found)
        measured["gopher.mean_word_length"] = (sum(map(len, found)), len(found))
        measured["gopher.hashes_per_word"] = (text.count("#"), len(found))
        measured["gopher.ellipses_per_word"] = (sum(map(text.count, ELLIPSES)), len(found))
        measured["gopher.alphabetic_words"] = (sum(any(map(str.isalpha, word)) for word in found), len(found))
        if function_words:
            measured["gopher.stop_words"] = len({bare(word) for word in found}.intersection(function_words))
        return measured
    characters = "".join(text.split())
    measured["gopher.characters_unspaced"] = len(characters)
    measured["gopher.script_share_unspaced"] = (_of_script(characters, language, text), len(characters))
    symbols = sum(character in "#*…•" or unicodedata.category(character)[0] == "S" for character in characters)
    measured["gopher.symbols_unspaced"] = (symbols, len(characters))
    if function_words:
        measured["gopher.stop_characters_unspaced"] = sum(word in text for word in function_words)
    return measured


def _of_script(characters: str, language: Language | None, text: str) -> int:
    own = language.scripts if language is not None else (unspaced_script(text),)
    if own == ("kana",):
        own = ("han", "kana")
    return sum(script_of(character) in own for character in characters)


def repetition(text: str, language: Language | None, spaced: bool) -> dict[str, Value]:
    measured: dict[str, Value] = dict.fromkeys(GopherRepetition.signals)
    for name, pieces in (("line", lines_of(text)), ("paragraph", paragraphs(text))):
        repeats = repeated(pieces)
        measured[f"gopher_repetition.duplicate_{name}s"] = (len(repeats), len(pieces))
        measured[f"gopher_repetition.duplicate_{name}_characters"] = (
            sum(map(len, repeats)),
            sum(map(len, pieces)),
        )
    units = text.split() if spaced else units_of(text)
    form, factor = ("gram", 1) if spaced else ("gram_unspaced", languages.characters_per_word(language))
    lengths = [len(unit) for unit in units]
    folded = [unit.casefold() for unit in units]
    for n in (2, 3, 4):
        measured[f"gopher_repetition.top_{n}_{form}"] = top_gram(folded, lengths, n * factor)
    for n in range(5, 11):
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
    total = sum(lengths)
    counts: dict[tuple[str, ...], tuple[int, int]] = {}
    for start in range(len(units) - n + 1):
        gram = tuple(units[start : start + n])
        count, characters = counts.get(gram, (0, 0))
        counts[gram] = (count + 1, characters + sum(lengths[start : start + n]))
    count, characters = max(counts.values(), default=(0, 0))
    return (min(characters, total) if count > 1 else 0), total


def duplicate_grams(units: Sequence[str], lengths: Sequence[int], n: int) -> tuple[int, int]:
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


def fineweb(text: str, language: Language | None, spaced: bool, options: FineWebOptions) -> dict[str, Value]:
    lines = lines_of(text)
    repeats = repeated(lines)
    measured: dict[str, Value] = dict.fromkeys(FineWeb.signals)
    measured["fineweb.lines"] = len(lines)
    if has_terminals(language, spaced):
        ends = (*SENTENCE_TERMINALS, '"', "”", *terminals(language), *closing(language))
        measured["fineweb.terminal_lines"] = (sum(line.endswith(ends) for line in lines), len(lines))
    measured["fineweb.duplicate_line_characters"] = (sum(map(len, repeats)), sum(map(len, lines)))
    newlines = text.count("\n")
    if spaced:
        short = sum(len(line) <= options.short_line_characters for line in lines)
        measured["fineweb.short_lines"] = (short, len(lines))
        measured["fineweb.newlines_per_word"] = (newlines, len(text.split()))
    else:
        short = sum(len(line) <= options.short_line_characters_unspaced for line in lines)
        measured["fineweb.short_lines_unspaced"] = (short, len(lines))
        measured["fineweb.newlines_per_character_unspaced"] = (newlines, characters(text))
    return measured


POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
EDIT_RULES = (
    "c4.whitespace",
    "c4.line_too_long_word",
    "c4.citation",
    "c4.no_terminal_punctuation",
    "c4.too_few_words",
    "c4.javascript",
    "c4.policy",
)
CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")


class Page:
    def __init__(self, text: str, language: Language | None, spaced: bool, options: C4Options) -> None:
        self.edits = dict.fromkeys(EDIT_RULES, 0)
        self.signals: dict[str, Value] = dict.fromkeys(C4.signals)
        self._lorem_ipsum = self._curly_brace = 0
        self._spaced = spaced
        self._options = options
        self._terminals = has_terminals(language, spaced)
        self._ends = (*SENTENCE_TERMINALS, '"', *terminals(language), *closing(language))
        kept = [line for piece in text.split("\n") if (line := self._line(piece)) is not None]
        self.text = "\n".join(kept)
        if self.text == text:
            self.edits.clear()
        self.signals["c4.lorem_ipsum_lines"] = self._lorem_ipsum
        self.signals["c4.curly_brace_lines"] = self._curly_brace
        if self._terminals or not kept:
            self.signals["c4.sentences"] = sum(sentences(line, language) for line in kept)
        self.signals["c4.characters"] = len(self.text)

    def _line(self, piece: str) -> str | None:
        """The line as it is kept, or None; counts what was done."""
        options = self._options
        line = piece.strip()
        self.edits["c4.whitespace"] += line != piece or not line
        if not line:
            return None
        if options.max_word_characters is not None and self._longest_word(line) > options.max_word_characters:
            self.edits["c4.line_too_long_word"] += 1
            return None
        if options.citations:
            line, citations = CITATION.subn("", line)
            self.edits["c4.citation"] += citations
            line = line.strip()
            if not line:
                return None
        dropped = self._failing(line)
        if dropped is not None:
            self.edits[dropped] += 1
            return None
        return line

    def _failing(self, line: str) -> str | None:
        """The first rule that drops the line; counts on the way what the page rules look for."""
        options = self._options
        ends = line.endswith(self._ends) and not line.endswith("...")
        if options.terminal_punctuation and self._terminals and not ends:
            return "c4.no_terminal_punctuation"
        if self._too_short(line):
            return "c4.too_few_words"
        lowered = line.lower()
        self._lorem_ipsum += "lorem ipsum" in lowered
        if options.javascript and "javascript" in lowered:
            return "c4.javascript"
        self._curly_brace += "{" in line
        if options.policy and any(policy in lowered for policy in POLICIES):
            return "c4.policy"
        return None

    def _longest_word(self, line: str) -> int:
        if not self._spaced:
            line = "".join(" " if script_of(character) is not None else character for character in line)
        return max(map(len, line.split()), default=0)

    def _too_short(self, line: str) -> bool:
        if self._spaced:
            return self._options.min_words is not None and len(line.split()) < self._options.min_words
        least = self._options.min_characters_unspaced
        return least is not None and characters(line) < least


def sentences(line: str, language: Language | None) -> int:
    spaced = language is None or language.spaced
    return sum(1 for _ in _sentence_end(terminals(language), closing(language), spaced).finditer(line))


@cache
def _sentence_end(terminals: tuple[str, ...], closing: tuple[str, ...], spaced: bool) -> re.Pattern[str]:
    anywhere = {*"。！？｡．"} | (set() if spaced else set(terminals))
    marks = SENTENCE_TERMINALS | anywhere | set(terminals)
    any_mark, free, bound = _class(marks), _class(anywhere), _class(marks - anywhere)
    after = _class({*"\"'”’»)]", *closing})
    # Possessive, and only from the first mark of a run: a page of dots takes linear time.
    return re.compile(f"(?<!{any_mark})(?:{bound}*+{free}{any_mark}*+|{bound}++{after}*+(?=\\s|$))")


def _class(characters: Iterable[str]) -> str:
    return "[" + "".join(re.escape(character) for character in sorted(characters)) + "]"


def terminals(language: Language | None) -> tuple[str, ...]:
    return language.terminal_punctuation if language is not None else ()


def closing(language: Language | None) -> tuple[str, ...]:
    return language.closing_marks if language is not None else ()


def has_terminals(language: Language | None, spaced: bool) -> bool:
    return language.ends_sentences if language is not None else spaced


def lines_of(text: str) -> list[str]:
    return [line for piece in text.split("\n") if (line := piece.strip())]


def paragraphs(text: str) -> list[str]:
    return [paragraph for piece in _BLANK.split(text) if (paragraph := piece.strip())]


def characters(text: str) -> int:
    """The length of a text in unspaced scripts: code points that are no whitespace."""
    return sum(map(len, text.split()))


def units_of(text: str) -> list[str]:
    found: list[str] = []
    run = False
    for character in text:
        inside = character.isalnum() and script_of(character) is None
        if inside and run:
            found[-1] += character
        elif not character.isspace():
            found.append(character)
        run = inside
    return found


def bare(word: str) -> str:
    """A word case-folded, with punctuation and symbols (Unicode general categories P and S) stripped from
    its ends."""
    return word.strip(punctuation()).casefold()


@cache
def punctuation() -> str:
    """All code points of general category P or S."""
    points = map(chr, range(sys.maxunicode + 1))
    return "".join(point for point in points if unicodedata.category(point)[0] in "PS")


_BLANK = re.compile(r"\n{2,}")


def of_document(code: str | None, text: str, default: str | None) -> tuple[Language | None, bool]:
    language = languages.load().find(code) if code is not None else None
    if language is not None:
        return language, language.spaced
    script = unspaced_script(text)
    if code is None:
        code = default if script is None else {"han": "zh", "kana": "ja", "thai": "th"}.get(script)
        language = languages.load().find(code) if code is not None else None
    return language, script is None


@cache
def script_of(character: str) -> str | None:
    """The unspaced script of a character, None for every other character."""
    point = ord(character)
    for script, ranges in UNSPACED_SCRIPTS.items():
        if any(first <= point <= last for first, last in ranges):
            return script
    return None


def unspaced_script(text: str) -> str | None:
    letters = 0
    counts: Counter[str] = Counter()
    for character in text:
        script = script_of(character)
        if script is not None:
            counts[script] += 1
            letters += 1
        elif character.isalpha():
            letters += 1
    unspaced = sum(counts.values())
    if unspaced <= 0.5 * letters:
        return None
    if counts["kana"] > 0 and counts["kana"] >= 0.1 * (counts["han"] + counts["kana"]):
        counts["kana"] += counts.pop("han", 0)
    return max(UNSPACED_SCRIPTS, key=lambda script: counts[script])
