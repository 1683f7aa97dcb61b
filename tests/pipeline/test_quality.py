"""The quality classifier in a recipe, and what `corpusmill quality report` says of the corpus it leaves."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.recipe import Recipe, RecipeError
from stages.commands import app
from stages.text_sources import find_texts
from tests.pipeline.crawl import build, lines_of
from tests.stages.quality_texts import FAST, texts, write

GERMAN = "Das Haus steht auf einem Hügel über der Stadt, und aus den Fenstern sieht man den Fluss und die Brücke. "

WORDLESS = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20."


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["quality", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def recipe(filter_options: dict[str, Any], **more: Any) -> dict[str, Any]:
    stages = [{"language": {"threshold": 0}}, {"fineweb": {"min_terminal_lines": 0.5}}, {"quality_classifier": filter_options}]
    component = {"format": "jsonl", "licence": "PD"}
    books, web = ({"source": name, **component, "stages": some} for name, some in (("books", stages[1:]), ("web", stages)))
    return {
        "corpus": "small",
        "components": {"books": books, "web": web},
        "stages": [],
        **more,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and two components: books are good, web pages mostly spam; some of them German or without a full stop."""
    folder = tmp_path_factory.mktemp("quality")
    good, spam = write(folder / "good.jsonl", texts("good", 150)), write(folder / "spam.jsonl", texts("spam", 150))
    assert call("train", "--good", good, "--random", spam, "--output", folder / "model.bin", *FAST).exit_code == 0
    books = [{"text": one} for one in texts("good", 60, 500)]
    web = [
        {"text": one, "url": f"https://spam{number % 3}.example/{number}"} for number, one in enumerate(texts("spam", 60, 500))
    ]
    web += [{"text": one, "url": f"https://good.example/{number}"} for number, one in enumerate(texts("good", 40, 600))]
    web += [{"text": f"{GERMAN}{number}.", "url": f"https://www.haus.example/{number}"} for number in range(30)]
    web += [
        {"text": one.rstrip("."), "url": f"https://both.example/{number}"} for number, one in enumerate(texts("spam", 10, 600))
    ]
    books += [{"text": WORDLESS}]
    for name, records in (("books", books), ("web", web)):
        (folder / name).mkdir()
        (folder / name / "all.jsonl").write_bytes(lines_of(records))
    return folder


def run(folder: Path, options: dict[str, Any], corpus: str, **more: Any) -> Path:
    path = folder / f"{corpus}.yaml"
    path.write_text(yaml.safe_dump(recipe({"model": "model.bin", **options}, **more)))
    build(Recipe.load(path), folder / corpus)
    return folder / corpus


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Path:
    return run(folder, {"threshold": 0.5}, "corpus")


