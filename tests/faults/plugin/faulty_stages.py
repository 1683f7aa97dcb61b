"""A stage that does what its documents say: the fault injection of this harness, found by the entry point beside this file.

A line `fault: VERB NAME` in a text is an order. The first group happens in the worker, and only once: when the file NAME lies in the
folder that the environment variable CORPUSMILL_FAULTS names, whose removal decides who obeys. Without it the document is like any other, so that the unbroken
run has the same recipe and the same input.

    kill NAME      the worker is killed by SIGKILL
    disk NAME      OSError: no space left on device
    memory NAME    MemoryError
    wait NAME      NAME.reached appears, and the part goes on when NAME.go does

The second group happens in the sandbox, always: the document is guilty.

    segfault, hang, hoard, raise, exit

`fault: error NAME` raises in the worker, always.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from stages.sandbox import Sandbox
from stages.stage import Options, Stage, Verdict

SWITCH = "CORPUSMILL_FAULTS"
ORDER = re.compile(r"^fault: (\w+)(?: (\w+))?$", re.MULTILINE)
SANDBOXED = ("segfault", "hang", "hoard", "raise", "exit")
MEMORY_BYTES = 1 << 30


class NoOptions(Options):
    pass


class Obey(Stage[NoOptions]):
    name: ClassVar[str] = "obey"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = NoOptions
    removal_rules: ClassVar[tuple[str, ...]] = ("obey.crash", "obey.timeout", "obey.memory", "obey.error")

    def __init__(self, options: NoOptions) -> None:
        super().__init__(options)
        self.sandbox = Sandbox("faulty_stages:obedient", {}, memory_bytes=MEMORY_BYTES, cpu_seconds=1)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        verdict.detail = [None] * batch.num_rows
        guilty = []
        for row, text in enumerate(batch["text"].to_pylist()):
            for verb, name in ORDER.findall(text):
                if verb in SANDBOXED:
                    guilty.append((row, verb))
                else:
                    _in_the_worker(verb, name)
        for (row, _), outcome in zip(guilty, self.sandbox.run([verb.encode() for _, verb in guilty]), strict=True):
            if outcome.failure is not None:
                verdict.rule[row] = self.removal_rules.index(f"obey.{outcome.failure}")
                verdict.detail[row] = outcome.detail
        return verdict

    def close(self) -> None:
        self.sandbox.close()


def obedient(settings: Mapping[str, Any]) -> Callable[[bytes], bytes]:
    """What the sandbox runs."""

    def obey(verb: bytes) -> bytes:
        if verb == b"segfault":
            ctypes.string_at(0)
        if verb == b"hang":
            while True:
                pass
        if verb == b"hoard":
            return bytes(1 << 40)
        if verb == b"exit":
            os._exit(3)
        raise ValueError("this document is not to my taste")

    return obey


def _in_the_worker(verb: str, name: str) -> None:
    if verb == "error":
        raise ZeroDivisionError(f"{name} was divided by nothing")
    folder = os.environ.get(SWITCH)
    if not folder:
        return
    if verb == "wait":
        _wait(Path(folder), name)
        return
    try:
        os.unlink(Path(folder, name))
    except FileNotFoundError:  # not armed, or spent
        return
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if verb == "memory":
        raise MemoryError


def _wait(folder: Path, name: str) -> None:
    if not (folder / name).exists():
        return
    with contextlib.suppress(FileExistsError):
        (folder / f"{name}.reached").touch(exist_ok=False)
    while not (folder / f"{name}.go").exists():
        time.sleep(0.02)
