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
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from stages import scripts


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
    """The SHA-256 of every language file, for the identity of the filters that read them."""
    return {f"languages/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in _paths()}


def of_document(code: str | None, text: str, default: str | None) -> tuple[Language | None, bool]:
    """The language whose lists apply to a text (None: no file), and whether its words are separated by
    spaces.

    A `code` with a file decides alone. Without a file the text's letters say whether it is spaced. Without
    a code an unspaced text is zh, ja or th by its letters, and a spaced one is taken for `default`.
    """
    if code is not None:
        language = find(code)
        if language is not None:
            return language, language.spaced
        return None, scripts.unspaced_script(text) is None
    script = scripts.unspaced_script(text)
    if script is None:
        return (find(default) if default is not None else None), True
    code = LANGUAGE_OF_SCRIPT.get(script)
    return (find(code) if code is not None else None), False


def characters_per_word(language: Language | None) -> int:
    """How many characters of an unspaced language stand for a word."""
    return language.characters_per_word if language is not None else CHARACTERS_PER_WORD


CHARACTERS_PER_WORD = 6
"""For unspaced languages without a file, which write alphabets as Thai does; Thai's number."""

LANGUAGE_OF_SCRIPT = {"han": "zh", "kana": "ja", "thai": "th"}
"""The language that an unspaced text without a language is taken for. Kana makes Japanese of a text that is
mostly Han."""


@functools.cache
def _files() -> dict[str, Language]:
    languages = {}
    for path in _paths():
        languages[path.stem] = Language(code=path.stem, **tomllib.loads(path.read_text(encoding="utf-8")))
    return languages


def _paths() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.toml"))
