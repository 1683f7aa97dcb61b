"""`corpusmill audit why` and `domain`: what became of a document, and of all that came from a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, show
from manifests.corpus_argument import CorpusArgument, logs_of, no_document
from manifests.terminal import fail, visible
from manifests.wording import ABSENT, counted

if TYPE_CHECKING:
    from manifests.audit.training import Consumed
    from manifests.logs import Logs


def why(
    corpus: CorpusArgument,
    document: Annotated[str, typer.Argument(help="component/file#position, component/file, or a URL")],
    run: Annotated[
        list[str] | None, typer.Option(help="folder of a training run, whose ledger is asked; may be repeated")
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Tell the whole life of a document: source, signals, edits, decision, twin, shard, and which training runs consumed it."""
    from manifests.audit.life_table import show_life
    from manifests.life import lives
    from manifests.lookup import documents_called

    with logs_of(corpus, "documents", "removals", "edits") as logs:
        manifest = logs.manifest
        called = documents_called(logs, document)
        found = lives(logs, called)
        runs = _runs(logs, run, [life.document for life in found]) if run else [[] for _ in found]
    if not found:
        no_document(corpus, manifest, document)
    for line in called.in_words():
        typer.echo(visible(line), err=as_json or as_csv)
    rows: list[dict[str, Any]] = [
        {**life.__dict__, **({"runs": [one.as_json() for one in mine]} if run else {})}
        for life, mine in zip(found, runs, strict=True)
    ]
    flat = [
        {**row["document"], **{f"removal_{name}": value for name, value in (row["removal"] or {}).items()}}
        | {name: row[name] for name in ("matched", "edits", "signals", "rules", "twins", "stand_in", "runs") if name in row}
        for row in rows
    ]
    if as_csv and not as_json:
        give(flat, as_json, as_csv)
        return
    if give(rows, as_json, as_csv):
        return
    for life, mine in zip(found, runs, strict=True):
        show_life(life, manifest)
        for one in mine:
            typer.echo(visible(f"trained on by {one.run}: {one.consumed} ({one.because})"))


def _runs(logs: Logs, runs: list[str], documents: list[dict[str, Any]]) -> list[list[Consumed]]:
    """For each document, what each run had of it; the program ends where a ledger cannot be read."""
    from manifests.audit.training import Run
    from manifests.trained_on import LedgerError

    try:
        asked = [Run(one, logs) for one in runs]
        return [[one.consumed(document) for one in asked] for document in documents]
    except LedgerError as error:
        fail(str(error))


def domain(
    corpus: CorpusArgument,
    name: Annotated[
        str,
        typer.Argument(
            help=f"a registered domain such as example.org, or a host such as blog.example.org (or a URL of it); {ABSENT}: none"
        ),
    ],
    examples: Annotated[int, typer.Option(min=0, help="documents that are listed, removed ones first")] = 10,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show what became of a domain, or of one host of it: documents, tokens, and what removed the others."""
    from manifests.audit.domains import ask_domain, host_within, normal_domain

    wanted = normal_domain(name) if name != ABSENT else None
    if wanted is None and name != ABSENT:
        raise typer.BadParameter(f"{name!r} is no domain", param_hint="name")
    with logs_of(corpus, "removals", "documents") as logs:
        answer = ask_domain(logs, wanted, examples, host_within(name) if wanted else None)
    beside = f"{counted(answer.others, 'document')} came from other hosts of {wanted}" if answer.others else ""
    if not answer.documents:
        fail(f"no document of {corpus} came from {answer.name}" + (f"; {beside}" if beside else ""))
    if give(answer.by, as_json, as_csv, answer):
        return
    typer.echo(
        visible(
            f"{answer.name}: {counted(answer.documents, 'document')} came in, {answer.kept:,} in the corpus, with "
            f"{counted(answer.tokens, 'token')}"
        )
    )
    if beside:
        typer.echo(visible(beside))
    rows = [{**one, "removed_by": one["removed_by"] or "kept"} for one in answer.by]
    show(
        rows,
        {"component": "component", "language": "language", "removed_by": "removed by", "rule": "rule", "documents": "documents"},
    )
    if answer.examples:
        columns = {"id": "document", "url": "URL", "removed_by": "removed by", "rule": "rule", "value": "measured"}
        show(answer.examples, columns, "\nsome of them")
