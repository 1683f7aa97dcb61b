"""`corpusmill quality train`: what it makes of two classes of texts, and what it refuses."""

from __future__ import annotations

import gzip
import hashlib
import json
import random as chance
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import Result
from typer.testing import CliRunner

from stages.commands import app
from stages.fasttext_file import check
from stages.quality_classifier import load
from stages.quality_training import TrainingError, TrainingOptions, _fit, auc
from tests.stages.quality_texts import FAST, texts, write


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["quality", "train", *(str(one) for one in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*arguments: str | Path) -> str:
    """The message of a call that fails with exit code 1, which writes one line of error and no file."""
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0].removeprefix("error: ")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("classes")
    return write(folder / "good.jsonl", texts("good", 200)), write(folder / "random.jsonl", texts("spam", 200))


@pytest.fixture(scope="module")
def trained(classes: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("trained") / "model.bin"
    assert call("--good", classes[0], "--random", classes[1], "--output", model, *FAST).exit_code == 0
    return model


def card(model: Path) -> dict:
    return json.loads(model.with_suffix(".json").read_text("utf-8"))


def test_texts_it_never_saw_are_told_apart(trained: Path) -> None:
    classifier = load(str(trained))
    good, spam = classifier.scores(texts("good", 50, 1000)), classifier.scores(texts("spam", 50, 1000))
    assert good.min() > 0.9
    assert spam.max() < 0.1
    assert card(trained)["held_out"]["auc"] == 1.0


@pytest.mark.slow
def test_the_same_texts_give_the_same_bytes_in_another_process_from_other_files_in_another_order(
    classes: tuple[Path, Path], trained: Path, tmp_path: Path
) -> None:
    good, spam = texts("good", 200), texts("spam", 200)
    chance.Random(3).shuffle(good)
    (tmp_path / "good").mkdir()
    with gzip.open(tmp_path / "good" / "z.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": one}) + "\n" for one in good[:90])
    pq.write_table(pa.table({"text": good[90:]}), tmp_path / "good" / "a.parquet")
    lines = "".join(json.dumps({"text": one}) + "\n" for one in reversed(spam)).encode()
    (tmp_path / "spam.jsonl.zst").write_bytes(zstandard.compress(lines))
    again = tmp_path / "again.bin"
    command = [sys.executable, "-c", "from stages.commands import app; app()", "quality", "train"]
    arguments = ["--good", "good", "--random", "*.jsonl.zst", "--output", "again.bin", *FAST]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "MALLOC_PERTURB_": "165", "PYTHONHASHSEED": "5"}
    subprocess.run([*command, *arguments], cwd=tmp_path, check=True, capture_output=True, env=environment)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(trained.read_bytes()).digest()
    assert card(again)["held_out"] == card(trained)["held_out"]


