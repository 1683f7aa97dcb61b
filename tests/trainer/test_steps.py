"""Batches that grow with the budget: which rows a step has is a function of its number, whatever is skipped or resumed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from manifests.trained_on import TrainedOn, read_ledger
from tests.trainer.corpus_fixture import build_corpus, documents_of_lengths, learnable_corpus, sentences
from tests.trainer.ranks_fixture import train_in
from tests.trainer.test_loop import ALONE, forget_after, losses, options, run, weights
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import LoaderError
from trainer.data.steps import Steps, Stretch
from trainer.run.loop import train
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.run_files.metrics import METRICS
from trainer.studies.batch import pieces_of_step
from trainer.studies.replay import replay

T = 32
RAMP = ((0.0, 4 * T), (0.25, 8 * T), (0.5, 16 * T))
ROWS_A_STEP = [4] * 3 + [8] * 3 + [16] * 6
"""Of RAMP in 12 steps."""
ENDS = np.cumsum(ROWS_A_STEP).tolist()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


def ramped(**changes: object) -> dict[str, Any]:
    return {"batch_tokens": None, "batch_ramp": RAMP, "micro_batch": 4, "evaluate": False, **changes}


@pytest.fixture(scope="module")
def finished(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with checkpoints of steps 2, 4, …"""
    out = tmp_path_factory.mktemp("finished") / "run"
    run(manifest, out, **ramped(checkpoint_every=2, keep=9))
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def config(**changes: object) -> TrainConfig:
    return TrainConfig.check(**options(Path("m"), Path("o"), **ramped(**changes)))


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / METRICS).read_text().splitlines()]


class Fives:
    """Rows of five targets each."""

    def targets(self, position: int) -> int:
        return 5 * position


def test_a_batch_grows_with_the_first_step_before_which_its_share_was_spent() -> None:
    steps = Steps.of(config())
    assert [steps.rows(step) for step in range(1, 13)] == ROWS_A_STEP
    assert [steps.position(step + 1) for step in range(13)] == [0, *ENDS]
    assert steps.rows(1000) == 16


def test_a_budget_in_tokens_is_counted_in_the_targets_of_the_rows() -> None:
    steps = Steps.of(config(steps=None, tokens=1000), Fives())
    spent, position, step = 0, 0, 1
    while spent < 1000:
        rows = [batch // T for share, batch in RAMP if spent >= share * 1000][-1]
        assert (steps.rows(step), steps.position(step)) == (rows, position)
        spent, position, step = spent + 5 * rows, position + rows, step + 1


def test_without_a_ramp_step_n_begins_at_n_minus_1_times_its_rows() -> None:
    steps = Steps.of(config(batch_ramp=(), batch_tokens=512))
    assert steps.stretches == (Stretch(1, 0, 16),)
    assert steps.position(8) == 7 * 16


def test_a_step_that_passes_several_shares_at_once_takes_the_last_of_them() -> None:
    steps = Steps.of(config(steps=2))
    assert steps.stretches == (Stretch(1, 0, 4), Stretch(2, 4, 16))
    assert Steps.of(config(steps=1)).rows(1) == 4


@pytest.mark.parametrize("total", [1, 2, 3, 7, 12, 100])
def test_steps_within_a_position_are_those_that_end_there_or_before(total: int) -> None:
    steps = Steps.of(config(steps=total))
    for position in range(400):
        within = steps.within(position)
        assert steps.position(within + 1) <= position < steps.position(within + 2)


def test_a_run_takes_every_position_once_and_its_ledger_says_in_which_step(manifest: Path, finished: Path) -> None:
    assert [row["position"] for row in metrics(finished)] == ENDS
    ledger = read_ledger(finished)
    assert [ledger.position_after(step) for step in range(13)] == [0, *ENDS]
    corpus = Corpus.open(manifest)
    joined = TrainedOn(finished, corpus.folder, corpus.manifest)
    before = 0
    for row in metrics(finished):
        pieces = pieces_of_step(joined, row["step"])
        assert sum(piece.targets for piece in pieces) == row["tokens"] - before
        assert {piece.row for piece in pieces} == set(range(ROWS_A_STEP[row["step"] - 1]))
        before = row["tokens"]
    assert sum(joined.documents()["targets"].to_pylist()) == before


def test_a_run_whose_checkpoints_are_rare_breaks_its_ledger_where_batches_grow(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", **ramped(skip_steps=[(5, 7)]))
    found = [(one.first_step, one.last_step, one.rows_a_step, one.skipped) for one in read_ledger(tmp_path / "run").ranges]
    assert found == [(1, 3, 4, False), (4, 4, 8, False), (5, 6, 8, True), (7, 7, 16, True), (8, 12, 16, False)]


@pytest.mark.parametrize("died_after", [4, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 6, 8))])
def test_a_resumed_run_is_bit_for_bit_the_unbroken_one(manifest: Path, finished: Path, out: Path, died_after: int) -> None:
    forget_after(out, died_after)
    run(manifest, out, resume=True, **ramped(checkpoint_every=2, keep=9))
    assert losses(out) == losses(finished)
    for name, tensor in weights(finished).items():
        assert tensor.equal(weights(out)[name]), name
    assert [read_ledger(out).position_after(step) for step in range(13)] == [0, *ENDS]


