"""evaluate_bpb: bits per byte of held-out documents, computed by the evaluator and not by the model it scores.

The model gives logits; the loss is taken from them here, in float32, and summed in float64 over every text token once. The
target BOS that ends a document is not text and is left out. The sum is divided by ln 2 times the true UTF-8 bytes that the
shard index states. Documents longer than T are cut at T as in training, each piece alone in its row, so the figure does
not depend on packing, batch size or ranks; it does depend on T, and figures at different T do not compare.

A model that looks ahead, or that carries something from row to row, could score anything. So on sampled rows suffixes are
replaced at unpredictable positions, rows are reordered, and rows are run alone: log-probabilities before the change must
agree to PROBE_TOLERANCE. Logits that are not finite are refused. What a model has memorised in its weights is out of reach.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.corpus import Component, Corpus
from trainer.packing import Int64, cut
from trainer.ranks import Ranks

Float64 = npt.NDArray[np.float64]
Logits = Callable[[Tensor], Tensor]
"""Token ids int64 (rows, t) to logits (rows, t, vocabulary)."""

BATCH_TOKENS = 8_192
PROBE_ROWS = 8
PROBE_ROUNDS = 3
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference of a log-probability, in nats, that another batch shape or order may make by rounding alone."""
BOOTSTRAPS = 1_000


class EvaluationError(Exception):
    """A model or a split that cannot be given an honest score."""


@dataclass(frozen=True)
class Score:
    """The figure with all that is needed to defend it. `interval` is the 95 % bootstrap interval over documents."""

    val_bpb: float
    nats: float
    text_bytes: int
    tokens: int
    documents: int
    interval: tuple[float, float]
    split: str
    sequence_length: int
    dtype: str
    documents_sha256: str
    tokenizer_sha256: str
    evaluator_sha256: str
    probe_difference: float
    probe_tolerance: float
    components: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """The figure and what it means, in a few lines."""
        low, high = self.interval
        parts = ", ".join(f"{name} {bpb:.4f}" for name, bpb in self.components.items())
        return (
            f"{self.split}: {self.val_bpb:.4f} bits per byte (95 % over documents: {low:.4f} to {high:.4f}), "
            f"T = {self.sequence_length}, {self.dtype}; {self.nats:,.1f} nats over {self.tokens:,} tokens = "
            f"{self.text_bytes:,} bytes of {self.documents:,} documents\n"
            f"by component: {parts}\n"
            f"documents {self.documents_sha256}\n"
            f"tokenizer {self.tokenizer_sha256}\n"
            f"evaluator {self.evaluator_sha256}\n"
            f"causality probe: largest difference {self.probe_difference:.2g} nats, tolerance {self.probe_tolerance:g}"
        )


def bits_per_byte(sums: Iterable[tuple[float, float]]) -> float:
    """Total nats / (ln 2 x total bytes) of (nats, bytes) sums: (3, 10) and (40, 50) give 43 / (60 ln 2) = 1.0339.

    EvaluationError when there are no bytes or a sum is not finite.
    """
    pairs = list(sums)
    nats, size = math.fsum(pair[0] for pair in pairs), math.fsum(pair[1] for pair in pairs)
    if not size > 0:
        raise EvaluationError("there are no bytes to divide by")
    if not math.isfinite(nats):
        raise EvaluationError(f"the sum of nats is {nats}")
    return nats / (math.log(2) * size)


def evaluate_bpb(
    logits: Logits,
    corpus: Corpus,
    split: str,
    sequence_length: int,
    ranks: Ranks,
    dtype: str = "float32",
    batch_tokens: int = BATCH_TOKENS,
    probe_seed: int | None = None,
) -> Score:
    """Scores `logits` on every held-out document of `split`; see the head of this module for what is promised.

    The probe draws its positions from the operating system unless `probe_seed` is given. EvaluationError when logits are
    not finite or have the wrong shape, or when the probe finds a model that looks ahead or keeps state.
    """
    components = [corpus.component(name, split, ranks.local_rank == 0) for name in corpus.components(split)]
    tolerance = PROBE_TOLERANCE[dtype]
    generator = np.random.default_rng(secrets.randbits(128) if probe_seed is None else probe_seed)
    with torch.no_grad():
        difference = probe_causality(logits, components, sequence_length, ranks.device, tolerance, generator)
        nats = [_document_nats(logits, c, sequence_length, ranks, batch_tokens) for c in components]
    sizes = [component.text_bytes for component in components]
    every_nats, every_size = np.concatenate(nats), np.concatenate(sizes)
    return Score(
        val_bpb=bits_per_byte(zip(every_nats.tolist(), every_size.tolist(), strict=True)),
        nats=math.fsum(every_nats.tolist()),
        text_bytes=int(every_size.sum()),
        tokens=int(sum(int((c.lengths - 1).sum()) for c in components)),
        documents=len(every_nats),
        interval=_bootstrap(every_nats, every_size),
        split=split,
        sequence_length=sequence_length,
        dtype=dtype,
        documents_sha256=corpus.split_digest(split),
        tokenizer_sha256=corpus.tokenizer.sha256,
        evaluator_sha256=hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        probe_difference=difference,
        probe_tolerance=tolerance,
        components={
            c.name: bits_per_byte([(math.fsum(n.tolist()), float(s.sum()))])
            for c, n, s in zip(components, nats, sizes, strict=True)
            if s.sum()
        },
    )


