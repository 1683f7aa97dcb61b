"""The first page: the funnel, what removed documents, licences, and what was not checked."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.flow import funnel_rows
from manifests.audit.reviews import summed
from manifests.overview import by_licence
from manifests.report.charts import Level, counted, funnel, number, share
from manifests.report.figures import stages_of
from stages.audit_browser.browser import Browser
from stages.audit_browser.questions import CorpusUnreadable, TooLong


async def overview(browser: Browser, request: Request) -> Response:
    content = browser.manifest.content
    documents_in = sum(one.documents_in for one in content.components.values())
    kept = sum(one.documents_kept for one in content.components.values())
    licences = by_licence(content)
    tokens = sum(one.all_tokens for one in licences)
    left, levels = documents_in, [Level("came in", documents_in, documents_in)]
    for stage in stages_of(content):
        if stage.gone:
            levels.append(Level(stage.stage, left, left - stage.gone))
            left -= stage.gone
    levels.append(Level("kept", left, left))
    uncounted = None
    try:
        costs = await browser.costs(request, asked="alone" in request.query_params)
    except (CorpusUnreadable, TooLong) as error:  # the rest is in the manifest
        costs, uncounted = None, str(error)
    reviewed = summed(browser.standing(), populations=browser.populations())
    rules = [
        {
            "rule": rule,
            "stage": stage,
            "removed": documents,
            "alone": costs[stage, rule].alone if costs is not None and (stage, rule) in costs else None,
            "reviews": reviewed.get(rule),
        }
        for (stage, rule), documents in browser.removed_by_rule().items()
    ]
    return browser.page(
        request,
        "overview.html",
        tiles=[
            ("documents in", number(documents_in), counted(len(content.components), "component")),
            ("kept", number(kept), share(kept, documents_in)),
            ("removed", number(documents_in - kept), share(documents_in - kept, documents_in)),
            ("tokens", number(tokens) if tokens else "–", counted(len(licences), "licence")),
        ],
        funnel=funnel(levels, documents_in),
        counts=funnel_rows(content),
        rules=rules,
        alone_known=costs is not None,
        uncounted=uncounted,
        documents_in=documents_in,
        licences=licences,
        tokens=tokens,
    )
