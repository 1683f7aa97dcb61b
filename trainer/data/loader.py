"""Rows of a corpus as arrays, in the order of `manifests.order`, whose whole state is one integer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manifests.order import PERIOD, Budget, Order, OrderError, Phase, Place, permute
from manifests.packing import Int64
from trainer.data.corpus import Component

__all__ = ["IGNORED", "PERIOD", "Batch", "Budget", "Loader", "LoaderError", "Phase", "Place", "permute"]

LoaderError = OrderError
"""A mixture that cannot be served: an unknown component, a weight too small, or too many epochs."""

IGNORED = -100
"""Target of a padding slot: no loss is taken there."""


@dataclass(frozen=True)
class Batch:
    """n rows of T. tokens, targets int64 (IGNORED on padding); segments int32: the piece within its row, -1 on padding;
    components int64 (n,): index into the loader's components."""

    tokens: Int64
    targets: Int64
    segments: npt.NDArray[np.int32]
    components: Int64


class Loader(Order[Component]):
    """Serves rows of `components` (one split) packed to `sequence_length`."""

    def batch(self, positions: Int64) -> Batch:
        """The rows at `positions`, as arrays. All but the copying of each piece is done for all rows at once."""
        place = self.locate(positions)
        rows, length, bos = len(positions), self.sequence_length, self.components[0].bos
        tokens = np.empty(rows * length, np.int64)
        free = np.arange(rows) * length
        parts = [
            self._copy(number, np.flatnonzero(place.component == number), place, tokens, free) for number in self._there(place)
        ]
        at, lengths, segment, following = (np.concatenate(part) for part in zip(*parts, strict=True))
        targets = np.empty_like(tokens)
        targets[:-1] = tokens[1:]
        targets[at + lengths - 1] = following
        room = (np.arange(rows) + 1) * length - free
        padded = np.flatnonzero(room)
        for begin, count in zip(free[padded].tolist(), room[padded].tolist(), strict=True):
            tokens[begin : begin + count] = bos
            targets[begin : begin + count] = IGNORED
        begins = np.concatenate((at, free[padded]))
        counts = np.concatenate((lengths, room[padded]))
        marks = np.concatenate((segment, np.full(len(padded), -1))).astype(np.int32)
        order = np.argsort(begins)
        shape = (rows, length)
        segments = np.repeat(marks[order], counts[order])
        return Batch(tokens.reshape(shape), targets.reshape(shape), segments.reshape(shape), place.component)

    def _there(self, place: Place) -> list[int]:
        found: list[int] = np.unique(place.component).tolist()
        return found

    def _copy(self, number: int, mine: Int64, place: Place, tokens: Int64, free: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Puts the pieces of the rows `mine`, of one component, where they belong among `tokens`, and moves each row's first free
        slot, `free`. Gives of each piece: its first slot, its length, its number in its row, and its last target."""
        component, plan = self.components[number], self.plans[number]
        first = plan.first_piece[place.row[mine]]
        counts = plan.first_piece[place.row[mine] + 1] - first
        ends = np.cumsum(counts)
        nth = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
        pieces = np.repeat(first, counts) + nth
        begins, lengths = plan.begin[pieces], plan.length[pieces].astype(np.int64)
        filled = np.cumsum(lengths)
        before = np.repeat((filled - lengths)[ends - counts], counts)
        at = np.repeat(mine * self.sequence_length, counts) + filled - lengths - before
        free[mine] += np.add.reduceat(lengths, ends - counts)
        shards = np.searchsorted(component.shard_starts, begins, side="right") - 1
        local = begins - component.shard_starts[shards]
        for shard, source, slot, length in zip(shards.tolist(), local.tolist(), at.tolist(), lengths.tolist(), strict=True):
            tokens[slot : slot + length] = component.shard(shard)[source : source + length]
        documents = component.document(begins)
        last = begins + lengths == component.starts[documents] + component.lengths[documents]
        following = np.full(len(pieces), component.bos, np.int64)
        for piece in np.flatnonzero(~last).tolist():
            following[piece] = component.shard(int(shards[piece]))[local[piece] + lengths[piece]]
        return at, lengths, nth, following
