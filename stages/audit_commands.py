"""`corpusmill audit sample`, `text` and `twins`: questions whose answers are texts. They join the group of `manifests.audit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.audit.answers import CsvOption, JsonOption, give, give_each
from manifests.audit.commands import audit
from manifests.audit.rule_names import UnknownRule, rule_or_stage_called
from manifests.corpus_argument import CorpusArgument, logs_of, no_document
from manifests.lookup import documents_called
from manifests.terminal import fail, terminal, visible
from manifests.wording import some
from stages.audit_texts import MARKED, alike, compared, each_marked, sampled, twins_of

if TYPE_CHECKING:
    from manifests.logs import Logs

SourceOption = Annotated[
    list[str] | None, typer.Option(help="COMPONENT=FOLDER: where its input lies now, if it was moved; may be repeated")
]
AsItWasOption = Annotated[
    bool,
    typer.Option("--personal-data", help="show texts as they were; without it e-mail addresses, phones and IPs are replaced"),
]
CharactersOption = Annotated[
    int, typer.Option(min=0, help="of a text that are shown in a terminal, from its first mark on; 0: all")
]
VIEWS = ("removals", "documents", "edits")
"""That a question for a text needs."""
LEAD = 120
"""Characters that are shown before the first mark."""
OPEN, CLOSE = "⟦", "⟧"
"""Around a mark where there is no colour."""


@audit.command()
def sample(
    corpus: CorpusArgument,
    rule: Annotated[
        str,
        typer.Option(help="a rule such as gopher.min_words, also as the recipe has it (gopher_quality.min_words), or a stage"),
    ],
    n: Annotated[int, typer.Option("--n", min=1, help="how many documents")] = 20,
    seed: Annotated[int, typer.Option(help="of the choice: the same seed gives the same documents")] = 0,
    source: SourceOption = None,
    personal_data: AsItWasOption = False,
    characters: CharactersOption = 800,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show documents that a rule removed, chosen by hash, with their texts and what the rule found in them marked.

    A text is read back from the work files, or from the source with the steps that changed it done again; where that is
    impossible it is said why.
    """
    with logs_of(corpus, *VIEWS) as logs:
        try:
            called = rule_or_stage_called(logs.manifest.content, rule)
        except UnknownRule as error:
            fail(str(error))
        rows = sampled(logs, called, n, seed)
        if not rows:
            fail(f"{called} removed no document; `corpusmill audit rules` lists what did")
        found = each_marked(logs, rows, sources_named(source), personal_data)
        _give_texts(found, as_json, as_csv, characters)


