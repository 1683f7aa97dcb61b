"""The split is checked by what it is for: how alike documents of different splits are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline import steps
from tests.pipeline.crawl import build, small_recipe, write_small

PAIRS = 120
HALF = {"validation": 0.25, "test": 0.25}


def texts() -> list[str]:
    """Pairs whose Jaccard lies about 0.5: 32 bands of 4 rows miss one in sixteen of those at 0.54."""
    chance = random.Random(11)
    found = []
    for number in range(PAIRS):
        words = [f"w{chance.randrange(10**9)}" for _ in range(104)]
        copy = list(words)
        for place in chance.sample(range(4, 100, 5), 6 + number % 2):
            copy[place] = f"x{chance.randrange(10**9)}"
        found += [" ".join(words), " ".join(copy)]
    chance.shuffle(found)
    return found


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def write(folder: Path, **options: Any) -> Any:
    given = texts()
    files = {f"{number}.jsonl": [{"text": text} for text in given[number::4]] for number in range(4)}
    return write_small(folder, files, small_recipe([], [{"split": {**HALF, **options}}]))


def across(corpus: Path) -> list[tuple[float, str, str]]:
    """(-Jaccard, held out, other) of all pairs of different splits that share a shingle, by comparing all with all."""
    given = texts()
    with Logs(Folder(corpus), Manifest.load(Folder(corpus))) as logs:
        split = {row["id"]: row["split"] for row in logs.sql("select id, split from documents")}
    sets = {f"docs/{number}.jsonl#{row}": shingles(text) for number in range(4) for row, text in enumerate(given[number::4])}
    found = []
    for held, mine in sets.items():
        for other, theirs in sets.items():
            if split[held] != "train" and split[other] != split[held] and mine & theirs:
                found.append((-len(mine & theirs) / len(mine | theirs), held, other))
    return sorted(found)


def test_the_closest_pair_of_two_splits_is_the_one_that_brute_force_finds(tmp_path: Path) -> None:
    split = build(write(tmp_path, check_sample=4000), tmp_path / "corpus").manifest.content.split
    assert split is not None and split.closest is not None
    pairs = across(tmp_path / "corpus")
    assert pairs[0][0] <= -0.5, "no pair was missed, so there is nothing to find"
    assert (-split.closest.jaccard, split.closest.held_out, split.closest.other) == pairs[0]
    assert split.closest.held_out_documents == split.documents["validation"] + split.documents["test"]
    assert split.closest.documents == 2 * PAIRS
    assert split.closest.pairs_at_threshold == sum(pair[0] <= -0.5 for pair in pairs)
    assert list(verify(Folder(tmp_path / "corpus"), Manifest.load(Folder(tmp_path / "corpus")))) == []


def test_the_sample_is_the_same_however_the_parts_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write(tmp_path, check_sample=20)
    whole = build(recipe, tmp_path / "whole").manifest
    monkeypatch.setattr(steps, "PARTITION_BYTES", 10_000)
    apart = build(recipe, tmp_path / "apart", 1).manifest
    assert whole.content.split is not None and whole.content.split.closest is not None
    assert whole.content.split.closest.held_out_documents == 20
    assert whole.digest == apart.digest


def test_without_anything_held_out_or_with_no_sample_nothing_is_measured(tmp_path: Path) -> None:
    for name, options in (("none", {"check_sample": 0}), ("all", {"validation": 0, "test": 0})):
        split = build(write(tmp_path / name, **options), tmp_path / name / "corpus").manifest.content.split
        assert split is not None and split.closest is None
