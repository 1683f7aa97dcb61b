"""One document with its life and its text, and copies side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.training import Consumed
from manifests.life import Life, lives
from manifests.logs import Logs
from manifests.lookup import Called, documents_called
from manifests.rules import SIGNS
from stages.audit_browser.asked import BadQuestion, start_of, word
from stages.audit_browser.browser import Browser, language_tag
from stages.audit_browser.questions import Stop
from stages.audit_browser.texts import shown, side_by_side
from stages.audit_texts import compared, marked, twins_of

TWINS_SHOWN = 5
TWINS_LISTED = 50
CAPTURES = 50
SERVED_LISTED = 50
"""Times that a run came by a document."""


async def document(browser: Browser, request: Request) -> Response:
    asked = word(request.query_params, "id") or word(request.query_params, "q")
    if not asked:
        raise BadQuestion("which document? Give its id (component/file#position) or its URL")

    def question(logs: Logs, stop: Stop) -> tuple[Called, Life | None, dict[str, Any] | None, list[Consumed]]:
        called = documents_called(logs, asked, CAPTURES + 1)
        if len(called.documents) != 1 or not called.found:
            return called, None, None, []
        life = lives(logs, called, TWINS_LISTED + 1)[0]
        row = life.removal or {"id": life.document["id"]}
        text = marked(logs, [row], browser.sources, browser.personal_data)[0]
        return called, life, text, browser.runs.consumed(logs, life.document)

    called, life, text, consumed = await browser.ask(request, question)
    if not called.documents:
        raise BadQuestion(f"no document of this corpus has the id or URL {asked}", 404)
    if life is None or text is None:
        rows = called.documents
        return browser.page(request, "documents.html", called=called, rows=rows[:CAPTURES], more=len(rows) > CAPTURES)
    rule = life.removal["rule"] if life.removal else None
    standing = browser.standing()
    decided = _decided(life)
    return browser.page(
        request,
        "document.html",
        life=life,
        notes=called.in_words(),
        twins_listed=TWINS_LISTED,
        consumed=consumed,
        served_listed=SERVED_LISTED,
        text=text,
        shown=text_shown(text, request),
        edits=_edits(life),
        rules=[one for one in decided if one["value"] is not None or one["failed"]],
        undefined=[one for one in decided if one["value"] is None and not one["failed"]],
        other_signals=_other_signals(life),
        reviews=[one for one in standing if one.id == life.document["id"] and one.rule == rule],
        language=language_tag(life.document["language"]),
        **browser.review_form(request, standing, life.document["id"], rule),
    )


async def twins(browser: Browser, request: Request) -> Response:
    asked = word(request.query_params, "id")
    if not asked:
        raise BadQuestion("whose twins? /twins?id=…")

    start = start_of(request.query_params)

    def question(logs: Logs, stop: Stop) -> tuple[list[dict[str, Any]], bool]:
        pairs = twins_of(logs, asked, TWINS_SHOWN + 1)
        rows = compared(logs, pairs[:TWINS_SHOWN], browser.sources, browser.personal_data)
        return [_side_by_side(row, start) for row in rows], len(pairs) > TWINS_SHOWN

    pairs, more = await browser.ask(request, question)
    if not pairs:
        raise BadQuestion(f"no document of this corpus was removed as a copy of {asked}, nor was it removed as a copy", 404)
    return browser.page(request, "twins.html", document=asked, pairs=pairs, more=more, most=TWINS_SHOWN)


def text_shown(text: Mapping[str, Any], request: Request) -> Any:
    """The part of a text that a page shows; None where there is no text."""
    return _part(text, start_of(request.query_params))


def _part(text: Mapping[str, Any], start: int | None) -> Any:
    return None if text["text"] is None else shown(text["text"], text["marks"], start)


def _side_by_side(pair: dict[str, Any], start: int | None) -> dict[str, Any]:
    """What a page shows of a pair: `aligned`, or each of its `sides` where the texts cannot stand in rows."""
    left, right = pair["removed"], pair["kept"]
    sides = [{"name": name, "id": pair[key], **pair[name]} for name, key in (("removed", "id"), ("kept", "kept_id"))]
    aligned = None
    if left["text"] is not None and right["text"] is not None:
        aligned = side_by_side(left["text"], right["text"], left["marks"], right["marks"], start)
    return {**pair, "sides": [{**side, "shown": _part(side, start)} for side in sides], "aligned": aligned}


def _edits(life: Life) -> list[dict[str, Any]]:
    """One row each stage that changed the text: its edits share the bytes before and after."""
    found: dict[str, dict[str, Any]] = {}
    for one in life.edits:
        row = found.setdefault(
            one["step"],
            {"stage": one["stage"], "before": one["bytes_before"], "after": one["bytes_after"], "kinds": [], "details": []},
        )
        row["kinds"].append((one["rule"], one["count"]))
        if one.get("detail"):  # logs of an earlier version have no such column
            row["details"].append((one["rule"], one["detail"]))
    return list(found.values())


def _decided(life: Life) -> list[dict[str, Any]]:
    failed = set((life.removal or {}).get("failed_rules") or [])
    return [
        {
            "rule": one["rule"],
            "value": one["value"],
            "needed": f"{SIGNS['keep_if_' + one['keep_if']]} "
            + (", ".join(map(str, one["bound"])) if isinstance(one["bound"], list | tuple) else f"{one['bound']:g}"),
            "failed": one["rule"] in failed,
        }
        for one in life.rules
    ]


def _other_signals(life: Life) -> list[tuple[str, str, Any]]:
    return [
        (block, name, value) for block, measured in life.signals.items() for name, value in measured.items() if value is not None
    ]
