"""Many ranks: the same weights, losses, norms and scores as one process, in whatever layout."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from tests.trainer.corpus_fixture import learnable_corpus
from tests.trainer.ranks_fixture import TINY, in_ranks, losses, options, rows, train_alone, train_in
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.distributed.parallel import ALONE, Layout, Recompute, Spread, local
from trainer.distributed.ranks import Ranks
from trainer.network.linear import Sums
from trainer.network.model import GPT, document_mask
from trainer.presets import PRESETS
from trainer.run.loop import train
from trainer.run.optimisation import build_adamw
from trainer.run.progress import RunProgress
from trainer.run_files.metrics import DivergedError
from trainer.scores.scoring import score_checkpoint

CPU = torch.device("cpu")
TOLERANCE = 2e-5
"""Relative difference of losses over 20 steps that another order of float32 sums may make."""
ARCHITECTURE = PRESETS["tiny"].build(64, **TINY)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=120, held_out=20)


@pytest.fixture(scope="module")
def alone(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a single process that the others are compared with."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train_in(1, manifest, out, evaluate=True)
    return out


def same_course(one: Path, other: Path) -> None:
    assert losses(one) == pytest.approx(losses(other), rel=TOLERANCE)
    assert [row["grad_norm"] for row in rows(one)] == pytest.approx([row["grad_norm"] for row in rows(other)], rel=1e-3)


@pytest.mark.slow
def test_two_shards_train_like_one_process(manifest: Path, tmp_path: Path) -> None:
    train_in(1, manifest, tmp_path / "alone", steps=4)
    train_in(2, manifest, tmp_path / "run", steps=4, parallel="fsdp")
    same_course(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "changes"),
    [
        (2, {"parallel": "ddp"}),
        (2, {"parallel": "fsdp"}),
        (2, {"parallel": "fsdp", "accumulate": "sharded"}),
        (4, {"parallel": "ddp", "recompute": "selective"}),
        (4, {"parallel": "fsdp"}),
        (4, {"parallel": "fsdp", "micro_batch": 4, "recompute": "full"}),
        (4, {"parallel": "hsdp"}),
        (4, {"parallel": "hsdp", "replicas": 2, "accumulate": "sharded", "recompute": "selective"}),
    ],
)
def test_every_layout_trains_like_one_process(
    manifest: Path, alone: Path, tmp_path: Path, world: int, changes: dict[str, Any]
) -> None:
    train_in(world, manifest, tmp_path / "run", evaluate=True, **changes)
    same_course(tmp_path / "run", alone)
    scores = [json.loads((run / "result.json").read_text())["score"]["val_bpb"] for run in (tmp_path / "run", alone)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_compiled_blocks_train_like_one_process(manifest: Path, alone: Path, tmp_path: Path, parallel: str) -> None:
    train_in(2, manifest, tmp_path / "run", parallel=parallel, compile=True, recompute="selective")
    same_course(tmp_path / "run", alone)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"model": {"tied": False}}, id="untied"),
        pytest.param({"loss_chunk": 64}, id="chunks", marks=pytest.mark.slow),
        pytest.param({"recompute": "full"}, id="recompute", marks=pytest.mark.slow),
        pytest.param({"compile": True, "steps": 4}, id="compiled", marks=pytest.mark.slow),
    ],
)
def test_two_models_in_bfloat16_train_like_one(manifest: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    train_alone(options(manifest, tmp_path / "alone", dtype="bfloat16", **changes))
    train_in(2, manifest, tmp_path / "run", parallel="ddp", dtype="bfloat16", **changes)
    found, expected = losses(tmp_path / "run"), losses(tmp_path / "alone")
    assert found == pytest.approx(expected, rel=2e-3)
    norms = [[row["grad_norm"] for row in rows(tmp_path / name)] for name in ("run", "alone")]
    assert norms[0] == pytest.approx(norms[1], rel=3e-2)


def replicas_apart(ranks: Ranks, kind: Literal["ddp", "fsdp", "hsdp"]) -> None:
    """One rank's weights are changed in the last bit of one number."""
    spread = Spread(ARCHITECTURE, Layout.of(kind, None, ranks), CPU, "float32", seed=5)
    assert spread.unlike(ranks) == []
    name, parameter = list(spread.model.named_parameters())[3]
    if ranks.rank == ranks.world - 1:
        local(parameter).detach().view(torch.int32).view(-1)[-1] += 1
    assert spread.unlike(ranks) == ([] if kind == "fsdp" else [name])
    if ranks.rank == ranks.world - 1:
        local(parameter).detach().view(torch.int32).view(-1)[-1] -= 1
        parameter = spread.model.embedding.weight
        local(parameter).detach().copy_(local(parameter).detach().flip(0))
    assert spread.unlike(ranks) == ([] if kind == "fsdp" else ["embedding.weight"])


