"""Commands that export a finished corpus: one a format."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.terminal import token_progress, visible

if TYPE_CHECKING:
    from stages.exports import Exported

exports = typer.Typer(no_args_is_help=True, add_completion=False, help="Write a corpus in formats that other programs read.")

Corpus = Annotated[str, typer.Argument(help="folder or URL of a corpus, or of one of its manifests")]
Target = Annotated[str, typer.Argument(help="an empty folder, or a new one; not in the corpus")]
Components = Annotated[list[str] | None, typer.Option("--component", help="only this component; may be repeated")]
Splits = Annotated[list[str] | None, typer.Option("--split", help="only this split; may be repeated")]
Bos = Annotated[bool, typer.Option(help="keep the token that begins every document")]
Eod = Annotated[str | None, typer.Option(help="a special token, by name, to put behind every document")]
Url = Annotated[str | None, typer.Option(help="web page of the dataset, for its metadata")]
Creator = Annotated[str | None, typer.Option(help="who made it, for its metadata")]
Published = Annotated[str | None, typer.Option(help="date of publication, YYYY-MM-DD, for its metadata")]
Citation = Annotated[str | None, typer.Option(help="how to cite it, best as BibTeX, for its metadata")]
Release = Annotated[str | None, typer.Option(help="version of the dataset, such as 1.0.0, for its metadata")]
AsJson = Annotated[bool, typer.Option("--json", help="print the record instead of a table")]


@exports.command()
def megatron(
    corpus: Corpus,
    output: Target,
    component: Components = None,
    split: Splits = None,
    per_shard: Annotated[bool, typer.Option("--per-shard", help="a pair of files for each shard of the corpus")] = False,
    bos: Bos = True,
    eod: Eod = None,
    as_json: AsJson = False,
) -> None:
    """Tokens as Megatron-LM's .bin and .idx, a pair for each component and split."""
    _export("megatron", corpus, output, component, split, {"per_shard": per_shard, "bos": bos, "eod": eod}, as_json)


@exports.command()
def mds(
    corpus: Corpus,
    output: Target,
    component: Components = None,
    split: Splits = None,
    shard_mib: Annotated[int, typer.Option(min=1, max=4095, help="MiB of a shard at most")] = 64,
    bos: Bos = True,
    eod: Eod = None,
    as_json: AsJson = False,
) -> None:
    """Tokens as MosaicML Streaming's MDS, a stream for each component and split."""
    _export("mds", corpus, output, component, split, {"shard_bytes": shard_mib << 20, "bos": bos, "eod": eod}, as_json)


@exports.command()
def parquet(
    corpus: Corpus,
    output: Target,
    component: Components = None,
    split: Splits = None,
    file_mib: Annotated[int, typer.Option(min=1, help="MiB of text in a file, about")] = 512,
    url: Url = None,
    creator: Creator = None,
    published: Published = None,
    release: Release = None,
    citation: Citation = None,
    as_json: AsJson = False,
) -> None:
    """Texts with their metadata as Parquet for Hugging Face `datasets`, with a dataset card and Croissant."""
    publication = {"url": url, "creator": creator, "published": published, "release": release, "citation": citation}
    _export("parquet", corpus, output, component, split, {"file_bytes": file_mib << 20, **publication}, as_json)


@exports.command()
def croissant(
    corpus: Corpus,
    output: Target,
    component: Components = None,
    split: Splits = None,
    base_url: Annotated[str, typer.Option(help="where the corpus is found; by default croissant.json is to lie in it")] = "",
    url: Url = None,
    creator: Creator = None,
    published: Published = None,
    release: Release = None,
    citation: Citation = None,
    as_json: AsJson = False,
) -> None:
    """Describe the files and records of a corpus as Croissant JSON-LD."""
    publication = {"url": url, "creator": creator, "published": published, "release": release, "citation": citation}
    _export("croissant", corpus, output, component, split, {"base_url": base_url, **publication}, as_json)


def _export(
    name: str,
    corpus: str,
    output: str,
    components: list[str] | None,
    splits: list[str] | None,
    options: dict[str, Any],
    as_json: bool,
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
    kept = sum(one.documents_kept for one in content.components.values())
    _show(found, output, kept, kept - sum(shard.documents for shard in content.shards))


def _show(found: Exported, output: str, kept: int, unplaced: int) -> None:
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
    typer.echo(f"documents and tokens in = out; the corpus has {kept:,} kept documents")
    if unplaced:
        typer.echo(f"{unplaced:,} of them stand in no shard and are not in the export")
