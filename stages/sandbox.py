"""Hostile input is parsed in a child process, so that a crash, a hang or a memory bomb costs one document and not a part.

`Sandbox` runs a named function on a batch of byte strings and returns one `Outcome` for each, in order. Three processes take
part. The *caller* (a worker of the pipeline) feeds pipes without ever blocking on one direction. A *nursery* (`python -m
stages.sandbox`) has imported the function and forks a *child* from that state in a few milliseconds whenever one is needed; the
child does the work under a memory limit and a CPU deadline per document. All of them die with the caller.

The guilty document of a death is the first without a result. It is tried once more, alone, in a fresh child; if that fails too,
its outcome says how: `crash` (a signal or an exit), `timeout`, `memory` or `error` (an exception, whose text is the detail).
A child that something else killed is trouble of the machine, never the document's fault: after a few attempts `SandboxError`, an
OSError, fails the part.

Only length-prefixed bytes and JSON cross the pipes; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

Failure = Literal["crash", "timeout", "memory", "error"]
Work = Callable[[bytes], bytes]

DEFAULT_MEMORY_BYTES = 3 << 30
"""Address space of the child; trafilatura on the largest page that extraction's limits let pass stays well below."""
DEFAULT_CPU_SECONDS = 60
"""CPU time for one document: far above what any document within the deterministic limits takes."""
IDLE_SECONDS_PER_CPU_SECOND = 10
"""A child that neither answers nor uses up its CPU time is given up after this multiple of its deadline."""
ATTEMPTS_AGAINST_KILLS = 3
PIPE_BYTES = 1 << 18
LONGEST_DETAIL = 300

_FRAME = struct.Struct("<cQ")
_STATUS = struct.Struct("<i")
_RESULT, _ERROR, _MEMORY = b"r", b"e", b"m"
_EXIT_MEMORY = 77
_PR_SET_PDEATHSIG = 1
_F_SETPIPE_SZ = 1031


class SandboxError(OSError):
    """The child could not be started, or something other than its document killed it again and again."""


@dataclass(frozen=True)
class Outcome:
    """What became of one item: `result`, or a `failure` with a `detail` for people."""

    result: bytes | None = None
    failure: Failure | None = None
    detail: str | None = None


class Sandbox:
    """Runs `function` ("module:factory") in a child process. `factory(settings)` is called once and returns the function from
    bytes to bytes that is applied to every item. `settings` is anything JSON can hold.

    Not for use by two threads at once. `close` ends the child; the nursery stays for the next Sandbox of the same function and
    settings in this process, and ends with the process.
    """

    def __init__(
        self,
        function: str,
        settings: Mapping[str, Any] | None = None,
        *,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        cpu_seconds: int = DEFAULT_CPU_SECONDS,
    ) -> None:
        module, colon, attribute = function.partition(":")
        if not (module and colon and attribute):
            raise ValueError(f"{function!r} does not name a function as module:function")
        self.memory_bytes = memory_bytes
        self.cpu_seconds = cpu_seconds
        self._key = (function, json.dumps(dict(settings or {}), sort_keys=True))
        self._nursery: _Nursery | None = None
        self._child: _Child | None = None

    def run(self, items: Sequence[bytes]) -> list[Outcome]:
        """One outcome for each item, in order; each depends on its item alone. SandboxError when the machine fails."""
        outcomes: list[Outcome | None] = []
        kills = 0
        while len(outcomes) < len(items):
            answered, failed = self._feed(items[len(outcomes) :])
            outcomes.extend(answer if answer.failure is None else None for answer in answered)
            if failed is _KILLED:
                kills += 1
                self._check_kills(kills)
            elif failed is not None:
                outcomes.append(None)
            if answered:
                kills = 0
        return [self._again(items[index]) if outcome is None else outcome for index, outcome in enumerate(outcomes)]

    def close(self) -> None:
        """Ends the child. The sandbox may be used again; it then starts a new one."""
        self._end_child()
        if self._nursery is not None:
            _give_back(self._key, self._nursery)
            self._nursery = None

    def _again(self, item: bytes) -> Outcome:
        """The second and last attempt: alone, in a fresh child."""
        kills = 0
        while True:
            self._end_child()
            answered, failed = self._feed([item])
            if answered:
                if answered[0].failure is not None:
                    self._end_child()
                return answered[0]
            if failed is not _KILLED:
                assert failed is not None
                return failed
            kills += 1
            self._check_kills(kills)

    def _check_kills(self, kills: int) -> None:
        if kills >= ATTEMPTS_AGAINST_KILLS:
            raise SandboxError(
                f"the sandbox of {self._key[0]} was killed {kills} times by something else, probably for want of memory on this "
                f"machine; its limit is {self.memory_bytes} bytes: lower it, or run fewer workers"
            )

    def _feed(self, items: Sequence[bytes]) -> tuple[list[Outcome], Outcome | None]:
        """The answers to the first items, and why there is none for the next (None when all were answered)."""
        try:
            child = self._child or self._new_child()
            answered, failed = child.feed(items)
        except _NurseryDied:
            self._drop_nursery()
            return [], _KILLED
        if failed is not None:
            self._end_child()
        return answered, failed

    def _new_child(self) -> _Child:
        if self._nursery is None:
            self._nursery = _take(self._key)
        self._child = self._nursery.child(self.memory_bytes, self.cpu_seconds)
        return self._child

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            try:
                child.end()
            except _NurseryDied:
                self._drop_nursery()

    def _drop_nursery(self) -> None:
        self._child = None
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.end()


