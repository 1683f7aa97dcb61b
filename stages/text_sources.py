"""Texts for those who train on them: JSON Lines, Parquet, plain text, folders and globs of these, and finished corpora.

A name stands for one file, for a folder (every file below it whose ending is known; the others are counted), for the files that a
pattern such as `pages/*.jsonl.gz` matches, or for a corpus, of which the training split is read. What cannot be read as a text is
counted with its reason; a file that is damaged or unreadable is an error, since what is trained on half of it would look whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import PurePosixPath
from typing import Any

from manifests.manifest import MANIFEST, Manifest, ManifestError
from manifests.storage import NO_FILE, Folder, StorageError, sha256_of
from stages.readers.folder import MEDIA_TYPES, Pages, PagesOptions
from stages.readers.folder import PACKINGS as PACKED
from stages.readers.jsonl import JsonLines, JsonLinesOptions
from stages.readers.media_types import PLAIN
from stages.readers.parquet import Parquet, ParquetOptions
from stages.readers.reader import Reader, ReaderConfigurationError
from stages.shard_texts import ShardTextError, load_encoder, texts_of

PLAIN_FILES = tuple(f"*{ending}{packing}" for ending, kind in MEDIA_TYPES.items() if kind == PLAIN for packing in ("", *PACKED))
BROKEN = frozenset({"unreadable", "damaged", "undecodable"})
"""Readers' rules for a file that is not all there."""
SPLIT = "train"


class SourceError(Exception):
    """Texts that are not there or cannot be read; the message names the file."""


@dataclass
class TextFile:
    """One file, or one corpus, or one `component` of it. Counts are complete once `texts` has been read to its end.

    read: documents that were met, those without a text included. lost: reader's rule → documents. blank: lines that are none.
    """

    name: str
    folder: Folder
    path: str
    reader: Reader[Any] | None
    component: str | None = None
    read: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    blank: int = 0
    identity: dict[str, Any] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """The texts in file order; SourceError when the file is not whole."""
        try:
            yield from self._of_corpus() if self.reader is None else self._of_file(self.reader)
        except (OSError, StorageError, ReaderConfigurationError, ManifestError, ShardTextError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SourceError(f"{self.name}: cannot be read: {reason}") from None

    def record(self) -> dict[str, Any]:
        """What a model card says of it."""
        counts = {"documents": self.read, "without_text": dict(sorted(self.lost.items()))}
        return {"path": self.name, **self.identity, **counts}

    def _of_file(self, reader: Reader[Any]) -> Iterator[str]:
        with self.folder.open(self.path) as file:
            digest, size = sha256_of(file)
        self.identity = {"bytes": size, "sha256": digest}
        skipped: Counter[str] = Counter()
        with self.folder.open(self.path) as file:
            for batch in reader.read(file, "texts", self.path, skipped):
                columns = (batch[name].to_pylist() for name in ("text", "payload", "rule", "detail"))
                for text, payload, rule, detail in zip(*columns, strict=True):
                    if rule in BROKEN:
                        raise SourceError(f"{self.name}: cannot be read: {detail or rule}")
                    self.read += 1
                    if rule is None and payload is not None:
                        try:
                            text = payload.decode().removeprefix("\ufeff")
                        except UnicodeDecodeError:
                            rule = "bad_utf8"
                    if rule is not None:
                        self.lost[rule] += 1
                    else:
                        yield text
        self.blank = skipped.total()

    def _of_corpus(self) -> Iterator[str]:
        manifest = Manifest.load(self.folder)
        tokenizer = manifest.content.tokenizer
        shards = manifest.shards(SPLIT, self.component)
        if tokenizer is None or not shards:
            raise SourceError(
                f"{self.name}: this corpus has no tokens of its training split, which are what its texts are kept in"
            )
        self.identity = {"corpus": manifest.digest, "split": SPLIT}
        encoder = load_encoder(self.folder, tokenizer)
        for shard in shards:
            for _, texts, _ in texts_of(self.folder, shard, tokenizer, encoder):
                self.read += len(texts)
                yield from texts.to_pylist()


@dataclass
class Sources:
    """The files that some names stand for, each once, by name; `unread` counts files of folders by ending."""

    files: list[TextFile]
    unread: Counter[str]


def find_texts(names: list[str], text_field: str = "text") -> Sources:
    """What `names` stand for; SourceError for one that is not there, or stands for nothing that could be read.

    `text_field` is the field of JSON Lines and the column of Parquet that holds the text.
    """
    found: dict[str, TextFile] = {}
    unread: Counter[str] = Counter()
    for name in names:
        try:
            files = list(_of_name(name, text_field, unread))
            if not files:
                raise SourceError(f"{name}: no file in it holds texts: looked for {', '.join(_PATTERNS)}")
            for one in files:
                found.setdefault(f"{one.folder.root}/{one.path}", one)
        except (OSError, StorageError) as error:
            raise SourceError(f"{name}: cannot be read: {error}") from None
    return Sources([found[key] for key in sorted(found)], unread)


def _of_name(name: str, text_field: str, unread: Counter[str]) -> Iterator[TextFile]:
    folder = Folder(name)
    if folder.fs.isfile(folder.root):
        parent, _, file = folder.url.rpartition("/")
        reader = _reader(file, text_field)
        if reader is None:
            raise SourceError(f"{name}: its name says no format that holds texts: {', '.join(_PATTERNS)}")
        yield TextFile(name, Folder(parent or ("/" if name.startswith("/") else ".")), file, reader)
    elif folder.fs.isdir(folder.root):
        if folder.exists(MANIFEST):
            yield TextFile(name, folder, "", None)
            return
        for stamp in folder.stamps():
            reader = _reader(PurePosixPath(stamp.path).name, text_field)
            if stamp.size == NO_FILE and reader is not None:
                raise SourceError(f"{folder.url}/{stamp.path}: a broken link, or no file")
            if reader is None:
                unread[PurePosixPath(stamp.path).suffix or "no ending"] += 1
                continue
            yield TextFile(f"{folder.url}/{stamp.path}", folder, stamp.path, reader)
    elif has_magic(name):
        if "://" in name:
            matches = [folder.fs.unstrip_protocol(match) for match in folder.fs.glob(folder.root)]
        else:
            matches = glob(name, recursive=True)
        if not matches:
            raise SourceError(f"{name}: no file matches")
        for match in sorted(matches):
            yield from _of_name(match, text_field, unread)
    else:
        raise SourceError(f"{name}: there is no such file or folder")


def _reader(file: str, text_field: str) -> Reader[Any] | None:
    for patterns, make in _FORMATS:
        if any(fnmatchcase(file, pattern) for pattern in patterns):
            return make(text_field)
    return None


_FORMATS = (
    (JsonLines.default_files, lambda text_field: JsonLines(JsonLinesOptions(text_field=text_field))),
    (Parquet.default_files, lambda text_field: Parquet(ParquetOptions(text_column=text_field))),
    (PLAIN_FILES, lambda text_field: Pages(PagesOptions())),
)
_PATTERNS = tuple(pattern for patterns, _ in _FORMATS for pattern in patterns if not pattern.endswith((*PACKED, ".text")))
