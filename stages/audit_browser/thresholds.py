"""What if: thresholds that can be moved, and what they would have decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from manifests.audit.flow import removed_by_rule
from manifests.audit.whatif import WhatIfError, changes_of, manifest_changes, what_if
from manifests.manifest import Manifest
from stages.audit_browser.asked import BadQuestion, word
from stages.audit_browser.browser import Browser
from stages.audit_browser.pages import link

EXAMPLES = 10
MOST_CHANGES = 40


async def whatif(browser: Browser, request: Request) -> Response:
    asked = request.query_params
    rows = thresholds(browser.manifest)
    unknown = {name for name in asked if name.startswith("bound:")} - {f"bound:{one['key']}" for one in rows}
    if unknown:
        raise BadQuestion(f"no rule is called {min(unknown).removeprefix('bound:')}")
    changed = {one["key"]: value for one in rows if (value := word(asked, f"bound:{one['key']}")) and value != one["bound"]}
    given = {f"bound:{name}": value for name, value in changed.items()}
    if sum(name.startswith("bound:") for name in asked) > len(changed):  # a form names them all; what stays is no change
        rest = {name: word(asked, name) for name in ("rule", "change")}
        return RedirectResponse(link("/whatif", **rest, **given), 303)
    words = [f"{name}={value}" for name, value in changed.items()] + word(asked, "change").split()
    if len(words) > MOST_CHANGES:
        raise BadQuestion(f"{len(words)} changes; {MOST_CHANGES} are the most")
    focus = word(asked, "rule")
    wrong, answer = None, None
    if words:
        try:
            changes = changes_of(browser.manifest.content, words)
            answer = await browser.ask(request, lambda logs, stop: what_if(logs, changes, EXAMPLES, stopped=stop))
        except WhatIfError as error:
            wrong = str(error)
    removed = {rule for _, rule in removed_by_rule(browser.manifest.content)}
    for one in rows:
        one["asked"] = changed.get(one["key"])
        one["first"] = one["rule"] == focus or one["asked"] is not None or (not focus and one["rule"] in removed)
    return browser.page(
        request,
        "whatif.html",
        groups=[
            (None, [one for one in rows if one["first"]]),
            ("other rules" if focus else "rules that removed nothing", [one for one in rows if not one["first"]]),
        ],
        words=word(asked, "change"),
        answer=answer,
        kept=sum(one.documents for one in answer.newly_kept) if answer else 0,
        removed=sum(one.documents for one in answer.newly_removed) if answer else 0,
        moved=[(side, one) for side in ("newly_kept", "newly_removed") for one in getattr(answer, side)] if answer else [],
        changes=[
            {
                "component": one.change.component,
                "rule": one.change.old.name,
                "old": one.change.old.in_signs(),
                "new": _new(one.change.new),
                "verdicts": one,
            }
            for one in (answer.verdicts if answer else [])
        ],
        wrong=wrong,
        focus=focus,
    )


def thresholds(manifest: Manifest) -> list[dict[str, Any]]:
    """A row for each rule that can be asked about: one for all components with the same bound, or one for each."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in manifest_changes(manifest):
        found.setdefault(one["rule"], []).append({**one, "bound": _bound(one["threshold"]), "slider": _slider(one["threshold"])})
    rows: list[dict[str, Any]] = []
    for rule, mine in found.items():
        places = [one["component"] for one in mine]
        if len({one["bound"] for one in mine}) == 1 and len(set(places)) == len(places):
            rows.append({**mine[0], "key": rule, "component": ", ".join(places)})
        else:
            rows += [{**one, "key": f"{one['component']}:{rule}"} for one in mine]
    return rows


def _bound(threshold: Any) -> str:
    return ", ".join(threshold) if isinstance(threshold, list) else f"{threshold:.12g}"


def _slider(threshold: Any) -> Mapping[str, str] | None:
    """Ends and step of a slider: from nothing to twice the bound; none for a list of words."""
    if isinstance(threshold, list) or not math.isfinite(threshold):
        return None
    if threshold <= 0:
        low, high = (2 * threshold, 0.0) if threshold < 0 else (0.0, 1.0)
    else:
        low, high = 0.0, 2 * threshold
    whole = float(threshold).is_integer() and high - low >= 4
    step = max(1, round((high - low) / 100)) if whole else (high - low) / 100
    return {"low": f"{low:.12g}", "high": f"{high:.12g}", "step": f"{step:.12g}"}


def _new(rule: Any) -> str:
    return "not applied" if rule is None else str(rule.in_signs())
