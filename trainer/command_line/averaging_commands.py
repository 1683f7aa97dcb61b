"""`corpusmill average`: the mean of late checkpoints, or the running average of one, as a checkpoint of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from manifests.terminal import visible
from trainer.command_line.exits import explain, need_torch
from trainer.command_line.run_options import JsonOption, RunArgument


def average(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="A new folder, which is a checkpoint.", metavar="DIR")],
    last: Annotated[
        int | None, typer.Option(help="The newest K; the run must keep so many (--checkpoint-every, --keep).", min=2, metavar="K")
    ] = None,
    steps: Annotated[list[int] | None, typer.Option(help="The checkpoint of this step; repeat.", metavar="STEP")] = None,
    ema: Annotated[
        bool,
        typer.Option(
            "--ema",
            help="The running average of a run with --ema, of its newest checkpoint; RUN can be a checkpoint or a release.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Averages a run's late checkpoints: what comes out is scored, sampled and exported as any checkpoint is."""
    need_torch()
    from trainer.run.averaging import average as averaged

    try:
        done = averaged(run, out, last, steps or (), ema)
    except Exception as error:
        explain(error)
    if as_json:
        print(json.dumps(done.record, indent=1), flush=True)
        return
    what = "running average of step" if ema else f"mean of {len(done.steps)} checkpoints, of steps"
    print(f"{what} {', '.join(f'{step:,}' for step in done.steps)}", flush=True)
    print(visible(out), flush=True)
