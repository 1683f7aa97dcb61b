"""Near-duplicates through the whole pipeline: as brute force removes them, whoever does the work and however it is cut."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pipeline
from manifests.logs import read_parquet
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline import steps
from pipeline.execution import RayExecutor
from pipeline.recipe import RecipeError
from stages.clusters import keep_ranks, resolve
from tests.pipeline.crawl import build, write_small

WORDS = 60
COMPONENTS = ("docs", "old")
Key = tuple[Any, ...]


def texts(count: int = 90, seed: int = 5) -> dict[str, list[str]]:
    """File → texts: unrelated ones, chains in which each resembles the next, and stars around one."""
    chance = random.Random(seed)

    def fresh(number: int) -> list[str]:
        return [f"w{chance.randrange(10**9)}" for _ in range(number)]

    def changed(words: list[str], places: int) -> list[str]:
        copy = list(words)
        for place in chance.sample(range(0, len(words), 5), places):
            copy[place] = f"x{chance.randrange(10**9)}"
        return copy[: chance.randrange(WORDS - 2, WORDS + 1)]

    found = []
    while len(found) < count:
        words = fresh(WORDS)
        found.append(words)
        for _ in range(chance.randrange(5)):  # a chain, each link with one more word replaced
            words = changed(words, 1)
            found.append(words)
        for _ in range(chance.randrange(4)):  # a star
            found.append(changed(found[-1], 1))
    chance.shuffle(found)
    files = [f"{component}/{number}.jsonl" for component in COMPONENTS for number in range(3)]
    return {file: [" ".join(words) for words in found[index :: len(files)]] for index, file in enumerate(files)}


def write(folder: Path, files: dict[str, list[str]], stages: list[Any]) -> Any:
    components = {
        name: {"source": f"docs/{name}", "format": "jsonl", "licence": "PD", "priority": int(name == "old")}
        for name in COMPONENTS
    }
    recipe = {"corpus": "near", "components": components, "stages": stages}
    return write_small(folder, {name: [{"text": text} for text in given] for name, given in files.items()}, recipe)


def removals(corpus: Path) -> dict[str, dict[str, Any]]:
    folder, manifest = Folder(corpus), Manifest.load(Folder(corpus))
    assert list(verify(folder, manifest)) == []
    logs = [log for log in manifest.content.logs if log.kind == "removals"]
    rows = pa.concat_tables([read_parquet(folder, log.path) for log in logs]).to_pylist()
    return {row["id"]: {key: value for key, value in row.items() if key != "step"} for row in rows}


def shingles(text: str) -> set[Key]:
    words = text.split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def expected(files: dict[str, list[str]], scope: str, chain: Any, threshold: float) -> list[Key]:
    """(removed, linked, its Jaccard, kept, its Jaccard, cluster, size) by comparing all with all."""
    ids = [f"{name.split('/')[0]}/{name.split('/')[1]}#{row}" for name, given in files.items() for row in range(len(given))]
    sets = [shingles(text) for given in files.values() for text in given]
    lengths = [len(text) for given in files.values() for text in given]
    priority = [int(name.startswith("old")) for name in ids]
    rank = keep_ranks(np.array(priority), np.array(lengths), np.arange(len(ids)))
    similarity = {
        (a, b): len(sets[a] & sets[b]) / len(sets[a] | sets[b])
        for a, b in itertools.combinations(range(len(ids)), 2)
        if scope == "corpus" or priority[a] == priority[b]
    }
    edges = {pair: value for pair, value in similarity.items() if value >= threshold}
    clusters = resolve(np.array([*edges]), np.array([*edges.values()]), rank, chain)
    found = []
    for removed, linked, kept, cluster, size in zip(
        *(getattr(clusters, name).tolist() for name in ("removed", "linked", "kept", "cluster", "size")), strict=True
    ):
        pairs = [similarity[min(removed, other), max(removed, other)] for other in (linked, kept)]
        found.append((ids[removed], ids[linked], pairs[0], ids[kept], pairs[1], ids[cluster], size))
    return sorted(found)


def evidence(rows: dict[str, dict[str, Any]]) -> list[Key]:
    names = ("linked_id", "linked_jaccard", "kept_id", "kept_jaccard", "cluster", "cluster_size")
    return sorted((name, *(row[key] for key in names)) for name, row in rows.items())


@pytest.fixture(scope="module")
def two_workers() -> Iterator[RayExecutor]:
    executor = RayExecutor(workers=2)
    yield executor
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["corpus", "component"])
@pytest.mark.parametrize("chain", ["closure", "direct"])
def test_the_same_documents_go_for_the_same_reasons_however_the_work_is_cut(
    chain: str, scope: str, two_workers: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are those that brute force removes: 64 bands of 2 rows miss a pair at 0.8 once in 10^28."""
    files = texts()
    recipe = write(tmp_path, files, [{"minhash": {"bands": 64, "rows": 2, "chain": chain, "scope": scope}}])
    build(recipe, tmp_path / "whole")
    whole = removals(tmp_path / "whole")
    assert evidence(whole) == expected(files, scope, chain, 0.8)
    assert len(whole) > 20
    monkeypatch.setattr(steps, "PARTITION_BYTES", 4000)
    build(recipe, tmp_path / "cut", 3000)
    assert removals(tmp_path / "cut") == whole
    build(recipe, tmp_path / "apart", 1, two_workers)
    assert removals(tmp_path / "apart") == whole
    digests = {Manifest.load(Folder(tmp_path / name)).digest for name in ("whole", "cut", "apart")}
    assert len(digests) == 1


