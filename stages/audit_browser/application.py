"""The pages put together: what is asked for, who answers it, and what is said where that fails. No page changes the corpus; the
only thing that is stored is a review, in its file outside."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from manifests.audit.removed import QuestionError
from manifests.audit.reviews import ReviewError
from manifests.terminal import visible
from stages.audit_browser.access import ENTER, LOGIN, OPEN_TO_ALL, Guard
from stages.audit_browser.asked import BadQuestion, own_path, word
from stages.audit_browser.browser import Browser
from stages.audit_browser.documents import document, twins
from stages.audit_browser.overview import overview
from stages.audit_browser.pages import STATIC, static_file
from stages.audit_browser.questions import ClientGone, CorpusUnreadable, TooLong
from stages.audit_browser.removals import exported_removals, removals
from stages.audit_browser.report_page import report, saved_report
from stages.audit_browser.review import all_reviews, exported_reviews, review, store_review
from stages.audit_browser.rule import rule
from stages.audit_browser.run import run
from stages.audit_browser.takedown import exported_takedown, takedown
from stages.audit_browser.thresholds import whatif

GONE = 499
"""What nobody reads: the status that servers note for a client that left."""
USED = (
    "This address lets one browser in, once, and it is used up or not the one that the server printed. Give the token that it "
    "printed below it. If nobody of yours has used it, somebody else has: end the server and start it again."
)
Handler = Callable[[Browser, Request], Awaitable[Response]]


def application(browser: Browser) -> Guard:
    """To be run by a server."""
    pages: list[tuple[str, Handler, str]] = [
        ("/", overview, "GET"),
        ("/removals", removals, "GET"),
        ("/removals.{kind:str}", exported_removals, "GET"),
        ("/rule", rule, "GET"),
        ("/document", document, "GET"),
        ("/twins", twins, "GET"),
        ("/whatif", whatif, "GET"),
        ("/review", review, "GET"),
        ("/review", store_review, "POST"),
        ("/takedown", takedown, "GET"),
        ("/takedown", takedown, "POST"),
        ("/takedown.csv", exported_takedown, "POST"),
        ("/takedown.csv", exported_takedown, "GET"),
        ("/run", run, "GET"),
        ("/report", report, "GET"),
        ("/report.html", saved_report, "GET"),
        ("/reviews", all_reviews, "GET"),
        ("/reviews.{kind:str}", exported_reviews, "GET"),
        (LOGIN, login, "GET"),
        (LOGIN, give_token, "POST"),
        (ENTER, enter, "GET"),
        ("/static/{name:str}", static, "GET"),
    ]
    routes = [Route(path, _safely(browser, handler), methods=[method]) for path, handler, method in pages]

    async def not_found(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        why = "there is no such page" if status == 404 else "this page takes no such request"
        return _wrong(browser, request, status, why)

    return Guard(Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found}), browser.access)


async def login(browser: Browser, request: Request) -> Response:
    return browser.page(request, "login.html", to=own_path(request.query_params.get("to")), wrong=None)


async def give_token(browser: Browser, request: Request) -> Response:
    form = await browser.form(request, "login")
    to = own_path(request.query_params.get("to"))
    session = browser.access.session(form.get("token", "").strip())
    if session is None:
        return browser.page(request, "login.html", status=403, to=to, wrong="That is not the token.")
    return _with_session(browser, request, RedirectResponse(to, 303), session)


async def enter(browser: Browser, request: Request) -> Response:
    """Lets in the first browser that opens the address which the server has printed."""
    if request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", request.headers.get("purpose", "")):
        return Response(status_code=204)  # nobody is there yet who would be let in
    if browser.access.admits(request.scope):
        return RedirectResponse("/", 303)
    session = browser.access.enter(word(request.query_params, "once"))
    if session is None:
        return browser.page(request, "login.html", status=403, to="/", wrong=USED)
    # No redirect: where a page elsewhere, or a file, led here, browsers do not send such a cookie along the way.
    return _with_session(browser, request, browser.page(request, "entered.html"), session)


def _with_session(browser: Browser, request: Request, response: Response, session: str) -> Response:
    response.set_cookie(browser.access.cookie_name(request.scope), session, httponly=True, samesite="strict")
    return response


async def static(browser: Browser, request: Request) -> Response:
    name = request.path_params["name"]
    found = static_file(name)
    if found is None:
        raise BadQuestion("there is no such file", 404)
    return Response(found, headers={"content-type": STATIC[name]})


def _safely(browser: Browser, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            if request.url.path not in OPEN_TO_ALL:
                await anyio.to_thread.run_sync(browser.questions.unchanged)
            return await handler(browser, request)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=GONE)
        except BadQuestion as error:
            return _wrong(browser, request, error.status, str(error))
        except (QuestionError, ReviewError) as error:
            return _wrong(browser, request, 400, str(error))
        except TooLong as error:
            return _wrong(browser, request, 503, str(error))
        except CorpusUnreadable as error:
            return _wrong(browser, request, 500, str(error))
        except Exception as error:
            print(visible(f"{request.url.path}: {type(error).__name__}: {error}"), file=sys.stderr)
            return _wrong(browser, request, 500, f"this page has failed: {type(error).__name__}")

    return answered


def _wrong(browser: Browser, request: Request, status: int, why: str) -> Response:
    return browser.page(request, "wrong.html", status=status, why=why)
