import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from stages.tokenizer import (
    BOS,
    SPECIAL_TOKENS,
    Encoder,
    TokenizerError,
    TokenizerOptions,
    _fed,
    choose_engine,
    cut,
    piece_pattern,
    sample_key,
    train_tokenizer,
)

CHOOSER = random.Random(1)
WORDS = ["".join(CHOOSER.choices("abcdefghij", k=CHOOSER.randint(2, 8))) for _ in range(300)]
TEXTS = [" ".join(CHOOSER.choices(WORDS, k=60)) + "." for _ in range(80)]
OPTIONS = TokenizerOptions(vocabulary=1000)


@pytest.fixture(scope="module")
def trained() -> str:
    return train_tokenizer(TEXTS, OPTIONS)


@pytest.fixture(scope="module")
def encoder(trained: str) -> Encoder:
    return Encoder(trained)


def ids_of(encoder: Encoder, text: str) -> list[int]:
    return encoder.encode(pa.array([text], pa.large_string()))[1].tolist()


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_the_same_texts_give_the_same_tokenizer_on_any_number_of_threads(trained: str, threads: str, tmp_path: Path) -> None:
    program = (
        "from tests.stages.test_tokenizer import *; import pathlib, sys;"
        "pathlib.Path(sys.argv[1]).write_text(train_tokenizer(iter(TEXTS), OPTIONS))"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "TOKENIZERS_PARALLELISM": "true"}
    out = tmp_path / "tokenizer.json"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(out)], env=environment, cwd=root, check=True)
    assert out.read_text() == trained


def test_the_vocabulary_is_padded_and_has_all_bytes_and_bos_first(encoder: Encoder) -> None:
    assert encoder.vocabulary == 1024 and encoder.dtype == np.dtype("<u2")
    assert encoder.bos_id == 0 and encoder.special_tokens[BOS] == 0
    assert len(encoder.special_tokens) == 16 + 24
    assert {encoder.decode(np.array([number])) for number in range(1024)} >= {bytes([byte]) for byte in range(256)}


@settings(max_examples=200)
@given(st.lists(st.text(), max_size=5))
def test_any_text_round_trips_and_begins_with_bos(encoder: Encoder, texts: list[str]) -> None:
    offsets, ids = encoder.encode(pa.array(texts, pa.large_string()))
    assert offsets.dtype == np.int64 and ids.dtype == encoder.dtype and offsets[-1] == len(ids)
    for text, start, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
        assert ids[start] == encoder.bos_id
        assert encoder.decode(ids[start:end]) == text.encode()
    assert encoder.decode_all(ids, offsets).to_pylist() == texts


def test_bytes_absent_from_training_do_not_vanish() -> None:
    encoder = Encoder(train_tokenizer(["one line", "two lines", "three"], TokenizerOptions(vocabulary=512)))
    assert encoder.decode(np.array(ids_of(encoder, "café ЖЖ ~~"))).decode() == "café ЖЖ ~~"


def test_page_text_that_spells_a_special_token_is_text(encoder: Encoder) -> None:
    for name in (*encoder.special_tokens, "<|endoftext|>"):
        text = f"before {name} after {name}{name}"
        ids = ids_of(encoder, text)
        assert not set(ids[1:]) & set(encoder.special_tokens.values())
        assert encoder.decode(np.array(ids)).decode() == text


def test_training_on_text_that_spells_a_special_token_leaves_it_text() -> None:
    encoder = Encoder(train_tokenizer([f"{BOS} and {BOS} again"] * 50, OPTIONS))
    ids = ids_of(encoder, f"{BOS} and {BOS}")
    assert ids.count(0) == 1 and encoder.decode(np.array(ids)).decode() == f"{BOS} and {BOS}"


