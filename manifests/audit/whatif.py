"""What other thresholds would have decided, from stored signals and without running anything again.

**Exact** inside a filter block: every document that entered the block was measured, whatever removed it, and every rule that it
failed is on record. The rules that change are evaluated on the stored signals, as they are and as they would be, by
`manifests.rules.decide`, which decided in the run; the other rules' verdicts are those on record.

**Not exact** beyond the block: what passes it anew was never seen by later stages. Of that a bound and an estimate are told, each
called so (`manifests.audit.later_stages`). Options that change texts or signals, such as which lines C4 drops, need the documents
to be measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests.audit.later_stages import GONE, Later, freed
from manifests.audit.rule_names import names_of, option_of
from manifests.blocks import deciding_rules
from manifests.identity import keyed_hash
from manifests.logs import Logs
from manifests.manifest import Content, Manifest, StageRecord
from manifests.rules import Rule, decide, signal_values
from manifests.storage import Folder
from manifests.wording import some

OFF = "off"
EXAMPLES = 5
RULES_NAMED = 8


class WhatIfError(Exception):
    """A question that stored signals cannot answer; the message says why, and what there is."""


@dataclass(frozen=True)
class Change:
    """A rule of one block of one component, and what it would be instead (None: not applied)."""

    component: str
    block: str
    old: Rule
    new: Rule | None

    def as_json(self) -> dict[str, Any]:
        return {
            "component": self.component,
            "block": self.block,
            "rule": self.old.name,
            "old": self.old.model_dump(mode="json", exclude_none=True),
            "new": None if self.new is None else self.new.model_dump(mode="json", exclude_none=True),
        }


@dataclass
class Moved:
    """Documents of one component and language on one side of a change. text_bytes: of the texts that were judged."""

    component: str
    language: str | None
    documents: int = 0
    text_bytes: int = 0


@dataclass
class Verdicts:
    """One changed rule over all measured documents: how many failed it, how many would, and of those that no longer would, how
    many go all the same because they fail another rule of the block."""

    change: Change
    failed: int = 0
    would_fail: int = 0
    fail_others: int = 0

    def as_json(self) -> dict[str, Any]:
        names = ("failed", "would_fail", "fail_others")
        return {**self.change.as_json(), **{name: getattr(self, name) for name in names}}


@dataclass
class WhatIf:
    """changes: as they were understood. verdicts: of each of them, **exact**. measured: documents evaluated. newly_kept,
    newly_removed: **exact**, of the filter block, by component and language. other_reason: removed before and after, some verdict
    of a changed rule being another.

    in_corpus: of the newly removed, those that are in the corpus now (the others were removed later anyway), with their tokens:
    exact. most_kept: **upper bound** on documents that would come into the corpus: all that pass the block anew, and
    `freed_copies`, those that a later stage removed because of others, of which one goes. expected_kept, expected_tokens:
    **estimate** of what passes anew and comes in, as if later stages kept the share that they kept of the component's others.
    expected_copies: **estimate** of the copies that come back, one of each cluster whose kept document goes.
    """

    changes: list[Change]
    verdicts: list[Verdicts] = field(default_factory=list)
    measured: int = 0
    newly_kept: list[Moved] = field(default_factory=list)
    newly_removed: list[Moved] = field(default_factory=list)
    other_reason: int = 0
    in_corpus: int = 0
    in_corpus_tokens: int = 0
    freed_copies: int = 0
    most_kept: int = 0
    expected_kept: float = 0.0
    expected_tokens: float = 0.0
    expected_copies: int = 0
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        def side(moved: list[Moved]) -> dict[str, Any]:
            rows = [one.__dict__ for one in moved]
            return {"documents": sum(one.documents for one in moved), "by": rows}

        return {
            "changes": [one.as_json() for one in self.changes],
            "exact": {
                "measured": self.measured,
                "rules": [one.as_json() for one in self.verdicts],
                "newly_kept": side(self.newly_kept),
                "newly_removed": side(self.newly_removed),
                "newly_removed_now_in_corpus": {"documents": self.in_corpus, "tokens": self.in_corpus_tokens},
                "removed_either_way_with_another_verdict": self.other_reason,
            },
            "upper_bound": {"documents_that_come_in": self.most_kept, "copies_that_may_come_back": self.freed_copies},
            "estimate": {
                "documents_that_come_in": self.expected_kept,
                "tokens_that_come_in": self.expected_tokens,
                "copies_that_come_back": self.expected_copies,
            },
            "examples": self.examples,
            "notes": self.notes,
        }


def changes_of(content: Content, asked: Sequence[str], component: str | None = None) -> list[Change]:
    """What words such as `gopher_quality.min_words=30`, `gopher.min_words=30`, `web:gopher.min_words=30` or
    `fineweb.max_short_lines=off` change: a rule by its name, or by its stage and option. Everywhere it decided, or in one
    component. WhatIfError names what is wrong and what there is."""
    known = list(deciding_rules(content))
    if component is not None and component not in content.components:
        raise WhatIfError(f"there is no component {component!r}; there are {', '.join(content.components)}")
    if not known:
        raise WhatIfError("no filter of this corpus has rules over stored signals")
    found: dict[tuple[str, str, str], Change] = {}
    for words in asked:
        name, equals, value = words.partition("=")
        only, colon, name_alone = name.strip().rpartition(":")
        only = only if colon else component or ""
        if not equals or not value.strip():
            raise WhatIfError(f"{words!r} is not RULE=VALUE, such as gopher.min_words=30 or c4.curly_brace={OFF}")
        if only and only not in content.components:
            raise WhatIfError(f"{words!r}: there is no component {only!r}; there are {', '.join(content.components)}")
        matching = [one for one in known if name_alone in names_of(one[2], one[3]) and only in ("", one[0])]
        if not matching and len({one[3].name for one in known if option_of(one[3]) == name_alone}) == 1:
            matching = [one for one in known if option_of(one[3]) == name_alone and only in ("", one[0])]
        if not matching:
            raise WhatIfError(_unknown(words, name_alone, known))
        for place, block, _, rule in matching:
            key = (place, block, rule.name)
            if key in found:
                raise WhatIfError(f"{words!r}: {rule.name} of {place} is asked twice")
            found[key] = Change(place, block, rule, _changed(rule, value.strip(), words))
    return list(found.values())


def what_if(
    logs: Logs,
    changes: Sequence[Change],
    examples: int = EXAMPLES,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> WhatIf:
    """What `changes` would do. Reads of the signals only the columns that they look at. WhatIfError where logs do not agree, or
    once `stopped` says that nobody waits: it is asked before each log file."""
    answer = WhatIf(list(changes), [Verdicts(one) for one in changes])
    later = Later(logs.manifest.content, ((one.component, one.block) for one in changes))
    sides = {"newly_kept": _Side(examples), "newly_removed": _Side(examples)}
    for component, block in dict.fromkeys((one.component, one.block) for one in changes):
        mine = [one for one in answer.verdicts if (one.change.component, one.change.block) == (component, block)]
        for chunk in _chunks(logs, component, block, [one.change for one in mine]):
            if stopped():
                raise WhatIfError("stopped")
            answer.measured += chunk.measured
            _evaluate(chunk, mine, answer, sides, seed, later)
    for name, side in sides.items():
        setattr(answer, name, side.moved())
        answer.examples[name] = side.examples()
    _beyond(logs, answer, sides["newly_removed"], later)
    return answer


def _unknown(words: str, name: str, known: list[tuple[str, str, StageRecord, Rule]]) -> str:
    import difflib

    stage, _, option = name.rpartition(".")
    for _, _, record, _ in known:
        if option in record.options and stage in (record.stage, record.stage.partition("_")[0]):
            return (
                f"{words!r}: {option} is an option of {record.stage} that changes what is measured, or a rule that was off and "
                "whose bound is on no record: change the recipe and run again; only that block and what follows is done anew"
            )
    names = sorted({one for _, _, record, rule in known for one in names_of(record, rule)})
    near = difflib.get_close_matches(name, names, 3)
    rules = sorted({rule.name for *_, rule in known})
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"rules are {some(rules, RULES_NAMED)}; without a change all are listed"
    )
    return f"{words!r}: no rule is called {name!r}; {hint}"


def _changed(rule: Rule, value: str, words: str) -> Rule | None:
    if value == OFF:
        return None
    if isinstance(rule.bound, tuple):
        return rule.model_copy(update={rule.condition: tuple(one.strip() for one in value.split(","))})
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise WhatIfError(f"{words!r}: {value!r} is not a number; `{OFF}` leaves the rule out")
    return rule.model_copy(update={rule.condition: bound})


@dataclass
class _Chunk:
    """Files that tell of the same records: the signals of a block, the removals and the documents."""

    logs: Logs
    component: str
    block: str
    paths: dict[str, str]
    columns: list[str]

    def __post_init__(self) -> None:
        self._open = {kind: _open(self.logs.corpus, path) for kind, path in self.paths.items()}
        self.measured = self._open["signals"].metadata.num_rows

    def signals(self) -> pa.Table:
        missing = set(self.columns) - set(self._open["signals"].schema_arrow.names)
        if missing:
            raise WhatIfError(f"{self.paths['signals']} has no signal {', '.join(sorted(missing))}")
        return self.read("signals", self.columns)

    def read(self, kind: str, columns: list[str]) -> pa.Table:
        return self._open[kind].read(columns=columns)


def _open(corpus: Folder, path: str) -> pq.ParquetFile:
    source = corpus.path(path) if corpus.local else pa.BufferReader(corpus.read(path))
    return pq.ParquetFile(source, read_dictionary=["file"])


def _chunks(logs: Logs, component: str, block: str, changes: list[Change]) -> Iterator[_Chunk]:
    files: dict[str, list[str]] = {}
    for log in logs.manifest.content.logs:
        parts = log.path.split("/")
        if parts[2] == component and (log.kind != "signals" or parts[3] == block):
            files.setdefault(log.kind, []).append(log.path)
    kinds = ("signals", "removals", "documents")
    numbers = {kind: len(files.get(kind, [])) for kind in kinds}
    if not numbers["signals"]:
        raise WhatIfError(f"component {component}: the signals of {block} are not stored")
    if len(set(numbers.values())) != 1:
        raise WhatIfError(f"component {component}: its logs do not cover the same records: files {numbers}")
    columns = list(dict.fromkeys(one.old.signal for one in changes))
    for at in range(numbers["signals"]):
        yield _Chunk(logs, component, block, {kind: files[kind][at] for kind in kinds}, columns)


class _Side:
    """Documents that change sides, counted, with a sample by hash."""

    def __init__(self, examples: int) -> None:
        self._moved: dict[tuple[str, str | None], Moved] = {}
        self._sample: list[tuple[int, str, dict[str, Any]]] = []
        self._wanted = examples
        self.ids: list[pa.Array] = []
        """Of those that may have been kept for another document."""
        self.gone: list[pa.Table] = []
        """GONE, of those that a later stage removed."""

    def add(self, component: str, keys: np.ndarray, rows: pa.Table) -> None:
        """`rows`: file, position, language, text_bytes, and what an example shows; `keys` (uint64) order the examples."""
        grouped = rows.group_by("language").aggregate([("text_bytes", "sum"), ("position", "count")])
        columns = (grouped[name].to_pylist() for name in ("language", "text_bytes_sum", "position_count"))
        for language, size, number in zip(*columns, strict=True):
            moved = self._moved.setdefault((component, language), Moved(component, language))
            moved.documents += number
            moved.text_bytes += size or 0
        if not self._wanted:
            return
        first = np.argsort(keys, kind="stable")[: self._wanted]
        shown = rows.take(pa.array(first))
        ids = _printed(component, shown)
        shown = _with_numbers(shown.drop_columns(["file", "position"]))
        found = [
            (int(key), one, {"id": one, "component": component, **example})
            for key, one, example in zip(keys[first], ids.to_pylist(), shown.to_pylist(), strict=True)
        ]
        self._sample = sorted([*self._sample, *found], key=lambda one: one[:2])[: self._wanted]

    def moved(self) -> list[Moved]:
        return sorted(
            self._moved.values(), key=lambda one: (-one.documents, one.component, one.language is None, one.language or "")
        )

    def examples(self) -> list[dict[str, Any]]:
        return [example for *_, example in self._sample]


def _with_numbers(table: pa.Table) -> pa.Table:
    """Ratios as the numbers that rules see."""
    for at, column in enumerate(table.schema):
        if pa.types.is_struct(column.type):
            values = pa.array(signal_values(table[column.name]), pa.float64(), from_pandas=True)
            table = table.set_column(at, column.name, values)
    return table


def _evaluate(chunk: _Chunk, verdicts: list[Verdicts], answer: WhatIf, sides: dict[str, _Side], seed: int, later: Later) -> None:
    signals = chunk.signals()
    changes = [one.change for one in verdicts]
    before = np.array([decide([one.old], signals).first >= 0 for one in changes]).reshape(len(changes), signals.num_rows)
    after = np.array(
        [np.zeros(signals.num_rows, bool) if one.new is None else decide([one.new], signals).first >= 0 for one in changes]
    ).reshape(before.shape)
    for one, fails, would_fail in zip(verdicts, before, after, strict=True):
        one.failed += int(fails.sum())
        one.would_fail += int(would_fail.sum())
    affected = np.flatnonzero((before != after).any(axis=0))
    if not affected.size:
        return
    before, after = before[:, affected], after[:, affected]
    identity = chunk.read("signals", ["file", "position", "text_bytes"]).take(pa.array(affected))
    every_removal = chunk.read("removals", ["file", "position", "stage", "rule", "failed_rules", "language"])
    gone = every_removal.filter(pc.equal(every_removal["stage"], chunk.block))
    at = _find(identity, gone)
    was_removed, row_of = at >= 0, np.maximum(at, 0)
    names = [one.old.name for one in changes]
    others = _on_record(chunk, gone, names, identity, before, was_removed, row_of)
    will_go = after.any(axis=0) | (was_removed & (others[row_of] > 0))
    answer.other_reason += int((was_removed & will_go).sum())
    for one, fails, would_fail in zip(verdicts, before, after, strict=True):
        one.fail_others += int((fails & ~would_fail & will_go).sum())
    kept = np.flatnonzero(was_removed & ~will_go)
    if kept.size:
        rows = gone.select(["rule", "failed_rules", "language"]).take(pa.array(row_of[kept]))
        told = _beside(identity.take(pa.array(kept)), rows, signals.take(pa.array(affected[kept])))
        sides["newly_kept"].add(chunk.component, _keys(chunk.component, told, seed), told)
    removed = np.flatnonzero(~was_removed & will_go)
    if removed.size:
        moved = identity.take(pa.array(removed))
        documents = chunk.read("documents", ["file", "position", "language", "removed_by", "tokens"])
        where = _find(moved, documents)
        if (where < 0).any():
            stranger = _printed(chunk.component, moved)[int(np.flatnonzero(where < 0)[0])]
            raise WhatIfError(f"{chunk.paths['signals']}: {stranger} is not in {chunk.paths['documents']}")
        rows = documents.select(["language", "removed_by", "tokens"]).take(pa.array(where))
        failing = np.full(len(removed), "", object)
        for index, name in enumerate(names):
            fails = after[index, removed]
            failing[fails] = np.where(failing[fails] == "", name, failing[fails] + f", {name}")
        rows = rows.append_column("would_fail", pa.array(failing, pa.string()))
        told = _beside(moved, rows, signals.take(pa.array(affected[removed])))
        side = sides["newly_removed"]
        side.add(chunk.component, _keys(chunk.component, told, seed), told)
        here = pc.is_null(rows["removed_by"])
        answer.in_corpus += pc.sum(here).as_py() or 0
        answer.in_corpus_tokens += pc.sum(rows["tokens"].filter(here)).as_py() or 0
        side.ids.append(_printed(chunk.component, moved.filter(pc.invert(_is_in(rows["removed_by"], later.before)))))
        caught = moved.filter(_is_in(rows["removed_by"], later.stages))
        if caught.num_rows:
            where = _find(caught, every_removal)
            if (where < 0).any():
                stranger = _printed(chunk.component, caught)[int(np.flatnonzero(where < 0)[0])]
                raise WhatIfError(f"{stranger}: {chunk.paths['documents']} has it removed, {chunk.paths['removals']} has not")
            side.gone.append(chunk.read("removals", GONE.names).take(pa.array(where)))


def _is_in(stages: pa.ChunkedArray, wanted: frozenset[str]) -> pa.ChunkedArray:
    return pc.is_in(stages, value_set=pa.array(sorted(wanted), pa.string()))


def _on_record(
    chunk: _Chunk,
    gone: pa.Table,
    names: list[str],
    identity: pa.Table,
    before: np.ndarray,
    was_removed: np.ndarray,
    row_of: np.ndarray,
) -> np.ndarray:
    """For every removal row of the block, how many rules beside `names` the document failed. WhatIfError where what it failed by
    record is not what it fails by its signals."""
    failed = gone["failed_rules"].combine_chunks()
    flat, parents = failed.flatten(), pc.list_parent_indices(failed).to_numpy()
    unchanged = ~pc.is_in(flat, value_set=pa.array(names, flat.type)).to_numpy(zero_copy_only=False)
    for index, name in enumerate(names):
        on_record = np.zeros(max(1, gone.num_rows), bool)
        on_record[parents[pc.equal(flat, name).to_numpy(zero_copy_only=False)]] = True
        odd = before[index] != (was_removed & on_record[row_of])
        if odd.any():
            one = _printed(chunk.component, identity)[int(np.flatnonzero(odd)[0])]
            said = "fails" if before[index][odd][0] else "meets"
            raise WhatIfError(f"{chunk.paths['signals']}: {one} {said} {name} by its signals, and its removal row says otherwise")
    return np.bincount(parents[unchanged], minlength=max(1, gone.num_rows))


def _find(wanted: pa.Table, table: pa.Table) -> np.ndarray:
    """int64: for each row of `wanted` the row of `table` with its file and position, -1 where there is none. Both are in id
    order."""
    files = pa.array(sorted({*_files(wanted), *_files(table)}, key=str.encode), pa.string())
    span = 1 + max((pc.max(one["position"]).as_py() or 0 for one in (wanted, table)), default=0)
    if len(files) * span >= 1 << 63:
        places = pc.index_in(_printed("", wanted), value_set=_printed("", table))
        return np.asarray(pc.fill_null(places, -1).to_numpy(), np.int64)
    sought, there = (_codes(one, files) * span + one["position"].to_numpy() for one in (wanted, table))
    if not len(there):
        return np.full(len(sought), -1, np.int64)
    at = np.minimum(np.searchsorted(there, sought), len(there) - 1)
    return np.where(there[at] == sought, at, -1)


def _files(table: pa.Table) -> list[str]:
    column = table["file"].combine_chunks()
    names: list[str] = column.dictionary.to_pylist()
    return names


def _codes(table: pa.Table, files: pa.Array) -> np.ndarray:
    """The number in `files` of each row's file."""
    column = table["file"].combine_chunks()
    numbers = pc.index_in(column.dictionary, value_set=files).to_numpy().astype(np.int64)
    found: np.ndarray = numbers[column.indices.to_numpy()] if len(column) else np.zeros(0, np.int64)
    return found


