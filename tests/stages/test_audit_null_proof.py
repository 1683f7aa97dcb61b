"""Columns that are all null, logs without rows, names that look like numbers, nulls or partitions, and words that quote and end
statements: every question about them is answered as about any other corpus, on a disk and on an object store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app
from manifests.manifest import open_corpus
from manifests.verification.verify import verify
from pipeline.recipe import Recipe
from stages import audit_commands
from tests.manifests.training_run import write_run
from tests.object_store import object_store, uploaded
from tests.pipeline.crawl import article, build, lines_of
from trainer.data.loader import Phase

assert audit_commands

COMPONENTS = ("12e5", "007", "null", "1_000", "nan", "empty")
FILES = (
    "shard=007/language=en/part=1.jsonl",
    "12e5",
    "007",
    "1_000",
    "nan",
    "null",
    'it\'s "100%"; -- x.jsonl',
    "a'%27%00.jsonl",
)
URLS = (
    'https://it\'s.example/%27?q="1";--',
    "https://12e5.example/100%/%",
    "https://nan.example/a;b'c\"d",
    None,
)
HOSTILE = (
    "'; drop table documents; --",
    "a\nb",
    "12e5/007#٣",
    "%",
    "nan",
    '"; select 1; --',
    "_",
    "100%",
    "null",
    "NULL",
    "12e5",
    "007",
    "1_000",
    "12e5/007#007",
    "12e5/007#1_000",
    "12e5/007#99999999999999999999999999",
    "\\",
    "$1",
    "?",
)


def recipe() -> dict[str, Any]:
    """No stage tells a language. Of `nan` everything is removed, and `empty` has no document."""
    stages: dict[str, list[Any]] = {"nan": [{"gopher_quality": {"min_words": 100_000}}]}
    parts = {
        name: {
            "source": name,
            "format": "jsonl",
            "licence": 'it\'s; "100%"',
            "files": ["**"],
            "stages": stages.get(name, ["gopher_quality"]),
        }
        for name in COMPONENTS
    }
    whole = [
        "exact_dedup",
        {"split": {"validation": 0.2, "test": 0.2}},
        {"tokenizer": {"vocabulary": 600}},
        {"shards": {"target_tokens": 4000}},
    ]
    return {"corpus": "null-proof", "components": parts, "stages": whole}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It lies in folders that look like partitions, one of which quotes."""
    folder = tmp_path_factory.mktemp("nulls") / "language=en" / "it's shard=007"
    for component in COMPONENTS:
        for number, name in enumerate(FILES):
            path = folder / component / name
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"text": article(f"{component} {number} {n}"), "url": URLS[n % len(URLS)]} for n in range(3)]
            path.write_bytes(lines_of(rows if component != "empty" else []))
    (folder / "007" / "007").write_bytes(lines_of([{"text": article("12e5 0 0")}, {"text": "short"}]))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(), sort_keys=False))
    build(Recipe.load(folder / "recipe.yaml"), folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="module")
def remote(local: Path) -> Iterator[str]:
    with object_store("nulls") as bucket:
        yield uploaded(local, f"{bucket}/shard=007/language=en")


