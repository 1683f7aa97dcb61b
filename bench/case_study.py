"""The deduplication experiment of docs/case-study.md: stories, and junk and copies made of them with known labels, and what the
pipeline finds.

    python -m bench.case_study STORIES [--plot docs/s-curve.svg]

STORIES is a text file, also gzipped, with one story a line or, where lines are paragraphs, stories between lines of one newline.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from manifests.manifest import Manifest
from manifests.storage import Folder
from pipeline.execution import InlineExecutor
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.run import run
from stages.minhash import MinHashOptions, band_keys, bucket_pairs, collision_probability, jaccard, signatures
from stages.repair import repair
from stages.shingles import ShingleSets, shingle_sets

JUNK_SHARE, EXACT_SHARE, NEAR_SHARE = 0.03, 0.04, 0.12
"""Of the number of stories: each kind of junk, exact copies, near copies."""
EDIT_RATES = (0.01, 0.03, 0.05, 0.08, 0.12, 0.20)
"""The share of words that a near copy changes."""
BANDS, ROWS = 16, 8
MINIMA = 128
THRESHOLDS = (0.7, 0.8, 0.9)
BINS = np.arange(0.0, 1.01, 0.1)
STAGES: list[Any] = ["repair", {"gopher_quality": {"min_words": 30}}, "gopher_repetition", "fineweb"]
CORPUS_WIDE: list[Any] = ["exact_dedup", {"minhash": {"bands": BANDS, "rows": ROWS, "threshold": 0.8}}]


@dataclass(frozen=True)
class Document:
    """label: clean, navigation, spam, repeated, short, exact or near. origin: the number of the story it was made of. rate: the
    edit rate of a near copy."""

    text: str
    label: str
    origin: int | None = None
    rate: float | None = None


def read_stories(path: Path) -> list[str]:
    """Stories of a file in which one newline stands between stories and a blank line between paragraphs; those of 50 words and
    more, each once."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    stories: list[str] = []
    for line in text.replace("\n\n", "\0").split("\n"):
        stories.append(line.replace("\0", "\n\n").strip())
    return list(dict.fromkeys(story for story in stories if len(story.split()) >= 50))


def make(stories: list[str], seed: int = 0) -> list[Document]:
    """All documents, shuffled; the same for the same stories and seed."""
    chance = random.Random(f"case study {seed}")
    vocabulary = sorted({word for story in stories for word in story.split() if word.isalpha()})
    documents = [Document(story, "clean", number) for number, story in enumerate(stories)]
    for label, junk in (("navigation", _navigation), ("spam", _spam), ("repeated", _repeated), ("short", _short)):
        documents += [Document(junk(chance, stories), label) for _ in range(round(JUNK_SHARE * len(stories)))]
    for origin in chance.sample(range(len(stories)), round(EXACT_SHARE * len(stories))):
        documents.append(Document(stories[origin], "exact", origin))
    for number, origin in enumerate(chance.sample(range(len(stories)), round(NEAR_SHARE * len(stories)))):
        rate = EDIT_RATES[number % len(EDIT_RATES)]
        documents.append(Document(_edited(chance, stories[origin], rate, vocabulary), "near", origin, rate))
    chance.shuffle(documents)
    return documents


def _navigation(chance: random.Random, stories: list[str]) -> str:
    entries = (
        "Home About Contact Login Sitemap Archive Search Help Terms Privacy News Shop Cart Forum Blog Jobs Press Imprint".split()
    )
    return "\n".join(chance.choice(entries) for _ in range(chance.randrange(40, 90)))


def _spam(chance: random.Random, stories: list[str]) -> str:
    words = (
        "CHEAP pills online casino bonus free $$$ buy now viagra winner click here best price 100% guaranteed #deal #win".split()
    )
    return " ".join(chance.choice(words) for _ in range(chance.randrange(60, 200)))


def _repeated(chance: random.Random, stories: list[str]) -> str:
    sentence = chance.choice(chance.choice(stories).split(". ")).strip()
    return "\n".join([sentence] * chance.randrange(8, 30))


def _short(chance: random.Random, stories: list[str]) -> str:
    words = chance.choice(stories).split()
    start = chance.randrange(len(words) - 20)
    return " ".join(words[start : start + chance.randrange(3, 20)])


