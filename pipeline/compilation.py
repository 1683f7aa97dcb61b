"""Kernels are compiled once on a machine, and not in every worker that starts there.

numba keeps what it has compiled in a folder that all processes of a user share. But workers start together and a compilation
takes seconds, so without a lock each of them would begin its own.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stages.stage import Filter, Stage

_done: set[type] = set()


def compile_once(stages: Iterable[Stage[Any] | Filter[Any]]) -> None:
    """Has every stage compile what it needs, one process of this user at a time; the others find it done. The lock goes with the
    process that holds it."""
    new = [stage for stage in stages if type(stage) not in _done]
    if not new:
        return
    path = Path(tempfile.gettempdir()) / f"corpusmill-compiling-{os.getuid()}.lock"  # a container's user may have no name
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stage in new:
            stage.compile()
    _done.update(map(type, new))
