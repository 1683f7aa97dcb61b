"""DoReMi: a mixture that is learned by two small models (Xie et al. 2023, arXiv 2305.10429, algorithm 1), one round of it.

A *reference* model is trained on an initial mixture. A *proxy* then trains on equal shares of all components, and at each step
a component's *excess* is how much worse the proxy does on it than the reference: the mean over its tokens of max(0, nats of the
proxy - nats of the reference). Components with a larger excess gain weight, the proxy's loss is weighted so, and the
mixture is the average of the weights over all steps. Noise has no excess, since the reference cannot predict it either, and what
is learned soon has none left.

The proxy's objective is that of the paper, sum over components of weight x mean nats per token, and not that of the authors'
later code, which divides all tokens by one number. A component that a batch has nothing of keeps its last excess, as in that
code, and the others' weights are divided by their sum.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from manifests.storage import Folder
from trainer.adaptation.parent import told_passed_over, whole_checkpoint
from trainer.code_digest import code_sha256
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import IGNORED, LoaderError
from trainer.data.prefetch import MicroBatch
from trainer.distributed.agreement import OWN_TO_A_RANK
from trainer.distributed.ranks import Ranks
from trainer.network.model import GPT, row_masks
from trainer.presets import Architecture
from trainer.run.loop import Run, train
from trainer.run.optimisation import set_rate
from trainer.run.progress import RunProgress
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors
from trainer.run_files.ledger import Ledger
from trainer.run_files.metrics import DivergedError, Metrics, Readings

STEP_SIZE = 1.0
SMOOTHING = 1e-3
"""The paper's, for corpora of 8 and 22 components."""

MIXTURE, RECORD = "mixture.yaml", "doremi.json"
REFERENCE, PROXY = "reference", "proxy"
LAST_SHARE = 10
"""The excess that a person is shown is the mean over the last tenth of the steps."""


@dataclass(frozen=True)
class Learned:
    """weights: the mixture, adding up to 1. excess: nats per token that the proxy was behind at the end. epochs: that the proxy
    went through each component. stopped_by: the signal that ended it before it had learned anything."""

    weights: dict[str, float]
    excess: dict[str, float]
    epochs: dict[str, float]
    stopped_by: int | None = None


def doremi(
    config: TrainConfig,
    ranks: Ranks,
    progress: RunProgress,
    reference: Path | None = None,
    step_size: float = STEP_SIZE,
    smoothing: float = SMOOTHING,
) -> Learned:
    """Trains a reference on the mixture of `config`, unless a trained one is given, then the proxy, and writes `mixture.yaml`
    and `doremi.json` to `config.out`. The same corpus, options and seed give the same files on a CPU.

    ConfigurationError for options that cannot work, LoaderError for a corpus with a single component, and what training raises.
    """
    if config.steps is None and config.tokens is None:
        raise ConfigurationError("the mixture is an average over steps, so it needs a budget in --steps or --tokens")
    if not (0 < step_size < float("inf") and 0 <= smoothing < 1):
        raise ConfigurationError(f"step size {step_size:g} must be above 0, smoothing {smoothing:g} from 0 to below 1")
    out = Path(config.out)
    if out.exists() and any(out.iterdir()):
        raise ConfigurationError(f"--out {config.out} is not empty; name another folder")
    ranks.barrier()  # no rank begins to write before all have looked
    names = Corpus.open(config.manifest, config.cache).components("train")
    if len(names) < 2:
        raise LoaderError(f"{names[0]} is the only component with training tokens: there is no mixture to learn")
    progress.note("reference:" if reference is None else f"reference: {reference}")
    if reference is None:
        reference = out / REFERENCE
        stopped_by = train(_part_of(config, reference), ranks, progress).stopped_by
        if stopped_by is not None:
            return Learned({}, {}, {}, stopped_by)
    folder, passed_over = whole_checkpoint(reference, ranks)
    for warning in told_passed_over(passed_over, folder):
        progress.note(warning)
    progress.note("proxy, on equal shares of all components:")
    equal = [{"mixture": {name: 1 / len(names) for name in names}, "rows": None}]
    proxy = Proxy(_part_of(config, out / PROXY, phases=equal), ranks, progress, folder, step_size, smoothing)
    stopped_by = proxy.go().stopped_by
    if stopped_by is not None:
        return Learned({}, {}, {}, stopped_by)
    learned = proxy.learned()
    if ranks.first:
        _write(out, config, proxy, folder, passed_over, learned)
    return learned


