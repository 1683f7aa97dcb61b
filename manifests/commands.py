"""The `corpusmill` program, and the commands that question a finished corpus: verify, why, funnel, manifest, schema.

`main` mounts the commands of the other packages through their entry points, so that this module imports none of them and a
machine without ray or torch has every command that it can run.
"""

from __future__ import annotations

import json
import math
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from manifests import manifest_commands, run_commands
from manifests.audit.answers import CsvOption, JsonOption
from manifests.audit.commands import audit, funnel
from manifests.report.commands import report
from manifests.terminal import terminal, visible

if TYPE_CHECKING:
    from manifests.life import Life
    from manifests.manifest import Manifest
    from manifests.mixture import Plan
    from manifests.storage import Folder

ENTRY_POINTS = "corpusmill.commands"
app = typer.Typer(no_args_is_help=True, add_completion=False, help="Question a finished corpus.")
app.add_typer(manifest_commands.app, name="manifest")
app.add_typer(audit, name="audit")
audit.command("trained-on")(run_commands.trained_on)
app.command()(funnel)
app.command()(report)
app.command()(run_commands.release)

CorpusArgument = Annotated[str, typer.Argument(help="folder or URL of a corpus, or the path of one of its manifests")]


def main() -> None:
    """The console script: all commands of all packages at one level."""
    program = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="corpusmill turns a web crawl into a training corpus whose every document is accounted for, and trains on it.",
    )
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: ORDER.get(point.name, len(ORDER))):
        package: typer.Typer = point.load()
        program.registered_commands += package.registered_commands
        _add_groups(program, package)
    try:
        program()
    except Exception as error:
        if os.environ.get(TRACE):
            raise
        print(visible(f"error: {type(error).__name__}: {error}"), file=sys.stderr)
        print(f"this was not expected; with {TRACE}=1 the place is shown", file=sys.stderr)
        sys.exit(1)


def _add_groups(program: typer.Typer, package: typer.Typer) -> None:
    """Groups of one name in several packages, such as `export`, are one group."""
    known = {group.name: group.typer_instance for group in program.registered_groups}
    for group in package.registered_groups:
        there = known.get(group.name)
        if there is None or group.typer_instance is None:
            program.registered_groups.append(group)
            continue
        names = {command.name for command in there.registered_commands}
        there.registered_commands += [one for one in group.typer_instance.registered_commands if one.name not in names]


TRACE = "CORPUSMILL_TRACE"
ORDER = {"pipeline": 0, "manifests": 1, "trainer": 2}


