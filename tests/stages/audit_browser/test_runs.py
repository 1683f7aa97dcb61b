"""Training runs beside a corpus: the pages say what their ledgers say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manifests.commands import app as program
from manifests.logs import Logs
from manifests.manifest import Manifest, open_corpus
from manifests.storage import Folder
from manifests.trained_on import TrainedOn, read_ledger

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")

from starlette.testclient import TestClient

from stages.audit_browser import runs as runs_module
from stages.audit_browser.pages import link
from stages.audit_browser.runs import Runs
from stages.audit_texts import marked
from tests.manifests.training_run import STEPS, write_run
from tests.pipeline.crawl import build, small_recipe, write_small
from tests.stages.audit_browser.pages import HOSTILE, browser_of, client_of, page
from trainer.data.loader import Phase


@pytest.fixture(scope="module")
def run(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run") / HOSTILE[0].replace("/", "-")
    return str(write_run(folder, finished, [Phase({"web": 3.0, "books": 1.0})]))


@pytest.fixture(scope="module")
def elsewhere(finished: Path, documents: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run on another corpus, which has the first texts that are kept in this one."""
    folder = tmp_path_factory.mktemp("elsewhere")
    kept = [{"id": one["id"]} for one in documents if one["removed_by"] is None][:8]
    with Logs(*open_corpus(str(finished))) as logs:
        texts = [{"text": one["text"]} for one in marked(logs, kept, {}, personal_data=True)]
    recipe = small_recipe(
        [], ["exact_dedup", {"split": {"validation": 0, "test": 0}}, {"tokenizer": {"vocabulary": 600}}, "shards"], seed=1
    )
    build(write_small(folder, {"a.jsonl": texts}, recipe), folder / "corpus")
    return str(write_run(folder / "other", folder / "corpus", [Phase(None)], rows=4))


