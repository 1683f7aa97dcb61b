"""What is done is not done again, and what has changed is."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pipeline
from manifests.manifest import Manifest, ManifestError
from manifests.storage import TEMPORARY_PREFIX, Folder, StorageError
from manifests.verification.verify import verify
from pipeline.cleaning import clean
from pipeline.commands import app
from pipeline.execution import RayExecutor
from pipeline.inputs import InputError
from pipeline.lock import Locked, exclusive
from pipeline.recipe import Recipe
from pipeline.run import survey
from pipeline.summary import outdated
from tests.pipeline.crawl import ONE_FILE_A_PART, Crawl, article, build, lines_of, small_recipe, write_small

STAGES: list[Any] = ["repair", {"gopher_quality": {"min_words": 50}}, "c4", "personal_data"]


@pytest.fixture
def small(tmp_path: Path) -> Recipe:
    """Three files, each a part of its own when parts are of 1,000 bytes."""
    files = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] for name in "abc"}
    return write_small(tmp_path, files, small_recipe(STAGES, ["exact_dedup"]))


def test_another_gopher_threshold_reads_extracts_and_measures_nothing_again(crawl: Crawl, finished: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(finished, corpus)
    before = Manifest.load(Folder(corpus))

    def stricter(recipe: dict[str, Any]) -> None:
        for component in recipe["components"].values():
            component["stages"] = [
                {"gopher_quality": {"min_words": 150}} if one == "gopher_quality" else one for one in component["stages"]
            ]

    result = build(crawl.load(stricter, "stricter.yaml"), corpus, ONE_FILE_A_PART)
    ran = {step for step, parts in result.ran.items() if parts}
    read = {"web.1.extraction", "web.2.measure", "books.1.measure", "tables.1.measure"}
    assert read <= set(result.ran)
    assert not ran & read
    assert {"web.3.rules", "books.2.rules", "tables.2.rules"} <= ran
    assert result.manifest.digest != before.digest
    assert list(verify(Folder(corpus), result.manifest)) == []
    few = [
        row
        for row in pq.read_table(corpus / "logs/removals/books/00000.parquet").to_pylist()
        if row["rule"] == "gopher.min_words"
    ]
    assert few
    assert all(row["value"] < 150 == row["threshold"] for row in few)


def test_one_added_file_is_one_new_reading_part(small: Recipe, tmp_path: Path) -> None:
    build(small, tmp_path / "corpus", part_bytes=1000)
    (tmp_path / "docs" / "bb.jsonl").write_bytes(lines_of([{"text": article("bb")}]))
    result = build(small, tmp_path / "corpus", part_bytes=1000)
    assert result.ran["docs.1.measure"] == result.ran["docs.2.rules"] == result.ran["docs.3.personal_data"] == 1
    assert result.manifest.content.components["docs"].documents_in == 10


def test_a_part_without_documents_that_comes_to_stand_elsewhere_changes_no_decision(tmp_path: Path) -> None:
    """Parts without documents are all alike, but the others are numbered by how many stand before them."""
    texts = [article(f"a {number}") for number in range(4)]
    near = [text + "\nAnd that was all there was to say." for text in (*texts[:2], article("c"))]
    files = {
        "a.jsonl": [{"text": text} for text in texts],
        "b.jsonl": [{"text": " "}],
        "c.jsonl": [{"text": text} for text in near],
    }
    recipe = write_small(tmp_path, files, small_recipe([], ["exact_dedup", {"minhash": {"bands": 20, "rows": 4}}]))
    build(recipe, tmp_path / "corpus", part_bytes=1)
    (tmp_path / "docs" / "b.jsonl").rename(tmp_path / "docs" / "d.jsonl")
    again = build(recipe, tmp_path / "corpus", part_bytes=1).manifest
    assert again.content.components["docs"].documents_kept == 5
    assert again.digest == build(recipe, tmp_path / "fresh", part_bytes=1).manifest.digest


def test_parts_without_documents_are_one_piece_of_work_and_all_done(tmp_path: Path) -> None:
    files = {"a.jsonl": [{"text": article("a")}], "b.jsonl": [{"text": " "}], "c.jsonl": [{"text": " "}]}
    recipe = write_small(tmp_path, files, small_recipe([], ["exact_dedup"]))
    result = build(recipe, tmp_path / "corpus", part_bytes=1)
    assert result.ran["corpus.1.exact_dedup.keys"] == 2
    reports, _ = survey(recipe, Folder(tmp_path / "corpus"), part_bytes=1)
    assert all(report.finished == report.parts for report in reports)


@pytest.mark.slow
def test_a_corpus_that_grows_keys_and_signs_its_new_parts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is cut into more partitions than before."""
    monkeypatch.setattr("pipeline.steps.PARTITION_BYTES", 3000)
    files = {f"{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] for name in "abc"}
    recipe = small_recipe(STAGES, ["exact_dedup", "line_dedup", {"minhash": {"bands": 20, "rows": 4}}])
    small = write_small(tmp_path, files, recipe)
    first = build(small, tmp_path / "corpus", part_bytes=1000)
    more = {f"b{name}.jsonl": [{"text": article(f"{name} {i}")} for i in range(3)] for name in "defghi"}
    more["bz.jsonl"] = files["a.jsonl"][:2]
    grown = write_small(tmp_path, more, recipe)
    result = build(grown, tmp_path / "corpus", part_bytes=1000)
    assert result.ran["corpus.1.exact_dedup.groups"] > first.ran["corpus.1.exact_dedup.groups"]
    assert result.ran["corpus.1.exact_dedup.keys"] == len(more)
    assert result.ran["corpus.2.line_dedup.keys"] == len(more)
    assert result.ran["corpus.3.minhash.sign"] == len(more)
    fresh = build(grown, tmp_path / "fresh")
    assert fresh.manifest.digest == result.manifest.digest
    assert sum(one.removed.get("exact_dedup.duplicate", 0) for one in fresh.manifest.content.counts) == 2


def test_a_finished_corpus_gives_nothing_to_do_and_ray_is_not_started(small: Recipe, tmp_path: Path) -> None:
    first = build(small, tmp_path / "corpus")
    stamp = (tmp_path / "corpus" / "manifest.json").stat()
    executor = RayExecutor()
    again = build(small, tmp_path / "corpus", executor=executor)
    assert executor.ray is None
    assert not any(again.ran.values())
    assert again.manifest == first.manifest
    after = (tmp_path / "corpus" / "manifest.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    result = CliRunner().invoke(app, ["run", small.path, "--corpus", str(tmp_path / "corpus")])
    assert result.exit_code == 0
    assert f"nothing to do; digest {first.manifest.digest}" in result.stdout


def test_a_finished_corpus_needs_no_work_files(small: Recipe, tmp_path: Path) -> None:
    first = build(small, tmp_path / "corpus")
    shutil.rmtree(tmp_path / "corpus" / "steps")
    again = build(small, tmp_path / "corpus")
    assert not any(again.ran.values())
    assert again.manifest.digest == first.manifest.digest
    assert list(verify(Folder(tmp_path / "corpus"), again.manifest)) == []


def test_without_work_files_a_changed_recipe_does_again_what_it_needs(small: Recipe, tmp_path: Path) -> None:
    build(small, tmp_path / "corpus", part_bytes=1000)
    shutil.rmtree(tmp_path / "corpus" / "steps")
    changed = write_small(
        tmp_path, {}, small_recipe(["repair", {"gopher_quality": {"min_words": 40}}, "c4", "personal_data"], ["exact_dedup"])
    )
    (tmp_path / "docs" / "d.jsonl").write_bytes(lines_of([{"text": article("d")}]))
    result = build(changed, tmp_path / "corpus", part_bytes=1000)
    assert result.ran["docs.1.measure"] == 4
    assert list(verify(Folder(tmp_path / "corpus"), result.manifest)) == []
    fresh = build(changed, tmp_path / "fresh")
    assert result.manifest.digest == fresh.manifest.digest


def test_a_run_that_ended_before_its_manifest_was_written_only_writes_it(small: Recipe, tmp_path: Path) -> None:
    first = build(small, tmp_path / "corpus")
    (tmp_path / "corpus" / "manifest.json").unlink()
    shutil.rmtree(tmp_path / "corpus" / "logs")
    again = build(small, tmp_path / "corpus")
    assert not any(again.ran.values())
    assert again.manifest.digest == first.manifest.digest
    assert list(verify(Folder(tmp_path / "corpus"), again.manifest)) == []


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"not JSON", b'{"step": "docs.1.measure", "part": "x", "fingerprint": "of another"}']
)
def test_a_receipt_that_is_none_makes_its_part_run_again(small: Recipe, tmp_path: Path, damage: bytes) -> None:
    first = build(small, tmp_path / "corpus", part_bytes=1000)
    receipt = sorted((tmp_path / "corpus" / "receipts" / "docs.1.measure").glob("*.json"))[1]
    receipt.write_bytes(damage)
    again = build(small, tmp_path / "corpus", part_bytes=1000)
    assert again.ran["docs.1.measure"] == 1
    assert sum(again.ran.values()) == 1
    assert again.manifest.digest == first.manifest.digest


