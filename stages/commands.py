"""Commands about what stages use and what they did: quality train, quality report, tokenizer report, tokens,
contamination, dedup, export."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from manifests.terminal import terminal, token_progress, visible
from manifests.wording import ABSENT
from stages import audit_commands as audit_commands  # adds its commands to the group `audit`
from stages.audit_browser import commands as audit_browser_commands  # noqa: F401  # and so does this one
from stages.dedup_commands import dedup
from stages.export_commands import exports

if TYPE_CHECKING:
    from manifests.narrowing import Narrowing
    from stages.contamination import Report
    from stages.token_place import Place

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What stages use, and what they did.")
quality = typer.Typer(no_args_is_help=True, add_completion=False, help="Train a quality classifier, and see what one removed.")
app.add_typer(quality, name="quality")
tokenizer = typer.Typer(no_args_is_help=True, add_completion=False, help="Compare tokenizers.")
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(dedup, name="dedup")
app.add_typer(exports, name="export")


SHOWN = ("quality.score", "quality.known_words")
"""Signals whose spread a report tells."""


class _ManyFiles(TyperCommand):
    """`--good a b --random c`, as a shell expands patterns: every word after one of these belongs to it."""

    many = ("--good", "--random")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        current: str | None = None
        given = 0
        for word in args:
            if word.startswith("-"):
                current, given = (word, 0) if word in self.many else (None, 0)
                spread.append(word)
                continue
            if current is not None and given:
                spread.append(current)
            spread.append(word)
            given += 1
        return super().parse_args(ctx, spread)


@quality.command(cls=_ManyFiles)
def train(
    good: Annotated[list[str], typer.Option(help="texts to be recognised: files, folders, patterns, corpora")],
    random: Annotated[list[str], typer.Option(help="texts of all kinds, such as a sample of the crawl")],
    output: Annotated[str, typer.Option(help="the model file to write, model.bin; its card, model.json, lies beside it")],
    text_field: Annotated[str, typer.Option(help="field of JSON Lines, or column of Parquet, that holds the text")] = "text",
    dimensions: Annotated[int, typer.Option(help="numbers a word; the model has 8 MB for each")] = 16,
    word_ngrams: Annotated[int, typer.Option(help="longest n-gram of words that is looked at, from 2")] = 2,
    epochs: Annotated[int, typer.Option(help="passes over the texts")] = 5,
    rate: Annotated[float, typer.Option(help="learning rate")] = 0.1,
    min_count: Annotated[int, typer.Option(help="a word that occurs less often is known in n-grams only")] = 2,
    held_out: Annotated[float, typer.Option(help="share of the texts that the figures are taken from")] = 0.1,
    limit: Annotated[int | None, typer.Option(help="at most so many texts of each class, chosen by hash")] = None,
    seed: Annotated[int, typer.Option(help="of the held-out part, the choice and the order")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print the card instead of a table")] = False,
) -> None:
    """Train a fastText classifier that tells good texts from random ones; the same texts give the same model."""
    from pydantic import ValidationError

    from manifests.storage import Folder, StorageError
    from stages.quality_training import TrainingError, TrainingOptions
    from stages.quality_training import train as train_model
    from stages.text_sources import SourceError, find_texts

    try:
        options = TrainingOptions(
            dimensions=dimensions,
            word_ngrams=word_ngrams,
            epochs=epochs,
            rate=rate,
            min_count=min_count,
            held_out=held_out,
            limit=limit,
            seed=seed,
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise typer.BadParameter(f"{first['msg']} (here: {first['input']!r})", param_hint=f"--{name}") from None
    folder, _, file = output.rpartition("/")
    if not file.endswith(".bin"):
        raise typer.BadParameter(f"{output!r}: the name of a model file ends in .bin", param_hint="--output")

    def say(line: str) -> None:
        typer.echo(visible(line), err=True)

    try:
        good_texts, random_texts = (find_texts(names, text_field) for names in (good, random))
        written = Folder(folder or ("/" if output.startswith("/") else "."))
        card = train_model(good_texts, random_texts, options, written, file, say)
    except (SourceError, TrainingError, StorageError, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(card, indent=1, ensure_ascii=False))
        return
    _show_card(card)
    typer.echo(visible(f"{output}: {card['model']['bytes']:,} bytes, sha256 {card['model']['sha256']}"))


@tokenizer.command(name="report")
def tokenizer_report(
    tokenizers: Annotated[list[str], typer.Argument(help="tokenizer.json files, or finished corpora for theirs")],
    texts: Annotated[
        list[str] | None,
        typer.Option(help="what to encode: files, folders, patterns, corpora; may be repeated; else the corpora that are named"),
    ] = None,
    text_field: Annotated[str, typer.Option(help="field of JSON Lines, or column of Parquet, that holds the text")] = "text",
    bos: Annotated[str | None, typer.Option(help="the token that begins a document, if it has an unusual name")] = None,
    mib: Annotated[int, typer.Option(min=1, help="MiB of text of each source that are looked at")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Show bytes a token, tokens a word and the share of the vocabulary in use, by source (or component) and language."""
    from manifests.storage import StorageError
    from stages import tokenizer_report as reports
    from stages.text_sources import SourceError, find_texts
    from stages.tokenizer import TokenizerError

    if not texts and not (texts := [name for name in tokenizers if not name.endswith(".json")]):
        raise typer.BadParameter("no corpus is named, so --texts has to say what to encode", param_hint="--texts")
    try:
        found = reports.compare(reports.load(tokenizers, bos), find_texts(texts, text_field), mib << 20).as_json()
    except (TokenizerError, SourceError, StorageError, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    _show_usage(found)


@app.command(name="tokens")
def show_tokens(
    corpus: Annotated[str, typer.Argument(help="folder or URL of a corpus")],
    shard: Annotated[str, typer.Argument(help="path of a shard in the corpus, or the end of it: train/00017.bin")],
    offset: Annotated[int, typer.Argument(min=0, help="number of a token in the shard, from 0")],
    shown: Annotated[int, typer.Option(min=0, max=1_000_000, help="tokens before and behind it that are shown")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Show the text at a token of a shard, and the document and the record it came from."""
    import duckdb

    from manifests.manifest import MANIFEST, Manifest, ManifestError
    from manifests.shards import ShardError
    from manifests.storage import Folder, StorageError
    from stages.shard_texts import ShardTextError
    from stages.token_place import find_place
    from stages.tokenizer import TokenizerError

    try:
        folder = Folder(corpus.removesuffix(f"/{MANIFEST}"))
        place = find_place(folder, Manifest.load(folder), shard, offset, shown)
    except (ManifestError, StorageError, ShardError, ShardTextError, TokenizerError, OSError, ValueError, duckdb.Error) as error:
        typer.echo(visible(f"error: {corpus}: {error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(place.as_json(), indent=1, ensure_ascii=False))
        return
    _show_place(place)


@quality.command()
def report(
    corpus: Annotated[str, typer.Argument(help="folder or URL of a corpus")],
    stage: Annotated[str, typer.Option(help="the filter whose rules are looked at")] = "quality_classifier",
    top: Annotated[int, typer.Option(min=1, help="rows of each table")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, with every row")] = False,
) -> None:
    """Show what a filter removes by component, language and domain beside its average: what it narrows the corpus to."""
    import duckdb

    from manifests.logs import Logs
    from manifests.manifest import MANIFEST, Manifest, ManifestError
    from manifests.narrowing import NarrowingError, narrowing
    from manifests.storage import Folder, StorageError
    from stages.quality_classifier import QualityClassifier
    from stages.registry import UnknownStage, find
    from stages.stage import Filter

    try:
        implementation = find(stage)
    except UnknownStage as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--stage") from None
    if not issubclass(implementation, Filter):
        raise typer.BadParameter(f"{stage!r} is no filter: it measures no signals", param_hint="--stage")
    shown = SHOWN if implementation is QualityClassifier else ()
    try:
        folder = Folder(corpus.removesuffix(f"/{MANIFEST}"))
        with Logs(folder, Manifest.load(folder)) as logs:
            found = narrowing(logs, stage, list(implementation.signals), shown)
    except (ManifestError, StorageError, NarrowingError, OSError) as error:
        typer.echo(visible(f"error: {corpus}: {error}"), err=True)
        raise typer.Exit(1) from None
    except duckdb.Error as error:
        typer.echo(
            visible(f"error: the logs of {corpus} cannot be read; `corpusmill verify` says what is wrong: {error}"), err=True
        )
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
        return
    _show_narrowing(found, top)


FOUND = 3
"""Exit code of `contamination --fail-on-found` where something was found: 1 and 2 are errors."""


@app.command()
def contamination(
    corpus: Annotated[str, typer.Argument(help="folder or URL of a corpus")],
    benchmark: Annotated[list[str], typer.Option(help="a JSONL file, or a folder of them; .gz too; may be given several times")],
    n: Annotated[int, typer.Option("--n", min=2, help="words in an n-gram")] = 13,
    min_matches: Annotated[int, typer.Option(min=1, help="distinct n-grams of one item that a document must have")] = 1,
    min_share: Annotated[float | None, typer.Option(help="instead: this share of an item's n-grams")] = None,
    top: Annotated[int, typer.Option(min=1, help="items of each benchmark that are shown")] = 20,
    rows: Annotated[str | None, typer.Option(help="a file to write: a line of JSON for every document and item in it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, with every item")] = False,
    fail_on_found: Annotated[bool, typer.Option(help="exit with 3 where a document holds an item")] = False,
) -> None:
    """Check the texts of a finished corpus against benchmarks that came later; nothing is changed."""
    from pydantic import ValidationError

    from manifests.manifest import MANIFEST, Manifest, ManifestError
    from manifests.storage import Folder, StorageError
    from stages.benchmarks import BenchmarkError
    from stages.contamination import ContaminationError, check
    from stages.decontamination import DecontaminationOptions, Threshold, index_of

    try:
        options = DecontaminationOptions(benchmarks=benchmark[0], n=n, min_matches=min_matches, min_share=min_share)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{said} (here: {min_share} and {min_matches})", param_hint="--min-share") from None
    target, _, file = (rows or "").rpartition("/")
    try:
        folder = Folder(corpus.removesuffix(f"/{MANIFEST}"))
        manifest = Manifest.load(folder)
        index = index_of(options, benchmark)
        threshold = Threshold(options.min_matches, options.min_share)
        with contextlib.ExitStack() as opened:
            out = None
            if rows is not None:
                written = Folder(target or ("/" if rows.startswith("/") else "."))
                if written.exists(file):
                    raise ContaminationError(f"{rows} is there already, and nothing is overwritten: name a new file")
                out = opened.enter_context(written.writer(file))
            advance = token_progress(opened, sum(shard.tokens for shard in manifest.content.shards))
            report = check(folder, manifest, index, threshold, out, advance)
    except (ManifestError, StorageError, BenchmarkError, ContaminationError, OSError) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    else:
        _show_contamination(report, top)
    if fail_on_found and report.contaminated:
        raise typer.Exit(FOUND)


def _show_contamination(report: Report, top: int) -> None:
    from rich.table import Table

    console = terminal()
    for split, number in report.documents.items():
        console.print(f"{split}: {report.touched[split]:,} of {number:,} documents hold an item")
    if report.unread:
        console.print(f"{report.unread:,} kept documents stand in no shard and were not read")
    for name, one in report.as_json()["benchmarks"].items():
        held = [(item, found) for item, found in one["found"].items() if found["documents"]]
        part = len(one["found"]) - len(held)
        touched = ", ".join(f"{split} {number:,}" for split, number in one["documents"].items() if number)
        console.print()
        console.print(
            visible(
                f"{name}: {len(held):,} of {one['items']:,} items found"
                + (f", in documents of {touched}" if touched else "")
                + (f"; {part:,} more in part, below the threshold" if part else "")
                + (f"; {len(one['unchecked']):,} too short to look for" if one["unchecked"] else "")
            )
        )
        if not held:
            continue
        table = Table(box=None, pad_edge=False)
        for heading in ("item", "documents", "n-grams", "of", "most of it in", "split"):
            table.add_column(heading, justify="left" if heading in ("item", "most of it in", "split") else "right")
        held.sort(key=lambda pair: (-pair[1]["ngrams"], pair[0]))
        for item, found in held[:top]:
            numbers = (f"{found[key]:,}" for key in ("documents", "ngrams", "of"))
            table.add_row(visible(item), *numbers, visible(found["document"]), found["split"])
        console.print(table)
        if len(held) > top:
            console.print(f"and {len(held) - top:,} more; --top or --json shows them")
    console.print()
    console.print(report.limits)


def _show_card(card: dict[str, Any]) -> None:
    from rich.table import Table

    console = terminal()
    texts, held_out = card["texts"], card["held_out"]
    for label in ("good", "random"):
        counts = texts[label]
        gone = ", ".join(
            f"{name.replace('_', ' ')} {counts[name]:,}"
            for name in counts
            if counts[name] and name not in ("documents", "train", "held_out")
        )
        console.print(
            f"{label}: {counts['documents']:,} documents, {counts['train']:,} to train on, {counts['held_out']:,} held out"
            + (f"; left out: {gone}" if gone else "")
        )
    console.print(f"held-out AUC {held_out['auc']:.4f}")
    table = Table(title="scores of held-out texts", title_justify="left", box=None, pad_edge=False)
    quantiles = held_out["score_quantiles"]
    for heading in ("class", *(f"{100 * float(one):g} %" for one in quantiles["good"])):
        table.add_column(heading, justify="left" if heading == "class" else "right", no_wrap=True)
    for label, values in quantiles.items():
        table.add_row(label, *(f"{value:.4f}" for value in values.values()))
    console.print(table)
    table = Table(title="what a threshold would keep of them", title_justify="left", box=None, pad_edge=False)
    for heading in ("threshold", "of good", "of random", "precision"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in card["thresholds"]:
        precision = "" if one["precision"] is None else _percent(one["precision"])
        table.add_row(f"{one['threshold']:.6f}", _percent(one["keeps_of_good"]), _percent(one["keeps_of_random"]), precision)
    for one in card["sampling"]:
        name = next(f"{kind} {one[kind]:g}" for kind in ("pareto", "power") if kind in one)
        table.add_row(name, _percent(one["keeps_of_good"]), _percent(one["keeps_of_random"]), "")
    console.print(table)


def _show_narrowing(found: Narrowing, top: int) -> None:
    from rich.table import Table

    console = terminal()
    rules = ", ".join(f"{rule.name} {bound:g}" if (bound := rule.threshold) is not None else rule.name for rule in found.rules)
    console.print(visible(f"{found.stage}: {rules or 'without a rule, it only measured'}"))
    console.print(
        f"of {found.all.documents:,} documents that it measured, {found.all.failed:,} fail ({_percent(found.all.share)}); "
        f"{found.all.removed:,} of them were removed by it, the others by a rule before it"
    )
    for dimension, groups in found.by.items():
        table = Table(title=f"by {dimension}", title_justify="left", box=None, pad_edge=False)
        for heading in (
            dimension,
            "measured",
            "fail",
            "share",
            "of average",
            "beyond it",
            "removed by it",
            "before",
            "after",
            "",
        ):
            table.add_column(heading, justify="left" if heading == dimension else "right", no_wrap=True)
        for one in groups[:top]:
            table.add_row(
                visible(ABSENT if one.name is None else one.name),
                f"{one.documents:,}",
                f"{one.failed:,}",
                _percent(one.share),
                "" if one.ratio is None else f"{one.ratio:.2f}×",
                f"{one.excess:+,.0f}",
                f"{one.removed:,}",
                _percent(one.before),
                _percent(one.after),
                "stands out" if one.stands_out else "",
            )
        console.print()
        console.print(table)
        if vanished := found.vanished(dimension):
            console.print(f"nothing is left of {vanished:,} of {len(groups):,}")
        if len(groups) > top:
            console.print(f"and {len(groups) - top:,} more; --top or --json shows them")
    _show_signals(found, top)


def _show_signals(found: Narrowing, top: int) -> None:
    from rich.table import Table

    console = terminal()
    for signal, dimensions in found.signals.items():
        for dimension, groups in dimensions.items():
            table = Table(title=f"{signal} by {dimension}", title_justify="left", box=None, pad_edge=False)
            headings: Sequence[str] = (
                dimension,
                "measured",
                "undefined",
                *(f"{100 * quantile:g} %" for quantile in found.quantiles),
            )
            for heading in headings:
                table.add_column(heading, justify="left" if heading == dimension else "right", no_wrap=True)
            for one in groups[:top]:
                cells = ("" if value is None else f"{value:.4f}" for value in one.quantiles)
                table.add_row(
                    visible(ABSENT if one.name is None else one.name), f"{one.documents:,}", f"{one.undefined:,}", *cells
                )
            console.print()
            console.print(table)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _show_usage(comparison: dict[str, Any]) -> None:
    from rich.table import Table

    console = terminal()
    groups: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for one in comparison["tokenizers"]:
        for row in one["rows"]:
            key = (row["source"], row["language"], row["unspaced"])
            groups.setdefault(key, []).append({"tokenizer": one["tokenizer"], **row})
        groups.setdefault(("all", "", False), []).append({"tokenizer": one["tokenizer"], "tokens_per_word": None, **one["total"]})
    order = {one["source"]: number for number, one in enumerate(comparison["sources"])}
    table = Table(box=None, pad_edge=False)
    for name in ("source", "language", "documents", "MB", "tokenizer", "bytes/token", "tokens/word", "vocabulary used"):
        left = name in ("source", "language", "tokenizer")
        table.add_column(name, justify="left" if left else "right", overflow="fold" if left else "ellipsis", no_wrap=not left)
    for (source, language, unspaced), rows in sorted(groups.items(), key=lambda one: order.get(one[0][0], len(order))):
        for number, row in enumerate(rows):
            per_word = "" if row["tokens_per_word"] is None else f"{row['tokens_per_word']:.2f}"
            about = (visible(source), visible(language), f"{row['documents']:,}", _megabytes(row["bytes"]))
            table.add_row(
                *(about if not number else ("", "", "", "")),
                visible(row["tokenizer"]),
                "" if row["bytes_per_token"] is None else f"{row['bytes_per_token']:.2f}",
                f"{per_word}*" if unspaced else per_word,
                f"{row['vocabulary_used']:.1%}",
            )
    console.print(table)
    if any(unspaced for _, _, unspaced in groups):
        console.print("* a character: its script has no spaces")
    for one in comparison["tokenizers"]:
        console.print(visible(f"{one['tokenizer']}: vocabulary {one['vocabulary']:,}"))
        if one["unfit"]:
            console.print(visible(f"note: {one['tokenizer']}: no corpus can be made with it: {one['unfit']}"))
        if one["total"]["unknown_tokens"]:
            console.print(
                visible(
                    f"note: {one['tokenizer']}: {one['total']['unknown_tokens']:,} of its tokens stand for text it does not know"
                )
            )
    for one in comparison["sources"]:
        if not one["complete"]:
            console.print(visible(f"note: {one['source']}: its first {_megabytes(one['bytes'])} MB; --mib says how much"))
        if one["without_text"]:
            rules = ", ".join(f"{rule} {number:,}" for rule, number in one["without_text"].items())
            console.print(visible(f"note: {one['source']}: records without a text: {rules}"))


def _megabytes(size: int) -> str:
    """Three digits or more."""
    return f"{size / 1e6:,.{0 if size >= 1e8 else 1 if size >= 1e7 else 2 if size >= 1e6 else 3}f}"


def _show_place(place: Place) -> None:
    from rich.table import Table
    from rich.text import Text

    document = place.document
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    token = f"{place.token}, number {place.number:,} of {place.tokens:,} in its document" + (
        " (BOS)" if place.number == 0 else ""
    )
    rows = {
        "token": token,
        "document": document["id"],
        "came from": " ".join(str(document[name]) for name in ("url", "date", "media_type") if document[name]),
        "file": f"{document['file']} at {document['position']}, of {place.source}, licence {place.licence}",
    }
    for name, value in rows.items():
        table.add_row(name, Text(visible(value)))
    table.add_row("text", Text.assemble(visible(place.before), (visible(place.text), "bold reverse"), visible(place.after)))
    terminal().print(table)
