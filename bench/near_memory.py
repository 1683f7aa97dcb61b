"""What near-duplicate removal takes by step: peak memory of its largest task, CPU time, and bytes written for each document.

    python -m bench.near_memory FOLDER 200000 1000000 [stage ...]

Each task runs in a forked process of its own, whose peak the system tells; what the process had at the fork is in it. Corpora are
made below FOLDER, which can be deleted afterwards. Stages are minhash, or those that are named, such as split.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

from bench.planted import planted
from bench.test_peers import write_lines
from manifests.storage import Folder
from pipeline.execution import Executor, Outcome
from pipeline.progress import Progress
from pipeline.receipts import Receipt
from pipeline.recipe import Recipe
from pipeline.run import run
from pipeline.work import Work, execute

PIECE = 50_000
"""Documents that are planted together, and make a file."""


class ForkingExecutor(Executor):
    """Each task in a child; `peak` (MiB) and `seconds` (CPU) by step."""

    def __init__(self) -> None:
        self.peak: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)
        self.receipts: dict[str, list[Receipt]] = defaultdict(list)

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        for work in works:
            child = os.fork()
            if child == 0:
                try:
                    execute(corpus_url, work)
                except BaseException as error:
                    print(f"{work.step} {work.part}: {error!r}", file=sys.stderr)
                    os._exit(1)
                os._exit(0)
            _, status, usage = os.wait4(child, 0)
            if status:
                yield Outcome(work, None, "the task failed")
                continue
            self.peak[work.step] = max(self.peak[work.step], usage.ru_maxrss / 1024)
            self.seconds[work.step] += usage.ru_utime + usage.ru_stime
            receipt = execute(corpus_url, work)
            self.receipts[work.step].append(receipt)
            yield Outcome(work, receipt)


def write_documents(folder: Path, count: int) -> int:
    """Writes files of planted documents; their bytes of text. In a child, whose memory is no part of what is measured."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        size = 0
        for number in range(-(-count // PIECE)):
            texts = planted(PIECE, seed=number).texts
            size += sum(len(text.encode()) for text in texts)
            write_lines(texts, folder / f"{number:04d}")
        os.write(writing, str(size).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(reading, 32))


def measure(folder: Path, count: int, stages: list[str]) -> None:
    size = write_documents(folder / "docs", count)
    component = {"source": "docs", "format": "jsonl", "files": "**/*.jsonl", "licence": "PD"}
    recipe = {"corpus": "bench", "components": {"docs": component}, "stages": stages}
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    executor = ForkingExecutor()
    run(Recipe.load(str(folder / "recipe.yaml")), Folder(folder / "corpus"), executor, Progress(quiet=True))
    print(f"\n{count:,} documents of {size / count:,.0f} bytes\n")
    print(
        "| step | tasks | MiB at its peak | CPU seconds | µs a document | bytes written a document |\n|---|---|---|---|---|---|"
    )
    for step, seconds in executor.seconds.items():
        written = sum(file.bytes for receipt in executor.receipts[step] for file in receipt.files.values())
        figures = f"{executor.peak[step]:,.0f} | {seconds:,.1f} | {seconds / count * 1e6:,.1f} | {written / count:,.1f}"
        print(f"| {step} | {len(executor.receipts[step])} | {figures} |")
    print(f"all: {sum(executor.seconds.values()):,.1f} CPU seconds", flush=True)


def main() -> None:
    folder, *words = sys.argv[1:]
    counts = [int(word) for word in words if word.isdecimal()]
    stages = [word for word in words if not word.isdecimal()] or ["minhash"]
    for count in counts:
        measure(Path(folder) / str(count), count, stages)


if __name__ == "__main__":
    main()
