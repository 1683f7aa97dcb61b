"""The trainer on several GPUs of one host: equal losses, scaling, where the time goes, resuming, scoring, and a killed rank.

`python -m bench.gpu_ranks` measures on as many GPUs as there are and prints Markdown tables as it goes; `--parts` chooses,
`--limit` bounds each measurement, which runs in processes of its own. Under torchrun the first rank does the same and the others
leave.
`--preset tiny --device cpu` is for trying it out: gloo instead of NCCL. More ranks than there are GPUs share these, and gloo
carries what they say (NCCL wants a GPU for each rank): such figures are of losses and scores, not of speed.

Token ids are made up unless `--manifest` names a corpus; only parts that train through `trainer.run.loop` read it. Figures are
those of whole optimiser steps, timed on the slowest rank, medians after a warm-up. Weights of the scaling part are drawn on the
device. One GPU compiles the whole model, and so does DDP in bfloat16; FSDP compiles each block, as in training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.trainer.corpus_fixture import build_corpus
from trainer.configuration import TrainConfig
from trainer.distributed.parallel import Layout, Spread, local
from trainer.distributed.ranks import BACKENDS, Ranks
from trainer.network.flops import causal_flops_per_token, mean_keys, mfu, palm_flops_per_token
from trainer.network.model import GPT, row_masks
from trainer.presets import PRESETS
from trainer.run.loop import train
from trainer.run.optimisation import build_adamw
from trainer.run.progress import RunProgress
from trainer.run_files.ledger import LEDGER
from trainer.run_files.metrics import METRICS
from trainer.scores.scoring import score_checkpoint

VOCABULARY = 32_768
MADE_UP_VOCABULARY = {"cuda": 8_192, "cpu": 64}
RATE = 1e-4
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-4}
NORM_TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-3}
"""Relative differences of a step's loss, and of its gradient's norm, that another order of sums may make within 20 steps. Norms
are compared since AdamW's steps are the same for a gradient that is a multiple of the right one."""
WARM, TIMED = 3, 5
MARK = "RESULT "
ANNOTATIONS = ("nccl:", "FSDP::", "Optimizer.", "ProfilerStep")
"""Of ranges on the device's time line that are no kernels."""
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast can put a host's GPUs out of service when a program ends badly, so it stays off."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"micro": 2, "count": 2, "layouts": ("ddp", "fsdp", "hsdp"), "accumulate": "whole"},
    "small": {"micro": 32, "count": 4, "layouts": ("ddp", "fsdp"), "accumulate": "whole"},
    "1b": {"micro": 16, "count": 4, "layouts": ("ddp", "fsdp"), "accumulate": "whole"},
    "8b": {"micro": 2, "count": 4, "layouts": ("fsdp",), "accumulate": "whole"},
}
"""Rows of a micro-batch and micro-batches of a step, of each GPU whatever their number, so that efficiency is of weak scaling."""


# parts: what is measured, and the table that shows it


def equal(given: argparse.Namespace) -> None:
    """Losses of 20 steps on one process and on several, for the same batches. The first row is the yardstick: one process again,
    whose micro-batches are twice as large."""
    table(
        "20 steps, against one process; largest relative differences", "layout", "ranks", "type", "losses", "tolerance",
        "gradient norms", "tolerance", "",
    )  # fmt: skip
    for dtype in given.dtypes:
        alone = trained(given, 1, f"equal-{dtype}-1", dtype=dtype, steps=20)
        if isinstance(alone, str):
            row("one process", 1, dtype, "", "", "", "", f"failed: {alone}")
            continue
        others: list[tuple[int, str, dict[str, Any]]] = [(1, "other micro-batches", {"micro_batch": 4})]
        for world in [number for number in given.counts if number > 1]:
            others += [(world, layout, {"parallel": layout}) for layout in layouts(("ddp", "fsdp", "hsdp"), world)]
        for world, name, changes in others:
            out = trained(given, world, f"equal-{dtype}-{world}-{name.replace(' ', '-')}", dtype=dtype, steps=20, **changes)
            if isinstance(out, str):
                row(name, world, dtype, "", "", "", "", f"failed: {out}")
                continue
            of_losses, of_norms = (apart(metric(out, one), metric(alone, one)) for one in ("loss", "grad_norm"))
            good = of_losses <= TOLERANCES[dtype] and of_norms <= NORM_TOLERANCES[dtype]
            row(
                name, world, dtype, f"{of_losses:.1e}", f"{TOLERANCES[dtype]:.0e}", f"{of_norms:.1e}",
                f"{NORM_TOLERANCES[dtype]:.0e}", "equal" if good else "NOT EQUAL",
            )  # fmt: skip


