"""Who may write to a run's folder, and whether a checkpoint in it is this run's."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from manifests.storage import is_remote
from manifests.trained_on import LEDGER, LedgerError
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import BUILT_AGAIN, Corpus
from trainer.data.loader import Loader
from trainer.data.steps import Steps
from trainer.distributed.ranks import Ranks, RanksError
from trainer.presets import Architecture
from trainer.run_files import checkpoint_format
from trainer.run_files.saved_options import saved_options


def place(out: str) -> Path:
    """Where --out is; ConfigurationError when it is not on this machine."""
    if is_remote(out):
        raise ConfigurationError(f"--out {out}: a run writes to a local folder; copy it away afterwards")
    return Path(out)


@contextlib.contextmanager
def held(folder: Path, ranks: Ranks) -> Iterator[None]:
    """The folder, which is made where it is missing and taken away again where nothing was written to it, for one run alone: the
    system forgets the hold however the process ends. ConfigurationError when it cannot be written to, or another run has it."""
    descriptor, trouble = -1, ""
    made = False
    if ranks.first:
        try:
            made = _make(folder)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.access(folder, os.W_OK | os.X_OK):
                trouble = "it cannot be written to"
        except BlockingIOError:
            trouble = "another run is writing to this folder; wait for its end, or name another folder"
        except OSError as error:
            trouble = f"not a folder that can be written to: {error.strerror}"
    try:
        (trouble,) = [one for one in ranks.texts(trouble) if one][:1] or [""]
        if trouble:
            raise ConfigurationError(f"--out {folder}: {trouble}") if ranks.first else RanksError(f"the first rank: {trouble}")
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def refuse_another_run(
    found: Path,
    state: checkpoint_format.State,
    folder: Path,
    config: TrainConfig,
    corpus: Corpus,
    loader: Loader,
    steps: Steps,
    architecture: Architecture,
) -> None:
    """ConfigurationError, CheckpointError or LedgerError where a checkpoint is not one that the run in `folder` with these
    options, on this corpus, can have come to; says which of them is another."""
    if state.tokenizer_sha256 != corpus.tokenizer.sha256:
        raise checkpoint_format.CheckpointError(f"{found}: trained with another tokenizer than the corpus has; {BUILT_AGAIN}")
    shape, _ = saved_options(found, state)
    changed = config.differences(state.config)
    if changed:
        raise ConfigurationError(f"{found} was made with other options: {'; '.join(changed)}")
    if state.loader_digest != loader.digest:
        raise checkpoint_format.CheckpointError(
            f"{found}: trained on other shards (manifest {state.manifest_digest[:12]}…, now {corpus.manifest.digest[:12]}…), so "
            f"position {state.position:,} means other rows"
        )
    if state.position != (here := steps.position(state.step + 1)):
        raise checkpoint_format.CheckpointError(
            f"{found}: after step {state.step} it stood at position {state.position:,}, and these options would at {here:,}: "
            "steps have other rows now"
        )
    if shape != architecture:
        raise checkpoint_format.CheckpointError(f"{found}: it is of a model of another shape than these options make")
    if state.clipped_steps > state.step or state.tokens > loader.targets(state.position):
        raise checkpoint_format.CheckpointError(
            f"{found}: {state.tokens:,} tokens and {state.clipped_steps:,} clipped steps are more than {state.step:,} steps have"
        )
    if state.step and found.parent.parent == folder and not (folder / LEDGER).exists():
        raise LedgerError(f"{folder / LEDGER} is not there: what the first {state.step:,} steps consumed is not said")


def _make(folder: Path) -> bool:
    if folder.exists():
        return False
    folder.mkdir(parents=True)
    return True