def _edited(chance: random.Random, story: str, rate: float, vocabulary: list[str]) -> str:
    """Each word is replaced, left out or doubled by another with probability `rate`."""
    words: list[str] = []
    for word in story.split(" "):
        if chance.random() >= rate:
            words.append(word)
            continue
        kind = chance.randrange(3)
        if kind != 1:
            words.append(chance.choice(vocabulary))
        if kind == 2:
            words.append(word)
    return " ".join(words)


@dataclass(frozen=True)
class Findings:
    """What docs/case-study.md reports.

    crosstab: (label, first failing rule or "kept") → documents. funnel: removed by quality, exact, near, and kept.
    errors: |estimate - Jaccard| of the near copies with a rate of at most 0.05. candidates, pairs: of all documents.
    detection: lower edge of a bin of Jaccard → (near copies, those that LSH proposes, their mean of 1 - (1 - s^8)^16).
    scores: threshold → (precision, recall) of the estimate among the candidates against all pairs of exact Jaccard.
    points: (Jaccard, proposed) of every near copy.
    """

    crosstab: dict[tuple[str, str], int]
    funnel: dict[str, int]
    errors: np.ndarray
    candidates: int
    pairs: int
    detection: dict[float, tuple[int, int, float]]
    scores: dict[float, tuple[float, float]]
    points: list[tuple[float, bool]]


def study(documents: list[Document], folder: Path) -> Findings:
    """Runs the pipeline over the documents, in `folder`, and compares."""
    rows = _removals(documents, folder)
    crosstab = Counter((document.label, rows.get(number, "kept")) for number, document in enumerate(documents))
    stage_of = Counter("kept" if number not in rows else rows[number].split(".")[0] for number in range(len(documents)))
    near, exact = stage_of["minhash"], stage_of["exact_dedup"]
    funnel = {"quality": len(rows) - near - exact, "exact": exact, "near": near, "kept": stage_of["kept"]}

    sets = shingle_sets(pa.array([repair(document.text)[0] for document in documents]))
    minima = signatures(sets, MINIMA)
    every = np.arange(len(documents))
    proposed, _ = bucket_pairs(band_keys(minima, BANDS, ROWS), every, every, MinHashOptions(bands=BANDS, rows=ROWS))
    candidates = set(map(tuple, proposed.tolist()))
    clean = {document.origin: number for number, document in enumerate(documents) if document.label == "clean"}
    pairs = [(number, clean[document.origin]) for number, document in enumerate(documents) if document.label == "near"]
    left, right = (np.array(side) for side in zip(*pairs, strict=True))
    true = jaccard(sets, left, right)
    estimate = (minima[left] == minima[right]).mean(axis=1)
    few = np.array([documents[number].rate <= 0.05 for number in left.tolist()])  # type: ignore[operator]
    found = [(min(pair), max(pair)) in candidates for pair in zip(left.tolist(), right.tolist(), strict=True)]
    detection = {}
    for low in BINS[:-1]:
        mine = [index for index, value in enumerate(true) if low <= value < low + 0.1 or (low > 0.85 and value == 1)]
        if mine:
            expected = float(np.mean([collision_probability(true[index], BANDS, ROWS) for index in mine]))
            detection[round(float(low), 1)] = (len(mine), sum(found[index] for index in mine), expected)
    return Findings(
        crosstab=dict(crosstab),
        funnel=funnel,
        errors=np.abs(estimate - true)[few],
        candidates=len(candidates),
        pairs=len(documents) * (len(documents) - 1) // 2,
        detection=detection,
        scores=_scores(sets, minima, proposed),
        points=list(zip(true.tolist(), found, strict=True)),
    )


def _removals(documents: list[Document], folder: Path) -> dict[int, str]:
    """Number of a document → the rule that removed it."""
    (folder / "stories").mkdir()
    lines = "".join(json.dumps({"text": document.text}) + "\n" for document in documents)
    (folder / "stories" / "all.jsonl").write_text(lines)
    component = {"source": "stories", "format": "jsonl", "licence": "other", "stages": STAGES}
    recipe = {"corpus": "case-study", "components": {"stories": component}, "stages": CORPUS_WIDE}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    corpus = Folder(folder / "corpus")
    run(Recipe.load(str(folder / "recipe.yaml")), corpus, InlineExecutor(), Progress(quiet=True))
    assert Manifest.load(corpus).content.components["stories"].documents_in == len(documents)
    table = ds.dataset(sorted((folder / "corpus").glob("logs/removals/*/*.parquet"))).to_table(columns=["position", "rule"])
    return dict(zip(table["position"].to_pylist(), table["rule"].to_pylist(), strict=True))


