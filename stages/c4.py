"""C4's rules on lines and pages (Raffel et al. 2020; the reference code is c4_utils in
tensorflow/datasets).

The lines that fail are taken out, which is an edit and logged as such; the page is judged by what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from manifests.rules import Rule
from stages import languages, scripts, signals, words
from stages.fineweb import has_terminals
from stages.languages import Language
from stages.stage import DataPath, Edits, Filter, Measurement, Options


class C4Options(Options):
    """What takes out a line, then what removes a page. None or false switches a rule off; numbers are
    inclusive bounds.

    FineWeb runs C4 with `terminal_punctuation: false`; datatrove and dolma with `min_words: 3`, datatrove
    with `min_sentences: 5`. `min_characters_unspaced` stands for `min_words` in scripts without spaces and
    was chosen here. `blocklist` is a file of words,
    one a line, and off by default: Dodge et al. 2021 found that it removes text by and about minorities.
    """

    max_word_characters: int | None = 1000
    citations: bool | None = True
    terminal_punctuation: bool | None = True
    min_words: int | None = 5
    min_characters_unspaced: int | None = 10
    javascript: bool | None = True
    policy: bool | None = True
    lorem_ipsum: bool | None = True
    curly_brace: bool | None = True
    min_sentences: int | None = 3
    max_characters: int | None = 190_000
    blocklist: DataPath | None = None


class C4(Filter[C4Options]):
    """Takes out lines that are no prose, and bounds what is left of the page."""

    name: ClassVar[str] = "c4"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = C4Options
    signals: ClassVar[dict[str, pa.DataType]] = {
        "c4.lorem_ipsum_lines": pa.int64(),
        "c4.curly_brace_lines": pa.int64(),
        "c4.sentences": pa.int64(),
        "c4.characters": pa.int64(),
        "c4.blocklist_words": pa.int64(),
    }
    edits_text: ClassVar[bool] = True
    measuring_options: ClassVar[frozenset[str]] = frozenset(
        {
            "max_word_characters",
            "citations",
            "terminal_punctuation",
            "min_words",
            "min_characters_unspaced",
            "javascript",
            "policy",
            "blocklist",
        }
    )

    def __init__(self, options: C4Options) -> None:
        super().__init__(options)
        self.blocklist = Blocklist(options.blocklist) if options.blocklist is not None else None

    def identity(self) -> dict[str, str]:
        return languages.identity()

    def rules(self) -> list[Rule]:
        options = self.options
        rules = []
        if options.lorem_ipsum:
            rules.append(Rule(name="c4.lorem_ipsum", signal="c4.lorem_ipsum_lines", keep_if_at_most=0))
        if options.curly_brace:
            rules.append(Rule(name="c4.curly_brace", signal="c4.curly_brace_lines", keep_if_at_most=0))
        if options.min_sentences is not None:
            rules.append(Rule(name="c4.min_sentences", signal="c4.sentences", keep_if_at_least=options.min_sentences))
        if options.max_characters is not None:
            rules.append(Rule(name="c4.max_characters", signal="c4.characters", keep_if_at_most=options.max_characters))
        if options.blocklist is not None:
            rules.append(Rule(name="c4.blocklist", signal="c4.blocklist_words", keep_if_at_most=0))
        return rules

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        texts, documents, edits = [], [], Edits()
        for row, (text, code) in enumerate(zip(batch["text"].to_pylist(), signals.languages(batch), strict=True)):
            language, spaced = languages.of_document(code, text, None)
            page = Page(text, language, spaced, self.options)
            for rule, count in page.edits.items():
                edits.add(row, rule, count)
            if self.blocklist is not None:
                page.signals["c4.blocklist_words"] = self.blocklist.count(page.text, spaced)
            texts.append(page.text)
            documents.append(page.signals)
        return Measurement(signals.columns(self.signals, documents), pa.array(texts, pa.large_string()), edits)


CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
END_MARKS = (".", "?", "!", '"')
ELLIPSIS = "..."
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


class Page:
    """One page through the rules on lines: `text` is what is left, `edits` what was done, `signals` what
    the page is judged by.

    For every line, in this order: a word longer than `max_word_characters` drops it (in unspaced scripts a
    word is a run without characters of such a script) · citations are cut out · it must end in an end mark
    and not in `...` · it needs `min_words` · `lorem ipsum` is counted · `javascript` drops it · `{` is
    counted · a policy phrase drops it. So a line that an earlier rule dropped is not looked at by a later
    one. Blank lines and whitespace around lines go too; the edit `c4.whitespace` counts those lines.
    """

    def __init__(self, text: str, language: Language | None, spaced: bool, options: C4Options) -> None:
        self.edits = dict.fromkeys(EDIT_RULES, 0)
        self.signals: dict[str, signals.Value] = dict.fromkeys(C4.signals)
        self._lorem_ipsum = self._curly_brace = 0
        self._spaced = spaced
        self._options = options
        self._terminals = has_terminals(language, spaced)
        self._ends = end_marks(_terminals(language), _closing(language))
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
        ends = line.endswith(self._ends) and not line.endswith(ELLIPSIS)
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
            line = "".join(" " if scripts.script_of(character) is not None else character for character in line)
        return max(map(len, line.split()), default=0)

    def _too_short(self, line: str) -> bool:
        if self._spaced:
            return self._options.min_words is not None and len(line.split()) < self._options.min_words
        least = self._options.min_characters_unspaced
        return least is not None and words.characters(line) < least


@cache
def end_marks(terminals: tuple[str, ...], closing: tuple[str, ...]) -> tuple[str, ...]:
    """What a line may end in: `.` `?` `!` `"`, every sentence terminal of other scripts, and the language's
    own marks."""
    return tuple(sorted({*END_MARKS, *scripts.SENTENCE_TERMINALS, *terminals, *closing}))


def sentences(line: str, language: Language | None) -> int:
    """Sentences of a line: runs of characters ended by one or more sentence terminals and any closing
    quotes or brackets.

    A mark of the Latin kind (`.` `?` `!` and those of other spaced scripts) ends a sentence where
    whitespace or the end of the line follows, so that `3.14` and `example.org` do not; `。` `！` `？` and the
    marks of an unspaced language end one wherever they stand. What follows the last mark is none.
    """
    spaced = language is None or language.spaced
    return sum(1 for _ in _sentence_end(_terminals(language), _closing(language), spaced).finditer(line))


@cache
def _sentence_end(terminals: tuple[str, ...], closing: tuple[str, ...], spaced: bool) -> re.Pattern[str]:
    anywhere = FULLWIDTH_TERMINALS | (frozenset() if spaced else frozenset(terminals))
    marks = scripts.SENTENCE_TERMINALS | anywhere | set(terminals)
    any_mark, free, bound = _class(marks), _class(anywhere), _class(marks - anywhere)
    after = _class({*CLOSING_MARKS, *closing})
    # Possessive, and only from the first mark of a run: a page of dots takes linear time.
    return re.compile(f"(?<!{any_mark})(?:{bound}*+{free}{any_mark}*+|{bound}++{after}*+(?=\\s|$))")


def _class(characters: Iterable[str]) -> str:
    return "[" + "".join(re.escape(character) for character in sorted(characters)) + "]"


def _terminals(language: Language | None) -> tuple[str, ...]:
    return language.terminal_punctuation if language is not None else ()


def _closing(language: Language | None) -> tuple[str, ...]:
    return language.closing_marks if language is not None else ()


FULLWIDTH_TERMINALS = frozenset("。！？｡．")
CLOSING_MARKS = ('"', "'", "”", "’", "»", ")", "]")


class Blocklist:
    """Words and phrases of a file, one a line, compared in lower case; blank lines are ignored.

    In spaced languages a word counts where no letter, digit or underscore adjoins it; in unspaced ones
    wherever it stands.
    """

    def __init__(self, path: str) -> None:
        listed = sorted({word.strip().lower() for word in Path(path).read_text(encoding="utf-8").split("\n")} - {""})
        if not listed:
            raise ValueError(f"the blocklist {path} holds no word")
        anywhere = "|".join(re.escape(word) for word in sorted(listed, key=len, reverse=True))
        self._unspaced = re.compile(anywhere)
        self._spaced = re.compile(rf"(?<!\w)(?:{anywhere})(?!\w)")

    def count(self, text: str, spaced: bool) -> int:
        """Occurrences of listed words, without overlap."""
        return len((self._spaced if spaced else self._unspaced).findall(text.lower()))
