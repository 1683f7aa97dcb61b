"""Quality by a fastText classifier (Joulin et al. 2017) that was trained to tell good texts from random ones.

The score is the model's probability that a text is of the good class; `corpusmill quality train` makes such a model. A text is
kept when its score is at least `threshold`; or it is *sampled*, kept with a probability that rises with its score:

- `pareto: a`: kept with probability (2 - score)^-a. This is GPT-3's rule, `numpy.random.pareto(a) > 1 - score` with a = 9
  (Brown et al. 2020, *Language Models are Few-Shot Learners*, appendix A).
- `power: p`: kept with probability score^p; p = 1 is linear.

A document's *draw* is a number in (0, 1) that its id and `seed` decide; it is kept when its draw is at most its probability. That
is so when the exponent is at most ln(draw) / ln(score), or -ln(draw) / ln(2 - score) for Pareto. This greatest exponent that
keeps the document is what is stored and compared, so that a changed exponent decides again without a look at the text.

A text without a letter has no score, and both rules remove it. The score of a text of words that the model never saw rests on
nothing: `quality.known_words` says how many it knows, and `min_known_words` asks for a share.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable
from typing import ClassVar

import fasttext
import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from manifests.identity import keyed_hash, printed_ids
from manifests.rules import RATIO, Rule
from manifests.storage import Folder, is_remote
from stages import code_points, fasttext_file
from stages.scripts import UNSPACED_SCRIPTS
from stages.stage import DataPath, Filter, Measurement, Options

GOOD, RANDOM = "good", "random"
PREFIX = "__LABEL__"
"""Of the labels of models that are trained here. Training texts are in lower case, so none can pass for a label."""
PREFIXES = (PREFIX, "__label__")
LIBRARIES = ("fasttext-modern",)
NORMALISATION = 1
"""Version of `normalised`."""
ALWAYS = sys.float_info.max
"""The greatest exponent of a score of 1, which is kept with any."""


class Sampling(Options):
    """One of two probabilities of being kept."""

    pareto: float | None = Field(None, gt=0, le=1e6, description="keep with probability (2 - score)^-pareto; GPT-3: 9")
    power: float | None = Field(None, gt=0, le=1e6, description="keep with probability score^power")

    @model_validator(mode="after")
    def _one(self) -> Sampling:
        if (self.pareto is None) == (self.power is None):
            raise ValueError("sample needs one of pareto and power, such as {pareto: 9}")
        return self

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The probability that a text with such a score is kept."""
        kept: np.ndarray = (2 - scores) ** -self.pareto if self.pareto is not None else scores**self.power
        return kept


class QualityClassifierOptions(Options):
    model: DataPath = Field(description="a fastText model file, as `corpusmill quality train` writes it")
    threshold: float | None = Field(None, ge=0, le=1, description="keep if at least this: quality.score; null measures only")
    sample: Sampling | None = Field(None, description="instead: {pareto: 9} or {power: 1}, keep at random by the score")
    min_known_words: float | None = Field(
        None, ge=0, le=1, description="keep if at least this: quality.known_words; what the model cannot judge goes first"
    )
    seed: int = Field(0, description="of the draw of each document")
    label: str = Field(GOOD, min_length=1, description="the label whose probability is the score, without its prefix")
    normalise: bool = Field(True, description="false for a model from elsewhere: it gets the text as it is, in one line")

    @model_validator(mode="after")
    def _policy(self) -> QualityClassifierOptions:
        if self.threshold is not None and self.sample is not None:
            raise ValueError("threshold and sample are two ways to decide; name one")
        if self.sample is None and "threshold" not in self.model_fields_set:
            raise ValueError("threshold or sample is needed; `threshold: null` measures and removes nothing")
        return self


class QualityClassifier(Filter[QualityClassifierOptions]):
    """Measures score, draw, the greatest exponents that keep the document, and the share of words that the model knows."""

    name: ClassVar[str] = "quality_classifier"
    version: ClassVar[int] = 2
    options_type: ClassVar[type[Options]] = QualityClassifierOptions
    libraries: ClassVar[tuple[str, ...]] = LIBRARIES
    signals: ClassVar[dict[str, pa.DataType]] = {
        "quality.score": pa.float64(),
        "quality.known_words": RATIO,
        "quality.draw": pa.float64(),
        "quality.greatest_pareto": pa.float64(),
        "quality.greatest_power": pa.float64(),
        "quality.judged": pa.string(),
    }
    threshold_options: ClassVar[frozenset[str]] = frozenset({"threshold", "sample", "min_known_words"})

    def __init__(self, options: QualityClassifierOptions) -> None:
        super().__init__(options)
        self.classifier = load(options.model, options.label, options.normalise)

    def identity(self) -> dict[str, str]:
        return code_points.identity()

    def rules(self) -> list[Rule]:
        options, sample = self.options, self.options.sample
        bounds = (
            ("quality.min_known_words", "quality.known_words", options.min_known_words),
            ("quality.threshold", "quality.score", options.threshold),
            ("quality.sample_pareto", "quality.greatest_pareto", sample and sample.pareto),
            ("quality.sample_power", "quality.greatest_power", sample and sample.power),
        )
        return [
            Rule(name=name, signal=signal, keep_if_at_least=bound, when_undefined="remove")
            for name, signal, bound in bounds
            if bound is not None
        ]

    def measure(self, batch: pa.RecordBatch) -> Measurement:
        rows = batch.num_rows
        scores: list[float | None] = []
        known, words = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        for row, text in enumerate(batch["text"].to_pylist()):
            score, known[row], words[row] = self.classifier.judge(text)
            scores.append(score)
        draws = [draw(self.options.seed, one) for one in printed_ids(batch).to_pylist()]
        pairs = list(zip(scores, draws, strict=True))
        measured = [
            pa.array(scores, pa.float64()),
            pa.StructArray.from_arrays([pa.array(known), pa.array(words)], fields=list(RATIO)),
            pa.array(draws, pa.float64()),
            pa.array([None if score is None else greatest_pareto(score, drawn) for score, drawn in pairs], pa.float64()),
            pa.array([None if score is None else greatest_power(score, drawn) for score, drawn in pairs], pa.float64()),
            pa.array([_in_words(score, drawn) for score, drawn in pairs], pa.string()),
        ]
        return Measurement(dict(zip(self.signals, measured, strict=True)))


