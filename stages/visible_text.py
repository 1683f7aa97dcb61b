"""The text that a browser would show of a page, without building a tree: about a hundred times faster than extraction.

`visible_text` reads tags much as the HTML standard does: quoted attributes, comments, and elements that hold no text for
readers (`script`, `style`, `title`, `iframe`, `noembed`). Runs of white space become one space, and elements that start a line
start a line. What never ends (a comment, a quoted attribute) hides nothing. Of all that is visible it also gives the blocks
that look like running text: at least `BLOCK_BYTES` long, less than half of it links, and outside `nav`, `footer`, `aside`,
`select` and `button`.

References (`&amp;`) are left as they are written. The compiled loop has a plain twin in tests/stages/plain_visible_text.py.
"""

from __future__ import annotations

import numpy as np
from numba import njit

BLOCK_BYTES = 60
"""A shorter block is a label, a date or an entry of a menu more often than it is a sentence."""


def visible_text(html: bytes) -> tuple[bytes, bytes]:
    """(all visible text, running text) of a page in UTF-8, one block a line."""
    data = np.frombuffer(html, np.uint8)
    whole, blocks = np.empty(len(data) + 1, np.uint8), np.empty(len(data) + 1, np.uint8)
    size, running_size = _scan(data, whole, blocks, NAMES, NAME_KINDS)
    return whole[:size].tobytes(), blocks[:running_size].tobytes()


INLINE, BLOCK, HIDDEN, ASIDE, LINK = range(5)
KINDS = {
    **dict.fromkeys("script style title iframe noembed".split(), HIDDEN),
    **dict.fromkeys("nav footer aside select button".split(), ASIDE),
    "a": LINK,
    **dict.fromkeys(
        "address article blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption figure form h1 h2 "
        "h3 h4 h5 h6 head header hgroup hr html legend li main menu noscript ol optgroup option p pre search section summary "
        "table tbody td tfoot th thead tr ul".split(),
        BLOCK,
    ),
}
"""What an element's name means here; any other is INLINE."""

_LONGEST_NAME = 12
_DIGITS = 37
"""Letters and digits, and 0 for the end: twelve of them fit in 63 bits."""


def _key(name: str) -> int:
    key = 0
    for character in name:
        key = key * _DIGITS + int(character, 36) + 1
    return key


NAMES = np.array(sorted(map(_key, KINDS)), np.int64)
NAME_KINDS = np.array([kind for _, kind in sorted((_key(name), kind) for name, kind in KINDS.items())], np.int64)

_LESS, _GREATER, _SLASH, _EQUALS, _BANG, _DASH, _QUESTION = 0x3C, 0x3E, 0x2F, 0x3D, 0x21, 0x2D, 0x3F
_SPACE, _NEWLINE, _DOUBLE, _SINGLE = 0x20, 0x0A, 0x22, 0x27


