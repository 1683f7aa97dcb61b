"""Rows that a check finds odd: as flags, and the first few of them, since one cause can hit every row of a file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_FINDINGS = 5
"""Of one kind in one file."""
Booleans = npt.NDArray[np.bool_]


def first_of(rows: Booleans | pa.Array | pa.ChunkedArray) -> list[int]:
    """Numbers of the first MOST_FINDINGS rows that are true."""
    found: list[int] = np.flatnonzero(rows if isinstance(rows, np.ndarray) else flags(rows))[:MOST_FINDINGS].tolist()
    return found


def flags(values: pa.Array | pa.ChunkedArray) -> Booleans:
    """As booleans; null is False."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), bool)


def unequal(mine: pa.ChunkedArray | pa.Array, theirs: pa.ChunkedArray | pa.Array) -> Booleans:
    """Do values differ, row by row? Two nulls are equal."""
    equal = pc.fill_null(pc.equal(mine, theirs), False)
    both = pc.and_(pc.is_null(mine), pc.is_null(theirs))
    return ~flags(pc.or_(equal, both))
