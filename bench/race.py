"""Two programs on the same work, in turns, in one process and on one core; what counts is CPU time, of their children too.

CPU time and not the clock, since a shared machine takes turns as well; in turns, since its caches and its clock rate change.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Side:
    """`work(prepare(items))` is done for a share of `items` a round; only `work` is timed. `seconds` is CPU time."""

    work: Callable[[Any], Any]
    items: list[Any]
    prepare: Callable[[list[Any]], Any] = field(default=lambda items: items)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Items a second of CPU time."""
        return len(self.items) / self.seconds

    def turn(self, number: int, rounds: int) -> None:
        prepared = self.prepare(self.items[number::rounds])
        began = cpu_seconds()
        self.work(prepared)
        self.seconds += cpu_seconds() - began


def race(peer: Side, ours: Side, rounds: int = 5, warm: int = 3) -> None:
    """Runs both sides in turns, each item once; before that, `warm` items a side that do not count (models, compilation)."""
    for side in (peer, ours):
        side.work(side.prepare(side.items[:warm]))
    for number in range(rounds):
        for side in (peer, ours):
            side.turn(number, rounds)


def report(work: str, peer: str, peer_rate: float, our_rate: float, bar: float | None, unit: str = "documents/s") -> None:
    """Prints a row of the table of docs/benchmarks.md. `bar` is the ratio that is wanted; a rate where it is above 1,000."""
    ratio = our_rate / peer_rate
    if bar is None:
        wanted = ""
    elif bar > 1000:
        wanted = f">= {bar:,.0f} {unit}{'' if our_rate >= bar else '  MISSED'}"
    else:
        wanted = f">= {bar:g}x{'' if ratio >= bar else '  MISSED'}"
    print(f"\n| {work} | {peer} {_rounded(peer_rate)} | {_rounded(our_rate)} | {ratio:,.2f} | {wanted} |", end="")


def cpu_seconds() -> float:
    """CPU time of this process, of its living descendants, and of those that have ended and were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_used, _descendants(os.getpid())))


@contextmanager
def one_core() -> Iterator[None]:
    """This process, and the children that it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _descendants(process: int) -> Iterator[int]:
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except OSError:
            continue  # it ended in between
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _used(process: int) -> float:
    """User and system time of a process and of its ended children; proc(5), fields 14 to 17."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
