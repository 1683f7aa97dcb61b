"""Parameters, FLOPs and MFU: published shapes, two conventions, and no figure for an unknown device."""

from __future__ import annotations

import pytest

from trainer.network.flops import causal_flops_per_token, mfu, palm_flops_per_token, peak_flops
from trainer.presets import PRESETS, Architecture

SMALL = Architecture(layers=12, width=768, heads=12, kv_heads=12, hidden=2_048, vocabulary=32_000, tied=True)


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H100 SXM5 80GB"])
def test_half_of_a_hopper_s_dense_peak_is_an_mfu_of_one_half(name: str) -> None:
    assert mfu(494.5e12, name, "bfloat16") == pytest.approx(0.50, abs=0.001)


def test_an_a100_has_its_own_peak() -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16") == 312e12


@pytest.mark.parametrize(
    "name", ["AMD Instinct MI300X", "x86_64 CPU", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090", ""]
)
def test_an_unknown_device_has_no_mfu(name: str) -> None:
    assert mfu(494.5e12, name, "bfloat16") is None


def test_float32_has_no_bfloat16_peak() -> None:
    assert mfu(1e12, "NVIDIA H200", "float32") is None


def test_a_tied_embedding_counts_as_the_head_and_an_untied_one_not_at_all() -> None:
    untied = SMALL.model_copy(update={"tied": False})
    assert SMALL.matmul_parameters() == untied.matmul_parameters()
    assert untied.parameters() - SMALL.parameters() == 32_000 * 768


def test_palm_s_convention_is_6n_and_12ldt() -> None:
    assert palm_flops_per_token(SMALL, 2_048) == 6 * SMALL.matmul_parameters() + 12 * 12 * 768 * 2_048


def test_the_causal_figure_counts_the_keys_a_query_may_see() -> None:
    assert causal_flops_per_token(SMALL, (2_048 + 1) / 2) == 6 * SMALL.matmul_parameters() + 12 * 12 * 768 * 1_024.5


@pytest.mark.parametrize(
    ("architecture", "parameters"),
    [
        (SMALL, 109_529_856),
        (Architecture(layers=6, width=256, heads=8, kv_heads=8, hidden=688, vocabulary=4_096, tied=True), 5_795_072),
        (PRESETS["8b"].build(128_256), 8_030_261_248),
        (Architecture(layers=36, width=4_096, heads=32, kv_heads=8, hidden=15_360, vocabulary=152_064), 9_550_729_216),
    ],
)
def test_published_shapes_have_their_published_parameters(architecture: Architecture, parameters: int) -> None:
    assert architecture.parameters() == parameters


@pytest.mark.parametrize("change", [{"heads": 5}, {"kv_heads": 7}, {"width": 36, "heads": 12, "kv_heads": 12}])
def test_heads_that_do_not_fit_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        PRESETS["small"].build(100, **change)
