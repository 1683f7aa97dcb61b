"""One judgement of tokens for the pipeline that writes them and the trainer that reads them."""

from __future__ import annotations

import numpy as np
import pytest

from manifests import shards
from manifests.shards import JUDGED_TOKENS, ShardError, TokenCheck, check_tokens


def test_few_tokens_are_not_judged_for_being_one_id() -> None:
    check_tokens(np.full(JUDGED_TOKENS - 1, 7, np.uint16), 100)
    with pytest.raises(ShardError, match=r"web\.bin: 64 of its 64 tokens are the id 7: this is not text"):
        check_tokens(np.full(JUDGED_TOKENS, 7, np.uint16), 100, "web.bin")


def test_half_of_one_id_is_still_text() -> None:
    half = np.array([7] * 50 + list(range(8, 58)), np.uint16)
    check_tokens(half, 100)
    with pytest.raises(ShardError, match="51 of its 100"):
        check_tokens(np.where(half == 57, 7, half), 100)


def test_an_id_outside_the_vocabulary_is_named() -> None:
    check_tokens(np.array([0, 99], np.uint32), 100)
    check_tokens(np.array([], np.uint16), 100)
    with pytest.raises(ShardError, match="token id 100 is not in a vocabulary of 100"):
        check_tokens(np.array([0, 100], np.uint32), 100)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_shard_that_comes_in_pieces_is_judged_as_one(size: int) -> None:
    def judge(tokens: np.ndarray) -> None:
        check = TokenCheck(100, "web.bin")
        for start in range(0, len(tokens), size):
            check.add(tokens[start : start + size])
        check.finish()

    half = np.array([7] * 50 + list(range(8, 58)), np.uint16)
    judge(half)
    judge(np.full(JUDGED_TOKENS - 1, 7, np.uint16))
    judge(np.array([], np.uint16))
    for wrong, complaint in [(7, "51 of its 100 tokens are the id 7"), (100, "token id 100 is not in a vocabulary of 100")]:
        with pytest.raises(ShardError, match=complaint):
            judge(np.where(half == 57, wrong, half))


def test_tokens_are_counted_over_the_whole_shard_however_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "READ_TOKENS", 40)
    tokens = np.array([7] * 40 + list(range(8, 68)), np.uint16)
    check_tokens(tokens, 100)
    with pytest.raises(ShardError, match="51 of its 100"):
        check_tokens(np.concatenate([tokens[:-11], np.full(11, 7, np.uint16)]), 100)
    with pytest.raises(ShardError, match="token id 100"):
        check_tokens(np.concatenate([tokens[:-1], np.array([100], np.uint16)]), 100)
