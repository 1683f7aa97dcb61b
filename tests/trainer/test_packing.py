"""Packing: every pair of every document once, nothing dropped, and exactly best-fit decreasing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.packing import Packing, Plan, best_fit_decreasing, cut, pack

LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=60)


def plan_of(lengths: list[int], sequence_length: int, window: int = 1 << 20, packing: Packing = "best-fit") -> Plan:
    array = np.array(lengths, np.int64)
    return pack(np.cumsum(array) - array, array, sequence_length, window, packing)


def rows_of(plan: Plan) -> list[list[tuple[int, int]]]:
    pieces = list(zip(plan.begin.tolist(), plan.length.tolist(), strict=True))
    return [pieces[a:b] for a, b in zip(plan.first_piece[:-1], plan.first_piece[1:], strict=True)]


def one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Best-fit decreasing as the books have it; what is left in each row, sorted."""
    left: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [n for n, room in enumerate(left) if room >= length]
        if fitting:
            left[min(fitting, key=lambda n: left[n])] -= length
        else:
            left.append(capacity - length)
    return sorted(left)


def test_a_document_longer_than_a_row_loses_nothing() -> None:
    plan = plan_of([3, 5, 20, 2], 8)
    assert plan.pairs_total == 30
    assert plan.pairs_emitted == 30
    assert plan.pairs_dropped == 0
    assert plan.rows == 4
    assert plan.padding == 2


@given(LENGTHS, st.integers(2, 20), st.integers(1, 100))
def test_every_pair_is_emitted_once_and_no_row_overflows(lengths: list[int], sequence_length: int, window: int) -> None:
    plan = plan_of(lengths, sequence_length, window)
    emitted = sorted(at for begin, length in zip(plan.begin, plan.length, strict=True) for at in range(begin, begin + length))
    assert emitted == list(range(sum(lengths)))
    assert plan.row_targets().max() <= sequence_length
    assert plan.row_targets().min() >= 1
    assert plan.row_targets().tolist() == [sum(length for _, length in row) for row in rows_of(plan)]
    assert plan.rows * sequence_length == plan.pairs_emitted + plan.padding


@given(LENGTHS, st.integers(2, 20), st.integers(1, 100))
def test_cropping_keeps_the_first_pairs_of_each_document_and_counts_the_rest(
    lengths: list[int], sequence_length: int, window: int
) -> None:
    plan = plan_of(lengths, sequence_length, window, "crop")
    starts = np.cumsum(lengths) - lengths
    expected = sorted((int(start), min(length, sequence_length)) for start, length in zip(starts, lengths, strict=True))
    assert sorted(zip(plan.begin.tolist(), plan.length.tolist(), strict=True)) == expected
    assert plan.pairs_dropped == sum(max(0, length - sequence_length) for length in lengths)
    assert plan.pairs_emitted + plan.pairs_dropped == plan.pairs_total == sum(lengths)
    assert plan.rows * sequence_length == plan.pairs_emitted + plan.padding
    assert plan.row_targets().max() <= sequence_length


@given(LENGTHS, st.integers(2, 20))
def test_concatenation_fills_every_row_but_the_last_in_the_order_of_the_documents(
    lengths: list[int], sequence_length: int
) -> None:
    plan = plan_of(lengths, sequence_length, packing="concat")
    emitted = [at for row in rows_of(plan) for begin, length in row for at in range(begin, begin + length)]
    assert emitted == list(range(sum(lengths)))
    assert plan.row_targets()[:-1].tolist() == [sequence_length] * (plan.rows - 1)
    assert plan.pairs_dropped == 0
    assert plan.padding == -sum(lengths) % sequence_length


@given(LENGTHS, st.integers(2, 20), st.sampled_from(["best-fit", "crop", "concat"]))
def test_no_piece_spans_two_documents(lengths: list[int], sequence_length: int, packing: Packing) -> None:
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    plan = plan_of(lengths, sequence_length, packing=packing)
    for begin, length in zip(plan.begin, plan.length, strict=True):
        assert len(set(document_of[begin : begin + length].tolist())) == 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=150))
def test_placing_equal_lengths_together_is_best_fit_decreasing_one_by_one(lengths: list[int]) -> None:
    row, rows = best_fit_decreasing(np.array(lengths), 30)
    loads = np.bincount(row, weights=lengths, minlength=rows).astype(int)
    assert sorted((30 - loads).tolist()) == one_by_one(lengths, 30)


def test_a_document_of_exactly_one_row_stays_whole() -> None:
    begin, length = cut(np.array([10]), np.array([8]), 8)
    assert (begin.tolist(), length.tolist()) == ([10], [8])


def test_web_like_lengths_pack_with_less_than_a_thousandth_of_padding() -> None:
    lengths = np.random.default_rng(0).lognormal(5.8, 1.1, 200_000).astype(np.int64) + 2
    plan = pack(np.cumsum(lengths) - lengths, lengths, 2_048)
    assert plan.pairs_dropped == 0
    assert plan.padding / (plan.rows * 2_048) < 1e-3


def test_long_documents_that_leave_rooms_fill_them_with_cuttings() -> None:
    """Documents a little over half a row cannot share one: best-fit decreasing alone would pad a third of the slots."""
    lengths = np.tile(np.array([1_200, 1_400, 20_480, 900]), 500)
    starts = np.cumsum(lengths) - lengths
    plan = pack(starts, lengths, 2_048)
    assert plan.pairs_emitted == lengths.sum()
    assert plan.padding / (plan.rows * 2_048) < 1e-3
    begins = set(plan.begin[plan.length > 0].tolist())
    assert all(start in begins for start in starts.tolist())
    whole = {begin: length for begin, length in zip(plan.begin.tolist(), plan.length.tolist(), strict=True)}
    assert all(whole[start] == size for start, size in zip(starts.tolist(), lengths.tolist(), strict=True) if size <= 2_048)
    most = max(
        int(((plan.begin >= start) & (plan.begin < start + size)).sum())
        for start, size in zip(starts, lengths, strict=True)
        if size > 2_048
    )
    assert most <= 10 + 2 * 8  # no document gives much more than another


def test_documents_that_fit_a_row_are_never_cut_to_fill_another() -> None:
    plan = plan_of([1_200] * 9, 2_048)
    assert (plan.rows, sorted(plan.length.tolist())) == (9, [1_200] * 9)


def test_cuttings_are_the_same_again() -> None:
    lengths = np.random.default_rng(1).integers(1, 9_000, 3_000)
    first, second = (pack(np.cumsum(lengths) - lengths, lengths, 2_048) for _ in range(2))
    assert all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("begin", "length", "first_piece"))
    assert first.padding / (first.rows * 2_048) < 1e-3


def test_keys_seen_under_document_masking_are_counted_per_piece() -> None:
    assert plan_of([3, 5], 8).visible_keys() == (1 + 2 + 3) + (1 + 2 + 3 + 4 + 5)


@pytest.mark.parametrize(("lengths", "sequence_length"), [([], 8), ([3, 0], 8), ([3], 1)])
def test_lengths_that_make_no_sense_are_refused(lengths: list[int], sequence_length: int) -> None:
    with pytest.raises(ValueError):
        plan_of(lengths, sequence_length)
