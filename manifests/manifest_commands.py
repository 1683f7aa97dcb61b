"""`corpusmill manifest …`: show what a corpus consists of, drop a component, tell two corpora apart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.corpus_argument import CorpusArgument, manifest_name, opened
from manifests.terminal import fail, terminal, visible

if TYPE_CHECKING:
    from pathlib import Path

    from manifests.manifest import Manifest
    from manifests.overview import Figures

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Show, compare and cut manifests.")

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
FOLLOWED = ("line_dedup", "paragraph_dedup", "substring_dedup")
"""Stages that cut texts of other components because of what stood in a dropped one; no log names those."""


@app.command()
def show(corpus: CorpusArgument, as_json: JsonOption = False) -> None:
    """Show documents, bytes and tokens by component, licence and source."""
    from manifests.overview import by_component, by_licence, by_source

    _, manifest = opened(corpus)
    content = manifest.content
    groups = {"component": by_component(content), "licence": by_licence(content), "source": by_source(content)}
    if as_json:
        rows = {name: [one.as_json() for one in figures] for name, figures in groups.items()}
        typer.echo(json.dumps({"digest": manifest.digest, "name": content.name, **rows}, indent=1, ensure_ascii=False))
        return
    for name, figures in groups.items():
        _show_figures(name, figures)
        typer.echo()
    if content.tokenizer is not None:
        typer.echo(
            f"vocabulary {content.tokenizer.vocabulary:,}, {content.tokenizer.dtype}, encoded by {content.tokenizer.engine}"
        )
    for one in content.dropped:
        why = one["reason"] or "no reason given"
        typer.echo(visible(f"dropped: {one['component']}, {_documents(one['documents'])}: {why}"))
    typer.echo(f"digest {manifest.digest}")


@app.command()
def drop(
    corpus: CorpusArgument,
    component: Annotated[list[str] | None, typer.Argument(help="the components to leave out")] = None,
    licence: Annotated[list[str] | None, typer.Option(help="leave out all components of this licence; may be repeated")] = None,
    source: Annotated[list[str] | None, typer.Option(help="leave out all components of this source; may be repeated")] = None,
    *,
    output: Annotated[str, typer.Option(help="name of the new manifest, beside the old one")],
    reason: Annotated[str | None, typer.Option(help="recorded in the new manifest")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a manifest without some components, and list documents elsewhere that were removed because their twin was in one.

    Nothing is rewritten. A part of a component cannot be dropped, as its shards hold all of it: change the recipe and run again.
    """
    from manifests.dropping import drop as dropped_of
    from manifests.manifest import MANIFEST, ManifestError
    from manifests.storage import StorageError

    if "/" in output or not output.endswith(".json") or output == MANIFEST:
        raise typer.BadParameter(f"{output!r}: a name such as manifest-2.json, beside the corpus's own", param_hint="--output")
    if not (component or licence or source):
        raise typer.BadParameter("name a component, or a --licence or --source", param_hint="component")
    folder, manifest = opened(corpus)
    try:
        chosen = [*(component or []), *_of(manifest, "licence", licence or []), *_of(manifest, "source", source or [])]
        dropped = dropped_of(folder, manifest, *chosen, reason=reason)
        if folder.exists(output):
            raise ManifestError(f"{output} is there already")
        dropped.manifest.save(folder, output)
    except (ManifestError, StorageError, OSError) as error:
        fail(str(error))
    if as_json:
        found = {
            "manifest": output,
            "digest": dropped.manifest.digest,
            "dropped": list(dict.fromkeys(chosen)),
            "orphans": dropped.orphans,
            "saw_it": dropped.saw_it,
        }
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    records = dropped.manifest.content.dropped[len(manifest.content.dropped) :]
    names, them = ", ".join(record["component"] for record in records), "it" if len(records) == 1 else "them"
    documents = _documents(sum(record["documents"] for record in records))
    typer.echo(visible(f"{output}: the corpus without {names} ({documents} and their logs)"))
    for orphan in dropped.orphans:
        jaccard = "" if orphan["kept_jaccard"] is None else f", Jaccard {orphan['kept_jaccard']:.4f}"
        typer.echo(visible(f"{orphan['id']} was removed by {orphan['stage']} for {orphan['kept_id']}{jaccard}"))
    if dropped.orphans:
        were = "was" if len(dropped.orphans) == 1 else "were"
        typer.echo(
            f"{_documents(len(dropped.orphans))} elsewhere {were} removed because a twin in {them} stayed; "
            "a new run would decide anew"
        )
    if dropped.saw_it:
        typer.echo(visible(f"made with {them} and not made again: {', '.join(dropped.saw_it)}"))
    if cutting := [one for one in FOLLOWED if one in dropped.saw_it]:
        typer.echo(f"texts elsewhere were cut by {', '.join(cutting)} with documents of {them} counted; no log tells for which")
    typer.echo(f"{'its' if len(records) == 1 else 'their'} files are still there; digest {dropped.manifest.digest}")


