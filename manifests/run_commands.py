"""Commands about training runs: audit trained-on, release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, show
from manifests.corpus_argument import manifest_name
from manifests.terminal import fail, visible

if TYPE_CHECKING:
    from manifests.logs import Logs
    from manifests.trained_on import Stretch, TrainedOn


def trained_on(
    run: Annotated[Path, typer.Argument(help="folder of a training run")],
    corpus: Annotated[str | None, typer.Option(help="its corpus, by default where the run says it lay")] = None,
    steps: Annotated[str | None, typer.Option(help="of these steps only: FIRST-LAST, or one step")] = None,
    every: Annotated[int | None, typer.Option(min=1, help="length of a stretch of steps; default: ten stretches")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="when was this document trained on?")] = None,
    url: Annotated[str | None, typer.Option(help="when were the captures of this URL trained on?")] = None,
    largest: Annotated[int, typer.Option(min=1, help="domains and languages shown in a table")] = 10,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Tell what a run was trained on: documents, tokens, licences, languages and domains by steps, exactly, from its ledger."""
    import duckdb

    from manifests.logs import Logs
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError
    from manifests.trained_on import LedgerError, TrainedOn, corpus_of, read_ledger

    if id_ is not None and url is not None:
        raise typer.BadParameter("one of --id and --url", param_hint="--id")
    try:
        read_ledger(run)
        where = corpus or corpus_of(run)
        if where is None:
            fail(f"{run} does not say where its corpus lay; name it with --corpus")
        folder, manifest = open_corpus(where)
        joined = TrainedOn(run, folder, manifest)
        with Logs(folder, manifest, only=["documents", "removals"]) as logs:
            if id_ is not None or url is not None:
                _tell_document(joined, logs, id_, url, as_json, as_csv)
            else:
                _tell_stretches(joined, logs, steps, every, largest, as_json, as_csv)
    except BrokenPipeError:
        raise
    except (ManifestError, StorageError, OSError) as error:
        hint = "" if corpus else "; name the corpus with --corpus"
        fail(f"the corpus of {run} cannot be read: {error}{hint}")
    except LedgerError as error:
        fail(str(error))
    except duckdb.Error as error:
        fail(f"the document log cannot be read; `corpusmill verify` says what is wrong: {error}")


def _tell_document(joined: TrainedOn, logs: Logs, id_: str | None, url: str | None, as_json: bool, as_csv: bool) -> None:
    from manifests.audit.training import consumed_by
    from manifests.lookup import AS_ID, documents_called

    asked = id_ if id_ is not None else url or ""
    called = documents_called(logs, asked)
    if not called.documents or (id_ is not None and called.matched[0] != AS_ID):
        fail(f"{logs.corpus.url} has no document {asked!r}")
    told, rows = [], list[dict[str, Any]]()
    for document, matched in zip(called.documents, called.matched, strict=True):
        one = consumed_by(str(joined.ledger.path.parent), joined, logs, document)
        about = {"id": document["id"], "url": document["url"], "matched": matched}
        rows += [{**about, "copy": None, **time.__dict__} for time in one.served]
        rows += [{**about, "copy": copy.id, **time.__dict__} for copy in one.copies for time in copy.served]
        about |= {name: document[name] for name in ("tokens", "split", "removed_by")}
        told.append({**about, **{name: value for name, value in one.as_json().items() if name not in ("run", "steps")}})
    for line in called.in_words():
        typer.echo(visible(line), err=as_json or as_csv)
    if give(rows, as_json, as_csv, told, ["id", "url", "matched", "copy", "step", "epoch", "position", "first_token", "tokens"]):
        return
    before = {"yes": "", "no": "not trained on: ", "as a copy": "trained on as a copy: "}
    for row in told:
        typer.echo(visible(f"{row['id']}: {before[row['consumed']]}{row['because']}"))


