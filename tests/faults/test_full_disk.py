"""A disk that is full ends the run with a reason, and a rerun with room goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from tests.pipeline.crawl import article, build, small_recipe, write_small

ROOT = Path(pipeline.__file__).parents[1]
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
SAID = (
    r"(?:warning: the journal of this run [^\n]*: \[Errno 28\] No space left on device[^\n]*\n)?"
    r"error: c(\d\d)\.\d\.\w+: 1 of 1 parts failed:\n"
    r"  00000 \1\.jsonl: OSError: \[Errno 28\] No space left on device\n"
    r"what is finished is kept: mend the cause and start the same command again to go on\n"
)
"""All that a run says when its disk is full; and when it goes on it says nothing."""
SCRIPT = """
set -eu
mount -t tmpfs -o size=200k tmpfs "$1"
run() { "$0" -m pipeline run "$2" --corpus "$1/corpus" --executor inline --quiet; }
code=0; run "$1" "$2" || code=$?
test -e "$1/corpus/manifest.json" && exit 90
ls "$1"/corpus/receipts/*/* > /dev/null || exit 91
echo "first: $code"
mount -o remount,size=100m "$1"
run "$1" "$2"
find "$1/corpus" -name '.partial-*'
cp "$1/corpus/manifest.json" "$3"
"""


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_with_room_the_same_command_goes_on(tmp_path: Path) -> None:
    try:
        there = subprocess.run(
            [*OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        ).returncode
    except FileNotFoundError:
        there = 127
    if there:
        pytest.skip("this user may not mount a small disk of its own (unshare --user --mount)")
    names = [f"{number:02}" for number in range(12)]
    recipe = small_recipe(["repair"], ["exact_dedup"])
    component = recipe["components"].pop("docs")
    recipe["components"] = {f"c{name}": {**component, "source": f"docs/{name}.jsonl"} for name in names}
    files = {f"{name}.jsonl": [{"text": article(f"{name} {i}", 48)} for i in range(12)] for name in names}
    loaded = write_small(tmp_path, files, recipe)
    (tmp_path / "disk").mkdir()
    arguments = [str(tmp_path / "disk"), loaded.path, str(tmp_path / "manifest.json")]
    done = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", SCRIPT, sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first: 1" in done.stdout
    assert re.fullmatch(SAID, done.stderr), done.stderr
    assert ".partial-" not in done.stdout
    assert json.loads((tmp_path / "manifest.json").read_text())["digest"] == build(loaded, tmp_path / "here").manifest.digest
