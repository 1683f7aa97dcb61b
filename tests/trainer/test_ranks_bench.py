"""The arithmetic of the bench of many GPUs, where a mistake would be published as a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.gpu_ranks import apart, covered, layouts, once_each, shares
from trainer.run_files.ledger import LEDGER


def test_overlapping_kernels_count_once() -> None:
    assert covered([(0, 4), (1, 2), (3, 6), (8, 9)]) == 7
    assert covered([]) == 0


def test_only_communication_beside_which_nothing_computes_is_exposed() -> None:
    found = shares([(0.0, 4.0), (6.0, 8.0)], [(3.0, 5.0), (9.0, 10.0)])
    assert found == {"compute": pytest.approx(0.6), "exposed": pytest.approx(0.2), "idle": pytest.approx(0.2)}
    assert shares([], []) == {}


def test_runs_of_unequal_length_are_never_equal() -> None:
    assert apart([1.0, 2.0], [1.0, 2.002]) == pytest.approx(0.001, rel=1e-2)
    assert apart([1.0], [1.0, 2.0]) == apart([], []) == float("inf")
    assert apart([1.0, float("nan")], [1.0, 1.0]) == apart([1.0], [float("inf")]) == float("inf")


def test_a_gap_or_a_repeat_in_the_ledger_is_seen(tmp_path: Path) -> None:
    for ranges, good in (([(0, 4), (4, 8)], True), ([(0, 4), (5, 8)], False), ([(0, 4), (0, 8)], False), ([], False)):
        lines = [{}, *({"first_position": first, "end_position": end} for first, end in ranges)]
        (tmp_path / LEDGER).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert once_each(tmp_path) is good


def test_layouts_that_do_not_differ_are_measured_once() -> None:
    assert layouts(("ddp", "fsdp", "hsdp"), 1) == ["ddp"]
    assert layouts(("ddp", "fsdp", "hsdp"), 2) == ["ddp", "fsdp"]
    assert layouts(("ddp", "fsdp", "hsdp"), 4) == ["ddp", "fsdp", "hsdp"]
