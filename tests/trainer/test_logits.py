"""Sizes of logits: those that the model computes with, and nothing is changed by looking at them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import TINY, rows, train_in
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import IGNORED, Batch, Loader
from trainer.network.model import GPT, row_masks
from trainer.presets import PRESETS
from trainer.run.logits import logit_sizes
from trainer.run_files import checkpoint


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


def batch_of(manifest: Path, rows: int, length: int) -> Batch:
    """The row with the most padding, and those with the most documents."""
    loader = Loader([Corpus.open(str(manifest)).component("toy", "train")], length)
    segments = loader.batch(np.arange(loader.plans[0].rows)).segments
    padded = int((segments < 0).sum(axis=1).argmax())
    crowded = [row for row in np.argsort(-segments.max(axis=1), kind="stable").tolist() if row != padded]
    batch = loader.batch(np.array([padded, *crowded[: rows - 1]]))
    assert (batch.segments < 0).any() and (batch.segments > 0).any()  # padding, and several documents in a row
    return batch


def drawn(preset: str, **changes: Any) -> GPT:
    """A model whose every weight matters: three times as large as fresh ones, gains unequal."""
    model = GPT(PRESETS[preset].build(64, **changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty_like(parameter).normal_(0, 0.3, generator=generator)
            parameter.copy_(noise if parameter.ndim > 1 else 1 + noise)
    return model


def sizes_of(model: GPT, batch: Batch, masked: bool = True) -> tuple[list[float], float, int]:
    tokens, targets, segments = (torch.from_numpy(part) for part in (batch.tokens, batch.targets, batch.segments))
    found = logit_sizes(model, tokens, targets, segments, masked)
    return found.attention, found.log_z, found.targets


def twin(model: GPT, batch: Batch, masked: bool) -> tuple[list[float], float, int]:
    """The same of a llama model, in float64, one query after the other."""
    a, w = model.architecture, {name: value.detach().double() for name, value in model.named_parameters()}
    largest, log_z, count = [-math.inf] * a.layers, 0.0, 0
    for tokens, targets, segments in zip(batch.tokens, batch.targets, batch.segments, strict=True):
        stream = w["embedding.weight"][torch.from_numpy(tokens)]
        for layer in range(a.layers):
            own = {name.removeprefix(f"blocks.{layer}."): value for name, value in w.items()}
            packed = norm(stream, own["attention_norm.weight"], a.norm_epsilon) @ own["attention.projection.weight"].T
            inner, values = a.heads * a.head_width, a.kv_heads * a.head_width
            query, key, value = torch.split(packed, [inner, values, values], dim=-1)
            mixed = torch.zeros(len(tokens), inner, dtype=torch.float64)
            for head in range(a.heads):
                mine = slice(head * a.head_width, (head + 1) * a.head_width)
                shared = head // (a.heads // a.kv_heads)
                theirs = slice(shared * a.head_width, (shared + 1) * a.head_width)
                q, k = query[:, mine], key[:, theirs]
                if a.qk_norm:
                    q = norm(q, own["attention.query_norm.weight"], a.norm_epsilon)
                    k = norm(k, own["attention.key_norm.weight"], a.norm_epsilon)
                q, k = turned(q, a.rope_theta), turned(k, a.rope_theta)
                for at in range(len(tokens)):
                    seen = [p for p in range(at + 1) if not masked or segments[p] == segments[at]]
                    scores = torch.stack([q[at] @ k[p] for p in seen]) / math.sqrt(a.head_width)
                    mixed[at, mine] = scores.softmax(0) @ value[seen, theirs]
                    real = [float(score) for p, score in zip(seen, scores, strict=True) if min(segments[p], segments[at]) >= 0]
                    largest[layer] = max([largest[layer], *real])
            stream = stream + mixed @ own["attention.output.weight"].T
            gate, up = (norm(stream, own["feed_norm.weight"], a.norm_epsilon) @ own["feed.gate_and_up.weight"].T).chunk(2, -1)
            stream = stream + (gate * torch.sigmoid(gate) * up) @ own["feed.down.weight"].T
        logits = norm(stream, w["norm.weight"], a.norm_epsilon) @ w["embedding.weight" if a.tied else "head.weight"].T
        valid = torch.from_numpy(targets != IGNORED)
        log_z, count = log_z + float(logits.exp().sum(-1).log()[valid].sum()), count + int(valid.sum())
    return largest, log_z, count


def norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gain


def turned(x: Tensor, theta: float) -> Tensor:
    half = x.shape[1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] / theta ** (torch.arange(half, dtype=torch.float64) / half)
    first, second = x[:, :half], x[:, half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("changes", [{"qk_norm": True}, {"qk_norm": False}, {"qk_norm": False, "tied": False}])
def test_the_largest_attention_logit_and_log_z_are_those_of_a_plain_float64_twin(
    manifest: Path, masked: bool, changes: dict[str, bool]
) -> None:
    model, batch = drawn("tiny", **{**TINY, **changes}), batch_of(manifest, 2, 24)
    found, expected = sizes_of(model, batch, masked), twin(model, batch, masked)
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    assert found[1] == pytest.approx(expected[1], rel=1e-5)
    assert found[2] == expected[2]


def test_layers_with_windows_lambdas_and_value_embeddings_are_measured_as_they_compute(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drawn("speedrun-tiny", layers=4, width=32, heads=4, kv_heads=2, hidden=40, window=5)
    batch, found = batch_of(manifest, 3, 24), list[float]()
    tokens, targets, segments = (torch.from_numpy(part) for part in (batch.tokens, batch.targets, batch.segments))
    real, attend = segments >= 0, F.scaled_dot_product_attention

    def listening(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, **rest: Any) -> Tensor:
        scores = query.double() @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).double().mT / query.shape[-1] ** 0.5
        counted = (attn_mask & real[:, None, :, None] & real[:, None, None, :]).expand_as(scores)
        found.append(float(scores[counted].detach().max()))
        return attend(query, key, value, attn_mask=attn_mask, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(F, "scaled_dot_product_attention", listening)
        model(tokens, row_masks(model.architecture, segments, True), targets)
    measured = sizes_of(model, batch)
    assert measured[0] == pytest.approx(found, rel=1e-4)
    logits = model(tokens, row_masks(model.architecture, segments, True))
    assert measured[1] == pytest.approx(float(logits.logsumexp(-1)[targets != IGNORED].sum()), rel=1e-4)


def test_a_watched_run_has_the_weights_of_one_that_is_not_watched(manifest: Path, tmp_path: Path) -> None:
    train_in(1, manifest, tmp_path / "plain", steps=5)
    train_in(1, manifest, tmp_path / "watched", steps=5, watch_logits=2)
    plain, watched = (checkpoint.latest(tmp_path / name) for name in ("plain", "watched"))
    assert plain is not None and watched is not None
    assert checkpoint.identity(plain) == checkpoint.identity(watched)
    assert [row["loss"] for row in rows(tmp_path / "plain")] == [row["loss"] for row in rows(tmp_path / "watched")]
    assert [row["step"] for row in rows(tmp_path / "watched") if "attention_logit_max" in row] == [1, 3, 5]
    assert all(math.isfinite(row["log_z"]) for row in rows(tmp_path / "watched") if "log_z" in row)


def test_what_is_watched_is_that_of_the_weights_before_the_step(manifest: Path, tmp_path: Path) -> None:
    """Fresh weights say next to nothing: log Z is that of a uniform guess, and attention sees no difference."""
    train_in(
        1, manifest, tmp_path / "run", steps=1, watch_logits=1, learning_rate=1.0, warmup=0.0, model={**TINY, "qk_norm": False}
    )
    (first,) = rows(tmp_path / "run")
    assert first["log_z"] == pytest.approx(math.log(64), abs=0.02)
    assert 0 < first["attention_logit_max"] < 0.1


@pytest.mark.slow
def test_two_ranks_see_the_largest_of_both(manifest: Path, tmp_path: Path) -> None:
    """Rows of a batch are shared out, and the first rows of a rank's are looked at: with four rows, all of them either way."""
    few: dict[str, Any] = {"steps": 2, "watch_logits": 1, "batch_tokens": 128, "micro_batch": 2}
    train_in(2, manifest, tmp_path / "two", **few)
    train_in(1, manifest, tmp_path / "one", **{**few, "micro_batch": 4})
    for name in ("attention_logit_max", "log_z"):
        assert [r[name] for r in rows(tmp_path / "two")] == pytest.approx([r[name] for r in rows(tmp_path / "one")], rel=1e-5)


def test_shards_cannot_be_watched() -> None:
    with pytest.raises(ConfigurationError, match="whole weights"):
        TrainConfig.check(manifest="m", out="o", watch_logits=1, parallel="fsdp")


def test_a_resumed_run_may_be_watched() -> None:
    saved = TrainConfig.check(manifest="m", out="o").model_dump(mode="json")
    saved.pop("watch_logits")  # as an earlier version wrote it
    assert TrainConfig.check(**saved, watch_logits=1).differences(saved) == []
