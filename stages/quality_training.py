"""Training the quality classifier: good texts against random ones, a held-out part of both, and a card that says how it went.

The same texts and options give the same bytes of the model, in whatever files and order the texts come. A text's identity is the
hash of its normalised form: by it duplicates are found, the held-out part is chosen and the order of training is set. A text that
is in both classes says nothing about either and is left out of both.

fastText writes only a tenth of its input matrix before it trains on one thread (docs/log.md), so the rest has to be zero for
the result to be repeatable. It is, since the matrix comes fresh from the system: glibc never keeps memory of more than 32 MiB for
another use (mallopt(3), M_MMAP_THRESHOLD), and 2,000,000 rows of five numbers are more. A child process trains, without the
variables that would have memory filled or come from elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from typing import IO, Any

import numpy as np
import xxhash
from pydantic import Field

from manifests.identity import keyed_hash
from manifests.storage import READ_CHUNK, Folder, sha256_of
from stages import fasttext_file, quality_fitting
from stages.quality_classifier import (
    GOOD,
    LIBRARIES,
    NORMALISATION,
    PREFIX,
    RANDOM,
    Sampling,
    has_letter,
    load,
    normalised,
)
from stages.stage import Options
from stages.text_sources import Sources

CARD_FORMAT = "corpusmill-quality-card/1"
BUCKETS = 2_000_000
"""fastText's own default. Rows of the input matrix for n-grams of words; see above why there are so many."""
SMALLEST_DIMENSIONS = 5
FEWEST = 50
"""Distinct texts of each class; from fewer nothing general is learned. Chosen here."""
FEWEST_HELD_OUT = 5
ALLOCATOR_VARIABLES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""What changes where memory comes from or what is in it: the child that trains goes without."""
KEPT_OF_RANDOM = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
KEPT_OF_GOOD = (0.99, 0.95, 0.9, 0.8)
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
SAMPLINGS = (Sampling(pareto=9), Sampling(power=1))
DIGITS = 6
"""Of shares and scores in the card."""


class TrainingError(Exception):
    """Texts from which no classifier can be trained; the message says what is wrong with them."""


class TrainingOptions(Options):
    """The rest of fastText's parameters are its defaults for classifiers; loss: softmax; one thread."""

    dimensions: int = Field(16, ge=SMALLEST_DIMENSIONS, le=1024, description="numbers a word; the model has 8 MB for each")
    word_ngrams: int = Field(2, ge=2, le=5, description="longest n-gram of words that is looked at")
    epochs: int = Field(5, ge=1, le=1000)
    rate: float = Field(0.1, gt=0, le=10, description="learning rate")
    min_count: int = Field(2, ge=1, description="a word that occurs less often is known in n-grams only")
    held_out: float = Field(0.1, gt=0, lt=1, description="share of the texts of each class that the figures are taken from")
    limit: int | None = Field(None, ge=1, description="of each class at most so many texts, chosen by hash")
    seed: int = Field(0, description="of the held-out part, the choice and the order")


