"""What a training run takes from each component, before it begins: shares, tokens, epochs, and what does not fit.

A mixture is a list of phases, one after another (an anneal is a last one); each has a share of the run's tokens and its weights:

- numbers by component, which are divided by their sum (learned weights, such as those of DoReMi, are such numbers);
- `temperature: α`: languages are drawn with p ∝ q^α, q being their share of the training tokens (Conneau et al. 2020 took 0.3),
  and a language from its components as their tokens in it are;
- neither: natural, each component by its tokens.

Tokens are targets, BOS included, of the training split; a document's are as many as its tokens.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from manifests.manifest import Content, Manifest
from manifests.overview import by_component
from manifests.storage import Folder

if TYPE_CHECKING:
    from yaml.nodes import Node

MANY_EPOCHS = 4.0
"""Up to about four epochs, repeated data is nearly worth fresh data (Muennighoff et al. 2023)."""
TOKENS_BY_LANGUAGE = """
select component, coalesce(language, 'und') as language, sum(tokens)::bigint as tokens from documents
where split = 'train' and shard is not null group by all order by all
"""


class MixtureError(Exception):
    """A mixture that the corpus cannot serve; says which component is to blame, and what would fit."""


class PhaseRecipe(BaseModel):
    """A phase as it is written. share: of the run's tokens; the last may leave it out and takes the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: float | None = Field(None, gt=0, le=1)
    weights: dict[str, float] | None = None
    temperature: float | None = Field(None, ge=0, le=1, description="alpha of p ∝ q^alpha over languages")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.weights is not None and self.temperature is not None:
            raise ValueError("a phase has weights or a temperature, not both")
        if self.weights is not None:
            if not self.weights or any(not 0 <= weight < float("inf") for weight in self.weights.values()):
                raise ValueError("weights are numbers from 0 on, one a component")
            total = sum(self.weights.values())
            if not total:
                raise ValueError("all weights are 0")
            if total == float("inf"):
                raise ValueError("the weights are too large to be added up")
        return self


