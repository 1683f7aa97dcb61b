"""What happens to a run of many ranks when something is lost: a rank, the disk, or the patience of whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manifests.storage import TEMPORARY_PREFIX
from manifests.trained_on import read_ledger
from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import TINY, losses, options, train_alone, train_in
from trainer.run.loop import Outcome
from trainer.run_files import checkpoint, checkpoint_format
from trainer.run_files.metrics import METRICS

REPOSITORY = Path(__file__).resolve().parents[2]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


def forget_after(run: Path, step: int) -> None:
    for folder in (run / checkpoint_format.CHECKPOINTS).iterdir():
        if folder.name > f"step-{step:08d}":
            shutil.rmtree(folder)


def every_row_once(run: Path, steps: int) -> None:
    ranges = read_ledger(run).ranges  # which refuses a ledger with gaps
    assert (ranges[0].first_position, ranges[-1].end_position) == (0, steps * 16)


def files(run: Path) -> dict[str, str]:
    """SHA-256 of each file of tensors of the newest checkpoint."""
    record = json.loads((checkpoint.resolve(run) / checkpoint_format.RECORD).read_text())["files"]
    return {name: facts["sha256"] for name, facts in record.items() if name.endswith(".safetensors")}


def torchrun(world: int, manifest: Path, out: Path, *extra: str, restarts: int = 0) -> list[str]:
    shape = [part for name, value in TINY.items() for part in ("--model", f"{name}={value}")]
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}",
        f"--max-restarts={restarts}", "-m", "trainer", "train", "--manifest", str(manifest), "--out", str(out),
        "--preset", "tiny", *shape, "--sequence-length", "32", "--batch-tokens", "512", "--micro-batch", "8",
        "--device", "cpu", "--no-evaluate", "--log-every", "1", *extra,
    ]  # fmt: skip


class Started:
    """A command that runs, with all that it says in a file; `until` looks again and again until something is so."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with open(log, "w") as said:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=said, stderr=said)

    def until(self, so: Callable[[], bool]) -> None:
        while not so():
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.fail(f"ended with {self.process.wait(0.02)}: {self.said()}")

    def workers(self) -> list[int]:
        return sorted(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))

    def said(self) -> str:
        return self.log.read_text()


def saved(run: Path) -> bool:
    return any((run / checkpoint_format.CHECKPOINTS).glob(f"step-*/{checkpoint_format.RECORD}"))


@pytest.mark.slow
def test_four_shards_go_on_as_two_and_then_as_one_with_every_row_once(manifest: Path, tmp_path: Path) -> None:
    every: dict[str, Any] = {"steps": 12, "checkpoint_every": 4, "keep": 9}
    train_in(1, manifest, tmp_path / "unbroken", **every)
    run = tmp_path / "run"
    train_in(4, manifest, run, parallel="fsdp", **every)
    forget_after(run, 4)
    train_in(2, manifest, run, resume=True, parallel="fsdp", **every)
    forget_after(run, 8)
    train_in(1, manifest, run, resume=True, **every)
    assert losses(run) == pytest.approx(losses(tmp_path / "unbroken"), rel=TOLERANCE)
    every_row_once(run, 12)
    lineage = json.loads((run / "run.json").read_text())["lineage"]
    assert [line.split()[0] for line in lineage] == ["step-00000004", "step-00000008"]


@pytest.mark.slow
def test_whole_models_go_on_as_shards_and_back(manifest: Path, tmp_path: Path) -> None:
    every: dict[str, Any] = {"steps": 9, "checkpoint_every": 3, "keep": 9}
    train_in(1, manifest, tmp_path / "unbroken", **every)
    run = tmp_path / "run"
    train_in(2, manifest, run, parallel="ddp", **every)
    forget_after(run, 3)
    train_in(4, manifest, run, resume=True, parallel="hsdp", **every)
    forget_after(run, 6)
    train_in(2, manifest, run, resume=True, parallel="ddp", **every)
    assert losses(run) == pytest.approx(losses(tmp_path / "unbroken"), rel=TOLERANCE)
    every_row_once(run, 9)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_go_on_bit_for_bit_in_the_same_layout(manifest: Path, tmp_path: Path, parallel: str) -> None:
    every: dict[str, Any] = {"steps": 8, "checkpoint_every": 4, "keep": 9, "parallel": parallel}
    train_in(2, manifest, tmp_path / "unbroken", **every)
    shutil.copytree(tmp_path / "unbroken", tmp_path / "run")
    forget_after(tmp_path / "run", 4)
    train_in(2, manifest, tmp_path / "run", resume=True, **every)
    assert losses(tmp_path / "run") == losses(tmp_path / "unbroken")
    assert files(tmp_path / "run") == files(tmp_path / "unbroken")
    assert len(files(tmp_path / "run")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_rank_killed_in_mid_run_ends_all_of_them_with_words(manifest: Path, tmp_path: Path, parallel: str) -> None:
    run = tmp_path / "run"
    command = torchrun(2, manifest, run, "--steps", "100000", "--checkpoint-every", "3", "--parallel", parallel)
    started = Started(command, tmp_path / "log")
    started.until(lambda: saved(run))
    before = started.workers()
    os.kill(before[-1], signal.SIGKILL)
    assert started.process.wait() == 1, started.said()
    assert "error: another rank is gone" in started.said()
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]
    assert checkpoint.latest(run) is not None


