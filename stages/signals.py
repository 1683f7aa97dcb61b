"""Columns of signals, in the types that rules read: int64, and the exact ratio of two integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from manifests.rules import RATIO


def integers(values: np.ndarray, undefined: np.ndarray | None = None) -> pa.Array:
    """int64, null where `undefined`."""
    return pa.array(values, pa.int64(), mask=undefined)


def ratios(numerators: np.ndarray, denominators: np.ndarray, undefined: np.ndarray | None = None) -> pa.Array:
    """Numerator / denominator, null where `undefined`. A ratio over 0 is stored as it is; rules take it for
    undefined."""
    parts = [pa.array(numerators, pa.int64()), pa.array(denominators, pa.int64())]
    return pa.StructArray.from_arrays(parts, fields=list(RATIO), mask=None if undefined is None else pa.array(undefined))
