"""Commands on what a run left: the documents of a step, steps computed again, text from a model, noise, export."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.terminal import terminal, visible
from trainer.command_line.exits import BAD_USAGE, FAILED, end, explain, need_torch
from trainer.command_line.run_options import (
    CacheOption,
    CheckpointArgument,
    CorpusOption,
    DeviceOption,
    JsonOption,
    RunArgument,
    StepArgument,
    open_corpus_of,
    weights_of,
)

if TYPE_CHECKING:
    from trainer.scores.noise import Group
    from trainer.studies.replay import Replayed

exports = typer.Typer(help="Write a corpus or a model for other programs.", no_args_is_help=True)


def batch(
    run: RunArgument,
    step: StepArgument,
    losses: Annotated[
        bool, typer.Option("--losses", help="What the checkpoint before the step loses on each piece, in nats a target.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="With --losses: this checkpoint instead.", metavar="CHECKPOINT")] = None,
    manifest: CorpusOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Shows the documents of a step: which piece of which document stood in which of its rows."""
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError
    from manifests.trained_on import LedgerError, TrainedOn
    from trainer.studies.batch import is_skipped, pieces_of_step

    losses = losses or checkpoint is not None
    where = manifest or _corpus_of(run)
    try:
        joined = TrainedOn(run, *open_corpus(where))
        pieces = pieces_of_step(joined, step)
        skipped = is_skipped(joined, step)
    except (LedgerError, ManifestError, StorageError, OSError) as error:
        end(FAILED, str(error))
    used = None
    if losses:
        need_torch()
        from trainer.data.corpus import Corpus
        from trainer.distributed.ranks import Ranks, usual_dtype
        from trainer.run_files.checkpoint import newest_first, step_of
        from trainer.run_files.checkpoint_format import CheckpointError
        from trainer.scores.scoring import load_model
        from trainer.studies.batch import with_losses

        try:
            ranks = Ranks.join(device)
            if checkpoint is None:
                before = [folder for folder in newest_first(run) if step_of(folder) < step]
                if not before:
                    raise CheckpointError(f"{run}: no checkpoint of a step before {step} is kept; --checkpoint names one")
                checkpoint = before[0]
            loaded = load_model(checkpoint)
            loaded.model.to(ranks.device)
            corpus = Corpus.open(where, cache)
            pieces = with_losses(pieces, joined, step, loaded, corpus, usual_dtype(ranks.device.type))
            used = {"checkpoint": str(loaded.folder), "step": loaded.state.step}
        except Exception as error:
            explain(error)
    targets = sum(piece.targets for piece in pieces)
    loss = sum((piece.loss or 0.0) * piece.targets for piece in pieces) / targets if losses else None
    if as_json:
        rows = [
            {name: value for name, value in dataclasses.asdict(piece).items() if losses or name != "loss"} for piece in pieces
        ]
        told = {"step": step, "skipped": skipped, "targets": targets, "pieces": rows}
        print(json.dumps({**told, "loss": loss, "losses_of": used} if losses else told, indent=1), flush=True)
        return
    columns = ["row", "component", "document", "tokens", "of", "epoch", *(["loss"] if losses else [])]
    table = [
        [
            str(piece.row), piece.component, piece.id, f"{piece.first_token:,} to {piece.first_token + piece.targets - 1:,}",
            f"{piece.tokens:,}", str(piece.epoch + 1), *([f"{piece.loss:.4f}"] if piece.loss is not None else []),
        ]
        for piece in pieces
    ]  # fmt: skip
    _show(columns, table, {"component", "document"})
    passed_over = "; the run passed over this step" if skipped else ""
    print(f"step {step}: {len(pieces):,} pieces, {targets:,} targets{passed_over}", flush=True)
    if used:
        print(f"loss {loss:.4f} by {visible(used['checkpoint'])}, of step {used['step']}", flush=True)


