"""Ten questions that auditors ask, of a corpus of real pages, sentences and books, in a folder and in a bucket, as a table, JSON
and CSV."""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.manifest import open_corpus
from manifests.verification.verify import verify
from pipeline.recipe import Recipe
from stages import audit_commands
from tests.audit_questions import answer, call, logged, table
from tests.manifests.training_run import write_run
from tests.object_store import object_store, uploaded
from tests.pipeline.crawl import build
from tests.real.documents import DATA
from tests.real.questioned import MIRROR, Questioned, questioned, recipe
from trainer.data.loader import Phase

assert audit_commands
ROWS = 48
"""Of 64 tokens, in a step of the run that is made up."""
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA})")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Questioned:
    return questioned(tmp_path_factory.mktemp("questioned"))


@pytest.fixture(scope="module")
def corpus(made: Questioned) -> Path:
    return made.corpus


@pytest.fixture(scope="module")
def remote(corpus: Path) -> Iterator[str]:
    with object_store("questioned") as bucket:
        yield uploaded(corpus, f"{bucket}/shard=007")


def the_captures(corpus: Path, url: str) -> list[dict[str, Any]]:
    return [row for row in logged(corpus, "documents") if row["url"] == url]


def test_the_corpus_is_whole_and_every_stage_but_three_had_something_to_do(corpus: Path) -> None:
    folder, manifest = open_corpus(str(corpus))
    assert list(verify(folder, manifest, texts=True)) == []
    idle = {count.stage for count in manifest.content.counts} - {
        count.stage for count in manifest.content.counts if count.removed or count.edited
    }
    assert idle <= {"pre_check", "extraction", "line_dedup"}


def test_a_lawyer_who_wants_a_domain_out_is_told_of_the_copies_that_stay(made: Questioned, corpus: Path, tmp_path: Path) -> None:
    told = answer("takedown", corpus, "--domain", MIRROR)
    mine = [row for row in logged(corpus, "documents") if row["domain"] == MIRROR.partition(".")[2]]
    assert {row["id"] for row in told["taken"]} == {row["id"] for row in mine if row["removed_by"] is None} != set()
    assert sum(told["removed_before"].values()) == sum(row["removed_by"] is not None for row in mine) > 0
    removals = {row["id"]: row for row in logged(corpus, "removals")}
    instead = {removals[row["id"]]["kept_id"] for row in mine if row["removed_by"] in ("exact_dedup", "minhash")}
    assert {row["id"] for row in told["survivors"]} == instead - {row["id"] for row in mine}
    assert told["without_url"] == sum(row["url"] is None for row in logged(corpus, "documents") if row["removed_by"] is None)
    gone = ["--domain", MIRROR, "--near-duplicates", "remove", "--output", tmp_path / "without", "--reason", "a letter"]
    call("takedown", corpus, *gone)
    folder, manifest = open_corpus(str(tmp_path / "without"))
    assert list(verify(folder, manifest)) == []
    left = {row["id"] for row in logged(tmp_path / "without", "documents") if row["removed_by"] is None}
    assert not left & (instead | {row["id"] for row in mine})
    assert answer("domain", tmp_path / "without", MIRROR)["kept"] == 0


def test_a_lawyer_who_has_a_url_without_its_query_is_shown_what_it_may_mean(
    made: Questioned, corpus: Path, tmp_path: Path
) -> None:
    bare, urls = next(iter(made.queries.items()))
    (tmp_path / "urls").write_text("\n".join([*urls, f"{bare}?session=3"]))
    told = answer("takedown", corpus, "--ids", tmp_path / "urls")
    assert len(told["taken"]) + sum(told["removed_before"].values()) == len(urls)
    assert told["unknown"] == []
    assert {(miss["asked"], miss["url"]) for miss in told["near_misses"]} == {(f"{bare}?session=3", bare)}
    refused = ["--ids", tmp_path / "urls", "--output", tmp_path / "without", "--reason", "x"]
    assert "error: " in call("takedown", corpus, *refused, code=1).stderr
    assert not (tmp_path / "without").exists()


def test_a_researcher_whose_domain_vanished_is_told_what_took_each_page(made: Questioned, corpus: Path) -> None:
    documents = logged(corpus, "documents")
    kept = {row["domain"] for row in documents if row["removed_by"] is None}
    vanished = sorted({row["domain"] for row in documents if row["domain"]} - kept)
    assert vanished
    rules = {row["id"]: row["rule"] for row in logged(corpus, "removals")}
    for domain in vanished:
        told = answer("domain", corpus, domain)
        mine = [row["id"] for row in documents if row["domain"] == domain]
        assert (told["documents"], told["kept"], told["tokens"]) == (len(mine), 0, 0)
        assert Counter({row["rule"]: row["documents"] for row in told["by"]}) == Counter(rules[one] for one in mine)


