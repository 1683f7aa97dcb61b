"""How long questions to the logs of a large corpus take.

    python bench/audit_log.py make FOLDER --rows 20000000      # logs alone, of documents that never were; some minutes
    python bench/audit_log.py ask FOLDER                       # each question as a person asks it: a process of its own
    python bench/audit_log.py browse FOLDER                    # each page of `audit serve`, from a server started for it

The logs have the layout of a run's: 250,000 records a file, in id order, with the same writer settings, the signals and rules
of the filters that recipes use, a million domains and 30 languages of very different size. What a rule removes is what it
decides on the signals made up. There are no shards and no inputs, so `corpusmill verify FOLDER` reads all of it and has findings.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests.identity import printed_ids, url_key
from manifests.manifest import ComponentRecord, Content, LogFile, Manifest, StageCount, StageRecord
from manifests.rules import RATIO, Rule, decide
from manifests.schemas import DOCUMENT_LOG, EDITS, REMOVALS, empty_rows, signals_schema
from manifests.storage import Folder
from stages.c4 import C4, C4Options
from stages.fineweb import FineWeb, FineWebOptions
from stages.gopher_quality import GopherQuality, GopherQualityOptions
from stages.gopher_repetition import GopherRepetition, GopherRepetitionOptions

LOG_ROWS = 250_000
RECORDS_A_FILE = 30_000
DOMAINS = 1_000_000
COMPONENT, BLOCK = "crawl", "filters1"
LANGUAGES = [f"l{number:02d}" for number in range(30)]
LOST, UNWANTED, COPIES = 0.10, 0.20, 0.15
"""Shares: of all records, of what was read, of what passed the filters."""
NEAR = 0.8
"""The Jaccard from which documents are near-duplicates."""
FILTERS: list[Any] = [
    GopherQuality(GopherQualityOptions()),
    GopherRepetition(GopherRepetitionOptions()),
    C4(C4Options()),
    FineWeb(FineWebOptions()),
]
RULES: list[Rule] = [rule for one in FILTERS for rule in one.rules()]
SIGNALS: dict[str, pa.DataType] = {name: type_ for one in FILTERS for name, type_ in one.signals.items()}
FAILING = {"gopher.words": 0.08, "gopher.stop_words": 0.03, "c4.sentences": 0.1, "fineweb.short_lines": 0.05}
"""Signals that fail more often than the others, and how often about."""


def make(folder: Path, rows: int) -> None:
    """Writes the logs and a manifest that lists them."""
    corpus = Folder(folder)
    logs: list[LogFile] = []
    totals: dict[str, Counter[str]] = {name: Counter() for name in ("read", "language", BLOCK, "minhash")}
    came = Counter[str]()
    for chunk in range(-(-rows // LOG_ROWS)):
        size = min(LOG_ROWS, rows - chunk * LOG_ROWS)
        for kind, place, table in _chunk(chunk, size, totals, came):
            with corpus.writer(f"{place}/{chunk:05d}.parquet") as out:
                pq.write_table(table, out, compression="zstd", row_group_size=65_536, write_page_index=True)
            written = out.written
            logs.append(
                LogFile(kind=kind, path=written.path, rows=table.num_rows, bytes=written.size, sha256=written.sha256)  # type: ignore[arg-type]
            )
        print(f"{chunk * LOG_ROWS + size:,} records", file=sys.stderr)
    counts, left = [], rows
    for stage, step in (("read", "1"), ("language", "2"), (f"{BLOCK}.measure", "2"), (BLOCK, "3"), ("minhash", "4")):
        removed = dict(totals.get(stage, {}))
        size = came["bytes"] if stage.startswith(BLOCK) else 0
        counts.append(
            StageCount(
                component=COMPONENT,
                step=f"{COMPONENT}.{step}",
                stage=stage,
                documents_in=left,
                documents_kept=left - sum(removed.values()),
                removed=removed,
                bytes_in=size,
                bytes_kept=size,
            )
        )
        left -= sum(removed.values())
    records = [
        StageRecord(
            step=f"{COMPONENT}.2",
            stage=one.name,
            version=one.version,
            options=one.options.model_dump(mode="json"),
            rules=one.rules(),
        )
        for one in FILTERS
    ]
    component = ComponentRecord(
        source="nowhere",
        format="warc",
        licence="CC0-1.0",
        inputs=[],
        stages=records,
        documents_in=rows,
        documents_kept=left,
        tokens={"train": came["tokens"]},
    )
    content = Content(
        name="made up",
        recipe_sha256="",
        seed=0,
        components={COMPONENT: component},
        stages=[],
        counts=counts,
        logs=sorted(logs, key=lambda one: one.path),
    )
    Manifest.seal(content, {}).save(corpus)


def _chunk(chunk: int, rows: int, totals: dict[str, Counter[str]], came: Counter[str]) -> list[tuple[str, str, pa.Table]]:
    chance = np.random.default_rng([7, chunk])
    number = np.arange(chunk * LOG_ROWS, chunk * LOG_ROWS + rows)
    in_file, file = number % RECORDS_A_FILE, number // RECORDS_A_FILE
    files = pa.array([f"CC-MAIN-2026-48/segment-{one:06d}.warc.gz" for one in range(int(file[0]), int(file[-1]) + 1)])
    identity = {
        "component": _same(COMPONENT, rows),
        "file": files.take(pa.array(file - file[0])),
        "position": pa.array(in_file * 31_337 + chance.integers(0, 30_000, rows)),
    }
    ids = printed_ids(pa.table(identity))
    domains = np.minimum(chance.zipf(1.3, rows), DOMAINS) + chance.integers(0, 50, rows)
    domain = pc.binary_join_element_wise("site", pc.cast(pa.array(domains), pa.string()), ".example", "")
    url = pc.binary_join_element_wise("https://www.", domain, "/page/", pc.cast(pa.array(number), pa.string()), "")
    language = pa.array(LANGUAGES).take(pa.array(np.minimum(chance.geometric(0.25, rows) - 1, len(LANGUAGES) - 1)))
    size = np.maximum(20, chance.lognormal(7.5, 1.2, rows)).astype(np.int64)
    lost = chance.random(rows) < LOST
    unwanted = ~lost & (chance.random(rows) < UNWANTED)
    measured = np.flatnonzero(~lost & ~unwanted)
    signals = _signals(chance, size[measured])
    decision = decide(RULES, signals)
    filtered = measured[decision.first >= 0]
    passed = measured[decision.first < 0]
    copies = passed[chance.random(len(passed)) < COPIES]
    kept = np.setdiff1d(passed, copies, assume_unique=True)
    removed_by = np.full(rows, None, object)
    for rows_of, stage in ((lost, "read"), (unwanted, "language"), (filtered, BLOCK), (copies, "minhash")):
        removed_by[rows_of] = stage
    is_kept = np.zeros(rows, bool)
    is_kept[kept] = True
    known = pc.if_else(pa.array(~lost), language, pa.scalar(None, pa.string()))
    keys = pa.array([url_key(one) for one in url.to_pylist()], pa.string())
    digests = chance.bytes(32 * len(kept)).hex()
    sha = np.full(rows, None, object)
    sha[kept] = [digests[at * 64 : at * 64 + 64] for at in range(len(kept))]
    documents = empty_rows(
        DOCUMENT_LOG,
        rows,
        id=ids,
        **identity,
        url=url,
        url_key=keys,
        domain=domain,
        date=_same("2026-11-20T12:00:00Z", rows),
        media_type=_same("text/html", rows),
        language=known,
        removed_by=pa.array(removed_by, pa.string()),
        text_bytes=pa.array(size, mask=~is_kept),
        text_sha256=pa.array(sha, pa.string()),
        split=pa.array(np.where(is_kept, "train", None), pa.string()),
        tokens=pa.array(size // 4 + 1, mask=~is_kept),
    )
    gone = np.flatnonzero(~is_kept)
    names = np.array([rule.name for rule in RULES], object)
    rule = np.full(rows, None, object)
    rule[lost], rule[unwanted], rule[copies] = "read.status", "language.unwanted", "minhash.near_duplicate"
    rule[filtered] = names[decision.first[decision.first >= 0]]
    for name, stage in zip(rule[gone], removed_by[gone], strict=True):
        totals[stage][name] += 1
    value = np.full(rows, np.nan)
    value[filtered] = decision.value[decision.first >= 0]
    others = chance.choice(kept, len(copies))
    kept_id = np.full(rows, None, object)
    kept_id[copies] = ids.take(pa.array(others)).to_pylist()
    # Rows are in id order, so the smallest number of a cluster is its smallest id.
    smallest, members = np.arange(rows), np.ones(rows, np.int64)
    np.minimum.at(smallest, others, copies)
    np.add.at(members, others, 1)
    cluster, cluster_size = np.full(rows, None, object), np.zeros(rows, np.int64)
    cluster[copies] = ids.take(pa.array(smallest[others])).to_pylist()
    cluster_size[copies] = members[others]
    jaccard = np.full(rows, np.nan)
    jaccard[copies] = chance.uniform(NEAR, 1.0, len(copies))
    value[copies] = jaccard[copies]
    threshold = np.full(rows, np.nan)
    threshold[copies] = NEAR
    bounds = np.array([np.nan if one.threshold is None else one.threshold for one in RULES])
    threshold[filtered] = bounds[decision.first[decision.first >= 0]]
    failed = pa.array([[one] for one in rule[gone]], pa.list_(pa.string())).to_pylist()
    place = np.searchsorted(gone, filtered)
    for at, several in zip(place, decision.failed.filter(pa.array(decision.first >= 0)).to_pylist(), strict=True):
        failed[at] = several
    step = {"read": "1", "language": "2", BLOCK: "3", "minhash": "4"}
    picked = pa.array(gone)
    removals = empty_rows(
        REMOVALS,
        len(gone),
        **{name: documents[name].take(picked) for name in ("id", "component", "file", "position", "url", "domain", "language")},
        step=pa.array([f"{COMPONENT}.{step[one]}" for one in removed_by[gone]]),
        stage=pa.array(removed_by[gone], pa.string()),
        rule=pa.array(rule[gone], pa.string()),
        value=pa.array(value[gone], mask=np.isnan(value[gone])),
        threshold=pa.array(threshold[gone], mask=np.isnan(threshold[gone])),
        failed_rules=pa.array(failed, pa.list_(pa.string())),
        text_bytes=pa.array(size[gone]),
        linked_id=pa.array(kept_id[gone], pa.string()),
        linked_jaccard=pa.array(jaccard[gone], mask=np.isnan(jaccard[gone])),
        kept_id=pa.array(kept_id[gone], pa.string()),
        kept_jaccard=pa.array(jaccard[gone], mask=np.isnan(jaccard[gone])),
        cluster=pa.array(cluster[gone], pa.string()),
        cluster_size=pa.array(cluster_size[gone], mask=cluster_size[gone] == 0),
    )
    touched = pa.array(measured[chance.random(len(measured)) < 0.2])
    edits = empty_rows(
        EDITS,
        len(touched),
        **{name: documents[name].take(touched) for name in ("id", "component", "file", "position")},
        step=_same(f"{COMPONENT}.2", len(touched)),
        stage=_same("c4", len(touched)),
        rule=_same("c4.no_terminal_punctuation", len(touched)),
        count=pa.array(chance.integers(1, 20, len(touched))),
        bytes_before=pa.array(size).take(touched),
        bytes_after=pa.array(size - 10).take(touched),
        sha256_before=_same("0" * 64, len(touched)),
        sha256_after=_same("1" * 64, len(touched)),
    )
    places = pa.array(measured)
    leading = {name: documents[name].take(places) for name in ("id", "component", "file", "position")}
    sizes = {name: pa.array(size[measured]) for name in ("text_bytes", "text_bytes_after")}
    schema = signals_schema(SIGNALS)
    columns = {**leading, **sizes, **{name: signals[name] for name in SIGNALS}}
    stored = pa.table([columns[name] for name in schema.names], schema=schema)
    came.update(bytes=int(size[measured].sum()), tokens=int((size[kept] // 4 + 1).sum()))
    base = f"logs/{{}}/{COMPONENT}"
    return [
        ("documents", base.format("documents"), documents),
        ("removals", base.format("removals"), removals),
        ("edits", base.format("edits"), edits),
        ("signals", f"{base.format('signals')}/{BLOCK}", stored),
    ]


def _signals(chance: np.random.Generator, size: np.ndarray) -> pa.Table:
    """One column each signal, on the right side of its rules for most documents."""
    columns: dict[str, pa.Array] = {}
    of_signal: dict[str, list[Rule]] = {}
    for rule in RULES:
        of_signal.setdefault(rule.signal, []).append(rule)
    for name, kind in SIGNALS.items():
        if pa.types.is_string(kind):
            columns[name] = _same("words:en", len(size))
            continue
        if name.endswith("_unspaced"):
            columns[name] = pa.nulls(len(size), kind)
            continue
        rules = of_signal.get(name, [])
        low = next((rule.keep_if_at_least for rule in rules if rule.keep_if_at_least is not None), None)
        high = next((rule.keep_if_at_most for rule in rules if rule.keep_if_at_most is not None), None)
        failing = chance.random(len(size)) < FAILING.get(name, 0.004)
        if kind == RATIO:
            denominator = np.maximum(1, size // 6)
            bound = high if high is not None else low or 0.5
            good = bound * chance.random(len(size)) if high is not None else bound + chance.random(len(size)) * bound
            if low is not None and high is not None:
                good = low + (high - low) * chance.random(len(size))
            bad = bound * 1.5 + 0.01 if high is not None else bound / 2
            numerator = np.floor(np.where(failing, bad, good) * denominator).astype(np.int64)
            columns[name] = pa.StructArray.from_arrays([pa.array(numerator), pa.array(denominator)], fields=list(RATIO))
            continue
        good_number = size // 6 + int(low or 0)
        if high is not None:
            good_number = np.minimum(good_number, int(high))
        bad_number = chance.integers(0, max(1, int(low or 0)), len(size)) if low else np.full(len(size), int(high or 0) + 1)
        columns[name] = pa.array(np.where(failing, bad_number, good_number).astype(np.int64)).cast(kind)
    return pa.table(columns)


def _same(value: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value])).cast(pa.string())


def ask(folder: Path, times: int) -> None:
    """Prints the shortest of `times` runs of every question, in seconds of processor (all threads) and by the clock."""
    corpus = Folder(folder)
    manifest = Manifest.load(corpus)
    paths = [log.path for log in manifest.content.logs if log.kind == "documents"]
    rows = pq.ParquetFile(folder / paths[len(paths) // 2]).read_row_group(0, ["id", "url", "domain", "removed_by"]).to_pylist()
    kept, gone = (next(row for row in rows if (row["removed_by"] is None) is wanted) for wanted in (True, False))
    questions = {
        "(the program alone)": ["--help"],
        "funnel": ["funnel", folder],
        "why ID, kept": ["why", folder, kept["id"]],
        "why ID, removed": ["why", folder, gone["id"]],
        "why URL": ["why", folder, kept["url"]],
        "why, of what is not there": ["why", folder, "https://nowhere.example/"],
        "rules": ["rules", folder, "--by", "component", "--by", "language", "--by", "domain"],
        "rules --by component": ["rules", folder, "--by", "component"],
        "domain": ["domain", folder, rows[-1]["domain"]],
        "whatif, one rule": ["whatif", folder, "gopher_quality.min_words=30"],
        "whatif, two rules": ["whatif", folder, "gopher_quality.min_words=30", "c4.min_sentences=2"],
        "whatif, newly removed": ["whatif", folder, "gopher_quality.min_words=100"],
        "takedown, only looking": ["takedown", folder, "--domain", rows[-1]["domain"]],
        "sql, a count by rule": ["sql", folder, "select rule, count(*) from removals group by rule"],
    }
    print(
        f"{sum(log.rows for log in manifest.content.logs if log.kind == 'documents'):,} documents, load {os.getloadavg()[0]:.1f}"
    )
    program = Path(sys.executable).parent / "corpusmill"
    for name, words in questions.items():
        taken = []
        for _ in range(times):
            before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run([program, "audit", *map(str, words)], capture_output=True, text=True, check=False)
            clock, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append((after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, clock))
        expected = 1 if "not there" in name else 0
        said = "" if done.returncode == expected else f"  FAILED: {done.stderr[-300:]}"
        cpu, clock = (min(one[at] for one in taken) for at in (0, 1))
        print(f"{name:28} {cpu:6.2f} s of processor {clock:6.2f} s by the clock{said}", flush=True)


def browse(folder: Path, times: int) -> None:
    """Prints how many seconds pages of the browser take, the shortest of `times` fetches: the first list from a server that has
    just started, with its start, and all pages from one that runs. Seconds of processor are the server's."""
    corpus = Folder(folder)
    manifest = Manifest.load(corpus)
    path = next(log.path for log in manifest.content.logs if log.kind == "removals")
    gone = pq.ParquetFile(folder / path).read_row_group(0, ["id", "url", "domain", "rule", "kept_id"]).slice(0, 2000).to_pylist()
    copy = next(row for row in gone if row["kept_id"])
    pages = {
        "overview": {"": "/"},
        "removals": {"": "/removals"},
        "removals, a rule": {"rule": "gopher.min_words"},
        "removals, a rule and a language": {"rule": "gopher.min_words", "language": "l03"},
        "removals, a domain": {"domain": copy["domain"]},
        "removals, a rule and values": {"rule": "gopher.min_words", "lowest": "10", "highest": "20"},
        "removals, lowest first": {"order": "lowest"},
        "removals, lowest first, next page": {"order": "lowest", "next": "page"},
        "rule": {"": "/rule?name=gopher.min_words"},
        "document, by id": {"": f"/document?{urlencode({'id': copy['id']})}"},
        "document, by URL": {"": f"/document?{urlencode({'q': copy['url']})}"},
        "review, first of a sample": {"": "/review?rule=gopher.min_words&seed={n}"},
        "what if, one rule": {"": "/whatif?change=gopher.min_words=30"},
    }
    print(f"{sum(log.rows for log in manifest.content.logs if log.kind == 'removals'):,} removals, load {os.getloadavg()[0]:.1f}")
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        with _served(folder) as (home, process):
            started = time.perf_counter() - begun
            clock = _fetched(f"{home}/removals")[0]
            taken.append((_cpu(process), started + clock, clock))
    cpu, whole, clock = (min(one[at] for one in taken) for at in range(3))
    print(f"{'start and first list':36} {cpu:6.2f} s of processor {whole:6.2f} s by the clock, {clock:.2f} s of it the page")
    with _served(folder) as (home, process):
        for name, asked in pages.items():
            address = asked.get("") or f"/removals?{urlencode({key: value for key, value in asked.items() if key != 'next'})}"
            if "next" in asked:
                onward = re.search(r'href="([^"]*)" data-key="n"', _fetched(home + address)[1])
                address = html.unescape(onward[1]) if onward else address
            taken = []
            for n in range(times):
                before = _cpu(process)
                clock, _ = _fetched(home + address.replace("{n}", str(n)))
                taken.append((_cpu(process) - before, clock, clock))
            cpu, clock = (min(one[at] for one in taken) for at in (0, 1))
            print(f"{name:36} {cpu:6.2f} s of processor {clock:6.2f} s by the clock", flush=True)


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[tuple[str, int]]:
    """The address and process of `audit serve`, as soon as it answers."""
    program = Path(sys.executable).parent / "corpusmill"
    with tempfile.TemporaryDirectory() as place:
        command = [program, "audit", "serve", folder, "--no-token", "--port", "0", "--reviews", f"{place}/reviews.jsonl"]
        server = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            assert server.stdout is not None
            home = server.stdout.readline().split("/  ")[0].strip()
            yield home, server.pid
        finally:
            server.terminate()
            server.wait()


def _fetched(address: str) -> tuple[float, str]:
    begun = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        body = answer.read().decode()
    return time.perf_counter() - begun, body


def _cpu(process: int) -> float:
    """Seconds of processor that a process has used, all threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "ask", "browse"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    if given.what == "make":
        begun = time.perf_counter()
        make(given.folder, given.rows)
        size = sum(path.stat().st_size for path in given.folder.rglob("*") if path.is_file())
        print(json.dumps({"rows": given.rows, "bytes": size, "seconds": round(time.perf_counter() - begun, 1)}))
    elif given.what == "browse":
        browse(given.folder, given.times)
    else:
        ask(given.folder, given.times)


if __name__ == "__main__":
    main()