def reweighted(weights: Tensor, excess: Tensor, step_size: float, smoothing: float) -> Tensor:
    """The weights after a step: w x exp(step_size x excess), divided by their sum, then `smoothing` parts of equal shares."""
    raised = torch.softmax(weights.log() + step_size * excess, dim=0)
    return (1 - smoothing) * raised + smoothing / len(weights)


class Proxy(Run):
    """A run whose loss is weighted by component, with weights that follow the excess over a reference. It is trained for these
    weights alone: no checkpoint of it is kept."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, progress: RunProgress, reference: Path, step_size: float, smoothing: float
    ) -> None:
        super().__init__(config, ranks, progress, resume=False)
        self.step_size, self.smoothing = step_size, smoothing
        self.reference_architecture = _architecture(reference, self.corpus)
        model = GPT(self.reference_architecture, config.loss_chunk)
        checkpoint_tensors.load_weights(reference, model)
        model.to(self.device).eval().requires_grad_(False)
        self.reference = cast(nn.Module, torch.compile(model)) if self.compiled else model
        self._begin()

    def learned(self) -> Learned:
        names = [component.name for component in self.loader.components]
        weights, excess = self.course()
        if not np.isfinite(weights).all():
            raise DivergedError("the weights are no longer finite; use a smaller --step-size")
        last = excess[-max(1, len(excess) // LAST_SHARE) :].mean(axis=0)
        mean = weights.mean(axis=0)
        return Learned(
            dict(zip(names, (mean / mean.sum()).tolist(), strict=True)),
            dict(zip(names, last.tolist(), strict=True)),
            self.loader.epochs(self.position),
        )

    def course(self) -> tuple[np.ndarray, np.ndarray]:
        """(weights, excess), each float64 (steps, components), in the order of the loader's components."""
        weights, excess = torch.stack(self._course).cpu().numpy().transpose(1, 0, 2)
        return weights, excess

    def _begin(self) -> None:
        count = len(self.loader.components)
        self.weights = torch.full((count,), 1 / count, dtype=torch.float64, device=self.device)
        self.excess = torch.zeros_like(self.weights)
        self._course: list[Tensor] = []

    def _warm_up(self) -> None:
        super()._warm_up()
        self._begin()

    def _update(self, micro_batches: list[MicroBatch], count: int, rate: float) -> Tensor:
        """One step: excess of the whole batch, new weights, and then an update of the proxy with these."""
        set_rate(self.optimiser, rate)
        self.spread.begin()
        at_once = len(micro_batches) == 1  # several are computed twice, since their weights are known after the last
        nats_by_component = torch.zeros(len(self.weights), device=self.device)
        sums = torch.zeros(2, len(self.weights), dtype=torch.float64, device=self.device)
        nats = torch.empty(0)
        for micro_batch in micro_batches:
            _, targets, _, components = micro_batch
            with torch.set_grad_enabled(at_once):
                nats = self._nats(self.forward, micro_batch)
            with torch.no_grad():
                above = (nats - self._nats(self.reference, micro_batch)).clamp(min=0)
                nats_by_component.index_add_(0, components, nats.sum(dim=1))
                sums[0].index_add_(0, components, above.sum(dim=1, dtype=torch.float64))
                sums[1].index_add_(0, components, (targets != IGNORED).sum(dim=1).double())
        if self.ranks.world > 1:
            torch.distributed.all_reduce(sums)
            torch.distributed.all_reduce(nats_by_component)
        there = sums[1] > 0
        self.excess = torch.where(there, sums[0] / sums[1].clamp(min=1), self.excess)
        self.weights = reweighted(self.weights, self.excess, self.step_size, self.smoothing)
        self._course.append(torch.stack((self.weights, self.excess)))
        weights = self.weights * there
        each_token = (weights / weights.sum() / sums[1].clamp(min=1)).float()
        for n, micro_batch in enumerate(micro_batches):
            with self.spread.micro_batch(n, len(micro_batches)):
                nats = nats if at_once else self._nats(self.forward, micro_batch)
                loss = (nats.sum(dim=1) * each_token[micro_batch[3]]).sum()
                (loss * self.ranks.world).backward()  # type: ignore[no-untyped-call]
        return torch.cat((torch.stack((self._move(), self.clipped)), nats_by_component))

    def _nats(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        tokens, targets, segments, _ = micro_batch
        architecture = self.reference_architecture if model is self.reference else self.architecture
        mask = row_masks(architecture, segments, self.config.attention == "masked", self.dtype == "bfloat16")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16"):
            nats, _ = model(tokens, mask, targets)
        return cast(Tensor, nats)

    def _save(self, readings: Readings, metrics: Metrics | None, ledger: Ledger | None) -> None:
        self._look(readings, metrics, all_of_them=True)
        self._sound()
        if ledger:
            ledger.commit()
        self.saved_step = self.step


def _part_of(config: TrainConfig, out: Path, **changes: Any) -> TrainConfig:
    """The configuration of one of the two runs; neither is scored."""
    return TrainConfig.check(**{**config.model_dump(), "out": str(out), "evaluate": False, "checkpoint_every": 0, **changes})


def _architecture(folder: Path, corpus: Corpus) -> Architecture:
    state = checkpoint.load_state(folder)
    if state.tokenizer_sha256 != corpus.tokenizer.sha256:
        raise checkpoint_format.CheckpointError(
            f"{folder}: trained with tokenizer {state.tokenizer_sha256[:12]}…, the corpus has {corpus.tokenizer.sha256[:12]}…; "
            "nats per token would not compare"
        )
    return Architecture.model_validate(state.architecture)


def _write(out: Path, config: TrainConfig, proxy: Proxy, reference: Path, passed_over: dict[str, str], learned: Learned) -> None:
    """The record, then the mixture. Neither holds a time or a place, so that they can be compared."""
    state = checkpoint.load_state(reference)
    weights, excess = proxy.course()
    record = {
        "algorithm": "DoReMi (Xie et al. 2023), one round",
        "manifest_digest": proxy.corpus.manifest.digest,
        "tokenizer_sha256": proxy.corpus.tokenizer.sha256,
        "code_sha256": code_sha256(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "device": proxy.device.type,
        "dtype": proxy.dtype,
        "ranks": proxy.ranks.world,
        "step_size": proxy.step_size,
        "smoothing": proxy.smoothing,
        "reference": {
            "weights_sha256": checkpoint.identity(reference),
            "manifest_digest": state.manifest_digest,
            "steps": state.step,
            "tokens": state.tokens,
            "architecture": state.architecture,
            "config": {name: value for name, value in state.config.items() if name not in OWN_TO_A_RANK},
            **({"passed_over": passed_over} if passed_over else {}),
        },
        "proxy": {
            "steps": proxy.step,
            "tokens": proxy.tokens,
            "architecture": proxy.architecture.model_dump(),
            "config": proxy.config.model_dump(mode="json", exclude=set(OWN_TO_A_RANK)),
        },
        "weights": learned.weights,
        "excess_at_the_end": learned.excess,
        "epochs": learned.epochs,
        "course": {
            "components": [component.name for component in proxy.loader.components],
            "weights": weights.tolist(),
            "excess": excess.tolist(),
        },
    }
    head = (
        f"# Learned by DoReMi from corpus {proxy.corpus.manifest.digest}\n"
        f"# in {proxy.step:,} steps (step size {proxy.step_size:g}, smoothing {proxy.smoothing:g}); {RECORD} has the course.\n"
    )
    mixture = yaml.safe_dump({"phases": [{"weights": learned.weights}]}, allow_unicode=True, sort_keys=False)
    folder = Folder(str(out.absolute()))
    folder.write_json(RECORD, record)
    folder.write(MIXTURE, (head + mixture).encode())
