"""What the tokens of a shard must be, for those who write shards and for those who read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MOSTLY = 0.5
"""A shard of which a larger share is one single id is no text: a damaged or misread file."""

JUDGED_TOKENS = 64
"""Shards with fewer tokens are not judged by `MOSTLY`: three words can be one word three times."""

READ_TOKENS = 1 << 20
"""Tokens looked at together: a mapped shard larger than memory is checked too."""


class ShardError(Exception):
    """Tokens that cannot be what they are declared to be."""


def check_tokens(tokens: npt.NDArray[Any], vocabulary: int, where: str = "shard") -> None:
    """ShardError when an id is not below `vocabulary`, or, from JUDGED_TOKENS tokens on, more than half are one id."""
    check = TokenCheck(vocabulary, where)
    check.add(tokens)
    check.finish()


class TokenCheck:
    """The same of a shard that comes in pieces."""

    def __init__(self, vocabulary: int, where: str = "shard") -> None:
        self.vocabulary, self.where = vocabulary, where
        self._tokens = 0
        self._counts = np.zeros(vocabulary, np.int64)

    def add(self, tokens: npt.NDArray[Any]) -> None:
        """ShardError when an id is not below the vocabulary."""
        for at in range(0, len(tokens), READ_TOKENS):
            chunk = tokens[at : at + READ_TOKENS]
            largest = int(chunk.max())
            if largest >= self.vocabulary:
                raise ShardError(
                    f"{self.where}: token id {largest} is not in a vocabulary of {self.vocabulary}; "
                    "another tokenizer or another width wrote it"
                )
            self._counts += np.bincount(chunk, minlength=self.vocabulary)
        self._tokens += len(tokens)

    def mostly(self) -> int | None:
        """The id that more than half are, of JUDGED_TOKENS tokens or more; None where none is."""
        common = int(self._counts.argmax())
        return common if self._tokens >= JUDGED_TOKENS and self._counts[common] > MOSTLY * self._tokens else None

    def finish(self) -> None:
        """ShardError when the shard is mostly one id."""
        if (common := self.mostly()) is not None:
            raise ShardError(
                f"{self.where}: {self._counts[common]} of its {self._tokens} tokens are the id {common}: this is not text"
            )
