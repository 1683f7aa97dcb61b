"""fastText models read and applied without fastText give what fastText gives."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.fasttext_model import NOTHING, Model
from stages.language import shipped_model

BEST = 5
ULP = 2**-23
"""The two exponential functions may round the last bit of a float32 differently."""


def agree(model: Model, library: fasttext.FastText._FastText, text: str, best: int = BEST) -> None:
    theirs = library.f.predict(text.replace("\n", " ") + "\n", best, 0.0, "strict")
    ours = model.of_text(text, best)
    assert len(ours) == len(theirs)
    scores = [score for _, score in ours]
    assert np.allclose(scores, [score for score, _ in theirs], rtol=4 * ULP, atol=4e-8), (text, ours, theirs)
    assert scores == sorted(scores, reverse=True)
    for (label, score), (other_score, other) in zip(ours, theirs, strict=True):
        # Labels of almost equal scores may change places.
        assert other.removeprefix("__label__") == label or (abs(score - other_score) < 1e-7 and score < 1e-4)


@pytest.fixture(scope="module")
def shipped() -> tuple[Model, fasttext.FastText._FastText]:
    return Model(shipped_model()), fasttext.load_model(shipped_model())


PAIR = Model(shipped_model()), fasttext.load_model(shipped_model())


@given(st.text(st.one_of(st.sampled_from("abc éüдж日本 \n\t.,"), st.characters(exclude_categories=["Cs"])), max_size=200))
@example("")
@example(" ")
@example("\0a\0")
@example("a" * 3000)
@example("__label__en the house")
@example("x</s> y")
def test_the_language_model_says_what_fasttext_says(text: str) -> None:
    agree(*PAIR, text)


def test_the_token_that_ends_a_line_for_fasttext_is_passed_over() -> None:
    model, library = PAIR
    assert model.of_text("the house </s> ist gross", 2) == model.of_text("the house ist gross", 2)
    assert library.predict("the house </s> ist gross") == library.predict("the house")


WORDS = ["alpha", "bravo", "charlie", "delta", "écho", "фокс", "日本", "golf", "hotel", "india", "</s>"]
LABELS = ["one", "two", "three", "drei", "vier"]


def written(
    path: Path,
    loss: int,
    dim: int,
    ngrams: tuple[int, int] = (0, 0),
    word_ngrams: int = 1,
    bucket: int = 0,
    quantized: bool = False,
    normed: bool = False,
    kept: int | None = None,
    quantized_output: bool = False,
    words: list[str] = WORDS,
) -> Path:
    """A model file of random numbers. Training would need the library, whose models depend on what was in memory before."""
    generator = np.random.default_rng(dim)
    parts = [struct.pack("<ii", 793712314, 12)]
    parts.append(struct.pack("<12id", dim, 5, 3, 1, 5, word_ngrams, loss, 3, bucket, *ngrams, 100, 1e-4))
    size = len(words) + len(LABELS)
    parts.append(struct.pack("<iiiqq", size, len(words), len(LABELS), 1000, -1 if kept is None else kept))
    for kind, names in ((0, words), (1, [f"__label__{label}" for label in LABELS])):
        for number, name in enumerate(names):
            parts.append(name.encode() + b"\0" + struct.pack("<qb", 100 - 7 * number, kind))
    if kept is not None:
        places = generator.permutation(bucket)[:kept].astype(np.int32)
        parts.append(np.stack([places, np.arange(kept, dtype=np.int32)], axis=1).tobytes())

    def matrix(rows: int, columns: int) -> bytes:
        return struct.pack("<qq", rows, columns) + generator.normal(size=(rows, columns)).astype(np.float32).tobytes()

    def quantizer(columns: int, width: int) -> bytes:
        number = -(-columns // width)
        head = struct.pack("<4i", columns, number, width, columns - (number - 1) * width)
        return head + generator.normal(size=columns * 256).astype(np.float32).tobytes()

    def quantized_matrix(rows: int, columns: int, normed: bool) -> bytes:
        codes = generator.integers(0, 256, (rows, -(-columns // 2)), np.uint8).tobytes()
        data = struct.pack("<?qqi", normed, rows, columns, len(codes)) + codes + quantizer(columns, 2)
        return data + (generator.integers(0, 256, rows, np.uint8).tobytes() + quantizer(1, 1) if normed else b"")

    rows = len(words) + (bucket if kept is None else kept)
    parts += [struct.pack("<?", quantized), quantized_matrix(rows, dim, normed) if quantized else matrix(rows, dim)]
    parts.append(struct.pack("<?", quantized_output))
    parts.append(quantized_matrix(len(LABELS), dim, normed) if quantized_output else matrix(len(LABELS), dim))
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": 3, "dim": 10},
        {"loss": 1, "dim": 16, "ngrams": (1, 3), "bucket": 1000},
        {"loss": 3, "dim": 7, "ngrams": (2, 5), "bucket": 500, "word_ngrams": 3},
        {"loss": 1, "dim": 3, "bucket": 300, "word_ngrams": 2},
        {"loss": 3, "dim": 8, "ngrams": (2, 3), "bucket": 2000, "quantized": True, "kept": 300, "word_ngrams": 2},
        {"loss": 1, "dim": 5, "ngrams": (2, 4), "bucket": 2000, "quantized": True, "normed": True, "kept": 700},
        {"loss": 3, "dim": 5, "quantized": True, "normed": True, "quantized_output": True},
        {"loss": 1, "dim": 16, "ngrams": (2, 4), "bucket": 50, "quantized": True, "kept": 0},
    ],
    ids=str,
)
def test_models_of_every_layout_say_what_fasttext_says(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = written(tmp_path / "model.bin", **settings)
    model, library = Model(path), fasttext.load_model(str(path))
    assert [f"__label__{label}" for label in model.labels] == library.get_labels()
    for size in range(20):
        agree(model, library, " ".join(random.Random(size).choices([*WORDS[:-1], "unknown", "日本語", "ü"], k=size)))


def test_texts_are_judged_piece_by_piece_and_alone(shipped: tuple[Model, object]) -> None:
    model = shipped[0]
    texts = ["the house", "", "das Haus ist groß", "la maison"]
    data = np.frombuffer("|".join(texts).encode(), np.uint8)
    bounds = np.cumsum([0, *(len(text.encode()) + 1 for text in texts)])
    pieces = np.stack([bounds[:-1], bounds[1:] - 1], axis=1)
    labels, scores = model.predict(data, pieces, np.arange(5), 2)
    for row, text in enumerate(texts):
        assert [(model.labels[label], score) for label, score in zip(labels[row], scores[row], strict=True)] == model.of_text(
            text, 2
        )
    labels, scores = model.predict(data, pieces, np.array([0, 3, 3, 4]), 1)
    assert (model.labels[labels[0, 0]], scores[0, 0]) == model.of_text("the house das Haus ist groß")[0]
    assert model.predict(data[:0], pieces[:0], np.array([0]), 1)[0].shape == (0, 1)


def test_a_text_of_which_the_model_knows_nothing_has_no_label(tmp_path: Path) -> None:
    model = Model(written(tmp_path / "model.bin", loss=3, dim=4, words=WORDS[:-1]))
    assert model.of_text("unknown words") == []
    assert model.predict(np.frombuffer(b"none", np.uint8), np.array([[0, 4]]), np.array([0, 1]), 1)[0].tolist() == [[NOTHING]]


@pytest.mark.parametrize("loss", [2, 4])
def test_a_model_of_another_kind_is_refused(tmp_path: Path, loss: int) -> None:
    with pytest.raises(
        ValueError, match=r"model\.bin: not a fastText model that can be used here: it is no classifier with softmax"
    ):
        Model(written(tmp_path / "model.bin", loss=loss, dim=4))


def test_a_model_that_would_lead_astray_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.bin", loss=1, dim=4, bucket=100, word_ngrams=2).read_bytes()
    first = b"__label__one\0" + struct.pack("<qb", 100, 1)
    endless = whole.replace(first, first[:-9] + struct.pack("<qb", 2 * 10**15, 1))
    no_number = whole[:-4] + struct.pack("<f", np.nan)
    long_phrases = bytearray(whole)
    struct.pack_into("<i", long_phrases, 8 + 5 * 4, 2**31 - 1)
    path = tmp_path / "model.bin"
    for data, reason in (
        (endless, "its labels occur more often than can be"),
        (no_number, "its output matrix holds what is no number"),
        (bytes(long_phrases), "odd n-grams"),
    ):
        assert data != whole
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"model\.bin: not a fastText model: {reason}"):
            Model(path)
    wide = bytearray(written(path, loss=3, dim=2, ngrams=(1, 2), bucket=100, quantized=True, kept=0).read_bytes())
    struct.pack_into("<i", wide, 8 + 8 * 4, 2**31 - 1)
    path.write_bytes(wide)
    with pytest.raises(ValueError, match=r"model\.bin: .* 2,147,483,647 buckets"):
        Model(path)


def test_a_damaged_model_is_refused_and_never_read_beyond_its_end(tmp_path: Path) -> None:
    data = Path(shipped_model()).read_bytes()
    path = tmp_path / "model.ftz"
    for size in (0, 3, 8, 60, 100, 5_000, 300_000, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"model\.ftz: not a fastText model"):
            Model(path)
    generator = random.Random(3)
    for _ in range(60):
        damaged = bytearray(data)
        place = generator.randrange(8, 64 + 28)
        struct.pack_into("<i", damaged, place, generator.choice([-1, 0, 1, 2**31 - 1, -(2**31), 1000]))
        path.write_bytes(damaged)
        try:
            Model(path).of_text("the house stands on a hill")
        except ValueError as error:
            assert "model.ftz: not a fastText model" in str(error)
