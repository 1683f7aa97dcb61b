"""What a task is sent does not grow with the corpus, and says the same."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.manifest import canonical
from manifests.storage import Folder
from pipeline import lists, relay_steps
from pipeline.cleaning import clean
from pipeline.execution import InlineExecutor, Outcome
from pipeline.lists import BATCH, Listed, ListError, _packed
from pipeline.plan import make_plan
from pipeline.receipts import Receipt, Receipts
from pipeline.work import Order, Task, Work, execute, lists_of
from tests.pipeline.crawl import article, build, small_recipe, write_small

CORPUS_WIDE = [
    "exact_dedup",
    "line_dedup",
    "substring_dedup",
    "minhash",
    {"split": {"validation": 0.3, "test": 0.3}},
    {"tokenizer": {"vocabulary": 600}},
    "shards",
]
ROOM = 200
"""Bytes by which numbers that are larger make an order larger."""


class Template(InlineExecutor):
    """Keeps a receipt of every step."""

    def __init__(self) -> None:
        self.receipts: dict[str, Receipt] = {}

    def run(self, corpus_url: str, works: list[Work]) -> Any:
        for outcome in super().run(corpus_url, works):
            if outcome.receipt is not None:
                self.receipts[outcome.work.step] = outcome.receipt
            yield outcome


def orders(folder: Path, parts: int, relayed: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Step → bytes of the largest thing that is sent, in a corpus of so many parts. What parts say of themselves is taken from
    one that was really run."""
    monkeypatch.setattr(relay_steps, "MOST_PIECES", 0 if relayed else 1 << 60)
    template = Template()
    recipe = small_recipe(["repair"], CORPUS_WIDE)
    texts = [{"text": article(f"one {number}")} for number in range(16)]
    build(write_small(folder / "one", {"0.jsonl": texts}, recipe), folder / "one" / "corpus", 1, template)
    many = write_small(folder / "many", {f"{number:05d}.jsonl": ["{}"] for number in range(parts)}, recipe)
    plan, done, found = make_plan(many, 1), {}, {}
    corpus = Folder(folder / "sent")
    for step in plan.steps:
        works = step.works(done)
        written = lists_of(corpus, step.name)
        few = {id(work): work for work in (*works[:2], *works[len(works) // 2 :][:2], *works[-2:])}
        found[step.name] = max(len(pickle.dumps(work.order(written))) for work in few.values())
        like = template.receipts[step.name]
        done[step.name] = Receipts.of(
            like.model_copy(update={"fingerprint": hashlib.sha256(f"{step.name} {number}".encode()).hexdigest()[:32]})
            for number in range(len(works))
        )
    return found


@pytest.mark.parametrize("parts", [400, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
def test_what_a_part_is_sent_is_of_one_size_in_a_corpus_of_any(
    parts: int, relayed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (orders(tmp_path / str(number), number, relayed, monkeypatch) for number in (10, parts))
    assert few.keys() == many.keys() and len(few) > 25
    for step, size in many.items():
        assert size <= few[step] + ROOM, step
        assert size < 8192, step


@given(st.lists(st.text(max_size=4)), st.lists(st.text(max_size=4)), st.lists(st.integers()))
def test_a_part_is_known_by_the_same_fingerprint_whether_its_lists_are_lists(
    some: list[str], more: list[str], numbers: list[int]
) -> None:
    plain = Work("step", "part", "module:function", 3, {"b": 1, "a": numbers}, ("first", *some, *more))
    listed = Work("step", "part", "module:function", 3, {"b": 1, "a": Listed(numbers)}, ("first", Listed(some), Listed(more)))
    material = ["step", "module:function", 3, {"a": numbers, "b": 1}, ["first", *some, *more]]
    assert plain.fingerprint == listed.fingerprint == hashlib.sha256(canonical(material)).hexdigest()[:32]


def test_a_task_reads_its_lists_and_parts_of_them(tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    values = [{"path": f"steps/é/{number}", "rows": [number]} for number in range(3 * BATCH + 5)]
    whole, empty = Listed(values), Listed([])
    given_ = {"all": whole, "few": whole.part(BATCH - 2, 2 * BATCH + 1), "none": empty, "in": {"few": whole.part(7, 8)}, "x": [1]}
    written = lists_of(corpus, "step")
    order = Work("step", "part", "f", 1, {"of": Listed(values), "n": 1}, (), given_).order(written)
    task = Task(corpus, order, Receipt(step="step", part="part", fingerprint=order.fingerprint))
    assert task.arguments == {"n": 1}
    assert list(task.inputs["all"]) == values
    assert list(task.inputs["few"]) == values[BATCH - 2 : 2 * BATCH + 1]
    assert list(task.inputs["in"]["few"]) == values[7:8]
    assert len(task.inputs["none"]) == 0 and task.inputs["x"] == [1]
    assert len(corpus.names("steps/step/lists")) == 2, "each list is written once"
    written.delete()
    assert corpus.names("steps") == []
    with pytest.raises(IndexError):
        whole.part(5, len(values) + 1)


def test_two_runs_of_a_step_have_lists_of_their_own_and_what_a_killed_run_left_is_cleaned(tmp_path: Path) -> None:
    loaded = write_small(tmp_path, {"a.jsonl": [{"text": article("a")}]}, small_recipe(["repair"]))
    build(loaded, tmp_path / "corpus")
    corpus, values = Folder(tmp_path / "corpus"), Listed(["a", "b"])
    lost, holds = lists_of(corpus, "docs.1.repair"), lists_of(corpus, "docs.1.repair")
    lost.file(values)
    file = holds.file(values)
    lost.delete()
    assert list(lists.read(corpus, file)) == ["a", "b"], "the run that lost its lock leaves the other's list"
    assert clean(corpus) == (1, len(_packed(["a", "b"])))
    assert not corpus.exists(file.path)


def test_a_list_that_was_changed_is_refused(tmp_path: Path) -> None:
    corpus = Folder(tmp_path)
    file = lists_of(corpus, "step").file(Listed(["a", "b"]))
    other = lists_of(corpus, "step").file(Listed(["a", "c"]))
    corpus.write(file.path, corpus.read(other.path))
    with pytest.raises(ListError, match="is not what was written there"):
        lists.read(corpus, file)


def test_a_list_that_cannot_be_written_fails_its_parts_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file where a folder is wanted")
    work = Work("step", "part", "f:g", 1, {}, (), {"names": Listed(["a"])})
    [outcome] = InlineExecutor().run(str(tmp_path), [work])
    assert isinstance(outcome, Outcome) and outcome.receipt is None
    assert outcome.error is not None and "steps" in outcome.error


def test_a_part_may_be_run_as_it_is_or_as_it_is_sent(tmp_path: Path) -> None:
    """For one who looks at a part by itself."""
    corpus = Folder(tmp_path)
    names = Listed(["x", "y"])
    work = Work("step", "part", f"{__name__}:count_names", 1, {}, (), {"names": names})
    order = work.order(lists_of(corpus, "step"))
    assert isinstance(order, Order)
    assert execute(str(tmp_path), order).values == {"names": 2}
    corpus.delete("receipts")
    assert execute(str(tmp_path), work).values == {"names": 2}


def count_names(task: Task) -> None:
    task.receipt.values["names"] = len(task.inputs["names"])
