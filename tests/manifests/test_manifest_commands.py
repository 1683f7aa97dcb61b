"""Show, drop and diff: what a person learns of a corpus from its manifest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from manifests.commands import app
from manifests.difference import differences
from manifests.manifest import Content, LogFile, Manifest, Shard, digest, open_corpus
from manifests.overview import by_component, by_licence, by_source
from manifests.storage import Folder
from manifests.verify import verify
from tests.pipeline.crawl import Crawl, build


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["manifest", *arguments], env={"COLUMNS": "220"})
    assert result.exit_code == code, result.output
    return result.output


def test_tokens_by_licence_and_source_add_up_to_all(finished: Path, manifest: Manifest) -> None:
    content = manifest.content
    shown = json.loads(run("show", str(finished), "--json"))
    total = sum(shard.tokens for shard in content.shards)
    for name in ("component", "licence", "source"):
        assert sum(row["all_tokens"] for row in shown[name]) == total
        assert sum(row["documents"] for row in shown[name]) == sum(one.documents_kept for one in content.components.values())
    assert {row["name"] for row in shown["licence"]} == {one.licence for one in content.components.values()}
    for row in by_component(content):
        assert row.tokens == content.components[row.name].tokens
    assert sorted(name for row in by_source(content) for name in row.components) == sorted(content.components)
    table = run("show", str(finished))
    for row in by_licence(content):
        assert row.name in table
    assert manifest.digest in table


def test_a_corpus_opens_by_folder_or_by_any_of_its_manifests(copied: Path, manifest: Manifest) -> None:
    shutil.copy(copied / "manifest.json", copied / "other.json")
    for path in (copied, copied / "manifest.json", copied / "other.json"):
        folder, found = open_corpus(str(path))
        assert found.digest == manifest.digest
        assert folder.exists("tokenizer.json")


def test_a_dropped_component_is_gone_and_the_rest_is_whole(copied: Path, manifest: Manifest) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    told = run("drop", str(copied), "books", "--output", "without-books.json", "--reason", "a letter of 3 May")
    corpus, dropped = open_corpus(str(copied / "without-books.json"))
    content = dropped.content
    assert set(content.components) == set(manifest.content.components) - {"books"}
    assert all("/books/" not in path for path in [*(one.path for one in content.shards), *(one.path for one in content.logs)])
    assert list(verify(corpus, dropped)) == []
    assert {
        path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != "without-books.json"
    } == before
    [record] = content.dropped
    assert (record["component"], record["reason"], record["of"]) == ("books", "a letter of 3 May", manifest.digest)
    assert record["documents"] == manifest.content.components["books"].documents_kept
    assert "trained on its documents" in told
    rows = ds.dataset(sorted(copied.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
    orphans = [row["id"] for row in rows if row["component"] != "books" and (row["kept_id"] or "").startswith("books/")]
    assert record["orphans"] == len(orphans)
    assert all(name in told for name in orphans)


def test_twins_of_a_dropped_component_are_listed(copied: Path, manifest: Manifest) -> None:
    """Whichever component has kept twins of another's documents."""
    rows = ds.dataset(sorted(copied.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
    across = [row for row in rows if row["kept_id"] and row["kept_id"].split("/")[0] != row["component"]]
    assert across, "the crawl plants a duplicate across components"
    component = across[0]["kept_id"].split("/")[0]
    found = json.loads(run("drop", str(copied), component, "--output", "less.json", "--json"))
    assert {row["id"] for row in found["orphans"]} == {row["id"] for row in across if row["kept_id"].startswith(f"{component}/")}


@pytest.mark.parametrize(
    "arguments, code, complaint",
    [
        (("nothing", "--output", "a.json"), 1, "there is no component 'nothing'"),
        (("books", "--output", "manifest.json"), 2, "manifest-2.json"),
        (("books", "--output", "../a.json"), 2, "manifest-2.json"),
        (("books", "--output", "tokenizer.json"), 1, "is there already"),
    ],
)
def test_what_cannot_be_dropped_is_refused(copied: Path, arguments: tuple[str, ...], code: int, complaint: str) -> None:
    before = sorted(path.name for path in copied.iterdir())
    assert complaint in run("drop", str(copied), *arguments, code=code)
    assert sorted(path.name for path in copied.iterdir()) == before


def test_the_same_corpus_does_not_differ(finished: Path, copied: Path, manifest: Manifest) -> None:
    assert differences(manifest.content, manifest.content) == []
    assert manifest.digest in run("diff", str(finished), str(copied))


def test_a_changed_threshold_is_the_cause_and_its_removals_the_effect(crawl: Crawl, finished: Path, tmp_path: Path) -> None:
    def stricter(recipe: dict[str, Any]) -> None:
        stages = recipe["components"]["books"]["stages"]
        recipe["components"]["books"]["stages"] = [
            {"gopher_quality": {"min_words": 200}} if one == "gopher_quality" else one for one in stages
        ]

    shutil.copytree(finished, tmp_path / "corpus")
    build(crawl.load(stricter, "stricter-books.yaml"), tmp_path / "corpus", 4000)
    changes = json.loads(run("diff", str(finished), str(tmp_path / "corpus"), "--json", code=1))
    assert [change for change in changes if change["kind"] == "cause"] == [
        {"kind": "cause", "where": "books: gopher_quality", "what": "option min_words", "before": 50, "after": 200}
    ]
    effects = {
        (change["where"], change["what"]): (change["before"], change["after"]) for change in changes if change["kind"] == "effect"
    }
    before, after = effects["books", "removed by gopher.min_words"]
    assert after > before
    assert "option min_words" in run("diff", str(finished), str(tmp_path / "corpus"), code=1)


def test_added_inputs_stages_and_components_are_causes(manifest: Manifest) -> None:
    raw = manifest.content.model_dump(mode="json")
    changed = json.loads(json.dumps(raw))
    books = changed["components"]["books"]
    books["inputs"][0]["sha256"] = "0" * 64
    books["stages"].pop()
    changed["components"]["more"] = {**books, "source": "elsewhere"}
    causes = {
        (one.where, one.what) for one in differences(manifest.content, Content.model_validate(changed)) if one.kind == "cause"
    }
    gone = raw["components"]["books"]["stages"][-1]["stage"]
    assert causes == {("books", "input files changed"), (f"books: {gone}", "stage"), ("more", "component")}


def test_a_thousand_shards_are_shown_dropped_and_compared_from_the_manifest_alone(copied: Path, manifest: Manifest) -> None:
    """No shard is read: most of these do not exist."""
    raw = manifest.content.model_dump(mode="json")
    model = raw["shards"][0]
    shards, logs = [], []
    for component in ("books", "web"):
        for number in range(1000):
            stem = f"tokens/{component}/train/{number:05}"
            shards.append(
                Shard(**{**model, "component": component, "split": "train", "path": f"{stem}.bin", "index": f"{stem}.parquet"})
            )
    for log in raw["logs"]:
        logs.append(LogFile(**log))
    raw |= {"shards": [one.model_dump() for one in shards], "logs": [one.model_dump() for one in logs]}
    for component in raw["components"]:
        raw["components"][component]["tokens"] = {"train": 1000 * model["tokens"]} if component in ("books", "web") else {}
    Manifest.seal(Content.model_validate(raw), manifest.run).save(Folder(copied), "large.json")
    run("show", str(copied / "large.json"))
    run("drop", str(copied / "large.json"), "books", "--output", "small.json")
    assert len(open_corpus(str(copied / "small.json"))[1].content.shards) == 1000
    told = run("diff", str(copied / "large.json"), str(copied / "small.json"), code=1)
    assert "1,000 of which are the same" in told
    assert digest(raw) == open_corpus(str(copied / "large.json"))[1].digest