@njit(cache=True, nogil=True)
def _scan(data, whole, blocks, names, kinds):  # type: ignore[no-untyped-def]
    """Fills `whole` and `blocks`, and returns how many bytes of each."""
    end = data.size
    at = size = running_size = 0
    start = links = aside = 0  # of the block: where it begins in `whole`, bytes of links, elements it stands in that are no text
    space = link = False
    comments = double_quotes = single_quotes = True  # False once no further one ends: so that each end is sought once
    while at < end:
        byte = data[at]
        if byte != _LESS or at + 1 >= end:
            if byte == _SPACE or 9 <= byte <= 13:
                space = True
            else:
                if space and size > start:
                    whole[size] = _SPACE
                    size += 1
                    links += link
                space = False
                whole[size] = byte
                size += 1
                links += link
            at += 1
            continue
        following = data[at + 1]
        closing = following == _SLASH
        if following in (_BANG, _QUESTION):
            stop = -1
            if comments and at + 3 < end and following == _BANG and data[at + 2] == _DASH and data[at + 3] == _DASH:
                stop = _comment_end(data, at + 4)
                comments = stop >= 0
            at = stop if stop >= 0 else _after(data, at + 2, _GREATER)
            continue
        first = at + 1 + closing
        if first >= end or not _is_letter(data[first]):
            # Not a tag: `</` and what follows it is none either, but is not shown.
            if closing:
                at = _after(data, first, _GREATER)
                continue
            if space and size > start:
                whole[size] = _SPACE
                size += 1
                links += link
            space = False
            whole[size] = byte
            size += 1
            links += link
            at += 1
            continue
        at = first
        key = length = 0
        while at < end and data[at] != _GREATER and data[at] != _SLASH and not _is_space(data[at]):
            digit = _digit(data[at])
            # A name with other characters, or a longer one, is none of ours.
            key = -1 if digit == 0 or length >= _LONGEST_NAME or key < 0 else key * _DIGITS + digit
            length += 1
            at += 1
        while at < end and data[at] != _GREATER:
            if data[at] != _EQUALS:
                at += 1
                continue
            at += 1
            while at < end and _is_space(data[at]):
                at += 1
            if at >= end:
                break
            quote = data[at]
            if (quote == _DOUBLE and double_quotes) or (quote == _SINGLE and single_quotes):
                stop = _after(data, at + 1, quote)
                if stop > end:
                    double_quotes = double_quotes and quote != _DOUBLE
                    single_quotes = single_quotes and quote != _SINGLE
                else:
                    at = stop
                    continue
            while at < end and data[at] != _GREATER and not _is_space(data[at]):
                at += 1
        at += 1
        kind = INLINE
        place = np.searchsorted(names, key)
        if place < names.size and names[place] == key:
            kind = kinds[place]
        if kind == INLINE:
            continue
        if kind == LINK:
            link = not closing
            continue
        if kind == HIDDEN:
            if not closing:
                at = _closing_tag(data, at, first, length)
            continue
        # A block ends here.
        if size > start:
            if aside == 0 and size - start >= BLOCK_BYTES and 2 * links < size - start:
                for index in range(start, size):
                    blocks[running_size] = whole[index]
                    running_size += 1
                blocks[running_size] = _NEWLINE
                running_size += 1
            whole[size] = _NEWLINE
            size += 1
            start = size
        links = 0
        space = False
        if kind == ASIDE:
            aside = max(0, aside - 1) if closing else aside + 1
    if size > start and aside == 0 and size - start >= BLOCK_BYTES and 2 * links < size - start:
        for index in range(start, size):
            blocks[running_size] = whole[index]
            running_size += 1
    return size, running_size


@njit(cache=True, nogil=True)
def _is_letter(byte):  # type: ignore[no-untyped-def]
    return 0x61 <= byte | 0x20 <= 0x7A


@njit(cache=True, nogil=True)
def _is_space(byte):  # type: ignore[no-untyped-def]
    return byte == _SPACE or 9 <= byte <= 13


@njit(cache=True, nogil=True)
def _digit(byte):  # type: ignore[no-untyped-def]
    """A letter or digit as 1 to 36, anything else as 0."""
    if 0x30 <= byte <= 0x39:
        return np.int64(byte) - 0x2F
    return np.int64(byte | 0x20) - 0x56 if _is_letter(byte) else np.int64(0)


@njit(cache=True, nogil=True)
def _after(data, at, byte):  # type: ignore[no-untyped-def]
    """The place after the next such byte; one beyond the end where there is none."""
    while at < data.size and data[at] != byte:
        at += 1
    return at + 1


@njit(cache=True, nogil=True)
def _comment_end(data, at):  # type: ignore[no-untyped-def]
    """The place after the comment whose text begins at `at`, or -1 where it has no end. `<!-->` and `<!--->` are whole."""
    if at < data.size and data[at] == _GREATER:
        return at + 1
    if at + 1 < data.size and data[at] == _DASH and data[at + 1] == _GREATER:
        return at + 2
    while at + 2 < data.size:
        if data[at] == _DASH and data[at + 1] == _DASH and data[at + 2] == _GREATER:
            return at + 3
        at += 1
    return -1


@njit(cache=True, nogil=True)
def _closing_tag(data, at, name, length):  # type: ignore[no-untyped-def]
    """Where `</name` begins, the name as it stands at data[name:name + length], in any case; the end where there is none."""
    while at + 2 + length <= data.size:
        if data[at] == _LESS and data[at + 1] == _SLASH:
            same = True
            for index in range(length):
                if data[at + 2 + index] | 0x20 != data[name + index] | 0x20:
                    same = False
                    break
            if same:
                return at
        at += 1
    return data.size
