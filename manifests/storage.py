"""Every path of corpusmill goes through here: local folders, `s3://`, `gs://` and whatever fsspec knows.

Two things are promised. A write is atomic: a reader sees the whole file or none (locally: temporary name, fsync,
rename; on object stores: one put of a finished local file). And a `Folder` never reaches outside itself: names that
are absolute or climb with `..` are refused, so a manifest from a stranger cannot point at other files.

Trouble with a store is an OSError, whatever the store's own library raises, so that it is told from a mistake and tried again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

import fsspec

READ_CHUNK = 1 << 20
TEMPORARY_PREFIX = ".partial-"
NO_FILE = -1
"""The size of what lies in a folder and cannot be read as a file."""


class StorageError(Exception):
    """A path that cannot be used: outside the folder, missing, or written by somebody else."""


@dataclass(frozen=True)
class FileStamp:
    """What a listing knows of a file without reading it; `version` is an ETag, or the modification time in ns."""

    path: str
    size: int
    version: str


@dataclass(frozen=True)
class Written:
    """A file that was committed: its name within the folder, size in bytes and hex SHA-256."""

    path: str
    size: int
    sha256: str


def relative_name(name: str) -> str:
    """`name` in normal form, or StorageError when it is absolute, climbs with `..`, is empty, or holds a NUL or backslash."""
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name or "://" in name:
        raise StorageError(f"{name!r} is not a path inside the corpus")
    return str(pure)


class Folder:
    """A folder on any file system. Names given to its methods are relative, with `/`, and stay inside it."""

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        if not os.fspath(url):
            raise StorageError("an empty path names no folder")
        self.url = os.fspath(url).rstrip("/") or "/"
        self.options = options
        try:
            self.fs, self.root = fsspec.core.url_to_fs(self.url, **options)
        except (ValueError, ImportError) as error:
            raise StorageError(f"{self.url}: {error}") from None
        self.root = self.root.rstrip("/")
        self.local = "file" in (self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,))
        if not self.local:
            self.fs = _Store(self.fs, self.url)

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_folder, (self.url, self.options))

    def path(self, name: str) -> str:
        """The file system's own path of `name`."""
        return f"{self.root}/{relative_name(name)}"

    def folder(self, name: str) -> Folder:
        return Folder(f"{self.url}/{relative_name(name)}", **self.options)

    def exists(self, name: str) -> bool:
        return bool(self.fs.exists(self.path(name)))

    def size(self, name: str) -> int:
        return int(self.fs.size(self.path(name)))

    def open(self, name: str) -> BinaryIO:
        """`name` for reading; FileNotFoundError when it is not there."""
        path = self.path(name)
        if self.local and not stat.S_ISREG(os.stat(path).st_mode):
            raise StorageError(f"{path} is not a regular file")
        opened: BinaryIO = self.fs.open(path, "rb")
        return opened

    def read(self, name: str) -> bytes:
        if self.local:
            with self.open(name) as file:
                return file.read()
        self.fs.invalidate_cache()
        data: bytes = self.fs.cat_file(self.path(name))
        return data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path(name), start=start, end=start + length)
        return data

    def names(self, prefix: str = "") -> list[str]:
        """All files under `prefix`, relative to this folder, sorted; temporary files of unfinished writes are left out."""
        base = self.path(prefix) if prefix else self.root
        self.fs.invalidate_cache()
        if not self.fs.exists(base):
            return []
        found = (str(path)[len(self.root) + 1 :] for path in self.fs.find(base))
        return sorted(name for name in found if not PurePosixPath(name).name.startswith(TEMPORARY_PREFIX))

    def stamp(self, name: str) -> FileStamp:
        self.fs.invalidate_cache()
        return _stamp(name, self.fs.info(self.path(name)))

    def stamps(self) -> list[FileStamp]:
        """Every file below, sorted by name, with size and version. Local links are followed, each folder once; what is neither
        file nor folder (a broken link, a pipe) has the size NO_FILE."""
        if self.local:
            return sorted(_local_stamps(self.root, self.root, set()), key=lambda stamp: stamp.path)
        self.fs.invalidate_cache()
        found = self.fs.find(self.root, detail=True)
        listed = [_stamp(str(path)[len(self.root) + 1 :], info) for path, info in found.items()]
        return sorted(listed, key=lambda stamp: stamp.path)

    def write(self, name: str, data: bytes) -> Written:
        """Replaces `name` by `data`, atomically."""
        with self.writer(name) as out:
            out.write(data)
        return out.written

    def write_json(self, name: str, value: Any) -> Written:
        """Replaces `name` by a value for people and programs to read: UTF-8, indented, with a line break at its end."""
        return self.write(name, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[AtomicWriter]:
        """A file to be written from start to end; it appears under `name` when the block ends without an exception."""
        target = self.path(name)
        directory = os.path.dirname(target)
        if self.local:
            os.makedirs(directory, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=directory if self.local else None)
        writer = AtomicWriter(relative_name(name), os.fdopen(handle, "wb"))
        try:
            yield writer
            writer.finish()
            if self.local:
                os.chmod(temporary, 0o644)
                os.replace(temporary, target)
                sync_directory(directory)
            else:
                self.fs.put_file(temporary, target)
        finally:
            # What is left in the buffer is written once more, which fails again on a full disk: the name goes all the same.
            with contextlib.suppress(OSError):
                writer.file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def create(self, name: str, data: bytes) -> bool:
        """Writes `name` only if nobody has: False when it exists (exclusive create locally, conditional put on S3)."""
        target = self.path(name)
        if self.local:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=os.path.dirname(target))
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
            return True
        try:
            self.fs.pipe_file(target, data, mode="create")
        except FileExistsError:
            return False
        return True

    def overwrite(self, stamp: FileStamp, data: bytes) -> bool:
        """Replaces the file of `stamp` only if it is still that version: False when it is another, or gone.

        A conditional put on S3; elsewhere two that do so at the same moment can both succeed.
        """
        target = self.path(stamp.path)
        if "s3" in (self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,)):
            try:
                self.fs.pipe_file(target, data, IfMatch=f'"{stamp.version}"')
            except OSError as error:
                answer = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
                if answer in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"):
                    return False
                raise
            return True
        if not self.exists(stamp.path) or self.stamp(stamp.path) != stamp:
            return False
        self.write(stamp.path, data)
        return True

    def written_at(self, name: str) -> float | None:
        """When `name` was last written, in seconds by the clock of the store, whatever ours says; None where it does not tell."""
        self.fs.invalidate_cache()
        try:
            return float(self.fs.modified(self.path(name)).timestamp())
        except (NotImplementedError, AttributeError):
            return None

    def delete(self, name: str) -> None:
        """Removes a file or a folder with all it holds; nothing happens when it is not there."""
        path = self.path(name)
        self.fs.invalidate_cache()
        if self.fs.exists(path):
            self.fs.rm(path, recursive=True)


