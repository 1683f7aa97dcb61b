"""What a run was trained on, told from its ledger, is what the trainer itself says that it served."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app
from manifests.logs import Logs
from manifests.lookup import AS_ID
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.trained_on import LedgerError, TrainedOn, equal_stretches, read_ledger
from tests.manifests.training_run import ROWS, STEPS, write_run
from trainer.data.corpus import Corpus
from trainer.data.loader import IGNORED, Loader, Phase

PHASES: dict[str, list[Phase]] = {
    "natural": [Phase()],
    "weights": [Phase({"web": 3.0, "books": 1.0})],
    "phases": [Phase({"books": 1.0}, 51), Phase(None, 60), Phase({"web": 1.0, "tables": 2.0})],
}


POSITIONS = np.arange(ROWS * STEPS)


def loader_of(finished: Path, phases: str) -> Loader:
    corpus = Corpus.open(finished)
    return Loader([corpus.component(name, "train") for name in corpus.components("train")], 64, 3, PHASES[phases])


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def run(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", finished, PHASES["weights"])


@pytest.mark.parametrize("phases", PHASES)
def test_documents_and_tokens_are_those_that_the_trainer_counts(
    finished: Path, manifest: Manifest, tmp_path: Path, phases: str
) -> None:
    run = write_run(tmp_path / "run", finished, PHASES[phases])
    joined = TrainedOn(run, Folder(finished), manifest)
    seen = joined.documents().to_pylist()
    served = {row["id"]: row["targets"] for row in seen}
    assert sum(served.values()) == sum(
        int((row != IGNORED).sum()) for row in loader_of(finished, phases).batch(POSITIONS).targets
    )
    with Logs(Folder(finished), manifest, only=["documents"]) as logs:
        stretches, whole = joined.stretches(logs, equal_stretches(1, STEPS, 9))
        documents = logs.sql("select * from documents")
    assert (whole.taken.documents, whole.taken.tokens) == (len(served), sum(served.values()))
    assert sum(one.taken.tokens for one in stretches) == whole.taken.tokens
    for dimension in whole.by:
        assert sum(one.documents for one in whole.by[dimension].values()) == whole.taken.documents
        assert sum(one.tokens for one in whole.by[dimension].values()) == whole.taken.tokens
    for name, taken in whole.by["component"].items():
        mine = [row for row in seen if row["component"] == name]
        assert (taken.documents, taken.tokens) == (len(mine), sum(row["targets"] for row in mine))
    training = {name: loader_of(finished, phases).component_targets()[name] for name in whole.epochs}
    assert whole.epochs == joined.passes() == stretches[-1].epochs
    assert whole.epochs == {
        name: whole.by["component"][name].tokens / training[name] if name in whole.by["component"] else 0.0 for name in training
    }
    by_domain: dict[str, int] = {}
    for document in documents:
        times = joined.times(document)
        assert sum(one.tokens for one in times) == served.get(document["id"], 0), document["id"]
        assert all(one.first_token + one.tokens <= document["tokens"] for one in times)
        if times:
            by_domain[document["domain"] or ""] = by_domain.get(document["domain"] or "", 0) + served[document["id"]]
    assert {name: one.tokens for name, one in whole.by["domain"].items()} == by_domain


def test_a_step_that_served_a_document_is_the_step_that_is_told(finished: Path, manifest: Manifest, run: Path) -> None:
    joined = TrainedOn(run, Folder(finished), manifest)
    with Logs(Folder(finished), manifest, only=["documents"]) as logs:
        documents = logs.sql("select * from documents where split = 'train' order by id")
    told: dict[int, int] = {}
    for document in documents:
        for one in joined.times(document):
            assert (one.step - 1) * ROWS <= one.position < one.step * ROWS
            told[one.step] = told.get(one.step, 0) + one.tokens
    targets = (loader_of(finished, "weights").batch(POSITIONS).targets != IGNORED).sum(axis=1)
    for step in range(1, STEPS + 1):
        assert told.get(step, 0) == targets[(step - 1) * ROWS : step * ROWS].sum()
    for step in (1, 7, STEPS):
        assert sum(joined.documents(step)["targets"].to_pylist()) == targets[: step * ROWS].sum()


@pytest.mark.parametrize("phases", PHASES)
def test_each_piece_that_is_told_stands_in_the_row_that_the_trainer_serves(
    finished: Path, manifest: Manifest, tmp_path: Path, phases: str
) -> None:
    """Its tokens, read from the shard, are found in the row; and all pieces together fill the rows."""
    joined = TrainedOn(write_run(tmp_path / "run", finished, PHASES[phases]), Folder(finished), manifest)
    batch = loader_of(finished, phases).batch(POSITIONS)
    assert manifest.content.tokenizer is not None
    dtype = manifest.content.tokenizer.dtype
    with Logs(Folder(finished), manifest, only=["documents"]) as logs:
        documents = logs.sql("select * from documents where split = 'train' order by id")
    filled = np.zeros(len(POSITIONS), np.int64)
    for document in documents:
        tokens = np.fromfile(finished / document["shard"], dtype)[document["start"] :][: document["tokens"]].astype(np.int64)
        for one in joined.times(document):
            piece = tokens[one.first_token : one.first_token + one.tokens]
            row, segments = batch.tokens[one.position], batch.segments[one.position]
            assert any(np.array_equal(row[segments == segment], piece) for segment in range(segments.max() + 1)), document["id"]
            filled[one.position] += len(piece)
    assert np.array_equal(filled, (batch.segments >= 0).sum(axis=1))


def test_the_command_tells_it_as_tables_json_and_csv(run: Path, manifest: Manifest) -> None:
    shown = call("audit", "trained-on", run)
    assert shown.exit_code == 0, shown.stderr
    for name, component in manifest.content.components.items():
        if name != "tables":
            assert name in shown.stdout and component.licence in shown.stdout
    plain = json.loads(call("audit", "trained-on", run, "--json", "--every", "10").stdout)
    assert [(one["first_step"], one["last_step"]) for one in plain["stretches"]] == [(1, 10), (11, 20), (21, 30), (31, 40)]
    rows = list(csv.DictReader(io.StringIO(call("audit", "trained-on", run, "--csv", "--steps", "11-20").stdout)))
    whole = next(row for row in rows if row["dimension"] == "all")
    assert {"1"} != {whole["first_step"]}
    total = sum(int(row["tokens"]) for row in rows if row["dimension"] == "all")
    assert total == plain["stretches"][1]["tokens"]


def test_the_command_says_when_a_document_was_consumed(finished: Path, manifest: Manifest, run: Path) -> None:
    joined = TrainedOn(run, Folder(finished), manifest)
    with Logs(Folder(finished), manifest, only=["documents"]) as logs:
        documents = logs.sql("select * from documents order by id")
    taken = next(one for one in documents if one["url"] and joined.times(one))
    times = joined.times(taken)
    for option, value in (("--id", taken["id"]), ("--url", taken["url"])):
        (told,) = json.loads(call("audit", "trained-on", run, option, value, "--json").stdout)
        assert [one["step"] for one in told["served"]] == [one.step for one in times]
        assert told["consumed"] == "yes" and (told["matched"] == AS_ID) == (option == "--id")
    assert f"{sum(one.tokens for one in times):,} targets" in call("audit", "trained-on", run, "--id", taken["id"]).stdout
    removed = next(one for one in documents if one["removed_by"])
    held_out = next(one for one in documents if one["split"] == "validation")
    assert f"removed by {removed['removed_by']}" in call("audit", "trained-on", run, "--id", removed["id"]).stdout
    assert "in the split validation" in call("audit", "trained-on", run, "--id", held_out["id"]).stdout
    assert call("audit", "trained-on", run, "--id", "web/none#1").exit_code == 1
    near = call("audit", "trained-on", run, "--url", f"{taken['url']}?another=query").stdout
    assert "no document has exactly the URL" in near and f"{taken['id']}: " in near


def damaged(line: int, **changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[line].update(changes)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines.pop(2), "line 3 begins with step 15"),
        (lambda lines: lines.insert(2, lines[2]), "missing or doubled"),
        (damaged(1, end_position=43), "not 7 steps of the same number of rows"),
        (damaged(1, last_step=0), "last_step"),
        (damaged(1, last_step=2.5), "last_step"),
        (damaged(1, more=1), "more"),
        (damaged(0, loader_digest="0" * 64), "another version of the loader"),
        (damaged(0, manifest_digest="0" * 64), "the run consumed the corpus 000000000000"),
        (lambda lines: lines[0]["loader"].update(sequence_length=1 << 60), "sequence_length"),
        (lambda lines: lines[0]["loader"].update(window=0), "window"),
        (lambda lines: lines[0]["loader"].update(seed=4), "another version of the loader"),
        (lambda lines: lines[0]["loader"]["shards"].pop(), "the mixture names component 'web'"),
        (lambda lines: lines[0]["loader"]["shards"][0][1].append(["0" * 64, "0" * 64]), "are not those of"),
        (lambda lines: lines[0]["loader"]["phases"].append([{"nobody": 1.0}, None]), "phase"),
        (lambda lines: lines.__setitem__(slice(None), []), "it is empty"),
    ],
)
def test_a_damaged_ledger_is_refused_with_what_is_wrong(
    run: Path, finished: Path, tmp_path: Path, change: Callable[[list[dict[str, Any]]], None], said: str
) -> None:
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    change(lines)
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = call("audit", "trained-on", tmp_path, "--corpus", finished)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert said in result.stderr


def test_positions_beyond_all_reason_are_refused_before_they_are_counted(run: Path, finished: Path, tmp_path: Path) -> None:
    header, *_ = (run / "ledger.jsonl").read_text().splitlines()
    far = {"first_step": 1, "last_step": 1, "first_position": 0, "end_position": 1 << 60}
    (tmp_path / "ledger.jsonl").write_text(f"{header}\n{json.dumps(far)}\n")
    result = call("audit", "trained-on", tmp_path, "--corpus", finished)
    assert result.exit_code == 1
    assert "its positions are damaged" in result.stderr


@pytest.mark.parametrize("text", ["\x00\n", "[]\n", '{"a": 1}\n', "[" * 100_000 + "\n"])
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger.jsonl").write_text(text)
    with pytest.raises(LedgerError, match="line 1"):
        read_ledger(tmp_path)


def test_half_a_line_of_a_killed_run_is_not_counted(run: Path, tmp_path: Path) -> None:
    text = (run / "ledger.jsonl").read_text()
    (tmp_path / "ledger.jsonl").write_text(text + '{"first_step": 41, "last')
    assert read_ledger(tmp_path).ranges == read_ledger(run).ranges


def test_a_run_without_a_ledger_or_corpus_is_an_error_of_one_line(run: Path, finished: Path, tmp_path: Path) -> None:
    assert "there is no ledger" in call("audit", "trained-on", tmp_path).stderr
    (tmp_path / "ledger.jsonl").write_text((run / "ledger.jsonl").read_text())
    assert "--corpus" in call("audit", "trained-on", tmp_path).stderr
    (tmp_path / "config.json").write_text('{"manifest": "nowhere/manifest.json"}')
    assert "--corpus" in call("audit", "trained-on", tmp_path).stderr
    for steps in ("0-3", "5-4", "x", "1-41"):
        assert call("audit", "trained-on", run, "--steps", steps).exit_code == 2


def test_stretches_cover_every_step_once() -> None:
    for last in (1, 9, 10, 11, 100, 1003):
        for every in (None, 1, 7, 5000):
            found = equal_stretches(1, last, every)
            assert np.array_equal(np.concatenate([np.arange(a, b + 1) for a, b in found]), np.arange(1, last + 1))
