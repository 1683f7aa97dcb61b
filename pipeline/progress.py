"""What a person sees while a recipe runs: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from manifests.terminal import terminal, visible
from pipeline.resources import MIB
from pipeline.tally import StepTally, Tally

PLAIN_SECONDS = 10.0
"""Without a terminal, a line about a running step at most this often."""
SHOWN_RULES = 3
TABLE_SHARE = 0.005
"""Steps and stages that took less than this share of all processor time are summed up in one line."""


class Bar(Protocol):
    def advance(self) -> None: ...


class Progress:
    """`verbose` prints the trace of a failing part too."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.console = terminal(stderr=True, quiet=quiet)

    def line(self, text: str) -> None:
        self.console.print(visible(text), soft_wrap=True)

    def failure(self, step: str, part: str, error: str, trace: str | None) -> None:
        self.line(f"{step} part {part} failed: {error}")
        if self.verbose and trace:
            self.line(trace)

    @contextlib.contextmanager
    def step(self, tally: StepTally) -> Iterator[Bar]:
        """Shows a step while the block lasts, and a line about it at its end; the bar is to be told of every part in `tally`."""
        if self.console.is_terminal and not self.quiet:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
            )
            bar = RichProgress(*columns, console=self.console)
            with Live(console=self.console, transient=True) as live:
                shown = _Shown(bar, live, tally)
                shown.advance()
                yield shown
        else:
            with _Plain(self, tally) as plain:
                yield plain
        tally.tick()
        again = f" ({tally.before:,} done before)" if tally.before else ""
        failed = f", {tally.failed:,} failed" if tally.failed else ""
        self.line(f"{tally.name}: {_of(tally)} parts{again}{failed}; {'; '.join(rates(tally))}")

    def times(self, tally: Tally) -> None:
        """Where the time went, as a table."""
        if not self.quiet and any(step.done for step in tally.steps):
            self.console.print(times(tally))


def rates(step: StepTally) -> list[str]:
    """How fast a step is, in words, and by which rules it removes."""
    seconds = max(step.seconds, 1e-3)
    if not step.documents:
        return [span(step.seconds)]
    fast = f"{step.documents:,} documents in {span(step.seconds)}, {step.documents / seconds:,.0f}/s"
    size = f", {step.bytes / seconds / 1e6:,.1f} MB/s" if step.bytes else ""
    return [fast + size, *removals(step.removed, step.documents)]


def removals(removed: Counter[str], documents: int) -> list[str]:
    """What was removed and by which rules most, if anything was."""
    if not sum(removed.values()):
        return []
    most = sorted(removed.items(), key=lambda one: (-one[1], one[0]))
    shown = ", ".join(f"{rule} {number / documents:.1%}" for rule, number in most[:SHOWN_RULES])
    more = f", {len(most) - SHOWN_RULES} more rules" if len(most) > SHOWN_RULES else ""
    return [f"{sum(removed.values()):,} removed ({sum(removed.values()) / documents:.1%}): {shown}{more}"]


def span(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return (
        f"{minutes} min"
        if minutes < 120
        else f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes < 2880
        else f"{minutes / 1440:.1f} days"
    )


def times(tally: Tally) -> Table:
    """Steps and the stages within them by the processor time that their parts took in this run."""
    table = Table(box=None, pad_edge=False, title="where the time went", title_justify="left")
    headings = ("step", "parts", "CPU s", "share", "wall s", "documents/CPU s", "peak MiB", "of declared")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
    total = max(1e-9, sum(step.cpu_seconds for step in tally.steps))
    small: list[StepTally] = []
    for step in tally.steps:
        if not step.done:
            continue
        if step.cpu_seconds < TABLE_SHARE * total:
            small.append(step)
            continue
        rate = f"{step.documents / step.cpu_seconds:,.0f}" if step.documents and step.cpu_seconds else ""
        memory = (f"{step.peak_bytes / MIB:,.0f}", f"{step.peak_bytes / step.resources.memory:.0%}")
        table.add_row(
            step.name,
            f"{step.done:,}",
            f"{step.cpu_seconds:,.1f}",
            f"{step.cpu_seconds / total:.1%}",
            f"{step.seconds:,.1f}",
            rate,
            *memory,
        )
        within = sum(step.stages.values())
        for stage, seconds in step.stages.most_common() if len(step.stages) > 1 else ():
            share = step.cpu_seconds * seconds / max(within, 1e-9) / total
            if share >= TABLE_SHARE:
                table.add_row(f"  {stage}", "", "", f"{share:.1%}", "", "", "", "")
    if small:
        cpu = sum(step.cpu_seconds for step in small)
        wall = sum(step.seconds for step in small)
        table.add_row(
            f"{len(small)} more steps",
            f"{sum(step.done for step in small):,}",
            f"{cpu:,.1f}",
            f"{cpu / total:.1%}",
            f"{wall:,.1f}",
            "",
            "",
            "",
        )
    parts = sum(step.done for step in tally.steps)
    table.add_row(
        "all", f"{parts:,}", f"{total:,.1f}", "100.0%", f"{(tally.ended or time.time()) - tally.started:,.1f}", "", "", ""
    )
    return table


def _of(step: StepTally) -> str:
    done = step.before + step.done
    return f"{done:,}" if done == step.parts else f"{done:,} of {step.parts:,}"


class _Shown:
    """A bar, and below it what the step does to documents."""

    def __init__(self, bar: RichProgress, live: Live, step: StepTally) -> None:
        self.bar, self.live, self.step = bar, live, step
        self.task = bar.add_task(step.name, total=step.parts, completed=step.before, left="")

    def advance(self) -> None:
        step = self.step
        left = "" if step.left is None else f"{span(step.left)} left"
        self.bar.update(self.task, completed=step.before + step.done, left=left)
        said = rates(step) if step.done else [step.about]
        below = [Text(f"  {visible(text)}", style="dim", no_wrap=True, overflow="ellipsis") for text in said]
        self.live.update(Group(self.bar, *below))


class _Plain:
    """A line every PLAIN_SECONDS, whether a part has ended or not: a large one may take an hour."""

    def __init__(self, progress: Progress, step: StepTally) -> None:
        self.progress, self.step = progress, step
        self.began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, name=f"progress of {step.name}", daemon=True)

    def __enter__(self) -> _Plain:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def advance(self) -> None:
        """The line comes by the clock."""

    def _speak(self) -> None:
        while not self._ended.wait(PLAIN_SECONDS):
            step = self.step
            left = "" if step.left is None else f"; about {span(step.left)} left"
            said = "; ".join(rates(step)) if step.done else f"{span(time.monotonic() - self.began)} so far"
            self.progress.line(f"{step.name}: {_of(step)} parts; {said}{left}")
            sys.stderr.flush()
