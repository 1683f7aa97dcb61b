"""How answers are printed: as a table for people, as JSON or as CSV for programs. One answer is one list of rows."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from manifests.terminal import terminal, visible

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
CsvOption = Annotated[bool, typer.Option("--csv", help="print CSV, one header line; lists and mappings as JSON")]
CELL_CHARACTERS = 120
"""Of a value in a table; JSON and CSV hold all of it."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_json(value: Any) -> str:
    """JSON of rows, dataclasses, and what logs hold; numbers that are not finite become null, as JSON has none."""
    return json.dumps(_plain(value), ensure_ascii=False, indent=1, default=str)


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """CSV with one header line: the `columns`, or all that any row has, in order of appearance. A null is an empty field. A text
    that a spreadsheet would run as a formula has an apostrophe before it, in the header too."""
    names = list(columns) if columns is not None else list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_field(name) for name in names])
    writer.writerows([_field(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def give(
    rows: Sequence[Mapping[str, Any]],
    json_asked: bool,
    csv_asked: bool,
    whole: Any = None,
    columns: Sequence[str] | None = None,
) -> bool:
    """Prints `rows` (as JSON `whole`, where that is given) as asked, and says whether anything was asked. `columns`: the header
    of a CSV, where there may be no rows."""
    if json_asked and csv_asked:
        raise typer.BadParameter("one of --json and --csv", param_hint="--json")
    if json_asked:
        _write(as_json(rows if whole is None else whole) + "\n")
    elif csv_asked:
        _write(as_csv(rows, columns if not rows else None))
    return json_asked or csv_asked


def give_each(
    rows: Iterable[Mapping[str, Any]], json_asked: bool, csv_asked: bool, columns: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """`give` for rows that are not to be held together: prints each as it comes, where that is asked, and passes it on."""
    if json_asked and csv_asked:
        raise typer.BadParameter("one of --json and --csv", param_hint="--json")
    if csv_asked:
        _write(as_csv([], columns))
    number = 0
    for number, row in enumerate(rows, 1):
        if json_asked:
            _write(("[\n" if number == 1 else ",\n") + as_json(row))
        elif csv_asked:
            _write(as_csv([row], columns).partition("\n")[2])
        yield row
    if json_asked:
        _write("\n]\n" if number else "[]\n")


def show(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], title: str | None = None, whole: Collection[str] = ()
) -> None:
    """A table with one column for each of `columns` (key of a row → heading); numbers stand at the right, nulls are blank. What
    is wider than the terminal is broken where it must, but for columns that are to be `whole`."""
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    heading = None if title is None else Text(visible(title))
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
    for key, name in columns.items():
        numbers = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(
            Text(visible(name)), justify="right" if numbers else "left", overflow="fold", no_wrap=numbers or key in whole
        )
    for row in rows:
        table.add_row(*(Text(visible(shown(row.get(key)))) for key in columns))
    terminal().print(table)


def shown(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = json.dumps(_plain(value), ensure_ascii=False, default=str) if isinstance(value, list | dict | tuple) else str(value)
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return value


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict | tuple):
        return json.dumps(_plain(value), ensure_ascii=False, default=str)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return str(value)


def _write(text: str) -> None:
    # A terminal of another encoding, or half a character in a name, is no reason to fail half-way.
    typer.echo(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(sys.stdout.encoding or "utf-8"), nl=False)
