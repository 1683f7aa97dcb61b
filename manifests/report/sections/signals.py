"""What the filters measured: the distribution of each signal, with the bounds of its rules."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from manifests.report.charts import Bar, Piece, bars, histogram, legend
from manifests.report.distributions import Distribution
from manifests.report.elements import element, folded_table
from manifests.report.subject import Subject
from manifests.rules import Rule
from manifests.wording import counted, number, share, some

WORDS_NAMED = 6
COMPONENTS_NAMED = 12


def section(subject: Subject) -> list[Element]:
    if not subject.signals:
        return [element("p", "The recipe has no filters.")]
    body = [
        element(
            "p",
            "Every document that reached a block of filters was measured, whatever removed it. Dashed lines are bounds, ",
            "and what lies beyond one is orange. The first and the last bar hold all that lies further out; ",
            "a bar that would dwarf the others is cut off, and says its share.",
        ),
        legend(("kept", "within the bounds"), ("removed", "beyond a bound")),
    ]
    sampled = [one for one in subject.signals if one.sampled]
    if sampled:
        most = max(one.documents for one in sampled)
        body.append(
            element(
                "p",
                f"Of large logs a sample is shown, drawn by a hash of the id: "
                f"at most {most:,} documents here. Shares are estimates there.",
                class_="soft",
            )
        )
    groups: dict[str, list[Distribution]] = {}
    empty: list[Distribution] = []
    for one in subject.signals:
        if one.documents == one.undefined:
            empty.append(one)
        else:
            groups.setdefault(one.signal.partition(".")[0], []).append(one)
    several = len(subject.content.components) > 1
    for name, signals in groups.items():
        ruled = [one for one in signals if one.beyond]
        others = [one for one in signals if not one.beyond]
        rare = [one for one in ruled if one.undefined > 0.9 * one.documents]
        common = [one for one in ruled if one not in rare]
        body.append(element("h3", name))
        if common:
            body.append(element("div", [_card(one, several) for one in common], class_="cards"))
        for title, few in (("defined for less than a tenth of the documents", rare), ("that no rule looks at", others)):
            if few:
                cards = element("div", [_card(one, several) for one in few], class_="cards")
                body.append(element("details", element("summary", f"{counted(len(few), 'signal')} {title}"), cards))
    table = [row for one in subject.signals for row in _signal_rows(one)]
    headings = ("signal", "rule", "keep if", "documents", "undefined", "beyond", "share", "smallest", "median", "largest")
    body.append(folded_table(f"All {len(subject.signals)} signals in figures", headings, table, words=(1, 2)))
    if empty:
        named = ", ".join(one.signal for one in empty)
        body.append(element("p", f"Defined for no document here: {named}.", class_="soft"))
    return body


def keep_if(rule: Rule) -> str:
    """A rule's condition in signs: ≥ 50; of a long list of words the first ones."""
    listed = rule.keep_if_in or ()
    return f"one of {some(listed, WORDS_NAMED)}" if len(listed) > WORDS_NAMED else rule.in_signs()


def _card(one: Distribution, several: bool) -> Element:
    lines = []
    for beyond in one.beyond:
        part = share(beyond.documents, one.documents)
        said = f"about {part} beyond" if one.sampled else f"{beyond.documents:,} beyond ({part})"
        hit = element("span", said if beyond.documents else "none beyond", class_="hit" if beyond.documents else None)
        lines.append(element("p", f"keep if {keep_if(beyond.rule)}: ", hit, title=beyond.rule.name))
    notes = []
    if one.quantiles:
        notes.append(f"median {number(one.quantiles[2])}, 90 % between {number(one.quantiles[1])} and {number(one.quantiles[3])}")
    if one.undefined:
        notes.append(f"undefined {share(one.undefined, one.documents)}")
    if several:
        notes.append(some(one.components, COMPONENTS_NAMED))
    picture: Element | None = histogram(one) if one.edges else None
    if one.words is not None:
        whole = one.documents
        picture = bars(
            [Bar(word, [Piece(count, "kept", f"{count:,} documents")], share(count, whole)) for word, count in one.words.items()],
            whole,
        )
    name = one.signal.partition(".")[2] or one.signal
    return element(
        "div", element("h4", name.replace("_", " ")), picture, lines, element("p", "; ".join(notes), class_="soft"), class_="card"
    )


def _signal_rows(one: Distribution) -> Iterable[tuple[str, ...]]:
    spread = (number(one.smallest), number(one.quantiles[2]), number(one.largest)) if one.quantiles else ("", "", "")
    if not one.beyond:
        yield (one.signal, "", "", f"{one.documents:,}", f"{one.undefined:,}", "", "", *spread)
    for beyond in one.beyond:
        yield (
            one.signal,
            beyond.rule.name,
            keep_if(beyond.rule),
            f"{one.documents:,}",
            f"{one.undefined:,}",
            f"{beyond.documents:,}",
            share(beyond.documents, one.documents),
            *spread,
        )
