"""What was not checked: stages that the recipe does not have, limits of those that it has, and what they left out."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.audit.unchecked import unchecked
from manifests.report.elements import element, folded_table
from manifests.report.subject import Subject
from manifests.wording import counted, share, some

RULES_NAMED = 4
ITEMS_LISTED = 1_000
"""Of a benchmark; the manifest has all."""


def section(subject: Subject) -> list[Element]:
    gaps = unchecked(subject.content)
    said = [one.said for one in gaps if not one.items] + _undecided(subject)
    said += [one.said for one in gaps if one.items]
    said.append("This page reads the manifest and the logs. It did not hash the files: corpusmill verify does.")
    body = [element("ul", [element("li", one) for one in dict.fromkeys(said)], class_="unchecked")]
    if items := [(one.about, some(one.items, ITEMS_LISTED)) for one in gaps if one.items]:
        summary = "Items of benchmarks that are too short to be looked for, by id"
        body.append(folded_table(summary, ("benchmark", "items"), items, words=(1,)))
    return body


def _undecided(subject: Subject) -> list[str]:
    """Rules that kept documents whose signal was undefined, those of a block together."""
    found: dict[tuple[str, int, int], list[str]] = {}
    for one in subject.signals:
        for beyond in one.beyond:
            if 0 < one.undefined < one.documents and beyond.rule.when_undefined == "keep":
                block, _, rule = beyond.rule.name.partition(".")
                found.setdefault((block, one.undefined, one.documents), []).append(rule)
    return [
        f"{block}: {counted(len(rules), 'rule')} had nothing to measure in {undefined:,} of {documents:,} documents "
        f"({share(undefined, documents)}) and kept them: {some(rules, RULES_NAMED)}."
        for (block, undefined, documents), rules in found.items()
    ]
