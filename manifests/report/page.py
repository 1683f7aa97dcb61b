"""The page: one HTML file that loads nothing and runs nothing, for people who look before they read."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.mixture import Plan
from manifests.report import figures
from manifests.report.distributions import SAMPLED_ROWS, distributions
from manifests.report.elements import element, raw_style, written
from manifests.report.sections import (
    benchmarks,
    duplicates,
    funnel,
    held_out,
    places,
    rules,
    signals,
    tokenizer,
    tokens,
    training,
    unchecked,
)
from manifests.report.style import STYLE
from manifests.report.subject import PageOf, Subject
from manifests.storage import Folder
from manifests.wording import byte_size, counted, number, share

POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""Its content security policy: nothing runs, nothing is loaded, and there is no style but its own."""


def report(
    corpus: Folder,
    manifest: Manifest,
    runs: Sequence[Path] = (),
    planned: Plan | None = None,
    most: int = SAMPLED_ROWS,
    logs: Logs | None = None,
    page_of: PageOf | None = None,
) -> str:
    """The page of a corpus, the same for the same corpus; `most` is how many documents distributions are taken of. logs: of the
    corpus, already open. page_of: where a browser shows rules, languages and domains, which are links then (`unlinked`).

    figures.RunError for a folder of `runs` that is none; duckdb.Error where a log cannot be read.
    """
    told = [figures.run_figures(run, corpus, manifest) for run in runs]
    with Logs(corpus, manifest) if logs is None else contextlib.nullcontext(logs) as logs:
        subject = Subject(manifest, logs, told, planned, list(distributions(logs, most)), page_of)
        made = [(anchor, title, section(subject)) for anchor, title, section in SECTIONS]
        tiles = _tiles(subject)
    sections = [one for one in made if one[2]]
    content = manifest.content
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{content.name}: corpus report"),
        element("link", rel="icon", href="data:,"),
        raw_style(STYLE),
    )
    links = [element("a", title, href=f"#{anchor}") for anchor, title, _ in sections]
    back = element("p", element("a", "Back to the browser", href=page_of("", "")), class_="back") if page_of else None
    top = element(
        "header",
        back,
        element("h1", content.name),
        element(
            "p",
            "A corpus whose every document is accounted for: kept, or removed by a rule with its evidence. ",
            element("small", "Identity ", element("code", manifest.digest)),
            class_="soft",
        ),
        tiles,
        element("nav", links, aria_label="Sections"),
    )
    main = element(
        "main",
        [element("section", element("h2", title), body, id=anchor) for anchor, title, body in sections],
    )
    foot = element(
        "footer",
        "Made by corpusmill report from the manifest and the logs it lists. Nothing was hashed for it: ",
        element("code", "corpusmill verify"),
        " does that. ",
        element("code", "corpusmill why"),
        " tells the life of a single document.",
    )
    return written(element("html", head, element("body", top, main, foot), lang="en"))


def unlinked(page: str) -> str:
    """A page that was made with `page_of`, as it is without: to be sent to somebody who has no such browser."""
    # All of it is written by `elements.written`, which leaves no quote within an attribute and no tag within a text.
    page = re.sub(r'<p class="back">.*?</p>', "", page, count=1, flags=re.DOTALL)
    return re.sub(r'<a href="/[^"]*">(.*?)</a>', r"\1", page, flags=re.DOTALL)


def _tiles(subject: Subject) -> Element:
    removed = subject.documents_in - subject.kept
    kept_bytes = sum(one.bytes for one in subject.licences) or sum(row["bytes"] for row in subject.languages)
    spoken = sum(1 for row in subject.languages if row["language"] and row["kept"])
    tiles = [
        ("documents in", number(subject.documents_in), counted(len(subject.content.components), "component")),
        ("kept", number(subject.kept), share(subject.kept, subject.documents_in)),
        ("removed", number(removed), share(removed, subject.documents_in)),
        ("text kept", byte_size(kept_bytes), f"{number(kept_bytes / subject.kept)} bytes a document" if subject.kept else ""),
        ("tokens", number(subject.tokens) if subject.tokens else "–", counted(len(subject.licences), "licence")),
        ("languages", number(spoken) if spoken else "–", "of kept documents"),
    ]
    return element(
        "dl",
        [element("div", element("dt", name), element("dd", value, element("small", note))) for name, value, note in tiles],
        class_="tiles",
    )


SECTIONS: tuple[tuple[str, str, Callable[[Subject], list[Element]]], ...] = (
    ("funnel", "From documents in to documents kept", funnel.section),
    ("rules", "What removed documents", rules.section),
    ("where", "Where documents were removed", places.section),
    ("signals", "What the filters measured", signals.section),
    ("duplicates", "Duplicates and near-duplicates", duplicates.section),
    ("tokens", "Tokens and licences", tokens.section),
    ("mixture", "Mixture and epochs", training.section),
    ("decontamination", "Decontamination", benchmarks.section),
    ("split", "Held-out documents", held_out.section),
    ("tokenizer", "Tokenizer", tokenizer.section),
    ("unchecked", "What was not checked", unchecked.section),
)
"""Anchor, heading and module of each section, in the order of the page; one without elements is left out."""
