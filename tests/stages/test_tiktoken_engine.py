"""tiktoken stands in for `tokenizers` where it gives the same ids, and nowhere else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from stages.tiktoken_engine import GPT2_PATTERN, NO_TOKEN, TiktokenEngine, why_not
from stages.tokenizer import BOS, Encoder, Engine, TokenizerOptions, choose_engine, train_tokenizer
from tests.pipeline.crawl import article

SAMPLE = [article(f"tokens {number}") for number in range(60)] + [
    "Zahl 12345 ist größer, 汉字 и слова.",
    "def f(x):\n\treturn x ** 2\n\n",
] * 5
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(
        st.sampled_from(
            [
                "the",
                " the",
                "'s",
                "'S",
                "'ſ",
                " ",
                "  ",
                "\n",
                "\r\n",
                "\t",
                "1",
                "123",
                "é",
                "e\u0301",
                "汉",
                "…",
                "\u00a0",
                "\u2028",
                "🙂",
                BOS,
            ]
        ),
        max_size=20,
    ).map("".join),
)


@pytest.fixture(scope="module")
def trained() -> str:
    return train_tokenizer(SAMPLE, TokenizerOptions(vocabulary=1024))


@pytest.fixture(scope="module")
def both(trained: str) -> tuple[Encoder, Encoder]:
    return Encoder(trained), Encoder(trained, engine="tiktoken")


def changed(tokenizer_json: str, change: Callable[[dict[str, Any]], None]) -> str:
    description = json.loads(tokenizer_json)
    change(description)
    return json.dumps(description)


def test_a_tokenizer_trained_here_is_encoded_by_tiktoken(trained: str) -> None:
    assert choose_engine(trained, None, SAMPLE) == ("tiktoken", None)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, max_size=4))
@example(["", BOS, "a" * 1000, " " * 1000, "\n" * 1000, "\x00"])
def test_both_engines_give_the_same_ids(both: tuple[Encoder, Encoder], texts: list[str]) -> None:
    column = pa.array(texts, pa.large_string())
    slow, fast = both
    for mine, other in zip(slow.encode(column), fast.encode(column), strict=True):
        np.testing.assert_array_equal(mine, other)


LINEAR = 8
GROWTH = 4 * LINEAR
"""Of the CPU time when a text is LINEAR times as long; quadratic work would take LINEAR² times."""
ONE_THING = [
    "a",
    "A",
    " ",
    "\n",
    "\u0301",
    "7",
    "\U0001f642",
    "\ufffd",
    "\u6c49",
    " \t",
    "\r\n",
    "  a",
    "\n ",
    " " * 500 + "a",
    BOS,
]
FOREIGN = {
    "gpt-2": GPT2_PATTERN,
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""How others cut text; Llama 3 and Qwen differ from cl100k in how many digits stand together. None bounds the length of a piece."""