_KILLED = Outcome(None, "crash", "killed from outside")
"""Stands for a death that is not its document's fault; it never leaves this module."""


class _NurseryDied(Exception):
    pass


class _Child:
    """The caller's side of a child: two pipes, and the nursery's socket on which its end is reported."""

    def __init__(self, pid: int, requests: int, answers: int, control: socket.socket, cpu_seconds: int) -> None:
        self.pid = pid
        self.requests = requests
        self.answers = answers
        self.control = control
        self.idle_seconds = cpu_seconds * IDLE_SECONDS_PER_CPU_SECOND
        self.cpu_seconds = cpu_seconds
        self.ended = False
        for handle in (requests, answers):
            os.set_blocking(handle, False)
            with contextlib.suppress(OSError):
                _set_pipe_size(handle)

    def feed(self, items: Sequence[bytes]) -> tuple[list[Outcome], Outcome | None]:
        outgoing = _Outgoing(items)
        incoming = _Incoming()
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        poll.register(self.requests, select.POLLOUT)
        idle = 0
        while len(incoming.outcomes) < len(items):
            # Waits are counted, not clocked: a machine that slept for an hour has waited once.
            events = poll.poll(1000)
            idle = 0 if events else idle + 1
            if idle > self.idle_seconds:
                os.kill(self.pid, signal.SIGKILL)
                self._wait()
                return incoming.outcomes, Outcome(None, "timeout", f"no answer in {self.idle_seconds} s without using the CPU")
            for handle, _ in events:
                if handle == self.requests:
                    if not outgoing.write(self.requests):
                        poll.unregister(self.requests)
                elif not incoming.read(self.answers):
                    return incoming.outcomes, self._cause_of_death()
        return incoming.outcomes, None

    def end(self) -> None:
        """Ends the child, whatever it is doing, and waits until it is gone."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _cause_of_death(self) -> Outcome:
        status = self._wait()
        if status == _EXIT_MEMORY:
            return Outcome(None, "memory", "out of memory")
        if status == -signal.SIGXCPU:
            return Outcome(None, "timeout", f"more than {self.cpu_seconds} s of CPU time")
        if status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
            return _KILLED
        if status < 0:
            return Outcome(None, "crash", f"ended by {_signal_name(-status)}")
        return Outcome(None, "crash", f"exited with status {status}")

    def _wait(self) -> int:
        self.ended = True
        os.close(self.requests)
        os.close(self.answers)
        status: int = _STATUS.unpack(_receive(self.control, _STATUS.size))[0]
        return status


class _Outgoing:
    """Frames of the items, written as far as the pipe takes them."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = iter(items)
        self.waiting: list[memoryview] = []

    def write(self, handle: int) -> bool:
        """False once there is nothing left to write (or nobody to read it)."""
        while True:
            if not self.waiting:
                item = next(self.items, None)
                if item is None:
                    return False
                self.waiting = [memoryview(_FRAME.pack(b"i", len(item))), memoryview(item).cast("B")]
            try:
                written = os.writev(handle, self.waiting)
            except BlockingIOError:
                return True
            except BrokenPipeError:
                return False
            while self.waiting and written >= len(self.waiting[0]):
                written -= len(self.waiting[0])
                del self.waiting[0]
            if self.waiting:
                self.waiting[0] = self.waiting[0][written:]


