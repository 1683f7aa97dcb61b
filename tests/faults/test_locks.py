"""Two runs of one corpus on an object store: one goes on, and what it wrote stays; whatever the clocks say and whoever died."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from manifests.manifest import MANIFEST, Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline import finish, lock
from pipeline.execution import InlineExecutor, Outcome
from pipeline.lock import LOCK, Locked, exclusive
from pipeline.recipe import Recipe
from pipeline.work import Work
from tests.faults.store import FaultyStore
from tests.pipeline.crawl import article, build, small_recipe, write_small

ROOT = Path(pipeline.__file__).parents[1]
HOUR = 3600.0
ROUNDING = 2
"""Seconds: the store tells whole ones, and so does a refusal."""
ELSEWHERE = {"host": "elsewhere", "process": 7, "token": "other", "boot": "another", "namespace": "pid:[1]", "began": "1"}
HOLD = (
    "import sys, signal; from manifests.storage import Folder; from pipeline.lock import exclusive\n"
    "with exclusive(Folder(sys.argv[1])):\n    print('held', flush=True); signal.pause()"
)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return write_small(
        tmp_path, {"a.jsonl": [{"text": article(str(i))} for i in range(4)]}, small_recipe(["repair"], ["exact_dedup"])
    )


def held_elsewhere(folder: Folder, **more: Any) -> None:
    assert folder.create(LOCK, json.dumps({**ELSEWHERE, **more}).encode())


def seconds(refused: BaseException) -> tuple[int, int]:
    """Since the lock was renewed, and until it is free, as the refusal says."""
    said = re.search(r"it renewed its lock (\d+) s ago.* free in (\d+) s", str(refused))
    assert said is not None, str(refused)
    return int(said[1]), int(said[2])


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_lock_is_as_old_as_the_store_says_and_not_as_the_owner_s_clock(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """The owner's clock is an hour off, then ours."""
    import time

    folder = Folder(store.folder())
    now = time.time()
    held_elsewhere(folder, renewed=now + skew)
    for off in (0.0, skew, -skew):
        monkeypatch.setattr(lock.time, "time", lambda off=off: now + off)
        with pytest.raises(Locked, match=r"process 7 on elsewhere") as said, exclusive(folder):
            pass
        age, left = seconds(said.value)
        assert 0 <= age < HOUR / 2, "an hour is a clock's error, and not the time that this test took"
        assert abs(left - (lock.STALE_SECONDS - age)) <= 1, "both are rounded"
    store.age(f"{folder.url}/{LOCK}", lock.STALE_SECONDS + 1)
    with exclusive(folder):
        assert json.loads(folder.read(LOCK))["process"] == os.getpid()
    assert folder.names() == []


def test_a_lock_that_is_nearly_stale_is_respected(store: FaultyStore) -> None:
    folder = Folder(store.folder())
    held_elsewhere(folder)
    store.age(f"{folder.url}/{LOCK}", lock.STALE_SECONDS - 20)
    began = lock._elapsed()
    try:
        with exclusive(folder):
            assert lock._elapsed() - began > 20 - ROUNDING, "taken before it was stale"
    except Locked as refused:
        age, left = seconds(refused)
        assert age >= lock.STALE_SECONDS - 20 - ROUNDING
        assert 0 <= left <= 20 + ROUNDING


def test_the_lock_of_a_process_that_was_killed_on_this_machine_is_taken_over_at_once(store: FaultyStore, recipe: Recipe) -> None:
    folder = Folder(store.folder())
    holder = subprocess.Popen([sys.executable, "-c", HOLD, folder.url], cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Locked, match=f"process {holder.pid} on"):
            build(recipe, folder.url)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert folder.exists(LOCK), "a killed run cannot give its lock back"
    assert build(recipe, folder.url).manifest.content.components["docs"].documents_in == 4
    assert not folder.exists(LOCK)


def test_a_process_of_the_same_number_elsewhere_or_before_is_another_process(store: FaultyStore) -> None:
    mine = json.loads(lock._owner("other"))
    for change, free in (({}, False), ({"boot": "another"}, False), ({"namespace": "pid:[1]"}, False), ({"began": "1"}, True)):
        folder = Folder(store.folder())
        assert folder.create(LOCK, json.dumps({**mine, **change}).encode())
        if free:
            with exclusive(folder):
                continue
        with pytest.raises(Locked, match=f"process {os.getpid()}"), exclusive(folder):
            pass


@pytest.mark.parametrize("stale", [False, True])
def test_a_lock_whose_put_was_answered_into_a_cut_connection_is_ours(store: FaultyStore, stale: bool) -> None:
    folder = Folder(store.folder())
    if stale:
        held_elsewhere(folder)
        store.age(f"{folder.url}/{LOCK}", lock.STALE_SECONDS + 1)
    with store.strike("cut-answer", at_most=1, path=LOCK) as struck, exclusive(folder):
        assert struck.hits == 1
    assert folder.names() == []


