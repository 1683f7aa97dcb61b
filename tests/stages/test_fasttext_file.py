"""Model files that are damaged, cut short or something else are refused before the library could crash on them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import fasttext
import numpy as np
import pytest

from stages.fasttext_file import ModelFileError, check
from stages.language import shipped_model
from tests.stages.quality_texts import texts

HEADER = 8
DIMENSIONS, NGRAMS, LOSS, MODEL, BUCKETS = (HEADER + 4 * number for number in (0, 5, 6, 7, 8))
DICTIONARY = HEADER + 12 * 4 + 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small classifier: few buckets, since nothing here depends on how well it learned."""
    folder = tmp_path_factory.mktemp("model")
    lines = [f"__label__{kind} {one.lower()}\n" for kind in ("good", "spam") for one in texts(kind, 30)]
    (folder / "lines.txt").write_text("".join(lines))
    trained = fasttext.train_supervised(
        str(folder / "lines.txt"), dim=10, bucket=1000, wordNgrams=2, epoch=0, thread=1, verbose=0
    )
    # Not times zero: what fastText leaves unset may be NaN.
    trained.set_matrices(np.zeros_like(trained.get_input_matrix()), np.zeros_like(trained.get_output_matrix()))
    trained.save_model(str(folder / "model.bin"))
    return folder / "model.bin"


def reason(path: Path, data: bytes) -> str:
    damaged = path.with_name("damaged.bin")
    damaged.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        check(damaged)
    assert str(caught.value).startswith(f"{damaged}: not a fastText model: ")
    return str(caught.value).partition("model: ")[2]


def test_a_model_tells_its_labels_words_and_dimensions(model: Path) -> None:
    found = check(model)
    library = fasttext.load_model(str(model))
    assert list(found.labels) == library.get_labels()
    assert (found.words, found.dimensions) == (len(library.get_words()), 10)


def test_a_quantised_model_is_read_to_its_end() -> None:
    found = check(shipped_model())
    library = fasttext.load_model(shipped_model())
    assert list(found.labels) == library.get_labels()
    assert found.words == len(library.get_words())


@pytest.mark.parametrize("quantised", [False, True])
def test_a_file_cut_short_anywhere_is_refused(model: Path, tmp_path: Path, quantised: bool) -> None:
    data = Path(shipped_model()).read_bytes() if quantised else model.read_bytes()
    chance = random.Random(1)
    for length in [*range(1, 400, 7), *(chance.randrange(len(data)) for _ in range(40)), len(data) - 1]:
        reason(tmp_path / "x", data[:length])


def test_what_follows_the_end_is_refused(model: Path, tmp_path: Path) -> None:
    assert reason(tmp_path / "x", model.read_bytes() + b"x") == "1 bytes follow its end"


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "the file is empty"), (b"hello\n" * 100, "it does not begin as one does"), (b"\0", "cut short or damaged")],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in reason(tmp_path / "x", content)


@pytest.mark.parametrize(
    ("at", "value", "expected"),
    [
        (DIMENSIONS, 0, "it has 0 dimensions"),
        (DIMENSIONS, 2**31 - 1, "dimensions"),
        (DIMENSIONS, 11, "should be"),
        (BUCKETS, 0, "0 buckets"),  # the library divides by it
        (BUCKETS, -1, "-1 buckets"),
        (BUCKETS, 2**31 - 1, "should be"),
        (NGRAMS, 2**31 - 1, "odd n-grams"),
        (LOSS, 9, "its loss is number 9"),
        (MODEL, 2, "word vectors and no classifier"),
        (4, 99, "version 99"),
        (DICTIONARY, 10**9, "sizes disagree"),
        (DICTIONARY + 4, -1, "sizes disagree"),
    ],
)
def test_a_damaged_header_is_refused(model: Path, tmp_path: Path, at: int, value: int, expected: str) -> None:
    data = bytearray(model.read_bytes())
    data[at : at + 4] = struct.pack("<i", value)
    assert expected in reason(tmp_path / "x", bytes(data))


def test_numbers_that_are_none_are_refused(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    assert reason(tmp_path / "x", bytes(data)) == "its output matrix holds what is no number"


def test_counts_at_which_the_library_leaves_its_tables_are_refused(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    at = data.index(b"__label__good\0") + len(b"__label__good\0")
    assert struct.unpack_from("<qb", data, at) == (30, 1)
    assert "occur more often" in reason(tmp_path / "x", data[:at] + struct.pack("<q", 10**15) + data[at + 8 :])


def test_word_vectors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(texts("good", 30)))
    vectors = fasttext.train_unsupervised(str(tmp_path / "lines.txt"), dim=10, bucket=1000, epoch=0, thread=1, verbose=0)
    vectors.save_model(str(tmp_path / "v.bin"))
    assert "word vectors" in reason(tmp_path / "x", (tmp_path / "v.bin").read_bytes())
