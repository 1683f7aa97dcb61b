"""Reviews of samples: one document after another, what is stored of them, and all that were given."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from manifests.audit.answers import as_csv, as_json
from manifests.audit.reviews import REVIEW_COLUMNS, latest, summed
from manifests.logs import Logs
from stages.audit_browser.asked import BadQuestion, export_kind, sample_of, word
from stages.audit_browser.browser import REVIEWER_COOKIE, Browser, language_tag, saved
from stages.audit_browser.documents import text_shown
from stages.audit_browser.pages import link
from stages.audit_browser.questions import Stop
from stages.audit_texts import marked

VERDICTS_SHOWN = 200


async def review(browser: Browser, request: Request) -> Response:
    rule, seed, n, at = sample_of(request.query_params)
    if not rule:
        raise BadQuestion("which rule is reviewed? /review?rule=…")
    rows = await browser.sample(request, rule, seed, n)
    if not rows:
        raise BadQuestion(f"{rule} removed nothing, so there is nothing to review", 404)
    name = browser.reviewer_of(request)
    standing = browser.standing()
    mine = {(one.id, one.rule): one.verdict for one in standing if one.reviewer == name}
    verdicts = [mine.get((row["id"], row["rule"])) for row in rows]
    if at is None:
        at = next((place for place, verdict in enumerate(verdicts, 1) if verdict is None), len(rows))
    at = min(at, len(rows))
    row = rows[at - 1]
    text = (await browser.ask(request, lambda logs, stop: marked(logs, [row], browser.sources, browser.personal_data)))[0]
    places = {"rule": rule, "seed": seed, "n": n}
    populations = browser.populations()
    return browser.page(
        request,
        "review.html",
        rule=rule,
        seed=seed,
        n=n,
        at=at,
        row=row,
        text=text,
        shown=text_shown(text, request),
        verdicts=verdicts,
        places=places,
        previous=link("/review", **places, at=at - 1) if at > 1 else None,
        following=link("/review", **places, at=at + 1) if at < len(rows) else None,
        reviews=summed(standing, [row["rule"]], populations)[row["rule"]],
        done=sum(one is not None for one in verdicts),
        population=populations.get(row["rule"], 0),
        language=language_tag(row["language"]),
        **browser.review_form(request, standing, row["id"], row["rule"], {**places, "at": at}),
    )


async def store_review(browser: Browser, request: Request) -> Response:
    form = await browser.form(request, "review")
    asked = request.query_params
    document, rule = word(asked, "id"), word(asked, "of")
    name, verdict = form.get("reviewer", ""), form.get("verdict", "")
    sample, seed, n, at = sample_of(asked)

    def removed_so(logs: Logs, stop: Stop) -> bool:
        return bool(logs.sql("select 1 from removals where id = ? and rule = ?", [document, rule]))

    if not await browser.ask(request, removed_so):
        raise BadQuestion(f"{rule} did not remove {document}, so there is nothing to review", 404)
    # A sample of a stage is, of each of its rules, one in the same order.
    rows = await browser.sample(request, sample, seed, n) if sample else []
    ids = [row["id"] for row in rows if row["rule"] == rule]
    in_sample = document in ids
    drawn = (seed, ids.index(document) + 1) if in_sample else (None, None)
    browser.reviews.add(name, document, rule, verdict, form.get("note", ""), *drawn)
    if in_sample:
        # Onward, unless the verdict was taken back.
        onward = (at or 1) + (verdict != "withdrawn")
        target = link("/review", rule=sample, seed=seed, n=n, at=min(onward, n))
    else:
        target = link("/document", id=document)
    response = RedirectResponse(target, 303)
    response.set_cookie(REVIEWER_COOKIE, quote(name.strip(), safe=""), httponly=True, samesite="strict")
    return response


async def all_reviews(browser: Browser, request: Request) -> Response:
    found = browser.reviews.read()
    standing = latest(found)
    return browser.page(
        request,
        "reviews.html",
        rates=_rates(browser, standing),
        reviews=standing[::-1][:VERDICTS_SHOWN],
        standing=len(standing),
        made=len(found),
        file=browser.reviews,
    )


async def exported_reviews(browser: Browser, request: Request) -> Response:
    kind = export_kind(request)
    found = browser.reviews.read()
    rows = [one.as_json() for one in found]
    if kind == "csv":
        return saved(as_csv(rows, REVIEW_COLUMNS), "reviews.csv")
    rates = [one.as_json() for one in _rates(browser, found)]
    whole = {"corpus": browser.manifest.digest, "rules": rates, "reviews": rows}
    return saved(as_json(whole) + "\n", "reviews.json")


def _rates(browser: Browser, reviews: Any) -> list[Any]:
    return sorted(summed(reviews, populations=browser.populations()).values(), key=lambda one: one.rule)
