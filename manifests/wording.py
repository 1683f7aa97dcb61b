"""Figures in words, as reports and the browser show them."""

from __future__ import annotations

import math
from collections.abc import Sequence

ABSENT = "none"
"""In place of a language, domain or other name that a document does not have."""


def number(value: float) -> str:
    """A figure as people read it: 1,234 · 12.3 million · 0.0123."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if size >= unit:
            return f"{value / unit:.3g} {name}" if size < 1000 * unit else f"{value / unit:,.0f} {name}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """A percentage that never says 0 % of something, or 100 % of what is not all."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "< 0.1 %"
    if 99.95 <= percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if percent in (0, 100) else f"{percent:.1f} %"


def counted(number: int, one: str, several: str | None = None) -> str:
    """1 licence, 1,234 licences; 1 copy, 2 copies."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {several or one + 's'}"


def byte_size(size: float) -> str:
    """1.23 GB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def some(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
