"""The order of training rows, as arithmetic: row = f(shard list, T, mixture, seed, position).

There is no iterator to save. A *position* counts rows since the start of training, over all ranks, and says by itself which
component, which epoch and which packed row stands there. So the whole state of a loader is one integer: resuming takes
no time, is exact, and works on any number of ranks. And whoever has a corpus and a run's ledger can tell what the run
consumed, without the trainer.

Promises:
- without weights, each epoch serves every row of every component exactly once, in an order of its own;
- with weights, components get target tokens in proportion to their weights, exact over each PERIOD of rows and never far
  from it between, and each component's own epochs serve each of its rows once before the next begins;
- another shard list, T, mixture or seed gives another order and another `digest`, and a run refuses to go on with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from manifests.manifest import Shard, digest
from manifests.packing import WINDOW, Int64, Packing, Plan, pack

UInt64 = npt.NDArray[np.uint64]

PERIOD = 1 << 16
"""Rows after which a weighted mixture's counts are exact; also the resolution of its weights."""

ORDER_VERSION = 1
"""Bump whenever the same inputs give another order."""

FEISTEL_ROUNDS = 6
SMALLEST_HALF_BITS = 4
"""Narrower Feistel halves have too few round functions to reach most orders; a small domain walks a few times more."""


class OrderError(Exception):
    """A mixture that cannot be served: an unknown component, a weight too small, or too many epochs."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training with its own weights (component: share of target tokens; None: natural). `rows` None: to the end.
    `share` is another way to say how long it is: of the run's target tokens, with a budget that says how long the run is."""

    weights: dict[str, float] | None = None
    rows: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Budget:
    """How long a run is: in rows, or in target tokens."""

    rows: int | None = None
    tokens: int | None = None


class Packed(Protocol):
    """A component of one split, as far as the order of its rows goes. starts, lengths: tokens, int64, one a document; `starts`
    counts over all shards, `lengths` counts BOS."""

    @property
    def name(self) -> str: ...
    @property
    def shards(self) -> tuple[Shard, ...]: ...
    @property
    def starts(self) -> Int64: ...
    @property
    def lengths(self) -> Int64: ...


C = TypeVar("C", bound=Packed)


@dataclass(frozen=True)
class Place:
    """Where rows stand: component, epoch and row of the component's plan, each int64 (n,)."""

    component: Int64
    epoch: Int64
    row: Int64


@dataclass
class _Stream:
    """Rows that share their epochs: one component, or all of them when no weights are given."""

    name: str
    components: Int64
    first_row: Int64

    @property
    def rows(self) -> int:
        return int(self.first_row[-1])


@dataclass
class _Schedule:
    """A phase worked out: `pattern[j]` is the stream of row j of a period, `rank[j]` how many of its rows came before."""

    start: int
    stop: int | None
    streams: list[_Stream]
    pattern: Int64
    rank: Int64
    per_period: Int64
    before: dict[str, int] = field(default_factory=dict)


