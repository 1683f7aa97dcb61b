"""A look at a page before it is extracted: a twentieth of the work, and it removes what later stages would remove anyway.

It judges the URL, by lists as in `url_filter`; the length of what a browser would show (`stages.visible_text`); and the
language of the page's running text. Extracted text is part of what is shown, so a page that shows too little gives too
little; and a language that is wanted is seldom hidden in a page that is clearly in another.

How often it is wrong is measured while it runs. A page that it would remove is *sampled* when a hash of its id falls within
`sample`; such a page is extracted, its language judged as the `language` stage would, and a page that would stay does stay.
The manifest's summary says for each rule how many pages it met, how many were sampled, and how many of those stayed.

A page that is too large for extraction or has no known encoding passes: extraction removes it by name.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from manifests.identity import keyed_hash, printed_ids
from stages import charset
from stages.extraction import Extraction, ExtractionOptions, is_markup
from stages.language import THRESHOLD, Language, LanguageOptions
from stages.stage import DataPath, Options, Stage, Verdict
from stages.url_filter import UrlFilter, UrlFilterOptions
from stages.visible_text import visible_text

LANGUAGE_CHARACTERS = 2_000
"""So much running text is enough for its language."""
LEAST_RUNNING_TEXT = 200
"""Bytes. With less of it all that is visible is judged, and with less of that nothing."""
SAMPLE_KEY = "pre_check.sample"
MOST_SHOWN = 20
"""Ids of pages that stayed, in the summary; those with the lowest hashes."""


class PreCheckOptions(UrlFilterOptions):
    """`keep`, `later_threshold` and `extraction` are what the later stages have; the lists are those of `url_filter`."""

    keep: tuple[str, ...] = Field((), description="languages as in the language stage; none: language does not matter")
    threshold: float = Field(0.9, ge=0, lt=1, description="an unwanted language that scores above it removes the page")
    min_characters: int = Field(1, ge=0, description="a page that shows fewer is removed")
    sample: float = Field(0.01, ge=0, le=1, description="share of the pages to be removed that is extracted to see who is right")
    later_threshold: float = Field(THRESHOLD, ge=0, lt=1, description="threshold of the language stage")
    model: DataPath | None = Field(None, description="a fastText model file, as in the language stage")
    extraction: ExtractionOptions = Field(ExtractionOptions(), description="options of the extraction stage")


class PreCheck(Stage[PreCheckOptions]):
    """Stands before extraction. `detail` is the entry of a list, or the label and how much text it was taken from; for a sampled
    page also the later rule that agrees."""

    name = "pre_check"
    version = 2
    options_type: ClassVar[type[Options]] = PreCheckOptions
    libraries = (*Language.libraries, *Extraction.libraries)
    removal_rules = (
        *(rule.replace(UrlFilter.name, "pre_check") for rule in UrlFilter.removal_rules),
        "pre_check.too_short",
        "pre_check.language",
    )

    def __init__(self, options: PreCheckOptions) -> None:
        super().__init__(options)
        self.urls = UrlFilter(UrlFilterOptions(**{name: getattr(options, name) for name in UrlFilterOptions.model_fields}))
        self.extraction = Extraction(options.extraction)
        self.language: Language | None = None
        self.wanted: frozenset[str] = frozenset()
        if options.keep:
            wanted = LanguageOptions(keep=options.keep, threshold=options.later_threshold, model=options.model)
            self.language = Language(wanted)
            self.wanted = frozenset(part.strip() for entry in options.keep for part in entry.split("+"))
        self._counts = {rule: Counts() for rule in SAMPLED_RULES}
        self._stayed: list[tuple[int, str]] = []

    def identity(self) -> dict[str, str]:
        """Those of the stages that it asks, and their versions."""
        asked: list[Stage[Any]] = [self.urls, self.extraction, *([self.language] if self.language else [])]
        found = {one.name: f"version {one.version}" for one in asked}
        for one in asked:
            found.update(one.identity())
        return found

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        rows = batch.num_rows
        verdict = Verdict.keep_all(rows)
        verdict.value, verdict.threshold = np.full(rows, np.nan), np.full(rows, np.nan)
        verdict.detail = [None] * rows
        payloads, types, charsets, texts = (batch[name] for name in ("payload", "media_type", "charset", "text"))
        listed = self.urls.decide(batch)
        assert listed.detail is not None
        for row in range(rows):
            if texts[row].is_valid or not payloads[row].is_valid:
                continue
            if listed.rule[row] >= 0:
                verdict.rule[row], verdict.detail[row] = listed.rule[row], listed.detail[row]
            elif len(payloads[row].as_buffer()) <= self.options.extraction.max_bytes:
                found = self.look(payloads[row].as_py(), types[row].as_py(), charsets[row].as_py())
                if found is not None:
                    verdict.rule[row] = self.removal_rules.index(found.rule)
                    verdict.value[row], verdict.threshold[row] = found.value, found.threshold
                    verdict.detail[row] = found.detail
        self._compare(batch, verdict)
        return verdict

    def look(self, payload: bytes, media_type: str | None, transport: str | None) -> Finding | None:
        """What speaks against a page, by its bytes alone."""
        decoded = charset.decode(payload, transport)
        if decoded is None:
            return None
        if is_markup(decoded.text, media_type):
            visible, running = visible_text(decoded.text.encode("utf-8", "replace"))
        else:
            visible = running = decoded.text.encode("utf-8", "replace")
        least = self.options.min_characters
        if len(visible) < least * LONGEST_REFERENCE:
            characters = len(" ".join(html.unescape(visible.decode("utf-8", "ignore")).split()))
            if characters < least and not HIDDEN_TEXT.search(decoded.text):
                return Finding("pre_check.too_short", characters, least, None)
        chosen, kind = (running, "running") if len(running) >= LEAST_RUNNING_TEXT else (visible, "visible")
        if self.language is None or len(chosen) < LEAST_RUNNING_TEXT:
            return None
        text = html.unescape(chosen[: LANGUAGE_CHARACTERS * 4].decode("utf-8", "ignore"))[:LANGUAGE_CHARACTERS]
        label, score = self.language.predict(text)[0]
        if label in self.wanted or score <= self.options.threshold:
            return None
        return Finding("pre_check.language", score, self.options.threshold, f"{label} in {len(text)} characters of {kind} text")

    def report(self) -> dict[str, Any]:
        """Counts by rule, and the pages that stayed: [hash, id]."""
        if not any(counts.found for counts in self._counts.values()):
            return {}
        return {"rules": {rule: counts.as_list() for rule, counts in self._counts.items()}, "stayed": self._stayed}

    def summary(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """By rule: pages it met, those sampled, those of them that stayed, and the share of pages which it wrongly meets that is
        not exceeded with 95 % confidence (Wilson's upper bound; null without a sample). `stayed`: ids of such pages."""
        rules = []
        for rule in SAMPLED_RULES:
            sums = [sum(report["rules"][rule][place] for report in reports) for place in range(3)]
            found, sampled, stayed = sums
            bound = round(upper_bound(stayed, sampled), 4) if sampled else None
            rules.append({"rule": rule, "found": found, "sampled": sampled, "stayed": stayed, "wrong_at_most": bound})
        stayed_pages = sorted(tuple(one) for report in reports for one in report["stayed"])
        return {"sample": self.options.sample, "rules": rules, "stayed": [page for _, page in stayed_pages[:MOST_SHOWN]]}

    def close(self) -> None:
        self.extraction.close()

    def _compare(self, batch: pa.RecordBatch, verdict: Verdict) -> None:
        """Counts what was found, and lets those sampled pages stay that the later stages would keep."""
        assert verdict.detail is not None
        rules = {row: self.removal_rules[verdict.rule[row]] for row in np.flatnonzero(verdict.rule >= 0).tolist()}
        judged = [row for row, rule in rules.items() if rule in SAMPLED_RULES]
        ids = printed_ids(batch.take(pa.array(judged, pa.int64()))).to_pylist()
        hashes = [keyed_hash(SAMPLE_KEY, one) for one in ids]
        sampled = [place for place, number in enumerate(hashes) if number < self.options.sample * 2**64]
        later = self._later(batch.take(pa.array([judged[place] for place in sampled], pa.int64()))) if sampled else []
        # Nothing is counted before everything is known: a batch that fails is asked again, row by row.
        for row in judged:
            self._counts[rules[row]].found += 1
        for place, agreeing in zip(sampled, later, strict=True):
            row = judged[place]
            counts = self._counts[rules[row]]
            counts.sampled += 1
            if agreeing is not None:
                detail = verdict.detail[row]
                verdict.detail[row] = f"{detail}; {agreeing} agrees" if detail else f"{agreeing} agrees"
                continue
            counts.stayed += 1
            self._stayed.append((hashes[place], ids[place]))
            verdict.rule[row], verdict.detail[row] = -1, None
            verdict.value[row] = verdict.threshold[row] = np.nan  # type: ignore[index]
        self._stayed = sorted(self._stayed)[:MOST_SHOWN]

    def _later(self, batch: pa.RecordBatch) -> list[str | None]:
        """The rule by which extraction, the least length, or the language stage would remove each row, or None."""
        extracted = self.extraction.decide(batch)
        texts = extracted.columns["text"].to_pylist()
        rules: list[str | None] = [Extraction.removal_rules[index] if index >= 0 else None for index in extracted.rule]
        for row, text in enumerate(texts):
            if rules[row] is None and len(text) < self.options.min_characters:
                rules[row] = "min_characters"
        rest = [row for row, rule in enumerate(rules) if rule is None]
        if self.language is not None and rest:
            judged = self.language.decide(pa.record_batch({"text": pa.array([texts[row] for row in rest], pa.large_string())}))
            for row, index in zip(rest, judged.rule.tolist(), strict=True):
                rules[row] = Language.removal_rules[index] if index >= 0 else None
        return rules


@dataclass(frozen=True)
class Finding:
    """Why a page is to be removed."""

    rule: str
    value: float
    threshold: float
    detail: str | None


@dataclass
class Counts:
    """Pages that a rule met, those of them that were sampled, and those of these that stayed."""

    found: int = 0
    sampled: int = 0
    stayed: int = 0

    def as_list(self) -> list[int]:
        return [self.found, self.sampled, self.stayed]


def upper_bound(hits: int, trials: int) -> float:
    """Wilson's score bound: the largest share that `hits` of `trials` does not speak against, one-sided, at 95 %."""
    share = hits / trials
    spread = QUANTILE * math.sqrt(share * (1 - share) / trials + QUANTILE**2 / (4 * trials**2))
    return (share + QUANTILE**2 / (2 * trials) + spread) / (1 + QUANTILE**2 / trials)


QUANTILE = 1.6448536269514722
"""The standard normal distribution's at 95 %."""
SAMPLED_RULES = ("pre_check.too_short", "pre_check.language")
"""Rules that foresee what a later stage says. The lists of URLs say it themselves."""
LONGEST_REFERENCE = 40
"""Bytes, at most, that stand for one visible character: `&CounterClockwiseContourIntegral;` has 33."""
HIDDEN_TEXT = re.compile(r"<script[^>]+ld\+json", re.I)
"""Data for search engines: trafilatura takes the text from there if the page shows none."""
