"""Columns of signals, in the types that rules read: int64, and the exact ratio of two integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from manifests.rules import RATIO

Value = int | str | tuple[int, int] | None
"""One signal of one document: a number, a word, a ratio (numerator, denominator), or undefined. A ratio
over 0 is stored as it is and counts as undefined."""


def columns(types: Mapping[str, pa.DataType], documents: Sequence[Mapping[str, Value]]) -> dict[str, pa.Array]:
    """The signals of n documents as one array each, in the declared order and types; a signal that was not
    measured is an error."""
    return {name: _column(kind, [document[name] for document in documents]) for name, kind in types.items()}


def languages(batch: pa.RecordBatch) -> list[str | None]:
    """The `language` of every row; all None in a batch without that column."""
    if "language" not in batch.schema.names:
        return [None] * batch.num_rows
    return list(batch["language"].to_pylist())


def _column(kind: pa.DataType, values: list[Value]) -> pa.Array:
    if kind != RATIO:
        return pa.array(values, kind)
    ratios = [None if value is None else {"numerator": value[0], "denominator": value[1]} for value in values]  # type: ignore[index]
    return pa.array(ratios, RATIO)
