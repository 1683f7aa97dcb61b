"""What goes into a shuffle comes out of it, in order, partition by partition."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.storage import Folder
from pipeline.shuffle import ShuffleError, gather, gather_residue, read_partition, write_partitions

SCHEMA = pa.schema(
    [pa.field("row", pa.int64()), pa.field("text", pa.large_string()), pa.field("list", pa.large_list(pa.uint64()))]
)
files = st.lists(
    st.lists(
        st.tuples(st.integers(0, 4), st.none() | st.text(max_size=6), st.lists(st.integers(0, 2**64 - 1), max_size=3)),
        max_size=12,
    ),
    max_size=4,
)


@given(files)
@settings(max_examples=50, deadline=None)
def test_every_row_of_every_file_arrives_in_its_partition_once_and_in_order(
    contents: list[list[tuple[int, str | None, list[int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        corpus = Folder(name)
        names = []
        for number, rows in enumerate(contents):
            columns = [list(range(len(rows))), [row[1] for row in rows], [row[2] for row in rows]]
            table = pa.table([pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
            written = write_partitions(corpus, f"{number}.shuffle", table, np.array([row[0] for row in rows], dtype=np.int64), 5)
            assert written.size == corpus.size(f"{number}.shuffle")
            names.append(written.path)
        for partition in range(5):
            arrived = {}
            for sources, rows in gather(corpus, names, partition):
                [number] = set(sources.tolist())
                assert len(sources) == rows.num_rows and number not in arrived
                arrived[number] = rows
            for number, rows in enumerate(contents):
                mine = [(index, text, numbers) for index, (place, text, numbers) in enumerate(rows) if place == partition]
                if not mine:
                    assert number not in arrived
                    continue
                assert arrived[number].schema.equals(SCHEMA)
                assert [tuple(row.values()) for row in arrived[number].to_pylist()] == mine


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 4, 16]))
@settings(max_examples=50, deadline=None)
def test_a_file_is_read_in_finer_and_coarser_partitions_than_it_has(keys: list[int], written: int, wanted: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        corpus = Folder(name)
        table = pa.table({"key": pa.array(keys, pa.uint64())})
        where = np.array([key % written for key in keys], dtype=np.int64)
        path = write_partitions(corpus, "keys.shuffle", table, where, written).path
        for partition in range(wanted):
            rows = [
                row for _, rows in gather_residue(corpus, [path], "key", partition, wanted) for row in rows["key"].to_pylist()
            ]
            assert sorted(rows) == sorted(key for key in keys if key % wanted == partition)


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    table = pa.table({"row": list(range(1000))})
    where = np.arange(1000) % 7
    one, other = (write_partitions(Folder(tmp_path), name, table, where, 7) for name in ("one", "other"))
    assert one.sha256 == other.sha256


def test_what_is_no_shuffle_file_or_has_no_such_partition_is_an_error(tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    write_partitions(corpus, "good", pa.table({"row": [1]}), np.zeros(1, dtype=np.int64), 1)
    corpus.write("bad", b"not a shuffle file, though it is long enough to be one")
    corpus.write("tiny", b"x")
    for name in ("bad", "tiny"):
        with pytest.raises(ShuffleError, match=name):
            read_partition(corpus, name, 0)
    with pytest.raises(ShuffleError, match="1 partitions, not 2"):
        read_partition(corpus, "good", 1)
