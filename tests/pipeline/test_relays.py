"""Relays change who reads what, and no byte of a corpus: shuffles that go through them arrive as those that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline import relay_steps, shuffle, steps
from pipeline.cleaning import clean
from pipeline.plan import make_plan
from pipeline.receipts import Receipt
from pipeline.relay_steps import MOST_PIECES, Relay, Shape
from pipeline.relays import relay
from pipeline.steps import partitions_of
from pipeline.work import Task, Work
from tests.pipeline.crawl import article, build, near_copy, small_recipe, write_small
from tests.pipeline.test_determinism import ROOT, published

ROWS = pa.schema([pa.field("key", pa.uint64(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])
contents = st.lists(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.text(max_size=3)), max_size=9), min_size=1, max_size=5)


def table_of(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table(
        [pa.array([row[0] for row in rows], pa.uint64()), pa.array([row[1] for row in rows], pa.large_string())], ROWS
    )


def relayed(corpus: Folder, files: list[str], streams: int, partitions: int, width: int | None, group: int) -> dict[str, Any]:
    """Runs the relays of a shuffle, `group` files each, and gives what readers are given."""
    names = []
    for stream in range(streams):
        for first in range(0, len(files), group):
            arguments = {"stream": stream, "streams": streams, "partitions": partitions, "width": width, "column": "key"}
            given = {"files": files[first : first + group], "first": first}
            work = Work("relay", "", "pipeline.relays:relay", 1, {**arguments, "first": first}, (), given)
            receipt = Receipt(step="relay", part="", fingerprint=work.fingerprint)
            relay(Task(corpus, work, receipt))
            names.append(receipt.files["relay"].path)
    return {"files": names, "groups": -(-len(files) // group), "streams": streams, "width": width}


def arrived(found: Any) -> list[tuple[int, dict[str, Any]]]:
    return [pair for sources, rows in found for pair in zip(sources.tolist(), rows.to_pylist(), strict=True)]


@given(contents, st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_rows_arrive_in_the_same_order_from_the_same_files_with_streams_of_any_width(
    contents: list[list[tuple[int, str]]], partitions: int, width: int, group: int, run_bytes: int
) -> None:
    """Read from files whose streams have several partitions, and through relays, whatever width those were told of."""
    with tempfile.TemporaryDirectory() as name:
        corpus, plain, wide = Folder(name), [], []
        for number, rows in enumerate(contents):
            for names, of in ((plain, 1), (wide, width)):
                with shuffle.writing(corpus, f"{number}-{of}-{len(names)}.s", ROWS, partitions, run_bytes, of) as writer:
                    for row in rows:
                        writer.add(table_of([row]), np.array([row[0] % partitions]))
                names.append(writer.out.written.path)
        streams = -(-partitions // width)
        through = [relayed(corpus, files, streams, partitions, width, group) for files in (plain, wide)]
        for partition in range(partitions):
            wanted = arrived(shuffle.gather(corpus, plain, partition))
            assert len(wanted) == sum(row[0] % partitions == partition for rows in contents for row in rows)
            for files in (wide, *through):
                assert arrived(shuffle.gather(corpus, files, partition)) == wanted
                runs = [row for rows in shuffle.gather_runs(corpus, files, partition) for row in rows.to_pylist()]
                assert runs == [row for _, row in wanted]


@given(contents, st.sampled_from([1, 2, 4, 16]), st.sampled_from([1, 2, 8]), st.integers(1, 4), st.sampled_from([1, 2, 4]))
@settings(max_examples=25, deadline=None)
def test_keys_arrive_through_relays_however_finely_their_files_were_cut(
    contents: list[list[tuple[int, str]]], written: int, wanted: int, group: int, streams: int
) -> None:
    streams = min(streams, wanted)
    with tempfile.TemporaryDirectory() as name:
        corpus = Folder(name)
        files = [
            shuffle.write_partitions(
                corpus, f"{number}.s", table_of(rows), np.array([row[0] % written for row in rows], dtype=np.int64), written
            ).path
            for number, rows in enumerate(contents)
        ]
        through = relayed(corpus, files, streams, wanted, None, group)
        for partition in range(wanted):
            found = arrived(shuffle.gather_residue(corpus, through, "key", partition, wanted))
            mine = [
                (number, {"key": key, "text": text})
                for number, rows in enumerate(contents)
                for key, text in rows
                if key % wanted == partition
            ]
            assert sorted(found, key=repr) == sorted(mine, key=repr)
            assert [number for number, _ in found] == sorted(number for number, _ in mine)


def test_a_stream_of_several_partitions_names_a_partition_that_it_does_not_have(tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    shuffle.write_partitions(corpus, "wide", table_of([(1, "a")]), np.array([4]), 5, width=3)
    assert shuffle.read_partition(corpus, "wide", 3) is None
    assert shuffle.read_partition(corpus, "wide", 4) is not None
    with pytest.raises(shuffle.ShuffleError, match="5 partitions, not 6"):
        shuffle.read_partition(corpus, "wide", 5)
    corpus.write("cut", corpus.read("wide")[-30:])
    with pytest.raises(shuffle.ShuffleError, match=r"cut is not a shuffle file|cut cannot have 1 runs of 5 partitions"):
        shuffle.read_partition(corpus, "cut", 4)


MENU = "Home, news, about us and how to write to us."
FILES = {
    f"{name}.jsonl": [{"text": f"{MENU}\n{text}"} for text in (article(name), article(f"{name} too"), near_copy(name, 1))]
    + [{"text": article(f"quotes {name}") + "\n" + article(f"quoted {name in 'ab'}").split("\n")[0]}, {"text": article("twice")}]
    for name in "abcd"
}
CORPUS_WIDE = [
    "exact_dedup",
    {"line_dedup": {"max_documents": 3}},
    {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}},
    {"substring_dedup": {"min_tokens": 20}},
    {"split": {"validation": 0.2, "test": 0.2}},
    {"tokenizer": {"vocabulary": 600}},
    {"shards": {"target_tokens": 300}},
]


def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shuffle through relays, of three files each."""
    monkeypatch.setattr(relay_steps, "MOST_PIECES", 0)
    monkeypatch.setattr(relay_steps, "RELAY_FILES", 3)