def _scores(sets: ShingleSets, minima: np.ndarray, proposed: np.ndarray) -> dict[float, tuple[float, float]]:
    estimate = (minima[proposed[:, 0]] == minima[proposed[:, 1]]).mean(axis=1)
    similar = _similar_pairs(sets, min(THRESHOLDS))
    scores = {}
    for threshold in THRESHOLDS:
        said = {tuple(pair) for pair, value in zip(proposed.tolist(), estimate, strict=True) if value >= threshold}
        true = {pair for pair, value in similar.items() if value >= threshold}
        scores[threshold] = (len(said & true) / max(1, len(said)), len(said & true) / max(1, len(true)))
    return scores


def _similar_pairs(sets: ShingleSets, least: float) -> dict[tuple[int, int], float]:
    """All pairs of at least this Jaccard, by counting shared shingles; no hash of a hash is involved."""
    holders = defaultdict(list)
    for number in range(len(sets)):
        for shingle in sets[number].tolist():
            holders[shingle].append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for members in holders.values():
        for place, first in enumerate(members):
            shared.update((first, second) for second in members[place + 1 :])
    found = {}
    for (first, second), both in shared.items():
        value = both / (len(sets[first]) + len(sets[second]) - both)
        if value >= least:
            found[first, second] = value
    return found


def report(documents: list[Document], findings: Findings) -> str:
    """Markdown: the tables of the page."""
    rules = sorted({rule for _, rule in findings.crosstab} - {"kept"})
    labels = ("clean", "navigation", "spam", "repeated", "short", "exact", "near")
    sizes = Counter(document.label for document in documents)
    lines = ["| first failing rule | " + " | ".join(f"{label} ({sizes[label]})" for label in labels) + " |", "|---" * 8 + "|"]
    for rule in [*rules, "kept"]:
        cells = [str(findings.crosstab.get((label, rule), "")) for label in labels]
        lines.append(f"| {rule if rule == 'kept' else f'`{rule}`'} | " + " | ".join(cells) + " |")
    funnel = findings.funnel
    lines += [
        "",
        f"{len(documents)} → {funnel['quality']} quality, {funnel['exact']} exact, {funnel['near']} near → {funnel['kept']}",
    ]
    mean, largest = findings.errors.mean(), findings.errors.max()
    lines += [f"error of {MINIMA} minima: mean {mean:.4f}, largest {largest:.3f}, {len(findings.errors)} pairs"]
    lines += [
        f"candidates: {findings.candidates:,} of {findings.pairs:,} pairs",
        "",
        "| Jaccard | near copies | proposed | rate | 1 - (1 - s^8)^16 |",
    ]
    lines += ["|---|---|---|---|---|"]
    for low, (count, found, expected) in findings.detection.items():
        lines.append(f"| {low:.1f} to {low + 0.1:.1f} | {count} | {found} | {found / count:.3f} | {expected:.3f} |")
    lines += ["", "| threshold | precision of the estimate | recall |", "|---|---|---|"]
    lines += [f"| {threshold} | {precision:.3f} | {recall:.3f} |" for threshold, (precision, recall) in findings.scores.items()]
    return "\n".join(lines)


def plot(findings: Findings, path: Path) -> None:
    """The S-curve with the share of near copies found in each bin, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "case study"  # the same picture, the same bytes
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    similarity = np.linspace(0, 1, 201)
    axes.plot(similarity, 1 - (1 - similarity**ROWS) ** BANDS, color="#2b6cb0", label="1 - (1 - s⁸)¹⁶")
    low = np.array(list(findings.detection))
    count, found, _ = (np.array(column, float) for column in zip(*findings.detection.values(), strict=True))
    axes.scatter(low + 0.05, found / count, s=20 + 4 * count, color="#c05621", zorder=3, label="near copies proposed, by bin")
    axes.plot(
        [value for value, _ in findings.points], [float(hit) for _, hit in findings.points], "|", color="#718096", markersize=8
    )
    axes.set(xlabel="exact Jaccard of 5-word shingles", ylabel="share of pairs proposed", xlim=(0, 1.01), ylim=(-0.04, 1.04))
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.case_study", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("stories", type=Path)
    parser.add_argument("--plot", type=Path, help="where to write the picture (SVG)")
    chosen = parser.parse_args(arguments)
    documents = make(read_stories(chosen.stories))
    with tempfile.TemporaryDirectory() as folder:
        findings = study(documents, Path(folder))
    print(report(documents, findings))
    if chosen.plot:
        plot(findings, chosen.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
