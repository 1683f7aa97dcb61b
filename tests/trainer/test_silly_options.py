"""Every option of `train` with values that no one should mean: refused in a line with the option's name, or harmless."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig

NEVER: tuple[Any, ...] = (math.nan, math.inf, -math.inf, -1, "x", None, [], {})
INTEGERS = ("sequence_length", "batch_tokens", "micro_batch", "replicas", "steps", "tokens", "keep", "log_every")
COUNTS = ("seed", "loss_chunk", "checkpoint_every", "watch_logits")
NUMBERS = ("seconds", "max_epochs", "learning_rate", "warmup", "cooldown", "final_rate", "weight_decay", "clip", "z_loss", "ema")
CHOICES = (
    "preset",
    "packing",
    "optimiser",
    "schedule",
    "attention",
    "device",
    "dtype",
    "clock",
    "parallel",
    "accumulate",
    "recompute",
)
NONE_IS_THE_DEFAULT = {
    "sequence_length", "batch_tokens", "micro_batch", "replicas", "steps", "tokens", "seconds", "max_epochs", "learning_rate",
    "warmup", "cooldown", "final_rate", "weight_decay", "clip", "optimiser", "schedule", "ema",
}  # fmt: skip
SHAPE = ("layers", "width", "heads", "kv_heads", "hidden", "rope_theta", "norm_epsilon", "soft_cap", "window")


def refused(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        TrainConfig.check(manifest="m", out="o", **{"preset": "tiny", **options})
    return str(error.value)


@pytest.mark.parametrize("name", [*INTEGERS, *COUNTS, *NUMBERS, *CHOICES])
def test_an_option_that_is_no_value_is_refused_by_its_name(name: str) -> None:
    for value in NEVER:
        if value is None and name in NONE_IS_THE_DEFAULT:
            continue
        assert name in refused(**{name: value}), value
    if name in INTEGERS or name in ("seconds", "max_epochs", "learning_rate"):
        assert name in refused(**{name: 0})
    if name in (*INTEGERS, *COUNTS):
        assert name in refused(**{name: 1.5})


@pytest.mark.parametrize("name", SHAPE)
def test_a_shape_that_is_none_is_refused_by_its_name(name: str) -> None:
    for value in (*NEVER, 10**30) if name not in ("rope_theta", "norm_epsilon", "soft_cap") else NEVER:
        told = refused(model={name: value})
        assert name in told or (value == 10**30 and "heads" in told), value


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, -1.0, 1e400, "x", None])
def test_a_weight_that_is_no_share_is_refused(weight: Any) -> None:
    assert "mixture" in refused(mixture={"web": weight})


@pytest.mark.parametrize("shares", [[math.nan, 0.5], [math.inf, 0.5], [-0.5, 1.5], [0.0, 1.0], [0.5, 0.6], [0.5, None]])
def test_shares_of_phases_that_do_not_add_up_are_refused(shares: list[float | None]) -> None:
    assert "phases" in refused(steps=4, phases=[{"mixture": {}, "share": share} for share in shares])


@pytest.mark.parametrize(
    "ramp",
    [[[0, 0]], [[0, -2048]], [[math.nan, 2048]], [[0.1, 2048]], [[0, 2048], [0.5, 2048]], [[0, 2048], [1.0, 4096]], [[0]], [[0, 1.5]], 3],
)  # fmt: skip
def test_a_ramp_that_is_none_is_refused(ramp: Any) -> None:
    assert "batch_ramp" in refused(steps=4, batch_ramp=ramp)


@pytest.mark.parametrize("ranges", [[[0, 3]], [[3, 2]], [[-1, 4]], [[1]], [[1, 2, 3]], [["a", 2]], 3])
def test_steps_that_cannot_be_skipped_are_refused(ranges: Any) -> None:
    assert "skip_steps" in refused(skip_steps=ranges)


def test_every_option_is_tried_here() -> None:
    """Whoever adds an option adds silly values of it."""
    numeric = {
        name
        for name, field in TrainConfig.model_fields.items()
        if any(part in str(field.annotation) for part in ("int", "float", "Literal")) and "tuple" not in str(field.annotation)
    }
    assert numeric | {"preset"} == {*INTEGERS, *COUNTS, *NUMBERS, *CHOICES}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "layers=1e9"], "layers"),
        (["--model", "layers=1000000000"], "layers"),
        (["--model", "nothing=1"], "nothing"),
        (["--mixture", "web=nan"], "mixture|not a share"),
        (["--skip-steps", "5-4"], "skip_steps"),
        (["--skip-steps", "\x1b[31m"], r"\\x1b"),
        (["--batch-ramp", "0:x"], "--batch-ramp"),
        (["--from-step", "3"], "--resume"),
        (["--out", "s3://bucket/run"], "local folder"),
    ],
)
def test_the_command_says_so_and_ends_with_exit_code_2(
    tmp_path: Path, arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [
        "train",
        "--manifest",
        str(tmp_path / "corpus"),
        "--out",
        "run",
        "--preset",
        "tiny",
        "--steps",
        "1",
        "--device",
        "cpu",
        *arguments,
    ]
    said = CliRunner().invoke(app, given)
    assert said.exit_code == 2, (said.stderr, said.exception)
    assert re.search(complaint, said.stderr) and "\x1b" not in said.stderr
    assert list(tmp_path.iterdir()) == []
