"""The same promises on an object store: a real S3 server on this machine, spoken to over HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manifests.commands import app as auditor
from manifests.manifest import Manifest, ManifestError
from manifests.storage import Folder, StorageError, Written
from manifests.verification.verify import verify
from pipeline import lock
from pipeline.cleaning import clean
from pipeline.commands import app
from pipeline.execution import InlineExecutor, Outcome
from pipeline.lock import Locked, exclusive
from pipeline.status import look
from pipeline.work import Work
from stages.commands import app as teller
from tests.object_store import object_store
from tests.pipeline.crawl import article, build, small_recipe, write_small


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The URL of a bucket."""
    with object_store("corpora") as bucket:
        yield bucket


@pytest.fixture
def folder(store: str) -> Folder:
    return Folder(f"{store}/{uuid.uuid4().hex}")


def test_a_write_is_whole_and_says_its_size_and_digest(folder: Folder) -> None:
    data = os.urandom(100_000)
    assert folder.write("a/b.bin", data) == Written("a/b.bin", len(data), hashlib.sha256(data).hexdigest())
    assert folder.read("a/b.bin") == data
    assert folder.read_range("a/b.bin", 10, 5) == data[10:15]
    folder.write("a/b.bin", b"new")
    assert (folder.read("a/b.bin"), folder.size("a/b.bin"), folder.names()) == (b"new", 3, ["a/b.bin"])


def test_a_writer_that_raises_leaves_nothing(folder: Folder) -> None:
    with pytest.raises(RuntimeError), folder.writer("x") as out:
        out.write(b"half")
        raise RuntimeError
    assert folder.names() == []


def test_only_one_of_many_creates_an_object(folder: Folder) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda number: Folder(folder.url).create("lock", str(number).encode()), range(16)))
    assert sum(made) == 1
    assert folder.read("lock") == str(made.index(True)).encode()
    assert not folder.create("lock", b"late")


def test_names_outside_the_folder_are_refused(folder: Folder) -> None:
    for name in ("../x", "/x", "a/../../x", "s3://corpora/x", ""):
        with pytest.raises(StorageError):
            folder.read(name)
        with pytest.raises(StorageError):
            folder.write(name, b"")


def test_listings_are_sorted_and_stamps_tell_of_changes(folder: Folder) -> None:
    for name in ("b/2", "b/10", "a", "b-1"):
        folder.write(name, b"one")
    assert folder.names() == [stamp.path for stamp in folder.stamps()] == ["a", "b-1", "b/10", "b/2"]
    assert folder.names("b") == ["b/10", "b/2"]
    before = folder.stamp("a")
    assert folder.stamp("a") == before
    folder.write("a", b"two")
    assert folder.stamp("a") != before
    folder.delete("b")
    assert folder.names() == ["a", "b-1"]
    with pytest.raises(FileNotFoundError):
        folder.read("b/2")


def test_a_bucket_without_a_manifest_says_so(folder: Folder) -> None:
    with pytest.raises(ManifestError, match="there is no manifest"):
        Manifest.load(folder)


def test_a_corpus_on_s3_is_the_corpus_on_this_disk(folder: Folder, tmp_path: Path) -> None:
    """Inputs on S3 too; resumed after its manifest is lost; verified and questioned where it lies."""
    files = {
        f"{name}.jsonl": [{"text": article(f"{name} {i}"), "url": f"https://{name}.example/{i}"} for i in range(8)]
        for name in "ab"
    }
    files["b.jsonl"][3] = files["a.jsonl"][2]
    stages = ["repair", "gopher_quality", "personal_data"]
    corpus_wide = [
        "exact_dedup",
        "minhash",
        {"split": {"validation": 0.3, "test": 0}},
        {"tokenizer": {"vocabulary": 520}},
        "shards",
    ]
    recipe = write_small(tmp_path, files, small_recipe(stages, corpus_wide))
    here = build(recipe, tmp_path / "corpus").manifest
    there = build(recipe, folder.url).manifest
    assert there.digest == here.digest
    assert list(verify(folder, Manifest.load(folder))) == []
    for path in [shard.path for shard in here.content.shards] + [log.path for log in here.content.logs]:
        assert folder.read(path) == (tmp_path / "corpus" / path).read_bytes()
    assert not folder.exists(lock.LOCK)
    assert not any(build(recipe, folder.url).ran.values())
    folder.delete("manifest.json")
    again = build(recipe, folder.url)
    assert not any(again.ran.values())
    assert again.manifest.digest == here.digest

    for name in files:
        folder.write(f"inputs/docs/{name}", (tmp_path / "docs" / name).read_bytes())
    remote = small_recipe(stages, corpus_wide)
    remote["components"]["docs"]["source"] = f"{folder.url}/inputs/docs"
    result = build(write_small(tmp_path, {}, remote), tmp_path / "read-from-s3").manifest
    assert [(one.path, one.sha256) for one in result.content.components["docs"].inputs] == [
        (one.path, one.sha256) for one in here.content.components["docs"].inputs
    ]
    assert [log.sha256 for log in result.content.logs if log.kind != "removals"] == [
        log.sha256 for log in here.content.logs if log.kind != "removals"
    ]

    whole = CliRunner().invoke(auditor, ["verify", folder.url])
    assert (whole.exit_code, whole.stdout.splitlines()[-1]) == (0, f"digest {here.digest}")
    told = CliRunner().invoke(auditor, ["why", folder.url, "docs/b.jsonl#3"])
    assert told.exit_code == 0
    assert "docs/a.jsonl#2" in told.stdout
    shard = here.content.shards[0].path
    last = here.content.shards[0].tokens - 1
    for offset in ("0", str(last)):
        asked = ["tokens", folder.url, shard, offset, "--json"]
        place = CliRunner().invoke(teller, asked)
        assert place.exit_code == 0, place.output
        assert place.stdout == CliRunner().invoke(teller, ["tokens", str(tmp_path / "corpus"), *asked[2:]]).stdout
    beyond = CliRunner().invoke(teller, ["tokens", folder.url, shard, str(last + 1)])
    assert (beyond.exit_code, f"there is no token {last + 1:,}" in beyond.stderr) == (1, True)
    folder.write(shard, folder.read(shard)[:-2])
    assert any(finding.startswith(f"{shard}: ") for finding in verify(folder, there))


