"""Commands that run stages: plan, run. Ray and the stages are imported when a command needs them."""

from __future__ import annotations

import difflib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from manifests.terminal import terminal, visible

if TYPE_CHECKING:
    from stages.stage import Options

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Build a corpus from a recipe.")

RecipePath = Annotated[Path, typer.Argument(help="recipe.yaml")]
CorpusOption = Annotated[str, typer.Option("--corpus", help="folder or URL (s3://…) of the corpus")]
PartOption = Annotated[int, typer.Option("--part-mib", min=1, help="input of one part; changes nothing in the corpus")]

WATCH_RETRIES = 10
"""In a row, LOCAL_SECONDS apart, of a corpus that cannot be read, before `status --watch` says so and ends."""


class Terminated(BaseException):
    """SIGTERM came."""


def _terminated(*_: object) -> NoReturn:
    raise Terminated


@app.command()
def run(
    recipe: RecipePath,
    corpus: CorpusOption = "corpus",
    executor: Annotated[str, typer.Option(help="ray, or inline: in this process")] = "ray",
    address: Annotated[str | None, typer.Option(help="address of a Ray cluster; default: RAY_ADDRESS, or this machine")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="CPUs to use; default: all")] = None,
    part_mib: PartOption = 128,
    resources: Annotated[
        list[str] | None,
        typer.Option(
            help="what parts of a step or stage take, NAME:cpus=2,memory=4GiB,gpus=1; once for each name", metavar="NAME:…"
        ),
    ] = None,
    changed_inputs: Annotated[
        bool, typer.Option("--changed-inputs", help="input files that changed since the last run are meant to")
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="log on standard error as JSON lines, for machines")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="say nothing but errors, warnings and the result")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show the traces of failing parts")] = False,
) -> None:
    """Build the corpus of a recipe, or go on with it; what is done already is not done again."""
    from manifests.storage import Folder, StorageError
    from pipeline.execution import make_executor
    from pipeline.inputs import InputError
    from pipeline.lock import Locked
    from pipeline.progress import Progress
    from pipeline.recipe import Recipe, RecipeError
    from pipeline.resources import ResourceError
    from pipeline.run import RunFailed
    from pipeline.run import run as run_recipe
    from stages.split import SplitError

    if executor not in ("ray", "inline"):
        raise typer.BadParameter(f"{executor!r}: ray or inline", param_hint="--executor")
    needs = _by_name(resources or [])
    progress = Progress(quiet or log_json, verbose)
    started = None
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        loaded = Recipe.load(recipe)
        folder = Folder(corpus)
        started = make_executor(executor, address, workers)
        result = run_recipe(loaded, folder, started, progress, part_mib << 20, needs, log_json, changed_inputs)
    except (RecipeError, ResourceError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(2) from None
    except (RunFailed, InputError, Locked, StorageError, SplitError, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("stopped by Ctrl-C; what is finished is kept: start the same command again to go on", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    except Terminated:
        typer.echo("stopped by SIGTERM; what is finished is kept: start the same command again to go on", err=True)
        raise typer.Exit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if started is not None:
            started.close()
    content = result.manifest.content
    documents_in = sum(one.documents_in for one in content.components.values())
    kept = sum(one.documents_kept for one in content.components.values())
    tokens = sum(shard.tokens for shard in content.shards)
    parts = sum(result.ran.values())
    typer.echo(f"{corpus}: {documents_in:,} documents in, {kept:,} kept, {documents_in - kept:,} removed, {tokens:,} tokens")
    for remark in () if log_json else result.remarks:  # the log has said them
        if not (quiet and remark.startswith("note:")):
            typer.echo(visible(remark), err=True)
    typer.echo(f"{'nothing to do' if not parts else f'{parts} parts run'}; digest {result.manifest.digest}")


def _by_name(resources: list[str]) -> dict[str, str]:
    """Step or stage → what its parts take, as --resources says."""
    found: dict[str, str] = {}
    for one in resources:
        name, colon, taken = one.rpartition(":")
        if not colon or not name:
            raise typer.BadParameter(f"{one!r}: write NAME:cpus=2,memory=4GiB", param_hint="--resources")
        if name in found:
            raise typer.BadParameter(f"{name!r} is there twice", param_hint="--resources")
        found[name] = taken
    return found


@app.command()
def status(
    corpus: Annotated[str, typer.Argument(help="folder or URL of a corpus, that of another machine's run too")],
    watch: Annotated[bool, typer.Option("--watch", help="again and again, until the run ends")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """Say who works on a corpus, how far it is and what was removed until now; exit code 1 if the last run did not finish."""
    import json
    import time

    from rich.live import Live

    from manifests.storage import Folder, StorageError
    from pipeline.journal import LOCAL_SECONDS
    from pipeline.status import Status, look, shown

    def seen() -> Status:
        """A store that does not answer for a moment does not end a watch."""
        for _ in range(WATCH_RETRIES if watch else 0):
            try:
                return look(Folder(corpus))
            except OSError:
                time.sleep(LOCAL_SECONDS)
        return look(Folder(corpus))

    console = terminal()
    try:
        found = seen()
        if watch and found.state == "running":
            with Live(shown(found), console=console, transient=True) as live:
                while found.state == "running":
                    time.sleep(LOCAL_SECONDS)
                    found = seen()
                    live.update(shown(found))
    except (StorageError, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        console.print(shown(found))
    if found.state not in ("running", "finished"):
        raise typer.Exit(1)


@app.command()
def plan(recipe: RecipePath, corpus: CorpusOption = "corpus", part_mib: PartOption = 128) -> None:
    """Show the steps of a recipe: what is done, what will run, and what waits for counts."""
    from rich.table import Table

    from manifests.storage import Folder, StorageError
    from pipeline.inputs import InputError
    from pipeline.recipe import Recipe, RecipeError
    from pipeline.run import survey

    try:
        reports, changed = survey(Recipe.load(recipe), Folder(corpus), part_mib << 20)
    except RecipeError as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(2) from None
    except (InputError, StorageError, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    console = terminal()
    known = [report for report in reports if report.parts is not None]
    parts, finished = sum(report.parts or 0 for report in known), sum(report.finished for report in known)
    left = f"{parts - finished:,} of {parts:,} parts to run"
    if len(known) < len(reports):
        left += ", as far as can be told yet"
    elif parts == finished:
        left = f"nothing to run, all {parts:,} parts are done"
    console.print(f"{recipe} → {corpus}: {left}")
    for line in changed:
        console.print(visible(f"  since the corpus was built: {line}"))
    table = Table(box=None, pad_edge=False)
    for heading in ("step", "parts", "done", "to run"):
        table.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
    table.add_column("what it does")
    table.add_column("after")
    for report in reports:
        numbers = (
            ("?", "", "")
            if report.parts is None
            else (str(report.parts), str(report.finished), str(report.parts - report.finished))
        )
        table.add_row(report.step.name, *numbers, report.step.about, _needs(report.step.needs))
    console.print(table)
    if any(report.parts is None for report in reports):
        console.print(f"? follows from the counts of steps before it; a part reads about {part_mib} MiB of input or less")


@app.command()
def clean(
    corpus: Annotated[str, typer.Argument(help="folder or URL of a corpus")],
    work_files: Annotated[bool, typer.Option("--work-files", help="delete the work files of the finished corpus too")] = False,
) -> None:
    """Delete the work files and receipts that earlier recipes left, and old journals; a finished corpus stays whole."""
    from manifests.manifest import ManifestError
    from manifests.storage import Folder, StorageError
    from pipeline.cleaning import clean as clean_corpus
    from pipeline.lock import Locked

    try:
        deleted, size = clean_corpus(Folder(corpus), work_files)
    except (ManifestError, StorageError, Locked, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{corpus}: {deleted:,} files deleted, {size / 1e6:,.1f} MB")


@app.command()
def stages(name: Annotated[str | None, typer.Argument(help="a stage or an input format; default: all, by name")] = None) -> None:
    """List the stages and input formats that a recipe can use, or the options of one."""
    from rich.table import Table

    from stages import registry
    from stages.readers import FORMATS, UnknownFormat, find_reader

    console = terminal()
    if name is None:
        for title, names in (
            ("input formats", FORMATS),
            ("stages that look at each document alone, in a component or over the whole corpus", registry.names()),
            ("stages that need the whole corpus", registry.CORPUS_WIDE),
        ):
            console.print(f"{title}: {', '.join(names)}")
        console.print("corpusmill stages NAME shows the options of one")
        return
    try:
        if name in registry.CORPUS_WIDE:
            options = registry.corpus_wide_options(name)
        else:
            options = find_reader(name).options_type if name in FORMATS else registry.find(name).options_type
    except (registry.UnknownStage, UnknownFormat):
        known_names = [*FORMATS, *registry.names(), *registry.CORPUS_WIDE]
        near = difflib.get_close_matches(name, known_names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known_names)}"
        typer.echo(f"error: no stage or format {name!r}; {hint}", err=True)
        raise typer.Exit(2) from None
    conditions = _conditions(name, options)
    table = Table(title=f"options of {name}", title_justify="left", box=None, pad_edge=False)
    for heading in ("option", "default", "what it does"):
        table.add_column(heading)
    for option, field in options.model_fields.items():
        default = "required" if field.is_required() else str(field.default)
        table.add_row(option, default, field.description or conditions.get(option, ""))
    console.print(table)


def _conditions(name: str, options: type[Options]) -> dict[str, str]:
    """For a filter, what each threshold is compared with: option → words."""
    from stages import registry
    from stages.stage import Filter

    if name not in registry.names():
        return {}
    implementation = registry.find(name)
    if not issubclass(implementation, Filter) or any(field.is_required() for field in options.model_fields.values()):
        return {}
    found = {}
    for rule in implementation(options()).rules():
        found[rule.name.rpartition(".")[2]] = f"{rule.condition.replace('_', ' ')} this: {rule.signal}"
    return found


def _needs(needs: tuple[str, ...]) -> str:
    return ", ".join(needs[:2]) + (f" and {len(needs) - 2} more" if len(needs) > 2 else "")
