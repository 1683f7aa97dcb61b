"""A part as a unit of work: what it is made of, and how a worker carries it out and commits it."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import socket
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from manifests.manifest import canonical
from manifests.storage import Folder
from pipeline import receipts
from pipeline.receipts import Receipt
from pipeline.resources import Resources, observed

STEPS = "steps"
FINGERPRINT_CHARACTERS = 32


@dataclass(frozen=True)
class Work:
    """One part of one step.

    `arguments` decide the output and are hashed; `inputs` say where things are (paths, receipts of earlier parts, ordinals) and
    follow from `upstream`, the fingerprints of the parts that this one reads, in the order in which it numbers them. Both are
    JSON values.
    """

    step: str
    part: str
    function: str
    """`module:function`, called as function(Task) -> None."""
    version: int
    """Of the function."""
    arguments: dict[str, Any]
    upstream: tuple[str, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict, compare=False)
    resources: Resources = field(default_factory=Resources, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        material = [self.step, self.function, self.version, self.arguments, self.upstream]
        return hashlib.sha256(canonical(material)).hexdigest()[:FINGERPRINT_CHARACTERS]


@dataclass
class Task:
    """What a step's function works with: the corpus, the work, a receipt to fill in, and names for its files."""

    corpus: Folder
    work: Work
    receipt: Receipt

    @property
    def arguments(self) -> dict[str, Any]:
        return self.work.arguments

    @property
    def inputs(self) -> dict[str, Any]:
        return self.work.inputs

    def file(self, name: str) -> str:
        """The place of one of this part's files: under the fingerprint, so that stale output is never taken for fresh."""
        return f"{STEPS}/{self.work.step}/{self.work.fingerprint}/{name}"


def execute(corpus_url: str, work: Work) -> Receipt:
    """Carries out one part and commits its receipt; a part that is done already is left as it is."""
    corpus = Folder(corpus_url)
    fingerprint = work.fingerprint
    done = receipts.load(corpus, work.step, fingerprint)
    if done is not None:
        return done
    started = time.time()
    receipt = Receipt(step=work.step, part=work.part, fingerprint=fingerprint)
    module, _, name = work.function.partition(":")
    with observed(receipt.run):
        getattr(importlib.import_module(module), name)(Task(corpus, work, receipt))
    for count in receipt.counts:
        if not count.conserves:
            raise AssertionError(
                f"{work.step} part {work.part}: stage {count.stage} lost documents: {json.dumps(count.model_dump())}"
            )
    receipt.run |= {"host": socket.gethostname(), "process": os.getpid(), "started": round(started, 3)}
    receipts.save(corpus, receipt)
    return receipt
