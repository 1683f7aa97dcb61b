"""One rule: what it asks, what it removed and from where, and what people thought of that."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.costs import LARGEST
from manifests.audit.removed import NOTHING
from manifests.audit.reviews import ReviewError, sample_size, summed
from manifests.audit.whatif import manifest_changes
from manifests.logs import Logs
from manifests.report.charts import Bar, Piece, bars
from manifests.wording import share
from stages.audit_browser.asked import LARGEST_SAMPLE, SAMPLE, BadQuestion, decimal, word
from stages.audit_browser.browser import Browser
from stages.audit_browser.pages import link

HALF_WIDTH = 0.05


async def rule(browser: Browser, request: Request) -> Response:
    name = word(request.query_params, "name")
    if not name:
        raise BadQuestion("which rule? /rule?name=…")
    content = browser.manifest.content
    records = [
        (component, record, one)
        for component, about in [*((key, value.stages) for key, value in content.components.items()), (None, content.stages)]
        for record in about
        for one in record.rules
        if one.name == name
    ]
    removed = {
        (count.component, count.stage): (count.removed[name], count.documents_in)
        for count in content.counts
        if name in count.removed
    }
    if not records and not removed:
        raise BadQuestion(f"no rule of this corpus is called {name}", 404)
    population = sum(gone for gone, _ in removed.values())
    half = decimal(request.query_params, "half", HALF_WIDTH * 100)
    reviews = summed(browser.standing(), [name], browser.populations())[name]
    costs = await browser.costs(request, asked=True) or {}
    most = await browser.ask(request, lambda logs, stop: _most(logs, name))
    try:
        needed = sample_size(half / 100 if half is not None else HALF_WIDTH, reviews.false_positives, reviews.sampled, population)
        wrong = None
    except ReviewError as error:
        needed, wrong = None, str(error)
    return browser.page(
        request,
        "rule.html",
        name=name,
        bounds=[
            {"component": component, "stage": record.stage, "condition": one.in_signs(), "signal": one.signal}
            for component, record, one in records
        ],
        removed=[
            {"component": component, "stage": stage, "removed": gone, "documents_in": came}
            for (component, stage), (gone, came) in removed.items()
        ],
        population=population,
        alone=sum(one.alone for (_, rule), one in costs.items() if rule == name),
        pictures={dimension: _shares(name, dimension, rows) for dimension, rows in most.items() if rows},
        reviews=reviews,
        half=half,
        needed=needed,
        wrong=wrong,
        sample=SAMPLE,
        largest_sample=LARGEST_SAMPLE,
        can_change=name in {one["rule"] for one in manifest_changes(browser.manifest)},
    )


def _most(logs: Logs, name: str) -> dict[str, list[dict[str, Any]]]:
    """Language and domain → those that lost most by the rule, each with what came in from there."""
    most = {}
    for dimension in ("language", "domain"):
        rows = logs.sql(
            f"select {dimension} as name, count(*) as documents from removals where rule = $1 "
            "group by all order by documents desc, name nulls last limit $2",
            [name, 2 * LARGEST],
        )
        totals = {
            row["name"]: row["documents"]
            for row in logs.sql(
                f"select {dimension} as name, count(*) as documents from documents "
                f"where {dimension} is null or {dimension} in (select unnest($1::varchar[])) group by name",
                [[row["name"] for row in rows if row["name"] is not None]],
            )
        }
        most[dimension] = [{**row, "came_in": totals.get(row["name"], 0)} for row in rows]
    return most


def _shares(rule: str, dimension: str, rows: list[dict[str, Any]]) -> Any:
    """The share of what came in from each that the rule removed."""
    return bars(
        [
            Bar(
                row["name"] if row["name"] is not None else NOTHING,
                [
                    Piece(
                        row["documents"] / (row["came_in"] or 1),
                        "removed",
                        f"{row['documents']:,} of {row['came_in']:,} documents that came in",
                    )
                ],
                f"{share(row['documents'], row['came_in'])} ({row['documents']:,} of {row['came_in']:,})",
                href=link("/removals", rule=rule, **{dimension: NOTHING if row["name"] is None else row["name"]}),
            )
            for row in rows
        ],
        1.0,
    )
