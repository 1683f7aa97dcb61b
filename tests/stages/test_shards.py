import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stages.shards import document_offsets, document_order, order_keys, shard_count, shard_of, token_dtype


def test_a_document_has_the_same_key_in_every_process() -> None:
    program = "from stages.shards import order_keys; print(order_keys(3, ['doc-1'])[0])"
    found = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{xxhash.xxh3_64_intdigest(b'shard 3' + bytes(1) + b'doc-1')}\n"}


def test_shards_are_equal_shares_of_the_keys() -> None:
    keys = order_keys(0, pa.array([f"web/a#{number}" for number in range(8000)]))
    counts = np.bincount(shard_of(keys, 8), minlength=8)
    assert len(counts) == 8 and np.all(np.abs(counts - 1000) < 150)
    edges = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert shard_of(edges, 2).tolist() == [0, 0, 1, 1] and shard_of(edges, 1).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="0 shards"):
        shard_of(edges, 0)


def test_the_number_of_shards_follows_the_target() -> None:
    assert [shard_count(tokens, 100) for tokens in (0, 1, 100, 101, 1000)] == [1, 1, 1, 2, 10]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_a_shard_does_not_depend_on_the_order_of_arrival(keys: list[int], random) -> None:
    documents = [(key, f"web/ä{number % 3}#{number}") for number, key in enumerate(keys)]
    expected = sorted(documents)  # by key, then by id
    for _ in range(3):
        random.shuffle(documents)
        order = document_order(pa.array([name for _, name in documents]), np.array([key for key, _ in documents], np.uint64))
        assert [documents[row] for row in order.tolist()] == expected


def test_a_shard_without_documents_has_an_order() -> None:
    assert document_order(pa.array([], pa.string()), np.zeros(0, np.uint64)).tolist() == []


def test_numbers_of_ids_and_keys_that_do_not_agree_are_refused() -> None:
    with pytest.raises(ValueError, match="1 ids, 2 keys"):
        document_order(pa.array(["a"]), np.zeros(2, np.uint64))


def test_offsets_of_more_than_two_billion_tokens_do_not_go_negative() -> None:
    offsets = document_offsets(np.array([2_000_000_000, 200_000_000], dtype=np.int32))
    assert offsets.tolist() == [0, 2_000_000_000, 2_200_000_000] and offsets.dtype == np.int64


def test_the_width_of_an_id_follows_the_vocabulary() -> None:
    assert token_dtype(65_536) == np.dtype("<u2") and token_dtype(65_537) == np.dtype("<u4")
