"""Pictures of figures, as SVG in the page's colours. Text that must stay readable on a narrow screen is HTML beside the marks; a
picture has a title, which screen readers read and pointers show.

Colours are classes of `style.STYLE`: a hue is never the only difference, and the set is that of Okabe and Ito (2008), which
colour-blind people tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from manifests.audit.flow import Level as Level
from manifests.report.distributions import Distribution
from manifests.report.elements import breakable, element
from manifests.wording import counted as counted
from manifests.wording import number as number
from manifests.wording import share as share

PLOT_WIDTH, PLOT_HEIGHT = 320, 128
"""Of a small plot, in units that are about a pixel each wherever it stands."""
BASE, TOP, SIDE = 106, 20, 6
CUT_ABOVE = 2.5
"""A bar more than so many times as high as the next is cut off, and says what it holds."""
UNIT = 1000
"""Width of a bar that may be drawn at any width."""


@dataclass
class Piece:
    """A stretch of a bar: its size, class of colour, and what it says when it is pointed at."""

    size: float
    colour: str
    says: str


@dataclass
class Bar:
    """A row of `bars`: a label, stretches, and the figure at the end. href: where the label leads."""

    label: str
    pieces: list[Piece] = field(default_factory=list)
    figure: str = ""
    note: str = ""
    href: str | None = None


def bars(rows: Sequence[Bar], whole: float | None = None) -> Element:
    """One horizontal bar a row, all on one scale: `whole` is the width of the picture (default: the longest)."""
    longest = max((sum(piece.size for piece in row.pieces) for row in rows), default=0.0)
    scale = UNIT / (whole or longest or 1)
    drawn = []
    for row in rows:
        at, marks = 0.0, []
        for piece in row.pieces:
            width = piece.size * scale
            if width > 0:
                title = element("title", piece.says)
                marks.append(
                    element("rect", title, x=_at(at), y=0, width=_at(max(width, 1.5)), height=14, class_=f"mark {piece.colour}")
                )
            at += width
        says = f"{row.label}: {'; '.join(piece.says for piece in row.pieces)}"
        svg = element(
            "svg",
            element("title", says),
            marks,
            viewBox=f"0 0 {UNIT} 14",
            preserveAspectRatio="none",
            role="img",
            class_="strip",
        )
        name = breakable(row.label) if row.href is None else element("a", breakable(row.label), href=row.href)
        label = element("span", name, element("small", row.note) if row.note else None, class_="label")
        drawn.append(element("li", label, svg, element("span", row.figure, class_="figure")))
    return element("ul", drawn, class_="bars")


def legend(*entries: tuple[str, str]) -> Element:
    """What colours mean: (class, words)."""
    keys = [
        element(
            "span",
            element(
                "svg",
                element("rect", x=0, y=0, width=12, height=12, class_=f"mark {colour}"),
                viewBox="0 0 12 12",
                class_="key",
                aria_hidden="true",
            ),
            words,
            class_="entry",
        )
        for colour, words in entries
    ]
    return element("p", keys, class_="legend")


def funnel(levels: Sequence[Level], whole: int) -> Element:
    """What is left after each stage, as a funnel: the middle goes on, the sides are removed there."""
    rows = []
    for level in levels:
        before, left = UNIT * level.before / (whole or 1), UNIT * level.left / (whole or 1)
        gone = level.before - level.left
        says = f"{level.name}: {level.before:,} in, {level.left:,} left, {gone:,} removed"
        marks = [element("polygon", points=_trapezium(before, left), class_="mark kept")]
        if gone:
            marks.insert(0, element("polygon", points=_trapezium(before, before), class_="mark removed"))
        svg = element(
            "svg",
            element("title", says),
            element("desc", "A band whose width is the number of documents; the sides are those removed at this stage."),
            marks,
            viewBox=f"0 0 {UNIT} 30",
            preserveAspectRatio="none",
            role="img",
            class_="band",
        )
        removed = element("span", f"− {gone:,} ({share(gone, level.before)})" if gone else "", class_="gone")
        label = element(
            "span", breakable(level.name), element("small", breakable(level.note)) if level.note else None, class_="label"
        )
        rows.append(element("li", label, svg, element("span", f"{level.left:,}", class_="figure"), removed))
    return element("ol", rows, class_="funnel")


def _trapezium(above: float, below: float) -> str:
    half = UNIT / 2
    upper, lower = max(above, 1.5) / 2, max(below, 1.5) / 2
    corners = (
        (half - upper, 0),
        (half + upper, 0),
        (half + lower, 12),
        (half + lower, 30),
        (half - lower, 30),
        (half - lower, 12),
    )
    return " ".join(f"{_at(x)},{_at(y)}" for x, y in corners)


def histogram(shown: Distribution) -> Element:
    """Bars of a signal with the bounds of its rules: what lies beyond one is in another colour."""
    edges = shown.edges
    left, right = edges[0], edges[-1]

    def x(value: float) -> float:
        return SIDE + (value - left) / (right - left) * (PLOT_WIDTH - 2 * SIDE)

    heights = [count / (end - begin) for count, begin, end in zip(shown.counts, edges, edges[1:], strict=False)]
    ranked = sorted(heights, reverse=True)
    highest = ranked[0] if ranked else 0.0
    ceiling = min(highest, CUT_ABOVE * ranked[1]) if len(ranked) > 1 and ranked[1] > 0 else highest
    marks, cut = [], []
    conditions = list(zip(shown.beyond, shown.bounds, strict=False))
    for count, height, begin, end in zip(shown.counts, heights, edges, edges[1:], strict=False):
        if not count:
            continue
        middle = (begin + end) / 2
        outside = any(_beyond(beyond.rule, middle, bound) for beyond, bound in conditions)
        tall = max(1.0, (BASE - TOP) * min(height, ceiling) / (ceiling or 1))
        says = f"{_value(begin, shown)} to {_value(end, shown)}: {count:,} documents ({share(count, shown.documents)})"
        width = x(end) - x(begin)
        gap = min(0.8, width / 6)
        marks.append(
            element(
                "rect",
                element("title", says),
                x=_at(x(begin) + gap / 2),
                y=_at(BASE - tall),
                width=_at(width - gap),
                height=_at(tall),
                class_=f"mark {'removed' if outside else 'kept'}",
            )
        )
        if height > ceiling * 1.0001:
            at = min(max(x(middle), 20.0), PLOT_WIDTH - 20.0)
            notch = f"M{_at(x(begin) - 1)},{TOP + 11} l{_at(width + 2)},-5"
            cut += [
                element("path", d=notch, class_="break"),
                element("text", share(count, shown.documents), x=_at(at), y=TOP - 6, class_="say", text_anchor="middle"),
            ]
    lines = [
        element(
            "line",
            element("title", f"{beyond.rule.name}: keep if {beyond.rule.in_signs()}"),
            x1=_at(x(bound)),
            x2=_at(x(bound)),
            y1=TOP - 2,
            y2=BASE + 4,
            class_="bound",
        )
        for beyond, bound in conditions
    ]
    ticks = []
    for value in _ticks(shown):
        at = x(math.log1p(value) if shown.logarithmic else value)
        anchor = "start" if at < 16 else "end" if at > PLOT_WIDTH - 16 else "middle"
        ticks += [
            element("line", x1=_at(at), x2=_at(at), y1=BASE, y2=BASE + 3, class_="axis"),
            element("text", _short(value), x=_at(at), y=BASE + 15, class_="tick", text_anchor=anchor),
        ]
    defined = shown.documents - shown.undefined
    said = ", ".join(f"{beyond.documents:,} beyond {beyond.rule.name}" for beyond in shown.beyond) or "no rule"
    return element(
        "svg",
        element("title", f"Distribution of {shown.signal}"),
        element("desc", f"{defined:,} values from {_plain(shown.smallest)} to {_plain(shown.largest)}; {said}."),
        marks,
        element("line", x1=SIDE, x2=PLOT_WIDTH - SIDE, y1=BASE, y2=BASE, class_="axis"),
        lines,
        cut,
        ticks,
        viewBox=f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}",
        role="img",
        class_="plot",
    )


def curve(points: Sequence[tuple[float, float]], name: str, unit: str) -> Element:
    """A line over tokens, thinned to a point a unit of width; what is shown of each unit is its mean."""
    first, last = points[0][0], points[-1][0]
    columns: dict[int, list[float]] = {}
    for at, value in points:
        columns.setdefault(round((at - first) / ((last - first) or 1) * (PLOT_WIDTH - 70)), []).append(value)
    means = {column: sum(values) / len(values) for column, values in columns.items()}
    low, high = min(means.values()), max(means.values())
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return TOP + (high - value) / span * (BASE - TOP)

    path = " ".join(
        f"{'M' if n == 0 else 'L'}{_at(SIDE + column)},{_at(y(value))}" for n, (column, value) in enumerate(means.items())
    )
    end = list(means.items())[-1]
    begin = next(iter(means.items()))
    return element(
        "svg",
        element("title", name),
        element("desc", f"From {begin[1]:.3f} at {number(first)} tokens to {end[1]:.3f} at {number(last)} tokens."),
        element("line", x1=SIDE, x2=PLOT_WIDTH - SIDE, y1=BASE + 6, y2=BASE + 6, class_="axis"),
        element("path", d=path, class_="curve"),
        element("circle", cx=_at(SIDE + end[0]), cy=_at(y(end[1])), r=3, class_="mark kept"),
        element("text", f"{begin[1]:.2f}", x=SIDE + 4, y=_at(max(y(begin[1]) - 5, 12)), class_="say"),
        element("text", f"{end[1]:.2f} {unit}", x=_at(SIDE + end[0] + 7), y=_at(y(end[1]) - 2), class_="say"),
        element("text", _short(first), x=SIDE, y=BASE + 20, class_="tick"),
        element("text", f"{_short(last)} tokens", x=PLOT_WIDTH - SIDE, y=BASE + 20, class_="tick", text_anchor="end"),
        viewBox=f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}",
        role="img",
        class_="plot",
    )


def _beyond(rule: object, value: float, bound: float) -> bool:
    below = getattr(rule, "keep_if_at_least", None) is not None or getattr(rule, "keep_if_above", None) is not None
    return value < bound if below else value > bound


def _ticks(shown: Distribution) -> list[float]:
    left, right = shown.edges[0], shown.edges[-1]
    if shown.logarithmic:
        powers = [0.0, *(10.0**n for n in range(0, 16))]
        inside = [value for value in powers if left - 1e-9 <= math.log1p(value) <= right]
        apart: list[float] = []
        for value in reversed(inside):
            if not apart or (math.log1p(apart[-1]) - math.log1p(value)) / (right - left) > 0.11:
                apart.append(value)
        return apart[::-1]
    step = _nice((right - left) / 5)
    if shown.integer:
        step = max(1.0, round(step))
    values = (n * step for n in range(math.ceil(left / step - 1e-9), math.floor(right / step + 1e-9) + 1))
    return [value for value in values if value >= 0 or shown.smallest < 0]


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= step * (1 - 1e-9))


def _value(edge: float, shown: Distribution) -> str:
    return _plain(math.expm1(edge) if shown.logarithmic else edge)


def _plain(value: float) -> str:
    return (
        f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:,.4g}" if math.isfinite(value) else str(value)
    )


def _short(value: float) -> str:
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def _at(value: float) -> str:
    """A coordinate, short: two digits behind the point at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
