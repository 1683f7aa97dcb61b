"""What training runs had of a document: which of its tokens, at which steps, exactly (`manifests.trained_on`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa

from manifests.copies import EXACT, stand_ins
from manifests.identity import DocumentId
from manifests.logs import Logs
from manifests.manifest import ManifestError, open_corpus
from manifests.storage import StorageError
from manifests.trained_on import TRAINED_SPLIT, LedgerError, Served, TrainedOn, corpus_of, read_ledger

NUMBERS_SHOWN = 20
COPIES_SHOWN = 3


@dataclass(frozen=True)
class Copy:
    """A copy of a document that was served though it was not: what stands in for it in the corpus, or has the same text. jaccard:
    of the two, None where it is not known."""

    id: str
    jaccard: float | None
    targets: int
    served: list[Served]


@dataclass(frozen=True)
class Consumed:
    """What the run in folder `run`, of so many `steps`, had of a document. consumed: yes; as a copy, where it was not itself, but
    one of `copies` was; no; or unknown where the run was trained on another corpus that cannot be asked. targets: tokens of it
    that were predicted, counted as often as they were; served: each time that a piece of it came up. `because` says all of it in
    words."""

    run: str
    steps: int
    consumed: Literal["yes", "as a copy", "no", "unknown"]
    because: str
    targets: int = 0
    served: list[Served] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """A training run, asked about documents of the corpus of `logs`, of which the views `documents` and `removals` are needed.
    LedgerError where its ledger is damaged or missing."""

    def __init__(self, run: str, logs: Logs) -> None:
        self.folder, self.logs = run, logs
        corpus, manifest = logs.corpus, logs.manifest
        self.ledger = read_ledger(Path(run))
        header = self.ledger.header
        self.elsewhere: _Elsewhere | None = None
        self.joined: TrainedOn | None = None
        listed = {
            name: [(one.sha256, one.index_sha256) for one in manifest.shards(TRAINED_SPLIT, name)]
            for name in manifest.content.components
        }
        if header.manifest_digest == manifest.digest or all(listed.get(name) == shards for name, shards in header.loader.shards):
            self.joined = TrainedOn(Path(run), corpus, manifest, same_shards=True)
        else:
            self.elsewhere = _Elsewhere(Path(run), header.manifest_digest)

    def consumed(self, document: dict[str, Any]) -> Consumed:
        """By a document's row in the document log."""
        if self.joined is not None:
            return consumed_by(self.folder, self.joined, self.logs, document)
        assert self.elsewhere is not None
        steps = self.ledger.last_step
        own = self.elsewhere.consumed(self.folder, steps, document)
        if own.consumed != "no":
            return own
        there = [
            (copy, jaccard, self.elsewhere.consumed(self.folder, steps, copy)) for copy, jaccard in _copies(self.logs, document)
        ]
        return _with_copies(own, [(copy, jaccard, one) for copy, jaccard, one in there if one.consumed != "unknown"])


def times_in_words(times: Sequence[Served], tokens: int, last_step: int) -> str:
    """ "120 targets of 60 tokens, at steps 3, 9 (the run has 40), in epochs 1, 2"."""
    return (
        f"{sum(one.tokens for one in times):,} targets of {tokens:,} tokens, at {_numbers('step', (one.step for one in times))} "
        f"(the run has {last_step:,}), in {_numbers('epoch', (one.epoch + 1 for one in times))}"
    )


def consumed_by(run: str, joined: TrainedOn, logs: Logs, document: dict[str, Any], as_: str = "") -> Consumed:
    """What a run had of a document of its corpus, by the row in the document log, or of copies of it. `logs` are of the corpus,
    with the views `documents` and `removals`. `as_`: words before the answer."""
    own = _told(run, joined, document, as_)
    if own.consumed == "yes":
        return own
    return _with_copies(own, [(copy, jaccard, _told(run, joined, copy)) for copy, jaccard in _copies(logs, document)])


def _copies(logs: Logs, document: dict[str, Any]) -> list[tuple[dict[str, Any], float | None]]:
    """Documents of the corpus that have the text of one, or stand in for it, with the Jaccard similarity: rows of the log."""
    if document["removed_by"] is None:
        rows = logs.sql(
            "select * from documents where text_sha256 = ? and id <> ? and removed_by is null order by component, file, position",
            [document["text_sha256"], document["id"]],
        )
        return [(row, EXACT) for row in rows]
    found = stand_ins(logs, [document["id"]]).get(document["id"])
    if found is None or not found.in_corpus:
        return []
    return [(row, found.jaccard) for row in logs.sql("select * from documents where id = ?", [found.id])]


