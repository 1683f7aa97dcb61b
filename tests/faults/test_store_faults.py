"""An object store that answers 500 and SlowDown and cuts connections: tried again, and the same bytes; or an error that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import s3fs
from typer.testing import CliRunner

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.commands import app
from pipeline.recipe import Recipe
from tests.faults.store import FaultyStore, Kind
from tests.pipeline.crawl import article, build, lines_of, small_recipe, write_small

KINDS: tuple[Kind, ...] = ("500", "503", "cut-upload", "cut-answer", "cut-download")
FILES = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(6)] for name in "ab"}


def recipe_from(folder: Folder, tmp_path: Path) -> Recipe:
    """Its input lies in the store too."""
    for name, records in FILES.items():
        folder.write(f"docs/{name}", lines_of(records))
    written: dict[str, Any] = small_recipe(["repair"], ["exact_dedup"])
    written["components"]["docs"]["source"] = f"{folder.url}/docs"
    return write_small(tmp_path, {}, written)


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "cut-upload" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_a_store_that_fails_now_and_then_gives_the_same_corpus(store: FaultyStore, tmp_path: Path, kind: Kind) -> None:
    recipe = recipe_from(Folder(store.folder()), tmp_path)
    unbroken = build(recipe, tmp_path / "here").manifest
    corpus = Folder(store.folder())
    with store.strike(kind, every=5) as struck:
        build(recipe, corpus.url)
    assert struck.hits > 2
    assert Manifest.load(corpus).digest == unbroken.digest
    assert list(verify(corpus, Manifest.load(corpus))) == []
    for log in unbroken.content.logs:
        assert corpus.read(log.path) == (tmp_path / "here" / log.path).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_fails_for_good_ends_the_run_with_a_reason_and_a_rerun_goes_on(
    store: FaultyStore, tmp_path: Path, kind: Kind
) -> None:
    recipe = recipe_from(Folder(store.folder()), tmp_path)
    corpus = Folder(store.folder())
    command = ["run", recipe.path, "--corpus", corpus.url, "--executor", "inline", "--quiet"]
    with store.strike(kind, path="steps" if kind.startswith("cut") else ""):
        broken = CliRunner().invoke(app, command)
    assert broken.exit_code == 1, broken.output
    assert "error: " in broken.stderr
    assert "Traceback" not in broken.output
    assert not corpus.exists("manifest.json")
    for name in corpus.names("lock.json"):
        pytest.fail(f"{name} was left: {json.loads(corpus.read(name))}")
    assert CliRunner().invoke(app, command).exit_code == 0
    assert Manifest.load(corpus).digest == build(recipe, tmp_path / "here").manifest.digest


def test_a_store_without_credentials_or_a_server_is_an_error_with_a_reason(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_small(tmp_path, FILES, small_recipe([]))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        refused = CliRunner().invoke(app, ["run", recipe.path, "--corpus", store.folder(), "--executor", "inline"])
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
    assert refused.exit_code == 1, refused.output
    assert "127.0.0.1:1" in refused.stderr
    assert "Traceback" not in refused.output