@app.command()
def verify(
    corpus: CorpusArgument,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="decode every document too, and compare the SHA-256 of its text with the one on record"),
    ] = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Hash and count everything again; exit 1 and name what is wrong when the corpus is not what its manifest says."""
    from manifests.audit.answers import give
    from manifests.verify import Verification
    from manifests.verify import verify as findings_of

    if as_json and as_csv:
        raise typer.BadParameter("one of --json and --csv", param_hint="--json")
    folder, manifest = _open(corpus)
    about = Verification.of(manifest, texts)
    for finding in findings_of(folder, manifest, texts):
        about.add(finding)
        if not (as_json or as_csv):
            typer.echo(visible(finding))
    number = len(about.findings)
    if not give(about.findings, as_json, as_csv, whole=about, columns=("where", "what")) and not number:
        for line in about.in_words():
            typer.echo(visible(line))
    if number:
        told = "1 finding" if number == 1 else f"{number:,} findings"
        typer.echo(f"{told}: this corpus is not what its manifest says", err=True)
        raise typer.Exit(1)


@app.command()
def why(
    corpus: CorpusArgument,
    document: Annotated[str, typer.Argument(help="component/file#position, component/file, or a URL")],
    as_json: JsonOption = False,
) -> None:
    """Tell the whole life of a document: source, signals, edits, decision, twin, shard."""
    import duckdb

    from manifests.life import lives
    from manifests.logs import Logs
    from manifests.lookup import documents_called

    folder, manifest = _open(corpus)
    try:
        with Logs(folder, manifest, ["documents", "removals", "edits"]) as logs:
            called = documents_called(logs, document)
            found = lives(logs, called)
    except duckdb.Error as error:
        typer.echo(
            visible(f"error: the logs of {corpus} cannot be read; `corpusmill verify` says what is wrong: {error}"), err=True
        )
        raise typer.Exit(1) from None
    if not found:
        not_found(corpus, manifest, document)
    for line in called.in_words():
        typer.echo(visible(line), err=as_json)
    if as_json:
        typer.echo(f"[{', '.join(life.as_json() for life in found)}]")
        return
    for life in found:
        tell(life, manifest)


@app.command()
def mixture(
    corpus: CorpusArgument,
    tokens: Annotated[float, typer.Option(min=1, help="target tokens of the run, such as 2e9")],
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "--mixture-recipe", help="a mixture in YAML: phases with share, weights or temperature"),
    ] = None,
    weight: Annotated[list[str] | None, typer.Option("--weight", "--mixture", help="COMPONENT=NUMBER; repeat")] = None,
    temperature: Annotated[float | None, typer.Option(help="alpha of p ∝ q^alpha over languages, such as 0.3")] = None,
    max_epochs: Annotated[float | None, typer.Option(help="refuse to go through a component more often")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan what a run takes from each component: tokens, unique tokens, epochs. Exit 1 when it does not fit."""
    from manifests import mixture as mixtures
    from manifests.storage import StorageError

    if not math.isfinite(tokens):
        raise typer.BadParameter(f"{tokens}: a run has an end", param_hint="--tokens")
    if max_epochs is not None and not 0 < max_epochs < math.inf:
        raise typer.BadParameter(f"{max_epochs}: a number above 0", param_hint="--max-epochs")
    folder, manifest = _open(corpus)
    try:
        chosen = mixtures.read_mixture(_mixture_text(recipe, weight, temperature))
        if max_epochs is not None:
            chosen = chosen.model_copy(update={"max_epochs": max_epochs})
        languages = mixtures.tokens_by_language(folder, manifest)
        planned = mixtures.plan(manifest.content, chosen, int(tokens), languages)
    except (mixtures.MixtureError, StorageError, OSError) as error:
        where = f"{recipe}: " if recipe is not None and isinstance(error, mixtures.MixtureError) else ""
        typer.echo(visible(f"error: {where}{error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(planned.as_json(), indent=1, ensure_ascii=False))
        return
    _show_mixture(planned)


def _mixture_text(recipe: str | None, weight: list[str] | None, temperature: float | None) -> str:
    if sum(given is not None for given in (recipe, weight or None, temperature)) > 1:
        raise typer.BadParameter("a mixture comes from --recipe, or --weight, or --temperature")
    if recipe is not None:
        from pathlib import Path

        try:
            return Path(recipe).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{recipe}: cannot be read: {error}", param_hint="--recipe") from None
    phase: dict[str, Any] = {}
    if temperature is not None:
        phase["temperature"] = temperature
    for pair in weight or []:
        name, _, number = pair.partition("=")
        try:
            weight_of = float(number)
        except ValueError:
            raise typer.BadParameter(f"{pair!r} is not COMPONENT=NUMBER", param_hint="--weight") from None
        if name in phase.setdefault("weights", {}):
            raise typer.BadParameter(f"{name!r} has two weights", param_hint="--weight")
        phase["weights"][name] = weight_of
    return json.dumps({"phases": [phase]})


def _show_mixture(planned: Plan) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    several = len(planned.phases) > 1
    table.add_column("component")
    for number, phase in enumerate(planned.phases, 1):
        table.add_column(f"phase {number} ({phase['share']:.0%})" if several else "share", justify="right")
        if several:
            table.add_column("epochs", justify="right")
    for heading in ("tokens", "unique tokens", "epochs in all" if several else "epochs"):
        table.add_column(heading, justify="right")
    for row in planned.rows:
        cells = []
        for phase in planned.phases:
            cells += [f"{phase['weights'][row.component]:.1%}", f"{phase['epochs'][row.component]:.2f}"][: 1 + several]
        table.add_row(Text(visible(row.component)), *cells, f"{row.tokens:,.0f}", f"{row.unique:,}", f"{row.epochs:.2f}")
    unique = sum(row.unique for row in planned.rows)
    blank = [""] * (len(planned.phases) * (1 + several))
    table.add_section()
    table.add_row("all", *blank, f"{planned.tokens:,}", f"{unique:,}", f"{planned.tokens / unique:.2f}")
    terminal().print(table)
    if len(planned.languages) > 1:
        shown = ", ".join(f"{language} {share:.1%}" for language, share in list(planned.languages.items())[:10])
        typer.echo(visible(f"languages: {shown}"))
    for warning in planned.warnings:
        typer.echo(visible(f"warning: {warning}"))


@app.command()
def schema() -> None:
    """Print the JSON Schema of manifest.json."""
    from manifests.manifest import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))


def not_found(corpus: str, manifest: Manifest, document: str) -> NoReturn:
    """Ends the program because there is no such document, and says whether its component was dropped."""
    gone = next((one for one in manifest.content.dropped if document.startswith(f"{one['component']}/")), None)
    because = f": component {gone['component']} was dropped: {gone['reason'] or 'no reason given'}" if gone else ""
    typer.echo(visible(f"error: no document of {corpus} has the id or URL {document!r}{because}"), err=True)
    raise typer.Exit(1)


