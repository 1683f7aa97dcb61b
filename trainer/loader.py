"""Rows of a corpus as arrays, in the order of `manifests.order`, whose whole state is one integer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manifests.order import PERIOD, Budget, Order, OrderError, Phase, Place, permute
from manifests.packing import Int64
from trainer.corpus import Component

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
        """The rows at `positions`, as arrays."""
        place = self.locate(positions)
        shape = (len(positions), self.sequence_length)
        bos = self.components[0].bos
        tokens = np.full(shape, bos, np.int64)
        targets = np.full(shape, IGNORED, np.int64)
        segments = np.full(shape, -1, np.int32)
        for n, (number, row) in enumerate(zip(place.component.tolist(), place.row.tolist(), strict=True)):
            component, plan = self.components[number], self.plans[number]
            pieces = slice(int(plan.first_piece[row]), int(plan.first_piece[row + 1]))
            begins = plan.begin[pieces]
            documents = component.document(begins)
            ends = component.starts[documents] + component.lengths[documents]
            at = 0
            lengths = plan.length[pieces].tolist()
            for segment, (begin, length, end) in enumerate(zip(begins.tolist(), lengths, ends.tolist(), strict=True)):
                last = begin + length == end
                read = component.read(begin, length if last else length + 1)
                tokens[n, at : at + length] = read[:length]
                targets[n, at : at + len(read) - 1] = read[1:]
                if last:
                    targets[n, at + length - 1] = bos
                segments[n, at : at + length] = segment
                at += length
        return Batch(tokens, targets, segments, place.component)
