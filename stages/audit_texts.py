"""Texts for auditors: samples of what a rule removed, copies side by side, and what is marked in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from manifests.copies import copies_of, stand_ins

if TYPE_CHECKING:
    from manifests.logs import Logs
    from stages.offending import Place
    from stages.removed_texts import Text


ABOUT = ("id", "url", "language", "stage", "rule", "value", "threshold", "detail", "evidence")
MARKED = (*ABOUT, "origin", "proof", "why_not", "text", "marks")


def sampled(logs: Logs, rule: str, n: int, seed: int) -> list[dict[str, Any]]:
    """Removal rows of a rule or stage: the `n` with the smallest MD5 of seed and id, so that a larger sample holds the
    smaller."""
    return logs.sql(
        "select * from removals where rule = $1 or stage = $1 order by md5(concat($2, chr(10), id)), id limit $3",
        [rule, str(seed), n],
    )


def twins_of(logs: Logs, document: str, most: int | None = None) -> list[dict[str, Any]]:
    """The pairs of a removed copy and the document that its stage kept, of which `document` is one, or which lead from it to what
    stands in for it today, or from a copy to it; those of its own removal first. kept_removed_by: what removed the kept one
    later, None where it is in the corpus. `most` of them."""
    up = [step.id for one in stand_ins(logs, [document]).values() for step in one.steps]
    ids = [*up, *(row["id"] for row in copies_of(logs, [document], most))][:most]
    logs.connection.register("asked_pairs", pa.table({"id": pa.array(ids, pa.string()), "number": range(len(ids))}))
    rows = logs.sql(
        "select removals.id, removals.kept_id, linked_id, kept_jaccard, linked_jaccard, removals.stage, cluster, cluster_size, "
        "kept.removed_by as kept_removed_by from removals join asked_pairs on removals.id = asked_pairs.id "
        "left join documents kept on kept.id = removals.kept_id order by asked_pairs.number"
    )
    logs.connection.unregister("asked_pairs")
    return rows


def alike(
    logs: Logs, document: dict[str, Any], other: dict[str, Any], sources: dict[str, str], personal_data: bool = False
) -> dict[str, Any]:
    """Any two rows of the document log side by side: id, other_id, what removed them (None: in the corpus), the Jaccard
    similarity of their texts, the threshold of the corpus's near-duplicate removal, and the sides `one` and `other` as in
    `compared`. jaccard: by the shingles of that stage, or its defaults where the corpus has none; None where a text is not to
    be had."""
    from stages.minhash import NAME, MinHashOptions, jaccard
    from stages.offending import differences
    from stages.personal_data import scrub
    from stages.removed_texts import Texts
    from stages.shingles import shingle_sets

    record = next((one for one in logs.manifest.content.stages if one.stage == NAME), None)
    options = MinHashOptions() if record is None else MinHashOptions.model_validate(record.options)
    rows = [document, other]
    with Texts(logs, sources) as texts:
        sides = [texts.of([row["id"]])[0] for row in rows]
    told = [one.text for one in sides]
    similarity = None
    marks: Sequence[list[Place]] = ([], [])
    if told[0] is not None and told[1] is not None:
        languages = pa.array([row["language"] for row in rows], pa.string())
        sets = shingle_sets(pa.array(told, pa.large_string()), languages, options)
        similarity = float(jaccard(sets, np.array([0]), np.array([1]))[0])
    shown = [text if text is None or personal_data else scrub(text) for text in told]
    if shown[0] is not None and shown[1] is not None:
        marks = differences(shown[0], shown[1])
    row: dict[str, Any] = {"id": document["id"], "removed_by": document["removed_by"]}
    row |= {"other_id": other["id"], "other_removed_by": other["removed_by"], "jaccard": similarity}
    row["threshold"] = None if record is None else options.threshold
    for name, side, text, places in zip(("one", "other"), sides, shown, marks, strict=True):
        row[name] = {**_told(side), "text": text, "marks": [place.__dict__ for place in places]}
    return row


def compared(
    logs: Logs, pairs: Sequence[dict[str, Any]], sources: dict[str, str], personal_data: bool = False
) -> list[dict[str, Any]]:
    """The pairs of `twins_of`, each with its sides `removed` and `kept`: origin, proof, why_not, text, and marks where they
    differ."""
    from stages.offending import differences
    from stages.personal_data import scrub
    from stages.removed_texts import Texts

    with Texts(logs, sources) as texts:
        both = {one.id: one for one in texts.of([pair[key] for pair in pairs for key in ("id", "kept_id")])}
    rows = []
    for pair in pairs:
        sides = [both[pair["id"]], both[pair["kept_id"]]]
        shown = [one.text if one.text is None or personal_data else scrub(one.text) for one in sides]
        marks: Sequence[list[Place]] = ([], [])
        if shown[0] is not None and shown[1] is not None:
            marks = differences(shown[0], shown[1])
        row = dict(pair)
        for name, side, told, places in zip(("removed", "kept"), sides, shown, marks, strict=True):
            row[name] = {**_told(side), "text": told, "marks": [place.__dict__ for place in places]}
        rows.append(row)
    return rows


def marked(
    logs: Logs, rows: Sequence[dict[str, Any]], sources: dict[str, str], personal_data: bool = False
) -> list[dict[str, Any]]:
    """`each_marked`, of a few."""
    return list(each_marked(logs, rows, sources, personal_data))


def each_marked(
    logs: Logs, rows: Sequence[dict[str, Any]], sources: dict[str, str], personal_data: bool = False
) -> Iterator[dict[str, Any]]:
    """What is shown of each removal row, MARKED: text is None where it cannot be had, and why_not says why; marks are start, end
    and what, places of the text as shown. One text is read at a time."""
    from stages.offending import offending_places
    from stages.personal_data import scrub
    from stages.removed_texts import Texts

    with Texts(logs, sources) as texts:
        for row in rows:
            (one,) = texts.of([row["id"]])
            twin = texts.of([row["kept_id"]])[0].text if row.get("kept_id") else None
            shown = one.text if one.text is None or personal_data else scrub(one.text)
            twin = twin if twin is None or personal_data else scrub(twin)
            places = [] if shown is None or row.get("rule") is None else offending_places(shown, row, twin)
            about = {name: row.get(name) for name in ABOUT}
            yield {**about, **_told(one), "text": shown, "marks": [place.__dict__ for place in places]}


def _told(one: Text) -> dict[str, Any]:
    return {"origin": one.origin, "proof": one.proof, "why_not": one.why_not}
