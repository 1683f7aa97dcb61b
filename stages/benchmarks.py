"""Benchmark items, and an index of their n-grams that a text is scanned with (Brown et al. 2020, appendix C).

Texts are compared as units: words, or, for items in a script without spaces, characters (`stages.ngrams`).

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
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from manifests.storage import Folder
from stages.ngrams import EXEMPT, Hit, NgramIndex, Passages, characters, scan, unit_counts, units_of, without_surrogates, words
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


def load_items(*paths: str) -> list[Item]:
    """The items of JSONL files, and of every JSONL file (also gzipped) below folders, sorted by benchmark and name.

    Fields: `benchmark` (else the file's name), `item` or `id` (else the line's number from 0), and `text`, or
    `question` with `choices` and `answer`. Lines with the same benchmark and name are one item. BenchmarkError names
    file and line.
    """
    items: dict[tuple[str, str], Item] = {}
    for path in paths:
        read = 0
        for name, lines in _files(path):
            stem = PurePosixPath(name).name.split(".")[0]
            for number, line in enumerate(lines):
                if not line.strip():
                    continue
                read += 1
                item = _item(line, stem, number, f"{name}:{number + 1}")
                known = items.setdefault((item.benchmark, item.name), item)
                if known is not item:
                    known.questions += item.questions
                    known.others += item.others
        if not read:
            raise BenchmarkError(f"{path}: no benchmark items")
    return [items[key] for key in sorted(items)]


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
        self.names = [(item.benchmark, item.name) for item in items]
        """(benchmark, name); a match's `item` is an index of it."""
        spaced: list[tuple[int, Item]] = []
        unspaced: list[tuple[int, Item]] = []
        for number, item in enumerate(items):
            (unspaced if is_unspaced(" ".join(item.questions) or " ".join(item.others)) else spaced).append((number, item))
        self._n = {False: n, True: n_characters}
        self._grams = {
            False: NgramIndex(_passages(spaced, False, n, short, exempt), len(items)),
            True: NgramIndex(_passages(unspaced, True, n_characters, short_characters, exempt), len(items)),
        }
        self.totals = self._grams[False].totals + self._grams[True].totals
        self.unchecked = np.flatnonzero(self.totals == 0).tolist()
        """Items of which there is nothing to look for: too short, or all exempt."""

    @property
    def ngrams(self) -> int:
        """Distinct n-grams and short items that are looked for."""
        return sum(map(len, self._grams.values()))

    @property
    def bytes(self) -> int:
        """Of memory that the index takes."""
        return sum(grams.bytes for grams in self._grams.values())

    def scan(self, text: str) -> list[Match]:
        """A Match for each item that has at least one n-gram, or its whole short text, in `text`; sorted by item."""
        return self.scan_all(pa.array([text], pa.large_string())).get(0, [])

    def scan_all(self, texts: pa.Array) -> dict[int, list[Match]]:
        """Row → its matches, as of `scan`, for every text of a column that has some; rows ascending."""
        found: dict[int, list[Match]] = {}
        for row, by_character, hits in scan(texts, self._grams[False], self._grams[True]):
            found.setdefault(row, []).extend(self._matches(hits, by_character))
        return {row: sorted(matches, key=lambda match: match.item) for row, matches in found.items()}

    def _matches(self, hits: Sequence[Hit], by_character: bool) -> Iterator[Match]:
        """One for each item, of the hits of one text."""
        index, n = self._grams[by_character], self._n[by_character]
        of_item: dict[int, list[Hit]] = {}
        for hit in hits:
            for item in index.of_gram(hit.gram):
                of_item.setdefault(item, []).append(hit)
        for item, mine in of_item.items():
            matched = len({hit.gram for hit in mine})
            whole = any(hit.last - hit.first < n for hit in mine)
            spans = tuple((hit.first, hit.last) for hit in mine)
            yield Match(item, matched, int(self.totals[item]), whole, spans, by_character)


def unit_spans(text: str, by_character: bool) -> list[tuple[int, int]] | None:
    """Where in `text` each unit of `words` (or `characters`) stands, as a range of characters.

    None where units of characters do not follow the text's own characters (text that NFC rearranges).
    """
    spans: list[tuple[int, int]] = []
    for piece in re.finditer(r"\S+", text):
        if not by_character:
            if words(piece.group()):
                spans.append(piece.span())
            continue
        for cluster in re.finditer(r".[\u0300-\u036f\u3099\u309a]*", piece.group(), re.DOTALL):
            start = piece.start() + cluster.start()
            spans += [(start, start + len(cluster.group()))] * len(characters(cluster.group()))
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
        except (OSError, EOFError, zlib.error) as error:
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
    item = Item(without_surrogates(str(record.get("benchmark") or stem)), without_surrogates(str(name)))
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


def _passages(items: Sequence[tuple[int, Item]], by_character: bool, n: int, short: int, exempt: frozenset[str]) -> Passages:
    """What is looked for of numbered items, and the exempt phrases."""
    short = min(short, n)
    texts: list[str] = []
    asked: list[list[int]] = []  # of every item, the numbers of the texts that are its questions
    others: list[list[int]] = []
    for _, item in items:
        for numbers, some in ((asked, _with_bare(item.questions, by_character)), (others, item.others)):
            numbers.append(list(range(len(texts), len(texts) + len(some))))
            texts += some
    sizes: list[int] = unit_counts(texts, by_character).tolist()
    for questions, answers in zip(asked, others, strict=True):
        if questions and answers and max(sizes[text] for text in questions) < short:
            texts.append(f"{texts[questions[-1]]} {texts[answers[-1]]}")
            questions.append(len(texts) - 1)
    phrases = range(len(texts), len(texts) + len(exempt))
    texts += sorted(exempt)
    sizes += unit_counts(texts[len(sizes) :], by_character).tolist()
    found = [(text, sizes[text], EXEMPT) for text in phrases if sizes[text]]
    for (number, _), questions, answers in zip(items, asked, others, strict=True):
        found += [(text, sizes[text], number) for text in questions if short <= sizes[text] < n]
        found += [(text, n, number) for text in (*questions, *answers) if sizes[text] >= n]
    rows, lengths, owners = np.array(found, np.int64).reshape(-1, 3).T
    used, rows = np.unique(rows, return_inverse=True)
    units = units_of([texts[text] for text in used.tolist()], by_character)
    return Passages(units, units.starts[rows], units.starts[rows + 1], lengths, owners)


def _with_bare(questions: Sequence[str], by_character: bool) -> list[str]:
    """The questions, and behind them what is another one without its label."""
    cut = characters if by_character else words
    found = list(questions)
    for text in questions:
        bare = LABEL.sub("", text)
        if bare != text and cut(bare) not in [cut(known) for known in found]:
            found.append(bare)
    return found
