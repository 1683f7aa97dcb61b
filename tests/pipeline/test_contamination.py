"""`corpusmill contamination` on a corpus that was built for real; what it finds is found again document by document."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app as manifests_app
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from stages import shard_texts
from stages.benchmarks import load_items
from stages.commands import app
from stages.tokenizer import Encoder
from tests.pipeline.crawl import article, build, lines_of, prose, small_recipe, write_small
from tests.stages import plain_ngrams

SHAPE = (13, 8, 20, 12)


def call(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["contamination", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def texts_of(corpus: Path) -> list[tuple[str, str, str]]:
    """(split, id, text) of every document, decoded alone."""
    content = Manifest.load(Folder(corpus)).content
    assert content.tokenizer is not None
    encoder = Encoder((corpus / "tokenizer.json").read_text())
    found = []
    for shard in content.shards:
        tokens = np.fromfile(corpus / shard.path, content.tokenizer.dtype)
        for row in pq.read_table(corpus / shard.index).to_pylist():
            ids = tokens[row["start"] : row["start"] + row["tokens"]]
            found.append((shard.split, row["id"], encoder.decode(ids).decode()))
    return found


@pytest.fixture(scope="module")
def items(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of sentences that stand in documents, whole, in part and not at all, in a folder of two files."""
    texts = texts_of(finished)
    folder = tmp_path_factory.mktemp("benchmarks")
    one_each = {split: text for split, _, text in texts}
    held = [
        {"item": f"{split} 1", "question": " ".join(text.split()[5:45]).upper(), "answer": "B"}
        for split, text in one_each.items()
    ]
    held += [
        {"item": f"{split} part", "text": " ".join(text.split()[:14]) + " and then something else altogether, unlike it"}
        for split, text in one_each.items()
    ]
    held += [{"item": "short whole", "question": " ".join(texts[0][2].split()[:9])}, {"item": "too short", "question": "A."}]
    (folder / "held.jsonl").write_bytes(lines_of(held))
    unlike = [{"benchmark": "unlike", "id": number, "text": " ".join(prose(f"new {number}", 5))} for number in range(3)]
    (folder / "more").mkdir()
    (folder / "more" / "unlike.jsonl.gz").write_bytes(gzip.compress(lines_of(unlike)))
    return folder


