"""Continued pretraining: first weights, lineage, the gate that was written before, and a run that is resumed and held to it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from manifests.card import card
from manifests.commands import app as questions
from manifests.manifest import Manifest
from manifests.storage import Folder
from pipeline.recipe import Recipe
from tests.pipeline.crawl import build
from tests.trainer.adaptation_texts import write_recipe
from tests.trainer.corpus_fixture import build_corpus, sentences
from tests.trainer.ranks_fixture import in_ranks
from tests.trainer.test_loop import ALONE, SMALL, forget_after, losses
from trainer.adaptation.gate import GateError
from trainer.adaptation.gate_record import FOLDER, RECORD
from trainer.adaptation.words import count_words
from trainer.commands import app
from trainer.configuration import REWARMUP, ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus, CorpusError
from trainer.distributed.ranks import Ranks
from trainer.run.loop import Outcome, Run, train
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.scores.document_scores import DocumentScores
from trainer.scores.evaluation import EVALUATOR_SHA256, evaluator_sha256
from trainer.scores.scoring import score_checkpoint
from trainer.studies.replay import replay

GATE = """
domain: {text: [{components: [new]}], down_by: 0.3}
general: {text: [{components: [old]}], up_by: 5}
"""
STEPS = 12


def reversed_sentences(count: int, seed: int) -> list[list[int]]:
    """The words of `sentences` in another order: what a model of these has to learn anew."""
    return [text[::-1] for text in sentences(count, seed)]


def documents() -> dict[tuple[str, str], list[list[list[int]]]]:
    return {
        ("old", "train"): [sentences(150, 1)], ("old", "validation"): [sentences(30, 2)],
        ("new", "train"): [reversed_sentences(150, 3)], ("new", "validation"): [reversed_sentences(30, 4)],
    }  # fmt: skip


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_corpus(tmp_path_factory.mktemp("corpus"), documents())


def run(manifest: Path, out: Path, resume: bool = False, ranks: Ranks = ALONE, **changes: object) -> Outcome:
    return train(configuration(manifest, out, **changes), ranks, RunProgress(False, 10), resume)


def configuration(manifest: Path, out: Path, **changes: object) -> TrainConfig:
    options: dict[str, object] = {
        "manifest": str(manifest), "out": str(out), "preset": "tiny", "model": SMALL, "sequence_length": 32,
        "batch_tokens": 512, "micro_batch": 8, "steps": STEPS, "device": "cpu", "learning_rate": 1e-2, **changes,
    }  # fmt: skip
    return TrainConfig.check(**options)


@pytest.fixture(scope="module")
def base(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("base") / "stories"
    run(manifest, out, steps=40, mixture={"old": 1.0})
    return out


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "gate.yaml"
    path.write_text(GATE)
    return path


Adapt = Callable[..., Outcome]


@pytest.fixture(scope="module")
def adapt(manifest: Path, base: Path, gate: Path) -> Adapt:
    def adapted(out: Path, resume: bool = False, **changes: object) -> Outcome:
        given = {
            "mixture": {"new": 0.7, "old": 0.3},
            "parent": str(base),
            "gate": str(gate),
            "checkpoint_every": 4,
            "keep": 9,
            **changes,
        }
        return run(manifest, out, resume, **given)

    return adapted


@pytest.fixture(scope="module")
def adapted(adapt: Adapt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapted") / "run"
    adapt(out)
    return out


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.resolve(folder) / checkpoint_format.WEIGHTS)


def test_a_run_begins_with_the_weights_of_its_parent_a_fresh_optimiser_and_a_short_warmup(
    manifest: Path, base: Path, tmp_path: Path
) -> None:
    config = configuration(manifest, tmp_path / "run", parent=str(base), mixture={"new": 1.0})
    begun = Run(config, ALONE, RunProgress(False, 10), resume=False)
    theirs = weights(base)
    assert all(torch.equal(value, theirs[name]) for name, value in begun.model.named_parameters())
    assert not begun.optimiser.state
    assert (begun.step, begun.position, begun.tokens) == (0, 0, 0)
    assert config.warmup == REWARMUP
    assert configuration(manifest, tmp_path / "run", parent=str(base), warmup=0.5).warmup == 0.5


def test_the_result_has_what_the_evaluator_says_of_both_models(manifest: Path, base: Path, adapted: Path) -> None:
    told = read(adapted / "result.json")["gate"]
    for side, component in (("domain", "new"), ("general", "old")):
        for when, path in (("before", base), ("after", adapted)):
            group = score_checkpoint(path, str(manifest), "validation", ALONE).by_component[component]
            assert told[side][when] == pytest.approx(group.nats / group.tokens, rel=1e-6)
            assert (told[side]["documents"], told[side]["tokens"]) == (group.documents, group.tokens)
        assert told[side]["change"] == pytest.approx(told[side]["after"] - told[side]["before"], abs=1e-9)
    assert told["gate"] == "pass" and told["domain"]["change"] < -0.3
    (protocol,) = told["protocols"]
    assert protocol["sequence_length"] == 32 and len(protocol["evaluator_sha256"]) == 64


def test_the_last_line_says_what_the_gate_says(adapt: Adapt, adapted: Path, gate: Path, tmp_path: Path) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text(GATE.replace("0.3", "4"))
    outcome = adapt(tmp_path / "run", gate=str(strict), steps=2)
    assert outcome.line().endswith("| steps=2 | gate=fail")
    assert outcome.gate is not None and not outcome.gate.domain.passed and outcome.gate.general.passed


def test_the_gate_is_in_the_record_before_the_first_step(
    adapt: Adapt, gate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that dies in the first step leaves the gate, and what the model lost before, behind."""

    def dies(self: Run, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_steps", dies)
    with pytest.raises(KeyboardInterrupt):
        adapt(tmp_path / "run")
    record = read(tmp_path / "run" / RECORD)
    assert record["gate"]["text"] == gate.read_text()
    assert record["gate"]["sha256"] == hashlib.sha256(gate.read_bytes()).hexdigest()
    ((name, sha256),) = record["before"].items()
    assert hashlib.sha256((tmp_path / "run" / FOLDER / name).read_bytes()).hexdigest() == sha256
    assert read(tmp_path / "run" / "run.json")["continued"]["gate"]["sha256"] == record["gate"]["sha256"]
    monkeypatch.undo()
    changed = tmp_path / "changed.yaml"
    changed.write_text(GATE.replace("0.3", "0.2"))
    with pytest.raises(GateError, match=r"written before the run, and gate .* was written for it"):
        adapt(tmp_path / "run", resume=True, gate=str(changed))
    assert adapt(tmp_path / "run", resume=True).gate is not None


def test_lineage_names_run_step_and_weights_of_the_parent_and_of_its_parent(
    manifest: Path, base: Path, adapted: Path, tmp_path: Path
) -> None:
    identity = checkpoint.identity(checkpoint.resolve(base))
    facts = read(adapted / "run.json")
    parent = facts["continued"]["parent"]
    assert (parent["run"], parent["step"], parent["weights_sha256"]) == ("stories", 40, identity)
    assert parent["manifest_digest"] == Manifest.load(Folder(str(manifest.parent))).digest
    assert facts["lineage"] == [f"stories/step-00000040 {identity}"]
    assert checkpoint.load_state(checkpoint.resolve(adapted)).continued["parent"] == parent  # type: ignore[index]
    run(manifest, tmp_path / "child", parent=str(adapted), steps=1)
    child = read(tmp_path / "child" / "run.json")
    own = checkpoint.identity(checkpoint.resolve(adapted))
    assert child["lineage"] == [f"stories/step-00000040 {identity}", f"run/step-00000012 {own}"]
    assert child["continued"]["parent"]["continued"]["parent"]["weights_sha256"] == identity
    assert child["continued"]["gate"] is None and "gate" not in read(tmp_path / "child" / "result.json")
    assert str(manifest.parent) not in json.dumps(facts)


def test_a_resumed_run_is_the_unbroken_one_and_so_is_its_decision(adapt: Adapt, adapted: Path, tmp_path: Path) -> None:
    """Without --from and --gate, and though the parent is gone."""
    out = Path(shutil.copytree(adapted, tmp_path / "run"))
    (out / "result.json").unlink()
    forget_after(out, 8)
    outcome = adapt(out, resume=True, parent=None, gate=None, warmup=REWARMUP)
    assert outcome.gate is not None
    assert losses(out) == losses(adapted)
    ours, theirs = weights(out), weights(adapted)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert read(out / "result.json")["gate"] == read(adapted / "result.json")["gate"]
    assert read(out / "run.json")["continued"] == read(adapted / "run.json")["continued"]
    assert read(out / "config.json")["gate"] == read(adapted / "config.json")["gate"]


def test_a_decision_that_was_made_before_the_run_went_on_is_kept(adapt: Adapt, adapted: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(adapted, tmp_path / "run"))
    first = read(out / "result.json")
    assert first["earlier_gates"] == []
    for _ in range(2):  # the second time nothing is left to do, and the same is decided
        adapt(out, resume=True, steps=first["steps"] + 2)
        again = read(out / "result.json")
        assert again["steps"] == first["steps"] + 2
        assert again["earlier_gates"] == [{"steps": first["steps"], "gate": first["gate"]}]
    config = read(out / "config.json")
    told = card(Manifest.load(Folder(str(Path(config["manifest"]).parent))), config, read(out / "run.json"), again, {})
    assert f"After {first['steps']} steps, before it went on: " in told


def test_the_decision_is_made_again_from_the_runs_record_alone(base: Path, manifest: Path, tmp_path: Path) -> None:
    """Though parent, both corpora and the gate's file are gone; and whatever was changed since is told."""
    places = [Path(shutil.copytree(manifest.parent, tmp_path / name)) for name in ("corpus", "general")]
    build_corpus(places[1], {("old", "validation"): [sentences(25, 7)], ("old", "train"): [sentences(3, 8)]})
    path = tmp_path / "gate.yaml"
    path.write_text(GATE.replace("components: [old]", "corpus: general, components: [old]"))
    out = tmp_path / "run"
    run(places[0], out, parent=str(base), gate=str(path), steps=2)
    path.unlink()
    for place in places:
        shutil.rmtree(place)

    def call(*more: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["gate", str(out), *more])
        return result.exit_code, result.stdout, result.stderr

    told = read(out / "result.json")
    code, printed, errors = call("--json")
    assert code == 0 and json.loads(printed) == told["gate"], errors
    assert told["gate"]["general"]["documents"] == 25
    changed = {**told, "gate": {**told["gate"], "general": {**told["gate"]["general"], "after": 0.5}}}
    (out / "result.json").write_text(json.dumps(changed))
    code, _, errors = call()
    assert code == 1 and "the run recorded another decision: general.after 0.5, now " in errors
    (out / "result.json").write_text(json.dumps({**told, "gate": {**told["gate"], "gate_sha256": "0" * 64}}))
    code, _, errors = call()
    assert code == 1 and "result.json is of another gate than the text in continued.json" in errors
    (out / "result.json").write_text(json.dumps(told))
    for name, complaint in ((FOLDER, "no scores of documents"), ("result.json", "no run with a gate that has ended")):
        (out / name).rename(tmp_path / "elsewhere")
        code, _, errors = call()
        assert code == 1 and complaint in errors
        (tmp_path / "elsewhere").rename(out / name)
    code, _, errors = call("--before", "x.parquet", "--after", "y.parquet")
    assert code == 2 and "it has its own scores" in errors


def test_a_copy_of_a_run_is_decided_without_checkpoints_and_nothing_is_written_there(adapted: Path, tmp_path: Path) -> None:
    out = Path(
        shutil.copytree(adapted, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("checkpoints", "ledger*", "metrics*"))
    )
    for path in (*out.rglob("*"), out):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in out.rglob("*"))
    result = CliRunner().invoke(app, ["gate", str(out), "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout) == read(adapted / "result.json")["gate"], result.stderr
    assert sorted((str(path), path.stat().st_mtime_ns) for path in out.rglob("*")) == before
    for path in (out, *out.rglob("*")):
        path.chmod(0o755)
    (out / RECORD).unlink()
    result = CliRunner().invoke(app, ["gate", str(out)])
    assert result.exit_code == 1 and "a copy needs it, and gate/, run.json and result.json, to decide again" in result.stderr


def test_what_has_no_gate_to_decide_again_is_said(adapted: Path, manifest: Path, base: Path, tmp_path: Path) -> None:
    made, plain = tmp_path / "release", tmp_path / "plain"
    for run_folder, output in ((adapted, made), (base, plain)):
        given = ["release", str(run_folder), "--corpus", str(manifest), "--output", str(output)]
        assert CliRunner().invoke(questions, given).exit_code == 0
    (tmp_path / "empty").mkdir()
    for folder, complaint in (
        (made, "a release; its result.json says gate=pass, and the scores of documents that this was decided by are not in it"),
        (plain, "a release of a run without a gate"),
        (base, "a run that began with weights of its own, without --from and --gate"),
        (tmp_path / "empty", "no run: it has neither continued.json nor run.json"),
        (tmp_path / "nowhere", "is not there: name a gate in YAML, or a run's folder"),
    ):
        result = CliRunner().invoke(app, ["gate", str(folder)])
        assert result.exit_code == 1 and complaint in result.stderr


@pytest.mark.parametrize(
    ("sequence_length", "changes", "complaint"),
    [
        (64, {}, r"scored at sequence_length 64 and stories, .*, was trained at T = 32: .* sequence_length: 32 or less"),
        (64, {"sequence_length": 64}, "scored at sequence_length 64 and stories, .*, was trained at T = 32"),
        (None, {"sequence_length": 64}, "scored at the run's T, 64, and stories, .*, was trained at T = 32"),
    ],
)
def test_a_gate_beyond_the_t_that_its_first_model_was_trained_at_is_refused_before_the_run(
    adapt: Adapt, tmp_path: Path, sequence_length: int | None, changes: dict[str, object], complaint: str
) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(GATE + (f"sequence_length: {sequence_length}\n" if sequence_length else ""))
    with pytest.raises(GateError, match=complaint):
        adapt(tmp_path / "run", gate=str(path), **changes)
    assert not (tmp_path / "run").exists()


def test_a_run_may_have_longer_rows_than_its_gate(adapt: Adapt, tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(GATE + "sequence_length: 32\n")
    adapt(tmp_path / "run", gate=str(path), sequence_length=64, steps=1)
    assert read(tmp_path / "run" / "result.json")["gate"]["protocols"][0]["sequence_length"] == 32


def test_a_damaged_newest_checkpoint_of_the_parent_is_passed_over_aloud_and_in_the_record(
    adapted: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Path(shutil.copytree(adapted, tmp_path / "parent"))
    newest, before = (parent / "checkpoints" / f"step-{step:08d}" for step in (STEPS, STEPS - 4))
    (newest / checkpoint_format.STATE).write_text("{")  # its options cannot be read either
    said: list[str] = []
    monkeypatch.setattr(RunProgress, "note", lambda _, text: said.append(text))
    given = ["train", "--manifest", str(manifest), "--from", str(parent), "--out", str(tmp_path / "run"), "--steps", "1"]
    more = ["--batch-tokens", "512", "--micro-batch", "8", "--device", "cpu", "--no-evaluate"]
    result = CliRunner().invoke(app, [*given, *more])
    assert result.exit_code == 0, result.stderr
    why = f"{newest.name}/{checkpoint_format.STATE} is not what the completion record says"
    assert f"warning: passed over {newest.name} ({why}): {before.name} is taken instead" in said
    told = read(tmp_path / "run" / "run.json")["continued"]["parent"]
    assert (told["step"], told["passed_over"]) == (STEPS - 4, {newest.name: why})
    state = checkpoint.load_state(checkpoint.resolve(tmp_path / "run"))
    assert state.lineage[-1].startswith(f"parent/{before.name} ") and str(tmp_path) not in json.dumps(state.continued)
    for folder in (parent / "checkpoints").iterdir():
        (folder / checkpoint_format.WEIGHTS).write_bytes(b"")
    result = CliRunner().invoke(app, [*given[:5], "--out", str(tmp_path / "none"), *given[7:], *more])
    assert result.exit_code == 1 and "none of its checkpoints is whole: " in result.stderr and before.name in result.stderr
    assert not (tmp_path / "none").exists()


def test_its_steps_can_be_replayed_and_it_can_be_rewound(adapt: Adapt, adapted: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(adapted, tmp_path / "run"))
    done = replay(out, 6, 7, tmp_path / "again", ALONE, RunProgress(False, 10))
    assert [one.same for one in done.steps] == [True, True]
    train(configuration_of(out), ALONE, RunProgress(False, 10), resume=True, from_step=4)
    assert losses(out) == losses(adapted)
    assert read(out / "result.json")["gate"] == read(adapted / "result.json")["gate"]


def configuration_of(out: Path) -> TrainConfig:
    return TrainConfig.check(**{**read(out / "config.json"), "out": str(out)})


def changed_gate(out: Path, tmp_path: Path) -> dict[str, object]:
    (tmp_path / "other.yaml").write_text(GATE + "# more\n")
    return {"gate": str(tmp_path / "other.yaml")}


def changed_record(out: Path, tmp_path: Path) -> dict[str, object]:
    record = read(out / RECORD)
    record["gate"]["text"] = GATE.replace("0.3", "0.1")
    (out / RECORD).write_text(json.dumps(record))
    return {"gate": None}


def changed_scores(out: Path, tmp_path: Path) -> dict[str, object]:
    (path,) = (out / FOLDER).glob("before-*")
    held = DocumentScores.read(path)
    DocumentScores(held.about, held.components, held.owner, held.nats + 9, held.tokens, held.text_bytes, held.ids).write(
        Folder(str(path.parent)), path.name
    )
    return {}


def lost_record(out: Path, tmp_path: Path) -> dict[str, object]:
    (out / RECORD).unlink()
    return {}


def strange_record(out: Path, tmp_path: Path) -> dict[str, object]:
    (out / RECORD).write_text('{"parent": {}, "words": [], "gate": {"text": 7}, "before": null}')
    return {}


def another_parent(out: Path, tmp_path: Path) -> dict[str, object]:
    return {"parent": str(out)}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (changed_gate, "a gate is written before the run, and gate .* was written for it, not .*; leave --gate out"),
        (changed_record, "the gate in it is not the one that the run began with"),
        (changed_scores, "not the file that the run wrote: its digest is another"),
        (lost_record, "it has what this run was begun with"),
        (strange_record, r"not what a run writes: gate\.sha256: Field required \(and 2 more\)"),
        (another_parent, "the run began with weights .* of stories, and these are .*; leave --from out"),
    ],
)
def test_what_was_written_before_the_run_cannot_be_changed(
    adapt: Adapt, adapted: Path, tmp_path: Path, change: Callable[..., dict[str, object]], complaint: str
) -> None:
    out = Path(shutil.copytree(adapted, tmp_path / "run"))
    forget_after(out, 8)
    with pytest.raises((ConfigurationError, CheckpointError, CorpusError), match=complaint):
        adapt(out, resume=True, **change(out, tmp_path))


def test_a_run_that_began_otherwise_gets_no_gate_or_parent_later(manifest: Path, base: Path, gate: Path, tmp_path: Path) -> None:
    run(manifest, tmp_path / "plain", steps=2)
    with pytest.raises(ConfigurationError, match="did not begin with other weights"):
        run(manifest, tmp_path / "plain", resume=True, parent=str(base), warmup=0.05)
    run(manifest, tmp_path / "ungated", steps=2, parent=str(base))
    with pytest.raises(GateError, match="a gate is written before the run, and none was"):
        run(manifest, tmp_path / "ungated", resume=True, parent=str(base), gate=str(gate))
    with pytest.raises(ConfigurationError, match="so it needs --from"):
        run(manifest, tmp_path / "new", gate=str(gate))


def test_in_another_precision_the_base_is_scored_again_or_the_run_is_not_resumed(
    adapt: Adapt, adapted: Path, tmp_path: Path
) -> None:
    """As after a change of the evaluator: what was scored in two ways is not compared."""
    out = Path(shutil.copytree(adapted, tmp_path / "run"))
    forget_after(out, 8)
    with pytest.raises(ConfigurationError, match=r"give --from stories \(weights .*\) once more"):
        adapt(out, resume=True, parent=None, warmup=REWARMUP, dtype="bfloat16")
    assert adapt(out, resume=True, dtype="bfloat16").gate is not None
    told, was = read(out / "result.json")["gate"], read(adapted / "result.json")["gate"]
    assert told["protocols"][0]["dtype"] == "bfloat16" and was["protocols"][0]["dtype"] == "float32"
    assert told["domain"]["before"] == pytest.approx(was["domain"]["before"], rel=1e-2)
    assert told["domain"]["before"] != was["domain"]["before"]
    assert read(out / RECORD)["before"] != read(adapted / RECORD)["before"]


def test_a_program_that_is_replaced_while_the_run_trains_does_not_spoil_its_gate(
    adapt: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other source on the disk is not what was loaded, and what scored before scores after."""
    steps, read_bytes = Run._steps, Path.read_bytes

    def replaced(path: Path) -> bytes:
        return read_bytes(path) + (b"# new" if path.name == "evaluation.py" else b"")

    def trains(self: Run) -> None:
        monkeypatch.setattr(Path, "read_bytes", replaced)
        steps(self)

    monkeypatch.setattr(Run, "_steps", trains)
    outcome = adapt(tmp_path / "run", steps=2)
    assert evaluator_sha256() != EVALUATOR_SHA256
    assert outcome.gate is not None and outcome.gate.protocols[0]["evaluator_sha256"] == EVALUATOR_SHA256


def test_another_tokenizer_is_refused_with_what_would_work(base: Path, gate: Path, manifest: Path, tmp_path: Path) -> None:
    other = build_corpus(tmp_path / "other", documents())
    (tmp_path / "other" / "tokenizer.json").write_text('{"version": "2.0"}')
    folder = Folder(str(tmp_path / "other"))
    found = Manifest.load(folder)
    found.content.tokenizer.sha256 = hashlib.sha256(b'{"version": "2.0"}').hexdigest()  # type: ignore[union-attr]
    Manifest.seal(found.content, {}).save(folder)
    with pytest.raises(
        CheckpointError, match=r"its token ids mean other texts\. Build the corpus with the parent's: `tokenizer: {file"
    ):
        run(other, tmp_path / "run", parent=str(base))
    elsewhere = tmp_path / "gate.yaml"
    elsewhere.write_text(GATE.replace("{components: [old]}", "{corpus: other/manifest.json, components: [old]}"))
    with pytest.raises(GateError, match="a gate needs texts in tokens of the model"):
        run(manifest, tmp_path / "run", parent=str(base), gate=str(elsewhere))


def test_general_text_can_be_of_another_corpus_and_its_place_is_not_in_the_facts(
    manifest: Path, base: Path, tmp_path: Path
) -> None:
    other = build_corpus(tmp_path / "elsewhere", {("old", "train"): [sentences(5, 8)], ("old", "test"): [sentences(25, 9)]})
    path = tmp_path / "gate.yaml"
    text = "{corpus: elsewhere/manifest.json, components: [old], split: test}"
    path.write_text(GATE.replace("{components: [old]}", text) + "sequence_length: 16\nunit: bits per byte\n")
    outcome = run(manifest, tmp_path / "run", parent=str(base), gate=str(path), steps=2, evaluate=False)
    assert outcome.line().startswith("val_bpb=none") and outcome.gate is not None
    before = score_checkpoint(base, str(other), "test", ALONE, 16)
    assert outcome.gate.general.before == pytest.approx(before.val_bpb, rel=1e-6)
    told = (tmp_path / "run" / "run.json").read_text()
    assert "elsewhere" not in told and Manifest.load(Folder(str(tmp_path / "elsewhere"))).digest in told


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": {**SMALL, "width": 64}}, "a model of another shape: width 32 there, 64 here"),
        ({"parent": "nowhere"}, "neither a checkpoint nor a run with a complete one"),
        ({"gate": "nowhere.yaml"}, "--gate nowhere.yaml"),
    ],
)
def test_a_parent_that_does_not_fit_is_refused(
    manifest: Path, base: Path, tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises((ConfigurationError, CheckpointError), match=complaint):
        run(manifest, tmp_path / "run", **{"parent": str(base), **changes})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_takes_the_parents_shape_and_fails_on_the_gate_only_when_told(
    manifest: Path, base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(GATE.replace("0.3", "40"))
    told = ["--manifest", str(manifest), "--from", str(base), "--gate", str(path), "--mixture", "new=.7", "--mixture", "old=.3"]
    told += ["--batch-tokens", "512", "--micro-batch", "8", "--steps", "2", "--device", "cpu", "--checkpoint-every", "1"]

    def call(name: str, *more: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["train", *told, "--out", str(tmp_path / name), *more])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    code, out, errors = call("run")
    assert code == 0, errors
    assert out.splitlines()[-1].endswith("| steps=2 | gate=fail")
    assert "begins with stories, weights" in errors and "fresh optimiser" in errors
    assert "general: 1.8" in errors and "may rise by 5: pass" in errors and "must fall by 40: fail" in errors
    config = read(tmp_path / "run" / "config.json")
    assert (config["preset"], config["model"], config["sequence_length"], config["warmup"]) == ("tiny", SMALL, 32, REWARMUP)
    code, _, errors = call("failing", "--fail-on-gate")
    assert code == 1 and "the gate says fail" in errors
    forget_after(tmp_path / "run", 1)
    told = [one for one in told if one not in ("--from", str(base), "--gate", str(path))]
    code, out, errors = call("run", "--resume")
    assert code == 0 and out.splitlines()[-1].endswith("gate=fail"), errors
    code, _, errors = call("wrong", "--from", str(base), "--gate", str(tmp_path / "none.yaml"))
    assert code == 2 and "none.yaml" in errors


def test_an_exported_model_is_a_parent_with_the_same_weights(manifest: Path, base: Path, tmp_path: Path) -> None:
    exported = CliRunner().invoke(
        app, ["export", "huggingface", str(base), "--output", str(tmp_path / "model"), "--dtype", "float32"]
    )
    assert exported.exit_code == 0, exported.stderr
    command = [
        "train",
        "--manifest",
        str(manifest),
        "--from",
        str(tmp_path / "model"),
        "--out",
        str(tmp_path / "run"),
        "--steps",
        "1",
    ]
    command += ["--batch-tokens", "512", "--micro-batch", "8", "--device", "cpu", "--learning-rate", "1e-12", "--no-evaluate"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    ours, theirs = weights(tmp_path / "run"), weights(base)
    assert all(torch.allclose(value, theirs[name], atol=1e-9) for name, value in ours.items())
    parent = read(tmp_path / "run" / "run.json")["continued"]["parent"]
    assert parent["kind"] == "export"
    assert parent["weights_sha256"] == hashlib.sha256((tmp_path / "model/model.safetensors").read_bytes()).hexdigest()
    told = read(tmp_path / "model/config.json")
    (tmp_path / "model/config.json").write_text(json.dumps({**told, "intermediate_size": 10**9}))
    result = CliRunner().invoke(app, [*command[:5], "--out", str(tmp_path / "vast"), *command[7:]])
    assert result.exit_code == 1 and "9,856 numbers, and the model of config.json has" in result.stderr
    (tmp_path / "model/config.json").write_text(json.dumps({**told, "rope_scaling": {"factor": 8}}))
    result = CliRunner().invoke(app, [*command[:5], "--out", str(tmp_path / "scaled"), *command[7:]])
    assert result.exit_code == 1 and "a model of another kind than is trained here, by rope_scaling" in result.stderr


def test_a_release_shows_the_gate_and_what_the_run_began_with(adapted: Path, manifest: Path, base: Path, tmp_path: Path) -> None:
    made = tmp_path / "release"
    released = CliRunner().invoke(questions, ["release", str(adapted), "--corpus", str(manifest), "--output", str(made)])
    assert released.exit_code == 0, released.output
    card = (made / "README.md").read_text()
    identity = checkpoint.identity(checkpoint.resolve(base))
    assert f"| began with | stories, step 40, weights `{identity}` |" in card
    assert "The run's decision: pass." in card and "| domain | new (validation) | 30 |" in card
    held = [path.read_text() for path in made.rglob("*.json")]
    assert all(str(base) not in text and "gate.yaml" not in text for text in held)
    assert read(made / "result.json")["gate"]["gate"] == "pass"
    run(manifest, tmp_path / "child", parent=str(made), steps=1, evaluate=False)
    assert read(tmp_path / "child" / "run.json")["continued"]["parent"]["run"] == "release"


def test_tokens_a_word_are_counted_first_and_a_tokenizer_that_shatters_the_domain_is_said_or_refused(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "texts", 120, 60, "{vocabulary: 512, mixture: mixture.yaml, sample_bytes: 20000}")
    build(Recipe.load(recipe), tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    counted = {name: count_words(corpus, corpus.component(name, "validation")) for name in ("stories", "safety")}
    for name, found in counted.items():
        lines = [json.loads(line)["text"] for line in (tmp_path / "texts" / name / f"{name}.jsonl").read_text().splitlines()]
        numbers = [int(one.split("#")[1]) for one in corpus.component(name, "validation").ids().to_pylist()]
        texts = [lines[number] for number in numbers]
        assert found.words == sum(len(text.split()) for text in texts)
        assert found.text_bytes == sum(len(text.encode()) for text in texts)
        assert found.tokens == int(np.sum(corpus.component(name, "validation").lengths - 1))
    longest = int(corpus.component("safety", "validation").lengths.max())
    fewer = count_words(corpus, corpus.component("safety", "validation"), longest - 1)
    assert 0 < fewer.documents < counted["safety"].documents and fewer.tokens < longest - 1
    assert count_words(corpus, corpus.component("safety", "validation"), 3).unknown is not None
    stories, safety = (counted[name].tokens_per_word for name in ("stories", "safety"))
    assert stories and safety and safety > 1.5 * stories
    run(tmp_path / "corpus", tmp_path / "base", steps=1, evaluate=False)
    gate = tmp_path / "gate.yaml"
    text = "domain: {text: [{components: [safety]}], down_by: 0}\ngeneral: {text: [{components: [stories]}], up_by: 9}\nleast_documents: 2\n"
    gate.write_text(text)
    said = Said()
    config = configuration(tmp_path / "corpus", tmp_path / "run", steps=1, parent=str(tmp_path / "base"), gate=str(gate))
    train(config, ALONE, said)
    assert any(line.startswith(f"domain: safety (validation): {safety:.2f} tokens a word") for line in said.lines)
    assert any(line.startswith("warning: the tokenizer shatters the domain") for line in said.lines)
    words = read(tmp_path / "run" / "run.json")["continued"]["words"]
    assert [one["tokens_per_word"] for one in words] == [safety, stories]
    gate.write_text(text.replace("down_by: 0", "down_by: 0, max_tokens_per_word: 1.5"))
    with pytest.raises(GateError, match=r"tokens for a word of the domain are .*, and the gate allows 1\.5"):
        run(tmp_path / "corpus", tmp_path / "refused", steps=1, parent=str(tmp_path / "base"), gate=str(gate))


class Said(RunProgress):
    """Keeps what a run says."""

    def __init__(self) -> None:
        super().__init__(False, 10)
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines += message.split("\n")


def _in_ranks(ranks: Ranks, manifest: str, out: str, parent: str, gate: str) -> None:
    config = configuration(
        Path(manifest), Path(out), parent=parent, gate=gate, mixture={"new": 0.7, "old": 0.3}, parallel="fsdp", steps=2
    )
    outcome = train(config, ranks, RunProgress(False, 10))
    assert (outcome.gate is not None) == ranks.first


@pytest.mark.slow
def test_shards_begin_with_the_parents_rows_and_decide_as_one_process_does(
    manifest: Path, base: Path, gate: Path, adapt: Adapt, tmp_path: Path
) -> None:
    assert in_ranks(2, _in_ranks, str(manifest), str(tmp_path / "two"), str(base), str(gate)) == [0, 0]
    adapt(tmp_path / "one", steps=2)
    ours, alone = (read(tmp_path / name / "result.json")["gate"] for name in ("two", "one"))
    for side in ("domain", "general"):
        for figure in ("before", "after", "change"):
            assert ours[side][figure] == pytest.approx(alone[side][figure], rel=1e-4, abs=1e-5)