def replay(
    run: RunArgument,
    step: StepArgument,
    until: Annotated[int | None, typer.Option(help="The last step; default: STEP alone.", metavar="STEP")] = None,
    manifest: CorpusOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Computes steps again from the checkpoint before them and compares them with the run's record. Writes nothing to the run."""
    need_torch()
    from trainer.distributed.ranks import Ranks
    from trainer.run.progress import RunProgress
    from trainer.studies.replay import replay as again

    try:
        ranks = Ranks.join(device)
        with tempfile.TemporaryDirectory(prefix="corpusmill-replay-") as scratch:
            done = again(run, step, until or step, Path(scratch) / "run", ranks, RunProgress(ranks.first, 10), manifest=manifest)
    except Exception as error:
        explain(error)
    if as_json:
        rows = [{**dataclasses.asdict(one), "same": one.same} for one in done.steps]
        told = {"checkpoint": done.checkpoint, "passed_over": done.passed_over, "diverged": done.diverged, "steps": rows}
        print(json.dumps(told, indent=1), flush=True)
    else:
        _show_replayed(done)


def generate(
    checkpoint: CheckpointArgument,
    prompt: Annotated[str, typer.Argument(help="The text to go on with; may be empty.", metavar="PROMPT")],
    tokens: Annotated[int, typer.Option(help="At most this many tokens.", min=1)] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from the likeliest K; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest that are this likely together.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    manifest: CorpusOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Goes on with a text, until the model ends the document or the tokens are used up."""
    need_torch()
    from trainer.distributed.ranks import Ranks, usual_dtype
    from trainer.export import generation
    from trainer.run_files.tokenizer import open_tokenizer
    from trainer.scores.scoring import load_model, model_logits

    try:
        sampling = generation.Sampling(temperature, top_k, top_p, seed)
        ranks = Ranks.join(device)
        path, beside = weights_of(checkpoint)
        loaded = load_model(path)
        corpus = open_corpus_of(manifest or beside, loaded.config.manifest)
        tokenizer = open_tokenizer(corpus.folder, corpus.tokenizer.file, loaded.state.tokenizer_sha256)
        bos = corpus.tokenizer.bos_id
        asked = [bos, *tokenizer.encode(prompt, add_special_tokens=False).ids]
        logits = model_logits(loaded.model.to(ranks.device), usual_dtype(ranks.device.type))
        length = loaded.config.row_tokens
        found = list(generation.generate(logits, asked, bos, length, tokens, sampling, ranks.device))
    except Exception as error:
        explain(error)
    text = tokenizer.decode(found, skip_special_tokens=False)
    if as_json:
        told = {
            "prompt": prompt, "text": text, "tokens": found, "ended": len(found) < tokens, "seed": seed,
            "checkpoint": str(loaded.folder), "step": loaded.state.step,
        }  # fmt: skip
        print(json.dumps(told, indent=1), flush=True)
    else:
        print(visible(prompt + text), flush=True)


def noise(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs that differ in their seed alone.", metavar="RUN...")],
    against: Annotated[list[Path] | None, typer.Option(help="Runs to compare them with; repeat.", metavar="RUN")] = None,
    as_json: JsonOption = False,
) -> None:
    """Says how far val_bpb differs by seed alone, and whether two groups of runs differ by more than three times that."""
    from trainer.scores.noise import NOISES, NoiseError, compare, group

    try:
        first = group(runs)
        second = group(against) if against else None
        found = compare(first, second) if second else None
    except NoiseError as error:
        end(FAILED, str(error))
    if as_json:
        groups = [dataclasses.asdict(one) for one in (first, second) if one]
        print(json.dumps({"groups": groups, "comparison": found.as_json() if found else None}, indent=1), flush=True)
        return
    for one in (first, second):
        if one:
            _show_group(one)
    if found:
        low, high = found.interval
        verdict = "differ" if found.differ else f"do not differ by more than {NOISES:g} times the noise"
        print(
            f"difference {found.difference:+.4f} (95 %: {low:+.4f} to {high:+.4f}), {found.noises:.1f} times the noise of a run, "
            f"{found.noise:.4f}: the groups {verdict}",
            flush=True,
        )


@exports.command("huggingface")
def export_huggingface(
    checkpoint: CheckpointArgument,
    output: Annotated[Path, typer.Option(help="A new folder.", metavar="DIR")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    manifest: CorpusOption = None,
) -> None:
    """Writes a model and its tokenizer for Hugging Face transformers (`AutoModelForCausalLM.from_pretrained`)."""
    if dtype not in ("bfloat16", "float32"):
        end(BAD_USAGE, f"--dtype {dtype}: bfloat16 or float32")
    need_torch()
    from trainer.export.huggingface import export
    from trainer.scores.scoring import load_model

    try:
        path, beside = weights_of(checkpoint)
        loaded = load_model(path)
        names = export(loaded, open_corpus_of(manifest or beside, loaded.config.manifest), output, dtype)
    except Exception as error:
        explain(error)
    for name in names:
        print(visible(output / name), flush=True)
    print(visible(f"of {loaded.folder}, of step {loaded.state.step:,}"), file=sys.stderr, flush=True)


def _corpus_of(run: Path) -> str:
    from manifests.trained_on import corpus_of

    found = corpus_of(run)
    if found is None:
        end(FAILED, f"{run}: it does not say which corpus it was trained on; --manifest names one")
    return found


def _show_replayed(done: Replayed) -> None:
    columns = ["step", "loss", "recorded", "gradient norm", "recorded", ""]
    rows = []
    for one in done.steps:
        same = "" if one.recorded_loss is None else "the same" if one.same else "not the same"
        figures = (one.loss, one.recorded_loss, one.grad_norm, one.recorded_grad_norm)
        rows.append([str(one.step), *("-" if figure is None else f"{figure:.6f}" for figure in figures), same])
    _show(columns, rows, {""})
    print(f"from {visible(done.checkpoint)}", flush=True)
    for name, why in done.passed_over.items():
        print(visible(f"warning: passed over {name} ({why}), which is nearer to the steps"), flush=True)
    if done.diverged:
        print(visible(done.diverged), flush=True)


def _show_group(one: Group) -> None:
    rows = [
        [visible(run), "" if seed is None else str(seed), f"{score:.4f}"]
        for run, seed, score in zip(one.runs, one.seeds, one.scores, strict=True)
    ]
    _show(["run", "seed", "val_bpb"], rows, {"run"})
    deviation = "unknown, of one run" if one.deviation is None else f"{one.deviation:.4f}"
    print(f"mean {one.mean:.4f}, standard deviation {deviation}", flush=True)
    if one.differing:
        print(f"not of their seed alone: these runs differ in {', '.join(one.differing)}", flush=True)
    if len(set(one.seeds)) < len(one.seeds):
        print("some of these runs have the same seed", flush=True)


def _show(columns: list[str], rows: list[list[Any]], left: set[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    terminal().print(table)
