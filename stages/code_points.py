"""Tables over code points for the compiled filters, made once in a process from Python's own Unicode data.

What counts as what: *whitespace* is `str.isspace`, *alphabetic* `str.isalpha`, a *letter or digit*
`str.isalnum`, *punctuation* general category P or S, a *symbol* category S or one of `# * … •`, a *digit*
general category Nd; scripts and sentence terminals are those of `stages.scripts`.

A *word* is a maximal run of characters that are not whitespace. A *line* is a piece between `\\n`,
stripped, empty ones ignored; a *paragraph* one between runs of two or more `\\n`. So ten distinct lines
joined by three newlines are ten lines, and none is a duplicate. In scripts without spaces *units* take the
place of words: single characters, whitespace left out, but a maximal run of letters and digits of other
scripts is one unit, since a name in Latin letters that a Chinese article repeats is one word of it.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

import numpy as np

from stages import scripts
from stages.kernels import reading as kernels

SYMBOLS = frozenset("#*…•")


def identity() -> dict[str, str]:
    """The version of Unicode that Python brings, which decides what is a letter."""
    return {"unicode": unicodedata.unidata_version}


@cache
def classes() -> np.ndarray:
    """uint16 by code point: bits as named in `stages.kernels.reading`. What stands above its end is in no
    class."""
    table = np.zeros(sys.maxunicode + 1, np.uint16)
    for point in _assigned():
        character = chr(point)
        category = unicodedata.category(character)
        table[point] = (
            kernels.SPACE * character.isspace()
            | kernels.ALPHABETIC * character.isalpha()
            | kernels.ALPHANUMERIC * character.isalnum()
            | kernels.PUNCTUATION * (category[0] in "PS")
            | kernels.SYMBOL * (category[0] == "S" or character in SYMBOLS)
            | kernels.DIGIT * (category == "Nd")
        )
    for mark in scripts.SENTENCE_TERMINALS:
        table[ord(mark)] |= kernels.TERMINAL
    for number, ranges in enumerate(scripts.UNSPACED_SCRIPTS.values(), 1):
        for first, last in ranges:
            table[first : last + 1] |= number << kernels.SCRIPT_SHIFT
    return _trimmed(table)


@cache
def case_folding() -> tuple[np.ndarray, np.ndarray]:
    """`str.casefold` as (int32 by code point, int32 rows of up to three): the folded code point, or -1 - k
    for row k.

    What stands above the first table's end folds to itself; rows are filled up with 0.
    """
    fold = np.arange(sys.maxunicode + 1, dtype=np.int32)
    expansions: list[list[int]] = []
    for point in _assigned():
        folded = chr(point).casefold()
        if len(folded) == 1:
            fold[point] = ord(folded)
        else:
            fold[point] = -1 - len(expansions)
            expansions.append([*map(ord, folded), 0, 0][:3])
    changed = np.flatnonzero(fold != np.arange(fold.size))
    return fold[: changed[-1] + 1].copy(), np.array(expansions, np.int32)


def groups(strings: Iterable[Iterable[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Characters of k groups as (int32 code points, int64 (k + 1,) where each group starts)."""
    lists = [[ord(character) for character in string] for string in strings]
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return np.array([point for points in lists for point in points], np.int32), starts


LAST_PLANE = 0x40000
"""Beyond are unassigned planes, tags, variation selectors and private use: none of our classes, and nothing
folds there."""


def _assigned() -> range:
    return range(LAST_PLANE)


def _trimmed(table: np.ndarray) -> np.ndarray:
    return table[: np.flatnonzero(table)[-1] + 1].copy()