def scaling(given: argparse.Namespace) -> None:
    """Tokens a second, MFU and memory at 1 … N GPUs, and where the time of a step goes."""
    table(
        "Scaling, " + ("bf16" if given.device == "cuda" else "float32 on the CPU"),
        "model", "layout", "GPUs", "rows x micro-batches", "tokens/s", "efficiency", "MFU PaLM", "MFU causal-exact",
        "of what masks leave", "GB a GPU", "step s", "computing", "communication alone", "neither", "ready after s",
    )  # fmt: skip
    for preset in given.presets:
        shape = SHAPES[preset]
        one: float | None = None
        for world in given.counts:
            for layout in layouts(given.layouts or shape["layouts"], world):
                task = {
                    "what": "steps", "preset": preset, "layout": layout, "device": given.device, "timed": given.timed,
                    "micro": given.micro or shape["micro"], "count": given.count or shape["count"],
                    "accumulate": given.accumulate or shape["accumulate"] if layout != "ddp" else "whole",
                    "recompute": given.recompute, "compile": given.device == "cuda", "length": given.length,
                    "replicas": None,
                }  # fmt: skip
                found = spawn(task, world, given.limit)
                rows = f"{task['micro']} x {task['count']}"
                if isinstance(found, str):
                    row(preset, layout, world, rows, f"failed: {found}", *[""] * 10)
                    continue
                rate = found["tokens_per_second"]
                one = rate if world == 1 and one is None else one
                row(
                    preset, layout, world, rows, f"{rate:,.0f}", share(None if one is None else rate / world / one),
                    *(share(found[name]) for name in ("palm", "causal", "computed")),
                    f"{found['memory_gb']:.1f}", f"{found['seconds']:.3f}",
                    *(share(found["split"].get(name)) for name in ("compute", "exposed", "idle")), f"{found['ready']:.0f}",
                )  # fmt: skip


