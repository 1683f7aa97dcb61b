"""A step's documents, and steps computed again: both must be what the run did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from manifests.manifest import open_corpus
from manifests.trained_on import LedgerError, TrainedOn
from tests.trainer.corpus_fixture import build_corpus, sentences
from tests.trainer.test_loop import options, run
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import Loader
from trainer.distributed.ranks import Ranks
from trainer.run.loop import train
from trainer.run.progress import RunProgress
from trainer.run_files import rewind
from trainer.run_files.checkpoint_format import CHECKPOINTS, CheckpointError
from trainer.run_files.metrics import METRICS
from trainer.scores.scoring import load_model
from trainer.studies.batch import pieces_of_step, with_losses
from trainer.studies.replay import replay

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
QUIET = RunProgress(False, 10)
ROWS = 16


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shards = {
        ("books", "train"): [sentences(30, 1, words=30)],
        ("web", "train"): [sentences(40, 2), sentences(40, 3)],
        ("web", "validation"): [sentences(5, 4)],
    }
    return build_corpus(tmp_path_factory.mktemp("corpus"), shards)


@pytest.fixture(scope="module")
def finished(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps with checkpoints of steps 4, 8 and 12, of which steps 6 and 7 are skipped."""
    out = tmp_path_factory.mktemp("finished") / "run"
    run(manifest, out, checkpoint_every=4, keep=9, evaluate=False, skip_steps=[(6, 7)])
    return out


def recorded(out: Path) -> dict[int, dict[str, float]]:
    return {row["step"]: row for row in map(json.loads, (out / METRICS).read_text().splitlines())}


def joined_with(finished: Path, manifest: Path) -> TrainedOn:
    return TrainedOn(finished, *open_corpus(str(manifest)))


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("step", [1, 5, 12])
def test_the_pieces_of_a_step_are_the_tokens_that_it_trained_on(finished: Path, manifest: Path, step: int) -> None:
    pieces = pieces_of_step(joined_with(finished, manifest), step)
    corpus = Corpus.open(manifest)
    components = {name: corpus.component(name, "train") for name in ("books", "web")}
    documents = {
        id_: component.read(int(component.starts[n]), int(component.lengths[n])).tolist()
        for component in components.values()
        for n, id_ in enumerate(component.ids().to_pylist())
    }
    batch = Loader(list(components.values()), 32).batch(np.arange((step - 1) * ROWS, step * ROWS))
    for row in range(ROWS):
        of_row = [piece for piece in pieces if piece.row == row]
        expected = [token for piece in of_row for token in documents[piece.id][piece.first_token :][: piece.targets]]
        assert batch.tokens[row, : len(expected)].tolist() == expected
        assert int((batch.targets[row] >= 0).sum()) == len(expected)
        assert [piece.place for piece in of_row] == list(range(len(of_row)))
        assert {piece.component for piece in of_row} == {list(components)[batch.components[row]]}
        assert all(piece.tokens == len(documents[piece.id]) for piece in of_row)


def test_losses_of_the_checkpoint_before_a_step_are_the_step_s_own(finished: Path, manifest: Path) -> None:
    joined, corpus = joined_with(finished, manifest), Corpus.open(manifest)
    pieces = pieces_of_step(joined, 5)
    loaded = load_model(finished / CHECKPOINTS / "step-00000004")
    told = with_losses(pieces, joined, 5, loaded, corpus, "float32")
    mean = sum((piece.loss or 0) * piece.targets for piece in told) / sum(piece.targets for piece in told)
    assert mean == pytest.approx(recorded(finished)[5]["loss"], rel=1e-5)
    books = [piece for piece in told if piece.component == "books"]
    of_books = sum((piece.loss or 0) * piece.targets for piece in books) / sum(piece.targets for piece in books)
    assert of_books == pytest.approx(recorded(finished)[5]["loss_by_component"]["books"], rel=1e-5)  # type: ignore[index]