@audit.command()
def text(
    corpus: CorpusArgument,
    document: Annotated[list[str], typer.Argument(help="ids (component/file#position) or URLs")],
    source: SourceOption = None,
    personal_data: AsItWasOption = False,
    characters: CharactersOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show the text of documents: as it is in the corpus, or as the stage saw it that removed it."""
    with logs_of(corpus, *VIEWS) as logs:
        rows = [_row(logs, one) for asked in document for one in _ids_called(logs, asked) or [asked]]
        found = each_marked(logs, rows, sources_named(source), personal_data)
        shown = _give_texts(found, as_json, as_csv, characters)
    if not shown:
        raise typer.Exit(1)


@audit.command()
def twins(
    corpus: CorpusArgument,
    document: Annotated[
        str, typer.Argument(help="id or URL of a document that was removed as a copy, or of one that others were copies of")
    ],
    other: Annotated[
        str | None,
        typer.Option("--with", help="id or URL of any other document: how alike are the two, and what became of both?"),
    ] = None,
    source: SourceOption = None,
    personal_data: AsItWasOption = False,
    characters: CharactersOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show a removed copy beside the document that was kept instead, with what differs marked in both; or any two documents."""
    with logs_of(corpus, *VIEWS) as logs:
        if other is not None:
            pair = [_one_called(logs, corpus, one) for one in (document, other)]
            _give_alike(alike(logs, pair[0], pair[1], sources_named(source), personal_data), as_json, as_csv, characters)
            return
        ids = _ids_called(logs, document)
        if not ids:
            no_document(corpus, logs.manifest, document)
        pairs = list({pair["id"]: pair for one in ids for pair in twins_of(logs, one)}.values())
        if not pairs:
            fail(f"{document} has no twin on record; `--with` another document says how alike they are")
        rows = compared(logs, pairs, sources_named(source), personal_data)
    if give(rows, as_json, as_csv):
        return
    for row in rows:
        jaccard = "" if row["kept_jaccard"] is None else f", Jaccard {row['kept_jaccard']:.4f}"
        typer.echo(visible(f"{row['stage']}: {row['id']} was removed, {row['kept_id']} {stayed(row)}{jaccard}"))
        if row["linked_id"] != row["kept_id"]:
            typer.echo(visible(f"it joined the cluster through {row['linked_id']} (Jaccard {row['linked_jaccard']:.4f})"))
        for name in ("removed", "kept"):
            typer.echo(f"\n{name}:")
            _show({"id": row["id" if name == "removed" else "kept_id"], **row[name]}, characters)


def _give_alike(row: dict[str, Any], as_json: bool, as_csv: bool, characters: int) -> None:
    if give([row], as_json, as_csv):
        return
    for name, of in (("one", "id"), ("other", "other_id")):
        removed = row["removed_by" if name == "one" else "other_removed_by"]
        typer.echo(visible(f"{row[of]} {'is in the corpus' if removed is None else f'was removed by {removed}'}"))
    if row["jaccard"] is not None:
        bound = "no stage of this corpus removes near-duplicates"
        if row["threshold"] is not None:
            bound = f"minhash removes one of two in its scope from {row['threshold']:g} on"
        typer.echo(f"Jaccard {row['jaccard']:.4f}; {bound}")
    for name, of in (("one", "id"), ("other", "other_id")):
        typer.echo()
        _show({"id": row[of], **row[name]}, characters)


def _one_called(logs: Logs, corpus: str, asked: str) -> dict[str, Any]:
    """The document with this id, or the one capture of this URL; the program ends where there is none, or are several."""
    called = documents_called(logs, asked)
    for line in called.in_words():
        typer.echo(visible(line), err=True)
    if not called.found:
        no_document(corpus, logs.manifest, asked)
    if len(called.documents) > 1:
        fail(f"{asked} is {len(called.documents):,} documents; name one: {some([one['id'] for one in called.documents], 3)}")
    return called.documents[0]


def _give_texts(found: Iterator[dict[str, Any]], as_json: bool, as_csv: bool, characters: int) -> int:
    """Prints each answer as it comes, one text being held at a time; how many had their text."""
    texts = 0
    for one in give_each(found, as_json, as_csv, MARKED):
        texts += one["text"] is not None
        if not (as_json or as_csv):
            _show(one, characters)
    return texts


def stayed(pair: dict[str, Any]) -> str:
    """What became of the kept one of a pair."""
    return "stayed" if pair["kept_removed_by"] is None else f"was kept then, and removed later by {pair['kept_removed_by']}"


def _ids_called(logs: Logs, asked: str) -> list[str]:
    """Ids of the documents with this id or URL. What only resembles it is told on the standard error, and is none of them."""
    called = documents_called(logs, asked)
    for line in called.in_words():
        typer.echo(visible(line), err=True)
    return [row["id"] for row in called.documents] if called.found else []


def _row(logs: Logs, document: str) -> dict[str, Any]:
    rows = logs.sql("select * from removals where id = ?", [document])
    return rows[0] if rows else {"id": document}


def sources_named(given: list[str] | None) -> dict[str, str]:
    """Component → folder, of what --source was given."""
    sources = {}
    for one in given or []:
        component, equals, folder = one.partition("=")
        if not (component and equals and folder):
            raise typer.BadParameter(f"{one!r} is not COMPONENT=FOLDER", param_hint="--source")
        sources[component] = folder
    return sources


def _show(one: Mapping[str, Any], characters: int) -> None:
    from rich.text import Text as Styled

    console = terminal()
    console.print(Styled(visible(one["id"]), style="bold"))
    if one.get("url"):
        typer.echo(visible(f"  {one['url']}"))
    if one.get("rule"):
        value = "" if one["value"] is None else f", measured {one['value']:.6g}"
        bound = "" if one["threshold"] is None else f", threshold {one['threshold']:g}"
        typer.echo(visible(f"  {one['rule']}{value}{bound}"))
    for name in ("detail", "evidence"):
        if one.get(name):
            typer.echo(visible(f"  {name}: {one[name]}"))
    if one["text"] is None:
        typer.echo(visible(f"  no text: {one['why_not']}\n"))
        return
    typer.echo(visible(f"  text: {one['origin']} ({one['proof']})"))
    if kinds := sorted({mark["what"] for mark in one["marks"]}):
        typer.echo(visible(f"  marked: {', '.join(kinds)}"))
    console.print(_styled(one["text"], one["marks"], characters, console.is_terminal))
    typer.echo()


def _styled(text: str, marks: list[dict[str, Any]], characters: int, coloured: bool) -> Any:
    """The text, or as much of it as is wanted around its first mark, with the marks shown."""
    from rich.text import Text as Styled

    start = max(0, marks[0]["start"] - LEAD) if marks and characters else 0
    end = min(len(text), start + characters) if characters else len(text)
    shown, at = Styled("…" if start else ""), start
    for mark in marks:
        low, high = max(mark["start"], at), min(mark["end"], end)
        if low >= high:
            continue
        shown.append(visible(text[at:low]))
        inside = visible(text[low:high])
        shown.append(inside if coloured else f"{OPEN}{inside}{CLOSE}", style="bold reverse red")
        at = high
    shown.append(visible(text[at:end]))
    return shown.append("…" if end < len(text) else "")
