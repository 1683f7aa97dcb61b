"""The command line: clear errors, exit codes, and no torch until it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.trainer.corpus_fixture import learnable_corpus
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ["--model", "layers=1", "--model", "width=16", "--model", "heads=2", "--model", "kv_heads=1", "--model", "hidden=16"]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--preset", "gigantic"], "gigantic"),
        (["--steps", "5", "--seconds", "5"], "one budget"),
        (["--steps", "0"], "steps"),
        (["--tokens", "lots"], "'lots' is not a number of tokens"),
        (["--tokens", "2.5"], "a whole number from 1 on"),
        (["--tokens", "-5"], "is not a number of tokens"),
        (["--sequence-length", "100", "--batch-tokens", "1050"], "nearest is 1000"),
        (["--model", "width=100", "--model", "heads=3"], "multiple of heads"),
        (["--model", "colour=3"], "colour"),
        (["--model", "layers"], "NAME=VALUE"),
        (["--mixture", "web=much"], "NAME=VALUE"),
        (["--mixture", "web=1", "--mixture", "web=2"], "web has a value already"),
        (["--learning-rate", "-1"], "learning_rate"),
        (["--warmup", "1.5"], "warmup"),
    ],
)
def test_bad_options_are_named_and_end_with_exit_code_2(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    code, _, errors = invoke("train", "--manifest", "nowhere", "--out", str(tmp_path / "run"), *arguments)
    assert code == 2
    assert complaint in errors


def test_a_missing_manifest_ends_with_exit_code_1_and_its_name(tmp_path: Path) -> None:
    code, _, errors = invoke("train", "--manifest", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run"))
    assert code == 1
    assert "nowhere/manifest.json: there is no manifest" in errors


def test_a_tampered_shard_ends_with_exit_code_1_and_its_name(tmp_path: Path) -> None:
    manifest = learnable_corpus(tmp_path / "corpus", train=20, held_out=5)
    shard = tmp_path / "corpus/tokens/toy/train/00001.bin"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\x05\x00")
    code, _, errors = invoke("train", "--manifest", str(manifest), "--out", str(tmp_path / "run"), "--device", "cpu")
    assert code == 1
    assert "toy/train/00001.bin" in errors


def test_train_then_evaluate_prints_the_same_figure(tmp_path: Path) -> None:
    manifest = str(learnable_corpus(tmp_path / "corpus", train=20, held_out=5))
    run = str(tmp_path / "run")
    small = ["--preset", "tiny", *SMALL, "--sequence-length", "16", "--batch-tokens", "64", "--steps", "2", "--device", "cpu"]
    code, out, errors = invoke("train", "--manifest", manifest, "--out", run, *small)
    assert code == 0, errors
    last = out.splitlines()[-1]
    code, out, errors = invoke("evaluate", run, "--manifest", manifest, "--device", "cpu")
    assert code == 0, errors
    assert last.split(" | ")[0] == out.splitlines()[-1]
    assert "scoring the validation split" in errors
    code, out, _ = invoke("evaluate", run, "--manifest", manifest, "--split", "test", "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["split"] == "test"


def test_evaluating_nothing_ends_with_exit_code_1(tmp_path: Path) -> None:
    manifest = str(learnable_corpus(tmp_path / "corpus", train=20, held_out=5))
    code, _, errors = invoke("evaluate", str(tmp_path / "no-run"), "--manifest", manifest)
    assert code == 1
    assert "no-run" in errors


def test_help_and_bad_options_need_no_torch() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from trainer.commands import app\n"
        "assert CliRunner().invoke(app, ['train', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['train', '--manifest', 'm', '--out', 'o', '--preset', 'x']).exit_code == 2\n"
        "assert not {'torch', 'ray', 'stages', 'pipeline'} & set(sys.modules)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_tokens_are_given_as_people_write_them(tmp_path: Path) -> None:
    manifest = str(learnable_corpus(tmp_path / "corpus", train=40, held_out=5))
    arguments = [
        "--manifest",
        manifest,
        "--out",
        str(tmp_path / "run"),
        *SMALL,
        "--device",
        "cpu",
        "--no-compile",
        "--tokens",
        "2e3",
    ]
    code, _, errors = invoke("train", *arguments, "--sequence-length", "16", "--batch-tokens", "32", "--no-evaluate")
    assert code == 0, errors
    assert json.loads((tmp_path / "run" / "config.json").read_text())["tokens"] == 2000


@pytest.mark.parametrize("place", ["", "run", "tokens/run", "../linked/run", "./x/../run"])
@pytest.mark.parametrize("named", ["manifest", "folder"])
def test_a_run_within_its_corpus_is_refused(tmp_path: Path, place: str, named: str) -> None:
    manifest = str(learnable_corpus(tmp_path / "corpus", train=20, held_out=5))
    corpus = Path(manifest).parent if manifest.endswith(".json") else Path(manifest)
    (tmp_path / "linked").symlink_to(corpus)
    given = str(corpus) if named == "folder" else str(corpus / "manifest.json")
    code, _, errors = invoke("train", "--manifest", given, "--out", str(corpus / place), "--preset", "tiny", "--steps", "1")
    assert code == 2
    assert "is inside the corpus, which holds only what its manifest lists" in errors
    assert not (corpus / "run").exists()


def test_a_single_mixture_is_a_list_of_one_phase() -> None:
    short = TrainConfig.check(manifest="m", out="o", mixture={"web": 1.0})
    long = TrainConfig.check(manifest="m", out="o", phases=[{"mixture": {"web": 1.0}}])
    assert short == long
    assert "mixture" not in short.model_dump()
    saved_before_phases = {**long.model_dump(mode="json", exclude={"phases"}), "mixture": {"web": 1.0}}
    assert long.differences(saved_before_phases) == []
    assert TrainConfig.model_validate(saved_before_phases) == long


@pytest.mark.parametrize(
    "phases",
    [
        [], [{"rows": 5}], [{}, {}], [{"rows": 0}, {}], [{"rows": 5, "steps": 3}, {}], [{"share": 0.5}, {}],
        [{"share": 0.5}, {"share": 0.4}], [{"share": 0.5}, {"share": 0.5}],
    ],
    ids=lambda phases: str(phases),
)  # fmt: skip
def test_phases_that_do_not_follow_one_another_are_refused(phases: list[dict[str, object]]) -> None:
    with pytest.raises(ConfigurationError, match="phase"):
        TrainConfig.check(manifest="m", out="o", phases=phases)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_a_batch_is_shared_out_exactly(world: int) -> None:
    config = TrainConfig.check(manifest="m", out="o", preset="small")
    rows, micro_batches = config.micro_batches(world)
    assert rows * micro_batches * world * config.row_tokens == config.batch_tokens_a_step


def test_ranks_that_cannot_share_a_batch_are_told_what_would_do() -> None:
    config = TrainConfig.check(manifest="m", out="o", preset="tiny", batch_tokens=2_048, sequence_length=256)
    with pytest.raises(ConfigurationError, match=r"--batch-tokens 2304 would do"):
        config.micro_batches(3)


def test_a_micro_batch_that_does_not_divide_is_told_what_would() -> None:
    config = TrainConfig.check(manifest="m", out="o", preset="tiny", batch_tokens=2_048, sequence_length=256, micro_batch=3)
    with pytest.raises(ConfigurationError, match="1, 2, 4, 8"):
        config.micro_batches(1)


def test_phases_of_a_mixture_recipe_are_shares_of_the_run(tmp_path: Path) -> None:
    manifest = learnable_corpus(tmp_path / "corpus", train=40, held_out=5)
    recipe = tmp_path / "mixture.yaml"
    recipe.write_text("phases: [{share: 0.75}, {weights: {toy: 2}}]\nmax_epochs: 100\n")
    options = [
        "--manifest",
        str(manifest),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
        "--steps",
        "4",
        "--mixture-recipe",
        str(recipe),
    ]
    code, output, errors = invoke("train", *options, *SMALL, "--sequence-length", "16", "--batch-tokens", "64")
    assert code == 0, errors
    assert "val_bpb=" in output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["phases"] == [
        {"mixture": {}, "rows": None, "share": 0.75},
        {"mixture": {"toy": 1.0}, "rows": None, "share": 0.25},
    ]
    assert config["max_epochs"] == 100


@pytest.mark.parametrize(
    ("text", "budget", "complaint"),
    [
        ("phases: [{weights: {wob: 1}}]", "--steps", "no component 'wob'"),
        ("phases: [{share: 0.5}, {}]", "--seconds", "needs --tokens or --steps"),
        ("phases: [{share: 0.5}]", "--steps", "add up to 0.5"),
        ("phases: [{temperature: 0.3}]", "--steps", "languages"),
    ],
)
def test_a_mixture_recipe_that_does_not_fit_ends_with_exit_code_2(tmp_path: Path, text: str, budget: str, complaint: str) -> None:
    manifest = learnable_corpus(tmp_path / "corpus", train=20, held_out=5)
    (tmp_path / "mixture.yaml").write_text(text)
    options = [
        "--manifest",
        str(manifest),
        "--out",
        str(tmp_path / "run"),
        budget,
        "4",
        "--mixture-recipe",
        str(tmp_path / "mixture.yaml"),
    ]
    code, _, errors = invoke("train", *options)
    assert code == 2
    assert complaint in errors


def test_without_a_gpu_the_usual_model_is_one_that_a_cpu_can_train(tmp_path: Path) -> None:
    manifest = learnable_corpus(tmp_path / "corpus", train=20, held_out=5)
    where = ["--manifest", str(manifest), "--out", str(tmp_path / "run"), "--device", "cpu"]
    code, _, errors = invoke("train", *where, *SMALL, "--steps", "1", "--batch-tokens", "512", "--no-evaluate")
    assert code == 0, errors
    assert "no GPU is used, so the model is 'tiny'; --preset names another" in errors
    assert json.loads((tmp_path / "run" / "config.json").read_text())["preset"] == "tiny"


def test_a_device_that_is_not_there_is_bad_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, said = invoke("train", "--manifest", "m", "--out", str(tmp_path / "run"), "--preset", "tiny", "--device", "cuda")
    assert (code, out) == (2, "")
    assert said.startswith("error: --device cuda was asked for") and "use --device cpu" in said
