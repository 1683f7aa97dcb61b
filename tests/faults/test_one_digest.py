"""Determinism of the whole, on real crawls: workers, part sizes, the order of everything that is listed, and retries decide nothing."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests import storage
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.execution import InlineExecutor, RayExecutor
from pipeline.recipe import Recipe
from tests.faults.orders import Faults, order
from tests.pipeline.crawl import article, build, lines_of

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data")) / "warc"
PROJECTS = ("webrecorder__warcio", "harvard-lil__js-wacz", "commoncrawl__ia-web-commons", "chatnoir-eu__chatnoir-resiliparse")
TRANSIENT = ("worker", "full", "eaten")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA.parent})"),
]


def write_recipe(folder: Path, seed: int | None = None) -> Recipe:
    """Four crawls and a component that gives orders; `seed` shuffles the order in which files come to be on the disk."""
    chance = random.Random(seed)
    written: list[tuple[str, Path]] = [
        (name, path) for name in PROJECTS for path in sorted((DATA / name).rglob("*")) if path.is_file()
    ]
    if seed is not None:
        chance.shuffle(written)
    for name, path in written:
        target = folder / name / path.relative_to(DATA / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    orders = [order("kill", "worker"), order("disk", "full"), order("memory", "eaten")]
    texts = [article(str(number)) for number in range(300)]
    (folder / "orders").mkdir()
    for number, text in enumerate(orders):
        (folder / "orders" / f"{number}.jsonl").write_bytes(
            lines_of([{"text": one} for one in [text, *texts[number * 50 : number * 50 + 100]]])
        )
    stages: list[Any] = ["extraction", "repair", "gopher_repetition", "personal_data"]
    crawls = {name: {"source": name, "format": "warc", "licence": "various", "stages": stages} for name in PROJECTS}
    orderly = {"source": "orders", "format": "jsonl", "licence": "PD", "stages": ["repair", "obey"]}
    recipe = {
        "corpus": "one-digest",
        "max_error_share": 1.0,
        "components": {**crawls, "orders": orderly},
        "stages": [
            "exact_dedup",
            {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}},
            {"split": {"validation": 0.1, "test": 0.1}},
            {"tokenizer": {"vocabulary": 1000}},
            {"shards": {"target_tokens": 20000}},
        ],
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return Recipe.load(folder / "recipe.yaml")


def test_workers_part_sizes_listing_order_and_retries_give_one_digest(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "one")
    first = build(recipe, tmp_path / "corpus", executor=InlineExecutor()).manifest
    assert list(verify(Folder(tmp_path / "corpus"), first)) == []
    assert sum(one.documents_kept for one in first.content.components.values()) > 200
    found = {"inline": first.digest}
    shuffled = write_recipe(tmp_path / "shuffled", seed=1)
    scan = os.scandir

    def in_another_order(path: Any) -> Any:
        entries = list(scan(path))
        random.Random(2).shuffle(entries)
        return contextlib.nullcontext(entries)

    monkeypatch.setattr(storage.os, "scandir", in_another_order)
    for workers, part_bytes, loaded in ((1, 100_000, recipe), (2, 1 << 27, shuffled), (4, 300_000, shuffled)):
        faults.arm(*TRANSIENT)
        executor = RayExecutor(workers=workers)
        try:
            manifest = build(loaded, tmp_path / f"corpus{workers}", part_bytes, executor).manifest
        finally:
            executor.close()
        assert not set(TRANSIENT) & faults.armed(), "every fault has struck"
        found[f"{workers} workers, parts of {part_bytes} bytes"] = manifest.digest
        shutil.rmtree(tmp_path / f"corpus{workers}")
    assert set(found.values()) == {first.digest}, found


def test_the_corpus_says_nothing_of_when_and_where_it_was_made(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is a year off, another host and another time zone."""
    import socket
    import time

    recipe = write_recipe(tmp_path / "one")
    first = build(recipe, tmp_path / "corpus").manifest
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 365 * 86400)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        assert build(recipe, tmp_path / "later").manifest.content == first.content
    finally:
        monkeypatch.undo()
        time.tzset()
    for path in sorted((tmp_path / "corpus").glob("tokens/**/*.*")):
        assert path.read_bytes() == (tmp_path / "later" / path.relative_to(tmp_path / "corpus")).read_bytes()
    assert Manifest.load(Folder(tmp_path / "later")).run["host"] == "elsewhere"
