"""Repeated spans of a component, from recipe to logs."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.recipe import Recipe
from tests.pipeline.crawl import build

SPANS = [" ".join(f"span{number}word{word}" for word in range(8)) for number in range(6)]
NAMES = ("news", "wiki")


def words_of(component: str, number: int) -> list[str]:
    """Words of its own with some of SPANS between them; every tenth page is spans alone."""
    chance = random.Random(f"{component}{number}")
    words: list[str] = []
    for piece in range(chance.randrange(1, 6)):
        if number % 10:
            words += [f"{component}{number}.{piece}.{word}" for word in range(chance.randrange(1, 9))]
        if chance.random() < 0.6:
            words += SPANS[chance.randrange(len(SPANS))].split()
    return words or SPANS[0].split()


def recipe(folder: Path, **options: Any) -> Recipe:
    components = {}
    for component in NAMES:
        for file in range(3):
            path = folder / component / f"{file}.jsonl"
            path.parent.mkdir(exist_ok=True)
            texts = [" ".join(words_of(component, 20 * file + number)) for number in range(20)]
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        components[component] = {"source": component, "format": "jsonl", "licence": "PD"}
    path = folder / "recipe.yaml"
    stages = [{"substring_dedup": {"min_tokens": 8, **options}}]
    path.write_text(yaml.safe_dump({"corpus": "spans", "components": components, "stages": stages}))
    return Recipe.load(str(path))


def by_hand(keep: str) -> dict[str, str | None]:
    """id → the text that is left (None: removed), window by window."""
    left: dict[str, str | None] = {}
    for component in NAMES:
        pages = {number: words_of(component, number) for number in range(60)}

        def rank(number: int, pages: dict[int, list[str]] = pages) -> tuple[int, int]:
            return (-len(" ".join(pages[number])) if keep == "longest" else 0, number)

        seen: dict[tuple[str, ...], tuple[int, int]] = {}
        for number in sorted(pages, key=rank):
            words = pages[number]
            cut = [False] * len(words)
            for place in range(len(words) - 7):
                first = seen.setdefault(tuple(words[place : place + 8]), (number, place))
                if first[0] != number or first[1] + 8 <= place:
                    cut[place : place + 8] = [True] * 8
            name = f"{component}/{number // 20}.jsonl#{number % 20}"
            left[name] = " ".join(word for word, gone in zip(words, cut, strict=True) if not gone) or None
    return left


@pytest.mark.parametrize("keep", ["longest", "first"])
def test_what_is_left_is_what_one_would_cut_by_hand(tmp_path: Path, keep: str) -> None:
    loaded = recipe(tmp_path, keep=keep)
    expected = by_hand(keep)
    assert None in expected.values()
    wanted = {
        name: "substring_dedup" if text is None else hashlib.sha256(text.encode()).hexdigest() for name, text in expected.items()
    }
    digests = set()
    for part_bytes in (1 << 27, 1):
        corpus = tmp_path / f"corpus-{part_bytes}"
        build(loaded, corpus, part_bytes)
        rows = ds.dataset(sorted(corpus.glob("logs/documents/*/*.parquet"))).to_table().to_pylist()
        assert {row["id"]: row["text_sha256"] or row["removed_by"] for row in rows} == wanted
        manifest = Manifest.load(Folder(corpus))
        assert list(verify(Folder(corpus), manifest)) == []
        digests.add(manifest.digest)
    assert len(digests) == 1
    records = manifest.content.deduplication
    assert [(record["component"], record["stage"], record["documents"]) for record in records] == [
        (name, "substring_dedup", 60) for name in NAMES
    ]
    words = {name: [words_of(name, number) for number in range(60)] for name in NAMES}
    for record in records:
        total = sum(map(len, words[record["component"]]))
        left = sum(len((text or "").split()) for name, text in expected.items() if name.startswith(record["component"]))
        assert (record["tokens"], record["repeated_tokens"]) == (total, total - left)


def test_a_large_component_has_several_arrays_and_says_so(tmp_path: Path) -> None:
    loaded = recipe(tmp_path, max_array_bytes=2_000)
    outcomes = []
    for part_bytes in (1 << 27, 1):
        corpus = tmp_path / f"corpus-{part_bytes}"
        build(loaded, corpus, part_bytes)
        manifest = Manifest.load(Folder(corpus))
        outcomes.append(manifest.digest)
        assert all(record["arrays"] > 3 and record["documents"] == 60 for record in manifest.content.deduplication)
        assert list(verify(Folder(corpus), manifest)) == []
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("part_bytes", [1 << 27, 1])
def test_a_corpus_without_a_repeat_stays_as_it_is(tmp_path: Path, part_bytes: int) -> None:
    """So do parts without one, which small parts mostly are."""
    (tmp_path / "docs").mkdir()
    for number in range(3):
        lines = "".join(json.dumps({"text": f"one {number} two {line} three"}) + "\n" for line in range(4))
        (tmp_path / "docs" / f"{number}.jsonl").write_text(lines)
    component = {"source": "docs", "format": "jsonl", "licence": "PD"}
    recipe_file = {"corpus": "plain", "components": {"docs": component}, "stages": ["substring_dedup"]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe_file))
    manifest = build(Recipe.load(str(tmp_path / "recipe.yaml")), tmp_path / "corpus", part_bytes).manifest
    assert manifest.content.components["docs"].documents_kept == 12
    assert manifest.content.deduplication[0]["spans"] == 0
    assert list(verify(Folder(tmp_path / "corpus"), manifest)) == []
