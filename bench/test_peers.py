"""Ours beside other people's implementations, in one run on one core: `make bench` prints a row of the table for each work.

Documents are tests/real/documents.py's, cut from the test data to 4.3 kB. A slow peer gets a sample of them, evenly spread.
Speeds are printed and not asserted; that both sides do the same work is asserted.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fasttext
import ftfy
import pyarrow as pa
import pytest

from bench.race import Side, cpu_seconds, one_core, race, report
from manifests.manifest import Manifest
from manifests.rules import decide
from manifests.schemas import DOCUMENTS, RECORDS, empty_rows
from manifests.storage import Folder
from pipeline.provenance import versions
from stages import registry
from stages.language import Language, LanguageOptions, shipped_model
from stages.minhash import signatures
from stages.repair import ENCODING_ONLY
from stages.shingles import shingle_sets
from stages.stage import Filter, Stage
from tests.real.documents import DATA, SIZE, documents, sample

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")
BATCH = 256
"""Rows of the readers' batches."""
FILTERS = ("gopher_quality", "gopher_repetition", "c4", "fineweb")
FEW = int(os.environ.get("CORPUSMILL_BENCH_SAMPLE", 150))
"""Documents that datatrove's filters get."""


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    with one_core():
        yield


def batches(texts: list[str], **columns: Any) -> list[pa.RecordBatch]:
    """The texts as a reader gives them. Made anew for each turn: filters remember what they read of the latest batch."""
    found = []
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        constant = {name: pa.array([value] * len(part)) for name, value in columns.items()}
        found.append(rows(DOCUMENTS, len(part), text=pa.array(part, pa.large_string()), **constant))
    return found


def rows(schema: pa.Schema, count: int, **columns: pa.Array) -> pa.RecordBatch:
    identity = {
        "component": pa.array(["bench"] * count),
        "file": pa.array(["bench"] * count),
        "position": pa.array(range(count)),
    }
    return empty_rows(schema, count, **identity, **columns).combine_chunks().to_batches()[0]


def english(texts: list[str]) -> list[pa.RecordBatch]:
    return batches(texts, language="en")


def built(name: str, **options: Any) -> Any:
    found = registry.find(name)
    return found(found.options_type(**options))


def test_what_is_compared() -> None:
    names = "datatrove spacy ftfy fasttext-modern trafilatura resiliparse numba pyarrow numpy".split()
    found = ", ".join(f"{name} {version}" for name in names if (version := versions((name,))[name]) != "not installed")
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    here = f"{model[1] if model else platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    given = documents()
    size = sum(len(text.encode()) for text in given)
    print(
        f"\n{here}; {found}\n{len(given):,} documents of {size / len(given):,.0f} bytes on the mean; one core, CPU time", end=""
    )
    print("\n\n| work | other | ours | ratio | wanted |\n|---|---|---|---|---|", end="")
    assert len(given) > 10_000


# Filters


def measured_and_judged(filters: list[Filter[Any]]) -> Callable[[list[pa.RecordBatch]], None]:
    """Signals and rules of a block of filters."""
    rules = [rule for one in filters for rule in one.rules()]

    def work(given: list[pa.RecordBatch]) -> None:
        for batch in given:
            signals: dict[str, pa.Array] = {}
            for one in filters:
                signals.update(one.measure(batch).signals)
            decide(rules, pa.table(signals))

    return work


def judged_by_datatrove(names: tuple[str, ...]) -> Callable[[list[str]], None]:
    pytest.importorskip("spacy")
    pytest.importorskip("datatrove")
    from datatrove.data import Document
    from datatrove.pipeline import filters
    from datatrove.utils.text import split_into_parts

    types = {
        "gopher_quality": filters.GopherQualityFilter,
        "gopher_repetition": filters.GopherRepetitionFilter,
        "c4": filters.C4QualityFilter,
        "fineweb": filters.FineWebQualityFilter,
    }
    chain = [types[name]() for name in names]

    def work(texts: list[str]) -> None:
        for text in texts:
            split_into_parts.cache_clear()  # the words of a text that was seen a turn ago
            for one in chain:
                one.filter(Document(text=text, id=""))

    return work