class Looking(InlineExecutor):
    """Asks how a corpus stands, from another thread of control, while a step runs: as soon as its journal tells of a part."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.said: list[str] = []

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        for number, outcome in enumerate(super().run(corpus_url, works)):
            if outcome.work.step == self.step and number == 1:
                while not (steps := look(Folder(corpus_url)).progress["steps"]) or steps[-1]["done"] < 1:
                    pass
                self.said.append(CliRunner().invoke(app, ["status", corpus_url]).stdout)
            yield outcome


def events(folder: Folder) -> list[dict[str, Any]]:
    run = folder.read("runs/latest").decode()
    logs = [name for name in folder.names(f"runs/{run}") if name.endswith(".jsonl")]
    return [json.loads(line) for name in logs for line in folder.read(name).splitlines()]


@pytest.mark.slow
def test_a_run_on_s3_is_watched_from_elsewhere_and_its_journal_is_whole(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is an object for every so many lines: here one for every line that waits when the journal looks."""
    for name, value in {"REMOTE_SECONDS": 0.01, "SEGMENT_BYTES": 1}.items():
        monkeypatch.setattr(f"pipeline.journal.{name}", value)
    files = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] + [{"text": "short"}] for name in "abc"}
    stages = ["repair", {"gopher_quality": {"min_words": 50}}, "personal_data"]
    recipe = write_small(tmp_path, files, small_recipe(stages, ["exact_dedup"]))
    looking = Looking("docs.3.personal_data")
    digest = build(recipe, folder.url, 1000, looking).manifest.digest
    [said] = looking.said
    assert f"running: process {os.getpid()} on {socket.gethostname()}, since 20" in said
    assert "step 3 of 7, docs.3.personal_data (personal_data): 1 of 3 parts" in said
    assert "so far 12 documents in, 3 removed, 9 left" in said
    run = folder.read("runs/latest").decode()
    assert len([name for name in folder.names(f"runs/{run}") if "/log-" in name]) > 2
    told = events(folder)
    assert [one["event"] for one in told][:2] == ["run_started", "step_started"] and told[-1]["event"] == "run_finished"
    assert sum(one["event"] == "part_done" for one in told) == sum(name.count("/") == 2 for name in folder.names("receipts"))
    assert {one["run"] for one in told} == {run}
    finished = json.loads(CliRunner().invoke(app, ["status", folder.url, "--json"]).stdout)
    assert (finished["state"], finished["digest"], finished["documents_removed"]) == ("finished", digest, 3)


