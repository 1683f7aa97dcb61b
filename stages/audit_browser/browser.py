"""What the pages share: one corpus that is asked within bounds, its reviews, and who may see them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import Response

from manifests.audit.costs import RuleCost, rule_costs
from manifests.audit.flow import removed_by_rule
from manifests.audit.reviews import Review, ReviewFile, latest
from manifests.blocks import MEASURE
from manifests.logs import Logs
from manifests.manifest import Manifest
from stages.audit_browser.access import ENTER, LOGIN, Access, cookies_of
from stages.audit_browser.asked import LONGEST_WORD, BadQuestion
from stages.audit_browser.pages import link, page
from stages.audit_browser.questions import Questions, Stop
from stages.audit_browser.report import Report
from stages.audit_browser.runs import Runs
from stages.audit_texts import sampled

LARGEST_FORM = 64 * 1024
MOST_FIELDS = 20
SAMPLES_KEPT = 16
COUNTED_UNASKED = 2_000_000
"""Removals up to which it is counted on the first page, unasked, who failed several rules."""
REVIEWER_COOKIE = "corpusmill_reviewer"
Answer = TypeVar("Answer")


@dataclass
class Browser:
    """One corpus, its reviews, and who may see them. sources: as of `audit sample`. reviewer: the name that forms begin with.
    runs: training runs that are asked too."""

    questions: Questions
    reviews: ReviewFile
    access: Access
    sources: dict[str, str] = field(default_factory=dict)
    personal_data: bool = False
    reviewer: str = ""
    runs: Runs = field(default_factory=Runs)
    report: Report = field(init=False)
    _samples: OrderedDict[tuple[str, int, int], list[dict[str, Any]]] = field(default_factory=OrderedDict)
    _costs: dict[tuple[str, str], RuleCost] | None = None

    def __post_init__(self) -> None:
        self.report = Report(self.questions, tuple(self.runs))

    @property
    def manifest(self) -> Manifest:
        return self.questions.manifest

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """The template with what every page has: without a word of the corpus before the token was given."""
        admitted = request.url.path not in (LOGIN, ENTER)
        common = {
            "corpus": self.manifest.content.name if admitted else "corpusmill",
            "digest": self.manifest.digest if admitted else "",
            "admitted": admitted,
            "path": request.url.path,
            "form_token": self.access.form_token("review") if admitted else self.access.form_token("login"),
            "query": request.query_params.get("q", "")[:LONGEST_WORD].strip(),  # a page about a longer one has it too
            "measure": MEASURE,
            "status": status,
        }
        body = page(template, {**common, **values}).encode("utf-8", "backslashreplace")  # a review may hold half a character
        return Response(body, status, media_type="text/html; charset=utf-8")

    async def ask(self, request: Request, question: Callable[[Logs, Stop], Answer]) -> Answer:
        return await self.questions.ask(request.is_disconnected, question)

    async def sample(self, request: Request, rule: str, seed: int, n: int) -> list[dict[str, Any]]:
        """The sample's removal rows; those asked for last are remembered."""
        key = (rule, seed, n)
        if key not in self._samples:
            self._samples[key] = await self.ask(request, lambda logs, stop: sampled(logs, rule, n, seed))
        self._samples.move_to_end(key)
        found = self._samples[key]
        while len(self._samples) > SAMPLES_KEPT:
            self._samples.popitem(last=False)
        return found

    async def costs(self, request: Request, asked: bool = False) -> dict[tuple[str, str], RuleCost] | None:
        """(stage, rule) → what it costs, counted once; None of many removals, as long as nobody has asked."""
        if self._costs is None and (asked or sum(removed_by_rule(self.manifest.content).values()) <= COUNTED_UNASKED):
            found = await self.ask(request, lambda logs, stop: rule_costs(logs, dimensions=()))
            self._costs = {(one.stage, one.rule): one for one in found}
        return self._costs

    async def form(self, request: Request, purpose: str) -> dict[str, str]:
        """What a form of ours holds; refused without the token that only our pages have."""
        return dict(await self.form_pairs(request, purpose))

    async def form_pairs(
        self, request: Request, purpose: str, largest: int = LARGEST_FORM, fields: int = MOST_FIELDS
    ) -> list[tuple[str, str]]:
        """`form`, in which a name may stand more than once; largest: bytes."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > largest:
                raise BadQuestion(f"a form has {largest:,} bytes at most", 413)
        try:
            pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=fields)
        except ValueError:
            raise BadQuestion("this form cannot be read") from None
        if not self.access.form_is_ours(purpose, dict(pairs).get("form_token", "")):
            raise BadQuestion("this form is not one of this server's pages, or of an earlier run of it: load the page again", 403)
        return pairs

    def reviewer_of(self, request: Request) -> str:
        return unquote(cookies_of(request.scope).get(REVIEWER_COOKIE, "")) or self.reviewer

    def review_form(
        self,
        request: Request,
        standing: Sequence[Review],
        document: str,
        rule: str | None,
        sample: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Where the form goes, and what it begins with; standing: of `latest`."""
        name = self.reviewer_of(request)
        found = (one for one in standing if (one.reviewer, one.id, one.rule) == (name, document, rule))
        return {
            "action": link("/review", id=document, of=rule, **(sample or {})),
            "reviewer": name,
            "mine": next(found, None),
        }

    def standing(self) -> list[Review]:
        """The reviews that count now."""
        return latest(self.reviews.read())

    def populations(self) -> dict[str, int]:
        """Rule → documents that it removed, in whatever stages."""
        found: dict[str, int] = {}
        for (_, rule), documents in removed_by_rule(self.manifest.content).items():
            found[rule] = found.get(rule, 0) + documents
        return found


def saved(body: str, name: str) -> Response:
    """A file to be saved."""
    kind = "text/csv" if name.endswith("csv") else "application/json"
    headers = {"content-type": f"{kind}; charset=utf-8", "content-disposition": f'attachment; filename="{name}"'}
    return Response(body.encode("utf-8", "backslashreplace"), headers=headers)


def language_tag(language: str | None) -> str | None:
    """For the attribute `lang`; None where it is none that a browser could know."""
    return language if language and language.isascii() and language.isalpha() and len(language) in (2, 3) else None
