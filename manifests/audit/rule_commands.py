"""`corpusmill audit funnel`, `unchecked`, `rules` and `whatif`: what stages and their rules do to a corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, percent, show
from manifests.corpus_argument import CorpusArgument, logs_of, opened
from manifests.terminal import fail, visible
from manifests.wording import ABSENT, counted

if TYPE_CHECKING:
    from manifests.audit.whatif import WhatIf
    from manifests.logs import Logs


def funnel(corpus: CorpusArgument, as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """Show how many documents each stage took in, kept and removed, and by which rules."""
    from manifests.audit.flow import funnel_rows

    _, manifest = opened(corpus)
    if not give(funnel_rows(manifest.content), as_json, as_csv):
        from manifests.audit.funnel_table import show_funnel

        show_funnel(manifest)


def unchecked_(corpus: CorpusArgument, as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """Say what was not checked: stages that the corpus lacks, limits of those that it has, and what they left out."""
    from manifests.audit.unchecked import unchecked

    _, manifest = opened(corpus)
    rows = [one.__dict__ for one in unchecked(manifest.content)]
    if not give(rows, as_json, as_csv):
        for one in rows:
            typer.echo(visible(f"- {one['said']}"))


def rules(
    corpus: CorpusArgument,
    by: Annotated[list[str] | None, typer.Option(help="component, language or domain; repeat")] = None,
    largest: Annotated[int, typer.Option(min=1, help="how many components, languages, domains are told of each rule")] = 3,
    component: Annotated[str | None, typer.Option(help="of documents of this component only")] = None,
    language: Annotated[
        str | None, typer.Option(help=f"of documents in this language only, such as hi; {ABSENT}: in none")
    ] = None,
    domain: Annotated[
        str | None, typer.Option(help=f"of documents from this registered domain only; {ABSENT}: from none")
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show what each rule removed, what it removed alone, and which components, languages and domains lost most by it; of all
    documents, or of one language, say."""
    from manifests.audit.costs import DIMENSIONS, rule_costs
    from manifests.audit.domains import normal_domain

    if by and (unknown := set(by) - set(DIMENSIONS)):
        raise typer.BadParameter(f"{sorted(unknown)[0]!r}: {', '.join(DIMENSIONS)}", param_hint="--by")
    asked = {"component": component, "language": language, "domain": domain}
    only = {name: None if value == ABSENT else value for name, value in asked.items() if value is not None}
    if only.get("domain"):
        only["domain"] = normal_domain(only["domain"] or "") or fail(f"{domain!r} is no domain")
    with logs_of(corpus, "removals", "documents") as logs:
        costs = rule_costs(logs, by or (DIMENSIONS if as_json or as_csv else DIMENSIONS[:1]), largest, only)
        if only and not costs:
            _explain_none(logs, only)
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
    if only:
        typer.echo(visible(f"of {counted(costs[0].documents if costs else 0, 'document')} with {_in_words(only)}"))
    columns = {
        "rule": "rule",
        "removed": "removed",
        "share": "of these" if only else "of all",
        "alone": "by it alone",
        "failed": "failed it",
    }
    shown = by or DIMENSIONS[:1]
    show(rows, {**columns, **{dimension: f"most from {dimension} (of it)" for dimension in shown}}, whole=("rule",))
    if not by:
        typer.echo("--by language and --by domain say where else they came from; --json and --csv have all three")
    typer.echo("by it alone: no other rule of its filter block failed; later stages might still have removed the document")


def _in_words(only: dict[str, str | None]) -> str:
    return " and ".join(f"{name} {value or ABSENT}" for name, value in only.items())


def _explain_none(logs: Logs, only: dict[str, str | None]) -> None:
    """Why no rule removed anything of what was asked for; the program ends where there is no such document."""
    conditions = " and ".join(f"{name} is not distinct from ?" for name in only)
    if logs.sql(f"select 1 from documents where {conditions} limit 1", list(only.values())):
        typer.echo(visible(f"nothing with {_in_words(only)} was removed"), err=True)
        return
    name = next(iter(only))
    most = logs.sql(f"select {name} as name from documents group by all order by count(*) desc, name limit 10")
    there = ", ".join(row["name"] or ABSENT for row in most)
    fail(
        f"no document has {_in_words(only)}; of {name} there are {there}"
        if len(only) == 1
        else f"no document has {_in_words(only)}"
    )


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

    if not change:
        rows = manifest_changes(opened(corpus)[1])
        if not give(rows, as_json, as_csv):
            names = ("component", "block", "stage", "rule", "signal", "threshold")
            show(rows, dict(zip(names, names, strict=True)))
        return
    try:
        with logs_of(corpus, "removals") as logs:
            answer = what_if(logs, changes_of(logs.manifest.content, change, component), examples, seed)
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
        f"upper bound: {counted(answer.most_kept, 'document')} more in the corpus, {answer.freed_copies:,} of them removed "
        "as copies or neighbours of a document that would go"
    )
    back = f"; and {counted(answer.expected_copies, 'copy', 'copies')} back of what goes" if answer.expected_copies else ""
    typer.echo(
        f"estimate, if later stages kept the share they kept of the others: {answer.expected_kept:,.1f} documents and "
        f"{answer.expected_tokens:,.0f} tokens more{back}"
    )
    for side, examples in answer.examples.items():
        if examples:
            hidden = ("component", "text_bytes", "failed_rules", "language")
            names = {name: name for name in examples[0] if name not in hidden}
            show(examples, names, f"\n{side.replace('_', ' ')}, for example")
    for note in answer.notes:
        typer.echo(visible(f"note: {note}"))
