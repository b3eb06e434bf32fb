"""The parts of the simulation: lives, the network, the servers, plans."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.rpc.client import Request
from seaweedq.checks import reach
from seaweedq.clock import SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import (
    CursorRecord,
    JournalRecord,
    MirrorMember,
    MirrorsRecord,
    SegmentRecord,
    SubscriptionRecord,
    UnknownJournal,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable, DataFolderInUse, StoreUnavailable
from seaweedq.journal.holdings import HoldHeader, Holdings, encode_hold
from seaweedq.journal.home_folder import FolderLock
from tests.simulation.backends import CoordinationServer, SimulatedCoordination, SimulatedStore, StoreServer, Trouble
from tests.simulation.clients import Story
from tests.simulation.cluster import Cluster, LifeClock, Process
from tests.simulation.disks import DiskMachine, DiskTrouble, LifeDisk
from tests.simulation.faults import Faults
from tests.simulation.judging import alone
from tests.simulation.loop import Life, LivesLoop
from tests.simulation.losses import Losses, without
from tests.simulation.network import CLIENTS, Network, Refused, Reset
from tests.simulation.plan import KINDS, OF_WORK, UNPROMISED, Fault, Plan, draw, shrunk
from tests.simulation.returns import Operator
from tests.simulation.run import fail_points
from tests.support.history.history import Event, Op
from tests.support.history.judged import LOST_JOURNAL, Run, Segment
from tests.support.history.terms import Terms

HERE = "http://b0"


def simulated(work: Callable[[LivesLoop], Coroutine[Any, Any, None]]) -> None:
    loop = LivesLoop(1)
    try:
        loop.run_until_complete(work(loop))
    finally:
        loop.close()
    assert loop.errors == []


def test_a_paused_life_goes_on_late_and_a_dead_one_never_does() -> None:
    steps: list[tuple[str, float]] = []

    async def tick(name: str) -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(1)
                steps.append((name, round(asyncio.get_running_loop().time())))
        finally:
            steps.append((f"{name} ended", 0))

    async def work(loop: LivesLoop) -> None:
        paused, dead, part_of = Life("paused"), Life("dead"), Life("whole")
        tasks = [life.start(tick(life.name)) for life in (paused, dead, part_of, part_of.part("part"))]
        await asyncio.sleep(1.5)
        paused.pause()
        dead.die()
        part_of.pause()
        await asyncio.sleep(8.5)
        paused.go_on()
        await asyncio.wait([tasks[0], tasks[3]])
        assert not tasks[1].done()
        assert not tasks[2].done()
        assert not loop.graves

    simulated(work)
    assert [at for name, at in steps if name == "paused"] == [1, 10, 11]
    assert [at for name, at in steps if name == "part"] == [1, 2, 3]
    assert [at for name, at in steps if name in ("dead", "whole")] == [1, 1]
    assert "dead ended" not in [name for name, _ in steps]


def test_a_task_that_a_paused_life_alone_holds_is_buried_with_it() -> None:
    async def work(loop: LivesLoop) -> None:
        life = Life("paused")
        life.start(asyncio.sleep(1))
        await asyncio.sleep(0.5)
        life.pause()
        await asyncio.sleep(1)
        life.die()
        assert len(loop.graves) == 1

    simulated(work)


@pytest.mark.parametrize("turns", range(6))
def test_a_gather_that_was_cancelled_as_its_life_died_is_no_error(turns: int) -> None:
    async def gather() -> None:
        await asyncio.gather(asyncio.sleep(9), return_exceptions=True)

    async def work(loop: LivesLoop) -> None:
        life = Life("dead")
        task = life.start(gather())
        await asyncio.sleep(1)
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        life.die()
        del task
        await asyncio.sleep(1)
        gc.collect()
        assert not loop.errors

    simulated(work)


def test_a_dead_life_gives_its_memory_back_and_runs_no_finally() -> None:
    ended: list[str] = []

    class Large:
        pass

    @contextmanager
    def within() -> Iterator[Large]:
        try:
            yield Large()
        finally:
            ended.append("context")

    async def parts() -> AsyncIterator[Large]:
        try:
            yield Large()
            await asyncio.sleep(9)
        finally:
            ended.append("parts")

    async def inner(seen: "weakref.WeakSet[Large]") -> None:
        with within() as one:
            seen.add(one)
            try:
                async for each in parts():
                    seen.add(each)
            finally:
                ended.append("task")

    async def dies(life: Life) -> None:
        try:
            life.die()  # in its own step
            await asyncio.sleep(1)
        finally:
            ended.append("its own step")

    async def work(loop: LivesLoop) -> None:
        life, seen = Life("dead"), weakref.WeakSet[Large]()
        life.start(inner(seen))
        await asyncio.sleep(1)
        assert len(seen) == 2
        life.start(dies(life))
        await asyncio.sleep(10)
        gc.collect()
        assert len(seen) == 0
        assert life.tasks.data == set()

    simulated(work)
    gc.collect()
    assert ended == []


def test_ties_between_timers_are_drawn_from_the_seed() -> None:
    def order(seed: int) -> list[int]:
        loop, found = LivesLoop(seed), list[int]()
        for number in range(8):
            loop.call_at(1.0, found.append, number)
        loop.run_until_complete(asyncio.sleep(2))
        loop.close()
        return found

    assert order(1) == order(1)
    assert order(1) != order(2)


class Echo:
    """An application that answers after a second with its own count of requests."""

    def __init__(self) -> None:
        self.came = 0
        self.left = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.came += 1
        body = (await receive())["body"]
        await asyncio.sleep(1)
        self.left += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": body})


def request(body: bytes = b"x") -> Request:
    return Request("POST", "/p?q=1", {"Producer-Id": "p"}, body, 60)


def test_the_network_delivers_and_answers() -> None:
    async def work(loop: LivesLoop) -> None:
        network, app, life = Network(loop, 1), Echo(), Life("b0")
        with pytest.raises(Refused):
            await network.send(CLIENTS, HERE, request())
        network.listen(HERE, life, app)
        found = await network.send(CLIENTS, HERE, request(b"body"))
        assert (found.status, found.body, found.headers) == (200, b"body", {"a": "b"})
        asking = asyncio.create_task(network.send(CLIENTS, HERE, request()))
        await asyncio.sleep(0.5)
        life.die()
        with pytest.raises(Reset):
            await asking
        assert (app.came, app.left) == (2, 1)
        with pytest.raises(Refused):
            await network.send(CLIENTS, HERE, request())

    simulated(work)


def test_a_dead_senders_request_arrives_and_a_paused_receiver_is_late() -> None:
    async def work(loop: LivesLoop) -> None:
        network, app, receiver, sender = Network(loop, 1), Echo(), Life("b0"), Life("b1")
        network.listen(HERE, receiver, app)
        sender.start(network.send("http://b1", HERE, request()))
        await asyncio.sleep(0)
        sender.die()
        await asyncio.sleep(2)
        assert (app.came, app.left) == (1, 1)
        receiver.pause()
        asking = asyncio.create_task(network.send(CLIENTS, HERE, request()))
        await asyncio.sleep(30)
        assert app.came == 1
        receiver.go_on()
        began_s = loop.time()
        await asking
        assert loop.time() - began_s < 2

    simulated(work)


@pytest.mark.parametrize(
    ("weather", "came"),
    [
        ({"loses": 1.0}, 0),
        ({"forgets": 1.0}, 1),
        ({"repeats": 1.0}, 2),
        ({"cut": {(CLIENTS, HERE)}}, 0),
        ({"cut": {(HERE, CLIENTS)}}, 1),
    ],
)
def test_bad_weather(weather: dict[str, Any], came: int) -> None:
    async def work(loop: LivesLoop) -> None:
        network, app = Network(loop, 1), Echo()
        network.listen(HERE, Life("b0"), app)
        for name, value in weather.items():
            setattr(network.weather, name, value)
        asking = asyncio.create_task(network.send(CLIENTS, HERE, request()))
        await asyncio.sleep(60)
        assert app.came == came
        assert asking.done() == ("repeats" in weather)
        asking.cancel()

    simulated(work)


def test_the_frames_of_a_socket_arrive_in_their_order() -> None:
    heard: list[str] = []

    async def listens(_: Any, receive: Any, __: Any) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            heard.append(message.get("text", ""))

    async def work(loop: LivesLoop) -> None:
        network = Network(loop, 1)
        network.listen(HERE, Life("b0"), listens)
        channel = await network.open(HERE, request(), socket=True)
        await asyncio.sleep(0.1)
        for n in range(20):
            channel.say(f"{n}")
        channel.leave()
        await asyncio.sleep(0.1)

    simulated(work)
    assert heard == ["", *map(str, range(20))]


def test_a_put_lands_though_its_life_is_dead_or_has_given_up() -> None:
    async def work(loop: LivesLoop) -> None:
        server = StoreServer(loop, 1, LifeClock(loop))
        life, store = Life("b0"), SimulatedStore(server)
        life.start(store.create("dead", b"1"))
        await asyncio.sleep(0.001)
        life.die()
        server.trouble.defers = 1.0
        with pytest.raises(StoreUnavailable):
            await store.create("late", b"2")
        gave_up = set(server.memory.objects)
        server.trouble.defers, server.trouble.forgets = 0.0, 1.0
        with pytest.raises(StoreUnavailable):
            await store.create("forgotten", b"3")
        await asyncio.sleep(60)
        assert gave_up <= {"dead"}
        assert set(server.memory.objects) == {"dead", "late", "forgotten"}
        server.trouble.forgets, server.trouble.away = 0.0, True
        with pytest.raises(StoreUnavailable):
            await store.read("late")

    simulated(work)


def test_a_machine_that_loses_its_power_keeps_what_was_synced() -> None:
    async def work(loop: LivesLoop) -> None:
        kept, lost = set[bytes](), set[bool]()
        for seed in range(30):
            machine, life, folder = DiskMachine(seed, 0), Life("b0"), Path("/d")
            disk = LifeDisk(machine, life)
            disk.make_folder(folder)
            fd = disk.create(folder / "a")
            disk.write_all(fd, [bytes(700)])
            disk.sync(fd)
            disk.sync_folder(folder)
            disk.write_all(fd, [b"x" * 700])
            disk.rename(folder / "a", folder / "b")
            assert disk.lock(folder / "lock") is not None
            machine.lose_power()
            with pytest.raises(OSError, match="died"):
                disk.sync(fd)
            after = LifeDisk(machine, Life("b0"))
            assert after.lock(folder / "lock") is not None
            name = "b" if "b" in after.names(folder) else "a"
            content = after.read(folder / name, 2000)
            assert content[:700] == bytes(700)
            kept.add(content[700:])
            lost.add(name == "a")
        assert {b"", b"x" * 700} < kept  # and those that are torn
        assert lost == {False, True}

    simulated(work)


def test_the_holder_of_a_lock_is_named_by_what_the_machine_has_begun() -> None:
    """The name comes into coordination's records: by the id of the real process each run had other ones."""

    async def work(loop: LivesLoop) -> None:
        machine, first, second = DiskMachine(1, 0), Life("b0"), Life("b1")
        FolderLock(Path("/0"), LifeDisk(machine, first)).acquire()
        FolderLock(Path("/1"), LifeDisk(machine, second)).acquire()
        for number, folder in enumerate(("/0", "/1"), 1):
            with pytest.raises(DataFolderInUse, match=rf"process {number}$"):
                FolderLock(Path(folder), LifeDisk(machine, Life("b2"))).acquire()
        FolderLock(Path("/2"), LifeDisk(machine, second)).acquire()  # the next broker of the same process
        with pytest.raises(DataFolderInUse, match=r"process 2$"):
            FolderLock(Path("/2"), LifeDisk(machine, first)).acquire()

    simulated(work)


