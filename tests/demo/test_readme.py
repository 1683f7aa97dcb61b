"""What README.md tells a newcomer to type and to write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    return [text for tag, text in found if tag == language]


def test_its_recipe_can_be_planned(tmp_path: Path) -> None:
    (recipe,) = blocks("yaml")
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "first.warc").write_bytes(b"")
    (tmp_path / "recipe.yaml").write_text(recipe, "utf-8")
    command = [str(Path(sys.executable).with_name("corpusmill")), "plan", "recipe.yaml"]
    plan = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert plan.returncode == 0, plan.stdout + plan.stderr


def test_its_commands_and_options_exist() -> None:
    lines = [line for block in blocks("") for line in block.splitlines() if line.startswith("corpusmill ")]
    assert len(lines) >= 6
    command = str(Path(sys.executable).with_name("corpusmill"))
    for verb in {line.split()[1] for line in lines}:
        shown = subprocess.run([command, verb, "--help"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
        assert shown.returncode == 0, shown.stderr
        for line in lines:
            if line.split()[1] == verb:
                options = re.findall(r"--[a-z-]+", line.split("#")[0])
                assert [option for option in options if option not in shown.stdout] == []


@pytest.mark.parametrize("target", ["demo", "test"])
def test_its_make_targets_exist(target: str) -> None:
    assert f"make {target}" in README.read_text("utf-8")
    assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text("utf-8"), re.M)


def test_the_files_that_it_links_to_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text("utf-8")):
        assert (README.parent / link).exists(), link
