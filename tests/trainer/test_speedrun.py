"""The options of the `speedrun` family: each on its own, then all of them in runs that resume, spread and are scored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import losses, options, rows, train_alone, train_in
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.network.flops import causal_flops_per_token, mean_keys, palm_flops_per_token
from trainer.network.model import GPT, block_mask, row_masks, token_nats, window_blocks, window_mask
from trainer.presets import PRESETS, Architecture
from trainer.run_files import checkpoint, checkpoint_tensors

SHAPE = {"layers": 4, "width": 40, "heads": 2, "kv_heads": 1, "hidden": 52, "window": 5}
SPEEDRUN = PRESETS["speedrun-tiny"].build(50, **SHAPE)
SINGLE: list[dict[str, Any]] = [
    {"feed": "relu2"}, {"norm_gains": False}, {"embedding_norm": True}, {"lambdas": True}, {"value_embeddings": True},
    {"soft_cap": 2.0}, {"windows": "SL", "window": 3}, {"initialisation": "uniform"},
]  # fmt: skip


def changed(**options: Any) -> Architecture:
    return PRESETS["small"].build(50, **{"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 24, **options})


def model_of(architecture: Architecture = SPEEDRUN, moved: bool = True) -> GPT:
    """With `moved`, what begins as zero is something, so that everything matters."""
    model = GPT(architecture)
    model.initialise(3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters() if moved else []:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def tokens_of(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "option", [*SINGLE, {"value_embeddings": True, "layers": 4}, {"embedding_norm": True, "norm_gains": False}]
)
def test_each_option_has_its_share_of_the_parameters(option: dict[str, Any]) -> None:
    architecture = changed(**option)
    assert sum(p.numel() for p in GPT(architecture).parameters()) == architecture.parameters()


@pytest.mark.parametrize("option", SINGLE)
def test_each_option_changes_the_function_of_the_same_weights_or_the_weights(option: dict[str, Any]) -> None:
    plain, other = model_of(changed()), model_of(changed(**option))
    assert not torch.allclose(plain(tokens_of(1, 8)), other(tokens_of(1, 8)), atol=1e-4)


@pytest.mark.parametrize("option", [*SINGLE, {}])
@pytest.mark.parametrize("length", [4, 16])
def test_no_option_sees_what_comes_after(option: dict[str, Any], length: int) -> None:
    model, tokens = model_of(changed(**option) if option else SPEEDRUN), tokens_of(2, length)
    edited = tokens.clone()
    edited[:, length // 2 :] = (edited[:, length // 2 :] + 1) % 50
    assert torch.allclose(model(tokens)[:, : length // 2], model(edited)[:, : length // 2], atol=1e-5)


def test_a_model_begins_as_a_uniform_guess() -> None:
    nats, _ = model_of(moved=False)(tokens_of(2, 16), None, tokens_of(2, 16).roll(-1, 1))
    assert nats.detach().mean().item() == pytest.approx(torch.tensor(50.0).log().item(), abs=0.02)


def test_a_packed_document_sees_what_it_sees_alone_in_layers_with_windows_too() -> None:
    model, tokens = model_of(), tokens_of(1, 25)
    segments = torch.tensor([[0] * 7 + [1] * 16 + [-1] * 2], dtype=torch.int32)
    packed = model(tokens, row_masks(SPEEDRUN, segments, masked=True))
    assert torch.allclose(packed[:, :7], model(tokens[:, :7]), atol=1e-5)
    assert torch.allclose(packed[:, 7:23], model(tokens[:, 7:23]), atol=1e-5)
    assert torch.isfinite(packed).all()


@pytest.mark.parametrize("masked", [True, False])
def test_a_query_sees_its_window_of_its_own_document(masked: bool) -> None:
    segments = torch.tensor([[0] * 7 + [1] * 4 + [-1] * 2, [0] * 13], dtype=torch.int32)
    found = row_masks(SPEEDRUN, segments, masked)
    assert isinstance(found, tuple)
    whole, short = found
    assert isinstance(short, torch.Tensor)
    for row in range(2):
        for query in range(13):
            for key in range(13):
                own = not masked or bool(segments[row, query] == segments[row, key])
                seen = short.expand(2, 1, 13, 13)[row, 0, query, key] if masked else short[query, key]
                assert bool(seen) == (own and key <= query < key + 5)
                if masked:
                    assert isinstance(whole, torch.Tensor)
                    assert bool(whole[row, 0, query, key]) == (own and key <= query)
    assert masked or whole is None


def test_rows_no_longer_than_the_window_need_no_mask_of_their_own() -> None:
    assert row_masks(SPEEDRUN, torch.zeros(1, 5), masked=False) is None
    assert isinstance(row_masks(SPEEDRUN, torch.zeros(1, 5), masked=True), torch.Tensor)


def test_windows_are_in_all_layers_of_s_but_the_last() -> None:
    architecture = PRESETS["speedrun"].build(8_192, window=1_024)
    assert [architecture.short(layer) for layer in range(8)] == [True, True, True, False, True, True, True, False]
    assert [architecture.has_values(layer) for layer in range(8)] == [False, True] * 4
    assert not changed(windows="S", window=3, layers=1 + 1).short(1)


def test_the_block_mask_of_gpus_has_the_window_of_the_boolean_one_of_cpus() -> None:
    segments = torch.tensor([[0] * 100 + [1] * 130 + [2] * 20 + [-1] * 6, [0] * 256], dtype=torch.int32)
    found = row_masks(SPEEDRUN.model_copy(update={"window": 40}), segments, masked=True)
    assert isinstance(found, tuple)
    query = torch.randn(2, 4, 256, 8, generator=torch.Generator().manual_seed(0))
    key, value = query[:, :2] + 1, query[:, 2:] - 1
    dense = F.scaled_dot_product_attention(query, key, value, attn_mask=found[1], enable_gqa=True)  # type: ignore[arg-type]
    near = block_mask(segments, compiled=False, window=40)
    blocks = flex_attention(query, key, value, block_mask=near, enable_gqa=True)
    assert torch.allclose(dense, blocks, atol=1e-5)
    dense = F.scaled_dot_product_attention(query, key, value, attn_mask=window_mask(256, 40, query.device), enable_gqa=True)
    blocks = flex_attention(query, key, value, block_mask=window_blocks(256, 40, query.device), enable_gqa=True)
    assert torch.allclose(dense, blocks, atol=1e-5)


def test_a_whole_document_s_block_mask_is_refused_where_layers_have_windows() -> None:
    with pytest.raises(ValueError, match="row_masks"):
        model_of()(tokens_of(1, 16), block_mask(torch.zeros(1, 16), compiled=False))


def test_a_window_kept_from_a_model_that_is_only_read_can_be_trained_with() -> None:
    model = model_of()
    window_mask.cache_clear()
    with torch.inference_mode():
        model(tokens_of(1, 12))
    model(tokens_of(1, 12)).sum().backward()


def test_capped_logits_stay_within_the_cap_and_the_loss_is_that_of_them() -> None:
    architecture = SPEEDRUN.model_copy(update={"soft_cap": 1.5})
    model, tokens = model_of(architecture), tokens_of(3, 12)
    assert model.head is not None
    model.head.weight.data *= 4
    logits = model(tokens[:, :-1])
    assert 1.4 < logits.abs().max() <= 1.5
    for chunk in (0, 7):
        model.loss_chunk = chunk
        nats, squares = model(tokens[:, :-1], None, tokens[:, 1:])
        expected = -torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        assert torch.allclose(nats, expected, atol=1e-5)
        assert torch.allclose(squares, torch.logsumexp(logits, -1).square(), atol=1e-4)


def test_the_gradient_of_the_cap_is_what_differences_say() -> None:
    generator = torch.Generator().manual_seed(2)
    stream = torch.randn(3, 6, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    targets = torch.tensor([1, 8, 3])

    def loss(given: torch.Tensor) -> torch.Tensor:
        return token_nats(F.linear(given, weight), targets, 1.0)[0].sum()

    torch.autograd.backward(loss(stream))
    assert stream.grad is not None
    for at in ((0, 0), (1, 3), (2, 5)):
        moved = torch.zeros(3, 6, dtype=torch.float64)
        moved[at] = 0.02
        difference = (loss(stream.detach() + moved) - loss(stream.detach() - moved)) / 0.04
        assert stream.grad[at].item() == pytest.approx(difference.item(), rel=2e-3, abs=2e-4)


def test_flops_by_hand_for_the_shape_of_autoresearch() -> None:
    architecture = PRESETS["speedrun"].build(8_192, window=1_024)
    matmuls = 8 * 12 * 512**2 + 8_192 * 512 + 4 * 32 * 4
    assert architecture.matmul_parameters() == matmuls
    assert architecture.parameters() == matmuls + 8_192 * 512 * (1 + 4) + 2 * 8 == 50_332_176
    assert palm_flops_per_token(architecture, 2_048) == 6 * matmuls + 12 * 512 * (6 * 1_024 + 2 * 2_048)
    assert palm_flops_per_token(architecture, 512) == 6 * matmuls + 12 * 512 * 8 * 512
    near = mean_keys([torch.tensor([2_048]).numpy()], 1_024)
    assert near == (1_024 * 1_025 / 2 + 1_024 * 1_024) / 2_048
    causal = causal_flops_per_token(architecture, 1_024.5, near)
    assert causal == pytest.approx(6 * matmuls + 12 * 512 * (6 * near + 2 * 1_024.5))
    with pytest.raises(ValueError, match="window"):
        causal_flops_per_token(architecture, 1_024.5)


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_mean_keys_are_those_of_a_count(window: int) -> None:
    lengths = [torch.tensor([1, 4, 9]).numpy(), torch.tensor([2], dtype=torch.int32).numpy()]
    seen = [min(query + 1, window or 99) for length in (1, 4, 9, 2) for query in range(length)]
    assert mean_keys(lengths, window) == pytest.approx(sum(seen) / len(seen))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"windows": "SX"}, "pattern"), ({"windows": "L", "window": 4}, "SSSL"), ({"soft_cap": -1}, "soft_cap"),
        ({"initialisation": "uniform", "tied": True}, "tied=false"), ({"feed": "gelu"}, "feed"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(**option)


def test_a_window_is_an_eighth_of_a_row_unless_it_is_given() -> None:
    def window(**given: Any) -> int:
        return TrainConfig.check(manifest="m", out="o", preset="speedrun", **given).architecture(100).window

    assert window() == 256
    assert window(sequence_length=512, batch_tokens=2_048) == 64
    assert window(model={"window": 100}) == 100
    assert window(model={"windows": ""}) == 0


def test_what_a_preset_decides_can_be_given() -> None:
    speedrun, small = (TrainConfig.check(manifest="m", out="o", preset=preset) for preset in ("speedrun", "small"))
    assert [speedrun.said(name) for name in ("optimiser", "schedule", "warmup", "final_rate")] == ["muon", "wsd", 0.0, 0.0]
    assert [small.said(name) for name in ("optimiser", "schedule", "warmup", "final_rate")] == ["adamw", "cosine", 0.05, 0.05]
    assert (speedrun.peak_rate, small.peak_rate, small.norm_limit, speedrun.norm_limit) == (0.04, 1e-3, 1.0, float("inf"))
    given = TrainConfig.check(manifest="m", out="o", preset="small", optimiser="muon", schedule="wsd", cooldown=0.2)
    assert (given.peak_rate, given.said("cooldown")) == (0.02, 0.2)
    for wrong, message in (({"cooldown": 0.2}, "wsd"), ({"schedule": "wsd", "warmup": 0.6}, "whole budget")):
        with pytest.raises(ConfigurationError, match=message):
            TrainConfig.check(manifest="m", out="o", preset="small", **wrong)


def test_a_run_saved_before_presets_had_a_course_is_the_same_run() -> None:
    config = TrainConfig.check(manifest="m", out="o", preset="small")
    saved = config.model_dump(mode="json")
    for name in ("optimiser", "schedule", "cooldown"):
        del saved[name]
    assert config.differences({**saved, "warmup": 0.05, "final_rate": 0.05, "weight_decay": 0.1, "clip": 1.0}) == []
    assert config.differences({**saved, "warmup": 0.1}) == ["warmup: 0.1 -> 0.05"]


# runs

TINY = {"layers": 4, "width": 24, "heads": 2, "kv_heads": 1, "hidden": 40}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


def speedrun(manifest: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return options(manifest, out, **{"preset": "speedrun-tiny", "model": TINY, "steps": 6, **changes})


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run)
    assert found is not None
    model = GPT(Architecture.model_validate(checkpoint.load_state(found).architecture))
    checkpoint_tensors.load_weights(found, model)
    return dict(model.named_parameters())


@pytest.mark.slow  # tests/trainer/test_loop.py resumes this family too, and compares losses
def test_a_resumed_run_is_bit_for_bit_the_unbroken_one(manifest: Path, tmp_path: Path) -> None:
    train_alone(speedrun(manifest, tmp_path / "run", checkpoint_every=2, keep=9))
    expected, course = weights(tmp_path / "run"), losses(tmp_path / "run")
    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "run", resumed)
    for later in (4, 6):
        shutil.rmtree(resumed / "checkpoints" / f"step-{later:08d}")
    train_alone(speedrun(manifest, resumed, checkpoint_every=2, keep=9), resume=True)
    assert losses(resumed) == course
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(resumed).items())


def test_a_model_with_every_option_is_scored_beyond_its_window(manifest: Path, tmp_path: Path) -> None:
    outcome = train_alone(speedrun(manifest, tmp_path / "run", steps=40, evaluate=True, model={**TINY, "window": 6}))
    assert outcome.score is not None  # which a model that looks ahead does not get
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0] - 1


@pytest.mark.parametrize(
    ("world", "changes"),
    [
        pytest.param(2, {"parallel": "fsdp"}, marks=pytest.mark.slow),
        pytest.param(2, {"parallel": "ddp"}, marks=pytest.mark.slow),
        pytest.param(4, {"parallel": "hsdp", "recompute": "full"}, marks=pytest.mark.slow),
        pytest.param(4, {"parallel": "fsdp", "accumulate": "sharded", "attention": "sdpa"}, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_with_muon_like_one_process(manifest: Path, tmp_path: Path, world: int, changes: dict[str, Any]) -> None:
    shared = {name: value for name, value in changes.items() if name == "attention"}
    train_in(1, manifest, tmp_path / "alone", **_without(speedrun(manifest, tmp_path, **shared)))
    train_in(world, manifest, tmp_path / "run", **_without(speedrun(manifest, tmp_path, **changes)))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), rel=2e-5)
    norms = ([row["grad_norm"] for row in rows(tmp_path / name)] for name in ("run", "alone"))
    assert next(norms) == pytest.approx(next(norms), rel=1e-3)


@pytest.mark.slow
def test_shards_resume_as_one_process_and_back_with_muon(manifest: Path, tmp_path: Path) -> None:
    whole = _without(speedrun(manifest, tmp_path, checkpoint_every=2, keep=9))
    train_in(1, manifest, tmp_path / "alone", **whole)
    run = tmp_path / "run"
    train_in(2, manifest, run, **{**whole, "parallel": "fsdp"})
    for world, last, parallel in ((1, 4, "ddp"), (2, 2, "fsdp")):
        for later in range(last + 2, 8, 2):
            shutil.rmtree(run / "checkpoints" / f"step-{later:08d}", ignore_errors=True)
        train_in(world, manifest, run, resume=True, **{**whole, "parallel": parallel})
        assert losses(run) == pytest.approx(losses(tmp_path / "alone"), rel=2e-5)


def _without(chosen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if name not in ("manifest", "out")}
