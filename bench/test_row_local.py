"""How fast each row-local stage is on one core, over the demo's documents: `make bench` prints documents/s and MB/s of CPU time.

The first call of a stage, which loads models and compiles kernels, is left out. Extraction, `pre_check` and `url_filter` get
pages, all others the text that extraction found. `quality_classifier` is left out, since its speed is that of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from bench.race import cpu_seconds, one_core
from demo.crawl import write_crawl
from manifests.schemas import DOCUMENTS, RECORDS, empty_rows
from stages import registry
from stages.stage import Filter, Stage

LEAST_SECONDS = 2.0
OPTIONS: dict[str, dict[str, object]] = {
    "language": {"keep": ["en"]},
    "pre_check": {"keep": ["en"], "words": ["porn"]},
    "url_filter": {"words": ["porn"]},
}
BENCHMARKS = str(Path(__file__).parents[1] / "demo" / "benchmarks")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> pa.RecordBatch:
    folder = tmp_path_factory.mktemp("bench") / "crawl"
    write_crawl(folder)
    found = list(_html(folder))
    return _batch(
        RECORDS,
        len(found),
        url=pa.array([url for url, _ in found]),
        media_type=pa.array(["text/html"] * len(found)),
        payload=pa.array([body for _, body in found], pa.large_binary()),
    )


@pytest.fixture(scope="module")
def documents(pages: pa.RecordBatch) -> pa.RecordBatch:
    stage = _stage("extraction")
    assert isinstance(stage, Stage)
    try:
        verdict = stage.decide(pages)
    finally:
        stage.close()
    texts = [text for text, rule in zip(verdict.columns["text"].to_pylist(), verdict.rule, strict=True) if rule < 0]
    return _batch(
        DOCUMENTS,
        len(texts),
        text=pa.array(texts, pa.large_string()),
        language=pa.array(["en"] * len(texts)),
        url=pa.array(["http://town.example/"] * len(texts)),
    )


@pytest.mark.parametrize("name", [name for name in registry.ROW_LOCAL if name != "quality_classifier"])
def test_speed(name: str, pages: pa.RecordBatch, request: pytest.FixtureRequest) -> None:
    batch = pages if name in ("url_filter", "pre_check", "extraction") else request.getfixturevalue("documents")
    stage = _stage(name)
    work = stage.measure if isinstance(stage, Filter) else stage.decide
    passes, seconds = 0, 0.0
    try:
        work(batch)
        with one_core():
            while seconds < LEAST_SECONDS:
                fresh = _copied(batch)  # filters remember what they read of the latest batch
                began = cpu_seconds()
                work(fresh)
                seconds += cpu_seconds() - began
                passes += 1
    finally:
        if isinstance(stage, Stage):
            stage.close()
    column = batch["payload"] if batch is pages else batch["text"]
    size = sum(len(value) if isinstance(value, bytes) else len(value.encode()) for value in column.to_pylist())
    print(f"\n| {name} | {passes * batch.num_rows / seconds:,.0f} | {passes * size / seconds / 1e6:.1f} |", end="")
    assert batch.num_rows > 400


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(range(batch.num_rows)))


def _html(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob("warc/*")):
        with path.open("rb") as stream:
            try:
                for record in ArchiveIterator(stream):
                    body = record.content_stream().read()
                    if record.rec_type == "response" and body.startswith(b"<!DOCTYPE"):
                        yield record.rec_headers.get_header("WARC-Target-URI"), body
            except ArchiveLoadFailed:
                pass  # the last file is damaged on purpose


def _batch(schema: pa.Schema, rows: int, **columns: pa.Array) -> pa.RecordBatch:
    identity = {
        "component": pa.array(["bench"] * rows),
        "file": pa.array(["bench"] * rows),
        "position": pa.array(range(rows)),
    }
    return empty_rows(schema, rows, **identity, **columns).combine_chunks().to_batches()[0]


def _stage(name: str) -> Stage | Filter:
    found = registry.find(name)
    options = {"benchmarks": BENCHMARKS} if name == "decontamination" else OPTIONS.get(name, {})
    return found(found.options_type(**options))
