"""Tokens are counted as people write them, exactly, or refused with what would do."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from manifests.token_number import MOST, number_of_tokens


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1), ("20000", 20_000), ("2e4", 20_000), ("2E4", 20_000), ("1.5B", 1_500_000_000), ("1.5e9", 1_500_000_000),
        ("20M", 20_000_000), ("20m", 20_000_000), ("300k", 300_000), ("2T", 2 * 10**12), ("2_000_000", 2_000_000),
        ("20,000", 20_000), (" 7 ", 7), ("1.1B", 1_100_000_000), ("0.3M", 300_000), ("1e+3", 1000),
    ],
)  # fmt: skip
def test_a_number_is_exactly_what_it_says(text: str, number: int) -> None:
    assert number_of_tokens(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "lots", "nan", "inf", "-1", "0", "0.5", "1.5", "1e99", "1e400", "M", "2MM", "1e-3", "٣", "2 000", "0x10", "9" * 5000],
)
def test_what_is_no_whole_number_from_1_on_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"such as 20000000, 2e7, 20M or 1\.5B|a whole number from 1 on is needed"):
        number_of_tokens(text)


@given(st.integers(1, MOST))
def test_every_number_is_read_back(number: int) -> None:
    assert number_of_tokens(str(number)) == number_of_tokens(f"{number:_}") == number_of_tokens(f"{number:,}") == number
