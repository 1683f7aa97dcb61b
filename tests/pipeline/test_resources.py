"""What parts declare, what they take, and what the driver holds of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tracemalloc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from manifests.storage import Folder
from pipeline import standing
from pipeline.commands import app
from pipeline.execution import IN_FLIGHT_PER_CPU, RETRIES, InlineExecutor, Outcome, RayExecutor
from pipeline.lists import Listed
from pipeline.plan import make_plan
from pipeline.progress import Progress
from pipeline.receipts import HELD_BYTES, Count, FileEntry, Packed, Receipt, Receipts
from pipeline.resources import GIB, MIB, Clock, ResourceError, Resources, observed
from pipeline.run import run
from pipeline.work import Work
from stages.clusters import Union
from stages.sandbox import Sandbox
from tests.pipeline.crawl import ONE_FILE_A_PART, Crawl, article, build, small_recipe, write_small


def test_a_fused_step_takes_what_its_stages_need_beside_the_worker(crawl: Crawl) -> None:
    plan = make_plan(crawl.load())
    declared = {step.name: step.resources for step in plan.steps}
    assert declared["web.1.extraction"].memory == declared["web.3.rules"].memory + (512 << 20)
    assert declared["corpus.3.decontamination"].memory > declared["corpus.1.exact_dedup.keys"].memory == GIB
    assert {one.cpus for one in declared.values()} == {1.0}


def test_resources_are_changed_by_step_stage_or_word_of_a_step(crawl: Crawl) -> None:
    plan = make_plan(crawl.load())
    plan.declare({"extraction": "memory=4GiB,cpus=2", "corpus.2.minhash.sign": "memory=512M", "cluster": "gpus=0.5"})
    declared = {step.name: step.resources for step in plan.steps}
    assert declared["web.1.extraction"] == Resources(2.0, 4 * GIB, 0.0)
    assert declared["corpus.2.minhash.sign"].memory == 512 * MIB
    assert declared["corpus.4.split.sign"].memory == GIB
    assert declared["corpus.2.minhash.cluster"].gpus == 0.5
    with pytest.raises(ResourceError, match=r"nothing: no step or stage of this recipe; its steps are books\.1\.measure"):
        plan.declare({"nothing": "cpus=1"})


@pytest.mark.parametrize(
    "written", ["", "cpus", "cpus=", "cpus=-1", "cpus=nan", "memory=4XB", "memory=0", "memory=1e400", "disk=3", "cpus=1;gpus=2"]
)
def test_resources_that_are_none_are_refused(written: str) -> None:
    with pytest.raises(ResourceError):
        Resources().changed(written)


def test_the_command_line_refuses_resources_that_are_none(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "one"}]}, small_recipe(["repair"]))
    for written in ("repair", "repair:cpus=x", "extraction:cpus=2"):
        command = ["run", recipe.path, "--corpus", str(tmp_path / "corpus"), "--executor", "inline", "--resources", written]
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, result.exception.__class__) == (2, SystemExit), written
    assert not (tmp_path / "corpus" / "manifest.json").exists()


def test_memory_of_a_part_is_its_peak_and_not_what_is_left_at_its_end() -> None:
    seen: dict[str, Any] = {}
    with observed(seen):
        held = np.ones(300 * MIB, dtype=np.uint8)
        del held
    later: dict[str, Any] = {}
    with observed(later):
        pass
    assert seen["peak_bytes"] > later["peak_bytes"] + 250 * MIB


def test_a_child_s_processor_time_and_memory_are_those_of_its_part() -> None:
    seen: dict[str, Any] = {}
    sandbox = Sandbox("tests.pipeline.test_resources:burning", {}, cpu_seconds=60)
    with observed(seen), contextlib.closing(sandbox):
        (outcome,) = sandbox.run([b"x"])
    assert outcome.result == b"done"
    assert seen["cpu_seconds"] > 0.4
    assert seen["peak_bytes"] > 200 * MIB


def burning(_: Any) -> Any:
    """For the sandbox: half a second of work that holds 200 MiB."""
    import time

    def burn(_: bytes) -> bytes:
        held = bytearray(b"x") * (200 * MIB)
        while time.process_time() < 0.7:
            held[0] = 1
        return b"done"

    return burn


def test_a_clock_adds_up_by_stage() -> None:
    seen: dict[str, Any] = {}
    clock = Clock(seen)
    batches: Iterator[int] = iter([1, 2, 3])
    for _ in clock.reading(batches):
        with clock.times("work"):
            sum(range(20_000))
    assert set(seen["stages"]) == {"read", "work"}
    assert seen["stages"]["work"] > 0


def test_what_was_observed_decides_nothing(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": article("a")}]}, small_recipe(["repair"]))
    plan = make_plan(recipe)
    (work,) = plan.steps[0].works({})
    plan.declare({"repair": "cpus=2,memory=7GiB"})
    (other,) = plan.steps[0].works({})
    assert work.fingerprint == other.fingerprint
    assert dataclasses.replace(work, resources=Resources(3.0)).fingerprint == work.fingerprint
    first = build(recipe, tmp_path / "corpus").manifest
    second = run(
        recipe, Folder(tmp_path / "again"), RayExecutorOfNone(), Progress(quiet=True), needs={"repair": "memory=2GiB"}
    ).manifest
    assert first.digest == second.digest


class RayExecutorOfNone:
    """In this process, and asks that works carry what was declared."""

    def run(self, corpus_url: str, works: list[Work]) -> Any:
        from pipeline.execution import InlineExecutor

        if works[0].step.endswith("repair"):
            assert works[0].resources.memory == 2 * GIB
        return InlineExecutor().run(corpus_url, works)


def receipt(number: int, rules: int = 60) -> Receipt:
    made = Receipt(step="docs.2.rules", part=f"{number:05d} crawl/{number}.warc.gz", fingerprint=f"{number:032x}")
    counts = {f"gopher.rule_{rule}": number * rule % 97 for rule in range(rules)}
    made.counts = [Count(stage="filters1", documents_in=9000, documents_kept=number, removed=counts)]
    for role in ("kept", "removals", "edits"):
        made.files[role] = FileEntry(
            path=f"steps/docs.2.rules/{number:032x}/{role}.arrow", bytes=number, sha256=f"{number:064x}", rows=3
        )
    return made


def test_packed_receipts_come_back_as_they_were_and_in_any_order() -> None:
    made = [receipt(number) for number in range(50)]
    packed = Receipts.of(made)
    assert list(packed) == made
    assert packed.fingerprints == tuple(one.fingerprint for one in made)
    assert list(packed[10:20] + packed[:5]) == made[10:20] + made[:5]
    both = packed[40:] + Receipts() + packed[:10]
    assert [both[at] for at in (0, 9, 10, 19, -1)] == [made[at] for at in (40, 49, 0, 9, 9)]
    assert list(both[5:12]) == [*made[45:50], *made[:2]]
    with pytest.raises(IndexError):
        both[20]
    assert len(Receipts()) == 0 == len(Receipts()[:])


def test_a_packed_receipt_is_a_sixth_of_its_json_and_many_lie_on_disk() -> None:
    packed, plain = Packed(), 0
    for number in range(3000):
        one = receipt(number)
        plain += len(one.model_dump_json())
        packed.add(one)
    size = packed._starts[-1]
    assert size < plain / 6
    assert size < HELD_BYTES or packed._file._rolled  # type: ignore[attr-defined]
    assert packed.receipt(1234) == receipt(1234)


def test_a_finished_corpus_is_known_without_reading_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{name}.jsonl": [{"text": article(name)}] for name in "abc"}
    recipe = write_small(tmp_path, files, small_recipe(["repair"], ["exact_dedup"]))
    digest = build(recipe, tmp_path / "corpus", 1000).manifest.digest

    def never(*_: object) -> None:
        raise AssertionError("a receipt was read")

    monkeypatch.setattr("pipeline.receipts.load", never)
    assert build(recipe, tmp_path / "corpus", 1000).manifest.digest == digest


@pytest.mark.parametrize("change", ["receipt", "option", "file", "code", "version", "partition"])
def test_whatever_decides_ends_that_knowledge(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{name}.jsonl": [{"text": article(name)}] for name in "abc"}
    recipe = write_small(tmp_path, files, small_recipe(["repair"], ["exact_dedup"]))
    build(recipe, tmp_path / "corpus", 1000)
    corpus = Folder(tmp_path / "corpus")
    assert standing.same(corpus, make_plan(recipe, 1000))
    if change == "receipt":
        one = next((tmp_path / "corpus" / "receipts").glob("*/*.json"))
        one.write_text(json.dumps({**json.loads(one.read_text()), "more": "bytes"}))
    elif change == "option":
        recipe = write_small(tmp_path, files, small_recipe(["repair"], [{"exact_dedup": {"keep": "first"}}]))
    elif change == "file":
        (tmp_path / "docs" / "d.jsonl").write_text('{"text": "one more"}\n')
    elif change == "code":
        monkeypatch.setattr("pipeline.standing._code", lambda: "another")
    elif change == "version":
        monkeypatch.setattr("stages.exact_dedup.VERSION", 99)
    else:
        monkeypatch.setattr("pipeline.steps.PARTITION_BYTES", 100)
    assert standing.same(corpus, make_plan(recipe, 1000)) is None


@pytest.fixture(scope="module")
def one_worker() -> Iterator[RayExecutor]:
    executor = RayExecutor(workers=1)
    yield executor
    executor.close()


@pytest.mark.slow
def test_ray_holds_nothing_after_a_run_and_few_parts_are_in_flight(one_worker: RayExecutor, tmp_path: Path) -> None:
    """And a part that declares more memory or processors than the machine has runs alone, where it would otherwise wait for ever."""
    files = {f"{number:02d}.jsonl": [{"text": article(number)}] for number in range(12)}
    recipe = write_small(tmp_path, files, small_recipe(["repair"], ["exact_dedup"]))
    needs = {"exact_dedup": "memory=100TiB,cpus=100", "repair": "cpus=1.5"}
    one_worker.start()
    flying: list[int] = []
    plain = one_worker.ray.wait

    def wait(references: list[Any], **options: Any) -> Any:
        flying.append(len(references))
        return plain(references, **options)

    one_worker.ray.wait = wait
    try:
        done = run(recipe, Folder(tmp_path / "corpus"), one_worker, Progress(quiet=True), 100, needs)
    finally:
        one_worker.ray.wait = plain
    assert done.ran["docs.1.repair"] == 12
    assert max(flying) <= IN_FLIGHT_PER_CPU
    total, left = one_worker.ray.cluster_resources(), one_worker.ray.available_resources()
    assert total["object_store_memory"] == left["object_store_memory"]
    assert done.manifest.digest == build(recipe, tmp_path / "here", ONE_FILE_A_PART).manifest.digest


@pytest.mark.slow
def test_gpus_that_this_machine_has_not_are_refused_and_not_waited_for(one_worker: RayExecutor, tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "one"}]}, small_recipe(["repair"]))
    with pytest.raises(ResourceError, match=r"a part of docs\.1\.repair takes 500 GPUs, and this machine has \d+"):
        run(recipe, Folder(tmp_path / "corpus"), one_worker, Progress(quiet=True), 100, {"repair": "gpus=500"})


GPU_NODE = {"CPU": 8.0, "memory": 32.0 * GIB, "GPU": 2.0}
WIDE, HIGH = {"CPU": 64.0, "memory": 16.0 * GIB}, {"CPU": 4.0, "memory": 256.0 * GIB}


@pytest.mark.parametrize(
    ("nodes", "wish", "asked"),
    [
        ([WIDE, HIGH], Resources(32.0, 200 * GIB), (4, 200 * GIB, None)),
        ([WIDE, HIGH], Resources(32.0, 300 * GIB), (4, 256 * GIB, None)),
        ([WIDE, HIGH], Resources(32.0, 16 * GIB), (32, 16 * GIB, None)),
        ([WIDE, HIGH], Resources(100.0, 16 * GIB), (64, 16 * GIB, None)),
        ([WIDE, HIGH, GPU_NODE], Resources(32.0, 200 * GIB, 1.0), (8, 32 * GIB, 1)),
        ([], Resources(32.0, 200 * GIB), (32, 200 * GIB, None)),
        ([WIDE], Resources(1.5, 200 * GIB, 0.5), (2, 200 * GIB, 0.5)),
    ],
)
def test_a_part_asks_for_what_one_node_has(
    nodes: list[dict[str, float]], wish: Resources, asked: tuple[float, int, float | None]
) -> None:
    """Processors of one and memory of another would be waited for for ever; and what no node of a cluster can say yet is asked for
    as it is declared."""
    cluster = RayExecutor("somewhere:1")
    cluster.nodes = nodes
    found = cluster._resources(Work("step", "part", "f:g", 1, {}, resources=wish))
    assert (found["num_cpus"], found["memory"], found.get("num_gpus")) == asked


def works_of(count: int, function: str, **more: Any) -> list[Work]:
    return [Work("step", str(number), f"{__name__}:{function}", 1, {"number": number}, **more) for number in range(count)]


def nothing(task: Any) -> None:
    """A part that does nothing."""


@pytest.mark.slow
def test_nodes_that_join_are_used_and_parts_that_asked_for_more_than_they_have_ask_again(
    one_worker: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster shows its node, as three, only once parts wait that no node could be asked for."""
    monkeypatch.setattr("pipeline.execution.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("pipeline.execution._answers", lambda _: True)
    one_worker.start()  # with one processor; only then is it as if nobody had said how many there are
    monkeypatch.setattr(one_worker, "workers", None)
    plain, wait = one_worker.ray.nodes, one_worker.ray.wait
    looks: list[int] = []
    flying: list[int] = []

    def nodes() -> Any:
        looks.append(1)
        return plain() * 3 if len(looks) > 1 else []

    def waited(references: list[Any], **options: Any) -> Any:
        flying.append(len(references))
        return wait(references, **options)

    monkeypatch.setattr(one_worker.ray, "nodes", nodes)
    monkeypatch.setattr(one_worker.ray, "wait", waited)
    works = works_of(40, "nothing", resources=Resources(50.0, 100 << 40))
    done = [one for one in one_worker.run(str(tmp_path), works) if one is not None]
    assert {one.work.part for one in done if one.receipt is not None} == {work.part for work in works}
    assert len(done) == 40
    assert flying[0] == IN_FLIGHT_PER_CPU and max(flying) == 3 * IN_FLIGHT_PER_CPU


def until_told(task: Any) -> None:
    """Ends when somebody writes to the FIFO, or after half a minute of silence with an error."""
    import os
    import select

    descriptor = os.open(task.inputs["fifo"], os.O_RDONLY | os.O_NONBLOCK)
    assert select.select([descriptor], [], [], 30.0)[0], "nobody wrote"


def test_the_caller_looks_around_while_no_part_ends(
    one_worker: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.execution.LOOK_SECONDS", 0.05)
    os.mkfifo(tmp_path / "fifo")
    works = works_of(1, "until_told", inputs={"fifo": str(tmp_path / "fifo")})
    with contextlib.closing(one_worker.run(str(tmp_path), works)) as outcomes:
        assert next(outcomes) is None
        descriptor = os.open(tmp_path / "fifo", os.O_RDWR)
        os.write(descriptor, b"go on")
        [done] = [one for one in outcomes if one is not None]
        os.close(descriptor)
    assert done.receipt is not None, done.error


@pytest.mark.parametrize("failures", [1, 3, 4])
def test_a_list_that_cannot_be_written_for_ray_is_tried_again_and_then_fails_its_part(
    one_worker: RayExecutor, failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [failures]
    write = Folder.write

    def failing(self: Folder, name: str, data: bytes) -> None:
        if "/lists/" in name and left[0]:
            left[0] -= 1
            raise OSError("the store is away")
        write(self, name, data)

    monkeypatch.setattr(Folder, "write", failing)
    works = works_of(2, "nothing", inputs={"names": Listed(["a"])})
    done = {one.work.part: one for one in one_worker.run(str(tmp_path), works) if one is not None}
    assert done["1"].receipt is not None
    if failures > RETRIES:
        assert done["0"].error == "OSError: the store is away" and done["0"].trace
    else:
        assert done["0"].receipt is not None


def test_uniting_declares_what_the_counts_of_pairs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.duplicate_steps.UNITE_MEMORY", 3 * GIB)
    declared: dict[str, int] = {}

    class Noting(InlineExecutor):
        def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
            declared.update((work.step, work.resources.memory) for work in works)
            yield from super().run(corpus_url, works)

    files = {"a.jsonl": [{"text": article(number % 3)} for number in range(6)]}
    build(write_small(tmp_path, files, small_recipe([], ["minhash"])), tmp_path / "corpus", executor=Noting())
    assert declared["corpus.1.minhash.unite"] == 3 * GIB + Union.bytes_for(6, 6)
    assert declared["corpus.1.minhash.verify"] == GIB


@pytest.mark.parametrize("members", [100, 1_000_000])
def test_a_union_takes_no_more_than_it_says(members: int) -> None:
    documents = 40_000_000
    number = np.sort(np.random.default_rng(1).integers(0, documents, members))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        union = Union(documents, [number])
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(union) == len(np.unique(number))
    assert documents * 5 // 16 < peak <= Union.bytes_for(documents, len(union)) + (1 << 20)
