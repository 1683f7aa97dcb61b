"""Training: from a configuration to a checkpoint and its bits per byte.

The loss of a step is the sum over all valid targets, of all ranks and micro-batches, divided by their number, so that neither
padding nor the way a batch is shared out changes an update. The number is known before the step, from the plan.

A run's folder holds config.json, run.json, metrics.jsonl, ledger.jsonl, checkpoints/, result.json and, where matplotlib is
installed, loss.png; after a rewind also lineage.jsonl and set-aside/ (see `trainer.run_files.rewind`); of a run that began with
other weights also continued.json and gate/ (see `trainer.adaptation.continued`).
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trainer.code_digest import code_sha256
from trainer.configuration import TrainConfig
from trainer.data.loader import Batch
from trainer.data.prefetch import MicroBatch, Prefetcher, Transfer
from trainer.distributed.ranks import Ranks
from trainer.network.model import row_masks
from trainer.run import run_folder
from trainer.run.gradient_noise import GradientNoise, inverse_size, small_square
from trainer.run.interruption import interruptions
from trainer.run.logits import watched
from trainer.run.optimisation import set_decay, set_rate
from trainer.run.progress import RunProgress
from trainer.run.run_account import Outcome, announce, write_facts, write_result
from trainer.run.run_parts import RunParts
from trainer.run.speed import peak_memory_gb, synchronise
from trainer.run.trackers import Trackers
from trainer.run.warm_up import COMPILED_STEPS, without_a_trace
from trainer.run_files import checkpoint_format
from trainer.run_files.ledger import Ledger
from trainer.run_files.metrics import DivergedError, Metrics, Readings, check_step
from trainer.scores.evaluation import Logits, Scored, evaluate_documents
from trainer.scores.scoring import model_logits

__all__ = ["Outcome", "Run", "train"]


def train(
    config: TrainConfig, ranks: Ranks, progress: RunProgress, resume: bool = False, from_step: int | None = None
) -> Outcome:
    """Trains until the budget is spent, saves, and scores the validation split.

    `resume` goes on from the newest complete checkpoint in `config.out`, or begins when there is none; with `from_step`, from
    the one of that step, and what came after it is set aside. ConfigurationError, CorpusError, LoaderError, CheckpointError or
    DivergedError say what is wrong.
    """
    with run_folder.held(run_folder.place(config.out), ranks):
        return Run(config, ranks, progress, resume, from_step).go()


class Run(RunParts):
    """One training run, from its parts to its result; `trainer.studies` has one with another objective (`doremi`), and
    one that leaves nothing behind (`replay`)."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, progress: RunProgress, resume: bool, from_step: int | None = None
    ) -> None:
        super().__init__(config, ranks, progress, resume, from_step)
        self.trackers: Trackers | None = None
        self.clipped = torch.zeros((), device=self.device)
        self.noise = GradientNoise()
        self.stopped_by: int | None = None
        self.exhausted: str | None = None
        self._diverged: DivergedError | None = None
        """What this rank saw of it; all ranks hear of it before the next step."""
        self._origin = self._last_look = self.began

    def go(self) -> Outcome:
        if self.continued:
            self.continued.begin([component.name for component in self.loader.components])
        if self.ranks.first:
            write_facts(self)
        announce(self)
        if self.continued:
            self.continued.score_before(lambda: model_logits(self.spread.whole(copied=True).eval(), self.dtype))
        if self.config.clock == "warm" and self._spent() < 1:
            self._warm_up()
        preparation = time.perf_counter() - self.began
        with interruptions(self._told_to_stop), _no_collection():
            try:
                self._steps()
            finally:
                self.progress.stop()
                self.saver.close()
                if self.trackers:
                    self.trackers.close()
        outcome = self._ended(preparation)
        if self.ranks.first and self.stopped_by is None:
            self._write_result(outcome)
        return outcome

    def _warm_up(self) -> None:
        """Compiles and allocates on real rows, without an update that stays."""
        with self._prefetcher() as prefetched:
            micro_batches = prefetched.to_device(prefetched.get(self.step + 1))
        with without_a_trace(self.model, self.optimiser):
            for _ in range(COMPILED_STEPS if self.compiled or self.device.type == "cuda" else 1):
                self._update(micro_batches, 1, 0.0)
            synchronise(self.device)
        self.clipped.zero_()

    # the steps

    def _steps(self) -> None:
        config, metrics, ledger = self.config, None, None
        if self.ranks.first:
            self.trackers = Trackers(config, self.folder)
            metrics = Metrics(self.folder, self.step, self.trackers.write)
            ledger = Ledger(self.folder, self.loader, self.corpus.manifest.digest, self.step)
        readings = Readings(self.device)
        self.progress.start()
        self._origin = time.perf_counter() - self.spent_seconds
        self._last_look = time.perf_counter()
        readings.mark()
        with self._prefetcher() as prefetched:
            while True:
                spent, stop = self._agree()
                if stop:
                    self.stopped_by = stop
                if spent >= 1 or stop:
                    break
                if self.limit is not None and self.step >= self.limit.steps:
                    self.exhausted = self.limit.reason()
                    break
                first, end = self.position, self.steps.position(self.step + 2)
                if self.step + 1 in self.skipped:
                    self.step, self.position = self.step + 1, end
                    if ledger:
                        ledger.consumed(self.step, first, end, skipped=True)
                    continue
                rate = self.schedule.rate(spent)
                set_decay(self.optimiser, spent)
                waited = time.perf_counter()
                built = prefetched.get(self.step + 1)
                waited = time.perf_counter() - waited
                counts = self._count_targets(first, end)
                micro_batches = prefetched.to_device(built)
                sizes = self._watched(micro_batches[0])
                values = self._update(micro_batches, int(counts.sum()), rate)
                if self.ema:
                    self.ema.add()
                self.step, self.position, self.tokens = self.step + 1, end, self.tokens + int(counts.sum())
                readings.put(
                    {
                        "step": self.step, "position": end, "tokens": self.tokens, "learning_rate": rate, "budget_spent": spent,
                        "targets": counts.tolist(), "data_wait_seconds": waited, **self._first_sizes(first, end), **sizes,
                    },
                    values,
                )  # fmt: skip
                if ledger:
                    ledger.consumed(self.step, first, end)
                self._look(readings, metrics)
                if config.checkpoint_every and self.step % config.checkpoint_every == 0:
                    self._save(readings, metrics, ledger)
        synchronise(self.device)
        self.spent_seconds = max(self.spent_seconds, time.perf_counter() - self._origin) if self.step else 0.0
        self._finish_save()
        if self.saved_step != self.step:
            self._save(readings, metrics, ledger)
            self._finish_save()
        if metrics and ledger:
            metrics.close()
            ledger.close()

    def _update(self, micro_batches: list[MicroBatch], count: int, rate: float) -> Tensor:
        """One optimiser step. Returns, on the device, [gradient norm, steps clipped so far, nats of each component], and with
        --noise-scale the squared norm of the first micro-batch's gradient."""
        set_rate(self.optimiser, rate)
        self.spread.begin()
        small = torch.zeros(0, device=self.device)
        nats_by_component = torch.zeros(len(self.loader.components), device=self.device)
        for n, (tokens, targets, segments, components) in enumerate(micro_batches):
            mask = row_masks(self.architecture, segments, self.config.attention == "masked", self.dtype == "bfloat16")
            with self.spread.micro_batch(n, len(micro_batches)):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16"):
                    nats, squares = self.forward(tokens, mask, targets)
                loss = nats.sum()
                if self.config.z_loss:
                    loss = loss + self.config.z_loss * squares.sum()
                # gradients are averaged over ranks; the count is already that of all of them
                (loss * (self.ranks.world / count)).backward()
            if self.config.noise_scale and not n:
                small = small_square(self.model, targets, count, self.ranks)[None]
            nats_by_component.index_add_(0, components, nats.detach().sum(dim=1))
        if self.ranks.world > 1:
            torch.distributed.all_reduce(nats_by_component)
        norm = self._move()
        return torch.cat((torch.stack((norm, self.clipped)), nats_by_component, small))

    def _move(self) -> Tensor:
        """Moves the weights by their gradients, and drops these. Gives their norm before it was cut."""
        norm = self.spread.clip(self.config.norm_limit)
        self.clipped += norm > self.config.norm_limit
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm.detach()

    def _look(self, readings: Readings, metrics: Metrics | None, all_of_them: bool = False) -> None:
        for facts, (norm, clipped, *nats), took in readings.take(all_of_them):
            now = time.perf_counter()
            seconds, self._last_look = now - self._last_look if took is None else took, now
            targets, inverse = facts.pop("targets"), facts.pop("inverse_size", None)
            small = nats.pop() if self.config.noise_scale else 0.0
            loss = sum(nats) / sum(targets)
            row = {
                **facts,
                "seconds": now - self._origin,
                "loss": loss,
                "loss_by_component": {c.name: n / t for c, n, t in zip(self.loader.components, nats, targets, strict=True) if t},
                "grad_norm": norm,
                **({} if inverse is None else {"noise_scale": self.noise.add(small, inverse, norm**2, 1 / sum(targets))}),
                "clipped_share": (self.clipped_before + clipped) / facts["step"],
                "tokens_per_second": sum(targets) / seconds,
                **self.speed.mfu(sum(targets) / seconds / self.ranks.world),
                "memory_gb": peak_memory_gb(self.device),
                "epochs": self.loader.epochs(facts["position"]),
            }
            if metrics:
                metrics.write(row)
            self._diverged = self._diverged or check_step(facts["step"], loss, norm)
            self.progress.step(row, facts["budget_spent"])

    def _save(self, readings: Readings, metrics: Metrics | None, ledger: Ledger | None) -> None:
        """Begins a checkpoint of this moment, unless the model has diverged: a step's loss is that of the weights before its
        update, so the weights are looked at too. The time this takes is not the budget's; what is written meanwhile is free."""
        paused = time.perf_counter()
        self._finish_save()  # first: it is sound, whatever this one is
        self._look(readings, metrics, all_of_them=True)
        self._sound()
        if ledger:
            ledger.commit()
        state = checkpoint_format.State(
            step=self.step,
            position=self.position,
            tokens=self.tokens,
            clipped_steps=self.clipped_before + int(self.clipped),
            spent_seconds=paused - self._origin,
            architecture=self.architecture.model_dump(),
            config=self.config.model_dump(mode="json"),
            loader_digest=self.loader.digest,
            manifest_digest=self.corpus.manifest.digest,
            tokenizer_sha256=self.corpus.tokenizer.sha256,
            code_sha256=code_sha256(),
            lineage=self.lineage,
            continued=self.continued.sealed() if self.continued else None,
            ema_updates=self.ema.updates if self.ema else 0,
        )
        self.saver.begin(state, self.model, self.optimiser, self.ema.shadow if self.ema else None)
        gc.collect()
        self.saved_step = self.step
        self._origin += time.perf_counter() - paused
        self._last_look = time.perf_counter()
        readings.mark()

    def _sound(self) -> None:
        """DivergedError, on all ranks, where a step's figures or the weights show that going on is useless."""
        self._end_if_diverged(self.ranks.maximum([float(self._diverged is not None)])[0] > 0)
        if not self.spread.finite(self.ranks):
            raise DivergedError(f"step {self.step}: weights are no longer finite; nothing was saved of it")
        if unlike := self.spread.unlike(self.ranks):
            raise DivergedError(
                f"step {self.step}: replicas of the model hold different weights, {unlike[0]} first of {len(unlike)}: gradients "
                "were not shared as they should be, or a GPU computes wrongly; nothing was saved of it"
            )

    def _end_if_diverged(self, somewhere: bool) -> None:
        if somewhere:
            self._finish_save()
            raise self._diverged or DivergedError(f"step {self.step}: another rank has diverged, and says how")

    def _finish_save(self) -> None:
        """Waits for the checkpoint that is being written. One that failed is told of, and the end of the run tries again."""
        if not self.saver.finish():
            self.saved_step = -1
            self.progress.note(f"error: {self.saver.failures[-1]}")
        while self.saver.left_over:
            self.progress.note(f"warning: {self.saver.left_over.pop()}")

    def _agree(self) -> tuple[float, int]:
        """(share of the budget spent, signal to stop for) as all ranks see it: the clock is that of the slowest. A checkpoint
        that all of them have written is completed here."""
        if self.config.seconds_budget is not None:
            self.spent_seconds = time.perf_counter() - self._origin
        facts = [self._spent(), float(self.stopped_by or 0), float(self.saver.writing), float(self._diverged is not None)]
        spent, stop, writing, diverged = self.ranks.maximum(facts)
        self._end_if_diverged(diverged > 0)
        if self.saver.pending and not writing:
            self._finish_save()
        return spent, int(stop)

    def _spent(self) -> float:
        config = self.config
        if config.steps is not None:
            return self.step / config.steps
        if config.tokens is not None:
            return self.tokens / config.tokens
        assert config.seconds_budget is not None
        return self.spent_seconds / config.seconds_budget

    # batches

    def _prefetcher(self) -> Prefetcher:
        rows, length = self.micro_rows * self.micro_count, self.config.row_tokens
        return Prefetcher(self._rank_batch, Transfer(self.device), rows, length, self.micro_rows)

    def _rank_batch(self, step: int) -> Batch:
        """This rank's rows of a step."""
        rows = self.steps.rows(step) // self.ranks.world
        first = self.steps.position(step) + self.ranks.rank * rows
        return self.loader.batch(np.arange(first, first + rows))

    def _count_targets(self, first: int, end: int) -> np.ndarray:
        """Valid targets of each component in the global batch, the same on every rank."""
        positions = np.arange(first, end)
        counts = np.bincount(
            self.loader.locate(positions).component,
            weights=self.loader.row_targets(positions),
            minlength=len(self.loader.components),
        )
        return counts.astype(np.int64)

    def _first_sizes(self, first: int, end: int) -> dict[str, float]:
        if not self.config.noise_scale:
            return {}
        targets = self.loader.row_targets(np.arange(first, end))
        return {"inverse_size": inverse_size(targets, self.ranks.world, self.micro_rows)}

    def _watched(self, micro_batch: MicroBatch) -> dict[str, float]:
        """What --watch-logits has of this step, before its update: the first step is one of them."""
        every = self.config.watch_logits
        if not every or self.step % every:
            return {}
        return watched(self.model, micro_batch, self.ranks, self.config.attention == "masked", self.dtype)

    # the end

    def _ended(self, preparation: float) -> Outcome:
        """Scores what was trained, unless the run was told to stop."""
        scored = decision = averaged = None
        if self.config.evaluate and self.stopped_by is None:
            scored = self._score()
            if self.ema and self.ema.updates:
                with self.ema.in_place():
                    averaged = self._score("of the running average").score
        if self.continued and self.stopped_by is None:
            decision = self.continued.decide(self._logits, scored)
        return Outcome(
            steps=self.step,
            tokens=self.tokens,
            memory_gb=peak_memory_gb(self.device),
            training_seconds=self.spent_seconds,
            preparation_seconds=preparation,
            score=scored.score if scored else None,
            stopped_by=self.stopped_by,
            exhausted=self.exhausted,
            unsaved="; ".join(self.saver.failures) or None,
            gate=decision,
            averaged=averaged,
        )

    def _logits(self) -> Logits:
        return model_logits(self.spread.whole().eval(), self.dtype)

    def _score(self, what: str = "") -> Scored:
        self.progress.note("scoring the validation split" + (f" {what}" if what else ""))
        return evaluate_documents(self._logits(), self.corpus, "validation", self.config.row_tokens, self.ranks, self.dtype)

    def _write_result(self, outcome: Outcome) -> None:
        write_result(self, outcome)

    def _told_to_stop(self, number: int) -> None:
        self.stopped_by = number


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Python's cycle collector would stall a step now and then; a step leaves no cycles, and saves collect."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
