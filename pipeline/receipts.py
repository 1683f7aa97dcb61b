"""Receipts: the commit record of a part.

A receipt is written last, atomically, after the part's files. No receipt, no part; what a crashed part left behind is
overwritten by the next attempt. Receipts are the only source of counts.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, overload

from pydantic import BaseModel, Field, ValidationError

from manifests.manifest import InputFile
from manifests.storage import Folder, Written

RECEIPTS = "receipts"
LOADERS = 16
HELD_BYTES = 4 << 20
"""Of a step's receipts, packed, in the driver's memory; beyond that they lie in a temporary file."""


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
    """What was observed while it ran: host, process, times, memory (see pipeline.resources). Nothing is decided by it."""
    sha256: str = ""
    """Of the file it was written to or read from, for the list of receipts; not in the file itself."""

    def add(self, role: str, written: Written, rows: int) -> None:
        self.files[role] = FileEntry(path=written.path, bytes=written.size, sha256=written.sha256, rows=rows)


class Receipts(Sequence[Receipt]):
    """Receipts in order, as later steps ask for them. The driver of a large run has millions: here each is some 200 packed bytes,
    which a temporary file takes when they are many, and is read anew whenever it is asked for."""

    def __init__(self, pieces: Iterable[tuple[Packed, Sequence[int]]] = ()) -> None:
        self._pieces = [(packed, where) for packed, where in pieces if len(where)]
        self._ends = list(accumulate(len(where) for _, where in self._pieces))

    @staticmethod
    def of(receipts: Iterable[Receipt]) -> Receipts:
        packed = Packed()
        return Receipts([(packed, array("L", [packed.add(one) for one in receipts]))])

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(packed.fingerprint(at) for packed, where in self._pieces for at in where)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Receipt]:
        for packed, where in self._pieces:
            yield from map(packed.receipt, where)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> Receipts: ...
    def __getitem__(self, index: int | slice) -> Receipt | Receipts:
        if isinstance(index, int):
            at = range(len(self))[index]
            piece = bisect_right(self._ends, at)
            packed, where = self._pieces[piece]
            return packed.receipt(where[at - self._ends[piece]])
        chosen = range(len(self))[index]
        if chosen.step != 1:
            raise ValueError("receipts are cut in their order")
        pieces = []
        for (packed, where), end in zip(self._pieces, self._ends, strict=True):
            start = end - len(where)
            pieces.append((packed, where[max(0, chosen.start - start) : max(0, chosen.stop - start)]))
        return Receipts(pieces)

    def __add__(self, others: Receipts) -> Receipts:
        return Receipts([*self._pieces, *others._pieces])


class Packed:
    """The receipts of one step, packed one by one: they differ by little but their numbers and hashes, so the first is the
    dictionary of the others."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115 - it lives as long as this does
        self._starts = array("Q", [0])
        self._fingerprints = bytearray()
        self._first = b""

    def __len__(self) -> int:
        return len(self._starts) - 1

    def add(self, receipt: Receipt) -> int:
        """The receipt's number."""
        raw = receipt.model_dump_json().encode()
        self._first = self._first or raw
        pack = zlib.compressobj(zdict=self._first)  # nothing of it stays, where a compressor of zstd is megabytes for every step
        self._file.seek(self._starts[-1])
        self._starts.append(self._starts[-1] + self._file.write(pack.compress(raw) + pack.flush()))
        self._fingerprints += receipt.fingerprint.encode()
        self._width = len(receipt.fingerprint)
        return len(self) - 1

    def receipt(self, number: int) -> Receipt:
        start, end = self._starts[number], self._starts[number + 1]
        self._file.seek(start)
        return Receipt.model_validate_json(zlib.decompressobj(zdict=self._first).decompress(self._file.read(end - start)))

    def fingerprint(self, number: int) -> str:
        return self._fingerprints[number * self._width : (number + 1) * self._width].decode()


def receipt_name(step: str, fingerprint: str) -> str:
    return f"{RECEIPTS}/{step}/{fingerprint}.json"


def save(corpus: Folder, receipt: Receipt) -> None:
    text = json.dumps(receipt.model_dump(mode="json", exclude={"sha256"}), indent=1, ensure_ascii=False)
    receipt.sha256 = corpus.write(receipt_name(receipt.step, receipt.fingerprint), text.encode()).sha256


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
    receipt.sha256 = hashlib.sha256(raw).hexdigest()
    return receipt if (receipt.step, receipt.fingerprint) == (step, fingerprint) else None


def finished(corpus: Folder, step: str, fingerprints: Iterable[str]) -> Iterator[Receipt]:
    """The receipts of those of `fingerprints` that are done, each once, in their order."""
    there = set(corpus.names(f"{RECEIPTS}/{step}"))
    wanted = [one for one in dict.fromkeys(fingerprints) if receipt_name(step, one) in there]
    del there
    with ThreadPoolExecutor(LOADERS) as pool:
        for first in range(0, len(wanted), LOADERS * LOADERS):  # a pool's map would hold them all
            for receipt in pool.map(lambda one: load(corpus, step, one), wanted[first : first + LOADERS * LOADERS]):
                if receipt is not None:
                    yield receipt
