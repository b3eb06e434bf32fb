"""The faults of a run: each comes at its time or at its fail point, lasts, and is taken back."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import RevocationRecord
from seaweedq.coordination.versioned import Versioned
from tests.simulation.backends import Trouble
from tests.simulation.clients import Story
from tests.simulation.cluster import Cluster, Process
from tests.simulation.disks import DiskTrouble
from tests.simulation.losses import Losses
from tests.simulation.network import CLIENTS, Weather
from tests.simulation.plan import BROKERS, Fault
from tests.simulation.returns import Operator
from tests.support.brokers import inside
from tests.support.history.judged import LOST_JOURNAL, RETURNS

LATE_S = 15.0
FORGETS_S = 20.0  # before coordination goes back: the rules let acks be forgotten from 30 s before that on
LEASE_ENDS = ("pause", "stall", "mute", "cut", "cut from coordination", "lease", "outlawed")  # by which a lease may end


class Faults:
    """What carries out a plan's faults. `counts` has those that took effect, by kind."""

    def __init__(self, cluster: Cluster, story: Story, operator: Operator, losses: Losses) -> None:
        self.counts: dict[str, int] = {}
        self.came: set[Fault] = set()
        self._cluster = cluster
        self._operator = operator
        self._losses = losses
        self._story = story
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, faults: Sequence[Fault]) -> None:
        """Begins to wait for all of them, from now on."""
        began_s = self._cluster.loop.time()
        outside = self._cluster.loop.outside
        self._tasks = [outside.start(self._commit(fault, began_s)) for fault in faults]

    def heal(self) -> None:
        """Ends all faults."""
        cluster = self._cluster
        for task in self._tasks:
            if not task.done():  # its error is looked at in the end, which `cancel` would forget
                task.cancel()
        cluster.planted.clear()
        cluster.network.weather = Weather()
        cluster.store.trouble = Trouble()
        cluster.coordination.trouble = Trouble()
        for disk in cluster.disks:
            disk.trouble = DiskTrouble()
        for number, process in cluster.processes.items():
            cluster.again(number)
            for part in filter(None, (process.life, process.renewing)):
                part.go_on()
            if process.coordination:
                process.coordination.join()

    async def _commit(self, fault: Fault, began_s: float) -> None:
        """Has a fault come, and go."""
        await asyncio.sleep(max(0.0, began_s + fault.at_s - self._cluster.loop.time()))
        if not fault.place:
            await self._hit(fault, fault.broker)
            return
        come: asyncio.Future[int] = self._cluster.loop.create_future()
        left = fault.turn
        planted = [fault.broker] if fault.broker >= 0 else list(range(BROKERS))

        def reached(number: int) -> bool:
            """Whether the fault strikes now."""
            nonlocal left
            left -= 1
            if left:
                return False
            come.set_result(number)
            for each in planted:
                self._cluster.planted[each, fault.place].remove(reached)
            self._strike(fault, number)
            return True

        for number in planted:
            self._cluster.planted.setdefault((number, fault.place), []).append(reached)
        hit = await come
        await self._hit(fault, hit)

    def _strike(self, fault: Fault, number: int) -> None:
        """What has to happen at the very step at which a fail point is reached."""
        life = self._cluster.processes[number].life
        if fault.kind in ("kill", "power", "pause") and self._cluster.is_last_mirror(number, fault.kind == "pause"):
            return
        if fault.kind == "kill":
            life.die()
        elif fault.kind == "power":
            self._cluster.disk(number).lose_power()
        elif fault.kind == "pause":
            life.pause()
        elif fault.kind == "late change":
            self._cluster.coordination.trouble.defers, self._cluster.coordination.trouble.late_s = 1.0, LATE_S
        else:
            return
        self.came.add(fault)

    async def _hit(self, fault: Fault, number: int) -> None:
        """Does it, waits, and takes it back."""
        where = f" at {fault.place}" if fault.place else ""
        process, has_struck = self._cluster.processes[number], fault in self.came
        if not has_struck and self._is_vain(fault.kind, process):
            self._cluster.tell(f"{fault.kind} of b{number}{where} would do nothing, or too much")
            return
        self._cluster.tell(f"{fault.kind} of b{number}{where}, for {fault.for_s:.3f} s")
        undo = self._begin(fault, process)
        self.came.add(fault)
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        lines = [{"note": fault.kind, "broker": f"b{number}"}]
        untold_s = max(0.0, fault.for_s - FORGETS_S) if fault.kind in RETURNS else 0.0
        await asyncio.sleep(untold_s)
        call = self._story.invoke("nemesis", "fault", lines)
        await asyncio.sleep(fault.for_s - untold_s)
        undo()
        self._cluster.tell(f"{fault.kind} of b{number} is over")
        self._story.told("nemesis", "fault", "ok", call, lines)

    def _begin(self, fault: Fault, process: Process) -> Callable[[], object]:
        """Begins a fault, of which the part that comes at a fail point's very step has been; what takes it back."""
        cluster, kind, amount, number = self._cluster, fault.kind, fault.amount, process.number
        weather, store, coordination = cluster.network.weather, cluster.store.trouble, cluster.coordination.trouble
        disk = cluster.disk(number).trouble
        others = [f"http://b{n}" for n in range(BROKERS) if n != number]
        if kind == "kill":
            process.life.die()
            return lambda: cluster.again(number)
        if kind == "restart":
            process.leaving.set()
            return lambda: cluster.again(number)
        if kind == "power":
            cluster.disk(number).lose_power()
            fellows = [other for other in cluster.processes if cluster.disk(other) is cluster.disk(number)]
            return lambda: [cluster.again(fellow) for fellow in fellows]
        if kind in ("pause", "stall", "mute"):
            parts = [part for part in (process.life, process.renewing) if part]
            stands = {"pause": parts, "stall": parts[:1], "mute": parts[1:]}[kind]
            for part in stands:
                part.pause()
            return lambda: [part.go_on() for part in stands]
        if kind in ("cut", "cut one way", "cut partly"):
            if kind == "cut partly":
                others = [CLIENTS] if amount < 0.4 else others[:1]
            pairs = {(process.url, other) for other in others}
            if kind != "cut one way":
                pairs |= {(other, process.url) for other in others}
            weather.cut |= pairs
            return lambda: weather.cut.difference_update(pairs)
        if kind in ("cut from coordination", "outlawed"):
            reached = process.coordination
            assert reached
            reached.is_cut = True
            if kind == "outlawed":
                self._end_lease(process)
            return reached.join
        if kind in ("lease", "early end"):
            self._end_lease(process, kind == "lease")
            return _nothing
        if kind == LOST_JOURNAL:
            self._operator.accept_losses()
            lost = self._losses.begin(process)
            return lambda: [cluster.again(one.number) for one in lost]
        if kind in RETURNS:
            return self._operator.begin(kind, cluster.coordination.records)
        if kind == "compaction":
            cluster.coordination.compact()
            return _nothing
        if kind == "late change":
            return self._make_late(process, amount - 0.5)
        if kind == "lost object":
            cluster.tell(f"the store loses {cluster.store.lose(amount)}")
            return _nothing
        if kind == "clock":
            process.clock.wrong_us += int((amount - 0.5) * 240e6)
            return _nothing
        changes: dict[str, tuple[Any, dict[str, Any]]] = {
            "loss": (weather, {"loses": 0.3 * amount, "forgets": 0.3 * amount}),
            "late calls": (weather, {"delays": 0.3 * amount}),
            "repeats": (weather, {"repeats": 0.5 * amount}),
            "slow store": (store, {"slow_s": 2 * amount}),
            "late puts": (store, {"defers": 0.5 * amount}),
            "double puts": (store, {"repeats": 0.5 * amount}),
            "late listings": (store, {"lag_s": 10 * amount}),
            "wrong 404": (store, {"misses": 0.3 * amount}),
            "lost puts": (store, {"forgets": 0.5 * amount, "refuses": 0.3 * amount}),
            "store away": (store, {"away": True}),
            "coordination away": (coordination, {"away": True}),
            "late transactions": (coordination, {"defers": 0.3 * amount, "late_s": 15.0}),
            "lost transactions": (coordination, {"forgets": 0.3 * amount, "refuses": 0.2 * amount}),
            "slow coordination": (coordination, {"slow_s": amount}),
            "watches": (coordination, {"breaks": 0.5 * amount}),
            "late watches": (coordination, {"lag_s": 10 * amount}),
            "disk errors": (disk, {"fails": 0.3 * amount, "fails_sync": 0.3 * amount}),
            "disk full": (disk, {"full": True}),
            "slow disk": (disk, {"slow_s": 2 * amount}),
        }
        of, changed = changes[kind]
        before = type(of)()
        for name, value in changed.items():
            setattr(of, name, value)
        return lambda: [setattr(of, name, getattr(before, name)) for name in changed]

    def _is_vain(self, kind: str, process: Process) -> bool:
        """Whether a fault would do nothing, or would lose what nobody promises to keep, a journal's last holding."""
        dies, is_dead = kind in ("kill", "power", "restart"), process.life.is_dead
        if (dies or kind in LEASE_ENDS) and not is_dead and self._cluster.is_last_mirror(process.number, not dies):
            return True
        if self._cluster.settings.get("journal") == "mirrored" and self._ends_mirrors_without_leases(kind, process):
            return True
        if kind == "restart":
            return is_dead or process.leaving.is_set()
        if kind in ("lease", "early end"):
            return not process.is_ready
        return is_dead and kind in ("kill", "pause", "stall", "mute")

    def _ends_mirrors_without_leases(self, kind: str, process: Process) -> bool:
        """Whether a mirror is told to stop while leases end, owners' too: without a lease it waits for nobody."""
        if kind == "restart":
            return self._cluster.coordination.trouble.away or not process.is_ready
        return kind == "coordination away" and any(
            other.leaving.is_set() and not other.ended for other in self._cluster.processes.values()
        )

    def _make_late(self, process: Process, lives_s: float) -> Callable[[], object]:
        """What a broker has just asked of coordination comes up to LATE_S later; it dies in `lives_s`, if at all."""
        trouble = self._cluster.coordination.trouble

        async def end() -> None:
            await asyncio.sleep(0.01)
            trouble.defers, trouble.late_s = 0.0, Trouble().late_s
            if lives_s > 0:
                await asyncio.sleep(lives_s)
                if not self._cluster.is_last_mirror(process.number):
                    process.life.die()

        self._cluster.loop.outside.start(end())
        return lambda: self._cluster.again(process.number)

    def _end_lease(self, process: Process, revokes: bool = True) -> None:
        """Ends a broker's lease as others do who suspect it (broker/cluster/revoker): its revocation comes before. Else
        as coordination does that loses it."""
        if process.is_ready and process.broker:
            membership, server = inside.membership(process.broker), self._cluster.coordination
            lease_s = process.broker.process.settings.lease_s
            record = keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("", (), lease_s)))
            if revokes:
                server.engine.commit([], [Put(keys.REVOCATIONS.key(membership.broker), record)])
            server.engine.revoke(membership.lease)
            server.changed()


def _nothing() -> None:
    pass
