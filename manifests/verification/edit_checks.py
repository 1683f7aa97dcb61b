"""Do edits agree with the stages on record, with the order in which they ran, and with the lengths that filters measured?

The digest before a document's first edit is of a text that no log has: nothing but the source can vouch for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests.blocks import MEASURE
from manifests.manifest import TAKEDOWN, Content
from manifests.verification.findings import MOST_FINDINGS, first_of, flags
from manifests.verification.removal_checks import check_counted

_SHA256 = r"^[0-9a-f]{64}$"


class EditChecks:
    """The edits of one component, range by range."""

    def __init__(self, content: Content, component: str) -> None:
        counts = [one for one in content.counts if one.component == component]
        self._place = {(one.step, one.stage): place for place, one in enumerate(counts)}
        self._measuring = {
            one.stage.removesuffix(MEASURE): place for place, one in enumerate(counts) if one.stage.endswith(MEASURE)
        }
        blocks = {one.step: place for place, one in enumerate(counts) if one.stage.endswith(MEASURE)}
        records = [*content.components[component].stages, *content.stages]
        for one in records:  # a filter edits under its own name, and is counted under that of its block
            if one.step in blocks and (one.step, one.stage) not in self._place:
                self._place[one.step, one.stage] = blocks[one.step]
        self._editing = {(one.step, rule) for one in counts for rule in one.edited}
        self._of_rule: dict[tuple[str, str], str] = {}

    def findings(
        self, path: str, edits: pa.Table, removals: pa.Table, signals: Mapping[str, tuple[str, pa.Table]]
    ) -> Iterator[str]:
        """Edits of stages that did not run, or ran after the document was removed; edits that are out of their order, changed
        nothing, or left another length than the next filter measured."""
        if not edits.num_rows:
            return
        odd = {
            "was edited no time": pc.less(edits["count"], 1),
            "was edited, and had the same text before": pc.equal(edits["sha256_before"], edits["sha256_after"]),
            "has less than no bytes": pc.or_(pc.less(edits["bytes_before"], 0), pc.less(edits["bytes_after"], 0)),
            "has a digest that is none": pc.invert(
                pc.and_(
                    pc.match_substring_regex(edits["sha256_before"], _SHA256),
                    pc.match_substring_regex(edits["sha256_after"], _SHA256),
                )
            ),
        }
        for said, rows in odd.items():
            for row in first_of(rows):
                yield f"{path}: row {row}: {edits['id'][row]} {said}"
        yield from check_counted(path, edits, ("step", "rule"), self._editing, "edits")
        places = yield from self._check_stages(path, edits)
        yield from self._check_removed(path, edits, removals, places)
        yield from self._check_measured(path, edits, places, signals)

    def _check_stages(self, path: str, edits: pa.Table) -> Generator[str, None, npt.NDArray[np.int64]]:
        steps, stages, rules = (edits[name].to_pylist() for name in ("step", "stage", "rule"))
        places = np.array([self._place.get(one, -1) for one in zip(steps, stages, strict=True)], np.int64)
        for row in first_of(places < 0):
            yield f"{path}: row {row}: {edits['id'][row]}: no stage {stages[row]} of step {steps[row]} is on record"
        wrong = 0
        for row, (step, stage, rule) in enumerate(zip(steps, stages, rules, strict=True)):
            known = self._of_rule.setdefault((step, rule), stage)
            if known != stage and wrong < MOST_FINDINGS:
                wrong += 1
                yield f"{path}: row {row}: {edits['id'][row]}: {rule} is said to be of {stage}, and elsewhere of {known}"
        same = _same_as_before(edits)
        for row in (np.flatnonzero(same[1:] & (np.diff(places) < 0))[:MOST_FINDINGS] + 1).tolist():
            yield f"{path}: row {row}: {edits['id'][row]}: {stages[row]} stands after {stages[row - 1]}, which ran later"
        return places

    def _check_removed(self, path: str, edits: pa.Table, removals: pa.Table, places: npt.NDArray[np.int64]) -> Iterator[str]:
        steps = zip(removals["step"].to_pylist(), removals["stage"].to_pylist(), strict=True)
        end = len(self._place)
        gone = pa.array([end if stage == TAKEDOWN else self._place.get((step, stage), end) for step, stage in steps], pa.int64())
        at = pc.index_in(edits["id"], value_set=removals["id"])
        removed = gone.take(at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at)
        late = pc.fill_null(pc.greater_equal(pa.array(places), removed), False)
        for row in first_of(late):
            one = edits["id"][row]
            yield f"{path}: row {row}: {one}: was edited by {edits['stage'][row]}, and had been removed before"

    def _check_measured(
        self, path: str, edits: pa.Table, places: npt.NDArray[np.int64], signals: Mapping[str, tuple[str, pa.Table]]
    ) -> Iterator[str]:
        """The last edit before a block left what it measured, its own left what left it, and the next one began with that."""
        ids = edits["id"].combine_chunks()
        same = _same_as_before(edits)
        first = np.flatnonzero(~same)
        which = np.cumsum(~same) - 1  # of each row, which document it is of
        before, after = edits["bytes_before"].to_numpy(), edits["bytes_after"].to_numpy()
        for block, (_, table) in signals.items():
            place = self._measuring.get(block)
            if place is None or not table.num_rows:
                continue
            at = pc.index_in(ids.take(pa.array(first)), value_set=table["id"])
            known = flags(at.is_valid())[which]
            row_of = at.fill_null(0).to_numpy(zero_copy_only=False)[which]
            came, left = table["text_bytes"].to_numpy()[row_of], table["text_bytes_after"].to_numpy()[row_of]
            next_place = np.append(np.where(same[1:], places[1:], len(self._place)), len(self._place))
            last_place = np.append(-1, np.where(same[1:], places[:-1], -1))
            wrong = known & (places < place) & (next_place >= place) & (after != came)
            wrong |= known & (places == place) & ((before != came) | (after != left))
            wrong |= known & (places > place) & (last_place <= place) & (before != left)
            for row in first_of(wrong):
                told = f"{before[row]} bytes became {after[row]}; {block} measured {came[row]}, and {left[row]} left it"
                yield f"{path}: row {row}: {ids[row]}: edited by {edits['stage'][row]}: {told}"


def _same_as_before(edits: pa.Table) -> npt.NDArray[np.bool_]:
    """Is a row of the same document as the one before?"""
    ids = edits["id"].combine_chunks()
    return np.append(False, flags(pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1))))
