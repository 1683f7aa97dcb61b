"""What a person sees while a recipe runs: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from manifests.terminal import terminal, visible
from pipeline.receipts import Receipt

PLAIN_SECONDS = 10.0
"""Without a terminal, a line about a running step at most this often."""


class Bar(Protocol):
    def advance(self, receipt: Receipt) -> None: ...


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
    def step(self, name: str, about: str, parts: int, finished: int) -> Iterator[Bar]:
        """A step of `parts`, of which `finished` were done before."""
        made = _Rates()
        if self.console.is_terminal and not self.quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            with RichProgress(*columns, console=self.console, transient=True) as shown:
                task = shown.add_task(f"{name}: {about}", total=parts, completed=finished, rate="")
                yield _RichBar(shown, task, made)
        else:
            yield _PlainBar(self, name, parts, finished, made)
        kept = f", {made.removed:,} removed" if made.documents else ""
        again = f" ({finished} done before)" if finished else ""
        self.line(f"{name}: {parts} parts{again}{kept}; {made.text()}")


class _Rates:
    def __init__(self) -> None:
        self.started = time.monotonic()
        self.documents = 0
        self.removed = 0
        self.bytes = 0

    def add(self, receipt: Receipt) -> None:
        if receipt.counts:
            self.documents += receipt.counts[0].documents_in
            self.bytes += sum(one.bytes for one in receipt.inputs) or receipt.counts[0].bytes_in
        self.removed += sum(sum(count.removed.values()) for count in receipt.counts)

    def text(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-3)
        if not self.documents:
            return f"{seconds:.1f} s"
        rates = f"{self.documents / seconds:,.0f}/s, {self.bytes / seconds / 1e6:.1f} MB/s"
        return f"{self.documents:,} documents, {rates}, {seconds:.1f} s"


class _RichBar:
    def __init__(self, shown: RichProgress, task: object, made: _Rates) -> None:
        self.shown, self.task, self.made = shown, task, made

    def advance(self, receipt: Receipt) -> None:
        self.made.add(receipt)
        self.shown.update(self.task, advance=1, rate=self.made.text())  # type: ignore[arg-type]


class _PlainBar:
    def __init__(self, progress: Progress, name: str, parts: int, finished: int, made: _Rates) -> None:
        self.progress, self.name, self.parts, self.finished, self.made = progress, name, parts, finished, made
        self.said = time.monotonic()

    def advance(self, receipt: Receipt) -> None:
        self.made.add(receipt)
        self.finished += 1
        if time.monotonic() - self.said > PLAIN_SECONDS:
            self.said = time.monotonic()
            left = (self.parts - self.finished) * (time.monotonic() - self.made.started) / max(1, self.finished)
            self.progress.line(f"{self.name}: {self.finished} of {self.parts} parts; {self.made.text()}; about {left:.0f} s left")
            sys.stderr.flush()
