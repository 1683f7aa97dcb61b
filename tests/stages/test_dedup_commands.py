import json
from typing import Any

import pytest
from typer.testing import CliRunner

from stages.commands import app
from stages.dedup_commands import PLOT_HEIGHT, PLOT_WIDTH, s_curves
from stages.minhash import MinHashOptions, choose_parameters, collision_probability


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, ["dedup", "parameters", *words])


def test_the_chosen_bands_are_those_that_a_recipe_with_the_same_words_gets() -> None:
    found = json.loads(ask("--threshold", "0.7", "--recall", "0.9", "--max-permutations", "128", "--json").stdout)
    options = MinHashOptions(threshold=0.7, recall=0.9, max_permutations=128)
    assert (found["bands"], found["rows"], found["minima"]) == (options.bands, options.rows, options.permutations)
    assert found["default"] == {"bands": 14, "rows": 8}
    for row in found["curve"]:
        assert row["chosen"] == collision_probability(row["jaccard"], options.bands, options.rows)
        assert row["default"] == collision_probability(row["jaccard"], 14, 8)
    assert next(row["jaccard"] for row in found["curve"] if row["chosen"] >= 0.9) == 0.7


def test_the_table_names_what_to_write_and_the_share_at_the_threshold() -> None:
    shown = ask("--threshold", "0.83", "--recall", "0.99").stdout
    bands, rows = choose_parameters(0.83, 0.99)
    assert f"{bands} x {rows}" in shown and "14 x 8, the default" in shown
    assert "minhash: {threshold: 0.83, recall: 0.99}" in shown
    assert f"{collision_probability(0.83, bands, rows):9.4f}" in next(
        line for line in shown.splitlines() if "threshold" in line and "0.83  " in line
    )


def test_the_plot_has_both_curves_from_nothing_to_everything() -> None:
    lines = s_curves((20, 5), (14, 8))
    picture = [line[7:].ljust(PLOT_WIDTH) for line in lines[:PLOT_HEIGHT]]
    assert picture[-1].startswith("@@@") and picture[0].rstrip().endswith("@@@")
    for column in zip(*picture, strict=True):
        marks = sorted(mark for mark in column if mark != " ")
        assert marks in (["@"], ["*", "o"])
        if marks != ["@"]:
            assert column.index("*") < column.index("o"), "20 x 5 finds more than 14 x 8 at every Jaccard"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "1.2"], "between 0 and 1"),
        (["--recall", "1"], "between 0 and 1"),
        (["--threshold", "0.2", "--recall", "0.99", "--max-permutations", "4"], "within 4 minima"),
        (["--max-permutations", "100000"], "8,192 at most"),
    ],
)
def test_what_cannot_be_had_is_said_and_is_bad_usage(words: list[str], message: str) -> None:
    result = ask(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
