"""Boilerplate lines and paragraphs of a corpus: which go, which stay, and what is said of it."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.recipe import Recipe
from tests.pipeline.crawl import build

COMMON = [f"Boilerplate number {number} of the site" for number in range(12)]


def pages(component: str, number: int) -> list[str]:
    chance = random.Random(f"{component}{number}")
    lines = [f"{component} {number} says something of its own in line {line}." for line in range(chance.randrange(1, 6))]
    for line in COMMON:
        if chance.random() < 0.4:
            lines.insert(chance.randrange(len(lines) + 1), line.upper() if chance.random() < 0.3 else line)
    if number % 9 == 0:
        lines = [line for line in lines if "own" not in line] or [COMMON[0]]
    return lines


def recipe(folder: Path, stage: str, joint: str, **options: Any) -> Recipe:
    import json

    import yaml

    components = {}
    for component, priority in (("news", 0), ("wiki", 1)):
        for part in range(3):
            path = folder / component / f"{part}.jsonl"
            path.parent.mkdir(exist_ok=True)
            texts = [joint.join(pages(component, 20 * part + number)) for number in range(20)]
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        components[component] = {"source": component, "format": "jsonl", "licence": "PD", "priority": priority}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"corpus": "lines", "components": components, "stages": [{stage: options}]}))
    return Recipe.load(str(path))


def by_hand(joint: str, limit: int, scope: str, keep: str) -> dict[str, str | None]:
    """id → the text that is left (None: removed), computed without parts, keys or ranks."""
    texts = {
        f"{name}/{number // 20}.jsonl#{number % 20}": pages(name, number) for name in ("news", "wiki") for number in range(60)
    }
    holders = defaultdict(list)
    for name, lines in texts.items():
        for line in {line.lower() for line in lines}:
            holders[(name.split("/")[0] if scope == "component" else "", line)].append(name)
    order = {name: at for at, name in enumerate(sorted(texts, key=lambda name: (name.split("#")[0], int(name.split("#")[1]))))}

    def rank(name: str) -> tuple[int, int, int]:
        length = len(joint.join(texts[name]).encode())
        return (-name.startswith("wiki"), -length if keep == "longest" else 0, order[name])

    gone = defaultdict(set)
    for (_, line), names in holders.items():
        if len(names) > limit:
            best = min(names, key=rank)
            for name in names:
                if name != best or keep == "none":
                    gone[name].add(line)
    left: dict[str, str | None] = {}
    for name, lines in texts.items():
        kept = [line for line in lines if line.lower() not in gone[name]]
        left[name] = joint.join(kept) or None
    return left


def outcome(corpus: Path) -> dict[str, Any]:
    """id → SHA-256 of the final text, or the rule that removed the document."""
    rows = ds.dataset(sorted(corpus.glob("logs/documents/*/*.parquet"))).to_table().to_pylist()
    return {row["id"]: row["text_sha256"] or row["removed_by"] for row in rows}


@pytest.mark.parametrize("stage, joint", [("line_dedup", "\n"), ("paragraph_dedup", "\n\n")])
@pytest.mark.parametrize("scope, keep", [("corpus", "longest"), ("component", "first"), ("corpus", "none")])
def test_what_is_left_is_what_one_would_cut_by_hand(tmp_path: Path, stage: str, joint: str, scope: str, keep: str) -> None:
    import hashlib

    loaded = recipe(tmp_path, stage, joint, max_documents=20, scope=scope, keep=keep)
    expected = by_hand(joint, 20, scope, keep)
    assert any(text is None for text in expected.values()) or keep != "none"
    wanted = {name: stage if text is None else hashlib.sha256(text.encode()).hexdigest() for name, text in expected.items()}
    digests = set()
    for part_bytes in (1 << 27, 1):
        corpus = tmp_path / f"corpus-{part_bytes}"
        build(loaded, corpus, part_bytes)
        assert outcome(corpus) == wanted
        assert list(verify(Folder(corpus), Manifest.load(Folder(corpus)))) == []
        digests.add(Manifest.load(Folder(corpus)).digest)
    assert len(digests) == 1


def test_every_cut_is_an_edit_and_the_manifest_counts_the_units(tmp_path: Path) -> None:
    loaded = recipe(tmp_path, "line_dedup", "\n", max_documents=20)
    build(loaded, tmp_path / "corpus")
    edits = ds.dataset(sorted((tmp_path / "corpus").glob("logs/edits/*/*.parquet"))).to_table().to_pylist()
    assert {(row["stage"], row["rule"]) for row in edits} == {("line_dedup", "line_dedup.boilerplate")}
    expected = by_hand("\n", 20, "corpus", "longest")
    for row in edits:
        component, _, rest = row["id"].partition("/")
        number = 20 * int(rest[0]) + int(rest.partition("#")[2])
        left = expected[row["id"]]
        assert left is not None
        assert row["count"] == len(pages(component, number)) - len(left.split("\n"))
        assert row["bytes_after"] == len(left.encode())
        assert {line.lower() for line in row["detail"].removesuffix(" | …").split(" | ")} <= {line.lower() for line in COMMON}
    [record] = Manifest.load(Folder(tmp_path / "corpus")).content.deduplication
    assert record["boilerplate"] == len(COMMON)
    assert record["units"] == len(
        {line.lower() for name in ("news", "wiki") for number in range(60) for line in pages(name, number)}
    )


def test_nothing_is_boilerplate_up_to_the_limit(tmp_path: Path) -> None:
    loaded = recipe(tmp_path, "line_dedup", "\n", max_documents=120)
    build(loaded, tmp_path / "corpus")
    assert not list(ds.dataset(sorted((tmp_path / "corpus").glob("logs/edits/*/*.parquet"))).to_table().to_pylist())
