"""The tokenizer of a corpus: a sample of its training documents, and what is trained on it or read from a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from manifests.manifest import SPLITS
from manifests.storage import Folder
from pipeline import documents
from pipeline.provenance import check_data, check_libraries
from pipeline.receipts import State
from pipeline.splitting import PartSplits
from pipeline.work import Task
from stages.tokenizer import PARITY_BYTES, Encoder, TokenizerOptions, choose_engine, sample_key, train_tokenizer

SAMPLE_MARGIN = 1.2
"""Each part offers this much more than its share of the sample, so that the merged sample fills its budget."""
SAMPLE = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)


def sample(task: Task) -> None:
    """Per part: training documents with the smallest keys, each cut to the cap. inputs: `state`, `split`; arguments: `seed`,
    `share` of the documents that is offered, `cap` in bytes of UTF-8."""
    state = State.model_validate(task.inputs["state"])
    bound = int(min(1.0, task.arguments["share"]) * (2**64 - 1))
    tables = [SAMPLE.empty_table()]
    split_of = PartSplits(task.corpus, task.inputs["split"])
    for rows, batch in documents.read_state(task.corpus, state, ["component", "file", "position", "text"]):
        train = np.array([split == SPLITS[0] for split in split_of.of(rows)["split"].to_pylist()])
        ids = printed_ids(batch).to_pylist()
        keys = [sample_key(task.arguments["seed"], one) for one in ids]
        chosen = [row for row in np.flatnonzero(train).tolist() if keys[row] <= bound]
        if chosen:
            texts = [cut(batch["text"][row].as_py(), task.arguments["cap"]) for row in chosen]
            columns = [pa.array([keys[row] for row in chosen], pa.uint64()), pa.array([ids[row] for row in chosen])]
            tables.append(pa.table([*columns, pa.array(texts, pa.large_string())], schema=SAMPLE))
    table = pa.concat_tables(tables).sort_by([("key", "ascending"), ("id", "ascending")])
    task.receipt.add("sample", documents.write_table(task.corpus, task.file("sample.arrow"), table), table.num_rows)


def cut(text: str, cap: int) -> str:
    """`text` cut to at most `cap` bytes of UTF-8, between characters."""
    data = text.encode()
    return text if len(data) <= cap else data[:cap].decode(errors="ignore")


def make_tokenizer(task: Task) -> None:
    """Trains on the merged sample, or takes the given file. inputs: `samples` (files), `file` or None; arguments: `options`."""
    options = TokenizerOptions.model_validate(task.inputs["options"])
    check_libraries(task.arguments["libraries"])
    check_data(task.inputs["paths"], task.arguments["data"])
    record: dict[str, Any] = {}
    merged = pa.concat_tables(
        [SAMPLE.empty_table(), *(documents.read_table(task.corpus, name) for name in task.inputs["samples"])]
    )
    merged = merged.sort_by([("key", "ascending"), ("id", "ascending")])
    lengths = documents.text_bytes(merged["text"])
    if options.file is not None:
        text = read_input(options.file).decode()
    else:
        count = int(np.searchsorted(np.cumsum(lengths), options.sample_bytes, side="right"))
        count = min(max(count, 1), merged.num_rows)
        text = train_tokenizer((scalar.as_py() for scalar in merged["text"][:count]), options)
        record = {"documents": count, "bytes": int(lengths[:count].sum())}
    encoder = Encoder(text, options.bos)
    engine, note = "tokenizers", None
    if options.engine == "auto":
        tried = int(np.searchsorted(np.cumsum(lengths), PARITY_BYTES, side="right"))
        engine, note = choose_engine(text, options.bos, (scalar.as_py() for scalar in merged["text"][:tried]))
    task.receipt.add("tokenizer", task.corpus.write(task.file("tokenizer.json"), text.encode()), 1)
    task.receipt.values = {
        "vocabulary": encoder.vocabulary,
        "dtype": np.dtype(encoder.dtype).name,
        "bos_id": encoder.bos_id,
        "special_tokens": encoder.special_tokens,
        "training": record,
        "engine": engine,
        "engine_note": note,
    }


def read_input(path: str) -> bytes:
    """A whole file that the recipe names."""
    parent, _, name = path.rpartition("/")
    return Folder(parent or "/").read(name)
