"""The demo itself, from crawl to val_bpb, with a shorter training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from demo.__main__ import QUESTIONS
from demo.crawl import HERE, PLANTED, TOWN


@dataclass
class Demo:
    folder: Path
    output: str
    logs: duckdb.DuckDBPyConnection

    def removal(self, url: str) -> tuple[object, ...] | None:
        return self.logs.execute("select rule, linked_id from removals where url = ?", [url]).fetchone()

    def edits(self, url: str) -> set[str]:
        question = "select rule from edits join documents using (id) where url = ?"
        return {rule for (rule,) in self.logs.execute(question, [url]).fetchall()}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """`python -m demo` in a copy of its own, so that nobody's demo/out is touched."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(HERE, folder / "demo", ignore=shutil.ignore_patterns("out", "__pycache__"))
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--seconds", "5"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    logs = duckdb.connect()
    for name in ("documents", "removals", "edits"):
        files = f"{folder}/demo/out/corpus/logs/{name}/**/*.parquet"
        logs.execute(f"create view {name} as select * from read_parquet('{files}', union_by_name = true)")
    yield Demo(folder, run.stdout, logs)
    logs.close()


def test_it_shows_each_command_and_ends_with_val_bpb(demo: Demo) -> None:
    shown = [line.split()[2] for line in demo.output.splitlines() if line.startswith("$ corpusmill ")]
    assert shown == ["plan", "run", "funnel", *["why"] * len(QUESTIONS), "verify", "train"]
    assert 0.5 < float(demo.output.rpartition("\nval_bpb=")[2].split(":")[0]) < 8
    assert "What to look at next" in demo.output


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("unwanted language", "language.unwanted"),
        ("repeated lines", "gopher_repetition.max_duplicate_lines"),
        ("lorem ipsum", "c4.lorem_ipsum"),
        ("braces", "c4.curly_brace"),
        ("too short", "gopher.min_words"),
        ("blocked domain", "url_filter.domain"),
        ("blocked word", "url_filter.word"),
        ("not found", "read.status"),
        ("image", "read.media_type"),
        ("empty", "read.empty_payload"),
        ("truncated", "read.truncated"),
        ("benchmark item", "decontamination.ngram"),
    ],
)
def test_what_was_planted_is_removed_by_its_rule(demo: Demo, kind: str, rule: str) -> None:
    removal = demo.removal(PLANTED[kind])
    assert removal is not None, f"{PLANTED[kind]} was kept"
    assert removal[0] == rule


def test_a_page_of_links_is_not_kept(demo: Demo) -> None:
    assert demo.removal(PLANTED["navigation only"]) is not None


def test_one_of_three_lighthouses_stays(demo: Demo) -> None:
    urls = [f"{TOWN}/stories/lighthouse", PLANTED["exact copy"], PLANTED["near copy"]]
    removals = [removal for url in urls if (removal := demo.removal(url)) is not None]
    assert sorted(str(rule) for rule, _ in removals) == ["exact_dedup.duplicate", "minhash.near_duplicate"]
    assert all(linked for _, linked in removals)


@pytest.mark.parametrize("kind", ["chinese", "chinese in gb18030", "german", "german in latin-1", "chunked and compressed"])
def test_good_pages_in_other_languages_and_encodings_stay(demo: Demo, kind: str) -> None:
    assert demo.removal(PLANTED[kind]) is None


def test_edits_are_logged(demo: Demo) -> None:
    assert "repair.mojibake" in demo.edits(PLANTED["mojibake"])
    assert {f"personal_data.{what}" for what in ("email", "phone", "ip")} <= demo.edits(PLANTED["personal data"])


def test_most_of_the_documentation_that_is_prose_stays(demo: Demo) -> None:
    kept = demo.logs.execute("select count(*), sum(text_bytes) from documents where removed_by is null").fetchone()
    assert kept is not None
    assert kept[0] >= 150
    assert kept[1] > 500_000
