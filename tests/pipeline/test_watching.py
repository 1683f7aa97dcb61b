"""What a person and a machine can learn of a run while it lasts, after it, and after its death; and that none of it touches the corpus."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import pipeline
from manifests.manifest import Manifest
from manifests.storage import Folder
from pipeline import status
from pipeline.commands import app
from pipeline.execution import InlineExecutor, Outcome
from pipeline.journal import LATEST, Journal
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.resources import Resources
from pipeline.run import RunFailed, run
from pipeline.status import look
from pipeline.tally import Tally
from pipeline.work import Work
from tests.pipeline.crawl import article, build, small_recipe, write_small

ROOT = Path(pipeline.__file__).parents[1]
STAGES: list[Any] = ["repair", {"gopher_quality": {"min_words": 50}}, "personal_data"]
FILES = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] + [{"text": "too short"}] for name in "abc"}


@pytest.fixture
def small(tmp_path: Path) -> Recipe:
    """Three files, each a part of its own when parts are of 1,000 bytes; a document of each is too short."""
    return write_small(tmp_path, FILES, small_recipe(STAGES, ["exact_dedup"]))


def progress(corpus: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((corpus / "runs" / (corpus / LATEST).read_text() / "progress.json").read_text())
    return found


def events(corpus: Path) -> list[dict[str, Any]]:
    lines = (corpus / "runs" / (corpus / LATEST).read_text() / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def asked(corpus: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", str(corpus), *options])
    return result.exit_code, result.stdout


class Looking(InlineExecutor):
    """Looks at the corpus while a step runs."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.seen: list[tuple[int, str]] = []

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        for number, outcome in enumerate(super().run(corpus_url, works)):
            if works[0].step == self.step and number == 1:
                wait_for(Path(corpus_url), done=1)
                self.seen.append(asked(Path(corpus_url)))
            yield outcome


class Failing(InlineExecutor):
    def __init__(self, step: str) -> None:
        self.step = step

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        for outcome in super().run(corpus_url, works):
            failed = outcome.work.step == self.step and outcome.work.part.endswith("b.jsonl")
            yield Outcome(outcome.work, None, "OSError: the disk is full", "a trace") if failed else outcome


def wait_for(corpus: Path, done: int) -> None:
    """Until the journal has written that so many parts of the last step are done."""
    while not (steps := progress(corpus)["steps"]) or steps[-1]["done"] < done:
        pass


