"""Near-duplicates beside other people's: signatures from raw text, and the whole removal of planted copies.

Speeds are printed and not asserted; that the work is right is asserted. `CORPUSMILL_BENCH_NEAR` sets the documents of the whole
removal, of which 50,000 are the default.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasketch
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from bench.planted import WORDS, Planted, planted
from bench.race import Side, cpu_seconds, one_core, race, report
from bench.test_peers import BATCH, batches, english, write_lines
from manifests.logs import read_parquet
from manifests.storage import Folder
from pipeline.execution import InlineExecutor
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.run import run
from stages.clusters import keep_ranks, resolve
from stages.minhash import collision_probability, signatures
from stages.normal_form import normalised
from stages.shingles import ShingleSets, is_unspaced, shingle_sets
from tests.real.documents import DATA, documents

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")
COUNT = int(os.environ.get("CORPUSMILL_BENCH_NEAR", 50_000))
SUBSET = 5000
"""Documents that are compared all with all."""
MINIMA = 14 * 8


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    with one_core():
        yield


def shingles(text: str) -> list[bytes]:
    words = normalised(text).split()
    return [" ".join(words[start : start + WORDS]).encode() for start in range(len(words) - WORDS + 1)]


def low_bits(shingle: bytes) -> int:
    return xxhash.xxh3_64_intdigest(shingle) & 0xFFFFFFFF


def ours(given: list[pa.RecordBatch]) -> list[np.ndarray]:
    return [signatures(shingle_sets(batch["text"]), MINIMA) for batch in given]


def by_datasketch(texts: list[str]) -> list[Any]:
    made: list[Any] = datasketch.MinHash.bulk(map(shingles, texts), num_perm=MINIMA, seed=1, hashfunc=low_bits, scheme="affine32")
    return made


def megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / len(texts) / 1e6


@pytest.mark.parametrize("kind", ["all", "ASCII alone", "with characters beyond ASCII"])
def test_signatures_from_raw_text_beside_datasketch(kind: str) -> None:
    texts = [text for text in documents() if kind == "all" or text.isascii() == (kind == "ASCII alone")]
    texts = [text for text in texts if len(text.split()) >= WORDS and not is_unspaced(text)]
    few = texts[:: max(1, len(texts) // 600)]
    expected = np.array([one.hashvalues for one in by_datasketch(few)])
    assert np.array_equal(np.concatenate(ours(batches(few))), expected)
    peer, our = Side(by_datasketch, few), Side(ours, texts[: len(texts) // BATCH * BATCH], english)
    race(peer, our, warm=BATCH)
    rates = peer.rate * megabytes(few), our.rate * megabytes(our.items)
    report(f"signatures from raw text, {kind}", "datasketch bulk", *rates, None, "MB/s")
    print(f" wanted >= 100 MB/s{'' if rates[1] >= 100 else '  MISSED'}", end="")


def test_signatures_from_prepared_shingles_beside_rensa() -> None:
    """rensa gets its shingles as strings, which it hashes; ours are sets of hashes. Neither's making of them is counted."""
    rensa = pytest.importorskip("rensa")
    texts = documents()[::4]

    def prepared(given: list[str]) -> list[list[str]]:
        return [[shingle.decode() for shingle in shingles(text)] for text in given]

    def theirs(given: list[list[str]]) -> None:
        rensa.RMinHash.digest_matrix_from_token_sets(given, MINIMA, 1)

    def sets(given: list[str]) -> list[ShingleSets]:
        return [shingle_sets(batch["text"]) for batch in batches(given)]

    peer, our = Side(theirs, texts, prepared), Side(lambda given: [signatures(one, MINIMA) for one in given], texts, sets)
    race(peer, our, warm=BATCH)
    rates = peer.rate * megabytes(texts), our.rate * megabytes(texts)
    report("signatures from prepared shingles", "rensa (of a scheme of its own)", *rates, None, "MB/s")