def test_what_a_failed_sync_has_dropped_is_not_durable_behind_the_next() -> None:
    async def work(loop: LivesLoop) -> None:
        found = set[bytes]()
        for seed in range(30):
            machine = DiskMachine(seed, 0)
            disk = LifeDisk(machine, Life("b0"))
            fd = disk.create(Path("/a"))
            disk.sync_folder(Path("/"))
            disk.write_all(fd, [b"x"])
            machine.trouble.fails_sync = 1.0
            with pytest.raises(OSError, match="a sync failed"):
                disk.sync(fd)
            machine.trouble = DiskTrouble(full=True)
            with pytest.raises(OSError, match="no space"):
                disk.write_all(fd, [b"yy"])
            disk.sync(fd)
            machine.lose_power()
            found.add(LifeDisk(machine, Life("b0")).read(Path("/a"), 10)[:1])
        assert found == {b"\0", b"x"}

    simulated(work)


def test_a_transaction_is_in_doubt_and_a_watch_hears_of_it() -> None:
    async def work(loop: LivesLoop) -> None:
        server = CoordinationServer(loop, 1, LifeClock(loop))
        mine, other = (SimulatedCoordination(server, Life(name)) for name in ("b0", "b1"))
        heard: list[str] = []

        async def watch() -> None:
            async for changes in other.watch("", 0):
                heard.extend(change.key for change in changes)

        other.life.start(watch())
        server.trouble.forgets = 1.0
        with pytest.raises(CoordinationUnavailable):
            await mine.commit([], [Put("k", b"v")])
        await asyncio.sleep(1)
        assert heard == ["k"]
        server.trouble.forgets = 0.0
        grant = await mine.grant(3.0)
        await mine.commit([], [Put("leased", b"v", grant.lease)])
        await asyncio.sleep(4)
        assert heard == ["k", "leased", "leased"]

    simulated(work)