def test_training_ends_on_many_documents_and_on_one_long_run_without_spaces() -> None:
    run = "".join(CHOOSER.choices("xyz", k=1_000_000))

    def texts():  # type: ignore[no-untyped-def]
        for number in range(50_000):
            yield run if number == 7 else f"document {number % 100}"

    encoder = Encoder(train_tokenizer(texts(), TokenizerOptions(vocabulary=600, document_cap_bytes=1 << 20)))
    assert max(len(encoder.decode(np.array([number]))) for number in range(encoder.vocabulary)) <= 4 * 48
    assert encoder.decode(np.array(ids_of(encoder, run))).decode() == run


def test_training_takes_no_more_than_the_sample_and_a_share_of_each_document() -> None:
    drawn = []

    def texts():  # type: ignore[no-untyped-def]
        for number in range(1000):
            drawn.append(number)
            yield f"{number:04d}" * 100

    train_tokenizer(texts(), TokenizerOptions(vocabulary=512, sample_bytes=1000, document_cap_bytes=100))
    assert len(drawn) == 10


def test_the_last_text_is_cut_to_what_the_sample_has_left() -> None:
    options = TokenizerOptions(vocabulary=600, sample_bytes=48, minimum_frequency=1)
    assert train_tokenizer(["first text", "the second text is longer than what is left of it", "third"], options) == (
        train_tokenizer(["first text", "the second text is longer than what is left of it"[:38]], options)
    )


def test_no_text_is_an_error() -> None:
    with pytest.raises(TokenizerError, match="no text"):
        train_tokenizer([], OPTIONS)


DIGITS = [("single", [1] * 7), ("pairs", [2, 2, 2, 1]), ("triple", [3, 3, 1]), ("whole", [7])]


@pytest.mark.parametrize(("digits", "pieces"), DIGITS)
def test_digits_are_grouped_as_asked_from_the_left(digits: str, pieces: list[int]) -> None:
    options = TokenizerOptions(vocabulary=512, digits=digits)
    encoder = Encoder(train_tokenizer(["1234567 " * 20] * 5, options))
    assert [len(encoder.decode(np.array([number]))) for number in ids_of(encoder, "1234567")[1:]] == pieces


@pytest.mark.parametrize("digits", [name for name, _ in DIGITS])
def test_both_engines_group_digits_alike(digits: str) -> None:
    texts = ["1234567 and 12, 1 x2345 ٣٤٥٦ ½⅓ 3.14159 2026-11-29 " + "0123456789" * 30] * 5 + TEXTS[:5]
    trained = train_tokenizer(texts, TokenizerOptions(vocabulary=600, digits=digits))
    assert choose_engine(trained, None, texts) == ("tiktoken", None)
    column = pa.array([*texts, "7" * 1000, "12 345 6789 0", "x1y22z333", "１２３４５"], pa.large_string())
    slow, fast = Encoder(trained), Encoder(trained, engine="tiktoken")
    for mine, other in zip(slow.encode(column), fast.encode(column), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("vocabulary", "pad_to", "padded"), [(1000, 64, 1024), (1000, 128, 1024), (700, 64, 704), (700, 128, 768), (700, 1, 700)]
)
def test_the_vocabulary_is_filled_up_to_a_multiple_of_what_is_asked(vocabulary: int, pad_to: int, padded: int) -> None:
    encoder = Encoder(train_tokenizer(TEXTS, TokenizerOptions(vocabulary=vocabulary, pad_to=pad_to)))
    assert encoder.vocabulary == padded
    assert len(encoder.special_tokens) == SPECIAL_TOKENS + padded - vocabulary
    assert sorted(encoder.special_tokens.values()) == [*range(SPECIAL_TOKENS), *range(vocabulary, padded)]
    assert {encoder.decode(np.array([number])) for number in range(padded)} >= {bytes([byte]) for byte in range(256)}


