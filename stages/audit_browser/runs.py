"""Training runs beside a corpus: what they had of it, of a document, and of documents that are to go."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from manifests.audit.training import Consumed, Run
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.trained_on import LedgerError, Stretch, equal_stretches


@dataclass(frozen=True)
class Trained:
    """How many documents of some that were asked for a run had itself; None: it cannot be told of many at once."""

    run: str
    documents: int | None
    tokens: int = 0


@dataclass(frozen=True)
class About:
    """A run as the first page tells of it. passes: component → how often the run went through it; None where it was trained on
    another corpus, `because`."""

    run: str
    steps: int
    passes: dict[str, float] | None
    because: str = ""


@dataclass
class Runs:
    """Runs by their folders, each opened once. They are asked through the logs of whoever asks."""

    opened: dict[str, Run] = field(default_factory=dict)
    _about: list[About] | None = None
    _stretches: dict[str, tuple[list[Stretch], Stretch]] = field(default_factory=dict)

    @staticmethod
    def of(folders: Sequence[str], corpus: Folder, manifest: Manifest) -> Runs:
        """LedgerError for a folder that is no run, or whose ledger is damaged."""
        with Logs(corpus, manifest, only=()) as logs:
            return Runs({one: Run(one, logs) for one in folders})

    def __iter__(self) -> Iterator[str]:
        return iter(self.opened)

    def consumed(self, logs: Logs, document: dict[str, Any]) -> list[Consumed]:
        """What each run had of a document, by its row in the document log."""
        found = []
        for name, run in self.opened.items():
            through = copy.copy(run)
            through.logs = logs
            try:
                found.append(through.consumed(document))
            except LedgerError as error:
                found.append(Consumed(name, run.ledger.last_step, "unknown", str(error)))
        return found

    def trained_on(self, documents: Sequence[dict[str, Any]]) -> list[Trained]:
        """How many of these documents each run had, by their rows in the document log."""
        found = []
        for name, run in self.opened.items():
            if run.joined is None:
                found.append(Trained(name, None))
                continue
            targets = run.joined.targets_of(documents)
            found.append(Trained(name, sum(one > 0 for one in targets), sum(targets)))
        return found

    def about(self) -> list[About]:
        """Each run; counted once."""
        if self._about is None:
            self._about = [_about(name, run) for name, run in self.opened.items()]
        return self._about

    def stretches(self, logs: Logs, name: str) -> tuple[list[Stretch], Stretch] | None:
        """A run in stretches of steps, and all of it; None where it was trained on another corpus. Counted once."""
        run = self.opened[name]
        if run.joined is None or not run.ledger.last_step:
            return None
        if name not in self._stretches:
            self._stretches[name] = run.joined.stretches(logs, equal_stretches(1, run.ledger.last_step))
        return self._stretches[name]


def _about(name: str, run: Run) -> About:
    if run.joined is not None:
        return About(name, run.ledger.last_step, run.joined.passes())
    assert run.elsewhere is not None
    why_not = "" if run.elsewhere.joined is not None else f", {run.elsewhere.why_not}"
    return About(name, run.ledger.last_step, None, run.elsewhere.other + why_not)
