"""Training runs beside a corpus: what they had of it, of a document, and of documents that are to go."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests.audit.training import Consumed, Run
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.trained_on import Ledger, LedgerError, Stretch, equal_stretches, read_ledger

AT_ONCE_SECONDS = 2.0
"""How long an answer waits for a run whose rows are still being packed."""
NOT_YET = "its rows are still being packed as the trainer packed them: load this page again later"


@dataclass(frozen=True)
class Trained:
    """How many documents of some that were asked for a run had itself; None: it cannot be told, `because`."""

    run: str
    documents: int | None
    tokens: int = 0
    because: str = ""


@dataclass(frozen=True)
class About:
    """A run as the first page tells of it. passes: component → how often the run went through it; None: not known, `because`."""

    run: str
    steps: int
    passes: dict[str, float] | None
    because: str = ""


class NotYet(LedgerError):
    """The run cannot be asked yet."""


class Runs:
    """Runs by their folders. Each is opened once, in the background: the rows of a million documents are packed in about eight
    seconds of processor. They are asked through the logs of whoever asks."""

    def __init__(self, ledgers: dict[str, Ledger] | None = None) -> None:
        self._ledgers = ledgers or {}
        self._opened: dict[str, Future[Run]] = {one: Future() for one in self._ledgers}
        self._passes: dict[str, dict[str, float]] = {}
        self._stretches: dict[str, tuple[list[Stretch], Stretch]] = {}

    @staticmethod
    def of(folders: Sequence[str], corpus: Folder, manifest: Manifest) -> Runs:
        """LedgerError for a folder that is no run, or whose ledger is damaged."""
        runs = Runs({one: read_ledger(Path(one)) for one in folders})
        threading.Thread(target=runs._open, args=(corpus, manifest), daemon=True).start()
        return runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._ledgers)

    def steps(self, name: str) -> int:
        return self._ledgers[name].last_step

    def opened(self, name: str) -> Run:
        """NotYet where that takes longer; LedgerError where its ledger is not of the shards that it names."""
        try:
            return self._opened[name].result(AT_ONCE_SECONDS)
        except TimeoutError:
            raise NotYet(NOT_YET) from None

    def consumed(self, logs: Logs, document: dict[str, Any]) -> list[Consumed]:
        """What each run had of a document, by its row in the document log."""
        found = []
        for name in self:
            try:
                through = copy.copy(self.opened(name))
                through.logs = logs
                found.append(through.consumed(document))
            except LedgerError as error:
                found.append(Consumed(name, self.steps(name), "unknown", str(error)))
        return found

    def trained_on(self, documents: Sequence[dict[str, Any]]) -> list[Trained]:
        """How many of these documents each run had, by their rows in the document log."""
        found = []
        for name in self:
            try:
                run = self.opened(name)
            except LedgerError as error:
                found.append(Trained(name, None, because=str(error)))
                continue
            if run.joined is None:
                found.append(Trained(name, None, because="it was trained on another corpus: their pages tell"))
                continue
            targets = run.joined.targets_of(documents)
            found.append(Trained(name, sum(one > 0 for one in targets), sum(targets)))
        return found

    def about(self) -> list[About]:
        """Each run; what it took is counted once."""
        found = []
        for name in self:
            try:
                found.append(self._about(name, self.opened(name)))
            except LedgerError as error:
                found.append(About(name, self.steps(name), None, str(error)))
        return found

    def stretches(self, logs: Logs, name: str) -> tuple[list[Stretch], Stretch] | None:
        """A run in stretches of steps, and all of it; None where it was trained on another corpus. Counted once."""
        run = self.opened(name)
        if run.joined is None or not self.steps(name):
            return None
        if name not in self._stretches:
            self._stretches[name] = run.joined.stretches(logs, equal_stretches(1, self.steps(name)))
        return self._stretches[name]

    def _open(self, corpus: Folder, manifest: Manifest) -> None:
        for name, opened in self._opened.items():
            try:
                with Logs(corpus, manifest, only=()) as logs:
                    opened.set_result(Run(name, logs))
            except Exception as error:
                opened.set_exception(error if isinstance(error, LedgerError) else LedgerError(f"{name} cannot be read: {error}"))

    def _about(self, name: str, run: Run) -> About:
        if run.joined is not None:
            if name not in self._passes:
                self._passes[name] = run.joined.passes()
            return About(name, self.steps(name), self._passes[name])
        assert run.elsewhere is not None
        why_not = "" if run.elsewhere.joined is not None else f", {run.elsewhere.why_not}"
        return About(name, self.steps(name), None, run.elsewhere.other + why_not)
