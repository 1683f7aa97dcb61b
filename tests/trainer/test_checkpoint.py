"""Checkpoints count only once they are whole: a save killed at any moment leaves the one before in place."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from trainer import checkpoint
from trainer.checkpoint import CheckpointError, State


def state_of(step: int) -> State:
    return State(
        step=step, position=10 * step, tokens=80 * step, clipped_steps=0, spent_seconds=1.5, architecture={}, config={},
        loader_digest="a", manifest_digest="b", tokenizer_sha256="c", code_sha256="d", lineage=[],
    )  # fmt: skip


def save(run: Path, step: int) -> Path:
    return checkpoint.save(run, state_of(step), {"weight": torch.full((3, 2), float(step))}, {"state": {}, "param_groups": []})


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
        save(run, step)
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
    assert sync > 4
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert checkpoint.load_state(newest).step == 200


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.pt", "state.json", "complete.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path, 100)
    path = save(tmp_path, 200) / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    if damage == "gone":
        path.unlink()
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.name == "step-00000100"
    assert [folder.name for folder in checkpoint.damaged(tmp_path)] == ["step-00000200"]


def test_a_damaged_checkpoint_asked_for_by_name_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        checkpoint.resolve(folder)


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        checkpoint.resolve(tmp_path)


def test_older_checkpoints_go_once_newer_ones_are_whole(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step)
    checkpoint.keep_newest(tmp_path, 2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000200", "step-00000300"]


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch hostile-code-ran",))


def test_an_optimiser_file_with_code_in_it_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path, 100)
    torch.save({"optimiser": Hostile(), "random": torch.get_rng_state()}, folder / "optimiser.pt")
    with pytest.raises(CheckpointError):
        checkpoint.load_optimiser(folder, torch.optim.SGD([torch.zeros(1)], lr=1.0))
    (folder / "optimiser.pt").write_bytes(pickle.dumps(Hostile(), protocol=2))
    with pytest.raises(CheckpointError):
        checkpoint.load_optimiser(folder, torch.optim.SGD([torch.zeros(1)], lr=1.0))
    assert not (tmp_path / "hostile-code-ran").exists()


def test_the_completion_record_holds_the_digest_of_the_weights(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    record = json.loads((folder / "complete.json").read_text())
    assert checkpoint.identity(folder) == record["files"]["model.safetensors"]["sha256"]
