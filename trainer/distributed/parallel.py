"""How a model is spread over ranks, and which rows of which tensor each of them holds.

`ddp` keeps the whole model on every rank. `fsdp` cuts every tensor along its first dimension into as many shards as there are
ranks, and puts a block together only while it is computed (PyTorch's FSDP2, Zhao et al. 2023). `hsdp` does that within each of
several replicas, so that most traffic stays inside a machine.

Ranks are numbered replica by replica: rank = replica x shards + shard.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainer.configuration import ConfigurationError
from trainer.distributed.ranks import Ranks
from trainer.network.feed import SwiGLU
from trainer.network.linear import Sums
from trainer.network.model import GPT, Block
from trainer.presets import Architecture

Kind = Literal["ddp", "fsdp", "hsdp"]
Recompute = Literal["none", "feed", "selective", "full"]
STATE_BYTES = 16
"""Bytes that a parameter takes while training: master weight, gradient and AdamW's two moments, float32 each. (Muon has one.)"""
CHECKED_WORDS = 1 << 24
"""Numbers of a weight that replicas compare at a time: some 0.4 GB beside them."""
TUNED = "max-autotune-no-cudagraphs"
"""torch.compile's name for it; graphs of CUDA would save nothing here, where kernels are long."""


@dataclass(frozen=True)
class Layout:
    """`replicas` copies of the model, each cut into `shards`; rank `rank` holds shard `rank % shards`."""

    rank: int
    replicas: int
    shards: int

    @staticmethod
    def of(kind: Kind, replicas: int | None, ranks: Ranks) -> Layout:
        """The layout that was asked for; ConfigurationError says what would do where these ranks cannot have it."""
        world = ranks.world
        if kind == "ddp":
            return Layout(ranks.rank, world, 1)
        if kind == "fsdp":
            return Layout(ranks.rank, 1, world)
        fitting = [number for number in range(2, world) if world % number == 0]
        if not fitting:
            raise ConfigurationError(
                f"--parallel hsdp: {world} ranks are not several replicas of several shards; use --parallel fsdp or ddp, or 4, "
                "6, 8, … ranks"
            )
        chosen = replicas or (ranks.machines if ranks.machines in fitting else fitting[0])
        if chosen not in fitting:
            raise ConfigurationError(
                f"--replicas {chosen}: {world} ranks are not {chosen} replicas of several shards each; "
                f"{', '.join(map(str, fitting))} would do"
            )
        return Layout(ranks.rank, chosen, world // chosen)

    @property
    def world(self) -> int:
        return self.replicas * self.shards

    @property
    def sharded(self) -> bool:
        return self.shards > 1

    def rows(self, count: int, shard: int | None = None) -> tuple[int, int]:
        """(first, number) of the rows that a shard (default: this rank's) holds of a tensor of `count` rows; the last shards can
        hold fewer, or none."""
        each = -(-count // self.shards)
        first = min(count, each * (self.rank % self.shards if shard is None else shard))
        return first, min(each, count - first)

    def holders(self, shard: int) -> list[int]:
        return [replica * self.shards + shard for replica in range(self.replicas)]

    def everywhere(self, tensor: Tensor) -> bool:
        """Whether each shard holds the whole of a tensor: what belongs to a sharded parameter, but is none of its rows."""
        return self.sharded and not isinstance(tensor, DTensor)

    def describe(self, parameters: int) -> str:
        """What lies where, in words, with the bytes of weights, gradients and optimiser on each rank."""
        each = f"{STATE_BYTES * parameters / self.shards / 1e9:.2f} GB of weights, gradients and optimiser"
        if self.world == 1:
            return f"1 rank that holds everything, {each}"
        if not self.sharded:
            return f"{self.world} ranks (ddp), each with a whole model, {each}"
        if self.replicas == 1:
            return f"{self.world} ranks (fsdp), each with 1/{self.shards} of every tensor, {each}"
        return f"{self.world} ranks (hsdp) = {self.replicas} replicas x {self.shards} shards of every tensor, each with {each}"


ALONE = Layout(0, 1, 1)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, as a plain tensor on the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Spread:
    """A model on its ranks. `model` has the parameters (whole ones, or a rank's shards as DTensors), initialised as a single
    process would with the same seed; `forward` is what a micro-batch goes through, once `start` was called and, in each step,
    `begin`.

    `recompute`: `full` computes every block again in the backward pass, `selective` every second one, `feed` only what SwiGLU's
    last product is of.
    `tuned`: the compiler tries kernels, and how far what surrounds a product can go into it, and takes the fastest.
    `accumulate`, where sharded: `whole` gathers parameters and reduces gradients once a step, and holds both whole from the
    first to the last micro-batch; `sharded` does it block by block in every micro-batch.
    """

    def __init__(
        self, architecture: Architecture, layout: Layout, device: torch.device, dtype: str, seed: int,
        loss_chunk: int = 0, recompute: Recompute = "none", compiled: bool = False, accumulate: str = "whole",
        tuned: bool = False,
    ) -> None:  # fmt: skip
        self.layout, self.device, self.compiled, self.accumulate = layout, device, compiled, accumulate
        self._low = dtype == "bfloat16"
        self._mode = TUNED if tuned else None
        _refuse_too_little_memory(architecture, layout, device)
        self._recompute = recompute
        self._mesh: DeviceMesh | None = None
        if not layout.sharded:
            self.model = GPT(architecture, loss_chunk).to(device)
        else:
            with torch.device("meta"):
                self.model = GPT(architecture, loss_chunk)
            self._shard(dtype)
            self.model.to_empty(device=device)
        self.model.initialise(seed, self._place)
        for number, block in enumerate(self._blocks()):
            if isinstance(block.feed, SwiGLU):
                block.feed.again = recompute == "feed"
            elif recompute == "feed":
                raise ConfigurationError("--recompute feed is for SwiGLU; use selective or full for a model with squared ReLU")
            block.recompute = recompute == "full" or (recompute == "selective" and number % 2 == 0)
        self.forward: nn.Module = self.model
        self._replicated: DistributedDataParallel | None = None
        self._sums: Sums | None = None

    def start(self) -> None:
        """Compiles, and wraps for DistributedDataParallel. Ranks must agree by then: this begins to communicate.

        A model that is whole is compiled whole where `Sums` adds its gradients up, and where the process is alone. Otherwise each
        block is compiled by itself: gradients then leave block by block while the others are computed, FSDP's hooks stay outside
        what is compiled, and so does recomputing.
        """
        if self._low and not self.layout.sharded:
            self._sums = Sums(self.model)
        by_block = self.compiled and (self._recompute in ("selective", "full") or (self.layout.world > 1 and not self._sums))
        if by_block:
            for block in self._blocks():
                block.compute = torch.compile(block.compute, mode=self._mode)  # type: ignore[method-assign]
        if self.layout.world > 1 and self._sums:
            for parameter in self.model.parameters():
                dist.broadcast(parameter.detach(), 0)
        elif self.layout.world > 1 and not self.layout.sharded:
            ids = None if self.device.index is None else [self.device.index]
            self.forward = self._replicated = DistributedDataParallel(self.model, device_ids=ids, gradient_as_bucket_view=True)
        if self.compiled and not by_block:
            self.forward = cast(nn.Module, torch.compile(self.model, mode=self._mode))

    def begin(self) -> None:
        """Before the first forward pass of a step, whose weights and gradients are made ready."""
        if self._sums:
            self._sums.begin()

    def micro_batch(self, number: int, of: int) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward of micro-batch `number` (from 0) of a step of `of`: gradients are reduced with the last,
        or with each where they are accumulated as shards."""
        last = number == of - 1
        if self._sums and self.layout.world > 1 and last:
            return self._sums.averaged()
        if self._replicated is not None and not last:
            return cast(contextlib.AbstractContextManager[Any], self._replicated.no_sync())
        if isinstance(self.model, FSDPModule):
            if self.accumulate == "whole":
                self.model.set_requires_gradient_sync(last)
                self.model.set_reshard_after_backward(last)
                for block in self._blocks()[:-1] if number == 0 else []:
                    cast(FSDPModule, block).set_reshard_after_forward(of == 1)
            else:
                self.model.set_requires_all_reduce(last)  # between replicas; within one, gradients are scattered each time
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        """Scales gradients to a norm of at most `limit`; gives the norm before, over the whole model, the same on every rank."""
        if self._sums:
            self._sums.check()
        if self._mesh is None:
            return nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        gradients = [local(parameter.grad) for parameter in self.model.parameters() if parameter.grad is not None]
        squares = nn.utils.get_total_norm(gradients).square()
        dist.all_reduce(squares, group=self._mesh.get_group("shard"))
        norm = squares.sqrt()
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))  # as torch's clip_grads_with_norm_ does
        return norm

    def finite(self, ranks: Ranks) -> bool:
        """Whether all weights of all ranks are finite numbers."""
        bad = sum((~torch.isfinite(local(parameter))).any() for parameter in self.model.parameters())
        return not ranks.maximum([float(bad)])[0]

    def unlike(self, ranks: Ranks) -> list[str]:
        """Names of weights that replicas should hold alike, bit for bit, and do not. Every rank gives the same names."""
        if self.layout.replicas == 1:
            return []
        names = [name for name, _ in self.model.named_parameters()]
        sums = torch.stack([_sum_of_bits(local(parameter).detach()) for parameter in self.model.parameters()]).tolist()
        said = [text.split() for text in ranks.texts(" ".join(map(str, sums)))]
        groups = [[said[rank] for rank in self.layout.holders(shard)] for shard in range(self.layout.shards)]
        return [name for at, name in enumerate(names) if any(len({one[at] for one in group}) > 1 for group in groups)]

    def whole(self, copied: bool = False) -> GPT:
        """The model as one process would have it, on this rank's device: the model itself unless it is in shards or to be
        `copied`, else a copy in float32. All ranks must call this together."""
        if not self.layout.sharded and not copied:
            return self.model
        with torch.device("meta"):
            model = GPT(self.model.architecture)
        model.to_empty(device=self.device)
        with torch.no_grad():
            for into, part in zip(model.parameters(), self.model.parameters(), strict=True):
                into.copy_(part.full_tensor() if isinstance(part, DTensor) else part)
        return model

    def _blocks(self) -> list[Block]:
        return cast(list[Block], list(self.model.blocks))

    def _shard(self, dtype: str) -> None:
        shape, names = (self.layout.shards,), ("shard",)
        if self.layout.replicas > 1:
            self._mesh = init_device_mesh(self.device.type, (self.layout.replicas, *shape), mesh_dim_names=("replicate", *names))
        else:
            self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        low = torch.bfloat16 if dtype == "bfloat16" else None
        # Inputs are not cast: the rotations of attention stay float32, and the stream has its type already.
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
        last = len(self.model.blocks) - 1
        for number, block in enumerate(self.model.blocks):  # the last block is needed again at once
            fully_shard(block, mesh=self._mesh, mp_policy=policy, reshard_after_forward=number < last)
        fully_shard(self.model, mesh=self._mesh, mp_policy=policy, reshard_after_forward=False)
        # Losses are views of what was computed, and nothing here changes them in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

    def _place(self, parameter: Tensor, whole: Tensor) -> None:
        first, rows = self.layout.rows(len(whole))
        local(parameter).copy_(whole[first : first + rows])


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """int64: numbers as integers, each times an odd number of its place, which is exact in whatever order it is added."""
    flat = tensor.contiguous().view(-1)
    words = flat.view(torch.int32) if flat.element_size() == 4 else flat.view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, len(words), CHECKED_WORDS):
        part = words[first : first + CHECKED_WORDS]
        places = torch.arange(first, first + len(part), device=tensor.device, dtype=torch.int64)
        total += (part * (2 * places + 1)).sum()
    return total


def _refuse_too_little_memory(architecture: Architecture, layout: Layout, device: torch.device) -> None:
    needed = STATE_BYTES * architecture.parameters()
    if device.type != "cuda":
        if needed / layout.shards > (there := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            raise ConfigurationError(
                f"weights, gradients and optimiser of {architecture.parameters():,} parameters take {needed / 1e9:,.0f} GB, and "
                f"this machine has {there / 1e9:,.0f}; use a smaller model"
            )
        return
    there = torch.cuda.get_device_properties(device).total_memory
    if needed / layout.shards > there:
        raise ConfigurationError(
            f"weights, gradients and optimiser of {architecture.parameters():,} parameters take {needed / 1e9:.0f} GB, of which "
            f"each GPU would hold {needed / layout.shards / 1e9:.0f} GB and has {there / 1e9:.0f}; use --parallel fsdp with "
            f"{-(-needed // there) + 1} GPUs or more, or a smaller model"
        )
