"""`corpusmill audit sql`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, show
from manifests.corpus_argument import CorpusArgument, opened
from manifests.terminal import fail, visible


def sql(
    corpus: CorpusArgument,
    statement: Annotated[
        str | None, typer.Argument(help="one SELECT; - reads it from the standard input; none lists the views")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="rows that are printed at most; 0: all")] = 1000,
    memory: Annotated[str, typer.Option(help="that it may take")] = "2GB",
    seconds: Annotated[float, typer.Option(min=0.1, help="that it may take")] = 60.0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Ask the logs in SQL. Read-only: it reaches the views of this corpus, and no other file, network or setting."""
    from manifests.audit.sandbox import Sandbox, SandboxError

    folder, manifest = opened(corpus)
    try:
        with Sandbox(folder, manifest, memory) as sandbox:
            if statement is None:
                rows = [
                    {"view": view, "column": name, "type": kind, "about": about}
                    for view, about in sandbox.views.items()
                    for name, kind in sandbox.columns(view)
                ]
                if not give(rows, as_json, as_csv):
                    for view, about in sandbox.views.items():
                        typer.echo(visible(f"{view}: {about}\n  {', '.join(name for name, _ in sandbox.columns(view))}"))
                return
            asked = sys.stdin.read() if statement == "-" else statement
            answer = sandbox.ask(asked, limit or None, seconds)
    except (SandboxError, OSError) as error:
        fail(str(error))
    rows = answer.as_rows()
    names = list(rows[0]) if rows else [name for name, _ in answer.columns]
    if not give(rows, as_json, as_csv, columns=names):
        show(rows, dict(zip(names, names, strict=True)))
    if answer.more:
        typer.echo(f"these are the first {limit:,} rows; --limit says how many", err=True)