def test_a_corpus_has_the_same_bytes_with_and_without_relays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every kind of shuffle, over components that have shards and logs of their own."""
    monkeypatch.setattr(steps, "PARTITION_BYTES", 8000)
    monkeypatch.setattr(steps, "LOG_ROWS", 5)
    recipe = small_recipe(["repair"], CORPUS_WIDE)
    recipe["components"]["more"] = {**recipe["components"]["docs"], "source": "more"}
    (tmp_path / "more").mkdir()
    for name in "gh":
        texts = "".join(f'{{"text": "{name} {number} is short, but it is there"}}\n' for number in range(6))
        (tmp_path / "more" / f"{name}.jsonl").write_text(texts)
    loaded = write_small(tmp_path, FILES, recipe)
    direct = build(loaded, tmp_path / "direct", part_bytes=1)
    assert not any(step.endswith(".relay") for step in direct.ran)
    forced(monkeypatch)
    through = build(loaded, tmp_path / "relayed", part_bytes=1)
    relays = {step: parts for step, parts in through.ran.items() if step.endswith(".relay")}
    assert {step.split(".")[-2] for step in relays} == {
        *("keys", "decisions", "stays", "spans", "bands", "pairs", "requests", "sent"),
        *("edges", "nodes", "compared", "groups", "tokens", "placed"),
    }
    assert all(relays.values()) and relays["corpus.1.exact_dedup.keys.keys.relay"] >= 4
    assert published(tmp_path / "relayed") == published(tmp_path / "direct")
    for row in through.manifest.content.deduplication:
        assert row.get("component") == "more" or row.get("removed", row.get("boilerplate", row.get("spans", 1))), row


@pytest.mark.slow
def test_a_run_killed_among_its_relays_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_small(tmp_path, FILES, small_recipe(["repair"], [*CORPUS_WIDE[:1], CORPUS_WIDE[2]]))
    monkeypatch.setattr(steps, "PARTITION_BYTES", 8000)
    direct = build(recipe, tmp_path / "direct", part_bytes=1)
    code = (
        "import sys; from pipeline import relay_steps, steps; from tests.pipeline.crawl import build\n"
        "from pipeline.recipe import Recipe\n"
        "relay_steps.MOST_PIECES, relay_steps.RELAY_FILES, steps.PARTITION_BYTES = 0, 3, 8000\n"
        "build(Recipe.load(sys.argv[1]), sys.argv[2], 1)"
    )
    corpus = tmp_path / "corpus"
    step = corpus / "receipts" / "corpus.2.minhash.candidates.requests.relay"
    driver = subprocess.Popen([sys.executable, "-c", code, recipe.path, str(corpus)], cwd=ROOT, env=dict(os.environ))
    while not len(list(step.glob("*.json"))):
        assert driver.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    there = len(list(step.glob("*.json")))
    forced(monkeypatch)
    result = build(recipe, corpus, part_bytes=1)
    all_of_it = len(list(step.glob("*.json")))
    assert 0 < there < all_of_it and result.ran[step.name] == all_of_it - there
    assert result.manifest.digest == direct.manifest.digest
    monkeypatch.setattr(relay_steps, "MOST_PIECES", MOST_PIECES)
    assert not any(build(recipe, corpus, part_bytes=1).ran.values()), "relays are no part of what their readers are known by"
    assert list(verify(Folder(corpus), Manifest.load(Folder(corpus)))) == []
    clean(Folder(corpus))
    assert not list(corpus.glob("steps/*/lists/*/*")), "lists go with their step, and those of the killed run with `clean`"


def test_a_plan_has_relays_only_where_files_times_partitions_are_many(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, FILES, small_recipe(["repair"], CORPUS_WIDE))
    assert not any(step.name.endswith(".relay") for step in make_plan(recipe).steps)
    assert not Shape(1 << 10, 1 << 10).relayed
    snapshot = Shape(90_000, 1 << 15)
    assert snapshot.relayed and snapshot.residues == 256 and snapshot.width == 182
    assert snapshot.files * snapshot.residues < 24e6 < MOST_PIECES * 24


def test_partitions_follow_from_documents_and_bytes_and_stay_below_what_a_task_declares() -> None:
    assert [partitions_of(0, size << 20) for size in (0, 127, 128, 1024, 64 << 10, 191 << 10)] == [1, 1, 2, 16, 512, 512]
    assert partitions_of(3_000_000_000, 3_000_000_000 * 3300) == 1 << 15
    assert partitions_of(0, 10**20) == 1 << 16
    for documents in (10**6, 10**7, 10**8, 10**9, 3 * 10**9):
        for length in (100, 3_300, 50_000):
            partitions = partitions_of(documents, documents * length)
            assert partitions == 1 << 16 or documents / partitions <= 1 << 17
            assert partitions in (512, 1 << 16) or documents * length / partitions <= 384 << 20


def test_a_relay_that_nobody_expected_is_none(tmp_path: Path) -> None:
    """Whether there is a step follows from what the input's size tells; without it files are read directly."""
    recipe = write_small(tmp_path, FILES, small_recipe(["repair"], ["exact_dedup"]))
    plan = make_plan(recipe)

    class Laid:
        def add(self, *_: Any) -> str:
            raise AssertionError("no step")

    none = Relay(Laid(), "step", "role", Shape(1, 1), lambda done: [Shape(1 << 20, 1 << 20)])  # type: ignore[arg-type]
    assert none.steps == [] and none.width({}) == 1
    assert [step.name for step in plan.steps if "exact" in step.name] == [
        f"corpus.1.exact_dedup.{word}" for word in ("keys", "groups", "remove")
    ]
