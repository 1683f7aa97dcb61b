"""A sweep: every remedy reaches its cell, all cells see the same rows, and a cell that diverges is a row of the table."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import rows
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.distributed.ranks import Ranks
from trainer.presets import PRESETS
from trainer.run.progress import RunProgress
from trainer.run_files.metrics import MetricsError
from trainer.studies.stability import CONDITIONS, Row, Swept, cells, sweep

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
SMALL = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 16}
RATES = (0.01, 30.0)


def options(manifest: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "manifest": str(manifest), "out": str(out), "preset": "tiny", "model": SMALL, "sequence_length": 16,
        "batch_tokens": 64, "steps": 6, "device": "cpu", "warmup": 0.5, **changes,
    }  # fmt: skip


def swept(manifest: Path, out: Path, rates: tuple[float, ...] = RATES, **changes: Any) -> Swept:
    return sweep(TrainConfig.check(**options(manifest, out, **changes)), rates, ALONE, RunProgress(False, 10))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=40, held_out=5)


@pytest.fixture(scope="module")
def done(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    out = tmp_path_factory.mktemp("sweep") / "out"
    return out, swept(manifest, out).rows


def test_every_remedy_reaches_its_cell_and_no_other(done: tuple[Path, list[Row]]) -> None:
    out, table = done
    assert [(row.rate, row.condition) for row in table] == [(rate, name) for rate in RATES for name in CONDITIONS]
    for row in table:
        saved = json.loads((out / row.run / "config.json").read_text())
        run = json.loads((out / row.run / "run.json").read_text())
        on = {name: row.condition in (name, "all") for name in ("warmup", "clip", "z-loss", "qk-norm")}
        assert saved["learning_rate"] == row.rate
        assert saved["warmup"] == (0.5 if on["warmup"] else 0.0)
        assert saved["clip"] == (PRESETS["tiny"].clip if on["clip"] else 0.0)
        assert saved["z_loss"] == (1e-4 if on["z-loss"] else 0.0)
        assert run["architecture"]["qk_norm"] == on["qk-norm"]
        first = rows(out / row.run)[0]
        assert first["learning_rate"] == pytest.approx(row.rate * (1e-3 if on["warmup"] else 1.0))


def test_all_cells_begin_with_the_same_matrices_and_see_the_same_rows(done: tuple[Path, list[Row]]) -> None:
    out, table = done
    orders, targets, first = set(), set(), set()
    for row in table:
        ledger = (out / row.run / "ledger.jsonl").read_text().splitlines()
        orders.add(ledger[0])  # the loader's parameters and digest
        lines = rows(out / row.run)
        targets |= {(line["step"], line["position"], line["tokens"]) for line in lines}
        if row.condition != "qk-norm" and row.condition != "all":
            first.add(lines[0]["loss"])
    assert len(orders) == 1
    assert len(targets) == len({step for step, _, _ in targets})
    assert len(first) == 1


def test_the_table_is_that_of_the_metrics(done: tuple[Path, list[Row]]) -> None:
    out, table = done
    written = list(csv.DictReader((out / "sweep.csv").read_text().splitlines()))
    assert [(float(one["rate"]), one["condition"]) for one in written] == [(row.rate, row.condition) for row in table]
    assert json.loads((out / "sweep.json").read_text())["rows"] == [row.__dict__ for row in table]
    for row in (row for row in table if row.rate == RATES[0]):
        lines = rows(out / row.run)
        assert row.diverged is None
        assert row.loss == pytest.approx(sum(line["loss"] for line in lines) / 6)
        assert row.attention_logit_max == max(line["attention_logit_max"] for line in lines)
        assert row.log_z == pytest.approx(sum(line["log_z"] for line in lines) / 6)
        assert row.grad_norm_max == max(line["grad_norm"] for line in lines)


def test_a_run_that_diverges_is_a_row_and_the_others_go_on(done: tuple[Path, list[Row]]) -> None:
    out, table = done
    diverged = [row for row in table if row.diverged]
    assert {row.condition for row in diverged} >= {"bare", "clip"}
    for row in diverged:
        assert (row.rate, row.loss, row.log_z) == (RATES[1], None, None)
        assert str(row.diverged).startswith(f"step {row.steps}: the loss is")
        assert json.loads((out / row.run / "diverged.json").read_text())["diverged"] == row.diverged
    assert [row.condition for row in table if row.rate == RATES[1]] == list(CONDITIONS)


def test_the_norm_of_queries_and_keys_bounds_the_attention_logits(done: tuple[Path, list[Row]]) -> None:
    """At such a rate, nothing else does that."""
    _, table = done
    largest = {row.condition: row.attention_logit_max or math.inf for row in table if row.rate == RATES[1]}
    assert largest["bare"] > 1e6 and largest["qk-norm"] < largest["bare"] / 1e3


@pytest.mark.slow
def test_a_cell_that_was_trained_is_not_trained_again_and_one_that_was_not_is(
    manifest: Path, done: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    out = tmp_path / "sweep"
    shutil.copytree(done[0], out)
    (out / "0.01-clip" / "result.json").unlink()  # as if it had been killed just before its end
    shutil.rmtree(out / "0.01-all")  # as if it had not been begun
    times = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}
    assert swept(manifest, out).rows == done[1]
    touched = {name for name, time in times.items() if (out / name / "metrics.jsonl").stat().st_mtime_ns != time}
    assert touched == {"0.01-clip"}


def test_cells_of_other_options_or_another_corpus_are_refused(
    manifest: Path, done: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    changed: list[tuple[dict[str, Any], str]] = [({"steps": 2}, "steps: 6 -> 2"), ({"seed": 3}, "seed: 0 -> 3")]
    for changes, said in changed:
        with pytest.raises(ConfigurationError, match=said):
            swept(manifest, done[0], **changes)
    other = learnable_corpus(tmp_path / "corpus", train=30, held_out=5)
    with pytest.raises(ConfigurationError, match="another corpus"):
        swept(other, done[0])


def test_a_folder_that_holds_something_else_is_refused(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is no sweep"):
        swept(manifest, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]
    with pytest.raises(ConfigurationError, match=r"notes\.txt is a file; name a folder"):
        swept(manifest, tmp_path / "notes.txt")


def _note(cell: Path) -> None:
    (cell / "notes.txt").write_text("mine")


def _result_alone(cell: Path) -> None:
    (cell / "result.json").write_text("{}")


def _steps_without_a_run(cell: Path) -> None:
    (cell / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n')


def _config_of_another_cell(cell: Path) -> None:
    shutil.copy(cell.parent / "0.01-clip" / "config.json", cell)


def _config_with_a_note(cell: Path) -> None:
    shutil.copy(cell.parent / "0.01-bare" / "config.json", cell)
    (cell / "notes.txt").write_text("mine")


def _run_with_a_parent(cell: Path) -> None:
    shutil.copytree(cell.parent / "0.01-bare", cell, dirs_exist_ok=True)
    saved = json.loads((cell / "config.json").read_text())
    (cell / "config.json").write_text(json.dumps({**saved, "learning_rate": 0.02, "parent": "elsewhere"}))


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (_note, r"0\.02-bare is not empty, and holds no run of this sweep \(notes\.txt\)"),
        (_result_alone, r"0\.02-bare is not empty, and holds no run of this sweep \(result\.json\)"),
        (_steps_without_a_run, r"0\.02-bare is not empty, and holds no run of this sweep \(metrics\.jsonl\)"),
        (_config_with_a_note, r"0\.02-bare is not empty, and holds no run of this sweep \(config\.json, notes\.txt\)"),
        (_config_of_another_cell, r"0\.02-bare was trained with other options: clip: .* learning_rate: 0\.01 -> 0\.02"),
        (_run_with_a_parent, r"0\.02-bare was trained with other options: parent: 'elsewhere' -> None"),
    ],
)
def test_a_cell_s_folder_that_holds_something_else_is_refused_by_name_and_left_as_it_is(
    manifest: Path, done: tuple[Path, list[Row]], tmp_path: Path, left: Callable[[Path], None], said: str
) -> None:
    out = Path(shutil.copytree(done[0], tmp_path / "sweep"))
    (out / "0.02-bare").mkdir()
    left(out / "0.02-bare")

    def held() -> dict[str, bytes]:
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}

    before = held()
    with pytest.raises(ConfigurationError, match=said):
        swept(manifest, out, (*RATES, 0.02))
    assert held() == before


def test_a_cell_that_was_killed_while_it_wrote_its_first_files_goes_on(
    manifest: Path, done: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(done[0], tmp_path / "sweep"))
    kept = (out / "0.01-bare" / "config.json").read_text()
    shutil.rmtree(out / "0.01-bare")
    (out / "0.01-bare").mkdir()
    (out / "0.01-bare" / "config.json").write_text(kept)
    (out / "0.01-bare" / ".partial-x").write_text("{")
    assert swept(manifest, out).rows == done[1]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("metrics.jsonl", "[]\n", "line 1 is not a step of a run"), ("diverged.json", "[", "diverged.json")],
)
def test_a_cell_s_damaged_file_is_named(
    manifest: Path, done: tuple[Path, list[Row]], tmp_path: Path, name: str, text: str, said: str
) -> None:
    out = Path(shutil.copytree(done[0], tmp_path / "sweep"))
    (out / "0.01-bare" / name).write_text(text)
    with pytest.raises(MetricsError, match=said):
        swept(manifest, out)


def test_a_sweep_loses_none_of_its_rates_and_says_when_cells_were_trained_by_other_code(
    manifest: Path, done: tuple[Path, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    shutil.copytree(done[0], out)
    with pytest.raises(ConfigurationError, match="has a sweep with rates 30 as well"):
        swept(manifest, out, RATES[:1])
    facts = json.loads((out / "0.01-clip" / "run.json").read_text())
    (out / "0.01-clip" / "run.json").write_text(json.dumps({**facts, "code_sha256": "7" * 64}))
    said: list[str] = []
    progress = RunProgress(False, 10)
    monkeypatch.setattr(progress, "note", said.append)
    found = sweep(TrainConfig.check(**options(manifest, out)), RATES, ALONE, progress)
    assert found.rows == done[1] and "code 777777777777… on" in said[-1]
    (out / "sweep.json").write_text('{"rates": 3}')
    with pytest.raises(ConfigurationError, match="not what a sweep writes"):
        swept(manifest, out)


@pytest.mark.parametrize(
    ("changes", "rates", "said"),
    [
        ({"steps": None}, (0.1,), "--steps or --tokens"),
        ({}, (), "rates"),
        ({}, (0.1, 0.1), "same six digits"),
        ({}, (0.1, 0.10000001), "same six digits"),
        ({}, (-0.1,), "above 0"),
        ({}, (math.nan,), "above 0"),
        ({"model": {**SMALL, "qk_norm": True}}, (0.1,), "leave it out"),
        ({"warmup": 0.0}, (0.1,), "--warmup says"),
    ],
)
def test_what_cannot_be_swept_is_said(tmp_path: Path, changes: dict[str, Any], rates: tuple[float, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        cells(TrainConfig.check(**options(tmp_path, tmp_path / "out", **changes)), rates)


def test_the_command_prints_a_table_or_json_and_draws_a_picture(manifest: Path, done: tuple[Path, list[Row]]) -> None:
    pytest.importorskip("matplotlib")
    out, table = done
    (out / "stability.png").unlink()
    shape = [part for name, value in SMALL.items() for part in ("--model", f"{name}={value}")]
    given = [
        "train", "--manifest", str(manifest), "--out", str(out), "--preset", "tiny", *shape, "--steps", "6", "--warmup", "0.5",
        "--sequence-length", "16", "--batch-tokens", "64", "--device", "cpu", "--rates", ".01,30", "--stability-sweep",
    ]  # fmt: skip
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in (*CONDITIONS, "the loss is"))
    assert (out / "stability.png").read_bytes().startswith(b"\x89PNG")
    result = CliRunner().invoke(app, [*given, "--json"])
    assert json.loads(result.stdout) == [row.__dict__ for row in table]
    result = CliRunner().invoke(app, [*given, "--rates", "much"])
    assert (result.exit_code, "--rates 'much'" in result.stderr) == (2, True)


def test_the_preset_of_a_sweep_is_that_of_the_course(tmp_path: Path) -> None:
    planned = cells(TrainConfig.check(manifest="m", out=str(tmp_path), preset="mini", steps=10), [0.003, 0.03])
    bare = planned[0].config.architecture(vocabulary=4096)
    assert bare.parameters() == 5_795_072
    assert len(planned) == 12