class Interrupted(InlineExecutor):
    """Something happens when `after` parts are done."""

    def __init__(self, after: int, event: Any) -> None:
        self.left, self.event = after, event

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        for outcome in super().run(corpus_url, works):
            self.left -= 1
            if self.left == 0:
                self.event()
            yield outcome


def taken_over(store: FaultyStore, folder: Folder, recipe: Recipe) -> bytes:
    """Another run, after the first has been silent for too long: its manifest."""
    folder.overwrite(folder.stamp(LOCK), json.dumps({**json.loads(folder.read(LOCK)), **ELSEWHERE}).encode())
    store.age(f"{folder.url}/{LOCK}", lock.STALE_SECONDS + 1)
    build(recipe, folder.url)
    return folder.read(MANIFEST)


def other_recipe(folder: Path) -> Recipe:
    (folder / "other").mkdir()
    return write_small(folder / "other", {"b.jsonl": [{"text": article("b")}]}, small_recipe([]))


@pytest.mark.slow
def test_a_run_that_lost_its_lock_in_mid_run_leaves_the_other_s_corpus_alone(
    store: FaultyStore, recipe: Recipe, tmp_path: Path
) -> None:
    folder, other, theirs = Folder(store.folder()), other_recipe(tmp_path), []
    with pytest.raises(Locked, match="taken over"):
        build(recipe, folder.url, executor=Interrupted(2, lambda: theirs.append(taken_over(store, folder, other))))
    assert folder.read(MANIFEST) == theirs[0]
    assert list(verify(folder, Manifest.load(folder))) == []


@pytest.mark.slow
def test_of_two_finishers_the_one_that_holds_the_lock_writes_the_manifest(
    store: FaultyStore, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stands still between two files that it puts into place, and is overtaken."""
    folder, other, theirs = Folder(store.folder()), other_recipe(tmp_path), []
    place = finish.place

    def slow(corpus: Folder, source: str, target: str) -> None:
        monkeypatch.setattr(finish, "place", place)
        place(corpus, source, target)
        theirs.append(taken_over(store, folder, other))

    monkeypatch.setattr(finish, "place", slow)
    with pytest.raises(Locked, match="taken over"):
        build(recipe, folder.url)
    assert folder.read(MANIFEST) == theirs[0]


@pytest.mark.slow
def test_a_run_that_holds_the_lock_replaces_the_manifest_of_one_that_lost_it(
    store: FaultyStore, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser's put was under way when it lost, and arrives while the other is finishing."""
    folder = Folder(store.folder())
    place = finish.place

    def late(corpus: Folder, source: str, target: str) -> None:
        corpus.write(MANIFEST, b"{}")
        place(corpus, source, target)

    monkeypatch.setattr(finish, "place", late)
    digest = build(recipe, folder.url).manifest.digest
    assert Manifest.load(folder).digest == digest == build(recipe, tmp_path / "here").manifest.digest


def test_a_lock_that_cannot_be_renewed_stops_its_run_before_it_is_stale(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(store.folder())
    start = lock._elapsed()
    with pytest.raises(Locked, match="could not be renewed for so long"), exclusive(folder) as held:
        held.check()
        monkeypatch.setattr(lock, "_elapsed", lambda: start + lock.STALE_SECONDS / 2 + 10)
        held.check()


class Idle(InlineExecutor):
    """Parts that do not end: only the caller's look at its lock can."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Any, None, None]:
        yield None
        self.event()
        yield None
        raise AssertionError("the run went on without its lock")


def test_a_run_whose_parts_take_long_ends_when_it_lost_its_lock_and_not_when_a_part_ends(
    store: FaultyStore, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = lock._elapsed()

    def silent() -> None:
        monkeypatch.setattr(lock, "_elapsed", lambda: start + lock.STALE_SECONDS / 2 + 60)

    with pytest.raises(Locked, match="could not be renewed for so long"):
        build(recipe, store.folder(), executor=Idle(silent))


def test_a_local_lock_names_nobody_after_a_run_that_failed(tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    with pytest.raises(KeyError), exclusive(corpus):
        assert json.loads(corpus.read(LOCK))["process"] == os.getpid()
        raise KeyError
    assert corpus.read(LOCK) == b""


def test_a_lock_that_no_run_wrote_is_of_another_process(tmp_path: Path, store: FaultyStore) -> None:
    """Brackets so deep that a parser of JSON gives up."""
    assert lock._parsed(b"[" * 4096) == {}
    assert lock._parsed(b'{"token": ' * 100_000) == {}
    folder = Folder(store.folder())
    assert folder.create(LOCK, b"[" * 100_000)
    with exclusive(folder) as held:
        held.confirm()
    assert folder.names() == []
