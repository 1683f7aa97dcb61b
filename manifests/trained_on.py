"""What a model was trained on: a run's ledger, joined with the shards and the document log of its corpus. Exact, and without the
trainer: which rows stand at which position is arithmetic (`manifests.order`).

Tokens are training targets, counted as often as they were served. A stretch of steps has the documents of which it served one.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manifests.manifest import Manifest, Shard
from manifests.order import Order, OrderError, Phase
from manifests.packing import Int64, Packing
from manifests.storage import Folder, StorageError

if TYPE_CHECKING:
    from manifests.logs import Logs

LEDGER = "ledger.jsonl"
TRAINED_SPLIT = "train"
LEDGER_BYTES = 1 << 28
"""A ledger has a line a checkpoint; one that is larger was not written by a trainer."""
LONGEST_ROW = 1 << 24
MOST_EPOCHS = 10_000.0
POSITIONS_AT_A_TIME = 1 << 16
STRETCHES = 10
DIMENSIONS = ("component", "licence", "language", "domain")
UNKNOWN = ""
"""Name of documents without a language, or without a domain."""


class LedgerError(Exception):
    """A ledger that is missing, damaged, or not of the corpus it is asked about."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


L = TypeVar("L", bound=_Line)


class LoaderParameters(_Line):
    order: int
    shards: list[tuple[str, list[tuple[str, str]]]] = Field(min_length=1)
    sequence_length: int = Field(ge=2, le=LONGEST_ROW)
    window: int = Field(ge=1)
    seed: int
    phases: list[tuple[dict[str, float] | None, Annotated[int, Field(ge=1)] | None]] = Field(min_length=1)
    packing: Packing = "best-fit"


class Header(_Line):
    manifest_digest: str
    loader_digest: str
    loader: LoaderParameters


class Range(_Line):
    """Steps, both included, and the positions that they consumed, `end_position` excluded. `skipped`: that they passed over: no
    update was made of these rows."""

    first_step: int = Field(ge=1)
    last_step: int = Field(ge=1)
    first_position: int = Field(ge=0)
    end_position: int = Field(ge=1)
    skipped: bool = False

    @property
    def rows_a_step(self) -> int:
        return (self.end_position - self.first_position) // (self.last_step - self.first_step + 1)


