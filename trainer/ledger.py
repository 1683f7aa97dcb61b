"""The ledger: which rows of which documents a run consumed, so that an audit can say what a checkpoint had seen.

`ledger.jsonl` begins with the loader's parameters; each further line is a range of steps and the positions it consumed, or passed
over. Rows are a function of these (see `manifests.order`), so nothing more has to be stored; `manifests.trained_on` reads it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from manifests.trained_on import LEDGER
from trainer.loader import Loader

__all__ = ["LEDGER", "Ledger"]


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
            self._file.writelines(json.dumps(line) + "\n" for line in self._open)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._open = []

    def close(self) -> None:
        self.commit()
        self._file.close()


def _lines(path: Path) -> list[str]:
    """Complete lines: a killed run can leave half a line, of steps that no checkpoint counts."""
    return [line for line in path.read_text().split("\n")[:-1] if line]
