"""What reaches a person's terminal. Names, URLs and texts come from strangers: nothing of them is taken for an instruction to the
terminal (escape sequences, characters that turn the direction of writing) or for markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from rich.console import Console

PLAIN_WIDTH = 140
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: object) -> str:
    """`text` with every control, direction and half character written as an escape, `\\x1b`; tabs and newlines stay."""
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def fail(message: str) -> NoReturn:
    """Says what is wrong, in one line on the standard error, and ends the program with 1."""
    import typer

    typer.echo(visible(f"error: {message}"), err=True)
    raise typer.Exit(1)


def user_name() -> str:
    """Of whoever runs this."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """Where tables go: as wide as the terminal, and wide enough to read where there is none. Nothing is markup."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def token_progress(opened: contextlib.ExitStack, tokens: int) -> Callable[[int], object]:
    """To be told of every piece of `tokens` that was read: a bar on a terminal until `opened` closes, and nothing elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = terminal(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    bar = opened.enter_context(Progress(*columns, console=console, transient=True, disable=not console.is_terminal))
    task = bar.add_task("tokens", total=tokens)
    return lambda read: bar.advance(task, read)