@pytest.mark.parametrize(
    ("kind", "world"),
    [("ddp", 2), pytest.param("fsdp", 2, marks=pytest.mark.slow), pytest.param("hsdp", 4, marks=pytest.mark.slow)],
)
def test_replicas_that_differ_in_one_bit_are_found_by_every_rank(kind: str, world: int) -> None:
    assert in_ranks(world, replicas_apart, kind) == [0] * world


def train_apart(ranks: Ranks, chosen: dict[str, Any]) -> None:
    """A rank loses what the others sent for one layer's gains, as a wrong reduction would."""
    if not ranks.first:
        averaged = Sums.averaged

        @contextlib.contextmanager
        def losing(sums: Sums) -> Iterator[None]:
            with averaged(sums):
                yield
            next(one for one in sums._parameters if one.ndim == 1).grad.mul_(0.5)  # type: ignore[union-attr]

        Sums.averaged = losing  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"step 4: replicas of the model hold different weights"):
        train(TrainConfig.check(**chosen), ranks, RunProgress(False, 100), False)


def test_a_run_whose_replicas_went_apart_ends_before_it_saves(manifest: Path, tmp_path: Path) -> None:
    chosen = options(manifest, tmp_path / "run", parallel="ddp", dtype="bfloat16", steps=8, checkpoint_every=4)
    assert in_ranks(2, train_apart, chosen) == [0, 0]
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))


def spread_in(ranks: Ranks, layout: Layout, out: str) -> None:
    spread = Spread(ARCHITECTURE, layout, CPU, "float32", seed=5)
    sizes = [len(local(parameter)) for parameter in spread.model.parameters()]
    whole = {name: tensor.clone() for name, tensor in spread.whole().named_parameters()}
    torch.save({"whole": whole, "sizes": sizes}, f"{out}/{ranks.rank}.pt")


def test_four_shards_begin_with_the_weights_of_one_process(tmp_path: Path) -> None:
    expected = GPT(ARCHITECTURE)
    expected.initialise(5)
    assert in_ranks(4, start_in_fsdp, str(tmp_path)) == [0] * 4
    held = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(4)]
    for rank in held:
        for name, parameter in expected.named_parameters():
            assert torch.equal(rank["whole"][name], parameter), name
    together = [sum(sizes) for sizes in zip(*(rank["sizes"] for rank in held), strict=True)]
    assert together == [len(parameter) for parameter in expected.parameters()]
    assert min(min(rank["sizes"]) for rank in held) == 0


def start_in_fsdp(ranks: Ranks, out: str) -> None:
    spread_in(ranks, Layout.of("fsdp", None, ranks), out)


def score_in(ranks: Ranks, run: str, manifest: str, out: str) -> None:
    score = score_checkpoint(Path(run), manifest, "validation", ranks)
    Path(f"{out}/{ranks.rank}.json").write_text(json.dumps(score.as_json()))


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_checkpoint_scores_the_same_on_any_number_of_ranks(manifest: Path, alone: Path, tmp_path: Path, world: int) -> None:
    expected = score_checkpoint(alone, str(manifest), "validation", Ranks(0, 1, 0, CPU))
    assert in_ranks(world, score_in, str(alone), str(manifest), str(tmp_path)) == [0] * world
    for rank in range(world):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["val_bpb"] == pytest.approx(expected.val_bpb, abs=1e-6)
        assert found["nats"] == pytest.approx(expected.nats, rel=1e-6)


