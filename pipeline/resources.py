"""What a part may take of a machine, and what it took.

A step declares processor, memory and GPU for each of its parts; Ray starts a part only on a node that has as much left. What a
part took is observed and goes onto its receipt, beside what decides: no fingerprint and no byte of the corpus depends on either.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

MIB = 1 << 20
GIB = 1 << 30
SAMPLE_SECONDS = 0.25
"""How often the memory of a part and its child processes is looked at, which alone sees a child that has ended."""
TICKS = os.sysconf("SC_CLK_TCK")
Batch = TypeVar("Batch")
UNITS = {"": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}


class ResourceError(ValueError):
    """Resources that are none, or are asked for a step that is not there."""


@dataclass(frozen=True)
class Resources:
    """Of one part: processors, bytes of memory (child processes included), GPUs."""

    cpus: float = 1.0
    memory: int = GIB
    gpus: float = 0.0

    def changed(self, written: str) -> Resources:
        """`cpus=2,memory=4GiB,gpus=1`, each optional; ResourceError when it is not so."""
        found: dict[str, Any] = {}
        read: dict[str, Callable[[str], float]] = {"cpus": float, "gpus": float, "memory": _bytes}
        for pair in written.split(","):
            name, sign, value = (word.strip() for word in pair.partition("="))
            try:
                found[name] = read[name](value)
            except (KeyError, ValueError, OverflowError):
                raise ResourceError(f"{pair!r}: write cpus=2, memory=4GiB or gpus=1, with commas between") from None
            if not sign or not 0 <= found[name] < float("inf") or (name != "gpus" and not found[name]):
                raise ResourceError(f"{pair!r}: a number above zero is needed")
        return replace(self, **found)


class Clock:
    """Seconds that a part spends in each of its stages, as `run["stages"]`; a stage waits for its child processes, whose time is
    thus in them."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._spent: dict[str, float] = run.setdefault("stages", {})

    @contextlib.contextmanager
    def times(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spent[stage] = round(self._spent.get(stage, 0.0) + time.perf_counter() - began, 6)

    def reading(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; the time that it takes to make one is the stage `read`."""
        while True:
            with self.times("read"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def _bytes(written: str) -> int:
    number = written.rstrip("iBKMGTkmgt")
    unit = written[len(number) :].upper().removesuffix("B").removesuffix("I")
    return int(float(number) * UNITS[unit])


@contextlib.contextmanager
def observed(run: dict[str, Any]) -> Iterator[None]:
    """Adds to `run` what the block took: `seconds`, `cpu_seconds` and `peak_bytes`, those of child processes included."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forgets the highest memory until now
    began, cpu = time.perf_counter(), _cpu_seconds()
    done, most = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            most[0] = max(most[0], _resident(os.getpid(), "VmRSS") + sum(_resident(pid, "VmRSS") for pid in _descendants()))

    watcher = threading.Thread(target=watch, name="memory of this part", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        run["seconds"] = round(time.perf_counter() - began, 4)
        run["cpu_seconds"] = round(max(0.0, _cpu_seconds() - cpu), 4)
        run["peak_bytes"] = max(most[0], _resident(os.getpid(), "VmHWM"))


def _cpu_seconds() -> float:
    """Of this process, its ended children, and those that live with all that ended below them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(_ticks(pid) for pid in _descendants()) / TICKS


def _descendants() -> list[int]:
    found, asked = [], [os.getpid()]
    while asked:
        below = []
        for pid in asked:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                        below += [int(word) for word in file.read().split()]
        found += below
        asked = below
    return found


def _ticks(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as file:
        return sum(int(word) for word in file.read().rpartition(")")[2].split()[11:15])
    return 0


def _resident(pid: int, which: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(f"{which}:"):
                return int(line.split()[1]) << 10
    return 0
