"""Ranks on this machine: processes that find each other by gloo, as torchrun would start them.

They are forked from a server that has imported torch already, so that a test with four of them takes seconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.configuration import TrainConfig
from trainer.distributed.ranks import Ranks
from trainer.run.loop import Outcome, train
from trainer.run.progress import RunProgress
from trainer.run_files.metrics import METRICS

TINY = {"layers": 3, "width": 20, "heads": 10, "kv_heads": 5, "hidden": 26}
"""Four shards of this are unequal, and of the gains of its heads, two numbers, some are empty."""


def in_ranks(world: int, work: Callable[..., None], *arguments: Any) -> list[int | None]:
    """Runs `work(ranks, *arguments)` in `world` processes and gives their exit codes: 1 after an exception, which is printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.ranks_fixture"])
    processes = [context.Process(target=_rank, args=(rank, world, port, work, arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def options(manifest: Path, out: Path, **changes: object) -> dict[str, Any]:
    return {
        "manifest": str(manifest), "out": str(out), "preset": "tiny", "model": TINY, "sequence_length": 32,
        "batch_tokens": 512, "micro_batch": 2, "steps": 20, "device": "cpu", "evaluate": False, **changes,
    }  # fmt: skip


def train_in(world: int, manifest: Path, out: Path, resume: bool = False, **changes: object) -> None:
    """Trains on `world` ranks and fails the test when one of them fails."""
    chosen = options(manifest, out, **changes)
    if world == 1:
        train_alone(chosen, resume)
    elif in_ranks(world, _train, chosen, resume) != [0] * world:
        pytest.fail("a rank failed; see what it printed")


def train_alone(chosen: dict[str, Any], resume: bool = False) -> Outcome:
    import torch

    return train(TrainConfig.check(**chosen), Ranks(0, 1, 0, torch.device("cpu")), RunProgress(False, 1), resume)


def rows(out: Path) -> list[dict[str, Any]]:
    """The metrics of a run, whose steps must follow one another."""
    found = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    assert [row["step"] for row in found] == list(range(1, len(found) + 1))
    return found


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in rows(out)]


def _train(ranks: Ranks, chosen: dict[str, Any], resume: bool) -> None:
    train(TrainConfig.check(**chosen), ranks, RunProgress(False, 1), resume)


def _rank(rank: int, world: int, port: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
    )  # fmt: skip
    try:
        ranks = Ranks.join("cpu")
        work(ranks, *arguments)
        ranks.leave()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