def resume(given: argparse.Namespace) -> None:
    """A checkpoint from all ranks goes on on half of them and on one, and each row is taken once. Differences are those of the
    steps after it."""
    world = given.counts[-1]
    table("A checkpoint of step 4 of 8, resumed", "written by", "read by", "losses", "gradient norms", "rows", "")
    for kind in layouts(("fsdp", "hsdp"), world):
        whole = trained(given, world, f"resume-{kind}", steps=8, parallel=kind, checkpoint_every=4, keep=9, dtype="float32")
        if isinstance(whole, str):
            row(f"{kind} on {world}", "", "", "", "", f"failed: {whole}")
            continue
        half = max(1, world // 2)
        readings = ((world, kind), (half, "fsdp"), (half, "ddp"), (1, "ddp")) if kind == "fsdp" else ((half, "ddp"),)
        for readers, reading in dict.fromkeys(readings):
            name = f"resume-{kind}-{readers}-{reading}"
            shutil.copytree(whole, given.folder / name, dirs_exist_ok=True)
            shutil.rmtree(given.folder / name / "checkpoints" / "step-00000008", ignore_errors=True)
            again = trained(given, readers, name, True, steps=8, parallel=reading, checkpoint_every=4, keep=9, dtype="float32")
            if isinstance(again, str):
                row(f"{kind} on {world}", f"{reading} on {readers}", "", "", "", f"failed: {again}")
                continue
            of_losses, of_norms = (apart(metric(again, one)[4:], metric(whole, one)[4:]) for one in ("loss", "grad_norm"))
            gapless = once_each(again)
            good = gapless and of_losses <= TOLERANCES["float32"] and of_norms <= NORM_TOLERANCES["float32"]
            row(
                f"{kind} on {world}", f"{reading} on {readers}", f"{of_losses:.1e}", f"{of_norms:.1e}",
                "once each" if gapless else "LOST OR REPEATED", "equal" if good else "NOT EQUAL",
            )  # fmt: skip


def evaluate(given: argparse.Namespace) -> None:
    """The same checkpoint scored on 1 … N ranks."""
    table("Bits per byte of one checkpoint", "ranks", "type", "val_bpb", "difference", "")
    run = trained(given, given.counts[-1], "evaluate", steps=8, parallel="fsdp" if given.counts[-1] > 1 else "ddp")
    if isinstance(run, str):
        row("", "", "", "", f"failed: {run}")
        return
    for dtype in given.dtypes:
        first: float | None = None
        for world in given.counts:
            task = {"what": "score", "run": str(run), "manifest": given.manifest, "device": given.device, "dtype": dtype}
            found = spawn(task, world, given.limit)
            if isinstance(found, str):
                row(world, dtype, "", "", f"failed: {found}")
                continue
            first = found["val_bpb"] if first is None else first
            difference = abs(found["val_bpb"] - first)
            row(world, dtype, f"{found['val_bpb']:.8f}", f"{difference:.1e}", "equal" if difference <= 1e-6 else "NOT EQUAL")


def kill(given: argparse.Namespace) -> None:
    """A rank is killed in the middle of a step; torchrun starts all of them again, from the newest complete checkpoint."""
    world = max(number for number in given.counts if given.device == "cpu" or number <= torch.cuda.device_count())
    table("A rank killed in mid-step", "ranks", "steps logged", "went on after", "ended after s", "steps", "rows", "")
    out = given.folder / "killed"
    steps = 60
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "--max-restarts=1", "-m",
        "trainer", "train", "--resume", *flags(options(given, out, steps=steps, parallel="fsdp", checkpoint_every=5)),
    ]  # fmt: skip
    with open(given.folder / "killed.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **QUIET}, start_new_session=True)
        began = time.monotonic()
        try:
            while len(lines(out / METRICS)) < 12:
                if process.poll() is not None or time.monotonic() - began > given.limit:
                    raise TimeoutError
                time.sleep(0.05)
            seen = len(lines(out / METRICS))
            os.kill(children(process.pid)[-1], signal.SIGKILL)
            killed = time.monotonic()
            process.wait(given.limit)
            took = time.monotonic() - killed
        except (TimeoutError, subprocess.TimeoutExpired):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            row(world, "", "", "", "", "", f"failed: {tail(given.folder / 'killed.log')}")
            return
    log_text = (given.folder / "killed.log").read_text()
    went_on = [line.split("after step ")[1].split(",")[0] for line in log_text.splitlines() if "resuming" in line]
    done = len(lines(out / METRICS))
    good = process.returncode == 0 and done == steps and once_each(out)
    row(
        world, seen, went_on[-1] if went_on else "", f"{took:.0f}", done, "once each" if once_each(out) else "LOST OR REPEATED",
        "went on" if good else f"failed: {tail(given.folder / 'killed.log')}",
    )  # fmt: skip


PARTS = {"equal": equal, "resume": resume, "evaluate": evaluate, "kill": kill, "scaling": scaling}


# what a process of a measurement does


def steps_task(task: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Times optimiser steps of a model in a layout."""
    began = time.perf_counter()
    cuda = ranks.device.type == "cuda"
    dtype = "bfloat16" if cuda else "float32"
    preset = PRESETS[task["preset"]]
    length = task["length"] or preset.sequence_length
    layout = Layout.of(task["layout"], task["replicas"], ranks)
    GPT.initialise = drawn_on_device  # type: ignore[method-assign]
    architecture = preset.build(VOCABULARY)
    spread = Spread(
        architecture, layout, ranks.device, dtype, 0, 0, task["recompute"], task["compile"], task["accumulate"]
    )  # fmt: skip
    spread.start()
    optimiser = build_adamw(spread.model, 1e-4, 0.1)
    generator = torch.Generator().manual_seed(ranks.rank)
    micro, count = task["micro"], task["count"]
    tokens = torch.randint(0, VOCABULARY, (micro, length), generator=generator).to(ranks.device)
    segments = torch.from_numpy(made_up_segments(micro, length, ranks.rank)).to(ranks.device)

    def step() -> None:
        spread.begin()
        for number in range(count):
            mask = row_masks(architecture, segments, masked=True, half=cuda)
            with spread.micro_batch(number, count):
                with torch.autocast(ranks.device.type, torch.bfloat16, enabled=cuda):
                    nats, _ = spread.forward(tokens, mask, tokens)
                (nats.sum() / (tokens.numel() * count)).backward()
        spread.clip(1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    for _ in range(WARM if cuda else 1):
        step()
    synchronise(cuda)
    ready = time.perf_counter() - began
    took = []
    for _ in range(task["timed"]):
        ranks.barrier()
        start = time.perf_counter()
        step()
        synchronise(cuda)
        took.append(time.perf_counter() - start)
    seconds = ranks.maximum([float(np.median(took))])[0]
    memory = torch.cuda.max_memory_allocated() / 1e9 if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    rate = ranks.world * count * micro * length / seconds
    name = torch.cuda.get_device_name() if cuda else "CPU"
    each = rate / ranks.world
    seen = mean_keys([np.bincount(one) for one in segments.cpu().numpy()])
    return {
        "tokens_per_second": rate,
        "seconds": seconds,
        "palm": mfu(each * palm_flops_per_token(architecture, length), name, dtype),
        "causal": mfu(each * causal_flops_per_token(architecture, (length + 1) / 2), name, dtype),
        "computed": mfu(each * causal_flops_per_token(architecture, seen), name, dtype),
        "memory_gb": ranks.maximum([memory])[0],
        "split": split(step, ranks) if cuda else {},
        "ready": ready,
    }


def train_task(task: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    outcome = train(TrainConfig.check(**task["options"]), ranks, RunProgress(False, 10), task["resume"])
    return {"steps": outcome.steps}


def score_task(task: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    score = score_checkpoint(Path(task["run"]), task["manifest"], "validation", ranks, dtype=task["dtype"])
    return {"val_bpb": score.val_bpb, "nats": score.nats}


TASKS = {"steps": steps_task, "train": train_task, "score": score_task}


def worker(task: dict[str, Any]) -> None:
    torch.set_num_threads(1 if task["device"] == "cpu" else 4)
    if task["device"] == "cuda" and int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count():
        BACKENDS["cuda"] = "gloo"
    ranks = Ranks.join(task["device"])
    found = TASKS[task["what"]](task, ranks)
    if ranks.first:
        print(MARK + json.dumps(found), flush=True)
    ranks.barrier()
    ranks.leave()


def drawn_on_device(model: GPT, seed: int, place: object = None) -> None:
    """Weights for measuring: each rank draws its own, where a real start would draw all of them on the CPU."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            local(parameter).fill_(1.0) if parameter.ndim < 2 else local(parameter).normal_(0.0, 0.02)


def split(step: Any, ranks: Ranks) -> dict[str, float]:
    """Shares of a step on the first rank's device: kernels that compute, communication while none does, and neither."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        ranks.barrier()
        step()
        torch.cuda.synchronize()
    computing, communicating = [], []
    for event in profile.events() or []:
        annotation = getattr(event, "is_user_annotation", False) or event.name.startswith(ANNOTATIONS)
        if event.device_type == torch.autograd.DeviceType.CUDA and not annotation:
            where = communicating if "nccl" in event.name.lower() else computing
            where.append((event.time_range.start, event.time_range.end))
    return shares(computing, communicating)


def shares(computing: list[tuple[float, float]], communicating: list[tuple[float, float]]) -> dict[str, float]:
    """{compute, exposed, idle} as shares of the time from the first interval to the last."""
    every = [*computing, *communicating]
    if not every:
        return {}
    whole = max(end for _, end in every) - min(start for start, _ in every)
    compute, either = covered(computing), covered(every)
    return {"compute": compute / whole, "exposed": (either - compute) / whole, "idle": (whole - either) / whole}


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def made_up_segments(rows: int, length: int, seed: int) -> np.ndarray:
    """int32 (rows, length): the number of the document of each position; lengths are log-normal with a median of 400."""
    random = np.random.default_rng(seed)
    found = np.zeros((rows, length), np.int32)
    for one in found:
        at = number = 0
        while at < length:
            size = int(np.clip(random.lognormal(np.log(400), 1.0), 16, length))
            one[at : at + size] = number
            at, number = at + size, number + 1
    return found


# processes and tables


def spawn(task: dict[str, Any], world: int, limit: float) -> dict[str, Any] | str:
    """What the first of `world` processes found, or why there is nothing: an error's last words, or the time limit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    with tempfile.TemporaryDirectory() as logs:
        processes = []
        for rank in range(world):
            local_rank = rank % torch.cuda.device_count() if task["device"] == "cuda" else rank
            environment = {
                **os.environ, **QUIET, **place, "RANK": str(rank), "LOCAL_RANK": str(local_rank), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            for name in ("stdout", "stderr"):
                Path(logs, f"{rank}.{name}").touch()
            with open(f"{logs}/{rank}.stdout", "w") as out, open(f"{logs}/{rank}.stderr", "w") as err:
                command = [sys.executable, "-m", "bench.gpu_ranks", "--worker", json.dumps(task)]
                processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=err))
        reason = wait(processes, limit)
        if reason is None:
            said = Path(logs, "0.stdout").read_text().splitlines()
            found = next((line for line in reversed(said) if line.startswith(MARK)), None)
            if found is not None:
                answer: dict[str, Any] = json.loads(found.removeprefix(MARK))
                return answer
        words = next((text for rank in range(world) if (text := tail(Path(logs, f"{rank}.stderr")))), "no words")
        return f"{reason or 'no result'}: {words}"


def wait(processes: list[subprocess.Popen[bytes]], limit: float) -> str | None:
    """None once all have ended well; else why not, with none left."""
    until = time.monotonic() + limit
    reason = None
    while reason is None and any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            reason = "a process failed"
        elif time.monotonic() > until:
            reason = f"not done within {limit:.0f} s"
        else:
            time.sleep(0.05)
    if reason is not None:
        time.sleep(2)  # the others may say something more telling
        for process in processes:
            process.kill()
            process.wait()
        return reason
    return "a process failed" if any(process.returncode for process in processes) else None


def options(given: argparse.Namespace, out: Path, **changes: Any) -> dict[str, Any]:
    """Options of a run of the parts that train, with a batch that eight ranks can share. The rate is one at which rounding stays
    rounding: at ten times that, without a warm-up, twice as large micro-batches on the same GPU are 1 % off after 20 steps."""
    shape: dict[str, Any] = {"preset": "small", "sequence_length": 1_024, "batch_tokens": 16_384, "model": {"layers": 6}}
    if given.device == "cpu":
        shape = {"preset": "tiny", "sequence_length": 64, "batch_tokens": 1_024}
        shape["model"] = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 48}
    return {
        "manifest": given.manifest, "out": str(out), "device": given.device, "evaluate": False, "micro_batch": 2,
        "learning_rate": RATE, "compile": given.compile, **shape, **changes,
    }  # fmt: skip


