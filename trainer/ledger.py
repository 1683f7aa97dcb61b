"""The ledger: which rows of which documents a run consumed, so that an audit can say what a checkpoint had seen.

`ledger.jsonl` begins with the loader's parameters; each further line is a range of steps and the positions it consumed. Rows
are a function of these (see `trainer.loader`), so nothing more has to be stored, and `documents_seen` gives the documents.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.corpus import Corpus
from trainer.loader import Loader, Phase

LEDGER = "ledger.jsonl"
POSITIONS_AT_A_TIME = 1 << 16


class LedgerError(Exception):
    """A ledger that is missing, damaged, or not of the corpus it is asked about."""


class Ledger:
    """Writes a run's ledger; a resumed run first forgets what came after its checkpoint, since it will do that again."""

    def __init__(self, run: Path, loader: Loader, manifest_digest: str, step: int) -> None:
        self.path = run / LEDGER
        header = {"manifest_digest": manifest_digest, "loader_digest": loader.digest, "loader": loader.parameters}
        lines = [json.dumps(header)]
        if step and self.path.exists():
            lines += [line for line in _lines(self.path)[1:] if json.loads(line)["last_step"] <= step]
        temporary = self.path.with_suffix(".partial")
        temporary.write_text("".join(line + "\n" for line in lines))
        os.replace(temporary, self.path)
        self._file = open(self.path, "a")  # noqa: SIM115 - open as long as the run is
        self._open: dict[str, int] | None = None

    def consumed(self, step: int, first: int, end: int) -> None:
        """Step `step` (from 1) consumed positions `first` to `end`, `end` excluded."""
        if self._open is None:
            self._open = {"first_step": step, "last_step": step, "first_position": first, "end_position": end}
        else:
            self._open.update(last_step=step, end_position=end)

    def commit(self) -> None:
        """Makes what was consumed so far durable; called before a checkpoint that counts it."""
        if self._open is not None:
            self._file.write(json.dumps(self._open) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._open = None

    def close(self) -> None:
        self.commit()
        self._file.close()


def documents_seen(run: Path, corpus: Corpus, step: int | None = None) -> pa.Table:
    """One row a document that the first `step` steps (None: all) touched: component, id, pairs (training targets taken from
    it, counted as often as they were served) and tokens (its length, BOS included). LedgerError when the corpus differs.
    """
    header, ranges = read(run)
    parameters = header["loader"]
    if corpus.manifest.digest != header["manifest_digest"]:
        raise LedgerError(f"{run / LEDGER}: the run consumed the corpus {header['manifest_digest'][:12]}…, not this one")
    names = [name for name, _ in parameters["shards"]]
    loader = Loader(
        [corpus.component(name, "train") for name in names],
        parameters["sequence_length"],
        parameters["seed"],
        [Phase(weights, rows) for weights, rows in parameters["phases"]],
        parameters["window"],
    )
    if loader.digest != header["loader_digest"]:
        raise LedgerError(f"{run / LEDGER}: another version of the loader wrote it; its rows cannot be told")
    pairs = [np.zeros(len(component.lengths), np.int64) for component in loader.components]
    for consumed in ranges:
        first, end = consumed["first_position"], consumed["end_position"]
        if step is not None and consumed["last_step"] > step:
            rows_a_step = (end - first) // (consumed["last_step"] - consumed["first_step"] + 1)
            end = first + max(0, step - consumed["first_step"] + 1) * rows_a_step
        for at in range(first, end, POSITIONS_AT_A_TIME):
            _add(loader, np.arange(at, min(at + POSITIONS_AT_A_TIME, end)), pairs)
    tables = []
    for component, served in zip(loader.components, pairs, strict=True):
        touched = np.flatnonzero(served)
        tables.append(
            pa.table(
                {
                    "component": pa.array([component.name] * len(touched), pa.string()),
                    "id": component.ids().take(pa.array(touched)),
                    "pairs": served[touched],
                    "tokens": component.lengths[touched],
                }
            )
        )
    return pa.concat_tables(tables)


def read(run: Path) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """(header, ranges) of a run's ledger."""
    try:
        header, *ranges = (json.loads(line) for line in _lines(run / LEDGER))
    except (OSError, ValueError) as error:
        raise LedgerError(f"{run / LEDGER}: unreadable: {error}") from None
    return header, ranges


def _lines(path: Path) -> list[str]:
    """Complete lines: a killed run can leave half a line, of steps that no checkpoint counts."""
    return [line for line in path.read_text().split("\n")[:-1] if line]


def _add(loader: Loader, positions: np.ndarray, pairs: list[np.ndarray]) -> None:
    place = loader.locate(positions)
    for number, (component, plan) in enumerate(zip(loader.components, loader.plans, strict=True)):
        rows = place.row[place.component == number]
        counts = plan.first_piece[rows + 1] - plan.first_piece[rows]
        nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        pieces = np.repeat(plan.first_piece[rows], counts) + nth
        np.add.at(pairs[number], component.document(plan.begin[pieces]), plan.length[pieces])
