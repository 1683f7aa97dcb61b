"""evaluate_bpb: bits per byte of held-out documents, computed by the evaluator and not by the model it scores.

The model gives logits; the loss is taken from them here, in float32, and summed in float64 over every text token once. The
target BOS that ends a document is not text and is left out. The sum is divided by ln 2 times the true UTF-8 bytes that the
shard index states. Documents longer than T are cut at T as in training, each piece alone in its row, so the figure does
not depend on packing, batch size or ranks; it does depend on T, and figures at different T do not compare. The same sums give the
figures of each component and, where the document log lies beside the shards, of each language.

A model that looks ahead, or that carries something from row to row, could score anything. So batches drawn at random from
those that are scored are run again, in their own shape and in unpredictable order: with other tokens from an unpredictable
position of each row on, and some of them with the rows reordered, and some rows alone. Log-probabilities before the change must
agree to PROBE_TOLERANCE with those that were scored, and those of the targets must not have been better by more than
PROBE_MEAN_TOLERANCE on average, so that rounding cannot hide a small gain at every token. When all is scored, the first batch
and one drawn at random are run once more, by the same tolerances: what a model has learned or counted meanwhile shows there.

A program that recognises a row could repeat what it first said of it. So most of these rows are first shown with other tokens,
and the positions before which these began, drawn blindly, must not cost more than the rows' other positions: by Bernstein's
inequality an honest model is refused so once in 1 / CHANCE.

Logits that are not finite, not a plain dense tensor, or of a smaller vocabulary are refused, and so is a model after which torch,
numpy or this module are not what they were. What a model has memorised in its weights is out of reach. So is a program that
searches this process or the disk for the text: weights that are scored by `trainer.scores.scoring` in a process of its own run no
program but the one shipped here.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manifests.packing import Int64, cut
from manifests.terminal import visible
from trainer.data.corpus import Component, Corpus
from trainer.distributed.ranks import Ranks, is_lost_rank
from trainer.scores.languages import LanguagesError, document_languages

Float64 = npt.NDArray[np.float64]
Logits = Callable[[Tensor], Tensor]
"""Token ids int64 (rows, t) to logits (rows, t, vocabulary)."""

BATCH_TOKENS = 8_192
PROBE_BATCHES = 8
"""Batches that each rank runs again in every way."""
PROBE_CALLS = 8
"""Times that tokens are replaced at least, shared out over these batches; as many rows are run alone."""
PROBE_CUTS = 1_000
"""Rows of which tokens are replaced, over all ranks, where there are so many: of a model that looks ahead at one position in a
hundred, 1 in 20,000 would pass. Batches are drawn until they make so many, once each."""
ROWS_THAT_COUNT = 16
"""Of a batch, towards PROBE_CUTS: many short rows do not make up for a few long ones."""
FALSE_FIRST = 0.75
"""Share of the batches of which the model first sees a version with other tokens."""
CHANCE = 1e-6
"""That an honest model is refused because of where tokens were replaced first."""
PROBE_COLUMNS = 512
"""Entries of the vocabulary whose log-probabilities are compared beside those of the targets; drawn at random."""
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference of a log-probability, in nats, that another batch shape or order may make by rounding alone."""
PROBE_MEAN_TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-3}
"""Largest mean change of a target's log-probability, in nats, when later tokens are replaced in the same shape. Rounding has
no preferred sign, and in one shape it is the same (docs/training.md has the figures)."""
DECIDING_FILES = (
    *(f"trainer/{name}.py" for name in (
        "configuration", "data/corpus", "data/loader", "distributed/parallel", "distributed/ranks", "network/feed",
        "network/fused", "network/linear", "network/model", "network/spans", "presets", "run_files/checkpoint",
        "run_files/checkpoint_format", "run_files/checkpoint_tensors", "run_files/saved_options", "scores/evaluation",
        "scores/languages", "scores/scoring",
    )),
    *(f"manifests/{name}.py" for name in ("manifest", "order", "packing", "rules", "schemas", "shards", "storage", "terminal")),
)  # fmt: skip
"""Source that decides a score: what evaluating imports of this project, directly or not."""
BOOTSTRAPS = 1_000


