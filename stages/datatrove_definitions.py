"""The signals of `gopher_repetition` and `fineweb` as datatrove 0.10 defines them, for `compat: datatrove`.

Words are the tokens of a blank spaCy tokenizer, so punctuation marks are words too. Text is not stripped and case is not
folded; lengths are code points. Source: what that project's two filters answer, seen on the golden texts of tests/stages and
on 2,000 real documents (tests/real/test_datatrove.py), all of whose verdicts and reasons agree. Plain Python without a bar
on speed. Scripts without spaces are measured as without `compat`: datatrove takes their words from other libraries.
"""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa

from manifests.rules import Rule
from stages import scripts
from stages.stage import Measurement

TOP = (2, 3, 4)
DUPLICATE = (5, 6, 7, 8, 9, 10)


def identity() -> dict[str, str]:
    """The version of spaCy, which decides what a word is; ValueError says what to install where it is missing."""
    try:
        return {"spacy": metadata.version("spacy")}
    except metadata.PackageNotFoundError:
        raise ValueError(
            "compat: datatrove takes words from spaCy, which is not installed here: pip install 'corpusmill[compat]'"
        ) from None


def repetition(batch: pa.RecordBatch, ours: Measurement, spaced: np.ndarray) -> Measurement:
    """`ours`, the measurement without `compat`, with datatrove's values for documents that write spaces.

    duplicate_lines, duplicate_paragraphs: pieces between runs of newlines that stood before / all pieces, where empty ones
    at the ends of the text count as lines; duplicate_…_characters: their characters / all of the text, newlines included.
    top_n_gram: occurrences of the most frequent n-gram, of equals the one that came first, times its length with a space
    between words / characters of the text. So it is above 0 when it occurs once, and can be above 1.
    duplicate_n_gram: reading forward, an n-gram whose letters stood before counts its characters and is jumped over; it
    is only remembered, and the reading moves one word, where they did not / characters of the text.
    """
    return _where_spaced(batch, ours, spaced, "gopher_repetition.", _repetition_of)


def repetition_rules(rules: list[Rule]) -> list[Rule]:
    """The rules in datatrove's order: paragraphs, lines, n-grams. Those on pieces remove an empty text, whose shares are
    undefined."""
    in_order = sorted(rules, key=lambda rule: ("paragraph" not in rule.name, "line" not in rule.name))
    return [rule.model_copy(update={"when_undefined": "remove"}) if _on_pieces(rule) else rule for rule in in_order]


def fineweb(batch: pa.RecordBatch, ours: Measurement, spaced: np.ndarray, short_line_characters: int) -> Measurement:
    """`ours` with datatrove's values for documents that write spaces.

    lines: pieces between newlines that hold more than whitespace, whitespace around them included. terminal_lines: those
    whose last character is one of TERMINALS / lines. duplicate_line_characters: characters of lines that stood before /
    characters but newlines. newlines_per_word: newlines / words.
    """

    def of_document(text: str, language: str | None) -> dict[str, Any]:
        return _lines_of(text, language, short_line_characters)

    return _where_spaced(batch, ours, spaced, "fineweb.", of_document)


def words(text: str, language: str | None = "en") -> list[str]:
    """The tokens of spaCy's blank tokenizer that hold more than whitespace. Without a language English's; the
    multi-language one where spaCy has none for it, or has one that needs another library. Long runs of marks are cut: see
    `LONGEST_RUN`."""
    code = _spacy_code(language)
    pipeline = _pipeline(code)
    if len(pipeline.vocab) > MOST_WORD_FORMS:
        # Its memory zones would forget words too, but after one of them it fails on texts that say `IS_ALPHA`.
        del _pipelines[code]
        pipeline = _pipeline(code)
    return [word for piece in _tractable(text) for token in pipeline.tokenizer(piece) if (word := token.text.strip())]


MOST_WORD_FORMS = 200_000
"""A tokenizer remembers every word form it saw; beyond this many (about 100 MB) a new one is made."""

LONGEST_RUN, MARKS, CUT = 2000, 0.1, 200
"""spaCy takes marks off the ends of a run without whitespace one by one, which takes the square of their number: 68 s for 30,000
brackets. A run of more than LONGEST_RUN characters with more than this share of MARKS, neither letters nor digits, is cut
into pieces of CUT characters; the documents of the test data have none."""
LONGEST_PIECE = 20_000
"""Of any other run. Its test for URLs takes the square of some (14 s for 200,000 characters of `httpaaaaaaaaaa:`)."""

NEED_OTHER_LIBRARIES = frozenset({"ja", "ko", "th", "vi", "zh"})

_OTHER_TERMINALS = (
    (0x1B7D, 0x1B7E), (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x11047, 0x11048), (0x110BE, 0x110C1),
    (0x11141, 0x11143),
    (0x111C5, 0x111C6), (0x111CD, 0x111CD), (0x111DE, 0x111DF), (0x11238, 0x11239), (0x1123B, 0x1123C), (0x112A9, 0x112A9),
    (0x1144B, 0x1144C), (0x115C2, 0x115C3), (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11944, 0x11944),
    (0x11946, 0x11946), (0x11A42, 0x11A43), (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8), (0x11F43, 0x11F44),
    (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44), (0x16E98, 0x16E98), (0x1BC9F, 0x1BC9F),
    (0x1DA88, 0x1DA88),
)  # fmt: skip
"""Unicode 15, PropList.txt, Sentence_Terminal, those that `stages.scripts` does not name; inclusive."""

