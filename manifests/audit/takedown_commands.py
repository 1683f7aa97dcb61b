"""`corpusmill audit takedown`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, show
from manifests.corpus_argument import CorpusArgument, logs_of
from manifests.terminal import fail, user_name, visible
from manifests.wording import counted

if TYPE_CHECKING:
    from manifests.audit.takedown import Affected, NearDuplicates

SHOWN = 20
"""Of each list, in a table."""


def takedown(
    corpus: CorpusArgument,
    domains: Annotated[list[str] | None, typer.Option("--domain", help="all of a domain or host; may be repeated")] = None,
    ids: Annotated[str | None, typer.Option(help="a file of ids or URLs, one a line; - is the standard input")] = None,
    licences: Annotated[list[str] | None, typer.Option("--licence", help="all components of a licence; may be repeated")] = None,
    near_duplicates: Annotated[
        str, typer.Option(help="of documents that stay and are copies of what goes: `list` or `remove` them")
    ] = "list",
    output: Annotated[
        str | None,
        typer.Option(
            help="a new folder for a corpus of its own, or NAME.json for a manifest beside the old one; none: only look"
        ),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="recorded in manifest and logs; name no private person")] = None,
    by: Annotated[str | None, typer.Option(help="who takes it down, recorded; default: the user of this machine")] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Take documents out of a corpus: say what is affected, surviving copies too, and with --output write the corpus without
    them.

    The old corpus stays as it is. Only shards and logs that hold a document of these are written anew.
    """
    from manifests.audit.takedown import TOLD, Selection, affected, take_down
    from manifests.manifest import ManifestError
    from manifests.storage import StorageError

    if near_duplicates not in ("list", "remove"):
        raise typer.BadParameter(f"{near_duplicates!r}: list or remove", param_hint="--near-duplicates")
    if not (domains or ids or licences):
        raise typer.BadParameter("name what is to go: --domain, --ids or --licence", param_hint="--domain")
    if output is not None and not reason:
        raise typer.BadParameter("a takedown is recorded with its reason", param_hint="--reason")
    selection = Selection(tuple(domains or ()), _lines(ids) if ids else (), tuple(licences or ()))
    mode: NearDuplicates = "remove" if near_duplicates == "remove" else "list"
    try:
        with logs_of(corpus, "removals", "documents") as logs:
            folder, manifest, what = logs.corpus, logs.manifest, affected(logs, selection, mode)
        done = take_down(folder, manifest, what, output, reason or "", by or user_name()) if output is not None else None
    except (ManifestError, StorageError, OSError) as error:
        fail(str(error))
    if what.unknown and (as_json or as_csv or done is not None):  # a selection that missed is never silent
        named = ", ".join(what.unknown[:SHOWN])
        more = f" and {len(what.unknown) - SHOWN:,} more" if len(what.unknown) > SHOWN else ""
        typer.echo(visible(f"warning: unknown to this corpus: {named}{more}"), err=True)
    told = what.as_json()
    act = None
    if done is not None:
        act = {"where": done.where, "digest": done.manifest.digest, "rewritten": done.rewritten, "superseded": done.superseded}
    if not give(told["taken"], as_json, as_csv, {**told, "act": act}, TOLD):
        _show_takedown(what, near_duplicates)
        if done is not None:
            typer.echo(visible(f"\nwritten: {done.where}, {len(done.rewritten)} files anew; digest {done.manifest.digest}"))
            typer.echo(visible(f"the old corpus still holds them: {len(done.superseded)} files, such as {done.superseded[0]}"))
            if folder.exists("steps"):
                typer.echo(
                    "so do its work files (steps/), which `corpusmill clean --work-files` deletes, and the input it was made of"
                )


def _show_takedown(what: Affected, near_duplicates: str) -> None:
    size = f"{counted(what.tokens, 'token')} in {counted(len(what.shards), 'shard')}"
    typer.echo(f"to go: {counted(len(what.taken), 'document')} of the corpus, {size}")
    if what.taken:
        show(
            what.taken[:SHOWN],
            {"id": "document", "url": "URL", "tokens": "tokens", "rule": "taken by", "linked_id": "as a copy of"},
        )
        if len(what.taken) > SHOWN:
            typer.echo(f"and {len(what.taken) - SHOWN:,} more (--json and --csv have all)")
    if what.removed_before:
        told = ", ".join(f"{stage} {number:,}" for stage, number in sorted(what.removed_before.items()))
        typer.echo(visible(f"removed before, so that no shard holds them: {told}"))
    if what.without_url:
        typer.echo(
            f"without a URL with a host, so that no domain matches them: {counted(what.without_url, 'document')} of the corpus"
        )
    for one in what.unknown[:SHOWN]:
        typer.echo(visible(f"unknown to this corpus: {one}"))
    if what.near_misses:
        show(
            [one.__dict__ for one in what.near_misses[:SHOWN]],
            {"asked": "asked for", "url": "in the corpus", "why": "which is", "documents": "documents"},
            "\nno document has exactly these URLs; of what resembles them, name the ids that are meant",
        )
    if what.survivors:
        more = "" if near_duplicates == "remove" else "; --near-duplicates remove takes down the copies among them"
        show(
            what.survivors[:SHOWN],
            {"id": "stays", "url": "URL", "of": "resembles", "how": "how", "jaccard": "Jaccard"},
            f"\nto stay though they resemble one of these: {counted(len(what.survivors), 'document')}{more}",
        )
    if what.orphans:
        show(
            what.orphans[:SHOWN],
            {"id": "document", "stage": "removed by", "kept_id": "because this stayed"},
            f"\nremoved before as copies of these, and not to come back: {counted(len(what.orphans), 'document')}",
        )
    if what.saw_it:
        typer.echo(visible(f"made with them, and left as they are: {', '.join(what.saw_it)}"))


def _lines(path: str) -> tuple[str, ...]:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: cannot be read: {error}", param_hint="--ids") from None
    found = tuple(line.strip() for line in text.split("\n") if line.strip())
    if not found:
        raise typer.BadParameter(f"{path}: names no document", param_hint="--ids")
    return found