def _tell_stretches(
    joined: TrainedOn, logs: Logs, steps: str | None, every: int | None, largest: int, as_json: bool, as_csv: bool
) -> None:
    from manifests.trained_on import DIMENSIONS, equal_stretches

    first, last = _wanted(steps, joined.ledger.last_step)
    found, whole = joined.stretches(logs, equal_stretches(first, last, every))
    every_row = [row for one in found for row in one.rows()]
    if give(every_row, as_json, as_csv, {"all": list(whole.rows()), "stretches": [_plain(one) for one in found]}):
        return
    table = [
        {
            "steps": f"{one.first_step:,} to {one.last_step:,}",
            "documents": one.taken.documents,
            "tokens": one.taken.tokens,
            "epochs": ", ".join(f"{name} {passes:.2f}" for name, passes in one.epochs.items()),
        }
        for one in found
    ]
    show(table, {"steps": "steps", "documents": "documents", "tokens": "tokens", "epochs": "epochs at the end"})
    typer.echo(
        f"in all: {whole.taken.documents:,} documents, {whole.taken.tokens:,} tokens in steps {first:,} to {last:,}; a document "
        "that several stretches took is counted once here"
    )
    for dimension in DIMENSIONS:
        rows = [row for row in whole.rows() if row["dimension"] == dimension]
        shown = [
            {
                "name": row["name"] or "not known",
                "documents": row["documents"],
                "tokens": row["tokens"],
                "share": f"{row['tokens'] / whole.taken.tokens:.1%}" if whole.taken.tokens else "",
            }
            for row in rows[:largest]
        ]
        typer.echo()
        show(shown, {"name": dimension, "documents": "documents", "tokens": "tokens", "share": "of tokens"})
        if len(rows) > largest:
            typer.echo(f"and {len(rows) - largest:,} more; --json and --csv have all")


def _plain(one: Stretch) -> dict[str, Any]:
    return {
        "first_step": one.first_step,
        "last_step": one.last_step,
        "documents": one.taken.documents,
        "tokens": one.taken.tokens,
        "epochs": one.epochs,
        "by": {
            dimension: [
                {"name": row["name"], "documents": row["documents"], "tokens": row["tokens"]}
                for row in one.rows()
                if row["dimension"] == dimension
            ]
            for dimension in one.by
        },
    }


def _wanted(steps: str | None, last: int) -> tuple[int, int]:
    if not last:
        fail("the ledger has no steps: the run saved no checkpoint")
    if steps is None:
        return 1, last
    begin, dash, end = steps.partition("-")
    try:
        first, final = int(begin), int(end if dash else begin)
    except ValueError:
        raise typer.BadParameter(f"{steps!r}: FIRST-LAST, or one step", param_hint="--steps") from None
    if not 1 <= first <= final <= last:
        raise typer.BadParameter(f"{steps!r}: the ledger has steps 1 to {last}", param_hint="--steps")
    return first, final


def release(
    run: Annotated[Path | None, typer.Argument(help="folder of a finished training run", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option(help="folder to write; must be new or empty")] = None,
    corpus: Annotated[str | None, typer.Option(help="its corpus, by default where the run says it lay")] = None,
    score: Annotated[list[Path] | None, typer.Option(help="a file that evaluate --json printed; repeat")] = None,
    check: Annotated[Path | None, typer.Option(help="hash a release and compare its files, instead")] = None,
) -> None:
    """Bundle a finished run to hand on: weights, tokenizer, logs, manifest, decontamination, scores, a card and SHA256SUMS."""
    from manifests.manifest import ManifestError, open_corpus
    from manifests.release import ReleaseError
    from manifests.release import check as findings_of
    from manifests.release import release as write
    from manifests.storage import StorageError
    from manifests.trained_on import corpus_of

    if (check is None) == (run is None) or (run is not None and output is None) or (check is not None and (output or score)):
        raise typer.BadParameter("RUN with --output, or --check FOLDER", param_hint="RUN")
    try:
        if check is not None:
            findings = list(findings_of(check))
            for finding in findings:
                typer.echo(visible(finding))
            if findings:
                typer.echo(f"{len(findings)} findings: this release is not what it was", err=True)
                raise typer.Exit(1)
            typer.echo(visible(f"{check}: every file is what SHA256SUMS says, and they belong together"))
            return
        assert run is not None and output is not None
        where = corpus or corpus_of(run)
        if where is None:
            fail(f"{run} does not say where its corpus lay: no training run, or name it with --corpus")
        folder, _ = open_corpus(where)
        names = write(run, folder, output, manifest_name(where), score or ())
    except (ManifestError, StorageError) as error:
        fail(f"the corpus of {run} cannot be read: {error}" + ("" if corpus else "; name the corpus with --corpus"))
    except (ReleaseError, OSError) as error:
        fail(str(error))
    typer.echo(visible(f"{output}: {len(names)} files"))