KHMER_SIGNS = frozenset("\u17d6\u17d9\u17da")

TERMINALS = tuple(
    sorted(
        scripts.SENTENCE_TERMINALS
        | KHMER_SIGNS
        | {chr(point) for first, last in _OTHER_TERMINALS for point in range(first, last + 1)}
    )
)
"""What ends a line: Unicode's sentence terminals and three Khmer signs. No quotation mark does."""


def _where_spaced(
    batch: pa.RecordBatch,
    ours: Measurement,
    spaced: np.ndarray,
    prefix: str,
    of_document: Callable[[str, str | None], dict[str, Any]],
) -> Measurement:
    codes = batch["language"].to_pylist() if "language" in batch.schema.names else [None] * batch.num_rows
    columns = {name: column.to_pylist() for name, column in ours.signals.items()}
    for row, (text, code) in enumerate(zip(batch["text"].to_pylist(), codes, strict=True)):
        if not spaced[row]:
            continue
        for name, value in of_document(text or "", code).items():
            columns[prefix + name][row] = value
    return Measurement({name: pa.array(columns[name], column.type) for name, column in ours.signals.items()})


def _on_pieces(rule: Rule) -> bool:
    return "paragraph" in rule.name or "line" in rule.name


def _repetition_of(text: str, language: str | None) -> dict[str, dict[str, int]]:
    lines, paragraphs = re.split(r"\n+", text), re.split(r"\n{2,}", text.strip())
    repeated_lines, repeated_paragraphs = _repeats(lines), _repeats(paragraphs)
    characters = len(text)
    found = words(text, language)
    # An empty text is removed by the first rule, since its shares are undefined (`repetition_rules`).
    values: dict[str, dict[str, int]] = {
        "duplicate_lines": _ratio(len(repeated_lines), len(lines) if text else 0),
        "duplicate_paragraphs": _ratio(len(repeated_paragraphs), len(paragraphs) if text else 0),
        "duplicate_line_characters": _ratio(sum(map(len, repeated_lines)), characters),
        "duplicate_paragraph_characters": _ratio(sum(map(len, repeated_paragraphs)), characters),
    }
    for n in TOP:
        grams = Counter(" ".join(found[at : at + n]) for at in range(len(found) - n + 1))
        top = max(grams, key=grams.__getitem__, default="")  # of equals the first, for a Counter keeps their order
        values[f"top_{n}_gram"] = _ratio(len(top) * grams[top], characters)
    for n in DUPLICATE:
        values[f"duplicate_{n}_gram"] = _ratio(_duplicate_characters(found, n), characters)
    return values


def _ratio(numerator: int, denominator: int) -> dict[str, int]:
    return {"numerator": numerator, "denominator": denominator}


def _repeats(pieces: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    repeated = []
    for piece in pieces:
        if piece in seen:
            repeated.append(piece)
        seen.add(piece)
    return repeated


def _duplicate_characters(found: list[str], n: int) -> int:
    seen: set[str] = set()
    characters = at = 0
    while at + n <= len(found):
        gram = "".join(found[at : at + n])  # without spaces: `ab c` is `a bc` here
        if gram in seen:
            characters += len(gram)
            at += n
        else:
            seen.add(gram)
            at += 1
    return characters


def _lines_of(text: str, language: str | None, short_line_characters: int) -> dict[str, int | dict[str, int]]:
    lines = [line for line in text.split("\n") if line.strip()]
    newlines = text.count("\n")
    return {
        "lines": len(lines),
        "terminal_lines": _ratio(sum(line.endswith(TERMINALS) for line in lines), len(lines)),
        "short_lines": _ratio(sum(len(line) <= short_line_characters for line in lines), len(lines)),
        "duplicate_line_characters": _ratio(sum(map(len, _repeats(lines))), len(text) - newlines),
        "newlines_per_word": _ratio(newlines, len(words(text, language))),
    }


def _tractable(text: str) -> Iterator[str]:
    start = 0
    for run in _LONG_RUN.finditer(text):
        marks = sum(not character.isalnum() for character in run[0])
        size = CUT if marks > MARKS * len(run[0]) else LONGEST_PIECE
        if len(run[0]) > size:
            yield text[start : run.start()]
            for at in range(0, len(run[0]), size):
                yield run[0][at : at + size]
            start = run.end()
    yield text[start:]


_LONG_RUN = re.compile(rf"\S{{{LONGEST_RUN + 1},}}")


def _spacy_code(language: str | None) -> str:
    if language is None:
        return "en"
    code = language.replace("_", "-").split("-")[0].lower()
    return code if code in _spacy_languages() else "xx"


@cache
def _spacy_languages() -> frozenset[str]:
    from spacy import lang

    return frozenset(module.name for module in pkgutil.iter_modules(lang.__path__) if module.ispkg) - NEED_OTHER_LIBRARIES


_pipelines: dict[str, Any] = {}


def _pipeline(code: str) -> Any:
    if code not in _pipelines:
        import spacy

        _pipelines[code] = spacy.blank(code)
    return _pipelines[code]
