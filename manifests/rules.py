"""Rules are data: what a filter block decided with is what an audit evaluates again.

A *signal* is a measured value of a text (float64, int64, string, or a ratio of two integers); a *rule* keeps a document
when its signal satisfies one condition. `decide` applies rules in declared order to a table of signals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, model_validator

SIGNS = {"keep_if_at_least": "≥", "keep_if_at_most": "≤", "keep_if_above": ">", "keep_if_below": "<", "keep_if_in": "one of"}
RATIO = pa.struct([pa.field("numerator", pa.int64()), pa.field("denominator", pa.int64())])


class Rule(BaseModel):
    """Keeps a document whose `signal` meets the one condition that is set; bounds named at_least/at_most are inclusive.

    `when_undefined` says what happens where the signal is null, NaN, or a ratio over 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    signal: str
    keep_if_at_least: float | None = None
    keep_if_at_most: float | None = None
    keep_if_above: float | None = None
    keep_if_below: float | None = None
    keep_if_in: tuple[str, ...] | None = None
    when_undefined: Literal["keep", "remove"] = "keep"

    @model_validator(mode="after")
    def _one_condition(self) -> Rule:
        if sum(value is not None for value in self._conditions().values()) != 1:
            raise ValueError(f"rule {self.name}: exactly one keep_if_… condition is needed")
        return self

    def _conditions(self) -> dict[str, float | tuple[str, ...] | None]:
        return {
            "keep_if_at_least": self.keep_if_at_least,
            "keep_if_at_most": self.keep_if_at_most,
            "keep_if_above": self.keep_if_above,
            "keep_if_below": self.keep_if_below,
            "keep_if_in": self.keep_if_in,
        }

    @property
    def condition(self) -> str:
        """The name of the condition that is set: "keep_if_at_least", …"""
        return next(name for name, bound in self._conditions().items() if bound is not None)

    @property
    def bound(self) -> float | tuple[str, ...]:
        """What its condition compares with: a number, or the words of `keep_if_in`."""
        bound = self._conditions()[self.condition]
        assert bound is not None
        return bound

    @property
    def threshold(self) -> float | None:
        """The bound as a number; None for `keep_if_in`."""
        return None if isinstance(self.bound, tuple) else float(self.bound)

    def in_signs(self) -> str:
        """What keeps a document, for people: "≥ 50", "< 0.2", "one of de, en"."""
        bound = self.bound
        if isinstance(bound, tuple):
            return f"one of {', '.join(bound)}"
        return f"{SIGNS[self.condition]} {int(bound) if float(bound).is_integer() and abs(bound) < 1e15 else bound:,}"


def signal_values(signal: pa.Array) -> np.ndarray:
    """A signal as float64, NaN where undefined: numbers as they are, ratios divided, strings all NaN."""
    if isinstance(signal, pa.ChunkedArray):
        signal = signal.chunk(0) if signal.num_chunks == 1 else signal.combine_chunks()
    if pa.types.is_struct(signal.type):
        numerator, denominator = (signal_values(signal.field(name)) for name in ("numerator", "denominator"))
        with np.errstate(divide="ignore", invalid="ignore"):
            values: np.ndarray = numerator / denominator
        values[denominator == 0] = np.nan
        if signal.null_count:
            values[signal.is_null().to_numpy(zero_copy_only=False)] = np.nan
        return values
    if pa.types.is_string(signal.type) or pa.types.is_large_string(signal.type):
        return np.full(len(signal), np.nan)
    numbers: np.ndarray = signal.to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers


@dataclass(frozen=True)
class Decision:
    """What the rules of one block say of n documents.

    first: int32 (n,), the index of the first failing rule in declared order, -1 where all keep.
    value: float64 (n,), the value of that rule's signal, NaN where none or undefined or not a number.
    failed: list<string> (n,), the names of all failing rules in declared order.
    """

    first: np.ndarray
    value: np.ndarray
    failed: pa.Array


def decide(rules: list[Rule], signals: pa.Table | pa.RecordBatch) -> Decision:
    """Applies `rules` in order to a table with one column a signal; KeyError names a signal that is missing."""
    rows = signals.num_rows
    values = np.empty((len(rules), rows))
    failing = np.zeros((len(rules), rows), dtype=bool)
    known: dict[str, np.ndarray] = {}
    measured = frozenset(signals.schema.names)
    for index, rule in enumerate(rules):
        if rule.signal not in measured:
            raise KeyError(f"rule {rule.name} needs the signal {rule.signal}, which was not measured")
        if rule.signal not in known:
            known[rule.signal] = signal_values(signals[rule.signal])
        values[index] = known[rule.signal]
        if rule.keep_if_in is not None:
            failing[index] = ~_listed(signals[rule.signal], rule.keep_if_in, rule.when_undefined == "keep")
    for condition, fails in _FAILS.items():
        indices = [index for index, rule in enumerate(rules) if getattr(rule, condition) is not None]
        bounds = np.array([[getattr(rules[index], condition)] for index in indices]).reshape(-1, 1)
        failing[indices] = fails(values[indices], bounds)
    bounded = np.array([rule.keep_if_in is None for rule in rules], bool).reshape(-1, 1)
    removes = np.array([rule.when_undefined == "remove" for rule in rules], bool).reshape(-1, 1)
    failing = np.where(bounded & np.isnan(values), removes, failing)
    removed = failing.any(axis=0)
    first = np.where(removed, failing.argmax(axis=0) if rules else -1, -1).astype(np.int32)
    value = np.full(rows, np.nan)
    value[removed] = values[first[removed], np.flatnonzero(removed)]
    names = np.array([rule.name for rule in rules], dtype=object)
    document, index_of_rule = np.nonzero(failing.T)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(document, minlength=rows), out=offsets[1:])
    failed = pa.ListArray.from_arrays(pa.array(offsets), pa.array(names[index_of_rule].tolist(), pa.string()))
    return Decision(first, value, failed)


def _listed(signal: pa.Array, wanted: tuple[str, ...], when_undefined: bool) -> np.ndarray:
    listed = pc.is_in(signal, value_set=pa.array(wanted, signal.type))
    return np.asarray(pc.if_else(pc.is_valid(signal), listed, when_undefined).to_numpy(), bool)


_FAILS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "keep_if_at_least": np.less,
    "keep_if_at_most": np.greater,
    "keep_if_above": np.less_equal,
    "keep_if_below": np.greater_equal,
}
"""What fails each condition, of a value and its bound; NaN fails none."""