@app.command()
def sign(
    corpus: CorpusArgument,
    key: Annotated[str, typer.Option(help="file of a secret key of minisign; `minisign -G` makes one")],
    password_file: Annotated[str | None, typer.Option(help="file whose first line is the key's password, else asked")] = None,
    comment: Annotated[str, typer.Option(help="signed too, behind digest, name and time: printable ASCII")] = "",
    output: Annotated[str | None, typer.Option(help="file of the signature; default: beside the manifest")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the signature that is there")] = False,
) -> None:
    """Sign a corpus: the digest of its manifest, and so every file, in minisign's format. `verify --public-key` checks it."""
    import os
    import sys
    from pathlib import Path

    from manifests.signature import SUFFIX, PasswordNeeded, SignatureError
    from manifests.signature import sign as signature_of
    from manifests.storage import Folder, StorageError

    folder, manifest = opened(corpus)
    try:
        password = None if password_file is None else _first_line(Path(password_file))
        try:
            made = signature_of(manifest, key, password, comment)
        except PasswordNeeded:
            if not sys.stdin.isatty():
                raise
            made = signature_of(manifest, key, typer.prompt(f"password of {key}", hide_input=True, err=True), comment)
        name = f"{manifest_name(corpus)}{SUFFIX}"
        where = f"{folder.url}/{name}"
        if output is not None:
            folder, name, where = Folder(os.path.dirname(output) or "."), os.path.basename(output), output
        if force:
            folder.write(name, made)
        elif not folder.create(name, made):
            fail(f"{where} is there already; --force replaces it")
    except (SignatureError, StorageError, OSError) as error:
        fail(str(error))
    typer.echo(visible(f"{where}: {made.splitlines()[2].decode()}"))


def _first_line(path: Path) -> str:
    from manifests.signature import SignatureError

    try:
        return path.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SignatureError(f"{path}: cannot be read: {error}") from None


def _of(manifest: Manifest, what: str, wanted: list[str]) -> list[str]:
    """The components whose licence or source is one of `wanted`."""
    from manifests.manifest import ManifestError

    held = {name: getattr(one, what) for name, one in manifest.content.components.items()}
    for one in wanted:
        if one not in held.values():
            raise ManifestError(f"no component has the {what} {one!r}; there are {', '.join(dict.fromkeys(held.values()))}")
    return [name for name, one in held.items() if one in wanted]


def _documents(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"


@app.command()
def diff(before: CorpusArgument, after: CorpusArgument, as_json: JsonOption = False) -> None:
    """Tell what differs between two corpora, and why: causes first, then what came of them. Exit 1 when they differ."""
    from rich.table import Table
    from rich.text import Text

    from manifests.difference import differences

    (_, old), (_, new) = opened(before), opened(after)
    changes = differences(old.content, new.content)
    if as_json:
        typer.echo(json.dumps([change.as_json() for change in changes], indent=1, ensure_ascii=False))
    elif not changes:
        typer.echo(f"the same content: digest {old.digest}")
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "where", "what", "before", "after"):
            table.add_column(heading, overflow="fold")
        for change in changes:
            cells = (change.kind, change.where, change.what, _shown(change.before), _shown(change.after))
            table.add_row(*(Text(visible(cell)) for cell in cells))
        terminal().print(table)
    if changes:
        raise typer.Exit(1)


def _show_figures(name: str, figures: list[Figures]) -> None:
    from rich.table import Table
    from rich.text import Text

    splits = sorted({split for one in figures for split in one.tokens}, key=("train", "validation", "test").index)
    total = sum(one.all_tokens for one in figures)
    table = Table(box=None, pad_edge=False)
    table.add_column(name, overflow="fold")
    for heading in ("documents", "MB", *(f"{split} tokens" for split in splits), "%"):
        table.add_column(heading, justify="right")
    for one in figures:
        share = f"{100 * one.all_tokens / total:.1f}" if total else ""
        tokens = (f"{one.tokens.get(split, 0):,}" for split in splits)
        table.add_row(Text(visible(one.name)), f"{one.documents:,}", f"{one.bytes / 1e6:,.1f}", *tokens, share)
    if len(figures) > 1:
        sums = (f"{sum(one.tokens.get(split, 0) for one in figures):,}" for split in splits)
        documents, size = sum(one.documents for one in figures), sum(one.bytes for one in figures)
        table.add_section()
        table.add_row("all", f"{documents:,}", f"{size / 1e6:,.1f}", *sums, "100.0" if total else "")
    terminal().print(table)


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
