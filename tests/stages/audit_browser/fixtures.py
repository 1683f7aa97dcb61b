"""A browser of the finished corpus, corpora full of what strangers write, and a tab of a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from manifests.logs import Logs
from manifests.manifest import Manifest, open_corpus
from manifests.storage import Folder
from tests.pipeline.crawl import article, build, small_recipe, write_small
from tests.stages.audit_browser.pages import (
    CHROMIUM,
    HOSTILE,
    LATE,
    STRANGE,
    TEXTS,
    Asked,
    browser_of,
    client_of,
    rewritten,
    set_column,
)


@pytest.fixture(scope="module")
def served(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client_of(browser_of(finished, tmp_path_factory.mktemp("reviews") / "reviews.jsonl"))


@pytest.fixture(scope="module")
def gone(finished: Path) -> list[dict[str, Any]]:
    with Logs(*open_corpus(str(finished)), ["removals"]) as logs:
        return logs.sql("select * from removals order by component, file, position")


@pytest.fixture(scope="module")
def with_hostile_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose removed documents have hostile texts and names."""
    folder = tmp_path_factory.mktemp("hostile")
    written = small_recipe([], ["exact_dedup"])
    written["components"]["docs"]["stages"] = ["gopher_quality"]
    written["components"]["docs"]["files"] = ["*"]
    short = {name: [{"text": text, "url": HOSTILE[0]}] for name, text in TEXTS.items()}
    files = {**short, "late.jsonl": [{"text": LATE}], "good.jsonl": [{"text": article("good")}, {"text": article("good")}]}
    build(write_small(folder, files, written), folder / "corpus")
    return folder / "corpus"


@pytest.fixture
def hostile(copied: Path) -> Path:
    """A corpus in which everything that strangers can name is hostile."""

    def names(table: pa.Table) -> pa.Table:
        for column in ("url", "domain", "language", "detail", "evidence", "benchmark", "item", "media_type", "date"):
            if column in table.schema.names:
                table = set_column(table, column, [STRANGE[n % len(STRANGE)] for n in range(table.num_rows)])
        tables = [one == "tables" for one in table["component"].to_pylist()]
        renamed = {"component": [HOSTILE[1] if is_one else "" for is_one in tables], "file": [HOSTILE[0]] * table.num_rows}
        for column, values in renamed.items():
            old = table[column].to_pylist()
            chosen = [new if is_one else one for new, one, is_one in zip(values, old, tables, strict=True)]
            table = set_column(table, column, chosen)
        return table

    for kind in ("documents", "removals", "edits"):
        rewritten(copied, kind, names)
    folder = Folder(copied)
    manifest = Manifest.load(folder)
    content = manifest.content.model_copy(deep=True)
    content.name = HOSTILE[2]
    content.components[HOSTILE[1]] = content.components["tables"].model_copy(deep=True)  # a shard tells its component's name
    for number, component in enumerate(content.components.values()):
        component.licence, component.source = STRANGE[number], STRANGE[-1 - number]
        for stage in component.stages:
            stage.rules = [rule.model_copy(update={"name": HOSTILE[0] + rule.name}) for rule in stage.rules]
    for count in content.counts:
        count.component = HOSTILE[1] if count.component == "tables" else count.component
        count.stage = HOSTILE[1] if count.stage == "repair" else count.stage
        if count.removed:
            count.removed = {HOSTILE[0] + rule: documents for rule, documents in count.removed.items()}
    rewritten(
        copied, "removals", lambda table: set_column(table, "rule", [HOSTILE[0] + one for one in table["rule"].to_pylist()])
    )
    Manifest.seal(content, manifest.run).save(folder)
    return copied


@pytest.fixture
def tab_of() -> Iterator[Asked]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield lambda **more: browser.new_context(**more).new_page()
        browser.close()
