"""What decontamination costs with the index of a large folder of benchmarks: loading it, its memory, and CPU time a document.

    python -m bench.decontamination

Documents are those of `make bench` (books, news, reviews, crawl samples); sentences of Lingua in other scripts, joined to
documents of as many characters; and the former as a finished corpus holds them, in tokens (`corpusmill contamination`). Speed is
the best of five passes in CPU time. Memory is that of a process that has loaded the index, less one with an index of one item.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from stages.decontamination import Decontamination, DecontaminationOptions
from stages.tokenizer import Encoder, TokenizerOptions, train_tokenizer
from tests.real.documents import DATA, SIZE, documents

BATCH = 1000
LANGUAGES = ("ru", "el", "ar", "fa", "hi", "bn", "ta", "th", "ko", "zh", "ja")
LOADS = "from bench.decontamination import load; import sys; load(sys.argv[1])"


def main() -> None:
    benchmarks = DATA / "benchmarks"
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one.jsonl"
        one.write_text(json.dumps({"text": " ".join(map(str, range(20)))}))
        loaded = [
            [float(word) for word in subprocess.check_output([sys.executable, "-c", LOADS, str(path)], text=True).split()]
            for path in (one, one, benchmarks)  # the first may compile
        ]
    (_, (seconds, peak), (more_seconds, more_peak)) = loaded
    stage = Decontamination(DecontaminationOptions(benchmarks=str(benchmarks)))
    index = stage.index
    counts = f"{len(index.names):,} items, {index.ngrams:,} n-grams, {len(index.unchecked):,} items unchecked"
    print(f"{counts}: {index.bytes / 1e6:.0f} MB")
    print(f"loading: {more_seconds:.2f} s of CPU ({seconds:.2f} s for one item), {more_peak - peak:.0f} MB more at the peak")
    texts = documents()
    _report("books, news, reviews, crawls", texts, stage)
    sentences: dict[str, str] = {}
    for line in gzip.decompress((DATA / "langid" / "lingua_sentences.jsonl.gz").read_bytes()).splitlines():
        row = json.loads(line)
        sentences[row["label"]] = f"{sentences.get(row['label'], '')}{row['text']}\n"
    for language in LANGUAGES:
        text = sentences[language]
        _report(language, [text[at : at + SIZE] for at in range(0, len(text), SIZE)], stage)
    encoder = Encoder(train_tokenizer(texts[::20], TokenizerOptions(vocabulary=8192)))
    offsets, ids = encoder.encode(pa.array(texts[:4000], pa.large_string()))
    best = _best(lambda: index.scan_all(encoder.decode_all(ids, offsets)))
    decoding = _best(lambda: encoder.decode_all(ids, offsets))
    print(
        f"{'4,000 of the first, from tokens':32} {1e6 * best / 4000:6.1f} us a document, {1e6 * decoding / 4000:.1f} to decode it"
    )


def load(path: str) -> None:
    """Prints the CPU time that loading takes, and the peak of this process's memory in MB."""
    began = time.process_time()
    Decontamination(DecontaminationOptions(benchmarks=path)).compile()
    print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


def _report(name: str, texts: list[str], stage: Decontamination) -> None:
    batches = [
        pa.record_batch({"text": pa.array(texts[at : at + BATCH], pa.large_string())}) for at in range(0, len(texts), BATCH)
    ]
    best = _best(lambda: [stage.decide(batch) for batch in batches])
    size = sum(len(text.encode()) for text in texts)
    found = sum(int((stage.decide(batch).rule >= 0).sum()) for batch in batches)
    speed = f"{1e6 * best / len(texts):6.1f} us a document of {size / len(texts) / 1000:.1f} kB, {size / best / 1e6:.0f} MB/s"
    print(f"{name:32} {speed} ({len(texts):,}, {found:,} contaminated)")


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(5):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