def _with_copies(own: Consumed, copies: Sequence[tuple[dict[str, Any], float | None, Consumed]]) -> Consumed:
    """The answer about a document that was not served itself, given those about its copies."""
    had = [one for one in copies if one[2].consumed in ("yes", "as a copy")]
    because = own.because
    for copy, jaccard, one in (had or list(copies[:1]))[:COPIES_SHOWN]:
        similar = "how similar is not on record" if jaccard is None else f"Jaccard {jaccard:.4f}"
        because += f"; its copy {copy['id']} ({similar}) was{'' if had else ' not either'}: {one.because}"
    if len(had) > COPIES_SHOWN:
        because += f"; and so were {len(had) - COPIES_SHOWN:,} other copies"
    found = [Copy(copy["id"], jaccard, one.targets, one.served) for copy, jaccard, one in had if one.served]
    found += [further for *_, one in had for further in one.copies]
    return replace(own, consumed="as a copy" if had else own.consumed, because=because, copies=found)


def why_not_trained_on(document: dict[str, Any], joined: TrainedOn) -> str:
    """Of a document that was never served."""
    if document["removed_by"]:
        return f"it was removed by {document['removed_by']}"
    if document["split"] != TRAINED_SPLIT:
        return f"it is in the split {document['split']}, which is not trained on" if document["split"] else "it is in no shard"
    if document["component"] not in joined.taken_components():
        return f"the run took nothing of component {document['component']}"
    return f"none of its rows came up in {joined.ledger.last_step:,} steps"


def _told(run: str, joined: TrainedOn, document: dict[str, Any], as_: str = "") -> Consumed:
    times, last = joined.times(document), joined.ledger.last_step
    if not times:
        return Consumed(run, last, "no", as_ + why_not_trained_on(document, joined))
    words = as_ + times_in_words(times, document["tokens"], last)
    return Consumed(run, last, "yes", words, sum(one.tokens for one in times), times)


class _Elsewhere:
    """A run whose shards are not those of the corpus that is asked about. Its own corpus is asked, where the run says it lies:
    for the same text, under whatever id, or, of a document without a text on record, for the same id."""

    def __init__(self, run: Path, digest: str) -> None:
        where = corpus_of(run)
        self.other = f"it was trained on another corpus, {digest[:12]}…"
        self.joined: TrainedOn | None = None
        self.why_not = "and does not say where that lay"
        if where is not None:
            try:
                corpus, manifest = open_corpus(where)
                self.joined = TrainedOn(run, corpus, manifest)
            except (ManifestError, StorageError, LedgerError, OSError) as error:
                self.why_not = f"which cannot be asked: {error}"

    def consumed(self, run: str, steps: int, document: dict[str, Any]) -> Consumed:
        if self.joined is None:
            return Consumed(run, steps, "unknown", f"{self.other}, {self.why_not}")
        try:
            with Logs(self.joined.corpus, self.joined.manifest, only=["documents", "removals"]) as logs:
                if document["text_sha256"]:
                    query = (
                        "select * from documents where text_sha256 = ? and shard is not null order by component, file, position"
                    )
                    found, what = logs.sql(query, [document["text_sha256"]]), "this text"
                else:
                    wanted = DocumentId(document["component"], document["file"], document["position"])
                    query = "select * from documents where component = ? and file = ? and position = ?"
                    found, what = logs.sql(query, list(wanted)), "this document"
                answers = [consumed_by(run, self.joined, logs, one, f"{self.other}, as {one['id']}: ") for one in found]
        except (duckdb.Error, pa.ArrowException, StorageError, OSError) as error:
            return Consumed(run, steps, "unknown", f"{self.other}, whose logs cannot be read: {error}")
        if not answers:
            return Consumed(run, steps, "no", f"{self.other}, which does not have {what}")
        had = [one for one in answers if one.consumed == "yes"] or [one for one in answers if one.consumed == "as a copy"]
        served = had or answers[:1]
        return Consumed(
            run,
            steps,
            served[0].consumed,
            "; ".join(one.because for one in served),
            sum(one.targets for one in served),
            [time for one in served for time in one.served],
            [copy for one in served for copy in one.copies],
        )


def _numbers(what: str, numbers: Iterable[int]) -> str:
    """ "steps 3, 9"."""
    distinct = sorted(set(numbers))
    more = len(distinct) - NUMBERS_SHOWN
    return (
        f"{what}{'s' if len(distinct) > 1 else ''} "
        + ", ".join(f"{one:,}" for one in distinct[:NUMBERS_SHOWN])
        + (f" and {more:,} more" if more > 0 else "")
    )
