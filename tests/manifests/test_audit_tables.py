"""Tables of answers are readable in an ordinary terminal, and what was not checked has an answer of its own."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manifests.audit.unchecked import unchecked
from manifests.commands import app
from manifests.manifest import Manifest


def call(*arguments: str | Path, columns: int = 100) -> str:
    result = CliRunner().invoke(app, ["audit", *(str(one) for one in arguments)], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("columns", [100, 110, 126])
def test_no_rule_s_name_is_broken_in_the_table_of_rules(finished: Path, manifest: Manifest, columns: int) -> None:
    words = set(call("rules", finished, columns=columns).split())
    names = {rule for count in manifest.content.counts for rule in count.removed}
    assert len(names) > 10
    assert names <= words


def test_what_was_not_checked_is_told_in_the_terminal_with_limits_before_items(finished: Path, manifest: Manifest) -> None:
    gaps = unchecked(manifest.content)
    lines = call("unchecked", finished, columns=1000).splitlines()
    assert lines == [f"- {one.said}" for one in gaps]
    told = json.loads(call("unchecked", finished, "--json"))
    assert [one["said"] for one in told] == [one.said for one in gaps]
    assert [row["about"] for row in csv.DictReader(io.StringIO(call("unchecked", finished, "--csv")))] == [
        one["about"] for one in told
    ]
    items = [n for n, one in enumerate(told) if one["items"]]
    assert items == list(range(len(told) - len(items), len(told)))
    listed = {item for one in told for item in one["items"]}
    unlooked = {item for record in manifest.content.decontamination for one in record["benchmarks"] for item in one["unchecked"]}
    assert listed == unlooked != set()


def test_a_corpus_without_a_stage_says_so(manifest: Manifest) -> None:
    bare = manifest.content.model_copy(update={"decontamination": [], "split": None, "stages": []})
    said = {one.said for one in unchecked(bare)}
    assert {"No benchmark was looked for.", "Near-duplicates were not looked for.", "Nothing was held out."} <= said
    assert not said & {one.said for one in unchecked(manifest.content) if one.about in ("minhash", "split")}