def row_nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats of each target, float32 (rows, t), 0 where it is negative. EvaluationError unless every logit is finite."""
    if logits.shape[:-1] != targets.shape:
        raise EvaluationError(f"logits have shape {tuple(logits.shape)}, expected {tuple(targets.shape)} and a vocabulary")
    logits = logits.float()
    if not bool(torch.isfinite(logits).all()):
        raise EvaluationError("the model gives logits that are not finite; such a model has no score")
    chosen = logits.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    return (torch.logsumexp(logits, dim=-1) - chosen) * (targets >= 0)


def probe_causality(
    logits: Logits,
    components: Sequence[Component],
    sequence_length: int,
    device: torch.device,
    tolerance: float,
    generator: np.random.Generator,
) -> float:
    """The largest difference found between log-probabilities that must agree; EvaluationError when it exceeds `tolerance`."""
    rows = _sampled_rows(components, sequence_length, generator)
    if not rows:
        raise EvaluationError("no held-out document is long enough to test whether the model looks ahead")
    vocabulary, bos = components[0].vocabulary, components[0].bos
    together = _log_probabilities(logits, rows, bos, device)
    worst = 0.0

    def compare(found: Tensor, row: int, until: int, what: str) -> None:
        nonlocal worst
        difference = float((found[:until] - together[row][:until]).abs().max())
        if not difference <= tolerance:
            raise EvaluationError(
                f"log-probabilities changed by {difference:.3g} nats (tolerance {tolerance:g}) {what}: "
                "the model does not predict from the text before alone"
            )
        worst = max(worst, difference)

    for _ in range(PROBE_ROUNDS):
        cuts = [int(generator.integers(1, len(row))) for row in rows]
        changed = [
            np.concatenate([row[:at], generator.integers(0, vocabulary, len(row) - at)])
            for row, at in zip(rows, cuts, strict=True)
        ]
        for n, (found, at) in enumerate(zip(_log_probabilities(logits, changed, bos, device), cuts, strict=True)):
            compare(found, n, at, f"before position {at} when the tokens from there on were replaced")
    order = generator.permutation(len(rows))
    for n, found in zip(order, _log_probabilities(logits, [rows[n] for n in order], bos, device), strict=True):
        compare(found, int(n), len(rows[n]), "when the rows of the batch were reordered")
    for n, row in enumerate(rows):
        compare(_log_probabilities(logits, [row], bos, device)[0], n, len(row), "when the row was run alone")
    return worst


def _sampled_rows(components: Sequence[Component], sequence_length: int, generator: np.random.Generator) -> list[Int64]:
    """A few pieces of at least two tokens, from documents drawn at random."""
    rows: list[Int64] = []
    for component in components:
        long = np.flatnonzero(component.lengths >= 2)
        for document in generator.permutation(long)[:PROBE_ROWS].tolist():
            begin, length = cut(component.starts[[document]], component.lengths[[document]], sequence_length)
            piece = int(generator.integers(0, int((length >= 2).sum())))
            rows.append(component.read(int(begin[piece]), int(length[piece])).astype(np.int64))
    return [rows[n] for n in generator.permutation(len(rows))[:PROBE_ROWS]]


def _log_probabilities(logits: Logits, rows: Sequence[Int64], bos: int, device: torch.device) -> list[Tensor]:
    longest = max(len(row) for row in rows)
    tokens = np.full((len(rows), longest), bos, np.int64)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = row
    found = logits(torch.from_numpy(tokens).to(device)).float()
    if not bool(torch.isfinite(found).all()):
        raise EvaluationError("the model gives logits that are not finite; such a model has no score")
    return [F.log_softmax(found[n, : len(row)], dim=-1) for n, row in enumerate(rows)]


def _document_nats(logits: Logits, component: Component, sequence_length: int, ranks: Ranks, batch_tokens: int) -> Float64:
    """Nats of each document's text, float64; every rank scores its share of the batches and all get the sums."""
    begin, length = cut(component.starts, component.lengths, sequence_length)
    document = component.document(begin)
    is_last = begin + length == component.starts[document] + component.lengths[document]
    scored = length - is_last  # the pair whose target is the closing BOS is not text
    keep = scored > 0
    begin, scored, document = begin[keep], scored[keep], document[keep]
    nats = np.zeros(len(component.lengths), np.float64)
    for number, chosen in enumerate(_batches(scored, batch_tokens)):
        if number % ranks.world != ranks.rank:
            continue
        width = int(scored[chosen].max())
        tokens = np.full((len(chosen), width), component.bos, np.int64)
        targets = np.full((len(chosen), width), -1, np.int64)
        for n, piece in enumerate(chosen.tolist()):
            read = component.read(int(begin[piece]), int(scored[piece]) + 1)
            tokens[n, : len(read) - 1] = read[:-1]
            targets[n, : len(read) - 1] = read[1:]
        on_device = torch.from_numpy(targets).to(ranks.device)
        found = row_nats(logits(torch.from_numpy(tokens).to(ranks.device)), on_device)
        np.add.at(nats, document[chosen], found.double().sum(dim=1).cpu().numpy())
    return ranks.total(nats)


def _batches(lengths: Int64, batch_tokens: int) -> Iterator[Int64]:
    """Pieces of like length together, so that little is padded; each batch holds at most `batch_tokens` slots, or one row."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        rows = max(1, batch_tokens // int(lengths[order[at]]))
        yield order[at : at + rows]
        at += rows


def _bootstrap(nats: Float64, sizes: Int64) -> tuple[float, float]:
    """The 2.5 % and 97.5 % points of bits per byte when documents are drawn again with replacement; a fixed seed."""
    generator = np.random.default_rng(0)
    figures = []
    for _ in range(BOOTSTRAPS):
        drawn = generator.integers(0, len(nats), len(nats))
        size = float(sizes[drawn].sum())
        if size:
            figures.append(float(nats[drawn].sum()) / (math.log(2) * size))
    low, high = np.percentile(figures, [2.5, 97.5])
    return float(low), float(high)
