"""Documents of about 4.3 kB, cut from the books, news, reviews and crawls of the test data; tests and benchmarks share them.

The test data is the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import os
import re
from functools import cache
from pathlib import Path

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
SIZE = 4300
"""Characters a document has at most: the mean size of a page's text in FineWeb's crawls is near it."""


@cache
def documents() -> list[str]:
    """All of them, in the order of their files' names; a text file that is neither UTF-8 nor Latin-1 text is left out."""
    cut = []
    for path in sorted((DATA / "text").rglob("*")):
        if path.is_file() and not path.name.startswith(("NOTICE", "README")):
            cut += pieces(read(path))
    return cut


def sample(count: int) -> list[str]:
    """`count` documents, evenly spread over all."""
    every = documents()
    return [every[index * len(every) // count] for index in range(count)]


def read(path: Path) -> str:
    """A text; markup is stripped of its tags, and what holds a NUL is no text."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    if b"\x00" in raw:
        return ""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return re.sub(r"<[^<>]*>", "", text) if text.lstrip().startswith("<?xml") else text


def pieces(text: str) -> list[str]:
    """`text` cut at the last newline or space within each SIZE characters."""
    cut = []
    start = 0
    while start < len(text):
        end = start + SIZE
        if end < len(text):
            space = max(text.rfind("\n", start + 1, end), text.rfind(" ", start + 1, end))
            end = space if space > start else end
        cut.append(text[start:end])
        start = end
    return cut
