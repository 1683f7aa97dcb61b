"""Averages of weights: the arithmetic they say, however many ranks hold them, and checkpoints like any others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from manifests import release
from manifests.commands import app as questions
from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import TINY, options, train_alone, train_in
from trainer.adaptation.parent import Parent
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.distributed.ranks import Ranks
from trainer.export.huggingface import export
from trainer.run.averaging import Ema, average
from trainer.run.optimisation import build_adamw
from trainer.run_files import checkpoint, checkpoint_tensors, released
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.scores.scoring import load_model, score_checkpoint

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
DECAY = 0.8


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


@pytest.fixture(scope="module")
def run(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, each with a checkpoint, scored."""
    out = tmp_path_factory.mktemp("run") / "run"
    train_in(1, manifest, out, steps=6, ema=DECAY, checkpoint_every=1, keep=9, evaluate=True)
    return out


def saved(run: Path, step: int, name: str = "model") -> dict[str, Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


def twin(run: Path, steps: list[int]) -> dict[str, Tensor]:
    """The weighted mean of the weights after each step, in float64."""
    shares = [DECAY ** (steps[-1] - step) for step in steps]
    weights = [saved(run, step) for step in steps]
    return {
        name: sum((share * one[name].double() for share, one in zip(shares, weights, strict=True)), torch.zeros(()).double())
        / sum(shares)
        for name in weights[0]
    }


def test_the_first_average_is_the_weights_after_the_first_update_bit_for_bit() -> None:
    model = nn.Linear(3, 2)
    ema = Ema(model, 0.999)
    with torch.no_grad():
        model.weight.fill_(0.1)
    ema.add()
    assert torch.equal(ema.shadow["weight"], model.weight)


def test_the_running_average_is_that_of_a_plain_float64_twin(run: Path) -> None:
    for step in (1, 3, 6):
        expected = twin(run, list(range(1, step + 1)))
        for name, tensor in saved(run, step, "ema").items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-7)
    assert not torch.equal(saved(run, 6)["norm.weight"], saved(run, 6, "ema")["norm.weight"])


def test_a_run_with_an_average_has_the_weights_of_one_without(manifest: Path, run: Path, tmp_path: Path) -> None:
    train_in(1, manifest, tmp_path / "plain", steps=6)
    for name, tensor in saved(tmp_path / "plain", 6).items():
        assert torch.equal(tensor, saved(run, 6)[name]), name
    assert not (tmp_path / "plain" / "checkpoints" / "step-00000006" / "ema.safetensors").exists()
    assert "ema" not in json.loads((tmp_path / "plain" / "checkpoints" / "step-00000006" / "index.json").read_text())


def test_a_resumed_average_is_bit_for_bit_the_unbroken_one(manifest: Path, run: Path, tmp_path: Path) -> None:
    resumed = tmp_path / "resumed"
    shutil.copytree(run, resumed)
    for step in (4, 5, 6):
        shutil.rmtree(resumed / "checkpoints" / f"step-{step:08d}")
    train_in(1, manifest, resumed, resume=True, steps=6, ema=DECAY, checkpoint_every=1, keep=9, evaluate=True)
    for name, tensor in saved(run, 6, "ema").items():
        assert torch.equal(tensor, saved(resumed, 6, "ema")[name]), name
    scores = [result(one)["ema"]["score"]["val_bpb"] for one in (run, resumed)]
    assert scores[0] == scores[1]


def test_an_average_is_not_begun_in_the_middle_of_a_run(manifest: Path, run: Path, tmp_path: Path) -> None:
    for changes, said in (({"ema": 0.5}, "ema: 0.8 -> 0.5"), ({}, "ema: 0.8 -> None")):
        chosen = options(manifest, run, **{"steps": 7, "evaluate": False, **changes})
        with pytest.raises(ConfigurationError, match=said):
            train_alone(chosen, resume=True)


