"""A loss that follows a power law is foretold, one that leaves it is flagged, and what is not known is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from trainer.commands import app
from trainer.planning.forecast import Curve, Forecast, ForecastError, fit, forecast
from trainer.presets import PRESETS
from trainer.run_files.run_record import RunRecord

STEP = 32_768


def law(tokens: float) -> float:
    return 2.0 + 300 * tokens**-0.4


def run_of(
    folder: Path,
    count: int,
    loss: Callable[[int], float] = lambda step: law(step * STEP),
    rate: Callable[[int], float] = lambda step: 1e-3,
    **config: object,
) -> Path:
    """What a run leaves whose loss at each step is given."""
    folder.mkdir()
    options = {"manifest": "m", "out": "o", "preset": "mini", "final_rate": 1.0, **config}
    about = {"architecture": PRESETS["mini"].build(64).model_dump(), "ranks": 1, "device": "x86_64 CPU", "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(options))
    (folder / "run.json").write_text(json.dumps({**about, "manifest_digest": "d"}))
    lines = [{"step": n, "tokens": n * STEP, "loss": loss(n), "learning_rate": rate(n)} for n in range(1, count + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def foretell(folder: Path, **asked: float) -> Forecast:
    return forecast(RunRecord.read(folder), **asked)


def noisy(seed: int, deviation: float = 0.05) -> Callable[[int], float]:
    drawn = np.random.default_rng(seed).normal(0, deviation, 10_000)
    return lambda step: law(step * STEP) + float(drawn[step])


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 4.0), st.floats(0.05, 20.0), st.floats(0.05, 1.5))
def test_a_curve_without_noise_is_found_again(floor: float, factor: float, power: float) -> None:
    tokens = np.linspace(1e6, 1e8, 60)
    truth = Curve(floor, factor, power, 1e8)
    found = fit(tokens, truth.at(tokens), 1e8)
    assert float(found.at(2e8)) == pytest.approx(float(truth.at(2e8)), rel=1e-3, abs=1e-3)
    assert found.power == pytest.approx(power, rel=0.02, abs=0.01)


def test_a_power_law_is_foretold_from_its_first_half_by_every_part(tmp_path: Path) -> None:
    found = foretell(run_of(tmp_path / "run", 1_000, steps=1_000))
    truth = law(1_000 * STEP)
    assert found.at == 1_000 * STEP
    assert found.part.foretold == pytest.approx(truth, abs=2e-3)
    assert found.part.curve.power == pytest.approx(0.4, abs=0.02)
    assert (found.low, found.high) == (pytest.approx(truth, abs=5e-3), pytest.approx(truth, abs=5e-3))
    assert found.observed == pytest.approx(truth, abs=2e-2)
    assert len(found.parts) == 9
    assert found.warnings == [] and found.departures == []


def test_a_curve_with_noise_is_foretold_within_what_its_parts_say(tmp_path: Path) -> None:
    misses = []
    for seed in range(8):
        found = foretell(run_of(tmp_path / str(seed), 1_000, noisy(seed), steps=1_000))
        assert found.departures == []
        misses.append(abs(found.part.foretold - law(1_000 * STEP)))
        assert found.low <= found.part.foretold <= found.high
    assert max(misses) < 0.1


@pytest.mark.parametrize(("shift", "side"), [(0.4, "above"), (-0.4, "below")])
def test_a_loss_that_leaves_the_curve_is_flagged_where_it_does(tmp_path: Path, shift: float, side: str) -> None:
    plain = noisy(3)
    run = run_of(tmp_path / "run", 1_000, lambda step: plain(step) + (shift if step > 700 else 0.0), steps=1_000)
    (one,) = foretell(run).departures
    assert one.side == side
    assert 685 <= one.first_step <= 725 and one.last_step >= 980
    assert one.furthest == pytest.approx(shift, abs=0.1)


def test_a_single_spike_moves_neither_the_fit_nor_a_flag(tmp_path: Path) -> None:
    spiked = foretell(run_of(tmp_path / "a", 1_000, lambda n: 50.0 if n in (200, 800) else law(n * STEP), steps=1_000))
    plain = foretell(run_of(tmp_path / "b", 1_000, steps=1_000))
    assert spiked.part.foretold == pytest.approx(plain.part.foretold, abs=5e-3)
    assert spiked.departures == []


def test_a_run_whose_batches_grow_is_foretold_for_all_its_tokens(tmp_path: Path) -> None:
    ramp = [[0.0, STEP], [0.5, 4 * STEP]]
    assert foretell(run_of(tmp_path / "run", 500, steps=1_000, batch_ramp=ramp)).at == 500 * STEP + 500 * 4 * STEP


def test_the_future_changes_nothing_of_the_forecast(tmp_path: Path) -> None:
    half = foretell(run_of(tmp_path / "half", 500, steps=1_000))
    whole = foretell(run_of(tmp_path / "whole", 1_000, lambda n: law(n * STEP) if n <= 500 else 9.0, steps=1_000))
    assert half.parts == whole.parts
    assert half.observed is None and half.blocks == []
    assert whole.departures[0].side == "above"


def test_the_warm_up_is_left_out(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1_000, lambda n: law(n * STEP) if n > 100 else 10.0, lambda n: min(n, 150) * 1e-5, steps=1_000)
    found = foretell(run)
    assert found.part.first_tokens == 150 * STEP
    assert found.part.foretold == pytest.approx(law(1_000 * STEP), abs=5e-3)


def test_until_and_at_choose_the_part_and_the_question(tmp_path: Path) -> None:
    found = foretell(run_of(tmp_path / "run", 600), until=300 * STEP, at=5_000 * STEP)
    assert found.part.last_tokens == 300 * STEP
    assert found.at == 5_000 * STEP and found.observed is None
    assert found.part.foretold == pytest.approx(law(5_000 * STEP), abs=0.01)
    assert any("16.7 times" in warning for warning in found.warnings)


def test_what_is_asked_for_does_not_change_what_is_fitted(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1_000, steps=1_000)
    usual, far, near = foretell(run), foretell(run, at=50_000 * STEP), foretell(run, at=300 * STEP)
    assert usual.part.last_tokens == 500 * STEP
    assert [part.curve for part in usual.parts] == [part.curve for part in far.parts] == [part.curve for part in near.parts]
    with pytest.raises(ForecastError, match="--at 1: the steps that are fitted begin at"):
        foretell(run, at=1)


def test_a_falling_rate_is_warned_of(tmp_path: Path) -> None:
    fell = foretell(run_of(tmp_path / "a", 1_000, rate=lambda n: 1e-3 * (1 - n / 1_100), steps=1_000))
    assert any("rate falls from" in warning for warning in fell.warnings)
    will = foretell(run_of(tmp_path / "b", 300, steps=1_000, final_rate=0.05))
    assert any("down to 0.05" in warning for warning in will.warnings)


@pytest.mark.parametrize(
    ("steps", "loss", "complaint"),
    [
        (15, law, "too few"),
        (0, law, "no step has a loss"),
        (400, lambda n: 5.0 + n / 100, "does not fall"),
        (400, lambda n: 5.0, "does not fall"),
    ],
)
def test_what_cannot_be_foretold_is_refused(tmp_path: Path, steps: int, loss: Callable[[int], float], complaint: str) -> None:
    with pytest.raises(ForecastError, match=complaint):
        foretell(run_of(tmp_path / "run", steps, loss))


@pytest.mark.parametrize("asked", [{"until": -1.0}, {"at": float("nan")}, {"at": float("inf")}, {"until": 1.0}])
def test_impossible_questions_are_refused(tmp_path: Path, asked: dict[str, float]) -> None:
    with pytest.raises(ForecastError):
        foretell(run_of(tmp_path / "run", 300), **asked)


def test_the_command_tells_the_fit_the_range_and_departures(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1_000, lambda n: law(n * STEP) + (1.0 if n > 800 else 0.0), steps=1_000)
    plain = CliRunner().invoke(app, ["forecast", str(run)])
    assert plain.exit_code == 0, plain.stderr
    assert "0.40" in plain.stdout and "are above every curve" in plain.stdout
    told = json.loads(CliRunner().invoke(app, ["forecast", str(run), "--json"]).stdout)
    assert told["parts"][0]["foretold"] == pytest.approx(law(1_000 * STEP), abs=5e-3)
    assert told["departures"][0]["side"] == "above"
    until = str(300 * STEP / 1000)
    short = json.loads(CliRunner().invoke(app, ["forecast", str(run), "--until", f"{until}k", "--at", "2M", "--json"]).stdout)
    assert (short["at"], short["parts"][0]["last_tokens"]) == (2_000_000, 300 * STEP)
    missing = CliRunner().invoke(app, ["forecast", str(tmp_path / "none")])
    assert missing.exit_code == 1 and "is no run" in missing.stderr
