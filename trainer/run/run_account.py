"""What a run says of itself: lines and `config.json` and `run.json` when it begins, lines and `result.json` when it has ended."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from manifests.storage import Folder, json_object
from trainer.adaptation.gate import Decision
from trainer.code_digest import code_sha256
from trainer.run.run_parts import RunParts
from trainer.run_files.picture import draw
from trainer.scores.evaluation import Score

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


def write_facts(run: RunParts) -> None:
    """`config.json` and `run.json`, before the first step."""
    folder = _folder(run)
    folder.write_json("config.json", run.config.model_dump(mode="json"))
    facts = {
        "manifest_digest": run.corpus.manifest.digest,
        "tokenizer_sha256": run.corpus.tokenizer.sha256,
        "loader_digest": run.loader.digest,
        "architecture": run.architecture.model_dump(),
        "parameters": run.architecture.parameters(),
        "code_sha256": code_sha256(),
        "ranks": run.ranks.world,
        "replicas": run.layout.replicas,
        "shards": run.layout.shards,
        "device": run.speed.device_name,
        "dtype": run.dtype,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "lineage": run.lineage,
        **({"continued": run.continued.facts()} if run.continued else {}),
    }
    folder.write_json("run.json", facts)


def announce(run: RunParts) -> None:
    """Model, optimiser, device, layout and data, in a line each."""
    config, say = run.config, run.progress.note
    a = run.architecture
    say(
        f"model: {a.layers} layers x {a.width}, {a.heads}/{a.kv_heads} heads, {a.feed} {a.hidden}, vocabulary "
        f"{a.vocabulary:,}: {a.parameters():,} parameters, {a.matmul_parameters():,} in matmuls"
        + (f"; {a.short_layers} layers see the last {a.window} tokens only" if a.short_layers else "")
    )
    say(
        f"optimiser: {config.said('optimiser')} at {config.peak_rate:g}, {config.said('schedule')}, weight decay "
        f"{config.said('weight_decay'):g}, "
        + (f"gradient norms up to {config.norm_limit:g}" if math.isfinite(config.norm_limit) else "gradients not clipped")
    )
    say(
        f"device: {run.speed.device_name} x {run.ranks.world}, {run.dtype}, "
        f"{'compiled' if run.compiled else 'not compiled'}, attention {config.attention}, recompute {config.recompute}"
    )
    say(f"layout: {run.layout.describe(a.parameters())}")
    if run.ema:
        more = 4 * a.parameters() / run.layout.shards / 1e9
        say(f"running average of the weights: decay {run.ema.decay:g}, {more:.2f} GB more on each rank")
    if run.layout.sharded:
        once = config.accumulate == "whole" and run.micro_count > 1
        often = "once a step" if once else "block by block in every micro-batch"
        say(f"parameters are gathered and gradients reduced {often}")
    for stretch in run.steps.stretches:
        each = stretch.rows // run.ranks.world // run.micro_rows
        say(
            (f"from step {stretch.first_step:,} on, " if config.batch_ramp else "")
            + f"batch: {stretch.rows * config.row_tokens:,} tokens = {run.ranks.world} ranks x {each} micro-batches x "
            f"{run.micro_rows} rows x {config.row_tokens}"
        )
    for component, plan in zip(run.loader.components, run.loader.plans, strict=True):
        say(
            f"component {component.name}: {len(component.lengths):,} documents, {plan.pairs_total:,} tokens = "
            f"{plan.pairs_emitted:,} emitted + {plan.pairs_dropped:,} dropped, in {plan.rows:,} rows with "
            f"{plan.padding:,} padding ({plan.padding / (plan.rows * plan.sequence_length):.3%})"
        )
    if config.steps is not None:
        for name, epochs in run.loader.epochs(run.steps.position(config.steps + 1)).items():
            if epochs > MANY_EPOCHS:
                say(f"component {name} will be repeated: {epochs:.1f} epochs")


class ResultError(Exception):
    """A result that is not there, or that no run has written."""


def write_result(run: RunParts, outcome: Outcome) -> None:
    """`result.json`, and the picture beside it where it can be drawn; tells what is in it."""
    score, say = outcome.score, run.progress.note
    picture = draw(run.folder, f"{run.config.preset}: {outcome.line()}")
    epochs = run.loader.epochs(run.position)
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
        **({} if outcome.gate is None else {"gate": outcome.gate.as_json(), "earlier_gates": _earlier_gates(run)}),
        **_averaged(run, outcome.averaged),
    }
    _folder(run).write_json("result.json", result)
    say(
        f"trained {outcome.training_seconds:.1f} s on a {run.config.clock} clock, after {outcome.preparation_seconds:.1f} s of "
        f"reading, checking and warming up; {outcome.tokens:,} tokens; epochs: "
        f"{', '.join(f'{name} {passes:.2f}' for name, passes in epochs.items())}"
    )
    if score is not None:
        say(score.describe())
    if outcome.averaged is not None:
        say(f"running average: {outcome.averaged.describe()}")


def _earlier_gates(run: RunParts) -> list[dict[str, Any]]:
    """What was decided of this run after fewer steps, before it went on: a gate that failed is not forgotten when one passes."""
    try:
        before = json_object(run.folder / "result.json", ResultError, "")
    except ResultError:
        return []
    earlier = [one for one in before.get("earlier_gates", []) if isinstance(one, dict)]
    if "gate" in before and before.get("steps") != run.step:
        earlier.append({"steps": before.get("steps"), "gate": before["gate"]})
    for one in earlier:
        word = one["gate"].get("gate") if isinstance(one.get("gate"), dict) else None
        run.progress.note(f"gate={word} after {one.get('steps')} steps, before this run went on: kept in result.json")
    return earlier


def _averaged(run: RunParts, score: Score | None) -> dict[str, Any]:
    if run.ema is None:
        return {}
    scored = None if score is None else score.as_json()
    return {"ema": {"decay": run.ema.decay, "updates": run.ema.updates, "score": scored}}


def _folder(run: RunParts) -> Folder:
    return Folder(str(run.folder.absolute()))
