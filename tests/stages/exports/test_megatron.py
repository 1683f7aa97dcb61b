"""Megatron's .bin and .idx, read by a reader that knows the layout alone, and by Megatron's own where it is installed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.stages.exports.corpora import documents, groups, reseal, run, widen

TYPES = {4: np.dtype("<i4"), 8: np.dtype("<u2")}


def read(stem: Path) -> list[np.ndarray]:
    """The sequences of a pair of files; every byte of both is accounted for."""
    index, data = Path(f"{stem}.idx").read_bytes(), Path(f"{stem}.bin").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, bounds = struct.unpack_from("<QBQQ", index, 9)
    assert (version, bounds) == (1, sequences + 1)
    at = 34
    lengths = np.frombuffer(index, "<i4", sequences, at)
    pointers = np.frombuffer(index, "<i8", sequences, at + 4 * sequences)
    starts = np.frombuffer(index, "<i8", bounds, at + 12 * sequences)
    assert len(index) == at + 12 * sequences + 8 * bounds
    assert starts.tolist() == list(range(sequences + 1))
    width = TYPES[code].itemsize
    assert pointers.tolist() == [width * int(lengths[:row].sum()) for row in range(sequences)]
    assert len(data) == width * int(lengths.sum())
    return [np.frombuffer(data, TYPES[code], length, pointer) for length, pointer in zip(lengths, pointers, strict=True)]


def same(found: list[np.ndarray], expected: list[list[int]]) -> None:
    assert [one.tolist() for one in found] == expected


def test_every_document_is_a_sequence_in_the_order_of_shards(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert run("megatron", finished, tmp_path / "out").exit_code == 0
    assert any(len(shards) > 1 for shards in groups(manifest).values())
    for (component, split), shards in groups(manifest).items():
        expected = [tokens.tolist() for _, tokens in documents(finished, manifest, shards)]
        same(read(tmp_path / "out" / component / split), expected)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (finished / "tokenizer.json").read_bytes()


def test_a_pair_can_be_had_for_each_shard(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert run("megatron", finished, tmp_path / "out", "--per-shard").exit_code == 0
    for shard in manifest.content.shards:
        stem = tmp_path / "out" / shard.path.removeprefix("tokens/").removesuffix(".bin")
        same(read(stem), [tokens.tolist() for _, tokens in documents(finished, manifest, [shard])])
    assert len(list((tmp_path / "out").rglob("*.bin"))) == len(manifest.content.shards)


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eod", ["<|reserved_1|>", None])
def test_bos_can_go_and_eod_can_come(bos: bool, eod: str | None, finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    options = [*([] if bos else ["--no-bos"]), *(["--eod", eod] if eod else [])]
    record = json.loads(run("megatron", finished, tmp_path / "out", *options, "--json").stdout)
    for (component, split), shards in groups(manifest).items():
        expected = [
            tokens.tolist()[0 if bos else 1 :] + ([1] if eod else []) for _, tokens in documents(finished, manifest, shards)
        ]
        same(read(tmp_path / "out" / component / split), expected)
    for row in record["counts"]:
        assert row["written"] - row["tokens"] == row["documents"] * (bool(eod) - (not bos))


def test_an_eod_that_is_no_special_token_is_an_error(finished: Path, tmp_path: Path) -> None:
    result = run("megatron", finished, tmp_path / "out", "--eod", "the")
    assert result.exit_code == 1
    assert "'the' is no special token of this corpus; it has <|bos|>, <|reserved_1|>" in result.output


def test_ids_of_32_bits_become_int32(copied: Path, tmp_path: Path) -> None:
    widen(copied)
    manifest = Manifest.load(Folder(copied))
    assert run("megatron", copied, tmp_path / "out", "--eod", "<|bos|>").exit_code == 0
    for (component, split), shards in groups(manifest).items():
        expected = [[*tokens.tolist(), 0] for _, tokens in documents(copied, manifest, shards)]
        assert max(map(max, expected)) > 65_535
        same(read(tmp_path / "out" / component / split), expected)


def test_a_document_of_bos_alone_is_a_sequence_of_nothing_without_it(copied: Path, tmp_path: Path) -> None:
    """Two documents of the first shard become one, and one that is empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shard = Manifest.load(Folder(copied)).content.shards[0]
    index = pq.read_table(copied / shard.index)
    tokens = np.fromfile(copied / shard.path, "<u2")
    rows = index.to_pylist()
    tokens[rows[0]["tokens"]] = 99
    rows[0]["tokens"] += rows[1]["tokens"] - 1
    rows[1].update(start=rows[0]["tokens"], tokens=1)
    tokens[rows[1]["start"]] = 0
    tokens.tofile(copied / shard.path)
    pq.write_table(pa.Table.from_pylist(rows, index.schema), copied / shard.index)
    reseal(copied, lambda raw: None)
    assert run("megatron", copied, tmp_path / "out", "--no-bos").exit_code == 0
    assert len(read(tmp_path / "out" / shard.component / shard.split)[1]) == 0
    result = run("mds", copied, tmp_path / "mds", "--no-bos")
    assert result.exit_code == 1
    assert f"{rows[1]['id']} has no tokens without BOS, and MDS has no empty arrays" in result.output


@pytest.mark.parametrize("wide", [False, True])
def test_megatron_itself_reads_every_document(wide: bool, copied: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    if wide:
        widen(copied)
    manifest = Manifest.load(Folder(copied))
    assert run("megatron", copied, tmp_path / "out").exit_code == 0
    for (component, split), shards in groups(manifest).items():
        dataset = reader.IndexedDataset(str(tmp_path / "out" / component / split))
        expected = [tokens.tolist() for _, tokens in documents(copied, manifest, shards)]
        assert len(dataset) == len(expected)
        same([dataset[row] for row in range(len(dataset))], expected)
        assert dataset.document_indices.tolist() == list(range(len(expected) + 1))
        assert dataset.get(0, offset=1, length=3).tolist() == expected[0][1:4]


@pytest.mark.parametrize("wide", [False, True])
def test_files_are_those_of_megatrons_own_writer_byte_for_byte(wide: bool, copied: Path, tmp_path: Path) -> None:
    writer = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    torch = pytest.importorskip("torch")
    if wide:
        widen(copied)
    manifest = Manifest.load(Folder(copied))
    assert run("megatron", copied, tmp_path / "out").exit_code == 0
    for (component, split), shards in groups(manifest).items():
        own = tmp_path / f"{component}-{split}"
        builder = writer.IndexedDatasetBuilder(f"{own}.bin", dtype=np.int32 if wide else np.uint16)
        for _, tokens in documents(copied, manifest, shards):
            builder.add_document(torch.from_numpy(tokens.astype(np.int64)), [len(tokens)])
        builder.finalize(f"{own}.idx")
        for ending in ("bin", "idx"):
            assert (tmp_path / "out" / component / f"{split}.{ending}").read_bytes() == Path(f"{own}.{ending}").read_bytes()
