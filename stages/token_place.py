"""From a token back to the record it came from: which document stands at an offset of a shard, and what is written there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from manifests.identity import DocumentId
from manifests.logs import Logs
from manifests.manifest import Manifest, Shard
from manifests.shards import ShardError
from manifests.storage import Folder
from stages.shard_texts import load_encoder, read_index
from stages.tokenizer import Encoder

SHOWN_TOKENS = 64
"""Tokens before the place, and from it on, that are shown unless more are asked for."""


@dataclass(frozen=True)
class Place:
    """A token. `document` is its row in the document log; `number` its place in the document's tokens, 0 being BOS. before, text,
    after: what the tokens of the document around it say; a character that the cut goes through is U+FFFD."""

    shard: str
    offset: int
    token: int
    number: int
    tokens: int
    document: dict[str, Any]
    source: str
    licence: str
    before: str
    text: str
    after: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def find_place(corpus: Folder, manifest: Manifest, shard_name: str, offset: int, shown: int = SHOWN_TOKENS) -> Place:
    """The token at `offset` of a shard, which goes by its path in the corpus or the end of that (`train/00017.bin`). ShardError
    says which shard or offset there is not; ShardTextError, which index or tokenizer is not the one of the manifest. Of the shard
    only what is shown is read: whether the rest is as it was, `corpusmill verify` tells."""
    content = manifest.content
    shard = _shard(content.shards, shard_name)
    if not 0 <= offset < shard.tokens:
        raise ShardError(f"{shard.path} has {shard.tokens:,} tokens: there is no token {offset:,}")
    assert content.tokenizer is not None  # a manifest with shards has one
    index = read_index(corpus, shard)
    starts = index["start"].to_numpy()
    row = int(np.searchsorted(starts, offset, side="right")) - 1
    length = index["tokens"][row].as_py()
    identity = DocumentId.parse(index["id"][row].as_py())
    first, last = max(int(starts[row]), offset - shown), min(int(starts[row]) + length, offset + shown)
    dtype = np.dtype(content.tokenizer.dtype).newbyteorder("<")
    raw = corpus.read_range(shard.path, first * dtype.itemsize, (last - first) * dtype.itemsize)
    ids = np.frombuffer(raw, dtype)
    if len(ids) != last - first:
        raise ShardError(f"{shard.path} is shorter than its manifest says")
    encoder = load_encoder(corpus, content.tokenizer)
    at = offset - first
    with Logs(corpus, manifest, only=["documents"]) as logs:
        where = [identity.component, identity.file, identity.position]
        rows = logs.sql("select * from documents where component = ? and file = ? and position = ?", where)
    if not rows:
        raise ShardError(f"{shard.index} names {identity}, of which the document log knows nothing")
    if (rows[0]["shard"], rows[0]["start"]) != (shard.path, int(starts[row])):
        raise ShardError(f"{shard.index} and the document log do not agree where {identity} stands: see `corpusmill verify`")
    component = content.components[identity.component]
    return Place(
        shard=shard.path,
        offset=offset,
        token=int(ids[at]),
        number=offset - int(starts[row]),
        tokens=length,
        document=rows[0],
        source=component.source,
        licence=component.licence,
        before=_text(encoder, ids[:at]),
        text=_text(encoder, ids[at : at + 1]),
        after=_text(encoder, ids[at + 1 :]),
    )


def _shard(shards: list[Shard], name: str) -> Shard:
    found = [shard for shard in shards if shard.path == name or shard.path.endswith(f"/{name}")]
    if len(found) == 1:
        return found[0]
    if not found:
        known = ", ".join(shard.path for shard in shards[:3]) + (", …" if len(shards) > 3 else "")
        raise ShardError(f"there is no shard {name}" + (f"; there are {known}" if shards else ": the corpus has none"))
    raise ShardError(f"{name} is the end of {len(found)} shards, such as {found[0].path} and {found[1].path}")


def _text(encoder: Encoder, ids: np.ndarray) -> str:
    return encoder.decode(ids).decode(errors="replace")
