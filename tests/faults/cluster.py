"""A Ray cluster of several nodes on this machine, each a process group of its own that can be killed like a machine.

Nodes are started by `ray start`, as a person starts them, with a token of their own, so that nothing else on this machine can
reach them. They inherit the environment, and so the switches of the harness (README.md in this folder).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
POLL_SECONDS = 0.02
OBJECT_STORE_BYTES = 80 << 20
"""Nothing large goes through it; the smallest that Ray takes is 75 MB."""


class Cluster:
    """`head` has no CPU, as on a real cluster; every further node has one. `environment` reaches drivers and workers alike."""

    def __init__(self, environment: Mapping[str, str], python: Path | None = None, dashboard: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cm", dir="/tmp"))  # a socket's path has 107 bytes at most
        self.environment = {
            **os.environ,
            **environment,
            "RAY_TMPDIR": str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            # A node that is gone is given up after about five seconds, and not after a minute.
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "1000",
            "RAY_health_check_failure_threshold": "4",
        }
        self.environment.pop("RAY_ADDRESS", None)
        self.python = python or Path(sys.executable)
        self.environment["PATH"] = os.pathsep.join([str(self.python.parent), os.environ["PATH"]])
        self.port, self.dashboard_port = _free_port(), _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.dashboard = dashboard
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.head = self._start_head()

    def _start_head(self) -> subprocess.Popen[bytes]:
        options = ["--head", "--node-ip-address", "127.0.0.1", "--port", str(self.port), "--num-cpus", "0"]
        options += [f"--include-dashboard={str(self.dashboard).lower()}", "--dashboard-port", str(self.dashboard_port)]
        head = self._start("head", *options)
        _wait(lambda: _answers(self.port), head)
        return head

    def add(self) -> subprocess.Popen[bytes]:
        """Another node, once the cluster counts it."""
        before = self.seen()
        node = self._start("node", "--address", self.address, "--node-ip-address", "127.0.0.1", "--num-cpus", "1")
        _wait(lambda: self.seen() > before, node)
        return node

    def seen(self) -> int:
        """Nodes that the head has ever counted, the dead ones too."""
        code = "import sys; from ray._raylet import GcsClient; print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))"
        counted = subprocess.run(
            [str(self.python), "-c", code, self.address], env=self.environment, capture_output=True, text=True, check=False
        )
        return int(counted.stdout or 0)

    def _start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        command = [str(self.python.with_name("ray")), "start", "--block", "--disable-usage-stats"]
        command += ["--object-store-memory", str(OBJECT_STORE_BYTES), *options]
        log = (self.folder / f"{name}{len(self.nodes)}.log").open("wb")
        environment = {**self.environment, "PYTHONPATH": os.pathsep.join([str(ROOT), self.environment.get("PYTHONPATH", "")])}
        node = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self.nodes.append(node)
        return node

    def driver(self, recipe: str | Path, corpus: str | Path, *options: str) -> subprocess.Popen[str]:
        """`python -m pipeline run` joined by address, in a process group of its own, its words on pipes."""
        command = [str(self.python), "-m", "pipeline", "run", str(recipe), "--corpus", str(corpus)]
        command += ["--address", self.address, "--quiet", *options]
        return subprocess.Popen(
            command,
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        for node in self.nodes:
            kill_group(node)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def cluster(workers: int, environment: Mapping[str, str], **options: object) -> Iterator[Cluster]:
    started = Cluster(environment, **options)  # type: ignore[arg-type]
    try:
        for _ in range(workers):
            started.add()
        yield started
    finally:
        started.close()


def kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """As if the machine had lost its power: SIGKILL to all of the process's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until `path` is there; `process` must not have ended before."""
    _wait(path.exists, process)


def _wait(ready: object, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    assert callable(ready)
    until = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None:
            said = process.stderr.read() if process.stderr is not None else ""
            raise AssertionError(f"process {process.args!r} ended with {process.returncode}: {said}")
        assert time.monotonic() < until, f"{process.args!r} is not ready after {PATIENCE} s"
        time.sleep(POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
