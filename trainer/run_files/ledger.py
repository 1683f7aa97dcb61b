"""The ledger: which rows of which documents a run consumed, so that an audit can say what a checkpoint had seen.

`ledger.jsonl` begins with the loader's parameters; each further line is a range of steps and the positions it consumed, or passed
over. Rows are a function of these (see `manifests.order`), so nothing more has to be stored; `manifests.trained_on` reads it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from manifests.storage import Folder
from manifests.trained_on import LEDGER, LedgerError, Range
from trainer.data.loader import Loader

__all__ = ["LEDGER", "Ledger"]


class Ledger:
    """Writes a run's ledger; a resumed run first forgets what came after its checkpoint, since it will do that again."""

    def __init__(self, run: Path, loader: Loader, manifest_digest: str, step: int) -> None:
        self.path = run / LEDGER
        header = {"manifest_digest": manifest_digest, "loader_digest": loader.digest, "loader": loader.parameters}
        lines = [json.dumps(header)]
        if step and self.path.exists():
            lines += _lines_up_to(self.path, step)
        Folder(str(run.absolute())).write(LEDGER, "".join(line + "\n" for line in lines).encode())
        self._file = open(self.path, "a")  # noqa: SIM115 - open as long as the run is
        self._open: list[dict[str, int | bool]] = []
        """What was not committed yet: lines of steps of the same number of rows, all trained on or all skipped, in turn."""
        self._rows = 0

    def consumed(self, step: int, first: int, end: int, skipped: bool = False) -> None:
        """Step `step` (from 1) consumed positions `first` to `end`, `end` excluded, or passed over them where it was skipped."""
        if self._open and self._open[-1].get("skipped", False) == skipped and self._rows == end - first:
            self._open[-1].update(last_step=step, end_position=end)
            return
        self._rows = end - first
        line: dict[str, int | bool] = {"first_step": step, "last_step": step, "first_position": first, "end_position": end}
        self._open.append({**line, "skipped": True} if skipped else line)

    def commit(self) -> None:
        """Makes what was consumed so far durable; called before a checkpoint that counts it."""
        if self._open:
            try:
                self._file.writelines(json.dumps(line) + "\n" for line in self._open)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self._open = []

    def close(self) -> None:
        self.commit()
        self._file.close()


def _lines_up_to(path: Path, step: int) -> list[str]:
    """The lines of steps up to a checkpoint's, which was written after them. What a killed run wrote later, half a line among it,
    is of steps that no checkpoint counts. LedgerError when lines are damaged or missing, and the ledger ends at another step."""
    found, last = [], 0
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: unreadable: {error}") from None
    for number, line in enumerate(lines, 2):
        try:
            one = Range.model_validate_json(line)
        except ValidationError as error:
            raise LedgerError(f"{path}: line {number}: {error.errors()[0]['msg']}") from None
        if one.last_step > step:
            break
        if one.first_step != last + 1:
            raise LedgerError(f"{path}: line {number} begins with step {one.first_step:,}, after step {last:,}")
        last = one.last_step
        found.append(line)
    if last != step:
        raise LedgerError(
            f"{path}: it ends with step {last:,}, and the run goes on after step {step:,}: what was consumed between is not said"
        )
    return found
