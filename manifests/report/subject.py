"""What the sections of a report are about: one corpus, read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manifests.audit.flow import stages_of
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.mixture import Plan
from manifests.overview import by_licence
from manifests.report import figures
from manifests.report.distributions import Distribution

LANGUAGES_SHOWN = 20
COMPONENTS_SHOWN = 40
SPLIT_COLOURS = {"train": "kept", "validation": "second", "test": "fourth"}
PageOf = Callable[[str, str], str]
"""("rule", "language" or "domain", its name) → its page in a browser; of ("", "") the first one. Begins with a slash."""


class Subject:
    """A corpus, the runs that are shown with it, and what several sections count."""

    def __init__(
        self,
        manifest: Manifest,
        logs: Logs,
        runs: Sequence[figures.RunFigures] = (),
        planned: Plan | None = None,
        signals: Sequence[Distribution] = (),
        page_of: PageOf | None = None,
    ) -> None:
        self.manifest, self.content, self.logs = manifest, manifest.content, logs
        self.runs, self.planned, self.signals = runs, planned, signals
        self.stages = stages_of(self.content)
        self.documents_in = sum(component.documents_in for component in self.content.components.values())
        self.kept = sum(component.documents_kept for component in self.content.components.values())
        self.licences = by_licence(self.content)
        self.tokens = sum(one.all_tokens for one in self.licences)
        self.languages = figures.languages_of(logs)
        self._page_of = page_of

    def page_of(self, what: str, name: str) -> str | None:
        """Where a browser shows a rule, language or domain; None where there is no browser."""
        return None if self._page_of is None else self._page_of(what, name)
