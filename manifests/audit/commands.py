"""`corpusmill audit …`: questions to a finished corpus. Other packages add commands to the same group
(`stages.audit_commands`)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, percent, show
from manifests.terminal import visible
from manifests.wording import ABSENT

if TYPE_CHECKING:
    from manifests.audit.takedown import Affected, NearDuplicates
    from manifests.audit.training import Consumed
    from manifests.audit.whatif import WhatIf
    from manifests.logs import Logs
    from manifests.manifest import Manifest
    from manifests.storage import Folder

audit = typer.Typer(no_args_is_help=True, add_completion=False, help="Ask a finished corpus anything.")
CorpusArgument = Annotated[str, typer.Argument(help="folder or URL of a corpus, or of one of its manifests")]
SHOWN = 20


@audit.command()
def funnel(corpus: CorpusArgument, as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """Show how many documents each stage took in, kept and removed, and by which rules."""
    from manifests.audit.flow import funnel_rows

    _, manifest = opened(corpus)
    if not give(funnel_rows(manifest.content), as_json, as_csv):
        from manifests.audit.funnel_table import show_funnel

        show_funnel(manifest)


@audit.command("unchecked")
def unchecked_(corpus: CorpusArgument, as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """Say what was not checked: stages that the corpus lacks, limits of those that it has, and what they left out."""
    from manifests.audit.unchecked import unchecked

    _, manifest = opened(corpus)
    rows = [one.__dict__ for one in unchecked(manifest.content)]
    if not give(rows, as_json, as_csv):
        for one in rows:
            typer.echo(visible(f"- {one['said']}"))


@audit.command()
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
    from manifests.commands import not_found, tell
    from manifests.life import lives
    from manifests.lookup import documents_called

    folder, manifest = opened(corpus)
    with logs_of(corpus, folder, manifest, "documents", "removals", "edits") as logs:
        called = documents_called(logs, document)
        found = lives(logs, called)
        runs = _runs(logs, run, [life.document for life in found]) if run else [[] for _ in found]
    if not found:
        not_found(corpus, manifest, document)
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
        tell(life, manifest)
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


@audit.command()
def rules(
    corpus: CorpusArgument,
    by: Annotated[list[str] | None, typer.Option(help="component, language or domain; repeat")] = None,
    largest: Annotated[int, typer.Option(min=1, help="how many components, languages, domains are told of each rule")] = 3,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show what each rule removed, what it removed alone, and which components, languages and domains lost most by it."""
    from manifests.audit.costs import DIMENSIONS, rule_costs

    if by and (unknown := set(by) - set(DIMENSIONS)):
        raise typer.BadParameter(f"{sorted(unknown)[0]!r}: {', '.join(DIMENSIONS)}", param_hint="--by")
    folder, manifest = opened(corpus)
    with logs_of(corpus, folder, manifest, "removals", "documents") as logs:
        costs = rule_costs(logs, by or (DIMENSIONS if as_json or as_csv else DIMENSIONS[:1]), largest)
    plain = [one.as_json() for one in costs]
    flat = [
        {**{name: value for name, value in one.items() if name != "by"}, "dimension": dimension, **share_named(share)}
        for one in plain
        for dimension, shares in one["by"].items()
        for share in shares
    ]
    if as_csv and not as_json:
        give(flat, as_json, as_csv, columns=RULE_COLUMNS)
        return
    if give(plain, as_json, as_csv):
        return
    rows = []
    for one in costs:
        cells = {
            dimension: "\n".join(f"{share.name or ABSENT} {share.removed:,} ({percent(share.share)})" for share in shares)
            for dimension, shares in one.by.items()
        }
        plain_row = {"rule": one.rule, "stage": one.stage, "removed": one.removed, "alone": one.alone, "failed": one.failed}
        rows.append({**plain_row, "share": percent(one.share), **cells})
    columns = {"rule": "rule", "removed": "removed", "share": "of all", "alone": "by it alone", "failed": "failed it"}
    shown = by or DIMENSIONS[:1]
    show(rows, {**columns, **{dimension: f"most from {dimension} (of it)" for dimension in shown}}, whole=("rule",))
    if not by:
        typer.echo("--by language and --by domain say where else they came from; --json and --csv have all three")
    typer.echo("by it alone: no other rule of its filter block failed; later stages might still have removed the document")


