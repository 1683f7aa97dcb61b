"""How fast the look before extraction is on real pages, how much it spares, and how often it is wrong.

    python -m bench.pre_check [--data FOLDER] [--step 1]

Pages are those of html_gold's trafilatura set, every third of wcxb, and the UDHR as HTML. Each is extracted (`fast`) and its
language judged at 0.65; a page is kept by these later stages when both keep it and its text has 200 characters. Then
`pre_check` looks at the same pages. Speed is the best of three passes, in CPU time.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import pyarrow as pa

from bench.extraction_settings import DATA
from manifests.schemas import RECORDS, empty_rows
from stages.extraction import Extraction, ExtractionOptions
from stages.language import THRESHOLD, Language, LanguageOptions
from stages.pre_check import PreCheck, PreCheckOptions

KEPT = (("en",), ("de",), ("en", "de"), ("fr",), ("zh", "ja"))
THRESHOLDS = (0.5, 0.8, 0.9)
LEAST = 200


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--step", type=int, default=1, help="take every so many pages")
    chosen = parser.parse_args(arguments)
    pages = [_read(path) for path in _paths(chosen.data)[:: chosen.step]]
    batch = _records(pages)
    later = _later(batch)
    print(f"{len(pages)} pages of {sum(map(len, pages)) / len(pages) / 1000:.0f} kB")
    print(f"{'keep':10} threshold  pages/s  later keep  remove  found there  wrong")
    for keep in KEPT:
        kept = [label in keep and score > THRESHOLD and length >= LEAST for label, score, length in later]
        for threshold in THRESHOLDS:
            stage = PreCheck(PreCheckOptions(keep=keep, min_characters=LEAST, threshold=threshold, sample=0))
            stage.decide(batch.slice(0, 3))
            seconds = []
            for _ in range(3):
                began = time.process_time()
                found = stage.decide(batch).rule >= 0
                seconds.append(time.process_time() - began)
            stage.close()
            wrong = sum(gone and stays for gone, stays in zip(found, kept, strict=True))
            share = (int(found.sum()) - wrong) / (len(kept) - sum(kept))
            row = f"{','.join(keep):10} {threshold:9.2f} {len(pages) / min(seconds):8,.0f}"
            print(f"{row} {sum(kept):11} {len(kept) - sum(kept):7} {share:11.1%} {wrong:6}", flush=True)


def _later(batch: pa.RecordBatch) -> list[tuple[str, float, int]]:
    """(label, score, characters) of every page's extracted text."""
    extraction, language = Extraction(ExtractionOptions(fast=True)), Language(LanguageOptions())
    texts = [text or "" for text in extraction.decide(batch).columns["text"].to_pylist()]
    extraction.close()
    return [(*language.predict(text)[0], len(text)) for text in texts]


def _paths(data: Path) -> list[Path]:
    return [
        *sorted((data / "html_gold" / "trafilatura").glob("*/*.html.gz")),
        *sorted((data / "html_gold" / "wcxb").glob("*/html/*.html.gz"))[::3],
        *sorted(path for path in (data / "langid" / "udhr_html").rglob("*") if path.is_file()),
    ]


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _records(pages: list[bytes]) -> pa.RecordBatch:
    rows = len(pages)
    identity = {"component": pa.array(["gold"] * rows), "file": pa.array(["gold"] * rows), "position": pa.array(range(rows))}
    types, payloads = pa.array(["text/html"] * rows), pa.array(pages, pa.large_binary())
    return empty_rows(RECORDS, rows, **identity, media_type=types, payload=payloads).combine_chunks().to_batches()[0]


if __name__ == "__main__":
    main()
