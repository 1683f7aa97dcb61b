"""`corpusmill audit why` and `domain`: what became of a document, and of all that came from a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, show
from manifests.corpus_argument import CorpusArgument, logs_of, opened
from manifests.terminal import fail, visible

if TYPE_CHECKING:
    from manifests.audit.training import Consumed
    from manifests.logs import Logs
    from manifests.manifest import Manifest


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

    folder, manifest = opened(corpus)
    with logs_of(corpus, folder, manifest, "documents", "removals", "edits") as logs:
        called = documents_called(logs, document)
        found = lives(logs, called)
        runs = _runs(logs, run, [life.document for life in found]) if run else [[] for _ in found]
    if not found:
        _not_found(corpus, manifest, document)
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
    name: Annotated[str, typer.Argument(help="a registered domain such as example.org, or a host or URL of it")],
    examples: Annotated[int, typer.Option(min=0, help="documents that are listed, removed ones first")] = 10,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show what became of a domain: documents, tokens, and what removed the others."""
    from manifests.audit.domains import ask_domain, normal_domain

    wanted = normal_domain(name)
    if wanted is None:
        raise typer.BadParameter(f"{name!r} is no domain", param_hint="name")
    folder, manifest = opened(corpus)
    with logs_of(corpus, folder, manifest, "removals", "documents") as logs:
        answer = ask_domain(logs, wanted, examples)
    if not answer.documents:
        fail(f"no document of {corpus} came from {wanted}")
    if give(answer.by, as_json, as_csv, answer):
        return
    typer.echo(
        visible(
            f"{wanted}: {answer.documents:,} documents came in, {answer.kept:,} are in the corpus, with {answer.tokens:,} tokens"
        )
    )
    rows = [{**one, "removed_by": one["removed_by"] or "kept"} for one in answer.by]
    show(
        rows,
        {"component": "component", "language": "language", "removed_by": "removed by", "rule": "rule", "documents": "documents"},
    )
    if answer.examples:
        columns = {"id": "document", "url": "URL", "removed_by": "removed by", "rule": "rule", "value": "measured"}
        show(answer.examples, columns, "\nsome of them")


def _not_found(corpus: str, manifest: Manifest, document: str) -> NoReturn:
    """Ends the program because there is no such document, and says whether its component was dropped."""
    gone = next((one for one in manifest.content.dropped if document.startswith(f"{one['component']}/")), None)
    because = f": component {gone['component']} was dropped: {gone['reason'] or 'no reason given'}" if gone else ""
    fail(f"no document of {corpus} has the id or URL {document!r}{because}")