def test_status_of_a_running_corpus_says_who_where_and_what_was_removed(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.journal.LOCAL_SECONDS", 0.01)
    executor = Looking("docs.3.personal_data")
    build(small, tmp_path / "corpus", 1000, executor)
    ((code, said),) = executor.seen
    assert code == 0
    assert f"running: process {os.getpid()} on {socket.gethostname()}, since 20" in said
    assert "step 3 of 7, docs.3.personal_data (personal_data): 1 of 3 parts" in said
    assert "left in this step" in said
    assert "so far 12 documents in, 3 removed, 9 left" in said
    assert "gopher.min_words" in said
    assert "25.0%" in said


def test_status_of_a_finished_corpus_tells_its_totals(small: Recipe, tmp_path: Path) -> None:
    digest = build(small, tmp_path / "corpus", 1000).manifest.digest
    code, said = asked(tmp_path / "corpus")
    assert code == 0
    assert f"finished: by process {os.getpid()} on {socket.gethostname()}" in said
    assert "12 documents in, 3 removed, 9 kept" in said
    assert f"digest {digest}" in said
    told = json.loads(asked(tmp_path / "corpus", "--json")[1])
    assert (told["state"], told["digest"], told["documents_in"], told["documents_removed"]) == ("finished", digest, 12, 3)
    shutil.rmtree(tmp_path / "corpus" / "runs")
    code, said = asked(tmp_path / "corpus")
    assert (code, "12 documents in, 3 removed, 9 kept" in said) == (0, True)


def test_status_of_a_failed_run_says_which_parts_why_what_was_removed_and_how_to_go_on(small: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RunFailed):
        build(small, tmp_path / "corpus", 1000, Failing("docs.3.personal_data"))
    code, said = asked(tmp_path / "corpus")
    assert code == 1
    assert f"failed: process {os.getpid()}" in said
    assert "docs.3.personal_data: 1 of 3 parts failed" in said
    assert "00001 b.jsonl: OSError: the disk is full" in said
    assert "start the same command again to go on" in said
    assert "so far 12 documents in, 3 removed, 9 left" in said
    failed = [one for one in events(tmp_path / "corpus") if one["event"] == "part_failed"]
    assert [(one["step"], one["part"], one["error"]) for one in failed] == [
        ("docs.3.personal_data", "00001 b.jsonl", "OSError: the disk is full")
    ]
    result = build(small, tmp_path / "corpus", 1000)
    assert result.ran["docs.1.measure"] == 0
    assert "12 documents in, 3 removed, 9 kept" in asked(tmp_path / "corpus")[1]
    assert (progress(tmp_path / "corpus")["documents_in"], progress(tmp_path / "corpus")["documents_removed"]) == (12, 3)


@pytest.mark.slow
def test_status_of_a_killed_run_says_that_it_is_dead(small: Recipe, tmp_path: Path) -> None:
    for attempt in range(5):  # a run may end before the signal reaches it
        corpus = tmp_path / f"corpus{attempt}"
        command = [sys.executable, "-m", "pipeline", "run", small.path, "--corpus", str(corpus), "--executor", "inline"]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and not list(corpus.glob("receipts/*/*.json")):
            pass
        process.send_signal(signal.SIGKILL)
        while process.returncode is None and status._is_here(process.pid, {}):
            pass  # dead, and not yet asked for: a zombie still has its number
        code, said = asked(corpus)
        process.wait()
        if process.returncode:
            break
    assert code == 1
    assert f"dead: process {process.pid} on {socket.gethostname()} began at 20" in said
    assert "start the same command again to go on" in said
    assert asked(corpus)[0] == 1


def test_a_silent_run_of_another_machine_is_watched_before_it_is_called_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LOCAL_SECONDS", 0.01)
    told = {"state": "running", "host": "elsewhere", "process": 1, "started": 0.0, "updated": 1000.0, "steps": [], "run": "one"}
    corpus = Folder(tmp_path)
    corpus.write(LATEST, b"one")
    corpus.write("runs/one/progress.json", json.dumps(told).encode())
    assert look(corpus).state == "dead"

    def beats(_: float) -> None:
        corpus.write("runs/one/progress.json", json.dumps({**told, "updated": 1010.0}).encode())

    monkeypatch.setattr("time.sleep", beats)
    assert look(corpus).state == "running", "its clock is years behind, but it moves"


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"not JSON", b'{"state": "running", "steps": [1, {}], "started": "x", "removed": 3}']
)
def test_a_damaged_journal_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    monkeypatch.setattr(status, "LOCAL_SECONDS", 0.01)
    corpus = Folder(tmp_path)
    corpus.write(LATEST, b"one")
    corpus.write("runs/one/progress.json", damage)
    result = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    corpus.write(LATEST, b"../../etc")
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).exit_code == 1


def test_the_log_names_run_step_part_and_document(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {**FILES, "d.jsonl": [{"text": article("d")}]}, small_recipe(STAGES, []))
    corpus = tmp_path / "corpus"
    build(recipe, corpus, 1000)
    told = events(corpus)
    assert {one["run"] for one in told} == {(corpus / LATEST).read_text()}
    assert [told[0]["event"], told[-1]["event"]] == ["run_started", "run_finished"]
    assert told[-1]["digest"] == Manifest.load(Folder(corpus)).digest
    parts = {(one["step"], one["part"]): one for one in told if one["event"] == "part_done"}
    one = parts["docs.2.rules", "00001 b.jsonl"]
    assert (one["documents"], one["removed"]) == (4, {"gopher.min_words": 1})
    assert one["cpu_seconds"] >= 0 < one["peak_bytes"]
    assert {"repair", "measure", "read"} <= set(parts["docs.1.measure", "00003 d.jsonl"]["stages"])


