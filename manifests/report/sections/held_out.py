"""Documents that training does not see, and how alike they are to the others."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.report.charts import Bar, Piece, bars
from manifests.report.elements import element
from manifests.report.subject import SPLIT_COLOURS, Subject
from manifests.wording import counted, share


def section(subject: Subject) -> list[Element]:
    split = subject.content.split
    if split is None:
        return [element("p", "Nothing is held out: the recipe has no split.")]
    total = sum(split.documents.values())
    rows = [
        Bar(
            name,
            [Piece(split.documents.get(name, 0), colour, f"{split.documents.get(name, 0):,} documents")],
            f"{split.documents.get(name, 0):,} ({share(split.documents.get(name, 0), total)})",
        )
        for name, colour in SPLIT_COLOURS.items()
        if name in split.documents
    ]
    body = [
        element("p", f"Documents that resemble each other (Jaccard {split.threshold:g} or more) are in the same split."),
        bars(rows),
    ]
    if split.closest is not None:
        pair = split.closest
        said = (
            f"A sample of {counted(pair.held_out_documents, 'held-out document')} was compared with every document of another "
            f"split than its own, out of {pair.documents:,}: the two most alike have a Jaccard similarity of {pair.jaccard:.3f}"
        )
        beyond = f"; {pair.pairs_at_threshold:,} pairs reached the threshold" if pair.pairs_at_threshold else ""
        body.append(element("p", said + beyond + "."))
    else:
        body.append(element("p", "How alike documents of different splits are was not measured."))
    return body
