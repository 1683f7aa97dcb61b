"""Croissant: every file with its digest, every column a field; mlcroissant validates it and reads the records where it is installed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from manifests.manifest import Manifest, listed_files
from tests.stages.exports.corpora import run

PUBLICATION = [
    "--url",
    "https://example.org/small",
    "--creator",
    "Example Org",
    "--published",
    "2026-11-29",
    "--release",
    "1.0.0",
    "--citation",
    "Example Org. Small. 2026.",
]


def described(path: Path) -> dict[str, Any]:
    return json.loads((path / "croissant.json").read_text())


def objects(about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["@id"]: one for one in about["distribution"] if one["@type"] == "cr:FileObject"}


def test_every_file_that_the_manifest_lists_is_there_with_its_digest(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert run("croissant", finished, tmp_path / "out").exit_code == 0
    about = described(tmp_path / "out")
    assert {path: one["sha256"] for path, one in objects(about).items()} == {
        path: sha256 for path, sha256, _ in listed_files(manifest.content) if "logs/signals" not in path
    } | {log.path: log.sha256 for log in manifest.content.logs}
    for path, one in objects(about).items():
        assert one["contentUrl"] == path
        assert one["contentSize"] == f"{(finished / path).stat().st_size} B"
    assert about["identifier"] == f"sha256:{manifest.digest}"
    assert about["license"] == ["PD", "https://spdx.org/licenses/CC-BY-4.0.html", "https://spdx.org/licenses/CC0-1.0.html"]


def test_the_parquet_export_describes_itself(finished: Path, tmp_path: Path) -> None:
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    about = described(tmp_path / "out")
    found = {
        str(path.relative_to(tmp_path / "out")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (tmp_path / "out").rglob("*.parquet")
    }
    assert {path: one["sha256"] for path, one in objects(about).items()} == found
    (records,) = about["recordSet"]
    columns = [one["source"]["extract"]["column"] for one in records["field"]]
    assert columns == pq.read_schema(tmp_path / "out" / next(iter(found))).names
    assert all(one.get("description") for one in records["field"])


def test_sources_and_stages_are_told(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert run("croissant", finished, tmp_path / "out").exit_code == 0
    about = described(tmp_path / "out")
    for name, component in manifest.content.components.items():
        assert f"{name}: {component.documents_in:,} documents from {component.source}" in about["rai:dataCollection"]
        protocol = next(one for one in about["rai:dataPreprocessingProtocol"] if one.startswith(f"{name}: "))
        assert all(f"{stage.stage} {stage.version}" in protocol for stage in component.stages)
    assert about["rai:dataPreprocessingProtocol"][-1].startswith("all components: ")


def test_files_can_lie_elsewhere(finished: Path, tmp_path: Path) -> None:
    assert run("croissant", finished, tmp_path / "out", "--base-url", "https://example.org/corpora/small").exit_code == 0
    for path, one in objects(described(tmp_path / "out")).items():
        assert one["contentUrl"] == f"https://example.org/corpora/small/{path}"


def test_who_publishes_it_is_said_only_by_who_does(finished: Path, tmp_path: Path) -> None:
    assert run("croissant", finished, tmp_path / "plain").exit_code == 0
    assert not {"url", "creator", "datePublished", "version", "citeAs"} & described(tmp_path / "plain").keys()
    assert run("croissant", finished, tmp_path / "out", *PUBLICATION).exit_code == 0
    about = described(tmp_path / "out")
    assert (about["url"], about["datePublished"], about["version"]) == ("https://example.org/small", "2026-11-29", "1.0.0")
    assert about["creator"]["name"] == "Example Org"


def test_a_date_that_is_none_is_bad_usage(finished: Path, tmp_path: Path) -> None:
    result = run("croissant", finished, tmp_path / "out", "--published", "yesterday")
    assert result.exit_code == 2
    assert "not a date as YYYY-MM-DD" in result.output


@pytest.mark.parametrize("format_", ["croissant", "parquet"])
def test_mlcroissant_finds_nothing_wrong(format_: str, copied: Path, tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", exc_type=ImportError)
    assert run(format_, copied, tmp_path / "out", *PUBLICATION).exit_code == 0
    dataset = mlcroissant.Dataset(str(tmp_path / "out" / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    assert len(dataset.metadata.file_objects) == len(objects(described(tmp_path / "out")))


def test_mlcroissant_reads_the_texts_of_the_parquet_export(finished: Path, tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", exc_type=ImportError)
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    dataset = mlcroissant.Dataset(str(tmp_path / "out" / "croissant.json"))
    found = {one["documents/id"].decode(): one["documents/text"].decode() for one in dataset.records("documents")}
    expected = {}
    for path in (tmp_path / "out").rglob("*.parquet"):
        expected |= {row["id"]: row["text"] for row in pq.read_table(path).to_pylist()}
    assert found == expected


def test_mlcroissant_reads_the_logs_of_a_corpus(copied: Path, manifest: Manifest, tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", exc_type=ImportError)
    assert run("croissant", copied, tmp_path / "out").exit_code == 0
    shutil.copy(tmp_path / "out" / "croissant.json", copied)
    dataset = mlcroissant.Dataset(str(copied / "croissant.json"))
    came = sum(one.documents_in for one in manifest.content.components.values())
    kept = sum(one.documents_kept for one in manifest.content.components.values())
    assert {name: len(list(dataset.records(name))) for name in ("documents", "removals", "shard_index")} == {
        "documents": came,
        "removals": came - kept,
        "shard_index": kept,
    }
