"""TensorBoard and W&B: the figures of metrics.jsonl, and a clear word where a package is missing."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.test_loop import run
from trainer.configuration import ConfigurationError
from trainer.run.trackers import TENSORBOARD, WANDB, flat
from trainer.run_files.metrics import METRICS


def test_nested_figures_get_names_of_their_own_and_what_is_no_number_is_left_out() -> None:
    row = {"step": 3, "loss": 2.5, "mfu": None, "odd": math.nan, "epochs": {"web": 0.5, "deep": {"er": 1}}, "on": True}
    assert dict(flat(row)) == {"step": 3, "loss": 2.5, "epochs/web": 0.5, "epochs/deep/er": 1}


@pytest.mark.parametrize(("package", "option"), [(TENSORBOARD, {"tensorboard": True}), (WANDB, {"wandb": "project"})])
def test_a_package_that_is_missing_is_named_before_anything_is_done(
    tmp_path: Path, package: str, option: dict[str, object]
) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    manifest = learnable_corpus(tmp_path / "corpus", train=20, held_out=5)
    with pytest.raises(ConfigurationError, match=f"pip install {package}"):
        run(manifest, tmp_path / "run", evaluate=False, **option)
    assert not (tmp_path / "run").exists()


def test_tensorboard_has_the_losses_of_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    manifest = learnable_corpus(tmp_path / "corpus", train=120, held_out=5)
    run(manifest, tmp_path / "run", evaluate=False, steps=3, tensorboard=True)
    told = EventAccumulator(str(tmp_path / "run" / TENSORBOARD))
    told.Reload()
    rows = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    found = [(event.step, event.value) for event in told.Scalars("loss")]
    assert found == [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in rows]
    assert "epochs/toy" in told.Tags()["scalars"]


def test_wandb_writes_to_the_run_s_folder_and_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    manifest = learnable_corpus(tmp_path / "corpus", train=120, held_out=5)
    run(manifest, tmp_path / "run", evaluate=False, steps=3, wandb="a-project")
    assert list((tmp_path / "run" / WANDB).glob("offline-run-*/*.wandb"))