def tell(life: Life, manifest: Manifest) -> None:
    """The life of a document in tables."""
    from rich.table import Table
    from rich.text import Text

    console = terminal()
    document, removal = life.document, life.removal
    component = manifest.content.components[document["component"]]
    table = Table(show_header=False, title=Text(visible(document["id"])), title_justify="left", box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")

    def row(name: str, *values: Any) -> None:
        shown = [str(value) for value in values if value is not None]
        if shown:
            table.add_row(name, Text(visible(" ".join(shown))))

    row("came from", document["url"], document["date"], document["media_type"])
    row("file", f"{document['file']} at {document['position']}, of {component.source}, licence {component.licence}")
    if document["language"]:
        score = document["language_score"]
        row("language", document["language"], None if score is None else f"(score {score:.3f})")
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for edit in life.edits:
        by_stage.setdefault(edit["step"] + " " + edit["stage"], []).append(edit)
    for edits in by_stage.values():
        kinds = ", ".join(f"{edit['rule'].partition('.')[2]} {edit['count']:,}×" for edit in edits)
        row("edited", f"{edits[0]['stage']}: {kinds}; {edits[0]['bytes_before']:,} → {edits[0]['bytes_after']:,} bytes")
        for edit in edits:
            if edit.get("detail"):  # logs of an earlier version have no such column
                row("", f"{edit['rule'].partition('.')[2]}: {edit['detail']}")
    if removal is None:
        row("kept", f"{document['text_bytes']:,} bytes of text, sha256 {document['text_sha256'][:16]}…")
        if document["split"]:
            row("split", document["split"], f"(cluster {document['split_cluster']})")
        if document["shard"]:
            row("tokens", f"{document['shard']} from {document['start']:,}, {document['tokens']:,} tokens")
    else:
        row("removed by", f"{removal['rule']} (stage {removal['stage']}, step {removal['step']})")
        if removal["value"] is not None:
            bound = "" if removal["threshold"] is None else f", threshold {removal['threshold']:g}"
            row("measured", f"{removal['value']:.6g}{bound}")
        row("detail", removal["detail"])
        others = [rule for rule in removal["failed_rules"] or [] if rule != removal["rule"]]
        row("also failed", ", ".join(others) or None)
        if removal["kept_id"]:
            row(f"kept by {removal['stage']}", removal["kept_id"], _jaccard(removal["kept_jaccard"]))
            if removal["linked_id"] != removal["kept_id"]:
                row("linked by", removal["linked_id"], _jaccard(removal["linked_jaccard"]))
            row("cluster", removal["cluster"], f"of {removal['cluster_size']} documents")
            if life.stand_in and (life.stand_in["id"] != removal["kept_id"] or not life.stand_in["in_corpus"]):
                row("today", life.stand_in["told"], _jaccard(life.stand_in["jaccard"]) if life.stand_in["in_corpus"] else None)
        if removal["benchmark"]:
            row("benchmark", removal["benchmark"], "item", removal["item"])
            row("evidence", removal["evidence"])
    for twin in life.twins[:10]:
        through = None if twin["kept_id"] == document["id"] else f"through {twin['kept_id']}"
        row("removed for it", twin["id"], f"({twin['stage']})", _jaccard(twin["kept_jaccard"]), through)
    console.print(table)
    if life.rules:
        failed = set((removal or {}).get("failed_rules") or [])
        rules = Table(title="what the filters measured", title_justify="left", box=None, pad_edge=False)
        for heading in ("rule", "value", "keep if", ""):
            rules.add_column(heading, justify="right" if heading == "value" else "left")
        for one in life.rules:
            if one["value"] is None and one["rule"] not in failed:
                continue  # a rule for another kind of script
            value = (
                "undefined"
                if one["value"] is None
                else f"{one['value']:.4g}"
                if isinstance(one["value"], float)
                else str(one["value"])
            )
            bound = f"{one['bound']:g}" if isinstance(one["bound"], float) else str(one["bound"])
            needed = f"{one['keep_if'].replace('_', ' ')} {bound}"
            # Names, labels and lists of words are the manifest's, and so a stranger's.
            rules.add_row(*map(visible, (one["rule"], value, needed)), "failed" if one["rule"] in failed else "")
        console.print(rules)


def _jaccard(value: float | None) -> str | None:
    return None if value is None else f"(Jaccard {value:.4f})"


def _open(corpus: str) -> tuple[Folder, Manifest]:
    """A corpus by its folder, or by the path of its manifest."""
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError

    try:
        return open_corpus(corpus)
    except (ManifestError, StorageError, OSError) as error:
        typer.echo(visible(f"error: {corpus} is no corpus that can be read: {error}"), err=True)
        raise typer.Exit(1) from None