def test_a_document_that_a_stage_broke_on_is_in_the_log(tmp_path: Path) -> None:
    journal = Journal(Folder(tmp_path), Tally("recipe.yaml", str(tmp_path), 1))
    with journal:
        from pipeline.receipts import Receipt

        broken = {"id": "docs/a#1", "stage": "repair", "rule": "repair.error", "detail": "ValueError: x"}
        journal.part_done(Work("s", "p", "f", 1, {}), Receipt(step="s", part="p", fingerprint="0" * 32, errors=[broken]))
    (told,) = [one for one in events(tmp_path) if one["event"] == "document_broken"]
    assert [told[key] for key in ("step", "part", "document", "rule")] == ["s", "p", "docs/a#1", "repair.error"]


def test_log_json_is_lines_of_json_and_nothing_else_on_standard_error(small: Recipe, tmp_path: Path) -> None:
    (tmp_path / "docs" / "x.txt").write_text("no pattern takes it")
    remark = "note: docs: files of the source that no pattern takes: .txt 1"
    command = ["run", small.path, "--corpus", str(tmp_path / "corpus"), "--executor", "inline", "--log-json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    told = [json.loads(line) for line in result.stderr.splitlines()]
    assert told == events(tmp_path / "corpus")
    assert [one["message"] for one in told if one["event"] == "remark"] == [remark]
    again = [json.loads(line) for line in CliRunner().invoke(app, command).stderr.splitlines()]
    assert [(one["event"], one.get("message")) for one in again] == [("nothing_to_do", None), ("remark", remark)]
    assert CliRunner().invoke(app, [*command[:-1], "--quiet"]).stderr == ""
    assert CliRunner().invoke(app, command[:-1]).stderr == f"{remark}\n"
    plain = CliRunner().invoke(app, ["run", small.path, "--corpus", str(tmp_path / "plain"), "--executor", "inline"])
    assert Manifest.load(Folder(tmp_path / "plain")).digest == told[-1]["digest"]
    assert "where the time went" in plain.stderr
    assert "docs.1.measure" in plain.stderr.partition("where the time went")[2]


def test_a_journal_that_cannot_be_written_stops_nothing_and_is_said_once(
    small: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "runs").write_bytes(b"a file where a folder should be")
    digest = build(small, tmp_path / "corpus", 1000).manifest.digest
    assert capsys.readouterr().err.count("warning: the journal of this run could not be written whole") == 1
    assert digest == build(small, tmp_path / "fresh").manifest.digest
    assert capsys.readouterr().err == ""


def test_a_run_that_finds_nothing_to_do_leaves_the_journal_of_the_one_that_did_it(small: Recipe, tmp_path: Path) -> None:
    build(small, tmp_path / "corpus", 1000)
    before = (tmp_path / "corpus" / LATEST).read_text()
    build(small, tmp_path / "corpus", 1000)
    assert (tmp_path / "corpus" / LATEST).read_text() == before


@pytest.mark.slow
def test_prometheus_reads_documents_removals_and_parts_from_ray_s_exporter(small: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="Ray's exporter needs ray[default]")
    import ray

    from pipeline.execution import RayExecutor

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=1, include_dashboard=False, _metrics_export_port=port, log_to_driver=False, runtime_env=environment)
    try:
        run(small, Folder(tmp_path / "corpus"), RayExecutor(), Progress(quiet=True), 1000)
        removed = 'stage="filters1"'
        lines: list[str] = []
        until = time.monotonic() + 60
        while time.monotonic() < until and not any("documents_removed" in line and removed in line for line in lines):
            try:
                lines = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode().splitlines()
            except OSError:
                continue
        values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if removed in line}
        assert values["ray_corpusmill_documents_removed_total"] == 3
        assert values["ray_corpusmill_documents_in_total"] == 12
        done = [line for line in lines if line.startswith("ray_corpusmill_parts_done_total") and 'step="docs.2.rules"' in line]
        assert [float(line.rpartition(" ")[2]) for line in done] == [3]
    finally:
        ray.shutdown()


