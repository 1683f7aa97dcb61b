"""Readers turn an input file into records: pages, texts, and losses, one row for everything that is a document.

A reader never raises for what a file holds and never passes over it in silence; see `stages.readers.reader`. To add a format:
a module here with a class derived from `Reader`, and a line in `FORMATS`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from stages.readers.reader import Reader, ReaderConfigurationError, ReaderOptions

__all__ = ["FORMATS", "Reader", "ReaderConfigurationError", "ReaderOptions", "UnknownFormat", "find_reader"]

FORMATS: dict[str, str] = {
    "warc": "stages.readers.warc:Warc",
    "jsonl": "stages.readers.jsonl:JsonLines",
    "parquet": "stages.readers.parquet:Parquet",
    "folder": "stages.readers.folder:Pages",
}
"""A recipe's word for an input format, and the class that reads it."""


class UnknownFormat(KeyError):
    """A format that no reader has; the message suggests the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


def find_reader(format: str) -> type[Reader[Any]]:
    """The class behind a recipe's `format`; UnknownFormat when there is none."""
    if format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(FORMATS))}"
        raise UnknownFormat(f"unknown format {format!r}; {hint}")
    module, _, attribute = FORMATS[format].partition(":")
    found: type[Reader[Any]] = getattr(importlib.import_module(module), attribute)
    return found
