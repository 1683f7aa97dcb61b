"""Tokens by licence, component and language."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from manifests.overview import by_component
from manifests.report.charts import Bar, Piece, bars, legend
from manifests.report.elements import element, folded_table
from manifests.report.subject import COMPONENTS_SHOWN, LANGUAGES_SHOWN, SPLIT_COLOURS, Subject
from manifests.wording import ABSENT, number, share


def section(subject: Subject) -> list[Element]:
    if not subject.tokens:
        return [element("p", "The recipe ends before its text became tokens.")]
    used = dict.fromkeys(split for one in subject.licences for split in one.tokens)
    entries = legend(*((SPLIT_COLOURS.get(split, "other"), split) for split in SPLIT_COLOURS if split in used))
    body = [entries, element("h3", "By licence"), bars([_token_bar(one.name, one.tokens) for one in subject.licences])]
    components = sorted(by_component(subject.content), key=lambda one: (-one.all_tokens, one.name))
    body += [
        element("h3", "By component"),
        bars(
            [
                _token_bar(one.name, one.tokens, subject.content.components[one.name].licence)
                for one in components[:COMPONENTS_SHOWN]
            ]
        ),
    ]
    spoken = sorted((row for row in subject.languages if row["tokens"]), key=lambda row: (-row["tokens"], row["language"] or ""))
    body += [
        element("h3", "By language"),
        bars(
            [
                Bar(
                    row["language"] or ABSENT,
                    [Piece(row["tokens"], "kept", f"{row['tokens']:,} tokens")],
                    f"{number(row['tokens'])} ({share(row['tokens'], subject.tokens)})",
                )
                for row in spoken[:LANGUAGES_SHOWN]
            ]
        ),
    ]
    table = [
        (
            one.name,
            subject.content.components[one.name].licence,
            subject.content.components[one.name].source,
            f"{one.documents:,}",
            f"{one.bytes:,}",
            *(f"{one.tokens.get(split, 0):,}" for split in SPLIT_COLOURS),
            f"{one.shards:,}",
        )
        for one in components
    ]
    headings = ("component", "licence", "source", "documents", "bytes of text", *SPLIT_COLOURS, "shards")
    return [*body, folded_table("All components in figures", headings, table, words=(1, 2))]


def _token_bar(label: str, tokens: dict[str, int], note: str = "") -> Bar:
    pieces = [Piece(tokens.get(split, 0), colour, f"{split} {tokens.get(split, 0):,}") for split, colour in SPLIT_COLOURS.items()]
    return Bar(label, pieces, number(sum(tokens.values())), note)
