"""C4's rules on lines and pages (Raffel et al. 2020; the reference code is c4_utils in
tensorflow/datasets).

The lines that fail are taken out, which is an edit and logged as such; the page is judged by what is left.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from manifests.rules import Rule
from stages import code_points, languages, reading, signals, text_buffers
from stages.fineweb import MOST_CHARACTERS, ends_sentences
from stages.kernels import c4 as kernels
from stages.languages import Language
from stages.stage import EXAMPLE, DataPath, Edits, Filter, Measurement, Options


class C4Options(Options):
    """What takes out a line, then what removes a page. None or false switches a rule off; numbers are
    inclusive bounds.

    FineWeb runs C4 with `terminal_punctuation: false`; datatrove and dolma with `min_words: 3`, datatrove
    with `min_sentences: 5`. `min_characters_unspaced` stands for `min_words` in scripts without spaces and
    was chosen here. `blocklist` is a file of words,
    one a line, and off by default: Dodge et al. 2021 found that it removes text by and about minorities.
    """

    max_word_characters: int | None = Field(1000, ge=0, le=MOST_CHARACTERS)
    citations: bool | None = True
    terminal_punctuation: bool | None = True
    min_words: int | None = Field(5, ge=0, le=MOST_CHARACTERS)
    min_characters_unspaced: int | None = Field(10, ge=0, le=MOST_CHARACTERS)
    javascript: bool | None = True
    policy: bool | None = True
    lorem_ipsum: bool | None = True
    curly_brace: bool | None = True
    min_sentences: int | None = 3
    max_characters: int | None = 190_000
    blocklist: DataPath | None = None
    languages: DataPath | None = Field(None, description="folder of language files beside the shipped ones, or instead of them")


class C4(Filter[C4Options]):
    """Takes out lines that are no prose, and bounds what is left of the page.

    For every line, in this order: a word longer than `max_word_characters` drops it (in unspaced scripts a
    word is a run without characters of such a script) · citations are cut out · it must end in an end mark
    and not in `...` · it needs `min_words` · `lorem ipsum` is counted · `javascript` drops it · `{` is
    counted · a policy phrase drops it. So a line that an earlier rule dropped is not looked at by a later
    one. Blank lines and whitespace around lines go too; the edit `c4.whitespace` counts those lines.

    sentences: runs of characters, in the lines that are left, ended by one or more sentence terminals and
    any closing quotes or brackets. A mark of the Latin kind ends a sentence where whitespace or the end of
    the line follows, so that `3.14` and `example.org` do not; `。` `！` `？` and the marks of an unspaced
    language end one wherever they stand. What follows the last mark is none. Undefined for languages
    without such marks, unless no line is left.
    characters: code points of what is left. blocklist_words: listed words in it; undefined without a list.
    """

    name: ClassVar[str] = "c4"
    version: ClassVar[int] = 2
    options_type: ClassVar[type[Options]] = C4Options
    signals: ClassVar[dict[str, pa.DataType]] = {
        "c4.lorem_ipsum_lines": pa.int64(),
        "c4.curly_brace_lines": pa.int64(),
        "c4.sentences": pa.int64(),
        "c4.characters": pa.int64(),
        "c4.blocklist_words": pa.int64(),
    }
    edits_text: ClassVar[bool] = True
    threshold_options: ClassVar[frozenset[str]] = frozenset({"lorem_ipsum", "curly_brace", "min_sentences", "max_characters"})

    def __init__(self, options: C4Options) -> None:
        super().__init__(options)
        self.languages = languages.load(options.languages)
        self.blocklist = Blocklist(options.blocklist) if options.blocklist is not None else None

    def identity(self) -> dict[str, str]:
        return self.languages.identity()

    def compile(self) -> None:
        self.measure(EXAMPLE)

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
        rows = self.languages.of_batch(batch)
        read = reading.of(batch["text"])
        ends = ends_sentences(rows)
        counts = np.zeros((batch.num_rows, 11), np.int64)
        left = np.empty(read.offsets[-1] - read.offsets[0], np.uint8)
        bounds = np.zeros(read.offsets.size, np.int64)
        kernels.clean_lines(
            read.data,
            read.offsets,
            read.points,
            read.kinds,
            read.starts,
            *read.words,
            *read.lines,
            read.newline_starts,
            rows.spaced,
            rows.number,
            ends,
            *self.languages.groups(line_marks),
            *self.languages.groups(terminals),
            *self.languages.groups(free_terminals),
            *self.languages.groups(after_sentence),
            *phrases(),
            self._limits(),
            counts,
            left,
            bounds,
        )
        text = text_buffers.column(left[: bounds[-1]], bounds)
        edited, rule = np.nonzero(counts[:, : len(EDIT_RULES)])
        edits = Edits(edited.tolist(), [EDIT_RULES[index] for index in rule], counts[edited, rule].tolist())
        blocked = None
        if self.blocklist is not None:
            pairs = zip(text.to_pylist(), rows.spaced, strict=True)
            blocked = [self.blocklist.count(page, bool(spaced)) for page, spaced in pairs]
        measured = [
            signals.integers(counts[:, kernels.LOREM_IPSUM]),
            signals.integers(counts[:, kernels.CURLY_BRACE]),
            signals.integers(counts[:, kernels.SENTENCES], ~ends & (np.diff(bounds) > 0)),
            signals.integers(counts[:, kernels.CLEAN_POINTS]),
            pa.nulls(batch.num_rows, pa.int64()) if blocked is None else pa.array(blocked, pa.int64()),
        ]
        return Measurement(dict(zip(self.signals, measured, strict=True)), text, edits)

    def _limits(self) -> tuple[int, bool, bool, int, int, bool, bool]:
        """The options as the kernel takes them: -1 and False switch off."""
        options = self.options
        return (
            -1 if options.max_word_characters is None else options.max_word_characters,
            bool(options.citations),
            bool(options.terminal_punctuation),
            -1 if options.min_words is None else options.min_words,
            -1 if options.min_characters_unspaced is None else options.min_characters_unspaced,
            bool(options.javascript),
            bool(options.policy),
        )


LOREM_IPSUM = "lorem ipsum"
JAVASCRIPT = "javascript"
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
FULLWIDTH_TERMINALS = "。！？｡．"
CLOSING_MARKS = "\"'”’»)]"


@functools.cache
def phrases() -> tuple[np.ndarray, np.ndarray]:
    """What the kernel looks for in lines, in the order in which it expects it."""
    return code_points.groups((LOREM_IPSUM, JAVASCRIPT, *POLICIES))


def line_marks(language: Language | None) -> str:
    """What may end a line beside Unicode's sentence terminals: `"`, and the language's marks."""
    return '"' + terminals(language) + "".join(language.closing_marks if language is not None else ())


def terminals(language: Language | None) -> str:
    """What ends a sentence beside Unicode's sentence terminals."""
    return "".join(language.terminal_punctuation if language is not None else ())


