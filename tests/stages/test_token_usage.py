"""What a tokenizer makes of texts, counted as one would by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import code_points, reading, text_buffers, token_usage
from stages.scripts import UNSPACED_SCRIPTS
from stages.token_usage import Usage
from stages.tokenizer import Encoder, TokenizerOptions, train_tokenizer
from tests.pipeline.crawl import article

ENGLISH = [article(f"usage {number}") for number in range(20)]
CHINESE = ["图书馆在上个月重新开放了。馆长问：你们准备好了吗？", "港口 很安静。"]


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return train_tokenizer([*ENGLISH, *CHINESE], TokenizerOptions(vocabulary=700))


def test_a_group_is_the_sum_of_its_texts(tokenizer: str) -> None:
    encoder = Encoder(tokenizer)
    texts = [*ENGLISH, *CHINESE, "", "more English words"]
    names = [*["en"] * 20, *["zh"] * 2, "none", "en"]
    usage = Usage(encoder.vocabulary)
    for start in range(0, len(texts), 7):  # batches make no difference
        column = pa.array(texts[start : start + 7], pa.large_string())
        usage.count(names[start : start + 7], column, *encoder.encode(column))
    rows = {(row["name"], row["unspaced"]): row for row in usage.rows()}
    english = [text for text, name in zip(texts, names, strict=True) if name == "en"]
    row = rows["en", False]
    assert row["documents"] == 21
    assert row["bytes"] == sum(len(text.encode()) for text in english)
    assert row["words"] == sum(len(text.split()) for text in english)
    ids = [encoder.encode(pa.array([text]))[1][1:].tolist() for text in english]
    assert row["tokens"] == sum(map(len, ids))
    assert row["vocabulary_used"] == len({token for tokens in ids for token in tokens}) / encoder.vocabulary
    assert row["bytes_per_token"] == row["bytes"] / row["tokens"]
    assert row["tokens_per_word"] == row["tokens"] / row["words"]
    assert rows["zh", True]["words"] == sum(len("".join(text.split())) for text in CHINESE)
    empty = rows["none", False]
    assert (empty["documents"], empty["tokens"], empty["bytes_per_token"], empty["tokens_per_word"]) == (1, 0, None, None)
    assert [row["bytes"] for row in usage.rows()] == sorted((row["bytes"] for row in rows.values()), reverse=True)
    assert usage.used(usage.groups) >= max(row["vocabulary_used"] * encoder.vocabulary for row in rows.values())


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=30),
            st.lists(st.sampled_from(["a ", "\u6c49", " \n", "\u0e01", "\U0001f642", "\u00e9"])).map("".join),
        )
    )
)
def test_words_and_characters_are_counted_whatever_the_window_cuts(tokenizer: str, texts: list[str]) -> None:
    """Windows of a few bytes, against Python's own idea of a word; and the same for every window."""
    encoder = Encoder(tokenizer)
    column = pa.array(texts, pa.large_string())
    found = []
    for window in (5, 7, 1 << 14):
        words, characters = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        of_script = np.zeros((len(texts), 1 + len(UNSPACED_SCRIPTS)), np.int64)
        data, places = text_buffers.of(column)
        token_usage._count(data, places, code_points.classes(), window, words, characters, of_script)
        assert words.tolist() == [len(text.split()) for text in texts]
        assert characters.tolist() == [len("".join(text.split())) for text in texts]
        found.append(of_script.tolist())
    assert found[0] == found[1] == found[2] == reading.of(column).scripts.tolist()
    usage = Usage(encoder.vocabulary)
    usage.count(["x"] * len(texts), column, *encoder.encode(column))
    assert sum(row["bytes"] for row in usage.rows()) == sum(len(text.encode()) for text in texts)
