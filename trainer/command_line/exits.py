"""How the trainer's commands end: exit codes, and a clear line for whatever a user can cause."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import typer

from manifests.terminal import visible

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks

FAILED, BAD_USAGE, SIGNALLED = 1, 2, 128


def need_torch() -> None:
    """Imports torch. OpenMP's threads sleep while they wait unless the user says otherwise: spinning ones starve each other
    as soon as a machine is shared (docs/training.md has the figures)."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        end(FAILED, f"{error}; the trainer's libraries are missing: pip install 'corpusmill[trainer]'")


@contextlib.contextmanager
def ranks_of(device: str) -> Iterator[Ranks]:
    """The ranks of this run, which leave in order at the end. What fails within is explained, and ends the program."""
    from trainer.distributed.ranks import Ranks

    ranks: Ranks | None = None
    try:
        ranks = Ranks.join(device)
        yield ranks
    except Exception as error:
        explain(error, ranks)
    finally:
        if ranks is not None:
            ranks.leave()


def explain(error: Exception, ranks: Ranks | None = None) -> NoReturn:
    """Ends with a clear line for the errors that a user can cause; anything else is a bug and keeps its traceback.

    On GPUs a rank that fails leaves at once: the others may wait for it in a collective, and a group that is left in order waits
    for them.
    """
    try:
        _raise(error)
    except Exception as ended:
        if ranks is None or ranks.world == 1 or ranks.device.type != "cuda":
            raise
        if not isinstance(ended, typer.Exit):
            traceback.print_exception(ended)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.exit_code if isinstance(ended, typer.Exit) else FAILED)


def _raise(error: Exception) -> NoReturn:
    from manifests.manifest import ManifestError
    from manifests.storage import StorageError
    from manifests.trained_on import LedgerError
    from trainer.configuration import ConfigurationError
    from trainer.data.corpus import CorpusError
    from trainer.data.loader import LoaderError
    from trainer.distributed.ranks import RanksError, is_lost_rank
    from trainer.run_files.checkpoint_format import CheckpointError
    from trainer.run_files.metrics import DivergedError, MetricsError
    from trainer.scores.evaluation import EvaluationError

    if is_lost_rank(error):
        end(FAILED, f"another rank is gone, and this one ends with it; --resume goes on from the newest checkpoint ({error})")
    if isinstance(error, (ConfigurationError, RanksError)):
        end(BAD_USAGE, str(error))
    expected = (
        ManifestError, StorageError, CheckpointError, CorpusError, EvaluationError, LedgerError, LoaderError, DivergedError,
        MetricsError, OSError,
    )  # fmt: skip
    if isinstance(error, expected):
        end(FAILED, str(error))
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error) or type(error).__name__ == "OutOfMemoryError":
        end(FAILED, f"not enough memory; use a smaller model, batch or row: {error}")
    raise error


def end(code: int, message: str) -> NoReturn:
    print(visible(f"error: {message}" if code in (FAILED, BAD_USAGE) else message), file=sys.stderr, flush=True)
    raise typer.Exit(code)
