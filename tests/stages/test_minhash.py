import hashlib
import itertools
import random
import tracemalloc

import datasketch
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stages.clusters import keep_ranks, resolve
from stages.minhash import (
    MinHashOptions,
    band_keys,
    bucket_pairs,
    choose_parameters,
    collision_probability,
    jaccard,
    signatures,
)
from stages.normal_form import normalised
from stages.shingles import MAX_SHINGLES, ShingleOptions, ShingleSets, _keep_distinct, is_unspaced, shingle_sets

WORDS = ["a ", "B ", "c\t", "d\n", "É ", "e\u0301 ", "ß\x1c", "İ ", "中", "文", "のカ", "\u3000", "ไทย", "\u00a0", "Σς "]


def sets_of(*texts: str | None, **options: object) -> ShingleSets:
    return shingle_sets(pa.array(texts, pa.large_string()), options=ShingleOptions(**options))


def plain_shingles(text: str, words: int = 5) -> set[bytes]:
    pieces = text.lower().split()
    return {" ".join(pieces[i : i + words]).encode() for i in range(len(pieces) - words + 1)}


def words(count: int, seed: int, prefix: str = "w") -> str:
    chooser = random.Random(seed)
    return " ".join(f"{prefix}{chooser.randrange(10**9)}" for _ in range(count))


def near_duplicates(texts: list[str], **options: object) -> list[tuple[int, int]]:
    """(removed, kept) of the whole algorithm on a few texts."""
    chosen = MinHashOptions(**options)
    sets = shingle_sets(pa.array(texts, pa.large_string()), options=chosen)
    rank = keep_ranks(np.zeros(len(texts)), [len(text.encode()) for text in texts], np.arange(len(texts)))
    keys = band_keys(signatures(sets, chosen.permutations, chosen.seed), chosen.bands, chosen.rows)
    pairs, _ = bucket_pairs(keys, np.arange(len(texts)), rank, chosen)
    found = jaccard(sets, pairs[:, 0], pairs[:, 1])
    real = found >= chosen.threshold
    clusters = resolve(pairs[real], found[real], rank, chosen.chain)
    return list(zip(clusters.removed.tolist(), clusters.kept.tolist(), strict=True))


def test_shingles_are_hashes_of_five_lower_case_words_joined_by_one_space() -> None:
    text = "The  Quick\nBrown fox jumps OVER the quick brown fox jumps"
    expected = sorted({xxhash.xxh3_64_intdigest(shingle) for shingle in plain_shingles(text)})
    assert sets_of(text)[0].tolist() == expected


def test_sha1_shingles_have_the_low_bits_that_datasketch_takes() -> None:
    low = {int(value) & 0xFFFFFFFF for value in sets_of("a b c d e f", hash="sha1")[0]}
    assert low == {datasketch.hashfunc.sha1_hash32(shingle) for shingle in plain_shingles("a b c d e f")}
    assert len(hashlib.sha1(b"").digest()) == 20


def plain_set(text: str, language: str | None) -> list[int]:
    """A text's shingles by the definition alone."""
    form = normalised(text)
    if is_unspaced(form, language):
        letters = form.replace(" ", "")
        pieces = [letters[start : start + 10] for start in range(len(letters) - 9)] or ["\0" + letters]
    else:
        words = form.split(" ")
        pieces = [" ".join(words[start : start + 5]) for start in range(len(words) - 4)] or ["\0" + form]
    return sorted({xxhash.xxh3_64_intdigest(piece.encode()) for piece in pieces})


@given(
    st.lists(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=30).map("".join)), max_size=5),
    st.sampled_from([None, "en", "zh"]),
)
def test_the_kernel_gives_the_set_that_the_definition_gives(texts: list[str], language: str | None) -> None:
    sets = shingle_sets(pa.array(texts, pa.large_string()), pa.array([language] * len(texts), pa.string()))
    assert [each.tolist() for each in map(sets.__getitem__, range(len(texts)))] == [plain_set(t, language) for t in texts]


