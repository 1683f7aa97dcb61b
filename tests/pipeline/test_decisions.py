"""Stages decide, the pipeline removes: whatever a stage says or does, in = kept + removed, one row each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.rules import Rule
from manifests.schemas import DOCUMENTS, EDITS, REMOVALS
from pipeline.decisions import DETAIL_CHARACTERS, Applied, ConservationError
from pipeline.run import RunFailed
from stages import registry
from stages.stage import Edits, Filter, Measurement, Options, Stage, Verdict
from tests.pipeline.crawl import article, build, small_recipe, write_small

RULES = ("odd.first", "odd.second", "odd.third")


class NoOptions(Options):
    pass


class Told(Stage[NoOptions]):
    """Says what it was told to say."""

    name: ClassVar[str] = "told"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = NoOptions
    removal_rules: ClassVar[tuple[str, ...]] = RULES
    columns: ClassVar[tuple[str, ...]] = ("text",)

    def __init__(self, rules: list[int], texts: list[str] | None = None, edits: Edits | None = None) -> None:
        super().__init__(NoOptions())
        self.rules, self.texts, self.edits = rules, texts, edits

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict(np.array(self.rules, dtype=np.int32))
        if self.texts is not None:
            verdict.columns["text"] = pa.array(self.texts, pa.large_string())
            verdict.edits = self.edits or Edits()
        return verdict


class Poisoned(Stage[NoOptions]):
    """Raises on a text that says so; shortens every other one."""

    name: ClassVar[str] = "poisoned"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = NoOptions
    columns: ClassVar[tuple[str, ...]] = ("text",)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        texts = batch["text"].to_pylist()
        for text in texts:
            if "poison" in text:
                raise ZeroDivisionError("this text mentions jane.roe@example.org and poison")
            if "no disk" in text:
                raise OSError(28, "No space left on device")
        verdict = Verdict.keep_all(batch.num_rows)
        verdict.columns["text"] = pa.array([text[:40] for text in texts], pa.large_string())
        for row, text in enumerate(texts):
            verdict.edits.add(row, "poisoned.shortened", int(len(text) > 40))
        return verdict


class Short(Stage[NoOptions]):
    """Decides on one document fewer than it was given."""

    name: ClassVar[str] = "short"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = NoOptions

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        return Verdict.keep_all(batch.num_rows - 1)


class PoisonedFilter(Filter[NoOptions]):
    name: ClassVar[str] = "poisoned_filter"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = NoOptions
    signals: ClassVar[dict[str, pa.DataType]] = {"poisoned.length": pa.int64()}

    def rules(self) -> list[Rule]:
        return [Rule(name="poisoned.min_length", signal="poisoned.length", keep_if_at_least=5)]

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        lengths = []
        for text in batch["text"].to_pylist():
            if "poison" in text:
                raise KeyError(text[:6])
            lengths.append(len(text))
        return Measurement({"poisoned.length": pa.array(lengths, pa.int64())})


@pytest.fixture
def test_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    for implementation in (Poisoned, Short, PoisonedFilter):
        monkeypatch.setitem(registry.ROW_LOCAL, implementation.name, f"{__name__}:{implementation.__name__}")


def batch_of(texts: list[str]) -> pa.RecordBatch:
    rows = len(texts)
    given = {
        "component": pa.array(["docs"] * rows, pa.string()),
        "file": pa.array(["a.jsonl"] * rows, pa.string()),
        "position": pa.array(range(rows), pa.int64()),
        "text": pa.array(texts, pa.large_string()),
    }
    arrays = [given.get(field.name, pa.nulls(rows, field.type)) for field in DOCUMENTS]
    return pa.record_batch(arrays, schema=DOCUMENTS)


verdicts = st.lists(st.lists(st.integers(-1, 2), max_size=12), max_size=5)


@given(verdicts)
@settings(max_examples=60, deadline=None)
def test_in_is_kept_plus_removed_for_every_verdict(rules_of_batches: list[list[int]]) -> None:
    applied = Applied("docs.1.told")
    kept = 0
    for number, rules in enumerate(rules_of_batches):
        batch = batch_of([f"text {number} {row}" for row in range(len(rules))])
        left = applied.stage(Told(rules), batch)
        survivors = [text for text, rule in zip(batch["text"].to_pylist(), rules, strict=True) if rule == -1]
        assert left["text"].to_pylist() == survivors
        kept += left.num_rows
    count, removals = applied.expect("told"), applied.removals()
    assert count.conserves
    assert (count.documents_in, count.documents_kept) == (sum(map(len, rules_of_batches)), kept)
    assert removals.schema.equals(REMOVALS)
    assert removals.num_rows == count.documents_in - kept
    said = [RULES[rule] for rules in rules_of_batches for rule in rules if rule >= 0]
    assert removals["rule"].to_pylist() == said
    assert count.removed == {rule: said.count(rule) for rule in set(said)}


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5), st.booleans()), max_size=10))
@settings(max_examples=60, deadline=None)
def test_each_text_that_changed_and_stayed_has_an_edit_row_and_no_other(documents: list[tuple[str, str, bool]]) -> None:
    before, after = [one[0] for one in documents], [one[1] for one in documents]
    edits = Edits()
    for row in range(len(documents)):
        edits.add(row, "told.changed", 1)
    applied = Applied("docs.1.told")
    left = applied.stage(Told([-1 if stays else 0 for *_, stays in documents], after, edits), batch_of(before))
    changed = [row for row, (old, new, stays) in enumerate(documents) if stays and old != new]
    assert applied.edits()["position"].to_pylist() == changed
    assert left["text"].to_pylist() == [new for _, new, stays in documents if stays]
    count = applied.expect("told")
    assert count.bytes_in == sum(len(text.encode()) for text in before)
    assert count.bytes_kept == sum(len(new.encode()) for _, new, stays in documents if stays)


def test_an_edit_row_says_what_the_stage_says_without_personal_data_and_not_at_any_length() -> None:
    edits = Edits()
    edits.add(0, "told.changed", 2, f"item of jane.roe@example.org{' and more' * 100}")
    edits.add(1, "told.changed", 1)
    edits.add(1, "told.nothing", 0, "no edit")
    applied = Applied("docs.1.told")
    applied.stage(Told([-1, -1], ["A", "B"], edits), batch_of(["a", "b"]))
    assert applied.edits().schema.equals(EDITS)
    said, none = applied.edits()["detail"].to_pylist()
    assert said.startswith("item of <EMAIL> and more") and len(said) == DETAIL_CHARACTERS and none is None


bounds = st.sampled_from(["keep_if_at_least", "keep_if_at_most", "keep_if_above", "keep_if_below"])


@given(
    st.lists(st.tuples(st.sampled_from("ab"), bounds, st.integers(-2, 2)), min_size=1, max_size=4),
    st.lists(st.tuples(st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3)), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_rules_keep_or_remove_every_document_and_name_all_that_failed_in_order(
    declared: list[tuple[str, str, int]], values: list[tuple[int | None, int | None]]
) -> None:
    rules = [Rule(name=f"block.{number}", signal=signal, **{bound: at}) for number, (signal, bound, at) in enumerate(declared)]
    signals = pa.table(
        {
            "a": pa.array([one[0] for one in values], pa.int64()),
            "b": pa.array([one[1] for one in values], pa.int64()),
            "text_bytes": pa.array([7] * len(values), pa.int64()),
            "text_bytes_after": pa.array([7] * len(values), pa.int64()),
        }
    )
    compare = {
        "keep_if_at_least": lambda value, at: value >= at,
        "keep_if_at_most": lambda value, at: value <= at,
        "keep_if_above": lambda value, at: value > at,
        "keep_if_below": lambda value, at: value < at,
    }
    failed = [
        [
            f"block.{number}"
            for number, (signal, bound, at) in enumerate(declared)
            if (value := pair["ab".index(signal)]) is not None and not compare[bound](value, at)
        ]
        for pair in values
    ]
    applied = Applied("docs.2.rules")
    kept = applied.rules("filters1", rules, batch_of(["text"] * len(values)).drop_columns(["text"]), signals)
    assert kept.tolist() == [not one for one in failed]
    rows = applied.removals()
    assert rows["failed_rules"].to_pylist() == [one for one in failed if one]
    assert rows["rule"].to_pylist() == [one[0] for one in failed if one]
    assert rows["position"].to_pylist() == [row for row, one in enumerate(failed) if one]
    first = [int(one[0].rpartition(".")[2]) for one in failed if one]
    assert rows["threshold"].to_pylist() == [declared[number][2] for number in first]
    count = applied.expect("filters1")
    assert count.conserves
    assert count.documents_in == len(values)


def test_a_text_that_changed_without_an_edit_is_refused() -> None:
    with pytest.raises(ConservationError, match="changed the text of row 1 without an edit"):
        Applied("x").stage(Told([-1, -1], ["same", "other"]), batch_of(["same", "text"]))


@pytest.mark.parametrize("rules", [[-1], [-1, -1, -1], []])
def test_a_verdict_of_another_length_than_the_batch_is_refused(rules: list[int]) -> None:
    with pytest.raises(ConservationError, match=r"stage told was given 2 documents and decided on"):
        Applied("x").stage(Told(rules), batch_of(["one", "two"]))


@pytest.mark.parametrize("rule", [3, -2])
def test_a_rule_that_the_stage_does_not_declare_is_refused(rule: int) -> None:
    with pytest.raises(ConservationError, match="does not declare"):
        Applied("x").stage(Told([-1, rule]), batch_of(["one", "two"]))


@pytest.mark.usefixtures("test_stages")
def test_a_document_on_which_a_stage_raises_is_removed_alone_with_the_exception(tmp_path: Path) -> None:
    texts = [article(f"healthy {i}") for i in range(19)]
    texts.insert(7, "a poison")
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": text} for text in texts]}, small_recipe(["poisoned"]))
    result = build(recipe, tmp_path / "corpus")
    (row,) = removal_rows(tmp_path)
    assert (row["id"], row["stage"], row["rule"]) == ("docs/a.jsonl#7", "poisoned", "poisoned.error")
    assert row["detail"].startswith("ZeroDivisionError: this text mentions")
    assert "jane.roe" not in row["detail"]
    count = next(one for one in result.manifest.content.counts if one.stage == "poisoned")
    assert (count.documents_in, count.documents_kept, count.edited) == (20, 19, {"poisoned.shortened": 19})
    errors = [
        error for path in (tmp_path / "corpus" / "receipts").glob("*/*.json") for error in json.loads(path.read_text())["errors"]
    ]
    assert [error["id"] for error in errors] == ["docs/a.jsonl#7"], "the receipt records what broke"


@pytest.mark.usefixtures("test_stages")
def test_a_document_on_which_a_filter_raises_is_removed_alone(tmp_path: Path) -> None:
    files = {"a.jsonl": [{"text": "long enough"}, {"text": "a poison"}, {"text": "tiny"}, {"text": "also long"}]}
    result = build(write_small(tmp_path, files, small_recipe(["poisoned_filter"])), tmp_path / "corpus")
    rows = {row["id"]: (row["rule"], row["detail"]) for row in removal_rows(tmp_path)}
    assert rows == {
        "docs/a.jsonl#1": ("filters1.measure.error", "poisoned_filter: KeyError: 'a pois'"),
        "docs/a.jsonl#2": ("poisoned.min_length", None),
    }
    assert result.manifest.content.components["docs"].documents_kept == 2


@pytest.mark.usefixtures("test_stages")
def test_too_many_broken_documents_fail_the_run(tmp_path: Path) -> None:
    files = {"a.jsonl": [{"text": f"poison {i}"} for i in range(4)] + [{"text": f"good {i}"} for i in range(16)]}
    recipe = write_small(tmp_path, files, small_recipe(["poisoned"], max_errors=3, max_error_share=0.1))
    with pytest.raises(
        RunFailed, match=r"poisoned broke on 4 of 20 documents.*the first: docs/a.jsonl#0: poisoned.error: ZeroDivisionError"
    ):
        build(recipe, tmp_path / "corpus")
    assert not (tmp_path / "corpus" / "manifest.json").exists()
    recipe = write_small(tmp_path, files, small_recipe(["poisoned"], max_errors=3, max_error_share=0.2))
    assert build(recipe, tmp_path / "corpus").manifest.content.components["docs"].documents_kept == 16


@pytest.mark.usefixtures("test_stages")
def test_trouble_of_the_machine_fails_the_part_and_commits_nothing_of_it(tmp_path: Path) -> None:
    files = {"a.jsonl": [{"text": article("good")}], "b.jsonl": [{"text": "no disk"}]}
    recipe = write_small(tmp_path, files, small_recipe(["poisoned"]))
    with pytest.raises(RunFailed, match=r"1 of 2 parts failed:\n  00001 b.jsonl: OSError: \[Errno 28\] No space left on device"):
        build(recipe, tmp_path / "corpus", part_bytes=100)
    receipts = [json.loads(path.read_text())["part"] for path in (tmp_path / "corpus" / "receipts").glob("*/*.json")]
    assert receipts == ["00000 a.jsonl"]
    assert not (tmp_path / "corpus" / "manifest.json").exists()
    (tmp_path / "docs" / "b.jsonl").write_text('{"text": "mended"}\n')
    result = build(recipe, tmp_path / "corpus", part_bytes=100)
    assert result.ran["docs.1.poisoned"] == 1, "what was finished is kept"
    assert result.manifest.content.components["docs"].documents_kept == 2


@pytest.mark.usefixtures("test_stages")
def test_a_stage_that_loses_a_document_fails_the_run_by_name(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": "one"}, {"text": "two"}]}, small_recipe(["short"]))
    with pytest.raises(RunFailed, match="stage short was given 2 documents and decided on"):
        build(recipe, tmp_path / "corpus")


def removal_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "corpus" / "logs" / "removals" / "docs" / "00000.parquet").to_pylist()
    return rows
