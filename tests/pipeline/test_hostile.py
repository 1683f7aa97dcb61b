"""What an adversary tried: each is an error with a reason, or a row, and never a hang, a traceback, or another digest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from manifests import commands
from manifests.manifest import Manifest, ManifestError, digest
from manifests.storage import Folder, StorageError
from manifests.verification.verify import verify
from pipeline.inputs import InputError
from pipeline.recipe import Recipe, RecipeError
from pipeline.run import RunFailed
from tests.pipeline.crawl import article, build, small_recipe, write_small

TEXTS = {"a.jsonl": [{"text": article(str(number))} for number in range(30)]}
TOKENS: list[Any] = [{"split": {"validation": 0.3, "test": 0}}, {"tokenizer": {"vocabulary": 512}}, "shards"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    build(write_small(folder, TEXTS, small_recipe([], TOKENS)), folder / "corpus")
    return folder / "corpus"


def with_tokenizer(trained: Path, folder: Path, **model: Any) -> Recipe:
    raw = json.loads((trained / "tokenizer.json").read_text())
    raw["model"].update(model)
    folder.mkdir(exist_ok=True)
    (folder / "given.json").write_text(json.dumps(raw))
    return write_small(folder, TEXTS, small_recipe([], [TOKENS[0], {"tokenizer": {"file": "given.json"}}, "shards"]))


def test_a_tokenizer_that_encodes_at_random_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="its model has dropout"):
        build(with_tokenizer(trained, tmp_path, dropout=0.5), tmp_path / "corpus")
    assert build(with_tokenizer(trained, tmp_path, dropout=None), tmp_path / "corpus").manifest.content.tokenizer is not None


def test_a_corpus_in_its_own_source_or_around_it_is_refused(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, TEXTS, small_recipe([]))
    for inside in (tmp_path / "docs", tmp_path / "docs" / "corpus"):
        with pytest.raises(InputError, match="lies in the source of component docs"):
            build(recipe, inside)
    with pytest.raises(InputError, match="lies around the source of component docs"):
        build(recipe, tmp_path)
    assert not (tmp_path / "docs" / "corpus").exists()


def test_escape_sequences_and_markup_of_strangers_reach_no_terminal(tmp_path: Path) -> None:
    name = "esc\x1b[31m\x1b]0;PWN\x07[red]\u202e.jsonl"
    recipe = small_recipe([])
    recipe["components"]["docs"]["licence"] = "[/x] [bold]CC0 \x1b[31m"
    loaded = write_small(tmp_path, {name: [{"text": article("a")}], "x.\x1b[31mE": []}, recipe)
    build(loaded, tmp_path / "corpus")
    for arguments in (["funnel", str(tmp_path / "corpus")], ["why", str(tmp_path / "corpus"), f"docs/{name}#0"]):
        result = CliRunner().invoke(commands.app, arguments)
        assert result.exit_code == 0, result.output
        assert not {"\x1b", "\x07", "\u202e"} & set(result.output)
        assert "[bold]CC0 \\x1b[31m" in result.output
    (tmp_path / "corpus" / "receipts" / "list.jsonl").unlink()
    assert CliRunner().invoke(commands.app, ["verify", str(tmp_path / "corpus")]).exit_code == 1


def test_times_that_python_does_not_know_cost_a_date_and_no_document(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    odd = {
        "ns": pa.array([1700000000000000001], pa.timestamp("ns")),
        "far": pa.array([2**62], pa.timestamp("us")),
        "zone": pa.array([0], pa.timestamp("us", "Nowhere/Bad")),
        "days": pa.array([2**30], pa.date32()),
        "length": pa.array([1], pa.duration("ns")),
        "time": pa.array([1], pa.time64("ns")),
    }
    for kind, column in odd.items():
        pq.write_table(
            pa.table({"text": [article(kind)], "date": column, "url": column}), tmp_path / "tables" / f"{kind}.parquet"
        )
    recipe = small_recipe([])
    recipe["components"]["docs"].update(source="tables", format="parquet", reader={"date_column": "date"})
    assert build(write_small(tmp_path, {}, recipe), tmp_path / "corpus").manifest.content.components[
        "docs"
    ].documents_kept == len(odd)


@pytest.mark.parametrize(
    "stage",
    [
        {"tokenizer": {"vocabulary": 99999999999999}},
        {"minhash": {"bands": 1000000, "rows": 1000000}},
        {"minhash": {"bands": 100000, "rows": 100}},
    ],
)
def test_numbers_beyond_all_use_are_recipe_errors(tmp_path: Path, stage: dict[str, Any]) -> None:
    before = [TOKENS[0]] if "tokenizer" in stage else []
    with pytest.raises(RecipeError, match=r"recipe\.yaml:\d+: "):
        write_small(tmp_path, TEXTS, small_recipe([], [*before, stage]))


def test_a_priority_beyond_32_bits_is_a_recipe_error(tmp_path: Path) -> None:
    recipe = small_recipe([])
    recipe["components"]["docs"]["priority"] = 99999999999999999999
    with pytest.raises(RecipeError, match="priority"):
        write_small(tmp_path, TEXTS, recipe)


def test_no_split_has_more_shards_than_documents(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, TEXTS, small_recipe([], [*TOKENS[:2], {"shards": {"target_tokens": 1}}]))
    content = build(recipe, tmp_path / "corpus").manifest.content
    assert content.split is not None
    assert {shard.split for shard in content.shards} == {"train", "validation"}
    for split, documents in content.split.documents.items():
        assert sum(shard.split == split for shard in content.shards) <= documents


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_in_place_of_a_shard_is_named_and_not_read(trained: Path, tmp_path: Path, kind: str) -> None:
    build(write_small(tmp_path, TEXTS, small_recipe([], TOKENS)), tmp_path / "corpus")
    corpus = Folder(tmp_path / "corpus")
    manifest = Manifest.load(corpus)
    shard = tmp_path / "corpus" / manifest.content.shards[0].path
    shard.unlink()
    os.mkfifo(shard) if kind == "pipe" else shard.symlink_to("/dev/zero")
    assert any(manifest.content.shards[0].path in finding for finding in verify(corpus, manifest))


def test_a_pipe_that_no_pattern_takes_does_not_block_a_source(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, TEXTS, small_recipe([]))
    os.mkfifo(tmp_path / "docs" / "socket.pipe")
    (tmp_path / "docs" / "gone.txt").symlink_to("nowhere")
    assert build(recipe, tmp_path / "corpus").manifest.content.components["docs"].unread_files == {".pipe": 1, ".txt": 1}
    (tmp_path / "docs" / "b.jsonl").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"b\.jsonl is a broken link, or no file"):
        build(recipe, tmp_path / "corpus")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["shards"].append(content["shards"][0]), "listed twice"),
        (lambda content: content["shards"][0].update(split="test"), "not where a test shard"),
        (lambda content: content["shards"][0].update(component="elsewhere"), "there is no component 'elsewhere'"),
        (lambda content: content["shards"][0].update(index=content["shards"][1]["index"]), "twice|not where"),
    ],
)
def test_a_manifest_that_tells_shards_twice_or_elsewhere_is_refused(
    trained: Path, tmp_path: Path, change: Any, reason: str
) -> None:
    raw = json.loads((trained / "manifest.json").read_text())
    change(raw["content"])
    (tmp_path / "manifest.json").write_text(json.dumps({**raw, "digest": digest(raw["content"])}))
    with pytest.raises(ManifestError, match=reason):
        Manifest.load(Folder(tmp_path))


def test_a_work_file_that_was_cut_is_made_again(tmp_path: Path) -> None:
    files = {"a.jsonl": TEXTS["a.jsonl"]}
    first = build(write_small(tmp_path, files, small_recipe(["repair"], ["exact_dedup"])), tmp_path / "corpus")
    cut = next((tmp_path / "corpus" / "steps" / "docs.1.repair").rglob("documents.arrow"))
    os.truncate(cut, cut.stat().st_size // 2)
    again = build(write_small(tmp_path, files, small_recipe(["repair"], ["exact_dedup", "minhash"])), tmp_path / "corpus")
    assert again.ran["docs.1.repair"] == 1
    assert again.manifest.content.components["docs"].documents_kept == first.manifest.content.components["docs"].documents_kept


def test_an_empty_path_is_not_the_root_of_the_machine() -> None:
    with pytest.raises(StorageError, match="an empty path"):
        Folder("")


def test_why_on_a_corpus_without_its_logs_says_what_to_do(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes((trained / "manifest.json").read_bytes())
    result = CliRunner().invoke(commands.app, ["why", str(tmp_path), "docs/a.jsonl#0"])
    assert result.exit_code == 1
    assert "corpusmill verify" in result.stderr
