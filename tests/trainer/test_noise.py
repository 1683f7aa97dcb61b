"""Seed noise: figures by hand, quantiles of tables, and what does not compare."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainer.commands import app
from trainer.scores.noise import NoiseError, compare, group, student, welch

SCORE = {"split": "validation", "sequence_length": 32, "documents_sha256": "d", "evaluator_sha256": "e"}


def written(folder: Path, scores: list[float], **changes: object) -> list[Path]:
    runs = []
    for seed, bpb in enumerate(scores):
        run = folder / str(seed)
        run.mkdir(parents=True)
        (run / "result.json").write_text(json.dumps({"score": {**SCORE, "val_bpb": bpb, **changes}}))
        (run / "config.json").write_text(json.dumps({"seed": seed, "out": str(run), "preset": folder.name}))
        runs.append(run)
    return runs


@pytest.mark.parametrize(
    ("probability", "degrees", "table"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 3, 3.18245), (0.975, 6, 2.44691), (0.95, 10, 1.81246), (0.5, 4, 0.0)],
)
def test_quantiles_of_student_s_t_are_those_of_tables(probability: float, degrees: int, table: float) -> None:
    assert student(probability, degrees) == pytest.approx(table, abs=2e-4)


def test_welch_s_interval_by_hand() -> None:
    """Variances 4 and 1 of 4 runs each: standard error sqrt(1.25), 1.25² / ((1² + 0.25²) / 3) = 4.4118 degrees."""
    low, high = welch(1.0, (2.0, 1.0), (4, 4))
    assert (high - low) / 2 / math.sqrt(1.25) == pytest.approx(student(0.975, 4.4118), rel=1e-4)
    assert (low + high) / 2 == pytest.approx(1.0)


def test_groups_far_apart_differ_and_near_ones_do_not(tmp_path: Path) -> None:
    first = group(written(tmp_path / "a", [1.00, 1.01, 0.99, 1.00]))
    assert first.mean == pytest.approx(1.0)
    assert first.deviation == pytest.approx(math.sqrt(2e-4 / 3))
    assert first.differing == []
    far = compare(first, group(written(tmp_path / "b", [0.95, 0.96, 0.94, 0.95])))
    assert far.differ and far.difference == pytest.approx(-0.05)
    assert far.noises == pytest.approx(0.05 / math.sqrt(2e-4 / 3))
    assert far.interval[0] < -0.05 < far.interval[1] < 0
    assert not compare(first, group(written(tmp_path / "c", [0.98, 0.99, 0.97, 0.98]))).differ


def test_what_does_not_compare_is_refused(tmp_path: Path) -> None:
    runs = written(tmp_path / "a", [1.0, 1.1])
    with pytest.raises(NoiseError, match="sequence_length is 64, and 32"):
        group([*runs, *written(tmp_path / "b", [1.0], sequence_length=64)])
    with pytest.raises(NoiseError, match="do not compare: documents_sha256"):
        compare(group(runs), group(written(tmp_path / "c", [1.0, 1.1], documents_sha256="other")))
    with pytest.raises(NoiseError, match="at least two runs"):
        compare(group(runs), group(runs[:1]))
    with pytest.raises(NoiseError, match="no finished run"):
        group([tmp_path / "nowhere"])
    (runs[0] / "result.json").write_text('{"score": null}')
    with pytest.raises(NoiseError, match="was not scored"):
        group(runs)


def test_the_command_prints_noise_and_verdict_and_names_what_else_differs(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", [1.00, 1.01]), written(tmp_path / "b", [0.5, 0.51])
    result = CliRunner().invoke(app, ["noise", *map(str, first), "--against", str(second[0]), "--against", str(second[1])])
    assert result.exit_code == 0, result.stderr
    assert "mean 1.0050, standard deviation 0.0071" in result.stdout
    assert "the groups differ" in result.stdout
    mixed = CliRunner().invoke(app, ["noise", str(first[0]), str(second[1]), "--json"])
    assert json.loads(mixed.stdout)["groups"][0]["differing"] == ["preset"]
    assert CliRunner().invoke(app, ["noise", str(tmp_path / "nowhere")]).exit_code == 1
