"""A release holds all of a finished run and nothing else, and a change to any byte of it is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.card import card
from manifests.commands import app
from manifests.manifest import Manifest
from manifests.release import SUMS, ReleaseError, check, release
from manifests.storage import Folder
from tests.manifests.training_run import STEPS, finish_run, write_run
from trainer.data.loader import Phase

CHECKPOINT = f"checkpoints/step-{STEPS:08d}"
FILES = {
    "README.md", "SHA256SUMS", "config.json", "decontamination.json", "ledger.jsonl", "manifest.json", "metrics.jsonl",
    "result.json", "run.json", "tokenizer.json", "weights/complete.json", "weights/index.json", "weights/model.safetensors",
    "weights/state.json",
}  # fmt: skip


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def ended(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish_run(write_run(tmp_path_factory.mktemp("ended") / "run", finished, [Phase()]), finished)


@pytest.fixture(scope="module")
def made(ended: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("released") / "release"
    release(ended, Folder(finished), output)
    return output


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    """A finished run that a test may damage."""
    return Path(shutil.copytree(ended, tmp_path / "run"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A release that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "release"))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# what is released


def test_a_release_holds_what_it_should_and_nothing_else(made: Path, ended: Path, finished: Path) -> None:
    assert names(made) == FILES
    for name in ("manifest.json", "tokenizer.json"):
        assert (made / name).read_bytes() == (finished / name).read_bytes()
    assert (made / "weights/model.safetensors").read_bytes() == (ended / CHECKPOINT / "model.safetensors").read_bytes()
    assert (made / "ledger.jsonl").read_bytes() == (ended / "ledger.jsonl").read_bytes()
    assert json.loads((made / "weights/index.json").read_text())["optimiser"] == {}


def test_no_path_of_the_machine_and_no_text_is_in_it(made: Path, finished: Path) -> None:
    table = pq.read_table(next((finished / "logs" / "documents").rglob("*.parquet")))
    urls = {url for url in table["url"].to_pylist() if url}
    for name in names(made) - {"manifest.json"}:
        data = (made / name).read_bytes()
        assert b"/somebody" not in data and str(finished).encode() not in data, name
        assert not [url for url in urls if url.encode() in data], name


def test_the_sums_are_those_of_sha256sum(made: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(FILES) - 1
    assert list(check(made)) == []


def test_the_same_run_gives_the_same_release(made: Path, ended: Path, finished: Path, tmp_path: Path) -> None:
    release(ended, Folder(finished), tmp_path / "again")
    assert (tmp_path / "again" / SUMS).read_bytes() == (made / SUMS).read_bytes()


def test_the_card_states_what_run_and_manifest_hold(made: Path, manifest: Manifest) -> None:
    text = (made / "README.md").read_text()
    for fact in (manifest.digest, "1,234,567", "2.5000", "2.2500 to 2.7500", "12,345", "| 1.500 |"):
        assert fact in text
    for component in manifest.content.components.values():
        assert component.licence in text
        assert f"| {component.documents_in:,} | {component.documents_kept:,} |" in text


def test_strangers_words_are_no_markup_in_the_card(manifest: Manifest) -> None:
    content = manifest.content.model_copy(deep=True)
    evil = "a|b <script>x</script> [y](javascript:z) `c`\n# title\x1b[1m"
    content.name = evil
    for component in content.components.values():
        component.licence = component.source = evil
    text = card(Manifest.seal(content, {}), {"seed": evil}, {"device": evil, "versions": {evil: evil}}, {"exhausted": evil}, {})
    assert "<script" not in text and "\x1b" not in text and "\n# title" not in text
    assert "](javascript" not in text.replace("\\](", "")
    assert {line.replace("\\|", "").count("|") for line in text.splitlines() if "a\\|b" in line and line.startswith("|")} <= {
        3,
        8,
    }


def test_further_scores_are_in_the_card_and_beside_it(ended: Path, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(json.dumps({"val_bpb": 2.125, "split": "test"}))
    result = call("release", ended, "--output", tmp_path / "out", "--score", tmp_path / "test.json")
    assert result.exit_code == 0, result.stderr
    assert "| test.json | test | 2.1250 |" in (tmp_path / "out" / "README.md").read_text()
    assert names(tmp_path / "out") == FILES | {"scores/test.json"}
    assert list(check(tmp_path / "out")) == []


def test_the_picture_of_the_loss_comes_along(run: Path, finished: Path, tmp_path: Path) -> None:
    (run / "loss.png").write_bytes(b"\x89PNG\r\n\x1a\nrest")
    release(run, Folder(finished), tmp_path / "out")
    assert names(tmp_path / "out") == FILES | {"loss.png"}


# what is refused


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no result": (lambda run: (run / "result.json").unlink(), "not a finished run"),
    "no facts": (lambda run: (run / "run.json").unlink(), "not a finished run"),
    "no checkpoint": (lambda run: shutil.rmtree(run / "checkpoints"), "no complete checkpoint"),
    "a checkpoint that was not completed": (lambda run: (run / CHECKPOINT / "complete.json").unlink(), "no complete checkpoint"),
    "no weights": (lambda run: (run / CHECKPOINT / "model.safetensors").unlink(), "is not there"),
    "other weights": (lambda run: (run / CHECKPOINT / "model.safetensors").write_bytes(b"x"), "not what the completion record"),
    "another state": (lambda run: (run / CHECKPOINT / "state.json").write_text("{}"), "not what the completion record"),
    "more steps than its checkpoint": (lambda run: change(run / "result.json", steps=STEPS + 1), "no complete checkpoint"),
    "another corpus": (lambda run: change(run / "run.json", manifest_digest="0" * 64), "trained on the corpus 000000000000"),
    "another tokenizer": (lambda run: change(run / "run.json", tokenizer_sha256="0" * 64), "another tokenizer"),
    "another ledger": (lambda run: change(run / "run.json", loader_digest="0" * 64), "of another run"),
    "no ledger": (lambda run: (run / "ledger.jsonl").unlink(), "there is no ledger"),
    "a shorter ledger": (
        lambda run: (run / "ledger.jsonl").write_text("\n".join((run / "ledger.jsonl").read_text().splitlines()[:-1]) + "\n"),
        "ends with step 35",
    ),
    "a text among the figures": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "sample": "Once upon a time"}\n'),
        "more than figures",
    ),
    "a link in place of weights": (
        lambda run: (
            (run / CHECKPOINT / "model.safetensors").rename(run / "elsewhere"),
            (run / CHECKPOINT / "model.safetensors").symlink_to(run / "elsewhere"),
        ),
        "no regular file",
    ),
    "a file that climbs": (
        lambda run: change(run / CHECKPOINT / "complete.json", files={"../../run.json": {"sha256": "0" * 64}}),
        "not that of a checkpoint",
    ),
    "a file that is no checkpoint's": (
        lambda run: change(
            run / CHECKPOINT / "complete.json",
            files={
                "texts.jsonl": {"sha256": "0" * 64},
                **json.loads((run / CHECKPOINT / "complete.json").read_text())["files"],
            },
        ),
        "no file that a trainer writes",
    ),
    "a picture that is none": (lambda run: (run / "loss.png").write_text("Once upon a time"), "not what its name says"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_run_that_is_not_complete_is_refused_and_leaves_nothing(run: Path, finished: Path, tmp_path: Path, kind: str) -> None:
    damage, said = BROKEN[kind]
    damage(run)
    result = call("release", run, "--output", tmp_path / "out", "--corpus", finished)
    assert result.exit_code == 1
    assert said in result.stderr and result.stderr.count("\n") == 1
    assert {one.name for one in tmp_path.iterdir()} == {"run"}


def test_nothing_is_written_over_or_into_run_and_corpus(run: Path, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    (tmp_path / "link").symlink_to(run)
    for place in (tmp_path / "mine", run / "release", copied / "release", tmp_path / "link" / "release", run):
        with pytest.raises(ReleaseError):
            release(run, Folder(copied), place)
    assert names(tmp_path / "mine") == {"notes"}
    assert not (run / "release").exists() and not (copied / "release").exists()


def test_a_corpus_that_moved_is_asked_for(run: Path, finished: Path, tmp_path: Path) -> None:
    change(run / "config.json", manifest="nowhere/manifest.json")
    result = call("release", run, "--output", tmp_path / "out")
    assert result.exit_code == 1 and "--corpus" in result.stderr
    assert call("release", run, "--output", tmp_path / "out", "--corpus", finished / "manifest.json").exit_code == 0


def test_the_command_says_how_it_is_used(run: Path, tmp_path: Path) -> None:
    for arguments in ([], [run], ["--check", tmp_path, run], ["--check", tmp_path, "--output", tmp_path]):
        assert call("release", *arguments).exit_code == 2


# what is checked


@pytest.mark.parametrize("name", sorted(FILES - {SUMS}))
def test_one_changed_byte_is_found_and_named(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    result = call("release", "--check", folder)
    assert result.exit_code == 1
    assert result.stdout == f"{name}: is not what it was when it was released\n"


def rewrite_sums(folder: Path) -> None:
    listed = sorted(names(folder) - {SUMS})
    done = subprocess.run(["sha256sum", *listed], cwd=folder, capture_output=True, text=True, check=True)
    (folder / SUMS).write_text(done.stdout)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "weights/model.safetensors").write_bytes(b"x"), "not what weights/complete.json says"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not the tokenizer of manifest.json"),
        (lambda folder: change(folder / "run.json", manifest_digest="0" * 64), "another corpus"),
        (lambda folder: change(folder / "result.json", steps=3), "the run ended with step 3"),
        (lambda folder: change(folder / "manifest.json", digest="0" * 64), "does not have the digest"),
        (lambda folder: (folder / "ledger.jsonl").write_text("{}\n"), "line 1"),
        (lambda folder: (folder / "run.json").unlink(), "run.json: a release has this file"),
    ],
)
def test_files_that_do_not_belong_together_are_found_though_the_sums_agree(
    folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(folder)
    rewrite_sums(folder)
    assert said in "\n".join(check(folder))


def test_files_more_or_fewer_and_links_are_found(folder: Path) -> None:
    (folder / "texts.jsonl").write_text("one")
    (folder / "weights/state.json").unlink()
    (folder / "README.md").rename(folder.parent / "README.md")
    (folder / "README.md").symlink_to(folder.parent / "README.md")
    assert set(check(folder)) == {
        "texts.jsonl: is there and not listed",
        "weights/state.json: missing",
        "README.md: is a link",
    }


@pytest.mark.parametrize("line", ["nonsense", "0" * 64 + "  ../run.json", "0" * 64 + "  /etc/passwd", "0" * 64 + "  SHA256SUMS"])
def test_sums_that_name_files_elsewhere_are_refused(folder: Path, line: str) -> None:
    (folder / SUMS).write_text(line + "\n")
    assert list(check(folder)) == [f"{SUMS}: line 1 is not the digest of a file of this folder"]


def test_a_folder_that_is_no_release_is_said_to_be_none(tmp_path: Path) -> None:
    result = call("release", "--check", tmp_path)
    assert result.exit_code == 1
    assert SUMS in result.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(ended: Path, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    result = call("release", ended, "--output", tmp_path / "closed" / "out")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_weights_of_a_real_run_score_as_the_run_did(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = str(Path(sys.executable).with_name("corpusmill"))

    def run(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = ["--preset", "tiny", "--steps", "3", "--sequence-length", "64", "--batch-tokens", "512", "--device", "cpu"]
    trained = run("train", "--manifest", f"{finished}/manifest.json", "--out", "run", *options)
    run("release", "run", "--output", "release")
    run("release", "--check", "release")
    scored = run("evaluate", "release/weights", "--manifest", f"{finished}/manifest.json", "--device", "cpu")
    assert scored.splitlines()[-1] == trained.splitlines()[-1].split(" | ")[0]
    told = json.loads(run("audit", "trained-on", "release", "--corpus", str(finished), "--json"))
    assert told["all"][0]["tokens"] == json.loads((tmp_path / "release" / "result.json").read_text())["tokens"]