def test_growth_in_tokens_resumes_and_skips_without_moving_a_row(manifest: Path, tmp_path: Path) -> None:
    given = ramped(steps=None, tokens=3_000, checkpoint_every=2, keep=9)
    run(manifest, tmp_path / "run", **given)
    positions = [row["position"] for row in metrics(tmp_path / "run")]
    sizes = np.diff([0, *positions]).tolist()
    assert sorted(set(sizes)) == [4, 8, 16] and sizes == sorted(sizes)
    tokens = [0, *(row["tokens"] for row in metrics(tmp_path / "run"))]
    assert sizes == [[batch // T for share, batch in RAMP if at / 3_000 >= share][-1] for at in tokens[:-1]]
    expected = losses(tmp_path / "run")
    forget_after(tmp_path / "run", 4)
    run(manifest, tmp_path / "run", resume=True, **given)
    assert losses(tmp_path / "run") == expected
    skipping = TrainConfig.check(**options(manifest, tmp_path / "run", **given, skip_steps=[(6, 7)]))
    train(skipping, ALONE, RunProgress(False, 10), resume=True, from_step=4)
    found = {row["step"]: row["position"] for row in metrics(tmp_path / "run")}
    assert {6, 7}.isdisjoint(found)
    assert all(found[step] == position for step, position in enumerate(positions, 1) if step in found)


def test_replayed_steps_come_out_bit_for_bit(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    again = replay(finished, 3, 8, tmp_path / "scratch", ALONE, RunProgress(False, 10))
    assert [one.step for one in again.steps] == [3, 4, 5, 6, 7, 8]
    assert all(one.same for one in again.steps)


def test_micro_batches_change_the_losses_by_rounding_only(manifest: Path, finished: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "parts", **ramped(micro_batch=1))
    assert losses(tmp_path / "parts") == pytest.approx(losses(finished), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_share_every_batch(manifest: Path, tmp_path: Path, parallel: str) -> None:
    """One micro-batch a rank at first, then two and four."""
    given = ramped(micro_batch=2, steps=6)
    train_in(1, manifest, tmp_path / "one", **given)
    train_in(2, manifest, tmp_path / "two", **given, parallel=parallel)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=2e-5)
    assert [r["position"] for r in metrics(tmp_path / "two")] == [r["position"] for r in metrics(tmp_path / "one")]


def test_the_noise_scale_is_asked_of_batches_of_every_size_and_changes_none(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", **ramped(steps=4, micro_batch=2))
    run(manifest, tmp_path / "noise", **ramped(steps=4, micro_batch=2, noise_scale=True))
    assert losses(tmp_path / "noise") == losses(tmp_path / "run")
    assert all("noise_scale" in row for row in metrics(tmp_path / "noise"))


def test_epochs_are_refused_to_the_step_and_what_fits_does_fit(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=r"'toy' .* --max-epochs 2") as refused:
        run(manifest, tmp_path / "steps", **ramped(steps=400, max_epochs=2))
    steps = int(re.findall(r"at most ([0-9]+) steps of this ramp fit", str(refused.value))[0])
    with pytest.raises(LoaderError, match=f"at most {steps} steps"):
        run(manifest, tmp_path / "steps", **ramped(steps=steps + 1, max_epochs=2))
    assert run(manifest, tmp_path / "steps", **ramped(steps=steps, max_epochs=2)).exhausted is None
    with pytest.raises(LoaderError) as refused:
        run(manifest, tmp_path / "tokens", **ramped(steps=None, tokens=100_000, max_epochs=2))
    tokens = int(re.findall(r": ([0-9,]+) tokens fit", str(refused.value))[0].replace(",", ""))
    assert run(manifest, tmp_path / "tokens", **ramped(steps=None, tokens=tokens, max_epochs=2)).exhausted is None
    for name in ("steps", "tokens"):
        assert 1.5 < json.loads((tmp_path / name / "result.json").read_text())["epochs"]["toy"] <= 2


@pytest.mark.parametrize("rows", [0, 3, 4, 100, 1000])
def test_a_budget_in_steps_that_fits_is_the_largest(rows: int) -> None:
    fitting = Steps.that_fit(config(), rows)
    needed = [Steps.of(config(steps=steps)).position(steps + 1) for steps in range(1, 200)]
    assert fitting == sum(one <= rows for one in needed)


def test_phases_have_their_shares_of_a_run_whose_batches_grow(tmp_path: Path) -> None:
    """`half` and `full` pack unequally; a quarter of the target tokens are of the second phase."""
    manifest = build_corpus(
        tmp_path / "corpus",
        {
            ("half", "train"): [documents_of_lengths([20] * 150)],
            ("full", "train"): [documents_of_lengths([32] * 150)],
            ("full", "validation"): [sentences(5, 3)],
        },
    )
    phases = [{"mixture": {"half": 1.0}, "share": 0.75}, {"mixture": {"full": 1.0}, "share": 0.25}]
    for name, budget in {"steps": {"steps": 16}, "tokens": {"steps": None, "tokens": 5_000}}.items():
        run(manifest, tmp_path / name, **ramped(phases=phases, **budget))
        corpus = Corpus.open(manifest)
        seen = TrainedOn(tmp_path / name, corpus.folder, corpus.manifest).documents()
        taken = sum(t for c, t in zip(seen["component"].to_pylist(), seen["targets"].to_pylist(), strict=True) if c == "half")
        total = 5_000 if name == "tokens" else sum(seen["targets"].to_pylist())
        assert abs(taken - 0.75 * total) <= 2 * T


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_ramp": ((0.0, 4 * T), (0.5, 8 * T + 1))}, f"batch_ramp 257 is not a multiple of sequence_length 32; the nearest is {8 * T}"),
        ({"batch_ramp": ((0.1, 4 * T),)}, "begin with 0"),
        ({"batch_ramp": ((0.0, 4 * T), (0.5, 8 * T), (0.5, 16 * T))}, "rise"),
        ({"batch_ramp": ((0.0, 4 * T), (1.0, 8 * T))}, "below 1"),
        ({"batch_ramp": ((0.0, 4 * T), (float("nan"), 8 * T))}, "rise"),
        ({"batch_ramp": ((0.0, 8 * T), (0.5, 4 * T))}, "grow"),
        ({"batch_ramp": ((0.0, 0), (0.5, 4 * T))}, "grow"),
        ({"batch_tokens": 512}, "leave batch_tokens out"),
        ({"steps": None}, "--tokens or --steps"),
        ({"steps": None, "seconds": 5.0}, "--tokens or --steps"),
    ],
)  # fmt: skip
def test_ramps_that_cannot_be_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        config(**changes)


def test_a_batch_that_ranks_or_micro_batches_cannot_share_is_named() -> None:
    with pytest.raises(ConfigurationError, match="batch_ramp 128 is 4 rows of 32, which 8 ranks cannot share equally; 256 there"):
        config(micro_batch=None).micro_batches(8)
    with pytest.raises(ConfigurationError, match="micro_batch 8 does not divide the 4, 8, 16 rows of a rank; these do: 1, 2, 4"):
        config(micro_batch=8).micro_batches(1)
    with pytest.raises(ConfigurationError, match="--micro-batch 2 would do"):
        config(micro_batch=4, noise_scale=True).micro_batches(1)
    assert config(micro_batch=None).micro_batches(2) == (2, 4)


def test_a_run_is_not_resumed_with_another_ramp_or_budget(manifest: Path, out: Path) -> None:
    for changes, name in (
        ({"steps": 24}, "steps: 12 -> 24"),
        ({"batch_ramp": RAMP[:2]}, "batch_ramp"),
        ({"batch_ramp": (), "batch_tokens": 512}, "batch_ramp"),
    ):
        with pytest.raises(ConfigurationError, match=name):
            run(manifest, out, resume=True, **ramped(**changes))


def test_a_run_from_before_there_were_ramps_goes_on(manifest: Path, tmp_path: Path) -> None:
    plain = TrainConfig.check(**options(manifest, tmp_path))
    saved = plain.model_dump(mode="json")
    del saved["batch_ramp"]
    assert plain.differences(saved) == []


def test_a_checkpoint_that_stood_elsewhere_after_its_step_is_refused(manifest: Path, out: Path) -> None:
    folder = checkpoint.resolve(out)
    state = json.loads((folder / checkpoint_format.STATE).read_text())
    state["position"] += 1
    data = json.dumps(state).encode()
    (folder / checkpoint_format.STATE).write_bytes(data)
    record = json.loads((folder / checkpoint_format.RECORD).read_text())
    record["files"][checkpoint_format.STATE] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / checkpoint_format.RECORD).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=f"position {ENDS[-1] + 1}, and these options would at {ENDS[-1]}"):
        run(manifest, out, resume=True, **ramped())


def test_the_command_takes_a_ramp_and_says_what_is_wrong_with_one(manifest: Path, tmp_path: Path) -> None:
    shape = ["--preset", "tiny", "--model", "layers=1", "--model", "width=16", "--sequence-length", str(T), "--device", "cpu"]
    base = ["train", "--manifest", str(manifest), "--out", str(tmp_path / "run"), *shape, "--steps", "4", "--no-evaluate"]
    wrong = CliRunner().invoke(app, [*base, "--batch-ramp", "0:many"])
    assert wrong.exit_code == 2 and "0:65536,0.1:131072" in wrong.output
    done = CliRunner().invoke(app, [*base, "--batch-ramp", "0:64,0.5:128"])
    assert done.exit_code == 0, done.output
    assert [row["position"] for row in metrics(tmp_path / "run")] == [2, 4, 8, 12]
    assert "from step 3 on, batch: 128 tokens" in done.output
