"""Our trainer against karpathy/autoresearch's own train.py: same documents, same tokenizer, same clock, one evaluator.

    python -m bench.autoresearch_race run TRAIN_PY CORPUS --out FOLDER --seconds 60 --seeds 0 1 2 3
    python -m bench.autoresearch_race table FOLDER ...

TRAIN_PY is a copy of its train.py; none is shipped here. CORPUS is a corpus, or a .tar.xz of one. `run` trains each side with
each seed, each run in a process of its own with a limit of its own, writes FOLDER/SIDE-SEED/race.json and prints the table
after every one; `table` prints that of several folders together, so that runs can be spread over machines or days. `--devices`
runs as many at a time, each on one GPU. `--cpu` is for trying it out.

What the other side gets. Its source runs as it is but for the lines that `changes` returns, which are printed. Its two imports
are replaced. `kernels`: FlashAttention 3 becomes torch's SDPA, and its half windows become FlexAttention (`--windows flex`) or
whole ones (`full`). `prepare`: tokens come from our shards through a packer of the same kind as its own, written anew here: a
buffer of 1,000 documents, the longest that fits, else the shortest cropped, in Python. Its documents are in an order that the
seed draws, as ours are, and in the same one in every epoch, as its files. Three things are in its favour: it is handed token ids,
where the original encodes text meanwhile; its pinned buffer is not overwritten before the copy was made (`--buffer single` leaves
that to chance, as one buffer without a wait does); and the eleven steps before its clock starts train as well, which ours do not.

Scores are `trainer.scores.evaluation.evaluate_bpb`'s for both, probe included. MFU is that of `trainer.network.flops` for both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from trainer.data.corpus import Component, Corpus
from trainer.distributed.ranks import Ranks
from trainer.network.flops import mfu
from trainer.scores.evaluation import EvaluationError, evaluate_bpb

PEER, OURS = "autoresearch", "corpusmill"
RESULT = "race.json"
BUFFERED = 1_000
"""Documents among which the packer looks for the longest that fits."""
REFILL = 128
"""Documents that are read at a time."""
FREE_STEPS = 11
"""Steps that train before the other side's clock starts."""
PEER_SETS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""What its train.py puts into the environment before it imports torch, which here was imported before."""
SAME = ("documents_sha256", "tokenizer_sha256", "evaluator_sha256", "sequence_length")
"""Of a score: what two must share to compare."""
BAR = 3.0
"""How many times the seed noise a difference must be."""
REPOSITORY = Path(__file__).resolve().parent.parent
Documents = Iterator[tuple[list[list[int]], int]]


class RaceError(Exception):
    """A train.py that is not the one this bench knows, or a run that cannot be made."""


@dataclass
class Packer:
    """Rows of T + 1 tokens, each filled to the last: the longest buffered document that still fits, again and again; where
    none does, the shortest one is cropped to the rest and what is left of it is lost. `documents` yields batches of token
    lists (BOS first) with the number of the epoch."""

    documents: Documents
    length: int
    held: list[list[int]] = field(default_factory=list)
    epoch: int = 1
    taken: int = 0
    """Tokens of all documents that were placed, with what was cropped."""
    cropped: int = 0

    def fill(self, row: Tensor) -> None:
        at, end = 0, self.length + 1
        while at < end:
            while len(self.held) < BUFFERED:
                more, self.epoch = next(self.documents)
                self.held.extend(more)
            document = self.held.pop(self._choose(end - at))
            piece = document[: end - at]
            row[at : at + len(piece)] = torch.tensor(piece, dtype=torch.long)
            at += len(piece)
            self.taken += len(document)
            self.cropped += len(document) - len(piece)

    def _choose(self, room: int) -> int:
        longest, best = 0, -1
        for n, document in enumerate(self.held):
            size = len(document)
            if longest < size <= room:
                longest, best = size, n
        return best if best >= 0 else min(range(len(self.held)), key=lambda n: len(self.held[n]))


def changes(options: argparse.Namespace, seed: int) -> list[tuple[str, str]]:
    """(pattern of a line's part, what stands there instead): all that is changed in the other side's source."""
    found = [
        (r"(?<=torch\.manual_seed\()\d+", str(seed)),
        (r"(?<=torch\.cuda\.manual_seed\()\d+", str(seed)),
    ]
    for name, value in (
        ("DEPTH", options.depth), ("DEVICE_BATCH_SIZE", options.rows), ("TOTAL_BATCH_SIZE", options.batch_tokens)
    ):  # fmt: skip
        if value is not None:
            found.append((rf"(?m)(?<=^{name} = )[\d*]+", str(value)))
    if options.cpu:
        found += [
            (r"torch\.cuda\.get_device_capability\(\)", "(9, 0)"),
            (r'(?<=torch\.device\()"cuda"', '"cpu"'),
            (r'(?<=device_type=)"cuda"', '"cpu"'),
            (r"torch\.cuda\.synchronize\(\)", "None"),
        ]
    return found


def adapted(source: str, found: Sequence[tuple[str, str]]) -> str:
    """`source` with the changes made; RaceError when one has no place in it."""
    for pattern, value in found:
        source, count = re.subn(pattern, lambda _, value=value: value, source)  # type: ignore[misc]
        if not count:
            raise RaceError(f"nothing in this train.py matches {pattern}: it is another version than this bench knows")
    return source


def noise(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, float]:
    """(mean of ours less mean of the other's, standard deviation from seed to seed, pooled over both); nan where unknown."""
    if not ours or not peer:
        return math.nan, math.nan
    squares = [sum((value - statistics.fmean(side)) ** 2 for value in side) for side in (ours, peer)]
    freedom = len(ours) + len(peer) - 2
    return statistics.fmean(ours) - statistics.fmean(peer), math.sqrt(sum(squares) / freedom) if freedom else math.nan


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row a run, means and seed noise of each side, and the difference in units of that noise."""
    lines = [
        "| side | seed | val_bpb | tokens | epochs | tokens/s | MFU PaLM | MFU causal | GB | steps | median / worst step, ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(results, key=lambda r: (r["side"], r["seed"])):
        if one.get("failed"):
            lines.append(f"| {one['side']} | {one['seed']} | failed: {one['failed']} |" + " |" * 8)
            continue
        step = " / ".join(_figure(one.get(name), ".0f") for name in ("step_ms_median", "step_ms_worst"))
        cells = (
            _figure(one["val_bpb"], ".4f"), _figure(one["tokens"], ",.0f"), _figure(one["epochs"], ".2f"),
            _figure(one["tokens_per_second"], ",.0f"), _figure(one["mfu_palm"], ".1%"),
            _figure(one["mfu_causal_exact"], ".1%"), _figure(one["memory_gb"], ".1f"), _figure(one["steps"], ",.0f"), step,
        )  # fmt: skip
        lines.append(f"| {one['side']} | {one['seed']} | {' | '.join(cells)} |")
    scores = {side: [r["val_bpb"] for r in results if r["side"] == side and r.get("val_bpb")] for side in (OURS, PEER)}
    speeds = {side: [r["tokens_per_second"] for r in results if r["side"] == side and r.get("val_bpb")] for side in (OURS, PEER)}
    lines.append("")
    for side, values in scores.items():
        if values:
            spread = f"{statistics.stdev(values):.5f}" if len(values) > 1 else "unknown"
            lines.append(
                f"{side}: mean {statistics.fmean(values):.5f} bits per byte, standard deviation {spread} over {len(values)} "
                f"seeds; {statistics.fmean(speeds[side]):,.0f} tokens/s"
            )
    for what in SAME:
        if len({one["score"][what] for one in results if one.get("score")}) > 1:
            lines.append(f"THESE RUNS DO NOT COMPARE: they differ in {what}")
    difference, deviation = noise(scores[OURS], scores[PEER])
    if not math.isnan(difference):
        lines.append(f"difference {difference:+.5f} bits per byte ({difference / statistics.fmean(scores[PEER]):+.2%})")
        ratio = statistics.fmean(speeds[OURS]) / statistics.fmean(speeds[PEER])
        lines[-1] += f"; tokens/s {ratio:.2f} times the other's"
    if deviation > 0:
        verdict = "more than" if -difference > BAR * deviation else "NOT more than"
        lines.append(
            f"that is {difference / deviation:+.1f} times the seed noise of {deviation:.5f} (pooled): lower by {verdict} "
            f"{BAR:g} times it"
        )
    return "\n".join(lines)


# the other side


def train_peer(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Runs the other side's train.py in this process and scores what it trained."""
    ranks = Ranks.join("cpu" if options.cpu else "cuda")
    corpus = Corpus.open(options.corpus)
    components = [corpus.component(name, "train") for name in corpus.components("train")]
    loader = _StandIn(components, options, seed, ranks.device)
    sys.modules["kernels"] = _kernels(options)
    sys.modules["prepare"] = _prepare(options, corpus, loader)
    source = adapted(Path(options.train_py).read_text(), changes(options, seed))
    module = types.ModuleType("autoresearch_train")
    sys.modules[module.__name__] = module
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"  # so that a traceback shows its lines
        path.write_text(source)
        try:
            exec(compile(source, str(path), "exec"), module.__dict__)
        except SystemExit as end:
            raise RaceError(f"its train.py ended with exit code {end.code}: the loss diverged") from None
    took = time.perf_counter() - began
    found = module.__dict__
    model = getattr(found["model"], "_orig_mod", found["model"])
    steps, batch, clock = found["step"], found["TOTAL_BATCH_SIZE"], found["total_training_time"]
    speed = (steps - FREE_STEPS) * batch / clock
    total = sum(component.tokens for component in components)
    result: dict[str, Any] = {
        "tokens": steps * batch, "steps": steps, "training_seconds": clock, "run_seconds": took,
        "tokens_per_second": speed, **_peer_mfu(model, speed, options, ranks.device),
        "epochs": loader.packer.taken / total, "cropped_share": loader.packer.cropped / max(1, loader.packer.taken),
        "memory_gb": found["peak_vram_mb"] * 2**20 / 1e9, "parameters": found["num_params"],
    }  # fmt: skip

    def logits(tokens: Tensor) -> Tensor:
        with torch.autocast(ranks.device.type, torch.bfloat16):
            scored: Tensor = model(tokens)
        return scored

    try:
        score = evaluate_bpb(logits, corpus, "validation", options.length, ranks, "bfloat16")
    except EvaluationError as error:
        return {**result, "val_bpb": None, "failed": f"our evaluator: {error}"}
    return {**result, "val_bpb": score.val_bpb, "score": score.as_json()}


class _StandIn:
    """Its data loader: inputs and targets in one buffer on the device, that the next batch is copied over."""

    def __init__(self, components: Sequence[Component], options: argparse.Namespace, seed: int, device: torch.device) -> None:
        self.device, self.guarded = device, options.buffer == "guarded"
        self.packer = Packer(_documents(components, seed), options.length)

    def batches(self, rows: int, length: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        on_gpu = self.device.type == "cuda"
        packed = torch.empty((rows, length + 1), dtype=torch.long)
        host = torch.empty((2, rows, length), dtype=torch.long, pin_memory=on_gpu)
        there = torch.empty((2, rows, length), dtype=torch.long, device=self.device)
        copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        while True:
            for row in packed:
                self.packer.fill(row)
            if copied is not None and self.guarded:
                copied.synchronize()
            host[0].copy_(packed[:, :-1])
            host[1].copy_(packed[:, 1:])
            there.copy_(host, non_blocking=True)
            if copied is not None:
                copied.record()
            yield there[0], there[1], self.packer.epoch


def _documents(components: Sequence[Component], seed: int) -> Documents:
    """Every document as a list of ids, in an order that the seed draws, again and again."""
    places = [(c, begin, size) for c in components for begin, size in zip(c.starts.tolist(), c.lengths.tolist(), strict=True)]
    order = np.random.default_rng(seed).permutation(len(places)).tolist()
    epoch = 1
    while True:
        for first in range(0, len(order), REFILL):
            chosen = (places[n] for n in order[first : first + REFILL])
            yield [component.read(begin, size).tolist() for component, begin, size in chosen], epoch
        epoch += 1


def _kernels(options: argparse.Namespace) -> types.ModuleType:
    module = types.ModuleType("kernels")
    interface = types.SimpleNamespace(flash_attn_func=_attention(options))
    vars(module)["get_kernel"] = lambda name: types.SimpleNamespace(flash_attn_interface=interface)
    return module


def _attention(options: argparse.Namespace) -> Callable[..., Tensor]:
    """FlashAttention's call over (rows, t, heads, width): a query sees itself and at most `window` keys before it."""
    length, half = options.length, options.length // 2
    flex = options.windows == "flex"
    mask: Any = None
    if flex:
        device = "cpu" if options.cpu else "cuda"
        mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k <= half), None, None, length, length, device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, window_size: tuple[int, int] = (-1, -1)) -> Tensor:
        t, window, grouped = q.shape[1], window_size[0], q.shape[2] != k.shape[2]
        q, k, v = q.to(v.dtype).transpose(1, 2), k.to(v.dtype).transpose(1, 2), v.transpose(1, 2)
        if not flex or window < 0 or window >= t - 1:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        elif torch.compiler.is_compiling() and t == length and window == half:
            out = flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)
        else:  # scoring: rows of any length, not compiled
            ago = torch.arange(t, device=q.device)[:, None] - torch.arange(t, device=q.device)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=(ago >= 0) & (ago <= window), enable_gqa=grouped)
        return out.transpose(1, 2)

    return attend


