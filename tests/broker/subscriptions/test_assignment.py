"""Who may dispatch, and whose cursors count, of brokers that take over, die, pause and come late; and the log lines
of handovers that fail.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from seaweedq.broker.subscriptions.assignment import GAP, Assignment
from seaweedq.broker.subscriptions.leases import Asker, Leases
from seaweedq.broker.subscriptions.open_subscriptions import CursorStore, TakeOver
from seaweedq.broker.subscriptions.policy import PullLimits
from seaweedq.broker.subscriptions.subscribing import Handoff
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import JournalRecord, SubscriptionRecord, TopicConfig, TopicRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    CoordinationUnavailable,
    NeedsNewerBroker,
    NotOwner,
    SeaweedqError,
    SubscriptionNotFound,
    Unavailable,
)
from tests.support.brokers.stored import record_of

RECORD = SubscriptionRecord("ordered", "earliest", 30, 0, None, 1, epoch=1)


class Lossy(MemoryCoordination):
    """Coordination that can lose requests, which then come `late`, and answers."""

    lose_request = lose_answer = False

    async def commit(self, compares, writes):
        if self.lose_request:
            self.late = compares, writes
            self.lose_request = False
            raise CoordinationUnavailable("no answer")
        revision = await super().commit(compares, writes)
        if self.lose_answer:
            self.lose_answer = False
            raise CoordinationUnavailable("no answer")
        return revision


class World:
    """Some brokers, by name, that share a coordination, with the topic `t`."""

    def __init__(self) -> None:
        self.coordination = Lossy(SystemClock())
        self.topic = Topic.from_record("t", Versioned(TopicRecord(1, "active", TopicConfig(), 1), 1))
        self.roster = Roster(self.coordination)
        self.members: dict[str, Membership] = {}
        self.generation = 1

    async def join(self, name: str) -> Assignment:
        """A broker that lives, with a journal."""
        clock, ids = SystemClock(), SystemIds()
        self.members[name] = member = Membership(
            self.coordination, clock, BrokerIdentity.new(ids, name, f"http://{name}"), 60
        )
        await member.start()
        await self.journal(name, recovered=False)
        await self.roster.load()
        return Assignment(self.coordination, self.roster, member, lambda: self.generation)

    async def journal(self, name: str, recovered: bool) -> None:
        """What is said of a broker's journal."""
        record = JournalRecord("file", "place", recovered=recovered)
        put = Put(keys.JOURNALS.key(self.members[name].broker), keys.JOURNALS.encode(Versioned.new(record)))
        await self.coordination.commit([], [put])

    async def die(self, name: str) -> None:
        """Its lease ends; it may go on without knowing."""
        await self.coordination.leases.revoke(self.members[name].lease)
        await self.roster.load()

    async def subscription(self, held: Versioned[SubscriptionRecord]) -> Subscription:
        """The subscription as its dispatcher opens it."""
        taken = TakeOver(held.record, Leases(), 0.0)
        cursors, _ = await CursorStore(self.coordination).read(self.topic, "s", taken)
        found = Subscription(self.topic, "s", held, cursors)
        found.leases = taken.leases
        return found

    async def acked_to(self) -> int:
        """What coordination says of segment 0."""
        there = await self.coordination.get(keys.CURSORS.key("t", 1, "s", 0))
        return record_of(keys.CURSORS, there.value).acked_to if there else 0

    async def close(self) -> None:
        """Nobody renews any more."""
        for member in self.members.values():
            await member.stop()


@pytest.fixture
async def world():
    made = World()
    yield made
    await made.close()


async def test_nobody_takes_over_from_a_living_one_or_an_unrecovered_journal(world: World) -> None:
    a, b = await world.join("a"), await world.join("b")
    held = await a.claim(world.topic, "s", Versioned.new(RECORD))
    with pytest.raises(NotOwner):
        await b.acquire(world.topic, "s")
    await world.die("a")
    with pytest.raises(NotOwner, match="not been recovered"):
        await b.acquire(world.topic, "s")
    await world.journal("a", recovered=True)
    taken = await b.acquire(world.topic, "s")
    assert (taken.record.dispatcher, taken.record.epoch) == (world.members["b"].broker, held.record.epoch + 1)


