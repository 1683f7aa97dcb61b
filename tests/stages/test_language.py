"""Labels, scores and decisions of the language stage, with the real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.language import Language, LanguageOptions, load_model, shipped_model
from stages.stage import Verdict

ENGLISH = "The house stands on a hill above the town, and from its windows one can see the river."
GERMAN = "Das Haus steht auf einem Hügel über der Stadt, und aus den Fenstern sieht man den Fluss."
CHINESE = "房子在小镇上方的山上，从窗户可以看到河流。今天天气很好，我们去公园散步。"


def decide(options: LanguageOptions, *texts: str) -> Verdict:
    return Language(options).decide(pa.record_batch({"text": pa.array(texts, pa.large_string())}))


def rules(verdict: Verdict) -> list[str | None]:
    return [None if index < 0 else Language.removal_rules[index] for index in verdict.rule]


def test_a_label_and_a_score_with_and_without_newlines() -> None:
    verdict = decide(LanguageOptions(), "the house", "the house\nis big\n\nand old", ENGLISH, GERMAN, CHINESE)
    assert verdict.columns["language"].to_pylist() == ["en", "en", "en", "de", "zh"]
    scores = verdict.columns["language_score"].to_numpy()
    assert (scores > 0.65).all() and (scores <= 1).all()
    assert rules(verdict) == [None] * 5


def test_newlines_are_blanks_to_the_model() -> None:
    stage = Language(LanguageOptions())
    assert stage.predict("the house\nis big") == stage.predict("the house is big")


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "1234 5678", "😀 🎉🎉", "— … !", "٣٤٥", "\u200b"])
def test_a_text_without_letters_is_undetermined_with_score_0(text: str) -> None:
    verdict = decide(LanguageOptions(threshold=0), text)
    assert verdict.columns["language"].to_pylist() == ["und"]
    assert verdict.columns["language_score"].to_pylist() == [0.0]
    assert rules(verdict) == ["language.undetermined"]


def test_scores_are_clamped_to_1() -> None:
    stage = Language(LanguageOptions())
    assert max(score for text in (ENGLISH * 20, GERMAN * 20, CHINESE * 20) for _, score in stage.predict(text)) <= 1.0


def test_an_unwanted_language_is_named() -> None:
    verdict = decide(LanguageOptions(keep=("en",)), ENGLISH, GERMAN)
    assert rules(verdict) == [None, "language.unwanted"]
    assert verdict.detail is not None and verdict.detail[1] is not None and verdict.detail[1].startswith("de")


def test_a_score_at_the_threshold_is_uncertain_and_above_it_kept() -> None:
    score = Language(LanguageOptions()).predict("the house")[0][1]
    for threshold, rule in [
        (score, "language.uncertain"),
        (np.nextafter(score, 0), None),
        (np.nextafter(score, 1), "language.uncertain"),
    ]:
        verdict = decide(LanguageOptions(threshold=float(threshold)), "the house")
        assert rules(verdict) == [rule]
        assert verdict.value is not None and verdict.value[0] == score
        assert verdict.threshold is not None and verdict.threshold[0] == threshold


def test_short_texts_have_their_own_threshold() -> None:
    options = LanguageOptions(threshold=0.9, short_threshold=0.5, short_characters=20)
    assert rules(decide(options, "the house", "the house is on a hill")) == [None, None]
    assert rules(decide(LanguageOptions(threshold=0.9), "the house")) == ["language.uncertain"]


def test_a_pair_keeps_a_text_of_two_languages() -> None:
    mixed = f"{GERMAN} {ENGLISH}"
    (first, first_score), (second, second_score) = Language(LanguageOptions()).predict(mixed)
    assert {first, second} == {"de", "en"}
    threshold = (max(first_score, second_score) + first_score + second_score) / 2
    assert rules(decide(LanguageOptions(keep=("en", "de"), threshold=threshold), mixed)) == ["language.uncertain"]
    assert rules(decide(LanguageOptions(keep=("en+de",), threshold=threshold), mixed, CHINESE)) == [None, "language.unwanted"]


def test_every_language_is_wanted_where_none_is_named() -> None:
    assert rules(decide(LanguageOptions(), ENGLISH, GERMAN, CHINESE)) == [None] * 3


def test_a_label_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="'eng' is no label"):
        Language(LanguageOptions(keep=("eng",)))
    with pytest.raises(ValueError, match="names 3 languages"):
        Language(LanguageOptions(keep=("en+de+fr",)))


def test_the_shipped_model_is_part_of_the_identity() -> None:
    digest = Language(LanguageOptions()).identity()
    assert digest == {"lid.176.ftz": "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"}
    assert Language(LanguageOptions(model=shipped_model())).identity() == {}


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"model\.bin: not a fastText model"):
        load_model(str(tmp_path / "model.bin"))
    with pytest.raises(ValueError, match=r"none\.bin: not a fastText model"):
        load_model(str(tmp_path / "none.bin"))


def test_a_sample_looks_at_the_beginning_only() -> None:
    stage = Language(LanguageOptions(sample_characters=len(ENGLISH)))
    assert stage.predict(ENGLISH + GERMAN * 10) == stage.predict(ENGLISH)
