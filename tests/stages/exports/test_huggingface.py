"""Parquet for Hugging Face: every kept text with what the logs say of it, a card, and files whose cuts depend on documents alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from manifests.manifest import Manifest
from manifests.storage import Folder
from stages import shard_texts
from stages.exports import huggingface
from stages.exports.huggingface import SCHEMA, Cuts
from stages.tokenizer import Encoder
from tests.stages.exports.corpora import documents, files, groups, reseal, run, written


def rows(folder: Path, split: str = "*", component: str = "*") -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob(f"data/{split}/{component}/*.parquet"))])


def front_matter(folder: Path) -> dict:
    _, front, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front)


def test_every_kept_document_is_there_with_its_text_and_what_the_log_says(
    finished: Path, manifest: Manifest, tmp_path: Path
) -> None:
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    logged = {
        row["id"]: row
        for path in sorted((finished / "logs" / "documents").rglob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
        if row["removed_by"] is None
    }
    encoder = Encoder((finished / "tokenizer.json").read_text())
    seen = 0
    for (component, split), shards in groups(manifest).items():
        found = rows(tmp_path / "out", split, component).to_pylist()
        expected = list(documents(finished, manifest, shards))
        assert [row["id"] for row in found] == [name for name, _ in expected]
        for row, (name, tokens) in zip(found, expected, strict=True):
            assert row["text"].encode() == encoder.decode(tokens)
            assert hashlib.sha256(row["text"].encode()).hexdigest() == row["text_sha256"]
            assert row.pop("licence") == manifest.content.components[component].licence
            row.pop("text")
            assert row == {key: logged[name][key] for key in row}
        seen += len(found)
    assert seen == len(logged)


def test_columns_have_their_types_also_where_all_are_null(finished: Path, tmp_path: Path) -> None:
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    for path in (tmp_path / "out").rglob("*.parquet"):
        assert pq.read_schema(path).equals(SCHEMA)
    assert rows(tmp_path / "out", component="tables")["date"].null_count == 16


def test_urls_have_no_credentials_and_no_query(finished: Path, tmp_path: Path) -> None:
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    urls = [url for url in rows(tmp_path / "out")["url"].to_pylist() if url]
    assert "https://private.example/page" in urls
    assert not any("?" in url or "@" in url for url in urls)


def test_the_card_names_licences_languages_and_files(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    card = front_matter(tmp_path / "out")
    assert card["license"] == ["cc-by-4.0", "cc0-1.0", "other"]
    assert card["language"] == ["en"]
    assert card["size_categories"] == ["n<1K"]
    assert [one["config_name"] for one in card["configs"]] == ["default", "books", "tables", "web"]
    assert card["configs"][0]["default"] is True
    text = (tmp_path / "out" / "README.md").read_text()
    assert manifest.digest in text
    for name, component in manifest.content.components.items():
        assert f"| {name} | {component.source} | {component.snapshot or ''} | {component.licence} |" in text
    for config in card["configs"]:
        for one in config["data_files"]:
            found = sorted((tmp_path / "out").glob(one["path"]))
            assert found and all(path.parent.parent.name == one["split"] for path in found)


def test_a_component_called_default_does_not_hide_the_whole(copied: Path, tmp_path: Path) -> None:
    from stages.exports.format import Tally

    manifest = Manifest.load(Folder(copied))
    manifest.content.components["default"] = manifest.content.components["web"]
    counts = [Tally(name, "train", 1, 1, 1) for name in ("books", "default")]
    card = huggingface._card(manifest, ["books", "default"], counts, [])
    configs = yaml.safe_load(card.split("---\n")[1])["configs"]
    assert [one["config_name"] for one in configs] == ["default_all", "books", "default"]


def test_files_are_cut_at_the_target_and_say_how_many_there_are(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    written("parquet", finished, tmp_path / "out", file_bytes=5000)
    for component, split in groups(manifest):
        found = sorted((tmp_path / "out" / "data" / split / component).iterdir())
        assert [path.name for path in found] == [f"{number:05d}-of-{len(found):05d}.parquet" for number in range(len(found))]
        sizes = [pq.read_table(path)["text_bytes"].to_pylist() for path in found]
        assert all(sum(one) <= 5000 for one in sizes)
        assert all(sum(one) + other[0] > 5000 for one, other in pairwise(sizes))
    assert Counter(path.parent.name for path in (tmp_path / "out").rglob("*.parquet"))["books"] > 3


def test_neither_slices_nor_row_groups_depend_on_how_shards_are_read(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "ROW_GROUP_BYTES", 8000)
    for tokens in (1, 700, 1 << 20):
        monkeypatch.setattr(shard_texts, "SLICE_TOKENS", tokens)
        written("parquet", finished, tmp_path / str(tokens), file_bytes=30_000)
    assert files(tmp_path / "1") == files(tmp_path / "700") == files(tmp_path / str(1 << 20))
    metadata = [pq.read_metadata(path) for path in (tmp_path / "1").rglob("*.parquet")]
    assert max(one.num_row_groups for one in metadata) > 2


def test_cuts_are_those_of_a_loop_over_documents() -> None:
    chance = np.random.default_rng(5)
    for _ in range(200):
        sizes = chance.integers(0, 30, chance.integers(1, 60))
        limit = int(chance.integers(1, 60))
        expected, used = [], 0
        for size in sizes.tolist():
            if not expected or (used and used + size > limit):
                expected.append([])
                used = 0
            expected[-1].append(size)
            used += size
        cuts, found, at = Cuts(limit), [], 0
        while at < len(sizes):
            piece = sizes[at : at + int(chance.integers(1, 20))]
            for first, last, new in cuts.of(piece):
                if new:
                    found.append([])
                found[-1] += piece[first:last].tolist()
            at += len(piece)
        assert found == expected


@pytest.mark.parametrize(
    "column, value, complaint",
    [
        ("text_sha256", "0" * 64, "is not the one that the log of documents tells of"),
        ("text_bytes", 1, "tells of texts of other lengths"),
        ("tokens", 1, "tells of other tokens or another split"),
        ("split", "test", "tells of other tokens or another split"),
        ("id", "books/elsewhere#1", "has others there, or in another order"),
        ("text_sha256", None, "does not say where and what they are"),
        ("shard", None, "the log of documents has"),
    ],
)
def test_a_log_that_tells_of_something_else_is_an_error(
    column: str, value: object, complaint: str, copied: Path, tmp_path: Path
) -> None:
    content = Manifest.load(Folder(copied)).content
    shard = next(shard for shard in content.shards if shard.split == "train")
    for log in content.logs:
        if log.kind != "documents" or log.path.split("/")[2] != shard.component:
            continue
        table = pq.read_table(copied / log.path)
        changed = table.to_pylist()
        row = next(row for row in changed if row["shard"] == shard.path)
        row[column] = value
        schema = pa.schema([field.with_nullable(True) for field in table.schema])
        pq.write_table(pa.Table.from_pylist(changed, schema), copied / log.path)
    reseal(copied, lambda raw: None)
    result = run("parquet", copied, tmp_path / "out")
    assert result.exit_code == 1
    assert complaint in result.output
    assert not files(tmp_path / "out")


def test_datasets_itself_loads_every_split_and_configuration(
    finished: Path, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_HOME", str(tmp_path / "home"))):
        monkeypatch.setenv(name, value)
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    written("parquet", finished, tmp_path / "out", file_bytes=5000)
    cache = str(tmp_path / "cache")
    whole = datasets.load_dataset(str(tmp_path / "out"), cache_dir=cache)
    for split in whole:
        expected = [
            name
            for (_, of), shards in groups(manifest).items()
            if of == split
            for name, _ in documents(finished, manifest, shards)
        ]
        assert sorted(whole[split]["id"]) == sorted(expected)
    assert sum(len(one) for one in whole.values()) == sum(shard.documents for shard in manifest.content.shards)
    web = datasets.load_dataset(str(tmp_path / "out"), "web", split="train", cache_dir=cache)
    assert [dict(row) for row in web] == rows(tmp_path / "out", "train", "web").to_pylist()
    streamed = datasets.load_dataset(str(tmp_path / "out"), split="validation", streaming=True)
    assert [row["id"] for row in streamed] == whole["validation"]["id"][:]


def test_the_record_of_the_export_is_no_data_of_it(finished: Path, tmp_path: Path) -> None:
    """Readers that follow the card find Parquet only: export.json and croissant.json lie beside it."""
    assert run("parquet", finished, tmp_path / "out").exit_code == 0
    patterns = [one["path"] for config in front_matter(tmp_path / "out")["configs"] for one in config["data_files"]]
    assert all(pattern.startswith("data/") and pattern.endswith(".parquet") for pattern in patterns)
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert {file["path"] for file in record["files"]} >= {"README.md", "croissant.json"}
