"""Exports from and to a real S3 server on this machine."""

from __future__ import annotations

from pathlib import Path

from manifests.manifest import Manifest, listed_files
from manifests.storage import Folder
from stages.exports import FORMATS
from tests.pipeline.test_object_store import store  # noqa: F401 - the fixture
from tests.stages.exports.corpora import files, run


def test_a_bucket_gives_and_takes_the_same_bytes_as_a_folder(
    finished: Path,
    manifest: Manifest,
    store: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    corpus = Folder(f"{store}/exported")
    for path in ["manifest.json", *(path for path, _, _ in listed_files(manifest.content))]:
        corpus.write(path, (finished / path).read_bytes())
    for name in sorted(FORMATS):
        assert run(name, finished, tmp_path / name).exit_code == 0
        target = Folder(f"{store}/{name}")
        result = run(name, corpus.url, target.url)
        assert result.exit_code == 0, result.output
        assert {path: target.read(path) for path in target.names()} == files(tmp_path / name)
        assert "already holds this export, unchanged" in run(name, corpus.url, target.url).output
        assert "lies in the corpus" in run(name, corpus.url, f"{corpus.url}/{name}").output
    shard = manifest.content.shards[-1].path
    corpus.write(shard, corpus.read(shard)[:-2])
    for name in sorted(FORMATS):
        broken = run(name, corpus.url, f"{store}/broken/{name}")
        assert broken.exit_code == 1
        assert f"{shard}: not the file that the manifest lists" in broken.output
        assert not Folder(f"{store}/broken/{name}").names()
