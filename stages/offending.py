"""Where in a text a rule was broken: the lines, words or passages that a person should look at first.

Places are (start, end, what) in code points. They show what the rule measures by its definition (see the filters' modules) in
plain Python, for one text at a time; the measured value is the one on record. A rule about the whole text, such as its number
of words, has no place.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SHINGLE_WORDS = 5
"""A passage is shared with a twin where so many words in a row are (the default of minhash)."""
LONGEST_DIFF = 4_000_000
"""Words of one text x words of the other up to which two texts are compared word by word; beyond, by shingles."""
MOST_PLACES = 200
_WORD = re.compile(r"\S+")
_LINE = re.compile(r"[^\n]+")
_PARAGRAPH = re.compile(r"[^\n]+(?:\n[^\n]+)*")
_TERMINAL = (".", "?", "!", '"')


@dataclass(frozen=True)
class Place:
    start: int
    end: int
    what: str


def offending_places(text: str, removal: dict[str, Any], twin: str | None = None) -> list[Place]:
    """The places of `text` that its removal row is about, in order, at most MOST_PLACES; `twin` is the text of the document
    that was kept instead."""
    stage, _, rule = str(removal["rule"]).partition(".")
    if removal.get("evidence"):
        places = _passage(text, str(removal["evidence"]), f"in {removal['benchmark']} {removal['item'] or ''}".strip())
    elif twin is not None:
        places = shared_passages(text, twin, f"also in {removal['kept_id']}")
    else:
        find = _FINDERS.get((stage, rule.removesuffix("_unspaced"))) or _numbered(stage, rule)
        places = list(find(text, removal.get("threshold"))) if find is not None else []
    return sorted(places, key=lambda place: (place.start, place.end))[:MOST_PLACES]


def shared_passages(text: str, other: str, what: str) -> list[Place]:
    """The parts of `text` made of runs of SHINGLE_WORDS words that `other` has too, case folded; of the shorter text all words
    are one run."""
    words, others = _words(text), [word for word, *_ in _words(other)]
    size = max(1, min(SHINGLE_WORDS, len(words), len(others)))
    known = {tuple(others[at : at + size]) for at in range(len(others) - size + 1)}
    covered = [False] * len(words)
    for at in range(len(words) - size + 1):
        if tuple(word for word, *_ in words[at : at + size]) in known:
            covered[at : at + size] = [True] * size
    return _runs(words, covered, what)


def differences(text: str, other: str) -> tuple[list[Place], list[Place]]:
    """The parts of either text that the other has not."""
    mine, theirs = _words(text), _words(other)
    if len(mine) * len(theirs) > LONGEST_DIFF:
        return _rest(mine, shared_passages(text, other, "")), _rest(theirs, shared_passages(other, text, ""))
    matcher = difflib.SequenceMatcher(None, [word for word, *_ in mine], [word for word, *_ in theirs], autojunk=False)
    sides = [True] * len(mine), [True] * len(theirs)
    for block in matcher.get_matching_blocks():
        for side, start in zip(sides, (block.a, block.b), strict=True):
            side[start : start + block.size] = [False] * block.size
    return _runs(mine, sides[0], "differs"), _runs(theirs, sides[1], "differs")


def _rest(words: list[tuple[str, int, int]], shared: list[Place]) -> list[Place]:
    """The words outside `shared`, whose places are in order and apart."""
    outside, at = [], 0
    for _, start, _ in words:
        while at < len(shared) and shared[at].end <= start:
            at += 1
        outside.append(at == len(shared) or start < shared[at].start)
    return _runs(words, outside, "differs")


def _words(text: str) -> list[tuple[str, int, int]]:
    return [(match[0].casefold(), match.start(), match.end()) for match in _WORD.finditer(text)]


def _runs(words: list[tuple[str, int, int]], wanted: list[bool], what: str) -> list[Place]:
    places: list[Place] = []
    open_ = False
    for (_, start, end), mine in zip(words, wanted, strict=True):
        if mine and open_:
            places[-1] = Place(places[-1].start, end, what)
        elif mine:
            places.append(Place(start, end, what))
        open_ = mine
    return places


def _passage(text: str, evidence: str, what: str) -> list[Place]:
    """Where the words of the evidence stand one after another, whatever case and punctuation they have; else the longest run of
    them that does, since evidence shows the words around a match too, and may be cut."""
    mine = [(re.sub(r"[^\w]", "", word), start, end) for word, start, end in _words(text)]
    mine = [one for one in mine if one[0]]
    sought = [word for word in (re.sub(r"[^\w]", "", one) for one in evidence.casefold().split()) if word]
    if not mine or not sought:
        return []
    matcher = difflib.SequenceMatcher(None, [word for word, *_ in mine], sought, autojunk=False)
    block = matcher.find_longest_match()
    return (
        [Place(mine[block.a][1], mine[block.a + block.size - 1][2], what)] if block.size > 1 or block.size == len(sought) else []
    )


Finder = Callable[[str, "float | None"], Iterator[Place]]


def _pattern(pattern: str, what: str, flags: int = 0) -> Finder:
    compiled = re.compile(pattern, flags)
    return lambda text, _: (Place(match.start(), match.end(), what) for match in compiled.finditer(text))


def _lines(keep: Callable[[str, float | None], bool], what: str) -> Finder:
    def find(text: str, threshold: float | None) -> Iterator[Place]:
        for match in _LINE.finditer(text):
            line = match[0].strip()
            if line and keep(line, threshold):
                yield Place(match.start(), match.end(), what)

    return find


def _repeated(pattern: re.Pattern[str], what: str) -> Finder:
    def find(text: str, threshold: float | None) -> Iterator[Place]:
        seen: set[str] = set()
        for match in pattern.finditer(text):
            piece = match[0].strip()
            if piece and piece in seen:
                yield Place(match.start(), match.end(), what)
            seen.add(piece)

    return find


def _numbered(stage: str, rule: str) -> Finder | None:
    """Rules of n-grams, whose n is in their name."""
    found = re.fullmatch(r"max_(top|duplicate)_(\d+)_gram(_unspaced)?", rule)
    if stage != "gopher_repetition" or found is None:
        return None
    size, top, unspaced = int(found[2]), found[1] == "top", found[3] is not None

    def find(text: str, threshold: float | None) -> Iterator[Place]:
        pieces = [(match[0], match.start(), match.end()) for match in re.finditer(r"\S", text)] if unspaced else _words(text)
        grams = [tuple(piece for piece, *_ in pieces[at : at + size]) for at in range(len(pieces) - size + 1)]
        counts = Counter(grams)
        again = {gram for gram, number in counts.items() if number > 1}
        if top and again:
            again = {max(again, key=lambda gram: (counts[gram], sum(map(len, gram))))}
        covered = [False] * len(pieces)
        for at, gram in enumerate(grams):
            if gram in again:
                covered[at : at + size] = [True] * size
        yield from _runs(pieces, covered, f"the most frequent {size}-gram" if top else f"{size}-grams that occur again")

    return find


_BULLETS = ("•", "●", "-", "*")
_ELLIPSES = ("...", "…")
SHORT_LINE = 30
"""Characters; the default of fineweb's `short_line_characters`."""
_FINDERS: dict[tuple[str, str], Finder] = {
    ("gopher", "max_hashes_per_word"): _pattern("#", "#"),
    ("gopher", "max_ellipses_per_word"): _pattern(r"\.\.\.|…", "ellipsis"),
    ("gopher", "max_bullet_lines"): _lines(lambda line, _: line.startswith(_BULLETS), "bullet"),
    ("gopher", "max_ellipsis_lines"): _lines(lambda line, _: line.endswith(_ELLIPSES), "ends in an ellipsis"),
    ("gopher", "min_alphabetic_words"): _pattern(r"(?<!\S)(?:(?![^\W\d_])\S)+(?!\S)", "no letter"),
    ("gopher", "max_mean_word_length"): _pattern(r"\S{15,}", "long word"),
    ("gopher", "min_mean_word_length"): _pattern(r"(?<!\S)\S{1,2}(?!\S)", "short word"),
    ("gopher_repetition", "max_duplicate_lines"): _repeated(_LINE, "stood before"),
    ("gopher_repetition", "max_duplicate_line_characters"): _repeated(_LINE, "stood before"),
    ("gopher_repetition", "max_duplicate_paragraphs"): _repeated(_PARAGRAPH, "stood before"),
    ("gopher_repetition", "max_duplicate_paragraph_characters"): _repeated(_PARAGRAPH, "stood before"),
    ("c4", "curly_brace"): _pattern(r"\{", "curly brace"),
    ("c4", "lorem_ipsum"): _pattern("lorem ipsum", "lorem ipsum", re.IGNORECASE),
    ("c4", "min_sentences"): _pattern(r'[.?!]+["”’\']?', "end of a sentence"),
    ("fineweb", "min_terminal_lines"): _lines(lambda line, _: not line.endswith(_TERMINAL), "no terminal punctuation"),
    ("fineweb", "max_short_lines"): _lines(lambda line, _: len(line) <= SHORT_LINE, "short line"),
    ("fineweb", "max_duplicate_line_characters"): _repeated(_LINE, "stood before"),
    ("fineweb", "max_newlines_per_word"): _pattern("\n+", "newlines"),
}