def test_losses_across_documents_are_those_of_a_run_that_lets_documents_see_each_other(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", checkpoint_every=2, keep=9, evaluate=False, attention="sdpa", steps=3)
    joined, corpus = joined_with(tmp_path / "run", manifest), Corpus.open(manifest)
    told = with_losses(
        pieces_of_step(joined, 3), joined, 3, load_model(tmp_path / "run" / CHECKPOINTS / "step-00000002"), corpus, "float32"
    )
    mean = sum((piece.loss or 0) * piece.targets for piece in told) / sum(piece.targets for piece in told)
    assert mean == pytest.approx(recorded(tmp_path / "run")[3]["loss"], rel=1e-5)


@pytest.mark.parametrize("packing", ["crop", "concat"])
def test_a_run_that_packs_otherwise_is_told_as_exactly(manifest: Path, tmp_path: Path, packing: str) -> None:
    run(manifest, tmp_path / "run", checkpoint_every=2, keep=9, evaluate=False, steps=4, packing=packing)
    joined, corpus = joined_with(tmp_path / "run", manifest), Corpus.open(manifest)
    assert sum(joined.documents()["targets"].to_pylist()) == recorded(tmp_path / "run")[4]["tokens"]
    before = load_model(tmp_path / "run" / CHECKPOINTS / "step-00000002")
    told = with_losses(pieces_of_step(joined, 3), joined, 3, before, corpus, "float32")
    mean = sum((piece.loss or 0) * piece.targets for piece in told) / sum(piece.targets for piece in told)
    assert mean == pytest.approx(recorded(tmp_path / "run")[3]["loss"], rel=1e-5)
    assert any(piece.first_token for piece in told) == (packing == "concat")
    assert replay(tmp_path / "run", 4, 4, tmp_path / "scratch", ALONE, QUIET).steps[0].same
    with pytest.raises(ConfigurationError, match="packing"):
        run(manifest, tmp_path / "run", resume=True, evaluate=False, steps=6)


def test_train_batch_prints_a_step_and_plain_train_still_trains(finished: Path) -> None:
    code, out, errors = invoke("train", "batch", str(finished), "5")
    assert code == 0, errors
    assert "web/train.jsonl#" in out and "books/train.jsonl#" in out
    code, out, errors = invoke("train", "batch", str(finished), "5", "--json", "--losses", "--device", "cpu")
    assert code == 0, errors
    told = json.loads(out)
    assert told["losses_of"]["step"] == 4
    assert told["loss"] == pytest.approx(recorded(finished)[5]["loss"], rel=1e-5)
    assert sum(piece["targets"] for piece in told["pieces"]) == told["targets"]
    code, out, _ = invoke("train", "batch", str(finished), "6")
    assert code == 0 and "passed over this step" in out
    code, _, errors = invoke("train", "--manifest", "m")
    assert code == 2 and "--out" in errors


@pytest.mark.parametrize("step", ["0", "13"])
def test_a_step_that_the_run_did_not_do_is_refused(finished: Path, step: str) -> None:
    code, _, errors = invoke("train", "batch", str(finished), step)
    assert code == 1
    assert f"steps 1 to 12, and not step {step}" in errors


def test_a_ledger_of_another_corpus_is_refused(finished: Path, tmp_path: Path) -> None:
    other = build_corpus(tmp_path / "other", {("web", "train"): [sentences(9, 9)]})
    with pytest.raises(LedgerError, match="the run consumed the corpus"):
        joined_with(finished, other)


def test_replayed_steps_are_bit_for_bit_those_of_the_run(finished: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    done = replay(finished, 5, 12, tmp_path / "scratch", ALONE, QUIET)
    assert done.checkpoint.endswith("step-00000004")
    assert [one.step for one in done.steps] == [5, 8, 9, 10, 11, 12]
    assert all(one.same for one in done.steps)
    assert [one.recorded_loss for one in done.steps] == [recorded(finished)[one.step]["loss"] for one in done.steps]
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_replay_begins_at_the_nearest_checkpoint_and_shows_what_was_asked_for(finished: Path, tmp_path: Path) -> None:
    code, out, errors = invoke("replay", str(finished), "10", "--json", "--device", "cpu")
    assert code == 0, errors
    told = json.loads(out)
    assert told["checkpoint"].endswith("step-00000008")
    assert [(one["step"], one["same"]) for one in told["steps"]] == [(10, True)]
    code, out, _ = invoke("replay", str(finished), "9", "--until", "10", "--device", "cpu")
    assert code == 0 and out.count("the same") == 2


@pytest.mark.parametrize("name", ["model.safetensors", "complete.json"])
def test_a_replay_says_which_checkpoint_it_passed_over(finished: Path, tmp_path: Path, name: str) -> None:
    damaged = Path(shutil.copytree(finished, tmp_path / "run"))
    newest = damaged / CHECKPOINTS / "step-00000008"
    (newest / name).unlink()
    code, out, errors = invoke("replay", str(damaged), "9", "--json", "--device", "cpu")
    assert code == 0, errors
    told = json.loads(out)
    assert told["checkpoint"].endswith("step-00000004") and told["steps"][0]["same"]
    assert told["passed_over"] == {str(newest): f"{name} is not there: the save was not completed"}
    code, out, _ = invoke("replay", str(damaged), "9", "--device", "cpu")
    assert code == 0 and f"warning: passed over {newest} ({name} is not there" in out


def test_losses_are_not_of_an_older_checkpoint_unless_that_is_named(finished: Path, manifest: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(finished, tmp_path / "run"))
    (damaged / CHECKPOINTS / "step-00000008" / "complete.json").unlink()
    asked = ["train", "batch", str(damaged), "9", "--losses", "--manifest", str(manifest), "--device", "cpu"]
    code, _, errors = invoke(*asked)
    assert code == 1 and "step-00000008/complete.json is not there" in errors
    code, out, errors = invoke(*asked, "--checkpoint", str(damaged / CHECKPOINTS / "step-00000004"))
    assert code == 0, errors
    assert "step-00000004, of step 4" in out


@pytest.mark.slow
def test_a_replay_of_a_run_on_the_clock_has_the_rates_of_then(manifest: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "run", steps=None, seconds=1.0, checkpoint_every=3, keep=999, evaluate=False)
    last = max(recorded(tmp_path / "run"))
    assert last > 4
    done = replay(tmp_path / "run", 4, min(last, 9), tmp_path / "scratch", ALONE, QUIET)
    assert done.steps and all(one.same for one in done.steps)
    with pytest.raises(ConfigurationError, match="what share of the budget"):
        replay(tmp_path / "run", last + 1, last + 1, tmp_path / "later", ALONE, QUIET)


@pytest.mark.slow
def test_what_was_set_aside_can_be_replayed(manifest: Path, finished: Path, tmp_path: Path) -> None:
    """The spike that was rewound from is looked at after the run has gone on without it."""
    shutil.copytree(finished, tmp_path / "run")
    config = TrainConfig.check(**options(manifest, tmp_path / "run", evaluate=False, skip_steps=[(5, 5)]))
    train(config, ALONE, QUIET, resume=True, from_step=4)
    done = replay(tmp_path / "run" / rewind.ASIDE / "1", 5, 5, tmp_path / "scratch", ALONE, QUIET)
    assert [(one.step, one.same) for one in done.steps] == [(5, True)]
    later = replay(tmp_path / "run" / rewind.ASIDE / "1", 9, 9, tmp_path / "again", ALONE, QUIET)
    assert later.checkpoint.endswith("set-aside/1/checkpoints/step-00000008")
    assert all(one.same for one in later.steps)


def test_a_step_before_every_checkpoint_cannot_be_replayed(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no whole checkpoint of a step before 3 is kept \(there are: 4, 8, 12\)"):
        replay(finished, 3, 3, tmp_path / "scratch", ALONE, QUIET)
