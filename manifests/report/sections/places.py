"""Where documents were removed: components, languages and domains."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.audit.flow import StageTotal
from manifests.report import figures
from manifests.report.charts import Bar, Piece, bars, legend
from manifests.report.elements import element, folded_table
from manifests.report.subject import COMPONENTS_SHOWN, LANGUAGES_SHOWN, Subject
from manifests.wording import ABSENT, number, share

DOMAINS_SHOWN = 20
HEAT = (0.0, 0.001, 0.02, 0.08, 0.2, 0.4)
"""Shares from which a cell of the table of removals has the next shade."""


def section(subject: Subject) -> list[Element]:
    stages = [stage for stage in subject.stages if stage.gone]
    body = [
        element("h3", "By component"),
        element("p", "The share of a component's documents that each stage removed.", class_="soft"),
        _heat(subject, stages),
        element("h3", "By language"),
    ]
    kept_or_not = legend(("kept", "kept"), ("removed", "removed"))
    languages = [
        _kept_bar(
            row["language"] or ABSENT, row["kept"], row["documents"], subject.page_of("language", row["language"] or ABSENT)
        )
        for row in subject.languages[:LANGUAGES_SHOWN]
    ]
    note = "A document has no language where it was removed before the stage that tells it, or where the recipe has none."
    body += [element("p", note, class_="soft"), kept_or_not, bars(languages)]
    if len(subject.languages) > LANGUAGES_SHOWN:
        table = [
            (row["language"] or ABSENT, f"{row['documents']:,}", f"{row['kept']:,}", f"{row['tokens']:,}")
            for row in subject.languages
        ]
        body.append(folded_table(f"All {len(table)} languages", ("language", "documents", "kept", "tokens"), table))
    domains = figures.domains_of(subject.logs, DOMAINS_SHOWN)
    if domains:
        body += [
            element("h3", "By domain"),
            element("p", f"The {len(domains)} domains with most documents." if len(domains) > 1 else "", class_="soft"),
            bars(
                [
                    _kept_bar(row["domain"], row["kept"], row["documents"], subject.page_of("domain", row["domain"]))
                    for row in domains
                ]
            ),
        ]
    return body


def _heat(subject: Subject, stages: list[StageTotal]) -> Element:
    shown = sorted(subject.content.components.items(), key=lambda item: (-item[1].documents_in, item[0]))
    head = element("tr", [element("th", one, scope="col") for one in ("component", "in", *(s.stage for s in stages), "kept")])
    rows = []
    for name, component in shown[:COMPONENTS_SHOWN]:
        cells = []
        for stage in stages:
            if name not in stage.components:
                cells.append(element("td", "·", class_="soft"))
                continue
            part = stage.by_component.get(name, 0) / (component.documents_in or 1)
            shade = sum(part >= bound for bound in HEAT[1:])
            said = share(stage.by_component.get(name, 0), component.documents_in) if part else "0"
            cells.append(element("td", said, class_=f"heat{shade}"))
        kept = share(component.documents_kept, component.documents_in)
        rows.append(
            element(
                "tr",
                element("th", name, scope="row"),
                element("td", f"{component.documents_in:,}"),
                cells,
                element("td", kept),
            )
        )
    if len(shown) > COMPONENTS_SHOWN:
        rows.append(element("tr", element("th", f"and {len(shown) - COMPONENTS_SHOWN} smaller ones", scope="row")))
    table = element("table", element("thead", head), element("tbody", rows), class_="heat")
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Share removed by component and stage")


def _kept_bar(label: str, kept: int, documents: int, href: str | None) -> Bar:
    pieces = [Piece(kept, "kept", f"{kept:,} kept"), Piece(documents - kept, "removed", f"{documents - kept:,} removed")]
    return Bar(label, pieces, f"{share(kept, documents)} of {number(documents)} kept", href=href)
