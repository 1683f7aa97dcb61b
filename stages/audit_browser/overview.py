"""The first page: the funnel, what removed documents, licences, and what was not checked."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.flow import funnel_rows, levels_of, quiet_stages, removed_by_rule
from manifests.audit.reviews import summed
from manifests.audit.unchecked import unchecked
from manifests.overview import by_licence
from manifests.report.charts import funnel
from manifests.wording import counted, number, share
from stages.audit_browser.browser import Browser
from stages.audit_browser.questions import CorpusUnreadable, TooLong
from stages.audit_browser.run import about_runs


async def overview(browser: Browser, request: Request) -> Response:
    content = browser.manifest.content
    documents_in = sum(one.documents_in for one in content.components.values())
    kept = sum(one.documents_kept for one in content.components.values())
    licences = by_licence(content)
    tokens = sum(one.all_tokens for one in licences)
    runs, runs_uncounted = await about_runs(browser, request)
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
        for (stage, rule), documents in removed_by_rule(content).items()
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
        funnel=funnel(levels_of(content), documents_in),
        quiet=quiet_stages(content),
        counts=funnel_rows(content),
        rules=rules,
        alone_known=costs is not None,
        uncounted=uncounted,
        documents_in=documents_in,
        licences=licences,
        tokens=tokens,
        gaps=unchecked(content),
        runs=runs,
        report_made=browser.report.page is not None,
        runs_uncounted=runs_uncounted,
    )
