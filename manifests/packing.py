"""Packing: which pieces of which documents share a row of T tokens. Works on lengths alone and never sees a token.

A document BOS t1 … tn (its length counts BOS) holds as many (input, target) pairs: inputs BOS t1 … tn, targets t1 … tn BOS.
A *piece* is a contiguous range of these pairs. Documents are cut at T, so every cut's target is the document's own next
token; the pieces of a window of consecutive documents are placed by best-fit decreasing. Where that leaves more than
MOST_PADDING, whole rows of documents that are longer than a row, and so are cut anyway, are cut again to fill what is left of
others. Every pair is emitted once, nothing is dropped, and the slots left over are padding, which is masked and counted:
`pairs_emitted + pairs_dropped == pairs_total`, and `rows * T == pairs_emitted + padding`.

For comparison there are two other ways. `crop` takes the first T pairs of each document, drops the rest and places what is left
in the same way; `concat` lays documents one behind the other and cuts wherever a row ends. A piece is of one document in all of
them, so no target comes from a neighbour; whether a query sees its neighbours is for the attention's mask to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

Packing = Literal["best-fit", "crop", "concat"]

WINDOW = 1 << 20
"""Consecutive documents that are packed together: bounds the memory, and loses next to nothing."""
MOST_PADDING = 0.001
"""Of all slots, beyond which rows are filled with cuttings."""
CUTTING = 32
"""A room of less than this part of a row (64 tokens of 2,048) is left: so little context is not worth a cut."""


@dataclass(frozen=True)
class Plan:
    """Rows of one component. Row r holds pieces `first_piece[r]` to `first_piece[r + 1]`; piece p is `length[p]` pairs whose
    inputs begin at token `begin[p]` of the component's concatenated shards."""

    sequence_length: int
    begin: Int64
    length: Int32
    first_piece: Int64
    pairs_total: int

    @property
    def rows(self) -> int:
        return len(self.first_piece) - 1

    @property
    def pairs_emitted(self) -> int:
        return int(self.length.sum(dtype=np.int64))

    @property
    def pairs_dropped(self) -> int:
        return self.pairs_total - self.pairs_emitted

    @property
    def padding(self) -> int:
        return self.rows * self.sequence_length - self.pairs_emitted

    def row_targets(self) -> Int64:
        """Pairs in each row."""
        sums = np.concatenate(([0], np.cumsum(self.length, dtype=np.int64)))
        counted: Int64 = sums[self.first_piece[1:]] - sums[self.first_piece[:-1]]
        return counted

    def visible_keys(self) -> int:
        """Sum over all pairs of the keys their query may see when attention is masked per document."""
        length = self.length.astype(np.int64)
        return int((length * (length + 1) // 2).sum())


def pack(starts: Int64, lengths: Int64, sequence_length: int, window: int = WINDOW, packing: Packing = "best-fit") -> Plan:
    """The plan for documents of `lengths` tokens (BOS included, at least 1) whose first tokens stand at `starts`.

    ValueError when there is no document, a length is below 1 or T below 2.
    """
    if sequence_length < 2:
        raise ValueError(f"a row of {sequence_length} tokens cannot be trained on")
    if len(lengths) == 0 or len(starts) != len(lengths) or int(lengths.min()) < 1:
        raise ValueError("packing needs documents of at least one token, and a start for each")
    if packing == "concat":
        return _concatenated(starts, lengths, sequence_length)
    begins: list[Int64] = []
    pieces: list[Int32] = []
    counts: list[Int64] = []
    for first in range(0, len(lengths), window):
        begin, length = starts[first : first + window], lengths[first : first + window]
        if packing == "crop":
            length = np.minimum(length, sequence_length)
            row, rows = best_fit_decreasing(length, sequence_length)
        else:
            document = np.repeat(np.arange(len(length)), -(-length // sequence_length))
            begin, length = cut(begin, length, sequence_length)
            row, rows = best_fit_decreasing(length, sequence_length)
            if 1 - length.sum() / (rows * sequence_length) > MOST_PADDING:
                begin, length, row, rows = fill(begin, length, row, document, sequence_length)
        order = np.argsort(row, kind="stable")
        begins.append(begin[order])
        pieces.append(length[order].astype(np.int32))
        counts.append(np.bincount(row, minlength=rows).astype(np.int64))
    first_piece = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    return Plan(sequence_length, np.concatenate(begins), np.concatenate(pieces), first_piece, int(lengths.sum()))


def _concatenated(starts: Int64, lengths: Int64, sequence_length: int) -> Plan:
    """Cuts where a document begins and where a row does."""
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    edges = np.unique(np.concatenate((ends - lengths, np.arange(0, total, sequence_length))))
    document = np.searchsorted(ends, edges, side="right")
    begin = starts[document] + edges - (ends - lengths)[document]
    length = np.diff(edges, append=total).astype(np.int32)
    first_piece = np.append(np.searchsorted(edges, np.arange(0, total, sequence_length)), len(edges))
    return Plan(sequence_length, begin, length, first_piece.astype(np.int64), total)


def cut(starts: Int64, lengths: Int64, sequence_length: int) -> tuple[Int64, Int64]:
    """(begin, length) of the pieces of each document in turn: full ones of T pairs, then what is left."""
    pieces = -(-lengths // sequence_length)
    document = np.repeat(np.arange(len(lengths)), pieces)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    offset = nth * sequence_length
    return starts[document] + offset, np.minimum(lengths[document] - offset, sequence_length)


def fill(begin: Int64, length: Int64, row: Int64, document: Int64, capacity: int) -> tuple[Int64, Int64, Int64, int]:
    """(begin, length, row of each piece, number of rows) when pieces that fill a row, of documents of several pieces, are cut up
    for rooms of a CUTTINGth of a row or more, the largest first: one piece of each document before any gives a second, and as
    many as fit into all of those rooms. The cuttings of a piece follow one another from room to room."""
    rooms = capacity - np.bincount(row, weights=length).astype(np.int64)
    order = np.argsort(-rooms, kind="stable")
    order = order[rooms[order] >= max(1, capacity // CUTTING)]
    ends = np.cumsum(rooms[order])
    several = np.bincount(document) > 1
    full = np.flatnonzero((length == capacity) & several[document])
    nth = np.arange(len(full)) - np.searchsorted(document[full], document[full])
    given = full[np.argsort(nth, kind="stable")][: int(ends[-1]) // capacity if len(ends) else 0]
    if not len(given):
        return begin, length, row, len(rooms)
    total = len(given) * capacity
    edges = np.unique(np.concatenate((ends - rooms[order], np.arange(0, total, capacity))))
    edges = edges[edges < total]
    kept = np.ones(len(length), bool)
    kept[given] = False
    left = np.ones(len(rooms), np.int64)
    left[row[given]] = 0
    number = np.cumsum(left) - 1
    begins = np.concatenate((begin[kept], begin[given[edges // capacity]] + edges % capacity))
    rows = np.concatenate((row[kept], order[np.searchsorted(ends, edges, side="right")]))
    return begins, np.concatenate((length[kept], np.diff(edges, append=total))), number[rows], int(left.sum())


def best_fit_decreasing(lengths: Int64, capacity: int) -> tuple[Int64, int]:
    """(row of each piece, number of rows): longest piece first, each into the fullest row that still takes it.

    Pieces of one length are placed together. The row with the least room r >= l that gets one piece of length l is, with room
    r - l, again the tightest for the next, so it takes r // l of them before the next row is touched: the result is exactly
    that of placing them one by one, in about T steps per length instead of one per piece.
    """
    row = np.empty(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    distinct, begins = np.unique(-lengths[order], return_index=True)
    ends = np.append(begins[1:], len(order))
    open_rows: dict[int, list[Int64]] = {}
    rooms = np.zeros(capacity + 1, bool)
    rows = 0

    def leave(room: int, which: Int64) -> None:
        if room and len(which):
            open_rows.setdefault(room, []).append(which)
            rooms[room] = True

    for negative, begin, end in zip(distinct, begins, ends, strict=True):
        length, waiting = int(-negative), order[begin:end]
        for room in (np.flatnonzero(rooms[length:]) + length).tolist():
            if not len(waiting):
                break
            candidates = np.concatenate(open_rows.pop(room))
            rooms[room] = False
            waiting = _fill(waiting, candidates, room, length, row, leave)
        if len(waiting):
            fresh = np.arange(rows, rows - (-len(waiting) // (capacity // length)))
            rows += len(fresh)
            _fill(waiting, fresh, capacity, length, row, leave)
    return row, rows


def _fill(waiting: Int64, candidates: Int64, room: int, length: int, row: Int64, leave) -> Int64:  # type: ignore[no-untyped-def]
    """Places as many of `waiting` as fit into `candidates`, which all have `room`; returns those still waiting."""
    each = room // length
    taken = candidates[: -(-len(waiting) // each)]
    placed = min(len(waiting), len(taken) * each)
    row[waiting[:placed]] = np.repeat(taken, each)[:placed]
    in_last = placed - (len(taken) - 1) * each
    leave(room - each * length, taken[:-1])
    leave(room - in_last * length, taken[-1:])
    leave(room, candidates[len(taken) :])
    return waiting[placed:]