class EvaluationError(Exception):
    """A model or a split that cannot be given an honest score."""


@dataclass(frozen=True)
class Group:
    """The documents of a component, or those in a language, by themselves. `interval` as that of the whole `Score`."""

    val_bpb: float
    interval: tuple[float, float]
    nats: float
    text_bytes: int
    tokens: int
    documents: int


@dataclass(frozen=True)
class Score:
    """The figure with all that is needed to defend it. `interval` is the 95 % bootstrap interval over documents.

    Groups without any text are left out. `by_language` is known to the first rank, and empty where `languages_unknown` says why.
    """

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
    probe_mean_change: float
    probe_mean_tolerance: float
    probe_positions: int
    components: dict[str, float] = field(default_factory=dict)
    by_component: dict[str, Group] = field(default_factory=dict)
    by_language: dict[str, Group] = field(default_factory=dict)
    languages_unknown: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """The figure and what it means, in a few lines."""
        low, high = self.interval
        return (
            f"{self.split}: {self.val_bpb:.4f} bits per byte (95 % over documents: {low:.4f} to {high:.4f}), "
            f"T = {self.sequence_length}, {self.dtype}; {self.nats:,.1f} nats over {self.tokens:,} tokens = "
            f"{self.text_bytes:,} bytes of {self.documents:,} documents\n"
            f"{self._groups()}\n"
            f"documents {self.documents_sha256}\n"
            f"tokenizer {self.tokenizer_sha256}\n"
            f"evaluator {self.evaluator_sha256}\n"
            f"causality probe: largest difference {self.probe_difference:.2g} nats, tolerance {self.probe_tolerance:g}; "
            f"mean change of targets {self.probe_mean_change:.2g} at {self.probe_positions:,} cuts, tolerance "
            f"{self.probe_mean_tolerance:g}"
        )

    def _groups(self) -> str:
        """A table of both kinds of groups, the widest share of the text first."""
        lines = []
        for kind, groups in (("component", self.by_component), ("language", self.by_language)):
            by_size = sorted(groups.items(), key=lambda item: (-item[1].text_bytes, item[0]))
            width = max([len(kind), *(len(visible(name)) for name in groups)])
            lines += [f"{kind:<{width}}  bits per byte     95 % interval          bytes  documents"] if groups else []
            for name, one in by_size:
                between = f"{one.interval[0]:.4f} to {one.interval[1]:.4f}"
                lines.append(
                    f"{visible(name):<{width}}  {one.val_bpb:>13.4f}  {between:>16}  {one.text_bytes:>13,}  {one.documents:>9,}"
                )
        return "\n".join([*lines, *([f"by language: unknown: {self.languages_unknown}"] if self.languages_unknown else [])])


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

    The probe draws what it does from the operating system unless `probe_seed` is given. EvaluationError when logits are not
    finite or have the wrong shape, or when the probe finds a model that looks ahead or keeps state.
    """
    return evaluate_documents(logits, corpus, split, sequence_length, ranks, dtype, batch_tokens, probe_seed).score


@dataclass(frozen=True)
class Scored:
    """A score, and what it was summed up from: the nats of the text of each document, by component, on every rank."""

    score: Score
    components: list[Component]
    nats: list[Float64]


def evaluate_documents(
    logits: Logits,
    corpus: Corpus,
    split: str,
    sequence_length: int,
    ranks: Ranks,
    dtype: str = "float32",
    batch_tokens: int = BATCH_TOKENS,
    probe_seed: int | None = None,
) -> Scored:
    """`evaluate_bpb`, with the nats of each document beside the score."""
    if sequence_length < 2:
        raise EvaluationError(f"T = {sequence_length}: a row needs at least 2 tokens")
    if dtype not in PROBE_TOLERANCE:
        raise EvaluationError(f"dtype {dtype!r} is not one of {', '.join(PROBE_TOLERANCE)}")
    ask = _asked(logits, ranks.device)
    components = [corpus.component(name, split, ranks.local_rank == 0) for name in corpus.components(split)]
    pieces = [_scored_pieces(component, sequence_length) for component in components]
    if not any(len(begin) for begin, _, _ in pieces):
        raise EvaluationError(f"the {split} split has no text to score")
    batches = [
        _Batch(component, *(field[chosen] for field in fields))
        for component, fields in zip(components, pieces, strict=True)
        for chosen in _batches(fields[1], batch_tokens)
    ][ranks.rank :: ranks.world]
    generator = np.random.default_rng(secrets.randbits(128) if probe_seed is None else probe_seed)
    probe = _Probe(ask, corpus.tokenizer.vocabulary, ranks, generator, dtype)
    probed = probe.choose(batches)
    again = {0, int(generator.integers(len(batches)))} if batches else set()
    kept: list[tuple[_Batch, Tensor]] = []
    by_component = {component.name: np.zeros(len(component.lengths), np.float64) for component in components}
    with torch.no_grad():
        for number, batch in enumerate(batches):
            tokens, targets = batch.arrays()
            if number in probed:
                found = probe.scored(tokens, targets, batch.lengths, probed[number])
            else:
                on_device = torch.from_numpy(targets).to(ranks.device)
                found = row_nats(ask(tokens), on_device, corpus.tokenizer.vocabulary)
            if number in again:
                kept.append((batch, found))
            np.add.at(by_component[batch.component.name], batch.documents, found.double().sum(dim=1).cpu().numpy())
        for batch, found in kept:
            probe.compare_with_later(found, *batch.arrays())
    difference, mean_change, positions = probe.verdict()
    of_documents = [ranks.total(by_component[component.name]) for component in components]
    nats = np.concatenate(of_documents)
    sizes = np.concatenate([component.text_bytes for component in components])
    tokens = np.concatenate([component.lengths - 1 for component in components])
    owner = np.repeat(np.arange(len(components)), [len(component.lengths) for component in components])
    of_components = _grouped(owner, [component.name for component in components], nats, sizes, tokens)
    of_languages, languages_unknown = dict[str, Group](), None
    if ranks.first:
        try:
            of_languages = _grouped(*_languages(corpus, components), nats, sizes, tokens)
        except LanguagesError as error:
            languages_unknown = str(error)
    whole = _group(nats, sizes, tokens)
    score = Score(
        val_bpb=whole.val_bpb,
        nats=whole.nats,
        text_bytes=whole.text_bytes,
        tokens=whole.tokens,
        documents=whole.documents,
        interval=whole.interval,
        split=split,
        sequence_length=sequence_length,
        dtype=dtype,
        documents_sha256=corpus.split_digest(split),
        tokenizer_sha256=corpus.tokenizer.sha256,
        evaluator_sha256=EVALUATOR_SHA256,
        probe_difference=difference,
        probe_tolerance=PROBE_TOLERANCE[dtype],
        probe_mean_change=mean_change,
        probe_mean_tolerance=PROBE_MEAN_TOLERANCE[dtype],
        probe_positions=positions,
        components={name: one.val_bpb for name, one in of_components.items()},
        by_component=of_components,
        by_language=of_languages,
        languages_unknown=languages_unknown,
    )
    return Scored(score, components, of_documents)


def row_nats(logits: Tensor, targets: Tensor, vocabulary: int = 1) -> Tensor:
    """Nats of each target, float32 (rows, t), 0 where it is negative. EvaluationError unless every logit is finite, and there are
    as many as a vocabulary of this size has entries, or more."""
    return -_log_probabilities(logits, targets, vocabulary)[..., 0] * (targets >= 0)


def evaluator_sha256() -> str:
    """One digest over the source of DECIDING_FILES."""
    packages, whole = Path(__file__).resolve().parents[2], hashlib.sha256()
    for name in DECIDING_FILES:
        whole.update(f"{name}\0{hashlib.sha256((packages / name).read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


class _Probe:
    """Runs batches that are scored again with changes that must not matter, and remembers the worst that was found."""

    def __init__(
        self, ask: Callable[[Int64], Tensor], vocabulary: int, ranks: Ranks, generator: np.random.Generator, dtype: str
    ) -> None:
        self.ask, self.vocabulary, self.ranks, self.generator = ask, vocabulary, ranks, generator
        self.tolerance, self.mean_tolerance = PROBE_TOLERANCE[dtype], PROBE_MEAN_TOLERANCE[dtype]
        columns = generator.choice(vocabulary, min(PROBE_COLUMNS, vocabulary), replace=False)
        self.columns = torch.from_numpy(np.sort(columns)).to(ranks.device)
        self.worst, self.fault = 0.0, ""
        self.changes = np.zeros(4, np.float64)
        """Sum and number of the changes of targets: of the replaced tokens themselves, and of all before the cuts."""
        self.later = np.zeros(2, np.float64)
        """Sum and number of the changes of targets when all was scored."""
        self.blind = np.zeros(2, np.float64)
        """Of the positions before which tokens were replaced when a row was first shown: what they cost more than the mean
        of their rows, and the variance that this sum has for an honest model, in nats."""
        self.most = 0.0
        """What one of them can cost more at most."""

    def choose(self, batches: Sequence[_Batch]) -> dict[int, tuple[int, bool]]:
        """Numbers of the batches to probe; how often tokens are replaced, and whether rows are reordered too. A batch of single
        tokens has nothing ahead that could be seen."""
        eligible = [number for number, batch in enumerate(batches) if int(batch.lengths.max()) >= 2]
        order = [int(number) for number in self.generator.permutation(eligible)]
        thorough = order[:PROBE_BATCHES]
        chosen = {number: (-(-PROBE_CALLS // len(thorough)), True) for number in thorough}
        cuts = sum(times * self._counting(batches[number]) for number, (times, _) in chosen.items())
        for number in order[PROBE_BATCHES:]:
            if cuts * self.ranks.world >= PROBE_CUTS:
                break
            chosen[number] = (1, False)
            cuts += self._counting(batches[number])
        return chosen

    def scored(self, tokens: Int64, targets: Int64, lengths: Int64, how: tuple[int, bool]) -> Tensor:
        """Nats of the targets (rows, t) as `row_nats` gives them, after the batch was probed."""
        rows, (times, thorough) = len(tokens), how
        cuts = [self.generator.integers(1, np.maximum(lengths, 2)) for _ in range(times)]
        orders = [self._another_order(rows)] if thorough and rows > 1 else []
        alone = self.generator.permutation(rows)[:times].tolist() if thorough and rows > 1 else []
        calls: list[tuple[Int64, Int64]] = [(tokens, targets)]
        calls += [(self._replaced(tokens, ends), targets) for ends in cuts]
        calls += [(tokens[order], targets[order]) for order in orders]
        calls += [(tokens[[n], : lengths[n]], targets[[n], : lengths[n]]) for n in alone]
        found: dict[int, Tensor] = {}
        sequence = self._sequence(len(calls), times)
        for number in sequence:  # which of them is the scored one cannot be told
            found[number] = self._look(*calls[number])
        ours = found[0]
        if 1 <= sequence[0] <= times:
            self._add_blind(-ours[..., 0].double().cpu().numpy(), cuts[sequence[0] - 1], lengths)
        for number, ends in enumerate(cuts, start=1):
            before = torch.from_numpy(np.arange(tokens.shape[1]) < ends[:, None]).to(ours.device)
            self._compare(ours, found[number], before, "when the tokens after it were replaced")
            self._add_changes(ours, found[number], ends, targets)
        for number, order in enumerate(orders, start=1 + len(cuts)):
            moved = torch.from_numpy(order).to(ours.device)
            text = torch.from_numpy(targets[order] >= 0).to(ours.device)
            self._compare(ours[moved], found[number], text, "when the rows of the batch were reordered")
        for number, n in enumerate(alone, start=1 + len(cuts) + len(orders)):
            length = int(lengths[n])
            text = torch.ones(1, length, dtype=torch.bool, device=ours.device)
            self._compare(ours[[n], :length], found[number], text, "when the row was run alone")
        return -ours[..., 0] * torch.from_numpy(targets >= 0).to(ours.device)

    def verdict(self) -> tuple[float, float, int]:
        """(largest difference, largest mean change of targets, cuts) over all ranks; EvaluationError when either is too much."""
        sums = np.concatenate((self.changes, self.later, self.blind))
        at_cut, cuts, before, positions, later, again, above, variance = self.ranks.total(sums).tolist()
        worst, faults, most = self.ranks.maximum([self.worst, float(bool(self.fault)), self.most])
        if faults:
            raise EvaluationError(self.fault or "another rank's probe: the model does not predict from the text before alone")
        if not cuts:
            raise EvaluationError("no held-out document is long enough to test whether the model looks ahead")
        mean = max(at_cut / cuts, before / positions, key=abs)
        if not abs(mean) <= self.mean_tolerance:
            raise EvaluationError(
                f"log-probabilities of targets fell by {mean:.3g} nats on average (tolerance {self.mean_tolerance:g}) when later "
                "tokens were replaced: the model does not predict from the text before alone"
            )
        if again and not abs(later / again) <= self.mean_tolerance:
            raise EvaluationError(
                f"nats of targets changed by {later / again:.3g} on average (tolerance {self.mean_tolerance:g}) from when they "
                "were scored to when all was: the model does not predict from the text before alone"
            )
        if above > 0 and above**2 / 2 > -math.log(CHANCE) * (variance + most * above / 3):  # Bernstein's inequality
            raise EvaluationError(
                f"targets before tokens that were replaced when a row was first shown cost {above:.3g} nats more in all than "
                "others of their rows: the model does not predict from the text before alone, and repeats what it said of a row"
            )
        return worst, mean, int(cuts)

    def compare_with_later(self, scored: Tensor, tokens: Int64, targets: Int64) -> None:
        """A batch once more, when all is scored; `scored` are its nats from then."""
        on_device = torch.from_numpy(targets).to(self.ranks.device)
        now = row_nats(self.ask(tokens), on_device, self.vocabulary)
        text = on_device >= 0
        self._compare(scored[..., None], now[..., None], text, "when the batch was run again at the end")
        self.later += [float((now - scored).double().sum()), float(text.sum())]

    def _replaced(self, tokens: Int64, cuts: Int64) -> Int64:
        """Every token from each row's cut on is another one."""
        others = (tokens + self.generator.integers(1, self.vocabulary, tokens.shape)) % self.vocabulary
        return np.where(np.arange(tokens.shape[1]) < cuts[:, None], tokens, others)

    def _another_order(self, rows: int) -> Int64:
        order = self.generator.permutation(rows)
        return np.roll(order, 1) if np.array_equal(order, np.arange(rows)) else order

    def _sequence(self, calls: int, cuts: int) -> list[int]:
        """The calls 0 … in unpredictable order; those numbered 1 to `cuts`, which have other tokens, are mostly first."""
        order: list[int] = self.generator.permutation(calls).tolist()
        if self.generator.random() < FALSE_FIRST:
            first = 1 + int(self.generator.integers(cuts))
            order.remove(first)
            order.insert(0, first)
        return order

    @staticmethod
    def _counting(batch: _Batch) -> int:
        return min(int((batch.lengths >= 2).sum()), ROWS_THAT_COUNT)

    def _look(self, tokens: Int64, targets: Int64) -> Tensor:
        logits = self.ask(tokens)
        on_device = torch.from_numpy(np.ascontiguousarray(targets)).to(self.ranks.device)
        return _log_probabilities(logits, on_device, self.vocabulary, self.columns)

    def _compare(self, ours: Tensor, found: Tensor, where: Tensor, what: str) -> None:
        difference = float(((ours - found).abs().amax(dim=-1) * where).max())
        if not difference <= self.tolerance and not self.fault:
            self.fault = (
                f"log-probabilities changed by {difference:.3g} nats (tolerance {self.tolerance:g}) {what}: "
                "the model does not predict from the text before alone"
            )
        self.worst = max(self.worst, difference)

    def _add_changes(self, ours: Tensor, found: Tensor, cuts: Int64, targets: Int64) -> None:
        change = (ours[..., 0] - found[..., 0]).double().cpu().numpy()
        column = np.arange(targets.shape[1])
        at_cut = (column == cuts[:, None] - 1) & (np.roll(targets, -1, axis=1) >= 0) & (column < targets.shape[1] - 1)
        before = (column < cuts[:, None]) & (targets >= 0)
        self.changes += [change[at_cut].sum(), at_cut.sum(), change[before].sum(), before.sum()]

    def _add_blind(self, nats: Float64, cuts: Int64, lengths: Int64) -> None:
        """The target before a cut is one of a row's first `length - 1`, each as likely: what it costs above their mean has the
        mean 0 for a model to which the cut makes no difference."""
        for row, end, length in zip(nats, cuts.tolist(), lengths.tolist(), strict=True):
            if length >= 2:
                known = row[: length - 1]
                mean = float(known.mean())
                self.blind += [row[end - 1] - mean, known.var()]
                self.most = max(self.most, float(known.max()) - mean)


