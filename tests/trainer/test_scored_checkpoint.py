"""What a score, an answer, a text or an export is of: said, and never an older checkpoint or another device in silence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.test_generation import with_real_tokenizer
from tests.trainer.test_loop import run
from trainer.commands import app
from trainer.run_files import checkpoint, checkpoint_format

TRAINED_AT = 16


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "corpus"
    learnable_corpus(folder, train=120, held_out=5)
    return with_real_tokenizer(folder)


@pytest.fixture(scope="module")
def finished(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2."""
    out = tmp_path_factory.mktemp("finished") / "run"
    run(manifest, out, steps=2, checkpoint_every=1, keep=9, evaluate=False, sequence_length=TRAINED_AT)
    return out


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def command(name: str, model: Path, manifest: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "q.jsonl").write_text('{"id": "a", "prompt": "w2", "options": [" w17", " w39"], "answer": 0, "group": "g"}\n')
    return {
        "evaluate": ["evaluate", str(model), "--manifest", str(manifest), "--device", "cpu"],
        "choices": ["choices", str(model), "--questions", str(tmp_path / "q.jsonl"), "--device", "cpu"],
        "generate": ["generate", str(model), "w2", "--tokens", "2", "--device", "cpu"],
        "export": ["export", "huggingface", str(model), "--output", str(tmp_path / "out")],
    }[name]


@pytest.mark.parametrize("name", ["evaluate", "choices", "generate", "export"])
def test_a_run_with_a_damaged_newest_checkpoint_is_refused_with_what_would_do(
    finished: Path, manifest: Path, tmp_path: Path, name: str
) -> None:
    damaged = Path(shutil.copytree(finished, tmp_path / "run"))
    older, newest = (damaged / "checkpoints" / f"step-{step:08d}" for step in (1, 2))
    (newest / checkpoint_format.WEIGHTS).write_bytes(b"")
    code, out, errors = invoke(*command(name, damaged, manifest, tmp_path))
    assert (code, out) == (1, "")
    assert f"{newest}/{checkpoint_format.WEIGHTS} is not what the completion record says" in errors
    assert errors.rstrip().endswith(f"an older one is taken only where it is named; the newest whole one is {older}")
    code, out, errors = invoke(*command(name, older, manifest, tmp_path))
    assert code == 0, errors


def test_a_score_says_which_checkpoint_it_is_of(finished: Path, manifest: Path, tmp_path: Path) -> None:
    for model, step in ((finished, 2), (finished / "checkpoints" / "step-00000001", 1)):
        folder = finished / "checkpoints" / f"step-{step:08d}"
        asked = command("evaluate", model, manifest, tmp_path)
        code, out, errors = invoke(*asked, "--json")
        assert code == 0, errors
        told = json.loads(out)
        tokens = checkpoint.load_state(folder).tokens
        assert told["model"] == {
            "checkpoint": str(folder), "step": step, "tokens": tokens, "weights_sha256": checkpoint.identity(folder),
            "sequence_length": TRAINED_AT,
        }  # fmt: skip
        assert told["warnings"] == []
        _, out, _ = invoke(*asked)
        *_, which, weights, figure = out.splitlines()
        assert which == f"checkpoint {folder}, of step {step} and {tokens:,} tokens"
        assert weights == f"weights {checkpoint.identity(folder)}"
        assert figure == f"val_bpb={told['val_bpb']:.4f}"


def test_what_was_generated_and_exported_says_which_checkpoint_it_is_of(finished: Path, manifest: Path, tmp_path: Path) -> None:
    folder = finished / "checkpoints" / "step-00000002"
    told = json.loads(invoke(*command("generate", finished, manifest, tmp_path), "--json")[1])
    assert (told["checkpoint"], told["step"]) == (str(folder), 2)
    assert f"of {folder}, of step 2" in invoke(*command("export", finished, manifest, tmp_path))[2]


@pytest.mark.parametrize(("length", "warned"), [(8, False), (TRAINED_AT, False), (TRAINED_AT + 1, True), (64, True)])
def test_a_score_at_a_t_beyond_that_of_training_says_so_with_both(
    finished: Path, manifest: Path, tmp_path: Path, length: int, warned: bool
) -> None:
    asked = [*command("evaluate", finished, manifest, tmp_path), "--sequence-length", str(length)]
    told = json.loads(invoke(*asked, "--json")[1])
    _, out, _ = invoke(*asked)
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert warnings == [f"warning: {one}" for one in told["warnings"]]
    assert len(warnings) == warned
    assert all(f"T = {length} is beyond the T = {TRAINED_AT} that the run trained at" in one for one in warnings)
    assert out.splitlines()[-1].startswith("val_bpb=")


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "run", "--manifest", "m"], ["choices", "run"], ["generate", "run", "text"], ["replay", "run", "1"],
        ["train", "batch", "run", "1"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
@pytest.mark.parametrize("device", ["tpu", "CUDA", "cuda:1", ""])
def test_a_device_that_is_none_is_refused_in_one_line_with_what_would_do(arguments: list[str], device: str) -> None:
    assert invoke(*arguments, "--device", device) == (2, "", f"error: --device {device}: auto, cpu or cuda\n")
