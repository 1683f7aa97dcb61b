"""Wherever a run is stopped, and however often, it comes to the same end: the same weights, every row once, a ledger without gaps.

What is trained, where it stops and how it is stopped is drawn from a seed. `make test` tries a few, `make test-all` many.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manifests.trained_on import TrainedOn, read_ledger
from tests.trainer.corpus_fixture import build_corpus, sentences
from tests.trainer.ranks_fixture import in_ranks, losses, rows, train_alone
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.steps import Steps
from trainer.distributed.ranks import Ranks
from trainer.run.loop import train
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
SHAPE = {"layers": 1, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 16}
TOLERANCE = 2e-5
QUICK, WIDE = 1, 40


@dataclass(frozen=True)
class Stop:
    """How a run ends before its time, at its look at a step: `term`, `raise`, `kill`; or `sync`, killed at the n-th time that
    it waits for the disk."""

    how: str
    at: int


class Stopping(RunProgress):
    def __init__(self, stop: Stop | None) -> None:
        super().__init__(False, 1)
        self.stop_at = stop

    def step(self, row: dict[str, Any], spent: float) -> None:
        if self.stop_at is None or self.stop_at.how == "sync" or row["step"] != self.stop_at.at:
            return
        if self.stop_at.how == "raise":
            raise InterruptedError("stopped by the test")
        os.kill(os.getpid(), signal.SIGTERM if self.stop_at.how == "term" else signal.SIGKILL)


def begun(ranks: Ranks, chosen: dict[str, Any], stop: Stop | None, from_step: int | None = None) -> None:
    """A run, or its continuation, up to where it is stopped."""
    if stop is not None and stop.how == "sync":
        calls, fsync = 0, os.fsync

        def dying(handle: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == stop.at:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(handle)

        os.fsync = dying  # type: ignore[assignment]
    try:
        train(TrainConfig.check(**chosen), ranks, Stopping(stop), resume=True, from_step=from_step)
    except InterruptedError:
        if stop is None or stop.how != "raise":
            raise


def run_until(world: int, chosen: dict[str, Any], stop: Stop | None) -> None:
    if world == 1 and (stop is None or stop.how in ("raise", "term")):
        begun(ALONE, chosen, stop)
        return
    codes = in_ranks(world, begun, chosen, stop)
    if stop is None or stop.how == "term":
        assert codes == [0] * world
    elif stop.how in ("kill", "sync"):
        assert -signal.SIGKILL in codes or codes == [0] * world  # a later one than there was


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_corpus(
        tmp_path_factory.mktemp("corpus"),
        {("books", "train"): [sentences(30, 1), sentences(9, 5)], ("web", "train"): [sentences(40, 2)]},
    )


def drawn(generator: np.random.Generator, manifest: Path) -> dict[str, Any]:
    """Options of a run that goes through its data more than once."""
    steps = int(generator.integers(8, 12))
    chosen: dict[str, Any] = {
        "manifest": str(manifest), "model": SHAPE, "sequence_length": 16, "micro_batch": 1, "steps": steps, "device": "cpu",
        "evaluate": False, "keep": 99, "preset": str(generator.choice(["tiny", "speedrun-tiny"])), "seed": int(generator.integers(99)),
        "packing": str(generator.choice(["best-fit", "crop", "concat"])), "checkpoint_every": int(generator.integers(1, 5)),
        "attention": str(generator.choice(["masked", "sdpa"])), "clock": str(generator.choice(["warm", "cold"])),
    }  # fmt: skip
    if chosen["preset"] == "speedrun-tiny":
        chosen["model"] = {**SHAPE, "kv_heads": 4}
    if generator.random() < 0.5:
        chosen["batch_ramp"] = [[0.0, 128], [0.4, 256]]
    else:
        chosen["batch_tokens"] = 256
    if generator.random() < 0.5:
        chosen["phases"] = [{"mixture": {"books": 0.7, "web": 0.3}, "share": 0.6}, {"mixture": {"web": 1.0}, "share": 0.4}]
    elif generator.random() < 0.5:
        chosen["mixture"] = {"books": 0.2, "web": 0.8}
    if generator.random() < 0.4:
        first = int(generator.integers(2, steps))
        chosen["skip_steps"] = [[first, min(steps, first + int(generator.integers(0, 3)))]]
    return chosen


def some_stops(generator: np.random.Generator, steps: int, hows: list[str]) -> list[Stop]:
    found = []
    for at in sorted(generator.integers(1, steps + 1, 2).tolist()):
        how = str(generator.choice(hows))
        found.append(Stop(how, int(generator.integers(1, 25)) if how == "sync" else at))
    return found


def consumed_as_planned(out: Path, chosen: dict[str, Any]) -> None:
    """Every position once and in turn, those of skipped steps marked, and as many targets as the run says."""
    config = TrainConfig.check(**{**chosen, "out": str(out)})
    steps = Steps.of(config)
    ledger = read_ledger(out)  # which refuses gaps
    assert (ledger.last_step, ledger.position_after(config.steps or 0)) == (config.steps, steps.position((config.steps or 0) + 1))
    skipped = {step for first, last in config.skip_steps for step in range(first, last + 1)}
    for one in ledger.ranges:
        for step in range(one.first_step, one.last_step + 1):
            assert one.skipped == (step in skipped)
            assert ledger.position_after(step) == steps.position(step + 1)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [step for step in range(1, ledger.last_step + 1) if step not in skipped]
    corpus = Corpus.open(chosen["manifest"])
    documents = TrainedOn(out, corpus.folder, corpus.manifest).documents()
    assert sum(documents["targets"].to_pylist()) == (lines[-1]["tokens"] if lines else 0)


def tensors_of(out: Path) -> dict[str, str]:
    """Digests of weights and optimiser, the random state among it, of the newest checkpoint."""
    files = json.loads((checkpoint.resolve(out) / checkpoint_format.RECORD).read_text())["files"]
    return {name: facts["sha256"] for name, facts in files.items() if name.endswith(".safetensors")}


def stopped_and_resumed(manifest: Path, tmp_path: Path, seed: int, hows: list[str]) -> None:
    generator = np.random.default_rng(seed)
    chosen = drawn(generator, manifest)
    train_alone({**chosen, "out": str(tmp_path / "unbroken")})
    broken = {**chosen, "out": str(tmp_path / "broken")}
    for stop in some_stops(generator, chosen["steps"], hows):
        run_until(1, broken, stop)
    run_until(1, broken, None)
    assert tensors_of(tmp_path / "broken") == tensors_of(tmp_path / "unbroken"), chosen
    for name in ("unbroken", "broken"):
        consumed_as_planned(tmp_path / name, chosen)
    figures = [
        [(row["step"], row["position"], row["loss"], row["grad_norm"], row["tokens"]) for row in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())]
        for name in ("unbroken", "broken")
    ]  # fmt: skip
    assert figures[0] == figures[1]


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_run_that_was_stopped_twice_comes_to_the_same_end(manifest: Path, tmp_path: Path, seed: int) -> None:
    stopped_and_resumed(manifest, tmp_path, seed, ["term", "raise"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, WIDE))
def test_a_run_that_was_killed_or_stopped_anywhere_comes_to_the_same_end(manifest: Path, tmp_path: Path, seed: int) -> None:
    stopped_and_resumed(manifest, tmp_path, seed, ["term", "raise", "kill", "sync", "sync"])


LAYOUTS: list[tuple[int, str]] = [(1, "ddp"), (2, "ddp"), (2, "fsdp"), (4, "fsdp"), (4, "hsdp"), (4, "ddp")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_goes_on_in_another_layout_each_time_consumes_the_same(manifest: Path, tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(1_000 + seed)
    chosen = {**drawn(generator, manifest), "checkpoint_every": 2}
    train_alone({**chosen, "out": str(tmp_path / "unbroken")})
    stops: list[Stop | None] = [*some_stops(generator, chosen["steps"], ["term", "kill", "sync"]), None]
    for stop in stops:
        world, parallel = LAYOUTS[int(generator.integers(len(LAYOUTS)))]
        run_until(world, {**chosen, "out": str(tmp_path / "broken"), "parallel": parallel}, stop)
    consumed_as_planned(tmp_path / "broken", chosen)
    expected = [json.loads(line)["loss"] for line in (tmp_path / "unbroken" / "metrics.jsonl").read_text().splitlines()]
    found = [json.loads(line)["loss"] for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    assert found == pytest.approx(expected, rel=1e-3 if chosen["preset"] == "speedrun-tiny" else TOLERANCE), chosen


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("preset", ["tiny", "speedrun-tiny"])
def test_two_ranks_that_are_killed_come_to_the_same_end_bit_for_bit(
    manifest: Path, tmp_path: Path, parallel: str, preset: str
) -> None:
    chosen = {**drawn(np.random.default_rng(7), manifest), "parallel": parallel, "preset": preset, "checkpoint_every": 3}
    chosen["model"] = {**SHAPE, "kv_heads": 4}
    run_until(2, {**chosen, "out": str(tmp_path / "unbroken")}, None)
    broken = {**chosen, "out": str(tmp_path / "broken")}
    for stop in (Stop("kill", 5), Stop("sync", 9), None):
        run_until(2, broken, stop)
    assert tensors_of(tmp_path / "broken") == tensors_of(tmp_path / "unbroken")
    consumed_as_planned(tmp_path / "broken", chosen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_was_rewound_and_stopped_comes_to_the_same_end(manifest: Path, tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    chosen = {**drawn(generator, manifest), "checkpoint_every": 2}
    chosen.pop("skip_steps", None)
    skipping = {**chosen, "skip_steps": [[5, 6]]}
    train_alone({**skipping, "out": str(tmp_path / "unbroken")})
    broken = {**chosen, "out": str(tmp_path / "broken")}
    train_alone(broken)
    begun(ALONE, {**broken, "skip_steps": [[5, 6]]}, Stop("raise", int(generator.integers(7, chosen["steps"] + 1))), from_step=4)
    begun(ALONE, broken, Stop("term", chosen["steps"] - 1))
    begun(ALONE, broken, None)
    assert tensors_of(tmp_path / "broken") == tensors_of(tmp_path / "unbroken")
    consumed_as_planned(tmp_path / "broken", skipping)


@pytest.mark.slow
def test_rows_of_a_run_that_was_told_to_go_on_are_those_of_a_longer_one(manifest: Path, tmp_path: Path) -> None:
    """A budget may grow where nothing goes by shares of it: the same rows, one epoch after the other."""
    chosen = {**drawn(np.random.default_rng(3), manifest), "steps": 6}
    for name in ("phases", "batch_ramp", "skip_steps", "batch_tokens"):
        chosen.pop(name, None)
    chosen |= {"batch_tokens": 256, "schedule": "wsd", "warmup": 0.0, "cooldown": 0.0, "weight_decay": 0.0}
    train_alone({**chosen, "steps": 11, "out": str(tmp_path / "long")})
    for steps in (6, 9, 11):
        train_alone({**chosen, "steps": steps, "out": str(tmp_path / "grown")}, resume=True)
    assert losses(tmp_path / "grown") == losses(tmp_path / "long")
    assert [row["position"] for row in rows(tmp_path / "grown")] == [row["position"] for row in rows(tmp_path / "long")]
    consumed_as_planned(tmp_path / "grown", {**chosen, "steps": 11})
    with pytest.raises(ConfigurationError, match="other options"):
        train_alone(
            {
                **chosen,
                "packing": "crop" if chosen["packing"] != "crop" else "concat",
                "steps": 12,
                "out": str(tmp_path / "grown"),
            },
            resume=True,
        )
