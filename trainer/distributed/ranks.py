"""The processes of one training run, one a device: alone, or as `torchrun` started them.

Tensors of gradients travel by NCCL on GPUs and by gloo on CPUs; small facts of the host (clock, signals, counts) always by
gloo, so that no rank waits for its GPU to say them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from manifests.storage import TEMPORARY_PREFIX

BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}
"""By the device of gradients: what carries tensors of which device."""


class RanksError(Exception):
    """A device that is not there, or an environment that names no usable ranks."""


@dataclass(frozen=True)
class Ranks:
    rank: int
    world: int
    local_rank: int
    device: torch.device
    machines: int = 1

    @staticmethod
    def join(device: str = "auto") -> Ranks:
        """This process's place. `device` is `auto` (CUDA where there is one), `cpu` or `cuda`."""
        if device not in ("auto", "cpu", "cuda"):
            raise RanksError(f"--device {device}: auto, cpu or cuda")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise RanksError("--device cuda was asked for, and torch sees no CUDA device here; use --device cpu")
        world, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
        place = torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu")
        if device == "cuda":
            if local_rank >= torch.cuda.device_count():
                raise RanksError(f"rank {local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}")
            torch.cuda.set_device(place)
        machines = max(1, world // int(os.environ.get("LOCAL_WORLD_SIZE", str(world))))
        if world > 1 and not dist.is_initialized():
            _meet(BACKENDS[device], machines)
        return Ranks(int(os.environ.get("RANK", "0")), world, local_rank, place, machines)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def maximum(self, values: list[float]) -> list[float]:
        """The largest of each value over all ranks."""
        if self.world == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        found: list[float] = shared.tolist()
        return found

    def texts(self, text: str) -> list[str]:
        """What each rank says, by rank."""
        if self.world == 1:
            return [text]
        said = text.encode()
        (longest,) = self.maximum([float(len(said))])
        padded = torch.zeros(int(longest), dtype=torch.uint8)
        padded[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else padded[:0]
        gathered = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(gathered, padded)
        return [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in gathered]

    def share(self, folder: Path) -> bool:
        """Whether all ranks see the same `folder`, which the first makes where it is missing. All give the same answer."""
        if self.world == 1:
            return True
        (nonce,) = self.maximum([float(time.time_ns() % 2**50) if self.first else 0.0])
        seen = folder / f"{TEMPORARY_PREFIX}seen-{int(nonce)}"
        with contextlib.suppress(OSError):
            if self.first:
                folder.mkdir(parents=True, exist_ok=True)
                seen.touch()
        self.barrier()
        (missing,) = self.maximum([0.0 if seen.exists() else 1.0])
        if self.first:
            seen.unlink(missing_ok=True)
        return not missing

    def differing(self, facts: dict[str, str]) -> list[str]:
        """Names of the facts, given as hex digests, that are not the same on all ranks. Every rank gives the same names."""
        if self.world == 1:
            return []
        size = 8  # hex digits that a float64 holds exactly
        parts = [float(int(value[at : at + size], 16)) for value in facts.values() for at in range(0, len(value), size)]
        names = [name for name, value in facts.items() for _ in range(0, len(value), size)]
        largest = self.maximum([*parts, *(-part for part in parts)])
        different = {n for n, high, low in zip(names, largest[: len(parts)], largest[len(parts) :], strict=True) if high != -low}
        return [name for name in facts if name in different]

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum over all ranks, float64."""
        if self.world == 1:
            return values
        shared = torch.from_numpy(values.copy())
        dist.all_reduce(shared)
        return shared.numpy()

    def barrier(self) -> None:
        self.maximum([0.0])

    def leave(self) -> None:
        if dist.is_initialized():
            gc.collect()  # whatever still holds the group would end it only with the interpreter
            dist.destroy_process_group()


def usual_dtype(device: str) -> str:
    """What a model computes in on this type of device unless told otherwise."""
    return "bfloat16" if device == "cuda" else "float32"


def is_lost_rank(error: Exception) -> bool:
    """Whether an error is that of a rank whose peer has ended: what NCCL raises has a type, what gloo raises only its words."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _meet(backends: str, machines: int) -> None:
    """Joins the others. torchrun keeps its store when it starts ranks again, and gloo would find the addresses of the dead in it
    (torch 2.13), so each start has names of its own. Across machines torchrun counts restarts of each by itself, so there the
    names stay as they are."""
    store, rank, world = next(rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if machines == 1 else "0"
    dist.init_process_group(backends, store=PrefixStore(f"start-{start}", store), rank=rank, world_size=world)