def test_skipped_steps_are_no_part_of_the_average(manifest: Path, tmp_path: Path) -> None:
    train_in(1, manifest, tmp_path / "run", steps=4, ema=DECAY, skip_steps=[(2, 3)], checkpoint_every=1, keep=9)
    assert checkpoint.load_state(tmp_path / "run" / "checkpoints" / "step-00000004").ema_updates == 2
    first, last = saved(tmp_path / "run", 1), saved(tmp_path / "run", 4)
    for name, tensor in saved(tmp_path / "run", 4, "ema").items():
        expected = (DECAY * first[name].double() + last[name].double()) / (1 + DECAY)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "parallel"), [(2, "fsdp"), (2, "ddp"), (4, "hsdp")])
def test_ranks_average_as_one_process_does(manifest: Path, run: Path, tmp_path: Path, world: int, parallel: str) -> None:
    """Unequal shards, some of them empty; and one process goes on from what they hold."""
    several = tmp_path / "several"
    train_in(world, manifest, several, steps=6, ema=DECAY, parallel=parallel, checkpoint_every=3, keep=9, evaluate=True)
    newest = several / "checkpoints" / "step-00000006"
    found = dict(checkpoint_tensors.weights_in(newest, ema=True))
    expected = saved(run, 6, "ema")
    assert set(found) == set(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)
    assert result(several)["ema"]["score"]["val_bpb"] == pytest.approx(result(run)["ema"]["score"]["val_bpb"], abs=1e-5)
    shutil.rmtree(newest)
    train_in(1, manifest, several, resume=True, steps=6, ema=DECAY)
    for name, tensor in checkpoint_tensors.weights_in(newest, ema=True):
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)
    mean = average(several, tmp_path / "mean", steps=[3, 6])
    parts = [dict(checkpoint_tensors.weights_in(several / "checkpoints" / f"step-{step:08d}")) for step in (3, 6)]
    for name, tensor in checkpoint_tensors.weights_in(mean.folder):
        assert torch.equal(tensor, ((parts[0][name].double() + parts[1][name].double()) / 2).float()), name


def test_raw_weights_and_average_are_scored_alike(manifest: Path, run: Path, tmp_path: Path) -> None:
    told = result(run)
    raw, ema = told["score"], told["ema"]["score"]
    assert (told["ema"]["decay"], told["ema"]["updates"]) == (DECAY, 6)
    assert raw["val_bpb"] != ema["val_bpb"]
    for name in ("documents_sha256", "evaluator_sha256", "sequence_length", "split", "tokenizer_sha256"):
        assert raw[name] == ema[name]
    average(run, tmp_path / "ema", ema=True)
    for where, expected in ((run, raw), (tmp_path / "ema", ema)):
        found = score_checkpoint(where, str(manifest), "validation", ALONE)
        assert found.val_bpb == pytest.approx(expected["val_bpb"], abs=1e-9)


def test_the_mean_of_checkpoints_is_their_arithmetic_mean(run: Path, tmp_path: Path) -> None:
    done = average(run, tmp_path / "two", last=2)
    assert done.steps == [5, 6]
    found = load_file(tmp_path / "two" / "model.safetensors")
    first, second = saved(run, 5), saved(run, 6)
    assert set(found) == set(first)
    for name, tensor in found.items():
        assert torch.equal(tensor, ((first[name].double() + second[name].double()) / 2).float()), name
    average(run, tmp_path / "three", steps=[6, 2, 4, 2])
    parts = [saved(run, step) for step in (2, 4, 6)]
    for name, tensor in load_file(tmp_path / "three" / "model.safetensors").items():
        expected = sum((part[name].double() for part in parts), torch.zeros(()).double()) / 3
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-7, atol=0)


