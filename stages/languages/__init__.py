"""What the filters know of a language: one TOML file each in this folder, so that a language is added
without code.

`find("de-AT")` gives the file de.toml as a `Language`, or None where there is none. `of_document` decides
which rule set applies to a text. Fields of a file:

- `name`; `source`, where each of the lists comes from;
- `spaced`, whether words are separated by spaces; if not, `scripts`, the names in `stages.scripts` that it
is
  written in, and `characters_per_word`, how many characters stand for a word in n-grams;
- `function_words`, counted by the stop-word rules, case-folded;
- `terminal_punctuation`, marks that end a sentence beside those that `stages.scripts` knows, and
  `closing_marks`, quotes and brackets that may follow them; `ends_sentences = false` says that the language
  has no such marks, and rules that look for them do not apply.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from stages import code_points, filter_kernels, reading, scripts


class Language(BaseModel):
    """One language file, validated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    name: str
    spaced: bool = True
    scripts: tuple[str, ...] = ()
    characters_per_word: int = Field(default=1, ge=1)
    function_words: tuple[str, ...] = ()
    ends_sentences: bool = True
    terminal_punctuation: tuple[str, ...] = ()
    closing_marks: tuple[str, ...] = ()
    source: dict[str, str]


@functools.cache
def find(code: str) -> Language | None:
    """The language of an ISO 639 code, with or without a region (`zh-CN`, `pt_BR`); None where no file
    describes it."""
    primary = code.replace("_", "-").split("-")[0].lower()
    return _files().get(primary)


def known() -> list[str]:
    """The codes that have a file, sorted."""
    return sorted(_files())


def identity() -> dict[str, str]:
    """The SHA-256 of every language file and the version of Unicode, for the identity of the filters that
    use them."""
    files = {f"languages/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in _paths()}
    return files | code_points.identity()


@dataclass(frozen=True)
class Rows:
    """The languages of a batch of n documents.

    number: int32 (n,), index in `languages.every()`, -1 for a document whose language has no file.
    spaced: bool (n,), whether words are separated by spaces.
    scripts: int64 (n,), of unspaced documents, a bit 1 + k for each script k of stages.scripts it is
    written in.
    """

    number: np.ndarray
    spaced: np.ndarray
    scripts: np.ndarray

    def languages(self) -> list[Language | None]:
        """The language of every row."""
        return [every()[number] if number >= 0 else None for number in self.number]

    def per_language(self, of: Callable[[Language | None], int]) -> np.ndarray:
        """An int64 for every row: that of its language, or that of None."""
        values: np.ndarray = np.array([*map(of, every()), of(None)], np.int64)[self.number]
        return values


def of_batch(batch: pa.RecordBatch, default: str | None = None) -> Rows:
    """Which language's lists apply to every row, by its `language`; all null in a batch without that
    column.

    A code with a file decides alone. Without a file the text's letters say whether it is spaced. Where the
    code is null, an unspaced text is zh, ja or th by its letters, and a spaced one is taken for `default`.
    """
    rows = batch.num_rows
    codes = batch["language"].to_pylist() if "language" in batch.schema.names else [None] * rows
    number = np.array([_number(code) for code in codes], np.int32).reshape(rows)
    spaced = np.array([*(language.spaced for language in every()), True], bool)[number]
    own = np.array([*(_bits(language.scripts) for language in every()), 0], np.int64)[number]
    open_rows = np.flatnonzero(number < 0)
    if open_rows.size:
        read = reading.of(batch["text"])
        counts = np.zeros((rows, 1 + len(scripts.UNSPACED_SCRIPTS)), np.int64)
        filter_kernels.script_counts(read.kinds, read.starts, counts)
        names = list(scripts.UNSPACED_SCRIPTS)
        for row, unspaced, script in zip(open_rows, *scripts.unspaced(counts[open_rows]), strict=True):
            name = names[script]
            spaced[row] = not unspaced
            if codes[row] is None:
                number[row] = _number(LANGUAGE_OF_SCRIPT.get(name) if unspaced else default)
            if unspaced:
                own[row] = _bits(("han", "kana") if name == "kana" else (name,))
    return Rows(number, spaced, own)


@functools.cache
def groups(marks: Callable[[Language | None], Iterable[str]]) -> tuple[np.ndarray, np.ndarray]:
    """`code_points.groups` of the marks of every language, and as the last group those of None."""
    return code_points.groups([*map(marks, every()), marks(None)])


def characters_per_word(language: Language | None) -> int:
    """How many characters of an unspaced language stand for a word."""
    return language.characters_per_word if language is not None else CHARACTERS_PER_WORD


CHARACTERS_PER_WORD = 6
"""For unspaced languages without a file, which write alphabets as Thai does; Thai's number."""

LANGUAGE_OF_SCRIPT = {"han": "zh", "kana": "ja", "thai": "th"}
"""The language that an unspaced text without a language is taken for. Kana makes Japanese of a text that is
mostly Han."""


@functools.cache
def every() -> tuple[Language, ...]:
    """All languages that have a file, in the order of their codes."""
    return tuple(_files()[code] for code in known())


@functools.cache
def _number(code: str | None) -> int:
    language = find(code) if code is not None else None
    return known().index(language.code) if language is not None else -1


def _bits(names: Iterable[str]) -> int:
    return sum(2 << list(scripts.UNSPACED_SCRIPTS).index(name) for name in names)


@functools.cache
def _files() -> dict[str, Language]:
    languages = {}
    for path in _paths():
        languages[path.stem] = Language(code=path.stem, **tomllib.loads(path.read_text(encoding="utf-8")))
    return languages


def _paths() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.toml"))
