"""Documents that crash, hang, eat the memory or raise: one row each, and everything else as if they had not been there."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from manifests.manifest import Manifest
from pipeline.execution import InlineExecutor, Outcome
from pipeline.inputs import InputError
from pipeline.work import Work
from stages import registry
from stages.stage import Filter
from tests.faults.orders import Faults, order, ordering_recipe
from tests.pipeline.crawl import article, build, page, small_recipe, warc, write_small

GUILTY = {
    "segfault": ("obey.crash", "SIGSEGV"),
    "exit": ("obey.crash", "exited with status 3"),
    "hang": ("obey.timeout", "more than 1 s of CPU time"),
    "hoard": ("obey.memory", "out of memory"),
    "raise": ("obey.error", "not to my taste"),
    "error": ("obey.error", "ZeroDivisionError"),
}
STAGE_OPTIONS: dict[str, dict[str, Any]] = {
    "decontamination": {"benchmarks": "benchmarks"},
    "url_filter": {"domains": ["x.example"]},
}
NEEDS_A_MODEL = {"quality_classifier"}
"""Its model is trained elsewhere; tests/pipeline/test_quality.py has it."""


def removals(corpus: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(sorted((corpus / "logs" / "removals").rglob("*.parquet"))).to_table().to_pylist()
    return rows


def kept(manifest: Manifest) -> int:
    return sum(one.documents_kept for one in manifest.content.components.values())


@pytest.mark.slow
def test_every_kind_of_guilt_costs_one_document_and_one_row(faults: Faults, tmp_path: Path) -> None:
    orders = {component: [order(verb, "x")] for component, verb in zip("abcdef", GUILTY, strict=True)}
    recipe = ordering_recipe(tmp_path / "recipe", orders, max_errors=len(GUILTY))
    manifest = build(recipe, tmp_path / "corpus").manifest
    rows = {row["component"]: row for row in removals(tmp_path / "corpus")}
    assert len(removals(tmp_path / "corpus")) == len(GUILTY)
    for component, verb in zip("abcdef", GUILTY, strict=True):
        rule, detail = GUILTY[verb]
        assert (rows[component]["rule"], rows[component]["position"]) == (rule, 3)
        assert detail in rows[component]["detail"]
    assert kept(manifest) == 4 * 6
    assert build(recipe, tmp_path / "again").manifest.digest == manifest.digest


@pytest.mark.parametrize("name", sorted(set(registry.ROW_LOCAL) - NEEDS_A_MODEL))
def test_whatever_stage_raises_on_a_document_removes_it_alone_with_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    implementation: Any = registry.find(name)
    method = "measure" if issubclass(implementation, Filter) else "decide"
    whole = getattr(implementation, method)

    def raising(self: Any, batch: pa.RecordBatch) -> Any:
        if any("guilty" in (text or "") for text in batch["text"].to_pylist()):
            raise LookupError("this document is not to my taste")
        return whole(self, batch)

    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "b.jsonl").write_text(
        '{"benchmark": "b", "item": "1", "text": "' + "no such words here " * 8 + '"}\n'
    )
    texts = [article(f"healthy {i}") for i in range(6)]
    options = STAGE_OPTIONS.get(name)
    recipe = write_small(
        tmp_path,
        {"a.jsonl": [{"text": text} for text in [*texts[:3], article("guilty") + "\nIt was a guilty one.", *texts[3:]]]},
        small_recipe([{name: options} if options else name], max_errors=1),
    )
    healthy = build(recipe, tmp_path / "healthy").manifest
    monkeypatch.setattr(implementation, method, raising)
    manifest = build(recipe, tmp_path / "corpus").manifest
    rows = [row for row in removals(tmp_path / "corpus") if row["rule"].endswith(".error")]
    assert [row["id"] for row in rows] == ["docs/a.jsonl#3"]
    assert "LookupError: this document is not to my taste" in rows[0]["detail"]
    assert kept(manifest) == kept(healthy) - 1


@pytest.mark.slow
def test_bombs_in_a_crawl_cost_one_row_each(tmp_path: Path) -> None:
    """A table of a million rows, 100 MB of nested tags, and a record of 1 GB that takes 1 MB of the file."""
    bombs = {
        "table": b"<html><body><table>" + b"<tr><td>1</td></tr>" * 1_000_000 + b"</table></body></html>",
        "nested": b"<html><body>" + b"<div>" * 20_000_000,
        "zeros": bytes(1 << 30),
    }
    pages = [{"url": f"https://good.example/{i}", "body": page(article(f"page {i}"))} for i in range(4)]
    pages[2:2] = [{"url": f"https://{name}.example/", "body": body} for name, body in bombs.items()]
    data, positions = warc(pages)
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "a.warc.gz").write_bytes(data)
    del data, bombs, pages
    recipe = small_recipe(["extraction"], max_errors=3)
    recipe["components"]["docs"].update(format="warc", source="crawl")
    loaded = write_small(tmp_path, {}, recipe)
    manifest = build(loaded, tmp_path / "corpus").manifest
    rows = {row["position"]: row["rule"] for row in removals(tmp_path / "corpus")}
    assert list(rows) == positions[2:5]
    assert kept(manifest) == 4


class Stopped(InlineExecutor):
    """Is stopped after two parts."""

    left = 2

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        for outcome in super().run(corpus_url, works):
            yield outcome
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def test_an_input_that_changed_between_two_runs_is_refused_by_name_and_read_again_alone_when_meant(
    faults: Faults, tmp_path: Path
) -> None:
    """One that changes during a run is refused by name: tests/pipeline/test_inputs.py."""
    recipe = ordering_recipe(tmp_path / "recipe", {})
    with pytest.raises(KeyboardInterrupt):
        build(recipe, tmp_path / "corpus", executor=Stopped())
    changing = tmp_path / "recipe" / "a" / "a.jsonl"
    changing.write_bytes(changing.read_bytes() + b'{"text": "one more"}\n')
    with pytest.raises(
        InputError, match=r"1 input file has changed since the last run .*\n  .*/recipe/a/a\.jsonl \([\d,]+ bytes, now [\d,]+\)"
    ):
        build(recipe, tmp_path / "corpus", changes_meant=False)
    again = build(recipe, tmp_path / "corpus")
    assert [again.ran[f"{name}.1.obey"] for name in "abc"] == [1, 0, 1], "a is read again, b was done, c had not begun"
    assert again.manifest.digest == build(recipe, tmp_path / "fresh").manifest.digest
