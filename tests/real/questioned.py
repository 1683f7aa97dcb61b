"""A corpus of some hundred documents of the test data, made for auditors to question: pages with their real URLs as a crawl,
sentences in many languages, and passages of books in files whose names look like a number, a partition and a null.

Planted: a page under a second URL, near-identical pages, a capture with a query, and a passage with a benchmark's item in it.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from manifests.domains import host_of
from pipeline.recipe import Recipe
from tests.pipeline.crawl import build, lines_of, warc
from tests.real.documents import DATA, sample

MIRROR = "mirror.example.org"
PAGES = 100
"""Of the gold pages with a URL, evenly spread over all."""
LANGUAGES = ("hi", "en", "de", "fr", "es", "ru", "th", "fi")
SENTENCES = (3, 6, 12, 20, 28)
"""Of the documents in each language: some are too short for every filter."""
PASSAGES = 120
TWICE, NEAR, QUERY, GONE = 4, 5, 6, 3
"""Every so-manieth page is captured again: as it is under another URL, with another last paragraph, or under a query of its own; or
answers 404."""


@dataclass
class Questioned:
    """corpus: where it lies. copies: URL of a page → URL of its exact copy. near: of its near copy. queries: URL without its query →
    all URLs captured. gone: URLs that answered 404. contaminated: id of the document with a benchmark's item → that benchmark."""

    folder: Path
    copies: dict[str, str] = field(default_factory=dict)
    near: dict[str, str] = field(default_factory=dict)
    queries: dict[str, list[str]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    contaminated: dict[str, str] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)

    @property
    def blocked(self) -> str | None:
        """The host that the URL filter removes: that of the third page."""
        return host_of(self.urls[2])

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"


def questioned(folder: Path) -> Questioned:
    """Writes the input and builds the corpus, in this process: half a minute on one core."""
    made = Questioned(folder)
    for name, data in {**_crawl(made), **_sentences(), **_books(made)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(made.blocked), sort_keys=False))
    build(Recipe.load(folder / "recipe.yaml"), made.corpus)
    return made


def recipe(blocked: str | None, **thresholds: Any) -> dict[str, Any]:
    """Nearly every stage there is. `blocked`: a host that the URL filter removes; `thresholds` are those of `gopher_quality`."""
    filters: list[Any] = [{"gopher_quality": {"min_words": 50, **thresholds}}, "gopher_repetition", "c4", "fineweb"]
    crawl = [{"url_filter": {"domains": [blocked]}}, "pre_check", "extraction"]
    text = ["repair", {"language": {"keep": ["en", "de", "fr", "es", "ru", "hi"]}}, *filters, "personal_data"]
    parts: dict[str, dict[str, Any]] = {
        "crawl": {"format": "warc", "licence": "LicenseRef-CommonCrawl", "priority": 1, "stages": [*crawl, *text]},
        "sentences": {"format": "jsonl", "licence": "CC-BY-4.0", "stages": text},
        "books": {"format": "jsonl", "files": ["**"], "licence": "PDDL-1.0", "stages": ["repair", *filters[:2]]},
    }
    whole = [
        {"line_dedup": {"max_documents": 8}},
        "exact_dedup",
        "minhash",
        {"decontamination": {"benchmarks": str(DATA / "benchmarks" / "items.jsonl.gz")}},
        {"split": {"validation": 0.05, "test": 0.05}},
        {"tokenizer": {"vocabulary": 2000}},
        {"shards": {"target_tokens": 50_000}},
    ]
    components = {name: {"source": name, **about} for name, about in parts.items()}
    return {"corpus": "questioned", "components": components, "stages": whole}


def _crawl(made: Questioned) -> dict[str, bytes]:
    gold = DATA / "html_gold" / "trafilatura"
    with gzip.open(gold / "evaldata.json.gz", "rt", encoding="utf-8") as opened:
        listed = sorted((url, about["file"]) for url, about in json.load(opened).items())
    pages: list[dict[str, Any]] = []
    for number, (url, name) in enumerate(listed[i * len(listed) // PAGES] for i in range(PAGES)):
        path = next(one for one in (gold / "eval" / f"{name}.gz", gold / "cache" / f"{name}.gz") if one.exists())
        body = gzip.decompress(path.read_bytes())
        made.urls.append(url)
        bare = url.partition("?")[0].partition("#")[0]
        if number % 20 == GONE:
            made.gone.append(url)
            pages.append({"url": url, "body": b"<p>Not found", "status": "404 Not Found"})
            continue
        pages.append({"url": url, "body": body})
        if number % 20 == TWICE:
            made.copies[url] = f"https://{MIRROR}/{number}"
            pages.append({"url": made.copies[url], "body": body})
        if number % 20 == NEAR:
            made.near[url] = f"https://{MIRROR}/near/{number}"
            head, end, tail = body.rpartition(b"</p>")
            more = b"<p>This copy of the page was made by a mirror, which says so at its end in one sentence more.</p>"
            pages.append({"url": made.near[url], "body": head + end + more + tail})
        if number % 20 == QUERY:
            made.queries[bare] = [url, f"{bare}?session=1", f"{bare}?session=2"]
            pages += [{"url": one, "body": body} for one in made.queries[bare][1:]]
    half = len(pages) // 2
    return {f"crawl/{n}.warc.gz": warc(some)[0] for n, some in enumerate((pages[:half], pages[half:]))}


def _sentences() -> dict[str, bytes]:
    by_language: dict[str, list[str]] = {name: [] for name in LANGUAGES}
    with gzip.open(DATA / "langid" / "lingua_sentences.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["label"] in by_language:
                by_language[row["label"]].append(row["text"].replace("\n", " "))
    files = {}
    for language, texts in by_language.items():
        random.Random(f"sentences {language}").shuffle(texts)
        rows, at = [], 0
        for number, count in enumerate(SENTENCES):
            rows.append({"text": "\n".join(texts[at : at + count]), "url": f"https://{language}.news.example/{number}"})
            at += count
        files[f"sentences/{language}.jsonl"] = lines_of(rows)
    return files


def _books(made: Questioned) -> dict[str, bytes]:
    """Passages without URL and language; the names of their files are a number and a partition to whoever does not look."""
    passages = sample(PASSAGES)
    with gzip.open(DATA / "benchmarks" / "items.jsonl.gz", "rt", encoding="utf-8") as lines:
        item = next(row for row in map(json.loads, lines) if len(row["question"].split()) > 40)
    passages[22] = f"{passages[22]}\n\n{item['question']}\n\n{passages[23]}"
    made.contaminated["books/shard=007/language=en/007#7"] = item["benchmark"]
    names = ("12e5", "shard=007/language=en/007", "null")
    return {f"books/{name}": lines_of({"text": one} for one in passages[n :: len(names)]) for n, name in enumerate(names)}
