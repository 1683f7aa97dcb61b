"""A part as a unit of work: what it is made of, and how a worker carries it out and commits it."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import socket
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from manifests.manifest import canonical
from manifests.storage import Folder
from pipeline import lists, receipts
from pipeline.lists import LISTS, Listed, ListFile, Lists
from pipeline.receipts import Receipt
from pipeline.resources import Resources, observed

STEPS = "steps"
FINGERPRINT_CHARACTERS = 32


@dataclass(frozen=True)
class Work:
    """One part of one step.

    `arguments` decide the output and are hashed; `inputs` say where things are (paths, receipts of earlier parts, ordinals) and
    follow from `upstream`, the fingerprints of the parts that this one reads, in the order in which it numbers them. All are JSON
    values, of which those that grow with the corpus are each a `Listed`: a value of `arguments`, one of `inputs` or of a mapping
    in it, or one that stands for several fingerprints.
    """

    step: str
    part: str
    function: str
    """`module:function`, called as function(Task) -> None."""
    version: int
    """Of the function."""
    arguments: dict[str, Any]
    upstream: tuple[str | Listed, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict, compare=False)
    resources: Resources = field(default_factory=Resources, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        arguments = {key: list(value) if isinstance(value, Listed) else value for key, value in self.arguments.items()}
        upstream = [one.inner() if isinstance(one, Listed) else canonical(one) for one in self.upstream]
        # The canonical JSON of step, function, version, arguments and all fingerprints, without a copy of those for every part.
        found = hashlib.sha256(canonical([self.step, self.function, self.version, arguments])[:-1] + b",[")
        for number, some in enumerate(filter(None, upstream)):
            found.update(b"," + some if number else some)
        found.update(b"]]")
        return found.hexdigest()[:FINGERPRINT_CHARACTERS]

    def declaring(self, resources: Resources) -> Work:
        """The same part with what it takes; its fingerprint is not looked for again."""
        found = replace(self, resources=resources)
        found.__dict__["fingerprint"] = self.fingerprint
        return found

    def order(self, written: Lists) -> Order:
        """What is sent to a worker, once its lists are written."""
        arguments = {key: value for key, value in self.arguments.items() if not isinstance(value, Listed)}
        return Order(self.step, self.part, self.function, arguments, _placed(self.inputs, written), self.fingerprint)


@dataclass(frozen=True)
class Order:
    """A `Work` as a worker gets it: known by its fingerprint, with the places of lists and not the lists. Its size does not
    depend on that of the corpus."""

    step: str
    part: str
    function: str
    arguments: dict[str, Any]
    """But for lists, which are there for the fingerprint."""
    inputs: dict[str, Any]
    fingerprint: str


def lists_of(corpus: Folder, step: str) -> Lists:
    """To be written while the step runs."""
    return Lists(corpus, f"{STEPS}/{step}/{LISTS}")


def _placed(inputs: dict[str, Any], written: Lists) -> dict[str, Any]:
    return {
        key: written.file(value) if isinstance(value, Listed) else _placed(value, written) if isinstance(value, dict) else value
        for key, value in inputs.items()
    }


def _read(inputs: dict[str, Any], corpus: Folder) -> dict[str, Any]:
    return {
        key: lists.read(corpus, value)
        if isinstance(value, ListFile)
        else _read(value, corpus)
        if isinstance(value, dict)
        else value
        for key, value in inputs.items()
    }


@dataclass
class Task:
    """What a step's function works with: the corpus, the work, a receipt to fill in, and names for its files."""

    corpus: Folder
    work: Work | Order
    receipt: Receipt

    @property
    def arguments(self) -> dict[str, Any]:
        return self.work.arguments

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Those of the work, its lists read."""
        return _read(self.work.inputs, self.corpus)

    def file(self, name: str) -> str:
        """The place of one of this part's files: under the fingerprint, so that stale output is never taken for fresh."""
        return f"{STEPS}/{self.work.step}/{self.work.fingerprint}/{name}"


def execute(corpus_url: str, work: Work | Order) -> Receipt:
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