def rows(corpus: Path, kind: str = "removals") -> list[dict[str, Any]]:
    return [row for path in sorted(corpus.glob(f"logs/{kind}/**/*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_each_removal_has_its_score_and_the_threshold(corpus: Path) -> None:
    assert not list(verify(Folder(corpus), Manifest.load(Folder(corpus))))
    removed = [row for row in rows(corpus) if row["rule"] == "quality.threshold"]
    scores = {row["id"]: row["quality.score"] for row in rows(corpus, "signals")}
    assert len(removed) >= 60
    for row in removed:
        assert row["threshold"] == 0.5
        assert row["value"] == scores[row["id"]]
        assert row["value"] is None or row["value"] < 0.5
    assert [row["value"] for row in removed if row["text_bytes"] == len(WORDLESS)] == [None]
    kept = [score or 0 for one, score in scores.items() if one not in {row["id"] for row in rows(corpus)}]
    assert min(kept) >= 0.5
    record = next(
        one for one in Manifest.load(Folder(corpus)).content.components["web"].stages if one.stage == "quality_classifier"
    )
    assert record.data["model"] == json.loads((corpus.parent / "model.json").read_text())["model"]["sha256"]


def test_another_threshold_decides_from_stored_scores(folder: Path) -> None:
    first = run(folder, {"threshold": 0.5}, "again")
    path = folder / "again.yaml"
    for options in ({"threshold": 0.9}, {"sample": {"pareto": 9}}, {"sample": {"power": 2}}):
        path.write_text(yaml.safe_dump(recipe({"model": "model.bin", **options})))
        ran = build(Recipe.load(path), first).ran
        assert not [step for step, parts in ran.items() if parts and ("measure" in step or "read" in step)]
        assert [step for step, parts in ran.items() if parts and step.endswith(".rules")]


def test_a_sample_is_the_same_in_parts_of_any_size_and_says_why(folder: Path) -> None:
    whole = run(folder, {"sample": {"pareto": 9}}, "whole")
    build(Recipe.load(folder / "whole.yaml"), folder / "parts", 1000)
    digests = {Manifest.load(Folder(one)).digest for one in (whole, folder / "parts")}
    assert len(digests) == 1
    signals = {row["id"]: row for row in rows(whole, "signals")}
    removed = {row["id"]: row for row in rows(whole) if "quality.sample_pareto" in row["failed_rules"]}
    assert len(removed) > 20
    for one, row in signals.items():
        score, drawn = row["quality.score"], row["quality.draw"]
        assert (one in removed) == (score is None or drawn > (2 - score) ** -9)
    for row in removed.values():
        if row["rule"] == "quality.sample_pareto":
            assert row["threshold"] == 9
            score, drawn = (signals[row["id"]][f"quality.{name}"] for name in ("score", "draw"))
            words = "no letter" if score is None else f"score {score:.6f}, draw {drawn:.6f}"
            assert row["detail"] == f"quality.judged: {words}"
            assert row["value"] is None or row["value"] < 9


def test_a_bad_model_is_an_error_of_the_recipe_with_its_line(folder: Path) -> None:
    (folder / "bad.bin").write_bytes((folder / "model.bin").read_bytes()[:5000])
    path = folder / "bad.yaml"
    for model, message in (("bad.bin", "not a fastText model"), ("none.bin", "does not exist")):
        path.write_text(yaml.safe_dump(recipe({"model": model, "threshold": 0.5}), sort_keys=False))
        with pytest.raises(RecipeError, match=rf"bad\.yaml:\d+: .*{message}"):
            Recipe.load(path)


def test_the_report_is_what_the_logs_say(corpus: Path) -> None:
    found = json.loads(call("report", corpus, "--json").stdout)
    signals = {row["id"]: row for row in rows(corpus, "signals")}
    documents = {row["id"]: row for row in rows(corpus, "documents")}
    failed = {row["id"] for row in rows(corpus) if "quality.threshold" in row["failed_rules"]}
    reason = {row["id"] for row in rows(corpus) if row["rule"] == "quality.threshold"}
    assert len(failed) > len(reason)  # a page without a full stop falls by fineweb first
    assert (found["all"]["documents"], found["all"]["failed"], found["all"]["removed"]) == (
        len(signals),
        len(failed),
        len(reason),
    )
    for dimension in ("component", "language", "domain"):
        every, fallen, named = (Counter(documents[one][dimension] for one in ids) for ids in (signals, failed, reason))
        groups = {one["name"]: one for one in found["by"][dimension]}
        assert groups.keys() == every.keys()
        for name, one in groups.items():
            assert (one["documents"], one["failed"], one["removed"]) == (every[name], fallen[name], named[name])
            assert one["share"] == fallen[name] / every[name]
            assert one["ratio"] == pytest.approx(one["share"] / (len(failed) / len(signals)))
            assert one["after"] == pytest.approx((every[name] - fallen[name]) / (len(signals) - len(failed)))
        assert [one["excess"] for one in found["by"][dimension]] == sorted(
            (one["excess"] for one in groups.values()), reverse=True
        )
        assert sum(one["excess"] for one in groups.values()) == pytest.approx(0, abs=1e-9)
        assert found["vanished"][dimension] == sum(every[name] == fallen[name] for name in every)


def test_a_source_that_loses_far_more_than_the_average_stands_out(corpus: Path) -> None:
    found = json.loads(call("report", corpus, "--json").stdout)
    domains = {one["name"]: one for one in found["by"]["domain"]}
    assert {name for name, one in domains.items() if one["stands_out"]} == {
        *(f"spam{number}.example" for number in range(3)), "both.example", "haus.example",
    }  # fmt: skip
    assert "de" in {one["name"] for one in found["by"]["language"] if one["stands_out"]}
    assert found["by"]["component"][0]["name"] == "web"
    shown = call("report", corpus, "--top", "2")
    assert shown.exit_code == 0
    assert "spam0.example" in shown.stdout and "stands out" in shown.stdout
    assert "more; --top or --json shows them" in shown.stdout


def test_the_spread_of_scores_is_told_by_component_and_language(corpus: Path) -> None:
    found = json.loads(call("report", corpus, "--json").stdout)
    spread = {one["name"]: one for one in found["signals"]["quality.score"]["component"]}
    books = (row["quality.score"] for row in rows(corpus, "signals") if row["component"] == "books")
    scores = sorted(score for score in books if score is not None)
    assert spread["books"]["quantiles"][2] == pytest.approx((scores[29] + scores[30]) / 2)
    assert (spread["books"]["documents"], spread["books"]["undefined"]) == (61, 1)
    assert (spread["web"]["documents"], spread["web"]["undefined"]) == (140, 0)
    german = next(one for one in found["signals"]["quality.known_words"]["language"] if one["name"] == "de")
    assert german["quantiles"][2] < 0.3  # the model knows none of its words but marks
    assert "quality.known_words by language" in call("report", corpus).stdout


def test_the_rules_of_any_filter_can_be_looked_at(corpus: Path) -> None:
    found = json.loads(call("report", corpus, "--stage", "fineweb", "--json").stdout)
    assert found["all"]["removed"] == sum(row["rule"].startswith("fineweb.") for row in rows(corpus))
    assert call("report", corpus, "--stage", "fineweb").exit_code == 0


def test_a_classifier_without_a_rule_is_reported_by_its_scores(folder: Path) -> None:
    measured = run(folder, {"threshold": None}, "measured")
    found = json.loads(call("report", measured, "--json").stdout)
    assert found["rules"] == [] and found["all"]["failed"] == 0
    assert found["signals"]["quality.score"]["component"][0]["quantiles"][2] is not None
    shown = call("report", measured)
    assert shown.exit_code == 0 and "without a rule" in shown.stdout


def test_a_document_that_two_classifiers_measure_is_counted_once(folder: Path) -> None:
    twice = run(folder, {"threshold": 0.2}, "twice", stages=[{"quality_classifier": {"model": "model.bin", "threshold": 0.999}}])
    found = json.loads(call("report", twice, "--json").stdout)
    fell = [row for row in rows(twice) if row["rule"] == "quality.threshold"]
    assert {row["stage"] for row in fell} == {"filters1", "filters-corpus.1.quality_classifier"}
    assert found["all"]["removed"] == len(fell)
    assert found["all"]["documents"] == len({row["id"] for row in rows(twice, "signals")})
    assert {(rule["name"], rule["keep_if_at_least"]) for rule in found["rules"]} == {
        ("quality.threshold", 0.2), ("quality.threshold", 0.999),
    }  # fmt: skip


def test_questions_that_a_corpus_cannot_answer_are_errors(corpus: Path, finished: Path, tmp_path: Path) -> None:
    for arguments, code, message in (
        ((finished,), 1, "no stage 'quality_classifier' ran; filters that did: c4, fineweb, gopher_quality, gopher_repetition"),
        ((tmp_path,), 1, "there is no manifest"),
        ((corpus, "--stage", "qualty_classifier"), 2, "did you mean 'quality_classifier'?"),
        ((corpus, "--stage", "language"), 2, "is no filter"),
    ):
        result = call("report", *arguments)
        assert result.exit_code == code
        assert message in " ".join(result.stderr.replace("│", " ").split())


def test_the_training_split_of_a_corpus_is_a_source_of_texts(folder: Path, tmp_path: Path) -> None:
    tokens = [{"split": {"validation": 0.2, "test": 0.1}}, {"tokenizer": {"vocabulary": 600}}, "shards"]
    source = run(folder, {"threshold": 0.0}, "tokens", stages=tokens)
    result = call("train", "--good", source, "--random", folder / "spam.jsonl", "--output", tmp_path / "m.bin", "--json", *FAST)
    assert result.exit_code == 0, result.stderr
    card = json.loads(result.stdout)
    manifest = Manifest.load(Folder(source))
    assert card["inputs"]["good"] == [
        {
            "path": str(source),
            "corpus": manifest.digest,
            "split": "train",
            "documents": sum(one.documents for one in manifest.shards("train")),
            "without_text": {},
        }
    ]
    shard = source / manifest.shards("train")[0].path
    shard.write_bytes(shard.read_bytes()[:-2] + b"\0\0")
    result = call("train", "--good", source, "--random", folder / "spam.jsonl", "--output", tmp_path / "n.bin")
    assert result.exit_code == 1
    assert "00000.bin: not the file that the manifest lists" in result.stderr


def test_the_corpus_read_as_texts_is_what_was_kept(folder: Path) -> None:
    tokens = [{"split": {"validation": 0.2, "test": 0.1}}, {"tokenizer": {"vocabulary": 600}}, "shards"]
    source = run(folder, {"threshold": 0.0}, "texts", stages=tokens)
    with Logs(Folder(source), Manifest.load(Folder(source))) as logs:
        kept = {row["text_sha256"] for row in logs.sql("select text_sha256 from documents where split = 'train'")}
    found = [text for file in find_texts([str(source)]).files for text in file.texts()]
    assert {hashlib.sha256(text.encode()).hexdigest() for text in found} == kept
