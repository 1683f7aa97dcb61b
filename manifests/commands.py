"""The `corpusmill` program, and the commands that question a finished corpus: verify, why, funnel, manifest, schema.

`main` mounts the commands of the other packages through their entry points, so that this module imports none of them and a
machine without ray or torch has every command that it can run.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests import manifest_commands, run_commands
from manifests.audit.answers import CsvOption, JsonOption
from manifests.audit.commands import audit
from manifests.audit.document_commands import why
from manifests.audit.rule_commands import funnel
from manifests.corpus_argument import CorpusArgument, manifest_name, opened
from manifests.report.commands import report
from manifests.terminal import fail, terminal, visible
from manifests.token_number import number_of_tokens

if TYPE_CHECKING:
    from manifests.mixture import Plan

ENTRY_POINTS = "corpusmill.commands"
app = typer.Typer(no_args_is_help=True, add_completion=False, help="Question a finished corpus.")
app.add_typer(manifest_commands.app, name="manifest")
app.add_typer(audit, name="audit")
app.command()(why)
app.command()(funnel)
app.command()(report)
app.command()(run_commands.release)


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
    public_key: Annotated[
        str | None, typer.Option(help="a minisign public key, or a file of one: is the corpus signed by its owner?")
    ] = None,
    signature: Annotated[str | None, typer.Option(help="file of the signature; default: the one beside the manifest")] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Hash and count everything again; exit 1 and name what is wrong when the corpus is not what its manifest says."""
    from manifests.audit.answers import give
    from manifests.signature import SignatureError, signed_by
    from manifests.verification.verify import Verification
    from manifests.verification.verify import verify as findings_of

    if as_json and as_csv:
        raise typer.BadParameter("one of --json and --csv", param_hint="--json")
    folder, manifest = opened(corpus)
    about = Verification.of(manifest, texts)
    try:
        signed = signed_by(folder, manifest, manifest_name(corpus), public_key, signature)
    except SignatureError as error:
        fail(str(error))
    unsigned = [f"signature: {signed}"] if isinstance(signed, SignatureError) else []
    about.signature = None if isinstance(signed, SignatureError) else signed
    for finding in itertools.chain(unsigned, findings_of(folder, manifest, texts)):
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
def mixture(
    corpus: CorpusArgument,
    tokens: Annotated[
        int, typer.Option(parser=number_of_tokens, metavar="NUMBER", help="target tokens of the run, such as 2e9 or 20M")
    ],
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

    if max_epochs is not None and not 0 < max_epochs < math.inf:
        raise typer.BadParameter(f"{max_epochs}: a number above 0", param_hint="--max-epochs")
    folder, manifest = opened(corpus)
    try:
        chosen = mixtures.read_mixture(_mixture_text(recipe, weight, temperature))
        if max_epochs is not None:
            chosen = chosen.model_copy(update={"max_epochs": max_epochs})
        languages = mixtures.tokens_by_language(folder, manifest)
        planned = mixtures.plan(manifest.content, chosen, tokens, languages)
    except (mixtures.MixtureError, StorageError, OSError) as error:
        where = f"{recipe}: " if recipe is not None and isinstance(error, mixtures.MixtureError) else ""
        fail(f"{where}{error}")
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
