"""Labels, scores and decisions of the language stage, with the real model."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.language import WINDOWS, Language, LanguageOptions, shipped_model, windows
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


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "1234 5678", "😀 🎉🎉", "— … !", "٣٤٥", "\u200b", "½ ¾ ②"])
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
    assert digest.pop("unicode") == unicodedata.unidata_version
    assert digest == {"lid.176.ftz": "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"}
    assert Language(LanguageOptions(model=shipped_model())).identity() == {"unicode": unicodedata.unidata_version}


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"model\.bin: not a fastText model"):
        Language(LanguageOptions(model=str(tmp_path / "model.bin")))
    with pytest.raises(FileNotFoundError):
        Language(LanguageOptions(model=str(tmp_path / "none.bin")))


def test_nulls_and_empty_batches_have_verdicts() -> None:
    stage = Language(LanguageOptions())
    column = pa.array(["x", None, ENGLISH, "", "x"], pa.large_string()).slice(1, 3)
    verdict = stage.decide(pa.record_batch({"text": column}))
    assert verdict.columns["language"].to_pylist() == ["und", "en", "und"]
    assert rules(verdict) == ["language.undetermined", None, "language.undetermined"]
    assert len(stage.decide(pa.record_batch({"text": column.slice(0, 0)})).rule) == 0


SENTENCE = "The house stands on a hill above the town. "


def sampled(characters: int, compare: float = 1.0, **options: Any) -> Language:
    return Language(LanguageOptions(sample_characters=characters, compare=compare, **options))


def numbered(texts: list[str]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "component": pa.array(["web"] * len(texts)),
            "file": pa.array(["a.jsonl"] * len(texts)),
            "position": pa.array(range(len(texts)), pa.int64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )


def test_a_sample_sees_the_beginning_the_middle_and_the_end() -> None:
    text = GERMAN * 20 + SENTENCE * 100 + GERMAN * 20
    labels = {label for label, _ in sampled(500).predict(text)}
    assert labels == {"en", "de"}
    assert sampled(500).predict(SENTENCE * 100)[0][0] == "en"


def test_a_text_that_is_not_longer_than_the_sample_is_judged_whole() -> None:
    whole = Language(LanguageOptions())
    text = (GERMAN + " " + ENGLISH)[:100]
    assert sampled(100).predict(text) == whole.predict(text)
    assert sampled(99).predict(text) != whole.predict(text)


@given(st.text(st.sampled_from("ab ü日😀\n"), min_size=51, max_size=400), st.integers(50, 120))
def test_windows_are_whole_characters_in_order_and_as_many_as_asked_for(text: str, characters: int) -> None:
    data = np.frombuffer(f"é{text}é".encode(), np.uint8)
    size = len(text.encode())
    pieces, starts = windows(data, np.array([2, 2 + size]), characters, WINDOWS)
    if len(text) <= characters:
        assert pieces.tolist() == [[2, 2 + size]]
        return
    assert starts.tolist() == [0, WINDOWS] and len(pieces) == WINDOWS
    before = 2
    for begin, end in pieces.tolist():
        assert before <= begin <= end <= 2 + size
        data[begin:end].tobytes().decode()
        before = end
    assert pieces[0, 0] == 2 and pieces[-1, 1] == 2 + size
    assert (pieces[:, 1] - pieces[:, 0]).sum() <= size * characters / len(text) + 4 * WINDOWS


def test_a_sample_counts_how_often_it_differs_from_the_whole_text() -> None:
    # German only where no window looks.
    hidden = SENTENCE * 3 + GERMAN * 8 + SENTENCE * 3
    texts = [SENTENCE * 100, hidden, "the house", GERMAN * 20]
    stage = sampled(60, keep=("en",))
    assert stage.report() == {}
    whole = Language(LanguageOptions(keep=("en",))).decide(numbered(texts))
    parts = stage.decide(numbered(texts))
    differ = [a != b for a, b in zip(whole.columns["language"].to_pylist(), parts.columns["language"].to_pylist(), strict=True)]
    other = (whole.rule != parts.rule).tolist()
    assert any(other)
    assert stage.report() == {
        "documents": 4,
        "sampled": 3,
        "compared": 3,
        "other_label": sum(differ),
        "other_verdict": sum(other),
    }
    assert stage.summary([stage.report(), stage.report()]) == {
        "sample_characters": 60,
        "compare": 1.0,
        "documents": 8,
        "sampled": 6,
        "compared": 6,
        "other_label": 2 * sum(differ),
        "other_verdict": 2 * sum(other),
    }


def test_the_compared_documents_depend_on_their_ids_alone() -> None:
    batch = numbered([SENTENCE * 10] * 400)
    stage, again = sampled(60, compare=0.1), sampled(60, compare=0.1)
    stage.decide(batch)
    for start in range(0, 400, 37):
        again.decide(batch.slice(start, 37))
    assert stage.report() == again.report()
    assert 20 <= stage.report()["compared"] <= 60
    none = sampled(60, compare=0)
    none.decide(batch)
    assert none.report()["compared"] == 0 and none.report()["sampled"] == 400


def test_compiling_leaves_no_trace_in_the_report() -> None:
    stage = sampled(60)
    stage.compile()
    assert stage.report() == {}


def test_whole_texts_have_nothing_to_report() -> None:
    stage = Language(LanguageOptions())
    stage.decide(numbered([ENGLISH]))
    assert stage.report() == {} and stage.summary([]) == {}
