"""Runs and checkpoints that somebody else wrote, or damaged: refused in one line, with nothing read or written outside."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from manifests.trained_on import LEDGER, LedgerError
from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.test_checkpoint import seal
from tests.trainer.test_loop import command, losses, run
from trainer.commands import app
from trainer.configuration import ConfigurationError
from trainer.distributed.ranks import Ranks
from trainer.run import run_folder
from trainer.run_files import checkpoint, checkpoint_format
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.run_files.metrics import METRICS, MetricsError
from trainer.scores.scoring import load_model

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
NEWEST = "step-00000004"
Harm = Callable[[Path], Any]
"""What is done to the newest checkpoint's folder."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=60, held_out=10)


@pytest.fixture(scope="module")
def finished(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(manifest, out, steps=4, checkpoint_every=2, evaluate=False)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def written(name: str, data: bytes) -> Harm:
    def harm(folder: Path) -> None:
        (folder / name).write_bytes(data)
        if name != checkpoint_format.RECORD:
            seal(folder)

    return harm


def changed(name: str, change: Callable[[Any], Any]) -> Harm:
    def harm(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        written(name, json.dumps(value).encode())(folder)

    return harm


def state(**values: object) -> Harm:
    return changed(checkpoint_format.STATE, lambda held: held.update(values))


def architecture(**values: object) -> Harm:
    return changed(checkpoint_format.STATE, lambda held: held["architecture"].update(values))


def config(**values: object) -> Harm:
    return changed(checkpoint_format.STATE, lambda held: held["config"].update(values))


def record(**values: object) -> Harm:
    return changed(checkpoint_format.RECORD, lambda held: held.update(values))


def tensors(name: str, part: str) -> Harm:
    """The first number of a tensor is none."""

    def harm(folder: Path) -> None:
        held = load_file(folder / name)
        key = next(key for key in sorted(held) if part in key)
        held[key].view(-1)[0] = float("nan")
        save_file(held, folder / name)
        seal(folder)

    return harm


def without_states(ending: str, most: int = 1_000) -> Harm:
    def change(index: Any) -> None:
        for key in [key for key in sorted(index["optimiser"]) if key.endswith(ending)][:most]:
            del index["optimiser"][key]

    return changed(checkpoint_format.INDEX, change)


def first_part(**values: object) -> Harm:
    return changed(checkpoint_format.INDEX, lambda index: index["model"]["embedding.weight"]["parts"][0].update(values))


def header(text: bytes, length: int | None = None) -> Harm:
    data = struct.pack("<Q", len(text) if length is None else length) + text + bytes(40_000)
    return written(checkpoint_format.WEIGHTS, data)


DEEP = b"[" * 200_000
REFUSED: dict[str, tuple[Harm, str]] = {
    "a deep state": (written(checkpoint_format.STATE, DEEP), r"state\.json: Invalid JSON: recursion limit"),
    "a deep index": (written(checkpoint_format.INDEX, b'{"a":' * 200_000), r"index\.json: Invalid JSON: recursion limit"),
    "an unknown key": (state(colour="\x1b[31mred"), r"state\.json: colour: Extra inputs"),
    "a step below 0": (state(step=-4), "step: Input should be greater"),
    "another step": (state(step=2), "of step 2, and the completion record is of step 4"),
    "a position below 0": (state(position=-1), "position: Input should be greater"),
    "more tokens than an integer": (state(tokens=10**30), "tokens: Input should be less"),
    "a clock that is no number": (changed(checkpoint_format.STATE, lambda held: held.update(spent_seconds=float("nan"))), "spent_seconds"),
    "a billion layers": (architecture(layers=10**9), "layers: Input should be less|another shape"),
    "nine thousand layers": (architecture(layers=9_000), "which are no model of 9,000 layers|another shape"),
    "a vocabulary of trillions": (architecture(vocabulary=10**13), "a vocabulary of 10,000,000,000,000|another shape"),
    "a wider model": (architecture(width=1 << 30, heads=1, kv_heads=1), "no model of 1 layers of width|another shape"),
    "a vocabulary of one more": (architecture(vocabulary=65), "a vocabulary of 65|another shape"),
    "an unknown option of the model": (architecture(colour=1), "of another version: colour"),
    "no heads": (architecture(heads=0), "of another version: heads"),
    "an unknown option": (config(colour="x"), "of another version: colour"),
    "an unknown preset": (config(preset="x"), "of another version: .*preset"),
    "phases that are none": (config(phases=[1]), "of another version: phases"),
    "no phases": (config(phases=None), "of another version: phases"),
    "steps that cannot be skipped": (config(skip_steps=[["a", "b"]]), "of another version: skip_steps"),
    "no options": (state(config={}), "of another version: manifest: Field required"),
    "an index that is a list": (written(checkpoint_format.INDEX, b"[]"), "Input should be an object"),
    "an unlisted file": (first_part(file="other.safetensors"), "does not list|No such file"),
    "a file above": (first_part(file="../../metrics.jsonl"), "is not the name of a file|numbers, in files"),
    "a shape of more than memory": (
        changed(checkpoint_format.INDEX, lambda index: index["model"]["embedding.weight"].update(shape=[10**30])),
        "this model needs|numbers, in files of|should be less than",
    ),
    "weights that are no numbers": (tensors(checkpoint_format.WEIGHTS, "norm"), "norm.weight has numbers that are not finite"),
    "a header of exabytes": (header(b"{}", 2**62), "header too large"),
    "a header that is cut": (header(b'{"a":', None), "header"),
    "another tensor, with a strange name": (
        header(b'{"\\u001b[31m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'), "safetensors|header|numbers",
    ),
    "an empty file of weights": (written(checkpoint_format.WEIGHTS, b""), "header too small|in files of 0 bytes"),
}  # fmt: skip
ONLY_RESUMED: dict[str, tuple[Harm, str]] = {
    "more tokens than there are": (state(tokens=10**9), "1,000,000,000 tokens and"),
    "more clipped steps": (state(clipped_steps=99), "99 clipped steps are more"),
    "no exp_avg": (without_states("exp_avg"), "states of embedding.weight are exp_avg_sq, step, and should be"),
    "no exp_avg_sq of one": (without_states("exp_avg_sq", 1), "are exp_avg, step, and should be"),
    "no step": (without_states(".step"), "and should be exp_avg, exp_avg_sq, step"),
    "no state of one": (without_states("attention.output.weight.exp_avg", 1), "attention.output.weight"),
    "a random state of terabytes": (
        changed(checkpoint_format.INDEX, lambda index: index["optimiser"]["random"].update(shape=[10**13])), "random has shape",
    ),
    "moments that are no numbers": (tensors("optimiser.safetensors", "exp_avg"), "exp_avg has numbers that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_run_has_written_is_refused_in_a_line(manifest: Path, out: Path, name: str) -> None:
    harm, complaint = REFUSED[name]
    harm(out / "checkpoints" / NEWEST)
    for attempt in (lambda: run(manifest, out, resume=True, steps=6, evaluate=False), lambda: load_model(out)):
        with pytest.raises((CheckpointError, ConfigurationError), match=complaint) as refused:
            attempt()
        assert "\n" not in str(refused.value)
    assert losses(out) == losses(out)[:4]


@pytest.mark.parametrize("name", ONLY_RESUMED)
def test_what_cannot_be_trained_on_is_refused_in_a_line(manifest: Path, out: Path, name: str) -> None:
    harm, complaint = ONLY_RESUMED[name]
    harm(out / "checkpoints" / NEWEST)
    with pytest.raises(CheckpointError, match=complaint) as refused:
        run(manifest, out, resume=True, steps=6, evaluate=False)
    assert "\n" not in str(refused.value)


def linked(name: str, target: str | None = None) -> Harm:
    def harm(folder: Path) -> None:
        elsewhere = folder.parents[2] / f"elsewhere-{name}"
        os.replace(folder / name, elsewhere)
        (folder / name).symlink_to(target or elsewhere)

    return harm


def a_pipe(name: str) -> Harm:
    def harm(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return harm


def a_linked_folder(folder: Path) -> None:
    shutil.move(folder, folder.parents[2] / "elsewhere")
    folder.symlink_to(folder.parents[2] / "elsewhere")


def of_another_step(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "step-00000002", folder)


PASSED_OVER: dict[str, tuple[Harm, str]] = {
    "a record without end": (written(checkpoint_format.RECORD, DEEP), "unreadable"),
    "a record that is a list": (written(checkpoint_format.RECORD, b"[]"), "unreadable"),
    "files that are a list": (record(files=[]), "not that of a checkpoint"),
    "files without digests": (changed(checkpoint_format.RECORD, lambda held: held["files"].update({"state.json": 1})), "unreadable"),
    "a file above": (changed(checkpoint_format.RECORD, lambda held: held["files"].update({"../../metrics.jsonl": {}})), "not that of"),
    "a record of another step": (record(step=2), "is that of step 2"),
    "another step's folder": (of_another_step, "is that of step 2"),
    **{f"a link for {name}": (linked(name), "unreadable") for name in (checkpoint_format.STATE, checkpoint_format.WEIGHTS, checkpoint_format.RECORD)},
    "a link to a device that never ends": (linked(checkpoint_format.WEIGHTS, "/dev/zero"), "unreadable"),
    **{f"a pipe for {name}": (a_pipe(name), "not a plain file") for name in (checkpoint_format.STATE, checkpoint_format.WEIGHTS, checkpoint_format.RECORD)},
    "a state of gigabytes": (lambda folder: os.truncate(folder / checkpoint_format.STATE, 3 << 30), "not what the completion record says"),
    "a link to another folder": (a_linked_folder, "no folder of a checkpoint"),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_is_no_checkpoint_is_passed_over_for_the_one_before(manifest: Path, out: Path, name: str) -> None:
    harm, reason = PASSED_OVER[name]
    harm(out / "checkpoints" / NEWEST)
    found, passed_over = checkpoint.newest(out)
    assert found is not None and found.name == "step-00000002"
    assert reason in passed_over[NEWEST] and "\n" not in passed_over[NEWEST]


@pytest.mark.parametrize("name", ["step-zzz", "step-99999999999999999999999", "step--0000001", "step-٠٠٠٠٠٠٠٩", "step-7"])
def test_a_folder_of_another_name_is_no_newer_checkpoint(manifest: Path, out: Path, name: str) -> None:
    shutil.copytree(out / "checkpoints" / NEWEST, out / "checkpoints" / name)
    found, passed_over = checkpoint.newest(out)
    assert found is not None and found.name == NEWEST
    assert passed_over == {name: "no folder of a checkpoint"}
    assert [step for step, _ in checkpoint.kept(out)] == [2, 4]


def test_a_run_of_which_no_checkpoint_is_whole_does_not_begin_anew_over_its_logs(manifest: Path, out: Path) -> None:
    before = {name: (out / name).read_bytes() for name in (METRICS, LEDGER)}
    for folder in (out / "checkpoints").iterdir():
        (folder / checkpoint_format.WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of its checkpoints is whole"):
        run(manifest, out, resume=True, steps=6, evaluate=False)
    assert {name: (out / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("data", [b"not json\n", b"{}\n", b"[]\n", b"\xff\xfe\n", DEEP + b"\n", b'{"step": "1"}\n'])
def test_metrics_that_no_run_has_written_are_refused(manifest: Path, out: Path, data: bytes) -> None:
    (out / METRICS).write_bytes(data)
    with pytest.raises(MetricsError, match=r"metrics\.jsonl"):
        run(manifest, out, resume=True, steps=6, evaluate=False)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lines: [lines[0], b"junk", *lines[2:]], "line 2: Invalid JSON"),
        (lambda lines: [lines[0], b"[]", *lines[2:]], "line 2: Input should be an object"),
        (lambda lines: [lines[0], b"\xff", *lines[2:]], "unreadable"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 begins with step 3, after step 0"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 begins with step 1, after step 2"),
        (lambda lines: lines[:-1], "ends with step 2, and the run goes on after step 4"),
        (lambda lines: [], "ends with step 0"),
        (None, "is not there: what the first 4 steps consumed"),
    ],
)  # fmt: skip
def test_a_ledger_that_does_not_lead_to_the_checkpoint_is_refused(
    manifest: Path, out: Path, change: Callable[[list[bytes]], list[bytes]] | None, complaint: str
) -> None:
    lines = (out / LEDGER).read_bytes().splitlines()
    if change is None:
        (out / LEDGER).unlink()
    else:
        (out / LEDGER).write_bytes(b"".join(line + b"\n" for line in change(lines)))
    with pytest.raises(LedgerError, match=complaint):
        run(manifest, out, resume=True, steps=6, evaluate=False)


def test_links_in_a_run_s_folder_are_never_written_through(manifest: Path, out: Path, tmp_path: Path) -> None:
    names = ["metrics.partial", "ledger.partial", "loss.png", METRICS, LEDGER, "config.json", "run.json", "result.json"]
    before = {}
    for name in names:
        precious = tmp_path / f"precious-{name}"
        precious.write_bytes((out / name).read_bytes() if (out / name).exists() else b"precious")
        before[precious] = precious.read_bytes()
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(precious)
    run(manifest, out, resume=True, steps=6, evaluate=False)
    assert {path: path.read_bytes() for path in before} == before
    assert len(losses(out)) == 6


def test_what_a_stranger_wrote_never_reaches_the_terminal_as_it_is(manifest: Path, out: Path) -> None:
    """Control sequences in a format, in the names of tensors and of folders."""
    changed(checkpoint_format.INDEX, lambda index: index["model"].update({"\x1b[31mx": index["model"]["embedding.weight"]}))(
        out / "checkpoints" / NEWEST
    )
    shutil.copytree(out / "checkpoints" / NEWEST, out / "checkpoints" / "step-\x1b[31m")
    arguments = command(manifest, out, "--steps", "6", "--resume", "--no-evaluate")
    said = CliRunner().invoke(app, arguments[arguments.index("trainer") + 1 :])
    assert said.exit_code == 1 and "not of this model: \\x1b[31mx" in said.stderr
    record(format="\x1b[31m9")(out / "checkpoints" / NEWEST)
    again = CliRunner().invoke(app, ["evaluate", str(out), "--manifest", str(manifest), "--device", "cpu"])
    assert again.exit_code == 1 and "saved in format" in again.stderr
    assert "\x1b" not in said.stderr + said.stdout + again.stderr + again.stdout


# the folder


def test_two_runs_never_write_to_one_folder(manifest: Path, tmp_path: Path) -> None:
    """The second is refused while the first has it, whoever that is, and the hold ends with the first."""
    with run_folder.held(tmp_path / "run", ALONE):
        child = os.fork()
        if not child:
            code = 1
            try:
                with run_folder.held(tmp_path / "run", ALONE):
                    pass
            except ConfigurationError as error:
                code = 0 if "another run is writing to this folder" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(ConfigurationError, match="another run"):
            run(manifest, tmp_path / "run", steps=2, evaluate=False)
    assert not (tmp_path / "run").exists()  # nothing was written to it
    run(manifest, tmp_path / "run", steps=2, evaluate=False)


def test_a_run_that_was_refused_leaves_its_folder_as_it_was(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        run(manifest, tmp_path / "run", steps=2, micro_batch=7)
    assert not (tmp_path / "run").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigurationError):
        run(manifest, tmp_path / "there", steps=2, micro_batch=7)
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("place", ["file", "below/a/file", "dangling"])
def test_a_place_that_is_no_folder_is_refused(manifest: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "below").write_text("kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="not a folder that can be written to"):
        run(manifest, tmp_path / place, steps=2, evaluate=False)
    assert (tmp_path / "file").read_text() == (tmp_path / "below").read_text() == "kept"


def test_a_folder_that_others_own_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs as root may write anywhere, so that the system is made to say what it says to others."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        run(tmp_path / "no manifest", tmp_path / "run", steps=2)
