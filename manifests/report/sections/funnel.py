"""What each stage left, from documents in to documents kept."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.audit.flow import levels_of, quiet_stages
from manifests.report import charts
from manifests.report.elements import element, folded_table
from manifests.report.subject import Subject
from manifests.wording import byte_size


def section(subject: Subject) -> list[Element]:
    dropped = subject.content.dropped
    body = [
        element(
            "p",
            "The width of the band is the number of documents; what a stage removed is drawn at its sides. ",
            "Every document that came in is either kept or in the log of removals.",
        ),
        charts.funnel(levels_of(subject.content), subject.documents_in),
    ]
    if quiet := quiet_stages(subject.content):
        body.append(element("p", f"Removed nothing: {', '.join(quiet)}.", class_="soft"))
    if dropped:
        named = ", ".join(str(one.get("component", "?")) for one in dropped)
        body.append(element("p", f"Left out of this corpus after it was made, and not counted here: {named}.", class_="soft"))
    rows = [
        (
            count.component,
            count.stage,
            f"{count.documents_in:,}",
            f"{count.documents_kept:,}",
            f"{sum(count.removed.values()):,}",
            f"{sum(count.edited.values()):,}",
            byte_size(count.bytes_in),
            byte_size(count.bytes_kept),
        )
        for count in subject.content.counts
    ]
    headings = ("component", "stage", "in", "kept", "removed", "edits by rule", "text in", "text kept")
    return [*body, folded_table(f"All {len(rows)} counts, by component and stage", headings, rows, words=(1,))]
