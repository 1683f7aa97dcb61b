"""A document's identity: (component, file, position), printed `component/file#position`.

`component` is the recipe's name for a source, `file` the input file's path relative to the component's root, and
`position` a number that depends on the file alone: the byte offset of the record (WARC, ARC: where its compressed member
starts; the uncompressed offset in files of one member), the line number counted from 0 with blank and bad lines (JSONL),
the row index (Parquet), or 0 (a file of a folder). It does not depend on parser, sharding, workers or other files.
*Id order* is the order of the triple: component and file by code point, position as a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from manifests.manifest import SPLITS

COMPONENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class DocumentId(NamedTuple):
    component: str
    file: str
    position: int

    def __str__(self) -> str:
        return f"{self.component}/{self.file}#{self.position}"

    @staticmethod
    def parse(printed: str) -> DocumentId:
        """The triple behind a printed id; ValueError when it is not one."""
        path, hash_mark, position = printed.rpartition("#")
        component, slash, file = path.partition("/")
        if not (hash_mark and slash and file and position.isdecimal() and COMPONENT_NAME.fullmatch(component)):
            raise ValueError(f"{printed!r} is not a document id: expected component/file#position")
        return DocumentId(component, file, int(position))


def printed_ids(batch: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """The printed id of every row, from its columns component, file and position."""
    path = pc.binary_join_element_wise(batch["component"], batch["file"], "/")
    return pc.binary_join_element_wise(path, pc.cast(batch["position"], pa.string()), "#")


def keyed_hash(key: str, printed_id: str) -> int:
    """64 bits that place a document in a shard, a sample or a split: xxh3_64 of `key`, a NUL, and the printed id."""
    return xxhash.xxh3_64_intdigest(f"{key}\0{printed_id}".encode())


def url_key(url: str | None) -> str | None:
    """16 hex digits by which a whole URL is found in a log that does not hold its credentials and query."""
    return None if url is None else f"{xxhash.xxh3_64_intdigest(url.encode(errors='surrogatepass')):016x}"


def splits_of(clusters: Sequence[str], seed: int, shares: Mapping[str, float]) -> list[str]:
    """The split of each cluster, by the printed id of its smallest member: that of `shares` into which its keyed hash falls, or
    train."""
    bounds: list[tuple[int, str]] = []
    total = 0.0
    for name in SPLITS[1:]:
        total += shares.get(name, 0.0)
        bounds.append((int(total * 2**64), name))
    found: dict[str, str] = {}
    for cluster in clusters:
        if cluster not in found:
            place = keyed_hash(f"split {seed}", cluster)
            found[cluster] = next((name for bound, name in bounds if place < bound), SPLITS[0])
    return [found[cluster] for cluster in clusters]
