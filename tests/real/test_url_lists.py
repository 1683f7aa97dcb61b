"""FineWeb's lists of URLs, words, soft words and subwords, on themselves and on the URLs of real pages."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from stages.url_filter import UrlFilter, UrlFilterOptions

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
LISTS = DATA / "url_lists" / "datamap-rs" / "banlists" / "fineweb_url_filters"
pytestmark = pytest.mark.skipif(not LISTS.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA})")


def entries(name: str) -> list[str]:
    """The lists are packed twice."""
    return gzip.decompress(gzip.decompress((LISTS / f"{name}.txt.gz.gz").read_bytes())).decode().split("\n")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> UrlFilterOptions:
    folder = tmp_path_factory.mktemp("lists")
    names = {
        "url_list": "urls",
        "word_list": "banned_words",
        "soft_word_list": "soft_banned_words",
        "subword_list": "banned_subwords",
    }
    for name in names.values():
        (folder / f"{name}.txt.gz").write_bytes(gzip.decompress((LISTS / f"{name}.txt.gz.gz").read_bytes()))
    return UrlFilterOptions(**{option: str(folder / f"{name}.txt.gz") for option, name in names.items()})


def test_every_listed_url_is_removed_by_its_entry(options: UrlFilterOptions) -> None:
    urls = [line for line in map(str.strip, entries("urls")) if line and not line.startswith("#")]
    verdict = UrlFilter(options).decide(pa.record_batch({"url": pa.array([f"https://{url}" for url in urls])}))
    assert len(urls) > 10_000
    assert (verdict.rule == 1).all()


def test_real_urls_are_judged_as_datatrove_judges_them(options: UrlFilterOptions) -> None:
    """Its definitions in a few lines; URLs in which a letter is encoded or not ASCII are read in another way there."""
    urls = sorted({url for url in page_urls() if url.isascii() and "%" not in url and "@" not in url})
    stage = UrlFilter(options.model_copy(update={"url_list": None}))
    words, soft, subwords = (
        {re.sub("[^a-zA-Z0-9]+", "", line).lower() for line in entries(name) if line[:1] != "#"} - {""}
        for name in ("banned_words", "soft_banned_words", "banned_subwords")
    )
    # An entry of several words is one to datatrove, which no URL holds; here it is those words in a row.
    several = {
        re.sub("[^a-zA-Z0-9]+", "", line).lower()
        for name in ("banned_words", "soft_banned_words")
        for line in entries(name)
        if len(line.split()) > 1
    }
    removed = 0
    for url in urls:
        host_and_path = url.partition("://")[2].lower()
        found = set(re.split("[^a-z0-9]+", host_and_path))
        letters = re.sub("[^a-z0-9]+", "", host_and_path)
        theirs = None
        if found & (words - several):
            theirs = 2
        elif len(found & (soft - several)) >= 2:
            theirs = 3
        elif any(subword in letters for subword in subwords):
            theirs = 4
        ours = stage.match(url)
        assert (ours[0] if ours else None) == theirs, url
        removed += theirs is not None
    assert len(urls) > 400
    assert removed < 0.05 * len(urls)


def page_urls() -> list[str]:
    found = []
    for path in sorted((DATA / "html_gold" / "wcxb").rglob("*.json*")):
        data = path.read_bytes()
        record = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        if isinstance(record, dict) and isinstance(record.get("url"), str):
            found.append(record["url"])
    return found
