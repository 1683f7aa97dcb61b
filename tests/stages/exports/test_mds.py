"""MDS, read by a reader that knows the layout alone, and by MosaicML Streaming where it is installed."""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.stages.exports.corpora import documents, groups, run, widen, written

WIDTHS = {"ndarray:uint16": "<u2", "ndarray:uint32": "<u4"}


def read(folder: Path) -> list[tuple[str, np.ndarray]]:
    """(id, tokens) of every sample; every byte is accounted for."""
    index = json.loads((folder / "index.json").read_bytes())
    assert index["version"] == 2
    found = []
    for about in index["shards"]:
        data = (folder / about["raw_data"]["basename"]).read_bytes()
        assert about["raw_data"]["bytes"] == len(data)
        assert about["raw_data"]["hashes"] == {"sha256": hashlib.sha256(data).hexdigest()}
        (samples,) = struct.unpack_from("<I", data)
        assert samples == about["samples"] > 0
        places = struct.unpack_from(f"<{samples + 1}I", data, 4)
        config = json.loads(data[4 + 4 * (samples + 1) : places[0]])
        assert config == {name: about[name] for name in config}
        assert (config["format"], config["column_names"]) == ("mds", ["id", "tokens"])
        assert places[-1] == len(data)
        for begin, end in pairwise(places):
            id_bytes, token_bytes = struct.unpack_from("<II", data, begin)
            assert begin + 8 + id_bytes + token_bytes == end
            array = data[begin + 8 + id_bytes : end]
            assert array[0] >> 2 == 1
            head = 1 + (1 << (array[0] & 3))
            tokens = np.frombuffer(array[head:], WIDTHS[config["column_encodings"][1]])
            assert int.from_bytes(array[1:head], "little") == len(tokens)
            found.append((data[begin + 8 : begin + 8 + id_bytes].decode(), tokens))
    return found


def same(found: list[tuple[str, np.ndarray]], expected: list[tuple[str, np.ndarray]]) -> None:
    assert [(name, tokens.tolist()) for name, tokens in found] == [(name, tokens.tolist()) for name, tokens in expected]


@pytest.mark.parametrize("wide", [False, True])
def test_every_document_is_a_sample_in_the_order_of_shards(wide: bool, copied: Path, tmp_path: Path) -> None:
    if wide:
        widen(copied)
    manifest = Manifest.load(Folder(copied))
    assert run("mds", copied, tmp_path / "out").exit_code == 0
    for (component, split), shards in groups(manifest).items():
        same(read(tmp_path / "out" / component / split), list(documents(copied, manifest, shards)))
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (copied / "tokenizer.json").read_bytes()


def test_bos_can_go_and_eod_can_come(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert run("mds", finished, tmp_path / "out", "--no-bos", "--eod", "<|reserved_2|>").exit_code == 0
    for (component, split), shards in groups(manifest).items():
        expected = [(name, np.append(tokens[1:], 2)) for name, tokens in documents(finished, manifest, shards)]
        same(read(tmp_path / "out" / component / split), expected)


def test_no_shard_is_larger_than_the_limit_unless_it_has_one_document(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    written("mds", finished, tmp_path / "out", shard_bytes=2000)
    written("mds", finished, tmp_path / "tiny", shard_bytes=1)
    for (component, split), shards in groups(manifest).items():
        expected = list(documents(finished, manifest, shards))
        same(read(tmp_path / "out" / component / split), expected)
        same(read(tmp_path / "tiny" / component / split), expected)
        sizes = [path.stat().st_size for path in (tmp_path / "out" / component / split).glob("*.mds")]
        assert max(sizes) <= 2000
        assert len(list((tmp_path / "tiny" / component / split).glob("*.mds"))) == len(expected)


@pytest.mark.parametrize("wide", [False, True])
def test_streaming_itself_reads_every_document(wide: bool, copied: Path, tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    if wide:
        widen(copied)
    manifest = Manifest.load(Folder(copied))
    written("mds", copied, tmp_path / "out", shard_bytes=2000)
    for (component, split), shards in groups(manifest).items():
        folder = str(tmp_path / "out" / component / split)
        dataset = streaming.LocalDataset(local=folder)
        same([(sample["id"], sample["tokens"]) for sample in dataset], list(documents(copied, manifest, shards)))


def test_shards_are_those_of_streamings_own_writer_byte_for_byte(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    written("mds", finished, tmp_path / "out", shard_bytes=5000)
    for (component, split), shards in groups(manifest).items():
        own = tmp_path / "own" / component / split
        columns = {"id": "str", "tokens": "ndarray:uint16"}
        with streaming.MDSWriter(columns=columns, out=str(own), hashes=["sha256"], size_limit=5000) as writer:
            for name, tokens in documents(finished, manifest, shards):
                writer.write({"id": name, "tokens": tokens})
        folder = tmp_path / "out" / component / split
        assert {path.name: path.read_bytes() for path in folder.glob("*.mds")} == {
            path.name: path.read_bytes() for path in own.glob("*.mds")
        }
        assert json.loads((folder / "index.json").read_text()) == json.loads((own / "index.json").read_text())


def test_streaming_mixes_components_and_checks_their_hashes(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    assert run("mds", finished, tmp_path / "out").exit_code == 0
    streaming.base.util.clean_stale_shared_memory()
    streams = [
        streaming.Stream(local=str(tmp_path / "out" / component / "train"), validate_hash="sha256")
        for component, split in groups(manifest)
        if split == "train"
    ]
    dataset = streaming.StreamingDataset(streams=streams, batch_size=1, shuffle=False, num_canonical_nodes=1)
    expected = [
        name
        for (_, split), shards in groups(manifest).items()
        if split == "train"
        for name, _ in documents(finished, manifest, shards)
    ]
    assert sorted(sample["id"] for sample in dataset) == sorted(expected)
