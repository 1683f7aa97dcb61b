"""Words, lines and paragraphs, as every rule counts them.

A *word* is a maximal run of characters that are not whitespace (`str.isspace`: Unicode White_Space, and
U+001C to U+001F). Its length is in code points. A *line* is a piece between `\\n`, stripped of whitespace,
empty ones ignored. A *paragraph* is a piece between runs of two or more `\\n`, stripped, empty ones
ignored. So ten distinct lines joined by three newlines are ten lines, and none is a duplicate.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

from stages import scripts


def lines(text: str) -> list[str]:
    return [line for piece in text.split("\n") if (line := piece.strip())]


def paragraphs(text: str) -> list[str]:
    return [paragraph for piece in _BLANK.split(text) if (paragraph := piece.strip())]


def split(text: str) -> list[str]:
    return text.split()


def characters(text: str) -> int:
    """The length of a text in unspaced scripts: code points that are no whitespace."""
    return sum(map(len, text.split()))


def units(text: str) -> list[str]:
    """What takes the place of words in n-grams of unspaced scripts: single characters, whitespace left out.

    But a maximal run of letters and digits (`str.isalnum`) of other scripts is one unit: a name in Latin
    letters that a Chinese article repeats is one word of it, and no repeated 10-gram.
    """
    found: list[str] = []
    run = False
    for character in text:
        inside = character.isalnum() and scripts.script_of(character) is None
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
