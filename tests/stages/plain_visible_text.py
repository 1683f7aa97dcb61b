"""What stages/visible_text.py computes, written to be read: one tag at a time, with regular expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stages.visible_text import ASIDE, BLOCK_BYTES, HIDDEN, INLINE, KINDS, LINK

SPACES = rb"[\t\n\x0b\x0c\r ]"
NAME = re.compile(rb"</?([A-Za-z][^>/\t\n\x0b\x0c\r ]*)")
TO_EQUALS = re.compile(rb"[^>=]*")


def visible_text(page: bytes) -> tuple[bytes, bytes]:
    blocks: list[tuple[bytes, int, bool]] = []  # text, bytes of links, whether in an aside
    pieces: list[tuple[bytes, bool]] = []
    link, aside = False, 0
    for text, name, closing in tokens(page):
        if text is not None:
            pieces.append((text, link))
            continue
        kind = KINDS.get(name, INLINE)
        if kind == LINK:
            link = not closing
        if kind in (INLINE, LINK, HIDDEN):
            continue
        blocks.append((*collapsed(pieces), aside > 0))
        pieces = []
        if kind == ASIDE:
            aside = max(0, aside - 1) if closing else aside + 1
    last = (*collapsed(pieces), aside > 0)
    whole = b"".join(text + b"\n" for text, *_ in blocks if text) + last[0]
    running = b"".join(block[0] + b"\n" for block in blocks if is_running(*block)) + (last[0] if is_running(*last) else b"")
    return whole, running


def is_running(text: bytes, links: int, in_aside: bool) -> bool:
    return not in_aside and len(text) >= BLOCK_BYTES and 2 * links < len(text)


def collapsed(pieces: list[tuple[bytes, bool]]) -> tuple[bytes, int]:
    """The text of a block, white space collapsed, and how many bytes of it stand in links; a space belongs to what follows it."""
    letters = [(byte, link) for text, link in pieces for byte in text]
    text, links, space = bytearray(), 0, False
    for byte, link in letters:
        if re.fullmatch(SPACES, bytes([byte])):
            space = True
            continue
        written = (b" " if space and text else b"") + bytes([byte])
        text += written
        links += len(written) * link
        space = False
    return bytes(text), links


def tokens(page: bytes) -> Iterator[tuple[bytes | None, str, bool]]:
    """(text, "", False), or (None, name of a tag, whether it closes)."""
    at = 0
    while at < len(page):
        if page[at : at + 1] != b"<" or at + 1 == len(page):
            yield page[at : at + 1], "", False
            at += 1
        elif page[at + 1 : at + 2] in (b"!", b"?"):
            comment = re.compile(rb"<!--(?:-?>|.*?-->)", re.S).match(page, at)
            at = comment.end() if comment else after(page, at + 2, b">")
        elif tag := NAME.match(page, at):
            closing = page[at + 1 : at + 2] == b"/"
            at = end_of_tag(page, tag.end())
            name = tag[1].decode("latin-1")
            name = "".join(chr(ord(letter) | 32) if "A" <= letter <= "Z" else letter for letter in name)
            if KINDS.get(name) == HIDDEN and not closing:
                found = re.compile(b"</" + re.escape(name.encode()), re.I).search(page, at)
                at = found.start() if found else len(page)
            yield None, name, closing
        elif page[at + 1 : at + 2] == b"/":
            at = after(page, at + 2, b">")
        else:
            yield b"<", "", False
            at += 1


def end_of_tag(page: bytes, at: int) -> int:
    while at < len(page) and page[at : at + 1] != b">":
        found = TO_EQUALS.match(page, at)
        assert found is not None
        at = found.end()
        if page[at : at + 1] != b"=":
            continue
        value = re.compile(rb"=" + SPACES + rb"*(?:\"[^\"]*\"|'[^']*'|[^>\t\n\x0b\x0c\r ]*)").match(page, at)
        assert value is not None
        at = value.end()
    return at + 1


def after(page: bytes, at: int, byte: bytes) -> int:
    found = page.find(byte, at)
    return len(page) + 1 if found < 0 else found + 1
