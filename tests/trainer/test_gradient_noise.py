"""The gradient noise scale: right where it is known, and a run that only looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import losses, options, rows, train_alone, train_in
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.loader import IGNORED
from trainer.distributed.ranks import Ranks
from trainer.run.gradient_noise import GradientNoise, inverse_size, small_square


def test_the_scale_of_known_noise_is_found() -> None:
    generator = np.random.default_rng(0)
    size, signal, noise = 200, 0.5, 300.0  # a true gradient of squared length .5, and 300 / n of noise
    truth = np.full(size, (signal / size) ** 0.5)
    found, several = GradientNoise(), []
    for _ in range(400):
        parts = [truth + generator.normal(0, (noise / size / n) ** 0.5, size) for n in (100, 300, 400)]
        small, large = float(parts[0] @ parts[0]), np.average(parts, axis=0, weights=(100, 300, 400))
        several.append(found.add(small, 1 / 100, float(large @ large), 1 / 800))
    late = [one for one in several[100:] if one is not None]
    assert np.median(late) == pytest.approx(noise / signal, rel=0.1)


def test_steps_that_show_no_signal_have_no_scale() -> None:
    assert GradientNoise().add(small=8.0, inverse_small=1 / 10, large=0.5, inverse_large=1 / 40) is None
    assert GradientNoise().add(1.0, float("inf"), 1.0, 1 / 40) is None


def test_sizes_are_those_of_each_rank_s_first_rows() -> None:
    assert inverse_size(np.array([3, 5, 9, 9, 1, 1, 9, 9]), world=2, micro_rows=2) == pytest.approx((1 / 8 + 1 / 2) / 2)
    assert inverse_size(np.array([0, 5]), world=2, micro_rows=1) == float("inf")


def test_the_small_gradient_is_the_mean_over_its_own_targets() -> None:
    model = torch.nn.Linear(3, 1)
    inputs, targets = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1, IGNORED, 1, 1])
    torch.autograd.backward((model(inputs)[:, 0] * (targets != IGNORED)).sum() / 20)  # a step of 20 targets
    found = small_square(model, targets, 20, Ranks(0, 1, 0, torch.device("cpu")))
    mean = torch.cat((inputs[[0, 2, 3]].mean(0), torch.ones(1)))
    assert found.item() == pytest.approx((mean @ mean).item(), rel=1e-5)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


def test_looking_changes_no_step_and_is_in_the_metrics(manifest: Path, tmp_path: Path) -> None:
    train_alone(options(manifest, tmp_path / "plain", steps=6))
    train_alone(options(manifest, tmp_path / "looked", steps=6, noise_scale=True))
    assert losses(tmp_path / "looked") == losses(tmp_path / "plain")
    scales = [row["noise_scale"] for row in rows(tmp_path / "looked")]
    assert len(scales) == 6 and all(one is None or one > 0 for one in scales) and any(scales)


@pytest.mark.slow
def test_two_ranks_estimate_from_a_micro_batch_of_each(manifest: Path, tmp_path: Path) -> None:
    train_in(2, manifest, tmp_path / "two", steps=3, noise_scale=True)
    scales = [row["noise_scale"] for row in rows(tmp_path / "two")]
    assert len(scales) == 3 and all(one is None or one > 0 for one in scales)


@pytest.mark.parametrize(
    ("option", "message"), [({"parallel": "fsdp"}, "ddp"), ({"micro_batch": 16}, "--micro-batch 8 would do")]
)
def test_what_has_no_small_gradient_is_refused(manifest: Path, tmp_path: Path, option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TrainConfig.check(**options(manifest, tmp_path, noise_scale=True, **option)).micro_batches(1)