@pytest.mark.parametrize("names", [FILTERS, *((name,) for name in FILTERS)], ids="+".join)
def test_filters_beside_datatrove(names: tuple[str, ...]) -> None:
    peer = Side(judged_by_datatrove(names), sample(FEW))
    ours = Side(measured_and_judged([built(name) for name in names]), documents(), english)
    race(peer, ours)
    together = "signals and rules of all four filters" if names == FILTERS else f"{names[0]}, signals and rules"
    report(together, "datatrove", peer.rate, ours.rate, 12_000 if names == FILTERS else None)


@pytest.mark.parametrize("name", ["gopher_repetition", "fineweb"])
def test_compat_gives_datatroves_verdicts(name: str) -> None:
    pytest.importorskip("spacy")
    pytest.importorskip("datatrove")
    from tests.real.test_datatrove import differences, first_rules, reasons

    texts = sample(2000)
    theirs = reasons(name, texts)
    found = differences(name, first_rules(name, texts), theirs)
    print(f"\n{name}, compat: datatrove: {found.total()} of {len(texts):,} verdicts or reasons differ", end="")
    assert not found
    assert 0 < theirs.count(None) < len(texts)


# Text


def test_repair_beside_ftfy_on_every_text() -> None:
    stage = built("repair")
    texts = documents()[::4]
    found: list[str] = []
    expected: list[str] = []

    def ours(given: list[pa.RecordBatch]) -> None:
        for batch in given:
            verdict = stage.decide(batch)
            found.extend((verdict.columns["text"] if "text" in verdict.columns else batch["text"]).to_pylist())

    def theirs(given: list[str]) -> None:
        expected.extend(ftfy.fix_text(text, ENCODING_ONLY) for text in given)

    peer, our = Side(theirs, texts), Side(ours, texts, english)
    race(peer, our)
    differ = sum(one != other for one, other in zip(found, expected, strict=True))
    print(f"\nrepair: {differ} of {len(texts):,} outputs differ", end="")
    assert differ == 0
    megabytes = sum(len(text.encode()) for text in texts) / len(texts) / 1e6
    report("repair", "ftfy on every text", peer.rate * megabytes, our.rate * megabytes, 3, "MB/s")


def decided(stage: Stage[Any]) -> Callable[[list[pa.RecordBatch]], None]:
    def work(given: list[pa.RecordBatch]) -> None:
        for batch in given:
            stage.decide(batch)

    return work


@pytest.mark.parametrize("characters", [None, 1000])
def test_language_beside_fasttext_on_the_whole_text(characters: int | None) -> None:
    model = fasttext.load_model(shipped_model())
    stage = Language(LanguageOptions(sample_characters=characters))
    texts = documents()[::2]

    def theirs(given: list[str]) -> None:
        for text in given:
            model.predict(text.replace("\n", " "))

    peer, ours = Side(theirs, texts), Side(decided(stage), texts, batches)
    race(peer, ours)
    name = "language" if characters is None else f"language, sampled: {characters:,} characters"
    report(name, "fastText", peer.rate, ours.rate, 0.9 if characters is None else 4)
    if characters is not None:
        whole = Language(LanguageOptions())
        mixed = declarations()
        for kind, some in (("the documents", texts), (f"{len(mixed)} declarations of human rights", mixed)):
            differ = sum(whole.predict(text)[0][0] != stage.predict(text)[0][0] for text in some)
            print(f"\nlanguage: {differ} of {len(some):,} labels of {kind} differ from those of the whole text", end="")


def declarations() -> list[str]:
    """The Universal Declaration of Human Rights in the languages that the data has in UTF-8, cut to SIZE."""
    found = []
    for path in sorted((DATA / "langid" / "udhr").glob("*UTF8.gz")):
        found.append(gzip.decompress(path.read_bytes()).decode("utf-8", "replace")[:SIZE])
    return found


