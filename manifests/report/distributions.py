"""How the signals of a corpus are distributed, and what lies beyond each rule's bound: DuckDB over the signal logs.

Of more than SAMPLED_ROWS documents a sample is looked at, drawn by the MD5 of the id: the same documents every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from manifests.logs import Logs
from manifests.rules import Rule

SAMPLED_ROWS = 1_000_000
SIGNALS_AT_A_TIME = 16
"""Columns held in memory together: 128 bytes a document."""
BINS = 44
FEW_INTEGERS = 60
"""A span of so many whole numbers has a bar for each."""
LONG_TAIL = 20.0
"""How many medians the largest value shown must be for a scale of logarithms."""
SHOWN_VALUES = 12
"""Most frequent values of a signal that is a word, such as a language."""
TAILS = (0.005, 0.05, 0.5, 0.95, 0.995)
_SAMPLE_OF = 1 << 20
_LEADING = frozenset(["id", "component", "file", "position"])


@dataclass
class Beyond:
    """A rule and the documents that it would not keep. `undefined` ones are among them where the rule removes those."""

    rule: Rule
    documents: int


@dataclass
class Distribution:
    """One signal over the components that measured it under the same rules.

    documents: looked at, of `measured`. undefined: null, NaN, or a ratio over 0. quantiles: at TAILS. edges: of the bars, one
    more than `counts`, on a scale of log(1 + x) where `logarithmic`; the first and the last bar hold all that lies beyond too.
    bounds: where each of `beyond` is drawn. words: value → documents, of a signal that is no number.
    """

    signal: str
    components: list[str]
    measured: int
    documents: int
    undefined: int
    beyond: list[Beyond]
    smallest: float = math.nan
    largest: float = math.nan
    quantiles: tuple[float, ...] = ()
    integer: bool = False
    logarithmic: bool = False
    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    words: dict[str, int] | None = None

    @property
    def sampled(self) -> bool:
        return self.documents < self.measured


def distributions(logs: Logs, most: int = SAMPLED_ROWS) -> Iterator[Distribution]:
    """Every signal that was measured, in the order of the rules that look at it; then those that no rule looks at."""
    groups: dict[tuple[str, tuple[Rule, ...]], list[tuple[str, str]]] = {}
    types: dict[tuple[str, str], str] = {}
    rows: dict[str, int] = {}
    for log in logs.manifest.content.logs:
        if log.kind == "signals":
            block = "/".join(log.path.split("/")[2:4])
            rows[block] = rows.get(block, 0) + log.rows
    for view, block in logs.signals.items():
        component = block.partition("/")[0]
        rules = _rules(logs, component)
        columns = {row["column_name"]: row["column_type"] for row in logs.sql(f'describe "{view}"')}
        ordered = dict.fromkeys([*(rule.signal for rule in rules if rule.signal in columns), *columns])
        for signal in ordered:
            if signal in _LEADING or signal.startswith("text_bytes"):
                continue
            types[view, signal] = columns[signal]
            groups.setdefault((signal, tuple(rule for rule in rules if rule.signal == signal)), []).append((view, block))
    order = sorted(groups, key=lambda key: not key[1])  # those without rules last, the rest as they are
    sharing: dict[tuple[tuple[str, str], ...], list[tuple[str, tuple[Rule, ...]]]] = {}
    for key in order:
        sharing.setdefault(tuple(groups[key]), []).append(key)
    found: dict[tuple[str, tuple[Rule, ...]], Distribution] = {}
    for views, keys in sharing.items():
        measured = sum(rows[block] for _, block in views)
        for at in range(0, len(keys), SIGNALS_AT_A_TIME):
            chosen = keys[at : at + SIGNALS_AT_A_TIME]
            _hold(logs, [view for view, _ in views], [signal for signal, _ in chosen], types, measured, most)
            for number, key in enumerate(chosen):
                kind = types[views[0][0], key[0]]
                found[key] = _distribution(logs, number, key, [block.partition("/")[0] for _, block in views], kind, measured)
            logs.connection.execute("drop table held")
    for key in order:
        yield found[key]


def _rules(logs: Logs, component: str) -> list[Rule]:
    content = logs.manifest.content
    return [rule for stage in (*content.components[component].stages, *content.stages) for rule in stage.rules]


def _hold(logs: Logs, views: list[str], signals: list[str], types: dict[tuple[str, str], str], measured: int, most: int) -> None:
    """The table `held`: columns v0, v1 … of the sampled documents, as rules see them."""
    chosen = ""
    if measured > most:
        chosen = f" where md5_number(id) % {_SAMPLE_OF} < {max(1, round(_SAMPLE_OF * most / measured))}"
    selects = []
    for view in views:
        columns = ", ".join(f"{_value(signal, types[view, signal])} as v{n}" for n, signal in enumerate(signals))
        selects.append(f'select {columns} from "{view}"{chosen}')
    logs.connection.execute("create temp table held as " + " union all ".join(selects))


def _value(signal: str, kind: str) -> str:
    """SQL for a signal as a number (a ratio divided, NaN as null), or as a word."""
    name = '"' + signal.replace('"', '""') + '"'
    if kind.startswith("STRUCT"):
        return f"{name}.numerator::double / nullif({name}.denominator, 0)::double"
    if kind == "VARCHAR":
        return name
    if kind == "BOOLEAN":
        return f"{name}::int::double"
    return f"case when isnan({name}::double) then null else {name}::double end"


def _distribution(
    logs: Logs, number: int, key: tuple[str, tuple[Rule, ...]], components: list[str], kind: str, measured: int
) -> Distribution:
    signal, rules = key
    value = f"v{number}"
    fails = "".join(f", count(*) filter ({_fails(rule, value)}) as fails{n}" for n, rule in enumerate(rules))
    spread = (
        "" if kind == "VARCHAR" else f", min({value}) as low, max({value}) as high, quantile_disc({value}, {list(TAILS)}) as q"
    )
    counted = logs.sql(f"select count(*) as documents, count({value}) as defined{spread}{fails} from held")[0]
    made = Distribution(
        signal,
        list(dict.fromkeys(components)),
        measured,
        counted["documents"],
        counted["documents"] - counted["defined"],
        [Beyond(rule, counted[f"fails{n}"]) for n, rule in enumerate(rules)],
        integer=kind in _INTEGERS,
    )
    if kind == "VARCHAR":
        most = logs.sql(
            f"select {value} as value, count(*) as documents from held where {value} is not null "
            f"group by 1 order by 2 desc, 1 limit {SHOWN_VALUES}"
        )
        made.words = {row["value"]: row["documents"] for row in most}
    elif counted["defined"]:
        made.smallest, made.largest, made.quantiles = counted["low"], counted["high"], tuple(counted["q"])
        _lay_bars(made)
        if made.edges:
            held = logs.connection.execute(f"select {value} as value from held where {value} is not null").fetchnumpy()["value"]
            values = np.log1p(held) if made.logarithmic else np.asarray(held)
            bars = np.searchsorted(made.edges[1:-1], values, side="right")
            made.counts = np.bincount(bars, minlength=len(made.edges) - 1).tolist()
    return made


def _fails(rule: Rule, value: str) -> str:
    """SQL for the documents that a rule would not keep."""
    undefined = f"{value} is null" if rule.when_undefined == "remove" else "false"
    if rule.keep_if_in is not None:
        listed = ", ".join("'" + word.replace("'", "''") + "'" for word in rule.keep_if_in)
        condition = f"{value} not in ({listed})" if listed else f"{value} is not null"
    else:
        sign = next(sign for name, sign in _SIGNS.items() if getattr(rule, name) is not None)
        condition = f"{value} {sign} {float(rule.threshold or 0.0)!r}::double"
    return f"where ({condition}) or {undefined}"


def _lay_bars(made: Distribution) -> None:
    """Chooses the scale and the edges, so that every bound is an edge: no bar stands on both sides of one."""
    bounds = [beyond.rule.threshold for beyond in made.beyond]
    known = [bound for bound in bounds if bound is not None and math.isfinite(bound)]
    low, high = min(made.quantiles[0], *known, made.quantiles[0]), max(made.quantiles[-1], *known, made.quantiles[-1])
    if not (math.isfinite(low) and math.isfinite(high)):
        return
    median = max(made.quantiles[2], 0.0)
    steps = made.integer and high - low <= FEW_INTEGERS
    made.logarithmic = not steps and low >= 0 and made.smallest >= 0 and high > 10 and high > LONG_TAIL * (1 + median)
    shift = {"keep_if_at_least": -0.5, "keep_if_below": -0.5, "keep_if_at_most": 0.5, "keep_if_above": 0.5}
    drawn = []
    for beyond in made.beyond:
        bound = beyond.rule.threshold
        if bound is None or not math.isfinite(bound):
            continue
        condition = next(name for name in shift if getattr(beyond.rule, name) is not None)
        if made.integer and bound == int(bound):
            bound += shift[condition]  # between the whole numbers
        elif shift[condition] > 0:
            bound = float(np.nextafter(bound, np.inf))  # the bound itself is on the left
        drawn.append(bound)
    if steps:
        first = math.floor(min([low, *(bound - 0.75 for bound in drawn)])) - 0.5
        last = math.ceil(max([high, *(bound + 0.75 for bound in drawn)])) + 0.5
        made.edges = sorted({*np.arange(first, last + 0.25).tolist(), *drawn})
        made.bounds = drawn
        return
    made.bounds = [_scaled(bound, made.logarithmic) for bound in drawn]
    left, right = _scaled(low, made.logarithmic), _scaled(high, made.logarithmic)
    span = right - left or max(abs(left), 1.0) * 0.1
    left = min([left, *(bound - 0.04 * span for bound in made.bounds)])
    right = max([right, *(bound + 0.04 * span for bound in made.bounds)])
    if left == right:
        left, right = left - span / 2, right + span / 2
    cuts = sorted({left, right, *made.bounds})
    edges = [cuts[0]]
    for begin, end in pairwise(cuts):
        pieces = max(1, round(BINS * (end - begin) / (right - left)))
        edges += [begin + (end - begin) * n / pieces for n in range(1, pieces)] + [end]
    if made.integer and made.logarithmic:  # a bar between two whole numbers would always be empty
        between = {math.log1p(math.floor(math.expm1(edge)) + 0.5) for edge in edges[1:-1] if edge not in made.bounds}
        edges = sorted({left, right, *made.bounds, *(edge for edge in between if left < edge < right)})
    made.edges = [float(edge) for edge in edges]


def _scaled(value: float, logarithmic: bool) -> float:
    return math.log1p(value) if logarithmic else value


_SIGNS = {"keep_if_at_least": "<", "keep_if_at_most": ">", "keep_if_above": "<=", "keep_if_below": ">="}
"""What a value that fails a condition is to its bound."""
_INTEGERS = frozenset(["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"])
