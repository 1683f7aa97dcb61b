"""`compat: datatrove` from the recipe to the manifest and the removal rows."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from pipeline.recipe import RecipeError
from tests.pipeline.crawl import build, prose, small_recipe, write_small

STAGES = ["gopher_quality", {"gopher_repetition": {"compat": "datatrove"}}, {"fineweb": {"compat": "datatrove"}}]
LINES = prose("compat", 12)


def test_the_manifest_names_the_mode_and_spacy_and_rows_name_the_rule(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    twice = "\n".join([*LINES, LINES[0]])
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "\n".join(LINES)}, {"text": twice}]}, small_recipe(STAGES))
    build(recipe, tmp_path / "corpus")
    content = Manifest.load(Folder(tmp_path / "corpus")).content
    stages = {stage.stage: stage for stage in content.components["docs"].stages}
    for name in ("gopher_repetition", "fineweb"):
        assert stages[name].options["compat"] == "datatrove"
        assert stages[name].data["spacy"] == metadata.version("spacy")
    assert "spacy" not in stages["gopher_quality"].data
    removals = [
        row for path in (tmp_path / "corpus" / "logs" / "removals").rglob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert [row["rule"] for row in removals] == ["fineweb.max_duplicate_line_characters"]
    assert removals[0]["threshold"] == 0.01


def test_a_recipe_that_asks_for_it_without_spacy_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small(tmp_path, {"a.jsonl": [{"text": "one"}]}, small_recipe(["gopher_quality", "gopher_repetition", "fineweb"]))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(
        RecipeError, match=r"recipe\.yaml.*spaCy, which is not installed here: pip install 'corpusmill\[compat\]'"
    ):
        write_small(tmp_path, {}, small_recipe(STAGES))