def test_the_death_of_a_broker_that_was_not_ready_yet_is_known(tmp_path: Path) -> None:
    """Its journal may have mirrors, and its loss may be accepted."""

    async def work(loop: LivesLoop) -> None:
        cluster = Cluster(loop, 1, tmp_path, {})
        with cluster.living():
            process = cluster.begin(0)
            while not process.ids:
                await asyncio.sleep(0.001)
            (broker,) = process.ids
            assert not process.is_ready
            process.life.die()
        assert cluster.died_s[broker] == loop.time()

    simulated(work)


def test_a_set_that_a_change_may_still_name_has_a_last_mirror(tmp_path: Path) -> None:
    """The owner b0 removes the mirror b1, and the change is under way while faults ask whether b2 may die."""

    def named(*brokers: str) -> Put:
        members = tuple(MirrorMember(broker, f"holding at {broker}") for broker in brokers)
        return Put(keys.MIRRORS.key("b0.1"), keys.MIRRORS.encode(Versioned.new(MirrorsRecord("open", members))))

    async def work(loop: LivesLoop) -> None:
        def last() -> list[int]:
            return [number for number in range(3) if cluster.is_last_mirror(number)]

        cluster = Cluster(loop, 1, tmp_path, {})
        cluster.processes = {n: Process(n, Life(f"b{n}#1"), LifeClock(loop), served=[f"b{n}.1"]) for n in range(3)}
        server, owner = cluster.coordination, cluster.processes[0].life
        revision = server.engine.commit([], [named("b1.1", "b2.1")])
        assert revision
        assert last() == []
        server.trouble.defers = 1.0
        change = SimulatedCoordination(server, owner).commit([Compare(named().key, revision)], [named("b2.1")])
        sent = asyncio.create_task(change)
        await asyncio.sleep(0)
        assert last() == [2], "b2 alone has what both sets have"
        cluster.processes[2].life.die()
        assert last() == [0, 1], "the owner alone has all if the change lands, b1 has it if not"
        server.engine.commit([], [named("b1.1", "b2.1")])
        assert last() == [1], "it cannot land any more"
        with pytest.raises(CoordinationUnavailable):
            await sent

    simulated(work)