LINES = st.tuples(
    st.sampled_from(["a", "é", "漢", "1", ".", "'"]),
    st.text("ab 1.é漢\u2028'", max_size=6),
    st.sampled_from(["\n", "\r\n", "\n\n", ""]),
).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([name for name, _ in DIGITS]), st.lists(LINES, max_size=20).map("".join))
def test_a_long_text_is_handed_over_in_parts_that_no_piece_crosses(digits: str, text: str) -> None:
    cutter = pre_tokenizers.Split(Regex(piece_pattern(digits)), behavior="isolated")

    def pieces(part: str) -> list[str]:
        return [piece for piece, _ in cutter.pre_tokenize_str(part)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.tokenizer.FED_CHARACTERS", 9)
        parts = list(_fed(text))
    assert "".join(parts) == text
    assert all(0 < len(part) <= 9 for part in parts)
    joined: list[str] = []
    for part in parts:
        if joined and (not joined[-1].endswith("\n") or part[0].isspace()):
            # Only where no line with no white space behind it ends within nine characters is a part cut elsewhere.
            assert not any(joined[-1][at - 1] == "\n" and not joined[-1][at].isspace() for at in range(2, len(joined[-1])))
            part = joined.pop() + part
        joined.append(part)
    assert [piece for part in joined for piece in pieces(part)] == pieces(text)


def test_the_order_of_texts_changes_nothing(trained: str) -> None:
    """The sample is trained on in id order, whatever order the keys say."""
    assert train_tokenizer(TEXTS[::-1], OPTIONS) == trained


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5, 6, 7, 100])
def test_a_text_is_cut_between_characters(most: int) -> None:
    found = cut("aé漢", most)
    assert "aé漢".startswith(found) and len(found.encode()) <= most
    assert len(found) == sum(size <= most for size in (1, 3, 6))


def test_the_place_in_the_sample_depends_on_seed_and_id_alone() -> None:
    assert sample_key(1, "web/a#1") == sample_key(1, "web/a#1") != sample_key(2, "web/a#1")


def given_tokenizer(alphabet: list[str], normalizer: normalizers.Normalizer | None = None, bos: str = "<s>") -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=[bos], show_progress=False)
    tokenizer.train_from_iterator(TEXTS[:5], trainer)
    return tokenizer.to_str()


def test_a_tokenizer_made_elsewhere_is_used_as_it_is() -> None:
    encoder = Encoder(given_tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet())))
    assert encoder.bos_id == encoder.special_tokens["<s>"]
    assert encoder.decode(np.array(ids_of(encoder, "naïve <s> 漢字"))).decode() == "naïve <s> 漢字"


def test_a_tokenizer_that_lacks_bytes_is_refused() -> None:
    with pytest.raises(TokenizerError, match="of 256 bytes are no tokens"):
        Encoder(given_tokenizer([]))


def test_a_tokenizer_that_normalises_is_refused() -> None:
    with pytest.raises(TokenizerError, match="it changes text"):
        Encoder(given_tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet()), normalizers.NFC()))


def test_a_text_that_is_normalised_to_as_many_other_bytes_is_refused() -> None:
    """No probe has the word; its tokens are as long as it is."""
    swap = normalizers.Replace("harbour", "HARBOUR")
    encoder = Encoder(given_tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet()), swap))
    assert encoder.decode(np.array(ids_of(encoder, "the haven"))) == b"the haven"
    with pytest.raises(TokenizerError, match="it changes text: normalised, 'the harbour' is another text"):
        ids_of(encoder, "the harbour")


def changed(change: Callable[[dict[str, Any]], None]) -> str:
    description = json.loads(given_tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet())))
    change(description)
    return json.dumps(description)


def test_two_tokens_of_one_id_are_refused() -> None:
    def change(description: dict[str, Any]) -> None:
        vocabulary = description["model"]["vocab"]
        one, other = [name for name in vocabulary if len(name) == 2][:2]
        vocabulary[one] = vocabulary[other]

    with pytest.raises(TokenizerError, match=r"its tokens '..' and '..' both have the id \d+"):
        Encoder(changed(change))


