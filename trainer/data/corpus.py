"""The tokens of a corpus, read from nothing but its manifest, and refused when anything does not agree with it.

`Corpus.open` checks the manifest and the tokenizer; `Corpus.component` reads one component's shards of one split, after
their SHA-256, size, dtype, id range and document index were checked. Local shards are memory-mapped; those of an object
store are fetched once into a cache whose names are the digests.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.manifest import MANIFEST, Manifest, Shard, TokenizerRecord, digest
from manifests.schemas import SHARD_INDEX
from manifests.shards import ShardError, check_tokens
from manifests.storage import Folder, StorageError, sha256_of

Int64 = npt.NDArray[np.int64]

CACHE_VARIABLE = "CORPUSMILL_CACHE"
BUILT_AGAIN = "if the corpus was built again since, `corpusmill run` with the recipe of then gives that one back"
"""What to do about a model whose corpus had another tokenizer: the same recipe over the same input gives the same bytes."""


class CorpusError(Exception):
    """A corpus that cannot be trained on; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Component:
    """One component's documents in one split, shards one after the other.

    starts, lengths, text_bytes: int64, one a document; `starts` counts tokens over all shards, `lengths` counts BOS,
    `text_bytes` is the UTF-8 length of the document's text. `shard_starts` (shards + 1) are the shards' first tokens.
    """

    name: str
    split: str
    shards: tuple[Shard, ...]
    bos: int
    vocabulary: int
    starts: Int64
    lengths: Int64
    text_bytes: Int64
    shard_starts: Int64
    first_documents: Int64
    _tokens: tuple[npt.NDArray[np.unsignedinteger], ...]
    _indexes: tuple[Path, ...]

    @property
    def tokens(self) -> int:
        return int(self.shard_starts[-1])

    def read(self, begin: int, count: int) -> npt.NDArray[np.unsignedinteger]:
        """`count` tokens from `begin` on, or fewer at the end of the shard; they are never taken from the next one."""
        shard = int(np.searchsorted(self.shard_starts, begin, side="right")) - 1
        local = begin - int(self.shard_starts[shard])
        return self._tokens[shard][local : local + count]

    def shard(self, number: int) -> npt.NDArray[np.unsignedinteger]:
        """The tokens of one shard."""
        return self._tokens[number]

    def document(self, begin: Int64) -> Int64:
        """The number of the document that each token of `begin` belongs to."""
        found: Int64 = np.searchsorted(self.starts, begin, side="right") - 1
        return found

    def ids(self) -> pa.ChunkedArray:
        """The printed document ids, read from the index files when asked for."""
        return pa.chunked_array(
            [chunk for path in self._indexes for chunk in pq.read_table(path, columns=["id"])["id"].chunks],
            type=pa.string(),
        )


class Corpus:
    """A manifest, and the folder it stands in."""

    def __init__(self, folder: Folder, manifest: Manifest, tokenizer: TokenizerRecord, cache: Path) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.cache = cache

    @staticmethod
    def open(manifest: str | os.PathLike[str], cache: str | os.PathLike[str] | None = None) -> Corpus:
        """The corpus of a manifest's path or URL, or of the folder that holds `manifest.json`.

        CorpusError when it has no tokenizer, no shards, or the tokenizer file is not the manifest's. ManifestError as
        `Manifest.load`.
        """
        url = os.fspath(manifest).rstrip("/")
        parent, _, name = url.rpartition("/")
        if not name.endswith(".json"):
            parent, name = url, MANIFEST
        folder = Folder(parent or ("/" if url.startswith("/") else "."))
        loaded = Manifest.load(folder, name)
        tokenizer = loaded.content.tokenizer
        if tokenizer is None or not loaded.content.shards:
            raise CorpusError(f"{url}: the recipe ended before its text became tokens; add the stages tokenizer and shards")
        _check_tokenizer(folder, tokenizer)
        home = cache or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "corpusmill"
        return Corpus(folder, loaded, tokenizer, Path(home))

    def components(self, split: str) -> list[str]:
        """Names of the components that have shards in a split, sorted; CorpusError when none has."""
        names = sorted({shard.component for shard in self.manifest.shards(split)})
        if not names:
            held = ", ".join(sorted({shard.split for shard in self.manifest.content.shards})) or "none"
            raise CorpusError(
                f"{self.folder.url}: the manifest has no {split} split (it has: {held}); held-out documents are never "
                "taken from another split, so give the recipe a split stage with a share for it"
            )
        return names

    def split_digest(self, split: str) -> str:
        """SHA-256 that stands for the documents of a split, in order: over the digests of its shards and their indexes."""
        return digest([[shard.sha256, shard.index_sha256] for shard in self.manifest.shards(split)])

    def component(self, name: str, split: str, verify: bool = True) -> Component:
        """One component of one split. `verify=False` is for ranks whose neighbour on the machine has just checked.

        CorpusError names the shard or index that is missing, changed, or does not agree with the manifest.
        """
        shards = tuple(self.manifest.shards(split, name))
        if not shards:
            raise CorpusError(f"{self.folder.url}: component {name!r} has no shards in split {split!r}")
        dtype = np.dtype(self.tokenizer.dtype).newbyteorder("<")
        tokens, indexes, tables = [], [], []
        for shard in shards:
            path = self._local(shard.path, shard.sha256, verify)
            index_path = self._local(shard.index, shard.index_sha256, verify)
            values = _map(path, shard, dtype)
            table = _read_index(index_path, shard)
            if verify:
                _check_shard(shard, values, table, self.tokenizer)
            tokens.append(values)
            indexes.append(index_path)
            tables.append(table)
        shard_starts = np.concatenate([[0], np.cumsum([shard.tokens for shard in shards])]).astype(np.int64)
        first_documents = np.concatenate([[0], np.cumsum([shard.documents for shard in shards])]).astype(np.int64)
        return Component(
            name=name,
            split=split,
            shards=shards,
            bos=self.tokenizer.bos_id,
            vocabulary=self.tokenizer.vocabulary,
            starts=np.concatenate([t["start"] + at for t, at in zip(tables, shard_starts[:-1], strict=True)]),
            lengths=np.concatenate([t["tokens"] for t in tables]),
            text_bytes=np.concatenate([t["bytes"] for t in tables]),
            shard_starts=shard_starts,
            first_documents=first_documents,
            _tokens=tuple(tokens),
            _indexes=tuple(indexes),
        )

    def _local(self, name: str, sha256: str, verify: bool) -> Path:
        """A local file with the content of `name`, its digest checked."""
        try:
            if not self.folder.local:
                return self._fetch(name, sha256)
            path = Path(self.folder.path(name))
            if verify:
                with self.folder.open(name) as file:
                    _same_digest(f"{self.folder.url}/{name}", sha256_of(file)[0], sha256)
            elif not path.exists():
                raise FileNotFoundError(path)
            return path
        except FileNotFoundError:
            raise CorpusError(f"{self.folder.url}/{name}: the manifest lists this file, and it is not there") from None
        except (StorageError, OSError) as error:
            raise CorpusError(f"{self.folder.url}/{name}: cannot be read: {error}") from None

    def _fetch(self, name: str, sha256: str) -> Path:
        target = self.cache / sha256[:2] / sha256
        if target.exists():
            with open(target, "rb") as held:
                if sha256_of(held)[0] == sha256:
                    return target
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
        try:
            digest_so_far = hashlib.sha256()
            with os.fdopen(handle, "wb") as out, self.folder.open(name) as source:
                while chunk := source.read(1 << 20):
                    digest_so_far.update(chunk)
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
            _same_digest(f"{self.folder.url}/{name}", digest_so_far.hexdigest(), sha256)
            os.replace(temporary, target)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        return target


