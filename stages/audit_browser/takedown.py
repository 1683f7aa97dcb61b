"""A takedown, looked at: what it would touch, what it cannot see, and the command that does it. Nothing is written here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.answers import as_csv
from manifests.audit.domains import normal_domain
from manifests.audit.takedown import SIMILAR, TOLD, Affected, NearDuplicates, Selection, affected
from manifests.logs import Logs
from manifests.manifest import ManifestError
from manifests.overview import by_licence
from manifests.storage import is_remote
from manifests.terminal import visible
from stages.audit_browser.asked import LONGEST_WORD, BadQuestion
from stages.audit_browser.browser import Browser, saved
from stages.audit_browser.questions import Stop
from stages.audit_browser.runs import Trained

ROWS = 50
"""Of each list, on the page."""
LARGEST_LIST = 1 << 20
"""Bytes of the form."""
MOST_FIELDS = 1_000
MOST_SELECTED = 200_000
"""Documents that a page looks at one by one."""


@dataclass(frozen=True)
class Asked:
    """What a takedown is to take, and how it would be recorded."""

    selection: Selection
    near_duplicates: NearDuplicates = "list"
    output: str = ""
    reason: str = ""

    @property
    def anything(self) -> bool:
        return bool(self.selection.domains or self.selection.documents or self.selection.licences)


async def takedown(browser: Browser, request: Request) -> Response:
    """By a link, or by the form, whose lists may be long."""
    asked = asked_of(await _pairs(browser, request))
    names = asked.selection.documents
    what, trained, selects = await _looked(browser, request, asked) if asked.anything else (None, [], 0)
    copies = [one for one in what.survivors if one["how"] != SIMILAR] if what else []
    return browser.page(
        request,
        "takedown.html",
        form_token=browser.access.form_token("takedown"),
        asked=asked,
        licences=[one.name for one in by_licence(browser.manifest.content)],
        typed=[one for one in names if visible(one) == one],
        untypable=[one for one in names if visible(one) != one],
        what=what,
        trained=trained,
        selects=selects,
        most=MOST_SELECTED,
        copies=copies,
        similar=[one for one in what.survivors if one["how"] == SIMILAR] if what else [],
        why_not=_why_not(what, asked) if what else None,
        command=command(browser, asked) if asked.anything else None,
        output=asked.output or default_output(browser),
        rows=ROWS,
    )


async def exported_takedown(browser: Browser, request: Request) -> Response:
    """What would go, all of it, as `audit takedown --csv` has it."""
    asked = asked_of(await _pairs(browser, request))
    if not asked.anything:
        raise BadQuestion("name what is to go: a domain, ids or URLs, or a licence")
    what, _, selects = await _looked(browser, request, asked)
    if what is None:
        raise BadQuestion(f"that selects {selects:,} documents, and {MOST_SELECTED:,} are looked at here: use the command")
    return saved(as_csv(what.as_json()["taken"], TOLD), "takedown.csv")


def asked_of(pairs: Sequence[tuple[str, str]]) -> Asked:
    """Read from names and values as a form or an address has them; BadQuestion for what means nothing. A name with control
    characters, which a page shows as escapes, comes back encoded."""

    def lines(name: str) -> tuple[str, ...]:
        words = [word.strip() for key, value in pairs if key == name for word in value.split("\n")]
        words += [unquote(value) for key, value in pairs if key == f"{name}.encoded"]
        for word in words:
            if len(word) > LONGEST_WORD:
                raise BadQuestion(f"one line has {len(word):,} characters; {LONGEST_WORD:,} are the most")
            if "\0" in word:
                raise BadQuestion("no name has a NUL, which no command could be given")
        return tuple(dict.fromkeys(word for word in words if word))

    def last(name: str) -> str:
        return next(iter(lines(name)[-1:]), "")

    mode = last("near_duplicates") or "list"
    if mode not in ("list", "remove"):
        raise BadQuestion("near_duplicates is list or remove")
    selection = Selection(lines("domain"), lines("id"), lines("licence"))
    return Asked(selection, "remove" if mode == "remove" else "list", last("output"), last("reason"))


def command(browser: Browser, asked: Asked) -> str:
    """What does it, for a shell: bash, or another one that knows $'…' for names with control characters."""
    given = browser.questions.given
    options = [("--domain", one) for one in asked.selection.domains]
    options += [("--licence", one) for one in asked.selection.licences]
    options += [("--ids", "-")] if asked.selection.documents else []
    options += [("--near-duplicates", "remove")] if asked.near_duplicates == "remove" else []
    options += [("--output", asked.output or default_output(browser)), ("--reason", asked.reason)]
    words = ["corpusmill audit takedown", shell_word(given if is_remote(given) else os.path.abspath(given))]
    written = " ".join([*words, *(f"{name}={shell_word(value)}" for name, value in options)])
    if not asked.selection.documents:
        return written
    # Not a here-document: a line of the list could be the one that ends it.
    return "printf '%s\\n' " + " ".join(map(shell_word, asked.selection.documents)) + " |\n  " + written


def shell_word(word: str) -> str:
    """`word` as one word of a shell, whatever is in it, and as a page can show it."""
    if visible(word) == word and not set("\n\t") & set(word):
        return shlex.quote(word)
    plain = (f"\\x{one:02x}" if one < 0x20 or one > 0x7E or one in b"'\\" else chr(one) for one in word.encode())
    return "$'" + "".join(plain) + "'"


def default_output(browser: Browser) -> str:
    """A new folder beside the corpus."""
    folder = browser.questions.folder
    return f"{folder.root if folder.local else folder.url.rstrip('/')}-without"


async def _pairs(browser: Browser, request: Request) -> list[tuple[str, str]]:
    if request.method == "POST":
        return await browser.form_pairs(request, "takedown", LARGEST_LIST, MOST_FIELDS)
    # Where a command writes, and what it records, is not for a link to say.
    return [(name, value) for name, value in request.query_params.multi_items() if name not in ("output", "reason")]


async def _looked(browser: Browser, request: Request, asked: Asked) -> tuple[Affected | None, list[Trained], int]:
    """(What is affected, None of too many; what training runs had of it; how many documents are selected, at most)."""

    def question(logs: Logs, stop: Stop) -> tuple[Affected | None, list[Trained], int]:
        selects = _selects(logs, asked.selection)
        if selects > MOST_SELECTED:
            return None, [], selects
        try:
            what = affected(logs, asked.selection, asked.near_duplicates)
        except ManifestError as error:
            raise BadQuestion(str(error)) from None
        if any("://" in one for one in asked.selection.documents) and not asked.selection.domains:
            query = "select count(*) as n from documents where url is null and removed_by is null"
            what.without_url = logs.sql(query)[0]["n"]
        logs.connection.execute("drop table if exists resembling_documents")
        return what, browser.runs.trained_on(what.taken), selects

    return await browser.ask(request, question)


def _selects(logs: Logs, selection: Selection) -> int:
    """Documents that may be selected, counted as cheaply as they can be."""
    components = logs.manifest.content.components.values()
    found = sum(one.documents_in for one in components if one.licence in selection.licences)
    if domains := [normal_domain(one) for one in selection.domains]:
        query = "select count(*) as n from documents where domain in (select unnest($1::varchar[]))"
        found += logs.sql(query, [domains])[0]["n"]
    return found + len(selection.documents)


def _why_not(what: Affected, asked: Asked) -> str | None:
    """Why the command would be refused; None where it would not."""
    if what.near_misses:
        return "the corpus has URLs that resemble some of these, and none that is exactly so: settle them first"
    if not what.taken:
        return "nothing that is in the corpus is selected"
    if not asked.reason:
        return "a takedown is recorded with its reason: give one below, and it is put into the command"
    return None