def _keys(component: str, table: pa.Table, seed: int) -> np.ndarray:
    """uint64: what orders the examples; a function of the id and the seed alone."""
    column = table["file"].combine_chunks()
    of_file = np.array([keyed_hash(f"what if {seed}", f"{component}/{one}") for one in column.dictionary.to_pylist()], np.uint64)
    mixed = of_file[column.indices.to_numpy()] + table["position"].to_numpy().astype(np.uint64) * MIX[0]
    for factor in MIX[1:]:  # as splitmix64 ends
        mixed = (mixed ^ (mixed >> np.uint64(30))) * factor
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


MIX = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def _printed(component: str, table: pa.Table) -> pa.Array:
    file = table["file"].combine_chunks()
    file = file.dictionary_decode() if pa.types.is_dictionary(file.type) else file
    positions = pc.cast(table["position"].combine_chunks(), pa.string())
    return pc.binary_join_element_wise(pc.binary_join_element_wise(component, file, "/"), positions, "#")


def _beside(identity: pa.Table, *tables: pa.Table) -> pa.Table:
    for table in tables:
        for name in table.schema.names:
            identity = identity.append_column(name, table[name])
    return identity


def _beyond(logs: Logs, answer: WhatIf, removed: _Side, later: Later) -> None:
    """What later stages might make of it."""
    content = logs.manifest.content
    passed_anew = sum(one.documents for one in answer.newly_kept)
    if passed_anew or answer.newly_removed:
        ids = pa.concat_arrays([pa.array([], pa.string()), *removed.ids])
        gone = pa.concat_tables([GONE.empty_table(), *(one.cast(GONE) for one in removed.gone)])
        answer.freed_copies, all_of_a_stage, answer.expected_copies = freed(logs, later, ids, gone, bool(passed_anew))
        if all_of_a_stage:
            answer.notes.append(
                "the bound has every removal of stages where one document more or less can change what becomes of any other: "
                + ", ".join(dict.fromkeys(stage for _, stage in later.steps(bool(passed_anew))[1]))
            )
    answer.most_kept = passed_anew + answer.freed_copies
    for component in dict.fromkeys(one.component for one in answer.newly_kept):
        blocks = {one.block for one in answer.changes if one.component == component}
        left = [count for count in content.counts if count.component == component and count.stage in blocks]
        passed, size = (sum(getattr(one, name) for one in left[:1]) for name in ("documents_kept", "bytes_kept"))
        if not passed:
            answer.notes.append(
                f"component {component}: nothing passed its filters, so there is no estimate of what later stages keep"
            )
            continue
        share = content.components[component].documents_kept / passed
        tokens = sum(content.components[component].tokens.values())
        mine = [one for one in answer.newly_kept if one.component == component]
        answer.expected_kept += share * sum(one.documents for one in mine)
        answer.expected_tokens += sum(one.text_bytes for one in mine) * tokens / size if size else 0.0
    answer.notes.append("newly kept and newly removed are exact for the filter block; later stages were not run")
    if content.deduplication and passed_anew:
        answer.notes.append(
            "what passes anew can displace copies of itself that are in the corpus, which no log foresees; the bound takes it "
            "that it crowds no bucket of near-duplicates, of which not all pairs are compared"
        )


def manifest_changes(manifest: Manifest) -> list[dict[str, Any]]:
    """Every rule that can be asked about: component, block, stage, rule, names, condition and bound."""
    return [
        {
            "component": component,
            "block": block,
            "stage": record.stage,
            "rule": rule.name,
            "signal": rule.signal,
            "threshold": rule.threshold if rule.threshold is not None else list(rule.keep_if_in or ()),
        }
        for component, block, record, rule in deciding_rules(manifest.content)
    ]
