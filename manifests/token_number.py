"""Numbers of tokens as people write them: 20000000, 20_000_000, 2e7, 20M, 1.5B."""

from __future__ import annotations

import re
from decimal import Decimal

import typer

FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
MOST = 10**18
"""More tokens than anybody will ever train on; and Python would build any number of digits."""
_WRITTEN = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*([kKmMbBgGtT]?)")


def number_of_tokens(text: str) -> int:
    """The number; typer.BadParameter, which says what would do, where it is none, or not a whole one from 1 on."""
    written = _WRITTEN.fullmatch(str(text).strip())
    if written is None:
        raise typer.BadParameter(f"{text!r} is not a number of tokens, such as 20000000, 2e7, 20M or 1.5B")
    number = Decimal(re.sub("[_,]", "", written[1])) * FACTORS[written[2].lower()]
    if number != int(number) or not 1 <= number <= MOST:
        raise typer.BadParameter(f"{text!r} is {number:f} tokens; a whole number from 1 on is needed")
    return int(number)
