"""The model: sizes, masking, positions, and a loss that does not depend on how it is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from trainer.data.loader import IGNORED
from trainer.network.model import GPT, block_mask, document_mask, rotary, token_nats
from trainer.presets import PRESETS, Architecture
from trainer.run.optimisation import WarmupCosine, build_adamw

SHAPE = Architecture(vocabulary=50, layers=2, width=32, heads=4, kv_heads=2, hidden=48, qk_norm=True)


def model_of(architecture: Architecture = SHAPE, loss_chunk: int = 0) -> GPT:
    model = GPT(architecture, loss_chunk)
    model.initialise(3)
    return model


def tokens_of(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_built_model_has_the_parameters_that_the_arithmetic_says(preset: str) -> None:
    architecture = PRESETS[preset].build(4_096)
    with torch.device("meta"):
        model = GPT(architecture)
    assert sum(p.numel() for p in model.parameters()) == architecture.parameters()


def test_a_new_model_guesses_uniformly() -> None:
    tokens = tokens_of(4, 16)
    nats, _ = model_of()(tokens[:, :-1], None, tokens[:, 1:])
    assert float(nats.detach().mean()) == pytest.approx(torch.tensor(50.0).log().item(), abs=0.1)


def test_the_loss_is_the_negative_log_probability_of_the_target() -> None:
    model, tokens = model_of(), tokens_of(3, 12)
    nats, squares = model(tokens[:, :-1], None, tokens[:, 1:])
    logits = model(tokens[:, :-1])
    expected = -torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    assert torch.allclose(nats, expected, atol=1e-5)
    assert torch.allclose(squares, torch.logsumexp(logits, -1).square(), atol=1e-4)


def test_ignored_targets_cost_nothing() -> None:
    stream, weight = torch.randn(4, 8), torch.randn(20, 8)
    nats, squares = token_nats(F.linear(stream, weight), torch.tensor([3, IGNORED, 5, IGNORED]))
    assert nats[[1, 3]].tolist() == [0.0, 0.0]
    assert squares[[1, 3]].tolist() == [0.0, 0.0]


def test_the_loss_in_chunks_has_the_same_gradient() -> None:
    tokens = tokens_of(3, 12)
    gradients = []
    for chunk in (0, 7):
        model = model_of(loss_chunk=chunk)
        model(tokens[:, :-1], None, tokens[:, 1:])[0].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)


def test_with_a_document_mask_a_packed_document_sees_what_it_sees_alone() -> None:
    model, tokens = model_of(), tokens_of(1, 15)
    segments = torch.tensor([[0] * 6 + [1] * 7 + [-1] * 2], dtype=torch.int32)
    packed = model(tokens, document_mask(segments))
    assert torch.allclose(packed[:, :6], model(tokens[:, :6]), atol=1e-5)
    # rotary positions are relative: starting later in the row changes nothing
    assert torch.allclose(packed[:, 6:13], model(tokens[:, 6:13]), atol=1e-5)
    assert torch.isfinite(packed).all()


def test_the_block_mask_of_gpus_allows_what_the_boolean_mask_of_cpus_allows() -> None:
    segments = torch.tensor([[0] * 100 + [1] * 130 + [2] * 20 + [-1] * 6, [0] * 256], dtype=torch.int32)
    query = torch.randn(2, 4, 256, 8, generator=torch.Generator().manual_seed(0))
    key, value = query[:, :2] + 1, query[:, 2:] - 1
    dense = F.scaled_dot_product_attention(query, key, value, attn_mask=document_mask(segments), enable_gqa=True)
    blocks = flex_attention(query, key, value, block_mask=block_mask(segments, compiled=False), enable_gqa=True)
    assert torch.allclose(dense, blocks, atol=1e-5)


def test_without_a_mask_a_later_document_sees_the_one_before() -> None:
    model, tokens = model_of(), tokens_of(1, 13)
    assert not torch.allclose(model(tokens)[:, 6:], model(tokens[:, 6:]), atol=1e-3)


def test_no_position_sees_what_comes_after() -> None:
    model, tokens = model_of(), tokens_of(2, 16)
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 50
    assert torch.allclose(model(tokens)[:, :9], model(changed)[:, :9], atol=1e-5)


def test_grouped_heads_equal_full_heads_with_repeated_keys_and_values() -> None:
    grouped = model_of()
    full = GPT(SHAPE.model_copy(update={"kv_heads": 4}))
    weights = grouped.state_dict()
    for name, weight in weights.items():
        if name.endswith("projection.weight"):
            query, key, value = weight.split((32, 16, 16))
            repeated = [part.view(2, 8, 32).repeat_interleave(2, 0).flatten(0, 1) for part in (key, value)]
            weights[name] = torch.cat([query, *repeated])
    full.load_state_dict(weights)
    tokens = tokens_of(2, 10)
    assert torch.allclose(grouped(tokens), full(tokens), atol=1e-5)


def test_rotary_angles_start_at_zero_and_fall_with_the_dimension() -> None:
    cos, sin = rotary(4, SHAPE, torch.device("cpu"))
    assert cos[0].tolist() == [1.0] * 4
    assert torch.allclose(torch.atan2(sin[1], cos[1]), 10_000.0 ** -(torch.arange(4) / 4))


def test_the_same_seed_gives_the_same_weights_and_another_others() -> None:
    first, again, other = model_of(), model_of(), GPT(SHAPE)
    other.initialise(4)
    assert torch.equal(first.embedding.weight, again.embedding.weight)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_only_matrices_decay() -> None:
    model = model_of()
    optimiser = build_adamw(model, 1e-3, 0.1)
    for group in optimiser.param_groups:
        assert {p.ndim for p in group["params"]} == ({2} if group["weight_decay"] else {1})
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(model.parameters()))
    assert {group["betas"] for group in optimiser.param_groups} == {(0.9, 0.95)}


def test_the_rate_rises_to_its_peak_and_falls_to_its_floor() -> None:
    schedule = WarmupCosine(1.0, warmup=0.1, final=0.05)
    assert schedule.rate(0.05) == pytest.approx(0.5)
    assert schedule.rate(0.1) == pytest.approx(1.0)
    assert schedule.rate(0.55) == pytest.approx(0.525)
    assert schedule.rate(1.0) == schedule.rate(2.0) == pytest.approx(0.05)
    assert schedule.rate(0.0) > 0
