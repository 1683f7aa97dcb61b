import numpy as np
import pyarrow as pa
import xxhash

from stages.clusters import group_duplicates, keep_ranks
from stages.exact_dedup import document_keys


def keys(*texts: str | None) -> list[tuple[int, int]]:
    return [tuple(row) for row in document_keys(pa.array(texts, pa.large_string())).tolist()]


def test_case_white_space_and_normal_form_make_no_difference() -> None:
    composed, decomposed = "Caf\u00e9 NOIR", "cafe\u0301\n\n  noir "
    assert composed != decomposed
    assert len(set(keys(composed, decomposed, "CAFÉ\u00a0noir"))) == 1


def test_punctuation_and_letters_make_a_difference() -> None:
    assert len(set(keys("one two", "one, two", "onetwo", "one two."))) == 4


def test_the_key_is_xxh3_128_of_the_normalised_text() -> None:
    value = xxhash.xxh3_128_intdigest(b"a b")
    assert keys(" A\tB ") == [(value >> 64, value & (2**64 - 1))]


def test_null_and_blank_texts_are_one_text() -> None:
    assert len(set(keys(None, "", " \n"))) == 1


def test_no_document_gives_no_key() -> None:
    assert document_keys(pa.array([], pa.large_string())).shape == (0, 2)


def test_of_equal_texts_the_longest_stays_and_every_row_names_it() -> None:
    texts = ["same text", "other", "Same   text", "SAME TEXT"]
    lengths = np.array([len(text) for text in texts])
    rank = keep_ranks(np.zeros(4), lengths, np.arange(4))
    found = group_duplicates(document_keys(pa.array(texts, pa.large_string())), rank)
    assert found.removed.tolist() == [0, 3]
    assert found.kept.tolist() == found.linked.tolist() == [2, 2]
    assert found.cluster.tolist() == [0, 0] and found.size.tolist() == [3, 3]
    assert found.kept_jaccard.tolist() == [1, 1]
