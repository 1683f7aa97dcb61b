"""What the filters know of a language: one TOML file each, so that a language is added without code.

`load()` gives those in this folder as `Languages`; `load(folder)` adds a user's, which replace shipped ones of the same code.
The file's name is the language's ISO 639 code (`tr.toml`). Its fields:

- `name`; `source`, where each of the lists comes from;
- `spaced`, whether words are separated by spaces; if not, `scripts`, the names in `stages.scripts` that it is written in, and
  `characters_per_word`, how many characters stand for a word in n-grams;
- `function_words`, counted by the stop-word rules, case-folded;
- `terminal_punctuation`, marks that end a sentence beside those that `stages.scripts` knows, and `closing_marks`, quotes and
  brackets that may follow them; `ends_sentences = false` says that the language has no such marks, and rules that look for them
  do not apply.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stages import code_points, reading, scripts


class Language(BaseModel):
    """One language file, validated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    name: str = Field(min_length=1)
    spaced: bool = True
    scripts: tuple[str, ...] = ()
    characters_per_word: int = Field(default=1, ge=1, le=100)
    function_words: tuple[str, ...] = ()
    ends_sentences: bool = True
    terminal_punctuation: tuple[str, ...] = ()
    closing_marks: tuple[str, ...] = ()
    source: dict[str, str]

    @field_validator("function_words")
    @classmethod
    def _as_words_are_compared(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            bare = word.casefold()
            while bare and unicodedata.category(bare[0])[0] in "PS":
                bare = bare[1:]
            while bare and unicodedata.category(bare[-1])[0] in "PS":
                bare = bare[:-1]
            if word != bare or not word or any(map(str.isspace, word)):
                raise ValueError(
                    f"{word!r} can never be found: words are compared case-folded and without punctuation at their ends"
                )
        return words

    @field_validator("terminal_punctuation", "closing_marks")
    @classmethod
    def _single_characters(cls, marks: tuple[str, ...]) -> tuple[str, ...]:
        if long := [mark for mark in marks if len(mark) != 1]:
            raise ValueError(f"{long[0]!r} is not one character")
        return marks

    @model_validator(mode="after")
    def _fits_together(self) -> Language:
        if unknown := set(self.scripts) - set(scripts.UNSPACED_SCRIPTS):
            raise ValueError(f"unknown script {sorted(unknown)[0]!r}; known: {', '.join(scripts.UNSPACED_SCRIPTS)}")
        if self.spaced == bool(self.scripts):
            raise ValueError("scripts are named for languages that are not spaced, and for those only")
        lists = ("function_words", "terminal_punctuation", "closing_marks", "characters_per_word")
        if missing := [
            name for name in lists if getattr(self, name) and name in self.model_fields_set and name not in self.source
        ]:
            raise ValueError(f"source does not say where {missing[0]} comes from")
        return self


@dataclass(frozen=True)
class Rows:
    """The languages of a batch of n documents.

    number: int32 (n,), index in `known`, -1 for a document whose language has no file.
    spaced: bool (n,), whether words are separated by spaces.
    scripts: int64 (n,), of unspaced documents, a bit 1 + k for each script k of stages.scripts it is
    written in.
    """

    known: tuple[Language, ...]
    number: np.ndarray
    spaced: np.ndarray
    scripts: np.ndarray

    def languages(self) -> list[Language | None]:
        """The language of every row."""
        return [self.known[number] if number >= 0 else None for number in self.number]

    def per_language(self, of: Callable[[Language | None], int]) -> np.ndarray:
        """An int64 for every row: that of its language, or that of None."""
        values: np.ndarray = np.array([*map(of, self.known), of(None)], np.int64)[self.number]
        return values


class Languages:
    """The languages that have a file, in the order of their codes (`known`)."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Of two files of one code the later one counts. ValueError names a file that is not right."""
        files = {path.stem: path for path in paths}
        contents = {code: _read(files[code]) for code in sorted(files)}
        self.known = tuple(_parsed(files[code], content) for code, content in contents.items())
        self._digests = {f"languages/{code}.toml": hashlib.sha256(content).hexdigest() for code, content in contents.items()}
        self._numbers = {language.code: number for number, language in enumerate(self.known)}
        self._groups: dict[Callable[[Language | None], Iterable[str]], tuple[np.ndarray, np.ndarray]] = {}
        self._scripts = np.array([*(_bits(language.scripts) for language in self.known), 0], np.int64)
        self._spaced = np.array([*(language.spaced for language in self.known), True], bool)

    def find(self, code: str) -> Language | None:
        """The language of an ISO 639 code, with or without a region (`zh-CN`, `pt_BR`); None where no file
        describes it."""
        number = self._number(code)
        return self.known[number] if number >= 0 else None

    def codes(self) -> list[str]:
        """The codes that have a file, sorted."""
        return list(self._numbers)

    def identity(self) -> dict[str, str]:
        """The SHA-256 of every language file and the version of Unicode, for the identity of the filters that
        use them."""
        return self._digests | code_points.identity()

    def of_batch(self, batch: pa.RecordBatch, default: str | None = None) -> Rows:
        """Which language's lists apply to every row, by its `language`; all null in a batch without that
        column.

        A code with a file decides alone. Without a file the text's letters say whether it is spaced. Where the
        code is null, an unspaced text is zh, ja or th by its letters, and a spaced one is taken for `default`.
        """
        rows = batch.num_rows
        codes = batch["language"].to_pylist() if "language" in batch.schema.names else [None] * rows
        number = np.array([self._number(code) for code in codes], np.int32).reshape(rows)
        spaced, own = self._spaced[number], self._scripts[number]
        open_rows = np.flatnonzero(number < 0)
        if open_rows.size:
            counts = reading.of(batch["text"]).scripts
            names = list(scripts.UNSPACED_SCRIPTS)
            for row, unspaced, script in zip(open_rows, *scripts.unspaced(counts[open_rows]), strict=True):
                name = names[script]
                spaced[row] = not unspaced
                if codes[row] is None:
                    number[row] = self._number(LANGUAGE_OF_SCRIPT.get(name) if unspaced else default)
                if unspaced:
                    own[row] = _bits(("han", "kana") if name == "kana" else (name,))
        return Rows(self.known, number, spaced, own)

    def groups(self, marks: Callable[[Language | None], Iterable[str]]) -> tuple[np.ndarray, np.ndarray]:
        """`code_points.groups` of the marks of every language, and as the last group those of None."""
        if marks not in self._groups:
            self._groups[marks] = code_points.groups([*map(marks, self.known), marks(None)])
        return self._groups[marks]

    @functools.cached_property
    def function_words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All function words: code points, where each word starts, and which word each language starts with."""
        points, starts = code_points.groups(word for language in self.known for word in language.function_words)
        return points, starts, np.cumsum([0, *(len(language.function_words) for language in self.known)])

    def _number(self, code: str | None) -> int:
        if code is None:
            return -1
        number = self._numbers.get(code)
        return self._numbers.get(code.replace("_", "-").split("-")[0].lower(), -1) if number is None else number


def load(folder: str | None = None) -> Languages:
    """The shipped languages, and those of a folder, which replace shipped ones of the same code. ValueError names a file that is
    not right, or a folder without one."""
    paths = sorted(Path(__file__).parent.glob("*.toml"))
    if folder is not None:
        own = sorted(Path(folder).glob("*.toml"))
        if not own:
            raise ValueError(f"languages: {folder} holds no file like de.toml")
        paths += own
    return _loaded(tuple((path, *_stamp(path)) for path in paths))


@functools.lru_cache(maxsize=8)
def _loaded(stamped: tuple[tuple[Path, int, int], ...]) -> Languages:
    return Languages(path for path, _, _ in stamped)


def _stamp(path: Path) -> tuple[int, int]:
    """By which a changed file is noticed."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def characters_per_word(language: Language | None) -> int:
    """How many characters of an unspaced language stand for a word."""
    return language.characters_per_word if language is not None else CHARACTERS_PER_WORD


CHARACTERS_PER_WORD = 6
"""For unspaced languages without a file, which write alphabets as Thai does; Thai's number."""

LANGUAGE_OF_SCRIPT = {"han": "zh", "kana": "ja", "thai": "th"}
"""The language that an unspaced text without a language is taken for. Kana makes Japanese of a text that is
mostly Han."""

MOST_BYTES = 1 << 20
"""Of a language file. The shipped ones have a few hundred."""


def _read(path: Path) -> bytes:
    if not re.fullmatch(r"[a-z]{2,3}", path.stem):
        raise ValueError(f"{path}: a language file has an ISO 639 code for its name, such as de.toml")
    if path.is_fifo():
        raise ValueError(f"{path}: a pipe, which would be waited for")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: a language file of more than {MOST_BYTES:,} bytes")
    return content


def _parsed(path: Path, content: bytes) -> Language:
    try:
        # Windows' editors begin UTF-8 with a mark.
        fields = tomllib.loads(content.decode("utf-8-sig"))
        if "code" in fields:
            raise ValueError(f"{path}: code: the file's name says it")
        return Language.model_validate({**fields, "code": path.stem})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from None


def _bits(names: Iterable[str]) -> int:
    return sum(2 << list(scripts.UNSPACED_SCRIPTS).index(name) for name in names)