def test_running_twice_or_with_other_parts_never_adds_a_row(small: Recipe, tmp_path: Path) -> None:
    for part_bytes in (1000, 1 << 27, 1000):
        result = build(small, tmp_path / "corpus", part_bytes=part_bytes)
        assert result.manifest.content.components["docs"].documents_in == 9
        assert list(verify(Folder(tmp_path / "corpus"), result.manifest)) == []


def test_files_that_are_no_longer_part_of_the_corpus_are_deleted(small: Recipe, tmp_path: Path) -> None:
    build(small, tmp_path / "corpus")
    assert list((tmp_path / "corpus" / "logs" / "signals").rglob("*.parquet"))
    result = build(write_small(tmp_path, {}, small_recipe(["repair"])), tmp_path / "corpus")
    listed = {log.path for log in result.manifest.content.logs}
    there = {str(path.relative_to(tmp_path / "corpus")) for path in (tmp_path / "corpus" / "logs").rglob("*") if path.is_file()}
    assert there == listed
    assert not any("signals" in path for path in there)


def test_a_second_run_at_the_same_time_is_refused_and_names_the_first(small: Recipe, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    with exclusive(Folder(corpus)):
        with pytest.raises(Locked, match=rf"process {os.getpid()} on {socket.gethostname()}: one run per corpus at a time"):
            build(small, corpus)
        result = CliRunner().invoke(app, ["run", small.path, "--corpus", str(corpus), "--executor", "inline"])
        assert result.exit_code == 1
        assert f"process {os.getpid()}" in result.stderr
    build(small, corpus)


def test_the_lock_of_a_killed_run_does_not_block_the_next(small: Recipe, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    code = (
        "import sys, signal; from manifests.storage import Folder; from pipeline.lock import exclusive\n"
        "with exclusive(Folder(sys.argv[1])):\n    print('held', flush=True); signal.pause()"
    )
    root = Path(pipeline.__file__).parent.parent
    holder = subprocess.Popen([sys.executable, "-c", code, str(corpus)], cwd=root, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(Locked, match=f"process {holder.pid} on"):
            build(small, corpus)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert (corpus / "lock.json").read_bytes(), "the dead owner's name is still there"
    assert build(small, corpus).manifest.content.components["docs"].documents_in == 9


def test_plan_says_what_is_done_and_what_will_run(small: Recipe, tmp_path: Path) -> None:
    from pipeline.run import survey

    before = {report.step.name: (report.parts, report.finished) for report in survey(small, Folder(tmp_path / "corpus"), 1000)[0]}
    assert before["docs.1.measure"] == (3, 0)
    assert before["docs.2.rules"] == (None, 0)
    assert not (tmp_path / "corpus").exists()
    build(small, tmp_path / "corpus", part_bytes=1000)
    after = {report.step.name: (report.parts, report.finished) for report in survey(small, Folder(tmp_path / "corpus"), 1000)[0]}
    assert all(parts == done for parts, done in after.values())
    (tmp_path / "docs" / "d.jsonl").write_bytes(lines_of([{"text": article("d")}]))
    added = {report.step.name: (report.parts, report.finished) for report in survey(small, Folder(tmp_path / "corpus"), 1000)[0]}
    assert added["docs.1.measure"] == (4, 3)
    stricter = write_small(tmp_path, {}, small_recipe(["repair", {"gopher_quality": {"min_words": 40}}, "c4"], ["exact_dedup"]))
    assert survey(stricter, Folder(tmp_path / "corpus"), 1000)[1] == [
        "docs: gopher_quality: min_words 50 → 40",
        "docs: personal_data is gone",
        "docs: new 1 files, such as d.jsonl",
    ]
    result = CliRunner().invoke(app, ["plan", small.path, "--corpus", str(tmp_path / "corpus")])
    assert result.exit_code == 0
    assert "docs.1.measure" in result.stdout


def test_a_file_that_a_finished_corpus_has_lost_is_put_back(small: Recipe, tmp_path: Path) -> None:
    first = build(small, tmp_path / "corpus")
    lost = first.manifest.content.logs[0].path
    (tmp_path / "corpus" / lost).unlink()
    again = build(small, tmp_path / "corpus")
    assert not any(again.ran.values())
    assert again.manifest.digest == first.manifest.digest
    assert list(verify(Folder(tmp_path / "corpus"), again.manifest)) == []


def test_cleaning_leaves_a_whole_corpus_and_what_the_next_run_needs(small: Recipe, tmp_path: Path) -> None:
    corpus = Folder(tmp_path / "corpus")
    build(small, tmp_path / "corpus")
    changed = write_small(
        tmp_path, {}, small_recipe(["repair", {"gopher_quality": {"min_words": 40}}, "c4", "personal_data"], ["exact_dedup"])
    )
    finished = build(changed, tmp_path / "corpus").manifest
    deleted, size = clean(corpus)
    assert deleted > 0 < size
    assert clean(corpus) == (0, 0)
    assert list(verify(corpus, finished)) == []
    assert not any(build(changed, tmp_path / "corpus").ran.values())
    again = build(small, tmp_path / "corpus")
    assert again.ran["docs.1.measure"] == 0, "reading is common to both recipes"
    assert again.ran["docs.2.rules"] == 1
    result = CliRunner().invoke(app, ["clean", str(tmp_path / "corpus"), "--work-files"])
    assert result.exit_code == 0
    assert corpus.names("steps") == []
    assert list(verify(corpus, again.manifest)) == []


def test_cleaning_leaves_the_newest_journals_and_that_of_the_run_that_made_the_corpus(small: Recipe, tmp_path: Path) -> None:
    corpus = Folder(tmp_path / "corpus")
    digest = build(small, tmp_path / "corpus").manifest.digest
    made = corpus.read("runs/latest").decode()
    names = [f"20990101T0000{number:02d}Z-00000000" for number in range(14)]
    for number, name in enumerate([*names, "20000101T000000Z-00000000", "20000101T000001Z-00000000"]):
        corpus.write(f"runs/{name}/log.jsonl", b"{}\n")
        corpus.write(f"runs/{name}/progress.json", told_bytes(digest) if number == 14 else b"not JSON")
    deleted, size = clean(corpus)
    assert (deleted, size) == (12, sum(map(len, [b"{}\n" * 6, b"not JSON" * 5, told_bytes(digest)])))
    assert {name.split("/")[1] for name in corpus.names("runs")} == {"latest", made, *names[4:]}
    corpus.write("runs/latest", names[5].encode())
    for number in range(20):
        corpus.write(f"runs/20990102T0000{number:02d}Z-00000000/log-00000.jsonl", b"{}\n")
    clean(corpus)
    kept = {name.split("/")[1] for name in corpus.names("runs")}
    assert made in kept and names[5] in kept and len(kept) == 10 + 3
    assert clean(corpus) == (0, 0)
    assert not any(build(small, tmp_path / "corpus").ran.values())


def told_bytes(digest: str) -> bytes:
    return json.dumps({"state": "finished", "digest": digest}).encode()


def test_sigterm_ends_a_run_with_143_and_the_same_command_goes_on(small: Recipe, tmp_path: Path) -> None:
    said, code = "", 0
    for attempt in range(5):  # a run may end before the signal reaches it
        corpus = tmp_path / f"corpus{attempt}"
        command = [sys.executable, "-m", "pipeline", "run", small.path, "--corpus", str(corpus), "--executor", "inline"]
        process = subprocess.Popen(command, cwd=Path(pipeline.__file__).parents[1], stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not list(corpus.glob("receipts/*/*.json")):
            pass
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
        code = process.returncode
        if code:
            break
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; what is finished is kept" in said
    assert build(small, corpus).manifest.digest == build(small, tmp_path / "fresh").manifest.digest


def test_plan_refuses_where_run_would_and_names_inputs_that_changed(small: Recipe, tmp_path: Path) -> None:
    build(small, tmp_path / "corpus")
    _, changed = survey(small, Folder(tmp_path / "corpus"))
    assert changed == []
    docs = sorted((tmp_path / "docs").iterdir())
    docs[0].write_bytes(docs[0].read_bytes() + b'{"text": "one more"}\n')
    _, (said,) = survey(small, Folder(tmp_path / "corpus"))
    assert said.startswith(f"an input file has changed, which `run` refuses without --changed-inputs: {docs[0]} (")
    for place, complaint in ((tmp_path / "docs", "in the source"), (docs[0], "is a file")):
        with pytest.raises(InputError, match=complaint):
            survey(small, Folder(place))


def test_cleaning_what_is_no_corpus_leaves_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        clean(Folder(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_corpus_that_cannot_be_made_is_named_with_the_reason(small: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"the corpus .*/file/corpus cannot be written: Not a directory"):
        build(small, tmp_path / "file" / "corpus")
    with pytest.raises(InputError, match=r"the corpus is a folder, and .*/file is a file"):
        build(small, tmp_path / "file")


def test_ctrl_c_ends_a_run_with_130_and_says_how_to_go_on(small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.run.run", interrupted)
    result = CliRunner().invoke(app, ["run", small.path, "--corpus", str(tmp_path / "corpus"), "--executor", "inline"])
    assert result.exit_code == 130
    assert "stopped by Ctrl-C; what is finished is kept: start the same command again to go on" in result.stderr


def test_a_dropped_manifest_that_no_longer_fits_is_named_after_a_run(small: Recipe, tmp_path: Path) -> None:
    corpus = Folder(tmp_path / "corpus")
    manifest = build(small, tmp_path / "corpus").manifest
    corpus.write("kept.json", corpus.read("manifest.json"))
    assert outdated(corpus, manifest) == []
    (tmp_path / "docs" / "a.jsonl").unlink()
    (said,) = outdated(corpus, build(small, tmp_path / "corpus").manifest)
    assert re.match(
        r"warning: kept\.json no longer describes what is there: \d+ of its files have changed or gone, such as logs/", said
    )


def test_what_killed_runs_began_to_write_is_cleaned_away(small: Recipe, tmp_path: Path) -> None:
    manifest = build(small, tmp_path / "corpus").manifest
    for folder in ("steps", "steps/docs.1.measure", "receipts", "logs/documents/docs"):
        (tmp_path / "corpus" / folder / f"{TEMPORARY_PREFIX}x").write_text("half a")
    assert clean(Folder(tmp_path / "corpus"))[0] == 4
    assert not list((tmp_path / "corpus").rglob(f"{TEMPORARY_PREFIX}*"))
    assert list(verify(Folder(tmp_path / "corpus"), manifest)) == []


@pytest.mark.parametrize(
    ("resources", "complaint"),
    [
        (["docs.1.measure"], "write NAME:cpus=2,memory=4GiB"),
        (["c4:cpus=1", "c4:memory=1GiB"], "'c4' is there twice"),
        (["c4:cpus=0"], "a number above zero is needed"),
    ],
)
def test_resources_that_say_nothing_clear_are_refused(
    small: Recipe, tmp_path: Path, resources: list[str], complaint: str
) -> None:
    options = [word for one in resources for word in ("--resources", one)]
    result = CliRunner().invoke(app, ["run", small.path, "--corpus", str(tmp_path / "corpus"), "--executor", "inline", *options])
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.replace("│", " ").split())