def test_words_longer_than_the_kernels_hash_are_hashed_all_the_same() -> None:
    text = " ".join(f"{number}" * 100 for number in range(20)) + " a b c d e f"
    assert sets_of(text)[0].tolist() == plain_set(text, None)
    assert sets_of("x" * 1000)[0].tolist() == [xxhash.xxh3_64_intdigest(b"\0" + b"x" * 1000)]


def test_slices_and_both_string_types_are_read_where_they_lie() -> None:
    texts = [words(9, seed) for seed in range(6)] + ["é " * 9]
    for kind in (pa.string(), pa.large_string()):
        sliced = shingle_sets(pa.array(texts, kind)[2:])
        assert [sliced[row].tolist() for row in range(5)] == [plain_set(text, None) for text in texts[2:]]


def test_texts_shorter_than_a_shingle_are_compared_exactly() -> None:
    sets = sets_of("page not found", "Page  NOT found", "page not", "found not page", "", None)
    found = jaccard(sets, np.array([0, 0, 0, 4, 0]), np.array([1, 2, 3, 5, 4]))
    assert found.tolist() == [1, 0, 0, 1, 0]


def test_a_short_text_shares_no_bucket_with_other_texts() -> None:
    texts = [f"short {number}" for number in range(300)] + [words(50, seed) for seed in range(20)]
    options = MinHashOptions()
    keys = band_keys(signatures(sets_of(*texts), options.permutations), options.bands, options.rows)
    assert len(bucket_pairs(keys, np.arange(len(texts)), np.arange(len(texts)), options)[0]) == 0


def test_chinese_is_shingled_by_characters_and_its_line_ends_do_not_matter() -> None:
    text = "".join(chr(0x4E00 + random.Random(3).randrange(5000) + step) for step in range(60))
    wrapped = "\n".join(text[i : i + 7] for i in range(0, 60, 7))
    sets = sets_of(text, wrapped, text[:-1])
    assert len(sets[0]) == 51
    assert jaccard(sets, np.array([0, 0]), np.array([1, 2])).tolist() == [1, 50 / 51]


def test_script_decides_where_no_language_does() -> None:
    assert is_unspaced("今天天气很好。") and is_unspaced("สวัสดีชาวโลก") and not is_unspaced("안녕하세요 여러분")
    assert not is_unspaced("mostly English, with 中文") and not is_unspaced("") and not is_unspaced("1234 5678")
    assert is_unspaced("mostly English", "ja") and not is_unspaced("今天天气很好。", "en") and is_unspaced("今天", "und")
    assert is_unspaced("x", "zh-Hant")


def test_huge_documents_keep_a_fair_sample_and_their_jaccard() -> None:
    left, right = words(4000, 1), words(4000, 1) + " " + words(1000, 2)
    cut = shingle_sets(pa.array([left, right], pa.large_string()), limit=1000)
    assert [len(cut[row]) for row in range(2)] == [1000, 1000]
    whole = jaccard(sets_of(left, right), np.array([0]), np.array([1]))[0]
    estimate = jaccard(cut, np.array([0]), np.array([1]), limit=1000)[0]
    assert whole == pytest.approx(3996 / 4996) and abs(estimate - whole) < 0.05
    assert abs(jaccard(cut, np.array([0]), np.array([1]))[0] - whole) > 0.05  # which taking the samples as sets would not give


def test_nfc_and_nfd_have_the_same_shingles() -> None:
    assert jaccard(sets_of("é a b c d e", "e\u0301 a b c d e"), np.array([0]), np.array([1])).tolist() == [1]


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), min_size=1, max_size=4), st.integers(0, 9))
def test_signatures_are_those_of_datasketch_bit_for_bit(hashes: list[list[int]], seed: int) -> None:
    sets = ShingleSets.of([np.unique(np.array(each, dtype=np.uint64)) for each in hashes])
    for row, minima in enumerate(signatures(sets, 112, seed)):
        sketch = datasketch.MinHash(num_perm=112, seed=seed, hashfunc=lambda value: value & 0xFFFFFFFF)
        for value in hashes[row]:
            sketch.update(value)
        assert np.array_equal(minima, sketch.hashvalues)