def test_a_run_on_s3_that_died_is_told_from_one_that_is_silent(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "one"}]}, small_recipe([]))
    build(recipe, folder.url)
    folder.delete("manifest.json")
    name = f"runs/{folder.read('runs/latest').decode()}/progress.json"
    said = json.loads(folder.read(name))
    monkeypatch.setattr("pipeline.status.REMOTE_SECONDS", 0.1)
    monkeypatch.setattr("pipeline.status.LOCAL_SECONDS", 0.02)
    elsewhere = {**said, "state": "running", "host": "elsewhere", "updated": 1.0}
    folder.write(name, json.dumps(elsewhere).encode())
    assert look(folder).state == "dead", "of a long time ago, and nothing comes"
    here = {**said, "state": "running", "process": 1 << 22}
    folder.write(name, json.dumps(here).encode())
    assert look(folder).state == "dead", "its process is not on this machine, where it ran"
    folder.write(name, json.dumps({**elsewhere, "updated": time.time()}).encode())
    assert look(folder).state == "running"
    result = CliRunner().invoke(app, ["status", folder.url])
    assert "running: process" in result.stdout and "on elsewhere" in result.stdout
    folder.write("runs/latest", b"\xff")
    assert look(folder).state == "none"


@pytest.mark.slow
def test_relays_and_old_journals_on_s3(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that a disk has, through relays whose lists and files lie on the store; and `clean` there."""
    monkeypatch.setattr("pipeline.steps.PARTITION_BYTES", 3000)
    monkeypatch.setattr("pipeline.cleaning.KEPT_RUNS", 1)
    files = {
        f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] + [{"text": article("twice")}] for name in "abc"
    }
    recipe = write_small(tmp_path, files, small_recipe(["repair"], ["exact_dedup"]))
    here = build(recipe, tmp_path / "corpus", 1000)
    monkeypatch.setattr("pipeline.relay_steps.MOST_PIECES", 0)
    monkeypatch.setattr("pipeline.relay_steps.RELAY_FILES", 2)
    there = build(recipe, folder.url, 1000)
    assert there.manifest.digest == here.manifest.digest
    assert there.ran["corpus.1.exact_dedup.keys.keys.relay"] > 1
    folder.write("runs/20000101T000000Z-00000000/log-00000.jsonl", b"{}\n")
    assert clean(folder) == (1, 3)
    assert not any("/lists/" in name for name in folder.names("steps"))
    assert list(verify(folder, there.manifest)) == []


def test_a_second_run_is_refused_and_names_the_first(folder: Folder, tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "one"}]}, small_recipe([]))
    with exclusive(folder):
        with pytest.raises(Locked, match=rf"process {os.getpid()} on {socket.gethostname()}: one run per corpus at a time"):
            build(recipe, folder.url)
        result = CliRunner().invoke(app, ["run", recipe.path, "--corpus", folder.url, "--executor", "inline"])
        assert result.exit_code == 1
        assert f"process {os.getpid()}" in result.stderr
    build(recipe, folder.url)


@pytest.mark.slow
def test_of_many_that_see_a_stale_lock_one_gets_it(store: str) -> None:
    for _ in range(5):
        url = f"{store}/{uuid.uuid4().hex}"
        Folder(url).create(lock.LOCK, b'{"renewed": 1000.0}')
        together, all_tried = threading.Barrier(8), threading.Barrier(8)

        def attempt(
            _: int, url: str = url, together: threading.Barrier = together, all_tried: threading.Barrier = all_tried
        ) -> bool:
            folder = Folder(url)
            together.wait()
            try:
                with exclusive(folder):
                    all_tried.wait()
                    return True
            except Locked:
                all_tried.wait()
                return False

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(8))) == 1


def test_a_run_whose_lock_was_taken_over_says_so_and_leaves_the_other_s_lock(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.05)
    other = b'{"host": "elsewhere", "process": 7, "token": "other", "renewed": 99999999999}'
    with pytest.raises(Locked, match=r"process 7 on elsewhere.*taken over"), exclusive(folder):
        (owner,) = [one for one in threading.enumerate() if one.name == f"lock of {folder.url}"]
        folder.write(lock.LOCK, other)
        owner.join()
    assert folder.read(lock.LOCK) == other


def test_a_lock_is_renewed_while_the_run_lives(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.05)
    with exclusive(folder):
        first = folder.read(lock.LOCK)
        while (later := folder.read(lock.LOCK)) == first:
            pass
    assert json.loads(later)["token"] == json.loads(first)["token"]
    assert json.loads(later)["renewed"] > json.loads(first)["renewed"]


def test_an_object_is_overwritten_only_as_it_was_seen(folder: Folder) -> None:
    folder.write("x", b"one")
    seen = folder.stamp("x")
    assert folder.overwrite(seen, b"two")
    assert not folder.overwrite(seen, b"three")
    assert folder.read("x") == b"two"
    seen = folder.stamp("x")
    folder.delete("x")
    assert not folder.overwrite(seen, b"four")
    assert not folder.exists("x")


def test_a_lock_that_says_nothing_readable_is_stale(folder: Folder) -> None:
    folder.create(lock.LOCK, b"not JSON")
    with exclusive(folder):
        assert b"token" in folder.read(lock.LOCK)
