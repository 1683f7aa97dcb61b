"""What a stage is: it looks at a batch and decides, and it never drops a row.

A stage returns a `Verdict` with exactly as many rows as the batch has, in the same order. `pipeline.decisions` is the one
place that removes documents, counts and writes logs, so no stage can lose one. A stage is built from its validated options
in every worker; it may load models then, and must give the same verdict for a document whatever stood in the batch beside it.

To add one: a module here with a class derived from `Stage` (or `Filter`), and a line in `stages.registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from manifests.rules import Rule


class Options(BaseModel):
    """Base of every stage's options; an unknown option is an error that the recipe reports with file and line."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataFile:
    """Marks an option that names a file or folder (`Annotated[str, DataFile()]`). The pipeline resolves it against the recipe's
    folder before the stage is built, and its content's digest is part of the stage's identity."""


DataPath = Annotated[str, DataFile()]
OptionsType = TypeVar("OptionsType", bound=Options)


EXAMPLE = pa.record_batch({"text": pa.array(["One sentence."], pa.large_string()), "language": pa.array([None], pa.string())})
"""A batch as documents have it, as far as compiled code looks at it."""


PLACE = "place"
"""The column that numbers the documents of a part, for stages that carry out what was found over the whole corpus."""


@dataclass
class Edits:
    """Changes a stage made: for `rows[i]` (int), `counts[i]` edits under the name `rules[i]`; `details[i]` says what a reader
    needs to know beside, or nothing."""

    rows: list[int] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.details = self.details or [None] * len(self.rows)

    def add(self, row: int, rule: str, count: int, detail: str | None = None) -> None:
        if count:
            self.rows.append(row)
            self.rules.append(rule)
            self.counts.append(count)
            self.details.append(detail)

    @property
    def columns(self) -> tuple[list[str], list[int], list[str | None]]:
        """Rules, counts and details."""
        return self.rules, self.counts, self.details


@dataclass
class Verdict:
    """A stage's decision on n documents.

    rule: int32 (n,), index into the stage's `removal_rules`, -1 keeps.
    value, threshold: float64 (n,), NaN where there is none.
    detail: n strings or None: what a reader needs to understand the removal; never text from before personal data was replaced
        at more than a few words' length.
    columns: new or replaced columns of the batch, n rows each ("text", "language", "language_score", …).
    edits: what was changed in "text"; every changed text needs at least one edit.
    evidence: extra columns of `manifests.schemas.REMOVALS`, n rows each ("benchmark", "item", "evidence", …).
    """

    rule: np.ndarray
    value: np.ndarray | None = None
    threshold: np.ndarray | None = None
    detail: list[str | None] | None = None
    columns: dict[str, pa.Array] = field(default_factory=dict)
    edits: Edits = field(default_factory=Edits)
    evidence: dict[str, pa.Array] = field(default_factory=dict)

    @staticmethod
    def keep_all(rows: int) -> Verdict:
        return Verdict(np.full(rows, -1, dtype=np.int32))


@dataclass(frozen=True)
class Needs:
    """What a stage takes beside what every worker has: processors, bytes of memory (that of child processes too), GPUs."""

    cpus: float = 0.0
    memory: int = 0
    gpus: float = 0.0


class Stage(ABC, Generic[OptionsType]):
    """A row-local stage. `name` is the recipe's word for it; bump `version` whenever its output can change."""

    name: ClassVar[str]
    version: ClassVar[int]
    options_type: ClassVar[type[Options]]
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version can change the output; their installed versions enter the fingerprint."""
    removal_rules: ClassVar[tuple[str, ...]] = ()
    """Names of the rules this stage can remove by, `stage.rule`; a Verdict's `rule` indexes it."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns it may add or replace."""
    needs: ClassVar[Needs] = Needs()

    def __init__(self, options: OptionsType) -> None:
        self.options = options

    @abstractmethod
    def decide(self, batch: pa.RecordBatch) -> Verdict:
        """The verdict on every row of `batch` (columns of manifests.schemas.DOCUMENTS; RECORDS for extraction and earlier)."""

    def identity(self) -> dict[str, str]:
        """Name and SHA-256 of what else decides and no option names, such as a model that a library ships."""
        return {}

    def report(self) -> dict[str, Any]:
        """JSON of what the stage found on the documents it has seen, beside its verdicts, for `summary`; {} for most."""
        return {}

    def summary(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """What the manifest records of this stage, from the reports of all parts in any order; {} for most."""
        return {}

    def compile(self) -> None:
        """Compiles what is compiled on first use, by using it on `EXAMPLE`; must leave `report` as it was. Nothing for most."""

    def close(self) -> None:
        """Called once when the worker is done with a part: ends child processes, frees what it holds."""


@dataclass
class Measurement:
    """Signals of n documents, one array each, named as the filter declares; `text` and `edits` when the filter edits too."""

    signals: dict[str, pa.Array]
    text: pa.Array | None = None
    edits: Edits = field(default_factory=Edits)


class Filter(ABC, Generic[OptionsType]):
    """Measurement apart from policy: signals are functions of the text, rules are data that decide from them alone.

    Filters that stand together in a recipe form a block; all of them measure the text that enters the block. One filter of a
    block may edit the text as well (C4's lines); the edited text is what leaves the block.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    options_type: ClassVar[type[Options]]
    libraries: ClassVar[tuple[str, ...]] = ()
    signals: ClassVar[dict[str, pa.DataType]]
    """Name and type of every signal: float64, int64, string, or manifests.rules.RATIO. Null where undefined."""
    edits_text: ClassVar[bool] = False
    threshold_options: ClassVar[frozenset[str]] = frozenset()
    """Options that `rules` alone reads: changing one re-decides from stored signals. One that is not named here measures again,
    which is always right."""
    needs: ClassVar[Needs] = Needs()

    def __init__(self, options: OptionsType) -> None:
        self.options = options

    def identity(self) -> dict[str, str]:
        """Name and SHA-256 of what else decides and no option names."""
        return {}

    @abstractmethod
    def rules(self) -> list[Rule]:
        """The rules in the order in which they decide, with the options' thresholds."""

    @abstractmethod
    def measure(self, batch: pa.RecordBatch) -> Measurement:
        """Every declared signal for every row (columns of manifests.schemas.DOCUMENTS)."""

    def compile(self) -> None:
        """Compiles what is compiled on first use, by using it on `EXAMPLE`; must leave `report` as it was. Nothing for most."""

    def report(self) -> dict[str, Any]:
        """JSON of what the filter found on the documents it has measured, beside its signals, for `summary`; {} for most."""
        return {}

    def summary(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """What the manifest records of this filter, from the reports of all parts in any order; {} for most."""
        return {}
