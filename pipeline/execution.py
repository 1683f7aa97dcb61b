"""Where parts run: in this process, or on Ray (embedded on this machine, or a cluster by address)."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from manifests.storage import Folder
from pipeline.lists import Lists
from pipeline.receipts import Receipt
from pipeline.resources import ResourceError
from pipeline.work import Order, Work, execute, lists_of

IN_FLIGHT_PER_CPU = 4
RETRIES = 3
TOKEN_MODE = "RAY_AUTH_MODE"
ANSWER_SECONDS = 15.0
"""So long a driver waits for a cluster's head to answer when it joins; Ray itself would try for a minute and more."""
PATIENCE_SECONDS = 30.0
"""A head that does not answer for so long while parts run is lost. After 60 s Ray would end the process where it stands."""
LOOK_SECONDS = 5.0
"""So often the driver looks whether the head answers."""


@dataclass(frozen=True)
class Outcome:
    """A part that is done, or what stopped it."""

    work: Work
    receipt: Receipt | None
    error: str | None = None
    trace: str | None = None


class Executor(ABC):
    @abstractmethod
    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome | None, None, None]:
        """Runs all parts, in any order; one outcome each, as they end. Closing it stops what has not ended. An executor whose
        parts run elsewhere gives None about every LOOK_SECONDS while none ends, so that its caller can look around."""

    def close(self) -> None:  # noqa: B027
        """Gives back what the executor holds."""


class _Orders:
    """What is sent to workers; the lists that it names are there until it is closed."""

    def __init__(self, corpus_url: str) -> None:
        self._corpus = Folder(corpus_url)
        self._lists: dict[str, Lists] = {}

    def close(self) -> None:
        for lists in self._lists.values():
            with contextlib.suppress(OSError):  # `corpusmill clean` deletes them too
                lists.delete()

    def of(self, work: Work) -> Order:
        if work.step not in self._lists:
            self._lists[work.step] = lists_of(self._corpus, work.step)
        return work.order(self._lists[work.step])

    def surely_of(self, work: Work) -> Order:
        """`of`, where a store that fails is asked again as often as a part is tried."""
        for _ in range(RETRIES):
            with contextlib.suppress(OSError, MemoryError):
                return self.of(work)
        return self.of(work)


class InlineExecutor(Executor):
    """One part after the other in this process: for debugging, and for corpora of a few files."""

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome, None, None]:
        with contextlib.closing(_Orders(corpus_url)) as orders:
            for work in works:
                yield self._outcome(corpus_url, work, orders)

    def _outcome(self, corpus_url: str, work: Work, orders: _Orders) -> Outcome:
        for left in reversed(range(RETRIES + 1)):
            try:
                return Outcome(work, execute(corpus_url, orders.of(work)))
            except Exception as trouble:
                if not left or not isinstance(trouble, (OSError, MemoryError)):
                    return _failed(work, trouble)
        raise AssertionError("the last attempt is an outcome")


def _failed(work: Work, trouble: Exception) -> Outcome:
    return Outcome(work, None, f"{type(trouble).__name__}: {trouble}", "".join(traceback.format_exception(trouble)))


