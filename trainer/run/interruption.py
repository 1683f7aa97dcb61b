"""Being told to stop: SIGTERM and SIGINT ask a run for a checkpoint and an orderly end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trainer.distributed.ranks import is_lost_rank


@contextlib.contextmanager
def interruptions(told: Callable[[int], None]) -> Iterator[None]:
    """While the steps run, SIGTERM and SIGINT ask for a checkpoint and an orderly end; only a main thread can be told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, lambda n, _: told(n)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Exception as error:
        if is_lost_rank(error):  # torchrun ends all that are left, which is under way: first it is said why
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
