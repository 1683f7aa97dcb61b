"""Pages become text: bytes are decoded once (`stages.charset`), HTML goes through trafilatura or resiliparse, plain text stays
as it is.

Every page is handled in the sandbox, so that one which crashes the parser, hangs it or eats its memory is removed by name and
the others stay. Limits that decide are measured on the page alone and come first: bytes, start tags, nesting. The sandbox's
deadline and memory cap lie far above them, and only catch what nobody foresaw.

The text of HTML is in Unicode normal form C and free of control characters; lines end in `\\n`. Joiners stay: Persian and Hindi
are misspelt without them. The same page gives the same text whatever came before it: trafilatura's process-wide
deduplication is never on.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import metadata
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from stages import charset
from stages.personal_data import scrub
from stages.sandbox import DEFAULT_CPU_SECONDS, DEFAULT_MEMORY_BYTES, Outcome, Sandbox
from stages.stage import Needs, Options, Stage, Verdict

DEEPEST_PARSED = 2_000
"""libxml2 gives up at 2,048 levels (256 without `huge_tree`), and then drops the inner text and all after it without an error."""
BATCH_BYTES = 32 << 20
"""So many bytes of pages are handed to the sandbox at once."""


class ExtractionOptions(Options):
    """Comments and deduplication are off. `favor: precision` is what FineWeb ran; docs/text-stages.md has the figures of each."""

    engine: Literal["trafilatura", "resiliparse"] = "trafilatura"
    favor: Literal["precision", "balanced", "recall"] = "balanced"
    fast: bool = Field(False, description="skip trafilatura's comparison with readability and jusText")
    main_content: bool = Field(True, description="resiliparse alone: without it, all that a reader of the page sees")
    include_tables: bool = True
    include_links: bool = False
    include_images: bool = False
    include_formatting: bool = Field(False, description="trafilatura alone: keep emphasis and headings as Markdown")
    max_bytes: int = Field(20_000_000, gt=0, description="of the page, transfer and content codings undone")
    max_elements: int = Field(50_000, gt=0, description="start tags in a page of HTML")
    max_depth: int = Field(DEEPEST_PARSED, gt=0, le=DEEPEST_PARSED, description="levels of nested elements")
    cpu_seconds: int = Field(DEFAULT_CPU_SECONDS, gt=0, description="backstop of the sandbox, for one page")
    memory_bytes: int = Field(DEFAULT_MEMORY_BYTES, ge=256 << 20, description="backstop of the sandbox")

    @model_validator(mode="after")
    def _of_this_engine(self) -> ExtractionOptions:
        for option in _OPTIONS_OF_THE_OTHER[self.engine]:
            if getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option} is no option of {self.engine}")
        return self


_OPTIONS_OF_THE_OTHER = {"trafilatura": ("main_content",), "resiliparse": ("favor", "fast", "include_formatting")}


class Extraction(Stage[ExtractionOptions]):
    """Gives RECORDS rows their `text`. Rows that have one already pass through as they are."""

    name = "extraction"
    version = 2
    needs = Needs(memory=512 << 20)
    """The sandbox's processes: two hold trafilatura, of which one parses while the worker waits."""
    options_type: ClassVar[type[Options]] = ExtractionOptions
    libraries = ("trafilatura", "lxml", "lxml_html_clean", "justext", "chardet")
    removal_rules = (
        "extraction.too_large",
        "extraction.too_many_elements",
        "extraction.too_deep",
        "extraction.undecodable",
        "extraction.empty",
        "extraction.crash",
        "extraction.timeout",
        "extraction.memory",
        "extraction.error",
    )
    columns = ("text",)

    def __init__(self, options: ExtractionOptions) -> None:
        super().__init__(options)
        if options.engine == "resiliparse" and importlib.util.find_spec("resiliparse") is None:
            raise ModuleNotFoundError("engine: resiliparse is not installed; `pip install corpusmill[resiliparse]` brings it")
        settings = options.model_dump(exclude={"cpu_seconds", "memory_bytes", "max_bytes"})
        self.sandbox = Sandbox(
            "stages.extraction:extractor", settings, memory_bytes=options.memory_bytes, cpu_seconds=options.cpu_seconds
        )

    def identity(self) -> dict[str, str]:
        """The version of resiliparse where it is asked for; those of trafilatura and its libraries are always noted."""
        return {"resiliparse": metadata.version("resiliparse")} if self.options.engine == "resiliparse" else {}

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        verdict.value = np.full(batch.num_rows, np.nan)
        verdict.threshold = np.full(batch.num_rows, np.nan)
        verdict.detail = [None] * batch.num_rows
        texts: list[str | None] = batch["text"].to_pylist()
        payloads, types, charsets = (batch[name] for name in ("payload", "media_type", "charset"))
        rows: list[int] = []
        pages: list[bytes] = []
        waiting = 0
        for row, text in enumerate(texts):
            if text is not None:
                continue
            payload = payloads[row]
            size = len(payload.as_buffer()) if payload.is_valid else 0
            if size > self.options.max_bytes:
                self._remove(verdict, row, "too_large", size, self.options.max_bytes)
                continue
            rows.append(row)
            pages.append(_page(payload.as_py() or b"", types[row].as_py(), charsets[row].as_py()))
            waiting += size
            if waiting > BATCH_BYTES:
                self._extract(verdict, texts, rows, pages)
                rows, pages, waiting = [], [], 0
        self._extract(verdict, texts, rows, pages)
        verdict.columns["text"] = pa.array(texts, pa.large_string())
        return verdict

    def close(self) -> None:
        self.sandbox.close()

    def _extract(self, verdict: Verdict, texts: list[str | None], rows: list[int], pages: list[bytes]) -> None:
        for row, outcome in zip(rows, self.sandbox.run(pages), strict=True):
            if outcome.result is None:
                self._fail(verdict, row, outcome)
            elif outcome.result[:1] == _TEXT:
                texts[row] = outcome.result[1:].decode("utf-8")
            else:
                rule, value = json.loads(outcome.result[1:])
                limit = {"too_many_elements": self.options.max_elements, "too_deep": self.options.max_depth}.get(rule)
                self._remove(verdict, row, rule, value, limit)

    def _fail(self, verdict: Verdict, row: int, outcome: Outcome) -> None:
        assert outcome.failure is not None and verdict.detail is not None
        limits = {"timeout": self.options.cpu_seconds, "memory": self.options.memory_bytes}
        self._remove(verdict, row, outcome.failure, None, limits.get(outcome.failure))
        verdict.detail[row] = scrub(outcome.detail or "")

    def _remove(self, verdict: Verdict, row: int, rule: str, value: float | None, threshold: float | None) -> None:
        assert verdict.value is not None and verdict.threshold is not None
        verdict.rule[row] = self.removal_rules.index(f"extraction.{rule}")
        verdict.value[row] = np.nan if value is None else value
        verdict.threshold[row] = np.nan if threshold is None else threshold