@dataclass(frozen=True)
class Ledger:
    """A run's ledger, every step from the first to `last_step` once and in turn."""

    path: Path
    header: Header
    ranges: list[Range]

    @property
    def last_step(self) -> int:
        return self.ranges[-1].last_step if self.ranges else 0

    def position_after(self, step: int) -> int:
        """The first position that the first `step` steps neither consumed nor passed over."""
        for one in self.ranges:
            if one.first_step <= step <= one.last_step:
                return one.first_position + (step - one.first_step + 1) * one.rows_a_step
        return 0 if step < 1 else self.ranges[-1].end_position if self.ranges else 0

    def step_of(self, position: int) -> int:
        """The step that consumed a position, or passed over it."""
        one = self._range_of(position)
        return one.first_step + (position - one.first_position) // one.rows_a_step

    def passed_over(self, position: int) -> bool:
        """Whether the run skipped the step at this position, so that its row was not trained on there."""
        return self._range_of(position).skipped

    def consumed(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of positions `first` to `stop`, `stop` excluded, that were trained on."""
        for one in self.ranges:
            low, high = max(first, one.first_position), min(stop, one.end_position)
            if low < high and not one.skipped:
                yield low, high

    def _range_of(self, position: int) -> Range:
        return next(one for one in self.ranges if one.first_position <= position < one.end_position)


@dataclass
class Taken:
    """What some steps took: distinct documents, and tokens as often as they were served."""

    documents: int = 0
    tokens: int = 0


@dataclass
class Stretch:
    """Steps `first_step` to `last_step`, both included. epochs: how often each component had been gone through at their end: its
    targets served since step 1, of those it has. 0 where none of it was served, also where its stream with others was.
    by: dimension → name → what was taken."""

    first_step: int
    last_step: int
    taken: Taken
    epochs: dict[str, float]
    by: dict[str, dict[str, Taken]] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for the stretch, then one a dimension and name, most tokens first."""
        steps = {"first_step": self.first_step, "last_step": self.last_step}
        yield {**steps, "dimension": "all", "name": None, "documents": self.taken.documents, "tokens": self.taken.tokens}
        for dimension, names in self.by.items():
            for name, taken in sorted(names.items(), key=lambda item: (-item[1].tokens, item[0])):
                shown = name or None
                yield {**steps, "dimension": dimension, "name": shown, "documents": taken.documents, "tokens": taken.tokens}


@dataclass(frozen=True)
class Served:
    """One time that a piece of a document was trained on: `tokens` of it from `first_token` on, counted from its BOS."""

    step: int
    epoch: int
    position: int
    first_token: int
    tokens: int


@dataclass(frozen=True)
class _Component:
    """A component's training documents, shards one after the other."""

    name: str
    shards: tuple[Shard, ...]
    starts: Int64
    lengths: Int64
    shard_starts: Int64


class TrainedOn:
    """A run, joined with its corpus. LedgerError where the ledger is damaged, or is not of this corpus.

    `same_shards`: another manifest will do that lists the run's shards, such as one that other components were dropped from:
    which rows a run consumed depends on its shards alone.
    """

    def __init__(self, run: Path, corpus: Folder, manifest: Manifest, *, same_shards: bool = False) -> None:
        self.ledger = read_ledger(run)
        self.corpus, self.manifest = corpus, manifest
        self._taken: set[str] | None = None
        path, header = self.ledger.path, self.ledger.header
        if not same_shards and header.manifest_digest != manifest.digest:
            raise LedgerError(
                f"{path}: the run consumed the corpus {header.manifest_digest[:12]}…, and {corpus.url} is {manifest.digest[:12]}…"
            )
        components = []
        for name, digests in header.loader.shards:
            shards = tuple(manifest.shards(TRAINED_SPLIT, name))
            if not shards or [(shard.sha256, shard.index_sha256) for shard in shards] != digests:
                raise LedgerError(f"{path}: the shards that it names of component {name!r} are not those of {corpus.url}")
            components.append(_component(corpus, name, shards))
        try:
            parameters = header.loader
            phases = [Phase(weights, rows) for weights, rows in parameters.phases]
            self.order = Order(
                components, parameters.sequence_length, parameters.seed, phases, parameters.window, packing=parameters.packing
            )
            if self.order.digest != header.loader_digest:
                raise LedgerError(f"{path}: another version of the loader wrote it; its rows cannot be told")
            passes = self.order.epochs(self.ledger.position_after(self.ledger.last_step))
        except (OrderError, ValueError, OverflowError) as error:
            raise LedgerError(f"{path}: {error}") from None
        if max(passes.values(), default=0.0) > MOST_EPOCHS:
            raise LedgerError(f"{path}: {max(passes.values()):,.0f} epochs are no run: its positions are damaged")

    def stretches(self, logs: Logs, bounds: Sequence[tuple[int, int]]) -> tuple[list[Stretch], Stretch]:
        """(each stretch of steps, first and last included; all of them together). `bounds` follow one another."""
        names = _Names(logs, self.order.components)
        since_begin = self._served(0, self.ledger.position_after(bounds[0][0] - 1))
        everything = [np.zeros(len(one.lengths), np.int64) for one in self.order.components]
        found = []
        for first, last in bounds:
            served = self._served(self.ledger.position_after(first - 1), self.ledger.position_after(last))
            for total, before, some in zip(everything, since_begin, served, strict=True):
                total += some
                before += some
            found.append(self._stretch(first, last, served, names, self._passes(since_begin)))
        return found, self._stretch(bounds[0][0], bounds[-1][1], everything, names, self._passes(since_begin))

    def passes(self) -> dict[str, float]:
        """How often the run went through each component, from what was served of it."""
        return self._passes(self._served(0, self.ledger.position_after(self.ledger.last_step)))

    def taken_components(self) -> set[str]:
        """Components of which the run took a row; counted once."""
        if self._taken is None:
            self._taken = self._components_taken()
        return self._taken

    def _components_taken(self) -> set[str]:
        stop = self.ledger.position_after(self.ledger.last_step)
        if not any(one.skipped for one in self.ledger.ranges) and min(self.order.epochs(stop).values()) >= 1:
            return {component.name for component in self.order.components}
        served = zip(self.order.components, self._served(0, stop), strict=True)
        return {component.name for component, targets in served if targets.any()}

    def documents(self, last_step: int | None = None) -> pa.Table:
        """One row for each document that the first `last_step` steps (None: all) took some of: component, id, targets (as often
        as they were served) and tokens (its length, BOS included)."""
        stop = self.ledger.position_after(self.ledger.last_step if last_step is None else last_step)
        served = self._served(0, stop)
        tables = []
        for component, targets in zip(self.order.components, served, strict=True):
            touched = np.flatnonzero(targets)
            ids = pa.chunked_array([_index(self.corpus, shard, ["id"])["id"].combine_chunks() for shard in component.shards])
            columns = {
                "component": pa.array([component.name] * len(touched), pa.string()),
                "id": ids.take(pa.array(touched)),
                "targets": targets[touched],
                "tokens": component.lengths[touched],
            }
            tables.append(pa.table(columns))
        return pa.concat_tables(tables)

    def targets_of(self, documents: Sequence[dict[str, Any]]) -> list[int]:
        """How many targets of each of these documents were served, as often as they were, by its row in the document log: what
        `times` comes to, of many in one pass."""
        served = self._served(0, self.ledger.position_after(self.ledger.last_step))
        shards = {
            shard.path: (number, int(begin))
            for number, component in enumerate(self.order.components)
            for shard, begin in zip(component.shards, component.shard_starts.tolist(), strict=False)
        }
        found = []
        for document in documents:
            number, begin = shards.get(document["shard"], (None, 0))
            if number is None:
                found.append(0)
                continue
            starts = self.order.components[number].starts
            at = int(np.searchsorted(starts, begin + int(document["start"])))
            found.append(int(served[number][at]))
        return found

    def times(self, document: dict[str, Any]) -> list[Served]:
        """Every time that a document was trained on, by its row in the document log; empty where it never was."""
        number = next((n for n, one in enumerate(self.order.components) if one.name == document["component"]), None)
        if number is None or document["shard"] is None or document["split"] != TRAINED_SPLIT:
            return []
        component, plan = self.order.components[number], self.order.plans[number]
        shard = next((n for n, one in enumerate(component.shards) if one.path == document["shard"]), None)
        if shard is None:
            raise LedgerError(
                f"{document['id']}: the document log names the shard {document['shard']}, which is not in the manifest"
            )
        begin = int(component.shard_starts[shard]) + int(document["start"])
        stop = self.ledger.position_after(self.ledger.last_step)
        found = []
        for piece in np.flatnonzero((plan.begin >= begin) & (plan.begin < begin + int(document["tokens"]))).tolist():
            row = int(np.searchsorted(plan.first_piece, piece, side="right")) - 1
            for position, epoch in self.order.positions_of(number, row, stop):
                if self.ledger.passed_over(position):
                    continue
                step = self.ledger.step_of(position)
                found.append(Served(step, epoch, position, int(plan.begin[piece]) - begin, int(plan.length[piece])))
        return sorted(found, key=lambda one: (one.position, one.first_token))

    def _served(self, first: int, stop: int) -> list[Int64]:
        """Of each component: the targets that each of its documents had at positions `first` to `stop`, `stop` excluded, without
        those that were passed over."""
        served = [np.zeros(len(one.lengths), np.int64) for one in self.order.components]
        for low, high in self.ledger.consumed(first, stop):
            for at in range(low, high, POSITIONS_AT_A_TIME):
                _serve(self.order, np.arange(at, min(at + POSITIONS_AT_A_TIME, high)), served)
        return served

    def _passes(self, served: Sequence[Int64]) -> dict[str, float]:
        whole = self.order.component_targets()
        counts = zip(self.order.components, served, strict=True)
        return {component.name: int(targets.sum()) / (whole[component.name] or 1) for component, targets in counts}

    def _stretch(self, first: int, last: int, served: list[Int64], names: _Names, epochs: dict[str, float]) -> Stretch:
        by: dict[str, dict[str, Taken]] = {dimension: {} for dimension in DIMENSIONS}
        for number, (component, counts) in enumerate(zip(self.order.components, served, strict=True)):
            touched = np.flatnonzero(counts)
            licence = self.manifest.content.components[component.name].licence
            whole = Taken(len(touched), int(counts.sum()))
            if whole.documents:
                by["component"][component.name] = whole
                _add(by["licence"], licence, whole)
            for dimension in ("language", "domain"):
                codes, words = names.of(number, dimension)
                documents = np.bincount(codes[touched], minlength=len(words))
                tokens = np.bincount(codes[touched], weights=counts[touched], minlength=len(words))
                for code in np.flatnonzero(documents).tolist():
                    _add(by[dimension], words[code], Taken(int(documents[code]), int(tokens[code])))
        all_of_them = Taken(
            sum(one.documents for one in by["component"].values()), sum(one.tokens for one in by["component"].values())
        )
        return Stretch(first, last, all_of_them, epochs, by)


class _Names:
    """The language and the domain of every training document, as numbers into a list of words, in the order of the shards."""

    def __init__(self, logs: Logs, components: Sequence[_Component]) -> None:
        self._found: list[dict[str, tuple[Int64, list[str]]]] = []
        for component in components:
            table = _documents(logs, component)
            self._found.append({name: _coded(table[name]) for name in ("language", "domain")})

    def of(self, number: int, dimension: str) -> tuple[Int64, list[str]]:
        return self._found[number][dimension]


def read_ledger(run: Path) -> Ledger:
    """The ledger of a run's folder; LedgerError names the line that is damaged. Half a line at the end, which a killed run
    leaves, is of steps that no checkpoint counts."""
    path = run / LEDGER
    try:
        size = path.stat().st_size
        if size > LEDGER_BYTES:
            raise LedgerError(f"{path}: {size:,} bytes are no ledger, which has a line a checkpoint")
        lines = [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
    except FileNotFoundError:
        raise LedgerError(f"{path}: there is no ledger: {run} is no training run, or an unfinished one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: unreadable: {error}") from None
    if not lines:
        raise LedgerError(f"{path}: it is empty")
    header = _parsed(path, 1, lines[0], Header)
    ranges: list[Range] = []
    for number, line in enumerate(lines[1:], 2):
        one = _parsed(path, number, line, Range)
        step, position = (ranges[-1].last_step, ranges[-1].end_position) if ranges else (0, 0)
        if one.first_step != step + 1 or one.first_position != position:
            raise LedgerError(
                f"{path}: line {number} begins with step {one.first_step:,} at position {one.first_position:,}; after step "
                f"{step:,}, position {position:,}, lines are missing or doubled"
            )
        rows, steps = one.end_position - one.first_position, one.last_step - one.first_step + 1
        if steps < 1 or rows < 1 or rows % steps:
            raise LedgerError(f"{path}: line {number}: {rows:,} rows are not {steps:,} steps of the same number of rows")
        ranges.append(one)
    return Ledger(path, header, ranges)


def equal_stretches(first: int, last: int, every: int | None = None) -> list[tuple[int, int]]:
    """Steps `first` to `last` in stretches of `every` steps, or in STRETCHES or fewer that are as long as one another."""
    length = every or -(-(last - first + 1) // STRETCHES)
    return [(begin, min(begin + length - 1, last)) for begin in range(first, last + 1, length)]


def corpus_of(run: Path) -> str | None:
    """Where a run says that its corpus lay: a path that means something where the run was started."""
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        return str(config["manifest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _parsed(path: Path, number: int, line: str, kind: type[L]) -> L:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(step) for step in first["loc"])
        raise LedgerError(f"{path}: line {number}: {f'{at}: ' if at else ''}{first['msg']}") from None


def _component(corpus: Folder, name: str, shards: tuple[Shard, ...]) -> _Component:
    starts, lengths = [], []
    shard_starts = np.concatenate([[0], np.cumsum([shard.tokens for shard in shards])]).astype(np.int64)
    for shard, at in zip(shards, shard_starts.tolist(), strict=False):
        table = _index(corpus, shard, ["start", "tokens"])
        start, length = table["start"].to_numpy(), table["tokens"].to_numpy()
        if not np.array_equal(start, np.cumsum(length) - length) or int(length.sum()) != shard.tokens:
            raise LedgerError(f"{corpus.url}/{shard.index}: its documents do not cover {shard.path}")
        starts.append(start.astype(np.int64) + at)
        lengths.append(length.astype(np.int64))
    return _Component(name, shards, np.concatenate(starts), np.concatenate(lengths), shard_starts)


def _index(corpus: Folder, shard: Shard, columns: list[str]) -> pa.Table:
    try:
        data = corpus.read(shard.index)
        if hashlib.sha256(data).hexdigest() != shard.index_sha256:
            raise LedgerError(f"{corpus.url}/{shard.index}: not the file that the manifest lists")
        return pq.read_table(io.BytesIO(data), columns=columns).select(columns)
    except (OSError, StorageError, KeyError, pa.ArrowException) as error:
        raise LedgerError(f"{corpus.url}/{shard.index}: cannot be read: {error}") from None


def _documents(logs: Logs, component: _Component) -> pa.Table:
    """Language and domain of a component's training documents, in the order of its shards."""
    order = {shard.path: number for number, shard in enumerate(component.shards)}
    logs.connection.register("shard_order", pa.table({"shard": list(order), "number": list(order.values())}))
    query = (
        f"select coalesce(language, '{UNKNOWN}') as language, coalesce(domain, '{UNKNOWN}') as domain from documents "
        "join shard_order using (shard) where component = ? and split = ? order by number, start"
    )
    table = logs.connection.sql(query, params=[component.name, TRAINED_SPLIT]).to_arrow_table()
    logs.connection.unregister("shard_order")
    if table.num_rows != len(component.lengths):
        raise LedgerError(
            f"the document log has {table.num_rows:,} training documents of component {component.name!r}, its shards have "
            f"{len(component.lengths):,}; `corpusmill verify` says what is wrong"
        )
    return table


def _coded(words: pa.ChunkedArray) -> tuple[Int64, list[str]]:
    coded = words.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), coded.dictionary.to_pylist()


def _serve(order: Order[_Component], positions: Int64, served: list[Int64]) -> None:
    """Adds the targets that each document has in the rows at `positions`."""
    place = order.locate(positions)
    for number, (component, plan) in enumerate(zip(order.components, order.plans, strict=True)):
        rows = place.row[place.component == number]
        counts = plan.first_piece[rows + 1] - plan.first_piece[rows]
        nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        pieces = np.repeat(plan.first_piece[rows], counts) + nth
        documents = np.searchsorted(component.starts, plan.begin[pieces], side="right") - 1
        np.add.at(served[number], documents, plan.length[pieces])


def _add(into: dict[str, Taken], name: str, taken: Taken) -> None:
    known = into.setdefault(name, Taken())
    known.documents += taken.documents
    known.tokens += taken.tokens