def test_the_same_checkpoints_give_the_same_bytes_and_say_what_they_were(run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        average(run, tmp_path / name, last=3)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["average.json", "complete.json", "index.json", "model.safetensors", "state.json"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    record = json.loads((tmp_path / "a" / "average.json").read_text())
    newest = run / "checkpoints" / "step-00000006"
    assert [one["step"] for one in record["of"]] == [4, 5, 6]
    assert record["of"][-1]["weights_sha256"] == checkpoint.identity(newest)
    assert checkpoint.load_state(tmp_path / "a").lineage[-1] == f"{newest.name} {checkpoint.identity(newest)}"
    (tmp_path / "a" / "average.json").write_text("{}")
    assert "average.json" in str(checkpoint.fault(tmp_path / "a"))


def test_an_average_is_scored_sampled_exported_and_begun_with_but_not_resumed(manifest: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mean"
    average(run, out, last=3)
    given = ["evaluate", str(out), "--manifest", str(manifest), "--device", "cpu"]
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 0 and told.stdout.splitlines()[-1].startswith("val_bpb=")
    loaded = load_model(out)
    assert "model.safetensors" in export(loaded, Corpus.open(str(manifest)), tmp_path / "exported", "float32")
    assert Parent.find(out).record["weights_sha256"] == checkpoint.identity(out)
    with pytest.raises(CheckpointError, match="weights alone"):
        checkpoint_tensors.load_optimiser(out, loaded.model, build_adamw(loaded.model, 1e-3, 0.1))


@pytest.mark.slow
def test_checkpoints_of_another_run_are_refused_by_name(manifest: Path, run: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    for name, changes in (("seed", {"seed": 5}), ("model", {"model": {**TINY, "hidden": 24}}), ("corpus", {})):
        other = manifest
        if name == "corpus":
            other = learnable_corpus(tmp_path / "documents", train=60, held_out=5)
        train_in(1, other, tmp_path / name, steps=3, ema=DECAY, **changes)
        shutil.copytree(run, mixed)
        shutil.rmtree(mixed / "checkpoints" / "step-00000003")
        shutil.copytree(tmp_path / name / "checkpoints" / "step-00000003", mixed / "checkpoints" / "step-00000003")
        with pytest.raises(CheckpointError, match="step-00000003 and step-00000006 are not of one run"):
            average(mixed, tmp_path / "out", steps=[3, 6])
        assert not (tmp_path / "out").exists()
        average(mixed, tmp_path / f"{name}-rest", last=2)
        shutil.rmtree(mixed)


def test_what_is_not_there_is_said_with_what_would_do(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--keep 7"):
        average(run, tmp_path / "out", last=7)
    with pytest.raises(CheckpointError, match="no checkpoint of step 9"):
        average(run, tmp_path / "out", steps=[6, 9])
    with pytest.raises(CheckpointError, match="not a run"):
        average(tmp_path, tmp_path / "out", last=2)
    several: list[dict[str, Any]] = [
        {},
        {"steps": [6]},
        {"steps": [6, 6]},
        {"last": 2, "steps": [5, 6]},
        {"ema": True, "last": 2},
    ]
    for wrong in several:
        with pytest.raises(ConfigurationError):
            average(run, tmp_path / "out", **wrong)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigurationError, match="name a new folder"):
        average(run, tmp_path / "full", last=2)
    with pytest.raises(ConfigurationError, match="among the run's own checkpoints"):
        average(run, run / "checkpoints" / "step-00000007", last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_damaged_checkpoint_is_no_part_of_an_average(run: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    file = damaged / "checkpoints" / "step-00000005" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"step-00000005/model\.safetensors"):
        average(damaged, tmp_path / "out", last=3)


@pytest.mark.parametrize("which", [{"last": 2}, {"ema": True}], ids=["mean", "ema"])
def test_a_newest_checkpoint_that_is_not_whole_is_not_passed_over(run: Path, tmp_path: Path, which: dict[str, Any]) -> None:
    shutil.copytree(run, tmp_path / "run")
    newest = checkpoint.newest_first(tmp_path / "run")[0]
    (newest / "complete.json").unlink()
    with pytest.raises(CheckpointError, match=rf"{newest.name}.*--steps"):
        average(tmp_path / "run", tmp_path / "out", **which)
    left = [checkpoint.step_of(one) for one in checkpoint.newest_first(tmp_path / "run")[1:]]
    named = left[:1] if "ema" in which else left[:2][::-1]
    assert average(tmp_path / "run", tmp_path / "out", steps=named, ema="ema" in which).steps == named


def test_weights_that_are_not_finite_have_no_average(run: Path, tmp_path: Path) -> None:
    """No run writes such a checkpoint: its digests are right, and its weights are not."""
    diverged = tmp_path / "run"
    shutil.copytree(run, diverged)
    folder = diverged / "checkpoints" / "step-00000005"
    tensors = load_file(folder / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    state = checkpoint.load_state(folder)
    shutil.rmtree(folder)
    checkpoint.write_weights(folder, state, tensors, {})
    with pytest.raises(CheckpointError, match="not finite"):
        average(diverged, tmp_path / "out", last=3)
    assert not (tmp_path / "out").exists()


def test_a_release_tells_what_the_average_scored_and_gives_it_away(manifest: Path, run: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(questions, ["release", str(run), "--corpus", str(manifest), "--output", str(tmp_path / "made")])
    assert made.exit_code == 0, made.output
    card, told = (tmp_path / "made" / "README.md").read_text(), result(run)
    low, high = told["ema"]["score"]["interval"]
    figures = f"{told['ema']['score']['val_bpb']:.4f} | {low:.4f} to {high:.4f} | 20 |"
    assert f"| the running average of its weights | validation | {figures}" in card
    assert f"| at the end of the run | validation | {told['score']['val_bpb']:.4f} |" in card
    assert f"(decay {DECAY}, of the weights after 6 updates)" in card
    average(run, tmp_path / "of-run", ema=True)
    for name, where in (("of-release", tmp_path / "made"), ("of-checkpoint", run / "checkpoints" / "step-00000006")):
        average(where, tmp_path / name, ema=True)
        for file in ("average.json", "model.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "of-run" / file).read_bytes()
    with pytest.raises(ConfigurationError, match="one checkpoint"):
        average(tmp_path / "made", tmp_path / "more", ema=True, steps=[6])
    assert (tmp_path / "made" / released.WEIGHTS).is_dir() and released.WEIGHTS == release.WEIGHTS
    scores = []
    for where in (tmp_path / "made", run):
        asked = ["evaluate", str(where), "--manifest", str(manifest), "--device", "cpu", "--json"]
        scored = CliRunner().invoke(app, asked)
        assert scored.exit_code == 0, scored.output
        scores.append(json.loads(scored.stdout)["val_bpb"])
    assert scores[0] == scores[1]


def test_a_run_without_an_average_has_none_to_take_out(manifest: Path, tmp_path: Path) -> None:
    train_in(1, manifest, tmp_path / "run", steps=1)
    with pytest.raises(CheckpointError, match="no running average"):
        average(tmp_path / "run", tmp_path / "out", ema=True)
    assert not (tmp_path / "out").exists()


def test_the_commands_print_the_average_above_the_last_line(manifest: Path, tmp_path: Path) -> None:
    shape = [part for name, value in TINY.items() for part in ("--model", f"{name}={value}")]
    given = [
        "train", "--manifest", str(manifest), "--out", str(tmp_path / "run"), "--preset", "tiny", *shape, "--steps", "4",
        "--sequence-length", "32", "--batch-tokens", "128", "--device", "cpu", "--ema", ".9", "--checkpoint-every", "2",
        "--keep", "2",
    ]  # fmt: skip
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 0, told.stderr
    *_, above, last = told.stdout.splitlines()
    assert above == f"ema_bpb={result(tmp_path / 'run')['ema']['score']['val_bpb']:.4f}"
    assert last.startswith("val_bpb=")
    told = CliRunner().invoke(app, ["average", str(tmp_path / "run"), "--out", str(tmp_path / "mean"), "--last", "2"])
    assert told.exit_code == 0 and "mean of 2 checkpoints, of steps 2, 4" in told.stdout
    told = CliRunner().invoke(app, ["average", str(tmp_path / "run"), "--out", str(tmp_path / "ema"), "--ema", "--json"])
    assert json.loads(told.stdout)["updates"] == 4
    told = CliRunner().invoke(app, ["average", str(tmp_path / "run"), "--out", str(tmp_path / "more"), "--last", "3"])
    assert (told.exit_code, "--keep 3" in told.stderr) == (1, True)


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5, -1.0, float("nan")])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ConfigurationError, match="ema"):
        TrainConfig.check(manifest="m", out="o", ema=decay)
