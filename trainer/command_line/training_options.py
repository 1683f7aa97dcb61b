"""Options of the commands that train, and the configuration that they make. Imports no torch."""

from __future__ import annotations

import json
import os
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.token_number import number_of_tokens
from trainer.command_line.exits import BAD_USAGE, end
from trainer.presets import CPU_PRESET, DEFAULT_PRESET, PRESETS

if TYPE_CHECKING:
    from trainer.configuration import TrainConfig

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
    feed = "feed"
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


def option(panel: str, text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel)


Manifest = Annotated[str, typer.Option(help="manifest.json of the corpus, or its folder or URL.", metavar="PATH")]
Cache = Annotated[str | None, typer.Option(help="Where shards of a remote corpus are kept.", metavar="FOLDER")]
PresetName = Annotated[
    str | None, option(MODEL, f"One of {', '.join(PRESETS)}. Default: {DEFAULT_PRESET} on a GPU, {CPU_PRESET} without one.")
]
ModelChanges = Annotated[
    list[str] | None, option(MODEL, "Changes the preset: layers=6, width=256, heads, kv_heads, hidden, tied, feed=relu2, …")
]
Attention = Annotated[Masking, option(MODEL, "masked: within each document; sdpa: over the whole row, across documents.")]
Tokens = Annotated[
    int | None,
    typer.Option(
        help="Train on this many target tokens: 20000000, 2e7, 20M, 1.5B.", parser=number_of_tokens, metavar="NUMBER",
        rich_help_panel=BUDGET,
    ),
]  # fmt: skip
Steps = Annotated[int | None, option(BUDGET, "Train this many steps.")]
SequenceLength = Annotated[int | None, option(DATA, "T, tokens in a row.")]
BatchTokens = Annotated[int | None, option(DATA, "Tokens in a step, over all ranks.")]
MicroBatch = Annotated[int | None, option(DATA, "Rows that a rank computes at a time.")]
Weights = Annotated[list[str] | None, option(DATA, "COMPONENT=WEIGHT, share of target tokens; repeat. Default: natural.")]
MaxEpochs = Annotated[float | None, option(DATA, "Stop, and fail, rather than repeat a component more often.")]
LearningRate = Annotated[float | None, option(OPTIMISATION, "Peak rate; of matrices under Muon, the others in proportion.")]
Seed = Annotated[int, option(OPTIMISATION, "Of weights and of the order of rows.")]
OnDevice = Annotated[Device, option(MACHINE, "auto takes a GPU where there is one.")]
InPrecision = Annotated[Precision, option(MACHINE, "auto: bfloat16 autocast on a GPU, float32 on a CPU.")]
Compile = Annotated[bool | None, option(MACHINE, "torch.compile (default: on a GPU).")]
LossChunk = Annotated[int, option(MACHINE, "Logits of this many tokens at a time; 0: all.")]
LogEvery = Annotated[int, option(MACHINE, "Steps between progress lines.")]


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


def _model_value(text: str) -> Any:
    """A number or true/false where it reads as one; the architecture checks the rest."""
    try:
        return json.loads(text)
    except ValueError:
        return text
