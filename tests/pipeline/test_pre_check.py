"""A recipe with a look before extraction: rows for what it removes, its errors in the manifest, the same corpus in any parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml

from manifests.identity import keyed_hash
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.recipe import Recipe, RecipeError
from stages.pre_check import SAMPLE_KEY
from tests.pipeline.crawl import article, build

GERMAN = "Der Hafen war still an diesem Morgen, und die Boote lagen ruhig unter einem blassen Himmel, während der Wärter ging. "
PAGES = 90


def page(number: int) -> str:
    """By turns English, German, empty, and an English article beneath German comments, which extraction leaves out."""
    kind = number % 4
    paragraphs = "".join(f"<p>{line}</p>" for line in article(f"pre-check {number}").split("\n"))
    if kind == 1:
        paragraphs = f"<p>{GERMAN * 4}{number}</p>"
    if kind == 2:
        return "<html><body><script>nothing()</script></body></html>"
    comments = f'<div class="comments">{f"<div class=comment><p>{GERMAN * 3}</p></div>" * 40}</div>' if kind == 3 else ""
    return f"<html><body>{comments}<article>{paragraphs}</article></body></html>"


def recipe(folder: Path, check: dict[str, Any], **extraction: Any) -> Path:
    for number in range(PAGES):
        path = folder / "pages" / f"{number:03}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(page(number), encoding="utf-8")
    stages = [{"pre_check": check}, {"extraction": extraction}, {"language": {"keep": ["en"]}}]
    component = {"source": "pages", "format": "folder", "licence": "PD", "stages": stages}
    written = folder / "recipe.yaml"
    written.write_text(yaml.safe_dump({"corpus": "checked", "components": {"web": component}, "stages": []}), encoding="utf-8")
    return written


def removals(corpus: Path) -> dict[int, dict[str, Any]]:
    rows = ds.dataset(sorted(corpus.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
    return {int(row["file"].partition(".")[0]): row for row in rows}


def test_every_page_is_accounted_for_and_errors_on_the_sample_are_in_the_manifest(tmp_path: Path) -> None:
    loaded = Recipe.load(str(recipe(tmp_path, {"keep": ["en"], "sample": 0.3})))
    build(loaded, tmp_path / "corpus")
    manifest = Manifest.load(Folder(tmp_path / "corpus"))
    assert list(verify(Folder(tmp_path / "corpus"), manifest)) == []
    count = next(one for one in manifest.content.counts if one.stage == "pre_check")
    assert count.documents_in == PAGES == count.documents_kept + sum(count.removed.values())
    sampled = {number for number in range(PAGES) if keyed_hash(SAMPLE_KEY, f"web/{number:03}.html#0") < 0.3 * 2**64}
    rows = removals(tmp_path / "corpus")
    for number in range(PAGES):
        row = rows.get(number)
        if number % 4 == 0 or (number % 4 == 3 and number in sampled):
            assert row is None
            continue
        assert row is not None and row["stage"] == "pre_check"
        assert row["rule"] == ("pre_check.too_short" if number % 4 == 2 else "pre_check.language")
        assert ("agrees" in (row["detail"] or "")) is (number in sampled)
        assert row["threshold"] == (1 if number % 4 == 2 else 0.9)
    [summary] = [one for one in manifest.content.summaries if one["stage"] == "pre_check"]
    assert (summary["component"], summary["stage"], summary["sample"]) == ("web", "pre_check", 0.3)
    wrong = {number for number in sampled if number % 4 == 3}
    short, language = summary["rules"]
    german = {number for number in range(PAGES) if number % 4 in (1, 3)}
    empty = {number for number in range(PAGES) if number % 4 == 2}
    assert (language["found"], language["sampled"], language["stayed"]) == (len(german), len(german & sampled), len(wrong))
    assert (short["found"], short["sampled"], short["stayed"]) == (len(empty), len(empty & sampled), 0)
    assert (
        wrong
        and summary["stayed"]
        and {page_id for page_id in summary["stayed"]} == {f"web/{number:03}.html#0" for number in wrong}
    )
    assert manifest.content.decontamination == []


@pytest.mark.slow
def test_the_corpus_is_the_same_however_the_pages_are_cut_into_parts(tmp_path: Path) -> None:
    loaded = Recipe.load(str(recipe(tmp_path, {"keep": ["en"], "sample": 0.3})))
    digests = set()
    for part_bytes in (1 << 27, 4_000):
        build(loaded, tmp_path / f"corpus{part_bytes}", part_bytes)
        digests.add(Manifest.load(Folder(tmp_path / f"corpus{part_bytes}")).digest)
    assert len(digests) == 1


def test_an_engine_that_is_not_installed_is_said_with_file_and_line_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = recipe(tmp_path, {"keep": ["en"]}, engine="resiliparse")
    monkeypatch.setitem(sys.modules, "resiliparse", None)
    with pytest.raises(RecipeError, match=r"recipe\.yaml:\d+: .*extraction.*pip install corpusmill\[resiliparse\]"):
        Recipe.load(str(written))


def test_a_recipe_may_look_before_it_extracts_and_misspelt_options_are_said(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'englisch' is no label"):
        Recipe.load(str(recipe(tmp_path, {"keep": ["englisch"]})))
    with pytest.raises(RecipeError, match="favour"):
        Recipe.load(str(recipe(tmp_path, {"extraction": {"favour": "precision"}})))
