"""`corpusmill report`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manifests.corpus_argument import CorpusArgument, opened
from manifests.terminal import fail, visible
from manifests.token_number import number_of_tokens

if TYPE_CHECKING:
    from manifests.manifest import Manifest
    from manifests.mixture import Plan
    from manifests.storage import Folder


def report(
    corpus: CorpusArgument,
    output: Annotated[str, typer.Option(help="the page to write")] = "report.html",
    run: Annotated[list[Path] | None, typer.Option(help="folder of a training run to show; repeat")] = None,
    mixture: Annotated[str | None, typer.Option(help="a mixture in YAML to show; needs --tokens")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(parser=number_of_tokens, metavar="NUMBER", help="target tokens of the run of --mixture, as 20M"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the page that is there")] = False,
) -> None:
    """Show a corpus in pictures: one HTML file that loads nothing, of its funnel, rules, signals, duplicates, tokens and gaps."""
    import duckdb

    from manifests.mixture import MixtureError
    from manifests.report.figures import RunError
    from manifests.report.page import report as page
    from manifests.storage import Folder, StorageError, is_within

    if (mixture is None) != (tokens is None):
        raise typer.BadParameter("--mixture needs --tokens, and --tokens needs --mixture")
    folder, manifest = opened(corpus)
    where, name = os.path.split(output)
    if not name or name in (".", ".."):
        raise typer.BadParameter(f"{output!r} names no file", param_hint="--output")
    if is_within(where or ".", folder):
        fail(f"{output} is inside the corpus, which holds nothing but what its manifest lists; name another place")
    try:
        target = Folder(where or ("/" if output.startswith("/") else "."))
        if target.exists(name) and not force:
            fail(f"{output} is there already; --force replaces it")
        planned = None if mixture is None or tokens is None else _planned(folder, manifest, mixture, tokens)
        data = page(folder, manifest, run or (), planned).encode()
        if force:
            target.write(name, data)
        elif not target.create(name, data):
            fail(f"{output} is there already; --force replaces it")
    except duckdb.Error as error:
        fail(f"the logs of {corpus} cannot be read; `corpusmill verify` says what is wrong: {error}")
    except (RunError, MixtureError, StorageError, OSError) as error:
        fail(str(error))
    typer.echo(visible(f"{output}: {len(data):,} bytes"))


def _planned(folder: Folder, manifest: Manifest, path: str, tokens: int) -> Plan:
    from manifests import mixture as mixtures

    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise mixtures.MixtureError(f"{path}: {error}") from None
    languages = mixtures.tokens_by_language(folder, manifest)
    return mixtures.plan(manifest.content, mixtures.read_mixture(text), tokens, languages)
