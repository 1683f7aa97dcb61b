"""From split documents to shards: encode per part, pack per shard."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.identity import printed_ids
from manifests.manifest import SPLITS
from manifests.schemas import SHARD_INDEX
from manifests.shards import ShardError, TokenCheck
from manifests.storage import Folder
from pipeline import documents, shuffle
from pipeline.provenance import check_libraries
from pipeline.receipts import State
from pipeline.splitting import PartSplits
from pipeline.token_spill import TokenSpill, spill
from pipeline.work import Task
from stages.shards import document_offsets, document_order, order_keys, shard_count, shard_of
from stages.token_usage import Usage
from stages.tokenizer import Encoder, Engine

BYTES_PER_TOKEN = 4
"""What a shard's number of tokens is planned with, before anything is encoded."""
PLACED = pa.schema(
    [
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
    ]
)


ENCODED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("tokens", pa.large_binary(), nullable=False),
    ]
)
"""A document on its way to its shard. tokens: its ids as they stand there; a list of numbers would be picked number by number."""
INDEXED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
    ]
)
"""What is held of each document of a shard."""

RUN_BYTES = 32 << 20
"""Of what goes to shards or to the log, collected before it is sorted by where it goes."""
PLACED_ROWS = 65_536


def encode(task: Task) -> None:
    """Per part: tokens, shuffled by shard. inputs: `state`, `split`, `tokenizer`, `bos`, `engine`, `width` of
    streams; arguments: `seed`, `base` (the part's first record number in its component), `shards` (split → number of shards),
    `libraries`."""
    state = State.model_validate(task.inputs["state"])
    check_libraries(task.arguments["libraries"])
    encoder = _encoder(task.corpus.read(task.inputs["tokenizer"]).decode(), task.inputs["bos"], task.inputs["engine"])
    first_shard = shard_starts(task.arguments["shards"])
    split_of = PartSplits(task.corpus, task.inputs["split"])
    columns = ["row", "component", "file", "position", "language", "text"]
    usage = Usage(encoder.vocabulary)
    total = sum(task.arguments["shards"].values())
    with shuffle.writing(task.corpus, task.file("tokens.shuffle"), ENCODED, total, RUN_BYTES, task.inputs["width"]) as writer:
        for rows, batch in documents.read_state(task.corpus, state, columns):
            splits = split_of.of(rows)["split"].to_pylist()
            ids = printed_ids(batch)
            keys = order_keys(task.arguments["seed"], ids)
            offsets, tokens = encoder.encode(batch["text"])
            usage.count([language or "und" for language in batch["language"].to_pylist()], batch["text"], offsets, tokens)
            ordinal = pa.array(task.arguments["base"] + batch["row"].to_numpy())
            size = pa.array(documents.text_bytes(batch["text"]))
            shards = np.array([task.arguments["shards"][split] for split in splits], dtype=np.int64)
            shard = np.zeros(len(rows), dtype=np.int64)
            for count in np.unique(shards).tolist():
                mine = shards == count
                shard[mine] = shard_of(keys[mine], count)
            first = np.array([first_shard[split] for split in splits], dtype=np.int64)
            encoded = token_column(offsets, tokens)
            writer.add(pa.table([ids, pa.array(keys), ordinal, size, encoded], schema=ENCODED), first + shard)
    task.receipt.add("tokens", writer.out.written, writer.rows)
    task.receipt.values["usage"] = usage.sums()
    task.receipt.state = state


@lru_cache(maxsize=1)
def _encoder(tokenizer_json: str, bos: str | None, engine: Engine) -> Encoder:
    """Kept for the next part: it takes a second to set up one of 128,000 entries."""
    return Encoder(tokenizer_json, bos, engine)