class Order(Generic[C]):
    """The rows of `components` (one split) packed to `sequence_length`, in the order in which they are served."""

    def __init__(
        self,
        components: Sequence[C],
        sequence_length: int,
        seed: int = 0,
        phases: Sequence[Phase] = (Phase(),),
        window: int = WINDOW,
        budget: Budget | None = None,
        packing: Packing = "best-fit",
    ) -> None:
        """`budget` is needed for phases that are shares of it, and for nothing else."""
        if not components:
            raise OrderError("there is no component to train on")
        self.components = list(components)
        self.sequence_length = sequence_length
        self.plans: list[Plan] = [pack(c.starts, c.lengths, sequence_length, window, packing) for c in components]
        self._targets = [plan.row_targets() for plan in self.plans]
        phases = self._in_rows(phases, budget or Budget())
        self.parameters = {
            "order": ORDER_VERSION,
            "shards": [[c.name, [[s.sha256, s.index_sha256] for s in c.shards]] for c in components],
            "sequence_length": sequence_length,
            "window": window,
            "seed": seed,
            "phases": [[phase.weights, phase.rows] for phase in phases],
            **({} if packing == "best-fit" else {"packing": packing}),
        }
        self.digest = digest(self.parameters)
        self._schedules = self._work_out(phases)
        self._keys: dict[tuple[str, int], UInt64] = {}

    def locate(self, positions: Int64) -> Place:
        """The component, epoch and packed row of each position."""
        place = Place(*(np.empty(len(positions), np.int64) for _ in range(3)))
        for schedule in self._schedules:
            chosen = positions >= schedule.start
            if schedule.stop is not None:
                chosen &= positions < schedule.stop
            for number, stream in enumerate(schedule.streams):
                period, within = np.divmod(positions - schedule.start, len(schedule.pattern))
                mine = np.flatnonzero(chosen & (schedule.pattern[within] == number))
                index = period[mine] * schedule.per_period[number] + schedule.rank[within[mine]]
                epoch, nth = np.divmod(index + schedule.before[stream.name], stream.rows)
                row = np.empty(len(mine), np.int64)
                for one in np.unique(epoch):
                    now = epoch == one
                    row[now] = permute(nth[now], stream.rows, self._key(stream.name, int(one)))
                held = np.searchsorted(stream.first_row, row, side="right") - 1
                place.component[mine] = stream.components[held]
                place.epoch[mine] = epoch
                place.row[mine] = row - stream.first_row[held]
        return place

    def positions_of(self, component: int, row: int, stop: int) -> list[tuple[int, int]]:
        """(position, epoch) of every time that a packed row of a component is served before position `stop`, in turn.
        The inverse of `locate`: nothing is searched."""
        found = []
        for schedule in self._schedules:
            rows = (stop if schedule.stop is None else min(stop, schedule.stop)) - schedule.start
            for number, stream in enumerate(schedule.streams):
                held = np.flatnonzero(stream.components == component)
                if rows <= 0 or not len(held):
                    continue
                wanted = np.array([stream.first_row[held[0]] + row], np.int64)
                before = schedule.before[stream.name]
                served = _count(schedule, number, rows)
                places = np.flatnonzero(schedule.pattern == number)
                for epoch in range(before // stream.rows, (before + served - 1) // stream.rows + 1 if served else 0):
                    nth = int(unpermute(wanted, stream.rows, self._key(stream.name, epoch))[0])
                    index = epoch * stream.rows + nth - before
                    if 0 <= index < served:
                        period, rank = divmod(index, int(schedule.per_period[number]))
                        found.append((schedule.start + period * len(schedule.pattern) + int(places[rank]), epoch))
        return sorted(found)

    def row_targets(self, positions: Int64) -> Int64:
        """Target tokens in each row, without reading any."""
        place = self.locate(positions)
        counts = np.empty(len(positions), np.int64)
        for number, targets in enumerate(self._targets):
            mine = place.component == number
            counts[mine] = targets[place.row[mine]]
        return counts

    def served(self, position: int) -> dict[str, int]:
        """Rows that each component's stream has served in positions 0 to `position`, in closed form."""
        totals: dict[str, int] = {}
        for schedule in self._schedules:
            stop = position if schedule.stop is None else min(position, schedule.stop)
            for number, stream in enumerate(schedule.streams):
                totals[stream.name] = totals.get(stream.name, 0) + _count(schedule, number, stop - schedule.start)
        return totals

    def epochs(self, position: int) -> dict[str, float]:
        """How often each component has been gone through at `position`."""
        served = self.served(position)
        passes = {c.name: 0.0 for c in self.components}
        for name, stream in {s.name: s for schedule in self._schedules for s in schedule.streams}.items():
            for number in stream.components.tolist():
                passes[self.components[number].name] += served.get(name, 0) / stream.rows
        return passes

    def component_targets(self) -> dict[str, int]:
        """Target tokens of each component, once through."""
        return {one.name: int(targets.sum()) for one, targets in zip(self.components, self._targets, strict=True)}

    def targets(self, position: int) -> int:
        """Target tokens in positions 0 to `position`: whole epochs by their sum, and the rows of each stream's last one."""
        total = 0
        for name, rows in self.served(position).items():
            stream = next(s for schedule in self._schedules for s in schedule.streams if s.name == name)
            counts = np.concatenate([self._targets[number] for number in stream.components.tolist()])
            epochs, rest = divmod(rows, stream.rows)
            last = permute(np.arange(rest), stream.rows, self._key(name, epochs))
            total += epochs * int(counts.sum()) + int(counts[last].sum())
        return total

    def fitting(self, max_epochs: float, unit: int) -> tuple[int, str]:
        """(the largest multiple of `unit` rows that repeats no component more often than `max_epochs`, the component that more
        rows would repeat too often)."""

        def over(units: int) -> str | None:
            return next((name for name, passes in self.epochs(units * unit).items() if passes > max_epochs), None)

        fits, beyond = 0, 1
        while over(beyond) is None:
            fits, beyond = beyond, 2 * beyond
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if over(middle) is None else (fits, middle)
        guilty = over(beyond)
        assert guilty is not None
        return fits * unit, guilty

    @cached_property
    def mean_visible_keys(self) -> float:
        """Keys an average query may see under document masking, over all rows once. Worked out once: it takes a pass over all
        pieces."""
        return sum(plan.visible_keys() for plan in self.plans) / sum(plan.pairs_emitted for plan in self.plans)

    def _key(self, stream: str, epoch: int) -> UInt64:
        if (stream, epoch) not in self._keys:
            material = hashlib.sha512(f"{self.digest}\0{stream}\0{epoch}".encode()).digest()
            self._keys[stream, epoch] = np.frombuffer(material, "<u8")[:FEISTEL_ROUNDS].astype(np.uint64)
        return self._keys[stream, epoch]

    def _in_rows(self, phases: Sequence[Phase], budget: Budget) -> Sequence[Phase]:
        """Shares of target tokens as rows. A row of one phase may hold more tokens than a row of another, because components
        pack differently, so that shares of rows would be other shares."""
        if all(phase.share is None for phase in phases):
            return phases
        if any(phase.share is None for phase in phases) or (budget.rows is None) == (budget.tokens is None):
            raise OrderError("phases that are shares of a run need a share each, and the run's rows or its tokens")
        shares = np.array([phase.share for phase in phases], np.float64)
        lengths = shares * np.array([self._rows_a_token(phase) for phase in phases])
        lengths *= budget.tokens / shares.sum() if budget.tokens is not None else (budget.rows or 0) / lengths.sum()
        edges = np.round(np.cumsum(lengths)).astype(np.int64)
        rows = np.diff(edges, prepend=0).tolist()
        if 0 in rows:
            number = rows.index(0)
            raise OrderError(f"phase {number + 1} is {shares[number]:.3%} of the run, which is less than a row: make it longer")
        return [Phase(phase.weights, count) for phase, count in zip(phases[:-1], rows, strict=False)] + [
            Phase(phases[-1].weights)
        ]

    def _rows_a_token(self, phase: Phase) -> float:
        plans = {component.name: plan for component, plan in zip(self.components, self.plans, strict=True)}
        weights = phase.weights or {name: float(plan.pairs_emitted) for name, plan in plans.items()}
        _checked_weights(weights, list(plans))
        each = sum(weight * plans[name].rows / plans[name].pairs_emitted for name, weight in weights.items())
        return each / sum(weights.values())

    def _work_out(self, phases: Sequence[Phase]) -> list[_Schedule]:
        if not phases or phases[-1].rows is not None or any(phase.rows is None for phase in phases[:-1]):
            raise OrderError("every phase but the last has a number of rows, and the last has none")
        names = [component.name for component in self.components]
        schedules: list[_Schedule] = []
        start, served = 0, dict[str, int]()
        for phase in phases:
            stop = None if phase.rows is None else start + phase.rows
            if phase.weights is None and len(phases) == 1:
                streams, shares = [self._stream("*", range(len(names)))], np.ones(1)
            else:
                natural = {n: float(plan.pairs_emitted) for n, plan in zip(names, self.plans, strict=True)}
                weights = _checked_weights(natural if phase.weights is None else phase.weights, names)
                numbers = [number for number, name in enumerate(names) if weights.get(name, 0) > 0]
                streams = [self._stream(names[number], [number]) for number in numbers]
                shares = np.array([weights[names[n]] * self.plans[n].rows / self.plans[n].pairs_emitted for n in numbers])
            pattern, rank, per_period = _interleave(shares, [stream.name for stream in streams])
            schedule = _Schedule(start, stop, streams, pattern, rank, per_period)
            schedule.before = {stream.name: served.get(stream.name, 0) for stream in streams}
            schedules.append(schedule)
            if stop is not None:
                for number, stream in enumerate(streams):
                    served[stream.name] = served.get(stream.name, 0) + _count(schedule, number, stop - start)
                start = stop
        return schedules

    def _stream(self, name: str, numbers: Sequence[int]) -> _Stream:
        rows = [self.plans[number].rows for number in numbers]
        return _Stream(name, np.array(numbers, np.int64), np.concatenate([[0], np.cumsum(rows)]).astype(np.int64))


def permute(index: Int64, size: int, keys: UInt64) -> Int64:
    """A keyed permutation of 0 … size - 1 at the places `index`: a Feistel network on the next even number of bits, walked
    until it falls inside (Black and Rogaway 2002)."""
    if size == 1:
        return np.zeros(len(index), np.int64)
    half = np.uint64(max(SMALLEST_HALF_BITS, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    value = index.astype(np.uint64)
    outside = np.arange(len(value))
    while len(outside):
        left, right = value[outside] >> half, value[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        value[outside] = (left << half) | right
        outside = outside[value[outside] >= size]
    return value.astype(np.int64)


def unpermute(place: Int64, size: int, keys: UInt64) -> Int64:
    """The inverse of `permute`: the indices that it sends to `place`."""
    if size == 1:
        return np.zeros(len(place), np.int64)
    half = np.uint64(max(SMALLEST_HALF_BITS, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    value = place.astype(np.uint64)
    outside = np.arange(len(value))
    while len(outside):
        left, right = value[outside] >> half, value[outside] & mask
        for key in keys[::-1]:
            left, right = right ^ (_mix(left + key) & mask), left
        value[outside] = (left << half) | right
        outside = outside[value[outside] >= size]
    return value.astype(np.int64)


def _mix(value: UInt64) -> UInt64:
    """The finaliser of SplitMix64 (Steele et al. 2014): every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _checked_weights(weights: dict[str, float], names: list[str]) -> dict[str, float]:
    for name, weight in weights.items():
        if name not in names:
            raise OrderError(f"the mixture names component {name!r}; the training split has: {', '.join(names)}")
        if not 0 <= weight < float("inf"):
            raise OrderError(f"weight {weight} of component {name!r} is not a share")
    if not sum(weights.values()):
        raise OrderError("all weights of the mixture are 0")
    return weights


def _interleave(shares: npt.NDArray[np.float64], names: list[str]) -> tuple[Int64, Int64, Int64]:
    """(pattern, rank, per period) of rows in proportion to `shares`, spread evenly over one period."""
    if len(shares) == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64)
    exact = shares / shares.sum() * PERIOD
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: PERIOD - int(counts.sum())]] += 1
    if not counts.all():
        small = names[int(counts.argmin())]
        raise OrderError(f"the weight of component {small!r} is below one row in {PERIOD:,}")
    stream = np.repeat(np.arange(len(counts)), counts)
    rank = np.concatenate([np.arange(count) for count in counts])
    due = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    order = np.lexsort((stream, due))
    return stream[order], rank[order], counts


def _count(schedule: _Schedule, number: int, rows: int) -> int:
    """Rows of stream `number` among the first `rows` of its phase."""
    if rows <= 0:
        return 0
    period, within = divmod(rows, len(schedule.pattern))
    inside = int(np.count_nonzero(schedule.pattern[:within] == number))
    return period * int(schedule.per_period[number]) + inside
