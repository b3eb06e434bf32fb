"""A simulated cluster: broker processes that begin, are lost and begin again, pause and die, over one world."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.broker.log.memory_budget import UnusedMemory
from seaweedq.checks import using
from seaweedq.cli.server.broker_process import OVERTIME_S
from seaweedq.cli.server.journals import new_holdings
from seaweedq.coordination import keys
from seaweedq.coordination.membership import BackgroundWork
from seaweedq.errors import DataFolderInUse, Fenced, NotReady, Unavailable, UnfitStore
from seaweedq.journal.holdings import Holdings
from seaweedq.settings import Settings
from tests.simulation.backends import CoordinationServer, SimulatedCoordination, SimulatedStore, StoreServer, Trouble
from tests.simulation.disks import DiskMachine, LifeDisk
from tests.simulation.loop import Life, LivesLoop, life_here
from tests.simulation.network import Network, SimulatedPeers
from tests.simulation.readers import in_place
from tests.support.brokers.environments import environment
from tests.support.brokers.machine import Machine, SeededIds
from tests.support.brokers.simulated_loop import BEGAN_US

AGAIN_S = 1.0
MOST_DRIFT = 0.002
DRAINED_S = 5.0


@dataclass
class LifeClock:
    """The clock of one machine. Its wall time is wrong by `wrong_us`, and it runs too fast by `drift`, a part of 1."""

    loop: asyncio.AbstractEventLoop
    wrong_us: int = 0
    drift: float = 0.0

    def now_us(self) -> int:
        return BEGAN_US + int(self.monotonic_s() * 1e6) + self.wrong_us

    def monotonic_s(self) -> float:
        return self.loop.time() * (1 + self.drift)


@dataclass
class Process:
    """A broker's process: its life, and the broker that lives there now. `renewing` is its part that renews leases."""

    number: int
    life: Life
    clock: LifeClock
    broker: Broker | None = None
    renewing: Life | None = None
    holdings: Holdings | None = None
    served: list[str] = field(default_factory=list)  # the ids of its brokers that were ready
    coordination: SimulatedCoordination | None = None
    ended: bool = False
    leaving: asyncio.Event = field(default_factory=asyncio.Event)  # it was told to end
    comes_back: bool = False  # once it has ended

    @property
    def url(self) -> str:
        return f"http://b{self.number}"

    @property
    def ids(self) -> set[str]:
        """The ids of its brokers, also of one that has joined, and has a journal, but is not ready."""
        with suppress(NotReady):
            return {*self.served, *([self.broker.id] if self.broker else [])}
        return {*self.served}

    @property
    def is_ready(self) -> bool:
        return not self.life.is_dead and self.broker is not None and self.broker.readiness.ready


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
    machines: int = 1  # that have disks; the brokers of one reach one another's journals
    budget_bytes: int = 0  # of memory, below what settings take
    processes: dict[int, Process] = field(default_factory=dict)
    starts: int = 0
    environments: int = 0
    failures: list[str] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)  # fail points, and how often
    timeline: list[str] = field(default_factory=list)  # what became of lives, and when
    died_s: dict[str, float] = field(default_factory=dict)  # when a broker ended, by its id
    planted: dict[tuple[int, str], list[Callable[[int], bool]]] = field(default_factory=dict)  # by process and place

    def __post_init__(self) -> None:
        clock = LifeClock(self.loop)
        self._context = copy_context()
        self.network = Network(self.loop, self.seed)
        self.store = StoreServer(self.loop, self.seed, clock)
        self.coordination = CoordinationServer(self.loop, self.seed, clock)
        self.disks = [DiskMachine(self.seed, number) for number in range(self.machines)]

    @contextmanager
    def living(self) -> Iterator[None]:
        """Fail points are those of lives meanwhile. None looks at the memory of the process, which has them all."""
        with using(self._reach), mock.patch.object(UnusedMemory, "is_due", _never):
            self._context = copy_context()
            yield

    def begin(self, number: int) -> Process:
        """The next life of a process."""
        before = self.processes.get(number)
        assert before is None or before.life.is_dead or before.ended
        self.starts += 1
        life = self._context.run(Life, f"b{number}#{self.starts}")  # whoever begins it: its fail points are reached
        clock = before.clock if before else LifeClock(self.loop, *self._drift())
        process = self.processes[number] = Process(number, life, clock)
        life.at_death.append(lambda: self._end(process, "dies"))
        life.start(self._run(process), "process")
        return process

    def _drift(self) -> tuple[int, float]:
        """How wrong the clock of a machine is."""
        draw = random.Random(f"clock {self.seed} {len(self.processes)}")
        return int(draw.gauss(0, 5e5)), draw.choice([0.0, draw.uniform(-MOST_DRIFT, MOST_DRIFT)])

    def _end(self, process: Process, how: str) -> None:
        self.tell(f"{process.life.name} {how}")
        for broker in process.ids:
            self.died_s.setdefault(broker, self.loop.time())

    def tell(self, text: str) -> None:
        """Puts something into the timeline."""
        self.timeline.append(f"{self.loop.time():9.3f} s  {text}")

    def again(self, number: int) -> None:
        """Has a process begin again that has died, or was told to end; unless it has begun again."""
        process = self.processes[number]
        if process.life.is_dead or process.ended:
            self.begin(number)
        elif process.leaving.is_set():
            process.comes_back = True

    def is_last_mirror(self, number: int, stays: bool = False) -> bool:
        """Whether this process has the last holding that a set names, or owns the journal if there is none: what is
        lost with the owner and all mirrors is lost. Whether it has that holding still is not asked. If the process
        `stays`, and may lose its lease alone, its holdings stay, too. One that leaves waits for them for so long only,
        so it counts as gone. A change that is under way may land once its owner is dead, or stands still: the set that
        it names counts, too."""
        coming = [one for one in self.coordination.coming if keys.MIRRORS.matches(one.key)]
        for entry in (*self.coordination.engine.range(keys.MIRRORS.prefix(), "", 500).entries, *coming):
            (owner,), record = keys.MIRRORS.parse(entry.key), keys.MIRRORS.require(entry).record
            wanted = {one.broker for one in record.members}
            there = {
                process.number
                for process in self.processes.values()
                if not process.life.is_dead and not process.leaving.is_set() and wanted.intersection(process.ids)
            }
            is_owner = owner.startswith(f"b{number}.")
            if wanted and there <= {number} and (is_owner or (there and not stays)) and record.state != "decided":
                return True
        return False

    def disk(self, number: int) -> DiskMachine:
        """The disk of a process's machine."""
        return self.disks[number % len(self.disks)]

    @property
    def ready(self) -> list[Process]:
        return [process for process in self.processes.values() if process.is_ready]

    @property
    def orphans(self) -> set[str]:
        """Brokers that are gone, and whose journals are still there."""
        there = {entry.key for entry in self.coordination.entries}
        found = {keys.JOURNALS.parse(key)[0] for key in there if key.startswith(keys.JOURNALS.prefix())}
        return {broker for broker in found if keys.BROKERS.key(broker) not in there}

    async def _run(self, process: Process) -> None:
        """Lives, one after the other, as `seaweedq serve` has them."""
        revoked = OwnRevocations(process.clock)
        try:
            while await self._live(process, revoked) and not process.leaving.is_set():
                await asyncio.sleep(AGAIN_S)
        except Exception as error:
            self.failures.append(f"{process.life.name} ended: {error!r}")
            raise
        finally:
            process.ended = True
        if process.comes_back:
            self.begin(process.number)

    async def _live(self, process: Process, revoked: OwnRevocations) -> bool:
        """One life of a broker; tells whether another one must follow."""
        broker = process.broker = Broker(self._environment(process, revoked))
        if self.budget_bytes:
            broker.budget.limit_bytes = self.budget_bytes
        starting: asyncio.Task[None] | None = None
        ends = [asyncio.create_task(event.wait()) for event in (broker.lost, process.leaving)]
        try:
            broker.lock()
            starting = asyncio.create_task(broker.start())
            await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self.tell(f"{process.life.name} {'waits' if broker.waiting else f'is ready as {broker.id}'}")
                process.served += () if broker.waiting else (broker.id,)
                self.network.listen(process.url, process.life, Application(broker))
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not broker.lost.is_set():
                    await self._drain(process, broker)
                self.network.unlisten(process.url, process.life)
            else:
                starting.cancel()
                await asyncio.wait([starting])
        except (Unavailable, Fenced, DataFolderInUse, OSError):  # whatever supervises it tries again, or another life
            return True
        except UnfitStore:  # three looks that each met an answer that was lost, or an effect that was late
            if self.store.trouble == Trouble():
                raise
            return True
        finally:
            self._end(process, "ends a life")
            for end in ends:
                end.cancel()
            pauses = process.life.pauses
            try:
                async with asyncio.timeout(broker.process.settings.shutdown_s + OVERTIME_S):
                    await broker.stop()
            except TimeoutError:  # the process ends itself (cli/server/broker_process), and is started again
                if pauses == process.life.pauses and not (process.renewing and process.renewing.stands):
                    self.failures.append(f"{process.life.name} did not stop in time")
        return True

    async def _drain(self, process: Process, broker: Broker) -> None:
        """As SIGTERM has it: it hands over, ends what waits, and answers those that are there."""
        await broker.drain()
        broker.begin_stop()
        end_s = self.loop.time() + DRAINED_S
        while self.network.busy(process.url) and self.loop.time() < end_s:
            await asyncio.sleep(0.05)

    def _environment(self, process: Process, revoked: OwnRevocations) -> Any:
        home = self.folder / str(process.number)
        home.mkdir(exist_ok=True)  # for the copies of imports; the rest is in `disks`
        settings = Settings(data_dir=home, name=f"b{process.number}", **self.settings)
        self.environments += 1
        disk = LifeDisk(self.disk(process.number), process.life)
        part = process.life.part("renewing")
        process.renewing = part

        def renewing(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> BackgroundWork:
            return _Renewing(part, work, name)

        process.coordination = SimulatedCoordination(self.coordination, process.life)
        machine = Machine(process.clock, SeededIds(self.seed * 1_000_003 + self.environments), renewing, disk)
        if process.holdings is None:
            process.holdings = new_holdings(settings, machine.ids)
        return environment(
            settings,
            SimulatedStore(self.store),
            process.coordination,
            process.url,
            SimulatedPeers(self.network, process.url),
            "secret",
            in_place,
            machine=machine,
            revoked=revoked,
            holdings=process.holdings,
        )

    def _reach(self, place: str) -> None:
        life = life_here()
        if life is None:
            return
        self.reached[place] = self.reached.get(place, 0) + 1
        top = life.parent or life
        number = int(top.name[1:].split("#")[0])
        for act in [*self.planted.get((number, place), ())]:
            if act(number):  # those behind it do not count this time
                break


def _never(_: UnusedMemory) -> bool:
    """A Mock would remember each call."""
    return False
