"""Which settings of `extraction` find the main text best, on pages whose main text people have marked.

    python -m bench.extraction_settings [--data FOLDER] [--step 2] [--sets wcxb,readability] [--settings balanced,fast]

A word is a run of letters, digits and underscores, a 4-gram four words in a row (a shorter text is one gram). Precision is the
share of the extracted 4-grams that the marked text has too, recall the share of the marked text's that were extracted, both
counted with repeats; F1 is their harmonic mean for one page, 0 where nothing was extracted. The table gives means over pages
(precision: over those with an extraction) and, as the Article Extraction Benchmark reports it, the F1 of the two means.
`trafilatura` has no full texts but snippets: `recall` is the share of those that belong to the text and are in it, `precision`
the share of those that do not and are not, F1 their harmonic mean over all pages.

Every page goes through every setting, in one process and a rotating order, and CPU time is summed per setting. Pages are
taken by their sorted names, every `--step`th, without those whose marked text has fewer than 20 words.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lxml.html import document_fromstring

from stages.extraction import ExtractionOptions, _page, extractor

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
LEAST_WORDS = 20
WORD = re.compile(r"\w+")
SETTINGS: dict[str, dict[str, Any]] = {
    f"{favor}{', fast' * fast}{', no tables' * (not tables)}": {"favor": favor, "fast": fast, "include_tables": tables}
    for favor in ("balanced", "precision", "recall")
    for fast in (False, True)
    for tables in (True, False)
} | {
    "resiliparse": {"engine": "resiliparse"},
    "resiliparse, no tables": {"engine": "resiliparse", "include_tables": False},
    "resiliparse, whole page": {"engine": "resiliparse", "main_content": False},
}


@dataclass
class Page:
    """HTML, and its marked text or snippets that belong to it (`wanted`) and do not (`unwanted`)."""

    html: bytes
    text: str | None = None
    wanted: list[str] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)


@dataclass
class Score:
    """Sums over pages."""

    pages: int = 0
    extracted: int = 0
    precision: float = 0.0
    recall: float = 0.0
    f1: float = 0.0
    wanted: int = 0
    found: int = 0
    unwanted: int = 0
    absent: int = 0
    cpu_seconds: float = 0.0

    def add(self, page: Page, text: str) -> None:
        self.pages += 1
        if page.text is None:
            flat = " ".join(text.split())
            self.wanted += len(page.wanted)
            self.found += sum(" ".join(one.split()) in flat for one in page.wanted)
            self.unwanted += len(page.unwanted)
            self.absent += sum(" ".join(one.split()) not in flat for one in page.unwanted)
            return
        precision, recall = four_gram_scores(page.text, text)
        if precision is not None:
            self.extracted += 1
            self.precision += precision
        self.recall += recall
        self.f1 += 2 * precision * recall / (precision + recall) if precision and recall else 0.0

    def row(self) -> tuple[float, float, float, float]:
        """(precision, recall, mean F1, F1 of the means)"""
        if self.wanted or self.unwanted:
            precision, recall = self.absent / self.unwanted, self.found / self.wanted
            of_means = 2 * precision * recall / (precision + recall)
            return precision, recall, of_means, of_means
        precision, recall = self.precision / max(1, self.extracted), self.recall / self.pages
        return precision, recall, self.f1 / self.pages, 2 * precision * recall / ((precision + recall) or 1)


def four_gram_scores(marked: str, extracted: str) -> tuple[float | None, float]:
    """(precision, recall) of the words' 4-grams, counted with repeats; no precision where nothing was extracted."""
    theirs, ours = _grams(marked), _grams(extracted)
    both = (theirs & ours).total()
    return (both / ours.total() if ours else None), (both / theirs.total() if theirs else 1.0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with html_gold")
    parser.add_argument("--step", type=int, default=2, help="take every so many pages of a set")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--settings", default=None, help=f"separated by ; of: {'; '.join(SETTINGS)}")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.settings.split(";")] if chosen.settings else list(SETTINGS)
    work = {name: extractor(_settings(SETTINGS[name])) for name in names}
    total = {name: Score() for name in names}
    pages_in_all = 0
    for set_name in chosen.sets.split(","):
        pages = list(SETS[set_name](chosen.data / "html_gold" / set_name))[:: chosen.step]
        scores = _measured(pages, work)
        pages_in_all += len(pages)
        size = sum(len(page.html) for page in pages) / max(1, len(pages)) / 1000
        print(f"\n{set_name}: {len(pages)} pages, {size:.0f} kB each")
        print(f"{'':24} precision  recall  mean F1  F1 of means  pages/s CPU")
        for name, score in scores.items():
            precision, recall, f1, of_means = score.row()
            speed = len(pages) / score.cpu_seconds
            print(f"{name:24} {precision:9.3f} {recall:7.3f} {f1:8.3f} {of_means:12.3f} {speed:12.1f}", flush=True)
            total[name].cpu_seconds += score.cpu_seconds
    first = total[names[0]].cpu_seconds
    print(f"\nall {pages_in_all} pages: pages/s CPU, and how many times as fast as {names[0]}")
    for name, score in total.items():
        print(f"{name:24} {pages_in_all / score.cpu_seconds:9.1f} {first / score.cpu_seconds:6.2f}")


def _measured(pages: list[Page], work: dict[str, Callable[[bytes], bytes]]) -> dict[str, Score]:
    scores = {name: Score() for name in work}
    names = list(work)
    for number, page in enumerate(pages):
        framed = _page(page.html, "text/html", None)
        # trafilatura remembers lines that it has cleaned: each setting comes first, and last, as often as the others.
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            began = time.process_time()
            answer = work[name](framed)
            scores[name].cpu_seconds += time.process_time() - began
            scores[name].add(page, answer[1:].decode() if answer[:1] == b"t" else "")
    return scores


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    return ExtractionOptions(**options).model_dump(exclude={"cpu_seconds", "memory_bytes", "max_bytes"})


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = WORD.findall(text)
    return Counter(tuple(words[start : start + 4]) for start in range(max(min(1, len(words)), len(words) - 3)))


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _existing(*candidates: Path) -> Path | None:
    return next((path for one in candidates for path in (one, one.with_name(f"{one.name}.gz")) if path.is_file()), None)


def _long_enough(text: str | None) -> bool:
    return text is not None and len(WORD.findall(text)) >= LEAST_WORDS


def _wcxb(folder: Path) -> Iterator[Page]:
    for part in ("dev", "test"):
        for marked in sorted((folder / part / "ground-truth").glob("*.json*")):
            text = json.loads(_read(marked))["ground_truth"].get("main_content")
            html = _existing(folder / part / "html" / f"{marked.name.partition('.')[0]}.html")
            if html is not None and _long_enough(text):
                yield Page(_read(html), text)


def _article_extraction_benchmark(folder: Path) -> Iterator[Page]:
    marked = json.loads(_read(folder / "ground-truth.json.gz"))
    for name in sorted(marked):
        html = _existing(folder / "html" / f"{name}.html")
        if html is not None and _long_enough(marked[name]["articleBody"]):
            yield Page(_read(html), marked[name]["articleBody"])


def _readability(folder: Path) -> Iterator[Page]:
    """Marked are elements, not a text: their texts in turn."""
    for case in sorted(folder.iterdir()):
        html, marked = _existing(case / "source.html"), _existing(case / "expected.html")
        if html is not None and marked is not None:
            text = " ".join(document_fromstring(_read(marked).decode()).itertext())
            if _long_enough(text):
                yield Page(_read(html), text)


def _trafilatura(folder: Path) -> Iterator[Page]:
    for _, case in sorted(json.loads(_read(folder / "evaldata.json.gz")).items()):
        html = _existing(folder / "cache" / case["file"], folder / "eval" / case["file"])
        if html is not None:
            yield Page(_read(html), None, case["with"], case["without"])


SETS: dict[str, Callable[[Path], Iterator[Page]]] = {
    "wcxb": _wcxb,
    "scrapinghub_aeb": _article_extraction_benchmark,
    "readability": _readability,
    "trafilatura": _trafilatura,
}

if __name__ == "__main__":
    main()