RULE_COLUMNS = (
    *("stage", "rule", "removed", "alone", "failed", "documents", "share"),
    *("dimension", "name", "removed_there", "documents_there", "share_there"),
)


def share_named(share: dict[str, Any]) -> dict[str, Any]:
    """A share's figures beside those of its rule."""
    return {
        "name": share["name"],
        "removed_there": share["removed"],
        "documents_there": share["documents"],
        "share_there": share["share"],
    }


@audit.command()
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


@audit.command()
def whatif(
    corpus: CorpusArgument,
    change: Annotated[
        list[str] | None,
        typer.Argument(
            help="RULE=VALUE or RULE=off, named as the rule (gopher.min_words) or as the recipe has it (gopher_quality.min_words)"
        ),
    ] = None,
    component: Annotated[str | None, typer.Option(help="change it there only; so does COMPONENT:RULE=VALUE")] = None,
    examples: Annotated[int, typer.Option(min=0, help="documents shown on either side")] = 5,
    seed: Annotated[int, typer.Option(help="of the choice of examples")] = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Say what other thresholds would have decided: exact in the filter block, a bound and an estimate beyond it. Without a
    change, list what can be asked."""
    from manifests.audit.whatif import WhatIfError, changes_of, manifest_changes, what_if

    folder, manifest = opened(corpus)
    if not change:
        rows = manifest_changes(manifest)
        if not give(rows, as_json, as_csv):
            names = ("component", "block", "stage", "rule", "signal", "threshold")
            show(rows, dict(zip(names, names, strict=True)))
        return
    try:
        asked = changes_of(manifest.content, change, component)
        with logs_of(corpus, folder, manifest, "removals") as logs:
            answer = what_if(logs, asked, examples, seed)
    except WhatIfError as error:
        fail(str(error))
    moved = [{"side": side, **one.__dict__} for side in ("newly_kept", "newly_removed") for one in getattr(answer, side)]
    if not give(moved, as_json, as_csv, answer.as_json(), MOVED_COLUMNS):
        _show_what_if(answer, moved)


MOVED_COLUMNS = ("side", "component", "language", "documents", "text_bytes")


def _show_what_if(answer: WhatIf, moved: list[dict[str, Any]]) -> None:
    kept, removed = (sum(one.documents for one in side) for side in (answer.newly_kept, answer.newly_removed))
    typer.echo(
        f"exact, of {answer.measured:,} measured documents: {kept:,} newly kept, {removed:,} newly removed by their filter block"
    )
    for one in answer.verdicts:
        if one.failed or one.would_fail:
            others = f"; of those that would not, {one.fail_others:,} fail other rules of the block" if one.fail_others else ""
            name = f"{one.change.old.name} of {one.change.component}"
            typer.echo(visible(f"  {name}: {one.failed:,} documents failed it, {one.would_fail:,} would{others}"))
    if moved:
        names = {
            "side": "",
            "component": "component",
            "language": "language",
            "documents": "documents",
            "text_bytes": "bytes of text",
        }
        show([{**one, "side": one["side"].replace("_", " ")} for one in moved], names)
    if removed:
        typer.echo(
            f"exact: of those newly removed, {answer.in_corpus:,} are in the corpus now, with {answer.in_corpus_tokens:,} "
            "tokens; later stages removed the others"
        )
    typer.echo(
        f"upper bound: {answer.most_kept:,} documents more in the corpus, {answer.freed_copies:,} of them removed because of "
        "others, of which one would go"
    )
    typer.echo(
        f"estimate, if later stages kept the share they kept of the others: {answer.expected_kept:,.0f} documents and "
        f"{answer.expected_tokens:,.0f} tokens more"
    )
    for side, examples in answer.examples.items():
        if examples:
            hidden = ("component", "text_bytes", "failed_rules", "language")
            names = {name: name for name in examples[0] if name not in hidden}
            show(examples, names, f"\n{side.replace('_', ' ')}, for example")
    for note in answer.notes:
        typer.echo(visible(f"note: {note}"))


@audit.command()
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
    folder, manifest = opened(corpus)
    mode: NearDuplicates = "remove" if near_duplicates == "remove" else "list"
    try:
        with logs_of(corpus, folder, manifest, "removals", "documents") as logs:
            what = affected(logs, selection, mode)
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
    typer.echo(f"{len(what.taken):,} documents of the corpus go, with {what.tokens:,} tokens in {len(what.shards):,} shards")
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
        typer.echo(f"{what.without_url:,} documents of the corpus have no URL with a host and cannot be matched by domain")
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
            f"\n{len(what.survivors):,} documents stay that resemble one of these{more}",
        )
    if what.orphans:
        show(
            what.orphans[:SHOWN],
            {"id": "document", "stage": "removed by", "kept_id": "because this stayed"},
            f"\n{len(what.orphans):,} documents were removed as copies of these; they do not come back",
        )
    if what.saw_it:
        typer.echo(visible(f"made with them, and left as they are: {', '.join(what.saw_it)}"))


@audit.command()
def reviews(
    corpus: CorpusArgument,
    file: Annotated[
        str | None, typer.Option("--reviews", help="file of reviews; default: the one that `audit serve` writes for this corpus")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="of this rule only")] = None,
    half_width: Annotated[
        float, typer.Option(help="wanted half width of each rule's interval, for the number of documents that it takes")
    ] = 0.05,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Print what people thought of removals in `audit serve`: each rule's false-positive rate with its 95 % interval (Wilson).
    --csv has every verdict ever given, --json both."""
    from manifests.audit.flow import removed_by_name
    from manifests.audit.reviews import REVIEW_COLUMNS, ReviewError, review_file, sample_size, summed

    folder, manifest = opened(corpus)
    removed = removed_by_name(manifest.content)
    try:
        stored = review_file(folder, manifest.digest, file)
        found = [one for one in stored.read() if rule in (None, one.rule)]
        rates = [
            {**one.as_json(), "needed": sample_size(half_width, one.false_positives, one.sampled, removed.get(one.rule))}
            for _, one in sorted(summed(found, populations=removed).items())
        ]
        sample_size(half_width)
    except ReviewError as error:
        fail(str(error))
    if stored.unreadable:
        typer.echo(visible(f"{stored.unreadable:,} lines of {stored.path} cannot be read"), err=True)
    rows = [one.as_json() for one in found]
    if give(rows, as_json, as_csv, {"corpus": manifest.digest, "rules": rates, "reviews": rows}, REVIEW_COLUMNS):
        return
    if not found:
        typer.echo(visible(f"no review of this corpus{f' and {rule}' if rule else ''} in {stored.path}"))
        return
    for one in rates:
        one["rate"], one["interval"] = (
            percent(one["rate"]),
            _interval(one),
        )
    columns = {
        "rule": "rule",
        "sampled": "sampled",
        "false_positives": "false positives",
        "rate": "rate",
        "interval": "95 % interval",
    }
    more = {"needed": f"for ± {percent(half_width)}", "unsure": "unsure", "disputed": "disputed", "by_hand": "by hand"}
    show(rates, columns | more)


def _interval(one: dict[str, Any]) -> str:
    if not one["sampled"]:
        return ""
    return "all of them" if one["low"] == one["high"] else f"{percent(one['low'])} to {percent(one['high'])}"


@audit.command()
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


def opened(corpus: str) -> tuple[Folder, Manifest]:
    """A corpus by its folder, or by the path of its manifest; the program ends where there is none."""
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError

    try:
        return open_corpus(corpus)
    except (ManifestError, StorageError, OSError) as error:
        fail(f"{corpus} is no corpus that can be read: {error}")


@contextlib.contextmanager
def logs_of(corpus: str, folder: Folder, manifest: Manifest, *views: str) -> Iterator[Logs]:
    """The logs, of which only `views` are opened where any are named; the program ends where one cannot be read."""
    import duckdb
    import pyarrow as pa

    from manifests.logs import Logs
    from manifests.storage import StorageError

    try:
        with Logs(folder, manifest, views or None) as logs:
            yield logs
    except (duckdb.Error, pa.ArrowException, OSError, StorageError) as error:
        fail(f"the logs of {corpus} cannot be read; `corpusmill verify` says what is wrong: {error}")


def fail(message: str) -> NoReturn:
    """Says what is wrong and ends the program with 1."""
    typer.echo(visible(f"error: {message}"), err=True)
    raise typer.Exit(1)


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


def user_name() -> str:
    """Of whoever runs this."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