async def test_the_first_take_over_in_a_generation_leaves_a_million_epochs_out(world: World) -> None:
    """Coordination may have forgotten take-overs: none of their epochs comes again."""
    a, b = await world.join("a"), await world.join("b")
    held = await a.claim(world.topic, "s", Versioned.new(RECORD))
    await a.release(world.topic, "s", held)
    world.generation = 2
    taken = await b.acquire(world.topic, "s")
    assert (taken.record.epoch, taken.record.generation) == (held.record.epoch + GAP, 2)
    await b.release(world.topic, "s", taken)
    assert (await a.acquire(world.topic, "s")).record.epoch == taken.record.epoch + 1


async def test_of_many_that_take_over_at_once_one_does(world: World) -> None:
    brokers = [await world.join(name) for name in "abcd"]
    await brokers[0].release(world.topic, "s", await brokers[0].claim(world.topic, "s", Versioned.new(RECORD)))
    outcomes = await asyncio.gather(*(each.acquire(world.topic, "s") for each in brokers), return_exceptions=True)
    taken = [outcome for outcome in outcomes if isinstance(outcome, Versioned)]
    assert len(taken) == 1
    assert all(isinstance(outcome, Versioned | NotOwner) for outcome in outcomes)
    assert (await brokers[0].read(world.topic, "s")) == taken[0]


async def test_one_that_was_declared_dead_takes_nothing_over(world: World) -> None:
    a, b = await world.join("a"), await world.join("b")
    await a.release(world.topic, "s", await a.claim(world.topic, "s", Versioned.new(RECORD)))
    await world.die("b")
    with pytest.raises(NotOwner):
        await b.acquire(world.topic, "s")


async def test_a_checkpoint_of_a_dispatcher_that_was_succeeded_changes_nothing(world: World) -> None:
    a, b = await world.join("a"), await world.join("b")
    old = await world.subscription(await a.claim(world.topic, "s", Versioned.new(RECORD)))
    old.cursor(0).delivery.window.pass_over(0, 5)
    assert await CursorStore(world.coordination).save(old)
    await world.die("a")
    await world.journal("a", recovered=True)
    new = await world.subscription(await b.acquire(world.topic, "s"))
    assert new.cursor(0).delivery.window.acked_to == 5
    new.cursor(0).delivery.window.pass_over(5, 9)
    old.cursor(0).delivery.window.pass_over(5, 7)
    assert not await CursorStore(world.coordination).save(old)
    assert await CursorStore(world.coordination).save(new)
    assert await world.acked_to() == 9


async def test_a_checkpoint_that_comes_late_takes_no_newer_one_back(world: World) -> None:
    a = await world.join("a")
    open_here = await world.subscription(await a.claim(world.topic, "s", Versioned.new(RECORD)))
    cursors = CursorStore(world.coordination)
    open_here.cursor(0).delivery.window.pass_over(0, 3)
    world.coordination.lose_request = True
    with pytest.raises(CoordinationUnavailable):
        await cursors.save(open_here)
    open_here.cursor(0).delivery.window.pass_over(3, 8)
    assert await cursors.save(open_here)
    assert await world.coordination.commit(*world.coordination.late) is None
    assert await world.acked_to() == 8


async def test_a_checkpoint_that_came_through_unseen_is_followed_by_the_next(world: World) -> None:
    a = await world.join("a")
    open_here = await world.subscription(await a.claim(world.topic, "s", Versioned.new(RECORD)))
    open_here.cursor(0).delivery.window.pass_over(0, 3)
    world.coordination.lose_answer = True
    with pytest.raises(CoordinationUnavailable):
        await CursorStore(world.coordination).save(open_here)
    open_here.cursor(0).delivery.window.pass_over(3, 8)
    assert await CursorStore(world.coordination).save(open_here)
    assert await world.acked_to() == 8


