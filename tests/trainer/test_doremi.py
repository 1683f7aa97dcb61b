"""DoReMi: the update of the weights by hand, what is learned from noise, drill and language, and where the result goes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from manifests.commands import app as questions
from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.trainer.corpus_fixture import build_corpus, sentences
from tests.trainer.test_loop import ALONE, SMALL, started
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import LoaderError
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format
from trainer.studies.doremi import MIXTURE, PROXY, RECORD, REFERENCE, Learned, Proxy, doremi, reweighted

SHAPE = [part for name, value in SMALL.items() for part in ("--model", f"{name}={value}")]


def components(folder: Path, only: Sequence[str] = ("drill", "language", "noise")) -> Path:
    """`noise` cannot be predicted, `drill` is learned at once, `language` takes longer."""
    generator = np.random.default_rng(5)
    documents = {
        "drill": [[5, 6, 7, 8] * 6 for _ in range(300)],
        "language": sentences(300, 1, words=16),
        "noise": [generator.integers(1, 64, 24).tolist() for _ in range(300)],
    }
    held_out = {("language", "validation"): [sentences(20, 3)]}
    return build_corpus(folder, {**{(name, "train"): [documents[name]] for name in only}, **held_out})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return components(tmp_path_factory.mktemp("corpus"))


def config(manifest: Path, out: Path, **changes: object) -> TrainConfig:
    options: dict[str, object] = {
        "manifest": str(manifest), "out": str(out), "preset": "tiny", "model": SMALL, "sequence_length": 32,
        "batch_tokens": 512, "micro_batch": 16, "steps": 60, "learning_rate": 1e-2, "device": "cpu", **changes,
    }  # fmt: skip
    return TrainConfig.check(**options)


def learn(manifest: Path, out: Path, reference: Path | None = None, step_size: float = 0.2, **changes: object) -> Learned:
    return doremi(config(manifest, out, **changes), ALONE, RunProgress(False, 10), reference, step_size)


@pytest.fixture(scope="module")
def learned(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("learned") / "out"
    learn(manifest, out)
    return out


@pytest.mark.parametrize("smoothing", [0.0, 1e-3, 0.5])
def test_the_update_is_that_of_the_paper(smoothing: float) -> None:
    generator = np.random.default_rng(11)
    weights = np.full(5, 0.2)
    here = torch.full((5,), 0.2, dtype=torch.float64)
    for _ in range(50):
        excess, step_size = generator.uniform(0, 3, 5), float(generator.uniform(0.1, 2))
        raised = weights * np.exp(step_size * excess)
        weights = (1 - smoothing) * raised / raised.sum() + smoothing / 5
        here = reweighted(here, torch.from_numpy(excess), step_size, smoothing)
        np.testing.assert_allclose(here.numpy(), weights, rtol=1e-10)
        assert here.sum().item() == pytest.approx(1)
        assert here.min().item() >= smoothing / 5


def test_excess_that_exp_does_not_hold_still_gives_weights() -> None:
    found = reweighted(torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([2000.0, 1.0]), 1.0, 1e-3)
    assert found.tolist() == pytest.approx([0.9995, 0.0005])


def test_noise_has_no_weight_and_what_is_hard_to_learn_has_most(learned: Path) -> None:
    weights = yaml.safe_load((learned / MIXTURE).read_text())["phases"][0]["weights"]
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
    assert weights["noise"] < 0.1
    assert weights["language"] > weights["drill"] > weights["noise"]


def test_the_mixture_is_the_average_of_the_weights_over_all_steps(learned: Path, manifest: Path) -> None:
    record = json.loads((learned / RECORD).read_text())
    course = record["course"]
    weights, excess = np.array(course["weights"]), np.array(course["excess"])
    assert weights.shape == excess.shape == (60, 3)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert excess.min() >= 0
    before = np.full(3, 1 / 3)
    for step in range(60):
        raised = before * np.exp(0.2 * excess[step])
        before = 0.999 * raised / raised.sum() + 0.001 / 3
        np.testing.assert_allclose(weights[step], before, rtol=1e-9)
    np.testing.assert_allclose(list(record["weights"].values()), weights.mean(axis=0))
    assert record["excess_at_the_end"] == pytest.approx(dict(zip(course["components"], excess[-6:].mean(axis=0), strict=True)))
    assert record["manifest_digest"] == Manifest.load(Folder(str(manifest.parent))).digest
    assert record["reference"]["weights_sha256"] == checkpoint.identity(checkpoint.resolve(learned / REFERENCE))


def test_a_damaged_newest_checkpoint_of_the_reference_is_passed_over_aloud_and_in_the_record(
    learned: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = Path(shutil.copytree(learned / REFERENCE, tmp_path / "reference"))
    newest = reference / "checkpoints" / "step-00000061"
    newest.mkdir()
    (newest / checkpoint_format.RECORD).write_text("{")
    said: list[str] = []
    progress = RunProgress(False, 10)
    monkeypatch.setattr(progress, "note", said.append)
    doremi(config(manifest, tmp_path / "out", steps=2), ALONE, progress, reference)
    (warning,) = (line for line in said if "passed over" in line)
    assert warning.startswith("warning: passed over step-00000061 (") and warning.endswith("step-00000060 is taken instead")
    told = json.loads((tmp_path / "out" / RECORD).read_text())["reference"]
    assert list(told["passed_over"]) == ["step-00000061"] and str(tmp_path) not in json.dumps(told)


def test_the_excess_is_the_mean_of_what_the_proxy_does_worse_token_by_token(
    learned: Path, manifest: Path, tmp_path: Path
) -> None:
    """The first step again, by hand: an untrained proxy, all logits at once, one row after the other."""
    reference = checkpoint.resolve(learned / REFERENCE)
    names = Corpus.open(manifest).components("train")
    run = Proxy(
        config(manifest, tmp_path / "run", mixture=dict.fromkeys(names, 1 / 3), evaluate=False),
        ALONE, RunProgress(False, 10), reference, 1.0, 1e-3,
    )  # fmt: skip
    batch = run.loader.batch(np.arange(16))
    sums, counts = np.zeros(3), np.zeros(3)
    for row in range(16):
        tokens, targets = torch.from_numpy(batch.tokens[row]), torch.from_numpy(batch.targets[row])
        segments = torch.from_numpy(batch.segments[row])
        for segment in range(int(segments.max()) + 1):
            mine = segments == segment
            with torch.no_grad():
                above = [model(tokens[mine][None])[0].log_softmax(-1) for model in (run.reference, run.model)]
            chosen = [one.gather(-1, targets[mine][:, None]).squeeze(-1) for one in above]
            sums[batch.components[row]] += float((chosen[0] - chosen[1]).clamp(min=0).sum())
            counts[batch.components[row]] += int(mine.sum())
    run._update(
        [tuple(torch.from_numpy(field) for field in (batch.tokens, batch.targets, batch.segments, batch.components))], 1, 0.0
    )  # type: ignore[list-item]
    _, excess = run.course()
    np.testing.assert_allclose(excess[0], sums / counts, rtol=1e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files(learned: Path, manifest: Path, tmp_path: Path) -> None:
    learn(manifest, tmp_path / "again")
    for name in (MIXTURE, RECORD):
        assert (tmp_path / "again" / name).read_bytes() == (learned / name).read_bytes()
    learn(manifest, tmp_path / "other", seed=1, steps=10)
    learn(manifest, tmp_path / "first", steps=10)
    assert (tmp_path / "other" / MIXTURE).read_bytes() != (tmp_path / "first" / MIXTURE).read_bytes()


def test_micro_batches_change_the_weights_by_rounding_only(learned: Path, manifest: Path, tmp_path: Path) -> None:
    reference = learned / REFERENCE
    one = learn(manifest, tmp_path / "one", reference, steps=12)
    several = learn(manifest, tmp_path / "several", reference, steps=12, micro_batch=4)
    assert several.weights == pytest.approx(one.weights, rel=1e-3)
    assert several.excess == pytest.approx(one.excess, rel=1e-3)
    assert not (tmp_path / "one" / REFERENCE).exists()


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(learned: Path, manifest: Path, tmp_path: Path) -> None:
    one = learn(manifest, tmp_path / "one", learned / REFERENCE, steps=6, micro_batch=8)
    finished = started(
        doremi_command(manifest, tmp_path / "two", "--steps", "6", "--reference", str(learned / REFERENCE), torchrun=2)
    )
    assert finished.returncode == 0, finished.stderr
    record = json.loads((tmp_path / "two" / RECORD).read_text())
    assert record["ranks"] == 2
    assert record["weights"] == pytest.approx(one.weights, rel=1e-3)


def doremi_command(manifest: Path, out: Path, *extra: str, torchrun: int) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", "-m", "trainer", "doremi",
        "--manifest", str(manifest), "--out", str(out), "--preset", "tiny", *SHAPE, "--sequence-length", "32",
        "--batch-tokens", "512", "--learning-rate", "1e-2", "--step-size", "0.2", "--device", "cpu", *extra,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_mixture_is_planned_with_and_trained_on(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "learned"
    small = [*SHAPE, "--preset", "tiny", "--sequence-length", "32", "--batch-tokens", "512", "--device", "cpu", "--steps", "8"]
    result = CliRunner().invoke(app, ["doremi", "--manifest", str(manifest), "--out", str(out), *small])
    assert result.exit_code == 0, result.stderr
    for name in ("drill", "language", "noise", "excess at the end", MIXTURE):
        assert name in result.stdout
    weights = json.loads((out / RECORD).read_text())["weights"]
    planned = CliRunner().invoke(
        questions, ["mixture", str(manifest), "--tokens", "1000", "--recipe", str(out / MIXTURE), "--json"]
    )
    assert {row["component"]: row["tokens"] for row in json.loads(planned.stdout)["rows"]} == pytest.approx(
        {name: 1000 * weight for name, weight in weights.items()}
    )
    trained = CliRunner().invoke(
        app,
        ["train", "--manifest", str(manifest), "--out", str(tmp_path / "run"), *small, "--mixture-recipe", str(out / MIXTURE)],
    )
    assert trained.exit_code == 0, trained.stderr
    [phase] = json.loads((tmp_path / "run" / "config.json").read_text())["phases"]
    assert phase["mixture"] == pytest.approx(weights)


def test_no_proxy_is_kept_that_could_be_taken_for_a_model(learned: Path) -> None:
    assert (learned / PROXY / "metrics.jsonl").exists()
    assert not (learned / PROXY / checkpoint_format.CHECKPOINTS).exists()


def test_a_corpus_of_one_component_has_no_mixture(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match="language is the only component"):
        learn(components(tmp_path / "corpus", only=["language"]), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "step_size", "complaint"),
    [
        ({"steps": None, "seconds": 5}, 1.0, "--steps or --tokens"),
        ({"steps": None}, 1.0, "--steps or --tokens"),
        ({}, 0.0, "step size 0"),
        ({}, float("nan"), "step size nan"),
    ],
)
def test_options_that_cannot_work_are_refused(
    manifest: Path, tmp_path: Path, changes: dict[str, object], step_size: float, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        learn(manifest, tmp_path / "out", step_size=step_size, **changes)


def test_nothing_is_written_over(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty"):
        learn(manifest, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_reference_of_another_tokenizer_is_refused(learned: Path, tmp_path: Path) -> None:
    other = components(tmp_path / "corpus")
    content = Manifest.load(Folder(str(other.parent))).content
    assert content.tokenizer is not None
    data = b'{"version": "1.0", "other": true}'
    written = Folder(str(other.parent)).write("tokenizer.json", data)
    content = content.model_copy(update={"tokenizer": content.tokenizer.model_copy(update={"sha256": written.sha256})})
    Manifest.seal(content, {}).save(Folder(str(other.parent)))
    with pytest.raises(checkpoint_format.CheckpointError, match="nats per token would not compare"):
        learn(other, tmp_path / "out", learned / REFERENCE)
