"""Input files and how they are cut into parts.

A part is one input file, a row-group range of a big one, or several small ones. Small neighbours are grouped at places that
depend on their names alone, so that one added file makes one new part and leaves the others as they are.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from manifests.manifest import InputFile
from manifests.storage import NO_FILE, FileStamp, Folder, StorageError, relative_name

if TYPE_CHECKING:
    from pipeline.recipe import Component

PART_BYTES = 128 << 20
GROUP_FILES = 1000
GROUP_CUT = 64
"""A group of small files ends after about one name in so many."""


class InputError(Exception):
    """Input that is missing, or that is not what it was when the run was planned."""


@dataclass(frozen=True)
class Slice:
    """A file, or row groups [first, last) of it, as it looked when planning."""

    path: str
    size: int
    version: str
    row_groups: tuple[int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def source_folder(component: Component) -> tuple[Folder, str | None]:
    """The component's root, and the one file's name where the source is a file."""
    folder = Folder(component.source)
    if folder.fs.isfile(folder.root):
        parent, _, name = component.source.rstrip("/").rpartition("/")
        return Folder(parent or "/"), name
    return folder, None


@dataclass(frozen=True)
class Listing:
    """A component's input files, sorted by path, and how many others lie beside them, by the ending of their names."""

    files: tuple[FileStamp, ...]
    unread: dict[str, int]


def discover(component: Component) -> Listing:
    """Lists the component's source; InputError when it is not there or nothing in it matches."""
    folder, only = source_folder(component)
    if only is not None:
        return Listing((folder.stamp(only),), {})
    if not folder.fs.exists(folder.root):
        raise InputError(f"component {component.name}: {component.source} does not exist")
    found = []
    unread: Counter[str] = Counter()
    for stamp in folder.stamps():
        if not _matches(stamp.path, component.files):
            ending = PurePosixPath(stamp.path).suffix.encode(errors="backslashreplace").decode()  # a name may be no UTF-8
            unread[ending or "no ending"] += 1
            continue
        if stamp.size == NO_FILE:
            raise InputError(f"component {component.name}: {folder.url}/{stamp.path} is a broken link, or no file")
        try:
            relative_name(stamp.path)
            stamp.path.encode()
        except (StorageError, UnicodeEncodeError):
            raise InputError(f"component {component.name}: the file name {stamp.path!r} cannot be used") from None
        found.append(stamp)
    if not found:
        patterns = ", ".join(component.files)
        raise InputError(f"component {component.name}: no file in {component.source} matches {patterns}")
    return Listing(tuple(found), dict(sorted(unread.items())))


def parts(component: Component, listing: Listing, part_bytes: int = PART_BYTES) -> list[list[Slice]]:
    """The component's parts in id order: lists of slices of consecutive files."""
    folder, _ = source_folder(component)
    grouped: list[list[Slice]] = []
    group: list[Slice] = []

    def close() -> None:
        nonlocal group
        if group:
            grouped.append(group)
        group = []

    for stamp in listing.files:
        whole = Slice(stamp.path, stamp.size, stamp.version)
        if stamp.size >= part_bytes / 4:
            close()
            ranges = None
            if stamp.size > part_bytes:
                with folder.open(stamp.path) as stream:
                    ranges = component.reader.splits(stream)
            if ranges:
                grouped.extend([Slice(stamp.path, stamp.size, stamp.version, (r.start, r.stop))] for r in ranges)
            else:
                grouped.append([whole])
            continue
        group.append(whole)
        full = sum(one.size for one in group) >= part_bytes or len(group) >= GROUP_FILES
        if full or xxhash.xxh3_64_intdigest(stamp.path.encode()) % GROUP_CUT == 0:
            close()
    close()
    return grouped


class HashingStream(io.RawIOBase):
    """A seekable input file that is hashed once, in order, whatever way its reader moves about in it."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.at = 0
        self.hashed = 0
        self._sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data = self.raw.read(-1 if size is None else size)
        if self.at <= self.hashed < self.at + len(data):
            self._sha256.update(memoryview(data)[self.hashed - self.at :])
            self.hashed = self.at + len(data)
        self.at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = self.raw.seek(offset, whence)
        return self.at

    def tell(self) -> int:
        return self.at

    def finish(self) -> tuple[str, int]:
        """(hex SHA-256, bytes) of the whole file, reading what no one has read yet."""
        self.seek(self.hashed)
        while self.read(1 << 20):
            pass
        return self._sha256.hexdigest(), self.hashed


def check_unchanged(folder: Folder, planned: Slice) -> None:
    """InputError when the file is no longer the one that was planned for."""
    try:
        now = folder.stamp(planned.path)
    except FileNotFoundError:
        raise InputError(f"{folder.url}/{planned.path} has gone since the run was planned") from None
    if (now.size, now.version) != (planned.size, planned.version):
        raise InputError(f"{folder.url}/{planned.path} has changed since the run was planned; start the run again")


def input_record(planned: Slice, sha256: str, size: int) -> InputFile:
    return InputFile(path=planned.path, bytes=size, sha256=sha256)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)
