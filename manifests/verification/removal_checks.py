"""Does each row of a log agree with what the manifest says of its stage, and with itself?

Of rules in a filter block the stored signals tell (`cross_checks`); of other stages the options on record, the bytes that the
manifest counts, and the lengths that the edits and signals of the same document have.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.blocks import MEASURE
from manifests.identity import splits_of
from manifests.manifest import TAKEDOWN, Content, StageRecord
from manifests.verification.findings import MOST_FINDINGS, first_of, flags

TWINS = ("linked_id", "linked_jaccard", "kept_id", "kept_jaccard", "cluster", "cluster_size")
TWIN_RULES = {"exact_dedup.duplicate": "exact_dedup", "minhash.near_duplicate": "minhash"}
"""The rules whose evidence is another document, and their stages."""
ITEM_RULES = ("decontamination.ngram", "decontamination.short_item")
"""Those whose evidence is an item of a benchmark."""
ITEM = ("benchmark", "item", "evidence")
_KEY = r"[0-9a-f]{16}"
_TEXTS_ALONE = frozenset({"jsonl", "parquet"})
"""Formats whose records have a media type only if they are pages, which are extracted."""


OWN_STAGES = frozenset(
    [
        *("read", "url_filter", "pre_check", "extraction", "repair", "language", "gopher_quality", "gopher_repetition", "c4"),
        *("fineweb", "quality_classifier", "personal_data", "decontamination", "exact_dedup", "line_dedup", "paragraph_dedup"),
        *("substring_dedup", "minhash", "split", "tokenizer", "shards", TAKEDOWN),
    ]
)
"""Stages of this package; of what others do nothing is known here."""


class Bound(NamedTuple):
    """How the value of a removed document lies to the threshold, and which options of the stage the threshold is of;
    `always` may it be these. `sign` is empty where the value can be anything."""

    sign: str
    options: tuple[str, ...]
    always: tuple[float, ...] = ()


BOUNDS: dict[str, Bound] = {
    "language.undetermined": Bound("", ("threshold", "short_threshold")),
    "language.unwanted": Bound("", ("threshold", "short_threshold")),
    "language.uncertain": Bound("<=", ("threshold", "short_threshold")),
    "pre_check.too_short": Bound("<", ("min_characters",)),
    "pre_check.language": Bound(">", ("threshold",)),
    "extraction.too_large": Bound(">", ("max_bytes",)),
    "minhash.near_duplicate": Bound(">=", ("threshold",)),
    "decontamination.ngram": Bound(">=", ("min_matches", "min_share")),
    "decontamination.short_item": Bound(">=", ("min_share",), (1.0,)),
    "exact_dedup.duplicate": Bound("", ()),
}
"""Of rules outside filter blocks. Without options there is neither a value nor a threshold."""
_COMPARED = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


class RowChecks:
    """The rows of one component, range by range; `totals` after the last one."""

    def __init__(self, content: Content, component: str, blocks: frozenset[str]) -> None:
        self.content, self.component, self.blocks = content, component, blocks
        self.counts = [one for one in content.counts if one.component == component]
        self._thresholds = self._stated_thresholds()
        self._items = _items_found(content)
        options = [
            one.options for one in [*content.components[component].stages, *content.stages] if one.stage == "decontamination"
        ]
        self._by_number = all(one.get("min_share") is None for one in options)
        self._lost: Counter[tuple[str, str]] = Counter()
        self._measure = {one.step: one.stage for one in self.counts if one.stage.endswith(MEASURE)}
        self._removing = {(one.step, one.stage, rule) for one in self.counts for rule in one.removed}
        self._counted = {(one.step, one.stage) for one in self.counts}
        about = content.components[component]
        self._texts_alone = about.format in _TEXTS_ALONE and all(one.stage != "extraction" for one in about.stages)
        self._made = self._stages_that_make_texts()
        self._language = _language_of([*about.stages, *content.stages])

    def documents(self, path: str, documents: pa.Table) -> Iterator[str]:
        """Keys of URLs, media types and splits."""
        url, key = documents["url"], documents["url_key"]
        odd = {"has a url_key that is none": pc.invert(pc.fill_null(pc.match_substring_regex(key, f"^{_KEY}$"), True))}
        odd["has a url or a url_key without the other"] = pc.not_equal(pc.is_null(url), pc.is_null(key))
        if self._texts_alone:
            odd["has a media type, and its reader gives none"] = pc.is_valid(documents["media_type"])
        kept = pc.is_null(documents["removed_by"])
        if self.content.split is not None:
            odd["is kept and in no cluster of the split"] = pc.and_(kept, pc.is_null(documents["split_cluster"]))
        score = documents["language_score"]
        beyond = pc.or_(pc.is_nan(score), pc.or_(pc.less(score, 0.0), pc.greater(score, 1.0)))
        odd["has a language_score that is none"] = beyond
        odd["has a language_score and no language"] = pc.and_(pc.is_valid(score), pc.is_null(documents["language"]))
        taken = pc.fill_null(pc.equal(documents["removed_by"], TAKEDOWN), False)
        odd["was removed and has a language_score"] = pc.and_(pc.is_valid(score), pc.invert(pc.or_(kept, taken)))
        if self._language is not None:
            labels, bound = self._language
            odd["is kept and has no language, and its component was judged by it"] = pc.and_(
                kept, pc.or_(pc.is_null(documents["language"]), pc.is_null(score))
            )
            if labels:
                unwanted = pc.invert(pc.is_in(documents["language"], value_set=pa.array(sorted(labels), pa.string())))
                odd[f"is kept and of none of the languages {', '.join(sorted(labels))}"] = pc.and_(kept, unwanted)
            if bound is not None:
                odd[f"is kept at a language_score that is not above {bound:g}"] = pc.and_(kept, pc.less_equal(score, bound))
        for said, rows in odd.items():
            for row in first_of(rows):
                yield f"{path}: {documents['id'][row]} {said}"
        yield from self._check_splits(path, documents.select(["id", "split", "split_cluster"]))

    def removals(self, path: str, removals: pa.Table) -> Iterator[str]:
        """Evidence that is of the rule's kind and says what its stage can have said."""
        yield from check_counted(path, removals, ("step", "stage", "rule"), self._removing, "removes")
        yield from self._check_failed(path, removals)
        yield from self._check_bounds(path, removals)
        rule = removals["rule"]
        twins = pc.is_in(rule, value_set=pa.array(list(TWIN_RULES)))
        items = pc.is_in(rule, value_set=pa.array(ITEM_RULES))
        for wanted, names, kind in ((twins, TWINS, "another document"), (items, ITEM, "an item of a benchmark")):
            for name in names:
                there = pc.is_valid(removals[name])
                if name == "linked_id":  # a takedown says there of what a document is a copy
                    there = pc.and_(there, pc.not_equal(removals["stage"], TAKEDOWN))
                for row in first_of(pc.not_equal(there, wanted)):
                    one, said = removals["id"][row], "has no" if removals[name][row].as_py() is None else "tells"
                    is_one = "is" if flags(wanted)[row] else "is not"
                    yield f"{path}: {one}: {said} {name}, and the evidence of {rule[row]} {is_one} {kind}"
        yield from _check_pairs(path, removals.filter(twins))
        yield from self._check_items(path, removals.filter(items))

    def lengths(
        self,
        path: str,
        documents: pa.Table,
        removals_path: str,
        removals: pa.Table,
        edits: pa.Table,
        signals: Mapping[str, tuple[str, pa.Table]],
    ) -> Iterator[str]:
        """The last length that edits or signals know of a text is that which the removal row, or the document log, has."""
        last = edits.filter(pa.array(_last_of_each(edits["id"])))
        known = [(last["id"], last["bytes_after"])]
        for block, (signals_path, table) in signals.items():
            unedited = table.filter(pc.invert(pc.is_in(table["id"], value_set=last["id"])))
            known.append((unedited["id"], unedited["text_bytes_after"]))
            for row in first_of(pc.not_equal(unedited["text_bytes"], unedited["text_bytes_after"])):
                before, after = unedited["text_bytes"][row], unedited["text_bytes_after"][row]
                one = unedited["id"][row]
                yield f"{signals_path}: {one}: {block} measured {before} bytes, which became {after} without an edit"
            self._add_block(block, table, removals)
        outside = pc.invert(pc.is_in(removals["stage"], value_set=pa.array(sorted(self.blocks), pa.string())))
        gone = removals.filter(pc.and_(outside, pc.is_valid(removals["text_bytes"])))
        kept = documents.filter(pc.and_(pc.is_null(documents["removed_by"]), pc.is_valid(documents["text_bytes"])))
        for where, table in ((removals_path, gone), (path, kept)):
            for ids, lengths in known:
                at = pc.index_in(table["id"], value_set=ids)
                found, told = table.filter(pc.is_valid(at)), lengths.take(at.drop_null())
                for row in first_of(pc.not_equal(found["text_bytes"], told)):
                    one, number = found["id"][row], found["text_bytes"][row]
                    yield f"{where}: {one}: text_bytes is {number}, by its edits and signals the text had {told[row]}"
        for total in _summed(gone, ["step", "stage"], "text_bytes"):
            self._lost[total["step"], total["stage"]] += total["text_bytes_sum"]
        self._add_edits(edits)

    def totals(self) -> Iterator[str]:
        """Bytes in = bytes kept + bytes removed + bytes edited away, of each stage from the first that has texts."""
        for one in self.counts:
            if one.stage in self._made:
                continue
            lost = self._lost[one.step, one.stage]
            if one.bytes_in - lost != one.bytes_kept:
                found = f"{one.bytes_in} bytes came in and {lost} went by the logs, the manifest says {one.bytes_kept} were kept"
                yield f"component {self.component}, stage {one.stage} (step {one.step}): {found}"

    def _check_splits(self, path: str, documents: pa.Table) -> Iterator[str]:
        """Which split a cluster is in follows from its name."""
        split = self.content.split
        placed = documents.filter(pc.and_(pc.is_valid(documents["split"]), pc.is_valid(documents["split_cluster"])))
        if split is None or not placed.num_rows:
            return
        expected = splits_of(placed["split_cluster"].to_pylist(), self.content.seed, split.shares)
        for row in first_of(pc.not_equal(placed["split"], pa.array(expected, pa.string()))):
            told = f"its cluster {placed['split_cluster'][row]} belongs into {expected[row]}"
            yield f"{path}: {placed['id'][row]} is in {placed['split'][row]}, and {told}"

    def _check_failed(self, path: str, removals: pa.Table) -> Iterator[str]:
        """Outside filter blocks the rule that removed is the only one that is known to have failed."""
        inside = pc.is_in(removals["stage"], value_set=pa.array(sorted(self.blocks), pa.string()))
        others = removals.filter(pc.invert(inside))
        if not others.num_rows:
            return
        one = pc.equal(pc.fill_null(pc.list_value_length(others["failed_rules"]), 0), 1)
        first = pc.list_element(pc.if_else(one, others["failed_rules"], pa.scalar([""], pa.list_(pa.string()))), 0)
        for row in first_of(~flags(pc.equal(first, others["rule"]))):
            found, rule = others["failed_rules"][row].as_py(), others["rule"][row]
            yield f"{path}: {others['id'][row]}: failed_rules is {found}, and {rule} removed it, which is alone in its stage"

    def _check_bounds(self, path: str, removals: pa.Table) -> Iterator[str]:
        bounded = set(BOUNDS) & set(pc.unique(removals["rule"]).to_pylist())
        for rule in sorted(bounded):
            mine = removals.filter(pc.equal(removals["rule"], rule))
            value, threshold, bound = mine["value"], mine["threshold"], BOUNDS[rule]
            if not bound.options:
                wrong = pc.or_(pc.is_valid(value), pc.is_valid(threshold))
                told = f"{rule} compares no value with a threshold"
            else:
                allowed = self._thresholds.get(rule)
                if allowed is None:
                    continue
                wrong = pc.invert(pc.is_in(threshold, value_set=pa.array(sorted(allowed), pa.float64())))
                wrong = pc.or_(wrong, pc.is_null(value))
                if bound.sign:
                    wrong = pc.or_(wrong, pc.invert(pc.fill_null(_COMPARED[bound.sign](value, threshold), False)))
                needed = f"{bound.sign} " if bound.sign else "beside "
                told = f"{rule} removes at a value {needed}the threshold {' or '.join(f'{one:g}' for one in sorted(allowed))}"
            if rule == "language.undetermined":
                wrong = pc.or_(wrong, pc.fill_null(pc.not_equal(value, 0.0), True))
            for row in first_of(wrong):
                yield f"{path}: {mine['id'][row]}: value {value[row]}, threshold {threshold[row]}; by the manifest {told}"

    def _check_items(self, path: str, removals: pa.Table) -> Iterator[str]:
        """The item is one that the manifest says was found, and no more of it than the most that was."""
        if self._items is None:
            return
        names = ("id", "rule", "value", "benchmark", "item", "detail")
        wrong: list[tuple[str, str]] = []
        for one, rule, value, benchmark, item, detail in zip(*(removals[name].to_pylist() for name in names), strict=True):
            most = self._items.get((benchmark, item))
            if most is None:
                wrong.append((one, f"was removed for {benchmark}/{item}, and the manifest does not say that it was found"))
            elif rule == "decontamination.ngram" and value is not None:
                whole = self._by_number and value != int(value)
                if whole or value > (most[0] if self._by_number else most[0] / most[1] + ROUNDING):
                    told = f"{most[0]} of its {most[1]} n-grams were found at most"
                    wrong.append((one, f"value {value} for {benchmark}/{item}; by the manifest {told}"))
                elif self._by_number and not str(detail).startswith(f"{int(value)} of {most[1]} n-grams"):
                    wrong.append(
                        (one, f"{int(value)} of the {most[1]} n-grams of {benchmark}/{item}, and detail says {detail!r}")
                    )
        for one, told in wrong[:MOST_FINDINGS]:
            yield f"{path}: {one}: {told}"

    def _add_block(self, block: str, signals: pa.Table, removals: pa.Table) -> None:
        gone = removals.filter(pc.equal(removals["stage"], block))
        at = pc.index_in(gone["id"], value_set=signals["id"])
        left = signals["text_bytes_after"].take(at.drop_null())
        for (step,) in _distinct(gone, "step"):
            self._lost[step, block] += pc.sum(left.filter(pc.equal(gone["step"].filter(pc.is_valid(at)), step))).as_py() or 0

    def _add_edits(self, edits: pa.Table) -> None:
        """What a stage edited away, once for each document, whatever number of rules did; counted as the manifest does."""
        if not edits.num_rows:
            return
        same = np.ones(edits.num_rows - 1, bool)
        for name in ("id", "step", "stage"):
            column = edits[name].combine_chunks()
            same &= flags(pc.equal(column.slice(1), column.slice(0, edits.num_rows - 1)))
        once = edits.filter(pa.array(np.append(True, ~same)))
        once = once.append_column("cut", pc.subtract(once["bytes_before"], once["bytes_after"]))
        for row in _summed(once, ["step", "stage"], "cut"):
            place = (row["step"], row["stage"])
            if place not in self._counted:
                place = (row["step"], self._measure.get(row["step"], row["stage"]))
            self._lost[place] += row["cut_sum"]

    def _stated_thresholds(self) -> dict[str, set[float]]:
        """Rule → the thresholds that the options on record give it; none where a record lacks the option."""
        found: dict[str, set[float]] = {}
        records = [*self.content.components[self.component].stages, *self.content.stages]
        for rule, bound in BOUNDS.items():
            mine = [one.options for one in records if one.stage == rule.partition(".")[0]]
            values = [options.get(name) for options in mine for name in bound.options]
            numbers = {float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)}
            if numbers or bound.always:
                found[rule] = {*numbers, *bound.always}
        return found

    def _stages_that_make_texts(self) -> set[str]:
        """Up to extraction there are pages beside texts, and lengths of texts alone."""
        stages = [one.stage for one in self.counts]
        return set(stages[: stages.index("extraction") + 1]) if "extraction" in stages else set()