def test_personal_data_beside_datatrove() -> None:
    pytest.importorskip("datatrove")
    from datatrove.pipeline.formatters import PIIFormatter

    formatter = PIIFormatter()

    def theirs(given: list[str]) -> None:
        for text in given:
            formatter.format(text)

    texts = documents()[::4]
    peer, ours = Side(theirs, texts), Side(decided(built("personal_data")), texts, batches)
    race(peer, ours)
    report("personal_data (phone numbers too)", "datatrove", peer.rate, ours.rate, None)


def test_minhash_signatures_beside_datatrove(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    pytest.importorskip("datatrove")
    from datatrove.pipeline.dedup import MinhashConfig, MinhashDedupSignature
    from datatrove.utils.hashing import HashConfig

    # Its default, xxHash, fails with the xxhash 4 that is installed here. The hash is a small part of its time.
    signer = MinhashDedupSignature(str(tmp_path), config=MinhashConfig(hash_config=HashConfig(hash_fc="sha1")))

    def theirs(given: list[str]) -> None:
        for text in given:
            shingles = signer.get_shingles(text)
            if shingles.size:
                signer.get_signature(shingles)

    def our(given: list[pa.RecordBatch]) -> None:
        for batch in given:
            signatures(shingle_sets(batch["text"]), 14 * 8)

    peer, ours = Side(theirs, sample(4 * FEW)), Side(our, documents()[::2], english)
    race(peer, ours)
    report("MinHash signatures, 14 x 8, word 5-grams", "datatrove", peer.rate, ours.rate, None)


# Pages


def pages(count: int) -> list[bytes]:
    """Pages of html_gold, evenly spread over its sets."""
    paths = sorted((DATA / "html_gold").rglob("*.html.gz"))
    return [gzip.decompress(paths[number * len(paths) // count].read_bytes()) for number in range(count)]


@pytest.mark.parametrize("options", [{}, {"favor": "precision"}, {"fast": True}], ids=["balanced", "precision", "fast"])
def test_extraction_in_the_sandbox_beside_bare_trafilatura(options: dict[str, Any]) -> None:
    from trafilatura import extract
    from trafilatura.settings import Extractor

    stage = built("extraction", **options)
    settings = Extractor(
        output_format="txt",
        fast=bool(options.get("fast")),
        precision=options.get("favor") == "precision",
        comments=False,
        tables=True,
        dedup=False,
    )

    def theirs(given: list[bytes]) -> None:
        for page in given:
            extract(page, options=settings)

    def prepared(given: list[bytes]) -> list[pa.RecordBatch]:
        payloads = pa.array(given, pa.large_binary())
        return [rows(RECORDS, len(given), media_type=pa.array(["text/html"] * len(given)), payload=payloads)]

    found = pages(2 * FEW)
    peer, ours = Side(theirs, found), Side(decided(stage), found, prepared)
    try:
        race(peer, ours, rounds=20, warm=30)
    finally:
        stage.close()
    setting = ", ".join(f"{name}: {value}".lower() for name, value in options.items()) or "balanced"
    report(f"extraction in the sandbox, {setting}", "bare trafilatura", peer.rate, ours.rate, 0.95)


# A whole chain


LANGUAGE: list[Any] = [{"language": {"keep": ["en"]}}]
CHAIN: list[Any] = ["gopher_repetition", "gopher_quality", "c4", "fineweb"]
"""FineWeb's order. A document that one of datatrove's filters removes is not seen by the next; ours measure all."""


@pytest.mark.parametrize("stages", [CHAIN, LANGUAGE + CHAIN], ids=["filters", "language and filters"])
def test_a_chain_with_all_its_logs_beside_datatrove(stages: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    pytest.importorskip("datatrove")
    every = documents()
    peers = marginal(cpu_of_datatrove, stages, sample(2 * FEW), tmp_path / "peer")
    ours = marginal(cpu_of_ours, stages, every, tmp_path / "ours")
    name = "four filters" if stages is CHAIN else "language and four filters"
    report(f"{name}, JSON Lines to kept texts and all logs", "datatrove", peers, ours, 60)
    started = len(every) / cpu_of_ours_in_a_process(every, stages, tmp_path / "fresh")
    report(f"the same on {len(every):,} documents, our start and set-up included", "datatrove", peers, started, None)


def marginal(run: Callable[[list[str], list[Any], Path], float], stages: list[Any], texts: list[str], folder: Path) -> float:
    """Documents a second of CPU time, without what a run of a tenth of them takes: models and set-up are in both."""
    small = texts[::10]
    run(small, stages, folder / "warm")
    less, all_ = run(small, stages, folder / "small"), run(texts, stages, folder / "all")
    return (len(texts) - len(small)) / (all_ - less)


def write_lines(texts: list[str], folder: Path) -> None:
    folder.mkdir(parents=True)
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text, "id": str(number)}) + "\n" for number, text in enumerate(texts))


def write_recipe(texts: list[str], stages: list[Any], folder: Path) -> Path:
    write_lines(texts, folder / "docs")
    component = {"source": "docs", "format": "jsonl", "licence": "PD", "stages": stages}
    recipe = {"corpus": "bench", "components": {"docs": component}, "stages": []}
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")  # JSON is YAML
    return folder / "recipe.yaml"


def cpu_of_ours(texts: list[str], stages: list[Any], folder: Path) -> float:
    from pipeline.execution import InlineExecutor
    from pipeline.progress import Progress
    from pipeline.recipe import Recipe
    from pipeline.run import run

    path = write_recipe(texts, stages, folder)
    began = cpu_seconds()
    result = run(Recipe.load(path), Folder(folder / "corpus"), InlineExecutor(), Progress(quiet=True))
    used = cpu_seconds() - began
    assert result.manifest.content.components["docs"].documents_in == len(texts)
    return used


def cpu_of_ours_in_a_process(texts: list[str], stages: list[Any], folder: Path) -> float:
    path = write_recipe(texts, stages, folder)
    program = "from manifests.commands import main; main()"
    command = [sys.executable, "-c", program, "run", str(path), "--corpus", str(folder / "corpus")]
    began = cpu_seconds()
    subprocess.run([*command, "--executor", "inline", "--quiet"], check=True, capture_output=True)
    used = cpu_seconds() - began
    assert Manifest.load(Folder(folder / "corpus")).content.components["docs"].documents_in == len(texts)
    return used


def cpu_of_datatrove(texts: list[str], stages: list[Any], folder: Path) -> float:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline import filters
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    model = fasttext.load_model(shipped_model())

    def in_english(document: Any) -> bool:
        """datatrove's own language filter downloads its model."""
        labels, scores = model.predict(document.text.replace("\n", " "))
        return labels[0] == "__label__en" and scores[0] > 0.65

    def removed(name: str) -> JsonlWriter:
        return JsonlWriter(str(folder / "removed" / name), compression=None)

    write_lines(texts, folder / "docs")
    began = cpu_seconds()
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):  # its log of the run
        LocalPipelineExecutor(
            pipeline=[
                JsonlReader(str(folder / "docs")),
                *([filters.LambdaFilter(in_english, exclusion_writer=removed("language"))] if stages is not CHAIN else []),
                filters.GopherRepetitionFilter(exclusion_writer=removed("gopher_repetition")),
                filters.GopherQualityFilter(exclusion_writer=removed("gopher_quality")),
                filters.C4QualityFilter(exclusion_writer=removed("c4")),
                filters.FineWebQualityFilter(exclusion_writer=removed("fineweb")),
                JsonlWriter(str(folder / "kept"), compression=None),
            ],
            tasks=1,
            workers=1,
            logging_dir=str(folder / "logs"),
        ).run()
    return cpu_seconds() - began
