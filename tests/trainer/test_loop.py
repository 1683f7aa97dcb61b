"""Runs: exact resume, the same losses however a batch is shared out, fast failure, and a model that learns."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from manifests.manifest import digest
from manifests.packing import Plan
from manifests.trained_on import TrainedOn, read_ledger
from tests.trainer.corpus_fixture import build_corpus, learnable_corpus, sentences
from tests.trainer.ranks_fixture import in_ranks
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus, CorpusError
from trainer.data.loader import Loader, LoaderError
from trainer.distributed.ranks import Ranks, RanksError
from trainer.network.flops import causal_flops_per_token, palm_flops_per_token
from trainer.run import loop
from trainer.run.loop import Outcome, train
from trainer.run.optimisation import build_adamw
from trainer.run.progress import RunProgress
from trainer.run.warm_up import without_a_trace
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors
from trainer.run_files.metrics import METRICS, DivergedError
from trainer.scores.scoring import score_checkpoint

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
SMALL = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 48}
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


def options(manifest: Path, out: Path, **changes: object) -> dict[str, object]:
    return {
        "manifest": str(manifest), "out": str(out), "preset": "tiny", "model": SMALL, "sequence_length": 32,
        "batch_tokens": 512, "micro_batch": 8, "steps": 12, "device": "cpu", **changes,
    }  # fmt: skip


def run(manifest: Path, out: Path, resume: bool = False, **changes: object) -> Outcome:
    return train(TrainConfig.check(**options(manifest, out, **changes)), ALONE, RunProgress(False, 10), resume)


def losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["loss"] for row in rows]


def weights(out: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(out)
    assert found is not None
    return load_file(found / checkpoint_format.WEIGHTS)


def forget_after(out: Path, step: int) -> None:
    """Leaves the run as a machine that died after `step` left it: checkpoints up to there, longer logs."""
    for folder in (out / checkpoint_format.CHECKPOINTS).iterdir():
        if folder.name > f"step-{step:08d}":
            shutil.rmtree(folder)


def command(manifest: Path, out: Path, *extra: str, torchrun: int = 0) -> list[str]:
    start = [sys.executable, "-m"]
    if torchrun:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", "-m"]
    shape = [part for name, value in SMALL.items() for part in ("--model", f"{name}={value}")]
    return [
        *start, "trainer", "train", "--manifest", str(manifest), "--out", str(out), "--preset", "tiny", *shape,
        "--sequence-length", "32", "--batch-tokens", "512", "--micro-batch", "8", "--device", "cpu", *extra,
    ]  # fmt: skip


def started(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True)


def invoked(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The same command without a process of its own, and so without the seconds in which it imports torch."""
    result = CliRunner().invoke(app, arguments[arguments.index("trainer") + 1 :])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def test_a_short_training_lowers_bits_per_byte(manifest: Path, tmp_path: Path) -> None:
    untrained = run(manifest, tmp_path / "a", steps=1, learning_rate=1e-9, warmup=0.0)
    trained = run(manifest, tmp_path / "b", steps=60, learning_rate=1e-2)
    assert untrained.score is not None and trained.score is not None
    assert trained.score.val_bpb < 0.75 * untrained.score.val_bpb


def test_a_resumed_run_is_bit_for_bit_the_unbroken_one_twice_and_into_epoch_three(manifest: Path, tmp_path: Path) -> None:
    unbroken = tmp_path / "run"
    run(manifest, unbroken, checkpoint_every=4, keep=9)
    expected, expected_losses = weights(unbroken), losses(unbroken)
    ranges = [(4, 8), (8, 12)]
    resumed = tmp_path / "resumed"
    shutil.copytree(unbroken, resumed)
    for died_after, _ in ranges:
        forget_after(resumed, died_after)
        outcome = run(manifest, resumed, resume=True, checkpoint_every=4, keep=9)
        assert outcome.steps == 12
        assert losses(resumed) == expected_losses
        for name, tensor in weights(resumed).items():
            assert torch.equal(tensor, expected[name]), name
    epochs = json.loads((resumed / "result.json").read_text())["epochs"]
    assert epochs["toy"] > 2


