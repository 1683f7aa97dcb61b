"""`corpusmill plan-training` and `corpusmill forecast`: what a run would take, and where the loss of one is heading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.terminal import terminal, visible
from manifests.token_number import number_of_tokens
from trainer.command_line.exits import BAD_USAGE, FAILED, end
from trainer.planning.estimate import DEFAULT_HEADROOM, DEFAULT_MFU, GPUS
from trainer.presets import DEFAULT_PRESET, PRESETS

if TYPE_CHECKING:
    from manifests.manifest import Content
    from manifests.mixture import Plan as Mixed
    from trainer.configuration import TrainConfig
    from trainer.planning.estimate import Gpu, Measured, TrainingPlan
    from trainer.run_files.run_record import RunRecord

MODEL, DATA, MACHINE = "Model", "Data", "Machine"
MOST, MOST_LAYERS = 2**40, 100_000
"""Whole numbers beyond these belong to no model and no machine."""


def _option(panel: str, text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, metavar=metavar)


def _tokens(text: str) -> Any:
    return typer.Option(help=text, parser=number_of_tokens, metavar="NUMBER")


def plan_training(
    preset: Annotated[str | None, _option(MODEL, f"One of {', '.join(PRESETS)}. Default: {DEFAULT_PRESET}, or RUN's.")] = None,
    model: Annotated[
        list[str] | None, _option(MODEL, "Changes the preset, as for train: layers=36, width, heads, kv_heads, hidden, tied, …")
    ] = None,
    vocabulary: Annotated[int | None, _option(MODEL, "Tokens of the tokenizer. Default: the corpus's, or RUN's.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Target tokens: 2e12, 1.2T, 300B, 20M. Default: the corpus once; without one, 20 a parameter.",
            parser=number_of_tokens,
            metavar="NUMBER",
            rich_help_panel=DATA,
        ),
    ] = None,
    sequence_length: Annotated[
        int | None, _option(DATA, "T, tokens in a row. Default of this and what follows: by preset.")
    ] = None,
    batch_tokens: Annotated[int | None, _option(DATA, "Tokens in a step, over all GPUs.")] = None,
    micro_batch: Annotated[int | None, _option(DATA, "Rows that a GPU computes at a time.")] = None,
    manifest: Annotated[str | None, _option(DATA, "A corpus: tokens that there are, and epochs.", metavar="PATH")] = None,
    mixture_recipe: Annotated[
        str | None, _option(DATA, "A mixture in YAML, as `corpusmill mixture` reads it. Default: natural.", metavar="FILE")
    ] = None,
    gpus: Annotated[int, _option(MACHINE, "How many there are.")] = 8,
    gpu: Annotated[str, _option(MACHINE, f"Which: {', '.join(GPUS)}.")] = "h100",
    gpu_memory: Annotated[float | None, _option(MACHINE, "Of one, in GB of 10^9 bytes. Default: as sold.")] = None,
    headroom: Annotated[float, _option(MACHINE, "Share of the memory that is left free.")] = DEFAULT_HEADROOM,
    mfu: Annotated[
        float | None, _option(MACHINE, f"Share of the GPU's peak that is reached. Default: RUN's, or {DEFAULT_MFU:g}.")
    ] = None,
    achieved: Annotated[float | None, _option(MACHINE, "FLOP/s that a GPU reaches, such as 4e14, instead of --mfu.")] = None,
    ema: Annotated[
        bool | None, _option(MODEL, "Count a running average of the weights, 4 bytes a parameter. Default: RUN's, or not.")
    ] = None,
    stages: Annotated[int | None, _option(MACHINE, "Of a pipeline, for its bubble.")] = None,
    micro_batches: Annotated[int | None, _option(MACHINE, "That pass through the pipeline in a step.")] = None,
    mtbf_hours: Annotated[
        float | None, _option(MACHINE, "Hours between failures, of all GPUs together. Default: from Llama 3's record.")
    ] = None,
    checkpoint_seconds: Annotated[float, _option(MACHINE, "That writing a checkpoint takes.")] = 60.0,
    run: Annotated[Path | None, typer.Option(help="A run to take defaults from, and to hold the estimate against.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Says what a training run would take: FLOPs, days, memory, checkpoints, epochs. Computes; trains nothing, needs no torch."""
    from trainer.planning.estimate import PlanError, Request, measured, plan
    from trainer.run_files.run_record import RecordError, RunRecord

    if mfu is not None and achieved is not None:
        end(BAD_USAGE, "give --mfu or --achieved, not both")
    if mfu is not None and not 0 < mfu <= 1:
        end(BAD_USAGE, f"--mfu {mfu:g}: a share above 0, of 1 at most")
    if mixture_recipe is not None and manifest is None:
        end(BAD_USAGE, "--mixture-recipe is of a corpus: --manifest names it")
    whole = {
        "--vocabulary": vocabulary, "--sequence-length": sequence_length, "--batch-tokens": batch_tokens, "--gpus": gpus,
        "--micro-batch": micro_batch, "--stages": stages, "--micro-batches": micro_batches,
    }  # fmt: skip
    for option, number in whole.items():
        if number is not None and not 1 <= number <= MOST:
            end(BAD_USAGE, f"{option}: a number from 1 to {MOST:,}")
    try:
        record = None if run is None else RunRecord.read(run)
        content = None if manifest is None else _content(manifest)
        shape = _shape(record, preset, model, sequence_length, batch_tokens, gpus)
        there = measured(record) if record else None
    except (RecordError, PlanError) as error:
        end(FAILED, visible(error))
    entries, warnings = _vocabulary(vocabulary, content, record)
    architecture = shape.architecture(entries)
    targets = float(tokens) if tokens is not None else _usual_tokens(content, architecture.parameters())
    on = _gpu(gpu, gpu_memory)
    if mfu is None and achieved is None:
        mfu = there.mfu if there and there.mfu else DEFAULT_MFU
    reached = achieved if achieved is not None else (mfu or 0.0) * (on.peak or 0.0)
    averaging = ema if ema is not None else bool(record and record.config.ema)
    rows = micro_batch if micro_batch is not None else _usual_micro_batch(shape, gpus)
    try:
        planned = plan(
            Request(
                architecture, targets, shape.row_tokens, rows, shape.batch_tokens_a_step, gpus, on, reached, headroom, stages,
                micro_batches, mtbf_hours, checkpoint_seconds, averaging,
            )
        )  # fmt: skip
    except PlanError as error:
        end(BAD_USAGE, visible(error))
    given = _epochs(content, manifest, mixture_recipe, targets) if content is not None and manifest is not None else None
    warnings += [*planned.warnings, *(given.warnings if given else [])]
    if as_json:
        told = {
            **planned.as_json(),
            "corpus": given.as_json() if given else None,
            "run": asdict(there) if there else None,
            "warnings": warnings,
        }
        print(json.dumps(told, indent=1, ensure_ascii=False), flush=True)
        return
    _show_plan(planned)
    if given:
        _show_corpus(given)
    if there:
        _show_run(there, str(run))
    for warning in warnings:
        print(visible(f"warning: {warning}"), flush=True)


