"""What encoding a part and packing a shard take: the most memory of a process that does just that.

    python -m bench.token_memory FOLDER

Texts are the test data's, over and over; ids of made-up shards are random. Files are made below FOLDER, which can be deleted.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from manifests.storage import Folder
from stages.tokenizer import TokenizerOptions, train_tokenizer
from tests.pipeline.token_parts import BATCH, peak_of, write_part
from tests.real.documents import SIZE, documents, sample

MB = 1_000_000
PARTS = (0, 30, 120, 480)
"""MB of text."""
SHARDS = ((0, 1000), (10 * MB, 1000), (50 * MB, 1000), (100 * MB, 1000), (10 * MB, 10))
"""Tokens, and tokens of each document."""


def batches(size: int) -> Iterator[list[str]]:
    texts = cycle(documents())
    for _ in range(size // (SIZE * BATCH)):
        yield list(islice(texts, BATCH))


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizer = train_tokenizer(sample(4000), TokenizerOptions()).encode()
    everything = "".join(documents())
    ascii_text = (everything.encode("ascii", "ignore") * 2)[: 100 * MB].decode()
    other_text = ("\u6c49\u5b57 \u0438 \u0441\u043b\u043e\u0432\u0430 " * 5 * MB).encode()[: 100 * MB].decode(errors="ignore")
    encoded: list[tuple[str, Iterator[list[str]]]] = [(f"a part of {size} MB", batches(size * MB)) for size in PARTS]
    encoded += [
        ("a document of 100 MB, ASCII", iter([[ascii_text]])),
        ("a document of 100 MB, Han and Cyrillic", iter([[other_text]])),
    ]
    print("| encode | MiB |\n|---|---|")
    for name, texts in encoded:
        shutil.rmtree(folder / "corpus", ignore_errors=True)
        corpus = Folder(folder / "corpus")
        corpus.write("tokenizer.json", tokenizer)
        write_part(corpus, texts)
        print(f"| {name} | {peak_of('encode', corpus.url)} |", flush=True)
    print("\n| pack: tokens | tokens a document | MiB |\n|---|---|---|")
    for tokens, length in SHARDS:
        shutil.rmtree(folder / "corpus", ignore_errors=True)
        peak_of("write", folder / "corpus", tokens, length)
        print(f"| {tokens:,} | {length:,} | {peak_of('pack', folder / 'corpus')} |", flush=True)


if __name__ == "__main__":
    main()