def test_a_long_part_is_heard_of_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, whose bar counts the seconds."""
    monkeypatch.setattr("pipeline.progress.PLAIN_SECONDS", 0.01)
    heard = threading.Event()

    class Listening(io.StringIO):
        def write(self, text: str) -> int:
            if "read: 0 of 1 parts; " in text and " so far" in text:
                heard.set()
            return super().write(text)

    progress = Progress()
    progress.console = Console(file=Listening(), width=200)
    tally = Tally("recipe.yaml", "corpus", 1).begin("read", "reads", 1, Resources())
    with progress.step(tally):
        assert heard.wait(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress of read"]


@pytest.mark.parametrize(
    "edits",
    [
        {"steps": None, "failures": None, "state": "failed"},
        {"started": 1e300, "updated": 1e300},
        {"started": float("nan"), "updated": float("nan"), "state": "running"},
        {"started": -1e18, "ended": 1e14},
        {"documents_in": float("inf"), "state": "failed"},
        {"steps": [{"parts": float("nan"), "done": 10**400, "seconds": 1e-320}], "state": "failed"},
        {"state": ["x"], "process": 10**30, "host": [1]},
    ],
)
def test_a_progress_file_of_absurd_values_is_no_traceback(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edits: dict[str, Any]
) -> None:
    monkeypatch.setattr("pipeline.status.LOCAL_SECONDS", 0.01)
    build(small, tmp_path / "corpus")
    (progress,) = (tmp_path / "corpus" / "runs").glob("*/progress.json")
    progress.write_text(json.dumps(json.loads(progress.read_text()) | edits))
    for arguments in ([], ["--json"]):
        result = CliRunner().invoke(app, ["status", str(tmp_path / "corpus"), *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception


def test_a_finished_corpus_is_seen_whatever_lies_in_the_place_of_its_journals(small: Recipe, tmp_path: Path) -> None:
    build(small, tmp_path / "corpus")
    latest = tmp_path / "corpus" / "runs" / "latest"
    latest.write_text("a" * 5000)
    assert look(Folder(tmp_path / "corpus")).state == "finished"
    latest.unlink()
    latest.mkdir()
    assert look(Folder(tmp_path / "corpus")).state == "finished"
    shutil.rmtree(tmp_path / "corpus" / "runs")
    (tmp_path / "corpus" / "runs").touch()
    assert look(Folder(tmp_path / "corpus")).state == "finished"


def test_a_journal_that_cannot_be_read_is_trouble_and_no_run_that_ended(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that leads to itself is an error of reading, as of a store that does not answer."""
    corpus = tmp_path / "corpus"
    build(small, corpus)
    for name in ("latest", f"{(corpus / LATEST).read_text()}/progress.json"):
        path = corpus / "runs" / name
        told = path.read_bytes()
        path.unlink()
        path.symlink_to(path.name)
        with pytest.raises(OSError, match="symbolic links"):
            look(Folder(corpus))
        result = CliRunner().invoke(app, ["status", str(corpus)])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "error: " in result.stderr and "Traceback" not in result.stderr

        pauses: list[float] = []

        def mended(seconds: float, path: Path = path, told: bytes = told, pauses: list[float] = pauses) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                path.unlink()
                path.write_bytes(told)

        monkeypatch.setattr("time.sleep", mended)
        assert asked(corpus, "--watch")[0] == 0
        assert len(pauses) == 3

    (corpus / LATEST).unlink()
    (corpus / LATEST).symlink_to("latest")
    monkeypatch.setattr("time.sleep", lambda _: None)
    result = CliRunner().invoke(app, ["status", str(corpus), "--watch"])
    assert (result.exit_code, result.stdout) == (1, ""), "a watch of what stays unreadable ends, and says why"


