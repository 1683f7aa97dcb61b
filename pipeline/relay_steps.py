"""Where a shuffle needs relays (pipeline.relays): when its files times its partitions are too many to ask for one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

from pipeline.receipts import Receipt
from pipeline.steps import Done, Layout, paths, prints, work
from pipeline.work import Work

MOST_PIECES = 1 << 20
"""Files times partitions that are read directly: 4 requests of an object store each, so 1.70 dollars at 0.40 a million."""
RELAY_FILES = 8192
"""That one relay reads at most: with so many and more, a stream is the work of several."""


@dataclass(frozen=True)
class Shape:
    """A shuffle from so many files to so many partitions."""

    files: int
    partitions: int

    @property
    def relayed(self) -> bool:
        return self.files * self.partitions > MOST_PIECES

    @property
    def groups(self) -> int:
        return -(-self.files // RELAY_FILES)

    @property
    def width(self) -> int:
        """Neighbouring partitions that share a stream."""
        return 1 + isqrt(self.partitions - 1) if self.relayed and self.partitions > 1 else 1

    @property
    def residues(self) -> int:
        """Streams of files that are partitioned by a remainder: as many as partitions, or their root in powers of two."""
        return 1 << (self.partitions.bit_length() // 2) if self.relayed else self.partitions


class Relay:
    """How the files of `role`, which the parts of `writing` write, get to their readers.

    It may be several shuffles (lanes), one behind the other: `shapes` tells what each is as soon as `writing` can be planned, and
    `receipts` gives the parts of each when they are done. `column`: what the partition is the remainder of.

    `expected` is what it might be at most, as far as the input's size tells, and from it follows whether there is a step. Where
    it is wrong, files are read directly, which costs requests and changes nothing.
    """

    def __init__(
        self,
        layout: Layout,
        writing: str,
        role: str,
        expected: Shape,
        shapes: Callable[[Done], Sequence[Shape]],
        receipts: Callable[[Done], Sequence[Sequence[Receipt]]] | None = None,
        column: str | None = None,
    ) -> None:
        self.role, self.shapes, self.column = role, shapes, column
        self.receipts = receipts or (lambda done: [done[writing]])
        self.name = f"{writing}.{role}.relay" if expected.relayed else None
        if self.name is not None:
            layout.add(self.name, f"bring {role} of near partitions together", [writing], self._works)

    @property
    def steps(self) -> list[str]:
        """What a reader needs beside the writing step."""
        return [self.name] if self.name is not None else []

    def width(self, done: Done, lane: int = 0) -> int:
        """What the writer is given."""
        return self.shapes(done)[lane].width if self.name is not None else 1

    def residues(self, done: Done, lane: int = 0) -> int:
        """The same of one whose partitions are remainders."""
        shape = self.shapes(done)[lane]
        return shape.residues if self.name is not None else shape.partitions

    def files(self, done: Done, lane: int = 0) -> Any:
        """What readers are given: see `shuffle.Files`."""
        shapes = self.shapes(done)
        shape = shapes[lane]
        if self.name is None or not shape.relayed:
            return paths(self.receipts(done)[lane], self.role)
        before = sum(self._streams(one) * one.groups for one in shapes[:lane] if one.relayed)
        streams = self._streams(shape)
        mine = done[self.name][before : before + streams * shape.groups]
        width = shape.width if self.column is None else None
        return {
            "files": paths(mine, "relay"),
            "groups": shape.groups,
            "streams": streams,
            "width": width,
        }

    def _streams(self, shape: Shape) -> int:
        return shape.residues if self.column is not None else -(-shape.partitions // shape.width)

    def _works(self, done: Done) -> list[Work]:
        assert self.name is not None
        made = []
        for lane, (shape, receipts) in enumerate(zip(self.shapes(done), self.receipts(done), strict=True)):
            if not shape.relayed:
                continue
            names, upstream = paths(receipts, self.role), prints(receipts)
            streams = self._streams(shape)
            arguments = {
                "column": self.column,
                "streams": streams,
                "partitions": shape.partitions,
                "width": shape.width if self.column is None else None,
            }
            for stream in range(streams):
                for group in range(shape.groups):
                    first, last = (min(shape.files, number * RELAY_FILES) for number in (group, group + 1))
                    made.append(
                        work(
                            self.name,
                            f"{lane}-{stream:05d}-{group:03d}",
                            "relay",
                            {**arguments, "stream": stream, "first": first},
                            (upstream.part(first, last),),
                            {"files": names.part(first, last), "first": first},
                        )
                    )
        return made
