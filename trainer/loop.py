"""Training: from a configuration to a checkpoint and its bits per byte.

The loss of a step is the sum over all valid targets, of all ranks and micro-batches, divided by their number, so that neither
padding nor the way a batch is shared out changes an update. The number is known before the step, from the plan.

A run's folder holds config.json, run.json, metrics.jsonl, ledger.jsonl, checkpoints/, result.json and, where matplotlib is
installed, loss.png; after a rewind also lineage.jsonl and set-aside/ (see `trainer.rewind`); of a run that began with other
weights also continued.json and gate/ (see `trainer.continued`).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import platform
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifests.manifest import digest
from manifests.storage import Folder, is_remote
from trainer import checkpoint, rewind, run_folder
from trainer.averaging import Ema
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.continued import Continued
from trainer.corpus import Component, Corpus
from trainer.epoch_limit import EpochLimit
from trainer.evaluation import Logits, Score, Scored, evaluate_documents
from trainer.flops import causal_flops_per_token, mean_keys, mfu, palm_flops_per_token
from trainer.gate import Decision
from trainer.gradient_noise import GradientNoise, inverse_size, small_square
from trainer.interruption import interruptions
from trainer.ledger import Ledger
from trainer.loader import Batch, Budget, Loader, LoaderError, Phase
from trainer.logits import WATCHED_ROWS, logit_sizes
from trainer.metrics import DivergedError, Metrics, Readings, check_step
from trainer.model import row_masks
from trainer.optimisation import WarmupCosine, WarmupStableDecay, build_optimiser, set_decay, set_rate
from trainer.parallel import Layout, Spread, local
from trainer.picture import draw
from trainer.prefetch import MicroBatch, Prefetcher, Transfer
from trainer.progress import RunProgress
from trainer.ranks import Ranks, RanksError
from trainer.scoring import model_logits
from trainer.steps import Steps
from trainer.trackers import Trackers
from trainer.trackers import check as check_trackers

WARM_STEPS = 2
OWN_TO_A_RANK = ("manifest", "out", "cache", "parent", "gate")
"""Options that ranks may have of their own: where things lie. What lies there is compared."""
MANY_EPOCHS = 4.0
"""Repeats beyond which data is worth visibly less than fresh data (Muennighoff et al. 2023)."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `stopped_by` is the signal's number when it was told to stop; it can be resumed then. `exhausted` says
    why it ended before its budget in seconds, when the data gave no more epochs."""

    steps: int
    tokens: int
    memory_gb: float
    training_seconds: float
    preparation_seconds: float
    score: Score | None
    stopped_by: int | None
    exhausted: str | None = None
    unsaved: str | None = None
    """Which checkpoints could not be written, and why."""
    gate: Decision | None = None
    """Of a run with a gate, on the first rank."""
    averaged: Score | None = None
    """Of the running average of the weights."""

    def line(self) -> str:
        bpb = "none" if self.score is None else f"{self.score.val_bpb:.4f}"
        gate = "" if self.gate is None else f" | gate={self.gate.word}"
        return f"val_bpb={bpb} | memory_gb={self.memory_gb:.1f} | steps={self.steps}{gate}"


def train(
    config: TrainConfig, ranks: Ranks, progress: RunProgress, resume: bool = False, from_step: int | None = None
) -> Outcome:
    """Trains until the budget is spent, saves, and scores the validation split.

    `resume` goes on from the newest complete checkpoint in `config.out`, or begins when there is none; with `from_step`, from
    the one of that step, and what came after it is set aside. ConfigurationError, CorpusError, LoaderError, CheckpointError or
    DivergedError say what is wrong.
    """
    with run_folder.held(_run_folder(config.out), ranks):
        return Run(config, ranks, progress, resume, from_step).go()


def code_sha256() -> str:
    """One digest over this package's source, so that a number can be traced to the code that made it."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class Run:
    """One training run, from its configuration to its result; `trainer.doremi` has one with another objective."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, progress: RunProgress, resume: bool, from_step: int | None = None
    ) -> None:
        self.began = time.perf_counter()
        self.config, self.ranks, self.progress = config, ranks, progress
        self.device = ranks.device
        self.dtype = _dtype(config, self.device)
        self.compiled = self.device.type == "cuda" if config.compile is None else config.compile
        self.micro_rows, self.micro_count = config.micro_batches(ranks.world)
        self.folder = _run_folder(config.out)
        check_trackers(config)
        self.trackers: Trackers | None = None
        self.layout = self._lay_out()
        found, passed_over = self._beginning(resume, from_step)
        state = None if found is None else checkpoint.load_state(found)
        if not resume and self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigurationError(f"--out {config.out} is not empty; add --resume to go on there, or name another folder")

        self.corpus = Corpus.open(config.manifest, config.cache)
        if config.evaluate:
            # What will be wanted after an hour of training is looked at before it; the score looks at it again.
            held_out = self.corpus.components("validation")
            for name in held_out if ranks.local_rank == 0 else []:
                self.corpus.component(name, "validation")
        self.loader = self._open_loader()
        self.steps = Steps.of(config, self.loader)
        self.keys = self.loader.mean_visible_keys if config.attention == "masked" else (config.row_tokens + 1) / 2
        self.architecture = config.architecture(self.corpus.tokenizer.vocabulary)
        self.continued = self._held_to(state)
        if self.continued:
            self.continued.check(self.architecture)
        self.near_keys = self._near_keys()
        self.spread = Spread(
            self.architecture, self.layout, self.device, self.dtype, config.seed,
            config.loss_chunk, config.recompute, self.compiled, config.accumulate, config.tune,
        )  # fmt: skip
        self.model = self.spread.model
        torch.manual_seed(config.seed)
        self.optimiser = build_optimiser(
            config.said("optimiser"), self.model, config.peak_rate, config.said("weight_decay"), self.layout,
            compiled=self.device.type == "cuda" and self.compiled,
        )  # fmt: skip
        self.ema = None if config.ema is None else Ema(self.model, config.ema)
        self.schedule = _schedule(config)
        self.step, self.position, self.tokens, self.spent_seconds = 0, 0, 0, 0.0
        self.clipped_before = 0
        self.lineage: list[str] = []
        self.skipped = rewind.Skipped(config.skip_steps)
        if found is not None and state is not None:
            self._restore(found, state)
            self.skipped = rewind.skipped_from(config, state, None if from_step is not None else self.folder)
            begun_with = {name: getattr(config, name) or state.config.get(name) for name in ("parent", "gate")}
            self.config = config.model_copy(update={"skip_steps": tuple(self.skipped.ranges), **begun_with})
        elif self.continued:
            self.lineage = self.continued.load(self.model, self.layout)
        for name, wrong in passed_over.items():
            progress.note(f"passed over {name}: {wrong}")
        self._refuse_other_ranks()
        shared = ranks.share(self.folder)
        if not shared and self.layout.sharded:
            raise ConfigurationError(
                f"--out {config.out}: ranks each write what they hold, and not all see this folder; name one that all machines "
                "share, or use --parallel ddp"
            )
        self.saver = checkpoint.Saver(self.folder, ranks, self.layout, config.keep, shared)
        self.limit = EpochLimit.of(config, self.loader, self.steps, self.tokens)
        self.clipped = torch.zeros((), device=self.device)
        self.noise = GradientNoise()
        self.spread.start()
        self.forward = self.spread.forward
        self._origin = self._last_look = self.began
        self.stopped_by: int | None = None
        self.exhausted: str | None = None
        self.saved_step = self.step if found is not None else -1
        if ranks.first:
            self._set_aside(from_step)

    def go(self) -> Outcome:
        if self.continued:
            self.continued.begin([component.name for component in self.loader.components])
        if self.ranks.first:
            self._write_facts()
        self._announce()
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
        scored = decision = averaged = None
        if self.config.evaluate and self.stopped_by is None:
            scored = self._score()
            if self.ema and self.ema.updates:
                with self.ema.in_place():
                    averaged = self._score("of the running average").score
        if self.continued and self.stopped_by is None:
            decision = self.continued.decide(self._logits, scored)
        outcome = Outcome(
            self.step, self.tokens, self._memory_gb(), self.spent_seconds, preparation, scored.score if scored else None,
            self.stopped_by, self.exhausted, "; ".join(self.saver.failures) or None, decision, averaged,
        )  # fmt: skip
        if self.ranks.first and self.stopped_by is None:
            self._write_result(outcome)
        return outcome

    # preparation

    def _beginning(self, resume: bool, from_step: int | None) -> tuple[Path | None, dict[str, str]]:
        """(the checkpoint to go on from, or None; what is wrong with each that was passed over)."""
        if from_step is not None:
            if not resume:
                raise ConfigurationError("--from-step goes on from a checkpoint, so it needs --resume")
            return rewind.checkpoint_of(self.folder, from_step), {}
        return checkpoint.to_resume(self.folder, self.ranks) if resume else (None, {})

    def _held_to(self, state: checkpoint.State | None) -> Continued | None:
        return Continued.of(self.config, self.corpus, self.ranks, self.folder, self.dtype, state, self.progress.note)

    def _set_aside(self, from_step: int | None) -> None:
        rewind.set_aside(self.folder, self.step, from_step, self.config)

    def _lay_out(self) -> Layout:
        asked = f"{self.config.parallel} {self.config.replicas}"
        if self.ranks.differing({"layout": digest(asked)}):
            raise RanksError(
                f"rank {self.ranks.rank} has --parallel {self.config.parallel} and --replicas {self.config.replicas}, another "
                "rank has others; start all of them with the same command"
            )
        return Layout.of(self.config.parallel, self.config.replicas, self.ranks)

    def _open_loader(self) -> Loader:
        """The first rank of each machine checks the shards; the others read them once it has."""
        names = self.corpus.components("train")
        mixtures = [phase.mixture for phase in self.config.phases]
        wanted = [name for name in names if any(not mixture or mixture.get(name, 0) != 0 for mixture in mixtures)]
        for name in sorted({name for mixture in mixtures for name in mixture}):
            if name not in names:
                raise LoaderError(f"the mixture names component {name!r}; the training split has: {', '.join(names)}")

        def read(verify: bool) -> list[Component]:
            return [self.corpus.component(name, "train", verify) for name in wanted]

        components = read(True) if self.ranks.local_rank == 0 else []
        self.ranks.barrier()
        components = components or read(False)
        phases = [
            Phase({name: one for name, one in of.mixture.items() if one != 0} if of.mixture else None, of.rows, of.share)
            for of in self.config.phases
        ]
        rows = None if self.config.steps is None else Steps.of(self.config).position(self.config.steps + 1)
        budget = Budget(rows, self.config.tokens)
        return Loader(components, self.config.row_tokens, self.config.seed, phases, budget=budget, packing=self.config.packing)

    def _near_keys(self) -> float | None:
        """Keys that an average query sees in a layer with a window; None where no layer has one."""
        if not self.architecture.short_layers:
            return None
        if self.config.attention == "masked":
            return mean_keys((plan.length for plan in self.loader.plans), self.architecture.window)
        return mean_keys([np.array([self.config.row_tokens])], self.architecture.window)

    def _restore(self, found: Path, state: checkpoint.State) -> None:
        self._refuse_another_run(found, state)
        checkpoint.load_weights(found, self.model, self.layout)
        checkpoint.load_optimiser(found, self.model, self.optimiser, self.layout)
        if self.ema:
            self.ema.restore(found, state, self.layout)
        self.step, self.position, self.tokens = state.step, state.position, state.tokens
        self.spent_seconds, self.clipped_before = state.spent_seconds, state.clipped_steps
        self.lineage = [*state.lineage, f"{found.name} {checkpoint.identity(found)}"]
        self.progress.note(f"resuming {self.folder} after step {state.step}, position {state.position:,}")

    def _refuse_another_run(self, found: Path, state: checkpoint.State) -> None:
        if state.tokenizer_sha256 != self.corpus.tokenizer.sha256:
            raise checkpoint.CheckpointError(f"{found}: trained with another tokenizer than the corpus has")
        run_folder.refuse_other_version(found, state)
        changed = self.config.differences(state.config)
        if changed:
            raise ConfigurationError(f"{found} was made with other options: {'; '.join(changed)}")
        if state.loader_digest != self.loader.digest:
            raise checkpoint.CheckpointError(
                f"{found}: trained on other shards (manifest {state.manifest_digest[:12]}…, now "
                f"{self.corpus.manifest.digest[:12]}…), so position {state.position:,} means other rows"
            )
        if state.position != (here := self.steps.position(state.step + 1)):
            raise checkpoint.CheckpointError(
                f"{found}: after step {state.step} it stood at position {state.position:,}, and these options would at {here:,}: "
                "steps have other rows now"
            )
        run_folder.refuse_strange(found, state, self.folder, self.architecture, self.loader)

    def _refuse_other_ranks(self) -> None:
        """Ranks that begin at different steps, or with other rows or options, would train on without a sign of it."""
        here = {
            "step": self.step,
            "position": self.position,
            "shards and mixture": self.loader.digest,
            "options": digest([self.config.model_dump(mode="json", exclude=set(OWN_TO_A_RANK)), self.dtype]),
            "checkpoints": self.lineage,
            "gate": self.continued.facts()["gate"] if self.continued else None,
            "code": code_sha256(),
        }
        differing = self.ranks.differing({name: digest(value) for name, value in here.items()})
        if differing:
            raise RanksError(
                f"rank {self.ranks.rank} begins after step {self.step}, position {self.position:,}, and the ranks do not agree "
                f"on: {', '.join(differing)}; start all of them with the same command, and with --out in a folder that all "
                "machines share"
            )

    def _announce(self) -> None:
        config, say = self.config, self.progress.note
        a = self.architecture
        say(
            f"model: {a.layers} layers x {a.width}, {a.heads}/{a.kv_heads} heads, {a.feed} {a.hidden}, vocabulary "
            f"{a.vocabulary:,}: {a.parameters():,} parameters, {a.matmul_parameters():,} in matmuls"
            + (f"; {a.short_layers} layers see the last {a.window} tokens only" if a.short_layers else "")
        )
        say(
            f"optimiser: {config.said('optimiser')} at {config.peak_rate:g}, {config.said('schedule')}, weight decay "
            f"{config.said('weight_decay'):g}, gradient norms up to {config.norm_limit:g}"
        )
        say(
            f"device: {self._device_name()} x {self.ranks.world}, {self.dtype}, "
            f"{'compiled' if self.compiled else 'not compiled'}, attention {config.attention}, recompute {config.recompute}"
        )
        say(f"layout: {self.layout.describe(a.parameters())}")
        if self.ema:
            more = 4 * a.parameters() / self.layout.shards / 1e9
            say(f"running average of the weights: decay {self.ema.decay:g}, {more:.2f} GB more on each rank")
        if self.layout.sharded:
            once = config.accumulate == "whole" and self.micro_count > 1
            often = "once a step" if once else "block by block in every micro-batch"
            say(f"parameters are gathered and gradients reduced {often}")
        for stretch in self.steps.stretches:
            each = stretch.rows // self.ranks.world // self.micro_rows
            say(
                (f"from step {stretch.first_step:,} on, " if config.batch_ramp else "")
                + f"batch: {stretch.rows * config.row_tokens:,} tokens = {self.ranks.world} ranks x {each} micro-batches x "
                f"{self.micro_rows} rows x {config.row_tokens}"
            )
        for component, plan in zip(self.loader.components, self.loader.plans, strict=True):
            say(
                f"component {component.name}: {len(component.lengths):,} documents, {plan.pairs_total:,} tokens = "
                f"{plan.pairs_emitted:,} emitted + {plan.pairs_dropped:,} dropped, in {plan.rows:,} rows with "
                f"{plan.padding:,} padding ({plan.padding / (plan.rows * plan.sequence_length):.3%})"
            )
        if config.steps is not None:
            for name, epochs in self.loader.epochs(self.steps.position(config.steps + 1)).items():
                if epochs > MANY_EPOCHS:
                    say(f"component {name} will be repeated: {epochs:.1f} epochs")

    def _write_facts(self) -> None:
        folder = Folder(str(self.folder.absolute()))
        folder.write("config.json", _json(self.config.model_dump(mode="json")))
        folder.write(
            "run.json",
            _json(
                {
                    "manifest_digest": self.corpus.manifest.digest,
                    "tokenizer_sha256": self.corpus.tokenizer.sha256,
                    "loader_digest": self.loader.digest,
                    "architecture": self.architecture.model_dump(),
                    "parameters": self.architecture.parameters(),
                    "code_sha256": code_sha256(),
                    "ranks": self.ranks.world,
                    "replicas": self.layout.replicas,
                    "shards": self.layout.shards,
                    "device": self._device_name(),
                    "dtype": self.dtype,
                    "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
                    "lineage": self.lineage,
                    **({"continued": self.continued.facts()} if self.continued else {}),
                }
            ),
        )

    def _warm_up(self) -> None:
        """Compiles and allocates on real rows, then puts model, optimiser and random state back as they were."""
        weights = [local(parameter).detach().clone() for parameter in self.model.parameters()]
        states = {owner: dict(state) for owner, state in self.optimiser.state.items()}
        kept = {owner: {key: local(value).clone() for key, value in state.items()} for owner, state in states.items()}
        random = torch.get_rng_state()
        with self._prefetcher() as prefetched:
            micro_batches = prefetched.to_device(prefetched.get(self.step + 1))
        for _ in range(WARM_STEPS if self.compiled or self.device.type == "cuda" else 1):
            self._update(micro_batches, 1, 0.0)
        self._synchronise()
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), weights, strict=True):
                local(parameter).copy_(value)
            self.optimiser.state.clear()
            for owner, state in states.items():
                for key, value in state.items():
                    local(value).copy_(kept[owner][key])
                self.optimiser.state[owner] = state
        torch.set_rng_state(random)
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
                watched = self._watched(micro_batches[0])
                values = self._update(micro_batches, int(counts.sum()), rate)
                if self.ema:
                    self.ema.add()
                self.step, self.position, self.tokens = self.step + 1, end, self.tokens + int(counts.sum())
                readings.put(
                    {
                        "step": self.step, "position": end, "tokens": self.tokens, "learning_rate": rate, "budget_spent": spent,
                        "targets": counts.tolist(), "data_wait_seconds": waited, **self._first_sizes(first, end), **watched,
                    },
                    values,
                )  # fmt: skip
                if ledger:
                    ledger.consumed(self.step, first, end)
                self._look(readings, metrics)
                if config.checkpoint_every and self.step % config.checkpoint_every == 0:
                    self._save(readings, metrics, ledger)
        self._synchronise()
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
        norm = self.spread.clip(self.config.norm_limit)
        self.clipped += norm > self.config.norm_limit
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return torch.cat((torch.stack((norm.detach(), self.clipped)), nats_by_component, small))

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
                **self._mfu(sum(targets) / seconds),
                "memory_gb": self._memory_gb(),
                "epochs": self.loader.epochs(facts["position"]),
            }
            if metrics:
                metrics.write(row)
            check_step(facts["step"], loss, norm)
            self.progress.step(row, facts["budget_spent"])

    def _save(self, readings: Readings, metrics: Metrics | None, ledger: Ledger | None) -> None:
        """Begins a checkpoint of this moment, unless the model has diverged: a step's loss is that of the weights before its
        update, so the weights are looked at too. The time this takes is not the budget's; what is written meanwhile is free."""
        paused = time.perf_counter()
        self._look(readings, metrics, all_of_them=True)
        if not self.spread.finite(self.ranks):
            raise DivergedError(f"step {self.step}: weights are no longer finite; nothing was saved of it")
        if ledger:
            ledger.commit()
        self._finish_save()
        state = checkpoint.State(
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

    def _finish_save(self) -> None:
        """Waits for the checkpoint that is being written. One that failed is told of, and the end of the run tries again."""
        if not self.saver.finish():
            self.saved_step = -1
            self.progress.note(f"error: {self.saver.failures[-1]}")

    def _agree(self) -> tuple[float, int]:
        """(share of the budget spent, signal to stop for) as all ranks see it: the clock is that of the slowest. A checkpoint
        that all of them have written is completed here."""
        if self.config.seconds_budget is not None:
            self.spent_seconds = time.perf_counter() - self._origin
        facts = [self._spent(), float(self.stopped_by or 0), float(self.saver.writing)]
        spent, stop, writing = self.ranks.maximum(facts)
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
        if not self.config.watch_logits or self.step % self.config.watch_logits:
            return {}
        tokens, targets, segments, _ = (part[:WATCHED_ROWS] for part in micro_batch)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16"):
            sizes = logit_sizes(self.model, tokens, targets, segments, self.config.attention == "masked")
        (largest,) = self.ranks.maximum([float(np.max(sizes.attention))])  # not a number where one of them is not
        log_z, count = self.ranks.total(np.array([sizes.log_z, sizes.targets], np.float64))
        return {"attention_logit_max": largest, "log_z": float(log_z / count) if count else float("nan")}

    # the rest

    def _logits(self) -> Logits:
        return model_logits(self.spread.whole().eval(), self.dtype)

    def _score(self, what: str = "") -> Scored:
        self.progress.note("scoring the validation split" + (f" {what}" if what else ""))
        return evaluate_documents(self._logits(), self.corpus, "validation", self.config.row_tokens, self.ranks, self.dtype)

    def _write_result(self, outcome: Outcome) -> None:
        score = outcome.score
        picture = draw(self.folder, f"{self.config.preset}: {outcome.line()}")
        epochs = self.loader.epochs(self.position)
        result = {
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "memory_gb": outcome.memory_gb,
            "training_seconds": outcome.training_seconds,
            "preparation_seconds": outcome.preparation_seconds,
            "epochs": epochs,
            "exhausted": outcome.exhausted,
            "score": None if score is None else score.as_json(),
            "picture": None if picture is None else picture.name,
            **({} if outcome.gate is None else {"gate": outcome.gate.as_json()}),
            **self._averaged_result(outcome.averaged),
        }
        Folder(str(self.folder.absolute())).write("result.json", _json(result))
        self.progress.note(
            f"trained {outcome.training_seconds:.1f} s on a {self.config.clock} clock, after "
            f"{outcome.preparation_seconds:.1f} s of reading, checking and warming up; {outcome.tokens:,} tokens; epochs: "
            f"{', '.join(f'{name} {passes:.2f}' for name, passes in epochs.items())}"
        )
        if score is not None:
            self.progress.note(score.describe())
        if outcome.averaged is not None:
            self.progress.note(f"running average: {outcome.averaged.describe()}")

    def _averaged_result(self, score: Score | None) -> dict[str, Any]:
        if self.ema is None:
            return {}
        scored = None if score is None else score.as_json()
        return {"ema": {"decay": self.ema.decay, "updates": self.ema.updates, "score": scored}}

    def _told_to_stop(self, number: int) -> None:
        self.stopped_by = number

    def _mfu(self, tokens_per_second: float) -> dict[str, float | None]:
        """Of real targets: what is computed on padding is not work done."""
        each = tokens_per_second / self.ranks.world
        length = self.config.row_tokens
        name = self._device_name()
        return {
            "mfu_palm": mfu(each * palm_flops_per_token(self.architecture, length), name, self.dtype),
            "mfu_causal_exact": mfu(
                each * causal_flops_per_token(self.architecture, self.keys, self.near_keys), name, self.dtype
            ),
        }

    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine() + " CPU"

    def _memory_gb(self) -> float:
        """Peak memory: of the device where there is one, else of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e9
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _schedule(config: TrainConfig) -> WarmupCosine | WarmupStableDecay:
    peak, warmup, final = config.peak_rate, config.said("warmup"), config.said("final_rate")
    if config.said("schedule") == "wsd":
        return WarmupStableDecay(peak, warmup, config.said("cooldown"), final)
    return WarmupCosine(peak, warmup, final)


def _dtype(config: TrainConfig, device: torch.device) -> str:
    return ("bfloat16" if device.type == "cuda" else "float32") if config.dtype == "auto" else config.dtype


def _run_folder(out: str) -> Path:
    if is_remote(out):
        raise ConfigurationError(f"--out {out}: a run writes to a local folder; copy it away afterwards")
    return Path(out)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


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