def _prepare(options: argparse.Namespace, corpus: Corpus, loader: _StandIn) -> types.ModuleType:
    class Tokenizer:
        @classmethod
        def from_directory(cls) -> Tokenizer:
            return cls()

        def get_vocab_size(self) -> int:
            return corpus.tokenizer.vocabulary

        def get_bos_token_id(self) -> int:
            return corpus.tokenizer.bos_id

    def make_dataloader(
        tokenizer: Tokenizer, rows: int, length: int, split: str, buffer_size: int = BUFFERED
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        return loader.batches(rows, length)

    def evaluate(*_: Any) -> float:
        return math.nan  # scored by ours, after it has ended

    module = types.ModuleType("prepare")
    vars(module).update(
        MAX_SEQ_LEN=options.length, TIME_BUDGET=options.seconds, Tokenizer=Tokenizer, make_dataloader=make_dataloader,
        evaluate_bpb=evaluate,
    )  # fmt: skip
    return module


def _peer_mfu(model: Any, speed: float, options: argparse.Namespace, device: torch.device) -> dict[str, float | None]:
    """6 x matmul parameters + 12 x width x keys met, summed over layers; embeddings are look-ups."""
    matrices = sum(p.numel() for p in model.transformer.h.parameters()) + model.lm_head.weight.numel()
    width, length = model.config.n_embd, options.length
    windows = [length if options.windows == "full" else min(w[0] + 1, length) for w in model.window_sizes]
    seen = [(w * (w + 1) / 2 + (length - w) * w) / length for w in windows]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        key: mfu(speed * (6.0 * matrices + 12.0 * width * sum(keys)), name, "bfloat16")
        for key, keys in (("mfu_palm", windows), ("mfu_causal_exact", seen))
    }


