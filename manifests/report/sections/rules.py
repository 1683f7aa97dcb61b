"""What removed documents: rules, and which of them decided alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from manifests.audit.costs import Share
from manifests.report import figures
from manifests.report.charts import Bar, Piece, bars, legend
from manifests.report.elements import element, folded_table
from manifests.report.subject import Subject
from manifests.wording import ABSENT, share, some

RULES_SHOWN = 25
LARGEST_SHOWN = 5


def section(subject: Subject) -> list[Element]:
    rules = figures.rules_of(subject.logs)
    if not rules:
        return [element("p", "No document was removed.")]
    removed = sum(rule.removed for rule in rules)
    names = Counter(rule.rule for rule in rules)
    rows = [
        Bar(
            rule.rule,
            [
                Piece(rule.alone, "removed", f"{rule.alone:,} failed this rule alone"),
                Piece(rule.removed - rule.alone, "faint", f"{rule.removed - rule.alone:,} failed other rules of its block too"),
            ],
            f"{rule.removed:,} ({share(rule.removed, removed)})",
            f"of {rule.stage}" if names[rule.rule] > 1 else "",
            subject.page_of("rule", rule.rule),
        )
        for rule in rules[:RULES_SHOWN]
    ]
    body = [
        element(
            "p",
            "A document is removed by the first rule that it fails. Where it failed only one rule of its block, ",
            "that rule decided alone; otherwise another rule of the block would have removed it as well.",
        ),
        legend(("removed", "failed this rule alone"), ("faint", "failed other rules of the block too")),
        bars(rows),
    ]
    table = [
        (
            rule.rule,
            rule.stage,
            f"{rule.removed:,}",
            share(rule.removed, subject.documents_in),
            f"{rule.alone:,}",
            _largest(rule.by["component"]),
            _largest(rule.by["language"]),
        )
        for rule in rules
    ]
    headings = ("rule", "stage", "removed", "of all documents in", "by it alone", "components", "languages")
    summary = f"All {len(rules)} rules that removed documents, with components and languages"
    return [*body, folded_table(summary, headings, table, words=(1, 5, 6))]


def _largest(shares: Sequence[Share]) -> str:
    return some([f"{one.name or ABSENT} {one.removed:,}" for one in shares], LARGEST_SHOWN)