@dataclass(frozen=True)
class _Batch:
    """Pieces that are scored together: where their inputs begin, how many targets each has, and whose text they are."""

    component: Component
    begin: Int64
    lengths: Int64
    documents: Int64

    def arrays(self) -> tuple[Int64, Int64]:
        """(inputs, targets), each int64 (rows, t); beyond a row's end BOS and -1."""
        shape = (len(self.begin), int(self.lengths.max()))
        tokens, targets = np.full(shape, self.component.bos, np.int64), np.full(shape, -1, np.int64)
        for n, (begin, length) in enumerate(zip(self.begin.tolist(), self.lengths.tolist(), strict=True)):
            read = self.component.read(begin, length + 1)
            tokens[n, :length], targets[n, :length] = read[:-1], read[1:]
        return tokens, targets


def _log_probabilities(logits: Tensor, targets: Tensor, vocabulary: int, columns: Tensor | None = None) -> Tensor:
    """Log-probabilities of each target, then of the vocabulary's `columns`: float32 (rows, t, 1 + columns)."""
    if type(logits) is not Tensor:  # a subclass can have a log-sum-exp of its own
        raise EvaluationError(f"the model gives a {type(logits).__name__}, and not a plain tensor of logits")
    logits = torch._C.TensorBase.detach(logits)  # without what was hung on it: an attribute can hide a method
    if logits.is_nested or logits.layout is not torch.strided or logits.device.type != targets.device.type:
        raise EvaluationError(f"logits are not a dense tensor on {targets.device.type}")
    if not logits.is_floating_point():
        raise EvaluationError(f"logits are of {logits.dtype}, which is no type of logits")
    if logits.shape[:-1] != targets.shape or logits.shape[-1] < vocabulary:
        expected = f"{tuple(targets.shape)} and a vocabulary of {vocabulary:,}"
        raise EvaluationError(f"logits have shape {tuple(logits.shape)}, expected {expected}")
    # Below the largest: beside logits of 1e9 the logarithm of a sum of any number of terms is lost in float32. And a copy, which
    # nobody else holds.
    logits = logits.float()
    logits = logits - logits.amax(dim=-1, keepdim=True)
    if not bool(torch.isfinite(logits).all()):
        raise EvaluationError("the model gives logits that are not finite; such a model has no score")
    chosen = logits.gather(-1, targets.clamp(min=0)[..., None])
    if columns is not None:
        chosen = torch.cat((chosen, logits[..., columns]), dim=-1)
    return chosen - torch.logsumexp(logits, dim=-1, keepdim=True)