def train(
    good: Sources, random: Sources, options: TrainingOptions, output: Folder, name: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Trains, writes the model `name` into `output` and its card beside it, and returns the card.

    TrainingError, or the SourceError of a file that cannot be read, before anything is written. Temporary files (in TMPDIR) take
    about twice the bytes of the texts.
    """
    with tempfile.TemporaryDirectory(prefix="corpusmill-quality-") as scratch:
        with open(os.path.join(scratch, "texts"), "w+b") as spool:
            classes = [_collect(label, sources, spool, say) for label, sources in ((GOOD, good), (RANDOM, random))]
            _separate(*classes)
            for one in classes:
                _divide(one, options)
            lines = os.path.join(scratch, "train.txt")
            _write_lines(classes, options, spool, lines)
            say(f"training on {sum(len(one.train) for one in classes):,} texts, {options.epochs} epochs, on one thread")
            made = os.path.join(scratch, "model.bin")
            about = _fit(lines, options, made)
            classifier = load(made)
            scores = {one.label: classifier.scores(_texts(one, one.held_out, spool)) for one in classes}
        with open(made, "rb") as file:
            digest, size = sha256_of(file)
        card = _card(classes, options, scores, {"file": name, "sha256": digest, "bytes": size, "words": about.words})
        with open(made, "rb") as file, output.writer(name) as out:
            while chunk := file.read(READ_CHUNK):
                out.write(chunk)
        output.write(card_name(name), (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode())
    return card


def card_name(model: str) -> str:
    """The name of the card of a model file."""
    return f"{model.removesuffix('.bin')}.json"


@dataclass
class _Class:
    """The distinct texts of one class: hex identity → place in `starts` and `sizes`, which say where its line is spooled."""

    label: str
    sources: Sources
    texts: dict[str, int] = field(default_factory=dict)
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    counts: Counter[str] = field(default_factory=Counter)
    train: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)


def _collect(label: str, sources: Sources, spool: IO[bytes], say: Callable[[str], None]) -> _Class:
    """Reads a class and spools each distinct text's line once."""
    found = _Class(label, sources)
    end = spool.seek(0, os.SEEK_END)
    for source in sources.files:
        for text in source.texts():
            line = normalised(text)
            if not has_letter(line):
                found.counts["without_letter"] += 1
                continue
            data = line.encode()
            identity = xxhash.xxh3_128_hexdigest(data)
            if identity in found.texts:
                found.counts["duplicates"] += 1
                continue
            found.texts[identity] = len(found.starts)
            found.starts.append(end)
            found.sizes.append(len(data))
            end += spool.write(data)
    found.counts["documents"] = sum(source.read for source in sources.files)
    found.counts["without_text"] = sum(source.lost.total() for source in sources.files)
    say(
        f"{label}: {found.counts['documents']:,} documents in {len(sources.files):,} files, {len(found.texts):,} distinct texts"
        + "".join(
            f", {found.counts[name]:,} {name.replace('_', ' ')}"
            for name in ("duplicates", "without_text", "without_letter")
            if found.counts[name]
        )
        + "".join(f"; not read: {number:,} files with {ending}" for ending, number in sorted(sources.unread.items()))
    )
    if not found.texts:
        raise TrainingError(
            f"no text of the class {label}: its files hold {found.counts['documents']:,} documents, none with a letter"
        )
    return found


def _separate(good: _Class, random: _Class) -> None:
    """Takes out of both what is in both."""
    both = good.texts.keys() & random.texts.keys()
    for one, other in ((good, random), (random, good)):
        if len(both) == len(one.texts):
            raise TrainingError(
                f"every one of the {len(both):,} distinct texts of {one.label} is among those of {other.label} too: "
                "nothing tells the classes apart"
            )
    for one in (good, random):
        one.counts["in_both"] = len(both)
        for identity in both:
            del one.texts[identity]
        if len(one.texts) < FEWEST:
            raise TrainingError(
                f"{len(one.texts):,} distinct texts of {one.label}"
                + (f" are not in the other class too ({len(both):,} are)" if both else "")
                + f": a classifier needs {FEWEST} of each class, and some thousands to be any good"
            )


def _divide(one: _Class, options: TrainingOptions) -> None:
    """Chooses, and holds out, by keyed hashes of identities."""
    order = sorted(one.texts, key=lambda identity: (keyed_hash(f"quality choice {options.seed}", identity), identity))
    chosen = order if options.limit is None else order[: options.limit]
    bound = options.held_out * 2.0**64
    for identity in chosen:
        held = keyed_hash(f"quality held out {options.seed}", identity) < bound
        (one.held_out if held else one.train).append(identity)
    one.counts.update(beyond_limit=len(order) - len(chosen), train=len(one.train), held_out=len(one.held_out))
    if len(one.held_out) < FEWEST_HELD_OUT or len(one.train) < FEWEST - FEWEST // 2:
        raise TrainingError(
            f"{one.label}: of {len(chosen):,} texts {len(one.held_out):,} are held out and {len(one.train):,} left to train on; "
            f"at least {FEWEST_HELD_OUT} and {FEWEST - FEWEST // 2} are needed: change --held-out, or give more texts"
        )


def _write_lines(classes: list[_Class], options: TrainingOptions, spool: IO[bytes], path: str) -> None:
    """The training file, both classes mixed in the order of a keyed hash."""
    order = sorted(
        (keyed_hash(f"quality order {options.seed}", identity), identity, number)
        for number, one in enumerate(classes)
        for identity in one.train
    )
    with open(path, "wb") as out:
        for _, identity, number in order:
            one = classes[number]
            out.write(f"{PREFIX}{one.label} ".encode() + _line(one, identity, spool) + b"\n")


def _texts(one: _Class, identities: Iterable[str], spool: IO[bytes]) -> Iterable[str]:
    for identity in identities:
        yield _line(one, identity, spool).decode()


def _line(one: _Class, identity: str, spool: IO[bytes]) -> bytes:
    place = one.texts[identity]
    spool.seek(one.starts[place])
    return spool.read(one.sizes[place])


def _fit(lines: str, options: TrainingOptions, made: str) -> fasttext_file.ModelFile:
    """Trains and saves in a child process; TrainingError when it fails, or numbers ran away."""
    parameters = {
        "label": PREFIX,
        "dim": options.dimensions,
        "wordNgrams": options.word_ngrams,
        "epoch": options.epochs,
        "lr": options.rate,
        "minCount": options.min_count,
        "bucket": BUCKETS,
        "loss": "softmax",
        "thread": 1,
        "verbose": 0,
    }
    command = [sys.executable, "-P", quality_fitting.__file__, lines, made, json.dumps(parameters)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ALLOCATOR_VARIABLES)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode < 0:
        size = BUCKETS * options.dimensions * 4 / 1e6
        raise TrainingError(f"fastText was ended by signal {-done.returncode}; its model alone needs {size:,.0f} MB of memory")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
        raise TrainingError(
            f"fastText gave up: {reason}; a smaller --rate helps against NaN, fewer --dimensions need less memory"
        )
    try:
        return fasttext_file.check(made)
    except fasttext_file.ModelFileError as error:
        raise TrainingError(f"fastText made no model that could be used: {error}") from None


def _card(
    classes: list[_Class], options: TrainingOptions, scores: dict[str, np.ndarray], model: dict[str, Any]
) -> dict[str, Any]:
    good, random = np.sort(scores[GOOD]), np.sort(scores[RANDOM])
    order = ("documents", "without_text", "without_letter", "duplicates", "in_both", "beyond_limit", "train", "held_out")
    return {
        "format": CARD_FORMAT,
        "model": {**model, "label": GOOD, "against": RANDOM},
        "software": {
            **{one: metadata.version(one) for one in LIBRARIES},
            "unicode": unicodedata.unidata_version,
            "normalisation": NORMALISATION,
        },
        "options": {**options.model_dump(mode="json"), "buckets": BUCKETS, "loss": "softmax", "threads": 1},
        "inputs": {one.label: [source.record() for source in one.sources.files] for one in classes},
        "unread_files": {one.label: dict(sorted(one.sources.unread.items())) for one in classes},
        "texts": {one.label: {name: one.counts[name] for name in order} for one in classes},
        "held_out": {
            "auc": round(auc(good, random), DIGITS),
            "at_threshold_0.5": _at(0.5, good, random),
            "score_quantiles": {
                label: {f"{quantile:g}": round(float(np.quantile(values, quantile)), DIGITS) for quantile in QUANTILES}
                for label, values in ((GOOD, good), (RANDOM, random))
            },
        },
        "thresholds": [_at(threshold, good, random) for threshold in _thresholds(good, random)],
        "sampling": [
            {
                **one.model_dump(exclude_none=True),
                "keeps_of_good": round(float(one.probability(good).mean()), DIGITS),
                "keeps_of_random": round(float(one.probability(random).mean()), DIGITS),
            }
            for one in SAMPLINGS
        ],
    }


def auc(good: np.ndarray, random: np.ndarray) -> float:
    """The probability that a good text scores above a random one, ties counted half (area under the ROC curve)."""
    ranked = np.sort(random)
    below, upto = (np.searchsorted(ranked, good, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(ranked)))


def _thresholds(good: np.ndarray, random: np.ndarray) -> list[float]:
    """Scores that keep about the shares asked for, ascending, cut to the digits of the card."""
    exact = [0.5]
    exact += [float(np.quantile(random, 1 - share, method="higher")) for share in KEPT_OF_RANDOM]
    exact += [float(np.quantile(good, 1 - share, method="lower")) for share in KEPT_OF_GOOD]
    return sorted({int(value * 10**DIGITS) / 10**DIGITS for value in exact})


def _at(threshold: float, good: np.ndarray, random: np.ndarray) -> dict[str, float | None]:
    kept_good, kept_random = int((good >= threshold).sum()), int((random >= threshold).sum())
    kept = kept_good + kept_random
    return {
        "threshold": threshold,
        "keeps_of_good": round(kept_good / len(good), DIGITS),
        "keeps_of_random": round(kept_random / len(random), DIGITS),
        "precision": round(kept_good / kept, DIGITS) if kept else None,
    }
