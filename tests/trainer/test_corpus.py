"""A corpus is read from its manifest, and refused by name when a file does not agree with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import fsspec
import numpy as np
import pytest

from manifests.manifest import ManifestError, digest
from manifests.shards import check_tokens
from tests.trainer.corpus_fixture import VOCABULARY, build_corpus, documents_of_lengths, learnable_corpus
from trainer.data.corpus import Corpus, CorpusError

SHARD = "tokens/web/train/00000.bin"


def small(folder: Path, **options: object) -> Path:
    return build_corpus(folder, {("web", "train"): [documents_of_lengths([5, 9, 3])]}, **options)  # type: ignore[arg-type]


def test_tokens_lengths_and_bytes_are_those_of_the_files(tmp_path: Path) -> None:
    component = Corpus.open(small(tmp_path)).component("web", "train")
    assert component.starts.tolist() == [0, 5, 14]
    assert component.lengths.tolist() == [5, 9, 3]
    assert component.text_bytes.tolist() == [12, 24, 6]
    assert component.read(5, 3).tolist() == np.fromfile(tmp_path / SHARD, "<u2")[5:8].tolist()
    assert component.ids().to_pylist() == [f"web/train.jsonl#{n}" for n in range(3)]


def test_documents_of_a_second_shard_are_counted_on_from_the_first(tmp_path: Path) -> None:
    shards = [documents_of_lengths([5, 9]), documents_of_lengths([4, 2])]
    component = Corpus.open(build_corpus(tmp_path, {("web", "train"): shards})).component("web", "train")
    assert component.starts.tolist() == [0, 5, 14, 18]
    assert component.read(12, 10).tolist() == component.read(12, 2).tolist()
    assert component.read(14, 1).tolist() == [0]


def test_one_flipped_bit_in_a_shard_is_refused_by_name(tmp_path: Path) -> None:
    corpus = Corpus.open(small(tmp_path))
    data = bytearray((tmp_path / SHARD).read_bytes())
    data[6] ^= 1
    (tmp_path / SHARD).write_bytes(data)
    with pytest.raises(CorpusError, match=SHARD):
        corpus.component("web", "train")


def test_one_flipped_bit_in_an_index_is_refused_by_name(tmp_path: Path) -> None:
    corpus = Corpus.open(small(tmp_path))
    path = tmp_path / "tokens/web/train/00000.parquet"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=r"00000\.parquet"):
        corpus.component("web", "train")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    corpus = Corpus.open(small(tmp_path))
    (tmp_path / SHARD).unlink()
    with pytest.raises(CorpusError, match=SHARD):
        corpus.component("web", "train")


def test_ten_uint16_tokens_are_never_read_as_uint32(tmp_path: Path) -> None:
    manifest = build_corpus(tmp_path, {("web", "train"): [documents_of_lengths([10])]}, vocabulary=70_000, dtype="uint32")
    raw = json.loads(manifest.read_text())
    tokens = np.fromfile(tmp_path / SHARD, "<u4").astype("<u2")
    (tmp_path / SHARD).write_bytes(tokens.tobytes())
    _reseal(manifest, raw, shard=(tmp_path / SHARD).read_bytes())
    with pytest.raises(CorpusError, match="20 bytes are not 10 tokens of uint32"):
        Corpus.open(manifest).component("web", "train")


def test_a_dtype_that_does_not_suit_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="65536 is not stored as uint32"):
        Corpus.open(small(tmp_path, vocabulary=65_536, dtype="uint32"))
    with pytest.raises(ManifestError, match="65537 is not stored as uint16"):
        Corpus.open(small(tmp_path, vocabulary=65_537, dtype="uint16"))


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    manifest = build_corpus(tmp_path, {("web", "train"): [[[1, 2, 99, 3]]]}, vocabulary=64)
    with pytest.raises(CorpusError, match="token id 99"):
        Corpus.open(manifest).component("web", "train")


def test_a_shard_of_mostly_one_id_is_refused(tmp_path: Path) -> None:
    manifest = build_corpus(tmp_path, {("web", "train"): [[[7] * 60, [1, 2, 3]]]})
    with pytest.raises(CorpusError, match=f"{SHARD}: 60 of its 65 tokens are the id 7: this is not text"):
        Corpus.open(manifest).component("web", "train")


def test_a_shard_too_small_to_judge_is_taken_as_the_pipeline_wrote_it(tmp_path: Path) -> None:
    tokens = np.array([0, *[7] * 30, 0, 1, 2, 3], np.uint16)
    check_tokens(tokens, VOCABULARY)
    manifest = build_corpus(tmp_path, {("web", "train"): [[[7] * 30, [1, 2, 3]]]})
    component = Corpus.open(manifest).component("web", "train")
    assert component.read(0, 99).tolist() == tokens.tolist()


def test_another_tokenizer_than_the_shards_is_refused(tmp_path: Path) -> None:
    manifest = small(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"tokenizer\.json"):
        Corpus.open(manifest)


def test_a_document_that_does_not_begin_with_bos_is_refused(tmp_path: Path) -> None:
    manifest = small(tmp_path)
    raw = json.loads(manifest.read_text())
    raw["content"]["tokenizer"]["bos_id"] = 63
    _reseal(manifest, raw)
    with pytest.raises(CorpusError, match="BOS"):
        Corpus.open(manifest).component("web", "train")


def test_a_manifest_that_was_edited_is_refused(tmp_path: Path) -> None:
    manifest = small(tmp_path)
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ManifestError):
        Corpus.open(manifest)


def test_a_missing_validation_split_is_an_error_and_never_another_file(tmp_path: Path) -> None:
    corpus = Corpus.open(small(tmp_path))
    with pytest.raises(CorpusError, match="no validation split"):
        corpus.components("validation")


def test_more_training_shards_leave_the_validation_documents_as_they_were(tmp_path: Path) -> None:
    held_out = [documents_of_lengths([6, 7])]
    digests = []
    for shards in (3, 5):
        train = [documents_of_lengths([5, 9, 3], first=n) for n in range(shards)]
        manifest = build_corpus(tmp_path / str(shards), {("web", "train"): train, ("web", "validation"): held_out})
        digests.append(Corpus.open(manifest).split_digest("validation"))
    assert digests[0] == digests[1]


def test_a_remote_corpus_is_fetched_once_into_a_cache_of_digests(tmp_path: Path) -> None:
    learnable_corpus(tmp_path / "local", train=20, held_out=5)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "local") + "/", "/remote-corpus/", recursive=True)
    cache = tmp_path / "cache"
    remote = Corpus.open("memory://remote-corpus/manifest.json", cache)
    local = Corpus.open(tmp_path / "local")
    there, here = remote.component("toy", "train"), local.component("toy", "train")
    assert there.read(0, 50).tolist() == here.read(0, 50).tolist()
    shard = there.shards[0]
    assert (cache / shard.sha256[:2] / shard.sha256).exists()
    memory.rm("/remote-corpus/" + shard.path)
    assert remote.component("toy", "train").tokens == here.tokens


def test_a_cached_shard_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    learnable_corpus(tmp_path / "local", train=20, held_out=5)
    fsspec.filesystem("memory").put(str(tmp_path / "local") + "/", "/damaged-cache/", recursive=True)
    remote = Corpus.open("memory://damaged-cache", tmp_path / "cache")
    shard = remote.component("toy", "train").shards[0]
    held = tmp_path / "cache" / shard.sha256[:2] / shard.sha256
    held.write_bytes(b"\0" * held.stat().st_size)
    assert remote.component("toy", "train").read(0, 1).tolist() == [0]
    assert held.read_bytes() != b"\0" * held.stat().st_size


def _reseal(path: Path, raw: dict, shard: bytes | None = None) -> None:
    """Writes an edited manifest with digests that hold again."""
    if shard is not None:
        raw["content"]["shards"][0]["sha256"] = hashlib.sha256(shard).hexdigest()
    raw["digest"] = digest(raw["content"])
    path.write_text(json.dumps(raw))
