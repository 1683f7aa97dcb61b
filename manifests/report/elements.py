"""Elements of a page. Whatever is put into one is text and stays text: names, URLs and ids come from strangers, and no string
can become markup, since markup is only ever made by `element`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from xml.etree.ElementTree import Element

from manifests.terminal import visible

Child = Element | str | None


def element(tag: str, *children: Child | Iterable[Child], **attributes: object) -> Element:
    """An element with its children in order; None is left out. `class_` is class, `_` in other names is `-`; attributes that are
    None are left out."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(_ATTRIBUTES.get(name, name.replace("_", "-")), visible(value))
    last: Element | None = None
    for child in _flat(children):
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + visible(child)
        else:
            last.tail = (last.tail or "") + visible(child)
    return made


def breakable(text: str) -> list[Child]:
    """A name that may be broken after its dots, slashes and underscores, and elsewhere only where it must."""
    pieces = re.split(r"(?<=[._/])(?=[^._/])", text)
    found: list[Child] = [pieces[0]]
    for piece in pieces[1:]:
        found += [element("wbr"), piece]
    return found


def folded_table(summary: str, headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = ()) -> Element:
    """A table that opens on demand, and scrolls sideways in a narrow window. `words`: columns of words beside the first."""
    head = element("tr", [element("th", heading, scope="col") for heading in headings])
    body = [
        element("tr", [element("td", cell, class_="words" if n in words else None) for n, cell in enumerate(row)]) for row in rows
    ]
    table = element("table", element("thead", head), element("tbody", body))
    return element("details", element("summary", summary), scrolling(table, summary))


def scrolling(table: Element, name: str) -> Element:
    """What is wider than a narrow window: it scrolls, with the keys too, and shades the side where there is more."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def raw_style(css: str) -> Element:
    """A style sheet of our own, which is not escaped."""
    made = Element("style")
    made.text = css
    return made


def written(root: Element) -> str:
    """The page as HTML."""
    return f"<!doctype html>\n{markup(root)}\n"


def markup(root: Element) -> str:
    """An element as HTML, for a page that others write."""
    return "".join(_markup(root))


def _markup(made: Element) -> Iterator[str]:
    """Escaped everywhere, `<` in attributes included, which the standard library's own writer of HTML leaves."""
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in made.attrib.items())
    yield f"<{made.tag}{attributes}>"
    if made.tag in _EMPTY:
        return
    yield (made.text or "") if made.tag == "style" else escape(made.text or "")
    for child in made:
        yield from _markup(child)
        yield escape(child.tail or "")
    yield f"</{made.tag}>"


def _flat(children: Iterable[Child | Iterable[Child]]) -> Iterable[Element | str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, (Element, str)):
            yield child
        else:
            yield from _flat(child)


_ATTRIBUTES = {"class_": "class", "for_": "for", "viewBox": "viewBox"}
_EMPTY = frozenset(["meta", "link", "wbr"])
