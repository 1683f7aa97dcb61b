"""The sandbox: whatever one item does, the others get their results and the guilty one gets its name."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.sandbox import Outcome, Sandbox, SandboxError

WORK = """
import mmap, os, signal, sys, time

def orders(settings):
    seen = []
    def obey(item):
        seen.append(item)
        if item == b"segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if item == b"exit":
            os._exit(3)
        if item == b"hang":
            while True:
                pass
        if item == b"hoard":
            return bytes(1 << 40)
        if item == b"raise":
            raise ValueError("not to my taste")
        if item == b"recurse":
            return obey_deeply(0)
        if item == b"system-exit":
            sys.exit(5)
        if item == b"killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == b"print":
            print("noise on standard output", flush=True)
            os.write(2, b"noise on standard error")
        if item == b"pid":
            return str(os.getpid()).encode()
        if item == b"seen":
            return str(len(seen)).encode()
        if item == b"surrogate":
            raise ValueError("\\ud800")
        return settings.get("prefix", "").encode() + item[::-1]
    def obey_deeply(depth):
        return obey_deeply(depth + 1)
    return obey

def once(settings):
    def fail_first_time(item):
        if item == b"flaky":
            try:
                os.close(os.open(settings["mark"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return b"recovered"
            os.kill(os.getpid(), signal.SIGKILL if settings.get("kill") else signal.SIGSEGV)
        return item
    return fail_first_time

def broken(settings):
    raise RuntimeError("this model file is missing")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that both processes can import."""
    name = f"work_{abs(id(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def sandbox(work: str) -> Iterator[Sandbox]:
    box = Sandbox(f"{work}:orders", cpu_seconds=1, memory_bytes=1 << 30)
    yield box
    box.close()


def test_results_come_back_in_order(sandbox: Sandbox) -> None:
    assert sandbox.run([b"abc", b"", b"xyz"]) == [Outcome(b"cba"), Outcome(b""), Outcome(b"zyx")]
    assert sandbox.run([]) == []


def test_settings_reach_the_function(work: str) -> None:
    box = Sandbox(f"{work}:orders", {"prefix": "ü:"})
    assert box.run([b"ab"])[0].result == "ü:ba".encode()
    box.close()


@pytest.mark.parametrize(
    ("guilty", "failure", "detail"),
    [
        (b"segfault", "crash", "SIGSEGV"),
        (b"exit", "crash", "status 3"),
        (b"hang", "timeout", "1 s of CPU"),
        (b"hoard", "memory", "out of memory"),
        (b"raise", "error", "ValueError: not to my taste"),
        (b"recurse", "error", "RecursionError"),
        (b"system-exit", "error", "SystemExit: 5"),
        (b"surrogate", "error", "ValueError"),
    ],
)
def test_one_guilty_item_leaves_the_others_alone(sandbox: Sandbox, guilty: bytes, failure: str, detail: str) -> None:
    outcomes = sandbox.run([b"one", b"two", guilty, b"three", b"four"])
    assert [outcome.result for outcome in outcomes] == [b"eno", b"owt", None, b"eerht", b"ruof"]
    assert outcomes[2].failure == failure
    assert detail in (outcomes[2].detail or "")
    assert sandbox.run([b"after"]) == [Outcome(b"retfa")]


def test_every_kind_of_guilt_in_one_batch(sandbox: Sandbox) -> None:
    outcomes = sandbox.run([b"raise", b"segfault", b"ok", b"exit", b"hoard", b"raise", b"ko"])
    assert [outcome.failure for outcome in outcomes] == ["error", "crash", None, "crash", "memory", "error", None]


def test_a_failure_that_does_not_repeat_gives_a_result(work: str, tmp_path: Path) -> None:
    box = Sandbox(f"{work}:once", {"mark": str(tmp_path / "mark")})
    assert [outcome.result for outcome in box.run([b"a", b"flaky", b"b"])] == [b"a", b"recovered", b"b"]
    box.close()


def test_a_kill_from_outside_is_not_the_documents_fault(work: str, tmp_path: Path) -> None:
    box = Sandbox(f"{work}:once", {"mark": str(tmp_path / "mark"), "kill": True})
    assert [outcome.result for outcome in box.run([b"a", b"flaky", b"b"])] == [b"a", b"recovered", b"b"]
    box.close()


def test_kills_that_go_on_are_trouble_of_the_machine(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="killed 3 times"):
        sandbox.run([b"a", b"killed", b"b"])
    assert sandbox.run([b"ab"]) == [Outcome(b"ba")]


def test_a_second_attempt_is_made_in_a_fresh_child(sandbox: Sandbox) -> None:
    assert sandbox.run([b"a", b"seen"])[1].result == b"2"
    sandbox.run([b"raise"])
    assert sandbox.run([b"seen"])[0].result == b"1"


def test_large_batches_do_not_deadlock(sandbox: Sandbox) -> None:
    items = [bytes([number]) * (3 << 20) for number in range(12)]
    assert [outcome.result for outcome in sandbox.run(items)] == items


def test_noise_of_the_function_does_not_disturb_the_frames(sandbox: Sandbox) -> None:
    assert sandbox.run([b"print", b"ab"]) == [Outcome(b"tnirp"), Outcome(b"ba")]


def test_a_factory_that_raises_is_reported_with_its_reason(work: str) -> None:
    with pytest.raises(SandboxError, match="this model file is missing"):
        Sandbox(f"{work}:broken").run([b"a"])


def test_a_name_that_is_no_function_is_refused() -> None:
    with pytest.raises(ValueError, match="module:function"):
        Sandbox("stages.sandbox")
    with pytest.raises(SandboxError, match="no_such_module"):
        Sandbox("no_such_module:function").run([b"a"])


def test_it_works_in_a_thread_that_ends(sandbox: Sandbox) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(sandbox.run([b"ab"])))
    thread.start()
    thread.join()
    assert outcomes == [Outcome(b"ba")]
    assert sandbox.run([b"segfault", b"cd"])[1] == Outcome(b"dc")


def test_close_ends_the_child(sandbox: Sandbox) -> None:
    pid = int(sandbox.run([b"pid"])[0].result or b"0")
    sandbox.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_busy_child_dies_with_its_caller(work: str, tmp_path: Path) -> None:
    script = (
        "import sys; from stages.sandbox import Sandbox\n"
        f"box = Sandbox('{work}:orders')\n"
        "print(box.run([b'pid'])[0].result.decode(), flush=True)\n"
        "box.run([b'hang'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert caller.stdout is not None
    child = int(caller.stdout.readline())
    handle = os.pidfd_open(child)
    caller.send_signal(signal.SIGKILL)
    caller.communicate()
    # A pidfd is readable once its process has ended.
    assert select.select([handle], [], [], 30)[0]
    os.close(handle)
