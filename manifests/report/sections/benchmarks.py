"""The decontamination record: items of benchmarks, and what was found of them."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.report import figures
from manifests.report.charts import Bar, Piece, bars, legend
from manifests.report.elements import element, folded_table
from manifests.report.subject import Subject
from manifests.wording import number


def section(subject: Subject) -> list[Element]:
    if not subject.content.decontamination:
        return [element("p", "No benchmark was looked for: the recipe has no decontamination.")]
    body = []
    removed = figures.contaminated_of(subject.logs)
    for record in subject.content.decontamination:
        rows, table = [], []
        for one in record.get("benchmarks", []):
            items, found, unchecked = one.get("items", 0), len(one.get("found", {})), len(one.get("unchecked", []))
            rest = max(0, items - found - unchecked)
            rows.append(
                Bar(
                    one.get("benchmark", "?"),
                    [
                        Piece(rest, "kept", f"{rest:,} not found"),
                        Piece(found, "removed", f"{found:,} found"),
                        Piece(unchecked, "other", f"{unchecked:,} too short to be looked for"),
                    ],
                    f"{found:,} of {items:,} found",
                )
            )
            table.append(
                (
                    one.get("benchmark", "?"),
                    f"{items:,}",
                    f"{found:,}",
                    f"{unchecked:,}",
                    f"{removed.get(one.get('benchmark', ''), 0):,}",
                )
            )
        where = f"{record['component']}: " if record.get("component") else ""
        body += [
            element(
                "p",
                f"{where}{number(record.get('ngrams', 0))} n-grams of {record.get('n', '?')} words were looked for in ",
                "every document that came so far. An item counts as found when a document held any of its n-grams.",
            ),
            legend(("kept", "items not found"), ("removed", "items found"), ("other", "too short to be looked for")),
            bars(rows),
            folded_table("Benchmarks in figures", ("benchmark", "items", "found", "unchecked", "documents removed"), table),
        ]
    return body
