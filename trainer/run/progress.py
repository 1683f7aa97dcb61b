"""What a person sees of a run: a moving bar on a terminal, plain lines elsewhere, nothing on ranks other than the first."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from manifests.terminal import visible as plain

PLAIN_SECONDS = 5.0
"""A plain line at most this often, however many steps that is."""


class RunProgress:
    """`note` prints a fact; `step` shows where training is. Facts go to standard error: standard output is for the result."""

    def __init__(self, visible: bool, every: int) -> None:
        self.visible = visible
        self.every = every
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._last_plain = float("-inf")
        if visible and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("training"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(),
                console=self.console,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=1.0, start=True)

    def note(self, text: str) -> None:
        if self.visible:
            self.console.print(plain(text), markup=False)

    def start(self) -> None:
        if self._bar:
            self._bar.start()

    def step(self, row: dict[str, Any], spent: float) -> None:
        """`row` is a line of the metrics, `spent` the share of the budget used."""
        if not self.visible or (row["step"] % self.every and row["step"] != 1):
            return
        mfu = "" if row["mfu_palm"] is None else f" | MFU {row['mfu_palm']:.1%} (PaLM)"
        text = (
            f"step {row['step']} | loss {row['loss']:.4f} | rate {row['learning_rate']:.2e} | "
            f"{row['tokens_per_second']:,.0f} tokens/s{mfu}"
        )
        if self._bar:
            self._bar.update(self._task, completed=min(spent, 1.0), description=text)
        elif time.monotonic() - self._last_plain >= PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            self.note(f"{text} | {min(spent, 1.0):.0%}")

    def stop(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
