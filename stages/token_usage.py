"""What a tokenizer makes of texts: bytes a token, tokens a word, and how much of the vocabulary is used, by group of texts.

A word is a maximal run of characters that are not white space. In scripts without spaces (`stages.scripts.unspaced`, by the
letters of the text) the count is of characters, white space left out, and `unspaced` says so; a group that has both kinds has a
row for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stages import reading, scripts
from stages.filter_kernels import SPACE


@dataclass
class Group:
    """Sums over the texts of a group. words: words, or characters of unspaced texts; tokens: without BOS."""

    documents: int = 0
    bytes: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, other: Group) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.words += other.words
        self.tokens += other.tokens


class Usage:
    """Counts texts that were encoded by one tokenizer, under any names."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.groups: dict[tuple[Hashable, bool], Group] = defaultdict(Group)
        self._used: dict[tuple[Hashable, bool], np.ndarray] = {}

    def count(self, names: Sequence[Hashable], texts: pa.Array, offsets: np.ndarray, ids: np.ndarray) -> None:
        """`texts` (n) with the group of each, and what `Encoder.encode` gave for them: BOS before every text."""
        read = reading.of(texts)
        unspaced, _ = scripts.unspaced(read.scripts)
        spaces = np.concatenate([[0], np.cumsum(read.kinds & SPACE, dtype=np.int64)])
        characters = np.diff(read.starts) - (spaces[read.starts[1:]] - spaces[read.starts[:-1]])
        words = np.where(unspaced, characters, np.diff(read.words[1]))
        sizes, tokens = np.diff(read.offsets), np.diff(offsets) - 1
        rows: dict[tuple[Hashable, bool], list[int]] = defaultdict(list)
        for row, name in enumerate(names):
            rows[name, bool(unspaced[row])].append(row)
        for key, mine in rows.items():
            sums = (int(values[mine].sum()) for values in (sizes, words, tokens))
            self.groups[key].add(Group(len(mine), *sums))
            used = self._used.setdefault(key, np.zeros(self.vocabulary, bool))
            for row in mine:
                used[ids[offsets[row] + 1 : offsets[row + 1]]] = True

    def used(self, keys: Iterable[tuple[Hashable, bool]]) -> int:
        """How many entries of the vocabulary occur in these groups."""
        total = np.zeros(self.vocabulary, bool)
        for key in keys:
            total |= self._used[key]
        return int(total.sum())

    def sums(self) -> list[dict[str, Any]]:
        """One row a group, by name: `name`, `unspaced` and its sums."""
        keys = sorted(self.groups, key=str)
        return [{"name": name, "unspaced": unspaced, **asdict(self.groups[name, unspaced])} for name, unspaced in keys]

    def rows(self) -> list[dict[str, Any]]:
        """One row a group, the largest first: `name`, `unspaced`, the sums, `bytes_per_token`, `tokens_per_word`, and
        `vocabulary_used`, a share; null where there is nothing to divide by."""
        found = []
        for key in sorted(self.groups, key=lambda key: (-self.groups[key].bytes, str(key))):
            group = self.groups[key]
            found.append(
                {
                    "name": key[0],
                    "unspaced": key[1],
                    "documents": group.documents,
                    "bytes": group.bytes,
                    "words": group.words,
                    "tokens": group.tokens,
                    "bytes_per_token": group.bytes / group.tokens if group.tokens else None,
                    "tokens_per_word": group.tokens / group.words if group.words else None,
                    "vocabulary_used": self.used([key]) / self.vocabulary,
                }
            )
        return found