class Classifier:
    """A model at work: `judge` is a function of the text alone."""

    def __init__(self, model: fasttext.FastText._FastText, label: str, normalise: bool) -> None:
        self._model = model
        self._words = frozenset(model.get_words(on_unicode_error="replace"))
        self._label = label
        self._normalise = normalise

    def judge(self, text: str) -> tuple[float | None, int, int]:
        """(probability of the good class in [0, 1], words that the model knows, words). No score for a text without a letter."""
        words = words_of(text) if self._normalise else text.split()
        line = " ".join(words) if self._normalise else _END_OF_LINE.sub(" ", text.replace("\n", " "))
        known = sum(map(self._words.__contains__, words))
        if not has_letter(line):
            return None, known, len(words)
        for score, label in self._model.f.predict(line + "\n", -1, 0.0, "strict"):
            if label == self._label:
                if not math.isfinite(score):
                    raise ValueError("the model gives no number for this text")
                return min(max(float(score), 0.0), 1.0), known, len(words)
        # A label that is left out has a probability that rounds to nothing.
        return 0.0, known, len(words)

    def scores(self, texts: Iterable[str]) -> np.ndarray:
        """The scores of texts, NaN where there is none."""
        return np.array([np.nan if (score := self.judge(text)[0]) is None else score for text in texts], dtype=np.float64)


def normalised(text: str) -> str:
    """What the model is trained on and asked about: one line in lower case, words separated by single spaces; punctuation,
    symbols, characters of scripts without spaces and those beyond U+FFFF are words of their own. May be empty."""
    return " ".join(words_of(text))


def words_of(text: str) -> list[str]:
    """The words of `normalised`."""
    # Splitting at a group and joining is twice as fast as substituting.
    return " ".join(_apart().split(text.lower().replace("\0", " "))).split()


def has_letter(text: str) -> bool:
    return _LETTER.search(text) is not None


def load(path: str, label: str = GOOD, normalise: bool = True) -> Classifier:
    """The classifier of a model file; ModelFileError when it is none that could be used, or has no such label."""
    if is_remote(path):
        parent, _, name = path.rpartition("/")
        with tempfile.NamedTemporaryFile(suffix=".bin") as copy:
            with Folder(parent).open(name) as remote:
                while chunk := remote.read(1 << 20):
                    copy.write(chunk)
            copy.flush()
            return _loaded(copy.name, os.stat(copy.name).st_mtime_ns, label, normalise)
    if os.path.isdir(path):
        raise fasttext_file.ModelFileError(f"{path}: a folder; name the model file in it")
    return _loaded(path, os.stat(path).st_mtime_ns, label, normalise)


@functools.lru_cache(maxsize=1)
def _loaded(path: str, modified: int, label: str, normalise: bool) -> Classifier:
    """The last one is kept: a worker builds the filter anew for every part, and a model can have gigabytes."""
    about = fasttext_file.check(path)
    names = {found.removeprefix(next((one for one in PREFIXES if found.startswith(one)), "")): found for found in about.labels}
    if label not in names:
        raise fasttext_file.ModelFileError(f"{path}: has no label {label!r}; its labels are {', '.join(sorted(names)[:20])}")
    if len(about.labels) < 2:
        raise fasttext_file.ModelFileError(f"{path}: {label!r} is its only label, so every text would have the score 1")
    return Classifier(fasttext.load_model(path), names[label], normalise)


def draw(seed: int, printed_id: str) -> float:
    """A document's number in (0, 1), uniform over documents, that its id decides."""
    # 52 bits and a half: every such number is exact, and neither 0 nor 1 is among them.
    return ((keyed_hash(f"quality draw {seed}", printed_id) >> 12) + 0.5) * 2.0**-52


def greatest_pareto(score: float, drawn: float) -> float:
    """The greatest a with drawn <= (2 - score)^-a."""
    return ALWAYS if score >= 1 else -math.log(drawn) / math.log1p(1 - score)


def greatest_power(score: float, drawn: float) -> float:
    """The greatest p with drawn <= score^p."""
    if score >= 1:
        return ALWAYS
    return math.log(drawn) / math.log(score) if score > 0 else 0.0


def _in_words(score: float | None, drawn: float) -> str:
    """What a removal row tells beside the exponent."""
    return "no letter" if score is None else f"score {score:.6f}, draw {drawn:.6f}"


@functools.cache
def _apart() -> re.Pattern[str]:
    """What is a word of its own, as a group."""
    alone = {point for ranges in UNSPACED_SCRIPTS.values() for first, last in ranges for point in range(first, last + 1)}
    alone |= {point for point in range(0x10000) if unicodedata.category(chr(point))[0] in "PS"}
    ranges: list[list[int]] = [[0x10000, sys.maxunicode]]
    for point in sorted(one for one in alone if one < 0x10000):
        if ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return re.compile("([" + "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges) + "])")


_LETTER = re.compile(r"[^\W\d_]")
_END_OF_LINE = re.compile(r"(?<![^ \t\v\f\r\0])</s>(?![^ \t\v\f\r\0])")
"""The token at which fastText would stop reading, so that a page could hide what stands behind it."""
