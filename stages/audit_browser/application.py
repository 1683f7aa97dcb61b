"""The pages: what is asked for becomes a question to the logs, and its answer a template's values. No page changes the corpus;
the only thing that is stored is a review, in its file outside."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from manifests.audit.answers import as_csv, as_json
from manifests.audit.costs import LARGEST
from manifests.audit.domains import normal_domain
from manifests.audit.flow import funnel_rows
from manifests.audit.removed import (
    MOST_ROWS as EXPORTED_ROWS,
)
from manifests.audit.removed import (
    NOTHING,
    ORDERS,
    Conditions,
    Page,
    QuestionError,
    removals_counted,
    removals_page,
)
from manifests.audit.reviews import REVIEW_COLUMNS, ReviewError, ReviewFile, latest, sample_size, summed
from manifests.audit.whatif import WhatIfError, changes_of, manifest_changes, what_if
from manifests.blocks import MEASURE
from manifests.life import Life, documents_called, lives
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.report.charts import Bar, Level, Piece, bars, condition, counted, funnel, number, share
from manifests.report.figures import stages_of
from manifests.terminal import visible
from stages.audit_browser.access import LOGIN, Access, Guard, cookies_of
from stages.audit_browser.pages import STATIC, link, page, static_file
from stages.audit_browser.questions import ClientGone, CorpusUnreadable, Questions, Stop, TooLong
from stages.audit_browser.texts import shown
from stages.audit_texts import compared, marked, sampled, twins_of

ROWS = 50
ROWS_A_PAGE = 200
"""At most."""
SAMPLE = 20
LARGEST_SAMPLE = 500
TWINS_SHOWN = 5
TWINS_LISTED = 50
CAPTURES = 50
EXAMPLES = 10
MOST_CHANGES = 40
LONGEST_WORD = 10_000
"""Characters of a parameter."""
LARGEST_FORM = 64 * 1024
SAMPLES_KEPT = 16
HALF_WIDTH = 0.05
REVIEWER_COOKIE = "corpusmill_reviewer"
GONE = 499
"""What nobody reads: the status that servers note for a client that left."""
Answer = TypeVar("Answer")


class BadQuestion(Exception):
    """A request that means nothing; the message says what is wrong."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Browser:
    """One corpus, its reviews, and who may see them. sources: as of `audit sample`. reviewer: the name that forms begin with."""

    questions: Questions
    reviews: ReviewFile
    access: Access
    sources: dict[str, str] = field(default_factory=dict)
    personal_data: bool = False
    reviewer: str = ""
    _samples: OrderedDict[tuple[str, int, int], list[dict[str, Any]]] = field(default_factory=OrderedDict)

    @property
    def manifest(self) -> Manifest:
        return self.questions.manifest

    def application(self) -> Guard:
        """To be run by a server."""
        pages: list[tuple[str, Callable[[Request], Awaitable[Response]], str]] = [
            ("/", self.overview, "GET"),
            ("/removals", self.removals, "GET"),
            ("/removals.{kind:str}", self.exported_removals, "GET"),
            ("/rule", self.rule, "GET"),
            ("/document", self.document, "GET"),
            ("/twins", self.twins, "GET"),
            ("/whatif", self.whatif, "GET"),
            ("/review", self.review, "GET"),
            ("/review", self.store_review, "POST"),
            ("/reviews", self.all_reviews, "GET"),
            ("/reviews.{kind:str}", self.exported_reviews, "GET"),
            (LOGIN, self.login, "GET"),
            (LOGIN, self.give_token, "POST"),
            ("/static/{name:str}", self.static, "GET"),
        ]
        routes = [Route(path, self._safely(handler), methods=[method]) for path, handler, method in pages]
        starlette = Starlette(routes=routes, exception_handlers={404: self._not_found, 405: self._not_found})
        return Guard(starlette, self.access)

    # pages

    async def overview(self, request: Request) -> Response:
        content = self.manifest.content
        documents_in = sum(one.documents_in for one in content.components.values())
        kept = sum(one.documents_kept for one in content.components.values())
        tokens = sum(sum(one.tokens.values()) for one in content.components.values())
        left, levels = documents_in, [Level("came in", documents_in, documents_in)]
        for stage in stages_of(content):
            if stage.gone:
                levels.append(Level(stage.stage, left, left - stage.gone))
                left -= stage.gone
        levels.append(Level("kept", left, left))
        removed = self._removed_by_rule()
        reviewed = summed(self._reviews())
        rules = [
            {"rule": rule, "stage": stage, "removed": documents, "reviews": reviewed.get(rule)}
            for (stage, rule), documents in removed.items()
        ]
        return self._page(
            request,
            "overview.html",
            tiles=[
                ("documents in", number(documents_in), counted(len(content.components), "component")),
                ("kept", number(kept), share(kept, documents_in)),
                ("removed", number(documents_in - kept), share(documents_in - kept, documents_in)),
                ("tokens", number(tokens) if tokens else "–", ""),
            ],
            funnel=funnel(levels, documents_in),
            counts=funnel_rows(content),
            rules=rules,
            documents_in=documents_in,
        )

    async def removals(self, request: Request) -> Response:
        asked = request.query_params
        conditions, order, rows = (
            _conditions(asked),
            asked.get("order") or "document",
            _whole(asked, "rows", ROWS, 1, ROWS_A_PAGE),
        )
        after = _place(asked)

        def question(logs: Logs, stop: Stop) -> tuple[Page, int]:
            found = removals_page(logs, conditions, order, after, rows)
            return found, removals_counted(logs, conditions)

        found, total = await self._ask(request, question)
        again = {**_as_parameters(conditions), "order": None if order == "document" else order}
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
        by_rule = list(self._removed_by_rule())
        return self._page(
            request,
            "removals.html",
            conditions=_as_parameters(conditions),
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
            components=list(self.manifest.content.components),
            nothing=NOTHING,
            exported=EXPORTED_ROWS,
        )

    async def exported_removals(self, request: Request) -> Response:
        kind = _export_kind(request)
        asked = request.query_params
        conditions, order = _conditions(asked), asked.get("order") or "document"
        found = await self._ask(request, lambda logs, stop: removals_page(logs, conditions, order, rows=EXPORTED_ROWS))
        name = f"removals.{kind}"
        if kind == "csv":
            return _saved(as_csv(found.rows), name)
        return _saved(as_json({"rows": found.rows, "more": found.after is not None}) + "\n", name)

    async def rule(self, request: Request) -> Response:
        name = _word(request.query_params, "name")
        if not name:
            raise BadQuestion("which rule? /rule?name=…")
        content = self.manifest.content
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
        half = _float(request.query_params, "half", HALF_WIDTH * 100)
        reviews = summed(self._reviews(), [name])[name]

        def question(logs: Logs, stop: Stop) -> dict[str, Any]:
            alone = logs.sql(
                "select count(*) filter (coalesce(len(failed_rules), 1) <= 1) as n from removals where rule = ?", [name]
            )[0]["n"]
            most = {
                dimension: logs.sql(
                    f"select {dimension} as name, count(*) as documents from removals where rule = $1 "
                    "group by all order by documents desc, name nulls last limit $2",
                    [name, 2 * LARGEST],
                )
                for dimension in ("language", "domain")
            }
            return {"alone": alone, "most": most}

        found = await self._ask(request, question)
        try:
            needed = sample_size(
                half / 100 if half is not None else HALF_WIDTH, reviews.false_positives, reviews.sampled, population
            )
            wrong = None
        except ReviewError as error:
            needed, wrong = None, str(error)
        pictures = {
            dimension: bars(
                [
                    Bar(
                        row["name"] if row["name"] is not None else NOTHING,
                        [Piece(row["documents"], "removed", f"{row['documents']:,} documents")],
                        f"{row['documents']:,}",
                    )
                    for row in rows
                ]
            )
            for dimension, rows in found["most"].items()
            if rows
        }
        asks = {one["rule"] for one in manifest_changes(self.manifest)}
        return self._page(
            request,
            "rule.html",
            name=name,
            bounds=[
                {"component": component, "stage": record.stage, "condition": condition(one), "signal": one.signal}
                for component, record, one in records
            ],
            removed=[
                {"component": component, "stage": stage, "removed": gone, "documents_in": came}
                for (component, stage), (gone, came) in removed.items()
            ],
            population=population,
            alone=found["alone"],
            most=found["most"],
            pictures=pictures,
            nothing=NOTHING,
            reviews=reviews,
            half=half,
            needed=needed,
            wrong=wrong,
            sample=SAMPLE,
            largest_sample=LARGEST_SAMPLE,
            can_change=name in asks,
        )

    async def document(self, request: Request) -> Response:
        asked = _word(request.query_params, "id") or _word(request.query_params, "q")
        if not asked:
            raise BadQuestion("which document? Give its id (component/file#position) or its URL")

        def question(logs: Logs, stop: Stop) -> tuple[list[dict[str, Any]], Life | None, dict[str, Any] | None]:
            called = documents_called(logs, asked, CAPTURES + 1)
            if len(called) != 1:
                return called, None, None
            life = lives(logs, called[0]["id"], TWINS_LISTED + 1)[0]
            row = life.removal or {"id": called[0]["id"]}
            return called, life, marked(logs, [row], self.sources, self.personal_data)[0]

        called, life, text = await self._ask(request, question)
        if not called:
            raise BadQuestion(f"no document of this corpus has the id or URL {asked}", 404)
        if life is None or text is None:
            return self._page(request, "documents.html", asked=asked, rows=called[:CAPTURES], more=len(called) > CAPTURES)
        rule = life.removal["rule"] if life.removal else None
        mine = [one for one in latest(self._reviews()) if one.id == life.document["id"] and one.rule == rule]
        return self._page(
            request,
            "document.html",
            life=life,
            twins_listed=TWINS_LISTED,
            text=text,
            shown=_shown(text, request),
            rules=_decided(life),
            other_signals=_other_signals(life),
            reviews=mine,
            language=_language_tag(life.document["language"]),
            **self._review_form(request, life.document["id"], rule),
        )

    async def twins(self, request: Request) -> Response:
        document = _word(request.query_params, "id")
        if not document:
            raise BadQuestion("whose twins? /twins?id=…")

        def question(logs: Logs, stop: Stop) -> tuple[list[dict[str, Any]], bool]:
            pairs = twins_of(logs, document, TWINS_SHOWN + 1)
            return compared(logs, pairs[:TWINS_SHOWN], self.sources, self.personal_data), len(pairs) > TWINS_SHOWN

        pairs, more = await self._ask(request, question)
        if not pairs:
            raise BadQuestion(
                f"no document of this corpus was removed as a copy of {document}, nor was it removed as a copy", 404
            )
        rows = [
            {
                **pair,
                "sides": [
                    {"name": name, "id": pair[key], **pair[name], "shown": _shown(pair[name], request)}
                    for name, key in (("removed", "id"), ("kept", "kept_id"))
                ],
            }
            for pair in pairs
        ]
        return self._page(request, "twins.html", document=document, pairs=rows, more=more, most=TWINS_SHOWN)

    async def whatif(self, request: Request) -> Response:
        rows = self._thresholds()
        changed = {}
        for one in rows:
            value = _word(request.query_params, f"bound:{one['key']}")
            if value and value != one["bound"]:
                changed[one["key"]] = value
        words = [f"{name}={value}" for name, value in changed.items()] + _word(request.query_params, "change").split()
        if len(words) > MOST_CHANGES:
            raise BadQuestion(f"{len(words)} changes; {MOST_CHANGES} are the most")
        focus = _word(request.query_params, "rule")
        wrong, answer = None, None
        if words:
            try:
                asked = changes_of(self.manifest.content, words)
                answer = await self._ask(request, lambda logs, stop: what_if(logs, asked, EXAMPLES, stopped=stop))
            except WhatIfError as error:
                wrong = str(error)
        removed = {rule for _, rule in self._removed_by_rule()}
        for one in rows:
            one["asked"] = changed.get(one["key"])
            one["first"] = one["rule"] == focus or one["asked"] is not None or (not focus and one["rule"] in removed)
        return self._page(
            request,
            "whatif.html",
            groups=[
                (None, [one for one in rows if one["first"]]),
                ("other rules" if focus else "rules that removed nothing", [one for one in rows if not one["first"]]),
            ],
            words=_word(request.query_params, "change"),
            answer=answer,
            kept=sum(one.documents for one in answer.newly_kept) if answer else 0,
            removed=sum(one.documents for one in answer.newly_removed) if answer else 0,
            moved=[(side, one) for side in ("newly_kept", "newly_removed") for one in getattr(answer, side)] if answer else [],
            changes=[
                {"component": one.component, "rule": one.old.name, "old": condition(one.old), "new": _new(one.new)}
                for one in (answer.changes if answer else [])
            ],
            wrong=wrong,
            focus=focus,
        )

    async def review(self, request: Request) -> Response:
        rule, seed, n, at = _sample_asked(request.query_params)
        if not rule:
            raise BadQuestion("which rule is reviewed? /review?rule=…")
        rows = await self._sample(request, rule, seed, n)
        if not rows:
            raise BadQuestion(f"{rule} removed nothing, so there is nothing to review", 404)
        name = self._reviewer(request)
        mine = {one.id: one for one in latest(self._reviews()) if one.reviewer == name}
        verdicts = [
            mine[row["id"]].verdict if row["id"] in mine and mine[row["id"]].rule == row["rule"] else None for row in rows
        ]
        if at is None:
            at = next((place for place, verdict in enumerate(verdicts, 1) if verdict is None), len(rows))
        at = min(at, len(rows))
        row = rows[at - 1]
        text = (await self._ask(request, lambda logs, stop: marked(logs, [row], self.sources, self.personal_data)))[0]
        places = {"rule": rule, "seed": seed, "n": n}
        reviewed = summed(self._reviews(), [row["rule"]])[row["rule"]]
        return self._page(
            request,
            "review.html",
            rule=rule,
            seed=seed,
            n=n,
            at=at,
            row=row,
            text=text,
            shown=_shown(text, request),
            verdicts=verdicts,
            places=places,
            previous=link("/review", **places, at=at - 1) if at > 1 else None,
            following=link("/review", **places, at=at + 1) if at < len(rows) else None,
            reviews=reviewed,
            done=sum(one is not None for one in verdicts),
            population=sum(gone for (_, name), gone in self._removed_by_rule().items() if name == row["rule"]),
            language=_language_tag(row["language"]),
            **self._review_form(request, row["id"], row["rule"], mine.get(row["id"]), {**places, "at": at}),
        )

    async def store_review(self, request: Request) -> Response:
        form = await self._form(request, "review")
        asked = request.query_params
        document, rule = _word(asked, "id"), _word(asked, "of")
        name, verdict = form.get("reviewer", ""), form.get("verdict", "")
        sample, seed, n, at = _sample_asked(asked)

        def removed_so(logs: Logs, stop: Stop) -> bool:
            return bool(logs.sql("select 1 from removals where id = ? and rule = ?", [document, rule]))

        if not await self._ask(request, removed_so):
            raise BadQuestion(f"{rule} did not remove {document}, so there is nothing to review", 404)
        in_sample = bool(sample) and any(row["id"] == document for row in await self._sample(request, sample, seed, n))
        self.reviews.add(name, document, rule, verdict, form.get("note", ""), seed if in_sample else None)
        if in_sample:
            # Onward, unless the verdict was taken back.
            onward = (at or 1) + (verdict != "withdrawn")
            target = link("/review", rule=sample, seed=seed, n=n, at=min(onward, n))
        else:
            target = link("/document", id=document)
        response = RedirectResponse(target, 303)
        response.set_cookie(REVIEWER_COOKIE, quote(name.strip(), safe=""), httponly=True, samesite="strict")
        return response

    async def all_reviews(self, request: Request) -> Response:
        found = self._reviews()
        standing = latest(found)
        return self._page(
            request,
            "reviews.html",
            rates=sorted(summed(found).values(), key=lambda one: one.rule),
            reviews=standing[::-1][:ROWS_A_PAGE],
            standing=len(standing),
            made=len(found),
            file=self.reviews,
        )

    async def exported_reviews(self, request: Request) -> Response:
        kind = _export_kind(request)
        found = self._reviews()
        rows = [one.as_json() for one in found]
        if kind == "csv":
            return _saved(as_csv(rows, REVIEW_COLUMNS), "reviews.csv")
        rates = [one.as_json() for one in summed(found).values()]
        whole = {"corpus": self.manifest.digest, "rules": rates, "reviews": rows}
        return _saved(as_json(whole) + "\n", "reviews.json")

    async def login(self, request: Request) -> Response:
        return self._page(request, "login.html", to=_own_path(request.query_params.get("to")), wrong=None)

    async def give_token(self, request: Request) -> Response:
        form = await self._form(request, "login")
        to = _own_path(request.query_params.get("to"))
        session = self.access.session(form.get("token", "").strip())
        if session is None:
            return self._page(request, "login.html", status=403, to=to, wrong="That is not the token.")
        response = RedirectResponse(to, 303)
        response.set_cookie(self.access.cookie_name(request.scope), session, httponly=True, samesite="strict")
        return response

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = static_file(name)
        if found is None:
            raise BadQuestion("there is no such file", 404)
        return Response(found, headers={"content-type": STATIC[name]})

    # what pages have in common

    def _safely(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            try:
                return await handler(request)
            except (ClientGone, ClientDisconnect):
                return Response(status_code=GONE)
            except BadQuestion as error:
                return self._wrong(request, error.status, str(error))
            except (QuestionError, ReviewError) as error:
                return self._wrong(request, 400, str(error))
            except TooLong as error:
                return self._wrong(request, 503, str(error))
            except CorpusUnreadable as error:
                return self._wrong(request, 500, str(error))
            except Exception as error:
                print(visible(f"{request.url.path}: {type(error).__name__}: {error}"), file=sys.stderr)
                return self._wrong(request, 500, f"this page has failed: {type(error).__name__}")

        return answered

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return self._wrong(request, status, "there is no such page" if status == 404 else "this page takes no such request")

    def _wrong(self, request: Request, status: int, why: str) -> Response:
        return self._page(request, "wrong.html", status=status, why=why)

    def _page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        admitted = template != "login.html" and (request.url.path != LOGIN)
        common = {
            "corpus": self.manifest.content.name if admitted else "corpusmill",
            "digest": self.manifest.digest if admitted else "",
            "admitted": admitted,
            "path": request.url.path,
            "form_token": self.access.form_token("review") if admitted else self.access.form_token("login"),
            "query": _word(request.query_params, "q"),
            "measure": MEASURE,
            "status": status,
        }
        return Response(page(template, {**common, **values}), status, media_type="text/html; charset=utf-8")

    async def _ask(self, request: Request, question: Callable[[Logs, Stop], Answer]) -> Answer:
        return await self.questions.ask(request.is_disconnected, question)

    async def _sample(self, request: Request, rule: str, seed: int, n: int) -> list[dict[str, Any]]:
        """The sample's removal rows; the last few samples are remembered."""
        key = (rule, seed, n)
        if key not in self._samples:
            self._samples[key] = await self._ask(request, lambda logs, stop: sampled(logs, rule, n, seed))
            while len(self._samples) > SAMPLES_KEPT:
                self._samples.popitem(last=False)
        return self._samples[key]

    async def _form(self, request: Request, purpose: str) -> dict[str, str]:
        """What a form of ours holds; refused without the token that only our pages have."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST_FORM:
                raise BadQuestion(f"a form has {LARGEST_FORM:,} bytes at most", 413)
        try:
            form = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=20))
        except ValueError:
            raise BadQuestion("this form cannot be read") from None
        if not self.access.form_is_ours(purpose, form.get("form_token", "")):
            raise BadQuestion("this form is not one of this server's pages, or of an earlier run of it: load the page again", 403)
        return form

    def _reviewer(self, request: Request) -> str:
        return unquote(cookies_of(request.scope).get(REVIEWER_COOKIE, "")) or self.reviewer

    def _review_form(
        self, request: Request, document: str, rule: str | None, mine: Any = None, sample: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Where the form goes, and what it begins with."""
        name = self._reviewer(request)
        if mine is None or mine.rule != rule:
            found = (one for one in latest(self._reviews()) if (one.reviewer, one.id, one.rule) == (name, document, rule))
            mine = next(found, None)
        return {"action": link("/review", id=document, of=rule, **(sample or {})), "reviewer": name, "mine": mine}

    def _reviews(self) -> Sequence[Any]:
        return self.reviews.read()

    def _thresholds(self) -> list[dict[str, Any]]:
        """A row for each rule that can be asked about: one for all components with the same bound, or one for each."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in manifest_changes(self.manifest):
            found.setdefault(one["rule"], []).append(
                {**one, "bound": _bound(one["threshold"]), "slider": _slider(one["threshold"])}
            )
        rows = []
        for rule, mine in found.items():
            places = [one["component"] for one in mine]
            if len({one["bound"] for one in mine}) == 1 and len(set(places)) == len(places):
                rows.append({**mine[0], "key": rule, "component": ", ".join(places)})
            else:
                rows += [{**one, "key": f"{one['component']}:{rule}"} for one in mine]
        return rows

    def _removed_by_rule(self) -> dict[tuple[str, str], int]:
        """(stage, rule) → documents, most first."""
        found: dict[tuple[str, str], int] = {}
        for count in self.manifest.content.counts:
            for rule, documents in count.removed.items():
                found[count.stage, rule] = found.get((count.stage, rule), 0) + documents
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _word(asked: Mapping[str, str], name: str) -> str:
    value = asked.get(name, "")
    if len(value) > LONGEST_WORD:
        raise BadQuestion(f"{name} has {len(value):,} characters; {LONGEST_WORD:,} are the most")
    return value.strip()


def _whole(asked: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    words = _word(asked, name)
    if not words:
        return default
    try:
        value = int(words)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise BadQuestion(f"{name} is a whole number from {least:,} to {most:,}, not {words}")
    return value


def _float(asked: Mapping[str, str], name: str, default: float | None = None) -> float | None:
    words = _word(asked, name).replace(",", ".")
    if not words:
        return default
    try:
        value = float(words)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadQuestion(f"{name} is a number, not {words}")
    return value


def _conditions(asked: Mapping[str, str]) -> Conditions:
    words = {name: _word(asked, name) or None for name in ("component", "stage", "rule", "language", "domain")}
    domain = words["domain"]
    if domain not in (None, NOTHING):
        normal = normal_domain(domain)
        if normal is None:
            raise BadQuestion(f"{domain} is no domain")
        words["domain"] = normal
    return Conditions(**words, lowest=_float(asked, "lowest"), highest=_float(asked, "highest"))


def _as_parameters(conditions: Conditions) -> dict[str, Any]:
    return {name: f"{value:.17g}" if isinstance(value, float) else value for name, value in conditions.__dict__.items()}


def _place(asked: Mapping[str, str]) -> tuple[Any, ...] | None:
    """Where a page begins: behind this removal."""
    file = asked.get("at_file")
    if file is None:
        return None
    position = _whole(asked, "at_position", 0, 0, (1 << 63) - 1)
    return _float(asked, "at_measured"), asked.get("at_component", ""), file, position


def _sample_asked(asked: Mapping[str, str]) -> tuple[str, int, int, int | None]:
    """rule, seed, n, and the place in the sample, None where none is named."""
    at = _whole(asked, "at", 0, 1, LARGEST_SAMPLE) if _word(asked, "at") else None
    seed = _whole(asked, "seed", 0, -(1 << 31), (1 << 31) - 1)
    return _word(asked, "rule"), seed, _whole(asked, "n", SAMPLE, 1, LARGEST_SAMPLE), at


def _shown(text: Mapping[str, Any], request: Request) -> Any:
    if text["text"] is None:
        return None
    start = _whole(request.query_params, "from", 0, 0, 1 << 40) if _word(request.query_params, "from") else None
    return shown(text["text"], text["marks"], start)


def _decided(life: Life) -> list[dict[str, Any]]:
    failed = set((life.removal or {}).get("failed_rules") or [])
    signs = {"at_least": "≥", "at_most": "≤", "above": ">", "below": "<", "in": "one of"}
    return [
        {
            "rule": one["rule"],
            "value": one["value"],
            "needed": f"{signs.get(one['keep_if'], one['keep_if'])} "
            + (", ".join(map(str, one["bound"])) if isinstance(one["bound"], list | tuple) else f"{one['bound']:g}"),
            "failed": one["rule"] in failed,
        }
        for one in life.rules
    ]


def _other_signals(life: Life) -> list[tuple[str, str, Any]]:
    return [
        (block, name, value) for block, measured in life.signals.items() for name, value in measured.items() if value is not None
    ]


def _bound(threshold: Any) -> str:
    return ", ".join(threshold) if isinstance(threshold, list) else f"{threshold:.12g}"


def _slider(threshold: Any) -> dict[str, str] | None:
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
    return "not applied" if rule is None else condition(rule)


def _language_tag(language: str | None) -> str | None:
    """For the attribute `lang`; None where it is none that a browser could know."""
    return language if language and language.isascii() and language.isalpha() and len(language) in (2, 3) else None


def _own_path(to: str | None) -> str:
    """A path of this server, whatever was asked: another site is nowhere to be sent to."""
    if not to or not to.startswith("/") or to.startswith(("//", "/\\")) or any(ord(one) < 0x21 for one in to) or "\\" in to:
        return "/"
    return to


def _export_kind(request: Request) -> str:
    kind = request.path_params["kind"]
    if kind not in ("csv", "json"):
        raise BadQuestion("files are .csv and .json", 404)
    return str(kind)


def _saved(body: str, name: str) -> Response:
    kind = "text/csv" if name.endswith("csv") else "application/json"
    headers = {"content-type": f"{kind}; charset=utf-8", "content-disposition": f'attachment; filename="{name}"'}
    return Response(body.encode("utf-8", "backslashreplace"), headers=headers)
