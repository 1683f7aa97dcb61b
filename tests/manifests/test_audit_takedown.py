"""A takedown: what goes is gone from shards and logs, everything else is as it was, and the act is on record."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.audit.takedown import Affected, Selection, affected, take_down
from manifests.commands import app
from manifests.logs import Logs
from manifests.manifest import Manifest, ManifestError, open_corpus
from manifests.storage import Folder
from manifests.verification.verify import verify
from tests.pipeline.crawl import Crawl

SITE = Selection(domains=("site0.example",))
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def look(corpus: Path, selection: Selection, near_duplicates: Any = "list") -> Affected:
    folder, manifest = open_corpus(str(corpus))
    with Logs(folder, manifest, ["documents", "removals"]) as logs:
        return affected(logs, selection, near_duplicates)


def call(*arguments: str | Path, given: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["audit", "takedown", *(str(one) for one in arguments)], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def texts(corpus: str) -> dict[str, list[int]]:
    """Id → tokens, of every document in a shard."""
    folder, manifest = open_corpus(corpus)
    assert manifest.content.tokenizer is not None
    found = {}
    for shard in manifest.content.shards:
        tokens = np.frombuffer(folder.read(shard.path), manifest.content.tokenizer.dtype)
        for row in pq.read_table(folder.path(shard.index)).to_pylist():
            found[row["id"]] = tokens[row["start"] : row["start"] + row["tokens"]].tolist()
    return found


def logged(corpus: str, kind: str) -> dict[str, dict[str, Any]]:
    folder, manifest = open_corpus(corpus)
    paths = [folder.path(log.path) for log in manifest.content.logs if log.kind == kind]
    return {row["id"]: row for row in ds.dataset(paths).to_table().to_pylist()}


@pytest.fixture(params=["a folder of its own", "a manifest beside the old one"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "without") if request.param == "a folder of its own" else "without.json"


def test_what_goes_is_gone_and_everything_else_is_as_it_was(copied: Path, output: str) -> None:
    before, digest = texts(str(copied)), (copied / "manifest.json").read_bytes()
    folder, manifest = open_corpus(str(copied))
    what = look(copied, SITE)
    gone = {row["id"] for row in what.taken}
    assert len(gone) == 7
    done = take_down(folder, manifest, what, output, "a court's order", "an auditor", NOON)
    assert list(verify(*open_corpus(done.where))) == []
    assert texts(done.where) == {one: tokens for one, tokens in before.items() if one not in gone}
    rows, removals = logged(done.where, "documents"), logged(done.where, "removals")
    assert {one for one, row in rows.items() if row["removed_by"] == "takedown"} == gone
    for one in gone:
        assert {removals[one][name] for name in ("stage", "rule")} == {"takedown", "takedown.domain"}
        assert removals[one]["detail"] == "a court's order"
        assert rows[one]["shard"] is rows[one]["text_sha256"] is rows[one]["split"] is None
    old = logged(str(copied), "documents")
    for one in old.keys() - gone:
        same = old[one].keys() - {"start", "shard"}
        assert {name: old[one][name] for name in same} == {name: rows[one][name] for name in same}
    assert (copied / "manifest.json").read_bytes() == digest
    assert list(verify(folder, manifest)) == []
    assert texts(str(copied)) == before


def test_files_that_hold_nothing_of_it_are_not_written_anew(copied: Path, output: str) -> None:
    folder, manifest = open_corpus(str(copied))
    done = take_down(folder, manifest, look(copied, SITE), output, "order", "me", NOON)
    assert all("/web/" in path for path in [*done.rewritten, *done.superseded])
    new = {shard.component: shard for shard in done.manifest.content.shards}
    assert new["books"] in manifest.content.shards
    if output != "without.json":
        path = next(shard.path for shard in manifest.content.shards if shard.component == "books")
        assert (Path(output) / path).stat().st_ino == (copied / path).stat().st_ino
    else:
        assert {log.path for log in manifest.content.logs} <= set(Folder(copied).names("logs"))


def test_the_act_is_on_record_with_reason_time_and_name(copied: Path, output: str) -> None:
    folder, manifest = open_corpus(str(copied))
    what = look(copied, Selection(domains=("site0.example",), documents=("books/north/0.jsonl#2",)))
    done = take_down(folder, manifest, what, output, "order 17", "A. Auditor", NOON)
    (act,) = done.manifest.run["takedowns"]
    expected = {"step": "takedown.1", "by": "A. Auditor", "at": "2026-11-29T12:00:00+00:00", "reason": "order 17"}
    assert act == {**expected, "of": manifest.digest}
    record = done.manifest.content.stages[-1]
    assert (record.stage, record.options["reason"], record.options["of"]) == ("takedown", "order 17", manifest.digest)
    assert (record.options["documents"], record.options["domains"], record.options["listed"]) == (8, ["site0.example"], 1)
    counts = [one for one in done.manifest.content.counts if one.stage == "takedown"]
    assert {one.component: one.removed for one in counts} == {
        "books": {"takedown.listed": 1},
        "tables": {},
        "web": {"takedown.domain": 7},
    }
    assert all(one.documents_in == one.documents_kept + sum(one.removed.values()) for one in counts)


def test_the_same_takedown_has_the_same_digest_whoever_does_it_and_when(copied: Path, tmp_path: Path) -> None:
    folder, manifest = open_corpus(str(copied))
    one = take_down(folder, manifest, look(copied, SITE), str(tmp_path / "one"), "order", "me", NOON)
    two = take_down(folder, manifest, look(copied, SITE), str(tmp_path / "two"), "order", "you")
    assert one.manifest.digest == two.manifest.digest
    assert one.manifest.run_digest != two.manifest.run_digest


def test_a_takedown_of_a_takedown_is_counted_by_itself(copied: Path, tmp_path: Path) -> None:
    folder, manifest = open_corpus(str(copied))
    first = take_down(folder, manifest, look(copied, SITE), "first.json", "order", "me", NOON)
    path = copied / "first.json"
    what = look(path, Selection(domains=("site0.example", "site1.example")))
    assert what.removed_before == {"takedown": 7}
    second = take_down(*open_corpus(str(path)), what, str(tmp_path / "second"), "order", "me", NOON)
    assert [one.step for one in second.manifest.content.stages][-2:] == ["takedown.1", "takedown.2"]
    assert list(verify(*open_corpus(second.where))) == []
    assert list(verify(*open_corpus(first.where))) == []


def test_a_whole_licence_goes_and_leaves_no_shard_of_it(copied: Path, tmp_path: Path) -> None:
    folder, manifest = open_corpus(str(copied))
    done = take_down(folder, manifest, look(copied, Selection(licences=("PD",))), str(tmp_path / "out"), "order", "me", NOON)
    assert {shard.component for shard in done.manifest.content.shards} == {"web", "tables"}
    assert done.manifest.content.components["books"].documents_kept == 0
    assert list(verify(*open_corpus(done.where))) == []


def test_copies_that_stay_are_listed_and_can_go_too(crawl: Crawl, copied: Path, tmp_path: Path) -> None:
    """The copy of a removed document survives elsewhere: who asks for the one gets to know of the other."""
    removals = logged(str(copied), "removals")
    copy = next(row for row in removals.values() if row["kept_id"] is not None and row["stage"] == "minhash")
    listed = look(copied, Selection(documents=(copy["id"],)))
    assert (listed.taken, listed.removed_before) == ([], {"minhash": 1})
    survivor = next(one for one in listed.survivors if one["id"] == copy["kept_id"])
    assert (survivor["of"], survivor["jaccard"]) == (copy["id"], copy["kept_jaccard"])
    folder, manifest = open_corpus(str(copied))
    with pytest.raises(ManifestError, match="nothing to take down"):
        take_down(folder, manifest, listed, "without.json", "order", "me")
    gone = look(copied, Selection(documents=(copy["id"],)), "remove")
    assert [(row["id"], row["rule"], row["linked_id"]) for row in gone.taken] == [
        (copy["kept_id"], "takedown.near_duplicate", copy["id"])
    ]
    done = take_down(folder, manifest, gone, "without.json", "order", "me")
    assert list(verify(*open_corpus(done.where))) == []
    assert logged(done.where, "removals")[copy["kept_id"]]["linked_id"] == copy["id"]


def test_documents_that_were_removed_for_one_that_goes_are_told(copied: Path) -> None:
    copy = next(row for row in logged(str(copied), "removals").values() if row["kept_id"] is not None)
    found = look(copied, Selection(documents=(copy["kept_id"],)))
    assert copy["id"] in {one["id"] for one in found.orphans}
    assert "minhash" in found.saw_it and "tokenizer" in found.saw_it


def test_a_part_of_a_domain_takes_that_part_alone(copied: Path) -> None:
    assert look(copied, Selection(domains=("https://site0.example/page/1",))).taken
    assert look(copied, Selection(domains=("blog.site0.example",))).taken == []
    assert look(copied, Selection(domains=("play.casino.example",))).removed_before == {"url_filter": 1}


def test_urls_and_ids_with_quotes_are_words_and_never_sql(copied: Path) -> None:
    asked = ("https://south.example/2/3?session=secret3", "'; drop view documents; --", "12e5", 'a"b')
    found = look(copied, Selection(documents=asked))
    assert [row["id"] for row in found.taken] == ["books/south/2.jsonl#3"]
    assert found.unknown == list(asked[1:])


def test_a_shard_that_is_not_the_manifest_s_is_refused_before_anything_is_written(copied: Path, tmp_path: Path) -> None:
    folder, manifest = open_corpus(str(copied))
    what = look(copied, SITE)
    damaged = copied / what.shards[0]
    damaged.write_bytes(damaged.read_bytes()[::-1])
    with pytest.raises(ManifestError, match=what.shards[0]):
        take_down(folder, manifest, what, str(tmp_path / "out"), "order", "me")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_command_looks_without_output_and_writes_with_it(copied: Path, tmp_path: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in copied.rglob("*") if path.is_file()}
    (tmp_path / "ids.txt").write_text("books/north/0.jsonl#2\n\nno such document\n")
    looked = call(copied, "--ids", tmp_path / "ids.txt")
    assert "to go: 1 document of the corpus" in looked.stdout
    assert "unknown to this corpus: no such document" in looked.stdout
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*") if path.is_file()} == files
    written = call(copied, "--ids", "-", "--output", tmp_path / "out", "--reason", "order", "--by", "me", "--json", given="books/north/0.jsonl#2\n")  # fmt: skip
    told = json.loads(written.stdout)
    assert told["act"]["where"] == str(tmp_path / "out")
    assert list(verify(*open_corpus(told["act"]["where"]))) == []
    assert Manifest.load(Folder(tmp_path / "out")).run["takedowns"][0]["by"] == "me"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "name what is to go"),
        (["--domain", "site0.example", "--output", "new"], 2, "reason"),
        (["--domain", "a b"], 1, "is no domain"),
        (["--licence", "MIT"], 1, "no component has the licence 'MIT'"),
        (["--ids", "/nowhere/at/all"], 2, "cannot be read"),
        (["--domain", "site0.example", "--near-duplicates", "maybe"], 2, "list or remove"),
        (["--domain", "site0.example", "--output", "manifest.json", "--reason", "x"], 1, "is there already"),
        (["--domain", "site0.example", "--output", "CORPUS", "--reason", "x"], 1, "is the old corpus"),
        (["--domain", "site0.example", "--output", "CORPUS/..", "--reason", "x"], 1, "files already"),
    ],
)
def test_bad_words_are_an_error_and_write_nothing(copied: Path, arguments: list[str], code: int, said: str) -> None:
    result = call(copied, *(one.replace("CORPUS", str(copied)) for one in arguments))
    assert result.exit_code == code
    assert said in result.output
    assert list(verify(*open_corpus(str(copied)))) == []


def test_a_corpus_without_shards_can_be_taken_from(copied: Path, tmp_path: Path, finished: Path) -> None:
    from tests.pipeline.crawl import article, build, small_recipe, write_small

    recipe = write_small(
        tmp_path, {"a.jsonl": [{"text": article(i), "url": f"https://s{i}.example/"} for i in range(4)]}, small_recipe([])
    )
    build(recipe, tmp_path / "corpus")
    folder, manifest = open_corpus(str(tmp_path / "corpus"))
    done = take_down(
        folder, manifest, look(tmp_path / "corpus", Selection(domains=("s2.example",))), str(tmp_path / "out"), "order", "me"
    )
    assert done.manifest.content.components["docs"].documents_kept == 3
    assert list(verify(*open_corpus(done.where))) == []
    shutil.rmtree(tmp_path / "corpus")
    assert list(verify(*open_corpus(done.where))) == [], "the new corpus needs the old one"


@pytest.mark.parametrize("name", ["inner", "tokens/x", "elsewhere/without.json", ""])
def test_a_takedown_is_written_beside_the_corpus_or_out_of_it_and_nowhere_within(copied: Path, name: str) -> None:
    before = sorted(path for path in copied.rglob("*"))
    output = str(copied / name) if name and not name.endswith(".json") else name
    result = call(copied, "--domain", "site0.example", "--output", output, "--reason", "r")
    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert sorted(path for path in copied.rglob("*")) == before


def test_a_takedown_that_fails_leaves_its_folder_empty_and_can_be_told_again(copied: Path, tmp_path: Path) -> None:
    folder, manifest = open_corpus(str(copied))
    what, output = look(copied, SITE), tmp_path / "without"
    shard = copied / what.shards[-1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    with pytest.raises(ManifestError):
        take_down(folder, manifest, what, str(output), "r", "an auditor", NOON)
    assert [path for path in output.rglob("*") if path.is_file()] == []
    shard.write_bytes(whole)
    done = take_down(folder, manifest, what, str(output), "r", "an auditor", NOON)
    assert list(verify(*open_corpus(done.where))) == []


@pytest.mark.parametrize("form", [["--csv"], ["--json"], ["--output", "without.json", "--reason", "r"]])
def test_what_a_takedown_does_not_know_is_said_in_every_form(copied: Path, form: list[str]) -> None:
    result = call(copied, "--domain", "site0.example", "--domain", "typo.example", *form)
    assert result.exit_code == 0
    assert "typo.example" in result.stderr