async def test_leases_are_handed_on_to_the_next_epoch_and_no_further(world: World) -> None:
    a, b = await world.join("a"), await world.join("b")
    held = await a.claim(world.topic, "s", Versioned.new(RECORD))
    old = await world.subscription(held)
    lease = old.leases.make("mine", "c")
    lease.segments.add(0)
    old.leases.add(lease)
    old.cursor(0).delivery.leases.lease(np.arange(4), lease.number, lease.consumer, 30.0)
    assert await CursorStore(world.coordination).save(old, handover_s=10.0)
    await a.release(world.topic, "s", held)
    first = await world.subscription(await b.acquire(world.topic, "s"))
    delivery, consumer = first.cursor(0).delivery, first.leases.known_consumer("c")
    another = first.leases.consumer("another")
    assert not len(delivery.available(PullLimits(another, 10), 10))
    assert delivery.available(PullLimits(consumer, 10), 10).tolist() == [*range(4, 10)]
    assert delivery.judge([0, 1], Asker(consumer)).taken.tolist() == [0, 1]
    known = first.leases.find("mine")
    assert known is not None
    assert first.held_by(known)[0].tolist() == [*range(4)]
    delivery.expire(20.0)
    assert delivery.available(PullLimits(another, 10), 10).tolist() == [*range(10)]
    second = await world.subscription(await b.acquire(world.topic, "s"))
    assert second.cursor(0).delivery.available(PullLimits(another, 10), 10).tolist() == [*range(10)]


async def test_scattered_leases_and_delays_of_all_modes_are_handed_on(world: World) -> None:
    a, b = await world.join("a"), await world.join("b")
    record = replace(RECORD, mode="shared")
    held = await a.claim(world.topic, "s", Versioned.new(record))
    old = await world.subscription(held)
    delivery = old.cursor(0).delivery
    for name, offsets in (("x", [0, 2, 4]), ("y", [1, 3])):
        lease = old.leases.make(name, "c")
        lease.segments.add(0)
        old.leases.add(lease)
        delivery.leases.lease(np.array(offsets), lease.number, lease.consumer, 30.0)
    delivery.nack(np.array([2]), 10.0, 5.0)
    assert await CursorStore(world.coordination).save(old, handover_s=10.0)
    await a.release(world.topic, "s", held)
    new = await world.subscription(await b.acquire(world.topic, "s"))
    delivery, found = new.cursor(0).delivery, [lease for name in "xy" if (lease := new.leases.find(name))]
    assert {one.name: new.held_by(one)[0].tolist() for one in found} == {"x": [0, 4], "y": [1, 3]}
    assert delivery.leases.waiting().tolist() == [0, 1, 2, 3, 4]
    delivery.expire(6.0)
    assert delivery.available(PullLimits(1, 10), 6).tolist() == [2, 5]
    assert delivery.window.values("attempts", np.arange(5)).tolist() == [1] * 5


@pytest.mark.parametrize("state", ["creating", "deleting"])
async def test_what_a_dead_broker_was_making_or_removing_is_not_there(world: World, state: str) -> None:
    a, b = await world.join("a"), await world.join("b")
    half = SubscriptionRecord("ordered", "latest", 30, 0, None, 1, epoch=1, state=state)  # type: ignore[arg-type]
    held = await a.claim(world.topic, "s", Versioned.new(half))
    with pytest.raises(NotOwner):
        await b.acquire(world.topic, "s")
    await world.die("a")
    await world.journal("a", recovered=True)
    with pytest.raises(SubscriptionNotFound):
        await b.acquire(world.topic, "s")
    made = await b.claim(world.topic, "s", held.with_record(RECORD), held)
    assert made.record.dispatcher == world.members["b"].broker
    with pytest.raises(NotOwner):
        await a.claim(world.topic, "s", held.with_record(RECORD), held)


async def test_what_leaves_takes_nothing_over(world: World) -> None:
    a, b = await world.join("a"), await world.join("b")
    await a.release(world.topic, "s", await a.claim(world.topic, "s", Versioned.new(RECORD)))
    b.leave()
    with pytest.raises(NotOwner):
        await b.acquire(world.topic, "s")


@pytest.mark.parametrize(("error", "lines"), [(NeedsNewerBroker("a cursor"), 0), (Unavailable("no answer"), 2)])
async def test_a_subscription_that_needs_a_newer_broker_is_no_line_each_time(
    error: SeaweedqError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def hand_over(*subscription: Any) -> None:
        raise error

    none = cast(Any, None)
    handoff = Handoff(cast(Any, SimpleNamespace(hand_over=hand_over)), none, none, none)
    for _ in range(2):
        await handoff._hand_over((cast(Any, SimpleNamespace(name="t")), "s"))
    assert len(caplog.records) == lines
