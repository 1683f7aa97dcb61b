"""The text of a document as the stage saw it that removed it, or as it is in the corpus: no log holds it, so it is read back.

Three places are asked, in this order: the token shards (documents that are kept), the work files of the run, the source record.
What these hold is brought to where the document was removed by doing again what the edit log says was done to it: extraction,
and each stage that has an edit row for it; a stage without one did not change it. Each of these has digests on record, and the
text that was judged has its length there, so a text that is not the one is refused rather than shown.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.identity import DocumentId
from manifests.logs import Logs
from manifests.manifest import ManifestError, StageRecord, receipt_list
from manifests.schemas import RECORDS
from manifests.storage import Folder, StorageError, is_remote
from stages import registry
from stages.personal_data import scrub_url
from stages.readers import Reader, find_reader
from stages.shard_texts import ShardTextError, load_encoder
from stages.stage import Filter, Stage
from stages.tokenizer import Encoder

NO_TEXT_YET = ("read", "url_filter", "extraction")
"""Stages that judge a record before it has a text."""
PARQUET = "parquet"
TROUBLE = (OSError, StorageError, ManifestError, ShardTextError, pa.ArrowException, ValueError, KeyError, TypeError, LookupError)


class _Unavailable(Exception):
    """A place that does not have a text, and why."""


@dataclass(frozen=True)
class Text:
    """The text of one document, or why it cannot be had. origin: where it was read. proof: by what it is known to be the one.
    It is as it was, personal data included."""

    id: str
    text: str | None
    origin: str | None = None
    proof: str | None = None
    why_not: str | None = None


class Texts:
    """Texts of documents of one corpus. `sources`: component → where its input lies now, if not where the recipe said, as seen
    from here or from beside the corpus. Needs the views `documents`, `removals` and `edits`. Close it when done: extraction
    runs in child processes."""

    def __init__(self, logs: Logs, sources: Mapping[str, str] | None = None) -> None:
        self.logs, self.corpus, self.manifest = logs, logs.corpus, logs.manifest
        self.sources = dict(sources or {})
        self._opened = contextlib.ExitStack()
        self._stages: dict[tuple[str, str], Any] = {}
        self._encoder: Encoder | None = None
        self._receipts: list[dict[str, Any]] | None = None

    def __enter__(self) -> Texts:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def of(self, ids: Sequence[str]) -> list[Text]:
        """The texts of documents, in the order of `ids`."""
        found = {}
        for one in dict.fromkeys(ids):
            try:
                found[one] = self._of(one)
            except TROUBLE as error:
                found[one] = Text(one, None, why_not=f"{type(error).__name__}: {error}")
        return [found[one] for one in ids]

    def _of(self, printed: str) -> Text:
        try:
            identity = DocumentId.parse(printed)
        except ValueError as error:
            return Text(printed, None, why_not=str(error))
        where, key = "where component = ? and file = ? and position = ?", list(identity)
        documents = self.logs.sql(f"select * from documents {where}", key)
        if not documents:
            return Text(printed, None, why_not="no such document came in")
        removals = self.logs.sql(f"select * from removals {where}", key)
        edits = self.logs.sql(f"select * from edits {where}", key)
        wanted = _Wanted(identity, documents[0], removals[0] if removals else None, edits, self._records(identity.component))
        if wanted.removal is not None and wanted.removal["stage"] == "read":
            reason = wanted.removal["detail"] or wanted.removal["rule"]
            return Text(printed, None, why_not=f"the reader found no text in the record: {reason}")
        reasons = []
        for place in (self._in_shard, self._in_work_files, self._in_source):
            try:
                return place(wanted)
            except _Unavailable as error:
                reasons.append(str(error))
            except TROUBLE as error:
                reasons.append(f"{type(error).__name__}: {error}")
        return Text(printed, None, why_not="; ".join(reason for reason in reasons if reason))

    def _records(self, component: str) -> list[StageRecord]:
        content = self.manifest.content
        return [*content.components[component].stages, *content.stages]

    # Where a text may be.

    def _in_shard(self, wanted: _Wanted) -> Text:
        document, tokenizer = wanted.document, self.manifest.content.tokenizer
        if wanted.removal is not None:
            raise _Unavailable("")
        if document["shard"] is None or tokenizer is None:
            raise _Unavailable("it is in no shard")
        self._encoder = self._encoder or load_encoder(self.corpus, tokenizer)
        dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
        start, length = document["start"] + 1, document["tokens"] - 1  # BOS is none of its text
        data = self.corpus.read_range(document["shard"], start * dtype.itemsize, length * dtype.itemsize)
        text = self._encoder.decode(np.frombuffer(data, dtype)).decode()
        return wanted.proven(text, f"decoded from {document['shard']}")

    def _in_work_files(self, wanted: _Wanted) -> Text:
        if self._receipts is None:
            self._receipts = receipt_list(self.corpus, self.manifest) or []
        if not self._receipts:
            raise _Unavailable("the receipts that list the work files are gone")
        seen = False
        for step in reversed(wanted.steps()):
            for documents in self._documents_files(step, wanted.identity):
                seen = True
                text = _row(self.corpus, documents, wanted.identity)
                if text is None:
                    continue
                with contextlib.suppress(_Unavailable):
                    return wanted.proven(text, f"the work files of step {step}")
                with contextlib.suppress(_Unavailable):
                    return self._done_again(wanted, text, f"the work files of step {step}", after=step)
        raise _Unavailable("the work files do not hold it" if seen else "the work files are deleted")

    def _in_source(self, wanted: _Wanted) -> Text:
        component = self.manifest.content.components[wanted.identity.component]
        listed = next((one for one in component.inputs if one.path == wanted.identity.file), None)
        if listed is None:
            raise _Unavailable(f"{wanted.identity.file} is none of the component's input files")
        folder, name = self._source(component.source, wanted.identity.component, listed.path)
        if folder.size(name) != listed.bytes:
            raise _Unavailable(
                f"{folder.url}/{name} has {folder.size(name):,} bytes, and had {listed.bytes:,}: it is another file"
            )
        record = self._record(wanted, folder, name)
        if record is None:
            raise _Unavailable(f"{folder.url}/{name} has no such record")
        if record["rule"][0].as_py() is not None:
            raise _Unavailable(f"{folder.url}/{name}: the reader finds no document there: {record['rule'][0]}")
        text, origin = record["text"][0].as_py(), f"{folder.url}/{name} at {wanted.identity.position}"
        if text is None:
            extraction = next((one for one in wanted.records if one.stage == "extraction"), None)
            if extraction is None:
                raise _Unavailable(f"{origin} is a page, and the component extracts no text")
            verdict = cast("Stage[Any]", self._stage(extraction)).decide(record)
            text = verdict.columns["text"][0].as_py()
            if text is None or verdict.rule[0] >= 0:
                detail = verdict.detail[0] if verdict.detail else None
                raise _Unavailable(f"extraction gives no text of {origin}: {detail or extraction.stage}")
            origin += ", extracted again"
        if wanted.removal is not None and wanted.removal["text_bytes"] is None:
            stage = wanted.removal["stage"]
            return Text(str(wanted.identity), text, origin, f"none: {stage} judged the record, before there was a text")
        with contextlib.suppress(_Unavailable):
            return wanted.proven(text, origin)
        return self._done_again(wanted, text, origin, after=None)

    def _done_again(self, wanted: _Wanted, text: str, origin: str, after: str | None) -> Text:
        """`text`, which was so after step `after` (None: as extracted), with the edits on record done to it again."""
        begun = after is None
        again = []
        steps = list(dict.fromkeys(record.step for record in wanted.records))
        late = set() if begun else set(steps[: steps.index(after) + 1]) if after in steps else set()
        for record in wanted.before():
            rows = [row for row in wanted.edits if row["stage"] == record.stage and row["step"] == record.step]
            if not rows or record.step in late:
                continue
            if _digest(text) != rows[0]["sha256_before"]:
                raise _Unavailable(f"{origin}: what stage {record.stage} would see is not what it saw then")
            text = self._edited(record, wanted, text)
            if _digest(text) != rows[0]["sha256_after"]:
                raise _Unavailable(f"{origin}: stage {record.stage} makes another text of it here than it did then")
            again.append(record.stage)
        return wanted.proven(text, origin + (f", {' and '.join(again)} done again" if again else ""))

    def _edited(self, record: StageRecord, wanted: _Wanted, text: str) -> str:
        try:
            stage = self._stage(record)
        except _Unavailable:
            raise
        except Exception as error:
            raise _Unavailable(f"stage {record.stage} cannot be built here: {error}") from None
        identity = wanted.identity
        columns = {
            **{name: pa.array([value]) for name, value in zip(("component", "file", "position"), identity, strict=True)},
            **{name: pa.array([wanted.document[name]], pa.string()) for name in ("url", "date", "media_type", "language")},
            "language_score": pa.array([None], pa.float64()),
            "text": pa.array([text], pa.large_string()),
        }
        batch = pa.record_batch(columns)
        if isinstance(stage, Filter):
            changed = stage.measure(batch).text
            return text if changed is None else str(changed[0].as_py())
        columns_after = cast("Stage[Any]", stage).decide(batch).columns
        return str(columns_after["text"][0].as_py()) if "text" in columns_after else text

    def _stage(self, record: StageRecord) -> Any:
        key = (record.step, record.stage)
        if key not in self._stages:
            try:
                implementation = registry.find(record.stage)
            except KeyError:
                raise _Unavailable(
                    f"stage {record.stage} cut it by what stood in other documents, which is not done again here"
                ) from None
            if implementation.version != record.version:
                raise _Unavailable(f"stage {record.stage} ran in version {record.version}, and here is {implementation.version}")
            self._stages[key] = implementation(implementation.options_type.model_validate(record.options))
            if hasattr(self._stages[key], "close"):
                self._opened.callback(self._stages[key].close)
        return self._stages[key]

    def _documents_files(self, step: str, identity: DocumentId) -> Iterator[str]:
        """The documents files of a step that may hold the document, as far as they are there."""
        for listed in self._receipts or []:
            path = str(listed["path"])
            if path.split("/")[1] != step or not _may_hold(str(listed["part"]), identity.file):
                continue
            with contextlib.suppress(FileNotFoundError):
                receipt = json.loads(self.corpus.read(path))
                documents = receipt.get("files", {}).get("documents", {}).get("path")
                if documents and self.corpus.exists(documents):
                    yield documents

    def _source(self, written: str, component: str, file: str) -> tuple[Folder, str]:
        """The folder of a component's input, and the name of the file in it."""
        if component in self.sources:
            places = [self.sources[component]]
        elif is_remote(written) or os.path.isabs(written):
            places = [written]
        else:
            beside = os.path.dirname(self.corpus.root) if self.corpus.local else None
            places = [*([os.path.join(beside, written)] if beside is not None else []), written]
        for place in places:
            folder = Folder(place)
            if folder.exists(file):
                return folder, file
            if folder.fs.isfile(folder.root):  # the source is one file
                parent, _, name = place.rstrip("/").rpartition("/")
                return Folder(parent or "."), name
        told = " or ".join(f"{place}/{file}" for place in places)
        raise _Unavailable(f"the source is not there: {told} (--source {component}=FOLDER says where it lies now)")

    def _record(self, wanted: _Wanted, folder: Folder, name: str) -> pa.RecordBatch | None:
        """The record at the document's position, as a batch of RECORDS of one row."""
        identity = wanted.identity
        about = next(record for record in wanted.records if record.stage == "read")
        kind = find_reader(str(about.options["format"]))
        options = {key: value for key, value in about.options.items() if key in kind.options_type.model_fields}
        reader: Reader[Any] = kind(kind.options_type.model_validate(options))
        if about.options["format"] == "warc" and identity.position and not str(name).endswith(".wacz"):
            with folder.open(name) as file:
                found = _first(reader, _From(file, identity.position), identity)
            # A record of a file of one member has no beginning of its own; its URL says whether this is the one.
            if (
                found is not None
                and found["rule"][0].as_py() is None
                and scrub_url(found["url"][0].as_py()) == wanted.document["url"]
            ):
                return found
        groups = None
        if about.options["format"] == PARQUET:
            groups = _row_groups(folder, name, identity.position)
        with folder.open(name) as file:
            for batch in reader.read(file, identity.component, identity.file, Counter(), groups):
                positions = batch["position"].to_numpy()
                at = int(np.searchsorted(positions, identity.position))
                if at < len(positions):
                    return batch.slice(at, 1) if positions[at] == identity.position else None
        return None


