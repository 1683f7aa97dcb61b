"""The race against autoresearch: its stand-in packer, its arithmetic, and where a copy of its train.py is named, a whole race."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.autoresearch_race import BUFFERED, OURS, PEER, SAME, Packer, RaceError, adapted, changes, main, noise, table
from tests.trainer.corpus_fixture import build_corpus, sentences

TRAIN_PY = "CORPUSMILL_AUTORESEARCH"
MEASURED = dict.fromkeys(("tokens", "epochs", "tokens_per_second", "memory_gb", "steps"), 1) | dict.fromkeys(
    ("mfu_palm", "mfu_causal_exact")
)


def documents(sizes: list[int]) -> Iterator[tuple[list[list[int]], int]]:
    """Documents 0 n n n …, whose number n says which it is; the list again and again."""
    epoch = 1
    while True:
        yield [[0] + [n + 1] * (size - 1) for n, size in enumerate(sizes)], epoch
        epoch += 1


def test_a_row_takes_the_longest_that_fits_and_then_crops_the_shortest() -> None:
    packer = Packer(documents([12, 4, 6, 8] + [20] * BUFFERED), length=15)
    row = torch.zeros(16, dtype=torch.long)
    packer.fill(row)
    assert row.tolist() == [0] + [1] * 11 + [0] + [2] * 3  # 12, then the 4 that fits
    packer.fill(row)
    assert row.tolist() == [0] + [4] * 7 + [0] + [3] * 5 + [0, 5]  # 8, then 6, then one of 20 cropped to 2
    assert (packer.taken, packer.cropped) == (16 + 8 + 6 + 20, 18)
    assert packer.taken - packer.cropped == 2 * 16


def test_every_row_is_full_and_begins_a_document() -> None:
    sizes = np.random.default_rng(0).integers(2, 60, 3_000).tolist()
    packer = Packer(documents(sizes), length=31)
    rows = torch.full((200, 32), -1)
    for row in rows:
        packer.fill(row)
    assert (rows >= 0).all()
    assert (rows[:, 0] == 0).all()
    assert packer.taken - packer.cropped == rows.numel()
    assert packer.epoch == 1


def test_the_buffer_goes_on_into_the_next_epoch() -> None:
    packer = Packer(documents([16] * 700), length=15)
    row = torch.zeros(16, dtype=torch.long)
    packer.fill(row)
    assert packer.epoch == 2


def test_another_version_of_the_file_is_refused_and_not_run_half_changed() -> None:
    options = argparse.Namespace(depth=2, rows=None, batch_tokens=2**10, cpu=False)
    source = "torch.manual_seed(1)\ntorch.cuda.manual_seed(1)\nDEPTH = 8  # layers\nTOTAL_BATCH_SIZE = 2**19\n"
    expected = "torch.manual_seed(7)\ntorch.cuda.manual_seed(7)\nDEPTH = 2  # layers\nTOTAL_BATCH_SIZE = 1024\n"
    assert adapted(source, changes(options, 7)) == expected
    with pytest.raises(RaceError, match="DEPTH"):
        adapted(source.replace("DEPTH", "LAYERS"), changes(options, 7))


def test_a_difference_is_told_in_units_of_the_noise_between_seeds() -> None:
    difference, deviation = noise([1.00, 1.02], [1.10, 1.12])
    assert difference == pytest.approx(-0.10)
    assert deviation == pytest.approx(np.sqrt(2) * 0.01)
    values = {OURS: (1.00, 1.02), PEER: (1.10, 1.12)}
    results = [{"side": s, "seed": n, "val_bpb": v, **MEASURED} for s, both in values.items() for n, v in enumerate(both)]
    assert "that is -7.1 times the seed noise" in table(results)
    assert "lower by more than 3 times" in table(results)
    swapped = [{**r, "side": OURS if r["side"] == PEER else PEER} for r in results]
    assert "lower by NOT more than 3 times" in table(swapped)
    assert "failed: why" in table([*results, {"side": PEER, "seed": 9, "val_bpb": None, "failed": "why"}])
    assert np.isnan(noise([1.0], [2.0])[1])


def test_scores_of_another_evaluator_or_corpus_are_not_compared_in_silence() -> None:
    facts = {name: "one" for name in SAME}
    runs = [{"side": side, "seed": 0, "val_bpb": 1.0, "score": facts, **MEASURED} for side in (OURS, PEER)]
    assert "DO NOT COMPARE" not in table(runs)
    for name in SAME:
        assert f"differ in {name}" in table([runs[0], {**runs[1], "score": {**facts, name: "another"}}])


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["full", "flex"])
def test_both_sides_train_and_are_scored_by_one_evaluator(tmp_path: Path, windows: str) -> None:
    train_py = os.environ.get(TRAIN_PY)
    if not train_py:
        pytest.skip(f"{TRAIN_PY} names no copy of autoresearch's train.py")
    manifest = build_corpus(
        tmp_path / "corpus", {("a", "train"): [sentences(1_500, 1)], ("a", "validation"): [sentences(60, 2, words=60)]}
    )
    out = tmp_path / "race"
    command = [
        "run", train_py, str(manifest), "--out", str(out), "--seconds", "2", "--seeds", "0", "--cpu", "--windows", windows,
        "--depth", "2", "--rows", "2", "--batch-tokens", "512", "--length", "128", "--preset", "speedrun-tiny",
        "--ours", "--sequence-length 128 --batch-tokens 512 --micro-batch 4 --model layers=2 --no-compile",
    ]  # fmt: skip
    assert main(command) == 0
    found = {one["side"]: one for one in json.loads((out / "all.json").read_text())}
    assert set(found) == {OURS, PEER}
    assert found[PEER]["score"]["documents_sha256"] == found[OURS]["score"]["documents_sha256"]
    assert found[PEER]["score"]["evaluator_sha256"] == found[OURS]["score"]["evaluator_sha256"]
    for one in found.values():
        assert 0 < one["val_bpb"] < np.log2(64) / 3, one  # better than a uniform guess over 64 ids of 3 bytes
    assert found[PEER]["epochs"] * sum(len(text) + 1 for text in sentences(1_500, 1)) >= found[PEER]["tokens"]
