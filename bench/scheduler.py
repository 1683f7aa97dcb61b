"""What it costs to be scheduled: overhead of a run, growth of its cost with the corpus, thousands of parts that do little.

    python -m bench.scheduler overhead FOLDER [pages]   a crawl on all cores: wall time beside the CPU time of its parts
    python -m bench.scheduler linear FOLDER [documents] one recipe over 1, 4 and 16 times as many documents: time per document
    python -m bench.scheduler parts FOLDER [parts]      parts of one short document each: cost per part, the driver's memory, and
                                                        the start of a run that finds nothing to do
    python -m bench.scheduler memory FOLDER [MiB]       one part of that many MiB: peak memory beside what is declared

Everything is written below FOLDER, which must be empty or absent. CPU time is that of processes: a load changes wall times
only.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from manifests.storage import Folder
from pipeline.execution import InlineExecutor, RayExecutor
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.resources import MIB
from pipeline.run import run
from pipeline.tally import StepTally, Tally

PAGES = 320_000
"""About five minutes of two cores, most of them extraction."""
DOCUMENTS = 20_000
PARTS = 10_000
PART_MIB = 128
FILTERS = ["gopher_quality", "gopher_repetition", "c4", "fineweb"]
PAGE_STAGES = ["url_filter", "pre_check", "extraction", "repair", {"language": {"keep": ["en"]}}, *FILTERS, "personal_data"]
FILES = 4
"""Of the smallest corpus, each a part: parts are of one size in all of them."""
WORDS = 4_000
"""Made-up words, so that documents share no runs of words."""
WARC_PAGES = 4_000
SAID = ("the", "of", "and", "to", "a", "in", "that", "it", "was", "with", "be", "have")


def main() -> None:
    kinds = {"overhead": overhead, "linear": linear, "parts": parts, "memory": memory}
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    folder = Path(sys.argv[2])
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    kinds[sys.argv[1]](folder, *(int(word) for word in sys.argv[3:]))


class Watched(Progress):
    """Keeps the run's tally, and the driver's memory at the end of every step."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.tally: Tally | None = None
        self.resident: list[tuple[str, int]] = []

    def step(self, tally: StepTally) -> Any:
        self.resident.append((tally.name, _resident()))
        return super().step(tally)

    def times(self, tally: Tally) -> None:
        self.tally = tally


