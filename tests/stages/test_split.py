from collections import Counter

import pytest

from stages.split import SplitError, SplitOptions, assign, check

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


def test_a_split_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(ValueError, match="leave nothing to train on"):
        SplitOptions(validation=0.6, test=0.4)
    with pytest.raises(ValueError, match="add up to 1"):
        assign(["web/a#0"], 0, {"validation": 0.6, "test": 0.6})


GOLDEN = ["train", "test", "test", "train", "train", "test", "test", "validation", "validation", "test", "test", "validation"]
