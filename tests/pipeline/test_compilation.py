"""Kernels are compiled once on a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from pipeline.compilation import compile_once
from stages import registry
from stages.gopher_quality import GopherQuality, GopherQualityOptions
from stages.kernels import c4, fineweb, quality, reading, repetition

WORKER = """
import sys
from numba.core import compiler
compiled = []
plain = compiler.compile_extra
compiler.compile_extra = lambda *given, **named: (compiled.append(given[2].__name__), plain(*given, **named))[1]
from pipeline.compilation import compile_once
from stages.repair import Repair, RepairOptions
compile_once([Repair(RepairOptions())])
print(len(compiled))
"""


def test_workers_that_start_together_compile_once_between_them(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    compiled = sorted(int(worker.communicate()[0]) for worker in workers)
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert compiled[:2] == [0, 0]
    assert compiled[2] > 0


def test_compiling_leaves_no_trace_in_a_report() -> None:
    quality = GopherQuality(GopherQualityOptions())
    before = quality.report()
    quality.compile()
    assert quality.report() == before


def test_a_compiled_stage_compiles_nothing_more_on_documents() -> None:
    batch = pa.record_batch({"text": pa.array(["汉字", "a", ""], pa.large_string()), "language": pa.array(["zh", None, "en"])})
    for name in ("gopher_quality", "gopher_repetition", "c4", "fineweb"):
        implementation = registry.find(name)
        one = implementation(implementation.options_type())
        compile_once([one])

        kernels = [
            value
            for module in (c4, fineweb, quality, reading, repetition)
            for value in vars(module).values()
            if hasattr(value, "signatures")
        ]
        before = [len(kernel.signatures) for kernel in kernels]
        one.measure(batch)  # type: ignore[union-attr]
        assert [len(kernel.signatures) for kernel in kernels] == before