class MixtureRecipe(BaseModel):
    """A mixture as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phases: tuple[PhaseRecipe, ...] = (PhaseRecipe(),)
    max_epochs: float | None = Field(None, gt=0, allow_inf_nan=False, description="refuse to go through a component more often")

    @model_validator(mode="after")
    def _shares_fill_the_run(self) -> Self:
        if not self.phases:
            raise ValueError("a mixture has a phase at least")
        if any(phase.share is None for phase in self.phases[:-1]):
            raise ValueError("every phase but the last has a share")
        given = sum(phase.share or 0 for phase in self.phases)
        open_end = self.phases[-1].share is None
        if given > 1 + 1e-9 or (open_end and given >= 1) or (not open_end and abs(given - 1) > 1e-9):
            raise ValueError(
                f"the shares of the phases add up to {given:g}; they fill a run with 1, or leave some for a last one"
            )
        return self

    @property
    def shares(self) -> list[float]:
        given = [phase.share or 0.0 for phase in self.phases]
        return [*given[:-1], 1 - sum(given[:-1])]


@dataclass(frozen=True)
class Row:
    """A component: unique training tokens, tokens the run takes from it, and how often it is gone through."""

    component: str
    unique: int
    tokens: float
    epochs: float


@dataclass(frozen=True)
class Plan:
    """tokens: of the run. rows: by component. phases: each with its share, its weights, which add up to 1, and the epochs of each
    component in it. languages: share of the run's tokens, where languages are known. warnings: in words."""

    tokens: int
    rows: list[Row]
    phases: list[dict[str, Any]]
    languages: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_mixture(text: str) -> MixtureRecipe:
    """A mixture from YAML or JSON; MixtureError says what is wrong."""
    import yaml

    try:
        if twice := _twice(yaml.compose(text, yaml.SafeLoader)):
            raise MixtureError(f"{twice!r} stands there twice")
        return MixtureRecipe.model_validate(yaml.safe_load(text) or {})
    except (yaml.YAMLError, RecursionError, AttributeError) as error:
        raise MixtureError(f"not YAML: {(str(error) or type(error).__name__).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        if first["type"] == "extra_forbidden":
            word = str(first["loc"][-1])
            known = [*MixtureRecipe.model_fields] if len(first["loc"]) == 1 else [*PhaseRecipe.model_fields]
            near = difflib.get_close_matches(word, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise MixtureError(f"{where}: there is no {word!r}; {hint}") from None
        raise MixtureError(f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}") from None
    except ValueError as error:  # such as a 30th of February
        raise MixtureError(f"a value that cannot be read: {error}") from None


def _twice(node: Node | None) -> str | None:
    """A key that a mapping has twice, of which YAML would silently take the last."""
    seen: set[int] = set()  # an alias is the same node again
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen or not isinstance(one.value, list):
            continue
        seen.add(id(one))
        pairs = [pair for pair in one.value if isinstance(pair, tuple)]
        keys = [key.value for key, _ in pairs if isinstance(key.value, str)]
        if twice := next((key for place, key in enumerate(keys) if key in keys[:place]), None):
            return twice
        waiting += [value for _, value in pairs] + [value for value in one.value if not isinstance(value, tuple)]
    return None


def plan(content: Content, mixture: MixtureRecipe, tokens: int, languages: Mapping[str, Mapping[str, int]] | None = None) -> Plan:
    """What a run of `tokens` takes; `languages` are component → language → training tokens (`tokens_by_language`), which a
    temperature needs. MixtureError for a component that is not there, and above `max_epochs`, with the largest run that fits."""
    unique = training_tokens(content)
    phases = [weights_of(phase, unique, languages) for phase in mixture.phases]
    share = {
        name: sum(part * phase.get(name, 0.0) for part, phase in zip(mixture.shares, phases, strict=True)) for name in unique
    }
    rows = [Row(name, unique[name], tokens * share[name], tokens * share[name] / unique[name]) for name in unique]
    if mixture.max_epochs is not None:
        most = {name: mixture.max_epochs * unique[name] / share[name] for name in unique if share[name]}
        guilty = min(most, key=lambda name: (most[name], name))
        if tokens > most[guilty] * (1 + 1e-9):
            passes = tokens * share[guilty] / unique[guilty]
            raise MixtureError(
                f"{tokens:,} tokens go through component {guilty!r} {passes:.2f} times, more than "
                f"max_epochs {mixture.max_epochs:g}: at most {int(most[guilty]):,} tokens fit"
            )
    warnings = [
        f"{row.component}: {row.epochs:.2f} epochs; beyond {MANY_EPOCHS:g}, repeated tokens are worth ever less"
        for row in rows
        if row.epochs > MANY_EPOCHS
    ]
    warnings += [f"{row.component}: no phase takes anything from it" for row in rows if not row.tokens]
    spoken: dict[str, float] = {}
    for name, of_component in (languages or {}).items():
        total = sum(of_component.values())
        for language, number in of_component.items():
            if name in share and total:
                spoken[language] = spoken.get(language, 0.0) + share[name] * number / total
    described = [
        {"share": part, "weights": phase, "epochs": {name: tokens * part * phase[name] / unique[name] for name in unique}}
        for part, phase in zip(mixture.shares, phases, strict=True)
    ]
    return Plan(tokens, rows, described, dict(sorted(spoken.items(), key=lambda item: (-item[1], item[0]))), warnings)


def training_tokens(content: Content) -> dict[str, int]:
    """Component → tokens of its training shards, of those that have any; MixtureError where none has."""
    found = {one.name: one.tokens["train"] for one in by_component(content) if one.tokens.get("train")}
    if not found:
        raise MixtureError("the corpus has no training tokens")
    return found


def weights_of(
    phase: PhaseRecipe, unique: Mapping[str, int], languages: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, float]:
    """The share of each component in a phase; they add up to 1. `unique`: component → training tokens."""
    if phase.weights is not None:
        if strangers := [name for name in phase.weights if name not in unique]:
            raise MixtureError(f"there is no component {strangers[0]!r} with training tokens; there are {', '.join(unique)}")
        total = sum(phase.weights.values())
        return {name: phase.weights.get(name, 0.0) / total for name in unique}
    if phase.temperature is None:
        total = sum(unique.values())
        return {name: number / total for name, number in unique.items()}
    if not languages:
        raise MixtureError("a temperature needs the languages of the documents, and the corpus knows none")
    spoken: dict[str, int] = {}
    for of_component in languages.values():
        for language, number in of_component.items():
            spoken[language] = spoken.get(language, 0) + number
    every = sum(spoken.values())
    raised = {language: (number / every) ** phase.temperature for language, number in spoken.items() if number}
    total_raised = sum(raised.values())
    return {
        name: sum(
            raised[language] / total_raised * number / spoken[language]
            for language, number in languages.get(name, {}).items()
            if number
        )
        for name in unique
    }


def tokens_by_language(corpus: Folder, manifest: Manifest) -> dict[str, dict[str, int]]:
    """Component → language → training tokens, from the document log; documents without a language are `und`."""
    from manifests.logs import Logs  # loads DuckDB, which a mixture by itself does not need

    found: dict[str, dict[str, int]] = {}
    with Logs(corpus, manifest, only=["documents"]) as logs:
        for row in logs.sql(TOKENS_BY_LANGUAGE):
            found.setdefault(row["component"], {})[row["language"]] = row["tokens"]
    return found
