"""The report of the corpus, made once, when somebody asks for it, in the background."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from manifests.report.figures import RunError
from manifests.report.page import report, unlinked
from manifests.storage import StorageError
from stages.audit_browser.pages import link
from stages.audit_browser.questions import Questions

LOOK_SECONDS = 0.1
ENDING_SECONDS = 10.0


class Report:
    """The page that `corpusmill report` writes, with links into the browser. Its questions have memory as others do, but no limit
    of time. A run without the files that it is drawn from is left out."""

    def __init__(self, questions: Questions, runs: Sequence[str] = ()) -> None:
        self._questions = questions
        self._runs = [one for one in map(Path, runs) if (one / "run.json").exists() and (one / "config.json").exists()]
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._begun = 0.0
        self._ended = False
        self.page: str | None = None
        self.wrong: str | None = None
        """Why it could not be made; it is tried again when it is asked for again."""

    @property
    def seconds(self) -> float:
        """Since its making began."""
        return time.monotonic() - self._begun

    def plain(self) -> str | None:
        """What `corpusmill report` writes, byte for byte."""
        return None if self.page is None else unlinked(self.page)

    def made_within(self, seconds: float) -> bool:
        """Is it made, or has it failed? Its making begins with the first who asks; waits so long at most."""
        with self._lock:
            if self.page is not None:
                return True
            if self._thread is None:
                self.wrong = None
                self._begun = time.monotonic()
                self._thread = threading.Thread(target=self._make, daemon=True)
                self._thread.start()
            thread = self._thread
        thread.join(seconds)
        return not thread.is_alive()

    def failed(self) -> str | None:
        """Why its making failed, told once."""
        with self._lock:
            if self._thread is not None and not self._thread.is_alive():
                self._thread = None
            return self.wrong

    def end(self) -> None:
        """Nobody will read it."""
        self._ended = True
        until = time.monotonic() + ENDING_SECONDS
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < until:
            if self._connection is not None:
                with contextlib.suppress(duckdb.Error):
                    self._connection.interrupt()  # one question after another
            self._thread.join(LOOK_SECONDS)

    def _make(self) -> None:
        try:
            with self._questions.all_logs() as logs:
                self._connection = logs.connection
                page = report(logs.corpus, logs.manifest, self._runs, logs=logs, page_of=page_of)
            if not self._ended:
                self.page = page
        except (duckdb.Error, pa.ArrowException, OSError, StorageError) as error:
            self.wrong = f"the logs of {self._questions.given} cannot be read; `corpusmill verify` says what is wrong: {error}"
        except RunError as error:
            self.wrong = str(error)
        except Exception as error:
            self.wrong = f"the report has failed: {type(error).__name__}: {error}"
        finally:
            self._connection = None


def page_of(what: str, name: str) -> str:
    """As of `manifests.report.page.report`."""
    return {
        "": "/",
        "rule": link("/rule", name=name),
        "language": link("/removals", language=name),
        "domain": link("/removals", domain=name),
    }[what]