def gradients_and_saved_bytes(recompute: Recompute) -> tuple[list[Tensor], int]:
    """Of one step of a lone process: its gradients, and the bytes that the forward pass keeps for the backward pass."""
    spread = Spread(PRESETS["tiny"].build(64, layers=6, width=32, heads=2, hidden=64), ALONE, CPU, "float32", 3, 0, recompute)
    spread.start()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (4, 32), generator=generator)
    own = {parameter.data_ptr() for parameter in spread.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        nats, _ = spread.forward(tokens, document_mask(torch.zeros_like(tokens)), tokens)
    nats.sum().backward()
    gradients = [parameter.grad for parameter in spread.model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [gradient for gradient in gradients if gradient is not None], sum(kept.values())


def test_recomputing_keeps_less_and_changes_no_gradient() -> None:
    gradients, kept = gradients_and_saved_bytes("none")
    of_half, half = gradients_and_saved_bytes("selective")
    of_none, least = gradients_and_saved_bytes("full")
    for one, two, three in zip(gradients, of_half, of_none, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)
    assert least < half < kept
    assert kept - half == pytest.approx((kept - least) / 2, rel=0.02)
    assert least < kept / 4


def test_what_swiglu_multiplies_need_not_be_kept() -> None:
    gradients, kept = gradients_and_saved_bytes("none")
    again, less = gradients_and_saved_bytes("feed")
    for one, two in zip(gradients, again, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-7)
    assert less < kept - 6 * 4 * 32 * 64 * 4 * 0.95  # layers, rows, positions, hidden, bytes


def test_rows_are_cut_as_fsdp_cuts_them() -> None:
    for count in (1, 2, 3, 10, 64):
        for shards in (1, 2, 3, 4, 8):
            layout = Layout(0, 1, shards)
            chunks = [len(chunk) for chunk in torch.zeros(count).chunk(shards)]
            assert [layout.rows(count, shard)[1] for shard in range(shards)] == chunks + [0] * (shards - len(chunks))
            assert sum(layout.rows(count, shard)[1] for shard in range(shards)) == count


def ranks_of(world: int, machines: int = 1) -> Ranks:
    return Ranks(0, world, 0, CPU, machines)


def test_layouts_have_as_many_replicas_as_machines_unless_told_otherwise() -> None:
    assert Layout.of("ddp", None, ranks_of(8)) == Layout(0, 8, 1)
    assert Layout.of("fsdp", None, ranks_of(8)) == Layout(0, 1, 8)
    assert Layout.of("hsdp", None, ranks_of(8)) == Layout(0, 2, 4)
    assert Layout.of("hsdp", None, ranks_of(8, machines=4)) == Layout(0, 4, 2)
    assert Layout.of("hsdp", 4, ranks_of(8, machines=2)) == Layout(0, 4, 2)
    assert Layout.of("hsdp", None, ranks_of(9)) == Layout(0, 3, 3)


@pytest.mark.parametrize(
    ("world", "replicas", "said"),
    [
        (8, 3, "8 ranks are not 3 replicas of several shards each; 2, 4 would do"),
        (8, 8, "2, 4 would do"),
        (8, 1, "2, 4 would do"),
        (3, None, "use --parallel fsdp or ddp, or 4"),
        (1, None, "use --parallel fsdp or ddp, or 4"),
    ],
)
def test_replicas_that_cannot_be_are_refused_with_those_that_can(world: int, replicas: int | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Layout.of("hsdp", replicas, ranks_of(world))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": "fsdp", "replicas": 2}, "replicas are those of parallel hsdp, not fsdp"),
        ({"accumulate": "sharded"}, "needs shards: use parallel fsdp or hsdp"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TrainConfig.check(**options(tmp_path, tmp_path, **changes))


def test_a_batch_that_ranks_cannot_share_is_refused_with_the_nearest_that_they_can(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"16 rows of 32, which 3 ranks cannot share equally; --batch-tokens 480 would do"
    ):
        TrainConfig.check(**options(tmp_path, tmp_path)).micro_batches(3)


def test_fsdp_on_one_rank_is_that_rank_alone(manifest: Path, tmp_path: Path) -> None:
    for name, parallel in (("one", "ddp"), ("other", "fsdp")):
        train_alone(options(manifest, tmp_path / name, parallel=parallel, steps=3))
    assert losses(tmp_path / "one") == losses(tmp_path / "other")


def bfloat16_in(ranks: Ranks, out: str) -> None:
    """What a step of a sharded model in bfloat16 holds and communicates, and that its shards are float32."""
    spread = Spread(ARCHITECTURE, Layout.of("fsdp", None, ranks), CPU, "bfloat16", seed=5)
    spread.start()
    optimiser = build_adamw(spread.model, 1e-3, 0.1)
    tokens = torch.arange(64).reshape(2, 32)
    spread.begin()
    with spread.micro_batch(0, 1), torch.autocast("cpu", torch.bfloat16):
        nats, _ = spread.forward(tokens, None, tokens)
        nats.sum().backward()
    norm = spread.clip(1.0)
    optimiser.step()
    parameters = list(spread.model.parameters())
    states = [value.dtype for parameter in parameters for value in optimiser.state[parameter].values()]
    gradients = [parameter.grad.dtype for parameter in parameters if parameter.grad is not None]
    assert {parameter.dtype for parameter in parameters} | set(states) | set(gradients) == {torch.float32}
    Path(f"{out}/{ranks.rank}").write_text(f"{nats.sum().item()} {norm.item()}")


def test_shards_in_bfloat16_keep_float32_masters_and_give_the_norm_of_one_process(tmp_path: Path) -> None:
    assert in_ranks(2, bfloat16_in, str(tmp_path)) == [0, 0]
    spread = Spread(ARCHITECTURE, ALONE, CPU, "bfloat16", seed=5)
    spread.start()
    tokens = torch.arange(64).reshape(2, 32)
    spread.begin()
    with torch.autocast("cpu", torch.bfloat16):
        nats, _ = spread.forward(tokens, None, tokens)
        nats.sum().backward()
    norm = spread.clip(1.0)
    for rank in range(2):
        found, found_norm = map(float, (tmp_path / str(rank)).read_text().split())
        assert found == pytest.approx(nats.sum().item(), rel=1e-2)
        assert found_norm == pytest.approx(norm.item(), rel=2e-2)