@pytest.fixture(scope="module")
def client(finished: Path, manifest: Manifest, run: str, elsewhere: str, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    runs = Runs.of([run, elsewhere], Folder(finished), manifest)
    return client_of(browser_of(finished, tmp_path_factory.mktemp("reviews") / "r", runs=runs))


@pytest.fixture(scope="module")
def documents(finished: Path) -> list[dict[str, Any]]:
    with Logs(*open_corpus(str(finished)), ["documents"]) as logs:
        return logs.sql("select * from documents order by id")


def told(*arguments: str) -> Any:
    result = CliRunner().invoke(program, ["audit", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def one_of_each_fate(documents: list[dict[str, Any]], finished: Path, run: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with Logs(*open_corpus(str(finished)), ["documents", "removals"]) as logs:
        runs = Runs.of([run], logs.corpus, logs.manifest)
        for document in documents:
            (answer,) = runs.consumed(logs, document)
            found.setdefault(answer.consumed, document)
    return found


def test_a_document_s_page_tells_of_each_run_what_why_tells(
    client: TestClient, documents: list[dict[str, Any]], finished: Path, run: str, elsewhere: str
) -> None:
    fates = one_of_each_fate(documents, finished, run)
    assert set(fates) == {"yes", "as a copy", "no"}
    shared = next(one for one in documents if one["removed_by"] is None)
    said_of_other = set()
    for document in (*fates.values(), shared):
        (life,) = told("why", str(finished), document["id"], "--run", run, "--run", elsewhere)
        said = page(client, link("/document", id=document["id"])).text
        for one in life["runs"]:
            assert " ".join(one["because"][1:].split()) in said
            assert {"yes": "trained on", "no": "not trained on"}.get(one["consumed"], one["consumed"]) in said
            for time in one["served"][:50]:
                row = f"{time['step']:,} {time['epoch'] + 1} {time['position']:,}"
                assert f"{row} {time['first_token'] + 1:,} to {time['first_token'] + time['tokens']:,}" in said
            for copy in one["copies"]:
                assert link("/document", id=copy["id"]) in page(client, link("/document", id=document["id"])).links()
        said_of_other.add(life["runs"][1]["consumed"])
    assert said_of_other == {"yes", "no"}


def test_the_overview_and_the_run_s_page_tell_the_steps_and_what_was_taken(
    client: TestClient, run: str, elsewhere: str, finished: Path, manifest: Manifest
) -> None:
    said = page(client, "/")
    passes = TrainedOn(Path(run), Folder(finished), manifest).passes()
    assert f"1 to {STEPS} web {passes['web']:.2f}" in said.text or f"web {passes['web']:.2f}" in said.text
    assert f"1 to {STEPS}" in said.text and f"1 to {STEPS} it was trained on another corpus" in said.text
    assert link("/run", name=run) in said.links()
    whole = told("trained-on", run)
    said = page(client, link("/run", name=run))
    for row in whole["all"]:
        name = "none" if row["name"] is None else row["name"]
        assert row["dimension"] == "all" or f"{name} {row['documents']:,} {row['tokens']:,}" in said.text
    for one in whole["stretches"]:
        assert f"{one['first_step']} to {one['last_step']} {one['documents']:,} {one['tokens']:,}" in said.text
    assert "another corpus" in page(client, link("/run", name=elsewhere)).text
    assert "no run x was given" in page(client, "/run?name=x", 404).text


def test_what_was_served_of_many_documents_is_what_was_served_of_each(
    documents: list[dict[str, Any]], finished: Path, manifest: Manifest, run: str
) -> None:
    joined = TrainedOn(Path(run), Folder(finished), manifest)
    assert joined.targets_of(documents) == [sum(time.tokens for time in joined.times(one)) for one in documents]
    assert sum(joined.targets_of(documents)) == sum(joined.documents()["targets"].to_pylist()) > 0


def test_a_takedown_tells_how_many_of_its_documents_were_trained_on(
    client: TestClient, documents: list[dict[str, Any]], finished: Path, manifest: Manifest, run: str
) -> None:
    joined = TrainedOn(Path(run), Folder(finished), manifest)
    of_site = [one for one in documents if one["domain"] == "site0.example" and one["removed_by"] is None]
    had = sum(bool(joined.times(one)) for one in of_site)
    said = page(client, link("/takedown", domain="site0.example")).text
    assert had > 0 and f"{had} of those that go, {sum(joined.targets_of(of_site)):,} tokens served" in said
    assert "it was trained on another corpus: their pages tell" in said


def test_a_run_that_is_not_opened_yet_is_said_to_be_and_one_that_cannot_be_why(
    finished: Path, manifest: Manifest, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(runs_module, "AT_ONCE_SECONDS", 0.0)
    waits = Runs({run: read_ledger(Path(run))})  # whose opening never begins
    asked = client_of(browser_of(finished, tmp_path / "r", runs=waits))
    for path in ("/", link("/document", id=documents[0]["id"]), link("/takedown", id=documents[0]["id"])):
        assert runs_module.NOT_YET[1:] in page(asked, path).text
    assert runs_module.NOT_YET in page(asked, link("/run", name=run), 503).text
    monkeypatch.setattr(runs_module, "AT_ONCE_SECONDS", 60.0)
    shutil.copytree(run, tmp_path / "run")
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(ledger[0])
    header["loader_digest"] = "0" * 64
    (tmp_path / "run" / "ledger.jsonl").write_text("".join([json.dumps(header) + "\n", *ledger[1:]]))
    wrong = Runs.of([str(tmp_path / "run")], Folder(finished), manifest)
    asked = client_of(browser_of(finished, tmp_path / "r", runs=wrong))
    said = "another version of the loader wrote it"
    assert said in page(asked, "/").text and said in page(asked, link("/document", id=documents[0]["id"])).text
    assert said in page(asked, link("/run", name=str(tmp_path / "run")), 500).text


def test_without_a_run_the_overview_says_how_to_name_one(served: TestClient) -> None:
    assert "None was named. Start with --run RUN" in page(served, "/").text


def test_a_ledger_that_is_damaged_or_missing_is_refused_at_the_start(finished: Path, run: str, tmp_path: Path) -> None:
    lines = (Path(run) / "ledger.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "ledger.jsonl").write_text("".join([lines[0], *lines[2:]]))
    for folder, said in ((tmp_path / "cut", "line 2"), (tmp_path / "none", "no ledger")):
        result = CliRunner().invoke(program, ["audit", "serve", str(finished), "--run", str(folder)])
        assert result.exit_code == 1 and said in " ".join(result.output.split())
