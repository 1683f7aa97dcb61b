"""`corpusmill doremi`. torch is imported only when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.command_line.exits import SIGNALLED, end, need_torch, ranks_of
from trainer.command_line.training_options import (
    DATA,
    MODEL,
    OPTIMISATION,
    Attention,
    BatchTokens,
    Cache,
    Compile,
    Device,
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
    Precision,
    PresetName,
    Seed,
    SequenceLength,
    Steps,
    Tokens,
    configured,
    option,
)  # fmt: skip

if TYPE_CHECKING:
    from trainer.studies.doremi import Learned


def doremi(
    manifest: Manifest,
    out: Annotated[str, typer.Option(help="Folder of the two runs and the mixture; must be empty or new.", metavar="FOLDER")],
    reference: Annotated[
        Path | None, option(MODEL, "A trained run or checkpoint, instead of training one. Of any shape, with this tokenizer.")
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
        list[str] | None, option(DATA, "COMPONENT=WEIGHT, what the reference is trained on; repeat. Default: natural.")
    ] = None,
    max_epochs: MaxEpochs = None,
    step_size: Annotated[float, option(OPTIMISATION, "Of the weights: how fast they follow the excess.")] = 1.0,
    smoothing: Annotated[float, option(OPTIMISATION, "Share of equal weights that is mixed in at every step.")] = 1e-3,
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
    from trainer.run.progress import RunProgress
    from trainer.studies.doremi import MIXTURE
    from trainer.studies.doremi import doremi as learn

    with ranks_of(config.device) as ranks:
        learned = learn(config, ranks, RunProgress(ranks.first, config.log_every), reference, step_size, smoothing)
        if ranks.first and not learned.stopped_by:
            if as_json:
                print(json.dumps({"weights": learned.weights, "excess": learned.excess, "epochs": learned.epochs}, indent=1))
            else:
                _show_learned(learned, str(Path(out) / MIXTURE))
        ranks.barrier()
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