def test_a_host_is_not_answered_for_with_its_neighbours(corpus: Path) -> None:
    hosts = Counter(row["url"].split("/")[2] for row in logged(corpus, "documents") if row["domain"] == "news.example")
    told = answer("domain", corpus, "hi.news.example")
    assert (told["documents"], told["others"]) == (hosts["hi.news.example"], hosts.total() - hosts["hi.news.example"])
    assert answer("domain", corpus, "https://news.example/any")["documents"] == hosts.total()
    assert answer("domain", corpus, "www.news.example")["documents"] == hosts.total()
    said = call("domain", corpus, "xx.news.example", code=1).stderr
    assert f"came from xx.news.example; {hosts.total()} documents came from other hosts of news.example" in said


def test_a_reviewer_is_told_what_a_run_was_trained_on(made: Questioned, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    _, manifest = open_corpus(str(corpus))
    tokens = manifest.content.components["crawl"].tokens["train"]
    steps = tokens // (64 * ROWS) + 2  # once through all of the crawl
    run = write_run(tmp_path / "run", corpus, [Phase({"crawl": 1.0})], steps=steps, every=steps, rows=ROWS)
    whole = answer("trained-on", run)["all"]
    assert {row["name"] for row in whole if row["dimension"] == "component"} == {"crawl"}
    trained = [row for row in logged(corpus, "documents") if row["component"] == "crawl" and row["split"] == "train"]
    (crawl,) = (row for row in whole if row["dimension"] == "licence")
    assert (crawl["name"], crawl["documents"]) == ("LicenseRef-CommonCrawl", len(trained))
    pages = [
        (url, copy) for url, copy in made.copies.items() if the_captures(corpus, url)[0]["id"] in {row["id"] for row in trained}
    ]
    assert pages
    for url, copy in pages:
        (life,), (other,) = (answer("why", corpus, one, "--run", run) for one in (url, copy))
        assert (life["runs"][0]["consumed"], other["runs"][0]["consumed"]) == ("yes", "as a copy")
    (life,) = answer("why", corpus, "books/12e5#3", "--run", run)
    assert life["runs"][0]["consumed"] == "no"


def test_the_rule_that_removes_most_of_hindi_is_named(corpus: Path) -> None:
    mine = Counter(row["rule"] for row in logged(corpus, "removals") if row["language"] == "hi")
    assert mine
    for told in (answer("rules", corpus, "--language", "hi"), table("rules", corpus, "--language", "hi", "--by", "component")):
        assert {row["rule"]: int(row["removed"]) for row in told} == mine
        assert told[0]["rule"] == mine.most_common(1)[0][0]
        assert {int(row["documents"]) for row in told} == {sum(row["language"] == "hi" for row in logged(corpus, "documents"))}
    shown = call("rules", corpus, "--language", "hi").stdout
    assert shown.startswith("of 5 documents with language hi\n")
    assert "of language there are none, de, " in call("rules", corpus, "--language", "xx", code=1).stderr


def test_whoever_asks_why_a_page_went_is_told_the_rule_the_value_and_the_bound(made: Questioned, corpus: Path) -> None:
    removals = {row["id"]: row for row in logged(corpus, "removals")}
    short = [row["url"] for row in removals.values() if row["rule"] == "gopher.min_words" and row["url"]]
    for url in short[:3]:
        (life,) = answer("why", corpus, url)
        assert (life["removal"]["value"] < life["removal"]["threshold"], life["removal"]["threshold"]) == (True, 50)
        shown = call("why", corpus, url).stdout
        assert f"{life['removal']['value']:g}, threshold 50" in shown
    (life,) = answer("why", corpus, made.gone[0])
    assert (life["removal"]["rule"], life["removal"]["detail"]) == ("read.status", "HTTP status 404")
    (life,) = answer("why", corpus, next(iter(made.contaminated)))
    assert life["removal"]["benchmark"] == next(iter(made.contaminated.values()))


@pytest.mark.slow
def test_what_30_words_would_have_done_is_what_a_run_with_30_words_does(made: Questioned, corpus: Path, tmp_path: Path) -> None:
    told = answer("whatif", corpus, "min_words=30", "--examples", "1000")
    assert told == answer("whatif", corpus, "gopher_quality.min_words=30", "--examples", "1000")
    again = tmp_path / "again"
    shutil.copytree(made.folder, again)
    (again / "recipe.yaml").write_text(yaml.safe_dump(recipe(made.blocked, min_words=30), sort_keys=False))
    build(Recipe.load(again / "recipe.yaml"), again / "corpus")

    def left(of: Path, stages: set[str] | None) -> set[str]:
        """What no stage, or none of these, removed."""
        gone = {row["id"] for row in logged(of, "removals") if stages is None or row["stage"] in stages}
        return {row["id"] for row in logged(of, "documents")} - gone

    before, after = left(corpus, {"filters1"}), left(again / "corpus", {"filters1"})
    assert {one["id"] for one in told["examples"]["newly_kept"]} == after - before != set()
    assert told["exact"]["newly_kept"]["documents"] == len(after - before)
    assert (told["exact"]["newly_removed"]["documents"], before - after) == (0, set())
    came_in = left(again / "corpus", None) - left(corpus, None)
    assert came_in
    assert len(came_in) <= told["upper_bound"]["documents_that_come_in"]


def test_twenty_that_a_rule_removed_are_shown_with_their_texts(corpus: Path) -> None:
    rule = "gopher.min_words"
    every = [row["id"] for row in logged(corpus, "removals") if row["rule"] == rule]
    shown = answer("sample", corpus, "--rule", rule, "--n", "20", "--personal-data")
    assert len(shown) == min(20, len(every)) > 3
    assert {one["id"] for one in shown} <= set(every)
    assert all(len(one["text"].split()) < 60 for one in shown), "short by gopher's words, and so nearly by anybody's"
    first = answer("sample", corpus, "--rule", "min_words", "--n", "3", "--personal-data")
    assert [one["id"] for one in first] == [one["id"] for one in shown[:3]]


@pytest.mark.slow
def test_of_two_near_identical_pages_it_is_told_whether_both_are_in(made: Questioned, corpus: Path) -> None:
    seen = Counter[str]()
    for url, copy in {**made.copies, **made.near}.items():
        (row,) = answer("twins", corpus, url, "--with", copy)
        states = {one["id"]: one["removed_by"] for one in (the_captures(corpus, url) + the_captures(corpus, copy))}
        assert {row["id"]: row["removed_by"], row["other_id"]: row["other_removed_by"]} == states
        if row["jaccard"] is None or "filters1" in states.values() or "language" in states.values():
            continue
        if row["jaccard"] >= row["threshold"] == 0.8:
            assert Counter(states.values())[None] == 1, "one of the two stays"
            seen["one"] += 1
            removed = next(one for one, by in states.items() if by is not None)
            (pair,) = [one for one in answer("twins", corpus, removed) if one["id"] == removed]
            assert pair["kept_jaccard"] in (None, pytest.approx(row["jaccard"]))
            assert bool(row["one"]["marks"]) == (row["one"]["text"] != row["other"]["text"]) or row["other"]["marks"]
    assert seen["one"] > 2
    (row,) = answer("twins", corpus, "books/12e5#3", "--with", "books/12e5#4")
    assert (row["removed_by"], row["other_removed_by"], row["jaccard"] < 0.8) == (None, None, True)
    assert "Jaccard 0.0" in call("twins", corpus, "books/12e5#3", "--with", "books/12e5#4", "--characters", "10").stdout


def test_documents_without_a_language_are_counted_and_never_dropped_by_a_comparison(corpus: Path) -> None:
    without = [row for row in logged(corpus, "documents") if row["language"] is None]
    told = answer("rules", corpus, "--language", "none")
    assert {row["documents"] for row in told} == {len(without)}
    assert sum(row["removed"] for row in told) == sum(row["removed_by"] is not None for row in without)
    (row,) = answer("sql", corpus, "select count(*) as n from documents where language is distinct from 'de'")
    assert row["n"] == sum(row["language"] != "de" for row in logged(corpus, "documents"))
    assert "none" in call("rules", corpus, "--by", "language").stdout


def test_names_that_look_like_numbers_and_partitions_are_names(corpus: Path) -> None:
    for file in ("12e5", "shard=007/language=en/007", "null"):
        lives = answer("why", corpus, f"books/{file}")
        assert {life["document"]["file"] for life in lives} == {file}
        assert lives[0]["document"]["language"] is None
        said = call("why", corpus, file, code=1).stderr
        assert f"an id is component/file#position, such as those of books/{file}" in said
    assert "such as those of books/shard=007/language=en/007" in call("why", corpus, "shard=007", code=1).stderr
    assert "`audit why` with books/12e5 tells" in call("why", corpus, "books/12e5#999", code=1).stderr
    rows = answer("sql", corpus, "select distinct file from documents where component = 'books' order by 1")
    assert [row["file"] for row in rows] == ["12e5", "null", "shard=007/language=en/007"]


QUESTIONS: dict[str, tuple[str, ...]] = {
    "takedown": ("takedown", "--domain", MIRROR),
    "domain": ("domain", "hi.news.example"),
    "rules of a language": ("rules", "--language", "hi"),
    "rules of none": ("rules", "--language", "none", "--by", "language"),
    "why": ("why", "books/shard=007/language=en/007#7"),
    "what if": ("whatif", "min_words=30"),
    "twins": ("twins", "books/12e5#3", "--with", "books/12e5#4"),
    "text": ("text", "books/12e5#3"),
    "SQL": ("sql", "select file, language, count(*) as n from documents group by all order by all"),
    "funnel": ("funnel",),
    "unchecked": ("unchecked",),
}
QUICK = ("takedown", "why", "twins")


@pytest.mark.parametrize("question", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in QUESTIONS])
def test_a_bucket_answers_as_a_folder_does_in_every_form(corpus: Path, remote: str, question: str) -> None:
    command, *rest = QUESTIONS[question]
    for form in ((), ("--json",), ("--csv",)):
        here, there = (call(command, where, *rest, *form).stdout for where in (corpus, remote))
        assert here.replace(str(corpus), "CORPUS") == there.replace(remote, "CORPUS") != ""
        if form == ("--csv",):
            assert list(csv.DictReader(io.StringIO(here)))
