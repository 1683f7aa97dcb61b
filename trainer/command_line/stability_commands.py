"""`corpusmill train --stability-sweep`. torch is imported only when it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from manifests.terminal import terminal, visible
from trainer.command_line.exits import BAD_USAGE, SIGNALLED, end, need_torch, ranks_of
from trainer.command_line.training_options import (
    DATA,
    MODEL,
    OPTIMISATION,
    Attention,
    BatchTokens,
    Cache,
    Compile,
    Course,
    Device,
    InPrecision,
    LogEvery,
    LossChunk,
    Manifest,
    Masking,
    MaxEpochs,
    MicroBatch,
    ModelChanges,
    OnDevice,
    Optimiser,
    Precision,
    Seed,
    SequenceLength,
    Steps,
    Tokens,
    Weights,
    configured,
)  # fmt: skip
from trainer.presets import PRESETS

if TYPE_CHECKING:
    from trainer.studies.stability import Row


def stability_sweep(
    manifest: Manifest,
    out: Annotated[
        str, typer.Option(help="Folder of the sweep, with a run a cell; one that was begun goes on.", metavar="FOLDER")
    ],
    rates: Annotated[str, typer.Option(help="Peak learning rates.", rich_help_panel=OPTIMISATION)] = ".003,.03",
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.", rich_help_panel=MODEL)] = "mini",
    model: ModelChanges = None,
    attention: Attention = Masking.masked,
    tokens: Tokens = None,
    steps: Steps = None,
    sequence_length: SequenceLength = None,
    batch_tokens: BatchTokens = None,
    micro_batch: MicroBatch = None,
    mixture: Weights = None,
    mixture_recipe: Annotated[
        str | None, typer.Option(help="A mixture in YAML, as `corpusmill mixture` reads it.", rich_help_panel=DATA)
    ] = None,
    max_epochs: MaxEpochs = None,
    optimiser: Annotated[
        Optimiser | None, typer.Option(help="Default of this and what follows: by preset.", rich_help_panel=OPTIMISATION)
    ] = None,
    schedule: Annotated[Course | None, typer.Option(help="Of the rate: cosine or wsd.", rich_help_panel=OPTIMISATION)] = None,
    cooldown: Annotated[
        float | None, typer.Option(help="Of wsd: share of the budget in which the rate falls.", rich_help_panel=OPTIMISATION)
    ] = None,
    final_rate: Annotated[
        float | None, typer.Option(help="Share of the peak rate left at the end.", rich_help_panel=OPTIMISATION)
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="On matrices only.", rich_help_panel=OPTIMISATION)] = None,
    warmup: Annotated[
        float | None, typer.Option(help="The remedy: share of the budget in which the rate rises.", rich_help_panel=OPTIMISATION)
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="The remedy: largest gradient norm. Default: the preset's, or 1.", rich_help_panel=OPTIMISATION),
    ] = None,
    z_loss: Annotated[
        float, typer.Option(help="The remedy: coefficient of log Z squared; 0: 1e-4.", rich_help_panel=OPTIMISATION)
    ] = 0.0,
    watch_logits: Annotated[
        int, typer.Option(help="Steps between measurements of attention logits and log Z.", min=1, rich_help_panel=OPTIMISATION)
    ] = 1,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    dtype: InPrecision = Precision.auto,
    compile: Compile = None,
    loss_chunk: LossChunk = 0,
    log_every: LogEvery = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    cache: Cache = None,
) -> None:
    """Trains a small model at several learning rates: bare, with warmup, clipping, z-loss and QK-norm alone, and with all.

    Each cell is a run in a folder of its own, on the same rows. A cell that diverges is a row of the table.
    """
    options = dict(locals())
    for name in ("rates", "as_json"):
        options.pop(name)
    peaks = _rates(rates)
    config = configured(options, model, mixture, options.pop("mixture_recipe"))
    need_torch()
    from trainer.run.progress import RunProgress
    from trainer.studies.stability import sweep

    with ranks_of(config.device) as ranks:
        swept = sweep(config, peaks, ranks, RunProgress(ranks.first, config.log_every))
        if ranks.first and not swept.stopped_by:
            if as_json:
                print(json.dumps([asdict(row) for row in swept.rows], indent=1), flush=True)
            else:
                _show(swept.rows, out)
        ranks.barrier()
    if swept.stopped_by:
        end(SIGNALLED + swept.stopped_by, f"stopped by signal {swept.stopped_by}; the same command goes on from there")


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        end(BAD_USAGE, f"--rates {text!r}: expected learning rates, such as .003,.03")


def _show(rows: list[Row], out: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from trainer.studies.stability import LAST_STEPS

    table = Table(box=None, pad_edge=False)
    headings = ("rate", "", f"loss, last {LAST_STEPS}", "attention logit", "log Z", "gradient norm", "largest", "")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place in (1, 7) else "right", overflow="fold")
    for row in rows:
        figures = (
            _figure(row.loss, 4), _figure(row.attention_logit_max, 1), _figure(row.log_z, 3), _figure(row.grad_norm_median, 3),
            _figure(row.grad_norm_max, 2),
        )  # fmt: skip
        table.add_row(f"{row.rate:g}", row.condition, *figures, Text(visible((row.diverged or "").partition(";")[0])))
    terminal().print(table)
    print(visible(out), flush=True)


def _figure(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:,.{digits}f}"
