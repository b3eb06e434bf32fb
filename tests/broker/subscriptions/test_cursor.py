"""Invariants of cursors and subscriptions: a change that breaks one is refused, nothing is lost, and all else goes
on. When an ack counts, and what pins its commit. Names of leases and consumers are bounded.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.log.intervals import Runs
from seaweedq.broker.subscriptions import leases
from seaweedq.broker.subscriptions.cursor import broken_by, broken_by_subscription
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import UNKNOWN, Leases
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.records import CursorRecord, HeldLease, SubscriptionRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalUnavailable, NotOwner, NotReady, SeaweedqError
from seaweedq.segments.frames import Frame
from tests.support.brokers import inside
from tests.support.brokers.in_process import ack, make_topic, offsets, publish, pull, running, single, subscribe
from tests.support.brokers.stored import record_of

GOOD = CursorRecord(epoch=5, acked_to=3, acked=((4, 6), (8, 9)), delivered_to=10)

REFUSED = {
    "acked below 0": (replace(GOOD, acked_to=-1), None, "below -1 are acked"),
    "acked what was not delivered": (replace(GOOD, acked_to=11, acked=()), None, "below 11 are acked"),
    "delivered beyond the end": (GOOD, 9, "ends at 9"),
    "a run beyond what was delivered": (replace(GOOD, acked=((4, 11),)), None, "offsets up to 11 are acked"),
    "a run that touches what is below": (replace(GOOD, acked=((3, 6),)), None, "must rise"),
    "an empty run": (replace(GOOD, acked=((5, 5),)), None, "must rise"),
    "runs that overlap": (replace(GOOD, acked=((4, 6), (5, 9))), None, "must rise"),
    "leases of what was not delivered": (
        replace(GOOD, held=(HeldLease("l", "c", 1.0, ((9, 11),)),)),
        None,
        "do not match the messages delivered",
    ),
    "acked_to falls": (replace(GOOD, acked_to=2, acked=((3, 9),)), None, "acked_to decreases from 3 to 2"),
    "delivered_to falls": (replace(GOOD, delivered_to=9), None, "delivered_to decreases from 10 to 9"),
    "an ack is forgotten": (replace(GOOD, acked=((4, 6),)), None, "(8, 9)"),
    "the epoch falls": (replace(GOOD, epoch=4), None, "epoch decreases from 5 to 4"),
}
RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=8)


@pytest.mark.parametrize("what", REFUSED)
def test_what_breaks_an_invariant_of_a_cursor_is_told(what: str) -> None:
    record, end, told = REFUSED[what]
    before = GOOD if end is None else replace(GOOD, delivered_to=9)
    assert any(told in text for text in broken_by(before, record, end)), broken_by(before, record, end)


def test_a_later_epoch_may_begin_anywhere() -> None:
    assert broken_by(GOOD, GOOD, 10) == []
    assert broken_by(GOOD, CursorRecord(6, 0)) == []
    assert broken_by(None, GOOD) == []


def test_what_was_broken_before_stops_no_recovery() -> None:
    """Brokers of before wrote acks of a recovery without what was delivered."""
    old = CursorRecord(5, 9, ((11, 12),), {}, 4)
    assert broken_by(old, replace(old, attempts={"10": 2})) == []
    delivery = SegmentDelivery.from_record(old)
    delivery.window.pass_over(9, 11)
    assert broken_by(old, delivery.window.record(5)) == []


@given(st.integers(0, 20), RUNS, st.integers(0, 40), RUNS)
def test_acks_that_are_newer_than_the_checkpoint_keep_the_invariants(
    acked_to: int, runs: list[tuple[int, int]], delivered: int, newer: list[tuple[int, int]]
) -> None:
    """As a recovery writes them: whatever the checkpoint was, and whatever the journal has."""
    acked = Runs(runs)
    acked_to = acked.end_of(acked_to)
    acked.discard(0, acked_to)
    record = CursorRecord(5, acked_to, tuple(acked), {}, max(acked_to, acked.end, delivered))
    delivery = SegmentDelivery.from_record(record)
    for low, high in newer:
        delivery.window.pass_over(low, high)
        assert broken_by(record, delivery.window.record(5)) == []


def test_the_epoch_of_a_subscription_never_falls() -> None:
    record = SubscriptionRecord("ordered", "earliest", 30, 0, None, 1, epoch=5)
    assert broken_by_subscription(record, replace(record, epoch=6)) == []
    assert broken_by_subscription(None, record) == []
    assert broken_by_subscription(record, replace(record, epoch=4))


async def cursor(broker: Broker, topic: Topic, segment: int) -> CursorRecord | None:
    path = keys.CURSORS.key(topic.name, topic.record.incarnation, "s", segment)
    there = await broker.process.coordination.get(path)
    return record_of(keys.CURSORS, there.value) if there else None


async def test_a_cursor_that_may_not_be_written_keeps_acks_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        topic = await make_topic(broker, segments=2)
        await subscribe(broker, topic)
        for n in range(20):
            await inside.publisher(broker).single(topic, single("1", key=f"k{n}"), None)
        found = await pull(inside.dispatcher(broker), topic, "s", "c", 20, 0)
        acks = {one.segment.id: [0] for one in found}
        assert len(acks) == 2, "both segments have messages"
        await ack(inside.dispatcher(broker), topic, "s", acks, "c")
        subscription = await inside.dispatcher(broker).open(topic, "s")
        bad, good = sorted(acks)
        delivered = subscription.cursors[bad].delivery.window.delivered_to
        subscription.cursors[bad].delivery.window.delivered_to = 0  # as a defect would leave it
        with caplog.at_level(logging.ERROR):
            await inside.dispatcher(broker).checkpoint()
        assert "messages below 1 are acked, but only messages below 0 were delivered" in caplog.text
        assert (await cursor(broker, topic, good)).acked_to == 1
        before = await cursor(broker, topic, bad)
        assert before is None or before.acked_to == 0
        assert subscription.pin is not None, "the journal keeps the acks"
        with pytest.raises(SeaweedqError, match="because they would break an invariant"):
            await inside.dispatcher(broker).hand_over(topic, "s")
        assert inside.dispatcher(broker).has(topic, "s"), "whoever came next would not have its acks"
        await inside.publisher(broker).single(topic, single("1"), None)
        subscription.cursors[bad].delivery.window.delivered_to = delivered
        await inside.dispatcher(broker).checkpoint()
        assert (await cursor(broker, topic, bad)).acked_to == 1
        assert subscription.pin is None


async def test_a_subscription_that_was_forgotten_in_a_handover_stays_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, dispatcher = await make_topic(broker), inside.dispatcher(broker)
        await subscribe(broker, topic)
        subscription = await dispatcher.open(topic, "s")
        async with subscription.delivering:
            handing = asyncio.create_task(dispatcher.hand_over(topic, "s"))
            while subscription.closed is None:
                await asyncio.sleep(0)
            dispatcher.forget(topic, "s")
            handing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await handing
        with pytest.raises(NotOwner):
            subscription.check()


async def test_a_subscription_whose_epoch_would_fall_is_not_written(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        there = await inside.assignment(broker).read(topic, "s")
        assert isinstance(there, Versioned)
        with pytest.raises(SeaweedqError, match="epoch decreases"):
            await inside.assignment(broker).claim(topic, "s", there.replace(epoch=1), there)
        assert await inside.assignment(broker).read(topic, "s") == there


async def test_a_subscription_that_begins_at_the_end_has_a_cursor_that_holds(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await inside.publisher(broker).single(topic, single("1"), None)
        await subscribe(broker, topic, "latest")
        written = await cursor(broker, topic, 0)
        assert written is not None
        assert (written.acked_to, written.delivered_to) == (1, 1)
        assert broken_by(None, written, 1) == []


async def test_an_ack_durable_without_a_lease_counts_and_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        dispatcher, commit = inside.dispatcher(broker), inside.group_commit(broker)
        topic = await make_topic(broker)
        await publish(broker, topic, "a", "b")
        await subscribe(broker, topic)
        assert offsets(await pull(dispatcher, topic, "s", None, 1, 0)) == [0]
        monkeypatch.setattr(commit, "_may_acknowledge", lambda: False)
        with pytest.raises(NotReady, match="lease"):
            await ack(dispatcher, topic, "s", {0: [0]}, None)
        monkeypatch.undo()
        delivery = (await dispatcher.open(topic, "s")).cursor(0).delivery
        assert delivery.window.acked_to == 1
        assert dispatcher.pin == commit.committed, "its commit stays until a checkpoint has the ack"
        await dispatcher.checkpoint()
        assert dispatcher.pin is None


async def test_an_ack_that_is_not_durable_is_delivered_again_and_pins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        dispatcher, journal = inside.dispatcher(broker), inside.journal(broker)
        topic = await make_topic(broker)
        await publish(broker, topic, "a")
        await subscribe(broker, topic)
        assert offsets(await pull(dispatcher, topic, "s", None, 1, 0)) == [0]

        async def full(frames: Sequence[Frame]) -> int:
            raise JournalUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(journal, "append", full)
            with pytest.raises(JournalUnavailable):
                await ack(dispatcher, topic, "s", {0: [0]}, None)
        assert dispatcher.pin is None
        assert offsets(await pull(dispatcher, topic, "s", None, 1, 0)) == [0]


async def test_no_step_of_the_loop_sees_an_unpinned_commit_that_holds_an_ack(tmp_path: Path) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        dispatcher, commit = inside.dispatcher(broker), inside.group_commit(broker)
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        await pull(dispatcher, topic, "s", None, 20, 0)
        before = commit.committed
        looks: list[tuple[int, Any]] = []

        async def look_at_each_step() -> None:
            while True:
                looks.append((commit.committed, dispatcher.pin))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look_at_each_step())
        for offset in range(20):
            await ack(dispatcher, topic, "s", {0: [offset]}, None)
        looking.cancel()
        assert commit.committed == before + 20
        assert all(pin == before + 1 for committed, pin in looks if committed > before)


def test_of_very_many_leases_the_last_ones_to_end_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_ENDED", 10)
    names, keep_s = Leases(), 43_200.0
    for n in range(50):
        names.add(names.make(f"lease-{n}", f"consumer-{n}"))
    oldest = names.find("lease-0")
    assert oldest is not None
    names.sweep({oldest.number}, set(), 1.0, keep_s)
    assert [n for n in range(50) if names.find(f"lease-{n}")] == [0, *range(40, 50)], "an open one stays"
    assert names.known_consumer("consumer-1") == UNKNOWN
    assert names.known_consumer("consumer-0") != UNKNOWN
    names.sweep(set(), set(), 2.0, keep_s)
    assert [n for n in range(50) if names.find(f"lease-{n}")] == [0, *range(41, 50)], "it ended last"
    names.sweep(set(), set(), 1.0 + keep_s, keep_s)
    assert [n for n in range(50) if names.find(f"lease-{n}")] == [0]
