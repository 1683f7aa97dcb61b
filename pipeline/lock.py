"""One run per corpus at a time.

Locally the lock is an advisory lock on `lock.json`, which the system releases however the process ends. On object stores it is a
conditional put of `lock.json` with an owner, renewed while the run lives; one that was not renewed for STALE_SECONDS by its own
clock and ours is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from manifests.storage import FileStamp, Folder

LOCK = "lock.json"
RENEW_SECONDS = 30.0
STALE_SECONDS = 600.0


class Locked(Exception):
    """Another run holds this corpus."""


class Held:
    """A corpus that this run holds. `check` before anything that a second run must not see half done."""

    def __init__(self, corpus: Folder) -> None:
        self.corpus = corpus
        self.lost = threading.Event()
        self.renewed = time.monotonic()

    def check(self) -> None:
        """Locked when the lock was taken over, or could not be renewed for so long that it may be at any moment."""
        if self.corpus.local:
            return
        if self.lost.is_set():
            now = _message(self.corpus, self.corpus.read(LOCK))
            raise Locked(f"{now}; this one did not renew its lock for so long that it was taken over")
        if time.monotonic() - self.renewed > STALE_SECONDS / 2:
            raise Locked(f"{self.corpus.url}: the lock could not be renewed for so long that another run may take it over")


@contextlib.contextmanager
def exclusive(corpus: Folder) -> Iterator[Held]:
    """Holds the corpus; Locked says who does when somebody else does."""
    with _local(corpus) if corpus.local else _remote(corpus) as held:
        yield held


@contextlib.contextmanager
def _local(corpus: Folder) -> Iterator[Held]:
    os.makedirs(corpus.root, exist_ok=True)
    descriptor = os.open(corpus.path(LOCK), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(_message(corpus, os.pread(descriptor, 4096, 0))) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _owner(""), 0)
        yield Held(corpus)
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _remote(corpus: Folder) -> Iterator[Held]:
    token = uuid.uuid4().hex
    mine = _take(corpus, token)
    held, stop = Held(corpus), threading.Event()

    def renew(mine: FileStamp) -> None:
        while not stop.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):
                renewed = corpus.overwrite(mine, _owner(token))
                if not renewed and _parsed(corpus.read(LOCK)).get("token") != token:
                    held.lost.set()
                    return
                mine = corpus.stamp(LOCK)
                held.renewed = time.monotonic()

    thread = threading.Thread(target=renew, args=(mine,), name=f"lock of {corpus.url}", daemon=True)
    thread.start()
    try:
        yield held
        held.check()
    finally:
        stop.set()
        thread.join()
        if not held.lost.is_set():
            corpus.delete(LOCK)


def _take(corpus: Folder, token: str) -> FileStamp:
    """The lock, where nobody has it or its owner has not renewed it; of several that see this, one gets it."""
    if not corpus.create(LOCK, _owner(token)):
        try:
            stamp, held = corpus.stamp(LOCK), corpus.read(LOCK)
            stale = time.time() - _renewed(held) >= STALE_SECONDS
            taken = stale and corpus.overwrite(stamp, _owner(token))
            held = held if taken or not stale else corpus.read(LOCK)
        except FileNotFoundError:  # given back just now
            held, taken = b"", corpus.create(LOCK, _owner(token))
        if not taken:
            raise Locked(_message(corpus, held))
    return corpus.stamp(LOCK)


def _owner(token: str) -> bytes:
    owner = {"host": socket.gethostname(), "process": os.getpid(), "token": token, "renewed": time.time()}
    return json.dumps(owner).encode()


def _renewed(held: bytes) -> float:
    owner = _parsed(held)
    renewed = owner.get("renewed", 0.0)
    return float(renewed) if isinstance(renewed, int | float) else 0.0


def _parsed(held: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(held)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _message(corpus: Folder, held: bytes) -> str:
    owner = _parsed(held)
    who = f"process {owner['process']} on {owner['host']}" if {"process", "host"} <= set(owner) else "another process"
    return f"{corpus.url} is being written by {who}: one run per corpus at a time"
