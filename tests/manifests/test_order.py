"""The order of rows can be asked from both ends: what stands at a position, and where a row stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.manifest import Shard
from manifests.order import FEISTEL_ROUNDS, Order, Phase, permute, unpermute
from manifests.packing import Int64


@dataclass(frozen=True)
class Lengths:
    name: str
    starts: Int64
    lengths: Int64
    shards: tuple[Shard, ...] = ()


def component(name: str, documents: int, longest: int, seed: int) -> Lengths:
    lengths = np.random.default_rng(seed).integers(1, longest, documents).astype(np.int64)
    return Lengths(name, np.cumsum(lengths) - lengths, lengths)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5_000), st.integers(0, 2**64 - 1))
def test_unpermute_undoes_permute(size: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 2**63, FEISTEL_ROUNDS).astype(np.uint64)
    index = np.arange(size)
    assert np.array_equal(unpermute(permute(index, size, keys), size, keys), index)


@pytest.mark.parametrize(
    "phases",
    [
        [Phase()],
        [Phase({"a": 3.0, "b": 1.0})],
        [Phase(None, 37), Phase({"b": 1.0})],
        [Phase({"a": 1.0, "b": 2.0}, 60), Phase({"a": 1.0}, 11), Phase({"c": 1.0, "a": 1.0})],
    ],
)
@pytest.mark.parametrize("stop", [0, 1, 40, 400])
def test_positions_of_a_row_are_those_where_it_is_found(phases: list[Phase], stop: int) -> None:
    order = Order([component("a", 30, 40, 1), component("b", 9, 90, 2), component("c", 1, 5, 3)], 32, seed=5, phases=phases)
    place = order.locate(np.arange(stop))
    for number, plan in enumerate(order.plans):
        for row in range(plan.rows):
            here = np.flatnonzero((place.component == number) & (place.row == row))
            assert order.positions_of(number, row, stop) == list(zip(here.tolist(), place.epoch[here].tolist(), strict=True))
