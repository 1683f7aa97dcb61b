"""A cluster that was started by itself and is joined by its address."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipeline
from manifests.manifest import Manifest
from manifests.storage import Folder
from pipeline import execution
from pipeline.commands import app
from tests.pipeline.crawl import article, build, small_recipe, write_small

ROOT = Path(pipeline.__file__).parents[1]
PATIENCE = 60


@pytest.fixture
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray head of its own, in a process group of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", address.rpartition(":")[2]]
    options = ["--num-cpus", "2", "--include-dashboard=false", "--disable-usage-stats"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    host, _, port = address.rpartition(":")
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                break
    yield address
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("command", ["run", "start"])
def test_an_address_where_nothing_listens_is_an_error_that_says_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(execution, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(execution, "LOOK_SECONDS", 0.1)
    why = r"cannot join the Ray cluster at 127\.0\.0\.1:1: .*nothing listens there.* Is its head running"
    executor = execution.RayExecutor("127.0.0.1:1")
    if command == "start":
        with pytest.raises(ConnectionError, match=why):
            executor.start()
        executor.close()
        return
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "one"}]}, small_recipe([]))
    said = CliRunner().invoke(app, ["run", recipe.path, "--corpus", str(tmp_path / "corpus"), "--address", "127.0.0.1:1"])
    assert said.exit_code == 1
    assert re.search(why, said.stderr), said.output
    assert build(recipe, tmp_path / "corpus").manifest.content.components["docs"].documents_in == 1


def test_a_head_is_lost_when_it_has_not_answered_for_long_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "LOOK_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        head = execution._Head(f"127.0.0.1:{listening.getsockname()[1]}")
        head.looked -= 1
        head.answered -= 100
        head.check()
        assert head.answered == head.looked, "it answers"
    head.looked -= 1
    head.check()
    head.looked -= 1
    head.answered -= execution.PATIENCE_SECONDS
    with pytest.raises(ConnectionError, match="has not answered for 30 s; what is finished is kept"):
        head.check()


@pytest.mark.slow
def test_a_cluster_joined_by_address_gives_the_same_corpus(head: str, tmp_path: Path) -> None:
    files = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] for name in "ab"}
    recipe = write_small(tmp_path, files, small_recipe(["repair", "gopher_quality"], ["exact_dedup"]))
    command = [sys.executable, "-m", "pipeline", "run", recipe.path, "--corpus", str(tmp_path / "cluster"), "--address", head]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Manifest.load(Folder(tmp_path / "cluster")).digest == build(recipe, tmp_path / "here").manifest.digest
