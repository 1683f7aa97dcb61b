"""Storage: a file is there whole or not at all, and nothing outside the folder can be named."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import manifests
from manifests.storage import Folder, StorageError, Written, relative_name

OUTSIDE = ["..", "../x", "a/../../x", "/etc/passwd", "//x", "a\\b", "..\\x", "", "a\0b", "s3://bucket/x", "file:///etc/passwd"]
DIES_WHILE_WRITING = """
import os, signal, sys
from manifests.storage import Folder
with Folder(sys.argv[1]).writer("deep/file.bin") as out:
    out.write(b"half of it")
    out.file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_outside_the_folder_are_refused_by_every_method(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path / "inside")
    (tmp_path / "x").write_text("not yours")
    for call in (folder.path, folder.open, folder.read, folder.exists, folder.size, folder.stamp, folder.delete, folder.folder):
        with pytest.raises(StorageError, match="not a path inside"):
            call(name)
    for write in (folder.write, folder.create):
        with pytest.raises(StorageError):
            write(name, b"data")
    assert (tmp_path / "x").read_text() == "not yours"


@given(st.text(alphabet="ab./\\:\0", max_size=12))
def test_a_name_that_is_accepted_stays_below_the_folder(name: str) -> None:
    try:
        normal = relative_name(name)
    except StorageError:
        return
    assert os.path.normpath(f"/corpus/{normal}").startswith("/corpus")
    assert relative_name(normal) == normal


def test_a_write_is_whole_and_says_its_size_and_digest(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    data = os.urandom(3 << 20)
    assert folder.write("a/b.bin", data) == Written("a/b.bin", len(data), hashlib.sha256(data).hexdigest())
    assert folder.read("a/b.bin") == data
    assert folder.read_range("a/b.bin", 10, 5) == data[10:15]
    folder.write("a/b.bin", b"new")
    assert folder.read("a/b.bin") == b"new"
    assert folder.names() == ["a/b.bin"]


def test_a_writer_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("x", b"old")
    with pytest.raises(RuntimeError), folder.writer("x") as out:
        out.write(b"new")
        raise RuntimeError
    assert folder.read("x") == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_killed_writer_leaves_no_file_under_the_final_name_and_its_leftover_is_ignored(tmp_path: Path) -> None:
    root = Path(manifests.__file__).parent.parent
    killed = subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(tmp_path)], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path / "deep")) == 1, "the half-written file lies under a temporary name"
    folder = Folder(tmp_path)
    assert not folder.exists("deep/file.bin")
    assert folder.names() == folder.names("deep") == []
    folder.write("deep/file.bin", b"whole")
    assert folder.names() == ["deep/file.bin"]


def test_a_reader_of_a_file_that_is_replaced_sees_one_of_the_two_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    contents = [bytes([letter]) * 200_000 for letter in b"abcd"]
    folder.write("x", contents[0])

    def write(data: bytes) -> None:
        for _ in range(10):
            folder.write("x", data)

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, data) for data in contents]
        seen = set()
        while not all(one.done() for one in writing):
            seen.add((tmp_path / "x").read_bytes())
        for one in writing:
            one.result()
    assert seen <= set(contents)
    assert folder.names() == ["x"]


def test_only_one_of_many_creates_a_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for round in range(20):
        with ThreadPoolExecutor(16) as pool:
            made = list(pool.map(lambda number, name=f"lock-{round}": folder.create(name, str(number).encode()), range(16)))
        assert sum(made) == 1
        assert folder.read(f"lock-{round}") == str(made.index(True)).encode()
    assert len(os.listdir(tmp_path)) == 20, "no temporary file is left"


def test_listings_are_sorted_and_complete(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    names = ["b/2", "b/10", "a", "b-1", "b/c/d", "ü"]
    for name in names:
        folder.write(name, name.encode())
    assert folder.names() == [stamp.path for stamp in folder.stamps()] == sorted(names)
    assert [stamp.size for stamp in folder.stamps()] == [len(name.encode()) for name in sorted(names)]
    assert folder.names("b") == ["b/10", "b/2", "b/c/d"]
    assert folder.names("none") == []


def test_a_stamp_changes_when_the_file_does(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("x", b"one")
    before = folder.stamp("x")
    assert folder.stamp("x") == before
    os.utime(tmp_path / "x", ns=(1, 1))
    assert folder.stamp("x") != before


def test_a_file_is_overwritten_only_as_it_was_seen(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("x", b"one")
    seen = folder.stamp("x")
    assert folder.overwrite(seen, b"three")
    assert not folder.overwrite(seen, b"four")
    assert folder.read("x") == b"three"


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for call in (folder.read, folder.open, folder.stamp):
        with pytest.raises(FileNotFoundError):
            call("none")
    folder.delete("none")


def test_a_folder_travels_to_other_processes(tmp_path: Path) -> None:
    folder = pickle.loads(pickle.dumps(Folder(tmp_path)))
    folder.write("x", b"data")
    assert (tmp_path / "x").read_bytes() == b"data"


@pytest.mark.parametrize("url", ["gopher://host/corpus", "nothing://x"])
def test_a_url_of_an_unknown_kind_is_a_storage_error_that_names_it(url: str) -> None:
    with pytest.raises(StorageError, match=url):
        Folder(url)
