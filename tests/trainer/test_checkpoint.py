"""Checkpoints count only once they are whole, whoever wrote them and whoever reads them; and nothing in them is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.ranks_fixture import TINY, in_ranks
from trainer.distributed.parallel import ALONE, Layout, Spread, local
from trainer.distributed.ranks import Ranks
from trainer.presets import PRESETS
from trainer.run.optimisation import build_adamw
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors
from trainer.run_files.checkpoint import Saver
from trainer.run_files.checkpoint_format import CheckpointError, State

CPU = torch.device("cpu")
ONE = Ranks(0, 1, 0, CPU)
ARCHITECTURE = PRESETS["tiny"].build(64, **TINY)


def state_of(step: int) -> State:
    return State(
        step=step, position=10 * step, tokens=80 * step, clipped_steps=0, spent_seconds=1.5, architecture={}, config={},
        loader_digest="a", manifest_digest="b", tokenizer_sha256="c", code_sha256="d", lineage=[],
    )  # fmt: skip


class Two(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3, 2), value))
        self.gain = torch.nn.Parameter(torch.full((2,), value))


def trained(value: float) -> tuple[Two, torch.optim.AdamW]:
    """A model that has made a step, so that its optimiser has a state."""
    model = Two(value)
    optimiser = build_adamw(model, 1e-2, 0.1)
    (model.weight.square().sum() + model.gain.sum()).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return model, optimiser


def save(run: Path, step: int) -> Path:
    return checkpoint.save(run, state_of(step), *trained(float(step)))


def seal(folder: Path) -> None:
    """Makes the completion record that of the files as they are, as a forger would."""
    record = json.loads((folder / checkpoint_format.RECORD).read_text())
    for name in record["files"]:
        data = (folder / name).read_bytes()
        record["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / checkpoint_format.RECORD).write_text(json.dumps(record))


def killed_at(run: Path, step: int, sync: int) -> bool:
    """Saves in a child that dies at its `sync`-th write to disk; False once it lived to the end."""
    child = os.fork()
    if not child:
        calls, fsync = 0, os.fsync

        def dying(handle: int) -> None:
            nonlocal calls
            calls += 1
            if calls == sync:
                os._exit(9)
            fsync(handle)

        os.fsync = dying
        model = Two(float(step))  # a forked process cannot compute gradients
        checkpoint.save(run, state_of(step), model, build_adamw(model, 1e-2, 0.1))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_save_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 100)
    sync = 1
    while killed_at(tmp_path, 200, sync):
        found = checkpoint.latest(tmp_path)
        assert found is not None
        assert checkpoint.fault(found) is None
        assert checkpoint.load_state(found).step in (100, 200)
        sync += 1
    assert sync > 5
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert checkpoint.load_state(newest).step == 200


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "index.json", "state.json", "complete.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path, 100)
    path = save(tmp_path, 200) / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    if damage == "gone":
        path.unlink()
    found, passed_over = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.name == "step-00000100"
    assert list(passed_over) == ["step-00000200"]


def test_a_damaged_checkpoint_asked_for_by_name_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        checkpoint.resolve(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "complete.json"])
def test_a_run_is_not_an_older_checkpoint_of_it_unless_that_is_named(tmp_path: Path, name: str) -> None:
    older = save(tmp_path, 100)
    newer = save(tmp_path, 200)
    (newer / name).unlink()
    with pytest.raises(CheckpointError) as refused:
        checkpoint.resolve(tmp_path)
    said = str(refused.value)
    assert "its newest checkpoint is not whole (step-00000200: " in said and said.endswith(f"the newest whole one is {older}")
    assert f"{newer / name} is not there" in said
    assert checkpoint.resolve(older) == older
    shutil.rmtree(newer)
    newer.symlink_to(older)
    with pytest.raises(CheckpointError, match=r"step-00000200: no folder of a checkpoint"):
        checkpoint.resolve(tmp_path)


def test_a_copy_beside_the_newest_checkpoint_keeps_nothing_from_being_scored(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    shutil.copytree(folder, folder.with_name("step-00000100.copy"))
    folder.with_name("step-00000050").symlink_to(folder)
    assert checkpoint.resolve(tmp_path) == folder


def test_what_is_saved_can_be_read_by_others_than_its_owner(tmp_path: Path) -> None:
    modes = {file.name: file.stat().st_mode & 0o044 for file in save(tmp_path, 1).glob("*.safetensors")}
    assert modes == {"model.safetensors": 0o044, "optimiser.safetensors": 0o044}


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        checkpoint.resolve(tmp_path)


def test_older_checkpoints_go_once_newer_ones_are_whole(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step)
    checkpoint.keep_newest(tmp_path, 2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000200", "step-00000300"]


def test_the_completion_record_holds_the_digest_of_the_weights(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    record = json.loads((folder / "complete.json").read_text())
    assert checkpoint.identity(folder) == record["files"]["model.safetensors"]["sha256"]
    assert load_file(folder / "model.safetensors")["weight"].shape == (3, 2)


def test_weights_optimiser_and_random_state_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, optimiser = trained(0.3)
    torch.manual_seed(11)
    folder = checkpoint.save(tmp_path, state_of(1), model, optimiser)
    drawn = torch.rand(3)
    other = Two(9.0)
    again = build_adamw(other, 1e-2, 0.1)
    checkpoint_tensors.load_weights(folder, other)
    checkpoint_tensors.load_optimiser(folder, other, again)
    assert torch.equal(torch.rand(3), drawn)
    for one, two in ((model, optimiser), (other, again)):
        two.zero_grad()
        one.weight.prod().backward()  # type: ignore[no-untyped-call]
        two.step()
    assert torch.equal(model.weight, other.weight) and torch.equal(model.gain, other.gain)
    assert again.state[other.weight]["step"] == 2


def test_a_save_is_of_the_moment_it_began_whatever_is_trained_meanwhile(tmp_path: Path) -> None:
    model, optimiser = trained(0.3)
    before = model.weight.detach().clone()
    moments = optimiser.state[model.weight]["exp_avg"].clone()
    saver = Saver(tmp_path, ONE, ALONE)
    saver.begin(state_of(1), model, optimiser)
    optimiser.step()
    with torch.no_grad():
        model.weight.fill_(7.0)
        optimiser.state[model.weight]["exp_avg"].fill_(7.0)
    assert saver.pending and saver.finish() and not saver.pending
    folder = checkpoint.resolve(tmp_path)
    assert torch.equal(load_file(folder / "model.safetensors")["weight"], before)
    assert torch.equal(load_file(folder / "optimiser.safetensors")["weight.exp_avg"], moments)


def test_the_next_save_completes_the_one_before(tmp_path: Path) -> None:
    saver = Saver(tmp_path, ONE, ALONE, keep=1)
    for step in (1, 2, 3):
        saver.begin(state_of(step), *trained(float(step)))
        names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert {f"step-{done:08d}" for done in (step - 1,) if done} == {name for name in names if name.startswith("step")}
    assert saver.finish() and saver.failures == []
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_a_save_that_cannot_be_written_is_told_of_and_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 100)
    saver = Saver(tmp_path, ONE, ALONE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))  # bytes that a file may have
        saver.begin(state_of(200), *trained(2.0))
        assert not saver.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(saver.failures) == 1
    assert saver.failures[0].startswith("step-00000200 was not saved: rank 0: ")
    assert [one.name for one in (tmp_path / checkpoint_format.CHECKPOINTS).iterdir()] == ["step-00000100"]  # nothing is in the way
    assert checkpoint.resolve(tmp_path).name == "step-00000100"


def test_a_checkpoint_counts_though_an_older_one_cannot_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def immovable(run: Path, count: int) -> None:
        raise PermissionError(1, "Operation not permitted", "state.json")

    monkeypatch.setattr(checkpoint, "keep_newest", immovable)
    saver = Saver(tmp_path, Ranks(0, 1, 0, CPU), ALONE, keep=1)
    saver.begin(state_of(200), *trained(200.0))
    assert saver.finish() and not saver.failures
    assert saver.left_over == ["an older checkpoint could not be deleted: [Errno 1] Operation not permitted: 'state.json'"]
    assert checkpoint.resolve(tmp_path).name == "step-00000200"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("key", ["model/weight", "optimiser/weight.exp_avg", "optimiser/weight.step"])
def test_a_tensor_of_another_type_than_its_place_is_refused_whatever_the_index_says(
    tmp_path: Path, key: str, dtype: torch.dtype
) -> None:
    folder = save(tmp_path, 100)
    kind, name = key.split("/")
    file = folder / f"{kind}.safetensors"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name].to(dtype)}, file)
    index = json.loads((folder / checkpoint_format.INDEX).read_text())
    index[kind][name]["dtype"] = str(dtype).removeprefix("torch.")
    (folder / checkpoint_format.INDEX).write_text(json.dumps(index))
    seal(folder)
    found, model = checkpoint.resolve(folder), Two(0.0)
    with pytest.raises(CheckpointError, match=f"{name} is of {index[kind][name]['dtype']}, and not of float32"):
        checkpoint_tensors.load_weights(found, model)
        checkpoint_tensors.load_optimiser(found, model, build_adamw(model, 1e-2, 0.1))


@pytest.mark.parametrize("shape", [[2**70, 0], [0, 2**70], [-1, 2], [2**63, 1]])
def test_a_shape_that_no_tensor_has_is_refused_by_every_reader(tmp_path: Path, shape: list[int]) -> None:
    folder = save(tmp_path, 100)
    index = json.loads((folder / checkpoint_format.INDEX).read_text())
    index["model"]["weight"]["shape"] = shape
    (folder / checkpoint_format.INDEX).write_text(json.dumps(index))
    seal(folder)
    for read in (
        lambda: checkpoint_tensors.weights_held(folder),
        lambda: list(checkpoint_tensors.weights_in(folder)),
        lambda: checkpoint_tensors.load_weights(folder, Two(0.0)),
    ):
        with pytest.raises(CheckpointError):
            read()


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch hostile-code-ran",))


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "index.json", "state.json", "complete.json"])
def test_a_pickle_in_place_of_any_file_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path, 100)
    for data in (pickle.dumps(Hostile(), protocol=2), pickle.dumps(Hostile())):
        (folder / name).write_bytes(data)
        if name != checkpoint_format.RECORD:
            seal(folder)
        with pytest.raises(CheckpointError):
            found = checkpoint.resolve(folder)
            checkpoint.load_state(found)
            checkpoint_tensors.load_weights(found, Two(0.0))
            model = Two(0.0)
            checkpoint_tensors.load_optimiser(found, model, build_adamw(model, 1e-2, 0.1))
    assert not (tmp_path / "hostile-code-ran").exists()


def _outside(index: dict[str, Any]) -> None:
    index["model"]["weight"]["parts"][0]["file"] = "../../../secret.safetensors"


def _gap(index: dict[str, Any]) -> None:
    index["model"]["weight"]["parts"][0]["first"] = 1


def _short(index: dict[str, Any]) -> None:
    index["model"]["weight"]["parts"][0]["rows"] = 2


def _twice(index: dict[str, Any]) -> None:
    index["model"]["weight"]["parts"] *= 2


def _wide(index: dict[str, Any]) -> None:
    index["model"]["weight"]["shape"] = [3, 3]


def _type(index: dict[str, Any]) -> None:
    index["model"]["weight"]["dtype"] = "float64"


def _no_type(index: dict[str, Any]) -> None:
    index["model"]["weight"]["dtype"] = "load"


def _missing(index: dict[str, Any]) -> None:
    del index["model"]["gain"]


def _more(index: dict[str, Any]) -> None:
    index["model"]["bias"] = index["model"]["gain"]


def _other_file(index: dict[str, Any]) -> None:
    index["model"]["gain"]["parts"][0]["file"] = "optimiser.safetensors"


def _no_format(index: dict[str, Any]) -> None:
    index["format"] = 3


@pytest.mark.parametrize(
    "forge", [_outside, _gap, _short, _twice, _wide, _type, _no_type, _missing, _more, _other_file, _no_format]
)
def test_an_index_that_does_not_describe_the_model_is_refused(tmp_path: Path, forge: Callable[[dict[str, Any]], None]) -> None:
    folder = save(tmp_path / "run", 100)
    save_file({"weight": torch.zeros(3, 2)}, tmp_path / "secret.safetensors")
    index = json.loads((folder / checkpoint_format.INDEX).read_text())
    forge(index)
    (folder / checkpoint_format.INDEX).write_text(json.dumps(index))
    seal(folder)
    with pytest.raises(CheckpointError):
        checkpoint_tensors.load_weights(checkpoint.resolve(folder), Two(0.0))


def test_a_checkpoint_of_a_later_format_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 100)
    folder = save(tmp_path, 200)
    record = json.loads((folder / checkpoint_format.RECORD).read_text())
    (folder / checkpoint_format.RECORD).write_text(json.dumps({**record, "format": 3}))
    with pytest.raises(CheckpointError, match="saved in format 3, which this version does not know"):
        checkpoint.newest(tmp_path)


def test_weights_of_the_first_format_are_read_and_its_pickled_optimiser_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    record = json.loads((folder / checkpoint_format.RECORD).read_text())
    (folder / checkpoint_format.INDEX).unlink()
    os.replace(folder / "optimiser.safetensors", folder / "optimiser.pt")
    files = {**record["files"], "optimiser.pt": record["files"]["optimiser.safetensors"]}
    files = {name: facts for name, facts in files.items() if name not in ("index.json", "optimiser.safetensors")}
    (folder / checkpoint_format.RECORD).write_text(json.dumps({"step": 100, "files": files}))
    found, model = checkpoint.resolve(folder), Two(0.0)
    checkpoint_tensors.load_weights(found, model)
    assert torch.equal(model.weight, trained(100.0)[0].weight)
    with pytest.raises(CheckpointError, match="earlier version, whose optimiser is a pickle"):
        checkpoint_tensors.load_optimiser(found, model, build_adamw(model, 1e-2, 0.1))


def write_in(ranks: Ranks, run: str, parallel: Any, replicas: int | None, shared: bool) -> None:
    """Saves a model whose weights and moments are known functions of their place."""
    layout = Layout.of(parallel, replicas, ranks)
    spread = Spread(ARCHITECTURE, layout, CPU, "float32", seed=5)
    optimiser = build_adamw(spread.model, 1e-2, 0.1)
    for parameter in spread.model.parameters():
        moments = {key: torch.zeros_like(parameter, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        optimiser.state[parameter] = {"step": torch.tensor(3.0), **moments}
        local(moments["exp_avg"]).copy_(local(parameter).detach() * 2)
        local(moments["exp_avg_sq"]).copy_(local(parameter).detach().square())
    saver = Saver(Path(run), ranks, layout, keep=2, shared=shared)
    saver.begin(state_of(4), spread.model, optimiser)
    assert saver.finish(), saver.failures


def read_in(ranks: Ranks, run: str, parallel: Any, replicas: int | None) -> None:
    """Reads it in another layout, and compares what this rank holds with what it should."""
    layout = Layout.of(parallel, replicas, ranks)
    expected = Spread(ARCHITECTURE, layout, CPU, "float32", seed=5)
    spread = Spread(ARCHITECTURE, layout, CPU, "float32", seed=6)
    optimiser = build_adamw(spread.model, 1e-2, 0.1)
    found = checkpoint.resolve(Path(run), ranks)
    checkpoint_tensors.load_weights(found, spread.model, layout)
    checkpoint_tensors.load_optimiser(found, spread.model, optimiser, layout)
    for wanted, parameter in zip(expected.model.parameters(), spread.model.parameters(), strict=True):
        whole = local(wanted).detach()
        assert torch.equal(local(parameter), whole)
        assert torch.equal(local(optimiser.state[parameter]["exp_avg"]), whole * 2)
        assert torch.equal(local(optimiser.state[parameter]["exp_avg_sq"]), whole.square())
        assert optimiser.state[parameter]["step"] == 3


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ((2, "fsdp", None), (1, "ddp", None)),
        pytest.param((4, "fsdp", None), (2, "fsdp", None), marks=pytest.mark.slow),
        pytest.param((4, "hsdp", 2), (2, "ddp", None), marks=pytest.mark.slow),
        pytest.param((2, "ddp", None), (4, "fsdp", None), marks=pytest.mark.slow),
        pytest.param((1, "ddp", None), (4, "hsdp", None), marks=pytest.mark.slow),
    ],
)
def test_any_layout_reads_what_any_other_wrote(
    tmp_path: Path, written: tuple[int, str, int | None], read: tuple[int, str, int | None]
) -> None:
    run = str(tmp_path / "run")
    assert in_ranks(written[0], write_in, run, *written[1:], True) == [0] * written[0]
    names = sorted(path.name for path in checkpoint.resolve(tmp_path / "run").glob("model*"))
    assert len(names) == written[0]  # each rank has written its share
    assert in_ranks(read[0], read_in, run, *read[1:]) == [0] * read[0]


def test_without_a_shared_folder_the_first_rank_writes_alone(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert in_ranks(2, write_in, run, "ddp", None, False) == [0, 0]
    assert [path.name for path in checkpoint.resolve(tmp_path / "run").glob("model*")] == ["model.safetensors"]
    assert in_ranks(1, read_in, run, "ddp", None) == [0]


def damage_in(ranks: Ranks, run: str, name: str) -> None:
    found, passed_over = checkpoint.newest(Path(run), ranks)
    assert found is not None and found.name == "step-00000100"
    assert name in passed_over["step-00000200"]


def test_ranks_that_look_at_a_share_of_the_files_each_all_hear_of_damage(tmp_path: Path) -> None:
    save(tmp_path, 100)
    folder = save(tmp_path, 200)
    for name in ("model.safetensors", "optimiser.safetensors"):
        broken = tmp_path / name
        shutil.copytree(tmp_path / "checkpoints", broken / "checkpoints")
        (broken / "checkpoints" / folder.name / name).write_bytes(b"")
        assert in_ranks(2, damage_in, str(broken), name) == [0, 0]
