"""Same recipe, same inputs, same bytes: whatever runs the parts, however they are cut, and whoever is killed on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.execution import RayExecutor
from tests.pipeline.crawl import ONE_FILE_A_PART, Crawl, build, write_crawl

ROOT = Path(pipeline.__file__).parent.parent
POLL_SECONDS = 0.02
INLINE = ["--executor", "inline"]


def published(corpus: Path) -> dict[str, str]:
    """Path → SHA-256 of everything that a corpus is, but for the manifest's account of how it came about."""
    files = [path for name in ("tokens", "logs") for path in sorted((corpus / name).rglob("*")) if path.is_file()]
    found = {
        str(path.relative_to(corpus)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [*files, corpus / "tokenizer.json"]
    }
    manifest = Manifest.load(Folder(corpus))
    assert list(verify(Folder(corpus), manifest)) == []
    return {**found, "digest": manifest.digest}


@pytest.fixture(scope="module")
def reference(finished: Path) -> dict[str, str]:
    return published(finished)


@pytest.mark.slow
def test_grouped_files_and_many_partitions_give_the_same_bytes(
    crawl: Crawl, reference: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline import plan, steps

    monkeypatch.setattr(steps, "PARTITION_BYTES", 5000)
    assert plan.make_plan(crawl.load()).parts.component == (0, 1, 2)
    result = build(crawl.load(), tmp_path / "corpus")
    assert result.ran["corpus.1.exact_dedup.groups"] > 4
    assert published(tmp_path / "corpus") == reference


def test_files_that_came_in_another_order_and_row_groups_read_apart_give_the_same_bytes(
    reference: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.readers import parquet

    monkeypatch.setattr(parquet, "SPLIT_BYTES", 1)
    again = write_crawl(tmp_path / "elsewhere", shuffled=3)
    result = build(again.load(), tmp_path / "corpus", part_bytes=2000)
    assert result.ran["tables.1.measure"] == 4
    assert published(tmp_path / "corpus") == reference


@pytest.mark.slow
def test_logs_that_are_cut_into_several_files_do_not_depend_on_parts(
    crawl: Crawl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline import steps

    def only_books(recipe: dict[str, Any]) -> None:
        recipe["components"] = {"books": recipe["components"]["books"]}
        recipe["stages"] = ["exact_dedup", *recipe["stages"][3:]]

    monkeypatch.setattr(steps, "LOG_ROWS", 10)
    recipe = crawl.load(only_books, "books.yaml")
    build(recipe, tmp_path / "grouped")
    build(recipe, tmp_path / "apart", ONE_FILE_A_PART)
    one, other = published(tmp_path / "grouped"), published(tmp_path / "apart")
    assert sum(path.startswith("logs/documents") for path in one) == 8
    assert one == other


def test_two_ray_workers_give_the_same_bytes_as_this_process(crawl: Crawl, reference: dict[str, str], tmp_path: Path) -> None:
    executor = RayExecutor(workers=2)
    try:
        build(crawl.load(), tmp_path / "corpus", ONE_FILE_A_PART, executor)
        assert executor.cpus == 2
    finally:
        executor.close()
    assert published(tmp_path / "corpus") == reference


@pytest.mark.parametrize(
    "drivers",
    [
        pytest.param([["--workers", "1"], INLINE, INLINE, INLINE], id="ray-once", marks=pytest.mark.slow),
        pytest.param(
            [["--workers", "2"], ["--workers", "1"], ["--workers", "2"], ["--workers", "1"]],
            id="ray-always",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_killed_three_times_and_robbed_of_a_worker_ends_with_the_same_bytes(
    crawl: Crawl, reference: dict[str, str], tmp_path: Path, drivers: list[list[str]]
) -> None:
    """Three drivers are killed by SIGKILL when so many more receipts are there, the first after a Ray worker was killed in the
    middle of a part; the fourth is left alone."""
    corpus = tmp_path / "corpus"
    recipe = crawl.recipe()

    def receipts() -> int:
        return sum(1 for _ in corpus.glob("receipts/*/*.json"))

    for number, (options, more) in enumerate(zip(drivers, (3, 10, 15), strict=False)):
        with started(recipe, corpus, *options) as driver:
            if number == 0:
                kill_worker(driver)
            wanted = receipts() + more
            kill_when(driver, lambda: receipts() >= wanted)  # noqa: B023
        assert not (corpus / "manifest.json").exists()
    with started(recipe, corpus, *drivers[-1]) as driver:
        assert driver.wait() == 0
    assert published(corpus) == reference


@contextlib.contextmanager
def started(recipe: Path, corpus: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m pipeline run` in a Ray folder of its own; afterwards every process that it left behind is ended."""
    with tempfile.TemporaryDirectory(prefix="cm", dir="/tmp", ignore_cleanup_errors=True) as ray_folder:
        environment = {**os.environ, "RAY_TMPDIR": ray_folder}
        command = [sys.executable, "-m", "pipeline", "run", str(recipe), "--corpus", str(corpus), "--quiet", *options]
        driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield driver
        finally:
            for process in [driver.pid, *processes_with(f"RAY_TMPDIR={ray_folder}")]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            driver.wait()


def kill_when(driver: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    """Kills the driver as soon as `ready` says so; it must not have ended before."""
    while not ready():
        assert driver.poll() is None, "the run ended before it could be killed"
        time.sleep(POLL_SECONDS)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL


def kill_worker(driver: subprocess.Popen[bytes]) -> str:
    """Kills the first Ray worker that is seen to work on a part; the part's name."""
    while driver.poll() is None:
        for process in descendants(driver.pid):
            title = read(f"/proc/{process}/cmdline").split(b"\0")[0].decode()
            if title.startswith(("ray::books", "ray::web", "ray::tables", "ray::corpus")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    return title
        time.sleep(POLL_SECONDS)
    raise AssertionError("the run ended before a worker was seen")


def descendants(ancestor: int) -> list[int]:
    parent: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = read(f"/proc/{entry}/stat").rpartition(b")")[2].split()
            if fields:
                parent[int(entry)] = int(fields[1])
    found = []
    for process in parent:
        at = process
        while at in parent and at != ancestor:
            at = parent[at]
        if at == ancestor and process != ancestor:
            found.append(process)
    return found


def processes_with(variable: str) -> list[int]:
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and variable.encode() in read(f"/proc/{entry}/environ").split(b"\0")
    ]


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
