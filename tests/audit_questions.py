"""`corpusmill audit` asked in this process, and its logs read without it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app


def call(*arguments: str | Path, code: int = 0, given: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["audit", *(str(one) for one in arguments)], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def answer(*arguments: str | Path) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


def table(*arguments: str | Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(call(*arguments, "--csv").stdout)))


def logged(corpus: Path, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(sorted(corpus.glob(f"logs/{kind}/*/*.parquet"))).to_table().to_pylist()
    return rows
