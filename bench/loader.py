"""How fast rows are planned and served, without a model: `python -m bench.loader [--tokens 1e9] [--length 2048]`.

A corpus of random tokens is made up in memory, with lengths that are log-normal as those of web documents are (median 400 tokens,
mean about 800), packed, and read a step at a time. Seconds of CPU (`time.process_time`) stand beside those of the clock, since
machines are shared. Prints the plan's padding, and the targets a second that one thread serves.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from trainer.data.corpus import Component
from trainer.data.loader import Loader

MEDIAN, SPREAD = 400.0, 1.18
GPU_TOKENS = 2.05e6
"""Tokens a second that a GPU trains of a model of 50M parameters: what the loader is to exceed fifty times."""


def made_up(tokens: int, seed: int = 0) -> Component:
    """A component of about so many tokens in one shard; its tokens repeat a million random ones, which its reader cannot tell."""
    generator = np.random.default_rng(seed)
    lengths = np.empty(0, np.int64)
    while lengths.sum() < tokens:
        drawn = np.exp(generator.normal(np.log(MEDIAN), SPREAD, 1 << 20)).astype(np.int64).clip(2, 1 << 17)
        lengths = np.concatenate([lengths, drawn])
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    starts = np.cumsum(lengths) - lengths
    values = np.resize(generator.integers(1, 32_768, 1 << 20).astype("<u2"), int(lengths.sum()))
    edges = np.array([0, len(values)], np.int64)
    shards = ()
    return Component(
        "web", "train", shards, 0, 32_768, starts, lengths, lengths * 4, edges, edges[:1], (values,), tuple[Path, ...]()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=1e9)
    parser.add_argument("--length", type=int, default=2_048)
    parser.add_argument("--rows", type=int, default=256, help="of a step")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    component = made_up(int(given.tokens))
    began = time.perf_counter(), time.process_time()
    loader = Loader([component], given.length, seed=1)
    plan = loader.plans[0]
    clock, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    print(
        f"plan: {plan.pairs_total:,} tokens of {len(component.lengths):,} documents in {plan.rows:,} rows of {given.length}, "
        f"padding {plan.padding / (plan.rows * given.length):.4%}, dropped {plan.pairs_dropped}: {clock:.1f} s by the clock, "
        f"{cpu:.1f} s of CPU",
        flush=True,
    )
    loader.batch(np.arange(given.rows))
    began, targets = (time.perf_counter(), time.process_time()), 0
    for step in range(given.steps):
        batch = loader.batch(np.arange(step * given.rows, (step + 1) * given.rows))
        targets += int((batch.targets >= 0).sum())
    clock, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    print(
        f"rows: {targets:,} targets in {clock:.2f} s by the clock, {cpu:.2f} s of CPU: {targets / cpu:,.0f} targets a second "
        f"of CPU, {targets / cpu / GPU_TOKENS:.0f} times what a GPU takes",
        flush=True,
    )


if __name__ == "__main__":
    main()