@pytest.mark.parametrize("preset", ["tiny", "speedrun-tiny"])
def test_resumed_losses_are_the_unbroken_ones_and_those_of_a_fresh_optimiser_are_not(
    manifest: Path, tmp_path: Path, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six steps, and again from the checkpoint after three. With its weights alone the next loss is still the same, since it is
    that of the weights before their update; those after it are others, in the third decimal place or before."""
    given = {"steps": 6, "checkpoint_every": 3, "keep": 9, "evaluate": False, "preset": preset, "warmup": 0.0}
    unbroken, fresh = tmp_path / "run", tmp_path / "fresh"
    run(manifest, unbroken, **given)
    expected = losses(unbroken)
    forget_after(unbroken, 3)
    shutil.copytree(unbroken, fresh)
    run(manifest, unbroken, resume=True, **given)
    assert losses(unbroken) == expected
    monkeypatch.setattr(checkpoint_tensors, "load_optimiser", lambda *_: None)
    run(manifest, fresh, resume=True, **given)
    assert losses(fresh)[:4] == expected[:4]
    assert min(abs(a - b) for a, b in zip(losses(fresh)[4:], expected[4:], strict=True)) > 1e-3


def test_the_ledger_of_a_resumed_run_has_every_position_once(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", checkpoint_every=4, keep=9)
    forget_after(tmp_path / "run", 4)
    run(manifest, tmp_path / "run", resume=True, checkpoint_every=4, keep=9)
    ranges = read_ledger(tmp_path / "run").ranges  # which refuses a ledger with gaps
    assert (ranges[0].first_position, ranges[-1].end_position) == (0, 12 * 16)
    loader = Loader([Corpus.open(manifest).component("toy", "train")], 32)
    rows = loader.plans[0].rows
    served = loader.locate(np.arange(12 * 16)).row
    for epoch in range(len(served) // rows):
        assert sorted(served[epoch * rows : (epoch + 1) * rows].tolist()) == list(range(rows))


def test_the_ledger_names_the_documents_that_a_checkpoint_had_seen(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", steps=12, checkpoint_every=4)
    corpus = Corpus.open(manifest)
    joined = TrainedOn(tmp_path / "run", corpus.folder, corpus.manifest)
    seen = joined.documents()
    rows = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert sum(seen["targets"].to_pylist()) == rows[-1]["tokens"]
    assert set(seen["id"].to_pylist()) == set(corpus.component("toy", "train").ids().to_pylist())
    early = joined.documents(last_step=1)
    assert sum(early["targets"].to_pylist()) == rows[0]["tokens"]


def test_a_half_written_checkpoint_does_not_change_the_final_loss(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "unbroken", checkpoint_every=4, keep=9)
    broken = tmp_path / "broken"
    shutil.copytree(tmp_path / "unbroken", broken)
    forget_after(broken, 8)
    newest = broken / checkpoint_format.CHECKPOINTS / "step-00000008"
    (newest / checkpoint_format.RECORD).unlink()
    (newest / checkpoint_format.WEIGHTS).write_bytes((newest / checkpoint_format.WEIGHTS).read_bytes()[:500])
    run(manifest, broken, resume=True, checkpoint_every=4, keep=9)
    assert losses(broken) == losses(tmp_path / "unbroken")


def test_micro_batches_change_the_losses_by_rounding_only(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "whole", micro_batch=16)
    run(manifest, tmp_path / "parts", micro_batch=2)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_the_step_s_loss_is_over_all_valid_targets_not_a_mean_of_means(manifest: Path, tmp_path: Path) -> None:
    """With one row a micro-batch, rows of few targets would weigh more in a mean of means; then the first steps differ."""
    run(manifest, tmp_path / "rows", micro_batch=1, steps=3)
    run(manifest, tmp_path / "whole", micro_batch=16, steps=3)
    assert losses(tmp_path / "rows") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_two_ranks_train_like_one_and_one_goes_on_from_their_checkpoint(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "one")
    finished = started(command(manifest, tmp_path / "two", "--steps", "12", "--checkpoint-every", "4", "--keep", "9", torchrun=2))
    assert finished.returncode == 0, finished.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    scored = score_checkpoint(tmp_path / "two", str(manifest), "validation", ALONE)
    said = json.loads((tmp_path / "two" / "result.json").read_text())["score"]["val_bpb"]
    assert said == pytest.approx(scored.val_bpb, abs=1e-6)
    forget_after(tmp_path / "two", 4)
    run(manifest, tmp_path / "two", resume=True)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


def test_evaluating_the_checkpoint_gives_the_figure_of_the_run(manifest: Path, tmp_path: Path) -> None:
    outcome = run(manifest, tmp_path / "run")
    assert outcome.score is not None
    again = score_checkpoint(tmp_path / "run", str(manifest), "validation", ALONE)
    assert again.val_bpb == outcome.score.val_bpb
    assert again.documents_sha256 == outcome.score.documents_sha256


def test_a_loss_that_explodes_ends_the_run_with_exit_code_1_and_saves_nothing_of_it(manifest: Path, tmp_path: Path) -> None:
    finished = invoked(command(manifest, tmp_path / "run", "--steps", "50", "--learning-rate", "1e30", "--warmup", "0"))
    assert finished.returncode == 1
    assert "error: step 2: the " in finished.stderr
    assert checkpoint.latest(tmp_path / "run") is None
    assert len((tmp_path / "run" / METRICS).read_text().splitlines()) < 10


def test_a_diverged_run_never_overwrites_its_last_good_checkpoint(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        run(manifest, tmp_path / "run", steps=50, learning_rate=1e30, warmup=0.0, checkpoint_every=1)
    saved = list((tmp_path / "run" / checkpoint_format.CHECKPOINTS).iterdir())
    assert saved
    for folder in saved:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in load_file(folder / checkpoint_format.WEIGHTS).values())


def test_a_checkpoint_that_was_being_written_when_the_run_diverged_is_completed(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of step 2 is written until the loss of step 3 was seen."""
    seen, write = threading.Event(), checkpoint._write
    checked = loop.check_step

    def slow(*arguments: Any) -> Any:
        assert seen.wait(60)
        return write(*arguments)

    def at_step_3(step: int, loss: float, gradient_norm: float) -> DivergedError | None:
        if step == 3:
            seen.set()
        return checked(step, math.nan if step == 3 else loss, gradient_norm)

    monkeypatch.setattr(checkpoint, "_write", slow)
    monkeypatch.setattr(loop, "check_step", at_step_3)
    with pytest.raises(DivergedError, match="step 3: the loss is nan"):
        run(manifest, tmp_path / "run", steps=8, checkpoint_every=2)
    assert [one.name for one in (tmp_path / "run" / checkpoint_format.CHECKPOINTS).iterdir()] == ["step-00000002"]
    assert checkpoint.fault(tmp_path / "run" / checkpoint_format.CHECKPOINTS / "step-00000002") is None


def test_the_last_line_is_the_result_and_nothing_else_is_on_standard_output(manifest: Path, tmp_path: Path) -> None:
    finished = started(command(manifest, tmp_path / "run", "--steps", "3"))
    assert finished.returncode == 0, finished.stderr
    score = json.loads((tmp_path / "run" / "result.json").read_text())["score"]
    bpb, memory, steps = finished.stdout.strip().split(" | ")
    assert bpb == f"val_bpb={score['val_bpb']:.4f}"
    assert memory.startswith("memory_gb=") and float(memory.removeprefix("memory_gb=")) > 0
    assert steps == "steps=3"


def test_sigterm_saves_ends_with_143_and_the_run_goes_on_from_there(manifest: Path, tmp_path: Path) -> None:
    arguments = command(manifest, tmp_path / "run", "--steps", "100000")
    with subprocess.Popen(arguments, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step "):
                break
        process.send_signal(signal.SIGTERM)
        said.append(process.stderr.read())
        assert process.wait() == 143, "".join(said)
    found = checkpoint.latest(tmp_path / "run")
    assert found is not None
    state = checkpoint.load_state(found)
    assert state.step >= 1
    outcome = run(manifest, tmp_path / "run", resume=True, steps=state.step + 2)
    assert outcome.steps == state.step + 2
    assert len(losses(tmp_path / "run")) == state.step + 2


def test_a_budget_in_seconds_is_kept_and_the_rate_follows_the_clock(manifest: Path, tmp_path: Path) -> None:
    outcome = run(manifest, tmp_path / "run", steps=None, seconds=0.5)
    assert outcome.steps >= 1
    assert outcome.training_seconds >= 0.5
    rows = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert rows[-1]["learning_rate"] < max(row["learning_rate"] for row in rows)


def test_a_budget_in_tokens_counts_targets(manifest: Path, tmp_path: Path) -> None:
    outcome = run(manifest, tmp_path / "run", steps=None, tokens=2_000)
    assert 2_000 <= outcome.tokens < 2_000 + 512


def test_warming_up_changes_nothing_that_is_trained(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "warm", clock="warm")
    run(manifest, tmp_path / "cold", clock="cold")
    assert losses(tmp_path / "warm") == losses(tmp_path / "cold")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="what a GPU holds is seen on one")
def test_what_a_run_was_before_it_warmed_up_lies_on_the_host() -> None:
    model = torch.nn.Linear(1_024, 1_024, bias=False, device="cuda")
    optimiser = build_adamw(model, 1e-3, 0.1)
    model(torch.ones(1, 1_024, device="cuda")).sum().backward()
    optimiser.step()
    before = torch.cuda.memory_allocated()
    with without_a_trace(model, optimiser):
        assert torch.cuda.memory_allocated() == before


def test_a_component_s_loss_and_epochs_are_reported_by_name(tmp_path: Path) -> None:
    manifest = build_corpus(
        tmp_path / "corpus",
        {
            ("books", "train"): [sentences(60, 1)],
            ("web", "train"): [sentences(60, 2)],
            ("web", "validation"): [sentences(9, 3)],
        },
    )
    run(manifest, tmp_path / "run", steps=4, mixture={"books": 0.25, "web": 0.75})
    row = json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])
    assert set(row["loss_by_component"]) == {"books", "web"}
    assert row["epochs"]["web"] > row["epochs"]["books"] > 0
    assert row["mfu_palm"] is None and row["mfu_causal_exact"] is None


