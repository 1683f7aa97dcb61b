"""The report, as soon as it is made."""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from manifests.report.page import POLICY
from stages.audit_browser.asked import BadQuestion
from stages.audit_browser.browser import Browser

AT_ONCE_SECONDS = 2.0
"""How long a first answer waits for it: of a small corpus it is there."""
AGAIN_SECONDS = 2
"""After which a page that waits asks again."""


async def report(browser: Browser, request: Request) -> Response:
    made = await anyio.to_thread.run_sync(browser.report.made_within, AT_ONCE_SECONDS)
    if not made:
        return browser.page(request, "making.html", seconds=browser.report.seconds, again=AGAIN_SECONDS)
    if browser.report.page is None:
        raise BadQuestion(browser.report.failed() or "the report was not made", 500)
    # Its style is its own, so it has a policy of its own, which lets nothing else in, and no script at all.
    headers = {"content-security-policy": f"{POLICY}; frame-ancestors 'none'"}
    return Response(browser.report.page.encode(), media_type="text/html; charset=utf-8", headers=headers)


async def saved_report(browser: Browser, request: Request) -> Response:
    page = browser.report.plain()
    if page is None:
        raise BadQuestion("the report is not made yet: open /report first", 404)
    headers = {"content-security-policy": "sandbox", "content-disposition": 'attachment; filename="report.html"'}
    return Response(page.encode(), media_type="text/html; charset=utf-8", headers=headers)
