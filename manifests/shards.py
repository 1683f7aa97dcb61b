"""What the tokens of a shard must be, for those who write shards and for those who read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MOSTLY = 0.5
"""A shard of which a larger share is one single id is no text: a damaged or misread file."""

JUDGED_TOKENS = 64
"""Shards with fewer tokens are not judged by `MOSTLY`: three words can be one word three times."""

READ_TOKENS = 1 << 22
"""Tokens looked at together: a mapped shard larger than memory is checked too."""


class ShardError(Exception):
    """Tokens that cannot be what they are declared to be."""


def check_tokens(tokens: npt.NDArray[Any], vocabulary: int, where: str = "shard") -> None:
    """ShardError when an id is not below `vocabulary`, or, from JUDGED_TOKENS tokens on, more than half are one id."""
    counts = np.zeros(vocabulary, np.int64)
    for at in range(0, len(tokens), READ_TOKENS):
        chunk = tokens[at : at + READ_TOKENS]
        largest = int(chunk.max())
        if largest >= vocabulary:
            raise ShardError(
                f"{where}: token id {largest} is not in a vocabulary of {vocabulary}; another tokenizer or another width wrote it"
            )
        counts += np.bincount(chunk, minlength=vocabulary)
    common = int(counts.argmax())
    if len(tokens) >= JUDGED_TOKENS and counts[common] > MOSTLY * len(tokens):
        raise ShardError(f"{where}: {counts[common]} of its {len(tokens)} tokens are the id {common}: this is not text")