def test_more_epochs_than_allowed_are_refused_before_the_first_step(manifest: Path, tmp_path: Path) -> None:
    for budget in ({"steps": 1_000}, {"steps": None, "tokens": 1_000_000}):
        with pytest.raises(LoaderError, match=r"'toy' .* --max-epochs 4: at most [0-9,]+ tokens fit"):
            run(manifest, tmp_path / "run", max_epochs=4, **budget)
    assert not (tmp_path / "run").exists()


def tokens_that_fit(message: str) -> int:
    return int(re.findall(r"at most ([0-9,]+) tokens fit", message)[0].replace(",", ""))


def test_the_number_of_tokens_that_fit_does_fit_and_one_more_does_not(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(LoaderError) as refused:
        run(manifest, tmp_path / "run", steps=None, tokens=1_000_000, max_epochs=2.5)
    fitting = tokens_that_fit(str(refused.value))
    with pytest.raises(LoaderError):
        run(manifest, tmp_path / "run", steps=None, tokens=fitting + 1, max_epochs=2.5)
    outcome = run(manifest, tmp_path / "run", steps=None, tokens=fitting, max_epochs=2.5)
    assert outcome.tokens == fitting and outcome.exhausted is None
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"]["toy"] <= 2.5


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_data_that_end_before_the_clock_leave_a_checkpoint_a_score_and_the_reason(
    manifest: Path, tmp_path: Path, ranks: int
) -> None:
    arguments = command(manifest, tmp_path / "run", "--seconds", "3600", "--max-epochs", "2", torchrun=ranks)
    finished = started(arguments) if ranks else invoked(arguments)
    assert finished.returncode == 1
    reason = next(line for line in finished.stderr.splitlines() if line.startswith("error: "))
    assert reason.startswith("error: component 'toy' would be gone through more often than --max-epochs 2")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["tokens"] == tokens_that_fit(reason)
    assert 1.5 < result["epochs"]["toy"] <= 2
    assert finished.stdout.startswith(f"val_bpb={result['score']['val_bpb']:.4f}")
    found = checkpoint.latest(tmp_path / "run")
    assert found is not None
    assert checkpoint.load_state(found).step == result["steps"] > 0


def begin_in(ranks: Ranks, manifest: str, folder: str) -> None:
    """Each rank in its own folder; what it is refused with goes to a file there."""
    out = Path(folder) / str(ranks.rank)
    with pytest.raises(RanksError) as refused:
        train(TrainConfig.check(**options(Path(manifest), out, steps=4)), ranks, RunProgress(False, 10), resume=True)
    (Path(folder) / f"{ranks.rank}.txt").write_text(str(refused.value))


@pytest.mark.slow
def test_ranks_that_would_begin_at_different_steps_are_told_apart_before_the_first(manifest: Path, tmp_path: Path) -> None:
    """Two machines without a shared folder: the first has the checkpoint, the second begins afresh."""
    run(manifest, tmp_path / "0", steps=2)
    assert in_ranks(2, begin_in, str(manifest), str(tmp_path)) == [0, 0]
    said = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)]
    assert "rank 0 begins after step 2" in said[0] and "rank 1 begins after step 0" in said[1]
    for errors in said:
        assert "do not agree on: step, position, checkpoints" in errors
    assert checkpoint.load_state(checkpoint.resolve(tmp_path / "0")).step == 2
    assert not (tmp_path / "1" / METRICS).exists()


