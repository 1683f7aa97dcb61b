"""Scores, draws and decisions of the quality classifier, with a model that is trained for the purpose."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from manifests.rules import Decision, decide
from stages import quality_fitting
from stages.commands import app
from stages.quality_classifier import (
    ALWAYS,
    QualityClassifier,
    QualityClassifierOptions,
    Sampling,
    draw,
    greatest_pareto,
    greatest_power,
    load,
    normalised,
)
from tests.stages.quality_texts import FAST, text, texts, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    good, spam = write(folder / "good.jsonl", texts("good", 150)), write(folder / "spam.jsonl", texts("spam", 150))
    arguments = ["--good", str(good), "--random", str(spam), "--output", str(folder / "model.bin"), *FAST]
    assert CliRunner().invoke(app, ["quality", "train", *arguments]).exit_code == 0
    return str(folder / "model.bin")


def batch(contents: list[str], first: int = 0) -> pa.RecordBatch:
    rows = len(contents)
    return pa.record_batch(
        {
            "component": pa.array(["web"] * rows, pa.string()),
            "file": pa.array(["a.jsonl"] * rows, pa.string()),
            "position": pa.array(range(first, first + rows), pa.int64()),
            "text": pa.array(contents, pa.large_string()),
        }
    )


def measured(model: str, contents: list[str], first: int = 0, **options: object) -> dict[str, list]:
    stage = QualityClassifier(QualityClassifierOptions(model=model, threshold=None, **options))
    signals = stage.measure(batch(contents, first)).signals
    assert {name: column.type for name, column in signals.items()} == QualityClassifier.signals
    return {name: column.to_pylist() for name, column in signals.items()}


def decided(model: str, contents: list[str], **options: object) -> Decision:
    stage = QualityClassifier(QualityClassifierOptions(model=model, **options))
    return decide(stage.rules(), pa.table(stage.measure(batch(contents)).signals))


def test_the_score_is_the_models_probability_of_good(model: str) -> None:
    library = fasttext.load_model(model)
    for one in [text("good", 900), text("spam", 900), text("mixed", 900)]:
        labels, probabilities = library.predict(normalised(one), k=2)
        expected = min(float(dict(zip(labels, probabilities, strict=True))["__LABEL__good"]), 1.0)
        assert measured(model, [one])["quality.score"] == [pytest.approx(expected, abs=1e-9)]


def test_a_score_depends_on_the_text_alone(model: str) -> None:
    several = [text("good", 1), "", text("spam", 1), text("mixed", 1), "1 2"]
    together = measured(model, several)["quality.score"]
    alone = [measured(model, [one], 77, seed=9)["quality.score"][0] for one in several]
    assert together == alone


@pytest.mark.parametrize(
    "letterless", ["", " ", "\n\n", "1234 5678", "!?… — ***", "😀 🎉", "\0\0", "__label__".replace("label", "")]
)
def test_a_text_without_a_letter_has_no_score_and_is_removed_by_either_rule(model: str, letterless: str) -> None:
    assert measured(model, [letterless])["quality.score"] == [None]
    for options in ({"threshold": 0.0}, {"sample": {"pareto": 0.001}}, {"sample": {"power": 0.001}}):
        decision = decided(model, [letterless, text("good", 1)], **options)
        assert decision.first.tolist() == [0, -1]
        assert math.isnan(decision.value[0])


def test_a_score_at_the_threshold_is_kept_and_below_it_removed(model: str) -> None:
    mixed = text("mixed", 5)
    score = measured(model, [mixed])["quality.score"][0]
    for threshold, expected in [(score, -1), (np.nextafter(score, 0), -1), (np.nextafter(score, 1), 0)]:
        decision = decided(model, [mixed], threshold=float(threshold))
        assert decision.first.tolist() == [expected]
        assert expected == -1 or decision.value[0] == score


def test_huge_and_odd_texts_have_a_score(model: str) -> None:
    odd = [
        "x" * 5_000_000,
        "word " * 1_000_000,
        "!" * 5_000_000 + "a",
        "a\0b\0" * 1000,
        "房子在小镇上方的山上，从窗户可以看到河流。" * 20,
        "Дом стоит на холме над городом, и из его окон видна река.",
        "\u202eabc\ufeff\u2028\u0085",
        "е́ à",
    ]
    for score in measured(model, odd)["quality.score"]:
        assert 0 <= score <= 1


def test_words_that_the_model_never_saw_are_told_from_those_it_knows(model: str) -> None:
    known = measured(model, [text("good", 3), "Дом стоит на холме", "casino 房子", ""])["quality.known_words"]
    assert known[0] == {"numerator": 61, "denominator": 61}  # 60 words and a full stop
    assert known[1] == {"numerator": 0, "denominator": 4}
    assert known[2] == {"numerator": 1, "denominator": 3}
    assert known[3] == {"numerator": 0, "denominator": 0}


def test_a_text_of_words_that_the_model_does_not_know_can_be_asked_to_go_first(model: str) -> None:
    contents = ["Дом стоит на холме", "casino", f"{text('good', 3)} {'холме ' * 61}", text("good", 3)]
    decision = decided(model, contents, threshold=0.5, min_known_words=0.5)
    assert [["known", "threshold", None][one] for one in decision.first.tolist()] == ["known", "threshold", None, None]
    assert decision.value[0] == 0
    assert decided(model, contents, threshold=0.0, min_known_words=0.51).first.tolist() == [0, -1, 0, -1]


def test_normalised_texts_are_one_line_of_lower_case_words() -> None:
    assert normalised("The\n\n HOUSE,\tdon't\u00a0stand\u3000still\0now") == "the house , don ' t stand still now"
    assert normalised("房子abc は😀𐍈") == "房 子 abc は 😀 𐍈"
    assert normalised("हिन्दी भाषा") == "हिन्दी भाषा"  # vowel signs stay with their letters
    assert normalised("__label__good") == "_ _ label _ _ good"


@given(st.text())
def test_normalising_twice_changes_nothing_that_is_not_a_matter_of_case(some: str) -> None:
    line = normalised(some)
    assert line == " ".join(line.split())
    assert not set(line) & set("\n\r\t\0ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert normalised(line) == " ".join(line.lower().split())


def test_draws_are_uniform_and_the_same_for_the_same_id_and_seed() -> None:
    draws = np.array([draw(0, f"web/a.jsonl#{number}") for number in range(4000)])
    assert draws.min() > 0 and draws.max() < 1
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    assert counts.min() > 320 and counts.max() < 480  # 400 each, four standard deviations
    assert draw(0, "web/a.jsonl#0") == draws[0] != draw(1, "web/a.jsonl#0")
    assert draw(0, "web/a.jsonl#0").hex() == "0x1.e0c1237b68239p-1"


@given(st.floats(0, 1), st.floats(2**-53, 1 - 2**-53), st.floats(0.01, 50))
def test_an_exponent_keeps_what_its_probability_exceeds(score: float, drawn: float, exponent: float) -> None:
    for kind, greatest in (("pareto", greatest_pareto), ("power", greatest_power)):
        probability = float(Sampling(**{kind: exponent}).probability(np.array([score]))[0])
        if abs(probability - drawn) > 1e-9:
            assert (greatest(score, drawn) >= exponent) == (drawn < probability)


def test_a_score_of_1_is_always_kept_and_of_0_never_by_power() -> None:
    assert greatest_pareto(1.0, 0.999) == greatest_power(1.0, 0.999) == ALWAYS
    assert greatest_power(0.0, 1e-9) == 0


def test_pareto_keeps_as_many_as_the_rule_of_gpt_3() -> None:
    # numpy.random.pareto(9) > 1 - score, of Brown et al. 2020, in numbers that are drawn as they drew them.
    generator = np.random.default_rng(5)
    for score in (0.05, 0.5, 0.9):
        theirs = (generator.pareto(9, 200_000) > 1 - score).mean()
        ours = np.mean([greatest_pareto(score, draw(3, str(number))) >= 9 for number in range(20_000)])
        probability = (2 - score) ** -9
        assert theirs == pytest.approx(probability, abs=4 * (probability / 200_000) ** 0.5)
        assert ours == pytest.approx(probability, abs=4 * (probability / 20_000) ** 0.5)


def test_a_sample_rises_with_the_score_and_repeats(model: str) -> None:
    contents = [*texts("good", 200, 500), *texts("spam", 200, 500), *texts("mixed", 200, 500)]
    decision = decided(model, contents, sample={"power": 1})
    kept = decision.first == -1
    assert kept[:200].sum() > 150 and kept[200:400].sum() < 50 < kept[400:].sum() < 150
    assert (decided(model, contents, sample={"power": 1}).first == decision.first).all()
    assert (decided(model, contents, sample={"power": 1}, seed=1).first != decision.first).any()
    fallen = int(np.flatnonzero(~kept)[0])
    assert decision.failed[fallen].as_py() == ["quality.sample_power"]
    assert decision.value[fallen] < 1


def test_only_thresholds_and_sampling_leave_the_signals_alone(model: str) -> None:
    assert QualityClassifier.threshold_options == {"threshold", "sample", "min_known_words"}
    first = measured(model, [text("mixed", 1)])
    for options in ({"threshold": 0.9}, {"sample": Sampling(pareto=3)}):
        stage = QualityClassifier(QualityClassifierOptions(model=model, **options))
        assert {name: one.to_pylist() for name, one in stage.measure(batch([text("mixed", 1)])).signals.items()} == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "threshold or sample is needed"),
        ({"threshold": 0.5, "sample": {"power": 1}}, "two ways to decide"),
        ({"sample": {}}, "one of pareto and power"),
        ({"sample": {"power": 1, "pareto": 9}}, "one of pareto and power"),
        ({"sample": {"power": 0}}, "greater than 0"),
        ({"threshold": 1.5}, "less than or equal to 1"),
    ],
)
def test_unclear_policies_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        QualityClassifierOptions(model="m.bin", **options)


def test_without_a_rule_it_measures_and_removes_nothing(model: str) -> None:
    assert QualityClassifier(QualityClassifierOptions(model=model, threshold=None)).rules() == []


def test_a_model_with_other_labels_is_used_by_naming_one(tmp_path: Path) -> None:
    lines = [f"__label__{kind} {one}\n" for kind in ("hq", "cc") for one in texts("good" if kind == "hq" else "spam", 50)]
    (tmp_path / "lines.txt").write_text("".join(lines))
    path = str(tmp_path / "theirs.bin")
    # As a program of its own: on one thread fastText trains on whatever its memory held before (docs/log.md), which ends in NaN at times.
    parameters = {"dim": 5, "bucket": 2_000_000, "wordNgrams": 2, "epoch": 20, "thread": 1, "verbose": 0}
    fitting = [sys.executable, quality_fitting.__file__, str(tmp_path / "lines.txt"), path, json.dumps(parameters)]
    subprocess.run(fitting, check=True)
    theirs = fasttext.load_model(path)
    with pytest.raises(ValueError, match="has no label 'good'; its labels are cc, hq"):
        load(path)
    one = text("good", 70)
    scored = load(path, "hq", normalise=False).judge(one)
    labels, probabilities = theirs.predict(one, k=2)
    assert scored[0] == pytest.approx(float(dict(zip(labels, probabilities, strict=True))["__label__hq"]), abs=1e-7)
    classifier, other = load(path, "hq", normalise=False), text("spam", 70)
    # fastText stops at this token: a page could put it behind a good sentence.
    assert classifier.judge(f"{one}\n</s> {other}")[0] == classifier.judge(f"{one} {other}")[0]
    assert classifier.judge(f"</s>x {one}")[0] != classifier.judge(one)[0]


def test_what_is_no_model_is_refused_by_name(model: str, tmp_path: Path) -> None:
    (tmp_path / "cut.bin").write_bytes(Path(model).read_bytes()[:1_000_000])
    for path in (tmp_path / "cut.bin", tmp_path):
        with pytest.raises(ValueError, match=str(path)):
            QualityClassifier(QualityClassifierOptions(model=str(path), threshold=0.5))
    with pytest.raises(FileNotFoundError):
        load(str(tmp_path / "none.bin"))