@pytest.mark.parametrize("number", [300, 5_000, 5_000_000])
def test_an_added_token_that_has_another_id_at_work_than_in_its_file_is_refused(number: int) -> None:
    with pytest.raises(TokenizerError, match=f"its added token '<s>' has the id {number} there, and 0 at work"):
        Encoder(changed(lambda description: description["added_tokens"][0].update(id=number)))


def test_a_model_that_is_not_bpe_is_refused_though_it_has_all_bytes() -> None:
    def change(description: dict[str, Any]) -> None:
        words = {"type": "WordPiece", "unk_token": "there", "continuing_subword_prefix": "", "max_input_chars_per_word": 4}
        description["model"] = {**words, "vocab": {**description["model"]["vocab"], "there": 700}}

    with pytest.raises(TokenizerError, match="its model is WordPiece: only byte-level BPE is supported"):
        Encoder(changed(change))


def test_a_text_on_which_the_pattern_of_a_given_tokenizer_gives_up_is_named() -> None:
    def change(description: dict[str, Any]) -> None:
        split = {"type": "Split", "pattern": {"Regex": "(a+)+$|."}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}

    encoder = Encoder(changed(change))
    with pytest.raises(TokenizerError, match=r"it cannot cut one of 1 texts, such as 'a{40}b': .*retry-limit"):
        ids_of(encoder, "a" * 40 + "b")


def test_a_text_on_which_the_pattern_gives_up_in_the_comparison_leaves_tokenizers_at_work(trained: str) -> None:
    """tiktoken's expression may pass it where that of `tokenizers` does not."""
    description = json.loads(trained)
    description["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"(?:a|aa)+c|[\s\S]"}
    engine, reason = choose_engine(json.dumps(description), None, ["a" * 60])
    assert engine == "tokenizers"
    assert reason is not None
    assert "it cannot cut one of 1 texts, such as 'aaaa" in reason


def test_a_tokenizer_without_a_beginning_is_refused_unless_it_is_named() -> None:
    text = given_tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet()), bos="<start>")
    with pytest.raises(TokenizerError, match=r"no special token begins a document: .*; it has <start>"):
        Encoder(text)
    assert Encoder(text, bos="<start>").bos_id == 0


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        Encoder("{}")


@pytest.mark.slow
def test_ids_need_four_bytes_from_65537_entries_on(trained: str) -> None:
    for entries, dtype in [(65_536, "<u2"), (65_537, "<u4")]:
        tokenizer = Tokenizer.from_str(trained)
        tokenizer.add_special_tokens([AddedToken(f"<|x{number}|>", special=True) for number in range(entries - 1024)])
        encoder = Encoder(tokenizer.to_str())
        assert encoder.vocabulary == entries and encoder.dtype == np.dtype(dtype)


def test_an_id_that_is_no_token_is_refused(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="token id 1024 is not in a vocabulary of 1024"):
        encoder.decode(np.array([5, 1024]))
    with pytest.raises(ValueError, match="token id 1024 is not in a vocabulary of 1024"):
        encoder.decode_all(np.array([5, 1024]), np.array([0, 2]))


def test_documents_whose_tokens_are_no_utf_8_are_refused(encoder: Encoder) -> None:
    """The two halves of é are whole together, and neither alone."""
    first, second = (next(n for n in range(1024) if encoder.decode(np.array([n])) == bytes([byte])) for byte in "é".encode())
    assert encoder.decode_all(np.array([first, second]), np.array([0, 2])).to_pylist() == ["é"]
    with pytest.raises(ValueError, match="no UTF-8"):
        encoder.decode_all(np.array([first, second]), np.array([0, 1, 2]))


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="bos names a token of `file`"):
        TokenizerOptions(bos="<s>")
    with pytest.raises(ValueError, match="mixture says what a tokenizer is trained on"):
        TokenizerOptions(mixture="mixture.yaml", file="tokenizer.json")
    with pytest.raises(ValueError, match="less than or equal to 2147483647"):
        TokenizerOptions(sample_bytes=2**31)