def test_mfu_counts_targets_and_not_the_padding_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are two fifths padding, on a device that is said to be known."""
    held_out = {("toy", "validation"): [sentences(5, 3)]}
    manifest = build_corpus(tmp_path / "corpus", {("toy", "train"): [[[3 + n % 60] * 19 for n in range(64)]], **held_out})
    monkeypatch.setattr("trainer.run.speed.device_name", lambda device: "NVIDIA H200")
    config = TrainConfig.check(**options(manifest, tmp_path / "run", steps=3, dtype="bfloat16", evaluate=False))
    train(config, ALONE, RunProgress(False, 10))
    shape = config.architecture(64)
    for line in (tmp_path / "run" / METRICS).read_text().splitlines():
        row = json.loads(line)
        for name, flops in (
            ("mfu_palm", palm_flops_per_token(shape, 32)),
            ("mfu_causal_exact", causal_flops_per_token(shape, 21 / 2)),
        ):
            assert row[name] == pytest.approx(row["tokens_per_second"] * flops / 989.4e12)


def test_what_a_query_may_see_is_worked_out_once_a_run(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Plan] = []
    counted = Plan.visible_keys
    monkeypatch.setattr(Plan, "visible_keys", lambda plan: passes.append(plan) or counted(plan))
    run(manifest, tmp_path / "run", steps=4)
    assert len(passes) == 1


def test_a_run_goes_through_its_phases(tmp_path: Path) -> None:
    shards = {(name, "train"): [sentences(60, seed)] for seed, name in enumerate(["books", "web"])}
    manifest = build_corpus(tmp_path / "corpus", {**shards, ("web", "validation"): [sentences(9, 3)]})
    phases = [{"mixture": {"books": 1.0}, "rows": 32}, {"mixture": {"web": 1.0}}]
    run(manifest, tmp_path / "run", steps=4, phases=phases, checkpoint_every=1, keep=9)
    seen = [set(json.loads(line)["loss_by_component"]) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert seen == [{"books"}, {"books"}, {"web"}, {"web"}]
    expected = losses(tmp_path / "run")
    forget_after(tmp_path / "run", 1)
    run(manifest, tmp_path / "run", resume=True, steps=4, phases=phases)
    assert losses(tmp_path / "run") == expected
    with pytest.raises(ConfigurationError, match="phases"):
        run(manifest, tmp_path / "run", resume=True, steps=5, phases=[phases[1]])


def test_a_component_of_weight_0_is_left_out(tmp_path: Path) -> None:
    shards = {(name, "train"): [sentences(30, seed)] for seed, name in enumerate(["books", "web"])}
    manifest = build_corpus(tmp_path / "corpus", shards)
    run(manifest, tmp_path / "run", steps=2, mixture={"books": 1.0, "web": 0.0}, evaluate=False)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"].keys() == {"books"}


def test_a_damaged_validation_shard_is_refused_before_training(tmp_path: Path) -> None:
    manifest = learnable_corpus(tmp_path / "corpus", train=20, held_out=5)
    (shard,) = (tmp_path / "corpus").rglob("tokens/**/validation/*.bin")
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorpusError, match=rf"validation/{shard.name}: SHA-256 is "):
        run(manifest, tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_a_corpus_without_validation_is_refused_before_training(tmp_path: Path) -> None:
    manifest = build_corpus(tmp_path / "corpus", {("web", "train"): [sentences(20, 1)]})
    with pytest.raises(CorpusError, match="no validation split"):
        run(manifest, tmp_path / "run")
    assert run(manifest, tmp_path / "run", evaluate=False, steps=2).line().startswith("val_bpb=none")


def test_a_run_is_never_written_over(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", steps=2)
    with pytest.raises(ConfigurationError, match="--resume"):
        run(manifest, tmp_path / "run", steps=2)


def test_a_run_does_not_go_on_with_other_options_or_another_corpus(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", steps=2)
    with pytest.raises(ConfigurationError, match="learning_rate"):
        run(manifest, tmp_path / "run", resume=True, learning_rate=0.5)
    other = learnable_corpus(tmp_path / "other", train=60, held_out=5)
    with pytest.raises(checkpoint_format.CheckpointError, match="other shards"):
        run(other, tmp_path / "run", resume=True)


def test_a_checkpoint_is_not_scored_on_a_corpus_of_another_tokenizer(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", steps=1)
    other = learnable_corpus(tmp_path / "other", train=10, held_out=5)
    raw = json.loads(other.read_text())
    (other.parent / "tokenizer.json").write_text('{"version": "2.0"}')
    raw["content"]["tokenizer"]["sha256"] = hashlib.sha256(b'{"version": "2.0"}').hexdigest()
    raw["digest"] = digest(raw["content"])
    other.write_text(json.dumps(raw))
    with pytest.raises(
        checkpoint_format.CheckpointError, match="other texts; if the corpus was built again since, `corpusmill run` with"
    ):
        score_checkpoint(tmp_path / "run", str(other), "validation", ALONE)


def test_a_checkpoint_of_an_unknown_version_is_refused_and_not_a_bug(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", steps=1, evaluate=False)
    folder = checkpoint.resolve(tmp_path / "run")
    state = json.loads((folder / checkpoint_format.STATE).read_text())
    state["config"]["colour"] = "blue"
    (folder / checkpoint_format.STATE).write_text(json.dumps(state))
    record = json.loads((folder / checkpoint_format.RECORD).read_text())
    data = (folder / checkpoint_format.STATE).read_bytes()
    record["files"][checkpoint_format.STATE] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / checkpoint_format.RECORD).write_text(json.dumps(record))
    with pytest.raises(checkpoint_format.CheckpointError, match="colour"):
        score_checkpoint(tmp_path / "run", str(manifest), "validation", ALONE)
