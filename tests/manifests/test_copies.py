"""A copy of a copy: what stands in today for a document that was removed as a copy is found through any number of stages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from manifests.audit.takedown import Selection, affected, take_down
from manifests.commands import app
from manifests.copies import copies_of, stand_ins
from manifests.logs import Logs
from manifests.manifest import open_corpus
from manifests.verification.verify import verify
from stages import audit_commands
from tests.pipeline.crawl import article, build, prose, small_recipe, write_small

assert audit_commands

KEPT, MIDDLE, COPY = (f"docs/{name}.jsonl#0" for name in "abc")
"""COPY is an exact copy of MIDDLE, which is a near-duplicate of KEPT."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    text = article("chain")
    texts = {"a": f"{text} {prose('more', 1)[0]}", "b": text, "c": text, **{f"other{n}": article(n) for n in range(20)}}
    files = {f"{name}.jsonl": [{"text": one, "url": f"https://{name}.example/p"}] for name, one in texts.items()}
    wide: list[Any] = ["exact_dedup", {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}}]
    wide += [{"split": {"validation": 0.1, "test": 0.1}}, {"tokenizer": {"vocabulary": 512}}, "shards"]
    build(write_small(folder, files, {**small_recipe([], wide), "seed": 1}), folder / "corpus")
    return folder / "corpus"


@pytest.fixture
def logs(chain: Path) -> Any:
    with Logs(*open_corpus(str(chain)), ["documents", "removals"]) as opened:
        yield opened


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def test_the_evidence_is_followed_to_what_is_in_the_corpus(logs: Logs) -> None:
    removals = {row["id"]: row for row in logs.sql("select * from removals")}
    assert (removals[COPY]["stage"], removals[COPY]["kept_id"]) == ("exact_dedup", MIDDLE), "the crawl has no such chain"
    found = stand_ins(logs, [COPY, MIDDLE, KEPT, "docs/nowhere#0"])
    assert set(found) == {COPY, MIDDLE}
    assert {(one.id, one.in_corpus) for one in found.values()} == {(KEPT, True)}
    assert [step.kept_id for step in found[COPY].steps] == [MIDDLE, KEPT]
    # an exact copy resembles what its original resembles
    assert found[COPY].jaccard == found[MIDDLE].jaccard == removals[MIDDLE]["kept_jaccard"] < 1
    assert [row["id"] for row in copies_of(logs, [KEPT])] == [MIDDLE, COPY]
    assert [row["id"] for row in copies_of(logs, [KEPT], 1)] == [MIDDLE]
    assert copies_of(logs, [COPY]) == []


def test_a_takedown_of_the_copy_of_a_copy_finds_what_stands_in_for_it(chain: Path, logs: Logs, tmp_path: Path) -> None:
    asked = Selection(domains=("c.example",))
    listed = affected(logs, asked)
    (survivor,) = listed.survivors
    assert (survivor["id"], survivor["of"], survivor["through"]) == (KEPT, COPY, [MIDDLE])
    assert survivor["jaccard"] < 1 and survivor["how"] == f"kept instead of it, through {MIDDLE}"
    gone = affected(logs, asked, "remove")
    assert [row["id"] for row in gone.taken] == [KEPT]
    assert [row["id"] for row in gone.orphans] == [MIDDLE]
    done = take_down(*open_corpus(str(chain)), gone, str(tmp_path / "without"), "order", "me")
    assert list(verify(*open_corpus(done.where))) == []
    with Logs(*open_corpus(done.where), ["documents", "removals"]) as after:
        found = stand_ins(after, [COPY])[COPY]
    assert (found.in_corpus, found.removed_by, found.id) == (False, "takedown", KEPT)
    assert f"{KEPT} was removed by takedown" in found.in_words()


def test_a_takedown_of_what_stands_in_tells_of_every_copy_behind_it(logs: Logs) -> None:
    assert [row["id"] for row in affected(logs, Selection(documents=(KEPT,))).orphans] == [MIDDLE, COPY]


def test_why_and_twins_say_that_the_kept_one_was_removed_later_and_what_is_there_today(chain: Path) -> None:
    said = shown("audit", "why", chain, COPY)
    assert f"today {KEPT} is in the corpus in its place, through {MIDDLE}" in said
    (life,) = json.loads(shown("audit", "why", chain, KEPT, "--json"))
    assert [(one["id"], one["kept_id"]) for one in life["twins"]] == [(MIDDLE, KEPT), (COPY, MIDDLE)]
    for asked, first in ((COPY, COPY), (KEPT, MIDDLE)):
        pairs = json.loads(shown("audit", "twins", chain, asked, "--json"))
        assert {(one["id"], one["kept_id"], one["kept_removed_by"]) for one in pairs} == {
            (COPY, MIDDLE, "minhash"),
            (MIDDLE, KEPT, None),
        }
        assert pairs[0]["id"] == first
    said = shown("audit", "twins", chain, COPY)
    assert f"{MIDDLE} was kept then, and removed later by minhash" in said and f"{MIDDLE} stayed" not in said


def test_damaged_evidence_that_leads_round_in_a_circle_comes_to_an_end(chain: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(chain, damaged)
    edit: Callable[[str], str | None] = {MIDDLE: COPY, COPY: MIDDLE}.get
    for path in (damaged / "logs" / "removals").rglob("*.parquet"):
        table = pq.read_table(path)
        kept = [edit(one) for one in table["id"].to_pylist()]
        at = table.schema.get_field_index("kept_id")
        pq.write_table(table.set_column(at, table.schema.field(at), [kept]), path)
    with Logs(*open_corpus(str(damaged)), ["documents", "removals"]) as logs:
        found = stand_ins(logs, [COPY])[COPY]
        assert (found.in_corpus, len(found.steps)) == (False, 2)
        assert {row["id"] for row in copies_of(logs, [COPY])} == {MIDDLE}
        assert affected(logs, Selection(documents=(COPY,))).survivors == []