def overhead(folder: Path, pages: int = PAGES) -> None:
    write_pages(folder / "pages", pages)
    recipe = _recipe(folder, {"source": "pages", "format": "warc", "stages": PAGE_STAGES}, [])
    executor = RayExecutor()
    watched, began, cpu = Watched(), time.monotonic(), time.process_time()
    run(recipe, Folder(folder / "corpus"), executor, watched, 8 * MIB)
    wall, driver = time.monotonic() - began, time.process_time() - cpu
    assert watched.tally is not None
    own = sum(step.cpu_seconds for step in watched.tally.steps)
    local = sum(step.cpu_seconds for step in watched.tally.steps if step.name.startswith("docs."))
    spent = sum(step.part_seconds for step in watched.tally.steps)
    executor.close()
    Progress().times(watched.tally)
    cores = executor.cpus
    print(
        f"{pages:,} pages, {sum(step.done for step in watched.tally.steps)} parts, {cores} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(f"CPU of parts {own:.1f} s ({local:.1f} s row-local), of the driver {driver:.1f} s ({driver / own:.2%})")
    print(f"time within parts {spent:.1f} s: {own / spent:.2f} processors a part; {spent / wall / cores:.1%} of cores busy")
    print(f"wall {wall:.1f} s = {wall / (local / cores):.3f} x (row-local CPU / cores); bound 1.1")


def linear(folder: Path, documents: int = DOCUMENTS) -> None:
    corpus_wide = ["exact_dedup", {"minhash": {"bands": 14, "rows": 8}}, {"split": {"validation": 0.01, "test": 0.01}}]
    rows = []
    for times in (1, 4, 16):
        mine = folder / f"{times}x"
        write_texts(mine / "docs", times * documents, documents // FILES)
        recipe = _recipe(
            mine, {"source": "docs", "format": "jsonl", "stages": ["repair", *FILTERS, "personal_data"]}, corpus_wide
        )
        watched, began = Watched(), time.monotonic()
        run(recipe, Folder(mine / "corpus"), InlineExecutor(), watched, 1 << 20)
        assert watched.tally is not None
        if not rows:  # compiled code is loaded and compiled in the first run: measured apart
            watched = Watched()
            began = time.monotonic()
            run(recipe, Folder(mine / "again"), InlineExecutor(), watched, 1 << 20)
            assert watched.tally is not None
        steps = watched.tally.steps
        cpu = sum(step.cpu_seconds for step in steps)
        rows.append((times * documents, cpu, time.monotonic() - began, sum(step.done for step in steps)))
        by = {step.name: step.cpu_seconds / (times * documents) * 1e6 for step in steps}
        most = sorted(by.items(), key=lambda one: -one[1])[:8]
        print(f"{times:>2}x: " + ", ".join(f"{name} {micros:.0f}" for name, micros in most) + " µs a document")
    print("documents | parts | CPU s | CPU µs a document | of the first | wall s")
    for number, cpu, wall, done in rows:
        each = cpu / number
        print(f"{number:,} | {done} | {cpu:.1f} | {each * 1e6:.0f} | {each / (rows[0][1] / rows[0][0]):.3f} | {wall:.1f}")


def parts(folder: Path, number: int = PARTS) -> None:
    docs = folder / "docs"
    docs.mkdir()
    for index, text in enumerate(_texts(number, 12)):
        (docs / f"{index:06d}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    recipe = _recipe(folder, {"source": "docs", "format": "jsonl", "stages": ["repair", "personal_data"]}, ["exact_dedup"])
    executor = RayExecutor()
    executor.start()
    watched, began, cpu, start = Watched(), time.monotonic(), time.process_time(), _resident()
    run(recipe, Folder(folder / "corpus"), executor, watched, 1)
    wall, driver = time.monotonic() - began, time.process_time() - cpu
    assert watched.tally is not None
    steps = [step for step in watched.tally.steps if step.done >= number]
    own = sum(step.cpu_seconds for step in watched.tally.steps)
    done = sum(step.done for step in watched.tally.steps)
    inside = sum(step.part_seconds for step in watched.tally.steps)
    print(f"{done:,} parts in {wall:.1f} s; load {os.getloadavg()[0]:.1f}")
    for step in steps:
        each = step.seconds / step.done * 1e3
        print(f"  {step.name}: {each:.2f} ms of wall a part, {step.part_seconds / step.done * 1e3:.2f} ms within it")
    print(f"wall {wall / done * 1e3:.2f} ms a part, {inside / done * 1e3:.2f} ms within it, {own / done * 1e3:.2f} ms of its CPU")
    print(f"driver: {driver / done * 1e3:.2f} ms of CPU a part")
    print("driver's memory, MiB: " + ", ".join(f"{name} {size / MIB:.0f}" for name, size in watched.resident))
    after, peak = _resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    each = (after - start) / done
    print(f"  {start / MIB:.0f} before, {after / MIB:.0f} after, {peak / MIB:.0f} at most: {each:.0f} bytes a part")
    total, left = executor.ray.cluster_resources(), executor.ray.available_resources()
    held = total["object_store_memory"] - left["object_store_memory"]
    print(f"Ray's object store holds {held:.0f} bytes after the run")
    executor.close()
    for kind in ("as it was left", "without receipts/standing.json"):
        code = (
            "import sys; from pipeline.recipe import Recipe; from pipeline.run import run; from manifests.storage import Folder\n"
            "from pipeline.execution import RayExecutor; from pipeline.progress import Progress\n"
            "print(sum(run(Recipe.load(sys.argv[1]), Folder(sys.argv[2]), RayExecutor(), Progress(), 1).ran.values()),"
            " 'parts run')"
        )
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, recipe.path, str(folder / "corpus")], check=True)
        took = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = took.ru_utime + took.ru_stime - before.ru_utime - before.ru_stime
        print(f"nothing to do, {kind}: {time.monotonic() - began:.2f} s, {cpu:.2f} s of CPU")
        (folder / "corpus" / "receipts" / "standing.json").unlink()


def memory(folder: Path, size: int = PART_MIB) -> None:
    write_texts(folder / "texts", size * MIB // 4_300, 1 << 30)
    recipe = {
        "corpus": "memory",
        "components": {
            "texts": {
                "source": "texts",
                "format": "jsonl",
                "licence": "PD",
                "stages": ["repair", "language", *FILTERS, "personal_data"],
            }
        },
        "stages": ["exact_dedup", {"minhash": {}}, {"split": {"validation": 0.01, "test": 0.01}}, {"tokenizer": {}}, "shards"],
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    executor, watched = RayExecutor(workers=1), Watched()
    run(Recipe.load(path), Folder(folder / "corpus"), executor, watched, PART_MIB * MIB)
    executor.close()
    assert watched.tally is not None
    Progress().times(watched.tally)


def write_texts(folder: Path, documents: int, per_file: int) -> None:
    """JSON Lines of documents of about 4.3 kB."""
    folder.mkdir(parents=True)
    texts = _texts(documents, 760)
    for first in range(0, documents, per_file):
        with open(folder / f"{first:09d}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(min(per_file, documents - first)):
                file.write(json.dumps({"text": next(texts)}) + "\n")


def write_pages(folder: Path, pages: int) -> None:
    """WARC files of pages of about 4.3 kB, most of it text."""
    folder.mkdir(parents=True)
    texts = _texts(pages, 700)
    for first in range(0, pages, WARC_PAGES):
        with open(folder / f"{first:09d}.warc.gz", "wb") as file:
            for number in range(first, min(first + WARC_PAGES, pages)):
                file.write(gzip.compress(_record(number, next(texts)), 1, mtime=0))


def _record(number: int, text: str) -> bytes:
    lines = "".join(f"<p>{line}</p>\n" for line in text.split("\n"))
    menu = "".join(f"<li><a href='/{word}'>{word}</a></li>" for word in ("news", "about", "contact", "help"))
    head = f"<!doctype html><html><head><title>Page {number}</title></head><body><nav><ul>{menu}</ul></nav><article>"
    body = f"{head}{lines}</article><footer>All rights reserved</footer></body></html>".encode()
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    fields = {
        "WARC-Type": "response",
        "WARC-Target-URI": f"https://site{number % 977}.example/{number}",
        "WARC-Date": "2026-11-20T12:00:00Z",
        "WARC-Record-ID": f"<urn:uuid:00000000-0000-4000-8000-{number:012d}>",
        "Content-Type": "application/http; msgtype=response",
        "Content-Length": str(len(http)),
    }
    return b"WARC/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items()).encode() + b"\r\n" + http + b"\r\n\r\n"


def _texts(documents: int, words: int) -> Iterator[str]:
    """Sentences of made-up words among which stand those that every English text has; the same ones each time."""
    chance = random.Random("scheduler")
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(WORDS)]
    for _ in range(documents):
        chosen = [chance.choice(SAID) if chance.random() < 0.4 else chance.choice(known) for _ in range(words)]
        lines = [" ".join(chosen[at : at + 14]).capitalize() + "." for at in range(0, words, 14)]
        yield "\n".join(" ".join(lines[at : at + 4]) for at in range(0, len(lines), 4))


def _recipe(folder: Path, component: dict[str, Any], stages: list[Any]) -> Recipe:
    path = folder / "recipe.yaml"
    written = {"corpus": "scheduler", "components": {"docs": {**component, "licence": "PD"}}, "stages": stages}
    path.write_text(yaml.safe_dump(written, sort_keys=False))
    return Recipe.load(path)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