def test_another_seed_holds_out_others(classes: tuple[Path, Path], trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    assert call("--good", classes[0], "--random", classes[1], "--output", other, *FAST, "--seed", "1").exit_code == 0
    assert other.read_bytes() != trained.read_bytes()


def test_the_card_says_what_the_model_was_made_of(classes: tuple[Path, Path], trained: Path) -> None:
    about = card(trained)
    assert about["model"]["sha256"] == hashlib.sha256(trained.read_bytes()).hexdigest()
    assert about["inputs"]["good"][0]["sha256"] == hashlib.sha256(classes[0].read_bytes()).hexdigest()
    assert about["inputs"]["good"][0]["documents"] == 200
    assert about["software"]["fasttext-modern"]
    assert about["options"]["threads"] == 1 and about["options"]["dimensions"] == 5
    for label in ("good", "random"):
        counts = about["texts"][label]
        assert counts["documents"] == sum(number for name, number in counts.items() if name != "documents") == 200
        assert 5 <= counts["held_out"] <= 40
        quantiles = list(about["held_out"]["score_quantiles"][label].values())
        assert quantiles == sorted(quantiles)


def test_thresholds_keep_the_shares_that_they_state(classes: tuple[Path, Path], tmp_path: Path) -> None:
    mixed = write(tmp_path / "mixed.jsonl", texts("mixed", 300))
    model = tmp_path / "m.bin"
    result = call("--good", classes[0], "--random", mixed, "--output", model, "--dimensions", "5", "--held-out", "0.5", "--json")
    about = json.loads(result.stdout)
    assert about == card(model)
    classifier = load(str(model))
    shares = [(one["threshold"], one["keeps_of_good"], one["keeps_of_random"]) for one in about["thresholds"]]
    assert [one[0] for one in shares] == sorted(one[0] for one in shares)
    assert [one[1] for one in shares] == sorted((one[1] for one in shares), reverse=True)
    assert any(abs(of_random - 0.1) < 0.02 for _, _, of_random in shares)
    assert 0.5 < about["held_out"]["auc"] <= 1
    all_scores = classifier.scores(texts("mixed", 300))
    for threshold, _, of_random in shares:
        assert abs((all_scores >= threshold).mean() - of_random) < 0.15


def test_duplicates_and_texts_of_both_classes_are_counted_and_left_out(classes: tuple[Path, Path], tmp_path: Path) -> None:
    good = write(
        tmp_path / "good.jsonl", [*texts("good", 100), *(one.upper() for one in texts("good", 10)), *texts("spam", 5), "12 34 5"]
    )
    model = tmp_path / "m.bin"
    result = call("--good", good, "--random", classes[1], "--output", model, *FAST)
    assert result.exit_code == 0
    counts = card(model)["texts"]
    assert {name: counts["good"][name] for name in ("documents", "duplicates", "in_both", "without_letter")} == {
        "documents": 116, "duplicates": 10, "in_both": 5, "without_letter": 1,
    }  # fmt: skip
    assert counts["random"]["in_both"] == 5
    assert "in both 5" in result.stdout and "duplicates 10" in result.stdout


def test_a_limit_takes_so_many_of_each_class(classes: tuple[Path, Path], tmp_path: Path) -> None:
    model = tmp_path / "m.bin"
    assert (
        call(
            "--good", classes[0], "--random", classes[1], "--output", model, *FAST, "--limit", "80", "--held-out", "0.3"
        ).exit_code
        == 0
    )
    for counts in card(model)["texts"].values():
        assert counts["train"] + counts["held_out"] == 80
        assert counts["beyond_limit"] == 120


def test_a_text_cannot_pass_itself_off_as_a_label(classes: tuple[Path, Path], tmp_path: Path) -> None:
    spam = write(tmp_path / "spam.jsonl", [f"__LABEL__good __label__good </s> {one}" for one in texts("spam", 200)])
    model = tmp_path / "m.bin"
    assert call("--good", classes[0], "--random", spam, "--output", model, *FAST).exit_code == 0
    assert set(check(model).labels) == {"__LABEL__good", "__LABEL__random"}
    assert load(str(model)).scores(texts("spam", 20, 500)).max() < 0.5


def test_odd_texts_train_too(classes: tuple[Path, Path], tmp_path: Path) -> None:
    odd = ["x" * 5_000_000, "a\0b " * 1000, "房子在山上。" * 50, "\u202e\ufeff\u0085 word", "😀 a", "е́ " * 100]
    good = write(tmp_path / "good.jsonl", [*texts("good", 200), *odd])
    assert call("--good", good, "--random", classes[1], "--output", tmp_path / "m.bin", *FAST).exit_code == 0


def test_an_empty_class_is_refused(classes: tuple[Path, Path], tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.jsonl", [" ", "1 2 3", "..."])
    message = refused("--good", empty, "--random", classes[1], "--output", tmp_path / "m.bin")
    assert message.startswith("no text of the class good")
    assert not (tmp_path / "m.bin").exists()


@pytest.mark.parametrize("more", [0, 30])
def test_a_class_within_the_other_is_refused(classes: tuple[Path, Path], tmp_path: Path, more: int) -> None:
    both = write(tmp_path / "both.jsonl", texts("good", 200 + more))
    assert "among those of random too" in refused("--good", classes[0], "--random", both, "--output", tmp_path / "m.bin")
    if more:
        assert "among those of good too" in refused("--good", both, "--random", classes[0], "--output", tmp_path / "m.bin")


def test_too_few_texts_are_refused(classes: tuple[Path, Path], tmp_path: Path) -> None:
    few = write(tmp_path / "few.jsonl", texts("good", 49) * 3)
    assert refused("--good", few, "--random", classes[1], "--output", tmp_path / "m.bin").startswith("49 distinct texts of good")
    message = refused("--good", *classes[:1], "--random", classes[1], "--output", tmp_path / "m.bin", "--held-out", "0.001")
    assert "are held out" in message


def test_unreadable_files_are_refused_by_name(classes: tuple[Path, Path], tmp_path: Path) -> None:
    random = ("--random", classes[1], "--output", tmp_path / "m.bin")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(classes[0].read_bytes())[:2000])
    assert refused("--good", cut, *random).startswith(f"{cut}: cannot be read")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 and nothing")
    assert refused("--good", bad, *random).startswith(f"{bad}: cannot be read")
    pq.write_table(pa.table({"body": ["x"]}), bad)
    assert "there is no column 'text'; its columns are body" in refused("--good", bad, *random)
    assert refused("--good", tmp_path / "none.jsonl", *random).endswith("there is no such file or folder")
    assert refused("--good", tmp_path / "*.nothing", *random).endswith("no file matches")
    page = tmp_path / "page.html"
    page.write_text("<p>one")
    assert "its name says no format" in refused("--good", page, *random)
    assert not (tmp_path / "m.bin").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--dimensions", "4"), "--dimensions"),
        (("--word-ngrams", "1"), "--word-ngrams"),
        (("--held-out", "1"), "--held-out"),
        (("--epochs", "many"), "--epochs"),
        (("--output", "model.txt"), "--output"),
    ],
)
def test_bad_usage_ends_with_code_2_and_names_the_option(classes: tuple[Path, Path], options: tuple[str, ...], word: str) -> None:
    result = call("--good", classes[0], "--random", classes[1], *(() if word == "--output" else ("--output", "m.bin")), *options)
    assert result.exit_code == 2
    assert word in result.stderr


def test_numbers_that_run_away_are_an_error(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"__LABEL__{label} {one.lower()}\n" for label in ("good", "spam") for one in texts(label, 50)))
    options = TrainingOptions(dimensions=5).model_copy(update={"rate": 1e30})
    with pytest.raises(TrainingError, match=r"fastText gave up: .*NaN"):
        _fit(str(lines), options, str(tmp_path / "m.bin"))


def test_several_files_follow_one_option_as_a_shell_expands_them(classes: tuple[Path, Path], tmp_path: Path) -> None:
    parts = [write(tmp_path / f"good-{number}.jsonl", texts("good", 70, number * 70)) for number in range(3)]
    model = tmp_path / "m.bin"
    assert call("--output", model, "--good", *parts, "--random", classes[1], *FAST).exit_code == 0
    assert [one["path"] for one in card(model)["inputs"]["good"]] == [str(part) for part in parts]
    assert card(model)["texts"]["good"]["documents"] == 210


def test_the_area_under_the_curve_counts_ties_half() -> None:
    good, random = np.array([0.9, 0.5, 0.5]), np.array([0.5, 0.1])
    pairs = [(g > r) + 0.5 * (g == r) for g in good for r in random]
    assert auc(good, random) == sum(pairs) / len(pairs)
    assert auc(random, random) == 0.5
