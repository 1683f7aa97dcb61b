"""A cluster that was started by itself and is joined by its address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline
from manifests.manifest import Manifest
from manifests.storage import Folder
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


@pytest.mark.slow
def test_a_cluster_joined_by_address_gives_the_same_corpus(head: str, tmp_path: Path) -> None:
    files = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] for name in "ab"}
    recipe = write_small(tmp_path, files, small_recipe(["repair", "gopher_quality"], ["exact_dedup"]))
    command = [sys.executable, "-m", "pipeline", "run", recipe.path, "--corpus", str(tmp_path / "cluster"), "--address", head]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Manifest.load(Folder(tmp_path / "cluster")).digest == build(recipe, tmp_path / "here").manifest.digest
