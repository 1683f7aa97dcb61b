"""UTF-8 in compiled loops."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def put(point, out, at):  # type: ignore[no-untyped-def]
    """Writes a code point to out[at] (uint8), returns where it ends. There must be room for four bytes."""
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at] = 0xC0 | point >> 6
        out[at + 1] = 0x80 | (point & 0x3F)
        return at + 2
    if point < 0x10000:
        out[at] = 0xE0 | point >> 12
        out[at + 1] = 0x80 | (point >> 6 & 0x3F)
        out[at + 2] = 0x80 | (point & 0x3F)
        return at + 3
    out[at] = 0xF0 | point >> 18
    out[at + 1] = 0x80 | (point >> 12 & 0x3F)
    out[at + 2] = 0x80 | (point >> 6 & 0x3F)
    out[at + 3] = 0x80 | (point & 0x3F)
    return at + 4
