"""Options and arguments that commands on a run have in common, and what they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.command_line.exits import BAD_USAGE, end
from trainer.command_line.training_options import Device
from trainer.run_files.released import is_release, weights_folder

if TYPE_CHECKING:
    from trainer.data.corpus import Corpus

RunArgument = Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")]
StepArgument = Annotated[int, typer.Argument(help="A step, from 1.", metavar="STEP")]
CheckpointArgument = Annotated[
    Path, typer.Argument(help="A run's folder, one of its checkpoints, or a release.", metavar="CHECKPOINT")
]
CorpusOption = Annotated[
    str | None, typer.Option("--manifest", help="The corpus, where it lies elsewhere than it did for the run.", metavar="PATH")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _known_device(name: str) -> str:
    if name not in list(Device):
        end(BAD_USAGE, f"--device {name}: auto, cpu or cuda")
    return name


DeviceOption = Annotated[
    str, typer.Option(help="auto, cpu or cuda; auto takes a GPU where there is one.", callback=_known_device)
]
CacheOption = Annotated[str | None, typer.Option(help="Where shards of a remote corpus are kept.", metavar="FOLDER")]


def open_corpus_of(named: str | None, recorded: str) -> Corpus:
    """The corpus that is named, or else the one where a run says that its own lies; CorpusError where that is gone."""
    from manifests.manifest import ManifestError
    from manifests.storage import StorageError
    from trainer.data.corpus import Corpus, CorpusError

    try:
        return Corpus.open(named or recorded)
    except (ManifestError, StorageError, OSError) as error:
        if named:
            raise
        raise CorpusError(f"{error}; the run says that its corpus lies there: --manifest names another place") from None


def weights_of(path: Path) -> tuple[Path, str | None]:
    """(what has the weights, the corpus's manifest beside them): of a release both lie in it."""
    return weights_folder(path), str(path / "manifest.json") if is_release(path) else None
