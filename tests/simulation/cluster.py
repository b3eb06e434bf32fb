"""A simulated cluster: broker processes that begin, are lost and begin again, pause and die, over one world."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.checks import using
from seaweedq.cli.server.broker_process import OVERTIME_S
from seaweedq.coordination.membership import BackgroundWork
from seaweedq.errors import DataFolderInUse, Unavailable
from seaweedq.settings import Settings
from tests.simulation.backends import CoordinationServer, SimulatedCoordination, SimulatedStore, StoreServer
from tests.simulation.loop import Life, LivesLoop, life_here
from tests.simulation.network import Network, SimulatedPeers
from tests.support.brokers.environments import environment
from tests.support.brokers.machine import Machine, SeededIds, UnsyncedDisk
from tests.support.brokers.simulated_loop import BEGAN_US

AGAIN_S = 1.0


@dataclass
class LifeClock:
    """The clock of one machine, whose wall time is wrong by `wrong_us`."""

    loop: asyncio.AbstractEventLoop
    wrong_us: int = 0

    def now_us(self) -> int:
        return BEGAN_US + int(self.loop.time() * 1e6) + self.wrong_us

    def monotonic_s(self) -> float:
        return self.loop.time()


@dataclass
class Process:
    """A broker's process: its life, and the broker that lives there now. `stalled` is its part that renews leases."""

    number: int
    life: Life
    clock: LifeClock
    broker: Broker | None = None
    renewing: Life | None = None
    coordination: SimulatedCoordination | None = None
    ended: bool = False

    @property
    def url(self) -> str:
        return f"http://b{self.number}"

    @property
    def is_ready(self) -> bool:
        return not self.life.is_dead and self.broker is not None and self.broker.readiness.ready


class _LifeDisk(UnsyncedDisk):
    """A disk whose locks go with the life that holds them, as the system has it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._locks: set[int] = set()
        life.at_death.append(self._release)

    def write(self, fd: int, buffers: list[memoryview]) -> int:
        if self._life.is_dead:  # in the step in which it died
            raise OSError(errno.EIO, "the process has died")
        return super().write(fd, buffers)

    def lock(self, path: Path) -> int | None:
        fd = None if self._life.is_dead else super().lock(path)
        if fd is not None:
            self._locks.add(fd)
        return fd

    def close(self, fd: int) -> None:
        if not self._life.is_dead:  # else it was closed, and its number may be another file's
            self._locks.discard(fd)
            super().close(fd)

    def _release(self) -> None:
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()


class _Renewing:
    """The renewals of a lease in a part of the life, which goes on while the rest stands still."""

    def __init__(self, life: Life, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = life.start(work(), name)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@dataclass
class Cluster:
    """Processes by number, and what they share."""

    loop: LivesLoop
    seed: int
    folder: Path
    settings: dict[str, Any]
    processes: dict[int, Process] = field(default_factory=dict)
    starts: int = 0
    environments: int = 0
    failures: list[str] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)  # fail points, and how often
    planted: dict[tuple[int, str], Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clock = LifeClock(self.loop)
        self.network = Network(self.loop, self.seed)
        self.store = StoreServer(self.loop, self.seed, clock)
        self.coordination = CoordinationServer(self.loop, self.seed, clock)

    @contextmanager
    def living(self) -> Iterator[None]:
        """Fail points are those of lives meanwhile."""
        with using(self._reach):
            yield

    def begin(self, number: int) -> Process:
        """The next life of a process."""
        before = self.processes.get(number)
        assert before is None or before.life.is_dead or before.ended
        self.starts += 1
        life = Life(f"b{number}#{self.starts}")
        clock = before.clock if before else LifeClock(self.loop)
        process = self.processes[number] = Process(number, life, clock)
        life.start(self._run(process), "process")
        return process

    @property
    def ready(self) -> list[Process]:
        return [process for process in self.processes.values() if process.is_ready]

    async def _run(self, process: Process) -> None:
        """Lives, one after the other, as `seaweedq serve` has them."""
        revoked = OwnRevocations(process.clock)
        try:
            while await self._live(process, revoked):
                await asyncio.sleep(AGAIN_S)
        except Exception as error:
            self.failures.append(f"{process.life.name} ended: {error!r}")
            raise
        finally:
            process.ended = True

    async def _live(self, process: Process, revoked: OwnRevocations) -> bool:
        """One life of a broker; tells whether another one must follow."""
        broker = process.broker = Broker(self._environment(process, revoked))
        starting: asyncio.Task[None] | None = None
        lost = asyncio.create_task(broker.lost.wait())
        try:
            broker.lock()
            starting = asyncio.create_task(broker.start())
            await asyncio.wait([starting, lost], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self.network.listen(process.url, process.life, Application(broker))
                await lost
                self.network.unlisten(process.url, process.life)
            else:
                starting.cancel()
                await asyncio.wait([starting])
        except (Unavailable, DataFolderInUse, OSError):  # whatever supervises it tries again
            return True
        finally:
            lost.cancel()
            try:
                async with asyncio.timeout(broker.process.settings.shutdown_s + OVERTIME_S):
                    await broker.stop()
            except TimeoutError:  # the process ends itself (cli/server/broker_process), and is started again
                if not (process.renewing and process.renewing.stands):
                    self.failures.append(f"{process.life.name} did not stop in time")
        return True

    def _environment(self, process: Process, revoked: OwnRevocations) -> Any:
        settings = Settings(data_dir=self.folder / str(process.number), name=f"b{process.number}", **self.settings)
        self.environments += 1
        disk = _LifeDisk(process.life)
        part = process.life.part("renewing")
        process.renewing = part

        def renewing(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> BackgroundWork:
            return _Renewing(part, work, name)

        process.coordination = SimulatedCoordination(self.coordination, process.life)
        machine = Machine(process.clock, SeededIds(self.seed * 1_000_003 + self.environments), renewing, disk)
        return environment(
            settings,
            SimulatedStore(self.store),
            process.coordination,
            process.url,
            SimulatedPeers(self.network, process.url),
            "secret",
            machine=machine,
            revoked=revoked,
        )

    def _reach(self, place: str) -> None:
        life = life_here()
        if life is None:
            return
        self.reached[place] = self.reached.get(place, 0) + 1
        top = life.parent or life
        number = int(top.name[1:].split("#")[0])
        if act := self.planted.get((number, place)):
            act()