class _Incoming:
    """Outcomes, as their frames arrive."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.buffer = bytearray()

    def read(self, handle: int) -> bool:
        """False at the end of the stream."""
        try:
            chunk = os.read(handle, PIPE_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        self.buffer += chunk
        while len(self.buffer) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(self.buffer)
            end = _FRAME.size + length
            if len(self.buffer) < end:
                break
            body = bytes(memoryview(self.buffer)[_FRAME.size : end])
            del self.buffer[:end]
            if kind == _RESULT:
                self.outcomes.append(Outcome(body))
            else:
                self.outcomes.append(Outcome(None, "error", body.decode("utf-8", "replace")))
        return True


class _Nursery:
    """The caller's side of the process that forks children."""

    def __init__(self, function: str, settings: str) -> None:
        self.control, theirs = socket.socketpair()
        environment = dict(os.environ)
        # The child must find the same modules, and order nothing by a salted hash.
        environment.update(
            PYTHONPATH=os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            PYTHONHASHSEED="0",
            PYTHONUTF8="1",
            OMP_NUM_THREADS="1",
        )
        arguments = [sys.executable, "-P", "-m", "stages.sandbox", function, settings, str(theirs.fileno()), str(os.getpid())]
        with tempfile.TemporaryFile() as complaints:
            try:
                self.process = (
                    _starter()
                    .submit(
                        subprocess.Popen,
                        arguments,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=complaints,
                        pass_fds=[theirs.fileno()],
                        env=environment,
                    )
                    .result()
                )
            finally:
                theirs.close()
            try:
                _receive(self.control, 1)
            except _NurseryDied:
                self.end()
                complaints.seek(0)
                last = complaints.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
                raise SandboxError(f"the sandbox of {function} did not start: {last or 'it was killed'}") from None

    def child(self, memory_bytes: int, cpu_seconds: int) -> _Child:
        theirs_in, requests = os.pipe()
        answers, theirs_out = os.pipe()
        try:
            try:
                order = json.dumps([memory_bytes, cpu_seconds]).encode().ljust(_ORDER_BYTES)
                socket.send_fds(self.control, [order], [theirs_in, theirs_out])
            finally:
                os.close(theirs_in)
                os.close(theirs_out)
            pid = _STATUS.unpack(_receive(self.control, _STATUS.size))[0]
        except (OSError, _NurseryDied) as error:
            os.close(requests)
            os.close(answers)
            raise _NurseryDied from error
        if pid < 0:
            os.close(requests)
            os.close(answers)
            raise SandboxError(-pid, f"the sandbox cannot fork: {os.strerror(-pid)}")
        return _Child(pid, requests, answers, self.control, cpu_seconds)

    def end(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


_ORDER_BYTES = 64
_idle: dict[tuple[str, str], list[_Nursery]] = {}
_idle_lock = threading.Lock()
_owner = 0
_starter_pool: ThreadPoolExecutor | None = None


def _take(key: tuple[str, str]) -> _Nursery:
    _forget_after_fork()
    with _idle_lock:
        waiting = _idle.get(key, [])
        while waiting:
            nursery = waiting.pop()
            if nursery.process.poll() is None:
                return nursery
            nursery.end()
    nursery = _Nursery(*key)
    weakref.finalize(nursery, _reap, nursery.process, nursery.control)
    return nursery


def _give_back(key: tuple[str, str], nursery: _Nursery) -> None:
    with _idle_lock:
        _idle.setdefault(key, []).append(nursery)


def _reap(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    if process.poll() is None:
        process.kill()
        process.wait()


def _starter() -> ThreadPoolExecutor:
    """One thread that lives as long as the process starts the nurseries: PR_SET_PDEATHSIG fires when the starting *thread* ends,
    and the thread that runs a task may end long before its process."""
    global _starter_pool
    _forget_after_fork()
    with _idle_lock:
        if _starter_pool is None:
            _starter_pool = ThreadPoolExecutor(1, "sandbox-starter")
        return _starter_pool


def _forget_after_fork() -> None:
    """A fork of this process owns neither the nurseries nor the thread of its parent."""
    global _owner, _starter_pool
    if _owner != os.getpid():
        _owner = os.getpid()
        _idle.clear()
        _starter_pool = None


def _receive(control: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        try:
            chunk = control.recv(length - len(received))
        except OSError:
            chunk = b""
        if not chunk:
            raise _NurseryDied
        received += chunk
    return received


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _set_pipe_size(handle: int) -> None:
    fcntl.fcntl(handle, _F_SETPIPE_SZ, PIPE_BYTES)


# What follows runs in the nursery and in its children.


def main(arguments: Sequence[str]) -> None:
    """The nursery: `function settings control-socket caller's-pid`."""
    function, settings, control_handle, caller = arguments
    _die_with_parent(int(caller))
    control = socket.socket(fileno=int(control_handle))
    module, _, attribute = function.partition(":")
    work: Work = getattr(importlib.import_module(module), attribute)(json.loads(settings))
    # What is imported now is never collected in a child, so that its pages of memory stay shared.
    gc.collect()
    gc.freeze()
    control.sendall(b"+")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.close(quiet)
    while True:
        order, handles, _, _ = socket.recv_fds(control, _ORDER_BYTES, 2)
        if not order:
            return
        memory_bytes, cpu_seconds = json.loads(order)
        nursery = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for handle in handles:
                os.close(handle)
            control.sendall(_STATUS.pack(-(error.errno or 1)))
            continue
        if pid == 0:
            control.close()
            try:
                _die_with_parent(nursery)
                _serve(work, handles[0], handles[1], memory_bytes, cpu_seconds)
            except BrokenPipeError:
                pass
            except BaseException:
                os._exit(1)
            os._exit(0)
        for handle in handles:
            os.close(handle)
        control.sendall(_STATUS.pack(pid))
        _, status = os.waitpid(pid, 0)
        control.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _serve(work: Work, requests: int, answers: int, memory_bytes: int, cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower_limit(resource.RLIMIT_AS, memory_bytes)
    reader = os.fdopen(requests, "rb", buffering=PIPE_BYTES)
    while head := reader.read(_FRAME.size):
        _, length = _FRAME.unpack(head)
        # Raised for each document: the kernel ends the process, in whatever C code it is, once it has used so much more.
        _lower_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_seconds)
        kind, body = _RESULT, b""
        try:
            body = bytes(work(reader.read(length)))
        except MemoryError:
            # What was allocated may never come back: the next document deserves a fresh child.
            os._exit(_EXIT_MEMORY)
        except BaseException as error:
            kind = _ERROR
            body = f"{type(error).__name__}: {error}"[:LONGEST_DETAIL].encode("utf-8", "replace")
        _write_all(answers, _FRAME.pack(kind, len(body)), body)


def _lower_limit(kind: int, value: int) -> None:
    """Sets the soft limit, as far as the hard one allows."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _write_all(handle: int, head: bytes, body: bytes) -> None:
    waiting = [memoryview(head), memoryview(body)]
    while waiting:
        written = os.writev(handle, waiting)
        while waiting and written >= len(waiting[0]):
            written -= len(waiting[0])
            del waiting[0]
        if waiting:
            waiting[0] = waiting[0][written:]


if __name__ == "__main__":
    main(sys.argv[1:])