def _check_tokenizer(folder: Folder, tokenizer: TokenizerRecord) -> None:
    try:
        found = hashlib.sha256(folder.read(tokenizer.file)).hexdigest()
    except FileNotFoundError:
        raise CorpusError(f"{folder.url}/{tokenizer.file}: the tokenizer that made the shards is not there") from None
    if found != tokenizer.sha256:
        raise CorpusError(
            f"{folder.url}/{tokenizer.file}: SHA-256 {found[:12]}… is not the {tokenizer.sha256[:12]}… of the tokenizer "
            "that made the shards"
        )


def _same_digest(where: str, found: str, expected: str) -> None:
    if found != expected:
        raise CorpusError(f"{where}: SHA-256 is {found[:12]}…, the manifest says {expected[:12]}…: the file was changed")


def _map(path: Path, shard: Shard, dtype: np.dtype[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    size = path.stat().st_size
    if size != shard.tokens * dtype.itemsize:
        raise CorpusError(
            f"{shard.path}: {size:,} bytes are not {shard.tokens:,} tokens of {dtype.name} "
            f"({shard.tokens * dtype.itemsize:,} bytes)"
        )
    if not shard.tokens:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(shard.tokens,))


def _read_index(path: Path, shard: Shard) -> dict[str, Int64]:
    columns = ["start", "tokens", "bytes"]
    try:
        table = pq.read_table(path, columns=columns)
    except (pa.ArrowException, KeyError) as error:
        raise CorpusError(f"{shard.index}: not a shard index: {error}") from None
    for name in columns:
        if name not in table.column_names or table.schema.field(name).type != SHARD_INDEX.field(name).type:
            raise CorpusError(f"{shard.index}: column {name!r} is missing or not {SHARD_INDEX.field(name).type}")
        if table[name].null_count:
            raise CorpusError(f"{shard.index}: column {name!r} has nulls")
    return {name: table[name].to_numpy() for name in columns}


def _check_shard(
    shard: Shard, values: npt.NDArray[np.unsignedinteger], index: dict[str, Int64], tokenizer: TokenizerRecord
) -> None:
    start, length = index["start"], index["tokens"]
    if len(start) != shard.documents or int(index["bytes"].sum()) != shard.text_bytes:
        raise CorpusError(f"{shard.index}: documents or bytes are not those of the manifest")
    if len(start) and (
        int(length.min()) < 1
        or int(index["bytes"].min()) < 0
        or not np.array_equal(start, np.cumsum(length) - length)
        or int(length.sum()) != shard.tokens
    ):
        raise CorpusError(f"{shard.index}: documents do not cover {shard.path} from its first token to its last")
    if not len(start):
        if shard.tokens:
            raise CorpusError(f"{shard.index}: no document, but {shard.path} has {shard.tokens:,} tokens")
        return
    try:
        check_tokens(values, tokenizer.vocabulary, shard.path)
    except ShardError as error:
        raise CorpusError(str(error)) from None
    if not np.all(values[start] == tokenizer.bos_id):
        wrong = int(np.flatnonzero(values[start] != tokenizer.bos_id)[0])
        raise CorpusError(f"{shard.path}: document {wrong} does not begin with the BOS id {tokenizer.bos_id}")