@dataclass(frozen=True)
class _Wanted:
    """A document, what became of it, and every stage of its component in running order."""

    identity: DocumentId
    document: dict[str, Any]
    removal: dict[str, Any] | None
    edits: list[dict[str, Any]]
    records: list[StageRecord]

    def before(self) -> Iterator[StageRecord]:
        """The stages that it had behind it where its text is wanted."""
        for record in self.records:
            if self.removal is not None and self._removes(record):
                return
            yield record

    def _removes(self, record: StageRecord) -> bool:
        """Is this the stage, or a filter of the block, that removed it?"""
        assert self.removal is not None
        if record.stage == self.removal["stage"] and _corpus_step(record.step) == _corpus_step(self.removal["step"]):
            return True
        return any(rule.name in (self.removal["failed_rules"] or []) for rule in record.rules) or (
            str(self.removal["stage"]).endswith(".measure") and record.step == self.removal["step"] and bool(record.rules)
        )

    def steps(self) -> list[str]:
        """The steps that may have written it, up to the one that removed it."""
        found = []
        for record in self.records:
            found.append(record.step)
            if self.removal is not None and self._removes(record):
                break
        return list(dict.fromkeys(found))

    def proven(self, text: str, origin: str) -> Text:
        """`text`, if it is what is on record; _Unavailable where it is not."""
        size = len(text.encode())
        if self.removal is None:
            if _digest(text) != self.document["text_sha256"]:
                raise _Unavailable(f"{origin}: its SHA-256 is not the one on record")
            return Text(str(self.identity), text, origin, "SHA-256 as in the document log")
        if size != self.removal["text_bytes"]:
            raise _Unavailable(f"{origin}: {size:,} bytes, and {self.removal['text_bytes']} were judged")
        before = list(self.before())
        last = [row for row in self.edits if any(row["stage"] == one.stage and row["step"] == one.step for one in before)][-1:]
        if last and _digest(text) != last[0]["sha256_after"]:
            raise _Unavailable(f"{origin}: its SHA-256 is not the one on record")
        proof = "SHA-256 as in the edit log" if last else "length as in the removal log"
        return Text(str(self.identity), text, origin, proof)


