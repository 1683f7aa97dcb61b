"""The filter that docs/architecture.md shows in full works as it stands."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from stages import registry
from tests.pipeline.crawl import article, build, small_recipe, write_small

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_filter_shown_in_full_runs_in_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    module = types.ModuleType("shouting_of_the_page")
    exec(code[1], module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry.ROW_LOCAL, "shouting", f"{module.__name__}:Shouting")
    documents = [{"text": article("a")}, {"text": article("b").upper()}, {"text": "1 2 3"}]
    recipe = write_small(tmp_path, {"a.jsonl": documents}, small_recipe(["shouting"]))
    counts = build(recipe, tmp_path / "corpus").manifest.content.counts
    assert counts[-1].removed == {"shouting.max_capitals": 1}
