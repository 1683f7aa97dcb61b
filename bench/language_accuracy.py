"""How often the language stage names the language that a text is labelled with, and how often a sample of a text says the same.

`python -m bench.language_accuracy` prints both as tables for docs/text-stages.md, over the data of CORPUSMILL_TEST_DATA.
Languages are those of lingua (79); sampling is measured on documents of 4.3 kB: books, news and reviews; gold texts of web pages;
lingua's sentences put together, in one language and in two.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.language import Language, LanguageOptions

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
SIZE = 4_300
KINDS = ("sentences", "word-pairs", "single-words")
SAME = {"nb": "no"}
"""The model calls Bokmål Norwegian."""
SAMPLES = (500, 750, 1_000, 1_500)


def main() -> None:
    labelled = {kind: read(DATA / "langid" / f"lingua_{kind}.jsonl.gz") for kind in KINDS}
    stage = Language(LanguageOptions(threshold=0))
    print_accuracy(stage, labelled)
    print()
    print_samples(labelled["sentences"])


def print_accuracy(stage: Language, labelled: dict[str, list[tuple[str, str]]]) -> None:
    known = set(stage.model.labels)
    right: dict[str, Counter[str]] = {}
    seen: dict[str, Counter[str]] = {}
    confused: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, rows in labelled.items():
        found = labels(stage, [text for _, text in rows])
        wanted = [SAME.get(label, label) for label, _ in rows]
        seen[kind] = Counter(wanted)
        right[kind] = Counter(label for label, other in zip(wanted, found, strict=True) if label == other)
        if kind == KINDS[0]:
            for label, other in zip(wanted, found, strict=True):
                if label != other:
                    confused[label][other] += 1
    cells = []
    for label in sorted(seen[KINDS[0]], key=lambda one: (-right[KINDS[0]][one] / seen[KINDS[0]][one], one)):
        if label in known:
            shares = " ".join(f"{100 * right[kind][label] / seen[kind][label]:.0f}" for kind in KINDS)
            wrong = confused[label].most_common(1)
            most = (
                f", {wrong[0][0]} {100 * wrong[0][1] / seen[KINDS[0]][label]:.0f}"
                if wrong and wrong[0][1] >= 0.02 * seen[KINDS[0]][label]
                else ""
            )
            cells.append(f"{label} {shares}{most}")
    print("; ".join(cells))
    print("not in the model:", ", ".join(sorted(label for label in seen[KINDS[0]] if label not in known)))
    for kind in KINDS:
        inside = [label for label in seen[kind] if label in known]
        everything = sum(right[kind].values()) / sum(seen[kind].values())
        of_known = sum(right[kind][label] for label in inside) / sum(seen[kind][label] for label in inside)
        print(f"{kind}: {sum(seen[kind].values()):,} texts, {everything:.1%} right; of languages known {of_known:.1%}")


def print_samples(sentences: list[tuple[str, str]]) -> None:
    whole = Language(LanguageOptions())
    print("| texts | n | " + " | ".join(f"{size:,}" for size in SAMPLES) + " |")
    print("|---|---|" + "---|" * len(SAMPLES))
    for name, texts in documents(sentences).items():
        batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
        expected = whole.decide(batch)
        cells = []
        for size in SAMPLES:
            found = Language(LanguageOptions(sample_characters=size)).decide(batch)
            label = np.mean(np.array(expected.columns["language"]) != np.array(found.columns["language"]))
            verdict = np.mean(expected.rule != found.rule)
            cells.append(f"{label:.1%}, {verdict:.1%}")
        print(f"| {name} | {len(texts):,} | " + " | ".join(cells) + " |")


def documents(sentences: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Kinds of documents of SIZE characters, or of their own length for web pages."""
    books = []
    for path in sorted((DATA / "text").rglob("*")):
        if path.is_file() and not {"garbage", "canterbury"} & set(path.parts):
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig", "ignore")
            books += [text[start : start + SIZE] for start in range(0, len(text) - SIZE // 2, SIZE)]
    pages = []
    for path in sorted((DATA / "html_gold" / "wcxb").rglob("*.json*")):
        data = path.read_bytes()
        record = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        page = record.get("ground_truth", {}).get("main_content") if isinstance(record, dict) else None
        if page and len(page) > max(SAMPLES):
            pages.append(page)
    by_language = defaultdict(list)
    for label, text in sentences:
        by_language[label].append(text)
    one, two = [], []
    generator = random.Random(1)
    for _, texts in sorted(by_language.items()):
        for _ in range(6):
            one.append(joined(texts, SIZE, generator))
            share = generator.randrange(SIZE)
            halves = [joined(by_language["en"], share, generator), joined(texts, SIZE - share, generator)]
            generator.shuffle(halves)
            two.append("\n".join(halves))
    return {"books, news, reviews": books, "web pages": pages, "one of 79 languages": one, "English and another": two}


def joined(texts: list[str], size: int, generator: random.Random) -> str:
    chosen, length = [], 0
    while length < size:
        chosen.append(generator.choice(texts))
        length += len(chosen[-1]) + 1
    return "\n".join(chosen)[:size]


def labels(stage: Language, texts: list[str]) -> list[str]:
    found: list[str] = stage.decide(pa.record_batch({"text": pa.array(texts, pa.large_string())})).columns["language"].to_pylist()
    return found


def read(path: Path) -> list[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [(row["label"], row["text"]) for row in map(json.loads, file)]


if __name__ == "__main__":
    main()