def with_pattern(tokenizer_json: str, name: str) -> str:
    if name == "ours":
        return tokenizer_json
    return changed(
        tokenizer_json,
        lambda description: description["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=FOREIGN[name]),
    )


@pytest.mark.parametrize("engine", get_args(Engine))
@pytest.mark.parametrize("pattern", ["ours", *(pytest.param(one, marks=pytest.mark.slow) for one in FOREIGN)])
def test_a_text_of_one_thing_takes_time_by_its_length(trained: str, pattern: str, engine: Engine) -> None:
    encoder = Encoder(with_pattern(trained, pattern), engine=engine)

    def seconds(text: str) -> float:
        column, taken = pa.array([text]), []
        for _ in range(3):
            began = time.process_time()
            _, ids = encoder.encode(column)
            taken.append(time.process_time() - began)
        assert encoder.decode(ids) == text.encode()
        return min(taken)

    for thing in ONE_THING:
        few = 20_000 // len(thing.encode())
        assert seconds(thing * few * LINEAR) < GROWTH * seconds(thing * few), repr(thing[-5:])


@pytest.mark.parametrize("pattern", ["ours", *FOREIGN])
def test_more_spaces_than_a_regular_expression_can_step_back_over_are_encoded_by_tokenizers(
    trained: str, pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "a" + " " * 1_100_000 + "b"
    given_file = with_pattern(trained, pattern)
    fast = Encoder(given_file, engine="tiktoken")
    assert fast._fast is not None
    assert (fast._fast.encode([text])[0] is None) == (pattern != "ours")
    _, ids = fast.encode(pa.array([text, "word"]))
    np.testing.assert_array_equal(ids, Encoder(given_file).encode(pa.array([text, "word"]))[1])
    assert capfd.readouterr().err == ""  # no panic of the library on the terminal


def test_text_that_spells_the_engine_s_own_special_token_is_text(trained: str) -> None:
    texts = [NO_TOKEN, f"a{NO_TOKEN}b" * 3, NO_TOKEN[:-1], NO_TOKEN[1:] + "\u6c49" + NO_TOKEN]
    fast = Encoder(trained, engine="tiktoken")
    assert fast._fast is not None
    assert all(ids is not None for ids in fast._fast.encode(texts))
    np.testing.assert_array_equal(fast.encode(pa.array(texts))[1], Encoder(trained).encode(pa.array(texts))[1])


def gpt2_like(vocabulary: int, **level: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **level})
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_the_pattern_of_gpt_2_cuts_as_byte_level_does(text: str) -> None:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    by_pattern = pre_tokenizers.Split(Regex(GPT2_PATTERN), behavior="isolated").pre_tokenize_str(text)
    assert [place for _, place in cut] == [place for _, place in by_pattern]


def test_a_tokenizer_with_gpt_2s_rules_is_encoded_by_tiktoken() -> None:
    given_file = gpt2_like(800).to_str()
    assert choose_engine(given_file, None, SAMPLE) == ("tiktoken", None)
    column = pa.array(SAMPLE)
    np.testing.assert_array_equal(Encoder(given_file).encode(column)[1], Encoder(given_file, engine="tiktoken").encode(column)[1])


def swap_merges(description: dict[str, Any]) -> None:
    merges = description["model"]["merges"]
    merges[3], merges[-3] = merges[-3], merges[3]


def add_a_word(description: dict[str, Any]) -> None:
    description["model"]["vocab"]["xylophon"] = max(description["model"]["vocab"].values()) + 1


def prefix_a_space(description: dict[str, Any]) -> None:
    description["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True


@pytest.mark.parametrize(
    "change, reason",
    [
        (swap_merges, "out of order"),
        (add_a_word, "no merge gives its token 'xylophon'"),
        (prefix_a_space, "does not cut text by one regular expression"),
        (lambda description: description.update(pre_tokenizer=None), "does not cut text by one regular expression"),
        (lambda description: description.update(normalizer={"type": "NFC"}), "normalises"),
        (lambda description: description["model"].update(byte_fallback=True), "not plain byte-level BPE"),
        (lambda description: description["model"].update(end_of_word_suffix="</w>"), "differ by their place"),
    ],
)
def test_whatever_could_make_a_difference_is_a_reason_not_to(
    trained: str, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    assert reason in str(why_not(changed(trained, change)))


def test_a_word_that_is_found_before_bpe_begins_is_a_reason() -> None:
    tokenizer = gpt2_like(600)
    tokenizer.add_tokens([AddedToken("lantern", normalized=False)])
    assert why_not(tokenizer.to_str()) == "its added token 'lantern' is found in text before BPE begins"


def test_a_token_that_its_own_bytes_do_not_give_is_a_reason_and_would_be_an_error() -> None:
    """Merges b+c, a+bc and then a+b, ab+c: `abc` is made by the fourth in name, but never comes out of it."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {**alphabet, "ab": 256, "bc": 257, "abc": 258, "<s>": 259}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("b", "c"), ("a", "bc")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    assert "'abc' does not come out" in str(why_not(tokenizer.to_str()))
    slow = tokenizer.encode("abc", add_special_tokens=False).ids
    [fast] = TiktokenEngine(GPT2_PATTERN, Encoder(tokenizer.to_str())._bytes_of).encode(["abc"])
    assert slow == [256, alphabet["c"]]
    assert fast is not None
    assert fast.tolist() == [258]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_token_that_is_given_to_whole_pieces_alone_is_a_reason(ignored: bool) -> None:
    """Merges b+c, a+b, ab+c: with `ignore_merges` the piece `abc` is one token, but the same letters in `xabc` are not."""
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    vocabulary |= {left + right: 256 + number for number, (left, right) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignored))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    assert (tokenizer.encode("abc").ids == [258]) == ignored
    encoded = [Encoder(tokenizer.to_str(), engine=engine).encode(pa.array(["xabc"]))[1].tolist() for engine in get_args(Engine)]
    assert encoded[0] != encoded[1]
    assert "'abc' does not come out" in str(why_not(tokenizer.to_str()))


def test_text_that_the_pattern_skips_is_encoded_by_the_other_engine(trained: str) -> None:
    skipping = changed(
        trained, lambda description: description["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\p{L}+")
    )
    column = pa.array(["abc 123", "letters", "?"])
    np.testing.assert_array_equal(Encoder(skipping).encode(column)[1], Encoder(skipping, engine="tiktoken").encode(column)[1])


def test_a_pattern_that_is_cut_otherwise_is_found_on_texts(trained: str) -> None:
    """`^` is the start of a line in one library and the start of the text in the other."""
    odd = changed(
        trained, lambda description: description["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"^\w+|[\s\S]")
    )
    assert why_not(odd) is None
    engine, reason = choose_engine(odd, None, SAMPLE)
    assert engine == "tokenizers"
    assert "otherwise" in str(reason)


def test_normalizers_are_seen_whatever_their_kind() -> None:
    tokenizer = gpt2_like(600)
    tokenizer.normalizer = normalizers.Lowercase()
    assert why_not(tokenizer.to_str()) == "it normalises text"
