"""Rewind and skip: a run goes on from an older checkpoint, passes over steps, and everything says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from manifests.trained_on import TrainedOn, read_ledger
from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.test_loop import losses, options, run, weights
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import Loader
from trainer.distributed.ranks import Ranks
from trainer.run.loop import Outcome, train
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format, rewind
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.run_files.metrics import METRICS

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
ROWS = 16


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


@pytest.fixture(scope="module")
def finished(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with checkpoints of steps 4, 8 and 12."""
    out = tmp_path_factory.mktemp("finished") / "run"
    run(manifest, out, checkpoint_every=4, keep=9, evaluate=False)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def rewound(manifest: Path, out: Path, step: int, **changes: object) -> Outcome:
    given = options(manifest, out, checkpoint_every=4, keep=9, evaluate=False, **changes)
    return train(TrainConfig.check(**given), ALONE, RunProgress(False, 10), resume=True, from_step=step)


def steps_of(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / METRICS).read_text().splitlines()]


def test_a_rewound_run_does_the_same_again_and_keeps_what_it_replaces(manifest: Path, finished: Path, out: Path) -> None:
    rewound(manifest, out, 4)
    assert losses(out) == losses(finished)
    for name, tensor in weights(out).items():
        assert torch.equal(tensor, weights(finished)[name])
    aside = out / rewind.ASIDE / "1"
    for name in (METRICS, "ledger.jsonl"):
        assert (aside / name).read_bytes() == (finished / name).read_bytes()
    assert sorted(one.name for one in (aside / "checkpoints").iterdir()) == ["step-00000008", "step-00000012"]
    assert checkpoint.fault(aside / "checkpoints" / "step-00000012") is None
    assert (aside / "result.json").exists()
    rewound(manifest, out, 8)
    acts = rewind.acts(out)
    assert [(act["act"], act["step"], act["set_aside"]) for act in acts] == [
        ("rewind", 4, "set-aside/1"),
        ("rewind", 8, "set-aside/2"),
    ]
    assert acts[1]["checkpoints"] == ["step-00000012"]
    assert all(act["when"].endswith("+00:00") and act["who"] for act in acts)


def test_a_step_that_has_no_checkpoint_is_refused_with_those_that_have(manifest: Path, out: Path) -> None:
    before = sorted(str(path) for path in out.rglob("*"))
    with pytest.raises(CheckpointError, match="no checkpoint of step 5; those kept are of steps 4, 8, 12"):
        rewound(manifest, out, 5)
    (out / checkpoint_format.CHECKPOINTS / "step-00000004" / checkpoint_format.WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="completion record"):
        rewound(manifest, out, 4)
    with pytest.raises(ConfigurationError, match="other options"):
        rewound(manifest, out, 8, learning_rate=1e-9)
    assert sorted(str(path) for path in out.rglob("*")) == before
    with pytest.raises(ConfigurationError, match="needs --resume"):
        given = options(manifest, out.parent / "new")
        train(TrainConfig.check(**given), ALONE, RunProgress(False, 10), from_step=4)


def test_skipped_steps_make_no_update_and_later_ones_keep_their_rows(manifest: Path, out: Path, finished: Path) -> None:
    rewound(manifest, out, 4, skip_steps=[(6, 7)])
    assert steps_of(out) == [1, 2, 3, 4, 5, 8, 9, 10, 11, 12]
    rows = {row["step"]: row for row in map(json.loads, (out / METRICS).read_text().splitlines())}
    before = {row["step"]: row for row in map(json.loads, (finished / METRICS).read_text().splitlines())}
    assert all(rows[step]["loss"] == before[step]["loss"] for step in range(1, 6))
    assert rows[8]["loss"] != before[8]["loss"]
    assert rows[8]["position"] == before[8]["position"]
    skipped_tokens = before[7]["tokens"] - before[5]["tokens"]
    assert rows[12]["tokens"] == before[12]["tokens"] - skipped_tokens
    assert rewind.acts(out)[0]["skip_steps"] == [[6, 7]]
    assert json.loads((out / "config.json").read_text())["skip_steps"] == [[6, 7]]


def test_the_ledger_knows_that_skipped_rows_were_not_consumed(manifest: Path, out: Path) -> None:
    rewound(manifest, out, 4, skip_steps=[(6, 6), (9, 12)])
    ledger = read_ledger(out)
    assert [(one.first_step, one.last_step, one.skipped) for one in ledger.ranges] == [
        (1, 4, False), (5, 5, False), (6, 6, True), (7, 8, False), (9, 12, True),
    ]  # fmt: skip
    assert ledger.last_step == 12
    corpus = Corpus.open(manifest)
    loader = Loader([corpus.component("toy", "train")], 32)
    consumed = [step for step in range(1, 13) if step not in (6, 9, 10, 11, 12)]
    positions = np.concatenate([np.arange((step - 1) * ROWS, step * ROWS) for step in consumed])
    expected = int((loader.batch(positions).targets >= 0).sum())
    joined = TrainedOn(out, corpus.folder, corpus.manifest)
    assert sum(joined.documents()["targets"].to_pylist()) == expected
    last = json.loads((out / METRICS).read_text().splitlines()[-1])
    assert last["tokens"] == expected
    assert joined.taken_components() == {"toy"}


def test_what_was_told_to_be_skipped_stays_skipped_when_the_run_is_resumed(manifest: Path, tmp_path: Path) -> None:
    common = {"checkpoint_every": 2, "keep": 9, "evaluate": False}
    run(manifest, tmp_path / "whole", skip_steps=[(5, 6)], **common)
    run(manifest, tmp_path / "parts", skip_steps=[(5, 6)], **common)
    for step in (10, 12):
        shutil.rmtree(tmp_path / "parts" / checkpoint_format.CHECKPOINTS / f"step-{step:08d}")
    shutil.rmtree(tmp_path / "parts" / checkpoint_format.CHECKPOINTS / "step-00000008")
    run(manifest, tmp_path / "parts", resume=True, **common)
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(tmp_path / "parts")[name])
    assert (tmp_path / "parts" / METRICS).read_text().count("\n") == 10


def test_steps_that_were_trained_on_cannot_be_skipped_after_the_fact(manifest: Path, out: Path) -> None:
    with pytest.raises(ConfigurationError, match="--skip-steps 3-5: the checkpoint is of step 4, which has trained on step 3"):
        rewound(manifest, out, 4, skip_steps=[(3, 5)])
    with pytest.raises(ConfigurationError, match="are no steps"):
        TrainConfig.check(**options(manifest, out, skip_steps=[(3, 2)]))


def test_a_damaged_record_is_named(manifest: Path, out: Path) -> None:
    (out / rewind.LINEAGE).write_text("[1]\n")
    with pytest.raises(CheckpointError, match="not a line that a rewind writes"):
        rewound(manifest, out, 8)
