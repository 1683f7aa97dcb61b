"""The bytes of a text column as the compiled filters read them, without a copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(data, offsets): row k is the UTF-8 in data[offsets[k]:offsets[k + 1]]. uint8 and int64; a null is an
    empty text."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = texts.cast(pa.large_string())
    if texts.null_count:
        texts = texts.fill_null("")
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8), bounds


def column(data: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """The large_string column of such buffers."""
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def with_rows(texts: pa.Array, changed: dict[int, bytes]) -> pa.Array:
    """`texts` with the UTF-8 of some rows replaced; large_string."""
    mask = np.zeros(len(texts), bool)
    mask[list(changed)] = True
    new = pa.array([changed[row] for row in sorted(changed)], pa.large_binary()).view(pa.large_string())
    return pc.replace_with_mask(texts.cast(pa.large_string()), pa.array(mask), new)