def _asked(logits: Logits, device: torch.device) -> Callable[[Int64], Tensor]:
    """What the model says of tokens (rows, t), of which it is given a copy. EvaluationError when it raises, or leaves something
    behind that would change how it is judged."""

    def ask(tokens: Int64) -> Tensor:
        before = _surroundings()
        try:
            found = logits(torch.from_numpy(tokens.copy()).to(device))
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) or is_lost_rank(error):
                raise
            raise EvaluationError(f"the model raised {type(error).__name__} instead of giving logits: {error}") from error
        changed = [name for name, value in _surroundings().items() if value != before[name]]
        if changed := changed or _replaced():
            raise EvaluationError(f"the model changed {', '.join(changed)}; such a model has no score")
        return found

    if changed := _replaced():
        raise EvaluationError(f"{', '.join(changed)} was replaced before the model was asked; such a process gives no score")
    return ask


def _surroundings() -> dict[str, Any]:
    """What a model must leave as it was, since what is done with its logits would be another thing."""
    return {
        "whether gradients are computed": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "the default type of tensors": torch.get_default_dtype(),
        "modes of torch functions": torch._C._len_torch_function_stack(),
        "modes of torch dispatch": torch._C._len_torch_dispatch_stack(),
        "the tracing of Python": (sys.gettrace(), sys.getprofile()),
    }


