"""One training run: what it took of the corpus, by steps."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from manifests.logs import Logs
from manifests.trained_on import DIMENSIONS, LedgerError, Stretch
from stages.audit_browser.asked import BadQuestion, word
from stages.audit_browser.browser import Browser
from stages.audit_browser.questions import CorpusUnreadable, Stop, TooLong
from stages.audit_browser.runs import About, NotYet

LARGEST = 20
"""Languages and domains of a run that are shown."""


async def run(browser: Browser, request: Request) -> Response:
    name = word(request.query_params, "name")
    if name not in set(browser.runs):
        raise BadQuestion(f"no run {name} was given: `corpusmill audit serve CORPUS --run RUN`", 404)

    def question(logs: Logs, stop: Stop) -> tuple[tuple[list[Stretch], Stretch] | None, str | None]:
        try:
            elsewhere = browser.runs.opened(name).elsewhere
            return browser.runs.stretches(logs, name), None if elsewhere is None else elsewhere.other
        except NotYet as error:
            raise BadQuestion(str(error), 503) from None
        except LedgerError as error:
            raise BadQuestion(str(error), 500) from None

    found, other = await browser.ask(request, question)
    whole = list(found[1].rows()) if found else []
    return browser.page(
        request,
        "run.html",
        run=name,
        label=Path(name).name or name,
        steps=browser.runs.steps(name),
        other=other,
        stretches=found[0] if found else [],
        taken=found[1].taken if found else None,
        by={dimension: [row for row in whole if row["dimension"] == dimension] for dimension in DIMENSIONS},
        largest=LARGEST,
    )


async def about_runs(browser: Browser, request: Request) -> tuple[list[About], str | None]:
    """For the first page, which is shown whatever becomes of this: (each run, why they could not be counted)."""
    if not list(browser.runs):
        return [], None
    try:
        return await browser.ask(request, lambda logs, stop: browser.runs.about()), None
    except (CorpusUnreadable, TooLong) as error:
        return [], str(error)
