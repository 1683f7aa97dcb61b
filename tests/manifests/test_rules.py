"""Rules decide by inclusive bounds, exact ratios and declared order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.rules import RATIO, Rule, decide, signal_values

NUMBERS = [None, math.nan, 0.9, 1.0, 1.1]


def kept(rule: Rule, values: list, type_: pa.DataType) -> list[bool]:
    return kept_of(rule, pa.array(values, type_))


def kept_of(rule: Rule, column: pa.Array) -> list[bool]:
    return (decide([rule], pa.table({rule.signal: column})).first < 0).tolist()


@pytest.mark.parametrize(
    "condition, expected",
    [
        ("keep_if_at_least", [False, True, True]),
        ("keep_if_at_most", [True, True, False]),
        ("keep_if_above", [False, False, True]),
        ("keep_if_below", [True, False, False]),
    ],
)
@pytest.mark.parametrize("when_undefined", ["keep", "remove"])
def test_bounds_are_inclusive_unless_named_above_or_below(condition: str, expected: list, when_undefined: str) -> None:
    rule = Rule(name="r", signal="s", when_undefined=when_undefined, **{condition: 1.0})
    undefined = [when_undefined == "keep"] * 2
    assert kept(rule, NUMBERS, pa.float64()) == [*undefined, *expected]


def test_integers_are_compared_as_numbers_and_null_is_undefined() -> None:
    rule = Rule(name="r", signal="s", keep_if_at_least=50, when_undefined="remove")
    assert kept(rule, [49, 50, 51, None], pa.int64()) == [False, True, True, False]


def test_a_ratio_at_its_bound_is_kept_exactly() -> None:
    for percent in range(1, 101):
        bound = percent / 100
        at_most = Rule(name="r", signal="s", keep_if_at_most=bound)
        at_least = Rule(name="r", signal="s", keep_if_at_least=bound)
        for scale in (1, 3, 7, 11, 12_345_678):
            ratios = [{"numerator": percent * scale + step, "denominator": 100 * scale} for step in (-1, 0, 1)]
            assert kept(at_most, ratios, RATIO) == [True, True, False]
            assert kept(at_least, ratios, RATIO) == [False, True, True]


@pytest.mark.parametrize("ratio", [None, {"numerator": 0, "denominator": 0}, {"numerator": 3, "denominator": 0}])
def test_a_ratio_over_zero_and_a_null_are_undefined(ratio: dict | None) -> None:
    for when_undefined in ("keep", "remove"):
        rule = Rule(name="r", signal="s", keep_if_at_most=0.1, when_undefined=when_undefined)
        assert kept(rule, [ratio], RATIO) == [when_undefined == "keep"]


def test_a_null_struct_is_undefined_even_with_numbers_beneath_it() -> None:
    column = pa.StructArray.from_arrays([pa.array([9, 9]), pa.array([10, 10])], fields=list(RATIO), mask=pa.array([True, False]))
    rule = Rule(name="r", signal="s", keep_if_at_most=0.5)
    assert kept_of(rule, column) == [True, False]


def test_strings_are_kept_when_listed() -> None:
    for when_undefined in ("keep", "remove"):
        rule = Rule(name="r", signal="s", keep_if_in=("en", "de"), when_undefined=when_undefined)
        assert kept(rule, ["en", "fr", None, "de"], pa.string()) == [True, False, when_undefined == "keep", True]
        assert kept(rule, ["en", "fr"], pa.large_string()) == [True, False]
    assert rule.threshold is None


@pytest.mark.parametrize("conditions", [{}, {"keep_if_above": 1, "keep_if_below": 2}])
def test_a_rule_has_exactly_one_condition(conditions: dict) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Rule(name="r", signal="s", **conditions)


def test_a_bound_of_zero_is_a_condition() -> None:
    assert Rule(name="r", signal="s", keep_if_at_most=0).threshold == 0.0


def test_an_unknown_field_and_a_change_are_refused() -> None:
    with pytest.raises(ValueError):
        Rule(name="r", signal="s", keep_if_most=1)
    with pytest.raises(ValueError):
        Rule(name="r", signal="s", keep_if_above=1).name = "other"


def test_a_rule_survives_json() -> None:
    for rule in (Rule(name="r", signal="s", keep_if_at_most=0.1), Rule(name="r", signal="s", keep_if_in=("a",))):
        assert Rule.model_validate_json(rule.model_dump_json()) == rule


FIRST = Rule(name="first", signal="a", keep_if_at_least=2)
SECOND = Rule(name="second", signal="b", keep_if_at_most=0.5)
THIRD = Rule(name="third", signal="a", keep_if_below=10)


def signals(a: list, b: list) -> pa.Table:
    return pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, RATIO)})


def test_the_first_failing_rule_is_the_reason_and_all_are_recorded_in_declared_order() -> None:
    half, whole = {"numerator": 1, "denominator": 2}, {"numerator": 1, "denominator": 1}
    table = signals([1, 1, 5, 12, 5, None], [whole, half, whole, whole, half, None])
    decision = decide([FIRST, SECOND, THIRD], table)
    assert decision.first.tolist() == [0, 0, 1, 1, -1, -1]
    assert decision.failed.to_pylist() == [
        ["first", "second"],
        ["first"],
        ["second"],
        ["second", "third"],
        [],
        [],
    ]
    assert decision.value[:4].tolist() == [1, 1, 1, 1]
    assert np.isnan(decision.value[4:]).all()
    assert decision.first.dtype == np.int32


def test_the_order_of_rules_is_the_order_of_reasons() -> None:
    table = signals([12], [{"numerator": 3, "denominator": 4}])
    decision = decide([THIRD, SECOND], table)
    assert decision.first.tolist() == [0]
    assert decision.value.tolist() == [12]
    assert decision.failed.to_pylist() == [["third", "second"]]


def test_a_signal_that_was_not_measured_is_an_error_that_names_it() -> None:
    with pytest.raises(KeyError, match="rule second needs the signal b"):
        decide([FIRST, SECOND], pa.table({"a": pa.array([1], pa.int64())}))


def test_no_rules_and_no_rows_decide_nothing() -> None:
    assert decide([], signals([1], [None])).first.tolist() == [-1]
    empty = decide([FIRST, SECOND], signals([], []))
    assert empty.first.tolist() == []
    assert empty.failed.to_pylist() == []
    assert empty.failed.type == pa.list_(pa.string())


def test_chunks_and_slices_change_nothing() -> None:
    whole = signals([1, 5, 1], [None, None, None])
    chunked = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 2)])
    assert decide([FIRST], chunked).first.tolist() == [0, -1, 0]
    assert decide([FIRST], whole.slice(1, 2)).first.tolist() == [-1, 0]
    assert decide([FIRST], whole.slice(1, 2).to_batches()[0]).first.tolist() == [-1, 0]


def test_a_string_signal_has_no_value() -> None:
    rule = Rule(name="language", signal="l", keep_if_in=("en",))
    decision = decide([rule], pa.table({"l": ["fr", "en"]}))
    assert decision.first.tolist() == [0, -1]
    assert np.isnan(decision.value).all()
    assert np.isnan(signal_values(pa.array(["a"]))).all()


INTEGERS = st.integers(-(10**9), 10**9)
RATIOS = st.one_of(st.none(), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
CONDITIONS = {
    "keep_if_at_least": lambda value, bound: value >= bound,
    "keep_if_at_most": lambda value, bound: value <= bound,
    "keep_if_above": lambda value, bound: value > bound,
    "keep_if_below": lambda value, bound: value < bound,
}


@given(
    rows=st.lists(st.tuples(st.one_of(st.none(), INTEGERS), RATIOS), max_size=8),
    rules=st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(sorted(CONDITIONS)),
            st.one_of(INTEGERS, st.integers(0, 100).map(lambda percent: Fraction(percent, 100))),
            st.sampled_from(["keep", "remove"]),
        ),
        max_size=5,
    ),
)
def test_decide_equals_exact_arithmetic_row_by_row(rows: list, rules: list) -> None:
    declared = [
        Rule(name=f"r{index}", signal=signal, when_undefined=when, **{condition: float(bound)})
        for index, (signal, condition, bound, when) in enumerate(rules)
    ]
    table = pa.table(
        {
            "a": pa.array([a for a, _ in rows], pa.int64()),
            "b": pa.array(
                [None if b is None else dict(zip(("numerator", "denominator"), b, strict=True)) for _, b in rows], RATIO
            ),
        }
    )
    decision = decide(declared, table)
    for row, (a, b) in enumerate(rows):
        exact = {"a": a, "b": None if b is None or b[1] == 0 else Fraction(*b)}
        failing = []
        for index, (signal, condition, bound, when) in enumerate(rules):
            value = exact[signal]
            if (when == "remove") if value is None else not CONDITIONS[condition](value, bound):
                failing.append(index)
        assert decision.failed[row].as_py() == [f"r{index}" for index in failing]
        assert decision.first[row] == (failing[0] if failing else -1)


@pytest.mark.parametrize(
    "condition, bound, signs",
    [
        ("keep_if_at_least", 50.0, "≥ 50"),
        ("keep_if_at_most", 0.2, "≤ 0.2"),
        ("keep_if_above", -1.5, "> -1.5"),
        ("keep_if_below", 100_000.0, "< 100,000"),
        ("keep_if_at_most", math.inf, "≤ inf"),
        ("keep_if_in", ("de", "en"), "one of de, en"),
    ],
)
def test_a_rule_tells_its_condition_and_bound_and_writes_them_in_signs(condition: str, bound: object, signs: str) -> None:
    rule = Rule(name="r", signal="s", **{condition: bound})
    assert (rule.condition, rule.bound, rule.in_signs()) == (condition, bound, signs)
    assert rule.threshold == (None if isinstance(bound, tuple) else bound)