def test_a_plan_follows_from_its_seed_and_a_fault_left_out_changes_none() -> None:
    plan = draw(3)
    assert plan == draw(3) == Plan.from_json(plan.to_json())
    assert plan != draw(4)
    without = draw(3, kinds=tuple(kind for kind in KINDS if kind != "kill"))
    assert without.faults == tuple(fault for fault in plan.faults if fault.kind != "kill")
    assert any(fault.place for fault in plan.faults)
    assert any(not fault.place for fault in plan.faults)


def test_faults_are_aimed_at_fail_points_that_there_are() -> None:
    aimed = {fault.place for seed in range(200) for fault in draw(seed).faults} - {""}
    assert {place for place in aimed if not place.startswith("disk.")} <= fail_points()
    assert set(chain.from_iterable(OF_WORK.values())) <= aimed


def test_a_plan_is_shrunk_to_what_makes_it_fail() -> None:
    plan = replace(
        draw(5, 600), faults=tuple(Fault("kill", at, 1.0) for at in range(40)), consumers=("keyed", "shared")
    )

    def fails(one: Plan) -> bool:
        times = {fault.at_s for fault in one.faults}
        return {7, 31} <= times and "keyed" in one.consumers and one.length_s > 100

    small = shrunk(plan, fails)
    assert [fault.at_s for fault in small.faults] == [7, 31]
    assert small.consumers == ("keyed",)
    assert (small.publishers, small.readers, small.reshapes) == (1, 0, False)
    assert 100 < small.length_s < 150