def pack(task: Task) -> None:
    """Per shard: the flat file and its index. inputs: `tokens` (files), `chunks` (number of log files of the component),
    `width` of streams; arguments: `component`, `split`, `number`, `partition`, `vocabulary`, `dtype`, `log_rows`.

    Tokens wait on disk (`pipeline.token_spill`); held are the index's rows, and of the tokens one run of one shuffle file.
    """
    arguments = task.arguments
    check_libraries(arguments["libraries"])
    dtype = np.dtype(arguments["dtype"]).newbyteorder("<")
    name = shard_name(arguments["component"], arguments["split"], arguments["number"])
    check = TokenCheck(arguments["vocabulary"], name)
    found = [INDEXED.empty_table()]
    with spill(task.corpus, task.file("shard.bin"), dtype) as waiting:
        for rows in shuffle.gather_runs(task.corpus, task.inputs["tokens"], arguments["partition"]):
            found += [_spilled(batch, waiting) for batch in rows.to_batches()]
        documents_in = pa.concat_tables(found).combine_chunks()
        found.clear()
        order = document_order(documents_in["id"], documents_in["key"].to_numpy())
        with task.corpus.writer(task.file("shard.bin")) as out:
            for chunk in waiting.read(order):
                check.add(chunk)
                out.write(chunk)
            if (common := check.mostly()) is not None:
                raise ShardError(_guilty(waiting, order, documents_in, common, name))
    documents_in = documents_in.drop_columns("key").take(pa.array(order))
    lengths, ordinal = documents_in["tokens"], documents_in["ordinal"]
    ends = document_offsets(lengths.to_numpy())
    starts, total = pa.array(ends[:-1]), int(ends[-1])
    task.receipt.add("shard", out.written, total)
    index = pa.table([documents_in["id"], starts, lengths, documents_in["bytes"]], schema=SHARD_INDEX)
    task.receipt.add("index", write_parquet(task.corpus, task.file("shard.parquet"), index), len(order))
    chunks, width = task.inputs["chunks"], task.inputs["width"]
    with shuffle.writing(task.corpus, task.file("placed.shuffle"), PLACED, chunks, RUN_BYTES, width) as writer:
        for at in range(0, len(order), PLACED_ROWS):
            some = slice(at, at + PLACED_ROWS)
            columns = [ordinal[some], pa.repeat(name, len(ordinal[some])), starts[some], lengths[some]]
            writer.add(pa.table(columns, schema=PLACED), ordinal[some].to_numpy() // arguments["log_rows"])
    task.receipt.add("placed", writer.out.written, writer.rows)
    task.receipt.values = {
        "path": name,
        "component": arguments["component"],
        "split": arguments["split"],
        "tokens": total,
        "documents": len(order),
        "text_bytes": int(documents_in["bytes"].to_numpy().sum()),
    }


def _guilty(waiting: TokenSpill, order: np.ndarray, documents_in: pa.Table, common: int, name: str) -> str:
    """Why the shard is refused, with the document that has most of the id."""
    ends = document_offsets(documents_in["tokens"].to_numpy()[order])
    counts = np.zeros(len(order), np.int64)
    at = 0
    for chunk in waiting.read(order):
        places = at + np.flatnonzero(chunk == common)
        counts += np.bincount(np.searchsorted(ends, places, side="right") - 1, minlength=len(order))
        at += len(chunk)
    most = int(counts.argmax())
    return (
        f"{name}: {counts.sum():,} of its {at:,} tokens are the id {common}, and {counts[most]:,} of them stand in document "
        f"{documents_in['id'][int(order[most])].as_py()}: a trainer would refuse it. Filter such texts out (gopher_repetition "
        "removes those that repeat themselves), or make shards larger"
    )


def _spilled(batch: pa.RecordBatch, waiting: TokenSpill) -> pa.Table:
    """Hands on the tokens of a batch, and gives the rest as INDEXED, in memory of its own: that of the batch holds the tokens."""
    column = batch["tokens"]
    _, places, data = column.buffers()
    ends = np.frombuffer(places, np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends) // waiting.dtype.itemsize
    waiting.add(np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]].view(waiting.dtype), lengths)
    kept = pa.table([*(batch[name] for name in INDEXED.names[:-1]), pa.array(lengths)], schema=INDEXED)
    return kept.take(pa.array(np.arange(len(lengths))))


def shard_counts(documents_in: dict[str, int], split_bytes: dict[str, int], target_tokens: int) -> dict[str, int]:
    """Split → number of shards for one component, from its documents and UTF-8 bytes by split; 0 where there is no document."""
    return {
        split: min(documents_in[split], shard_count(split_bytes.get(split, 0) // BYTES_PER_TOKEN, target_tokens))
        if documents_in.get(split)
        else 0
        for split in SPLITS
    }


def shard_starts(shards: dict[str, int]) -> dict[str, int]:
    """Split → number of its first shard among all shards of the component."""
    starts, total = {}, 0
    for split in SPLITS:
        starts[split] = total
        total += shards[split]
    return starts


def shard_name(component: str, split: str, number: int) -> str:
    return f"tokens/{component}/{split}/{number:05d}.bin"


def token_column(offsets: np.ndarray, tokens: np.ndarray) -> pa.Array:
    """The column `tokens` of ENCODED for what `Encoder.encode` gives, without a copy."""
    places = pa.py_buffer(offsets * tokens.dtype.itemsize)
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, places, pa.py_buffer(tokens)])


def write_parquet(corpus: Folder, name: str, table: pa.Table) -> Any:
    """Parquet whose bytes depend on the rows alone; returns what was written."""
    with corpus.writer(name) as out:
        pq.write_table(table.combine_chunks(), out, compression="zstd", row_group_size=65_536, write_page_index=True)
    return out.written
