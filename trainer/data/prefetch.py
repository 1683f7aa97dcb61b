"""Batches on their way to the device: a thread builds the next ones while the device computes, in host buffers that are
allocated once. A buffer is written again only when what was copied out of it last has arrived."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType

import torch
from torch import Tensor

from trainer.data.loader import Batch

PREFETCHED = 2
"""Steps that are built ahead of the one that is waited for."""
BUFFERS = PREFETCHED + 1
DTYPES = (torch.int64, torch.int64, torch.int32, torch.int64)
"""Of tokens, targets, segments and components, as `Batch` has them."""

MicroBatch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Tokens, targets and segments, each (rows, T), and the rows' components."""


@dataclass
class Buffer:
    """Host memory of one step's rows. `used` of them hold a batch; `copied` is done when the last copy has arrived, None where
    there was none or it does not outlast the call."""

    fields: tuple[Tensor, ...]
    used: int = 0
    copied: torch.cuda.Event | None = None


class Transfer:
    """Copies of host buffers on a device. To a GPU they are under way when `copy` returns, in the order of the work that the
    calling thread gives the device, and the buffer must stay as it is until `wait` has returned."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._gpu = device.type == "cuda"

    def buffer(self, rows: int, length: int) -> Buffer:
        shapes = ((rows, length), (rows, length), (rows, length), (rows,))
        fields = tuple(torch.empty(s, dtype=d, pin_memory=self._gpu) for s, d in zip(shapes, DTYPES, strict=True))
        return Buffer(fields)

    def copy(self, buffer: Buffer, micro_rows: int) -> list[MicroBatch]:
        """The batch in the buffer, `micro_rows` rows at a time, as tensors of the device that share no memory with it, on a CPU
        too."""
        parts = [[self.send(part) for part in torch.split(field[: buffer.used], micro_rows)] for field in buffer.fields]
        if self._gpu:
            buffer.copied = buffer.copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffer.copied.record()
        tokens, targets, segments, components = parts
        return list(zip(tokens, targets, segments, components, strict=True))

    def send(self, field: Tensor) -> Tensor:
        return field.to(self.device, non_blocking=True, copy=True)

    def wait(self, buffer: Buffer) -> None:
        if buffer.copied is not None:
            buffer.copied.synchronize()

    def enter_thread(self) -> None:
        """A thread begins on the first GPU, and would open a context there."""
        if self._gpu:
            torch.cuda.set_device(self.device)


class Prefetcher:
    """Batches of steps, built by `build`; asked by step, so one that was built but not trained on is not consumed.

    A batch has `rows` rows of `length` tokens at most. `get` waits for the batch of a step; `to_device`, called before the next
    `get`, copies it, gives its buffer back, and has it in micro-batches of `micro_rows`.
    """

    def __init__(self, build: Callable[[int], Batch], transfer: Transfer, rows: int, length: int, micro_rows: int) -> None:
        self._build, self._transfer, self._micro_rows = build, transfer, micro_rows
        self._free: SimpleQueue[Buffer] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(transfer.buffer(rows, length))
        self._coming: dict[int, Future[Buffer]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="loader", initializer=transfer.enter_thread)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def get(self, step: int) -> Buffer:
        for other in [one for one in self._coming if not step <= one <= step + PREFETCHED]:
            self._drop(self._coming.pop(other))
        for coming in range(step, step + BUFFERS):
            if coming not in self._coming:
                self._coming[coming] = self._pool.submit(self._fill, coming)
        return self._coming.pop(step).result()

    def to_device(self, buffer: Buffer) -> list[MicroBatch]:
        copied = self._transfer.copy(buffer, self._micro_rows)
        self._free.put(buffer)
        return copied

    def _fill(self, step: int) -> Buffer:
        """In the thread. Built before a buffer is asked for, so that a batch that cannot be built takes none with it."""
        batch = self._build(step)
        buffer = self._free.get()
        self._transfer.wait(buffer)
        arrays = (batch.tokens, batch.targets, batch.segments, batch.components)
        buffer.used = len(batch.components)
        for field, array in zip(buffer.fields, arrays, strict=True):
            field[: buffer.used].copy_(torch.from_numpy(array))
        return buffer

    def _drop(self, coming: Future[Buffer]) -> None:
        def give_back(done: Future[Buffer]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._free.put(done.result())

        coming.cancel()
        coming.add_done_callback(give_back)