def test_several_faults_wait_at_one_place_of_one_broker(tmp_path: Path) -> None:
    came: list[int] = []

    async def comes() -> None:
        for n in range(6):
            reach("slot.put")
            await asyncio.sleep(0.1)
            came.append(n)

    async def work(loop: LivesLoop) -> None:
        cluster, story = Cluster(loop, 1, tmp_path, {}), Story(loop)
        with cluster.living():
            cluster.processes = {n: Process(n, Life(f"b{n}#1"), LifeClock(loop)) for n in range(3)}
            faults = Faults(cluster, story, Operator(cluster.network, {}, [], list), Losses(cluster))
            first = Fault("pause", 0.0, 10.0, -1, place="slot.put")
            faults.begin([first, replace(first, broker=0, turn=2), replace(first, broker=0)])
            await asyncio.sleep(1)
            cluster.processes[0].life.start(comes())
            for before in ([], [0], [0, 1]):
                await asyncio.sleep(5)
                assert came == before
                await asyncio.sleep(5.05)
            await asyncio.sleep(5)
            assert came == [0, 1, 2, 3, 4, 5]
            assert faults.counts == {"pause": 3}

    simulated(work)


def test_a_store_misses_lists_late_and_loses() -> None:
    async def work(loop: LivesLoop) -> None:
        server = StoreServer(loop, 1, LifeClock(loop))
        store, name = SimulatedStore(server), "topics/t/segment=0/1.parquet"
        await store.create(name, b"1")
        server.trouble.misses = 1.0
        with pytest.raises(FileNotFoundError):
            await store.read(name)
        server.trouble = Trouble(lag_s=100.0)
        assert await store.list("topics/") == []
        await asyncio.sleep(100)
        assert await store.list("topics/") == [name]
        assert server.lose(0.5) == name
        assert server.memory.objects == {}

    simulated(work)


def test_kinds_that_nobody_promises_to_survive_come_when_asked_for() -> None:
    usual, asked = draw(3), draw(3, kinds=(*KINDS, *UNPROMISED))
    assert {fault.kind for fault in usual.faults}.isdisjoint(UNPROMISED)
    assert asked.faults[: len(usual.faults)] == usual.faults
    assert {fault.kind for fault in asked.faults[len(usual.faults) :]} <= set(UNPROMISED)


def delivered(proc: str, call: int, t: float, offset: int) -> list[Event]:
    """A pull and what it brought."""
    asked = Event(t - 0.1, proc, "deliver", "invoke", call, subscription="ordered")
    return [asked, replace(asked, t=t, type="ok", segment=0, offset=offset, hash="x")]


@pytest.mark.parametrize(("between", "found"), [(None, 1), ("ack", 0), ("nack", 0)])
def test_in_ordered_nobody_gets_later_messages_than_another_holds(between: Op | None, found: int) -> None:
    events = [*delivered("a", 1, 1.0, 5), *delivered("b", 2, 1.5, 6)]
    if between:
        events.insert(2, Event(1.1, "a", between, "invoke", 3, subscription="ordered", segment=0, offset=5))
    run = Run(events, (), (), terms={"ordered": Terms("ordered", 2)})
    assert len([*alone(run)]) == found


def test_nobody_knows_of_lost_messages_whether_they_were_published() -> None:
    published = [
        Event(1.0, "p", "publish", "ok", n, producer="p", seq=n, hash=f"{n}", segment=0, offset=n) for n in (1, 2)
    ]
    seen = Event(1.1, "o", "cursor", "ok", 9, segment=0, acked_to=3)
    rest = without(
        Run([*published, seen, *delivered("a", 3, 2.0, 2)], (), (), segments={0: Segment(0, 9, end=2)}), {(0, 2)}
    )
    assert [(e.op, e.type) for e in rest.events] == [
        *(("publish", "ok"), ("publish", "info"), ("cursor", "ok"), ("deliver", "invoke"))
    ]
    assert rest.events[2].acked_to == 2