def _replaced() -> list[str]:
    """Names of functions that the score is computed with and that are not what they were when this module was loaded."""
    changed = [f"{owner.__name__}.{name}" for owner, name, was in _ORIGINALS if not _is(owner, name, was)]
    return changed + [f"torch.Tensor.{name}" for name in vars(Tensor) if name not in _OF_TENSORS and hasattr(_TENSOR_BASE, name)]


def _is(owner: Any, name: str, was: tuple[Any, ...]) -> bool:
    now = _identity(vars(owner).get(name))
    return len(now) == len(was) and all(one is other for one, other in zip(now, was, strict=True))


def _identity(value: Any) -> tuple[Any, ...]:
    """A function is changed, too, by changing its code."""
    inner = getattr(value, "__func__", getattr(value, "fget", value))
    if not isinstance(inner, FunctionType):
        return (value,)
    return value, inner, inner.__code__, inner.__defaults__, inner.__kwdefaults__


def _names(code: CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)


def _scored_pieces(component: Component, sequence_length: int) -> tuple[Int64, Int64, Int64]:
    """(begin, targets, document) of every piece that has text to score."""
    begin, length = cut(component.starts, component.lengths, sequence_length)
    document = component.document(begin)
    is_last = begin + length == component.starts[document] + component.lengths[document]
    scored = length - is_last  # the pair whose target is the closing BOS is not text
    keep = scored > 0
    return begin[keep], scored[keep], document[keep]


