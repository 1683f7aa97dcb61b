"""What training a tokenizer takes: peak memory and CPU time, by number of documents, with and without a long run without a space.

    python -m bench.tokenizer_memory FOLDER [50000 200000]

Documents are made up: words of a Zipf distribution in five scripts, one in fifty a word of its own, and of another kind nothing
but Han without a space, where nearly every clause is a piece of its own. They are written as the sample that parts offer; a child
process then chooses among them and trains, as the step does, and the system tells its peak. FOLDER can be deleted afterwards.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from manifests.storage import Folder
from pipeline import documents
from pipeline.sample_budget import WHOLE
from pipeline.tokenizer_sample import SAMPLE, Offered, draw
from stages.tokenizer import TokenizerOptions, cut, sample_key, train_tokenizer

PART = 10_000
"""Documents in a part."""
WORDS = 100_000
"""Of a script."""
RUN_BYTES = 5_000_000
LETTERS = {
    "latin": "abcdefghijklmnopqrstuvwxyz",
    "cyrillic": "".join(map(chr, range(0x430, 0x450))),
    "greek": "".join(map(chr, range(0x3B1, 0x3CA))),
    "arabic": "".join(map(chr, range(0x627, 0x64B))),
    "devanagari": "".join(map(chr, range(0x915, 0x93A))),
}


class Author:
    """Documents by number, the same for the same number."""

    def __init__(self) -> None:
        chance = np.random.default_rng(1)
        self.words = {name: [word(chance, letters) for _ in range(WORDS)] for name, letters in LETTERS.items()}
        weights = np.cumsum(1 / np.arange(1, WORDS + 1))
        self.edges = weights / weights[-1]

    def spaced(self, number: int) -> str:
        chance = np.random.default_rng([2, number])
        script = [*LETTERS][number % len(LETTERS)]
        ranks = np.searchsorted(self.edges, chance.random(150)).tolist()
        own = [word(chance, LETTERS[script]) for _ in range(3)]
        return " ".join([*(self.words[script][rank] for rank in ranks), *own])

    def unspaced(self, number: int) -> str:
        chance = np.random.default_rng([3, number])
        ranks = np.searchsorted(self.edges[:4000] / self.edges[3999], chance.random(400)).tolist()
        characters = [chr(0x4E00 + rank) for rank in ranks]
        return "\u3002".join("".join(characters[start : start + 10]) for start in range(0, 400, 10))


def word(chance: np.random.Generator, letters: str) -> str:
    return "".join(letters[index] for index in chance.integers(0, len(letters), chance.integers(2, 11)).tolist())


def long_run() -> str:
    chance = np.random.default_rng(4)
    return "".join(LETTERS["latin"][index] for index in chance.integers(0, 26, RUN_BYTES).tolist())


def write_sample(folder: Folder, kind: str, count: int, run: bool, cap: int) -> list[str]:
    author = Author()
    make = author.spaced if kind == "spaced" else author.unspaced
    names = []
    for start in range(0, count, PART):
        texts = [make(number) for number in range(start, min(count, start + PART))]
        if run and not start:
            texts[7] = long_run()
        texts = [cut(text, cap) for text in texts]
        keys = [sample_key(0, str(start + row)) for row in range(len(texts))]
        column = pa.array(texts, pa.large_string())
        table = pa.table([pa.array(keys, pa.uint64()), pa.array(documents.text_bytes(column)), column], schema=SAMPLE)
        names.append(f"{kind}-{count}-{run}-{cap}/{start}.arrow")
        documents.write_table(folder, names[-1], table)
    return names


def measure(folder: Path, kind: str, count: int, run: bool, options: TokenizerOptions) -> Iterator[str]:
    """The cells of a row."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # makes the documents, whose memory is no part of what is measured
        names = write_sample(Folder(folder), kind, count, run, options.document_cap_bytes)
        os.write(writing, "\n".join(names).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        names = pipe.read().decode().split("\n")
    os.waitpid(child, 0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        offered = Offered(Folder(folder), {"all": names})
        taken, record = draw(offered, options, {"all": WHOLE})
        train_tokenizer(offered.texts(taken), options)
        os.write(writing, f"{offered.bytes['all']} {record['bytes']} {record['distinct_bytes']}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        there, used, distinct = map(int, pipe.read().split())
    _, _, usage = os.wait4(child, 0)
    yield from (f"{count:,}", kind, f"{RUN_BYTES // 10**6} MB" if run else "no", f"{options.document_cap_bytes:,}")
    yield from (f"{there / 1e6:.1f}", f"{used / 1e6:.1f}", f"{distinct / 1e6:.1f}")
    yield from (f"{usage.ru_maxrss / 1024:,.0f}", f"{usage.ru_utime + usage.ru_stime:.0f}")


def main() -> None:
    folder, *words = sys.argv[1:]
    counts = [int(one) for one in words] or [50_000, 200_000]
    bounded, uncut = TokenizerOptions(), TokenizerOptions(document_cap_bytes=RUN_BYTES)
    print(f"a process that has imported everything has {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB\n")
    print(
        "| documents | words | unspaced run | document cap | MB offered | MB used | MB distinct | MiB at its peak | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for count in counts:
        for run, options in ((False, bounded), (True, bounded), (True, uncut)):
            print(f"| {' | '.join(measure(Path(folder), 'spaced', count, run, options))} |", flush=True)
    print(f"| {' | '.join(measure(Path(folder), 'unspaced', max(counts), False, bounded))} |", flush=True)


if __name__ == "__main__":
    main()
