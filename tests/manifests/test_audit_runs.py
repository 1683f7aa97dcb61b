"""`audit why --run`: what training runs had of a document, exactly, whichever corpus they were trained on."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manifests.audit.training import Run
from manifests.commands import app
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.trained_on import LedgerError, TrainedOn
from tests.manifests.training_run import ROWS, STEPS, write_run
from trainer.data.corpus import Corpus
from trainer.data.loader import Loader, Phase
from trainer.run_files.ledger import Ledger


def why(*arguments: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["audit", "why", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def runs_of(*arguments: str | Path) -> list[dict[str, Any]]:
    (life,) = json.loads(why(*arguments, "--json").stdout)
    found: list[dict[str, Any]] = life["runs"]
    return found


def logs_of(corpus: Path) -> Logs:
    return Logs(Folder(corpus), Manifest.load(Folder(corpus)), only=["documents", "removals"])


@pytest.fixture(scope="module")
def documents(finished: Path, manifest: Manifest) -> list[dict[str, Any]]:
    with Logs(Folder(finished), manifest, only=["documents"]) as logs:
        return logs.sql("select * from documents order by id")


@pytest.fixture(scope="module")
def run(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", finished, [Phase({"web": 3.0, "books": 1.0})])


def test_it_tells_each_step_epoch_and_piece(
    finished: Path, manifest: Manifest, run: Path, documents: list[dict[str, Any]]
) -> None:
    joined = TrainedOn(run, Folder(finished), manifest)
    targets = {row["id"]: row["targets"] for row in joined.documents().to_pylist()}
    asked = Run(str(run), logs_of(finished))
    for document in documents:
        told = asked.consumed(document)
        assert (told.consumed == "yes", told.targets) == (document["id"] in targets, targets.get(document["id"], 0))
        assert told.served == joined.times(document)
    taken = next(one for one in documents if one["id"] in targets)
    (told_run,) = runs_of(finished, taken["id"], "--run", run)
    assert told_run["served"] == [one.__dict__ for one in joined.times(taken)]
    shown = why(finished, taken["id"], "--run", run).stdout
    assert f"trained on by {run}: yes ({targets[taken['id']]:,} targets of {taken['tokens']:,} tokens, at step" in shown
    assert f"(the run has {STEPS}), in epoch" in shown
    (row,) = csv.DictReader(io.StringIO(why(finished, taken["id"], "--run", run, "--csv").stdout))
    assert json.loads(row["runs"])[0]["targets"] == targets[taken["id"]]


def test_it_tells_why_a_document_was_not_trained_on(finished: Path, run: Path, documents: list[dict[str, Any]]) -> None:
    cases = {
        "it was removed by": next(one for one in documents if one["removed_by"]),
        "in the split test, which is not trained on": next(one for one in documents if one["split"] == "test"),
        "the run took nothing of component tables": next(
            one for one in documents if one["component"] == "tables" and one["split"] == "train"
        ),
    }
    for said, document in cases.items():
        (told,) = runs_of(finished, document["id"], "--run", run)
        assert told["consumed"] == "no" and said in told["because"] and told["served"] == []


def test_a_document_whose_copy_was_trained_on_is_told_so(finished: Path, run: Path, documents: list[dict[str, Any]]) -> None:
    """ "No" would be the wrong answer to whoever asks whether a text was trained on."""
    by_id = {one["id"]: one for one in documents}
    with logs_of(finished) as logs:
        asked = Run(str(run), logs)
        copies = logs.sql("select id, kept_id, kept_jaccard from removals where kept_id is not null order by id")
        pairs = [(by_id[one["id"]], by_id[one["kept_id"]], one["kept_jaccard"]) for one in copies]
        assert asked.joined is not None
        served = {document["id"]: asked.joined.times(document) for document in documents}
        kinds = set()
        for copy, kept, jaccard in pairs:
            if kept["removed_by"] is not None:
                continue
            told = asked.consumed(copy)
            kinds.add(told.consumed)
            assert told.served == [] and told.targets == 0
            assert (told.consumed == "as a copy") == bool(served[kept["id"]])
            was = "was" if served[kept["id"]] else "was not either"
            assert (
                f"it was removed by {copy['removed_by']}; its copy {kept['id']} (Jaccard {jaccard:.4f}) {was}: " in told.because
            )
            assert [(one.id, one.jaccard, one.served) for one in told.copies] == (
                [(kept["id"], jaccard, served[kept["id"]])] if served[kept["id"]] else []
            )
    assert "as a copy" in kinds
    copy, kept, _ = next(pair for pair in pairs if served[pair[1]["id"]])
    (told_run,) = runs_of(finished, copy["id"], "--run", run)
    assert told_run["copies"][0]["served"] == [one.__dict__ for one in served[kept["id"]]]
    call = ["audit", "trained-on", str(run), "--id", copy["id"]]
    (row,) = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert (row["consumed"], row["copies"], row["served"]) == ("as a copy", told_run["copies"], [])
    rows = list(csv.DictReader(io.StringIO(CliRunner().invoke(app, [*call, "--csv"]).stdout)))
    assert [(one["copy"], int(one["step"])) for one in rows] == [(kept["id"], one.step) for one in served[kept["id"]]]
    assert f"{copy['id']}: trained on as a copy: " in CliRunner().invoke(app, call).stdout


def test_a_short_run_did_not_have_what_did_not_come_up(
    finished: Path, manifest: Manifest, tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    short = write_run(tmp_path / "short", finished, [Phase()], steps=1, every=1)
    asked = Run(str(short), logs_of(finished))
    answers = {asked.consumed(one).because for one in documents if one["split"] == "train"}
    assert "none of its rows came up in 1 steps" in answers and any(
        "at step 1 (the run has 1), in epoch 1" in one for one in answers
    )


def test_a_resumed_run_is_told_as_one_that_was_never_broken_off(
    finished: Path, manifest: Manifest, run: Path, tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    """It was killed after a checkpoint at step 14, ran on to 21 and into half a line, and was resumed from 14."""
    broken = write_run(tmp_path / "broken", finished, [Phase({"web": 3.0, "books": 1.0})], steps=21)
    with open(broken / "ledger.jsonl", "a") as file:
        file.write('{"first_step": 22, "last')
    corpus = Corpus.open(finished)
    loader = Loader(
        [corpus.component(name, "train") for name in corpus.components("train")], 64, 3, [Phase({"web": 3.0, "books": 1.0})]
    )
    ledger = Ledger(broken, loader, manifest.digest, 14)
    for step in range(15, STEPS + 1):
        ledger.consumed(step, (step - 1) * ROWS, step * ROWS)
    ledger.close()
    whole, resumed = (Run(str(one), logs_of(finished)) for one in (run, broken))
    for document in documents:
        assert resumed.consumed(document).served == whole.consumed(document).served


def test_a_run_on_a_corpus_without_a_component_is_told_from_either_manifest(
    finished: Path, copied: Path, tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    dropped = CliRunner().invoke(app, ["manifest", "drop", str(copied), "books", "--output", "less.json"])
    assert dropped.exit_code == 0, dropped.output
    less = write_run(tmp_path / "less", copied / "less.json", [Phase()], steps=60)
    web = next(one for one in documents if one["component"] == "web" and one["split"] == "train")
    books = next(one for one in documents if one["component"] == "books" and one["split"] == "train")
    from_less, from_whole = (runs_of(one, web["id"], "--run", less)[0] for one in (copied / "less.json", finished))
    assert from_less["consumed"] == "yes"
    assert from_whole == from_less
    (told,) = runs_of(finished, books["id"], "--run", less)
    assert (told["consumed"], told["because"]) == ("no", "the run took nothing of component books")


def test_a_run_on_another_corpus_is_asked_there(
    finished: Path, copied: Path, run: Path, tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    """A takedown moved shards: the run on the old corpus had the same text, and what was taken down."""
    joined = TrainedOn(run, Folder(finished), Manifest.load(Folder(finished)))
    (gone, stays) = [one for one in documents if joined.times(one) and one["component"] == "web"][:2]
    (tmp_path / "ids").write_text(gone["id"] + "\n")
    without = tmp_path / "without"
    call = ["audit", "takedown", str(copied), "--ids", str(tmp_path / "ids"), "--output", str(without), "--reason", "asked"]
    assert CliRunner().invoke(app, call).exit_code == 0
    for document in (gone, stays):
        (told,) = runs_of(without, document["id"], "--run", run)
        assert told["consumed"] == "yes" and told["because"].startswith("it was trained on another corpus, ")
        assert f"as {document['id']}: " in told["because"]
        assert told["served"] == [one.__dict__ for one in joined.times(document)]
    alone = tmp_path / "alone"
    shutil.copytree(run, alone)
    (alone / "config.json").unlink()
    (told,) = runs_of(without, stays["id"], "--run", alone)
    assert told["consumed"] == "unknown" and "does not say where that lay" in told["because"]
    (alone / "config.json").write_text(json.dumps({"manifest": str(without)}))
    (told,) = runs_of(without, stays["id"], "--run", alone)
    assert told["consumed"] == "unknown" and "cannot be asked" in told["because"]


def test_a_ledger_that_is_missing_or_damaged_is_an_error_of_one_line(
    finished: Path, manifest: Manifest, run: Path, tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ledger.jsonl").write_text("[1]\n")
    for folder in (tmp_path / "broken", tmp_path / "nowhere"):
        with pytest.raises(LedgerError):
            Run(str(folder), logs_of(finished))
        result = why(finished, documents[0]["id"], "--run", run, "--run", folder, code=1)
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
