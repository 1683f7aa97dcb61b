"""Prefetching: buffers are allocated once, and none is written again while a copy of it is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer.corpus_fixture import learnable_corpus
from trainer.data.corpus import Corpus
from trainer.data.loader import Batch, Loader, LoaderError
from trainer.data.prefetch import BUFFERS, PREFETCHED, Buffer, MicroBatch, Prefetcher, Transfer

ROWS, T = 4, 8
CPU = torch.device("cpu")


def batch_of(step: int, rows: int = ROWS) -> Batch:
    """A batch in which every number says whose it is."""
    full = np.full((rows, T), step, np.int64)
    return Batch(full, full + 1000, full.astype(np.int32), full[:, 0].copy())


def said(micro_batches: list[MicroBatch]) -> set[int]:
    found: set[int] = set()
    for tokens, targets, segments, components in micro_batches:
        for field, less in ((tokens, 0), (targets, 1000), (segments, 0), (components, 0)):
            found |= set((field - less).unique().tolist())
    return found


class LateCopy:
    """An event of a slow device: the copy is made from the buffer when it is waited for, and not before."""

    def __init__(self, copies: list[tuple[Tensor, Tensor]]) -> None:
        self.copies = copies

    def synchronize(self) -> None:
        while self.copies:
            source, target = self.copies.pop()
            target.copy_(source)


class SlowDevice(Transfer):
    """Copies arrive as late as they may: when somebody waits for them."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.allocated: list[Buffer] = []
        self.events: list[LateCopy] = []
        self.under_way: list[tuple[Tensor, Tensor]] = []

    def buffer(self, rows: int, length: int) -> Buffer:
        self.allocated.append(super().buffer(rows, length))
        return self.allocated[-1]

    def copy(self, buffer: Buffer, micro_rows: int) -> list[MicroBatch]:
        copied = super().copy(buffer, micro_rows)
        self.events.append(LateCopy(self.under_way))
        self.under_way = []
        buffer.copied = self.events[-1]  # type: ignore[assignment]
        return copied

    def send(self, field: Tensor) -> Tensor:
        target = torch.full_like(field, -1)
        self.under_way.append((field, target))
        return target


class Hasty(SlowDevice):
    def wait(self, buffer: Buffer) -> None:
        pass


def through(transfer: SlowDevice, steps: int) -> list[set[int]]:
    with Prefetcher(batch_of, transfer, ROWS, T, 2) as prefetched:
        copied = [prefetched.to_device(prefetched.get(step)) for step in range(1, steps + 1)]
    for event in transfer.events:
        event.synchronize()
    return [said(one) for one in copied]


def test_a_buffer_is_not_written_before_its_copy_has_arrived() -> None:
    device = SlowDevice()
    assert through(device, 12) == [{step} for step in range(1, 13)]
    assert len(device.allocated) == BUFFERS


def test_the_slow_device_would_notice_a_buffer_that_is_written_too_early() -> None:
    assert through(Hasty(), 12) != [{step} for step in range(1, 13)]


def test_copies_on_a_cpu_share_no_memory_with_the_buffers() -> None:
    with Prefetcher(batch_of, Transfer(CPU), ROWS, T, 2) as prefetched:
        copied = [prefetched.to_device(prefetched.get(step)) for step in range(1, 13)]
    assert [said(one) for one in copied] == [{step} for step in range(1, 13)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned buffers and events need a GPU")
def test_copies_to_a_busy_gpu_are_of_the_batch_that_was_asked_for() -> None:
    rows, length = 256, 4096
    wide = lambda step: Batch(  # noqa: E731
        *(np.full((rows, length), step, dtype) for dtype in (np.int64, np.int64, np.int32)), np.full(rows, step, np.int64)
    )
    with Prefetcher(wide, Transfer(torch.device("cuda", 0)), rows, length, rows) as prefetched:
        copied = []
        for step in range(1, 13):
            torch.cuda._sleep(50_000_000)  # cycles in which the device reaches no copy, while the host goes on
            copied += prefetched.to_device(prefetched.get(step))
    torch.cuda.synchronize()
    for step, fields in enumerate(copied, 1):
        assert all(bool((field == step).all()) for field in fields)


def test_steps_that_are_passed_over_leave_their_buffers_to_others() -> None:
    order = [1, 2, 9, 10, 40, 41, 42, 43, 90, 91, 5, 6, 7]
    with Prefetcher(batch_of, Transfer(CPU), ROWS, T, ROWS) as prefetched:
        for step in order:
            assert said(prefetched.to_device(prefetched.get(step))) == {step}


def test_batches_of_any_number_of_rows_come_in_micro_batches_of_one_size() -> None:
    sizes = {1: 2, 2: 4, 3: 12, 4: 8, 5: 12, 6: 2}
    with Prefetcher(lambda step: batch_of(step, sizes.get(step, 2)), Transfer(CPU), 12, T, 2) as prefetched:
        for step, rows in sizes.items():
            found = prefetched.to_device(prefetched.get(step))
            assert [len(components) for *_, components in found] == [2] * (rows // 2)
            assert said(found) == {step}


def test_batches_are_built_ahead_but_no_further_than_there_are_buffers() -> None:
    built: list[int] = []
    third = threading.Event()

    def build(step: int) -> Batch:
        built.append(step)
        if step == 1 + PREFETCHED:
            third.set()
        return batch_of(step)

    with Prefetcher(build, Transfer(CPU), ROWS, T, 2) as prefetched:
        prefetched.get(1)
        third.wait()
    assert built == list(range(1, 2 + PREFETCHED))


def test_a_batch_that_cannot_be_built_is_an_error_where_it_is_wanted_and_hangs_nothing() -> None:
    def build(step: int) -> Batch:
        if step == 3:
            raise LoaderError("no such row")
        return batch_of(step)

    with Prefetcher(build, Transfer(CPU), ROWS, T, 2) as prefetched:
        for step in (1, 2):
            assert said(prefetched.to_device(prefetched.get(step))) == {step}
        with pytest.raises(LoaderError, match="no such row"):
            prefetched.get(3)
        for step in (4, 5, 6, 7):
            assert said(prefetched.to_device(prefetched.get(step))) == {step}


def test_rows_of_a_corpus_arrive_as_the_loader_has_them(tmp_path: Path) -> None:
    loader = Loader([Corpus.open(learnable_corpus(tmp_path, train=40, held_out=5)).component("toy", "train")], 32)
    build: Callable[[int], Batch] = lambda step: loader.batch(np.arange(6 * step, 6 * step + 6))  # noqa: E731
    with Prefetcher(build, Transfer(CPU), 6, 32, 3) as prefetched:
        for step in range(1, 9):
            expected = build(step)
            fields = [torch.cat(parts) for parts in zip(*prefetched.to_device(prefetched.get(step)), strict=True)]
            for field, array in zip(
                fields, (expected.tokens, expected.targets, expected.segments, expected.components), strict=True
            ):
                assert field.dtype == torch.from_numpy(array).dtype
                assert np.array_equal(field.numpy(), array)
