"""The ledger: which rows of which documents a run consumed, so that an audit can say what a checkpoint had seen.

`ledger.jsonl` begins with the loader's parameters; each further line is a range of steps and the positions it consumed. Rows
are a function of these (see `manifests.order`), so nothing more has to be stored; `manifests.trained_on` reads it.
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


def _lines(path: Path) -> list[str]:
    """Complete lines: a killed run can leave half a line, of steps that no checkpoint counts."""
    return [line for line in path.read_text().split("\n")[:-1] if line]
