"""What every export promises: the same bytes again, nothing lost, nothing half-written that looks complete, no change to the corpus."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests.dropping import drop
from manifests.manifest import Manifest
from manifests.storage import Folder
from stages.exports import FORMATS, find
from tests.pipeline.crawl import build, small_recipe, write_small
from tests.stages.exports.corpora import files, groups, reseal, run

ALL = sorted(FORMATS)


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_format_is_named_as_it_is_listed() -> None:
    assert [find(one).name for one in ALL] == ALL


def test_the_same_corpus_gives_the_same_bytes_and_stays_as_it_was(name: str, finished: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(finished.rglob("*"))}
    for folder in ("one", "two"):
        result = run(name, finished, tmp_path / folder)
        assert result.exit_code == 0, result.output
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert {path: path.stat().st_mtime_ns for path in sorted(finished.rglob("*"))} == before


def test_the_record_lists_every_file_and_counts_every_document(
    name: str, finished: Path, manifest: Manifest, tmp_path: Path
) -> None:
    result = run(name, finished, tmp_path / "out", "--json")
    record = json.loads(result.stdout)
    found = files(tmp_path / "out")
    assert json.loads(found.pop("export.json")) == record
    assert {one["path"]: one["sha256"] for one in record["files"]} == {
        path: hashlib.sha256(data).hexdigest() for path, data in found.items()
    }
    assert (record["export"], record["corpus_digest"]) == (name, manifest.digest)
    for row in record["counts"]:
        shards = groups(manifest)[row["component"], row["split"]]
        assert row["documents"] == sum(shard.documents for shard in shards)
        assert row["tokens"] == row["written"] == sum(shard.tokens for shard in shards)
    kept = sum(one.documents_kept for one in manifest.content.components.values())
    assert sum(row["documents"] for row in record["counts"]) == kept


def test_a_person_sees_documents_and_tokens_in_and_out(name: str, finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    shown = run(name, finished, tmp_path / "out").output
    documents, tokens = (sum(getattr(shard, what) for shard in manifest.content.shards) for what in ("documents", "tokens"))
    assert re.search(rf"^all +{documents:,} +{tokens:,} +{tokens:,} *$", shown, re.MULTILINE)
    assert f"documents and tokens in = out; the corpus has {documents:,} kept documents" in shown
    assert "stand in no shard" not in shown


def test_kept_documents_that_stand_in_no_shard_are_told(name: str, copied: Path, tmp_path: Path) -> None:
    reseal(copied, lambda raw: raw["components"]["web"].update(documents_kept=raw["components"]["web"]["documents_kept"] + 2))
    assert "2 of them stand in no shard and are not in the export" in run(name, copied, tmp_path / "out").output


def test_a_second_export_to_the_same_folder_is_recognised_and_writes_nothing(name: str, finished: Path, tmp_path: Path) -> None:
    assert run(name, finished, tmp_path / "out").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "out").rglob("*"))}
    again = run(name, finished, tmp_path / "out")
    assert again.exit_code == 0
    assert "already holds this export, unchanged" in again.output
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "out").rglob("*"))} == before


@pytest.mark.parametrize("what", ["changed", "missing", "added", "unfinished", "record"])
def test_a_folder_that_is_not_this_very_export_is_refused_and_left_alone(what: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("megatron", finished, out).exit_code == 0
    target = out / "books" / "train.bin"
    if what == "changed":
        target.write_bytes(target.read_bytes()[:-1] + b"\xff")
    elif what == "missing":
        target.unlink()
    elif what == "added":
        (out / "books" / "notes.txt").write_text("mine")
    elif what == "record":
        (out / "export.json").write_text('{"format": "something else"}')
    else:
        (out / "export.json").unlink()
    before = files(out)
    result = run("megatron", finished, out)
    complaints = {
        "changed": "books/train.bin was changed",
        "missing": "books/train.bin is missing",
        "added": "books/notes.txt is not one of its files",
        "unfinished": "holds no finished export",
        "record": "is not the record of an export",
    }
    assert result.exit_code == 1
    assert complaints[what] in result.output
    assert files(out) == before


def test_another_export_is_refused(finished: Path, tmp_path: Path) -> None:
    assert run("megatron", finished, tmp_path / "out").exit_code == 0
    for other in (["mds", finished], ["megatron", finished, "--no-bos"], ["megatron", finished, "--component", "web"]):
        result = run(other[0], other[1], tmp_path / "out", *other[2:])
        assert result.exit_code == 1
        assert "holds another export (megatron of small" in result.output


def test_nothing_is_written_into_a_corpus(name: str, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(copied)
    before = files(copied)
    for target in (copied, copied / "exports" / "one", tmp_path / "link" / "exports", copied / "logs" / ".." / "exports"):
        result = run(name, copied, target)
        assert result.exit_code == 1
        assert "lies in the corpus" in result.output
    assert files(copied) == before


def test_an_output_that_is_a_file_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    result = run("mds", finished, tmp_path / "out")
    assert result.exit_code == 1
    assert "is a file, and an export is a folder" in result.output
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("damage", ["flipped", "missing"])
@pytest.mark.parametrize("which", ["shard", "index", "log", "tokenizer"])
def test_a_damaged_corpus_is_an_error_that_names_the_file_and_nothing_is_written(
    which: str, damage: str, name: str, copied: Path, tmp_path: Path
) -> None:
    content = Manifest.load(Folder(copied)).content
    # The last one of each kind: the error must come before the first is exported.
    logs = [log.path for log in content.logs if log.kind == "documents"]
    path = {"shard": content.shards[-1].path, "index": content.shards[-1].index, "log": logs[-1], "tokenizer": "tokenizer.json"}[
        which
    ]
    if which == "log" and name in ("mds", "megatron"):
        pytest.skip("it does not read the logs")
    data = bytearray((copied / path).read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "missing":
        (copied / path).unlink()
    else:
        (copied / path).write_bytes(data)
    result = run(name, copied, tmp_path / "out")
    assert result.exit_code == 1
    assert path in result.output
    assert isinstance(result.exception, SystemExit)
    assert not files(tmp_path / "out")


@pytest.mark.parametrize("name", ["mds", "megatron"])
def test_what_was_written_before_an_error_is_deleted(name: str, copied: Path, tmp_path: Path) -> None:
    """The last shard has a document without BOS, and the manifest vouches for it."""
    shard = Manifest.load(Folder(copied)).content.shards[-1]
    tokens = np.fromfile(copied / shard.path, "<u2")
    tokens[0] = 99
    tokens.tofile(copied / shard.path)
    reseal(copied, lambda raw: None)
    result = run(name, copied, tmp_path / "out")
    assert result.exit_code == 1
    assert f"{shard.path}: not every document has BOS" in result.output
    assert (tmp_path / "out").is_dir()  # it had begun
    assert not files(tmp_path / "out")


@pytest.mark.parametrize("name", ["mds", "megatron"])
def test_an_id_beyond_the_vocabulary_is_an_error(name: str, copied: Path, tmp_path: Path) -> None:
    shard = Manifest.load(Folder(copied)).content.shards[0]
    tokens = np.fromfile(copied / shard.path, "<u2")
    tokens[1] = 65_000
    tokens.tofile(copied / shard.path)
    reseal(copied, lambda raw: None)
    result = run(name, copied, tmp_path / "out")
    assert result.exit_code == 1
    assert f"{shard.path}: token id 65000 is not in a vocabulary of" in result.output


def test_components_and_splits_can_be_chosen(name: str, finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    result = run(name, finished, tmp_path / "out", "--component", "web", "--component", "tables", "--split", "train", "--json")
    record = json.loads(result.stdout)
    assert [(row["component"], row["split"]) for row in record["counts"]] == [("tables", "train"), ("web", "train")]
    assert not any("books" in path for path in (file["path"] for file in record["files"]))


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--component", "wep"], "there is no component 'wep'; there are books, tables, web"),
        (["--split", "dev"], "there is no split 'dev'; there are train, validation, test"),
        (["--component", "tables", "--split", "validation"], "no documents are in these components and splits"),
    ],
)
def test_what_is_not_in_the_corpus_is_an_error(
    arguments: list[str], complaint: str, name: str, finished: Path, tmp_path: Path
) -> None:
    result = run(name, finished, tmp_path / "out", *arguments)
    assert result.exit_code == 1
    assert complaint in result.output


def test_a_manifest_without_a_component_exports_without_it(name: str, copied: Path, tmp_path: Path) -> None:
    folder = Folder(copied)
    drop(folder, Manifest.load(folder), "books").manifest.save(folder, "no-books.json")
    result = run(name, copied / "no-books.json", tmp_path / "out", "--json")
    record = json.loads(result.stdout)
    assert record["corpus_digest"] == Manifest.load(folder, "no-books.json").digest
    assert {row["component"] for row in record["counts"]} == {"tables", "web"}
    described = [
        data for path, data in files(tmp_path / "out").items() if path.endswith(("croissant.json", "README.md", "index.json"))
    ]
    assert not any(b"books" in data for data in described)


def test_what_has_no_documents_is_told_and_left_out(name: str, copied: Path, manifest: Manifest, tmp_path: Path) -> None:
    """A component of which nothing was kept, and splits that a component does not have."""

    def without_tables(raw: dict[str, Any]) -> None:
        raw["components"]["tables"].update(documents_kept=0, tokens={})
        raw["shards"] = [shard for shard in raw["shards"] if shard["component"] != "tables"]
        raw["shards"] = [shard for shard in raw["shards"] if (shard["component"], shard["split"]) != ("web", "test")]

    held = groups(manifest)
    assert ("web", "test") in held and ("web", "train") in held
    reseal(copied, without_tables)
    result = run(name, copied, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "without any document, so not in the export: tables, web test" in result.output
    assert not any("tables" in path for path in files(tmp_path / "out"))
    asked = run(name, copied, tmp_path / "asked", "--component", "web", "--split", "train", "--split", "test")
    assert "so not in the export: web test" in asked.output
    nothing = run(name, copied, tmp_path / "nothing", "--component", "tables")
    assert nothing.exit_code == 1
    assert "no documents are in these components and splits" in nothing.output
    assert not files(tmp_path / "nothing")


def test_a_corpus_without_shards_or_manifest_is_an_error(name: str, tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "One sentence."}]}, small_recipe(["repair"]))
    build(recipe, tmp_path / "corpus")
    result = run(name, tmp_path / "corpus", tmp_path / "out")
    assert result.exit_code == 1
    assert "this corpus has no shards" in result.output
    assert "there is no manifest" in run(name, tmp_path / "nowhere", tmp_path / "out").output


def test_an_export_to_an_object_store_has_the_same_bytes(name: str, finished: Path, tmp_path: Path) -> None:
    """fsspec's memory file system stands for stores that have no folders and no renaming."""
    import fsspec

    url = f"memory://bucket/{name}"
    assert run(name, finished, url).exit_code == 0
    assert run(name, finished, tmp_path / "out").exit_code == 0
    store = fsspec.filesystem("memory")
    found = {path.removeprefix(f"/bucket/{name}/"): store.cat(path) for path in store.find(f"/bucket/{name}")}
    assert found == files(tmp_path / "out")
    assert "already holds this export" in run(name, finished, url).output


