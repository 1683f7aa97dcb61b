"""A story model adapted to safety-case text: five conditions of replay and rate, and a gate of 1.00 nat down and 0.20 up that was
written before. Only the low rate with 30 % replay passes. `pytest -m slow -s` prints the table of docs/continued-pretraining.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.recipe import Recipe
from tests.pipeline.crawl import build
from tests.trainer.adaptation_texts import write_recipe
from trainer.commands import app

SHAPE = {"layers": 2, "width": 64, "heads": 2, "kv_heads": 1, "hidden": 176}
BASE_STEPS, BASE_RATE = 300, 4e-3
STEPS, LOW, HIGH = 40, 6e-3, 3e-2
CONDITIONS = {"low-0": (LOW, 0.0), "low-10": (LOW, 0.1), "low-30": (LOW, 0.3), "high-0": (HIGH, 0.0), "high-30": (HIGH, 0.3)}
GATE = """
domain: {text: [{components: [safety]}], down_by: 1.00}
general: {text: [{components: [stories]}], up_by: 0.20}
"""


def train(out: Path, *more: str) -> str:
    """The last line of a run."""
    every = ["--batch-tokens", "2048", "--micro-batch", "16", "--device", "cpu", "--log-every", "1000"]
    result = CliRunner().invoke(app, ["train", "--out", str(out), *every, *more])
    assert result.exit_code == 0, result.stderr
    return str(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_of_five_conditions_only_the_low_rate_with_30_percent_replay_passes(tmp_path: Path) -> None:
    corpus, base = tmp_path / "corpus", tmp_path / "base"
    build(Recipe.load(write_recipe(tmp_path / "texts", 3_000, 1_500, "{vocabulary: 1024}")), corpus)
    shape = [part for name, value in SHAPE.items() for part in ("--model", f"{name}={value}")]
    of_stories = ["--mixture", "stories=1", "--steps", str(BASE_STEPS), "--learning-rate", str(BASE_RATE)]
    train(base, "--manifest", str(corpus), "--preset", "tiny", *shape, "--sequence-length", "128", *of_stories)
    (tmp_path / "gate.yaml").write_text(GATE)
    sides: dict[str, Any] = {}
    for name, (rate, replay) in CONDITIONS.items():
        out = tmp_path / name
        mixture = ["--mixture", f"safety={1 - replay}", *(["--mixture", f"stories={replay}"] if replay else [])]
        begun = ["--from", str(base), "--gate", str(tmp_path / "gate.yaml")]
        line = train(out, "--manifest", str(corpus), *begun, *mixture, "--steps", str(STEPS), "--learning-rate", str(rate))
        sides[name] = json.loads((out / "result.json").read_text())["gate"]
        assert line.endswith(f"gate={sides[name]['gate']}")
        for side in ("domain", "general"):
            one = sides[name][side]
            low, high = one["interval"]
            print(f"{name} {side}: {one['before']:.3f} {one['after']:.3f} {one['change']:+.3f} ({low:+.3f} to {high:+.3f})")
        print(f"{name} gate={sides[name]['gate']}", flush=True)
    assert [name for name, told in sides.items() if told["gate"] == "pass"] == ["low-30"]
    assert all(told["domain"]["passed"] for told in sides.values())
    rise = {name: told["general"]["change"] for name, told in sides.items()}
    assert rise["low-0"] > 1 > rise["low-10"] > 0.2 > rise["low-30"]
    assert rise["high-0"] > rise["high-30"] > 0.2
