"""Receipts: the commit record of a part.

A receipt is written last, atomically, after the part's files. No receipt, no part; what a crashed part left behind is
overwritten by the next attempt. Receipts are the only source of counts.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from manifests.manifest import InputFile
from manifests.storage import Folder, Written

RECEIPTS = "receipts"


class FileEntry(BaseModel):
    path: str
    bytes: int
    sha256: str
    rows: int


class Count(BaseModel):
    """One stage on one part; the manifest sums these."""

    stage: str
    documents_in: int = 0
    documents_kept: int = 0
    bytes_in: int = 0
    bytes_kept: int = 0
    removed: dict[str, int] = Field(default_factory=dict)
    edited: dict[str, int] = Field(default_factory=dict)

    @property
    def conserves(self) -> bool:
        return self.documents_in == self.documents_kept + sum(self.removed.values())


class State(BaseModel):
    """Where the surviving documents of a part are: a documents file, and the rows of it that are kept (None: all)."""

    documents: str
    kept: str | None = None
    rows: int
    """Rows of the documents file, kept or not: row numbers are below it."""
    documents_kept: int
    digest: str
    """Of the documents and of which of them are kept: equal digests, equal documents, whatever steps led to them."""

    def narrowed(self, kept: Written, documents_kept: int) -> State:
        """The state of which only the rows listed in the file `kept` are left."""
        digest = hashlib.sha256(f"{self.digest} {kept.sha256}".encode()).hexdigest()
        return State(documents=self.documents, kept=kept.path, rows=self.rows, documents_kept=documents_kept, digest=digest)


class Receipt(BaseModel):
    step: str
    part: str
    fingerprint: str
    files: dict[str, FileEntry] = Field(default_factory=dict)
    counts: list[Count] = Field(default_factory=list)
    state: State | None = None
    inputs: list[InputFile] = Field(default_factory=list)
    skipped: dict[str, int] = Field(default_factory=dict)
    errors: list[dict[str, str]] = Field(default_factory=list)
    """Documents removed because something broke on them (crash, timeout, memory, error): id, stage, rule, detail."""
    values: dict[str, Any] = Field(default_factory=dict)
    run: dict[str, Any] = Field(default_factory=dict)

    def add(self, role: str, written: Written, rows: int) -> None:
        self.files[role] = FileEntry(path=written.path, bytes=written.size, sha256=written.sha256, rows=rows)


def receipt_name(step: str, fingerprint: str) -> str:
    return f"{RECEIPTS}/{step}/{fingerprint}.json"


def save(corpus: Folder, receipt: Receipt) -> None:
    text = json.dumps(receipt.model_dump(mode="json"), indent=1, ensure_ascii=False)
    corpus.write(receipt_name(receipt.step, receipt.fingerprint), text.encode())


def load(corpus: Folder, step: str, fingerprint: str) -> Receipt | None:
    """The receipt of a finished part, or None. One that is no receipt counts as none: the part runs again."""
    try:
        raw = corpus.read(receipt_name(step, fingerprint))
    except FileNotFoundError:
        return None
    try:
        receipt = Receipt.model_validate_json(raw)
    except ValidationError:
        return None
    return receipt if (receipt.step, receipt.fingerprint) == (step, fingerprint) else None


def finished(corpus: Folder, step: str, fingerprints: list[str]) -> dict[str, Receipt]:
    """Fingerprint → receipt for those of `fingerprints` that are done."""
    there = set(corpus.names(f"{RECEIPTS}/{step}"))
    wanted = [one for one in fingerprints if receipt_name(step, one) in there]
    with ThreadPoolExecutor(16) as pool:
        loaded = pool.map(lambda one: load(corpus, step, one), wanted)
        return {one: receipt for one, receipt in zip(wanted, loaded, strict=True) if receipt is not None}