def forecast(
    run: Annotated[Path, typer.Argument(help="A run's folder; it may still be running.", metavar="RUN")],
    until: Annotated[int | None, _tokens("Fit the steps up to so many tokens: 1e9, 500M. Default: half of the run's.")] = None,
    at: Annotated[int | None, _tokens("Tokens to foretell the loss of: 2e10, 20B. Default: the run's budget.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Foretells a run's loss from its first part, says how much that depends on the part, and where the rest departed."""
    from trainer.planning.forecast import ForecastError
    from trainer.planning.forecast import forecast as foretell
    from trainer.run_files.run_record import RecordError, RunRecord

    try:
        found = foretell(RunRecord.read(run), until, at)
    except (ForecastError, RecordError) as error:
        end(FAILED, visible(error))
    if as_json:
        print(json.dumps(found.as_json(), indent=1), flush=True)
        return
    rows = []
    for part in found.parts:
        curve = part.curve
        cells = (f"{curve.floor:.4f}", f"{curve.at(1.0) - curve.floor:.4g}", f"{curve.power:.4f}", f"{part.foretold:.4f}")
        rows.append((f"{part.first_tokens:,} to {part.last_tokens:,}", *cells))
    _table(["fitted tokens", "L_inf", "a", "g", f"loss at {found.at:,.0f}"], rows, right={1, 2, 3, 4})
    reached = "" if found.observed is None else f"; the run's is {found.observed:.4f}"
    print(f"foretold {found.part.foretold:.4f} nats a token, {found.low:.4f} to {found.high:.4f} by what is fitted{reached}")
    print(f"noise of a block of steps {found.noise:.4f}; {len(found.blocks):,} blocks after the part that was fitted")
    for one in found.departures:
        print(f"departure: steps {one.first_step:,} to {one.last_step:,} are {one.side} every curve, by {abs(one.furthest):.4f}")
    if found.blocks and not found.departures:
        print("no departure")
    for warning in found.warnings:
        print(visible(f"warning: {warning}"), flush=True)


def _content(manifest: str) -> Content:
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError

    try:
        return open_corpus(manifest)[1].content
    except (ManifestError, StorageError, OSError) as error:
        end(FAILED, visible(error))


def _shape(
    record: RunRecord | None,
    preset: str | None,
    model: list[str] | None,
    sequence_length: int | None,
    batch_tokens: int | None,
    gpus: int,
) -> TrainConfig:
    """Options of `train` that have this shape: a run's where there is one and no preset is named, else the preset's. A batch that
    nothing was said of is the nearest to the usual one of which each GPU has as many rows."""
    from trainer.configuration import ConfigurationError, TrainConfig

    changes: dict[str, Any] = {}
    for pair in model or []:
        name, equals, value = pair.partition("=")
        if not (name and equals) or name in changes:
            end(BAD_USAGE, f"--model {pair!r}: expected NAME=VALUE, once for each name")
        changes[name] = _value(value)
    for name, value in changes.items():
        most = MOST_LAYERS if name == "layers" else MOST
        if isinstance(value, (int, float)) and value > most:
            end(BAD_USAGE, f"--model {name}: {most:,} at most")
    like = record.config if record and preset is None else None
    name = preset or (like.preset if like else DEFAULT_PRESET)
    if name not in PRESETS:
        end(BAD_USAGE, f"--preset {name!r}: not one of {', '.join(PRESETS)}")
    length = sequence_length if sequence_length is not None else like.row_tokens if like else PRESETS[name].sequence_length
    batch = batch_tokens
    if batch is None:
        usual = like.batch_tokens_a_step if like else PRESETS[name].batch_tokens
        batch = max(1, round(usual / (length * gpus))) * length * gpus
    try:
        return TrainConfig.check(
            manifest="", out="", preset=name, model={**(like.model if like else {}), **changes}, sequence_length=length,
            batch_tokens=batch, micro_batch=like.micro_batch if like else None,
        )  # fmt: skip
    except ConfigurationError as error:
        end(BAD_USAGE, str(error))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _vocabulary(given: int | None, content: Content | None, record: RunRecord | None) -> tuple[int, list[str]]:
    """(tokens of the tokenizer, warnings)."""
    corpus = content.tokenizer.vocabulary if content and content.tokenizer else None
    if given is not None and given < 2:
        end(BAD_USAGE, f"--vocabulary {given}: 2 tokens at least")
    if given is None and corpus is None and record is None:
        end(BAD_USAGE, "--vocabulary is needed where neither --manifest nor --run says it")
    if given is not None and corpus is not None and given != corpus:
        return given, [f"the corpus's tokenizer has {corpus:,} tokens, not {given:,}: another one makes other numbers of them"]
    return given or corpus or (record.architecture.vocabulary if record else 0), []


def _usual_tokens(content: Content | None, parameters: int) -> float:
    from manifests.mixture import MixtureError, training_tokens
    from trainer.planning.chinchilla import TOKENS_PER_PARAMETER

    if content is None:
        return TOKENS_PER_PARAMETER * parameters
    try:
        return float(sum(training_tokens(content).values()))
    except MixtureError as error:
        end(FAILED, str(error))


def _gpu(name: str, memory: float | None) -> Gpu:
    if name not in GPUS:
        end(BAD_USAGE, f"--gpu {name!r}: not one of {', '.join(GPUS)}")
    return GPUS[name] if memory is None else replace(GPUS[name], memory=memory * 1e9)


def _usual_micro_batch(shape: TrainConfig, gpus: int) -> int:
    """As `train` would take it, or as near to it as the rows of a step allow."""
    rows = max(1, shape.rows_a_step // max(1, gpus))
    limit = min(rows, shape.micro_batch or PRESETS[shape.preset].micro_batch)
    return next(size for size in range(limit, 0, -1) if rows % size == 0)


def _epochs(content: Content, manifest: str, recipe: str | None, tokens: float) -> Mixed:
    from manifests import mixture as mixtures
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError

    try:
        chosen = mixtures.read_mixture("{}" if recipe is None else Path(recipe).read_text(encoding="utf-8"))
        tempered = any(phase.temperature is not None for phase in chosen.phases)
        languages = mixtures.tokens_by_language(*open_corpus(manifest)) if tempered else None
        return mixtures.plan(content, chosen, int(tokens), languages)
    except (mixtures.MixtureError, ManifestError, StorageError, OSError, UnicodeDecodeError) as error:
        end(FAILED, visible(f"{recipe or manifest}: {error}"))


def _show_plan(planned: TrainingPlan) -> None:
    asked = planned.request
    shape, checkpoints, payback = asked.architecture, planned.checkpoints, planned.payback
    lines = [("parameters", f"{shape.parameters():,}", _layers(planned))]
    lines += [(f"  {part}", f"{number:,}", "") for part, number in planned.parameters.items()]
    off = planned.shortcut / planned.flops - 1
    of_peak = f", {100 * planned.mfu:.1f} % of {asked.gpu.name}'s peak" if planned.mfu is not None else ""
    lines += [
        ("tokens", f"{asked.tokens:,.0f}", f"{planned.steps:,.0f} steps of {asked.batch_tokens:,}, T {asked.sequence_length:,}"),
        ("FLOPs", f"{planned.flops:.3e}", f"6 N D, the shortcut, is {planned.shortcut:.3e}: {100 * off:+.1f} %"),
        ("GPU-hours", _amount(planned.gpu_hours, 0), f"at {asked.achieved:.3e} FLOP/s{of_peak}"),
        ("days", _amount(planned.days, 2), f"on {asked.gpus:,}; {_amount(planned.days_with_failures, 2)} with failures"),
        (
            "checkpoint every", f"{checkpoints.interval / 60:,.1f} min",
            f"{100 * checkpoints.share:.1f} % lost: {checkpoints.writing:g} s, {checkpoints.mtbf / 3600:,.2f} h between failures",
        ),
    ]  # fmt: skip
    if planned.bubble is not None:
        lines.append(("pipeline bubble", f"{100 * planned.bubble:.1f} %", f"{asked.stages} stages"))
    best, rule, now = planned.optimum, planned.rule_of_thumb, planned.planned
    lines += [
        ("Chinchilla's fit", f"{now.loss:.6f}", f"nats a token; {asked.tokens / now.parameters:,.1f} tokens a parameter"),
        ("  best at 6 N D", f"{best.loss:.6f}", f"{_count(best.parameters)} parameters, {_count(best.tokens)} tokens"),
        ("  20 a parameter", f"{rule.loss:.6f}", f"{_count(rule.parameters)} parameters, {_count(rule.tokens)} tokens"),
        (
            "  same loss, cheapest", f"{payback.cheapest.flops / now.flops - 1:+.1%}",
            f"FLOPs: {_count(payback.cheapest.parameters)} parameters, {_count(payback.cheapest.tokens)} tokens; "
            + (
                "no larger, so this plan never pays back" if payback.served_tokens is None
                else f"this plan pays back after {payback.served_tokens:.3e} served tokens"
            ),
        ),
    ]  # fmt: skip
    _table(["", "", ""], lines, right={1})
    print()
    slots, average = f"{asked.micro_batch:,} x {asked.sequence_length:,}", "with a running average, " if asked.ema else ""
    print(
        f"GB a GPU of {asked.gpu.memory / 1e9:g}, {average}{100 * asked.headroom:g} % of it left free; "
        f"micro-batches of {slots} tokens: "
        f"activations {_gb(planned.activations)}, checkpointed {_gb(planned.checkpointed)}, logits {_gb(planned.logits)}"
    )
    rows = []
    for layout, states in planned.states.items():
        both = [one for one in planned.fits if one.layout == layout]
        cells = [cell for one in both for cell in (_gb(one.total), "fits" if one.fits else "too much")]
        rows.append((layout, _gb(states), *cells))
    _table(["layout", "states", "in all", "", "checkpointed", ""], rows, right={1, 2, 4})


def _layers(planned: TrainingPlan) -> str:
    shape = planned.request.architecture
    tied = "tied" if shape.tied else "untied"
    return (
        f"{shape.layers} layers x {shape.width:,}, {shape.heads}/{shape.kv_heads} heads, {shape.feed} {shape.hidden:,}, "
        f"vocabulary {shape.vocabulary:,} {tied}"
    )


def _show_corpus(given: Mixed) -> None:
    print()
    rows = [(row.component, f"{row.unique:,}", f"{row.tokens:,.0f}", f"{row.epochs:,.2f}") for row in given.rows]
    unique = sum(row.unique for row in given.rows)
    rows.append(("in all", f"{unique:,}", f"{given.tokens:,}", f"{given.tokens / unique:,.2f}"))
    _table(["component", "training tokens", "of the run", "epochs"], rows, right={1, 2, 3})


def _show_run(there: Measured, run: str) -> None:
    print()
    rows = [
        ("memory, GB a rank", _gb(there.estimated_memory), "-" if there.memory is None else _gb(there.memory), there.memory_of)
    ]
    speeds = (("targets/s, all ranks", there.tokens_per_second), ("FLOP/s a rank", there.achieved))
    rows += [(name, "", "-" if value is None else f"{value:.4g}", "") for name, value in speeds]
    shares = (("MFU, as planned here", there.mfu), ("mfu_palm", there.mfu_palm), ("mfu_causal_exact", there.mfu_causal_exact))
    rows += [(name, "", "-" if share is None else f"{100 * share:.1f} %", "") for name, share in shares]
    _table([visible(run), "estimate", "measured", ""], rows, right={1, 2})


def _table(headings: list[str], rows: Sequence[tuple[str, ...]], right: set[int]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=any(headings))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    terminal().print(table)


def _gb(size: float) -> str:
    return _amount(size / 1e9, 2)


def _amount(number: float, decimals: int) -> str:
    """With so many decimals, or with three digits where these would be noughts."""
    return f"{number:.3g}" if number < 10 ** (1 - decimals) else f"{number:,.{decimals}f}"


def _count(number: float) -> str:
    """With three decimals and a letter: 15.526B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:,.3f}{letter}"
    return f"{number:,.0f}"