class _Store:
    """A file system of fsspec whose library's own exceptions come out as OSError: s3fs lets those of botocore and aiohttp by."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """pyarrow asks whether it is given a file system of fsspec."""
        return type(self._fs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        return functools.partial(self._call, found) if callable(found) else found

    def _call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        with _as_trouble(self._url):
            result = method(*arguments, **options)
            return _StoredFile(result, self._url) if isinstance(result, io.IOBase) and result.readable() else result


class _StoredFile(io.RawIOBase):
    """An open file of a store, for reading."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with _as_trouble(self._url):
            data: bytes = self._file.read(-1 if size is None else size)
            return data

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


@contextlib.contextmanager
def _as_trouble(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, StorageError, NotImplementedError, AttributeError, MemoryError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error


class AtomicWriter:
    """A binary file that counts and hashes what is written; `written` is set once it is complete."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name
        self.file = file
        self.size = 0
        self.written = Written(name, 0, "")
        self.closed = False
        self._sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        self.file.write(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Kept for writers that call it; durability comes at the end, in one fsync."""

    def close(self) -> None:
        """Kept for writers that close what they were given; the `with` block commits."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def finish(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.written = Written(self.name, self.size, self._sha256.hexdigest())


def sha256_of(file: BinaryIO) -> tuple[str, int]:
    """(hex SHA-256, bytes) of what is left of an open file, read in chunks."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(READ_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def json_object(path: Path, failure: type[Exception], absent: str) -> dict[str, Any]:
    """The object in a JSON file of a run's folder; `failure` in one line where there is none, `absent` where there is no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise failure(absent) from None
    except (OSError, ValueError, RecursionError) as error:
        raise failure(f"{path}: unreadable: {error}") from None
    if not isinstance(found, dict):
        raise failure(f"{path}: not what a run writes")
    return found


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def is_within(where: str, corpus: Folder) -> bool:
    """Is this folder the corpus, or does it lie in it, links followed?"""
    if corpus.local != (not is_remote(where)):
        return False
    root, place = corpus.url.rstrip("/"), where.rstrip("/")
    if corpus.local:
        root, place = os.path.realpath(corpus.root), os.path.realpath(where.removeprefix("file://"))
    return place == root or place.startswith(root.rstrip("/") + "/")


def _folder(url: str, options: dict[str, Any]) -> Folder:
    return Folder(url, **options)


def _local_stamps(folder: str, root: str, seen: set[str]) -> Iterator[FileStamp]:
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):  # which of two links is followed depends on names alone
            if entry.is_dir():
                yield from _local_stamps(entry.path, root, seen)
            elif entry.is_file():
                found = entry.stat()
                yield FileStamp(entry.path[len(root) + 1 :], found.st_size, str(found.st_mtime_ns))
            else:
                yield FileStamp(entry.path[len(root) + 1 :], NO_FILE, "")


def _stamp(name: str, info: dict[str, Any]) -> FileStamp:
    for key in ("ETag", "etag", "md5Hash"):
        if info.get(key):
            return FileStamp(name, int(info["size"]), str(info[key]).strip('"'))
    if "mtime" in info:
        modified = os.stat(info["name"]).st_mtime_ns if os.path.exists(info["name"]) else info["mtime"]
        return FileStamp(name, int(info["size"]), str(modified))
    return FileStamp(name, int(info["size"]), str(info.get("LastModified", info.get("created", ""))))


def sync_directory(path: str) -> None:
    """Makes the names in a local folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
