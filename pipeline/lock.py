"""One run per corpus at a time.

Locally the lock is an advisory lock on `lock.json`, which the system releases however the process ends. On object stores it is a
conditional put of `lock.json` with an owner, renewed while the run lives. It is taken over when its owner was a process of this
machine that is no more, or when it was not renewed for STALE_SECONDS. Only the store's clock tells how long that is: machines
disagree about the time of day. An owner that could not renew its lock for half as long gives up by itself.
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

from manifests.storage import TEMPORARY_PREFIX, FileStamp, Folder, StorageError

LOCK = "lock.json"
RENEW_SECONDS = 30.0
STALE_SECONDS = 300.0
PROBE = f"{TEMPORARY_PREFIX}lock-"
"""A file that is written to learn the time by the store's clock, and deleted again."""


class Locked(Exception):
    """Another run holds this corpus."""


class Held:
    """A corpus that this run holds. `check` before anything that a second run must not see half done."""

    def __init__(self, corpus: Folder, token: str = "") -> None:
        self.corpus = corpus
        self.token = token
        self.lost = threading.Event()
        self.renewed = _elapsed()

    def check(self) -> None:
        """Locked when the lock was taken over, or could not be renewed for so long that it may be at any moment."""
        if self.corpus.local:
            return
        if self.lost.is_set():
            raise Locked(
                f"{_message(self.corpus, self._there())}; this one did not renew its lock for so long that it was taken over"
            )
        if _elapsed() - self.renewed > STALE_SECONDS / 2:
            raise Locked(f"{self.corpus.url}: the lock could not be renewed for so long that another run may take it over")

    def confirm(self) -> None:
        """`check`, and a look at the lock itself: for the moment before something that cannot be taken back."""
        if not self.corpus.local and _parsed(self._there()).get("token") != self.token:
            self.lost.set()
        self.check()

    def _there(self) -> bytes:
        try:
            return self.corpus.read(LOCK)
        except FileNotFoundError:
            return b""


@contextlib.contextmanager
def exclusive(corpus: Folder) -> Iterator[Held]:
    """Holds the corpus; Locked says who does when somebody else does."""
    with _local(corpus) if corpus.local else _remote(corpus) as held:
        yield held


@contextlib.contextmanager
def _local(corpus: Folder) -> Iterator[Held]:
    try:
        os.makedirs(corpus.root, exist_ok=True)
        descriptor = os.open(corpus.path(LOCK), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(f"the corpus {corpus.url} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(_message(corpus, os.pread(descriptor, 4096, 0))) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _owner(""), 0)
            yield Held(corpus)
        finally:  # nobody holds it, however the run ended
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _remote(corpus: Folder) -> Iterator[Held]:
    held, stop = Held(corpus, uuid.uuid4().hex), threading.Event()
    mine = _take(corpus, held.token)

    def renew(mine: FileStamp) -> None:
        while not stop.wait(RENEW_SECONDS):
            # A store that does not answer is asked again: `check` says when that went on for too long.
            with contextlib.suppress(OSError):
                asked = _elapsed()
                if not corpus.overwrite(mine, _owner(held.token)) and not _is_mine(corpus, held.token):
                    held.lost.set()
                    return
                mine = corpus.stamp(LOCK)
                held.renewed = asked

    thread = threading.Thread(target=renew, args=(mine,), name=f"lock of {corpus.url}", daemon=True)
    thread.start()
    try:
        yield held
        held.check()
    finally:
        stop.set()
        thread.join()
        with contextlib.suppress(OSError):  # nobody renews it any more
            if _is_mine(corpus, held.token):
                corpus.delete(LOCK)


def _take(corpus: Folder, token: str) -> FileStamp:
    """The lock, where nobody has it or its owner is gone; of several that see this, one gets it. A put whose answer was lost on
    the way is known by its token."""
    if not corpus.create(LOCK, _owner(token)) and not _is_mine(corpus, token):
        try:
            stamp, held = corpus.stamp(LOCK), corpus.read(LOCK)
            age = _age(corpus, token)
            free = not _parsed(held).get("token") or _is_dead(held) or (age is not None and age >= STALE_SECONDS)
            taken = free and (corpus.overwrite(stamp, _owner(token)) or _is_mine(corpus, token))
            held = held if taken or not free else corpus.read(LOCK)
        except FileNotFoundError:  # given back just now
            held, age, taken = b"", None, corpus.create(LOCK, _owner(token)) or _is_mine(corpus, token)
        if not taken:
            raise Locked(_message(corpus, held) + _when_free(age))
    return corpus.stamp(LOCK)


def _is_mine(corpus: Folder, token: str) -> bool:
    try:
        return bool(_parsed(corpus.read(LOCK)).get("token") == token)
    except FileNotFoundError:
        return False


def _age(corpus: Folder, token: str) -> float | None:
    """Seconds since the lock was last renewed, by the store's clock alone; None where a store does not tell times."""
    probe = f"{PROBE}{token}"
    corpus.write(probe, b"")
    try:
        now, then = corpus.written_at(probe), corpus.written_at(LOCK)
    finally:
        corpus.delete(probe)
    return None if now is None or then is None else now - then


def _is_dead(held: bytes) -> bool:
    """Was the owner a process of this very machine, since it was started and in these containers, that is no more?"""
    owner, here = _parsed(held), _process(os.getpid())
    if not here or any(owner.get(key) != here[key] for key in ("boot", "namespace")):
        return False
    process = owner.get("process")
    if not isinstance(process, int) or process <= 0:
        return False
    if began := _process(process).get("began"):
        return bool(began != owner.get("began"))
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _process(process: int) -> dict[str, str]:
    """What tells a process from any other that has, had or will have its number, here or elsewhere; nothing where it is not
    there, or on a system that does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot, open(f"/proc/{process}/stat", "rb") as stat:
            began = stat.read().rpartition(b")")[2].split()[19].decode()
            return {"boot": boot.read().strip(), "namespace": os.readlink("/proc/self/ns/pid"), "began": began}
    except (OSError, IndexError):
        return {}


def _owner(token: str) -> bytes:
    """`renewed` is for people, by the owner's clock; nothing is decided by it."""
    process = os.getpid()
    owner = {"host": socket.gethostname(), "process": process, **_process(process), "token": token, "renewed": time.time()}
    return json.dumps(owner).encode()


def _elapsed() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _parsed(held: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(held)
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _message(corpus: Folder, held: bytes) -> str:
    owner = _parsed(held)
    who = f"process {owner['process']} on {owner['host']}" if {"process", "host"} <= set(owner) else "another process"
    return f"{corpus.url} is being written by {who}: one run per corpus at a time"


def _when_free(age: float | None) -> str:
    if age is None:
        return f"; if it is dead, delete {LOCK}"
    left = max(0.0, STALE_SECONDS - age)
    return f"; it renewed its lock {max(0.0, age):.0f} s ago, and if it is dead the corpus is free in {left:.0f} s"
