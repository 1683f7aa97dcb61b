"""Tokens wait on disk and come back in any order; what they lie in is gone afterwards, however the process ends."""

from __future__ import annotations

import errno
import itertools
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.storage import Folder
from pipeline import token_spill
from pipeline.token_spill import TokenSpill, spill

SHARD = "steps/pack/shard.bin"


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6),
    st.sampled_from(["<u2", "<u4"]),
    st.sampled_from([4, 12, 64]),
    st.randoms(use_true_random=False),
)
def test_documents_come_back_in_any_order_whatever_the_size_of_chunks(batches, dtype, chunk, random) -> None:
    documents = [np.arange(length) + 10 * number for number, length in enumerate(itertools.chain(*batches))]
    order = list(range(len(documents)))
    random.shuffle(order)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(token_spill, "CHUNK_BYTES", chunk)
        with spill(Folder(folder), SHARD, np.dtype(dtype)) as waiting:
            rest = iter(documents)
            for lengths in batches:
                waiting.add(np.array([token for length in lengths for token in next(rest)], dtype), np.array(lengths, np.int64))
            chunks = [one.copy() for one in waiting.read(np.array(order, np.int64))]
    assert all(one.dtype == np.dtype(dtype) and one.nbytes <= chunk for one in chunks)
    assert [token for one in chunks for token in one.tolist()] == [token for row in order for token in documents[row].tolist()]


def test_a_full_disk_is_an_error_that_says_what_was_written() -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full:
        waiting = TokenSpill(full, np.dtype("<u2"), "tokens/web/train/00007.bin")
        with pytest.raises(
            OSError, match=r"no scratch file for tokens, of which 0 bytes of tokens/web/train/00007\.bin"
        ) as caught:
            waiting.add(np.arange(10), np.array([10]))
    assert caught.value.errno == errno.ENOSPC


def test_nothing_is_left_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), spill(Folder(tmp_path), SHARD, np.dtype("<u2")) as waiting:
        waiting.add(np.arange(1000), np.array([1000]))
        raise RuntimeError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; import numpy as np; from manifests.storage import Folder; from pipeline.token_spill import spill\n"
        f"with spill(Folder(sys.argv[1]), {SHARD!r}, np.dtype('<u2')) as waiting:\n"
        "    waiting.add(np.arange(1000), np.array([1000]))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / SHARD).parent.is_dir()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
