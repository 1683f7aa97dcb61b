"""What training runs had of a document: which of its tokens, at which steps, exactly (`manifests.trained_on`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa

from manifests.identity import DocumentId
from manifests.logs import Logs
from manifests.manifest import Manifest, ManifestError, open_corpus
from manifests.storage import Folder, StorageError
from manifests.trained_on import TRAINED_SPLIT, LedgerError, Served, TrainedOn, corpus_of, read_ledger

NUMBERS_SHOWN = 20


@dataclass(frozen=True)
class Consumed:
    """What the run in folder `run`, of so many `steps`, had of a document. consumed: yes, no, or unknown where the run was
    trained on another corpus that cannot be asked. targets: tokens of it that were predicted, counted as often as they were;
    served: each time that a piece of it came up. `because` says all of it in words."""

    run: str
    steps: int
    consumed: Literal["yes", "no", "unknown"]
    because: str
    targets: int = 0
    served: list[Served] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """A training run, asked about documents of one corpus. LedgerError where its ledger is damaged or missing."""

    def __init__(self, run: str, corpus: Folder, manifest: Manifest) -> None:
        self.folder = run
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
        if self.elsewhere is not None:
            return self.elsewhere.consumed(self.folder, self.ledger.last_step, document)
        assert self.joined is not None
        return _told(self.folder, self.joined, document)


def times_in_words(times: Sequence[Served], tokens: int, last_step: int) -> str:
    """ "120 targets of 60 tokens, in steps 3, 9 of 40; epochs 1, 2"."""
    return (
        f"{sum(one.tokens for one in times):,} targets of {tokens:,} tokens, in steps "
        f"{_numbers(one.step for one in times)} of {last_step:,}; epochs {_numbers(one.epoch + 1 for one in times)}"
    )


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
            with Logs(self.joined.corpus, self.joined.manifest, only=["documents"]) as logs:
                if document["text_sha256"]:
                    query = (
                        "select * from documents where text_sha256 = ? and shard is not null order by component, file, position"
                    )
                    found, what = logs.sql(query, [document["text_sha256"]]), "this text"
                else:
                    wanted = DocumentId(document["component"], document["file"], document["position"])
                    query = "select * from documents where component = ? and file = ? and position = ?"
                    found, what = logs.sql(query, list(wanted)), "this document"
        except (duckdb.Error, pa.ArrowException, StorageError, OSError) as error:
            return Consumed(run, steps, "unknown", f"{self.other}, whose logs cannot be read: {error}")
        answers = [_told(run, self.joined, one, f"{self.other}, as {one['id']}: ") for one in found]
        if not answers:
            return Consumed(run, steps, "no", f"{self.other}, which does not have {what}")
        served = [one for one in answers if one.consumed == "yes"] or answers[:1]
        return Consumed(
            run,
            steps,
            served[0].consumed,
            "; ".join(one.because for one in served),
            sum(one.targets for one in served),
            [time for one in served for time in one.served],
        )


def _numbers(numbers: Iterable[int]) -> str:
    distinct = sorted(set(numbers))
    more = len(distinct) - NUMBERS_SHOWN
    return ", ".join(f"{one:,}" for one in distinct[:NUMBERS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
