"""What is compiled is compiled again when any file that went into it has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages import shingles
from stages.kernel_cache import source_digest

OUTER = "from numba import njit\n{}\n\n@njit(cache=True)\ndef outer():\n    return {}() + 1\n"
INNER = "from numba import njit\n\n@njit(cache=True)\ndef inner():\n    return {}\n"


def answer(folder: Path) -> tuple[int, int]:
    """What `outer` returns in a fresh process, and how many of its compilations were found in the cache."""
    program = "import stages\nfrom loops.first import outer\nprint(outer(), sum(outer.stats.cache_hits.values()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    number, hits = done.stdout.split()
    return int(number), int(hits)


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("from loops.second import inner", "inner"),
        pytest.param("from .second import inner", "inner", marks=pytest.mark.slow),
        pytest.param("from loops import second", "second.inner", marks=pytest.mark.slow),
    ],
)
def test_a_change_in_a_file_whose_function_is_called_is_noticed(tmp_path: Path, line: str, called: str) -> None:
    package = tmp_path / "loops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(OUTER.format(line, called))
    (package / "second.py").write_text(INNER.format(1))
    assert [answer(tmp_path), answer(tmp_path)] == [(2, 0), (2, 1)]
    (package / "second.py").write_text(INNER.format(5))
    assert [answer(tmp_path), answer(tmp_path)] == [(6, 0), (6, 1)]


def test_imports_are_followed_through_files_between_and_round_in_circles(tmp_path: Path) -> None:
    package = tmp_path / "loops"
    package.mkdir()
    files = {name: package / f"{name}.py" for name in ("first", "second", "third", "other")}
    files["first"].write_text("import loops.second\nimport numpy\n")
    files["second"].write_text("from . import third, nothing\n")
    files["third"].write_text("from loops.first import x\n")
    files["other"].write_text("")
    before = source_digest(str(files["first"]))
    files["other"].write_text("changed = 1\n")
    assert source_digest(str(files["first"])) == before
    files["third"].write_text("from loops.first import y\n")
    assert source_digest(str(files["first"])) != before


def test_numba_asks_for_them() -> None:
    kernel: Any = shingles._hash_all
    assert kernel._cache._impl.locator.get_source_stamp() == source_digest(shingles.__file__)
