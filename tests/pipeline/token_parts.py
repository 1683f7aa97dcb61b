"""Parts and shards by themselves, without the steps before them: for tests and benchmarks of encoding and packing.

As a program it does one of them in a process of its own and prints the most memory that the process had, in MiB:

    python -m tests.pipeline.token_parts write FOLDER TOKENS LENGTH
    python -m tests.pipeline.token_parts pack FOLDER
    python -m tests.pipeline.token_parts encode FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from manifests.schemas import empty_rows
from manifests.storage import Folder
from pipeline import documents, shuffle, tokens
from pipeline.documents import STORED
from pipeline.provenance import versions
from pipeline.receipts import Receipt, State
from pipeline.splitting import SPLIT
from pipeline.token_steps import LIBRARIES
from pipeline.work import Task, Work

BATCH = 256
"""Rows of the readers' batches."""
FILES = 16
"""Shuffle files that a made-up shard comes from."""


def write_part(corpus: Folder, texts: Iterable[list[str]], splits: dict[int, str] | None = None) -> int:
    """A part's documents, a batch a list, and their splits (train where nothing else is said); how many documents."""
    rows = 0
    with corpus.writer("documents.arrow") as out, pa.ipc.new_file(out, STORED, options=documents.IPC) as sink:
        for batch in texts:
            numbers = pa.array(range(rows, rows + len(batch)), pa.int64())
            constant = {name: pa.array(["bench"] * len(batch)) for name in ("component", "file")}
            columns = {"row": numbers, "position": numbers, "language": pa.array(["en"] * len(batch))}
            sink.write_table(
                empty_rows(STORED, len(batch), **constant, **columns, text=pa.array(batch, pa.large_string())),
                max_chunksize=max(1, len(batch)),
            )
            rows += len(batch)
    named = [(splits or {}).get(row, "train") for row in range(rows)]
    table = pa.table([pa.array(range(rows), pa.int64()), pa.array(named, pa.string()), pa.array([""] * rows)], schema=SPLIT)
    documents.write_table(corpus, "split.arrow", table)
    return rows


def encode_part(corpus: Folder, rows: int, shards: int, engine: str, name: str = "0") -> Receipt:
    """What the step does with the part; the tokenizer is the corpus's tokenizer.json."""
    state = State(documents="documents.arrow", rows=rows, documents_kept=rows, digest="")
    arguments = {"seed": 1, "shards": {"train": shards, "validation": 0, "test": 0}, "base": 0, "libraries": versions(LIBRARIES)}
    inputs = {"state": state.model_dump(), "split": "split.arrow", "tokenizer": "tokenizer.json", "bos": None, "engine": engine}
    inputs["width"] = 1
    work = Work("encode", name, "pipeline.tokens:encode", 1, {**arguments, "name": name}, (), inputs)
    receipt = Receipt(step="encode", part=name, fingerprint=work.fingerprint)
    tokens.encode(Task(corpus, work, receipt))
    return receipt


def pack_shard(corpus: Folder, files: list[str], number: int, vocabulary: int, dtype: str) -> Receipt:
    """What the step makes of partition `number` of shuffle files."""
    arguments = {"component": "bench", "split": "train", "number": number, "partition": number, "libraries": {}}
    arguments |= {"vocabulary": vocabulary, "dtype": dtype, "log_rows": 1 << 20}
    inputs = {"tokens": files, "chunks": 1 << 10, "width": 1}
    work = Work("pack", str(number), "pipeline.tokens:pack", 1, arguments, (), inputs)
    receipt = Receipt(step="pack", part=str(number), fingerprint=work.fingerprint)
    tokens.pack(Task(corpus, work, receipt))
    return receipt


def write_encoded(corpus: Folder, count: int, length: int) -> None:
    """`encoded`, FILES shuffle files of one partition: `count` random ids below 50,000 in all, in documents of `length`."""
    chance = np.random.default_rng(1)
    each = count // FILES // length
    for number in range(FILES):
        with shuffle.writing(corpus, f"encoded/{number:02d}.shuffle", tokens.ENCODED, 1, tokens.RUN_BYTES) as writer:
            for first in range(0, each, 1 << 10):
                rows = min(1 << 10, each - first)
                offsets = np.arange(rows + 1, dtype=np.int64) * length
                encoded = tokens.token_column(offsets, chance.integers(0, 50_000, rows * length, np.uint16))
                ids = [f"bench/a-file-with-a-usual-name-{number:04d}.jsonl.gz#{row}" for row in range(first, first + rows)]
                ordinals = np.arange(number * each + first, number * each + first + rows)
                columns = [pa.array(ids), pa.array(chance.integers(0, 1 << 63, rows, np.uint64)), pa.array(ordinals)]
                table = pa.table([*columns, pa.array(np.full(rows, 4 * length)), encoded], schema=tokens.ENCODED)
                writer.add(table, np.zeros(rows, np.int64))


def peak_of(*words: str | Path) -> int:
    """MiB of a process that does what the words say."""
    command = [sys.executable, "-m", "tests.pipeline.token_parts", *map(str, words)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    return int(done.stdout)


def peak() -> int:
    """MiB that this process had at most; what `getrusage` says begins with the parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def main() -> None:
    what, folder, *numbers = sys.argv[1:]
    corpus = Folder(folder)
    if what == "write":
        write_encoded(corpus, *map(int, numbers))
    elif what == "pack":
        pack_shard(corpus, corpus.names("encoded"), 0, 50_000, "uint16")
    else:
        encode_part(corpus, documents.read_table(corpus, "split.arrow").num_rows, 1, "tiktoken")
    print(peak())


if __name__ == "__main__":
    main()
