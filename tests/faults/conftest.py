"""What the tests of faults share: the store that fails, the stage that obeys, and a recipe of several small parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.store import FaultyStore, faulty_store


@pytest.fixture(scope="session")
def shared_store() -> Iterator[FaultyStore]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto is not installed")
    with faulty_store() as started:
        yield started


@pytest.fixture
def store(shared_store: FaultyStore) -> FaultyStore:
    assert not shared_store.strikes
    return shared_store