def test_a_recall_in_a_recipe_becomes_bands_and_rows_in_the_manifest(tmp_path: Path) -> None:
    chosen = write(tmp_path / "a", texts(20), [{"minhash": {"threshold": 0.8, "recall": 0.97}}])
    [record] = build(chosen, tmp_path / "a" / "corpus").manifest.content.stages
    bands, rows = record.options["bands"], record.options["rows"]
    assert record.options["recall"] == 0.97 and 1 - (1 - 0.8**rows) ** bands >= 0.97
    written = write(tmp_path / "b", texts(20), [{"minhash": {"threshold": 0.8, "bands": bands, "rows": rows}}])
    build(written, tmp_path / "b" / "corpus")
    assert removals(tmp_path / "a" / "corpus") == removals(tmp_path / "b" / "corpus")


def test_a_recall_beside_bands_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError,
        match=r"recipe.yaml:\d+: stages\[0\]\.minhash: .*recall chooses bands and rows .* so bands 14 cannot stand too",
    ):
        write(tmp_path, texts(20), [{"minhash": {"recall": 0.95, "bands": 14}}])


def boilerplate(pages: int) -> dict[str, list[str]]:
    """Pages of one template that differ in a word, so that next to all of them meet in most bands."""
    template = [f"menu{number}" for number in range(120)]
    return {
        "docs/a.jsonl": [" ".join([*template, f"page{number:06d}"]) for number in range(pages)],
        "old/b.jsonl": ["nothing like it"],
    }


def test_a_crowded_bucket_is_cut_short_counted_and_leaves_one_page(tmp_path: Path) -> None:
    recipe = write(tmp_path, boilerplate(1500), ["minhash"])
    [record] = build(recipe, tmp_path / "corpus").manifest.content.deduplication
    assert record["removed"] == 1499 and record["skipped_pairs"] > 0
    assert record["candidate_pairs"] < 1500 * 1499 // 2 // 5
    rows = removals(tmp_path / "corpus")
    assert {row["kept_id"] for row in rows.values()} == {"docs/a.jsonl#0"}
    assert all(row["kept_jaccard"] >= 0.8 for row in rows.values())


@pytest.mark.slow
def test_a_hundred_thousand_pages_in_one_bucket_take_less_than_two_gibibytes(tmp_path: Path) -> None:
    """All steps in one process, whose peak the system tells."""
    pages = 100_000
    write(tmp_path, boilerplate(pages), [{"minhash": {}}])
    command = [sys.executable, "-m", "pipeline", "run", str(tmp_path / "recipe.yaml"), "--corpus", str(tmp_path / "corpus")]
    process = subprocess.Popen([*command, "--executor", "inline", "--quiet"], cwd=Path(pipeline.__file__).parent.parent)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    assert usage.ru_maxrss * 1024 < 2 << 30
    [record] = Manifest.load(Folder(tmp_path / "corpus")).content.deduplication
    assert record["removed"] == pages - 1 and record["skipped_pairs"] > 10**9


def test_texts_shorter_than_a_shingle_are_duplicates_only_of_themselves(tmp_path: Path) -> None:
    files = {
        "docs/a.jsonl": ["page not found", "Page  not FOUND", "not found page", "page not", "four words are short"],
        "old/b.jsonl": ["page not found"],
    }
    build(write(tmp_path, files, ["minhash"]), tmp_path / "corpus")
    rows = removals(tmp_path / "corpus")
    assert sorted(rows) == ["docs/a.jsonl#0", "docs/a.jsonl#1"]
    assert {row["kept_id"] for row in rows.values()} == {"old/b.jsonl#0"}