def test_after_another_recipe_failed_a_run_with_nothing_to_do_is_the_latest_and_finished(small: Recipe, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    digest = build(small, corpus, 1000).manifest.digest
    other = tmp_path / "other.yaml"
    other.write_text(Path(small.path).read_text().replace("min_words: 50", "min_words: 60"))
    with pytest.raises(RunFailed):
        build(Recipe.load(other), corpus, 1000, Failing("docs.2.rules"))
    assert asked(corpus)[0] == 1
    assert not any(build(small, corpus, 1000).ran.values())
    code, said = asked(corpus)
    assert (code, "failed" in said, "start the same command" in said) == (0, False, False)
    assert f"digest {digest}" in said
    told = json.loads(asked(corpus, "--json")[1])
    assert (told["state"], told["digest"], told["documents_in"], told["documents_removed"]) == ("finished", digest, 12, 3)
    assert [one["event"] for one in events(corpus)] == ["run_started", "nothing_to_do", "run_finished"]
    before = (corpus / LATEST).read_text()
    build(small, corpus, 1000)
    assert (corpus / LATEST).read_text() == before


def test_a_clock_that_was_set_makes_no_live_run_dead_and_a_number_given_again_no_dead_one_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LOCAL_SECONDS", 0.01)
    corpus = Folder(tmp_path)
    day = 86400.0
    with Journal(corpus, Tally("recipe.yaml", str(tmp_path), 1, started=time.time() - day)):
        assert look(corpus).state == "running", "it began a day before its process did: the clock was set forward"
        name = f"runs/{(tmp_path / LATEST).read_text()}/progress.json"
        told = json.loads((tmp_path / name).read_text())
    later = {**told, "started": time.time() + day, "updated": time.time()}
    corpus.write(name, json.dumps(later).encode())
    assert look(corpus).state == "running", "and back"
    corpus.write(name, json.dumps({**later, "identity": {**told["identity"], "began": "1"}}).encode())
    assert look(corpus).state == "dead", "another process has its number now"
    corpus.write(name, json.dumps({**later, "process": 1 << 22, "identity": {**told["identity"], "boot": "another"}}).encode())
    assert look(corpus).state == "running", "a machine of the same name, heard of just now"


def test_lines_that_could_not_be_written_are_written_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_bytes(b"a file where a folder should be")
    with Journal(Folder(tmp_path), Tally("recipe.yaml", str(tmp_path), 1)) as journal:
        journal.event("one")
        journal._flush()
        assert journal.trouble
        (tmp_path / "runs").unlink()
        journal.event("two")
    assert [one["event"] for one in events(tmp_path)] == ["run_started", "one", "two", "run_finished"]
    assert capsys.readouterr().err == "", "nothing is missing"


def test_lines_that_wait_are_bounded_and_those_lost_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.journal.KEPT_BYTES", 2000)
    (tmp_path / "runs").write_bytes(b"a file where a folder should be")
    with Journal(Folder(tmp_path), Tally("recipe.yaml", str(tmp_path), 1)) as journal:
        for number in range(100):
            journal.event("something", number=number)
            journal._flush()
        assert sum(map(len, journal._lines)) <= 2000
        (tmp_path / "runs").unlink()
    told = events(tmp_path)
    assert [one["number"] for one in told[:-1]] == list(range(101 - len(told), 100)), "the newest stay"
    assert f"{102 - len(told)} of its lines are lost" in capsys.readouterr().err


def test_an_event_waits_for_no_slow_store(tmp_path: Path) -> None:
    """The store here is a pipe that nobody reads yet."""
    corpus = Folder(tmp_path)
    journal = Journal(corpus, Tally("recipe.yaml", str(tmp_path), 1))
    log = tmp_path / "runs" / journal.tally.run / "log.jsonl"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    journal.event("one")
    writing = threading.Thread(target=journal._flush, daemon=True)
    writing.start()
    while journal._lines:
        pass  # until the writer has taken them
    telling = threading.Thread(target=journal.event, args=("two",), daemon=True)
    telling.start()
    telling.join(60)
    told = not telling.is_alive()
    with open(log, "rb") as reader:
        writing.join(60)
        reader.read()
    assert told and writing.is_alive() is False


def test_quiet_leaves_warnings(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "too short"}]}, small_recipe(STAGES))
    (tmp_path / "docs" / "x.txt").write_text("no pattern takes it")
    command = ["run", recipe.path, "--corpus", str(tmp_path / "corpus"), "--executor", "inline", "--quiet"]
    (said,) = CliRunner().invoke(app, command).stderr.splitlines()
    assert said.startswith("warning: docs: 0 of 1 documents kept")