class RayExecutor(Executor):
    """Each part is one Ray task, which takes what its step declares; a bounded number is in flight, so that nothing piles up at
    the head."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        self.workers = workers
        self.ray: Any = None
        self.mine = False
        self.nodes: list[dict[str, float]] = []
        """What each node with processors has, as it was last looked at."""

    def start(self) -> None:
        """Connects to Ray, or starts it here, at the first part to run; ConnectionError when a cluster does not answer."""
        if self.ray is not None:
            return
        # The head keeps every task's events for its dashboard; with millions of parts that memory only grows.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if self.address and TOKEN_MODE not in os.environ and _token_is_here():
            # `ray start` asks for the token of its machine where there is one, and a driver does not offer it unless told.
            os.environ[TOKEN_MODE] = "token"
        import ray

        if not ray.is_initialized():
            self.mine = True
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if self.address:
                options["address"] = self.address
            else:
                # Workers must import the same code as this process, wherever it was started.
                root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
                path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
                options |= {
                    "include_dashboard": False,
                    "num_cpus": self.workers,
                    "runtime_env": {"env_vars": {"PYTHONPATH": path}},
                }
            mine = threading.current_thread() is threading.main_thread()
            on_term = signal.getsignal(signal.SIGTERM)
            try:
                if self.address:
                    _wait_for_answer(self.address)
                ray.init(**options)
            except Exception as error:
                self.mine = False
                raise ConnectionError(self._why_not(error)) from error
            if mine and on_term is not None:  # Ray's own handler ends the process where it stands
                signal.signal(signal.SIGTERM, on_term)
        self.ray = ray
        self._look_at_nodes()
        self.task = ray.remote(max_retries=RETRIES, retry_exceptions=[OSError, MemoryError])(execute)  # type: ignore[call-overload]

    def run(self, corpus_url: str, works: list[Work]) -> Generator[Outcome | None, None, None]:
        self.start()
        waiting = iter(works)
        again: list[Work] = []
        flying: dict[Any, tuple[Work, dict[str, Any]]] = {}

        def launch() -> Iterator[Outcome]:
            """Starts parts up to the limit; an outcome for each that cannot be sent."""
            while len(flying) < self.cpus * IN_FLIGHT_PER_CPU:
                work = again.pop() if again else next(waiting, None)
                if work is None:
                    return
                try:
                    order = orders.surely_of(work)
                except Exception as trouble:
                    yield _failed(work, trouble)
                    continue
                # The name of a part would be clearer, but Ray's driver keeps a kilobyte for every name that it ever had.
                asked = self._resources(work)
                task = self.task.options(name=work.step, **asked)
                flying[task.remote(corpus_url, order)] = work, asked

        def recall() -> None:
            """What asks for more than any node has, now that others are there, would wait for ever: it is sent again."""
            for reference, (work, asked) in list(flying.items()):
                if not self._has_room(asked) and self._resources(work) != asked:
                    self.ray.cancel(reference, force=True)
                    del flying[reference]
                    again.append(work)

        head = _Head(self.ray.get_runtime_context().gcs_address)
        orders = _Orders(corpus_url)
        try:
            self._look_at_nodes()
            yield from launch()
            while flying:
                done = self._wait(list(flying))
                answered = head.check()
                for reference in done:
                    work, _ = flying.pop(reference)
                    yield self._outcome(reference, work)
                if not done:
                    yield None
                if answered and self._look_at_nodes():
                    recall()
                yield from launch()
        finally:
            for reference in flying:
                self.ray.cancel(reference, force=True)
            orders.close()

    @property
    def cpus(self) -> int:
        """Processors that parts may have now. One in a cluster without any yet: parts that wait are why it gets some."""
        there = max(1, int(sum(node["CPU"] for node in self.nodes)))
        return there if self.workers is None else min(there, self.workers)

    def _look_at_nodes(self) -> bool:
        """Nodes join and leave while parts run: are they others now? To be asked only of a head that answers: Ray would wait for
        it, and end the process."""
        before = self.nodes
        self.nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        return self.nodes != before

    def _has_room(self, asked: dict[str, Any]) -> bool:
        kinds = {"CPU": asked["num_cpus"], "memory": asked["memory"], "GPU": asked.get("num_gpus", 0)}
        return any(all(node.get(kind, 0) >= number for kind, number in kinds.items()) for node in self.nodes)

    def _wait(self, flying: list[Any]) -> list[Any]:
        try:
            done: list[Any] = self.ray.wait(flying, num_returns=1, timeout=LOOK_SECONDS)[0]
        except SystemError as error:
            # A signal's handler raised while Ray waited; Ray then complains of the exception, which is the one that matters.
            raise error.__cause__ or error from None
        return done

    def _resources(self, work: Work) -> dict[str, Any]:
        """What Ray takes from a node for the part: what it declares where one node has all of it, and otherwise no more than the
        node that suits it best has, on which it then runs alone. That is the one with most of the memory that it declares, for
        want of which it would die, and of those the one with most of the processors, for want of which it is only slow. What no
        node could be asked for yet, in a cluster without processors or without such GPUs, is what it declares: it may get them.
        ResourceError where this machine has fewer GPUs."""
        wanted = work.resources
        cpus, gpus = _countable(wanted.cpus), _countable(wanted.gpus)
        able = [node for node in self.nodes if node.get("GPU", 0) >= gpus]
        if not able and self.nodes and not self.address:
            most = max(node.get("GPU", 0) for node in self.nodes)
            raise ResourceError(f"a part of {work.step} takes {wanted.gpus:g} GPUs, and this machine has {most:g}")
        fits = [(min(wanted.memory, int(node.get("memory", 0))), min(cpus, int(node["CPU"]))) for node in able]
        memory, cpus = max(fits, default=(wanted.memory, cpus))
        return {"num_cpus": cpus, "memory": memory} | ({"num_gpus": gpus} if gpus else {})

    def _outcome(self, reference: Any, work: Work) -> Outcome:
        try:
            return Outcome(work, self.ray.get(reference))
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if error.cause is not None else error
            return Outcome(work, None, f"{type(cause).__name__}: {cause}", str(error))
        except self.ray.exceptions.RayError as error:
            return Outcome(work, None, f"{type(error).__name__}: {error}", str(error))

    def close(self) -> None:
        if self.mine and self.ray is not None:
            self.ray.shutdown()

    def _why_not(self, error: Exception) -> str:
        said = f"{type(error).__name__}: {error}"
        if not self.address:
            return f"Ray did not start on this machine: {said}"
        return (
            f"cannot join the Ray cluster at {self.address}: {said}. Is its head running, and does one of its nodes run on this "
            "machine? A run is started on a node of the cluster, or handed to it by `ray job submit`"
        )


def _countable(number: float) -> float:
    """The next number that Ray can count: ten-thousandths up to 1, and whole ones above."""
    return math.ceil(number) if number > 1 else math.ceil(number * 10_000) / 10_000


class _Head:
    """Looks now and then whether the head of the cluster answers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answered = self.looked = time.monotonic()

    def check(self) -> bool:
        """Was it looked at, LOOK_SECONDS after the last time, and did it answer? ConnectionError when it has not answered for
        PATIENCE_SECONDS."""
        now = time.monotonic()
        if now - self.looked < LOOK_SECONDS:
            return False
        self.looked = now
        if _answers(self.address):
            self.answered = now
            return True
        if now - self.answered > PATIENCE_SECONDS:
            raise ConnectionError(
                f"the head of the Ray cluster at {self.address} has not answered for {now - self.answered:.0f} s; what is "
                "finished is kept: start the same command again, once there is a cluster, to go on"
            )
        return False


def _wait_for_answer(address: str) -> None:
    """ConnectionError when nothing listens at `address` (`host:port`) for ANSWER_SECONDS."""
    until = time.monotonic() + ANSWER_SECONDS
    while not _answers(address):
        if time.monotonic() > until:
            raise ConnectionError(f"nothing listens there, tried for {ANSWER_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS / 10)


def _answers(address: str) -> bool:
    """Does something listen at `host:port`? Other forms of address (auto, local) are left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True


def _token_is_here() -> bool:
    """Is there a token for Ray's authentication, where Ray looks for one?"""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH", os.path.expanduser("~/.ray/auth_token"))
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or os.path.isfile(named)


def make_executor(kind: str, address: str | None, workers: int | None) -> Executor:
    """ "ray" or "inline"."""
    if kind == "inline":
        return InlineExecutor()
    return RayExecutor(address, workers)
