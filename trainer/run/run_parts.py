"""What a run is made of: corpus, rows, model, optimiser and schedule, and where among its steps it stands."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from trainer.adaptation.continued import Continued
from trainer.code_digest import code_sha256
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Component, Corpus
from trainer.data.epoch_limit import EpochLimit
from trainer.data.loader import Budget, Loader, LoaderError, Phase
from trainer.data.steps import Steps
from trainer.distributed.agreement import OWN_TO_A_RANK, agreed_layout, refuse_other_ranks
from trainer.distributed.parallel import Spread
from trainer.distributed.ranks import Ranks, usual_dtype
from trainer.run import run_folder
from trainer.run.averaging import Ema
from trainer.run.optimisation import build_optimiser, build_schedule
from trainer.run.progress import RunProgress
from trainer.run.speed import Speed
from trainer.run.trackers import check as check_trackers
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors, rewind


class RunParts:
    """Made from a configuration, or from that and a checkpoint, and the same on all ranks. Nothing has been computed yet, and
    nothing written but what a rewind sets aside. `trainer.run.loop.Run` trains with it.

    `step`, `position` and `tokens` are those that the run has come to, `spent_seconds` what it has spent of a budget in seconds,
    and `saved_step` is the step of its newest checkpoint, -1 without one.
    """

    def __init__(
        self, config: TrainConfig, ranks: Ranks, progress: RunProgress, resume: bool, from_step: int | None = None
    ) -> None:
        self.began = time.perf_counter()
        self.config, self.ranks, self.progress = config, ranks, progress
        self.device = ranks.device
        self.dtype = usual_dtype(self.device.type) if config.dtype == "auto" else config.dtype
        self.compiled = self.device.type == "cuda" if config.compile is None else config.compile
        self.micro_rows, self.micro_count = config.micro_batches(ranks.world)
        self.folder = run_folder.place(config.out)
        check_trackers(config)
        self.layout = agreed_layout(config, ranks)
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
        self.loader = _open_loader(config, self.corpus, ranks)
        self.steps = Steps.of(config, self.loader)
        self.architecture = config.architecture(self.corpus.tokenizer.vocabulary)
        self.speed = Speed.of(config, self.architecture, self.loader, self.device, self.dtype)
        self.continued = self._held_to(state)
        if self.continued:
            self.continued.check(self.architecture)
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
        self.schedule = build_schedule(config)
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
        self.saved_step = self.step if found is not None else -1
        self.limit = EpochLimit.of(config, self.loader, self.steps, self.tokens)
        self.spread.start()
        self.forward = self.spread.forward
        if ranks.first:
            self._set_aside(from_step)

    def _beginning(self, resume: bool, from_step: int | None) -> tuple[Path | None, dict[str, str]]:
        """(the checkpoint to go on from, or None; what is wrong with each that was passed over)."""
        if from_step is not None:
            if not resume:
                raise ConfigurationError("--from-step goes on from a checkpoint, so it needs --resume")
            return rewind.checkpoint_of(self.folder, from_step), {}
        return checkpoint.to_resume(self.folder, self.ranks) if resume else (None, {})

    def _held_to(self, state: checkpoint_format.State | None) -> Continued | None:
        return Continued.of(self.config, self.corpus, self.ranks, self.folder, self.dtype, state, self.progress.note)

    def _set_aside(self, from_step: int | None) -> None:
        rewind.set_aside(self.folder, self.step, from_step, self.config)

    def _restore(self, found: Path, state: checkpoint_format.State) -> None:
        run_folder.refuse_another_run(
            found, state, self.folder, self.config, self.corpus, self.loader, self.steps, self.architecture
        )
        checkpoint_tensors.load_weights(found, self.model, self.layout)
        checkpoint_tensors.load_optimiser(found, self.model, self.optimiser, self.layout)
        if self.ema:
            self.ema.restore(found, state, self.layout)
        self.step, self.position, self.tokens = state.step, state.position, state.tokens
        self.spent_seconds, self.clipped_before = state.spent_seconds, state.clipped_steps
        self.lineage = [*state.lineage, f"{found.name} {checkpoint.identity(found)}"]
        self.progress.note(f"resuming {self.folder} after step {state.step}, position {state.position:,}")

    def _refuse_other_ranks(self) -> None:
        facts = {
            "shards and mixture": self.loader.digest,
            "options": [self.config.model_dump(mode="json", exclude=set(OWN_TO_A_RANK)), self.dtype],
            "checkpoints": self.lineage,
            "gate": self.continued.facts()["gate"] if self.continued else None,
            "code": code_sha256(),
        }
        refuse_other_ranks(self.ranks, self.step, self.position, facts)


def _open_loader(config: TrainConfig, corpus: Corpus, ranks: Ranks) -> Loader:
    """The first rank of each machine checks the shards; the others read them once it has."""
    names = corpus.components("train")
    mixtures = [phase.mixture for phase in config.phases]
    wanted = [name for name in names if any(not mixture or mixture.get(name, 0) != 0 for mixture in mixtures)]
    for name in sorted({name for mixture in mixtures for name in mixture}):
        if name not in names:
            raise LoaderError(f"the mixture names component {name!r}; the training split has: {', '.join(names)}")

    def read(verify: bool) -> list[Component]:
        return [corpus.component(name, "train", verify) for name in wanted]

    components = read(True) if ranks.local_rank == 0 else []
    ranks.barrier()
    components = components or read(False)
    phases = [
        Phase({name: one for name, one in of.mixture.items() if one != 0} if of.mixture else None, of.rows, of.share)
        for of in config.phases
    ]
    rows = None if config.steps is None else Steps.of(config).position(config.steps + 1)
    budget = Budget(rows, config.tokens)
    return Loader(components, config.row_tokens, config.seed, phases, budget=budget, packing=config.packing)
