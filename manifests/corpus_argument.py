"""The argument CORPUS of commands: what it may be, and how it is opened. Where it cannot be, the program says so in one line and
ends with 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from manifests.terminal import fail

if TYPE_CHECKING:
    from manifests.logs import Logs
    from manifests.manifest import Manifest
    from manifests.storage import Folder

CorpusArgument = Annotated[str, typer.Argument(help="folder or URL of a corpus, or the path of one of its manifests")]


def opened(corpus: str) -> tuple[Folder, Manifest]:
    """A corpus by its folder, or by the path of its manifest; the program ends where there is none."""
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError

    try:
        return open_corpus(corpus)
    except (ManifestError, StorageError, OSError) as error:
        fail(f"{corpus} is no corpus that can be read: {error}")


def manifest_name(corpus: str) -> str:
    """The file name of the manifest that CORPUS means."""
    from manifests.manifest import MANIFEST

    return corpus.rpartition("/")[2] if corpus.endswith(".json") else MANIFEST


@contextlib.contextmanager
def logs_of(corpus: str, folder: Folder, manifest: Manifest, *views: str) -> Iterator[Logs]:
    """The logs, of which only `views` are opened where any are named; the program ends where one cannot be read."""
    import duckdb
    import pyarrow as pa

    from manifests.logs import Logs
    from manifests.storage import StorageError

    try:
        with Logs(folder, manifest, views or None) as logs:
            yield logs
    except (duckdb.Error, pa.ArrowException, OSError, StorageError) as error:
        fail(f"the logs of {corpus} cannot be read; `corpusmill verify` says what is wrong: {error}")
