"""Near-duplicates among real books: editions of one book are, different books are not.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.clusters import keep_ranks, resolve
from stages.minhash import MinHashOptions, band_keys, bucket_pairs, jaccard, signatures
from stages.shingles import ShingleSets, shingle_sets

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")

BOOKS = ("Frankenstein_84", "The-Adventures-of-Sherlock-Holmes_1661", "The-Devil-s-Dictionary_972", "Leviathan_3207")


@pytest.fixture(scope="module")
def editions() -> list[tuple[str, str]]:
    """(book, text) of every edition, as UTF-8 or else Latin-1."""
    found = []
    for book in BOOKS:
        for path in sorted((DATA / "text" / "gutenberg" / book).rglob("*.txt.gz")):
            data = gzip.decompress(path.read_bytes())
            try:
                found.append((book, data.decode()))
            except UnicodeDecodeError:
                found.append((book, data.decode("latin-1")))
    assert len(found) > 15
    return found


@pytest.fixture(scope="module")
def sets(editions: list[tuple[str, str]]) -> ShingleSets:
    return shingle_sets(pa.array([text for _, text in editions], pa.large_string()))


def test_every_edition_but_one_of_each_book_is_removed_and_names_an_edition_of_the_same_book(
    editions: list[tuple[str, str]], sets: ShingleSets
) -> None:
    options = MinHashOptions()
    count = len(editions)
    rank = keep_ranks(np.zeros(count), [len(text.encode()) for _, text in editions], np.arange(count))
    keys = band_keys(signatures(sets, options.permutations, options.seed), options.bands, options.rows)
    pairs, skipped = bucket_pairs(keys, np.arange(count), rank, options)
    similarity = jaccard(sets, pairs[:, 0], pairs[:, 1])
    real = similarity >= options.threshold
    clusters = resolve(pairs[real], similarity[real], rank)
    book = [name for name, _ in editions]
    assert skipped == 0
    assert len(clusters) == count - len(BOOKS)
    for removed, linked, kept in zip(clusters.removed, clusters.linked, clusters.kept, strict=True):
        assert book[removed] == book[linked] == book[kept]
    assert len(set(clusters.kept.tolist())) == len(BOOKS)
    assert np.all(clusters.linked_jaccard >= 0.8)
    for kept in set(clusters.kept.tolist()):
        members = [number for number in range(count) if book[number] == book[kept]]
        assert max(len(editions[number][1].encode()) for number in members) == len(editions[kept][1].encode())


def test_exact_jaccard_is_that_of_plain_sets_of_words(editions: list[tuple[str, str]], sets: ShingleSets) -> None:
    plain = []
    for _, text in editions[:4]:
        words = text.lower().split()
        plain.append({tuple(words[start : start + 5]) for start in range(len(words) - 4)})
    for left, right in combinations(range(4), 2):
        expected = len(plain[left] & plain[right]) / len(plain[left] | plain[right])
        assert jaccard(sets, np.array([left]), np.array([right]))[0] == expected


def test_different_books_share_next_to_nothing(editions: list[tuple[str, str]], sets: ShingleSets) -> None:
    pairs = np.array([(a, b) for a, b in combinations(range(len(editions)), 2) if editions[a][0] != editions[b][0]])
    assert jaccard(sets, pairs[:, 0], pairs[:, 1]).max() < 0.05


def test_the_signature_estimates_the_jaccard(sets: ShingleSets) -> None:
    """128 minima: the standard error is sqrt(J (1 - J) / 128), 0.044 at most."""
    pairs = np.array(list(combinations(range(len(sets)), 2)))
    sketches = signatures(sets, 128)
    estimate = np.mean(sketches[pairs[:, 0]] == sketches[pairs[:, 1]], axis=1)
    error = np.abs(estimate - jaccard(sets, pairs[:, 0], pairs[:, 1]))
    assert error.mean() < 0.044 and error.max() < 5 * 0.044
