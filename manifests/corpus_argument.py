"""The argument CORPUS of commands: what it may be, and how it is opened. Where it cannot be, the program says so in one line and
ends with 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from manifests.terminal import fail
from manifests.wording import counted

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
def logs_of(corpus: str, *views: str) -> Iterator[Logs]:
    """The logs of a corpus, of which only `views` are opened where any are named; they hold its folder and manifest. The program
    ends where there is no corpus, or a log cannot be read."""
    import duckdb
    import pyarrow as pa

    from manifests.logs import Logs
    from manifests.storage import StorageError

    folder, manifest = opened(corpus)
    try:
        with Logs(folder, manifest, views or None) as logs:
            yield logs
    except (duckdb.Error, pa.ArrowException, OSError, StorageError) as error:
        fail(f"the logs of {corpus} cannot be read; `corpusmill verify` says what is wrong: {error}")


def no_document(corpus: str, manifest: Manifest, asked: str) -> NoReturn:
    """Ends the program because no document is called so; says whether its component was dropped, or which files are meant."""
    said = f"no document of {corpus} has the id or URL {asked!r}"
    gone = next((one for one in manifest.content.dropped if asked.startswith(f"{one['component']}/")), None)
    if gone is not None:
        fail(f"{said}: component {gone['component']} was dropped: {gone['reason'] or 'no reason given'}")
    bare, hash_, _ = asked.strip("/").rpartition("#") if "#" in asked else (asked.strip("/"), "", "")
    files = [f"{name}/{one.path}" for name, component in manifest.content.components.items() for one in component.inputs]
    near = [one for one in files if bare and f"/{bare}/" in f"/{one}/"]
    if hash_ and bare in near:
        fail(f"{said}; {bare} has no document there; `audit why` with {bare} tells of its first ones")
    if near:
        more = f", and of {counted(len(near) - 1, 'other file')}" if len(near) > 1 else ""
        fail(f"{said}; an id is component/file#position, such as those of {near[0]}{more}")
    fail(f'{said}; `corpusmill audit sql {corpus} "select id, url from documents limit 5"` shows what documents are called')