def test_signatures_of_real_text_are_those_of_datasketch() -> None:
    text = words(300, 4)
    sketch = datasketch.MinHash(num_perm=112, hashfunc=lambda data: xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF)
    sketch.update_batch(list(plain_shingles(text)))
    assert np.array_equal(signatures(sets_of(text), 112)[0], sketch.hashvalues)


def test_the_scheme_is_a_bijection_of_32_bits_so_wrapping_loses_nothing() -> None:
    """Not Carter and Wegman's (a h + b) mod 2^61 - 1, in which a product that wraps at 64 bits is wrong:"""
    h, a, b, prime = 2**32 - 1, 2**61 - 6, 7, 2**61 - 1
    assert (a * h + b) % prime == 2305842987738857483
    assert ((a * h + b) % 2**64) % prime == 2305842983443890195
    values = np.random.default_rng(1).choice(2**32, 50_000, replace=False).astype(np.uint64)
    one_each = ShingleSets(np.arange(len(values) + 1), values)
    for column in signatures(one_each, 3).T:
        assert len(np.unique(column)) == len(values)


@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40), min_size=1))
def test_jaccard_is_exact(left: set[int], right: set[int]) -> None:
    sets = ShingleSets.of([np.array(sorted(each), dtype=np.uint64) for each in (left, right)])
    assert jaccard(sets, np.array([0]), np.array([1]))[0] == len(left & right) / len(left | right)


def test_candidate_probabilities_are_the_known_ones() -> None:
    fineweb = [collision_probability(similarity, 14, 8) for similarity in (0.7, 0.75, 0.8)]
    assert [round(value, 3) for value in fineweb] == [0.565, 0.772, 0.924]
    table = {
        (16, 8): [0.061, 0.237, 0.613, 0.947, 1.000],
        (32, 4): [0.873, 0.988, 1, 1, 1],
        (8, 16): [0, 0.002, 0.026, 0.204, 0.806],
    }
    for (bands, rows), expected in table.items():
        found = [round(collision_probability(similarity / 10, bands, rows), 3) for similarity in range(5, 10)]
        assert found == expected


def test_bands_find_pairs_as_often_as_the_formula_says() -> None:
    chooser, pairs = random.Random(5), 1500
    sets = []
    for _ in range(pairs):
        pool = np.array([chooser.getrandbits(64) for _ in range(100)], dtype=np.uint64)
        sets += [np.sort(pool[:90]), np.sort(pool[10:])]  # 80 shared of 100
    sketches = signatures(ShingleSets.of(sets), 112)
    keys = band_keys(sketches, 14, 8)
    rate = np.mean(np.any(keys[0::2] == keys[1::2], axis=1))
    expected = collision_probability(0.8, 14, 8)
    assert abs(rate - expected) < 4 * (expected * (1 - expected) / pairs) ** 0.5


def test_chosen_parameters_reach_the_recall_and_no_less_is_enough() -> None:
    for threshold, recall in [(0.8, 0.95), (0.5, 0.9), (0.9, 0.99)]:
        bands, rows = choose_parameters(threshold, recall)
        assert bands * rows <= 256
        assert collision_probability(threshold, bands, rows) >= recall > collision_probability(threshold, bands - 1, rows)
    with pytest.raises(ValueError, match="no bands and rows within 4 minima"):
        choose_parameters(0.3, 0.99, 4)


def test_equal_bands_at_different_places_are_no_candidates() -> None:
    keys = band_keys(np.array([[1, 2, 3, 4], [3, 4, 1, 2]], dtype=np.uint32), 2, 2)
    assert len(set(keys.ravel().tolist())) == 4