# ours


def train_ours(options: argparse.Namespace, seed: int, out: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Runs `corpusmill train` as a process and reads what it wrote."""
    run = out / "run"
    command = [
        sys.executable, "-m", "trainer", "train", "--manifest", str(options.corpus), "--out", str(run),
        "--preset", options.preset, "--seconds", str(options.seconds), "--seed", str(seed),
        *(("--device", "cpu") if options.cpu else ()), *shlex.split(options.ours),
    ]  # fmt: skip
    _process(command, out / "log.txt", options.limit, environment)
    result = json.loads((run / "result.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    speed, last = result["tokens"] / result["training_seconds"], rows[-1]
    total = sum(shard.tokens for shard in Corpus.open(options.corpus).manifest.shards("train"))
    took = [1000 * result["tokens"] / result["steps"] / row["tokens_per_second"] for row in rows]
    score = result["score"]
    if score["sequence_length"] != options.length:
        raise RaceError(f"ours was trained and scored at T = {score['sequence_length']}, the other side at {options.length}")
    return {
        "tokens": result["tokens"], "steps": result["steps"], "training_seconds": result["training_seconds"],
        "tokens_per_second": speed, "epochs": result["tokens"] / total, "memory_gb": result["memory_gb"],
        **{key: last[key] and last[key] * speed / last["tokens_per_second"] for key in ("mfu_palm", "mfu_causal_exact")},
        **_steps(took),
        "val_bpb": score["val_bpb"], "score": score,
    }  # fmt: skip


# the race


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.what == "table":
        print(table(_results(options.folders)))
        return 0
    if options.what == "peer":
        return _peer_alone(options)
    options.out.mkdir(parents=True, exist_ok=True)
    options.corpus = _unpacked(options.corpus, options.out)
    _say(_header(options))
    free: SimpleQueue[int] = SimpleQueue()
    for device in range(options.devices):
        free.put(device)
    ends = time.monotonic() + options.within

    def one(side: str, seed: int) -> None:
        device = free.get()
        try:
            _run(options, side, seed, device, ends)
        finally:
            free.put(device)

    with ThreadPoolExecutor(options.devices) as pool:
        for done in [pool.submit(one, side, seed) for seed in options.seeds for side in options.sides]:
            done.result()
            _say(table(_results([options.out])) + "\n")
    results = _results([options.out])
    (options.out / "all.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0 if results and not any(one.get("failed") for one in results) else 1


def _run(options: argparse.Namespace, side: str, seed: int, device: int, ends: float) -> None:
    """One run, whose failure is written down as its result."""
    out = options.out / f"{side}-{seed}"
    out.mkdir(exist_ok=True)
    if (out / RESULT).exists():
        return
    facts: dict[str, Any] = {"side": side, "seed": seed, "seconds": options.seconds, "windows": options.windows}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if not options.cpu:
        environment.setdefault("CUDA_VISIBLE_DEVICES", "")
        visible = [one for one in environment["CUDA_VISIBLE_DEVICES"].split(",") if one]
        environment["CUDA_VISIBLE_DEVICES"] = visible[device] if device < len(visible) else str(device)
    began = time.monotonic()
    try:
        if ends - began < options.seconds:
            raise RaceError(f"not begun: less than {options.seconds:g} s were left")
        options = argparse.Namespace(**{**vars(options), "limit": min(options.limit, ends - began)})
        if side == OURS:
            facts |= train_ours(options, seed, out, environment)
        else:
            asked = {name: value for name, value in vars(options).items() if name not in ("out", "seeds", "sides", "what")}
            words = json.dumps({**asked, "corpus": str(options.corpus), "train_py": str(options.train_py)})
            environment |= PEER_SETS | ({"TORCHDYNAMO_DISABLE": "1"} if options.cpu else {})
            command = [sys.executable, "-m", "bench.autoresearch_race", "peer", str(out), str(seed), words]
            _process(command, out / "log.txt", options.limit, environment)
            facts |= json.loads((out / "peer.json").read_text())
            facts |= _steps([float(ms) for ms in re.findall(r"dt: (\d+)ms", (out / "log.txt").read_text())[FREE_STEPS:]])
    except (RaceError, OSError, ValueError, KeyError, LookupError) as error:
        facts |= {"val_bpb": None, "failed": f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")[:300]}
    facts["wall_seconds"] = time.monotonic() - began
    (out / RESULT).write_text(json.dumps(facts, indent=1) + "\n")


def _peer_alone(options: argparse.Namespace) -> int:
    asked = argparse.Namespace(**json.loads(options.options))
    out = Path(options.folder)
    try:
        result = train_peer(asked, options.seed)
    except Exception:
        traceback.print_exc()
        return 1
    (out / "peer.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _process(command: list[str], log: Path, limit: float, environment: dict[str, str]) -> None:
    """RaceError with the end of the log unless it ends well within `limit` seconds."""
    with open(log, "w") as file:
        try:
            code = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=REPOSITORY, timeout=limit, env=environment, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            raise RaceError(f"stopped after {limit:.0f} s; {_end(log)}") from None
    if code:
        raise RaceError(f"exit code {code}; {_end(log)}")


def _end(log: Path) -> str:
    return log.read_text(errors="replace").replace("\r", "\n").strip()[-250:]


def _steps(milliseconds: list[float]) -> dict[str, float | None]:
    """Of steps after the first few: the median shows the device, the worst a stall."""
    settled = milliseconds[3:]
    if not settled:
        return {"step_ms_median": None, "step_ms_worst": None}
    return {"step_ms_median": statistics.median(settled), "step_ms_worst": max(settled)}


def _results(folders: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for folder in folders for path in sorted(Path(folder).glob(f"*/{RESULT}"))]


def _unpacked(corpus: Path, out: Path) -> Path:
    if corpus.is_dir() or corpus.suffix == ".json":
        return corpus.resolve()
    target = out / "corpus"
    if not target.exists():
        with tarfile.open(corpus, "r:*") as packed:
            packed.extractall(target, filter="data")
    (found,) = target.glob("**/manifest.json")
    return found.parent.resolve()


def _header(options: argparse.Namespace) -> str:
    corpus = Corpus.open(options.corpus)
    splits: dict[str, list[int]] = {}
    for shard in corpus.manifest.content.shards:
        splits.setdefault(shard.split, []).append(shard.tokens)
    held = ", ".join(f"{split} {sum(tokens):,}" for split, tokens in splits.items())
    lines = [
        f"corpus {corpus.manifest.digest[:12]}: tokens {held}; vocabulary {corpus.tokenizer.vocabulary:,}",
        f"torch {torch.__version__}, {options.seconds:g} s a run, T = {options.length:,}, windows {options.windows}, seeds "
        f"{' '.join(map(str, options.seeds))}",
        f"{OURS}: --preset {options.preset} {options.ours}".rstrip(),
        f"{PEER}: its train.py, its imports kernels and prepare replaced (see this bench's docstring), {options.buffer} buffer, "
        "and in its text:",
        *(f"  {pattern}  ->  {value}" for pattern, value in changes(options, options.seeds[0])),
    ]
    return "\n".join(lines) + "\n"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    what = parser.add_subparsers(dest="what", required=True)
    run = what.add_parser("run", help="train both sides and print the table")
    run.add_argument("train_py", type=lambda text: Path(text).resolve(), help="a copy of autoresearch's train.py")
    run.add_argument("corpus", type=Path, help="corpus, its manifest, or a .tar.xz of it")
    run.add_argument(
        "--out", type=lambda text: Path(text).resolve(), required=True, help="folder of results; finished runs are kept"
    )
    run.add_argument("--seconds", type=float, default=60.0, help="clock of a run")
    run.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    run.add_argument("--sides", nargs="+", choices=(OURS, PEER), default=[PEER, OURS])
    run.add_argument("--windows", choices=("full", "flex"), default="full", help="of the other side's short-window layers")
    run.add_argument("--buffer", choices=("guarded", "single"), default="guarded", help="of the other side's loader")
    run.add_argument("--length", type=int, default=2_048, help="T of both; ours takes its own from the preset, which must agree")
    run.add_argument("--preset", default="speedrun", help="of ours")
    run.add_argument("--ours", default="", help="more options of `corpusmill train`, in one string")
    run.add_argument("--depth", type=int, help="layers of the other side")
    run.add_argument("--rows", type=int, help="rows of a micro-batch of the other side")
    run.add_argument("--batch-tokens", type=int, help="tokens of a step of the other side")
    run.add_argument("--limit", type=float, default=420.0, help="seconds after which a run is stopped")
    run.add_argument("--within", type=float, default=math.inf, help="seconds after which no run is begun or goes on")
    run.add_argument("--devices", type=int, default=1, help="GPUs, each of which has one run at a time")
    run.add_argument("--cpu", action="store_true", help="both on the CPU, not compiled")
    shown = what.add_parser("table", help="print the table of finished runs")
    shown.add_argument("folders", type=Path, nargs="+")
    alone = what.add_parser("peer", help="one run of the other side, as `run` starts it")
    alone.add_argument("folder")
    alone.add_argument("seed", type=int)
    alone.add_argument("options")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