# The whole removal


@pytest.fixture(scope="module")
def corpus() -> Planted:
    return planted(COUNT)


def run_ours(
    texts: list[str], folder: Path, options: dict[str, Any] | None = None
) -> tuple[float, dict[int, dict[str, Any]], Any]:
    """(CPU seconds, removal rows by number, what the manifest says of it), from JSON Lines to removal rows and document log."""
    write_lines(texts, folder / "docs")
    component = {"source": "docs", "format": "jsonl", "licence": "PD"}
    recipe = {"corpus": "bench", "components": {"docs": component}, "stages": [{"minhash": options or {}}]}
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    began = cpu_seconds()
    result = run(Recipe.load(str(folder / "recipe.yaml")), Folder(folder / "corpus"), InlineExecutor(), Progress(quiet=True))
    used = cpu_seconds() - began
    logs = [log.path for log in result.manifest.content.logs if log.kind == "removals"]
    rows = itertools.chain.from_iterable(read_parquet(Folder(folder / "corpus"), path).to_pylist() for path in logs)
    return used, {row["position"]: row for row in rows}, result.manifest.content.deduplication[0]


def run_datatrove(texts: list[str], folder: Path) -> tuple[float, set[int]]:
    """(CPU seconds, numbers of the removed) of its four steps in one process, from JSON Lines to JSON Lines."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline import dedup
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.hashing import HashConfig

    write_lines(texts, folder / "docs")
    # Its default hash, xxHash, fails with the xxhash 4 that is installed here. The hash is a small part of its time.
    config = dedup.MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))
    reader = JsonlReader(str(folder / "docs"))
    kept = JsonlWriter(str(folder / "kept"), compression=None)
    steps: list[tuple[int, list[Any]]] = [
        (1, [reader, dedup.MinhashDedupSignature(str(folder / "signatures"), config=config)]),
        (14, [dedup.MinhashDedupBuckets(str(folder / "signatures"), str(folder / "buckets"), config=config)]),
        (1, [dedup.MinhashDedupCluster(str(folder / "buckets"), str(folder / "remove"), config=config)]),
        (1, [reader, dedup.MinhashDedupFilter(str(folder / "remove")), kept]),
    ]
    began = cpu_seconds()
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):  # its log of the run
        for number, (tasks, pipeline) in enumerate(steps):
            logs = str(folder / "logs" / str(number))
            LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=1, logging_dir=logs).run()
    used = cpu_seconds() - began
    stays = set()
    for path in (folder / "kept").glob("*.jsonl"):
        with path.open(encoding="utf-8") as file:
            stays |= {int(json.loads(line)["id"]) for line in file}
    return used, set(range(len(texts))) - stays


def test_the_whole_removal_beside_datatrove(corpus: Planted, tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    pytest.importorskip("datatrove")
    faulthandler.cancel_dump_traceback_later()  # it takes longer than a test that hangs
    for side in (run_ours, run_datatrove):  # loads and compiles
        side(corpus.texts[:300], tmp_path / f"warm {side.__name__}")  # type: ignore[operator]
    mine, removed, _ = run_ours(corpus.texts, tmp_path / "ours")
    theirs, gone = run_datatrove(corpus.texts, tmp_path / "theirs")
    size = sum(len(text) for text in corpus.texts) / COUNT
    report(f"the whole removal, {COUNT:,} documents of {size:,.0f} bytes", "datatrove", COUNT / theirs, COUNT / mine, 10)
    print(f"\nCPU: datatrove {theirs:,.1f} s, ours {mine:,.1f} s", end="")
    print("\nJaccard of copies | copies | pairs reduced to one by ours | by datatrove | P(compared) where 0.8 or more", end="")
    for target, numbers in by_jaccard(corpus).items():
        shares = []
        for found in (set(removed), gone):
            shares.append(sum(bool({one, corpus.copies[one][0]} & found) for one in numbers) / len(numbers))
        chances = np.array([collision_probability(corpus.copies[one][1], 14, 8) for one in numbers])
        chances[[corpus.copies[one][1] < 0.8 for one in numbers]] = 0
        print(f"\n{target:.2f} | {len(numbers):,} | {shares[0]:.3f} | {shares[1]:.3f} | {chances.mean():.3f}", end="")
        assert abs(shares[0] - chances.mean()) < 5 * (chances * (1 - chances)).mean() ** 0.5 / len(numbers) ** 0.5 + 1e-9
    originals = {original for original, _ in corpus.copies.values()}
    unrelated = set(range(COUNT)) - set(corpus.copies) - originals
    wrong = [len(unrelated & found) for found in (set(removed), gone)]
    print(f"\nof {len(unrelated):,} unrelated documents ours removed {wrong[0]}, datatrove {wrong[1]}", end="")
    assert not unrelated & set(removed)


def by_jaccard(corpus: Planted) -> dict[float, list[int]]:
    found: dict[float, list[int]] = {}
    for number, (_, similarity) in corpus.copies.items():
        found.setdefault(round(similarity, 2), []).append(number)
    return {target: numbers for target, numbers in sorted(found.items()) if len(numbers) >= COUNT / 500}


def test_what_is_removed_is_what_brute_force_removes_of_the_pairs_that_the_bands_propose(tmp_path: Path) -> None:
    """All pairs that share a shingle are compared by sets of words; who shares a band is asked of datasketch's signatures."""
    some = planted(SUBSET, seed=2)
    _, removed, record = run_ours(some.texts, tmp_path / "ours")
    sets = [set(shingles(text)) for text in some.texts]
    having: dict[bytes, list[int]] = {}
    for number, each in enumerate(sets):
        for shingle in each:
            having.setdefault(shingle, []).append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for numbers in having.values():
        shared.update(itertools.combinations(numbers, 2))
    similarity = {(a, b): both / (len(sets[a]) + len(sets[b]) - both) for (a, b), both in shared.items()}
    minima = np.array([one.hashvalues for one in by_datasketch(some.texts)]).reshape(SUBSET, 14, 8)
    proposed = {pair for pair in similarity if (minima[pair[0]] == minima[pair[1]]).all(axis=1).any()}
    related = {(min(copy, original), max(copy, original)) for copy, (original, _) in some.copies.items()}
    for copy, (original, stated) in some.copies.items():
        assert similarity[min(copy, original), max(copy, original)] == pytest.approx(stated)
    unrelated = [value for pair, value in similarity.items() if pair not in related]
    print(f"\n{SUBSET:,} documents, {SUBSET * (SUBSET - 1) // 2 - len(related):,} unrelated pairs: ", end="")
    print(f"{sum(value >= 0.05 for value in unrelated)} have a Jaccard of 0.05 or more, {max(unrelated):.3f} at most", end="")
    assert record["candidate_pairs"] == len(proposed)
    pairs = sorted(pair for pair in proposed if similarity[pair] >= 0.8)
    rank = keep_ranks(np.zeros(SUBSET), [len(text.encode()) for text in some.texts], np.arange(SUBSET))
    clusters = resolve(np.array(pairs), np.array([similarity[pair] for pair in pairs]), rank)
    expected = dict(zip(clusters.removed.tolist(), clusters.kept.tolist(), strict=True))
    assert {number: int(row["kept_id"].rpartition("#")[2]) for number, row in removed.items()} == expected
    assert {number: row["linked_jaccard"] for number, row in removed.items()} == dict(
        zip(clusters.removed.tolist(), clusters.linked_jaccard.tolist(), strict=True)
    )
    reached = sum(value >= 0.8 for value in similarity.values())
    print(f"\n{len(expected)} were removed; of {reached} pairs with 0.8 or more 14 x 8 bands proposed {len(pairs)}", end="")
