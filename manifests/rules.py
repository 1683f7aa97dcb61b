"""Rules are data: what a filter block decided with is what an audit evaluates again.

A *signal* is a measured value of a text (float64, int64, string, or a ratio of two integers); a *rule* keeps a document
when its signal satisfies one condition. `decide` applies rules in declared order to a table of signals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, model_validator

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

    def _conditions(self) -> dict[str, object]:
        return {
            "keep_if_at_least": self.keep_if_at_least,
            "keep_if_at_most": self.keep_if_at_most,
            "keep_if_above": self.keep_if_above,
            "keep_if_below": self.keep_if_below,
            "keep_if_in": self.keep_if_in,
        }

    @property
    def threshold(self) -> float | None:
        """The bound as a number; None for `keep_if_in`."""
        for name, value in self._conditions().items():
            if value is not None and name != "keep_if_in":
                return float(value)  # type: ignore[arg-type]
        return None

    def kept(self, signal: pa.Array) -> np.ndarray:
        """A boolean for every row: does this rule keep it? `signal` is the array of `self.signal`."""
        if self.keep_if_in is not None:
            values = pc.is_in(signal, value_set=pa.array(self.keep_if_in, signal.type))
            defined = signal.is_valid().to_numpy(zero_copy_only=False)
            kept: np.ndarray = values.to_numpy(zero_copy_only=False).astype(bool)
        else:
            numbers = signal_values(signal)
            defined = ~np.isnan(numbers)
            with np.errstate(invalid="ignore"):
                if self.keep_if_at_least is not None:
                    kept = numbers >= self.keep_if_at_least
                elif self.keep_if_at_most is not None:
                    kept = numbers <= self.keep_if_at_most
                elif self.keep_if_above is not None:
                    kept = numbers > self.keep_if_above
                else:
                    assert self.keep_if_below is not None
                    kept = numbers < self.keep_if_below
        return np.where(defined, kept, self.when_undefined == "keep")


def signal_values(signal: pa.Array) -> np.ndarray:
    """A signal as float64, NaN where undefined: numbers as they are, ratios divided, strings all NaN."""
    if isinstance(signal, pa.ChunkedArray):
        signal = signal.combine_chunks()
    if pa.types.is_struct(signal.type):
        numerator, denominator = (signal_values(pc.struct_field(signal, name)) for name in ("numerator", "denominator"))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(denominator == 0, np.nan, numerator / denominator)
    if pa.types.is_string(signal.type) or pa.types.is_large_string(signal.type):
        return np.full(len(signal), np.nan)
    numbers: np.ndarray = pc.cast(signal, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
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
    first = np.full(rows, -1, dtype=np.int32)
    value = np.full(rows, np.nan)
    failing = np.zeros((rows, len(rules)), dtype=bool)
    for index, rule in enumerate(rules):
        if rule.signal not in signals.schema.names:
            raise KeyError(f"rule {rule.name} needs the signal {rule.signal}, which was not measured")
        column = signals[rule.signal]
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        failing[:, index] = ~rule.kept(column)
        newly = failing[:, index] & (first == -1)
        if newly.any():
            first[newly] = index
            value[newly] = signal_values(column)[newly]
    names = np.array([rule.name for rule in rules], dtype=object)
    document, index_of_rule = np.nonzero(failing)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(document, minlength=rows), out=offsets[1:])
    failed = pa.ListArray.from_arrays(pa.array(offsets), pa.array(names[index_of_rule].tolist(), pa.string()))
    return Decision(first, value, failed)
