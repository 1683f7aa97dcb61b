"""`corpusmill audit …`: answers to questions about a finished corpus, in tables, JSON and CSV."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manifests.audit.costs import rule_costs
from manifests.audit.life_table import show_life
from manifests.commands import app
from manifests.life import lives
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.audit_questions import answer, call, logged, table
from tests.pipeline.crawl import article, build, small_recipe, write_small

QUESTIONS = (
    ("funnel",),
    ("rules",),
    ("why", "books/north/0.jsonl#0"),
    ("domain", "site0.example"),
    ("whatif",),
    ("whatif", "c4.curly_brace=off"),
    ("takedown", "--domain", "site0.example"),
    ("sql",),
    ("sql", "select * from removals"),
)


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_every_question_is_answered_in_a_table_in_json_and_in_csv(finished: Path, question: tuple[str, ...]) -> None:
    arguments = (question[0], str(finished), *question[1:])
    assert call(*arguments).stdout.strip()
    assert answer(*arguments)
    assert table(*arguments)
    assert "one of --json and --csv" in call(*arguments, "--json", "--csv", code=2).output


def test_the_funnel_conserves_documents_at_every_stage(finished: Path) -> None:
    for row in answer("funnel", finished):
        assert row["documents_in"] == row["documents_kept"] + row["removed"] == row["documents_kept"] + sum(row["rules"].values())


def test_a_rule_s_cost_is_what_the_removal_rows_say(finished: Path) -> None:
    rows = logged(finished, "removals")
    removed = Counter(row["rule"] for row in rows)
    alone = Counter(row["rule"] for row in rows if row["failed_rules"] == [row["rule"]])
    failed = Counter(rule for row in rows for rule in row["failed_rules"])
    found = {one["rule"]: one for one in answer("rules", finished, "--largest", "100")}
    assert {rule: one["removed"] for rule, one in found.items()} == removed
    assert {rule: one["alone"] for rule, one in found.items() if one["alone"]} == alone
    assert {rule: one["failed"] for rule, one in found.items()} == {rule: failed[rule] for rule in removed}
    assert any(one["alone"] < one["removed"] for one in found.values())
    came = Counter(row["language"] for row in logged(finished, "documents"))
    for rule, one in found.items():
        for dimension in ("component", "language", "domain"):
            shares = {share["name"]: share["removed"] for share in one["by"][dimension]}
            assert shares == Counter(row[dimension] for row in rows if row["rule"] == rule)
        for share in one["by"]["language"]:
            assert share["documents"] == came[share["name"]] >= share["removed"]


def test_documents_without_a_language_are_counted_and_not_lost_in_a_comparison(finished: Path) -> None:
    found = next(one for one in answer("rules", finished, "--by", "language") if one["rule"] == "read.status")
    assert found["by"]["language"] == [{"name": None, "removed": 1, "documents": 8, "share": 0.125}]
    assert sum(row["language"] is None for row in logged(finished, "documents")) == 8


def test_why_tells_what_the_other_why_tells(finished: Path) -> None:
    asked = "https://gone.example/"
    other = CliRunner().invoke(app, ["why", str(finished), asked, "--json"])
    assert answer("why", finished, asked) == json.loads(other.stdout)
    assert "no document" in call("why", finished, "12e5", code=1).stderr


def test_a_domain_is_found_by_host_and_by_url_and_told_in_full(finished: Path) -> None:
    for asked in ("casino.example", "play.casino.example", "https://PLAY.casino.example/slots?a=b"):
        found = answer("domain", finished, asked)
        assert (found["domain"], found["documents"], found["kept"]) == ("casino.example", 1, 0)
        assert found["by"][0]["rule"] == "url_filter.domain"
    assert "came from nowhere.example" in call("domain", finished, "nowhere.example", code=1).stderr
    assert "is no domain" in call("domain", finished, "a b'; drop view documents; --", code=2).output
    without = [row for row in logged(finished, "documents") if row["domain"] is None]
    found = answer("domain", finished, "none")
    assert (found["domain"], found["documents"]) == (None, len(without))
    assert found["kept"] == sum(row["removed_by"] is None for row in without) > 0
    assert {one["id"] for one in found["examples"]} <= {row["id"] for row in without}


def test_ids_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    files = {name: [{"text": article(name)}] for name in ("12e5", "007", "shard=007/1e3.jsonl", "it's.jsonl", 'a"b', "nan")}
    written = small_recipe(["gopher_quality"])
    written["components"]["docs"]["files"] = ["*"]
    recipe = write_small(tmp_path, files, written)
    corpus = tmp_path / "shard=007" / "it's [a] corpus"
    build(recipe, corpus)
    for name in files:
        (found,) = answer("why", corpus, f"docs/{name}#0")
        assert found["document"]["file"] == name
        assert found["signals"]["filters1"]["gopher.words"] > 50
    rows = table("sql", corpus, "select id, file, language, component from documents order by id")
    assert {row["file"] for row in rows} == set(files)
    assert {row["language"] for row in rows} == {""}
    names = {row["column"] for row in answer("sql", corpus) if row["view"] == "documents"}
    assert "shard" in names and len([name for name in names if name == "shard"]) == 1
    types = answer("sql", corpus, "select typeof(language) as language, typeof(file) as file, shard from documents limit 1")
    assert types == [{"language": "VARCHAR", "file": "VARCHAR", "shard": None}]
    assert answer("rules", corpus) == []


def test_anti_joins_over_columns_with_nulls_lose_no_document(finished: Path) -> None:
    (found,) = answer(
        "sql",
        finished,
        "select count(*) as kept from documents where not exists (select 1 from removals where removals.id = documents.id)",
    )
    assert found["kept"] == sum(row["removed_by"] is None for row in logged(finished, "documents"))


def test_an_answer_without_rows_has_its_header_all_the_same(finished: Path) -> None:
    assert call("whatif", finished, "gopher.max_words=100001", "--csv").stdout == "side,component,language,documents,text_bytes\n"
    assert call("sql", finished, "select id, url from documents where false", "--csv").stdout == "id,url\n"
    assert answer("sql", finished, "select id, url from documents where false") == []


def test_a_csv_gives_a_spreadsheet_no_formula(finished: Path) -> None:
    rows = table("sql", finished, "select '=cmd()' as a, '-1' as b, -1 as c, null as d, ['x', null] as e")
    assert rows == [{"a": "'=cmd()", "b": "'-1", "c": "-1", "d": "", "e": '["x", null]'}]
    (named,) = table("sql", finished, 'select 1 as "=cmd()", 2 as "@b"')
    assert named == {"'=cmd()": "1", "'@b": "2"}


def test_nothing_that_a_manifest_names_moves_a_terminal(
    finished: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logs(Folder(finished), manifest, ["documents", "removals", "edits"]) as logs:
        life = lives(logs, logs.sql("select id from removals where rule = 'c4.curly_brace' order by id")[0]["id"])[0]
    evil = "\x1b]0;taken\x07\u202e"
    life.rules = [
        {"rule": f"c4.{evil}1", "value": f"{evil}2", "keep_if": "in", "bound": [f"{evil}3"]},
        {"rule": "c4.lines", "value": 1.5, "keep_if": f"at_{evil}4", "bound": 2.0},
    ]
    show_life(life, manifest)
    said = "".join(capsys.readouterr().out.split())
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    assert all(f"taken\\x07\\u202e{number}" in said for number in (1, 2, 4)) and "3" in said


def test_logs_that_are_damaged_are_an_error_that_says_so(copied: Path) -> None:
    for path in copied.glob("logs/removals/*/*.parquet"):
        path.write_bytes(b"not Parquet")
    for question in (
        ["rules"],
        ["domain", "site0.example"],
        ["whatif", "gopher.min_words=1"],
        ["takedown", "--domain", "site0.example"],
    ):
        assert "cannot be read" in call(question[0], copied, *question[1:], code=1).stderr


def test_rules_of_a_corpus_without_removals_are_none(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": article("alone")}]}, small_recipe(["gopher_quality"]))
    build(recipe, tmp_path / "corpus")
    folder = Folder(tmp_path / "corpus")
    with Logs(folder, Manifest.load(folder)) as logs:
        assert rule_costs(logs) == []
    shutil.rmtree(tmp_path / "corpus" / "steps")
    assert "0 newly kept, 0 newly removed" in call("whatif", tmp_path / "corpus", "gopher.min_words=1").stdout


def test_rules_of_some_documents_are_those_that_removed_them(finished: Path) -> None:
    """By component, domain or language, and of those that have none."""
    removals, documents = logged(finished, "removals"), logged(finished, "documents")
    domain = Counter(row["domain"] for row in removals if row["domain"]).most_common(1)[0][0]
    for name, value, given in (
        ("component", "books", "books"),
        ("domain", domain, f"https://{domain}/"),
        ("domain", None, "none"),
    ):
        mine = Counter(row["rule"] for row in removals if row[name] == value)
        assert mine
        told = answer("rules", finished, f"--{name}", given)
        assert {row["rule"]: row["removed"] for row in told} == mine
        assert [row["removed"] for row in told] == sorted(mine.values(), reverse=True)
        assert {row["documents"] for row in told} == {sum(row[name] == value for row in documents)}
        for row in told:
            assert sum(share["removed"] for share in row["by"]["component"]) == row["removed"]
            failing = [one for one in removals if one[name] == value and row["rule"] in (one["failed_rules"] or [one["rule"]])]
            assert row["failed"] == len(failing)
        assert {row["rule"] for row in table("rules", finished, f"--{name}", given)} == set(mine)
        shown = call("rules", finished, f"--{name}", given).stdout
        assert shown.startswith(f"of {told[0]['documents']} document")
    said = call("rules", finished, "--component", "boks", code=1).stderr
    assert "no document has component boks; of component there are " in said
    assert "is no domain" in call("rules", finished, "--domain", "..", code=1).stderr


def test_a_host_is_that_host_and_its_domain_is_all_of_it(tmp_path: Path) -> None:
    urls = ("https://example.org/1", "https://www.example.org/2", "https://blog.example.org/3", "https://a.blog.example.org/4")
    rows = [{"text": article(f"host {url}"), "url": url} for url in (*urls, "https://myblog.example.org/5")]
    build(write_small(tmp_path, {"in.jsonl": rows}, small_recipe([{"gopher_quality": {"min_words": 1}}])), tmp_path / "corpus")
    for asked, documents, others in (
        ("example.org", 5, 0), ("www.example.org", 5, 0), ("https://EXAMPLE.org/x", 5, 0), ("blog.example.org", 2, 3),
        ("https://A.blog.example.org:443/4", 1, 4),
    ):  # fmt: skip
        told = answer("domain", tmp_path / "corpus", asked)
        assert (told["documents"], told["others"], len(told["examples"])) == (documents, others, documents), asked
    assert "3 documents came from other hosts of example.org" in call("domain", tmp_path / "corpus", "blog.example.org").stdout
    said = call("domain", tmp_path / "corpus", "shop.example.org", code=1).stderr
    assert said.endswith("came from shop.example.org; 5 documents came from other hosts of example.org\n")


def test_a_rule_goes_by_its_bare_option_where_only_one_has_it(finished: Path) -> None:
    assert answer("whatif", finished, "curly_brace=off") == answer("whatif", finished, "c4.curly_brace=off")
    assert "no rule is called 'min_everything'" in call("whatif", finished, "min_everything=1", code=1).stderr


def test_a_file_without_its_component_is_told_from_a_name_that_nobody_has(finished: Path) -> None:
    assert (
        "an id is component/file#position, such as those of books/north/0.jsonl"
        in call("why", finished, "0.jsonl", code=1).stderr
    )
    said = call("why", finished, "north", code=1).stderr
    assert "such as those of books/north/0.jsonl, and of " in said
    assert (
        "`audit why` with books/north/0.jsonl tells of its first ones"
        in call("why", finished, "books/north/0.jsonl#999", code=1).stderr
    )
    for nobody in ("", "#", "/", "orth", "jsonl", "books/north/9.jsonl"):
        said = call("why", finished, nobody, code=1).stderr
        assert f"has the id or URL {nobody!r}; `corpusmill audit sql {finished} " in said
