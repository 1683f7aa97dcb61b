"""Removals, a page at a time, and as a file."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.answers import as_csv, as_json
from manifests.audit.flow import removed_by_rule
from manifests.audit.removed import MOST_ROWS as EXPORTED_ROWS
from manifests.audit.removed import NOTHING, ORDERS, Page, removals_counted, removals_page
from manifests.logs import Logs
from stages.audit_browser.asked import as_parameters, conditions_of, export_kind, place_of, whole
from stages.audit_browser.browser import Browser, saved
from stages.audit_browser.pages import link
from stages.audit_browser.questions import Stop

ROWS = 50
ROWS_A_PAGE = 200
"""At most."""


async def removals(browser: Browser, request: Request) -> Response:
    asked = request.query_params
    conditions, order, rows = conditions_of(asked), asked.get("order") or "document", whole(asked, "rows", ROWS, 1, ROWS_A_PAGE)
    after = place_of(asked)

    def question(logs: Logs, stop: Stop) -> tuple[Page, int]:
        found = removals_page(logs, conditions, order, after, rows)
        return found, removals_counted(logs, conditions)

    found, total = await browser.ask(request, question)
    again = {**as_parameters(conditions), "order": None if order == "document" else order}
    again["rows"] = None if rows == ROWS else rows
    onward = None
    if found.after is not None:
        measured, component, file, position = found.after
        onward = link(
            "/removals",
            **again,
            at_measured=None if measured is None else repr(measured),
            at_component=component,
            at_file=file,
            at_position=position,
        )
    by_rule = list(removed_by_rule(browser.manifest.content))
    return browser.page(
        request,
        "removals.html",
        conditions=as_parameters(conditions),
        order=order,
        orders=ORDERS,
        rows=found.rows,
        per_page=rows,
        total=total,
        onward=onward,
        first=link("/removals", **again) if after is not None else None,
        again=again,
        rules=sorted({rule for _, rule in by_rule}),
        stages=sorted({stage for stage, _ in by_rule}),
        components=list(browser.manifest.content.components),
        nothing=NOTHING,
        exported=EXPORTED_ROWS,
    )


async def exported_removals(browser: Browser, request: Request) -> Response:
    kind = export_kind(request)
    asked = request.query_params
    conditions, order = conditions_of(asked), asked.get("order") or "document"
    found = await browser.ask(request, lambda logs, stop: removals_page(logs, conditions, order, rows=EXPORTED_ROWS))
    name = f"removals.{kind}"
    if kind == "csv":
        return saved(as_csv(found.rows), name)
    return saved(as_json({"rows": found.rows, "more": found.after is not None}) + "\n", name)
