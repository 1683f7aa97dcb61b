"""A gate: what continued pretraining must reach, written before the run and decided after it.

Two sides, each of held-out documents: the loss of `domain` must fall by at least `down_by`, that of `general` may rise by at most
`up_by`. The same documents are scored before and after, by the same evaluator at the same T, so the change of each document is
known, and so is how sure the change of the whole is: a bootstrap over documents, which are drawn with their two scores together.
A side passes when the end of that 95 % interval that is worse for it does (`decided_by: interval`), or the change itself
(`point`).

Losses are nats per token of text, or bits per byte of it, over all documents of a side together; BOS is no text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from manifests.terminal import visible
from trainer.configuration import ConfigurationError
from trainer.scores.document_scores import DocumentScores, Float64, Int64

RESAMPLES, LEAST_RESAMPLES, DRAWS, DRAWN_AT_ONCE, SEED = 10_000, 1_000, 200_000_000, 1 << 20, 0
"""Of the bootstrap: fewer resamples where documents are so many that they would be more draws than DRAWS."""
PROTOCOL = ("split", "sequence_length", "dtype", "documents_sha256", "tokenizer_sha256", "evaluator_sha256")
"""What scores before and after must agree in, or their difference is not the run's."""

Unit = Literal["nats per token", "bits per byte"]


class GateError(ConfigurationError):
    """A gate that cannot be decided; says what would work."""


class HeldOut(BaseModel):
    """Documents that were not trained on: of `corpus` (default: the one trained on; a relative path begins at the gate file), its
    `components` (default: all that have documents) in `split`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str | None = Field(default=None, min_length=1)
    split: Literal["validation", "test"] = "validation"
    components: tuple[str, ...] = ()


class Domain(BaseModel):
    """What is to be learned. `max_tokens_per_word`: the run does not start where the tokenizer needs more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: tuple[HeldOut, ...] = Field(min_length=1)
    down_by: float = Field(ge=0, allow_inf_nan=False)
    max_tokens_per_word: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class General(BaseModel):
    """What is not to be forgotten."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: tuple[HeldOut, ...] = Field(min_length=1)
    up_by: float = Field(ge=0, allow_inf_nan=False)


class Gate(BaseModel):
    """`sequence_length`: T of both scores; None: that of the run. `least_documents`: a side with fewer is refused, since an
    interval over so few means little."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: Domain
    general: General
    unit: Unit = "nats per token"
    decided_by: Literal["interval", "point"] = "interval"
    sequence_length: int | None = Field(default=None, ge=2)
    least_documents: int = Field(default=20, ge=2)

    @field_validator("domain", "general", mode="before")
    @classmethod
    def _amounts_are_numbers(cls, side: Any) -> Any:
        """`yes` and `on` are truth values in YAML, and would count as 1."""
        wrong = [name for name, value in side.items() if isinstance(value, bool)] if isinstance(side, dict) else []
        if wrong:
            raise ValueError(f"{wrong[0]} is a number, not yes or no")
        return side

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for side in ("domain", "general"):
            for text in getattr(self, side).text:
                if len(set(text.components)) < len(text.components):
                    raise ValueError(f"{side}: a component stands there twice")
        return self