def call(*arguments: str | Path, code: int | None = 0) -> Result:
    result = CliRunner().invoke(app, ["audit", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
    assert code is None or result.exit_code == code, (arguments, result.output)
    return result


QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("funnel",),
    ("rules",),
    ("rules", "--by", "language", "--by", "domain"),
    ("why", "12e5/12e5#0"),
    ("why", "nan/nan#1"),
    ("why", "null/null"),
    ("why", "1_000/shard=007/language=en/part=1.jsonl#2"),
    ("why", '007/it\'s "100%"; -- x.jsonl#0'),
    ("why", "12e5/a'%27%00.jsonl"),
    ("why", str(URLS[0])),
    ("why", str(URLS[2])),
    ("domain", "12e5.example"),
    ("domain", "nan.example"),
    ("whatif",),
    ("whatif", "nan:gopher.min_words=1"),
    ("whatif", "gopher.min_words=off", "--component", "empty"),
    ("takedown", "--domain", "12e5.example"),
    ("takedown", "--licence", 'it\'s; "100%"'),
    ("sql",),
    ("sql", "select * from documents"),
    ("sql", "select * from edits"),
    ("sql", "select * from removals where language is null"),
    ("sql", "select * from signals_nan_filters1"),
    ("sql", "select * from signals_empty_filters1"),
    ("text", "007/007#0"),
    ("text", "12e5/shard=007/language=en/part=1.jsonl#0"),
    ("sample", "--rule", "gopher.min_words", "--n", "3"),
    ("twins", "007/007#0"),
)


def asked(corpus: str | Path, question: tuple[str, ...]) -> tuple[Any, list[dict[str, str]]]:
    assert call(question[0], corpus, *question[1:]).stdout
    told = json.loads(call(question[0], corpus, *question[1:], "--json").stdout)
    table = list(csv.DictReader(io.StringIO(call(question[0], corpus, *question[1:], "--csv").stdout), strict=True))
    assert all(None not in row and None not in row.values() for row in table)
    return told, table


def texts_of(row: dict[str, Any]) -> list[str]:
    found = [row["text"]] if "text" in row else [row["removed"]["text"], row["kept"]["text"]]
    assert all(found)
    return found


SOME = [question if n % 6 == 0 else pytest.param(question, marks=pytest.mark.slow) for n, question in enumerate(QUESTIONS)]
"""A sixth of them with every change, the others with the slow tests."""


@pytest.mark.parametrize("question", SOME, ids=lambda question: " ".join(question)[:40])
def test_every_question_is_answered_in_a_table_json_and_csv(local: Path, question: tuple[str, ...]) -> None:
    asked(local, question)


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: " ".join(question)[:40])
def test_every_question_has_the_same_answer_on_an_object_store(local: Path, remote: str, question: tuple[str, ...]) -> None:
    """Work files are not in the bucket: removed texts are read from the source."""
    if question[0] not in ("text", "sample", "twins"):
        assert asked(remote, question) == asked(local, question)
        return
    sources = [word for name in COMPONENTS for word in ("--source", f"{name}={local.parent / name}")]
    (told, table), (mine, my_table) = asked(remote, (*question, *sources)), asked(local, question)
    assert [texts_of(one) for one in told] == [texts_of(one) for one in mine]
    assert [row["id"] for row in table] == [row["id"] for row in my_table]


def test_names_are_what_they_were_and_no_column_is_taken_from_a_folder(local: Path) -> None:
    rows = json.loads(call("sql", local, "select * from documents", "--json").stdout)
    assert {row["component"] for row in rows} == set(COMPONENTS)
    assert all(row["removed_by"] == "read" for row in rows if row["component"] == "empty"), "an empty file has a row of its own"
    assert {row["file"] for row in rows} == set(FILES)
    assert all(row["language"] is None for row in rows)
    assert all(row["shard"] is None or row["shard"].startswith(f"tokens/{row['component']}/") for row in rows)
    assert all(row["id"] == f"{row['component']}/{row['file']}#{row['position']}" for row in rows)
    for row in rows[::7]:
        (life,) = json.loads(call("why", local, row["id"], "--json").stdout)
        assert life["document"] == row
    for name in ("12e5", "007", "1_000", "nan", "null"):
        told = json.loads(call("why", local, f"12e5/{name}", "--json").stdout)
        assert [life["document"]["id"] for life in told] == [f"12e5/{name}#{n}" for n in range(3)]
    for url in filter(None, URLS):
        told = json.loads(call("why", local, url, "--json").stdout)
        assert len(told) > 1 and {life["document"]["domain"] for life in told} <= {
            "it's.example",
            "12e5.example",
            "nan.example",
            None,
        }


@pytest.mark.parametrize("words", [pytest.param(one, marks=pytest.mark.slow if n > 1 else ()) for n, one in enumerate(HOSTILE)])
def test_what_is_not_there_is_an_answer_and_no_traceback(local: Path, words: str) -> None:
    for question in (
        ("why", local, words),
        ("domain", local, words),
        ("text", local, words),
        ("twins", local, words),
        ("sample", local, "--rule", words),
        ("whatif", local, words),
        ("whatif", local, f"gopher.min_words={words}"),
        ("takedown", local, "--domain", words),
        ("takedown", local, "--licence", words),
        ("sql", local, words),
    ):
        result = call(*question, code=None)
        assert result.exit_code in (0, 1, 2), question
        if result.exit_code == 1:
            assert result.stderr.strip() or result.stdout.strip(), question
    assert len(json.loads(call("sql", local, "select count(*) as n from documents", "--json").stdout)) == 1


def test_verify_finds_nothing_wrong_with_it(local: Path, remote: str) -> None:
    for corpus in (str(local), remote):
        assert list(verify(*open_corpus(corpus), texts=True)) == []


def test_a_run_on_it_is_told_from_its_ledger(local: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "it's 100% run", local, [Phase()])
    told = json.loads(call("trained-on", run, "--json").stdout)
    assert {one["name"] for one in told["all"] if one["dimension"] == "language"} == {None}
    (life,) = json.loads(call("why", local, "12e5/12e5#0", "--run", run, "--json").stdout)
    assert life["runs"][0]["consumed"] in ("yes", "no")
    assert list(csv.DictReader(io.StringIO(call("trained-on", run, "--csv").stdout)))