def test_a_holding_that_left_the_set_keeps_no_journal_from_being_lost(tmp_path: Path) -> None:
    async def work(loop: LivesLoop) -> None:
        cluster = Cluster(loop, 1, tmp_path, {})
        holdings = Holdings(1000, SystemIds())
        cluster.processes[1] = Process(1, Life("b1#1"), LifeClock(loop), holdings=holdings)
        there = holdings.hold("b0.1", encode_hold(HoldHeader(), ())).holding
        journal = JournalRecord("mirrored", "home", unknown=UnknownJournal(1, "its mirror is dead"))
        journal_put = Put(keys.JOURNALS.key("b0.1"), keys.JOURNALS.encode(Versioned.new(journal)))

        def lost(holding: str) -> list[str]:
            members = (MirrorMember("b1.1", holding),)
            put = Put(keys.MIRRORS.key("b0.1"), keys.MIRRORS.encode(Versioned.new(MirrorsRecord("closed", members))))
            cluster.coordination.engine.commit([], [journal_put, put])
            return Losses(cluster).unknown()

        assert lost(there) == []
        assert lost("of a dead process") == ["b0.1"]

    simulated(work)


LOST, DISPATCHER, NEXT = "b0.1", "b1.2", "b2.3"


@pytest.mark.parametrize(
    ("accepts", "dispatcher", "ends", "found"),
    [
        (True, LOST, False, 90.0),  # its own journal is lost: what it acknowledged late
        (True, DISPATCHER, True, float("-inf")),  # its epoch has ended: whatever no cursor has
        (True, DISPATCHER, False, None),
        (False, DISPATCHER, True, None),  # nobody has accepted a loss
    ],
)
def test_acks_are_forgotten_where_a_loss_was_accepted_and_nowhere_else(
    tmp_path: Path, accepts: bool, dispatcher: str, ends: bool, found: float | None
) -> None:
    """An accepted loss ends epochs without a broker's name. Whether anybody was answered that a loss is accepted does
    not count."""

    async def work(loop: LivesLoop) -> None:
        cluster = Cluster(loop, 1, tmp_path, {})
        losses, engine = Losses(cluster), cluster.coordination.engine
        named = Compare(keys.BROKERS.key(NEXT), 0)

        def write(key: str, value: bytes, compares: Sequence[Compare] = ()) -> None:
            assert engine.commit(compares, [Put(key, value)])

        def dispatched(epoch: int, by: str, compares: Sequence[Compare] = ()) -> None:
            record = SubscriptionRecord("keyed", "earliest", 9.0, 0, None, 1, epoch, dispatcher=by)
            write(keys.SUBSCRIPTIONS.key("t", 0, "s"), keys.SUBSCRIPTIONS.encode(Versioned.new(record)), compares)

        segment = SegmentRecord(0, 9, "open", (), (), LOST, None, 1)
        write(keys.SEGMENTS.key("t", 0, 0), keys.SEGMENTS.encode(Versioned.new(segment)))
        write(keys.CURSORS.key("t", 0, "s", 0), keys.CURSORS.encode(Versioned.new(CursorRecord(1, 4, ((6, 7),)))))
        dispatched(1, dispatcher)
        if accepts:
            lost = JournalRecord("mirrored", "p", loss_accepted_us=5)
            write(keys.JOURNALS.key(LOST), keys.JOURNALS.encode(Versioned.new(lost)))
        if ends:
            dispatched(2, dispatcher)
        dispatched(3, NEXT, [named])
        dispatched(4, NEXT, [named])
        cluster.died_s[LOST] = 100.0
        lapses = losses.lapses(Run((), (), ()), 8.0)
        assert [one.since_s for one in lapses] == ([] if found is None else [found])
        assert losses.accepted.keys() == ({LOST} if accepts else set())
        for one in lapses:
            assert [offset for offset in range(9) if offset not in one.acked[0]] == [4, 5, 7, 8]

    simulated(work)


def test_journals_are_lost_in_some_plans_with_mirrors_alone() -> None:
    lost = {seed for seed in range(60) for fault in draw(seed).faults if fault.kind == LOST_JOURNAL}
    assert lost
    assert {draw(seed).journal for seed in lost} == {"mirrored"}
    assert not {"imports", "payloads"} & {other for seed in lost for other in draw(seed).others}
