"""A corpus without a component is planned, verified and trained on as if the component had never been there."""

from __future__ import annotations

import shutil
from pathlib import Path

from typer.testing import CliRunner

from manifests.commands import app as questions
from manifests.manifest import open_corpus
from manifests.trained_on import TrainedOn
from trainer.commands import app

SHAPE = ["layers=1", "width=16", "heads=2", "kv_heads=1", "hidden=16"]


def ask(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(questions, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_what_was_dropped_is_never_read_again(copied: Path, tmp_path: Path) -> None:
    """Its shards and logs are deleted, so that reading them would fail."""
    ask("manifest", "drop", str(copied), "books", "--output", "less.json")
    for folder in ("tokens", *(f"logs/{kind}" for kind in ("documents", "removals", "edits", "signals"))):
        shutil.rmtree(copied / folder / "books", ignore_errors=True)
    less = str(copied / "less.json")
    assert "verified" in ask("verify", less)
    planned = ask("mixture", less, "--tokens", "5000", "--temperature", "0.3")
    assert "tables" in planned and "web" in planned and "books" not in planned
    refused = ask("mixture", less, "--tokens", "5000", "--weight", "books=1", code=1)
    assert "there is no component 'books' with training tokens; there are tables, web" in refused
    shape = [part for one in SHAPE for part in ("--model", one)]
    small = ["--preset", "tiny", *shape, "--sequence-length", "64", "--batch-tokens", "512", "--device", "cpu"]
    run = ["train", "--manifest", less, "--out", str(tmp_path / "run"), *small, "--tokens", "8000", "--max-epochs", "4"]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 0, result.output
    seen = TrainedOn(tmp_path / "run", *open_corpus(less)).documents()["id"].to_pylist()
    assert {name.split("/")[0] for name in seen} == {"tables", "web"}
    refused = CliRunner().invoke(app, [*run[:4], str(tmp_path / "other"), *run[5:], "--mixture", "books=1"]).output
    assert "names component 'books'; the training split has: tables, web" in refused
