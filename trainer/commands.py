"""`corpusmill train` and `corpusmill evaluate`. torch is imported only when one of them runs."""

from __future__ import annotations

import json
import os
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from manifests.token_number import number_of_tokens
from trainer import averaging_commands, evaluation_commands, gate_commands, planning_commands, run_commands
from trainer.exits import BAD_USAGE, FAILED, SIGNALLED, end, explain, need_torch
from trainer.presets import CPU_PRESET, DEFAULT_PRESET, PRESETS

if TYPE_CHECKING:
    from trainer.configuration import TrainConfig
    from trainer.doremi import Learned
    from trainer.ranks import Ranks

app = typer.Typer(help="Train on a corpus, and score what was trained.", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(run_commands.exports, name="export")
for _command in (
    planning_commands.plan_training, planning_commands.forecast, evaluation_commands.choices, gate_commands.gate,
    run_commands.replay, run_commands.generate, run_commands.noise, averaging_commands.average,
):  # fmt: skip
    app.command()(_command)

SWEEP = "--stability-sweep"
MODEL, BUDGET, DATA, OPTIMISATION, MACHINE = "Model", "Budget", "Data", "Optimisation", "Machine and run"
CONTINUED = "Continued pretraining"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Clock(StrEnum):
    warm = "warm"
    cold = "cold"


class Masking(StrEnum):
    masked = "masked"
    sdpa = "sdpa"


class Parallel(StrEnum):
    ddp = "ddp"
    fsdp = "fsdp"
    hsdp = "hsdp"


class Accumulate(StrEnum):
    whole = "whole"
    sharded = "sharded"


class Recompute(StrEnum):
    none = "none"
    selective = "selective"
    full = "full"


class Optimiser(StrEnum):
    adamw = "adamw"
    muon = "muon"


class Course(StrEnum):
    cosine = "cosine"
    wsd = "wsd"


class HowPacked(StrEnum):
    best_fit = "best-fit"
    crop = "crop"
    concat = "concat"


class HeldOut(StrEnum):
    validation = "validation"
    test = "test"


def _option(panel: str, text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel)


Manifest = Annotated[str, typer.Option(help="manifest.json of the corpus, or its folder or URL.", metavar="PATH")]
Cache = Annotated[str | None, typer.Option(help="Where shards of a remote corpus are kept.", metavar="FOLDER")]
PresetName = Annotated[
    str | None, _option(MODEL, f"One of {', '.join(PRESETS)}. Default: {DEFAULT_PRESET} on a GPU, {CPU_PRESET} without one.")
]
ModelChanges = Annotated[
    list[str] | None, _option(MODEL, "Changes the preset: layers=6, width=256, heads, kv_heads, hidden, tied, feed=relu2, …")
]
Attention = Annotated[Masking, _option(MODEL, "masked: within each document; sdpa: over the whole row, across documents.")]
Tokens = Annotated[
    int | None,
    typer.Option(
        help="Train on this many target tokens: 20000000, 2e7, 20M, 1.5B.", parser=number_of_tokens, metavar="NUMBER",
        rich_help_panel=BUDGET,
    ),
]  # fmt: skip
Steps = Annotated[int | None, _option(BUDGET, "Train this many steps.")]
SequenceLength = Annotated[int | None, _option(DATA, "T, tokens in a row.")]
BatchTokens = Annotated[int | None, _option(DATA, "Tokens in a step, over all ranks.")]
MicroBatch = Annotated[int | None, _option(DATA, "Rows that a rank computes at a time.")]
Weights = Annotated[list[str] | None, _option(DATA, "COMPONENT=WEIGHT, share of target tokens; repeat. Default: natural.")]
MaxEpochs = Annotated[float | None, _option(DATA, "Stop, and fail, rather than repeat a component more often.")]
LearningRate = Annotated[float | None, _option(OPTIMISATION, "Peak rate; of matrices under Muon, the others in proportion.")]
Seed = Annotated[int, _option(OPTIMISATION, "Of weights and of the order of rows.")]
OnDevice = Annotated[Device, _option(MACHINE, "auto takes a GPU where there is one.")]
InPrecision = Annotated[Precision, _option(MACHINE, "auto: bfloat16 autocast on a GPU, float32 on a CPU.")]
Compile = Annotated[bool | None, _option(MACHINE, "torch.compile (default: on a GPU).")]
LossChunk = Annotated[int, _option(MACHINE, "Logits of this many tokens at a time; 0: all.")]
LogEvery = Annotated[int, _option(MACHINE, "Steps between progress lines.")]


class TrainCommand(TyperCommand):
    """`train` with options trains; `train batch RUN STEP` asks about a step of a run; with `--stability-sweep` it has options of
    its own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == ["batch"]:
            asking = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
            asking.command()(run_commands.batch)
            return typer.main.get_command(asking).make_context(f"{info_name} batch", args[1:], parent, **extra)
        if SWEEP in args:
            from trainer.stability_commands import stability_sweep

            asking = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
            asking.command()(stability_sweep)
            rest = [argument for argument in args if argument != SWEEP]
            return typer.main.get_command(asking).make_context(f"{info_name} {SWEEP}", rest, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@app.command(
    cls=TrainCommand,
    epilog="`train batch RUN STEP` shows the documents of a step. `train --stability-sweep` trains a small model at several "
    "rates, bare and with each remedy. `train batch --help` and `train --stability-sweep --help` say how.",
)
def train(
    manifest: Manifest,
    out: Annotated[str, typer.Option(help="Folder of the run; must be empty or new, unless --resume.", metavar="RUN")],
    preset: PresetName = None,
    model: ModelChanges = None,
    attention: Attention = Masking.masked,
    seconds: Annotated[float | None, _option(BUDGET, "Train this long (default: 300 when no budget is given).")] = None,
    tokens: Tokens = None,
    steps: Steps = None,
    clock: Annotated[
        Clock, _option(BUDGET, "warm: compile and warm up before the clock starts; cold: the clock counts it.")
    ] = Clock.warm,
    sequence_length: SequenceLength = None,
    batch_tokens: BatchTokens = None,
    batch_ramp: Annotated[
        str | None,
        _option(
            DATA, "Batches that grow: 0:65536,0.1:131072 has 131,072 tokens a step when a tenth of --tokens or --steps is spent."
        ),
    ] = None,
    micro_batch: MicroBatch = None,
    packing: Annotated[
        HowPacked,
        _option(
            DATA, "best-fit: nothing is dropped; crop: of each document its first T tokens; concat: cut wherever a row ends."
        ),
    ] = HowPacked.best_fit,
    mixture: Weights = None,
    mixture_recipe: Annotated[
        str | None, _option(DATA, "A mixture in YAML, as `corpusmill mixture` reads it: phases with weights or a temperature.")
    ] = None,
    max_epochs: MaxEpochs = None,
    learning_rate: LearningRate = None,
    optimiser: Annotated[
        Optimiser | None,
        _option(OPTIMISATION, "muon: for matrices, AdamW for the rest. Default of this and what follows: by preset."),
    ] = None,
    schedule: Annotated[
        Course | None, _option(OPTIMISATION, "Of the rate: a cosine, or level and then falling in a line (wsd).")
    ] = None,
    warmup: Annotated[float | None, _option(OPTIMISATION, "Share of the budget in which the rate rises.")] = None,
    cooldown: Annotated[float | None, _option(OPTIMISATION, "Of wsd: share of the budget in which the rate falls.")] = None,
    final_rate: Annotated[float | None, _option(OPTIMISATION, "Share of the peak rate left at the end.")] = None,
    weight_decay: Annotated[float | None, _option(OPTIMISATION, "On matrices only; Muon's falls to 0.")] = None,
    clip: Annotated[float | None, _option(OPTIMISATION, "Largest gradient norm; 0: any.")] = None,
    z_loss: Annotated[float, _option(OPTIMISATION, "Coefficient of log Z squared.")] = 0.0,
    ema: Annotated[
        float | None,
        _option(OPTIMISATION, "Keep a running average of the weights with this decay, such as .999, and score it too."),
    ] = None,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    dtype: InPrecision = Precision.auto,
    compile: Compile = None,
    tune: Annotated[
        bool, _option(MACHINE, "Let the compiler try kernels: minutes before the first step, faster ones then.")
    ] = False,
    loss_chunk: LossChunk = 0,
    parallel: Annotated[
        Parallel, _option(MACHINE, "ddp: a whole model on every rank; fsdp: a shard of it; hsdp: shards within each replica.")
    ] = Parallel.ddp,
    replicas: Annotated[int | None, _option(MACHINE, "Of hsdp. Default: as many as machines, or the fewest possible.")] = None,
    accumulate: Annotated[
        Accumulate,
        _option(MACHINE, "Of fsdp and hsdp: gather and reduce once a step, or block by block each micro-batch (less memory)."),
    ] = Accumulate.whole,
    recompute: Annotated[
        Recompute, _option(MACHINE, "Activations computed again in the backward pass: of no block, of every second, of all.")
    ] = Recompute.none,
    noise_scale: Annotated[
        bool, _option(OPTIMISATION, "Estimate the gradient noise scale: how many tokens a step should hold. For --parallel ddp.")
    ] = False,
    watch_logits: Annotated[
        int, _option(OPTIMISATION, "Every so many steps, measure the largest attention logit and log Z; 0: never. For ddp.")
    ] = 0,
    resume: Annotated[bool, _option(MACHINE, "Go on from the newest complete checkpoint in RUN.")] = False,
    from_step: Annotated[
        int | None, _option(MACHINE, "With --resume: go on from the checkpoint of this step; what came after it is set aside.")
    ] = None,
    skip_steps: Annotated[
        list[str] | None, _option(DATA, "Steps whose rows are passed over without an update, such as 120-135; repeat.")
    ] = None,
    checkpoint_every: Annotated[int, _option(MACHINE, "Steps between checkpoints; 0: only at the end.")] = 0,
    keep: Annotated[int, _option(MACHINE, "Checkpoints kept.")] = 2,
    log_every: LogEvery = 10,
    evaluate: Annotated[bool, _option(MACHINE, "Score the validation split at the end.")] = True,
    tensorboard: Annotated[bool, _option(MACHINE, "Write the metrics for TensorBoard too, to RUN/tensorboard.")] = False,
    wandb: Annotated[
        str | None, _option(MACHINE, "Write them for this project of Weights & Biases too; offline unless WANDB_MODE=online.")
    ] = None,
    cache: Cache = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--from", help="Begin with the weights of a run, checkpoint, release or exported model.", metavar="PATH",
            rich_help_panel=CONTINUED,
        ),
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(help="YAML: what the run must reach, written before it.", metavar="FILE", rich_help_panel=CONTINUED),
    ] = None,
    fail_on_gate: Annotated[bool, _option(CONTINUED, "Exit code 1 where the gate says fail.")] = False,
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
    from trainer.loop import train as run
    from trainer.progress import RunProgress
    from trainer.ranks import Ranks

    ranks: Ranks | None = None
    try:
        ranks = Ranks.join(config.device)
        outcome = run(config, ranks, RunProgress(ranks.first, config.log_every), resume, from_step)
        if ranks.first and not outcome.stopped_by:
            if outcome.averaged is not None:
                print(f"ema_bpb={outcome.averaged.val_bpb:.4f}", flush=True)
            print(outcome.line(), flush=True)
        ranks.barrier()  # torchrun ends all ranks as soon as one fails, so the result is out before that
    except Exception as error:
        explain(error, ranks)
    finally:
        if ranks is not None:
            ranks.leave()
    if outcome.unsaved:
        end(FAILED, outcome.unsaved)
    if outcome.stopped_by:
        end(SIGNALLED + outcome.stopped_by, f"stopped by signal {outcome.stopped_by} after step {outcome.steps}; saved")
    if outcome.exhausted:
        end(FAILED, f"{outcome.exhausted} (the checkpoint of step {outcome.steps} was saved)")
    if fail_on_gate and outcome.gate and not outcome.gate.passed:
        end(FAILED, "the gate says fail")


def configured(
    options: dict[str, Any],
    model: list[str] | None,
    mixture: list[str] | None,
    recipe: str | None,
    begun: dict[str, Any] | None = None,
) -> TrainConfig:
    """The configuration that the options of a command ask for; ends with exit code 2 where there is none. `begun`: options of
    what the run begins with, for those that are left open."""
    from manifests.mixture import MixtureError
    from trainer.configuration import ConfigurationError, TrainConfig

    options["model"] = _pairs(model, "--model", _model_value)
    options["mixture"] = _pairs(mixture, "--mixture", float)
    options = {name: value.value if isinstance(value, Enum) else value for name, value in options.items()}
    if begun and options["preset"] in (None, begun["preset"]):
        options["model"] = {**begun["model"], **options["model"]}
    options |= {name: value for name, value in (begun or {}).items() if options[name] is None}
    if options["preset"] is None:
        options["preset"] = _usual_preset(options["device"])
    if recipe is not None and options["mixture"]:
        end(BAD_USAGE, "a mixture comes from --mixture or from --mixture-recipe")
    try:
        config = TrainConfig.check(**options)
        _check_out(config)
        return config if recipe is None else _with_mixture(config, options, recipe)
    except (ConfigurationError, MixtureError) as error:
        end(BAD_USAGE, str(error))


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
    from trainer.parent import Parent

    try:
        return Parent.usual_options(Path(options["parent"])) or None
    except Exception as error:
        explain(error)


def _check_out(config: TrainConfig) -> None:
    """A corpus holds nothing but what its manifest lists: the folder of a run is elsewhere."""
    from manifests.storage import Folder, StorageError, is_within

    corpus = os.path.dirname(config.manifest) if config.manifest.endswith(".json") else config.manifest
    try:
        inside = is_within(config.out, Folder(corpus or "."))
    except (StorageError, OSError):
        return  # said where the corpus is opened
    if inside:
        end(BAD_USAGE, f"--out {config.out} is inside the corpus, which holds only what its manifest lists; name another place")


def _usual_preset(device: str) -> str:
    """What suits the machine; the models that a GPU trains would take all memory of one without."""
    try:
        import torch
    except ImportError:
        return DEFAULT_PRESET  # said below, by `need_torch`
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return DEFAULT_PRESET
    typer.echo(f"no GPU is used, so the model is {CPU_PRESET!r}; --preset names another", err=True)
    return CPU_PRESET


def _with_mixture(config: TrainConfig, options: dict[str, Any], path: str) -> TrainConfig:
    """The configuration with the phases of a mixture."""
    from manifests import mixture as mixtures
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError
    from trainer.configuration import TrainConfig

    try:
        recipe = mixtures.read_mixture(Path(path).read_text(encoding="utf-8"))
        folder, manifest = open_corpus(config.manifest)
        tempered = any(phase.temperature is not None for phase in recipe.phases)
        languages = mixtures.tokens_by_language(folder, manifest) if tempered else None
    except (OSError, UnicodeDecodeError, ManifestError, StorageError) as error:
        raise mixtures.MixtureError(f"{path}: {error}") from None
    unique = mixtures.training_tokens(manifest.content)
    weights = [mixtures.weights_of(phase, unique, languages) for phase in recipe.phases]
    natural = [phase.weights is None and phase.temperature is None for phase in recipe.phases]
    phases = [
        {"mixture": {} if plain else {name: one for name, one in of.items() if one}, "share": share if len(weights) > 1 else None}
        for of, plain, share in zip(weights, natural, recipe.shares, strict=True)
    ]
    rest = {name: value for name, value in options.items() if name != "mixture"}
    return TrainConfig.check(**{**rest, "phases": phases, "max_epochs": rest["max_epochs"] or recipe.max_epochs})


@app.command()
def doremi(
    manifest: Manifest,
    out: Annotated[str, typer.Option(help="Folder of the two runs and the mixture; must be empty or new.", metavar="FOLDER")],
    reference: Annotated[
        Path | None, _option(MODEL, "A trained run or checkpoint, instead of training one. Of any shape, with this tokenizer.")
    ] = None,
    preset: PresetName = None,
    model: ModelChanges = None,
    attention: Attention = Masking.masked,
    tokens: Tokens = None,
    steps: Steps = None,
    sequence_length: SequenceLength = None,
    batch_tokens: BatchTokens = None,
    micro_batch: MicroBatch = None,
    mixture: Annotated[
        list[str] | None, _option(DATA, "COMPONENT=WEIGHT, what the reference is trained on; repeat. Default: natural.")
    ] = None,
    max_epochs: MaxEpochs = None,
    step_size: Annotated[float, _option(OPTIMISATION, "Of the weights: how fast they follow the excess.")] = 1.0,
    smoothing: Annotated[float, _option(OPTIMISATION, "Share of equal weights that is mixed in at every step.")] = 1e-3,
    learning_rate: LearningRate = None,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    dtype: InPrecision = Precision.auto,
    compile: Compile = None,
    loss_chunk: LossChunk = 0,
    log_every: LogEvery = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the weights as JSON.")] = False,
    cache: Cache = None,
) -> None:
    """Learns a mixture with two small models (DoReMi, Xie et al. 2023) and writes it as mixture.yaml.

    The budget is that of each: a reference on an initial mixture, and a proxy that gives weight to what it is behind it on.
    """
    options = dict(locals())
    for name in ("reference", "step_size", "smoothing", "as_json"):
        options.pop(name)
    config = configured(options, model, mixture, None)
    need_torch()
    from trainer.doremi import MIXTURE
    from trainer.doremi import doremi as learn
    from trainer.progress import RunProgress
    from trainer.ranks import Ranks

    ranks: Ranks | None = None
    try:
        ranks = Ranks.join(config.device)
        learned = learn(config, ranks, RunProgress(ranks.first, config.log_every), reference, step_size, smoothing)
        if ranks.first and not learned.stopped_by:
            if as_json:
                print(json.dumps({"weights": learned.weights, "excess": learned.excess, "epochs": learned.epochs}, indent=1))
            else:
                _show_learned(learned, str(Path(out) / MIXTURE))
        ranks.barrier()
    except Exception as error:
        explain(error, ranks)
    finally:
        if ranks is not None:
            ranks.leave()
    if learned.stopped_by:
        end(SIGNALLED + learned.stopped_by, f"stopped by signal {learned.stopped_by}; no mixture was learned")


def _show_learned(learned: Learned, path: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from manifests.terminal import terminal, visible

    table = Table(box=None, pad_edge=False)
    for heading in ("component", "weight", "excess at the end, nats", "proxy's epochs"):
        table.add_column(heading, justify="left" if heading == "component" else "right")
    for name, weight in learned.weights.items():
        table.add_row(Text(visible(name)), f"{weight:.4f}", f"{learned.excess[name]:.4f}", f"{learned.epochs[name]:.2f}")
    terminal().print(table)
    print(visible(path), flush=True)


@app.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder, or one of its checkpoints.", metavar="RUN_OR_CHECKPOINT")],
    manifest: Manifest,
    split: Annotated[HeldOut, typer.Option(help="Which held-out documents.")] = HeldOut.validation,
    sequence_length: Annotated[
        int | None, typer.Option(help="T; default: as trained. Figures at different T do not compare.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto takes a GPU where there is one.")] = Device.auto,
    dtype: Annotated[Precision, typer.Option(help="auto: bfloat16 on a GPU, float32 on a CPU.")] = Precision.auto,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole score as JSON.")] = False,
    documents: Annotated[
        Path | None, typer.Option(help="Write what each document costs here, as Parquet: for `corpusmill gate`.", metavar="FILE")
    ] = None,
    cache: Cache = None,
) -> None:
    """Scores a checkpoint on held-out documents, in bits per byte of their text."""
    need_torch()
    if sequence_length is not None and sequence_length < 2:
        end(BAD_USAGE, f"--sequence-length {sequence_length}: a row needs at least 2 tokens")
    from manifests.storage import Folder
    from trainer.document_scores import DocumentScores
    from trainer.ranks import Ranks
    from trainer.scoring import score_documents

    ranks: Ranks | None = None
    try:
        ranks = Ranks.join(device.value)
        scored, corpus = score_documents(checkpoint, manifest, split.value, ranks, sequence_length, dtype.value, cache)
        score = scored.score
        if documents is not None and ranks.first:
            held = DocumentScores.of_evaluation(scored, corpus)
            held.write(Folder(str(documents.absolute().parent)), documents.name)
    except Exception as error:
        explain(error, ranks)
    finally:
        if ranks is not None:
            ranks.leave()
    if ranks.first:
        name = "val" if split is HeldOut.validation else split.value
        plain = f"{score.describe()}\n{name}_bpb={score.val_bpb:.4f}"
        print(json.dumps(score.as_json(), indent=1) if as_json else plain, flush=True)


def _pairs(given: list[str] | None, option: str, convert: Any) -> dict[str, Any]:
    pairs = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if name in pairs:
            end(BAD_USAGE, f"{option} {pair!r}: {name} has a value already")
        try:
            if not (name and equals):
                raise ValueError
            pairs[name] = convert(value)
        except ValueError:
            end(BAD_USAGE, f"{option} {pair!r}: expected NAME=VALUE")
    return pairs


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


def _model_value(text: str) -> Any:
    """A number or true/false where it reads as one; the architecture checks the rest."""
    try:
        return json.loads(text)
    except ValueError:
        return text
