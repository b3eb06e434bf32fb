"""The machine that brokers of a test run on: the real one, or a simulated one on which waiting costs nothing."""

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from seaweedq.clock import Clock, Ids, SystemClock, SystemIds
from seaweedq.coordination.membership import LeaseThread, StartBackground
from seaweedq.journal.disk import Disk
from tests.support.brokers.simulated_loop import SimulatedLoop

T = TypeVar("T")


class SeededIds:
    """Ids that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def nonce(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


class _AtOnce(Executor):
    """Runs each call at once, in the caller's thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """The future of the call, which has ended."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class UnsyncedDisk(Disk):
    """A disk of a machine that never loses its power: what was written stays, also when a broker dies.

    It has no thread: simulated time would run on until that has done its work, as far as the real machine is busy.
    """

    def worker(self) -> Executor:
        """Runs all calls at once."""
        return _AtOnce()

    def sync(self, fd: int) -> None:
        """Does nothing."""

    def sync_folder(self, folder: Path) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class Machine:
    """A clock, ids, a way to run what must go on while the loop stands still (None: on the loop), and a disk."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    background: StartBackground | None = LeaseThread
    disk: Disk = field(default_factory=Disk)


def simulated_machine(loop: SimulatedLoop, seed: int) -> Machine:
    """A machine on the time of this loop, without threads, whose ids follow from a seed."""
    return Machine(loop, SeededIds(seed), None, UnsyncedDisk())