def _language_of(records: list[StageRecord]) -> tuple[frozenset[str], float | None] | None:
    """(labels that are kept, or none where all are; the score that a kept document is above, where it is known) of the last stage
    that judged languages; None where none did."""
    options = next((one.options for one in reversed(records) if one.stage == "language"), None)
    if options is None or not OWN_STAGES.issuperset(one.stage for one in records):  # another's may set the language too
        return None
    wanted = [str(one) for one in options.get("keep") or ()]
    bounds = [one for one in (options.get("threshold"), options.get("short_threshold")) if isinstance(one, int | float)]
    paired = any("+" in one for one in wanted)  # of which two scores are added up
    labels = frozenset(label.strip() for one in wanted for label in one.split("+"))
    return labels, None if paired or not bounds else float(min(bounds))


def _items_found(content: Content) -> dict[tuple[str, str], tuple[int, int]] | None:
    """(benchmark, item) → (most, all) of its n-grams that were found, of all that the decontamination record has; None where a
    record is not as it should be."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    try:
        for record in content.decontamination:
            for one in record["benchmarks"]:
                for item, (most, total) in one["found"].items():
                    place = str(one["benchmark"]), str(item)
                    found[place] = max(found.get(place, (0, 0)), (int(most), max(1, int(total))))
    except (KeyError, TypeError, ValueError):
        return None
    return found


ROUNDING = 1e-9


def _check_pairs(path: str, twins: pa.Table) -> Iterator[str]:
    """A twin is another document, Jaccards are shares, and what two columns say of one pair is the same."""
    own, kept, linked = twins["id"], twins["kept_id"], twins["linked_id"]
    one, other = twins["linked_jaccard"], twins["kept_jaccard"]
    exact = pc.equal(twins["rule"], "exact_dedup.duplicate")
    direct = pc.fill_null(pc.equal(kept, linked), False)
    odd: dict[str, Any] = {
        "its kept_id is its own id": pc.equal(kept, own),
        "its linked_id is its own id": pc.equal(linked, own),
        "its linked_jaccard is no Jaccard": pc.or_(pc.less(one, 0.0), pc.greater(one, 1.0)),
        "its kept_jaccard is no Jaccard": pc.or_(pc.less(other, 0.0), pc.greater(other, 1.0)),
        "it is linked to the document that was kept, and its kept_jaccard is not its linked_jaccard": pc.and_(
            direct, pc.not_equal(one, other)
        ),
        "it is an exact copy, and linked to another document than the one that was kept": pc.and_(exact, pc.invert(direct)),
        "it is an exact copy, and a Jaccard of it is not 1": pc.and_(
            exact, pc.or_kleene(pc.not_equal(one, 1.0), pc.not_equal(other, 1.0))
        ),
        "its value is not its linked_jaccard": pc.and_(pc.invert(exact), pc.not_equal(twins["value"], one)),
        "its cluster has fewer than two documents": pc.less(twins["cluster_size"], 2),
    }
    for said, rows in odd.items():
        for row in first_of(pc.fill_null(rows, False)):
            yield f"{path}: {own[row]}: {said}"


def check_counted(
    path: str, rows: pa.Table, names: tuple[str, ...], known: Collection[tuple[str, ...]], does: str
) -> Iterator[str]:
    """Rows of a rule that the manifest counts nowhere at their step."""
    for one in rows.group_by(list(names)).aggregate([]).to_pylist():
        place = tuple(one[name] for name in names)
        if place not in known:
            mine = functools.reduce(pc.and_, [pc.equal(rows[name], one[name]) for name in names])
            for row in first_of(mine):
                told = f"by the manifest no rule {place[-1]} {does} anything at {', '.join(place[:-1])}"
                yield f"{path}: row {row}: {rows['id'][row]}: {told}"


def _last_of_each(ids: pa.ChunkedArray) -> np.ndarray:
    """Rows behind which another document begins, or nothing."""
    if not len(ids):
        return np.zeros(0, bool)
    column = ids.combine_chunks()
    return np.append(flags(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))), True)


def _summed(table: pa.Table, keys: list[str], column: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.group_by(keys).aggregate([(column, "sum")]).to_pylist()
    return rows


def _distinct(table: pa.Table, column: str) -> list[tuple[str]]:
    return [(one,) for one in pc.unique(table[column]).to_pylist()]