def free_terminals(language: Language | None) -> str:
    """What ends a sentence wherever it stands, and not only before whitespace."""
    return FULLWIDTH_TERMINALS + ("" if language is None or language.spaced else terminals(language))


def after_sentence(language: Language | None) -> str:
    """What may stand between the mark that ends a sentence and whitespace."""
    return CLOSING_MARKS + "".join(language.closing_marks if language is not None else ())


class Blocklist:
    """Words and phrases of a file, one a line, compared in lower case; blank lines are ignored.

    In spaced languages a word counts where no letter, digit or underscore adjoins it; in unspaced ones
    wherever it stands.
    """

    def __init__(self, path: str) -> None:
        try:
            # Windows' editors begin UTF-8 with a mark, which would become part of the first word.
            lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"the blocklist {path} is not UTF-8 text, at byte {error.start}") from None
        listed = sorted({word.strip().lower() for word in lines} - {""})
        if not listed:
            raise ValueError(f"the blocklist {path} holds no word")
        anywhere = "|".join(re.escape(word) for word in sorted(listed, key=len, reverse=True))
        self._unspaced = re.compile(anywhere)
        self._spaced = re.compile(rf"(?<!\w)(?:{anywhere})(?!\w)")

    def count(self, text: str, spaced: bool) -> int:
        """Occurrences of listed words, without overlap."""
        return len((self._spaced if spaced else self._unspaced).findall(text.lower()))