_TEXT, _RULE = b"t", b"r"
_FIRST_PAGE = b"<html><body><div><p>A page of few words.</p><ul><li><a href='/'>a link</a></li></ul></div></body></html>"


def _page(payload: bytes, media_type: str | None, transport: str | None) -> bytes:
    return b"".join((json.dumps([media_type, transport]).encode("ascii"), b"\n", payload))


# What follows runs in the sandbox.


def extractor(settings: dict[str, Any]) -> Callable[[bytes], bytes]:
    """The function of the sandbox: from a page to its text, or to the rule that removes it."""
    # Imported here, once and before any page: the pipeline's own process never parses one.
    importlib.import_module("lxml.html")
    engine = _resiliparse(settings) if settings["engine"] == "resiliparse" else _trafilatura(settings)

    def text_of(page: bytes) -> bytes:
        head, _, payload = page.partition(b"\n")
        media_type, transport = json.loads(head)
        decoded = charset.decode(payload, transport)
        if decoded is None:
            return _removed("undecodable")
        if not is_markup(decoded.text, media_type):
            text = decoded.text.replace("\r\n", "\n").replace("\r", "\n")
            return _kept(text) if text.strip() else _removed("empty", 0)
        # Every tag has its bracket: most pages need no exact count.
        elements = decoded.text.count("<")
        if elements > settings["max_elements"]:
            elements = len(_START_TAG.findall(decoded.text))
            if elements > settings["max_elements"]:
                return _removed("too_many_elements", elements)
        return engine(_without_controls(decoded.text), elements + _IMPLIED_LEVELS > settings["max_depth"])

    # Whatever the libraries load or compile on first use is done here once, not in every child.
    text_of(_page(_FIRST_PAGE, "text/html", None))
    return text_of


