"""Questions to the logs, each within bounds: a few at a time, each with its own memory, none longer than a limit, and none for
somebody who has left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import duckdb
import pyarrow as pa

from manifests.logs import Logs
from manifests.manifest import MANIFEST, Manifest, ManifestError, open_corpus
from manifests.storage import Folder, StorageError

VIEWS = ("removals", "documents", "edits")
AT_A_TIME = 2
WAITING_SECONDS = 30.0
"""How long a question waits for its turn."""
LOOK_SECONDS = 0.1
"""How often it is looked whether the time is up or the client gone."""
LATE_ROWS = 20_000
"""Up to so many rows DuckDB finds by their keys alone, and then reads the other columns of these only."""
Answer = TypeVar("Answer")


class CorpusUnreadable(Exception):
    """The corpus, or a log of it, cannot be read; the message says what and why."""


class TooLong(Exception):
    """A question that took longer than it may, or waited too long for others."""


class ClientGone(Exception):
    """Nobody waits for the answer."""


@dataclass
class Stop:
    """Whether a question is to end, and why."""

    why: str | None = None
    event: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> bool:
        return self.event.is_set()


class Questions:
    """Asks one corpus, by folder, URL, or path of a manifest. It must stay the corpus that it was: another digest is refused."""

    def __init__(self, given: str, seconds: float = 60.0, memory: str = "1GB") -> None:
        self.given, self.seconds, self.memory = given, seconds, memory
        self.folder, self.manifest = opened(given)
        self._stamp = self._stamped()
        self._idle: list[Logs] = []
        self._turns: anyio.Semaphore | None = None
        try:
            self._take().connection.close()
        except duckdb.Error as error:
            raise CorpusUnreadable(f"the logs cannot be opened: {error}") from None

    async def ask(self, gone: Callable[[], Awaitable[bool]], question: Callable[[Logs, Stop], Answer]) -> Answer:
        """What `question` answers, run in a thread. `gone`: has the client left? CorpusUnreadable, TooLong or ClientGone."""
        if self._turns is None:
            self._turns = anyio.Semaphore(AT_A_TIME)
        try:
            with anyio.fail_after(min(WAITING_SECONDS, self.seconds)):
                await self._turns.acquire()
        except TimeoutError:
            raise TooLong("others are being answered; try again") from None
        try:
            return await self._answered(gone, question)
        finally:
            self._turns.release()

    async def _answered(self, gone: Callable[[], Awaitable[bool]], question: Callable[[Logs, Stop], Answer]) -> Answer:
        stop = Stop()
        logs: list[Logs] = []

        def run() -> tuple[Any, BaseException | None]:
            try:
                self.unchanged()
                logs.append(self._take())
                return question(logs[0], stop), None
            except Exception as error:  # told below, outside the task group, which would wrap it
                return None, error

        async def watch() -> None:
            end = anyio.current_time() + self.seconds
            while True:
                await anyio.sleep(LOOK_SECONDS)
                if stop.why is None and anyio.current_time() > end:
                    stop.why = "time"
                elif stop.why is None and await gone():
                    stop.why = "gone"
                if stop.why is not None:
                    stop.event.set()
                    for one in logs:
                        one.connection.interrupt()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            answer, error = await anyio.to_thread.run_sync(run)
            group.cancel_scope.cancel()
        if error is None and stop.why is None:
            self._idle += logs
            return answer  # type: ignore[no-any-return]
        for one in logs:
            with contextlib.suppress(duckdb.Error):
                one.connection.close()
        if stop.why == "gone":
            raise ClientGone
        if stop.why == "time":
            raise TooLong(f"stopped after {self.seconds:g} seconds: ask for less, or give more time with --seconds")
        assert error is not None
        if isinstance(error, (duckdb.Error, pa.ArrowException, OSError, StorageError, ManifestError)):
            raise CorpusUnreadable(
                f"the logs of {self.given} cannot be read; `corpusmill verify` says what is wrong: {error}"
            ) from error
        raise error

    def all_logs(self) -> Logs:
        """Every log, signals too, for one question that may take its time; to be closed. Within the memory of others."""
        return self._bounded(Logs(self.folder, self.manifest))

    def _take(self) -> Logs:
        return self._idle.pop() if self._idle else self._bounded(Logs(self.folder, self.manifest, VIEWS))

    def _bounded(self, logs: Logs) -> Logs:
        settings = [
            f"memory_limit = '{self.memory}'",
            "temp_directory = ''",
            f"late_materialization_max_rows = {LATE_ROWS}",
            "python_enable_replacements = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
        ]
        if self.folder.local:
            root = self.folder.root.replace("'", "''")
            settings.append(f"allowed_directories = ['{root}/logs']")
        settings += ["enable_external_access = false", "lock_configuration = true"]
        for setting in settings:
            logs.connection.execute(f"set {setting}")
        return logs

    def _stamped(self) -> Any:
        """Something that is another when the manifest was written anew; None on a store, where nobody looks."""
        if not self.folder.local:
            return None
        with contextlib.suppress(OSError, StorageError):
            return self.folder.stamp(self.given.rpartition("/")[2] if self.given.endswith(".json") else MANIFEST)
        return None

    def unchanged(self) -> None:
        """CorpusUnreadable where it is gone, or another by now. On a store nobody looks."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        folder, manifest = opened(self.given)
        if manifest.digest != self.manifest.digest:
            raise CorpusUnreadable(
                f"{self.given} is another corpus now: its digest was {self.manifest.digest} and is {manifest.digest}; "
                "start `corpusmill audit serve` again"
            )
        self.folder, self.manifest, self._stamp = folder, manifest, stamp
        self._idle = []


def opened(given: str) -> tuple[Folder, Manifest]:
    """A corpus by its folder or manifest; CorpusUnreadable where there is none."""
    try:
        return open_corpus(given)
    except (ManifestError, StorageError, OSError) as error:
        raise CorpusUnreadable(f"{given} is no corpus that can be read: {error}") from None