def test_documents_of_different_scope_share_no_band_key() -> None:
    same = np.ones((2, 4), dtype=np.uint32)
    assert not np.any(np.equal(*band_keys(same, 2, 2, scope=np.array([0, 1]))))
    assert np.all(np.equal(*band_keys(same, 2, 2, scope=np.array([5, 5]))))


def test_a_signature_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="14 bands of 8 rows need 112 minima; the signatures have 128"):
        band_keys(np.ones((1, 128), dtype=np.uint32), 14, 8)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30), st.permutations(range(10)), st.data())
def test_all_pairs_of_a_bucket_are_candidates_once_better_one_left(rows, rank, data) -> None:
    expected = {
        (a, b) for (key, a), (other, b) in itertools.permutations(rows, 2) if key == other and a != b and rank[a] < rank[b]
    }
    mixed = data.draw(st.permutations(rows))
    pairs, skipped = bucket_pairs(
        np.array([key for key, _ in mixed], dtype=np.uint64), [d for _, d in mixed], np.array(rank), MinHashOptions()
    )
    assert [tuple(pair) for pair in pairs.tolist()] == sorted(expected) and skipped == 0


def test_a_bucket_over_the_limit_is_compared_with_its_first_members_and_the_rest_is_counted() -> None:
    options = MinHashOptions(max_bucket=10, bucket_sample=3)
    rank = np.array([10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    pairs, skipped = bucket_pairs(np.zeros(11, dtype=np.uint64), np.arange(11), rank, options)
    assert {left for left, _ in pairs.tolist()} == {10, 9, 8}
    assert len(pairs) == 10 + 9 + 8 and skipped == 55 - 27
    at_limit, none = bucket_pairs(np.zeros(10, dtype=np.uint64), np.arange(10), rank, options)
    assert len(at_limit) == 45 and none == 0


def test_a_hundred_thousand_boilerplate_pages_that_meet_in_every_band_stay_bounded() -> None:
    """6.4 million pairs of 5 billion; those found in another band again take no memory."""
    pages, bands = 100_000, 14
    keys = np.tile(np.arange(bands, dtype=np.uint64), (pages, 1))
    tracemalloc.start()
    pairs, skipped = bucket_pairs(keys, np.arange(pages), np.arange(pages), MinHashOptions())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs) == 64 * pages - 64 * 65 // 2
    assert bands * len(pairs) + skipped == bands * pages * (pages - 1) // 2
    assert most < 300e6


def test_three_near_copies_leave_one_and_every_removal_names_it() -> None:
    base = words(200, 1).split()
    texts = [" ".join(base), " ".join([*base[:-1], "end"]), " ".join(["begin", *base[1:]]), words(200, 2)]
    removed = near_duplicates(texts)
    assert len(removed) == 2 and 3 not in dict(removed)
    assert len({kept for _, kept in removed}) == 1 and not {kept for _, kept in removed} & set(dict(removed))


def test_a_shared_footer_does_not_chain_unrelated_pages() -> None:
    footer = words(120, 0, "footer")
    texts = [f"{words(150, seed)} {footer}" for seed in range(1, 61)]
    sets = sets_of(*texts)
    assert jaccard(sets, np.array([0]), np.array([1]))[0] == pytest.approx(0.279, abs=0.0005)
    assert near_duplicates(texts) == []
    assert near_duplicates(texts, bands=128, rows=1) == []  # every pair is a candidate, and none is verified


def test_what_lsh_proposes_is_removed_exactly_as_brute_force_would() -> None:
    chooser = random.Random(9)
    texts = [words(80, seed) for seed in range(60)]
    for source in range(40):
        copy = texts[source].split()
        for _ in range(chooser.randrange(4)):
            copy[chooser.randrange(80)] = "edited"
        texts.append(" ".join(copy))
    shingles = [plain_shingles(text) for text in texts]
    similar, weights = [], []
    for a, b in itertools.combinations(range(100), 2):
        similarity = len(shingles[a] & shingles[b]) / len(shingles[a] | shingles[b])
        if similarity >= 0.8:
            similar.append((a, b))
            weights.append(similarity)
    rank = keep_ranks(np.zeros(100), [len(text.encode()) for text in texts], np.arange(100))
    expected = resolve(np.array(similar), np.array(weights), rank)
    got = near_duplicates(texts, bands=64, rows=2)  # at J = 0.8 a pair is missed with probability 4e-29
    assert got == list(zip(expected.removed.tolist(), expected.kept.tolist(), strict=True)) and len(got) >= 20


def test_a_recall_stands_in_place_of_bands_and_rows() -> None:
    chosen = MinHashOptions(threshold=0.7, recall=0.9, max_permutations=128)
    assert (chosen.bands, chosen.rows) == choose_parameters(0.7, 0.9, 128)
    assert MinHashOptions(**chosen.model_dump()) == chosen  # as the manifest has it
    assert (MinHashOptions().bands, MinHashOptions().rows) == (14, 8)
    with pytest.raises(
        ValueError, match=r"recall chooses bands and rows \(here \d+ x \d+\), so bands 14 and rows 8 cannot stand too"
    ):
        MinHashOptions(recall=0.9, bands=14, rows=8)
    with pytest.raises(ValueError, match=r"so rows 3 cannot stand too"):
        MinHashOptions(recall=0.9, rows=3)
    with pytest.raises(ValueError, match="no bands and rows within 4 minima reach"):
        MinHashOptions(threshold=0.3, recall=0.99, max_permutations=4)
    for wrong in ({"recall": 1.5}, {"recall": "high"}, {"recall": 0.9, "threshold": "x"}, {"recall": 0.9, "threshold": 1}):
        with pytest.raises(ValueError):
            MinHashOptions(**wrong)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="bucket_sample 64 is above max_bucket 10"):
        MinHashOptions(max_bucket=10)