@pytest.mark.slow
def test_torchrun_starts_again_from_the_newest_complete_checkpoint(manifest: Path, tmp_path: Path) -> None:
    every: dict[str, Any] = {"steps": 90, "checkpoint_every": 3, "micro_batch": 8}
    train_in(1, manifest, tmp_path / "unbroken", **every)
    run = tmp_path / "run"
    command = torchrun(2, manifest, run, "--steps", "90", "--checkpoint-every", "3", "--parallel", "fsdp", "--resume", restarts=1)
    started = Started(command, tmp_path / "log")
    started.until(lambda: saved(run))
    os.kill(started.workers()[0], signal.SIGKILL)
    assert started.process.wait() == 0, started.said()
    assert f"resuming {run} after step " in started.said()
    assert losses(run) == pytest.approx(losses(tmp_path / "unbroken"), rel=1e-3)  # rounding grows over 90 steps: 1.6e-4
    every_row_once(run, 90)


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_all_shards(manifest: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = torchrun(2, manifest, run, "--steps", "100000", "--parallel", "fsdp")
    started = Started(command, tmp_path / "log")
    started.until(lambda: (run / METRICS).exists() and bool((run / METRICS).read_text()))
    started.process.send_signal(signal.SIGTERM)
    started.process.wait()
    assert "stopped by signal 15" in started.said()
    step = checkpoint.load_state(checkpoint.resolve(run)).step
    assert step >= 1
    train_in(1, manifest, run, resume=True, steps=step + 2, micro_batch=8)
    every_row_once(run, step + 2)


def with_small_files(chosen: dict[str, Any], limit: int) -> Outcome:
    """Trains where no file may be longer than `limit` bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        return train_alone(chosen)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run_but_fails_it(manifest: Path, tmp_path: Path) -> None:
    wide = {"layers": 1, "width": 64, "heads": 2, "kv_heads": 1, "hidden": 256}
    chosen = options(manifest, tmp_path / "run", steps=6, checkpoint_every=2, model=wide)
    outcome = with_small_files(chosen, 100_000)
    assert outcome.steps == 6 and len(losses(tmp_path / "run")) == 6
    assert outcome.unsaved is not None
    for step in (2, 4, 6):
        assert f"step-0000000{step} was not saved: rank 0: " in outcome.unsaved
    assert checkpoint.latest(tmp_path / "run") is None


def test_the_save_after_one_that_failed_counts_and_the_failure_is_still_told(manifest: Path, tmp_path: Path) -> None:
    """A file lies where the temporary folder of step 1 has to be."""
    folder = tmp_path / "run" / checkpoint_format.CHECKPOINTS
    folder.mkdir(parents=True)
    (folder / f"{TEMPORARY_PREFIX}step-00000001").write_text("")
    outcome = train_alone(options(manifest, tmp_path / "run", steps=2, checkpoint_every=1), resume=True)
    assert outcome.unsaved is not None
    assert outcome.unsaved.startswith("step-00000001 was not saved: rank 0: ") and "step-00000002" not in outcome.unsaved
    newest = checkpoint.latest(tmp_path / "run")
    assert newest is not None and newest.name == "step-00000002"


@pytest.mark.slow
def test_the_command_fails_with_words_when_a_checkpoint_was_not_saved(manifest: Path, tmp_path: Path) -> None:
    command = torchrun(1, manifest, tmp_path / "run", "--steps", "2")
    alone = [sys.executable, "-m", *command[command.index("trainer") :]]
    wide = [part.replace("hidden=26", "hidden=4096") for part in alone]
    limited = ["prlimit", "--fsize=100000", *wide]
    finished = subprocess.run(limited, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 1, finished.stderr
    assert "error: step-00000002 was not saved: rank 0: " in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout.startswith("val_bpb=none")
