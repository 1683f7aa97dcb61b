import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from manifests.schemas import SHARD_INDEX
from manifests.shards import check_tokens
from stages.shards import (
    ShardError,
    document_offsets,
    order_keys,
    pack_shard,
    read_tokens,
    shard_count,
    shard_of,
    token_dtype,
)


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


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_shard_does_not_depend_on_the_order_of_arrival(lengths: list[int], random) -> None:
    documents = [
        (f"web/a#{number}", int(order_keys(1, [f"web/a#{number}"])[0]) % 4, [number] * length)
        for number, length in enumerate(lengths)
    ]

    def packed(rows: list[tuple[str, int, list[int]]]) -> tuple[list[int], pa.Table]:
        tokens = np.array([token for row in rows for token in row[2]], dtype=np.uint16)
        offsets = document_offsets([len(row[2]) for row in rows])
        keys = np.array([row[1] for row in rows], dtype=np.uint64)
        flat, index = pack_shard([row[0] for row in rows], keys, offsets, tokens, [3 * len(row[2]) for row in rows])
        return flat.tolist(), index

    flat, index = packed(documents)
    expected = sorted(documents, key=lambda row: (row[1], row[0]))
    assert flat == [token for row in expected for token in row[2]]
    assert index.schema == SHARD_INDEX
    assert index["id"].to_pylist() == [row[0] for row in expected]
    starts = index["start"].to_pylist()
    for row, start, size in zip(expected, starts, index["tokens"].to_pylist(), strict=True):
        assert flat[start : start + size] == row[2]
    assert index["bytes"].to_pylist() == [3 * len(row[2]) for row in expected]
    random.shuffle(documents)
    again, same = packed(documents)
    assert again == flat and same.equals(index)


def test_sizes_that_do_not_agree_are_refused() -> None:
    with pytest.raises(ValueError, match="1 ids, 1 keys, 2 documents, 1 sizes"):
        pack_shard(["a"], np.zeros(1), np.array([0, 1, 2]), np.zeros(2), np.zeros(1))


def test_offsets_of_more_than_two_billion_tokens_do_not_go_negative() -> None:
    offsets = document_offsets(np.array([2_000_000_000, 200_000_000], dtype=np.int32))
    assert offsets.tolist() == [0, 2_000_000_000, 2_200_000_000] and offsets.dtype == np.int64


def test_the_width_of_an_id_follows_the_vocabulary() -> None:
    assert token_dtype(65_536) == np.dtype("<u2") and token_dtype(65_537) == np.dtype("<u4")


def test_a_file_of_another_width_than_declared_is_refused() -> None:
    ten = np.arange(10, dtype="<u2").tobytes()
    with pytest.raises(ShardError, match=r"10 tokens of uint32 .* are 40 bytes, but it has 20"):
        read_tokens(ten, 100_000, 10)
    with pytest.raises(ShardError, match="5 tokens of uint16"):
        read_tokens(ten, 1000, 5)
    with pytest.raises(ShardError, match=r"a\.bin: token id 65536 is not in a vocabulary of 65537|token id"):
        read_tokens(ten, 65_537, 5, "a.bin")
    assert read_tokens(ten, 1000, 10).tolist() == list(range(10))


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    check_tokens(np.array([0, 99]), 100)
    with pytest.raises(ShardError, match="token id 100 is not in a vocabulary of 100"):
        check_tokens(np.array([0, 100]), 100)


def test_a_shard_that_is_one_id_for_the_most_part_is_refused() -> None:
    half = np.array([7] * 50 + list(range(8, 58)))
    check_tokens(half, 100)
    with pytest.raises(ShardError, match="51 of its 100 tokens are the id 7"):
        check_tokens(np.where(half == 57, 7, half), 100)
    check_tokens(np.array([0, 5, 5, 5]), 100)  # three words can be one word three times
    check_tokens(np.array([], dtype=np.uint16), 100)