class _From(io.RawIOBase):
    """The rest of a file from a place on, as a file."""

    def __init__(self, raw: BinaryIO, start: int) -> None:
        self._raw, self._start = raw, start
        raw.seek(start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        return self._raw.read(-1 if size is None else size)

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._raw.seek(offset + (self._start if whence == os.SEEK_SET else 0), whence) - self._start

    def tell(self) -> int:
        return self._raw.tell() - self._start


def _first(reader: Reader[Any], file: BinaryIO | io.RawIOBase, identity: DocumentId) -> pa.RecordBatch | None:
    for record in reader.records(cast("BinaryIO", file), identity.file, Counter(), None):
        columns = {"component": pa.array([identity.component]), "file": pa.array([identity.file])}
        for field in RECORDS:
            if field.name not in columns:
                columns[field.name] = pa.array([getattr(record, field.name)], field.type)
        return pa.RecordBatch.from_arrays([columns[field.name] for field in RECORDS], schema=RECORDS)
    return None


def _row_groups(folder: Folder, name: str, row: int) -> range | None:
    import pyarrow.parquet as pq

    with folder.open(name) as file:
        about = pq.ParquetFile(pa.PythonFile(file, mode="r")).metadata
        first = 0
        for group in range(about.num_row_groups):
            first += about.row_group(group).num_rows
            if row < first:
                return range(group, group + 1)
    return None


def _row(corpus: Folder, path: str, identity: DocumentId) -> str | None:
    """The text of a document in a documents file, or None."""
    with corpus.open(path) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            mine = pc.and_(pc.equal(batch["file"], identity.file), pc.equal(batch["position"], identity.position))
            rows = batch["text"].filter(mine)
            if len(rows):
                return str(rows[0].as_py())
    return None


_PART = re.compile(r"\d+ (.*?)(?: \[\d+:\d+\])?( and \d+ more)?")


def _may_hold(part: str, file: str) -> bool:
    """Can the part of this label hold the file? `00003 a.jsonl and 7 more` begins with a.jsonl."""
    label = _PART.fullmatch(part)
    return label is None or label[1] == file or (label[2] is not None and label[1] <= file)


def _corpus_step(step: str) -> str:
    """`corpus.2.minhash.remove` is part of `corpus.2.minhash`."""
    return ".".join(step.split(".")[:3]) if step.startswith("corpus.") else step


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
