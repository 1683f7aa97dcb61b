"""Are the logs of a corpus what its manifest says, and do they agree with each other, row by row? What a recount cannot see, such
as a value, a digest or a twin that was changed, is seen by asking one log about another.

File n of every kind of log covers the same records, so one range of records after another is looked at, and memory does not
grow with the corpus. Each finding names file, document and both sides. What a row says of itself, and lengths of texts, are for
manifests.verification.removal_checks; twins, which stand in any range, for manifests.verification.twin_checks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.blocks import MEASURE, deciding_rules
from manifests.identity import printed_ids
from manifests.logs import UnreadableLogError, read_untrusted
from manifests.manifest import TAKEDOWN, Content, StageCount, StageRecord
from manifests.rules import Rule, decide
from manifests.schemas import LOG_SCHEMAS
from manifests.storage import Folder
from manifests.verification.edit_checks import EditChecks
from manifests.verification.findings import first_of, unequal
from manifests.verification.origin_checks import OriginChecks
from manifests.verification.removal_checks import RowChecks
from manifests.verification.shard_checks import Placements
from manifests.verification.signal_checks import SignalChecks

_Place = tuple[str, int] | None
FINAL = ("text_bytes", "text_sha256", "split_cluster", "start", "tokens")
"""Columns of the document log that tell of the text as it is in the corpus, and where."""


class LogChecks:
    """The logs of one component. After `findings`, `splits` has its documents by split, and `placements` where they are said to
    stand. `damaged` files are not read, and one that turns out to be so is added; `placements` is None where one of the document
    logs is among them."""

    def __init__(self, corpus: Folder, content: Content, component: str, damaged: set[str], texts: bool = False) -> None:
        self.corpus, self.content, self.component, self.damaged = corpus, content, component, damaged
        self.files: dict[str, list[str]] = defaultdict(list)
        for log in content.logs:
            parts = log.path.split("/")
            if parts[2] == component:
                self.files[log.kind if log.kind != "signals" else f"signals/{parts[3]}"].append(log.path)
        self.rows = {log.path: log.rows for log in content.logs}
        self.splits: Counter[str] = Counter()
        whole = self.files["documents"] and not set(self.files["documents"]) & set(damaged)
        self.placements = Placements(texts) if whole else None
        self._inputs = pa.array([one.path for one in content.components[component].inputs], pa.string())
        self._rules: dict[str, list[Rule]] = defaultdict(list)
        for name, block, _, rule in deciding_rules(content):
            if name == component:
                self._rules[block].append(rule)
        self._checked = RowChecks(content, component, frozenset(self._rules))
        records = _records_of_blocks(content, component)
        self._measured = {
            block: SignalChecks(content, component, block, records.get(block, []))
            for block in (kind.partition("/")[2] for kind in self.files if kind.startswith("signals/"))
        }
        self._edits = EditChecks(content, component)
        self._origins = OriginChecks()
        self._previous: dict[str, _Place] = {}
        self._removed: Counter[tuple[str, ...]] = Counter()
        self._edited: Counter[tuple[str, ...]] = Counter()
        self._totals: Counter[str] = Counter()
        self._usage: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def findings(self) -> Iterator[str]:
        """Rows, ids and their order, counts by rule; documents of files that are no input, or in no shard; edits and signals of
        documents that did not come in; removal rows that tell another origin, or are missing; rules that decide otherwise from
        the stored signals than they did; edits that do not follow one another up to the final text; evidence that its rule cannot
        have given, lengths of texts that do not fit; figures by language."""
        number = len(self.files["documents"])
        odd = [kind for kind in [*self.files, *LOG_SCHEMAS] if len(self.files[kind]) != number]
        if odd:
            found = f"{len(self.files[odd[0]])} log files of its {odd[0]}, and {number} of its documents"
            yield f"component {self.component}: {found}, which cover the same records"
        for block in self._rules:
            if number and f"signals/{block}" not in self.files:
                told = f"the manifest lists no signals of {block}, by which its rules decided"
                yield f"component {self.component}: {told}"
        for at in range(max(map(len, self.files.values()))):
            tables: dict[str, tuple[str, pa.Table]] = {}
            for kind, paths in self.files.items():
                if at < len(paths) and paths[at] not in self.damaged:
                    try:
                        table = read_untrusted(self.corpus, paths[at])
                    except UnreadableLogError as error:
                        self.damaged.add(paths[at])
                        self.placements = None if kind == "documents" else self.placements
                        yield str(error)
                        continue
                    yield from self._recount(kind, paths[at], table)
                    tables[kind] = paths[at], table
            if not odd and len(tables) == len(self.files):
                yield from self._compare(tables)
        yield from self._check_totals()
        if not odd and all(self._all_read(kind) for kind in self.files):
            yield from self._checked.totals()
            for measured in self._measured.values():
                yield from measured.totals()

    def _recount(self, kind: str, path: str, table: pa.Table) -> Iterator[str]:
        if table.num_rows != self.rows[path]:
            yield f"{path}: {table.num_rows} rows, the manifest says {self.rows[path]}"
        yield from _check_identity(path, table, self.component)
        self._previous[kind] = yield from _check_order(path, table, self._previous.get(kind), unique=kind != "edits")
        if kind == "removals":
            self._removed.update(_counted(table, "step", "stage", "rule"))
            yield from self._checked.removals(path, table)
        elif kind == "edits":
            self._edited.update(_counted(table, "step", "rule"))
        elif kind == "documents":
            self._totals.update({"in": table.num_rows, "kept": table["removed_by"].null_count})
            self.splits.update({one: number for (one,), number in _counted(table, "split").items() if one is not None})
            yield from self._check_states(path, table)
            yield from self._checked.documents(path, table)
            _add_usage(self._usage, table)
            if self.placements is not None:
                self.placements.add(table)

    def _check_states(self, path: str, documents: pa.Table) -> Iterator[str]:
        """A kept document has a text and, in a corpus with tokens, a place; a removed one has none."""
        kept = pc.is_null(documents["removed_by"]).to_numpy(zero_copy_only=False)
        has = {name: documents[name].is_valid().to_numpy(zero_copy_only=False) for name in ("text_sha256", "shard", "split")}
        odd = {"is kept and has no digest of its text": kept & ~has["text_sha256"]}
        if self.content.tokenizer is not None:
            odd["is kept and stands in no shard"] = kept & ~has["shard"]
        if self.content.split is not None:
            odd["is kept and in no split"] = kept & ~has["split"]
        odd["was removed and has a place in a shard or split"] = ~kept & (has["shard"] | has["split"])
        for name in FINAL:
            there = documents[name].is_valid().to_numpy(zero_copy_only=False)
            odd[f"was removed and has a {name}, which only kept documents have"] = ~kept & there
            if name in ("start", "tokens") and self.content.tokenizer is None:
                odd[f"has a {name}, and the corpus has no tokens"] = kept & there
            elif name not in ("split", "split_cluster", "shard", "text_sha256"):
                needed = self.content.tokenizer is not None or name == "text_bytes"
                odd[f"is kept and has no {name}"] = kept & ~there & needed
        for said, rows in odd.items():
            for row in first_of(rows):
                yield f"{path}: {documents['id'][row]} {said}"

    def _compare(self, tables: dict[str, tuple[str, pa.Table]]) -> Iterator[str]:
        """All logs of one range of records."""
        (path, documents), (removals_path, removals), (edits_path, edits) = (
            tables[kind] for kind in ("documents", "removals", "edits")
        )
        known = documents["id"]
        yield from _strangers(
            path, documents["file"], documents, self._inputs, f"is of a file that is no input of {self.component}"
        )
        yield from _check_removals(path, documents, removals_path, removals)
        yield from _check_origins(removals_path, removals, documents)
        yield from _strangers(edits_path, edits["id"], edits, known, "was edited and did not come in")
        yield from _check_chain(edits_path, edits, documents)
        yield from self._origins.findings(path, documents)
        signals_of = {kind.partition("/")[2]: pair for kind, pair in tables.items() if kind.startswith("signals/")}
        yield from self._checked.lengths(path, documents, removals_path, removals, edits, signals_of)
        yield from self._edits.findings(edits_path, edits, removals, signals_of)
        for kind, (signals_path, signals) in tables.items():
            if kind.startswith("signals/"):
                yield from _strangers(signals_path, signals["id"], signals, known, "was measured and did not come in")
                before = self._before_block(kind.partition("/")[2])
                yield from _check_measured(signals_path, signals, documents, removals, before)
                yield from self._measured[kind.partition("/")[2]].findings(signals_path, signals)
                yield from _check_decisions(signals_path, kind.partition("/")[2], self._rules, signals, removals)

    def _before_block(self, block: str) -> set[tuple[str, str]]:
        """(step, stage) of all that may remove a document before a block measures it."""
        found = set()
        for count in self.content.counts:
            if count.component == self.component:
                if count.stage == block + MEASURE:
                    break
                found.add((count.step, count.stage))
        return found

    def _check_totals(self) -> Iterator[str]:
        counts = [one for one in self.content.counts if one.component == self.component]
        for what, mine, theirs in (
            ("removals", self._removed, _stated(counts, "removed")),
            ("edits", self._edited, _stated(counts, "edited")),
        ):
            if not self._all_read(what):
                continue
            for key in sorted(mine.keys() | theirs.keys()):
                if mine.get(key, 0) != theirs.get(key, 0):
                    number, said = mine.get(key, 0), theirs.get(key, 0)
                    yield f"component {self.component}, rule {key[-1]}: {number} rows in {what}, the manifest says {said}"
        if not self._all_read("documents"):
            return
        record = self.content.components[self.component]
        for what, stated in (("in", record.documents_in), ("kept", record.documents_kept)):
            if self._totals[what] != stated:
                found = f"{self._totals[what]} documents {what} by its log, the manifest says {stated}"
                yield f"component {self.component}: {found}"
        yield from _check_usage(self.content, self.component, self._usage)

    def _all_read(self, kind: str) -> bool:
        return bool(self.files[kind]) and not set(self.files[kind]) & set(self.damaged)


def _records_of_blocks(content: Content, component: str) -> dict[str, list[StageRecord]]:
    """Block → the filters that measured for it."""
    found: dict[str, list[StageRecord]] = defaultdict(list)
    blocks = {
        one.step: one.stage.removesuffix(MEASURE)
        for one in content.counts
        if one.component == component and one.stage.endswith(MEASURE)
    }
    before = {(one.step, one.stage) for one in content.counts if one.component == component}
    for record in (*content.components[component].stages, *content.stages):
        if record.step in blocks and (record.step, record.stage) not in before:
            found[blocks[record.step]].append(record)
    return found


def _counted(table: pa.Table, *columns: str) -> dict[tuple[str, ...], int]:
    grouped = table.select(columns).group_by(list(columns)).aggregate([([], "count_all")])
    return {tuple(row[name] for name in columns): row["count_all"] for row in grouped.to_pylist()}


def _stated(counts: list[StageCount], what: str) -> dict[tuple[str, ...], int]:
    """As the manifest counts removals, or edits."""
    if what == "removed":
        return {(one.step, one.stage, rule): number for one in counts for rule, number in one.removed.items()}
    return {(one.step, rule): number for one in counts for rule, number in one.edited.items()}


def _check_identity(path: str, table: pa.Table, component: str) -> Iterator[str]:
    odd = pc.not_equal(table["id"], printed_ids(table))
    if table.num_rows and pc.any(odd).as_py():
        row = pc.index(odd, True).as_py()
        yield f"{path}: row {row}: id {table['id'][row]} is not that of its component, file and position"
    if table.num_rows and pc.any(pc.not_equal(table["component"], component)).as_py():
        yield f"{path}: has rows of another component than {component}"


def _check_order(path: str, table: pa.Table, previous: _Place, unique: bool) -> Generator[str, None, _Place]:
    rows = table.num_rows
    if not rows:
        return previous
    file, position = table["file"], table["position"]
    if previous is not None:  # an order over all files of a kind is one that makes ids unique over them
        file = pa.chunked_array([pa.array([previous[0]], file.type), *file.chunks])
        position = pa.chunked_array([pa.array([previous[1]], position.type), *position.chunks])
    numbers, before = position.to_numpy(), len(file) - rows
    same = pc.equal(file.slice(1), file.slice(0, len(file) - 1)).to_numpy()
    less = pc.less(file.slice(1), file.slice(0, len(file) - 1)).to_numpy()
    twice = same & (numbers[1:] == numbers[:-1])
    wrong = np.flatnonzero(less | (same & (numbers[1:] < numbers[:-1])) | (twice if unique else False))
    if wrong.size:
        at = int(wrong[0])
        row = at + 1 - before
        yield f"{path}: row {row}: {table['id'][row]} {'stands twice' if twice[at] else 'is out of order'}"
    return file[-1].as_py(), int(numbers[-1])


def _check_removals(path: str, documents: pa.Table, removals_path: str, removals: pa.Table) -> Iterator[str]:
    """Whoever was removed has a removal row, of that stage; and nobody else has."""
    at = pc.index_in(documents["id"], value_set=removals["id"])
    told = removals["stage"].take(at)
    for row in first_of(unequal(documents["removed_by"], told)):
        said = f"is said to be removed by {documents['removed_by'][row]}, its removal row says {told[row]}"
        yield f"{path}: {documents['id'][row]} {said}"
    unknown = ~pc.is_in(removals["id"], value_set=documents["id"]).to_numpy(zero_copy_only=False)
    for row in first_of(unknown):
        yield f"{removals_path}: a removal row of {removals['id'][row]}, which is not among its documents"


def _strangers(path: str, column: pa.ChunkedArray, table: pa.Table, known: pa.Array, said: str) -> Iterator[str]:
    for row in first_of(~pc.is_in(column, value_set=known).to_numpy(zero_copy_only=False)):
        yield f"{path}: row {row}: {table['id'][row]} {said}"


def _check_origins(path: str, removals: pa.Table, documents: pa.Table) -> Iterator[str]:
    """A removal row repeats what the document log says of the document."""
    at = pc.index_in(removals["id"], value_set=documents["id"])
    known = removals.filter(pc.is_valid(at))
    told = documents.take(at.drop_null())
    for column in ("url", "domain", "language"):
        for row in first_of(unequal(known[column], told[column])):
            one = known["id"][row]
            yield f"{path}: {one}: {column} is {known[column][row]}, its row in the document log says {told[column][row]}"


def _check_chain(path: str, edits: pa.Table, documents: pa.Table) -> Iterator[str]:
    """Each stage edited the text that the one before it left, and the last one left the text that the corpus has."""
    rows = edits.num_rows
    if not rows:
        return
    columns = {name: edits[name].combine_chunks() for name in edits.schema.names}

    def same(*names: str, with_: str | None = None) -> np.ndarray:
        """Is column `names` of a row that of the row before (`with_`: column `with_` of the row before)?"""
        found = np.ones(rows - 1, bool)
        for name in names:
            found &= pc.equal(columns[name].slice(1), columns[with_ or name].slice(0, rows - 1)).to_numpy(zero_copy_only=False)
        return found

    one_document, one_stage = same("id"), same("step", "stage")
    together = same("sha256_before", "sha256_after", "bytes_before", "bytes_after")
    follows = same("sha256_before", with_="sha256_after") & same("bytes_before", with_="bytes_after")
    for row in first_of(one_document & ~np.where(one_stage, together, follows)):
        stage, before = columns["stage"][row + 1], columns["stage"][row]
        yield f"{path}: row {row + 1}: {columns['id'][row + 1]}: stage {stage} did not edit the text that {before} left"
    last = np.append(~one_document, True)
    ends = edits.filter(pa.array(last))
    at = pc.index_in(ends["id"], value_set=documents["id"])
    ends, told = ends.filter(pc.is_valid(at)), documents.take(at.drop_null())
    kept = pc.is_null(told["removed_by"])
    ends, told = ends.filter(kept), told.filter(kept)
    for column, other in (("sha256_after", "text_sha256"), ("bytes_after", "text_bytes")):
        for row in first_of(unequal(ends[column], told[other])):
            one = ends["id"][row]
            yield f"{path}: {one}: the last edit left {column} {ends[column][row]}, the document log has {told[other][row]}"


def _check_measured(
    path: str, signals: pa.Table, documents: pa.Table, removals: pa.Table, before: set[tuple[str, str]]
) -> Iterator[str]:
    """Whoever no earlier stage removed was measured, whatever became of it: what-if answers count on it."""
    steps = zip(removals["step"].to_pylist(), removals["stage"].to_pylist(), strict=True)
    earlier = removals["id"].filter(pa.array([one in before for one in steps], pa.bool_()))
    came = documents["id"].filter(pc.invert(pc.is_in(documents["id"], value_set=earlier)))
    for row in first_of(~pc.is_in(came, value_set=signals["id"]).to_numpy(zero_copy_only=False)):
        yield f"{path}: {came[row]} came in and has no signals there"


def _check_decisions(path: str, block: str, rules: dict[str, list[Rule]], signals: pa.Table, removals: pa.Table) -> Iterator[str]:
    """The rules of the manifest, applied to the stored signals, remove what was removed, for the reason on record."""
    try:
        decision = decide(rules.get(block, []), signals)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        yield f"{path}: its rules cannot be applied: {error}"
        return
    removed = decision.first >= 0
    decided, gone = signals["id"].filter(pa.array(removed)), removals.filter(pc.equal(removals["stage"], block))
    for row in first_of(~pc.is_in(decided, value_set=gone["id"]).to_numpy(zero_copy_only=False)):
        yield f"{path}: {decided[row]}: its signals fail a rule of {block}, and it was not removed by {block}"
    at = pc.index_in(gone["id"], value_set=signals["id"])
    for row in first_of(at.is_null().to_numpy()):
        yield f"{path}: {gone['id'][row]}: was removed by {block} and has no signals there"
    gone, where = gone.filter(pc.is_valid(at)), at.drop_null().to_numpy()
    if not len(where):
        return
    first = decision.first[where]
    names = pa.array([rule.name for rule in rules.get(block, [])] + [None], pa.string())
    bounds = pa.array([rule.threshold for rule in rules.get(block, [])] + [None], pa.float64())
    picked = pa.array(np.where(first < 0, len(names) - 1, first))
    values = decision.value[where]
    expected = {
        "rule": names.take(picked),
        "value": pa.array(values, pa.float64(), mask=np.isnan(values)),
        "threshold": bounds.take(picked),
        "text_bytes": signals["text_bytes"].take(pa.array(where)),
    }
    for column, wanted in expected.items():
        for row in first_of(unequal(gone[column], wanted)):
            yield f"{path}: {gone['id'][row]}: by its signals {column} is {wanted[row]}, its removal row says {gone[column][row]}"
    if (said := _words_of(signals)) is not None:
        for row in first_of(unequal(gone["detail"], said.take(pa.array(where)))):
            found, told = said[where[row]], gone["detail"][row]
            yield f"{path}: {gone['id'][row]}: by its signals detail is {found}, its removal row says {told}"
    failed = decision.failed.take(pa.array(where))
    for row, (mine, theirs) in enumerate(zip(failed.to_pylist(), gone["failed_rules"].to_pylist(), strict=True)):
        if mine != theirs:
            yield f"{path}: {gone['id'][row]}: by its signals it fails {mine}, its removal row says {theirs}"
            return


def _words_of(signals: pa.Table) -> pa.Array | None:
    """What a removal row of a block says in `detail`: the signals that are words, with their names; None where they are not those
    of this package, in which anything may stand."""
    names = [field.name for field in signals.schema if "." in field.name and pa.types.is_string(field.type)]
    if not names or not KNOWN_WORDS.issuperset(names):
        return None
    told = [pc.binary_join_element_wise(f"{name}: ", signals[name].combine_chunks(), "") for name in names]
    joined = told[0]
    for one in told[1:]:
        both = pc.binary_join_element_wise(joined, one, ", ")
        joined = pc.coalesce(both, joined, one)
    return joined


KNOWN_WORDS = frozenset({"gopher.rule_set", "quality.judged"})
"""Signals that are words and never personal data, which a log would not show."""


def _add_usage(usage: dict[str, list[int]], documents: pa.Table) -> None:
    placed = documents.filter(pc.is_valid(documents["shard"]))
    grouped = placed.group_by("language").aggregate([("id", "count"), ("text_bytes", "sum"), ("tokens", "sum")])
    for row in grouped.to_pylist():
        total = usage[row["language"] or "und"]
        total[0] += row["id_count"]
        total[1] += row["text_bytes_sum"] or 0
        total[2] += (row["tokens_sum"] or 0) - row["id_count"]  # without BOS


def _check_usage(content: Content, component: str, usage: dict[str, list[int]]) -> Iterator[str]:
    """After a takedown the figures of some languages are left out."""
    stated: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in content.token_usage:
        if one.component == component:
            for at, number in enumerate((one.documents, one.bytes, one.tokens)):
                stated[one.language][at] += number
    cut = any(record.stage == TAKEDOWN for record in content.stages)
    for language in sorted(stated.keys() | (set() if cut else usage.keys())):
        if stated[language] != usage[language]:
            found = f"{usage[language]} by its log, the manifest says {stated[language]}"
            yield f"component {component}, language {language}: documents, bytes and tokens are {found}"
