"""What a run leaves in its corpus about itself, for `corpusmill status` and for machines that read logs.

`runs/NAME/progress.json` holds the run's tally and is replaced every few seconds, `runs/NAME/log.jsonl` one JSON object for each
thing that happened, with run, step, part and document where they apply, and `runs/latest` the name of the run that began last. On
an object store, which cannot append, the log is cut into `log-00000.jsonl` and so on. Nothing of it is part of the corpus: no
manifest lists it, and a run goes on when it cannot be written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from types import TracebackType
from typing import Any

from manifests.storage import Folder, StorageError
from manifests.terminal import visible
from pipeline import lock
from pipeline.receipts import Receipt
from pipeline.tally import StepTally, Tally, documents, read_bytes
from pipeline.work import Work

RUNS = "runs"
LATEST = f"{RUNS}/latest"
PROGRESS = "progress.json"
LOCAL_SECONDS = 2.0
"""Between two states of a run on a local disk; an object store is asked less often."""
REMOTE_SECONDS = 10.0
SEGMENT_BYTES = 1 << 20
SEGMENT_SECONDS = 60.0
KEPT_BYTES = 1 << 24
"""Of lines that wait to be written; when more wait the oldest go, and the run says at its end how many."""
TROUBLE = (OSError, StorageError)
LONGEST_NAME = 255
"""No file system has longer ones, and no run has."""


def latest(corpus: Folder) -> dict[str, Any]:
    """What the run that began last said last, or {} where no run says anything. OSError when it cannot be told: a store that does
    not answer is no store without a run."""
    try:
        name = corpus.read(LATEST).decode()
    except ValueError:
        return {}
    except (OSError, StorageError) as error:
        return _nothing(error)
    return said(corpus, f"{RUNS}/{name}/{PROGRESS}") if len(name) <= LONGEST_NAME else {}


def said(corpus: Folder, name: str) -> dict[str, Any]:
    """The JSON object in a file, or {} where there is no file or no such thing in it. OSError when it cannot be told."""
    try:
        found = json.loads(corpus.read(name))
    except (ValueError, RecursionError):
        return {}
    except (OSError, StorageError) as error:
        return _nothing(error)
    return found if isinstance(found, dict) else {}


class Journal:
    """Writes while the block lasts. `echo` repeats the log on standard error."""

    def __init__(self, corpus: Folder, tally: Tally, echo: bool = False) -> None:
        self.corpus, self.tally, self.echo = corpus, tally, echo
        self.folder = f"{RUNS}/{tally.run}"
        self.trouble: str | None = None
        """Why it could not be written, if so."""
        self.lost = 0
        """Lines that went unwritten."""
        self._identity = lock._process(tally.process)
        """What tells this process from any other, by no clock (see `pipeline.lock`)."""
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        """Bytes of `_lines`."""
        self._named = False
        self._segment, self._cut = 0, time.monotonic()
        self._lock = threading.Lock()
        """Of the lines, and held only while one is put there: whoever has something to tell waits for no store."""
        self._writer = threading.Lock()
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._keep_writing, name=f"journal of {corpus.url}", daemon=True)

    def __enter__(self) -> Journal:
        self._write_progress()
        about = {key: getattr(self.tally, key) for key in ("recipe", "corpus", "host", "process")}
        self.event("run_started", **about)
        self._beat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tally = self.tally
        self._stop.set()
        self._beat.join()
        tally.ended = time.time()
        if kind is None:
            tally.state = "finished"
        else:
            tally.state = "failed" if issubclass(kind, Exception) else "stopped"
            tally.message = str(error) or kind.__name__
        self.event(
            f"run_{tally.state}", message=tally.message, digest=tally.digest, seconds=round(tally.ended - tally.started, 3)
        )
        self._flush()
        whole = self._write_progress()
        if self._lines or self.lost or not whole:
            self._tell_trouble()

    def step_started(self, step: StepTally) -> None:
        declared = {"cpus": step.resources.cpus, "memory": step.resources.memory, "gpus": step.resources.gpus}
        self.event("step_started", step=step.name, parts=step.parts, done_before=step.before, **declared)

    def part_done(self, work: Work, receipt: Receipt) -> None:
        removed = Counter[str]()
        for count in receipt.counts:
            removed.update(count.removed)
        place = {"step": work.step, "part": work.part}
        numbers = {"documents": documents(work, receipt), "bytes": read_bytes(receipt), "removed": removed}
        self.event("part_done", **place, fingerprint=receipt.fingerprint, **numbers, **receipt.run)
        for one in receipt.errors:
            self.event("document_broken", **place, document=one["id"], stage=one["stage"], rule=one["rule"], detail=one["detail"])

    def part_failed(self, work: Work, error: str, trace: str | None) -> None:
        self.event("part_failed", step=work.step, part=work.part, fingerprint=work.fingerprint, error=error, trace=trace)

    def step_ended(self, step: StepTally) -> None:
        told = {key: value for key, value in step.as_json().items() if key not in ("name", "about", "left_seconds", "started")}
        self.event("step_ended", step=step.name, **told)

    def event(self, event: str, **fields: Any) -> None:
        """One line of the log."""
        told = line(self.tally.run, event, **fields)
        if self.echo:
            print(told, file=sys.stderr, flush=True)
        with self._lock:
            self._lines.append(told.encode() + b"\n")
            self._waiting += len(self._lines[-1])
            self._drop()

    def _keep_writing(self) -> None:
        pause = LOCAL_SECONDS if self.corpus.local else REMOTE_SECONDS
        while not self._stop.wait(pause):
            with contextlib.suppress(RuntimeError):  # a number that came while they were read: the next time tells it
                if self.tally.steps:
                    self.tally.steps[-1].tick()
                self._write_progress()
            self._flush(ended=False)

    def _write_progress(self) -> bool:
        """Whether all was written: the state, and once, after the first, which run is the latest."""
        told = {**self.tally.as_json(), "identity": self._identity}
        written = self._write(f"{self.folder}/{PROGRESS}", json.dumps(told).encode())
        if not self._named:
            self._named = self._write(LATEST, self.tally.run.encode())
        return written and self._named

    def _flush(self, ended: bool = True) -> None:
        """Writes the lines that wait; those that cannot be written wait for the next time."""
        with self._writer:
            with self._lock:
                few = self._waiting < SEGMENT_BYTES and time.monotonic() - self._cut < SEGMENT_SECONDS
                if few and not self.corpus.local and not ended:
                    return
                lines = list(self._lines)
                self._lines.clear()
                self._waiting = 0
            if not lines:
                return
            data = b"".join(lines)
            if self._append(data) if self.corpus.local else self._write(f"{self.folder}/log-{self._segment:05d}.jsonl", data):
                self._segment, self._cut = self._segment + 1, time.monotonic()
                return
            with self._lock:
                self._lines.extendleft(reversed(lines))
                self._waiting += len(data)
                self._drop()

    def _drop(self) -> None:
        while self._waiting > KEPT_BYTES:
            self._waiting -= len(self._lines.popleft())
            self.lost += 1

    def _append(self, data: bytes) -> bool:
        """Adds to the log on a disk, all or nothing: what a full disk took of a line is taken back."""
        path = self.corpus.path(f"{self.folder}/log.jsonl")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "ab", buffering=0) as file:
                before, left = file.seek(0, os.SEEK_END), memoryview(data)
                try:
                    while left:
                        left = left[file.write(left) :]
                except OSError:
                    file.truncate(before)
                    raise
        except OSError as error:
            self.trouble = str(error)
            return False
        return True

    def _write(self, name: str, data: bytes) -> bool:
        try:
            self.corpus.write(name, data)
        except TROUBLE as error:
            self.trouble = str(error)
            return False
        return True

    def _tell_trouble(self) -> None:
        lost = self.lost + len(self._lines)
        text = f"the journal of this run could not be written whole, {lost:,} of its lines are lost: {self.trouble}"
        if self.echo:
            print(line(self.tally.run, "journal_incomplete", message=text), file=sys.stderr, flush=True)
        else:
            print(visible(f"warning: {text}"), file=sys.stderr, flush=True)


def line(run: str, event: str, **fields: Any) -> str:
    """A line of a log: one JSON object."""
    return json.dumps({"time": round(time.time(), 3), "run": run, "event": event, **fields}, ensure_ascii=True)


def _nothing(error: OSError | StorageError) -> dict[str, Any]:
    """{} where the error says that no such file is there, or that it can be none."""
    absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError, StorageError)
    if isinstance(error, absent) or error.errno == errno.ENAMETOOLONG:
        return {}
    raise error
