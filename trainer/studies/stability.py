"""A stability sweep: one small model at several learning rates, bare and with the usual remedies, one at a time and all together.

What makes a large run diverge shows in a small one at a higher rate (Wortsman et al. 2023): attention logits or log Z that grow,
gradients that jump. Each cell of the sweep is a run of its own with the same rows in the same order and the same initial
matrices, in a folder of its own; a cell that diverges is a row of the table. A sweep that was stopped goes on where it stood.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from manifests.storage import TEMPORARY_PREFIX, Folder, json_object
from trainer.code_digest import code_sha256
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.distributed.ranks import Ranks
from trainer.run.loop import train
from trainer.run.progress import RunProgress
from trainer.run_files.metrics import METRICS, DivergedError, MetricsError, read_rows
from trainer.run_files.run_record import number

BARE, ALL = "bare", "all"
REMEDIES = ("warmup", "clip", "z-loss", "qk-norm")
CONDITIONS = (BARE, *REMEDIES, ALL)
RATES = (0.003, 0.03)
CLIP = 1.0
"""The norm that gradients are cut to, where preset and options never cut (GPT-3's, and most models' since)."""
Z_LOSS = 1e-4
"""Coefficient of log Z squared, where no other was given (PaLM's)."""
LAST_STEPS = 20
"""Losses and log Z at the end are means over so many steps."""

RECORD, TABLE, PICTURE = "sweep.json", "sweep.csv", "stability.png"
RESULT, DIVERGED = "result.json", "diverged.json"
CONFIG, FACTS = "config.json", "run.json"
NAMES_TOLD = 3


@dataclass(frozen=True)
class Cell:
    """A run of the sweep; `name` is that of its folder."""

    rate: float
    condition: str
    config: TrainConfig

    @property
    def folder(self) -> Path:
        return Path(self.config.out)


@dataclass(frozen=True)
class Row:
    """What came of a cell. `loss` and `log_z` in nats, means over the last LAST_STEPS steps; `attention_logit_max` the largest
    of the run. A run that diverged has `diverged` and neither `loss` nor `log_z`."""

    rate: float
    condition: str
    run: str
    steps: int
    loss: float | None
    attention_logit_max: float | None
    log_z: float | None
    grad_norm_median: float | None
    grad_norm_max: float | None
    diverged: str | None


@dataclass(frozen=True)
class Swept:
    """`stopped_by`: the signal that ended the sweep before its last cell; the same command goes on from there."""

    rows: list[Row]
    stopped_by: int | None = None


def sweep(config: TrainConfig, rates: Sequence[float], ranks: Ranks, progress: RunProgress) -> Swept:
    """Trains every cell that was not trained yet, and writes `sweep.json`, `sweep.csv` and, where matplotlib is installed,
    `stability.png` to `config.out`. ConfigurationError for options that cannot work, cells there that were trained otherwise, or
    rates there that are not named.
    """
    planned = cells(config, rates)
    folder = Path(config.out)
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"--out {config.out} is a file; name a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / RECORD).exists():
        raise ConfigurationError(f"--out {config.out} is not empty, and is no sweep; name another folder")
    _keep_rates(folder / RECORD, rates)
    corpus = Corpus.open(config.manifest, config.cache).manifest.digest
    for cell in planned:
        _refuse_another(cell, corpus)
    ranks.barrier()  # no rank begins to write before all have looked
    if ranks.first:
        _write(folder, config, rates, corpus, [])
    for place, cell in enumerate(planned, 1):
        (done,) = ranks.maximum([float(_finished(cell))])
        said = f"{place} of {len(planned)}: {cell.folder.name}"
        progress.note(f"{said}, which was trained before" if done else said)
        if done:
            continue
        try:
            outcome = train(cell.config, ranks, RunProgress(progress.visible, progress.every), resume=True)
        except DivergedError as error:
            progress.note(str(error))
            if ranks.first:
                Folder(str(cell.folder.absolute())).write_json(DIVERGED, {"diverged": str(error)})
            continue
        if outcome.stopped_by is not None:
            return Swept([], outcome.stopped_by)
    ranks.barrier()
    rows = [row_of(cell) for cell in planned] if ranks.first else []
    if ranks.first:
        if len(trained := {_trained_by(cell) for cell in planned}) > 1:
            told = "; ".join(sorted(f"code {code[:12]}… on {device} in {dtype}" for code, device, dtype in trained))
            progress.note(f"warning: cells were trained in more than one way, and differ by that too: {told}")
        _write(folder, config, rates, corpus, rows)
        draw(folder, rows)
    return Swept(rows)


def cells(config: TrainConfig, rates: Sequence[float]) -> list[Cell]:
    """Every condition at every rate, in turn. Warmup, clipping and z-loss are those of `config` where they are on."""
    if config.steps is None and config.tokens is None:
        raise ConfigurationError("cells are compared step by step, so a sweep needs a budget in --steps or --tokens")
    told = ", ".join(f"{rate:g}" for rate in rates)
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ConfigurationError(f"rates {told or 'are missing'}: learning rates are numbers above 0")
    if len({f"{rate:g}" for rate in rates}) < len(rates):
        raise ConfigurationError(f"rates {told}: two have the same six digits, which name their folders")
    if "qk_norm" in config.model:
        raise ConfigurationError("qk_norm is a remedy that the sweep turns on and off: leave it out of --model")
    if not config.said("warmup"):
        raise ConfigurationError("warmup is a remedy that the sweep turns on and off: --warmup says for how much of the budget")
    on = {
        "warmup": {"warmup": config.said("warmup")},
        "clip": {"clip": config.said("clip") or CLIP},
        "z-loss": {"z_loss": config.z_loss or Z_LOSS},
        "qk-norm": {"model": {**config.model, "qk_norm": True}},
    }
    off = {"warmup": 0.0, "clip": 0.0, "z_loss": 0.0, "model": {**config.model, "qk_norm": False}}
    options = config.model_dump(mode="json")
    found = []
    for rate in rates:
        for condition in CONDITIONS:
            changed = {key: value for name in REMEDIES if condition in (name, ALL) for key, value in on[name].items()}
            out = {"out": str(Path(config.out) / f"{rate:g}-{condition}"), "learning_rate": rate}
            always = {"evaluate": False, "keep": 1, "watch_logits": config.watch_logits or 1}
            found.append(Cell(rate, condition, TrainConfig.check(**{**options, **off, **changed, **out, **always})))
    return found


def row_of(cell: Cell) -> Row:
    """What the metrics of a finished cell say."""
    lines = read_rows(cell.folder / METRICS)
    diverged = cell.folder / DIVERGED
    why = str(json_object(diverged, MetricsError, "").get("diverged")) if diverged.exists() else None
    norms = _numbers(lines, "grad_norm")
    last = [] if why else lines[-LAST_STEPS:]
    return Row(
        cell.rate,
        cell.condition,
        cell.folder.name,
        len(lines),
        _mean(_numbers(last, "loss")),
        max(_numbers(lines, "attention_logit_max"), default=None),
        _mean(_numbers(last, "log_z")),
        statistics.median(norms) if norms else None,
        max(norms, default=None),
        why,
    )


def draw(folder: Path, rows: Sequence[Row]) -> Path | None:
    """Draws `stability.png`: loss, attention logits, log Z and gradient norm over the steps of every cell, a column a rate; None
    where matplotlib is not there."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    shown = (("loss", "loss, nats", False), ("attention_logit_max", "largest attention logit", True),
             ("log_z", "log Z, nats", False), ("grad_norm", "gradient norm", True))  # fmt: skip
    rates = list(dict.fromkeys(row.rate for row in rows))
    figure = Figure(figsize=(1.5 + 5 * len(rates), 11), layout="constrained")
    grid = figure.subplots(len(shown), len(rates), sharex="col", sharey="row", squeeze=False)
    for column, rate in enumerate(rates):
        for row in (row for row in rows if row.rate == rate):
            lines = read_rows(folder / row.run / METRICS)
            style = {"color": "black" if row.condition == ALL else f"C{CONDITIONS.index(row.condition)}", "linewidth": 1.2}
            label = row.condition + (" (diverged)" if row.diverged else "")
            for axes, (name, _, _) in zip(grid[:, column], shown, strict=True):
                points = [(line["step"], line[name]) for line in lines if number(line.get(name)) is not None]
                axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        grid[0][column].set_title(f"learning rate {rate:g}")
        grid[-1][column].set_xlabel("step")
        grid[0][column].legend(fontsize=8)
    for axes, (_, label, logarithmic) in zip(grid[:, 0], shown, strict=True):
        axes.set_ylabel(label)
        if logarithmic:
            axes.set_yscale("log")
    for axes in grid.flat:
        axes.grid(alpha=0.3)
    figure.savefig(folder / PICTURE, dpi=110)
    return folder / PICTURE


def _keep_rates(record: Path, rates: Sequence[float]) -> None:
    """ConfigurationError where the table of a sweep that is there would lose rates."""
    if not record.exists():
        return
    try:
        before = [float(rate) for rate in json.loads(record.read_text())["rates"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"{record}: not what a sweep writes: {error}") from None
    if missing := [f"{rate:g}" for rate in before if rate not in rates]:
        raise ConfigurationError(
            f"{record.parent} has a sweep with rates {', '.join(missing)} as well: name these too, whose cells are not trained "
            "again, or another --out"
        )


def _refuse_another(cell: Cell, corpus: str) -> None:
    """A folder that holds a run of other options or of another corpus would be a row that does not belong to the others, and one
    that holds no run at all is somebody's. The cell's own run has the two files before anything else: killed between them, the
    first alone."""
    try:
        there = _names(cell.folder)
        if not there:
            return
        if CONFIG not in there or (FACTS not in there and there != [CONFIG]):
            told = ", ".join(there[:NAMES_TOLD]) + (", …" if len(there) > NAMES_TOLD else "")
            raise ConfigurationError(f"{cell.folder} is not empty, and holds no run of this sweep ({told}); name another --out")
        saved = json.loads((cell.folder / CONFIG).read_text(encoding="utf-8"))
        facts = json.loads((cell.folder / FACTS).read_text(encoding="utf-8")) if FACTS in there else {"manifest_digest": corpus}
        trained_on = facts["manifest_digest"]
        changed = cell.config.differences(saved)
        changed += [f"{n}: {saved.get(n)!r} -> {v!r}" for n, v in _held_to(cell.config).items() if (saved.get(n) or None) != v]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{cell.folder}: not what a run writes: {error}") from None
    if changed:
        raise ConfigurationError(f"{cell.folder} was trained with other options: {'; '.join(changed)}; name another --out")
    if trained_on != corpus:
        raise ConfigurationError(f"{cell.folder} was trained on another corpus; name another --out")


def _names(folder: Path) -> list[str]:
    """What lies in a folder that may not exist, but for what a killed process left half written."""
    if not folder.exists():
        return []
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(TEMPORARY_PREFIX))


def _held_to(config: TrainConfig) -> dict[str, int | None]:
    """Options that a run may be given anew when it is resumed, and that a cell may not differ in; a cell has no parent and skips
    no steps."""
    return {"steps": config.steps, "tokens": config.tokens, "parent": None, "skip_steps": None}


def _trained_by(cell: Cell) -> tuple[str, str, str]:
    """(digest of the trainer's code, device, precision) as the cell's run says."""
    facts = json.loads((cell.folder / FACTS).read_text(encoding="utf-8"))
    return str(facts["code_sha256"]), str(facts["device"]), str(facts["dtype"])


def _finished(cell: Cell) -> bool:
    return any((cell.folder / name).exists() for name in (RESULT, DIVERGED))


def _numbers(lines: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Those that are there and finite."""
    return [found for line in lines if (found := number(line.get(name))) is not None]


def _mean(numbers: Sequence[float]) -> float | None:
    return statistics.fmean(numbers) if numbers else None


def _write(folder: Path, config: TrainConfig, rates: Sequence[float], corpus: str, rows: Sequence[Row]) -> None:
    out = Folder(str(folder.absolute()))
    record = {
        "manifest_digest": corpus,
        "code_sha256": code_sha256(),
        "rates": list(rates),
        "conditions": list(CONDITIONS),
        "config": config.model_dump(mode="json", exclude={"manifest", "out", "cache"}),
        "rows": [asdict(row) for row in rows],
    }
    out.write_json(RECORD, record)
    if rows:
        text = io.StringIO()
        table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
        out.write(TABLE, text.getvalue().encode())
