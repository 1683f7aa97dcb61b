"""Commands that export a finished corpus: one a format."""

from __future__ import annotations

import contextlib
import json
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.terminal import token_progress, visible

if TYPE_CHECKING:
    from manifests.manifest import Content
    from stages.exports import Exported

exports = typer.Typer(no_args_is_help=True, add_completion=False, help="Write a corpus in formats that other programs read.")


def _option(name: str, kind: Any, default: Any, text: str, *names: str, **rest: Any) -> Parameter:
    annotation = Annotated[kind, typer.Option(*names, help=text, **rest)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _argument(name: str, text: str) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[str, typer.Argument(help=text)])


FIRST = [
    _argument("corpus", "folder or URL of a corpus, or of one of its manifests"),
    _argument("output", "an empty folder, or a new one; not in the corpus"),
    _option("component", list[str] | None, None, "only this component; may be repeated"),
    _option("split", list[str] | None, None, "only this split; may be repeated"),
]
LAST = _option("as_json", bool, False, "print the record instead of a table", "--json")
FRAMING = [
    _option("bos", bool, True, "keep the token that begins every document"),
    _option("eod", str | None, None, "a special token, by name, to put behind every document"),
]
PUBLICATION = [
    _option("url", str | None, None, "web page of the dataset, for its metadata"),
    _option("creator", str | None, None, "who made it, for its metadata"),
    _option("published", str | None, None, "date of publication, YYYY-MM-DD, for its metadata"),
    _option("release", str | None, None, "version of the dataset, such as 1.0.0, for its metadata"),
    _option("citation", str | None, None, "how to cite it, best as BibTeX, for its metadata"),
]
MIB = {"shard_mib": "shard_bytes", "file_mib": "file_bytes"}
"""Options in MiB, and what the formats call them, in bytes."""


def _command(name: str, summary: str, options: list[Parameter]) -> None:
    """A command for the format `name` with the options that all have and its own, which are named as the format names them."""

    def run(**given: Any) -> None:
        corpus, output, component, split, as_json = (given.pop(one.name) for one in (*FIRST, LAST))
        own = {MIB.get(option, option): value << 20 if option in MIB else value for option, value in given.items()}
        _export(name, corpus, output, component, split, as_json, own)

    parameters = [*FIRST, *options, LAST]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    exports.command(name, help=summary)(run)


_command(
    "megatron",
    "Tokens as Megatron-LM's .bin and .idx, a pair for each component and split.",
    [_option("per_shard", bool, False, "a pair of files for each shard of the corpus", "--per-shard"), *FRAMING],
)
_command(
    "mds",
    "Tokens as MosaicML Streaming's MDS, a stream for each component and split.",
    [_option("shard_mib", int, 64, "MiB of a shard at most", min=1, max=4095), *FRAMING],
)
_command(
    "parquet",
    "Texts with their metadata as Parquet for Hugging Face `datasets`, with a dataset card and Croissant.",
    [_option("file_mib", int, 512, "MiB of text in a file, about", min=1), *PUBLICATION],
)
_command(
    "croissant",
    "Describe the files and records of a corpus as Croissant JSON-LD.",
    [_option("base_url", str, "", "where the corpus is found; by default croissant.json is to lie in it"), *PUBLICATION],
)


def _export(
    name: str,
    corpus: str,
    output: str,
    components: list[str] | None,
    splits: list[str] | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    import duckdb
    from pydantic import ValidationError

    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import Folder, StorageError
    from stages.exports import ExportError, export, find
    from stages.shard_texts import ShardTextError

    implementation = find(name)
    try:
        built = implementation(implementation.options_type(**options))
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        said = first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{said} (here: {first['input']!r})", param_hint=f"--{option}") from None
    try:
        folder, manifest = open_corpus(corpus)
        with contextlib.ExitStack() as opened:
            chosen = [
                shard
                for shard in manifest.content.shards
                if shard.component in (components or [shard.component]) and shard.split in (splits or [shard.split])
            ]
            progress = token_progress(opened, sum(shard.tokens for shard in chosen))
            found = export(folder, manifest, Folder(output), built, components or None, splits or None, progress)
    except (ManifestError, StorageError, ExportError, ShardTextError, OSError, duckdb.Error) as error:
        typer.echo(visible(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(found.record.model_dump(mode="json"), indent=1, ensure_ascii=False))
        return
    content = manifest.content
    _show(found, output, content)


def _show(found: Exported, output: str, content: Content) -> None:
    from rich.table import Table

    from manifests.terminal import terminal

    record = found.record
    table = Table(box=None, pad_edge=False)
    names = ("component", "split", "documents", "tokens in the corpus", "tokens written")
    for name in names:
        table.add_column(name, justify="left" if name in names[:2] else "right")
    for row in record.counts:
        table.add_row(row["component"], row["split"], *(f"{row[one]:,}" for one in ("documents", "tokens", "written")))
    sums = {one: sum(row[one] for row in record.counts) for one in ("documents", "tokens", "written")}
    table.add_section()
    table.add_row("all", "", *(f"{number:,}" for number in sums.values()))
    console = terminal()
    console.print(table)
    size = sum(file.bytes for file in record.files)
    files = f"{len(record.files):,} files, {size:,} bytes"
    if found.present:
        typer.echo(visible(f"{output} already holds this export, unchanged: {files}"))
    else:
        typer.echo(visible(f"{output}: {record.export} of {record.corpus} {record.corpus_digest[:12]}: {files}"))
    kept = sum(one.documents_kept for one in content.components.values())
    typer.echo(f"documents and tokens in = out; the corpus has {kept:,} kept documents")
    if unplaced := kept - sum(shard.documents for shard in content.shards):
        typer.echo(f"{unplaced:,} of them stand in no shard and are not in the export")
    if empty := _empty(found, content):
        typer.echo(visible(f"without any document, so not in the export: {', '.join(empty)}"))


def _empty(found: Exported, content: Content) -> list[str]:
    """What was asked for and has no documents: components, and splits of the others that the corpus has or that were named."""
    held = {(row["component"], row["split"]) for row in found.record.counts}
    there = {component for component, _ in held}
    splits = found.record.splits or list(dict.fromkeys(shard.split for shard in content.shards))
    asked = found.record.components or list(content.components)
    return [
        *(name for name in asked if name not in there),
        *(f"{name} {split}" for name in asked if name in there for split in splits if (name, split) not in held),
    ]
