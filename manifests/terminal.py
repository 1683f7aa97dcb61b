"""What reaches a person's terminal. Names, URLs and texts come from strangers: nothing of them is taken for an instruction to the
terminal (escape sequences, characters that turn the direction of writing) or for markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 140
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: object) -> str:
    """`text` with every control, direction and half character written as an escape, `\\x1b`; tabs and newlines stay."""
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """Where tables go: as wide as the terminal, and wide enough to read where there is none. Nothing is markup."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console