def _batches(lengths: Int64, batch_tokens: int) -> Iterator[Int64]:
    """Pieces of like length together, so that little is padded; each batch holds at most `batch_tokens` slots, or one row."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        rows = max(1, batch_tokens // int(lengths[order[at]]))
        yield order[at : at + rows]
        at += rows


def _group(nats: Float64, sizes: Int64, tokens: Int64) -> Group:
    return Group(
        val_bpb=bits_per_byte(zip(nats.tolist(), sizes.tolist(), strict=True)),
        interval=_bootstrap(nats, sizes),
        nats=math.fsum(nats.tolist()),
        text_bytes=int(sizes.sum()),
        tokens=int(tokens.sum()),
        documents=len(nats),
    )


def _grouped(owner: Int64, names: Sequence[str], nats: Float64, sizes: Int64, tokens: Int64) -> dict[str, Group]:
    """The groups of documents that have text, by name; `owner` is the number of each document's group."""
    found = {}
    for number in sorted(range(len(names)), key=lambda number: names[number]):
        mine = owner == number
        if sizes[mine].sum():
            found[names[number]] = _group(nats[mine], sizes[mine], tokens[mine])
    return found


def _languages(corpus: Corpus, components: Sequence[Component]) -> tuple[Int64, list[str]]:
    """(the number of each document's language, all components one after the other; the languages)."""
    numbers: dict[str, int] = {}
    owners = []
    for component in components:
        codes, names = document_languages(corpus, component)
        owners.append(np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)[codes])
    return np.concatenate(owners), list(numbers)


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


def _originals() -> list[tuple[Any, str, tuple[Any, ...]]]:
    """Functions and classes of this module and of those whose methods it calls, and what they use of torch and numpy."""
    here = sys.modules[__name__]
    owners: list[Any] = [here, Ranks, Corpus, Component, _Batch, _Probe]
    found = [
        (owner, name, _identity(value))
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, (type, FunctionType, property, staticmethod)) and name != "_originals"
    ]
    codes = [one for _, _, identity in found for one in identity if isinstance(one, CodeType)]
    used = {name for code in codes for name in _names(code)}
    for owner in (torch, np, np.random, math, secrets, Tensor):
        found += [(owner, name, _identity(value)) for name, value in vars(owner).items() if name in used or owner is Tensor]
    return found


EVALUATOR_SHA256 = evaluator_sha256()
"""Of the source as it was when this module was loaded: what is put on the disk while a run trains is not what scores it."""
_TENSOR_BASE = torch._C.TensorBase
_OF_TENSORS = frozenset(vars(Tensor))
_ORIGINALS = _originals()
