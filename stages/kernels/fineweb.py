"""The shapes of lines that FineWeb looks at (`stages.fineweb`)."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.reading import SPACE, is_mark

# Columns of line_shapes().
SHAPED_LINES, SHORT_LINES, TERMINAL_LINES, SHAPED_POINTS = range(4)


@njit(cache=True, nogil=True)
def line_shapes(  # type: ignore[no-untyped-def]
    points, kinds, starts, lines, line_starts, short, marks, mark_starts, language, out
):
    """What FineWeb's rules count. `short[row]` is the length up to which a line is short; a line also ends
    a sentence in one of the marks of its row's language, marks[mark_starts[k]:mark_starts[k+1]]; the last
    group is of rows without one.
    """
    for row in range(starts.size - 1):
        row_kinds = kinds[starts[row] : starts[row + 1]]
        characters = np.int64(0)
        for index in range(row_kinds.size):
            characters += 1 - (np.int64(row_kinds[index]) & SPACE)
        out[row, SHAPED_POINTS] = characters
        for line in range(line_starts[row], line_starts[row + 1]):
            begin, end = lines[line, 0], lines[line, 1]
            out[row, SHAPED_LINES] += 1
            if end - begin <= short[row]:
                out[row, SHORT_LINES] += 1
            if is_mark(points[end - 1], kinds[end - 1], marks, mark_starts, language[row]):
                out[row, TERMINAL_LINES] += 1