def test_every_document_and_item_is_found_that_comparing_all_words_finds(finished: Path, items: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    report = json.loads(call(finished, "--benchmark", items, "--json", "--rows", rows).stdout)
    loaded, texts = load_items(str(items)), texts_of(finished)
    expected = {
        (document, loaded[match.item].benchmark, loaded[match.item].name): (split, match.matched, match.total)
        for split, document, text in texts
        for match in plain_ngrams.matches(text, loaded, *SHAPE)
    }
    assert len(expected) >= 7 and {split for split, *_ in expected.values()} == {"train", "validation", "test"}
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == len(expected)
    assert {
        (row["document"], row["benchmark"], row["item"]): (row["split"], row["ngrams"], row["of"]) for row in found
    } == expected
    of_document = {document: text for _, document, text in texts}
    for row in found:
        first, last = (int(word) for word in row["where"].split() if word.isdigit())
        assert " ".join(of_document[row["document"]][first:last].split()) == row["passage"]
    for split, one in report["splits"].items():
        assert one["documents"] == sum(name == split for name, *_ in texts)
        assert one["touched"] == len({key[0] for key, value in expected.items() if value[0] == split})
    held = report["benchmarks"]["held"]
    assert held["items"] == 8 and held["unchecked"] == ["too short"]
    assert held["documents"] == {split: one["touched"] for split, one in report["splits"].items()}
    for item, said in held["found"].items():
        mine = {key[0]: value for key, value in expected.items() if key[2] == item}
        most = max(matched for _, matched, _ in mine.values())
        assert (said["documents"], said["ngrams"], said["below_threshold"]) == (len(mine), most, 0)
        assert said["document"] == min(document for document, value in mine.items() if value[1] == most)
        assert said["split"] == mine[said["document"]][0] and said["of"] == mine[said["document"]][2]
    assert held["found"]["short whole"]["of"] == 1
    assert report["benchmarks"]["unlike"] == {"items": 3, "unchecked": [], "documents": {}, "found": {}}
    assert report["corpus"] == Manifest.load(Folder(finished)).digest and "paraphrase" in report["limits"]
    assert report["documents_without_tokens"] == 0


def test_what_the_corpus_was_cleaned_of_is_not_found(finished: Path, crawl: Any) -> None:
    shown = call(finished, "--benchmark", crawl.folder / "benchmarks", "--fail-on-found").stdout
    assert "trains: 0 of 3 items found; 1 too short to look for" in shown and "train: 0 of " in shown


def test_a_find_is_shown_and_an_exit_code_on_request(finished: Path, items: Path) -> None:
    shown = call(finished, "--benchmark", items).stdout
    assert "held: 7 of 8 items found, in documents of " in shown and "unlike: 0 of 3 items found" in shown
    assert "train 1 " in shown and "paraphrase" in shown
    assert call(finished, "--benchmark", items, "--fail-on-found", code=3).stdout == shown
    call(finished, "--benchmark", items / "more", "--fail-on-found")
    assert "and 6 more" in call(finished, "--benchmark", items / "held.jsonl", "--top", "1").stdout


def test_several_benchmarks_are_read_together(finished: Path, items: Path) -> None:
    whole = call(finished, "--benchmark", items, "--json").stdout
    files = items / "held.jsonl", items / "more"
    assert call(finished, "--benchmark", files[1], "--benchmark", files[0], "--json").stdout == whole


@pytest.mark.parametrize(
    ("options", "part"), [(("--min-matches", "3"), True), (("--min-share", "0.5"), True), (("--min-matches", "2"), False)]
)
def test_what_stays_below_the_threshold_is_told_apart(finished: Path, items: Path, options: tuple[str, str], part: bool) -> None:
    """The items in part share 14 words with a document, which are two n-grams."""
    found = json.loads(call(finished, "--benchmark", items, "--json", *options).stdout)["benchmarks"]["held"]["found"]
    assert found["train 1"]["documents"] == 1 and found["short whole"]["documents"] == 1
    assert (found["test part"]["documents"], found["test part"]["below_threshold"]) == ((0, 1) if part else (1, 0))
    assert found["test part"]["ngrams"] == 2
    shown = call(finished, "--benchmark", items, *options).stdout
    assert ("3 more in part, below the threshold" in shown) == part


def test_slices_change_nothing(finished: Path, items: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call(finished, "--benchmark", items, "--json").stdout
    for size in (1, 1000):
        monkeypatch.setattr(shard_texts, "SLICE_TOKENS", size)
        assert call(finished, "--benchmark", items, "--json").stdout == whole


def test_work_files_are_not_needed_and_nothing_is_written(copied: Path, finished: Path, items: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in copied.rglob("*"))
    assert call(copied, "--benchmark", items, "--json").stdout == call(finished, "--benchmark", items, "--json").stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in copied.rglob("*")) == before


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shard_of(corpus: Path) -> Path:
    return corpus / Manifest.load(Folder(corpus)).content.shards[0].path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda corpus: flipped(shard_of(corpus)), r"00000.bin: not the file that the manifest lists"),
        (
            lambda corpus: flipped(shard_of(corpus).with_suffix(".parquet")),
            r"00000.parquet: not the file that the manifest lists",
        ),
        (lambda corpus: flipped(corpus / "tokenizer.json"), "tokenizer.json: not the file that the manifest lists"),
        (lambda corpus: shard_of(corpus).unlink(), "00000.bin"),
        (lambda corpus: (corpus / "manifest.json").unlink(), "there is no manifest"),
        (lambda corpus: flipped(corpus / "manifest.json"), "manifest.json"),
        (lambda corpus: shutil.rmtree(corpus), "there is no manifest"),
    ],
)
def test_a_corpus_that_is_not_what_its_manifest_says_is_not_read(
    copied: Path, items: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(copied)
    assert message in call(copied, "--benchmark", items, code=1).stderr


def resealed(corpus: Path, **changed: Any) -> None:
    """A manifest that agrees with itself and says something else of its first shard."""
    manifest = Manifest.load(Folder(corpus))
    content = manifest.content.model_dump(mode="json")
    content["shards"][0] |= changed
    Manifest.seal(type(manifest.content).model_validate(content), manifest.run).save(Folder(corpus))


def test_an_index_that_does_not_fit_its_shard_is_an_error_even_if_the_manifest_lists_it(copied: Path, items: Path) -> None:
    path = shard_of(copied).with_suffix(".parquet")
    table = pq.read_table(path)
    for column, change, message in (
        ("tokens", 1, "do not fill"),
        ("start", 1, "do not fill"),
        ("tokens", 2**62, "do not fill"),
        ("bytes", 1, "has not the bytes that"),
    ):
        numbers = table[column].to_pylist()
        numbers[0] += change
        place = table.schema.get_field_index(column)
        pq.write_table(table.set_column(place, table.schema.field(column), [numbers]), path)
        resealed(copied, index_sha256=shard_texts.sha256_of(path.open("rb"))[0])
        assert message in call(copied, "--benchmark", items, code=1).stderr
    pq.write_table(table.drop_columns(["bytes"]), path)
    resealed(copied, index_sha256=shard_texts.sha256_of(path.open("rb"))[0])
    assert "its columns are not those of a shard index" in call(copied, "--benchmark", items, code=1).stderr


def test_a_corpus_without_tokens_says_what_is_needed(tmp_path: Path, items: Path) -> None:
    build(write_small(tmp_path, {"a.jsonl": [{"text": article(1)}]}, small_recipe(["repair"])), tmp_path / "corpus")
    assert "add the stages `tokenizer` and `shards`" in call(tmp_path / "corpus", "--benchmark", items, code=1).stderr


def test_what_strangers_named_does_not_reach_the_terminal_as_it_is_and_rows_hold_no_personal_data(tmp_path: Path) -> None:
    secret = "please write to jane.doe@example.org before the end of the week or call the office of the old harbour today"
    files = {"a.jsonl": [{"text": article(number)} for number in range(9)] + [{"text": f"{article('x')}\n{secret}"}]}
    recipe = small_recipe([], [{"split": {"validation": 0, "test": 0}}, {"tokenizer": {"vocabulary": 600}}, "shards"])
    build(write_small(tmp_path, files, recipe), tmp_path / "corpus")
    benchmark = tmp_path / "new.jsonl"
    benchmark.write_bytes(lines_of([{"benchmark": "a\x1b[31m", "item": "b\x1b]0;c\u202e\ud800", "text": secret}]))
    rows = tmp_path / "out" / "rows.jsonl"
    shown = call(tmp_path / "corpus", "--benchmark", benchmark, "--rows", rows)
    assert "\\x1b[31m: 1 of 1 items found" in shown.stdout and "docs/a.jsonl#9" in shown.stdout
    assert not {"\x1b", "\u202e"} & set(shown.output)
    (row,) = map(json.loads, rows.read_text().splitlines())
    assert "jane" not in row["passage"] and "<EMAIL>" in row["passage"]
    assert row["item"] == "b\x1b]0;c\u202e\ufffd"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--min-share", "2"), 2, "less than or equal to 1"),
        (("--min-share", "0.5", "--min-matches", "2"), 2, "exclude each other"),
        (("--n", "1"), 2, ""),
        (("--rows", "{folder}"), 1, "error: "),
    ],
)
def test_options_that_make_no_sense_are_refused(
    finished: Path, items: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    named = [one.format(folder=tmp_path) for one in arguments]
    assert message in call(finished, "--benchmark", items, *named, code=code).stderr


def test_a_benchmark_that_is_not_there_or_holds_nothing_to_look_for_is_an_error(finished: Path, tmp_path: Path) -> None:
    assert "no such file or folder" in call(finished, "--benchmark", tmp_path / "none", code=1).stderr
    (tmp_path / "stubs.jsonl").write_text('{"text": "A."}\n{"text": "..."}\n')
    assert "not one n-gram" in call(finished, "--benchmark", tmp_path / "stubs.jsonl", code=1).stderr
    (tmp_path / "bad.jsonl").write_text("{")
    assert "bad.jsonl:1" in call(finished, "--benchmark", tmp_path / "bad.jsonl", code=1).stderr
    call(finished, code=2)


def test_what_is_cut_out_while_a_corpus_is_built_is_told_in_the_logs_and_not_found_later(tmp_path: Path) -> None:
    asked = {name: " ".join(prose(f"asked {name}", 2)) for name in ("one", "two", "three")}
    texts = [article(number) for number in range(12)]
    texts[3] = f"{article('a')}\n{asked['one']}\n{article('b')}\n{asked['two']}\n{article('c')}"
    benchmarks = tmp_path / "benchmarks"
    benchmarks.mkdir()
    for name, text in asked.items():
        (benchmarks / f"{name}.jsonl").write_bytes(lines_of([{"id": "q1", "text": text}]))
    stages = [{"decontamination": {"benchmarks": "benchmarks", "action": "cut"}}]
    stages += [{"split": {"validation": 0, "test": 0}}, {"tokenizer": {"vocabulary": 600}}, "shards"]
    corpus = tmp_path / "corpus"
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": text} for text in texts]}, small_recipe([], stages))
    result = build(recipe, corpus)
    assert list(verify(Folder(corpus), result.manifest)) == []
    rows = [row for path in (corpus / "logs" / "edits").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert [(row["id"], row["rule"]) for row in rows] == [
        ("docs/a.jsonl#3", "decontamination.cut:one"),
        ("docs/a.jsonl#3", "decontamination.cut:two"),
    ]
    for row, name in zip(rows, ("one", "two"), strict=True):
        grams = len(asked[name].split()) - 12
        first = texts[3].index(asked[name])
        last = first + len(" ".join(asked[name].split()[:13]))
        assert row["count"] == grams
        assert row["detail"] == f"q1: {grams} of {grams} n-grams, first at characters {first} to {last}"
    count = next(one for one in result.manifest.content.counts if one.stage == "decontamination")
    assert count.edited == {"decontamination.cut:one": 1, "decontamination.cut:two": 1} and count.documents_kept == 12
    (record,) = result.manifest.content.decontamination
    assert {one["benchmark"]: len(one["found"]) for one in record["benchmarks"]} == {"one": 1, "two": 1, "three": 0}
    assert "a paraphrase, a translation" in record["limits"]
    told = CliRunner().invoke(manifests_app, ["why", str(corpus), "docs/a.jsonl#3"]).output
    assert "cut:one: q1: " in told and "cut:two: q1: " in told
    call(corpus, "--benchmark", benchmarks, "--fail-on-found")


def test_rows_overwrite_no_file(copied: Path, items: Path) -> None:
    """Not the manifest, a shard, or the benchmark itself."""
    shard = next(copied.rglob("*.bin"))
    for path in (copied / "manifest.json", shard, next(items.iterdir())):
        before = path.read_bytes()
        assert "nothing is overwritten" in call(copied, "--benchmark", items, "--rows", path, code=1).output
        assert path.read_bytes() == before