Engine = Callable[[bytes, bool], bytes]
"""From HTML in UTF-8, and whether it has so many tags that it can be too deep, to the answer of the sandbox."""


def _trafilatura(settings: dict[str, Any]) -> Engine:
    from trafilatura import extract, utils
    from trafilatura.settings import Extractor

    options = Extractor(
        output_format="txt",
        fast=settings["fast"],
        precision=settings["favor"] == "precision",
        recall=settings["favor"] == "recall",
        comments=False,
        formatting=settings["include_formatting"],
        links=settings["include_links"],
        images=settings["include_images"],
        tables=settings["include_tables"],
        dedup=False,
    )
    # trafilatura drops every character that Python does not print: the joiners of Persian and Hindi too, and all that is newer
    # than Python's own tables. A release without this function would do so again, unseen.
    if not callable(getattr(utils, _CLEANS_CHARACTERS, None)):
        raise ImportError("this release of trafilatura cleans its text in another way, which corpusmill does not know yet")
    setattr(utils, _CLEANS_CHARACTERS, _readable)
    refusals = _Refusals()
    core = logging.getLogger("trafilatura.core")
    core.addHandler(refusals)
    core.setLevel(logging.DEBUG)
    core.propagate = False
    logging.disable(logging.NOTSET)
    logging.getLogger().addHandler(logging.NullHandler())

    def text_of(html: bytes, can_be_deep: bool) -> bytes:
        tree = _tree(html)
        if tree is None:
            return _removed("empty", 0)
        if can_be_deep and (depth := _depth(tree)) > settings["max_depth"]:
            return _removed("too_deep", depth)
        try:
            extracted = extracted_from(tree)
        except _GaveUp:
            # It cannot copy an element whose name no XML has, such as that of `<p"class=x>`.
            extracted = extracted_from(_with_valid_names(_tree(html)))
        return _kept(extracted) if extracted and extracted.strip() else _removed("empty", 0)

    def extracted_from(tree: Any) -> str | None:
        refusals.messages.clear()
        extracted: str | None = extract(tree, options=options)
        if extracted is None and not any(message.startswith(_NOTHING_FOUND) for message in refusals.messages):
            raise _GaveUp(f"trafilatura gave up: {' '.join(refusals.messages) or 'no reason'}")
        return extracted

    return text_of


def _resiliparse(settings: dict[str, Any]) -> Engine:
    from resiliparse.extract.html2text import extract_plain_text

    without = None if settings["include_tables"] else ["table"]

    def text_of(html: bytes, can_be_deep: bool) -> bytes:
        # Its time grows with the square of the depth. Levels are those of the other engine's tree, so that both remove the same
        # pages.
        if can_be_deep and (tree := _tree(html)) is not None and (depth := _depth(tree)) > settings["max_depth"]:
            return _removed("too_deep", depth)
        characters = html.decode("utf-8")
        for noscript in (False, True):  # what browsers without scripts see, where there is nothing else
            text = extract_plain_text(
                characters,
                preserve_formatting=True,
                main_content=settings["main_content"],
                list_bullets=True,
                alt_texts=settings["include_images"],
                links=settings["include_links"],
                form_fields=False,
                noscript=noscript,
                comments=False,
                skip_elements=without,
            )
            text = unicodedata.normalize("NFC", text if text.isprintable() else "".join(map(_readable, text)))
            if text.strip():
                return _kept(text.strip("\n"))
        return _removed("empty", 0)

    return text_of


def _without_controls(text: str) -> bytes:
    """`text` in UTF-8 without what no XML can hold, written as a character or as a reference (`&#1;`): trafilatura gives up a
    whole page for one of them. The two that HTML counts as white space, or once did, become a space."""
    if "\ufffe" in text or "\uffff" in text:
        text = text.replace("\ufffe", "").replace("\uffff", "")
    html = text.encode("utf-8").translate(_SPACES_FOR_FEEDS, _CONTROLS)
    if b"&#" not in html:
        return html
    return _INVALID_REFERENCE.sub(lambda found: b" " if found[0].rstrip(b";")[-2:].lower() in _FEEDS else b"", html)


