"""Texts of removed documents are read back as they were judged, with the offending place marked, or it is said why not."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from stages import audit_commands
from stages.audit_texts import each_marked
from stages.offending import Place, differences, offending_places, shared_passages
from stages.readers.warc import Warc
from stages.removed_texts import Text, Texts
from tests.pipeline.crawl import BENCHMARK, Crawl, junk, prose

assert audit_commands


def call(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["audit", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def read_back(corpus: Path, sources: dict[str, str] | None = None) -> tuple[dict[str, Text], dict[str, str | None]]:
    """(id → text of every document, id → stage that removed it)."""
    folder = Folder(corpus)
    with Logs(folder, Manifest.load(folder), ["documents", "removals", "edits"]) as logs, Texts(logs, sources) as texts:
        rows = logs.sql("select id, removed_by from documents order by component, file, position")
        return {one.id: one for one in texts.of([row["id"] for row in rows])}, {row["id"]: row["removed_by"] for row in rows}


def sources_of(crawl: Crawl) -> dict[str, str]:
    return {name: str(crawl.folder / name) for name in ("web", "books", "tables")}


@pytest.fixture(scope="module")
def with_work_files(finished: Path) -> tuple[dict[str, Text], dict[str, str | None]]:
    return read_back(finished)


@pytest.fixture(scope="module")
def from_source(crawl: Crawl, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Text]:
    copy = tmp_path_factory.mktemp("published") / "corpus"
    shutil.copytree(finished, copy, ignore=shutil.ignore_patterns("steps", "tokens"))
    return read_back(copy, sources_of(crawl))[0]


def test_every_document_has_its_text_but_those_that_never_had_one(
    crawl: Crawl, with_work_files: tuple[dict[str, Text], dict[str, str | None]]
) -> None:
    texts, removed_by = with_work_files
    without = {one for one, text in texts.items() if text.text is None}
    assert without == {one for one, stage in removed_by.items() if stage in ("read", "url_filter")}
    assert all("the reader found no text" in str(texts[one].why_not) for one in crawl.planted.losses)
    assert all(text.proof for text in texts.values() if text.text is not None)
    assert all(text.origin and "decoded from tokens/" in text.origin for one, text in texts.items() if removed_by[one] is None)


def test_the_source_gives_the_same_texts_as_the_work_files(
    with_work_files: tuple[dict[str, Text], dict[str, str | None]], from_source: dict[str, Text]
) -> None:
    texts, removed_by = with_work_files
    for one, text in texts.items():
        if removed_by[one] not in ("read", "url_filter"):
            assert from_source[one].text == text.text, one
            assert not str(from_source[one].origin).startswith("the work files")


def test_a_page_that_was_removed_by_its_url_is_extracted_to_be_seen(from_source: dict[str, Text]) -> None:
    casino = next(text for one, text in from_source.items() if str(text.proof).startswith("none"))
    assert casino.text == "\n".join(casino.text.split("\n")) if casino.text else False
    assert "url_filter judged the record" in str(casino.proof)


def test_edits_are_done_again_and_checked_by_their_digests(crawl: Crawl, from_source: dict[str, Text]) -> None:
    mended = from_source[crawl.planted.mojibake]
    assert "repair done again" in str(mended.origin)
    assert "The friends’ réunion in the café" in str(mended.text)
    private = from_source[crawl.planted.personal]
    assert "personal_data done again" in str(private.origin)
    assert "<EMAIL>" in str(private.text) and "jane.roe" not in str(private.text)


def test_what_cannot_be_had_is_said_for_each_document(crawl: Crawl, copied: Path, tmp_path: Path) -> None:
    texts, removed_by = read_back(copied, {name: str(tmp_path / "nowhere") for name in ("web", "books", "tables")})
    for one, text in texts.items():
        if removed_by[one] not in (None, "read"):
            assert text.text is None
            assert "work files are deleted" in str(text.why_not)
            assert "--source" in str(text.why_not)
    changed = tmp_path / "books"
    shutil.copytree(crawl.folder / "books", changed)
    for path in changed.rglob("*.jsonl"):
        path.write_bytes(path.read_bytes() + b"\n")
    texts, _ = read_back(copied, {**sources_of(crawl), "books": str(changed)})
    assert "it is another file" in str(texts["books/north/2.jsonl#9"].why_not)


def test_a_source_of_the_same_size_with_another_text_is_refused_and_not_shown(crawl: Crawl, copied: Path, tmp_path: Path) -> None:
    changed = tmp_path / "books"
    shutil.copytree(crawl.folder / "books", changed)
    path = changed / "south/2.jsonl"
    path.write_bytes(path.read_bytes().replace(b"jane.roe@example.org", b"jane.rom@example.org"))
    assert path.stat().st_size == (crawl.folder / "books/south/2.jsonl").stat().st_size
    for shard in copied.glob("tokens/*/*/*"):
        shard.unlink()
    texts, _ = read_back(copied, {**sources_of(crawl), "books": str(changed)})
    assert texts[crawl.planted.personal].text is None
    assert "is not what it saw then" in str(texts[crawl.planted.personal].why_not)


def test_a_record_is_read_where_it_stands_and_not_by_reading_the_file_before_it(
    crawl: Crawl, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[int] = []
    records = Warc.records

    def counted(self: Warc, stream: Any, file: str, skipped: Any, groups: Any) -> Any:
        for record in records(self, stream, file, skipped, groups):
            met.append(record.position)
            yield record

    monkeypatch.setattr(Warc, "records", counted)
    folder = Folder(copied)
    with Logs(folder, Manifest.load(folder), ["documents", "removals", "edits"]) as logs, Texts(logs, sources_of(crawl)) as texts:
        wanted = logs.sql("select id from removals where stage = 'minhash' and component = 'web'")[0]["id"]
        assert texts.of([wanted])[0].text
    assert met == [0]


def test_a_sample_is_chosen_by_seed_and_grows_without_changing(finished: Path) -> None:
    def ids(n: int, seed: int) -> list[str]:
        told = json.loads(call("sample", finished, "--rule", "minhash", "--n", str(n), "--seed", str(seed), "--json").stdout)
        return [one["id"] for one in told]

    assert ids(2, 0) == ids(6, 0)[:2]
    assert ids(6, 0) == ids(6, 0)
    assert len({tuple(ids(6, seed)) for seed in range(4)}) > 1
    assert len(set(ids(100, 0))) == 6


@pytest.mark.parametrize("rule", junk())
def test_the_offending_place_of_every_planted_removal_is_marked(finished: Path, rule: str) -> None:
    (told,) = json.loads(call("sample", finished, "--rule", rule, "--json").stdout)
    assert told["text"] == junk()[rule]
    marked = [told["text"][mark["start"] : mark["end"]] for mark in told["marks"]]
    assert (
        marked
        == {
            "gopher.min_words": [],
            "gopher.max_hashes_per_word": ["#"] * junk()[rule].count("#"),
            "gopher.max_bullet_lines": [f"- {line}" for line in prose("bullets")],
            "gopher_repetition.max_duplicate_lines": prose("again", 6),
            "c4.curly_brace": ["{"],
            "c4.lorem_ipsum": ["Lorem ipsum"],
        }[rule]
    )


def test_a_passage_of_a_benchmark_is_marked_where_it_stands(finished: Path) -> None:
    told = json.loads(call("sample", finished, "--rule", "decontamination.ngram", "--json").stdout)
    (mark,) = told[0]["marks"]
    assert BENCHMARK.startswith(told[0]["text"][mark["start"] : mark["end"]])
    assert mark["what"] == "in trains 17"


def test_twins_are_shown_with_what_differs_in_each(crawl: Crawl, finished: Path) -> None:
    (copy,) = [one for one in json.loads(call("twins", finished, crawl.planted.near[0], "--json").stdout)]
    for side, other in (("removed", "kept"), ("kept", "removed")):
        differing = [copy[side]["text"][mark["start"] : mark["end"]] for mark in copy[side]["marks"]]
        assert differing
        assert all(piece not in copy[other]["text"] for piece in differing if len(piece.split()) > 3)
    by_kept = json.loads(call("twins", finished, copy["kept_id"], "--json").stdout)
    assert copy["id"] in {one["id"] for one in by_kept}
    assert "has no twin" in call("twins", finished, "books/north/0.jsonl#5", code=1).stderr
    assert "no document" in call("twins", finished, "'; drop view removals; --", code=1).stderr


def test_personal_data_of_a_removed_text_is_shown_only_when_asked_for(tmp_path: Path) -> None:
    from tests.pipeline.crawl import build, small_recipe, write_small

    text = "Write to jane.roe@example.org about the { brace."
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": text}]}, small_recipe(["gopher_quality", "personal_data"]))
    build(recipe, tmp_path / "corpus")
    arguments = ("sample", tmp_path / "corpus", "--rule", "gopher.min_words")
    assert "jane.roe" not in call(*arguments).stdout + call(*arguments, "--json").stdout + call(*arguments, "--csv").stdout
    assert "<EMAIL>" in call(*arguments).stdout
    assert "jane.roe@example.org" in call(*arguments, "--personal-data").stdout


def test_hostile_texts_reach_no_terminal_as_instructions(tmp_path: Path) -> None:
    from tests.pipeline.crawl import build, small_recipe, write_small

    recipe = write_small(
        tmp_path, {"a.jsonl": [{"text": "\x1b[31mred \u202e[bold]x[/bold] \x07"}]}, small_recipe(["gopher_quality"])
    )
    build(recipe, tmp_path / "corpus")
    shown = call("sample", tmp_path / "corpus", "--rule", "filters1").stdout
    assert "\x1b" not in shown and "\u202e" not in shown and "\x07" not in shown
    assert "[bold]x[/bold]" in shown


def test_samples_come_as_csv_and_unknown_rules_are_told_from_those_that_removed_nothing(finished: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(call("sample", finished, "--rule", "filters1", "--csv").stdout)))
    assert {row["rule"] for row in rows} == set(junk())
    assert all(json.loads(row["marks"]) is not None for row in rows)
    assert "no rule or stage of this corpus is called 'nothing'" in call("sample", finished, "--rule", "nothing", code=1).stderr
    assert "gopher.max_words removed no document" in call("sample", finished, "--rule", "gopher.max_words", code=1).stderr
    by_recipe = call("sample", finished, "--rule", "gopher_quality.min_words", "--json").stdout
    assert by_recipe == call("sample", finished, "--rule", "gopher.min_words", "--json").stdout
    assert "COMPONENT=FOLDER" in call("sample", finished, "--rule", "c4.curly_brace", "--source", "web", code=2).output


def test_a_text_is_shown_by_its_id(finished: Path) -> None:
    assert prose("north 0 0")[0] in call("text", finished, "books/north/0.jsonl#0").stdout.replace("\n", " ")
    assert "no such document" in call("text", finished, "books/nowhere#0", code=1).stdout
    assert "is not a document id" in call("text", finished, "12e5", code=1).stdout


@pytest.mark.parametrize(
    ("rule", "text", "marked"),
    [
        ("gopher_repetition.max_top_2_gram", "a b c a b d a b", ["a b", "a b", "a b"]),
        (
            "gopher_repetition.max_duplicate_5_gram",
            "one two three four five six one two three four five",
            ["one two three four five"] * 2,
        ),
        ("gopher_repetition.max_duplicate_paragraphs", "p\n\nq\n\np", ["p"]),
        ("gopher_repetition.max_top_2_gram_unspaced", "你好吗你好", ["你好", "你好"]),
        ("gopher.max_ellipsis_lines", "one…\ntwo\nthree...", ["one…", "three..."]),
        ("gopher.min_alphabetic_words", "abc 123 4d5 --- é1", ["123", "---"]),
        ("fineweb.min_terminal_lines", "One.\ntwo\nthree!", ["two"]),
        ("fineweb.max_short_lines", "short\n" + "long " * 10, ["short"]),
        ("language.unwanted", "ein Text", []),
        ("nobody.knows", "", []),
    ],
)
def test_a_place_is_what_the_rule_is_about(rule: str, text: str, marked: list[str]) -> None:
    places = offending_places(text, {"rule": rule, "threshold": 0.1})
    assert [text[place.start : place.end] for place in places] == marked


def test_passages_and_differences_of_empty_short_and_huge_texts() -> None:
    assert shared_passages("", "a b", "x") == shared_passages("a b", "", "x") == []
    assert shared_passages("A b", "a B", "x") == [Place(0, 3, "x")]
    assert differences("", "") == ([], [])
    assert differences("a b c", "a x c") == ([Place(2, 3, "differs")], [Place(2, 3, "differs")])
    words = " ".join(f"w{number}" for number in range(3000))
    mine, theirs = differences(words + " tail", "head " + words)
    assert [(words + " tail")[place.start : place.end] for place in mine] == ["tail"]
    assert [("head " + words)[place.start : place.end] for place in theirs] == ["head"]


def test_a_sample_is_read_one_text_at_a_time(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a sample is asked for, its first text is shown before the second is read."""
    folder = Folder(finished)
    read: list[str] = []
    of = Texts.of

    def noted(self: Texts, ids: Any) -> list[Text]:
        read.extend(ids)
        return of(self, ids)

    monkeypatch.setattr(Texts, "of", noted)
    with Logs(folder, Manifest.load(folder), ["documents", "removals", "edits"]) as logs:
        rows = logs.sql("select * from removals where stage = 'filters1' order by id limit 3")
        answers = each_marked(logs, rows, {})
        assert next(answers)["id"] == rows[0]["id"]
        assert read == [rows[0]["id"]]
        assert [one["id"] for one in answers] == [row["id"] for row in rows[1:]]
