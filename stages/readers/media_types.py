"""Which media types are documents: HTML, XHTML and plain text, declared or seen in the first bytes."""

from __future__ import annotations

import re

HTML, XHTML, PLAIN = "text/html", "application/xhtml+xml", "text/plain"
SNIFFED_BYTES = 1024
"""How far markup is looked for; browsers look at 1,445 bytes (WHATWG MIME Sniffing, 5.2)."""
SNIFFED_TYPES = ("", "application/octet-stream", "application/unknown", "unknown/unknown", "*/*")
"""Declared types that tell nothing; so does one without a slash, such as ARC's "unk" and "no-type"."""
XML_TYPES = ("application/xml", "text/xml")
CONTROL_SHARE = 0.02
"""C0 controls that no text has make up 10 % of compressed bytes; above this share, bytes are not text."""

_MEDIA_TYPE = re.compile(r"\s*([^\s;,]*)")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';,]+)""", re.IGNORECASE)
_TAG = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|meta|script|h1|div|table|p|a|br|b)[\s>/]", re.IGNORECASE)
_HTML_ANYWHERE = re.compile(rb"<(?:html|body)[\s>]", re.IGNORECASE)
_CONTROLS = bytes(c for c in range(32) if c not in b"\t\n\r\f\x1b")
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe")
_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x7fELF", "application/x-executable"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
)


def declared_type(content_type: str) -> tuple[str, str | None]:
    """(media type in lower case, "" when none; the charset's label as it stands) of a Content-Type header."""
    found = _MEDIA_TYPE.match(content_type)
    charset = _CHARSET.search(content_type)
    return (found[1].lower() if found else ""), (charset[1] if charset else None)


def document_type(declared: str, payload: bytes) -> str | None:
    """HTML, XHTML or PLAIN when `payload` is a document, None when it is something else.

    A declared text type is believed unless the bytes carry another format's signature; XML, and types that tell nothing, are
    looked into for markup.
    """
    if signature(payload):
        return None
    if declared in (HTML, XHTML, PLAIN):
        return declared
    if declared in XML_TYPES:
        return XHTML if _HTML_ANYWHERE.search(payload[:SNIFFED_BYTES]) else None
    if declared in SNIFFED_TYPES or "/" not in declared:
        start = payload[:SNIFFED_BYTES]
        for mark in _BYTE_ORDER_MARKS:
            start = start.removeprefix(mark)
        start = start.replace(b"\0", b"")  # UTF-16
        return HTML if _starts_with_markup(start) or _HTML_ANYWHERE.search(start) else None
    return None


def could_be_document(declared: str) -> bool:
    """False when the declared type alone says that this is no document, whatever the bytes."""
    return declared in (HTML, XHTML, PLAIN, *XML_TYPES, *SNIFFED_TYPES) or "/" not in declared


def _starts_with_markup(start: bytes) -> bool:
    """A tag of HTML, behind blanks, comments and XML declarations."""
    while True:
        start = start.lstrip()
        for opening, closing in ((b"<!--", b"-->"), (b"<?xml", b"?>")):
            if start.startswith(opening):
                _, _, start = start.partition(closing)
                break
        else:
            return _TAG.match(start) is not None


def signature(payload: bytes) -> str | None:
    """The media type whose signature these bytes carry, when it is one that is never text."""
    for mark, name in _SIGNATURES:
        if payload.startswith(mark):
            return name
    return None


def looks_binary(payload: bytes) -> bool:
    """Compressed or otherwise no text: told by the share of control characters in the first 4 KiB."""
    start = payload[:4096]
    if start.startswith(_BYTE_ORDER_MARKS):
        return False
    return len(start) - len(start.translate(None, _CONTROLS)) > CONTROL_SHARE * len(start)
