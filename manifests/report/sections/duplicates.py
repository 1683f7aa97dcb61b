"""Sizes of clusters of duplicates, and what was compared."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.report import figures
from manifests.report.charts import Bar, Piece, bars
from manifests.report.elements import element, folded_table
from manifests.report.subject import Subject

COMPARED = ("removed", "candidate_pairs", "verified_pairs", "skipped_pairs")
"""Of the manifest's `deduplication`."""


def section(subject: Subject) -> list[Element]:
    body = []
    for stage, sizes in figures.clusters_of(subject.logs).items():
        clusters = sum(sizes.values())
        largest = max(sizes)
        rows = [
            Bar(f"{group} documents", [Piece(count, "kept", f"{count:,} clusters")], f"{count:,}")
            for group, count in figures.grouped_sizes(sizes)
        ]
        body += [
            element("h3", f"{stage}: {clusters:,} clusters"),
            element(
                "p",
                f"How many documents a cluster had before all but one were removed; the largest had {largest:,}.",
                class_="soft",
            ),
            bars(rows),
        ]
    table = [
        (str(one.get("stage", "")), *(f"{one[key]:,}" if isinstance(one.get(key), int) else "" for key in COMPARED))
        for one in subject.content.deduplication
    ]
    if table:
        headings = ("stage", *(name.replace("_", " ") for name in COMPARED))
        body.append(folded_table("What was compared", headings, table))
    return body or [element("p", "The recipe removes no near-duplicates.")]
