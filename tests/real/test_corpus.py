"""The whole pipeline on every file of the real crawls and gold pages."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.execution import InlineExecutor
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.run import run

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA})")


def workshop(folder: Path, *, only: str | None = None) -> Path:
    """A folder with the recipe and a link to the data; `only` keeps the files of one project of the crawls."""
    folder.mkdir(parents=True, exist_ok=True)
    if only is None:
        (folder / "data").symlink_to(DATA)
    else:
        (folder / "data").mkdir()
        for name in ("benchmarks", "html_gold"):
            (folder / "data" / name).symlink_to(DATA / name)
        (folder / "data" / "warc").mkdir()
        (folder / "data" / "warc" / only).symlink_to(DATA / "warc" / only)
    shutil.copy(ROOT / "tests" / "real" / "recipe.yaml", folder / "recipe.yaml")
    return folder / "recipe.yaml"


def build(recipe: Path, corpus: Path, *options: str) -> Manifest:
    command = [sys.executable, "-m", "pipeline", "run", str(recipe), "--corpus", str(corpus), "--quiet", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Manifest.load(Folder(corpus))


def build_killed(recipe: Path, corpus: Path, kills: int, total: int, seed: int) -> Manifest:
    """Builds while the driver is killed `kills` times, each time when a random number of further receipts has appeared."""
    chance = random.Random(seed)
    for _ in range(kills):
        done = sum(1 for _ in corpus.glob("receipts/*/*.json"))
        until = done + chance.randint(1, max(2, (total - done) // 2))
        command = [sys.executable, "-m", "pipeline", "run", str(recipe), "--corpus", str(corpus), "--quiet", "--workers", "2"]
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and sum(1 for _ in corpus.glob("receipts/*/*.json")) < until:
            time.sleep(0.05)
        assert process.poll() is None, "the run ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (corpus / "manifest.json").exists()
    return build(recipe, corpus, "--workers", "2")


def logged(corpus: Path, kind: str, *columns: str) -> list[dict[str, object]]:
    return ds.dataset(sorted(corpus.glob(f"logs/{kind}/*/*.parquet"))).to_table(columns=list(columns)).to_pylist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Manifest]:
    folder = tmp_path_factory.mktemp("real")
    recipe = workshop(folder)
    corpus = folder / "corpus"
    return recipe, corpus, build(recipe, corpus, "--workers", "2")


@pytest.mark.slow
def test_a_corpus_of_all_real_crawls_and_pages_verifies(whole: tuple[Path, Path, Manifest]) -> None:
    _, corpus, manifest = whole
    assert list(verify(Folder(corpus), manifest)) == []


@pytest.mark.slow
def test_every_file_has_a_row_or_counted_records_and_every_document_is_kept_or_has_one_row(
    whole: tuple[Path, Path, Manifest],
) -> None:
    _, corpus, manifest = whole
    documents = logged(corpus, "documents", "id", "component", "file", "removed_by")
    assert len({row["id"] for row in documents}) == len(documents)
    removals = Counter(row["id"] for row in logged(corpus, "removals", "id"))
    assert removals == Counter(row["id"] for row in documents if row["removed_by"] is not None)
    for name, folder in (("crawls", "warc"), ("pages", "html_gold")):
        on_disk = {str(path.relative_to(DATA / folder)) for path in (DATA / folder).rglob("*") if path.is_file()}
        record = manifest.content.components[name]
        assert {one.path for one in record.inputs} == on_disk
        silent = on_disk - {str(row["file"]) for row in documents if row["component"] == name}
        if name == "pages":
            assert silent == set()
        elif silent:  # a crawl of requests and metadata alone has no document, and its records are counted
            assert sum(record.skipped_records.values()) >= len(silent)


@pytest.mark.slow
def test_one_worker_and_other_parts_give_the_same_corpus(whole: tuple[Path, Path, Manifest], tmp_path: Path) -> None:
    recipe, _, manifest = whole
    again = build(recipe, tmp_path / "corpus", "--workers", "1", "--part-mib", "1")
    assert again.digest == manifest.digest


@pytest.mark.slow
def test_three_kills_at_random_moments_change_no_byte(whole: tuple[Path, Path, Manifest], tmp_path: Path) -> None:
    recipe, corpus, manifest = whole
    again = build_killed(recipe, tmp_path / "corpus", 3, manifest.run["receipts"]["number"], seed=2)
    assert again.digest == manifest.digest
    for path in sorted(corpus.glob("tokens/**/*.*")):
        assert path.read_bytes() == (tmp_path / "corpus" / path.relative_to(corpus)).read_bytes()


@pytest.mark.slow
def test_a_changed_threshold_extracts_and_measures_nothing_again(whole: tuple[Path, Path, Manifest]) -> None:
    recipe, corpus, manifest = whole
    changed = recipe.with_name("changed.yaml")
    changed.write_text(recipe.read_text().replace("- gopher_quality", "- gopher_quality: {min_words: 40}"))
    result = run(Recipe.load(changed), Folder(corpus), InlineExecutor(), Progress(quiet=True))
    assert result.manifest.digest != manifest.digest
    assert {
        step: parts for step, parts in result.ran.items() if "extraction" in step or "measure" in step or step.endswith(".read")
    } == {step: 0 for step in result.ran if "extraction" in step or "measure" in step}
    assert any(parts for step, parts in result.ran.items() if step.endswith(".rules"))


def test_the_crawls_of_one_project_verify_and_account_for_every_record(tmp_path: Path) -> None:
    recipe = workshop(tmp_path, only="webrecorder__warcio")
    text = recipe.read_text()
    pages = text.index("  pages:")
    recipe.write_text(text[:pages] + "stages:\n  - exact_dedup\n  - minhash\n")
    manifest = run(Recipe.load(recipe), Folder(tmp_path / "corpus"), InlineExecutor(), Progress(quiet=True)).manifest
    assert list(verify(Folder(tmp_path / "corpus"), manifest)) == []
    with gzip.open(DATA / "warc" / "facts.jsonl.gz", "rt") as lines:
        facts = [json.loads(line) for line in lines]
    pages_by_both = sum(fact["warcio"].get("html_responses", 0) for fact in facts if fact["repo"] == "webrecorder/warcio")
    read = next(count for count in manifest.content.counts if count.stage == "read")
    assert read.documents_in >= pages_by_both > 0