def test_a_corpus_in_an_object_store_gives_the_same_bytes(name: str, copied: Path, tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    for path, data in files(copied).items():
        store.pipe(f"/{tmp_path.name}/corpus/{path}", data)
    assert run(name, f"memory://{tmp_path.name}/corpus", tmp_path / "one").exit_code == 0
    assert run(name, copied, tmp_path / "two").exit_code == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert "lies in the corpus" in run(name, f"memory://{tmp_path.name}/corpus", f"memory://{tmp_path.name}/corpus/out").output


def test_texts_of_many_scripts_survive(tmp_path: Path) -> None:
    """Texts that a byte-level tokenizer cuts inside characters; each comes back from every export of texts."""
    texts = [
        "Ein Text über Äpfel.",
        "これは日本語の文章です。",
        "🙂👩‍👩‍👧‍👦 emoji",
        "नमस्ते दुनिया",
        "a",
        "line\r\nline\ttab \u200b",
        "<|bos|> is text",
        "".join(map(chr, range(0x4E00, 0x4F00))),
    ]
    stages = [
        {"split": {"validation": 0.2, "test": 0.2}},
        {"tokenizer": {"vocabulary": 512}},
        {"shards": {"target_tokens": 3000}},
    ]
    build(
        write_small(tmp_path, {"a.jsonl": [{"text": text} for text in texts]}, small_recipe(["repair"], stages)),
        tmp_path / "corpus",
    )
    assert run("parquet", tmp_path / "corpus", tmp_path / "out").exit_code == 0
    rows = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "out").rglob("*.parquet"))])
    assert len(set(rows["text"].to_pylist())) == len(texts)
    logged = pq.read_table(sorted((tmp_path / "corpus" / "logs" / "documents").rglob("*.parquet"))[0]).to_pylist()
    assert {row["id"]: row["text_sha256"] for row in logged} == {
        row["id"]: hashlib.sha256(row["text"].encode()).hexdigest() for row in rows.to_pylist()
    }
