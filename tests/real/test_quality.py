"""A quality classifier of books against web pages: what it tells apart of sources that it never saw, and what it narrows to.

`CORPUSMILL_TEST_PRINT=1 python -m pytest -s tests/real/test_quality.py` prints the figures of docs/quality-classifier.md.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from manifests.domains import domain_of
from manifests.identity import keyed_hash
from pipeline.recipe import Recipe
from stages.commands import app
from stages.fasttext_file import check
from stages.quality_classifier import Classifier, load
from stages.quality_training import auc
from tests.pipeline.crawl import build, lines_of

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")

PRINT = bool(os.environ.get("CORPUSMILL_TEST_PRINT"))
CHARACTERS = 3000
"""Of a piece of a book, about as long as the page's text."""
UNSEEN_BOOKS = ("Frankenstein_84", "Moby-Dick--Or-The-Whale_2701")
UNSEEN_SITES = 4
"""The pages of every so-manyth site, by hash, are not trained on."""


def pieces(text: str) -> Iterator[str]:
    """Paragraphs put together to CHARACTERS or a little more; the rest is left out."""
    piece = ""
    for paragraph in text.split("\n"):
        piece += paragraph + "\n"
        if len(piece) >= CHARACTERS:
            yield piece
            piece = ""


def books() -> Iterator[tuple[str, str]]:
    """(book, piece) of the Gutenberg books in UTF-8, without the licence at either end, and of wikitext."""
    for path in sorted((DATA / "text" / "gutenberg").glob("*/*-0.txt.gz")):
        for piece in list(pieces(gzip.decompress(path.read_bytes()).decode(errors="replace")))[1:-8]:
            yield path.parent.name, piece
    for piece in pieces(gzip.decompress((DATA / "text" / "wikitext-2" / "valid.txt.gz").read_bytes()).decode()):
        yield "wikitext", piece


def pages() -> Iterator[tuple[bool, str, str, str]]:
    """(trained on?, kind of page, URL, main text) of the WCXB set."""
    for path in sorted((DATA / "html_gold" / "wcxb").glob("*/ground-truth/*.json.gz")):
        page = json.loads(gzip.decompress(path.read_bytes()))
        text = page["ground_truth"].get("main_content") or ""
        if text.strip():
            url = page.get("url", "")
            seen = keyed_hash("seen", domain_of(url) or url) % UNSEEN_SITES != 0
            yield seen, page["_internal"]["page_type"]["primary"], url, text


def call(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["quality", *(str(one) for one in arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good and random, what is kept from the model, and a model of each number of epochs."""
    folder = tmp_path_factory.mktemp("real")
    found = list(books())
    write(folder / "good.jsonl", (text for book, text in found if book not in UNSEEN_BOOKS))
    write(folder / "unseen_good.jsonl", (text for book, text in found if book in UNSEEN_BOOKS))
    of_web = list(pages())
    write(folder / "random.jsonl", (text for seen, _, _, text in of_web if seen))
    write(folder / "unseen_random.jsonl", (text for seen, _, _, text in of_web if not seen))
    sources = ("--good", folder / "good.jsonl", "--random", folder / "random.jsonl")
    started = time.process_time()
    shown = call("train", *sources, "--output", folder / "model.bin", "--epochs", "25", "--limit", "400")
    if PRINT:
        print(f"\n{shown}in {time.process_time() - started:.1f} s of this process's CPU time, the child's apart")
    return folder


def write(path: Path, texts: Iterable[str]) -> None:
    path.write_bytes(lines_of([{"text": text} for text in texts]))


def read(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Classifier:
    return load(str(folder / "model.bin"))


def test_books_and_pages_that_it_never_saw_are_told_apart(folder: Path, classifier: Classifier) -> None:
    good, random = (classifier.scores(read(folder / f"unseen_{name}.jsonl")) for name in ("good", "random"))
    figure = auc(good, random)
    if PRINT:
        shares = [(good >= 0.5).mean(), (random >= 0.5).mean()]
        print(f"{len(good)} pieces of books, {len(random)} pages that it never saw: AUC {figure:.4f}; 0.5 keeps {shares}")
    assert figure > 0.99
    assert json.loads((folder / "model.json").read_text())["held_out"]["auc"] > 0.95


def test_it_judges_the_kind_of_a_page_and_says_that_it_does_not_know_other_languages(folder: Path) -> None:
    """What the report is for: a classifier that was trained on English books judges the form and the language of a page."""
    for kind, url, text in ((kind, url, text) for seen, kind, url, text in pages() if not seen):
        add(folder / "pages" / kind, {"text": text, "url": url})
    with gzip.open(DATA / "langid" / "lingua_sentences.jsonl.gz", "rt", encoding="utf-8") as file:
        sentences: dict[str, list[str]] = {}
        for row in map(json.loads, file):
            sentences.setdefault(row["label"], []).append(row["text"])
    for language in ("en", "de", "fr", "ru", "zh", "ar"):
        several = sentences[language]
        for start in range(0, len(several) - 9, 10):  # ten sentences make a text
            add(folder / "pages" / f"sentences-{language}", {"text": " ".join(several[start : start + 10])})
    component = {
        "format": "jsonl",
        "licence": "various",
        "stages": [{"quality_classifier": {"model": "model.bin", "threshold": 0.5}}],
    }
    names = sorted(path.stem for path in (folder / "pages").glob("*.jsonl"))
    components = {name: {"source": f"pages/{name}.jsonl", **component} for name in names}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"corpus": "narrowed", "components": components, "stages": []}))
    build(Recipe.load(folder / "recipe.yaml"), folder / "corpus")
    found = json.loads(call("report", folder / "corpus", "--json"))
    if PRINT:
        print(call("report", folder / "corpus"))
    score, known = (
        {one["name"]: one["quantiles"][2] for one in found["signals"][f"quality.{name}"]["component"]}
        for name in ("score", "known_words")
    )
    assert score["sentences-en"] > score["article"] > score["product"]
    # Of Chinese it knows a few marks, and its score is near the middle, as good as English sentences.
    assert score["sentences-zh"] > 0.4 and known["sentences-zh"] < 0.1
    assert known["article"] > 0.9 > 0.5 > known["sentences-de"] > known["sentences-ru"]


def add(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.with_suffix(".jsonl").open("ab") as file:
        file.write(lines_of([record]))


def test_scoring_agrees_with_the_library_and_its_speed_is_told(folder: Path, classifier: Classifier) -> None:
    texts = read(folder / "good.jsonl")
    library = fasttext.load_model(str(folder / "model.bin"))
    assert set(check(folder / "model.bin").labels) == set(library.get_labels())
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(5 if PRINT else 1):  # interleaved, on a machine that others use
        started = time.process_time()
        scores = classifier.scores(texts)
        times["ours"].append(time.process_time() - started)
        started = time.process_time()
        for text in texts:
            library.f.predict(text.replace("\n", " ") + "\n", -1, 0.0, "strict")
        times["bare"].append(time.process_time() - started)
    assert not np.isnan(scores).any()
    if PRINT:
        size = sum(len(text.encode()) for text in texts) / 1e6
        for name, seconds in times.items():
            best = min(seconds)
            print(f"{name}: {len(texts) / best:,.0f} texts/s, {size / best:.1f} MB/s ({len(texts)} texts, {size:.1f} MB)")
