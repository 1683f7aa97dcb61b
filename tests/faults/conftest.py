"""What the tests of faults share: the store that fails, the stage that obeys, and a recipe of several small parts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.orders import PLUGIN, SWITCH, Faults
from tests.faults.store import FaultyStore, faulty_store


@pytest.fixture(scope="module")
def shared_store() -> Iterator[FaultyStore]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto is not installed")
    with faulty_store() as started:
        yield started


@pytest.fixture
def store(shared_store: FaultyStore) -> FaultyStore:
    assert not shared_store.strikes
    return shared_store


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """The stage `obey` in this process and in those that it starts, and the switch that arms its orders."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")]))
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv(SWITCH, str(folder))
    return Faults(folder)