@dataclass(frozen=True)
class GateFile:
    """A gate as it was written: `text`, its SHA-256, and the folder that relative paths in it begin at."""

    gate: Gate
    text: str
    sha256: str
    folder: Path

    @staticmethod
    def read(path: Path) -> GateFile:
        try:
            data = path.read_bytes()
            return GateFile.of(data.decode("utf-8"), path.absolute().parent, str(path))
        except OSError as error:
            raise GateError(f"--gate {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise GateError(f"--gate {path}: no text in UTF-8; a gate is a file in YAML") from None

    @staticmethod
    def of(text: str, folder: Path, name: str) -> GateFile:
        """GateError names the key that is wrong."""
        try:
            given = yaml.load(text, _NothingTwice)
            gate = Gate.model_validate(given)
        except ValidationError as error:
            raise GateError(f"{name}: {_wrong(error)}") from None
        except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
            mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
            line = "" if mark is None else f"line {mark.line + 1}: "
            raise GateError(f"{name}: not YAML: {line}{(str(error) or type(error).__name__).splitlines()[0]}") from None
        return GateFile(gate, text, hashlib.sha256(text.encode()).hexdigest(), folder)

    def place(self, corpus: str) -> str:
        """Where a corpus that the gate names lies."""
        if "://" in corpus or Path(corpus).is_absolute():
            return corpus
        return str(self.folder / corpus)


@dataclass(frozen=True)
class Side:
    """A side of the gate, decided. `before`, `after`, `change` (after minus before), its 95 % `interval` and `limit` are in the
    gate's unit; `limit` is what the change must not exceed: -down_by of the domain, up_by of general text."""

    texts: list[str]
    documents: int
    tokens: int
    text_bytes: int
    before: float
    after: float
    change: float
    interval: tuple[float, float]
    limit: float
    passed: bool


@dataclass(frozen=True)
class Decision:
    """What the gate says of a run, with all that it was decided by. `protocols`: of each corpus and split that was scored."""

    passed: bool
    domain: Side
    general: Side
    unit: str
    decided_by: str
    gate_sha256: str
    protocols: list[dict[str, Any]]

    @property
    def word(self) -> str:
        return "pass" if self.passed else "fail"

    def as_json(self) -> dict[str, Any]:
        return {"gate": self.word, **asdict(self)}

    def describe(self) -> str:
        """The decision in a few lines."""
        by = "the worse end of the interval decides" if self.decided_by == "interval" else "the change itself decides"
        lines = [f"gate {self.gate_sha256[:12]}…, in {self.unit}; {by}"]
        for name, side, asked in (("domain", self.domain, "must fall"), ("general", self.general, "may rise")):
            low, high = side.interval
            lines.append(
                f"{name}: {side.before:.4f} before, {side.after:.4f} after, {side.change:+.4f} (95 % over {side.documents:,} "
                f"documents: {low:+.4f} to {high:+.4f}); {asked} by {abs(side.limit):g}: {'pass' if side.passed else 'fail'}"
            )
        return "\n".join([*lines, f"gate={self.word}"])


Held = Callable[[HeldOut], tuple[str, dict[str, int]]]
"""(digest of the manifest that a text is of, number of documents of each component that it has in the text's split)."""


def check_texts(gate: Gate, held: Held) -> None:
    """GateError where a text has a component that is not there, a document is on both sides or twice on one, or a side has
    too few of them."""
    seen: dict[tuple[str, str, str], str] = {}
    for name, side in (("domain", gate.domain), ("general", gate.general)):
        documents = 0
        for text in side.text:
            digest, there = held(text)
            for component in text.components or tuple(there):
                if component not in there:
                    raise GateError(f"{name}: no component {component!r} in split {text.split}, which has: {', '.join(there)}")
                if (key := (digest, text.split, component)) in seen:
                    where = "the domain already, and in general text again" if seen[key] != name else f"{name} twice"
                    raise GateError(f"component {component!r} of split {text.split} is in {where}: a document counts once")
                seen[key] = name
                documents += there[component]
        if documents < gate.least_documents:
            raise GateError(
                f"{name}: {documents:,} documents are fewer than the gate's least_documents, {gate.least_documents:,}; hold out "
                "more, or write a gate that asks for fewer"
            )


def decide(
    gate: Gate,
    gate_sha256: str,
    digest_of: Callable[[str | None], str | None],
    before: Sequence[DocumentScores],
    after: Sequence[DocumentScores],
) -> Decision:
    """Compares the scores of a gate's texts before and after. `digest_of`: the digest of the manifest of a corpus that the gate
    names (None: that of the run), or None where it is not known and the scores' own splits and components must tell.

    GateError where scores are missing, were made in another way, or are of too few documents.
    """
    pairs: dict[HeldOut, tuple[DocumentScores, DocumentScores]] = {}
    for text in dict.fromkeys((*gate.domain.text, *gate.general.text)):
        digest = digest_of(text.corpus)
        one, other = _find(text, digest, before, "before"), _find(text, digest, after, "after")
        _same_protocol(one, other, text)
        if gate.sequence_length not in (None, one.about["sequence_length"]):
            scored = one.about["sequence_length"]
            raise GateError(f"{_name(text)}: scored at T = {scored}, and the gate says {gate.sequence_length}")
        pairs[text] = one, other
    check_texts(gate, lambda text: (pairs[text][0].about["manifest_digest"], pairs[text][0].counts))
    domain = _side(gate, gate.domain.text, pairs, -gate.domain.down_by)
    general = _side(gate, gate.general.text, pairs, gate.general.up_by)
    told = [{key: one.about[key] for key in ("manifest_digest", *PROTOCOL)} for one, _ in pairs.values()]
    protocols = [one for n, one in enumerate(told) if one not in told[:n]]
    return Decision(domain.passed and general.passed, domain, general, gate.unit, gate.decided_by, gate_sha256, protocols)


def change_interval(changes: Float64, sizes: Float64) -> tuple[float, float]:
    """The 2.5 % and 97.5 % points of sum(changes) / sum(sizes) when documents are drawn again with replacement, each with both of
    its numbers; a fixed seed."""
    count = len(changes)
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, DRAWS // count))
    at_once = max(1, DRAWN_AT_ONCE // count)
    generator, sums = np.random.default_rng(SEED), []
    for first in range(0, resamples, at_once):
        drawn = generator.integers(0, count, (min(at_once, resamples - first), count))
        sums.append(np.stack((changes[drawn].sum(axis=1), sizes[drawn].sum(axis=1))))
    change, size = np.concatenate(sums, axis=1)
    low, high = np.percentile(change[size > 0] / size[size > 0], [2.5, 97.5])
    return float(low), float(high)


def _side(
    gate: Gate, texts: Sequence[HeldOut], pairs: dict[HeldOut, tuple[DocumentScores, DocumentScores]], limit: float
) -> Side:
    first, second = ([pairs[text][n].of(text.components) for text in texts] for n in (0, 1))
    before: Float64 = np.concatenate([one.nats for one in first])
    after: Float64 = np.concatenate([one.nats for one in second])
    tokens: Int64 = np.concatenate([one.tokens for one in first])
    text_bytes: Int64 = np.concatenate([one.text_bytes for one in first])
    sizes = tokens.astype(np.float64) if gate.unit == "nats per token" else text_bytes * math.log(2)
    total = float(sizes.sum())
    if not total:
        raise GateError(f"{'; '.join(map(_name, texts))}: the documents have no text")
    changes: Float64 = after - before
    change = math.fsum(changes.tolist()) / total
    interval = change_interval(changes, sizes.astype(np.float64))
    decisive = interval[1] if gate.decided_by == "interval" else change
    return Side(
        [_name(text) for text in texts], len(before), int(tokens.sum()), int(text_bytes.sum()),
        math.fsum(before.tolist()) / total, math.fsum(after.tolist()) / total, change, interval, limit, decisive <= limit,
    )  # fmt: skip


def _find(text: HeldOut, digest: str | None, scores: Sequence[DocumentScores], when: str) -> DocumentScores:
    found = [
        one
        for one in scores
        if one.about["split"] == text.split
        and digest in (None, one.about["manifest_digest"])
        and set(text.components) <= set(one.components)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise GateError(f"{_name(text)}: {len(found)} of the scores {when} could be meant; name its corpus in the gate")
    held = "; ".join(
        f"{one.about['split']} of {one.about['manifest_digest'][:12]}…: {', '.join(one.components)}" for one in scores
    )
    raise GateError(f"{_name(text)}: there is no score of it {when}; there are: {held or 'none'}")


def _same_protocol(before: DocumentScores, after: DocumentScores, text: HeldOut) -> None:
    differing = [key for key in PROTOCOL if before.about[key] != after.about[key]]
    if differing:
        told = ", ".join(
            f"{key.replace('_', ' ')} {_short(before.about[key])} and {_short(after.about[key])}" for key in differing
        )
        raise GateError(f"{_name(text)}: not scored alike: {told}; score both by one version, with the same options")
    same = before.ids is None or after.ids is None or before.ids.cast("string").equals(after.ids.cast("string"))
    if not (same and np.array_equal(before.tokens, after.tokens) and np.array_equal(before.text_bytes, after.text_bytes)):
        raise GateError(f"{_name(text)}: the documents before and after are not the same")


def _wrong(error: ValidationError) -> str:
    """What is wrong with a gate, in a line: a key that there is not before one that is missing for it, and what a person writes
    in place of Python's words."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    steps, kind = [str(step) for step in first["loc"]], first["type"]
    if kind == "extra_forbidden":
        said = f"there is no such key; there are: {_keys(steps[:-1])}"
    elif kind == "model_type":
        said = f"keys with values are needed; there are: {_keys(steps)}"
    elif kind == "missing":
        said = "it is needed"
    elif kind == "tuple_type":
        said = "a list is needed, in [ ] or with a dash before each"
    else:
        said = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(steps)}: {said}" if steps else said


def _keys(steps: Sequence[str]) -> str:
    """Those that a part of a gate may have."""
    sides: dict[str, type[BaseModel]] = {"domain": Domain, "general": General}
    part = HeldOut if "text" in steps else sides[steps[0]] if steps else Gate
    return ", ".join(part.model_fields)


def _name(text: HeldOut) -> str:
    """Without the place of its corpus, which is of no concern elsewhere."""
    return visible(f"{', '.join(text.components) or 'all components'} ({text.split})")


def _short(value: object) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else str(value)


class _NothingTwice(yaml.SafeLoader):
    """YAML would silently take the last of two equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for n, key in enumerate(keys) if key in keys[:n]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands there twice", node.start_mark)
        return super().construct_mapping(node, deep)
