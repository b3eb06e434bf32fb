"""The two ends of a broker's life where coordination fails: a stop leaves in order, a start without a lease ends."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.joining import Following
from seaweedq.broker.cluster.leader import Leader
from seaweedq.broker.recovery.journal_recovery import JournalRecovery, JournalRegistration
from seaweedq.cli.server.broker_process import started
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.errors import CoordinationUnavailable, Damaged
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, Held, ack, held, make_topic, publish, pull, starting, subscribe
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.serving import stop_signals


def refuse_writes_of(broker: Broker, kind: str) -> None:
    async def refuse(writes: Sequence[Put | Delete]) -> None:
        if writes[0].key.startswith(kind):
            raise CoordinationUnavailable("the disk is full")

    held(broker).before = refuse


@pytest.mark.parametrize("kind", ["cursors/", "journals/"])
async def test_a_stop_leaves_in_order_where_coordination_refuses(tmp_path: Path, kind: str) -> None:
    async with starting(tmp_path) as broker:
        await broker.start()
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await subscribe(broker, topic)
        await pull(inside.dispatcher(broker), topic, "s", None, 2, 0)
        await ack(inside.dispatcher(broker), topic, "s", {0: [0]}, None)
        refuse_writes_of(broker, kind)
        await broker.stop()
        assert not [task for task in privates.tasks(broker) if not task.done()]
        assert (tmp_path / "journals" / broker.id).exists()
        assert await held(broker).get(f"brokers/{broker.id}") is None
        broker.lock()  # it was given back


async def test_a_stop_leaves_an_object_journal_in_order(tmp_path: Path) -> None:
    store = MemoryStore()
    async with starting(tmp_path, store, journal="object") as broker:
        await broker.start()
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await broker.stop()
        assert await held(broker).get(f"journals/{broker.id}") is None
        assert await store.list("_journals/") == [f"_journals/{broker.id}/done"]
        broker.lock()


@pytest.mark.brokers
async def test_a_stop_waits_for_no_deletions_and_the_next_broker_ends_them(tmp_path: Path) -> None:
    class Slow(MemoryStore):
        slow = True

        async def delete(self, name: str) -> None:
            if self.slow and name.startswith("_journals/"):
                await asyncio.Event().wait()
            await super().delete(name)

    async with in_loop(tmp_path, 2, store := Slow(), journal="object", shutdown_s=60) as together:
        one, two = together.brokers
        topic = await make_topic(two)
        await publish(two, topic, "1", "2")
        async with asyncio.timeout(15):
            await two.stop()
        store.slow = False
        await until(lambda: two.id not in inside.roster(one).journals)
        left = await store.list(f"_journals/{two.id}/")
        assert (len(left), left[-1]) == (2, f"_journals/{two.id}/done"), "the fence"
        assert not [task for task in privates.tasks(two) if not task.done()]


async def test_a_start_that_loses_its_lease_begins_again(tmp_path: Path) -> None:
    gate = Gate()

    async def before(writes: Sequence[Put | Delete]) -> None:
        if any(write.key == "leader" for write in writes):
            await gate()

    async with starting(tmp_path) as broker:
        coordination = held(broker)
        coordination.before = before
        beginning = asyncio.create_task(started(broker, stop_signals()))
        await gate.reached.wait()
        await coordination.leases.revoke(inside.membership(broker).lease)
        await inside.membership(broker).renew()
        privates.lose(broker)()
        assert await asyncio.wait_for(beginning, 15) is False
        assert broker.lost.is_set()


@pytest.mark.parametrize("step", ["register", "recover_own", "open", "campaign", "round"])
@pytest.mark.parametrize("how", ["fails", "is told to stop"])
async def test_a_start_that_ends_early_leaves_no_lease_and_nothing_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, how: str
) -> None:
    reached, stop = asyncio.Event(), stop_signals()

    async def end(self: object, *_: object) -> None:
        reached.set()
        if how == "fails":
            raise Damaged("what is there can not be read")
        await asyncio.Event().wait()

    kind = {
        "register": JournalRegistration,
        "recover_own": JournalRecovery,
        "open": Membership,
        "campaign": Election,
        "round": Leader,
    }[step]
    monkeypatch.setattr(kind, step, end)
    before = asyncio.all_tasks()
    if step == "round":
        monkeypatch.setattr(Election, "is_leader", True)
    async with starting(tmp_path, journal="object") as broker:
        beginning = asyncio.create_task(started(broker, stop))
        await reached.wait()
        assert await held(broker).get(f"brokers/{broker.id}")
        if how == "fails":
            with pytest.raises(Damaged):
                await beginning
        else:
            stop.ask()
            assert await asyncio.wait_for(beginning, 15) is False
        await broker.stop()
        assert await held(broker).get(f"brokers/{broker.id}") is None
        assert asyncio.all_tasks() == before
        broker.lock()  # it was given back


async def test_a_membership_that_could_not_start_can_be_stopped() -> None:
    coordination = Held()

    async def refuse(writes: Sequence[Put | Delete]) -> None:
        raise CoordinationUnavailable("not now")

    coordination.before = refuse
    member = Membership(coordination, SystemClock(), BrokerIdentity.new(SystemIds(), "m", "http://x"), 5)
    with pytest.raises(CoordinationUnavailable):
        await member.start()
    await member.stop()
    assert not await coordination.renew(member.lease)
    await coordination.close()


@pytest.mark.parametrize("part", ["election", "leader"])
async def test_a_broker_whose_election_or_leader_ends_unforeseen_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    async def end(self: object, *_: object) -> None:
        raise RuntimeError("a defect")

    async with starting(tmp_path) as broker:
        await broker.start()
        monkeypatch.setattr(*(Election, "campaign", end) if part == "election" else (Leader, "round", end))
        await broker.process.coordination.commit([], [Delete("leader")])  # each looks again
        inside.leader(broker).wake()
        await asyncio.wait_for(broker.lost.wait(), 15)


async def test_a_start_that_finds_itself_without_the_lead_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with starting(tmp_path) as broker:

        async def end_the_lease(self: Following) -> None:
            inside.membership(broker)._end()
            inside.election(broker).leader_compare()

        monkeypatch.setattr(Following, "run", end_the_lease)
        assert await asyncio.wait_for(started(broker, stop_signals()), 15) is False
        assert broker.lost.is_set()


async def test_a_renewal_that_meets_damage_ends_the_membership() -> None:
    lost = asyncio.Event()
    coordination = Held()

    async def damaged(lease: int) -> bool:
        raise Damaged("the file is no database")

    coordination.renew = damaged  # type: ignore[method-assign]
    member = Membership(coordination, SystemClock(), BrokerIdentity.new(SystemIds(), "m", "http://x"), 0.3, lost.set)
    await member.start()
    await asyncio.wait_for(lost.wait(), 15)
    assert not member.valid()
    await member.stop()
    await coordination.close()
