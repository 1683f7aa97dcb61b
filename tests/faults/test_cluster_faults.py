"""A cluster that loses workers, nodes, drivers and its head gives the corpus that an unbroken run gives."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.execution import PATIENCE_SECONDS
from pipeline.recipe import Recipe
from tests.faults.cluster import Cluster, cluster, kill_group, wait_for
from tests.faults.orders import Faults, order, ordering_recipe
from tests.faults.store import FaultyStore
from tests.pipeline.crawl import build

pytestmark = pytest.mark.slow

ORDERS = {
    "a": [order("kill", "worker")],
    "b": [order("disk", "full")],
    "c": [order("memory", "eaten")],
    "d": [order("wait", "here")],
    "e": [order("segfault")],
}


@pytest.fixture
def recipe(faults: Faults, tmp_path: Path) -> Recipe:
    return ordering_recipe(tmp_path / "recipe", ORDERS, max_errors=1)


@pytest.fixture
def unbroken(recipe: Recipe, tmp_path: Path) -> Manifest:
    return build(recipe, tmp_path / "unbroken").manifest


@pytest.fixture
def two_nodes(faults: Faults) -> Iterator[Cluster]:
    with cluster(2, faults.environment) as started:
        yield started


def ended(driver: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = driver.communicate(timeout=300)
    return driver.returncode, said


def is_whole(corpus: Folder, unbroken: Manifest) -> None:
    manifest = Manifest.load(corpus)
    assert manifest.digest == unbroken.digest
    assert list(verify(corpus, manifest)) == []


def test_killed_workers_full_disks_a_lost_node_and_a_killed_driver_change_no_byte(
    two_nodes: Cluster, faults: Faults, recipe: Recipe, unbroken: Manifest, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    faults.arm("worker", "full", "eaten", "here")
    driver = two_nodes.driver(recipe.path, corpus)
    wait_for(faults.reached("here"), driver)
    kill_group(two_nodes.nodes[1])  # perhaps the node of the part that waits: that one is run elsewhere
    two_nodes.add()
    kill_group(driver)
    assert not (corpus / "manifest.json").exists()
    faults.go("here")
    code, said = ended(two_nodes.driver(recipe.path, corpus))
    assert code == 0, said
    assert not {"worker", "full", "eaten"} & faults.armed(), "every fault has struck"
    is_whole(Folder(corpus), unbroken)
    rows = [row["rule"] for row in removals(corpus)]
    assert rows == ["obey.crash"]


def test_a_driver_that_sigterm_meets_while_ray_waits_says_so_and_the_same_command_goes_on(
    two_nodes: Cluster, faults: Faults, recipe: Recipe, unbroken: Manifest, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    faults.arm("here")
    driver = two_nodes.driver(recipe.path, corpus)
    wait_for(faults.reached("here"), driver)
    driver.send_signal(signal.SIGTERM)
    code, said = ended(driver)
    assert code == 128 + signal.SIGTERM, said
    assert "stopped by SIGTERM; what is finished is kept" in said
    faults.go("here")
    code, said = ended(two_nodes.driver(recipe.path, corpus))
    assert code == 0, said
    is_whole(Folder(corpus), unbroken)


def test_a_node_that_goes_and_one_that_comes_in_mid_run_change_no_byte(
    two_nodes: Cluster, faults: Faults, recipe: Recipe, unbroken: Manifest, tmp_path: Path
) -> None:
    faults.arm("here")
    driver = two_nodes.driver(recipe.path, tmp_path / "corpus")
    wait_for(faults.reached("here"), driver)
    for node in two_nodes.nodes[1:]:
        kill_group(node)
    two_nodes.add()
    faults.go("here")
    code, said = ended(driver)
    assert code == 0, said
    is_whole(Folder(tmp_path / "corpus"), unbroken)


def test_a_run_waits_for_the_first_node_of_a_cluster_and_asks_it_for_no_more_than_it_has(
    faults: Faults, recipe: Recipe, unbroken: Manifest, tmp_path: Path
) -> None:
    with cluster(0, faults.environment) as empty:
        driver = empty.driver(recipe.path, tmp_path / "corpus", "--resources", "obey:cpus=64,memory=100TiB")
        wait_for(tmp_path / "corpus" / "runs" / "latest", driver)
        empty.add()
        code, said = ended(driver)
    assert code == 0, said
    is_whole(Folder(tmp_path / "corpus"), unbroken)


def test_on_an_object_store_a_killed_driver_is_followed_by_another_at_once(
    two_nodes: Cluster, store: FaultyStore, faults: Faults, recipe: Recipe, unbroken: Manifest
) -> None:
    corpus = Folder(store.folder())
    faults.arm("here")
    first = two_nodes.driver(recipe.path, corpus.url)
    wait_for(faults.reached("here"), first)
    code, said = ended(two_nodes.driver(recipe.path, corpus.url))
    assert (code, f"process {first.pid} on" in said) == (1, True), said
    kill_group(first)
    faults.go("here")
    code, said = ended(two_nodes.driver(recipe.path, corpus.url))
    assert code == 0, said
    is_whole(corpus, unbroken)


def test_a_run_that_loses_the_head_says_so_and_another_cluster_goes_on(
    two_nodes: Cluster, faults: Faults, recipe: Recipe, unbroken: Manifest, tmp_path: Path
) -> None:
    faults.arm("here")
    driver = two_nodes.driver(recipe.path, tmp_path / "corpus")
    wait_for(faults.reached("here"), driver)
    kill_group(two_nodes.head)
    code, said = ended(driver)
    assert code == 1
    assert "error: the head of the Ray cluster at" in said and "start the same command again" in said
    assert PATIENCE_SECONDS < 60, "before Ray ends the process"
    faults.go("here")
    done = len(list((tmp_path / "corpus" / "receipts").rglob("*.json")))
    assert done
    with cluster(1, faults.environment) as another:
        code, said = ended(another.driver(recipe.path, tmp_path / "corpus"))
    assert code == 0, said
    is_whole(Folder(tmp_path / "corpus"), unbroken)


def removals(corpus: Path) -> list[dict[str, object]]:
    import pyarrow.dataset as ds

    return ds.dataset(sorted((corpus / "logs" / "removals").rglob("*.parquet"))).to_table().to_pylist()
