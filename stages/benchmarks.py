"""Benchmark items, and an index of their n-grams that a text is scanned with (Brown et al. 2020, appendix C).

Texts are compared as *units*: words after NFC, lower-casing, deletion of punctuation and symbols, and splitting at
white space, over the whole text, lines or not; or, for items in a script without spaces, the characters that are left
after the same deletion, white space deleted as well.

What of an item is looked for:
- every n-gram of its text (or question), of each choice and of its answer, n units or longer;
- a text or question of `short` to n - 1 units as a whole, with and without a label such as `Question:` around it;
- where even the question is shorter than `short`, question and answer together, in one of the two ways;
- an item for which none of these exists is *unchecked*, and listed.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import numba
import numpy as np

from manifests.storage import Folder
from stages.shingles import is_unspaced

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
SHORT_WORDS = 8
CHARACTERS = 20
"""A Chinese word has about 1.6 characters, so 13 words are about 20 characters; chosen here."""

SHORT_CHARACTERS = 12
"""The same for 8 words; chosen here."""

LABEL = re.compile(r"^\s*(?:question|context|passage|q)\s*:|(?:answer|a)\s*:\s*$", re.IGNORECASE)
"""Prompt labels that some copies of a benchmark carry and a page does not."""


class BenchmarkError(Exception):
    """A benchmark that cannot be read, or that holds nothing to look for."""


@dataclass
class Item:
    """One benchmark item: `questions` are matched whole when they are short, `others` only by n-grams."""

    benchmark: str
    name: str
    questions: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Match:
    """What a text shares with an item: `matched` of the item's `total` distinct n-grams, or a `whole` short item.

    `start` and `end` are the first match's units in the text; `spans` are all of them, in the order of the text.
    """

    item: int
    matched: int
    total: int
    whole: bool
    spans: tuple[tuple[int, int], ...]
    characters: bool

    @property
    def share(self) -> float:
        return 1.0 if self.whole else self.matched / self.total


def load_items(path: str) -> list[Item]:
    """The items of a JSONL file, or of every JSONL file (also gzipped) below a folder, sorted by benchmark and name.

    Fields: `benchmark` (else the file's name), `item` or `id` (else the line's number from 0), and `text`, or
    `question` with `choices` and `answer`. Lines with the same benchmark and name are one item. BenchmarkError names
    file and line.
    """
    items: dict[tuple[str, str], Item] = {}
    for name, lines in _files(path):
        stem = PurePosixPath(name).name.split(".")[0]
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            item = _item(line, stem, number, f"{name}:{number + 1}")
            known = items.setdefault((item.benchmark, item.name), item)
            if known is not item:
                known.questions += item.questions
                known.others += item.others
    if not items:
        raise BenchmarkError(f"{path}: no benchmark items")
    return [items[key] for key in sorted(items)]


def words(text: str) -> list[str]:
    """The words that are compared: NFC, lower case, no punctuation or symbols, split at white space."""
    return _plain(text).split()


def characters(text: str) -> str:
    """The characters that are compared: as `words`, joined by nothing."""
    return "".join(words(text))


class BenchmarkIndex:
    """All items' n-grams. `scan` says which items a text shares something with.

    `exempt` holds n-grams (texts of n units) that are not looked for; they do not count in an item's total.
    """

    def __init__(
        self,
        items: Sequence[Item],
        n: int = 13,
        short: int = SHORT_WORDS,
        n_characters: int = CHARACTERS,
        short_characters: int = SHORT_CHARACTERS,
        exempt: frozenset[str] = frozenset(),
    ) -> None:
        self.items = list(items)
        self.by_word = _Grams(words, n, short, {tuple(words(phrase)) for phrase in exempt})
        self.by_character = _Grams(characters, n_characters, short_characters, {tuple(characters(phrase)) for phrase in exempt})
        for index, item in enumerate(self.items):
            unspaced = is_unspaced(" ".join(item.questions) or " ".join(item.others))
            (self.by_character if unspaced else self.by_word).add(index, item)
        self.by_word.seal(len(self.items))
        self.by_character.seal(len(self.items))
        self.unchecked = np.flatnonzero(self.by_word.totals + self.by_character.totals == 0).tolist()
        """Items of which there is nothing to look for: too short, or all exempt."""

    @property
    def ngrams(self) -> int:
        """Distinct n-grams and short items that are looked for."""
        return len(self.by_word.hashes) + len(self.by_character.hashes)

    def scan(self, text: str) -> list[Match]:
        """A Match for each item that has at least one n-gram, or its whole short text, in `text`; sorted by item."""
        plain = _plain(text)
        found = self.by_word.scan(plain.split(), False)
        if len(self.by_character.hashes) and not plain.isascii():
            found += self.by_character.scan("".join(plain.split()), True)
        return sorted(found, key=lambda match: match.item)


def unit_spans(text: str, by_character: bool) -> list[tuple[int, int]] | None:
    """Where in `text` each unit of `words` (or `characters`) stands, as a range of characters.

    None where units of characters do not follow the text's own characters (text that NFC rearranges).
    """
    spans: list[tuple[int, int]] = []
    for piece in re.finditer(r"\S+", text):
        if not by_character:
            if _plain(piece.group()).strip():
                spans.append(piece.span())
            continue
        for cluster in re.finditer(r".[\u0300-\u036f\u3099\u309a]*", piece.group(), re.DOTALL):
            start = piece.start() + cluster.start()
            spans += [(start, start + len(cluster.group()))] * len(_plain(cluster.group()).strip())
    expected = len(characters(text)) if by_character else len(words(text))
    return spans if len(spans) == expected else None


def _files(path: str) -> Iterator[tuple[str, list[bytes]]]:
    parent, _, last = path.rstrip("/").rpartition("/")
    folder = Folder(parent or ("/" if path.startswith("/") else "."))
    if last and folder.exists(last) and not folder.fs.isdir(folder.path(last)):
        names = [last]
    else:
        folder = Folder(path)
        names = [name for name in folder.names() if name.endswith(SUFFIXES)]
        if not names:
            raise BenchmarkError(f"{path}: no file, and no folder with files named *.jsonl or *.jsonl.gz")
    for name in names:
        data = folder.read(name)
        try:
            data = gzip.decompress(data) if name.endswith(".gz") else data
        except (OSError, EOFError) as error:
            raise BenchmarkError(f"{name}: not a whole gzip file: {error}") from error
        yield name, data.split(b"\n")


def _item(line: bytes, stem: str, number: int, where: str) -> Item:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{where}: not a line of JSON: {error}") from error
    if not isinstance(record, dict):
        raise BenchmarkError(f"{where}: a benchmark item is a JSON object, not {type(record).__name__}")
    name = next((record[key] for key in ("item", "id") if record.get(key) is not None), number)
    item = Item(str(record.get("benchmark") or stem), str(name))
    questions = _strings(record.get("text")) or _strings(record.get("question"))
    answers = _strings(record.get("answer"))
    item.questions = questions or answers[:1]
    item.others = [*_strings(record.get("choices")), *answers]
    if not item.questions and not item.others:
        raise BenchmarkError(f"{where}: no text: an item needs `text`, or `question` with `choices` and `answer`")
    return item


def _strings(value: Any) -> list[str]:
    """Texts of a field: a string, a list of them, or an object that has them under `text` (as ARC's choices)."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return _strings(value.get("text"))
    if isinstance(value, list):
        return [text for each in value for text in _strings(each)]
    return []


def _plain(text: str) -> str:
    if text.isascii():
        return text.lower().encode().translate(None, _ASCII_DELETED).decode()
    text = _BEYOND_ASCII.sub(_without_marks, unicodedata.normalize("NFC", text).lower())
    return text.encode().translate(None, _ASCII_DELETED).decode()


_ASCII_DELETED = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""All ASCII of the Unicode categories P (punctuation) and S (symbols)."""

_BEYOND_ASCII = re.compile("[^\0-\x7f]+")


def _without_marks(run: re.Match[str]) -> str:
    return _cleaned(run.group()) if len(run.group()) < 16 else _deleted().sub("", run.group())


@lru_cache(maxsize=4096)
def _cleaned(run: str) -> str:
    return "".join(each for each in run if unicodedata.category(each)[0] not in "PS")


@lru_cache(maxsize=1)
def _deleted() -> re.Pattern[str]:
    """A run of code points of the categories P and S."""
    marks = (chr(point) for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] in "PS")
    return re.compile("[" + "".join(map(re.escape, marks)) + "]+")


class _Grams:
    """N-grams of one kind of unit. Units are numbered, so comparing numbers is comparing the units themselves."""

    def __init__(self, cut: Callable[[str], Sequence[str]], n: int, short: int, exempt: set[tuple[str, ...]]) -> None:
        self.cut, self.n, self.short = cut, n, min(short, n)
        self.numbers: dict[str, int] = {}
        self.sequence: list[int] = []
        self.passages: list[tuple[int, int, int, int]] = []  # start, end in sequence; length of its grams; item
        self.exempt = exempt

    def add(self, item: int, texts: Item) -> None:
        """Takes an item's passages."""
        questions = [list(self.cut(text)) for text in texts.questions]
        for text in texts.questions:
            bare = list(self.cut(LABEL.sub("", text)))
            if bare not in questions:
                questions.append(bare)
        others = [list(self.cut(text)) for text in texts.others]
        if questions and others and max(map(len, questions)) < self.short:
            questions.append(questions[-1] + others[-1])
        for units in questions:
            if self.short <= len(units) < self.n:
                self._passage(units, len(units), item)
        for units in [*questions, *others]:
            if len(units) >= self.n:
                self._passage(units, self.n, item)

    def _passage(self, units: Sequence[str], length: int, item: int) -> None:
        start = len(self.sequence)
        for unit in units:
            self.sequence.append(self.numbers.setdefault(unit, len(self.numbers)))
        self.passages.append((start, len(self.sequence), length, item))

    def seal(self, items: int) -> None:
        """Builds the tables: for each distinct hash, ascending, the places where its n-grams stand in `units`."""
        self.units = np.array(self.sequence, dtype=np.int32)
        start, end, length, item = np.array(self.passages, dtype=np.int64).reshape(-1, 4).T
        self.lengths = np.unique(length)
        grams = end - start - length + 1
        before = np.cumsum(grams) - grams
        self.starts = np.repeat(start - before, grams) + np.arange(int(grams.sum()))
        self.of_item = np.repeat(item, grams)
        self.sizes = np.repeat(length, grams)
        values = _gram_hashes(self.units, self.starts, self.sizes)
        wanted = ~np.isin(values, self._exempt_hashes())
        self.starts, self.of_item, self.sizes, values = (
            self.starts[wanted], self.of_item[wanted], self.sizes[wanted], values[wanted],
        )  # fmt: skip
        order = np.lexsort((self.starts, self.of_item, values))
        self.starts, self.of_item, self.sizes, values = (
            self.starts[order], self.of_item[order], self.sizes[order], values[order],
        )  # fmt: skip
        self.hashes, self.first = np.unique(values, return_index=True)
        self.first = np.append(self.first, len(values)).astype(np.int64)
        bits = max(10, int(len(self.hashes) * 16).bit_length())
        self.filter = np.zeros(1 << (bits - 6), dtype=np.uint64)
        _fill(self.filter, self.hashes)
        distinct = np.unique(np.stack([self.of_item, values.astype(np.int64)]), axis=1)[0]
        self.totals = np.bincount(distinct, minlength=items)
        self.sequence, self.passages = [], []

    def _exempt_hashes(self) -> np.ndarray:
        """Of the exempt phrases whose units all occur in benchmarks."""
        known = [units for units in self.exempt if all(unit in self.numbers for unit in units)]
        numbers = np.array([self.numbers[unit] for units in known for unit in units], dtype=np.int32)
        sizes = np.array([len(units) for units in known], dtype=np.int64)
        return _gram_hashes(numbers, np.cumsum(sizes) - sizes, sizes)

    def scan(self, units: Sequence[str], by_character: bool) -> list[Match]:
        if not len(self.hashes) or len(units) < int(self.lengths[0]):
            return []
        get = self.numbers.get
        numbers = np.array([get(unit, -1) for unit in units], dtype=np.int32)
        hits = _scan(numbers, self.lengths, self.hashes, self.filter)
        if not len(hits):
            return []
        spans: dict[int, list[tuple[int, int]]] = {}
        grams: dict[int, set[int]] = {}
        whole: set[int] = set()
        for place, length, group in hits.tolist():
            for row in range(self.first[group], self.first[group + 1]):
                start = self.starts[row]
                if self.sizes[row] != length or not np.array_equal(
                    self.units[start : start + length], numbers[place : place + length]
                ):
                    continue  # a hash is not a match
                item = int(self.of_item[row])
                spans.setdefault(item, []).append((place, place + length))
                grams.setdefault(item, set()).add(group)
                if length < self.n:
                    whole.add(item)
        return [
            Match(item, len(grams[item]), int(self.totals[item]), item in whole, tuple(dict.fromkeys(spans[item])), by_character)
            for item in spans
        ]


@numba.njit(cache=True)
def _step(value: np.uint64, unit: int) -> np.uint64:  # pragma: no cover - compiled
    value = (value ^ np.uint64(unit + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(29))


@numba.njit(cache=True)
def _gram_hash(units: np.ndarray, start: int, length: int) -> np.uint64:  # pragma: no cover - compiled
    value = np.uint64(0)
    for place in range(start, start + length):
        value = _step(value, units[place])
    return _step(value, length)


@numba.njit(cache=True)
def _gram_hashes(units: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:  # pragma: no cover - compiled
    hashes = np.empty(len(starts), dtype=np.uint64)
    for index in range(len(starts)):
        hashes[index] = _gram_hash(units, starts[index], sizes[index])
    return hashes


@numba.njit(cache=True)
def _fill(bits: np.ndarray, hashes: np.ndarray) -> None:  # pragma: no cover - compiled
    mask = np.uint64(len(bits) * 64 - 1)
    for value in hashes:
        at = value & mask
        bits[at >> np.uint64(6)] |= np.uint64(1) << (at & np.uint64(63))


@numba.njit(cache=True)
def _scan(
    units: np.ndarray, lengths: np.ndarray, hashes: np.ndarray, bits: np.ndarray
) -> np.ndarray:  # pragma: no cover - compiled
    """(place, length, index in `hashes`) of every window that may be an n-gram, by place; unknown units are -1."""
    found = np.empty((16, 3), dtype=np.int64)
    count = 0
    mask = np.uint64(len(bits) * 64 - 1)
    known = 0
    for place in range(len(units)):
        known = max(known, place)  # all units from `place` up to here are known
        while known < len(units) and units[known] >= 0 and known < place + lengths[-1]:
            known += 1
        if place + lengths[0] > known:
            continue
        value = np.uint64(0)
        reached = place
        for length in lengths:
            if place + length > known:
                break
            while reached < place + length:
                value = _step(value, units[reached])
                reached += 1
            gram = _step(value, length)
            at = gram & mask
            if not (bits[at >> np.uint64(6)] >> (at & np.uint64(63))) & np.uint64(1):
                continue
            index = np.searchsorted(hashes, gram)
            if index < len(hashes) and hashes[index] == gram:
                if count == len(found):
                    larger = np.empty((2 * count, 3), dtype=np.int64)
                    larger[:count] = found
                    found = larger
                found[count, 0] = place
                found[count, 1] = length
                found[count, 2] = index
                count += 1
    return found[:count]