def trained(given: argparse.Namespace, world: int, name: str, again: bool = False, **changes: Any) -> Path | str:
    """The folder of a run on `world` processes, or why there is none."""
    out = given.folder / name
    task = {"what": "train", "device": given.device, "options": options(given, out, **changes), "resume": again}
    found = spawn(task, world, given.limit)
    return found if isinstance(found, str) else out


def flags(chosen: dict[str, Any]) -> list[str]:
    found = []
    for name, value in chosen.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            found += [part for key, one in value.items() for part in (option, f"{key}={one}")]
        elif isinstance(value, bool):
            found.append(option if value else f"--no-{name.replace('_', '-')}")
        else:
            found += [option, str(value)]
    return found


def corpus(folder: Path, device: str) -> str:
    """A corpus of made-up documents in which a token depends on the one before, so that losses fall."""
    vocabulary = MADE_UP_VOCABULARY[device]
    documents = 200 if device == "cpu" else 4_000
    random = np.random.default_rng(0)

    def some(count: int) -> list[list[int]]:
        texts = []
        for _ in range(count):
            size = int(np.clip(random.lognormal(np.log(40 if device == "cpu" else 400), 1.0), 8, 8_192))
            jumps = random.integers(0, 4, size)
            texts.append([1 + int(token) for token in (random.integers(vocabulary) + np.cumsum(7 + jumps)) % (vocabulary - 1)])
        return texts

    parts = {("made-up", "train"): [some(documents), some(documents)], ("made-up", "validation"): [some(documents // 10)]}
    return str(build_corpus(folder / "corpus", parts, vocabulary=vocabulary))


def layouts(wanted: Iterable[str], world: int) -> list[str]:
    """Those that differ on `world` ranks: one rank holds everything in any of them."""
    if world == 1:
        return ["ddp"]
    fitting = any(world % number == 0 for number in range(2, world))
    return [name for name in wanted if name != "hsdp" or fitting]


def metric(run: Path, name: str) -> list[float]:
    return [json.loads(line)[name] for line in lines(run / METRICS)]


def apart(one: list[float], other: list[float]) -> float:
    """The largest relative difference, infinite where there are not as many, none, or some that are no numbers."""
    if len(one) != len(other) or not one or not np.isfinite([*one, *other]).all():
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


def once_each(run: Path) -> bool:
    """Whether the ledger's ranges follow one another from 0 without a gap."""
    ranges = [json.loads(line) for line in lines(run / LEDGER)[1:]]
    at = 0
    for one in ranges:
        if one["first_position"] != at:
            return False
        at = one["end_position"]
    return at > 0


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def tail(path: Path) -> str:
    """The last line of a log that says something, short enough for a table."""
    said = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in said if "Error" in line or line.startswith("error:")] or said
    return told[-1][:160].replace("|", "/") if told else ""


def children(pid: int) -> list[int]:
    """Processes that `pid` started and that run, by number."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return sorted(int(one) for one in found.read_text().split()) if found.exists() else []


def synchronise(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def table(title: str, *columns: str) -> None:
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)


def row(*cells: object) -> None:
    print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)


@contextlib.contextmanager
def scratch(folder: str | None) -> Iterator[Path]:
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; default: all, in this order")
    parser.add_argument("--presets", "--preset", default=None, help=f"of the scaling part: {', '.join(SHAPES)}")
    parser.add_argument("--layouts", default=None, help="of the scaling part: ddp, fsdp, hsdp; default: what suits the preset")
    parser.add_argument("--counts", default=None, help="numbers of GPUs, as 1,2,4; default: powers of two up to all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--dtypes", default=None, help="float32, bfloat16; default: both on GPUs")
    parser.add_argument("--micro", type=int, help="rows of a micro-batch, instead of the preset's")
    parser.add_argument("--count", type=int, help="micro-batches of a step, instead of the preset's")
    parser.add_argument("--length", type=int, help="tokens of a row, instead of the preset's")
    parser.add_argument("--accumulate", choices=["whole", "sharded"])
    parser.add_argument("--recompute", choices=["none", "feed", "selective", "full"], default="none")
    parser.add_argument("--compile", action="store_true", help="of the parts that train")
    parser.add_argument("--timed", type=int, default=TIMED, help="steps that are timed")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds that one measurement may take")
    parser.add_argument("--manifest", help="a corpus for the parts that train; default: made up")
    parser.add_argument("--folder", help="where runs are kept; default: a temporary folder")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(json.loads(given.worker))
        return
    if os.environ.pop("RANK", "0") != "0":  # torchrun's: the first rank starts every process itself
        return
    for name in [name for name in os.environ if name.startswith(("TORCHELASTIC", "GROUP_", "ROLE_")) or name == "WORLD_SIZE"]:
        del os.environ[name]
    cuda = given.device == "cuda"
    most = torch.cuda.device_count() if cuda else 2
    powers = [2**n for n in range(10) if 2**n <= most]
    given.counts = [int(one) for one in given.counts.split(",")] if given.counts else powers
    given.dtypes = given.dtypes.split(",") if given.dtypes else ["float32", "bfloat16"] if cuda else ["float32"]
    given.presets = given.presets.split(",") if given.presets else ["1b", "8b"] if cuda else ["tiny"]
    given.layouts = given.layouts.split(",") if given.layouts else None
    where = f"{most} x {torch.cuda.get_device_name()}" if cuda else "CPU, gloo"
    print(f"torch {torch.__version__}, {where}; {given.limit:.0f} s a measurement", flush=True)
    with scratch(given.folder) as folder:
        given.folder = folder
        given.manifest = given.manifest or corpus(folder, given.device)
        for part in given.parts.split(","):
            began = time.monotonic()
            PARTS[part](given)
            print(f"\n{part}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
