"""What decides a stage's output beside its code and options: data files, models, libraries. The plan records them; each worker
checks that it has the same before it decides anything, so that a node with another file or another library fails the part.
"""

from __future__ import annotations

import hashlib
import unicodedata
from functools import lru_cache
from importlib import metadata
from typing import Any

from manifests.storage import Folder, sha256_of

UNICODE = {"unicode": unicodedata.unidata_version}
"""Python's Unicode tables, which decide normal forms and lower case."""


class ProvenanceError(Exception):
    """This worker would decide with something else than the plan recorded."""


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Installed versions by distribution name."""
    found = {}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def data_digest(path: str) -> str:
    """SHA-256 of a file, or of the sorted names and SHA-256s of a folder's files."""
    folder = Folder(path)
    if folder.fs.isfile(folder.root):
        with folder.fs.open(folder.root, "rb") as file:
            return sha256_of(file)[0]
    listing = hashlib.sha256()
    for name in folder.names():
        with folder.open(name) as file:
            listing.update(f"{sha256_of(file)[0]}  {name}\n".encode())
    return listing.hexdigest()


def data_digests(data: dict[str, str]) -> dict[str, str]:
    """Option → digest, from option → path."""
    return {option: data_digest(path) for option, path in sorted(data.items())}


def check_data(data: dict[str, str], digests: dict[str, str]) -> None:
    """ProvenanceError when a file (option → path) is not what the plan saw."""
    for option, path in data.items():
        if _digest_here(path, _stamp(path)) != digests[option]:
            raise ProvenanceError(f"{option}: {path} is not the file that the run was planned with")


def check_libraries(planned: dict[str, str]) -> None:
    """ProvenanceError when a library is installed here in another version than where the run was planned."""
    here = versions(tuple(planned))
    for name, version in planned.items():
        if here[name] != version:
            raise ProvenanceError(f"{name} is {here[name]} on this machine, and {version} where the run was planned")


def check_identity(stage: str, planned: dict[str, str], here: dict[str, str]) -> None:
    """ProvenanceError when a stage would use another model or table than the plan saw."""
    for name, digest in here.items():
        if planned.get(name) != digest:
            raise ProvenanceError(f"{stage}: {name} on this machine is not what the run was planned with")


def _stamp(path: str) -> tuple[Any, ...]:
    folder = Folder(path)
    if folder.fs.isfile(folder.root):
        parent, _, name = path.rpartition("/")
        return (Folder(parent or "/").stamp(name),)
    return tuple(folder.stamps())


@lru_cache(maxsize=64)
def _digest_here(path: str, stamp: tuple[Any, ...]) -> str:
    """Once a process and state of the file."""
    return data_digest(path)
