"""One small crawl and one corpus of it, made once and asked by many tests; no test may change them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.pipeline.crawl import ONE_FILE_A_PART, Crawl, build, write_crawl


@pytest.fixture(scope="session", autouse=True)
def short_ray_folder() -> Iterator[Path]:
    """Ray puts sockets below RAY_TMPDIR, and a socket's path has 107 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="cm", dir="/tmp"))
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RAY_TMPDIR"]
    else:
        os.environ["RAY_TMPDIR"] = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Crawl:
    return write_crawl(tmp_path_factory.mktemp("crawl"))


@pytest.fixture(scope="session")
def finished(crawl: Crawl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of the crawl, one file a part, run in this process."""
    folder = tmp_path_factory.mktemp("finished") / "corpus"
    build(crawl.load(), folder, ONE_FILE_A_PART)
    return folder


@pytest.fixture(scope="session")
def manifest(finished: Path) -> Manifest:
    return Manifest.load(Folder(finished))


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A corpus that a test may damage: the finished one without its work files."""
    target = tmp_path / "copied"
    shutil.copytree(finished, target, ignore=shutil.ignore_patterns("steps"))
    return target


@pytest.fixture
def recipe_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a recipe's text beside an input folder `docs` of one document."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.jsonl").write_text('{"text": "one"}\n')

    def write(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
