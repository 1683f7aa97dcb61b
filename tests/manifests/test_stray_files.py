"""Files among logs and tokens that no manifest lists are named; those of a manifest that was written beside another one are not
strays; and what a takedown carries over is looked at first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from manifests.audit.takedown import Selection, affected, take_down
from manifests.logs import Logs
from manifests.manifest import ManifestError, open_corpus
from manifests.verification.verify import verify


def beside(corpus: Path, output: str) -> str:
    """Takes south.example down, and returns where the new corpus is."""
    folder, manifest = open_corpus(str(corpus))
    with Logs(folder, manifest, ["documents", "removals"]) as logs:
        found = affected(logs, Selection(domains=("south.example",)))
    return take_down(folder, manifest, found, output, reason="a test", by="nobody").where


@pytest.mark.parametrize(
    ("source", "stray"),
    [
        ("logs/removals/books/00000.parquet", "logs/removals/books/00007.parquet"),
        ("tokens/books/train/00000.bin", "tokens/books/train/00077.bin"),
        ("recipe.yaml", "logs/notes.txt"),
        ("recipe.yaml", "tokens/books/train/00000.bin.linking"),
    ],
)
def test_a_file_that_no_manifest_lists_is_named(copied: Path, source: str, stray: str) -> None:
    shutil.copy(copied / source, copied / stray)
    assert list(verify(*open_corpus(str(copied)))) == [f"{stray}: lies there, and no manifest in the folder lists it"]


@pytest.mark.parametrize(
    "name", ["logs/removals/books/00000.parquet", "tokens/books/train/00000.bin", "tokens/books", "recipe.yaml"]
)
def test_a_link_in_place_of_a_file_or_folder_is_named(copied: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (copied / name).rename(elsewhere)
    (copied / name).symlink_to(elsewhere)
    assert list(verify(*open_corpus(str(copied)))) == [f"{name}: is a symbolic link, and what it leads to is not in the corpus"]


def test_a_corpus_may_be_reached_over_a_link(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(copied)
    assert list(verify(*open_corpus(str(tmp_path / "here")))) == []


def test_files_of_a_takedown_beside_the_old_manifest_are_no_strays_of_either(copied: Path) -> None:
    """Until one of the two manifests is deleted: then what it alone had is left over, and named."""
    where = beside(copied, "without.json")
    assert list(verify(*open_corpus(str(copied)))) == []
    assert list(verify(*open_corpus(where))) == []
    (copied / "manifest.json").unlink()
    left = list(verify(*open_corpus(where)))
    assert left and all(one.endswith("lies there, and no manifest in the folder lists it") for one in left)
    assert any(one.startswith("tokens/books/") for one in left) and any(one.startswith("logs/documents/books/") for one in left)


@pytest.mark.parametrize("kind", ["shard", "log", "tokenizer"])
def test_a_damaged_file_is_not_carried_over_by_a_takedown(copied: Path, tmp_path: Path, kind: str) -> None:
    _, manifest = open_corpus(str(copied))
    shard = next(one for one in manifest.content.shards if one.component == "tables")
    path = {"shard": shard.path, "log": "logs/edits/tables/00000.parquet", "tokenizer": "tokenizer.json"}[kind]
    data = (copied / path).read_bytes()
    (copied / path).write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(ManifestError, match=f"{path}: not the file that the manifest lists"):
        beside(copied, str(tmp_path / "without"))
    (copied / path).unlink()
    with pytest.raises(ManifestError, match=f"{path}: cannot be read"):
        beside(copied, str(tmp_path / "without"))
    assert not [one for one in (tmp_path / "without").rglob("*") if one.is_file()]