def test_a_text_of_more_shingles_than_are_kept_is_compared_by_a_fair_sample_of_them() -> None:
    """1,250,000 shingles each, 4/5 of all shared; the sample is the smallest 2^20 hashes, so the estimate's error is below 0.001."""
    words = np.arange(1_250_004)
    texts = [" ".join(map(str, words)), " ".join(map(str, words + 138_889))]
    sets = sets_of(*texts)
    assert [len(sets[row]) for row in range(2)] == [MAX_SHINGLES] * 2
    whole = (1_250_000 - 138_889) / (1_250_000 + 138_889)
    assert jaccard(sets, np.array([0]), np.array([1]))[0] == pytest.approx(whole, abs=0.002)


def test_shingles_that_repeat_without_end_are_sorted_as_fast_as_others() -> None:
    """Two shingles whose hashes agree in their leading bits would take the square of their number if they were inserted one by one."""
    leading = np.uint64(0x1234 << 48)
    hashes = np.tile(np.array([leading + np.uint64(2), leading + np.uint64(1)], np.uint64), 500_000)
    offsets = _keep_distinct(hashes, np.array([0, len(hashes)]), MAX_SHINGLES)
    assert offsets.tolist() == [0, 2] and hashes[:2].tolist() == [int(leading) + 1, int(leading) + 2]


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.integers(2**63, 2**63 + 90), max_size=200), max_size=4),
    st.integers(1, 60),
)
def test_the_distinct_hashes_of_each_text_are_kept_in_order_up_to_the_limit(given_hashes: list[list[int]], limit: int) -> None:
    places = np.cumsum([0, *map(len, given_hashes)])
    hashes = np.array([value for each in given_hashes for value in each], np.uint64)
    offsets = _keep_distinct(hashes, places, limit)
    found = [hashes[start:end].tolist() for start, end in itertools.pairwise(offsets)]
    assert found == [sorted(set(each))[:limit] for each in given_hashes]
