from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages import minhash
from stages.minhash import collision_probability, jaccard
from stages.shingles import ShingleSets
from stages.split import SKETCH, HeldOut, SplitError, SplitOptions, assign, check

SHARES = {"validation": 0.1, "test": 0.2}


def test_documents_of_one_cluster_are_never_apart() -> None:
    clusters = [f"web/a#{number % 50}" for number in range(500)]
    splits = assign(clusters, 1, SHARES)
    assert len({(cluster, split) for cluster, split in zip(clusters, splits, strict=True)}) == 50
    assert len(set(splits)) == 3


def test_shares_are_those_that_were_asked_for() -> None:
    counts = Counter(assign([f"web/a#{number}" for number in range(20_000)], 7, SHARES))
    assert abs(counts["validation"] - 2000) < 4 * (20_000 * 0.1 * 0.9) ** 0.5
    assert abs(counts["test"] - 4000) < 4 * (20_000 * 0.2 * 0.8) ** 0.5


def test_a_cluster_stays_where_it_is_when_others_are_added() -> None:
    few = [f"web/a#{number}" for number in range(100)]
    assert assign(few + ["other/b#1"] * 30, 1, SHARES)[:100] == assign(few, 1, SHARES)
    assert assign(few[::-1], 1, SHARES) == assign(few, 1, SHARES)[::-1]


def test_the_split_of_an_id_is_the_same_in_every_process_and_run() -> None:
    assert assign([f"web/a#{number}" for number in range(12)], 1, {"validation": 0.3, "test": 0.3}) == GOLDEN
    assert assign([f"web/a#{number}" for number in range(12)], 2, {"validation": 0.3, "test": 0.3}) != GOLDEN


def test_an_empty_split_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SplitError, match=r"the validation split is empty: share 0.005 of 50 documents; .* about 0\.13"):
        check(["train"] * 49 + ["test"], {"validation": 0.005, "test": 0.005})
    with pytest.raises(SplitError, match=r"the train split is empty: .*hold out less"):
        check(["validation", "test"], SHARES)
    with pytest.raises(SplitError, match="no documents to split"):
        check([], SHARES)
    check(["train", "test"], {"validation": 0.0, "test": 0.5})


SETS = st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=30), min_size=1, max_size=8)
NAMES = st.sampled_from(["train", "validation", "test"])


@given(SETS, SETS, st.data())
def test_the_nearest_held_out_document_is_that_of_all_pairs_compared_one_by_one(held, others, data) -> None:
    held_splits = data.draw(st.lists(NAMES.filter(lambda name: name != "train"), min_size=len(held), max_size=len(held)))
    splits = data.draw(st.lists(NAMES, min_size=len(others), max_size=len(others)))
    both = ShingleSets.of([np.array(sorted(each), dtype=np.uint64) for each in [*held, *others]])
    found = HeldOut(both.take(np.arange(len(held))), held_splits).nearest(both.take(np.arange(len(held), len(both))), splits, 0.5)
    near = 0
    for row, split in enumerate(splits):
        pairs = [
            (-jaccard(both, np.array([number]), np.array([len(held) + row]))[0], number)
            for number in range(len(held))
            if held_splits[number] != split and held[number] & others[row]
        ]
        near += sum(pair[0] <= -0.5 for pair in pairs)
        assert (-found.jaccard[row], found.which[row]) == min(pairs, default=(0, -1))
    assert found.near == near


def test_documents_longer_than_a_sketch_have_the_jaccard_of_their_samples() -> None:
    chance = np.random.default_rng(3)
    pool = np.sort(chance.integers(0, 2**64, 6 * SKETCH, dtype=np.uint64))
    mine, theirs = pool[chance.random(len(pool)) < 0.7], pool[chance.random(len(pool)) < 0.8]
    cut = ShingleSets.of([mine[:SKETCH], theirs[:SKETCH], theirs[-100:]])
    found = HeldOut(cut.take(np.array([0])), ["test"]).nearest(cut.take(np.array([1, 2])), ["train", "train"], 0.5)
    assert found.jaccard[0] == jaccard(cut, np.array([0]), np.array([1]), SKETCH)[0]
    assert abs(found.jaccard[0] - len(np.intersect1d(mine, theirs)) / len(np.union1d(mine, theirs))) < 0.02
    assert found.which.tolist() == [0, -1] and found.near == 1


def test_nothing_held_out_is_nearest_to_nothing() -> None:
    some = ShingleSets.of([np.array([1, 2], dtype=np.uint64)])
    assert HeldOut(ShingleSets.of([]), []).nearest(some, ["train"], 0.5).which.tolist() == [-1]
    assert HeldOut(some, ["test"]).nearest(ShingleSets.of([]), [], 0.5).near == 0


def test_bands_that_do_not_find_what_is_alike_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 bands of 8 rows find 0\.4% of the pairs at Jaccard 0\.5"):
        SplitOptions(bands=1, rows=8)


def test_a_recall_chooses_bands_and_rows_for_the_threshold() -> None:
    chosen = SplitOptions(recall=0.95)
    assert collision_probability(0.5, chosen.bands, chosen.rows) >= 0.95
    assert (chosen.bands, chosen.rows) == minhash.choose_parameters(0.5, 0.95)


def test_a_split_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(ValueError, match="leave nothing to train on"):
        SplitOptions(validation=0.6, test=0.4)
    with pytest.raises(ValueError, match="add up to 1"):
        assign(["web/a#0"], 0, {"validation": 0.6, "test": 0.6})


GOLDEN = ["train", "test", "test", "train", "train", "test", "test", "validation", "validation", "test", "test", "validation"]