def _tree(html: bytes) -> Any:
    """lxml's tree of a page, or None where it has no root: it is blank, or comments alone. MemoryError as Python's own."""
    from lxml.etree import ErrorTypes, HTMLParser, ParserError, XMLSyntaxError
    from lxml.html import document_fromstring

    # A parser of our own: the text is UTF-8 whatever the page says of itself, and 2,000 levels are read instead of 256.
    parser = HTMLParser(
        encoding="utf-8", huge_tree=True, collect_ids=False, default_doctype=False, remove_comments=True, remove_pis=True
    )
    parser.set_element_class_lookup(_classes())
    try:
        return document_fromstring(html, parser=parser)
    except ParserError:
        return None
    except XMLSyntaxError as error:
        if error.code == ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from None
        raise


@cache
def _classes() -> Any:
    """lxml.html's classes, but one for all elements: it asks a Python function for that of each, which is a twentieth of an
    extraction, and only elements of forms have one of their own, which nobody here uses."""
    from lxml import etree, html

    return etree.ElementDefaultClassLookup(
        element=html.HtmlElement, comment=html.HtmlComment, pi=html.HtmlProcessingInstruction, entity=html.HtmlEntity
    )


@lru_cache(maxsize=1 << 14)
def _readable(character: str) -> str:
    """`character`, or nothing where no reader would miss it: controls, soft hyphens, marks of direction, private use."""
    if character.isprintable() or character.isspace() or character in _JOINERS:
        return character
    category = unicodedata.category(character)
    if category == "Cn":
        # Not in Python's tables, but perhaps in those of the page's author; 66 code points never will be in any.
        point = ord(character)
        return "" if point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF else character
    return character if category == "Cf" and _VISIBLE_FORMAT.match(character) else ""


class _GaveUp(ValueError):
    """trafilatura met an error of its own and returned nothing."""


def _with_valid_names(tree: Any) -> Any:
    for element in tree.iter():
        if not _NAME.fullmatch(element.tag):
            element.tag = "span"
    return tree


class _Refusals(logging.Handler):
    """trafilatura turns a TypeError within it into "no text"; its log tells that apart from a page without any."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(str(record.msg))


_CLEANS_CHARACTERS = "return_printables_and_spaces"
"""trafilatura's function from one character to it, or to nothing."""
_JOINERS = "\u200c\u200d"
_VISIBLE_FORMAT = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U000e0020-\U000e007f]")
"""Signs of Arabic, Syriac and Kaithi that enclose the digits beside them; the letters that flags of regions are spelt with."""
_IMPLIED_LEVELS = 3
"""Elements that a parser adds above those that are written: html, body, p."""
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_NOTHING_FOUND = "text and comments not long enough"
_START_TAG = re.compile(r"<[A-Za-z]")
_CONTROLS = bytes([*range(9), *range(14, 32)])
_SPACES_FOR_FEEDS = bytes.maketrans(b"\x0b\x0c", b"  ")
_INVALID_REFERENCE = re.compile(
    rb"&#(?:0*(?:[1-8]|1[124-9]|2[0-9]|3[01]|6553[45])(?![0-9])|x0*(?:[1-8bcef]|1[0-9a-f]|fff[ef])(?![0-9a-f]));?", re.I
)
_FEEDS = frozenset([b"11", b"12", b"xb", b"xc", b"0b", b"0c"])
"""How a reference to a line tabulation or a form feed ends."""
_MARKUP = re.compile(r"\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.I | re.S)
_MARKUP_WINDOW = 4_096
_TAG_OF_A_PAGE = re.compile(r"<(?:html|head|body|title|meta|div|p|table|article|main|section|span|a|br|h[1-6])\b", re.I)


def is_markup(text: str, media_type: str | None) -> bool:
    """HTML and XML by their media type; any other text when it opens like a page of HTML; without a type, by its tags."""
    kind = (media_type or "").lower()
    if "html" in kind or "xml" in kind:
        return True
    window = text[:_MARKUP_WINDOW]
    return bool(_MARKUP.match(window)) or (not kind and _TAG_OF_A_PAGE.search(window) is not None)


def _depth(tree: Any) -> int:
    """Levels of elements, without recursion."""
    deepest, level, element = 1, 1, tree
    while True:
        if len(element):
            element = element[0]
            level += 1
            deepest = max(deepest, level)
            continue
        while element is not tree:
            following = element.getnext()
            if following is not None:
                element = following
                break
            element = element.getparent()
            level -= 1
        else:
            return deepest


def _kept(text: str) -> bytes:
    return _TEXT + text.encode("utf-8", "replace")


def _removed(rule: str, value: float | None = None) -> bytes:
    return _RULE + json.dumps([rule, value]).encode("ascii")
