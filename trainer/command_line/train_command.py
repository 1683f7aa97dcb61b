"""`corpusmill train`. torch is imported only when it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trainer.command_line import run_commands
from trainer.command_line.exits import BAD_USAGE, FAILED, SIGNALLED, end, explain, need_torch, ranks_of
from trainer.command_line.stability_commands import stability_sweep
from trainer.command_line.training_options import (
    BUDGET,
    CONTINUED,
    DATA,
    MACHINE,
    OPTIMISATION,
    Accumulate,
    Attention,
    BatchTokens,
    Cache,
    Clock,
    Compile,
    Course,
    Device,
    HowPacked,
    InPrecision,
    LearningRate,
    LogEvery,
    LossChunk,
    Manifest,
    Masking,
    MaxEpochs,
    MicroBatch,
    ModelChanges,
    OnDevice,
    Optimiser,
    Parallel,
    Precision,
    PresetName,
    Recompute,
    Seed,
    SequenceLength,
    Steps,
    Tokens,
    Weights,
    configured,
    option,
)  # fmt: skip

SWEEP = "--stability-sweep"
EPILOG = (
    "`train batch RUN STEP` shows the documents of a step. `train --stability-sweep` trains a small model at several "
    "rates, bare and with each remedy. `train batch --help` and `train --stability-sweep --help` say how."
)


def train(
    manifest: Manifest,
    out: Annotated[str, typer.Option(help="Folder of the run; must be empty or new, unless --resume.", metavar="RUN")],
    preset: PresetName = None,
    model: ModelChanges = None,
    attention: Attention = Masking.masked,
    seconds: Annotated[float | None, option(BUDGET, "Train this long (default: 300 when no budget is given).")] = None,
    tokens: Tokens = None,
    steps: Steps = None,
    clock: Annotated[
        Clock, option(BUDGET, "warm: compile and warm up before the clock starts; cold: the clock counts it.")
    ] = Clock.warm,
    sequence_length: SequenceLength = None,
    batch_tokens: BatchTokens = None,
    batch_ramp: Annotated[
        str | None,
        option(
            DATA, "Batches that grow: 0:65536,0.1:131072 has 131,072 tokens a step when a tenth of --tokens or --steps is spent."
        ),
    ] = None,
    micro_batch: MicroBatch = None,
    packing: Annotated[
        HowPacked,
        option(DATA, "best-fit: nothing is dropped; crop: of each document its first T tokens; concat: cut wherever a row ends."),
    ] = HowPacked.best_fit,
    mixture: Weights = None,
    mixture_recipe: Annotated[
        str | None, option(DATA, "A mixture in YAML, as `corpusmill mixture` reads it: phases with weights or a temperature.")
    ] = None,
    max_epochs: MaxEpochs = None,
    learning_rate: LearningRate = None,
    optimiser: Annotated[
        Optimiser | None,
        option(OPTIMISATION, "muon: for matrices, AdamW for the rest. Default of this and what follows: by preset."),
    ] = None,
    schedule: Annotated[
        Course | None, option(OPTIMISATION, "Of the rate: a cosine, or level and then falling in a line (wsd).")
    ] = None,
    warmup: Annotated[float | None, option(OPTIMISATION, "Share of the budget in which the rate rises.")] = None,
    cooldown: Annotated[float | None, option(OPTIMISATION, "Of wsd: share of the budget in which the rate falls.")] = None,
    final_rate: Annotated[float | None, option(OPTIMISATION, "Share of the peak rate left at the end.")] = None,
    weight_decay: Annotated[float | None, option(OPTIMISATION, "On matrices only; Muon's falls to 0.")] = None,
    clip: Annotated[float | None, option(OPTIMISATION, "Largest gradient norm; 0: any.")] = None,
    z_loss: Annotated[float, option(OPTIMISATION, "Coefficient of log Z squared.")] = 0.0,
    ema: Annotated[
        float | None,
        option(OPTIMISATION, "Keep a running average of the weights with this decay, such as .999, and score it too."),
    ] = None,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    dtype: InPrecision = Precision.auto,
    compile: Compile = None,
    tune: Annotated[
        bool, option(MACHINE, "Let the compiler try kernels: minutes before the first step, faster ones then.")
    ] = False,
    loss_chunk: LossChunk = 0,
    parallel: Annotated[
        Parallel, option(MACHINE, "ddp: a whole model on every rank; fsdp: a shard of it; hsdp: shards within each replica.")
    ] = Parallel.ddp,
    replicas: Annotated[int | None, option(MACHINE, "Of hsdp. Default: as many as machines, or the fewest possible.")] = None,
    accumulate: Annotated[
        Accumulate,
        option(MACHINE, "Of fsdp and hsdp: gather and reduce once a step, or block by block each micro-batch (less memory)."),
    ] = Accumulate.whole,
    recompute: Annotated[
        Recompute, option(MACHINE, "Activations computed again in the backward pass: of no block, of every second, of all.")
    ] = Recompute.none,
    noise_scale: Annotated[
        bool, option(OPTIMISATION, "Estimate the gradient noise scale: how many tokens a step should hold. For --parallel ddp.")
    ] = False,
    watch_logits: Annotated[
        int, option(OPTIMISATION, "Every so many steps, measure the largest attention logit and log Z; 0: never. For ddp.")
    ] = 0,
    resume: Annotated[bool, option(MACHINE, "Go on from the newest complete checkpoint in RUN.")] = False,
    from_step: Annotated[
        int | None, option(MACHINE, "With --resume: go on from the checkpoint of this step; what came after it is set aside.")
    ] = None,
    skip_steps: Annotated[
        list[str] | None, option(DATA, "Steps whose rows are passed over without an update, such as 120-135; repeat.")
    ] = None,
    checkpoint_every: Annotated[int, option(MACHINE, "Steps between checkpoints; 0: only at the end.")] = 0,
    keep: Annotated[int, option(MACHINE, "Checkpoints kept.")] = 2,
    log_every: LogEvery = 10,
    evaluate: Annotated[bool, option(MACHINE, "Score the validation split at the end.")] = True,
    tensorboard: Annotated[bool, option(MACHINE, "Write the metrics for TensorBoard too, to RUN/tensorboard.")] = False,
    wandb: Annotated[
        str | None, option(MACHINE, "Write them for this project of Weights & Biases too; offline unless WANDB_MODE=online.")
    ] = None,
    cache: Cache = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Begin with the weights of a run, checkpoint, release or exported model.",
            metavar="PATH",
            rich_help_panel=CONTINUED,
        ),
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(help="YAML: what the run must reach, written before it.", metavar="FILE", rich_help_panel=CONTINUED),
    ] = None,
    fail_on_gate: Annotated[bool, option(CONTINUED, "Exit code 1 where the gate says fail.")] = False,
) -> None:
    """Trains a model on a corpus. The last line printed is `val_bpb=… | memory_gb=… | steps=…`.

    Under torchrun it trains on all ranks. SIGTERM saves a checkpoint and ends the run with exit code 143.
    """
    options = dict(locals())
    resume, from_step, fail_on_gate = (options.pop(name) for name in ("resume", "from_step", "fail_on_gate"))
    options["skip_steps"], options["batch_ramp"] = _ranges(skip_steps), _ramp(batch_ramp)
    begun = _begun_with(options, resume)
    config = configured(options, model, mixture, options.pop("mixture_recipe"), begun)
    need_torch()
    from trainer.run.loop import train as run
    from trainer.run.progress import RunProgress

    with ranks_of(config.device) as ranks:
        outcome = run(config, ranks, RunProgress(ranks.first, config.log_every), resume, from_step)
        if ranks.first and not outcome.stopped_by:
            if outcome.averaged is not None:
                print(f"ema_bpb={outcome.averaged.val_bpb:.4f}", flush=True)
            print(outcome.line(), flush=True)
        ranks.barrier()  # torchrun ends all ranks as soon as one fails, so the result is out before that
    if outcome.unsaved:
        end(FAILED, outcome.unsaved)
    if outcome.stopped_by:
        end(SIGNALLED + outcome.stopped_by, f"stopped by signal {outcome.stopped_by} after step {outcome.steps}; saved")
    if outcome.exhausted:
        end(FAILED, f"{outcome.exhausted} (the checkpoint of step {outcome.steps} was saved)")
    if fail_on_gate and outcome.gate and not outcome.gate.passed:
        end(FAILED, "the gate says fail")


class TrainCommand(TyperCommand):
    """`train` with options trains; `train batch RUN STEP` asks about a step of a run; with `--stability-sweep` it has options of
    its own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == ["batch"]:
            return _command(run_commands.batch).make_context(f"{info_name} batch", args[1:], parent, **extra)
        if SWEEP in args:
            rest = [argument for argument in args if argument != SWEEP]
            return _command(stability_sweep).make_context(f"{info_name} {SWEEP}", rest, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _command(function: Callable[..., None]) -> Any:
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command()(function)
    return typer.main.get_command(alone)


def _begun_with(options: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """Shape and T of what a run begins with, or began with when it is resumed; None of a run with weights of its own."""
    path = Path(options["out"]) / "config.json"
    if resume and path.is_file():
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held.get("parent"):
                return {name: held[name] for name in ("preset", "model", "sequence_length", "warmup")}
        except (ValueError, KeyError, AttributeError, OSError) as error:
            end(FAILED, f"{path}: not what a run writes: {error!r}")
    if options["parent"] is None:
        return None
    need_torch()
    from trainer.adaptation.parent import Parent

    try:
        return Parent.usual_options(Path(options["parent"])) or None
    except Exception as error:
        explain(error)


def _ranges(given: list[str] | None) -> list[tuple[int, int]]:
    """`7` and `7-9` as ranges of steps."""
    found = []
    for text in given or []:
        first, dash, last = text.partition("-")
        try:
            found.append((int(first), int(last if dash else first)))
        except ValueError:
            end(BAD_USAGE, f"--skip-steps {text!r}: expected a step or a range of steps, such as 120-135")
    return found


def _ramp(text: str | None) -> list[tuple[float, int]]:
    """`0:65536,0.1:131072` as (share, tokens)."""
    found = []
    for part in text.split(",") if text is not None else []:
        share, _, tokens = part.partition(":")
        try:
            found.append((float(share), int(tokens)))
        except ValueError:
            end(BAD_USAGE, f"--batch-ramp {text!r}: expected shares and tokens a step, such as 0:65536,0.1:131072")
    return found
