"""What happens to a subscription while a pull reads, a checkpoint writes, and many scattered offsets are acked."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from seaweedq.broker.subscriptions import policy, pull_rounds
from seaweedq.broker.subscriptions.acking import Selection
from seaweedq.broker.subscriptions.cursor import SegmentCursor
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import Asker, Position
from seaweedq.broker.subscriptions.policy import PullLimits, Rules
from seaweedq.broker.subscriptions.pull_rounds import Pull
from seaweedq.broker.subscriptions.window import Window
from seaweedq.coordination import keys
from seaweedq.coordination.records import CursorRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import BelowRetention, LeaseEnded, NotReady
from seaweedq.segments.rows import rows_of_singles
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import (
    Gate,
    ack,
    held,
    make_topic,
    offsets,
    publish,
    pull,
    running,
    single,
    subscribe,
)
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.stored import record_of

C = 1  # a consumer, and its lease


async def test_a_lease_that_ends_while_a_pull_reads_is_delivered_again_first(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        assert offsets(await pull(inside.dispatcher(broker), topic, "s", None, 10, 0)) == [*range(10)]
        gate, read = Gate(), inside.reader(broker).read

        async def held_read(*arguments: Any) -> Any:
            await gate()
            return await read(*arguments)

        monkeypatch.setattr(inside.reader(broker), "read", held_read)
        pulling = asyncio.create_task(pull(inside.dispatcher(broker), topic, "s", None, 10, 0))
        await gate.reached.wait()
        subscription = await inside.dispatcher(broker).open(topic, "s")
        subscription.cursor(0).delivery.expire(float("inf"))  # as an ack that comes too late does
        gate.open.set()
        assert offsets(await pulling) == [*range(10)]
        assert offsets(await pull(inside.dispatcher(broker), topic, "s", None, 10, 0)) == [*range(10, 20)]


async def test_a_consumer_keeps_its_number_while_its_first_pull_reads(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        dispatcher, gate, read = inside.dispatcher(broker), Gate(), inside.reader(broker).read

        async def held_read(*arguments: Any) -> Any:
            await gate()
            return await read(*arguments)

        monkeypatch.setattr(inside.reader(broker), "read", held_read)
        pulling = asyncio.create_task(pull(dispatcher, topic, "s", "slow", 10, 0))
        await gate.reached.wait()
        await dispatcher.checkpoint()  # forgets consumers that nothing refers to
        gate.open.set()
        assert offsets(await pulling) == [*range(10)]
        assert offsets(await pull(dispatcher, topic, "s", "slow", 10, 0)) == [*range(10, 20)], "it is its own segment"
        assert (await ack(dispatcher, topic, "s", {0: [*range(20)]}, "slow")).unknown == {}


async def test_a_cursor_that_may_not_move_over_retention_holds_up_no_loop(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        dispatcher, reads = inside.dispatcher(broker), 0
        subscription = await dispatcher.open(topic, "s")

        async def below(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            assert reads < 10, "it asks again and again"
            subscription.unreadable.add(0)
            raise BelowRetention("gone", offset=0, start_offset=5)

        monkeypatch.setattr(inside.reader(broker), "read", below)
        assert (await dispatcher.pull_now(topic, "s", Pull(1))).messages == ()
        assert reads == 1


async def test_a_segment_that_retention_removes_during_a_read_ends_its_round(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        dispatcher, reads = inside.dispatcher(broker), 0
        subscription = await dispatcher.open(topic, "s")
        assert offsets((await dispatcher.pull_now(topic, "s", Pull(5, lease="l"))).messages) == [*range(5)]

        async def below(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            assert reads < 10, "it asks again and again"
            topic.removed.add(0)
            subscription.forget(topic.removed)  # as a checkpoint does
            raise BelowRetention("gone", offset=0, start_offset=20)

        monkeypatch.setattr(inside.reader(broker), "read", below)
        assert (await dispatcher.pull_now(topic, "s", Pull(1))).messages == ()
        assert reads == 1
        assert not subscription.skipped, "what it had acked is not known any more"
        subscription.cursors = {0: SegmentCursor(Versioned.new(CursorRecord(1, 0)), Rules(), subscription.leases)}
        held = subscription.leases.known("l", None)
        assert held
        subscription.cursor(0).delivery.leases.lease(np.arange(5), held.number, held.consumer, 1e12)
        with pytest.raises(LeaseEnded):
            await dispatcher.pull_now(topic, "s", Pull(1, lease="l"))
        assert reads == 2


async def test_a_pull_counts_what_is_in_flight_once(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker, segments=64)
        await publish(broker, topic, *map(str, range(64)))
        await subscribe(broker, topic)
        dispatcher, counted, count = inside.dispatcher(broker), 0, Window.count

        def counting(window: Window, state: int) -> int:
            nonlocal counted
            counted += 1
            return count(window, state)

        await pull(dispatcher, topic, "s", None, 1, 0)
        monkeypatch.setattr(Window, "count", counting)
        await pull(dispatcher, topic, "s", None, 1, 0)
        assert counted == 64, "once for each segment"


async def test_a_pull_of_a_paused_subscription_waits_while_leases_end(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        dispatcher, looks = inside.dispatcher(broker), 0
        assert offsets(await pull(dispatcher, topic, "s", None, 10, 0)) == [*range(10)]
        await inside.subscription_admin(broker).change(topic, "s", {"paused": True})
        delivery = (await dispatcher.open(topic, "s")).cursor(0).delivery
        delivery.leases.extend(np.arange(10), broker.process.clock.monotonic_s())  # they end at once
        look = privates.leasing(privates.pulling(dispatcher)).round

        async def counted(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return await look(*arguments)

        monkeypatch.setattr(privates.leasing(privates.pulling(dispatcher)), "round", counted)
        assert not await pull(dispatcher, topic, "s", None, 10, 0.5)
        assert looks < 10, "it does not ask again and again whether they have ended"


def test_in_keyed_a_lease_of_unknown_keys_stays_when_another_one_ends() -> None:
    """Such leases were taken over from the dispatcher before: their rows are not read yet."""
    delivery = SegmentDelivery(0, delivered_to=10, rules=Rules("keyed"))
    delivery.leases.take_over(np.arange(5), 7, 1, 30.0)
    delivery.leases.take_over(np.arange(5, 10), 8, 2, 30.0)
    delivery.nack(np.array([0]), 1.0)
    assert (delivery.leases.held_by(7).tolist(), delivery.leases.held_by(8).tolist()) == ([1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert delivery.needed_keys_to == 10


def test_in_ordered_what_comes_after_a_failure_is_leased_no_more() -> None:
    delivery = SegmentDelivery(0, delivered_to=10, rules=Rules("ordered"))
    delivery.leases.take_over(np.arange(5), 7, 1, 30.0)
    delivery.leases.take_over(np.arange(5, 10), 8, 2, 30.0)
    delivery.nack(np.array([2]), 1.0)
    assert (delivery.leases.held_by(7).tolist(), delivery.leases.held_by(8).tolist()) == ([0, 1], [])


async def test_a_key_that_is_in_a_lease_which_was_taken_over_waits(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pull_rounds, "KEYS_AHEAD", 4)
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        for n in range(20):
            await inside.publisher(broker).single(topic, single(str(n), "a"), None)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        cursor = (await dispatcher.open(topic, "s")).cursor(0)
        cursor.delivery = SegmentDelivery(0, delivered_to=20, rules=Rules("keyed"))
        cursor.delivery.leases.take_over(np.arange(10, 20), 7, 1, broker.process.clock.monotonic_s() + 60)
        assert offsets(await pull(dispatcher, topic, "s", "other", 2, 0)) == []
        cursor.delivery.nack(np.arange(10, 20), broker.process.clock.monotonic_s())
        assert offsets(await pull(dispatcher, topic, "s", "other", 2, 0)) == [0, 1]


async def test_an_ack_during_a_checkpoint_of_many_segments_keeps_its_commit(tmp_path: Path) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        topic = await make_topic(broker, segments=64)
        segments = await inside.ownership(broker).mine(topic)
        while not all(segment.end > 1 for segment in segments):
            await publish(broker, topic, *map(str, range(64)))
        await subscribe(broker, topic)
        while (subscription := await inside.dispatcher(broker).open(topic, "s")) and await pull(
            inside.dispatcher(broker), topic, "s", None, 10_000, 0
        ):
            pass
        last = [*subscription.cursors][-1]
        await ack(inside.dispatcher(broker), topic, "s", {segment: [0] for segment in subscription.cursors}, None)
        gate = Gate()
        held(broker).before = gate
        writing = asyncio.create_task(inside.dispatcher(broker).checkpoint())
        await gate.reached.wait()
        await ack(inside.dispatcher(broker), topic, "s", {last: [1]}, None)
        gate.open.set()
        await writing
        there = await held(broker).get(keys.CURSORS.key("t", topic.record.incarnation, "s", last))
        assert there is not None
        saved = record_of(keys.CURSORS, there.value).acked_to
        assert saved == 2 or inside.dispatcher(broker).pin is not None


@pytest.mark.default
def test_the_cost_of_an_ack_does_not_depend_on_the_leases() -> None:
    """Every other one of 20,000 messages is acked at once; the others are leased one by one, and acked at once."""
    delivery, count = SegmentDelivery(0), 20_000
    _give(delivery, count, count, deadline_s=1.0)
    _ack(delivery, range(1, count, 2))
    delivery.expire(2.0)
    while len(found := _give(delivery, count, 1, deadline_s=3.0 + delivery.window.acked_to)):
        assert len(found) == 1
    calls = _calls(lambda: _ack(delivery, range(0, count, 2)))
    assert delivery.window.acked_to == count
    assert calls < 100


def _give(delivery: SegmentDelivery, end: int, limit: int, deadline_s: float) -> list[int]:
    found = delivery.available(PullLimits(C, limit), end)
    if len(found):
        delivery.leases.lease(found, C, C, deadline_s)
    return found.tolist()


def _ack(delivery: SegmentDelivery, offsets: Iterable[int]) -> None:
    taken = delivery.judge(offsets, Asker(C)).taken
    delivery.begin_ack(taken)
    delivery.end_ack(taken, durable=True)


def _calls(work: Callable[[], object]) -> int:
    """Counts the calls of Python functions that some work makes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


async def test_another_consumer_gets_its_turn_as_soon_as_all_is_acked(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await subscribe(broker, topic)
        await pull(inside.dispatcher(broker), topic, "s", "a", 1, 0)
        waiting = asyncio.create_task(pull(inside.dispatcher(broker), topic, "s", "b", 1, wait_s=30))
        await asyncio.wait([waiting], timeout=0.1)
        await ack(inside.dispatcher(broker), topic, "s", {0: [0]}, "a")
        assert offsets(await asyncio.wait_for(waiting, 15)) == [1]


def test_an_ack_repeated_beside_the_first_waits_for_durability_too() -> None:
    delivery = SegmentDelivery(0)
    _give(delivery, 3, 3, deadline_s=30)
    first = delivery.judge([0, 1, 2], Asker(C))
    delivery.begin_ack(first.taken)
    delivery.expire(0)
    repeat = delivery.judge([1, 2, 3], Asker(C))
    assert (repeat.taken.tolist(), repeat.known, repeat.unknown) == ([1, 2], 2, [3])


def test_a_cursor_with_more_acked_runs_than_its_checkpoint_knows_goes_on() -> None:
    """A crash before the checkpoint: the acks come back from the journal, `delivered_to` is that of the checkpoint."""
    holes = [(offset, offset + 1) for offset in range(1, 4_000, 2)]
    delivery = SegmentDelivery(0, holes, delivered_to=0)
    given = []
    while found := _give(delivery, 10_000, 10_000, deadline_s=1.0):
        given += found
        _ack(delivery, found)
    assert given == [*range(0, 4_000, 2), *range(4_000, 10_000)]


def test_a_recovery_passes_over_many_offsets_without_memory_for_each() -> None:
    delivery = SegmentDelivery(0)
    delivery.window.pass_over(0, 1_000_000_000)
    delivery.window.pass_over(1_000_000_002, 1_000_000_003)
    assert (delivery.window.acked_to, delivery.window.acked_runs()) == (1_000_000_000, [(1_000_000_002, 1_000_000_003)])


async def test_leases_begin_when_all_is_read(tmp_path: Path) -> None:
    """Where the reads took longer than the deadline, every ack of these messages came too late."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic, ack_deadline_s=1)
        dispatcher, reader = inside.dispatcher(broker), inside.reader(broker)
        await publish(broker, topic, *map(str, range(10)))
        read = reader.read

        async def slow_read(*arguments: Any) -> Any:
            await asyncio.sleep(1.2)
            return await read(*arguments)

        reader.read = slow_read  # type: ignore[method-assign]
        found = offsets(await pull(dispatcher, topic, "s", "c", 10, 0))
        judged = await ack(dispatcher, topic, "s", {0: found}, "c")
        assert (judged.known, judged.late, judged.unknown) == (10, 0, {})


@pytest.mark.default
async def test_many_holes_are_read_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(1_000)))
        await subscribe(broker, topic, ack_deadline_s=600)
        dispatcher, reader = inside.dispatcher(broker), inside.reader(broker)
        found = offsets(await pull(dispatcher, topic, "s", "c", 1_000, 0))
        await ack(dispatcher, topic, "s", {0: found[1::2]}, "c")
        (await dispatcher.open(topic, "s")).cursor(0).delivery.expire(float("inf"))
        reads, read = 0, reader.read

        async def counted(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*arguments)

        reader.read = counted  # type: ignore[method-assign]
        again = await pull(dispatcher, topic, "s", "c", 1_000, 0)
        assert offsets(again) == found[::2]
        assert [count for one in again for count in one.attempts] == [2] * 500
        assert [one for part in again for one in part.rows.column("value").to_pylist()] == list(map(str, found[::2]))
        assert reads == 1


async def test_a_late_ack_counts_unless_somebody_else_got_the_message(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(4)))
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        assert offsets(await pull(dispatcher, topic, "s", "a", 4, 0)) == [0, 1, 2, 3]
        (await dispatcher.open(topic, "s")).cursor(0).delivery.expire(float("inf"))
        assert offsets(await pull(dispatcher, topic, "s", "b", 2, 5)) == [0, 1], "the other has not pulled for a second"
        judged = await ack(dispatcher, topic, "s", {0: [0, 1, 2, 3]}, "a")
        assert (judged.known, judged.late, judged.unknown) == (2, 2, {0: [0, 1]})
        judged = await ack(dispatcher, topic, "s", {0: [0, 1]}, "b")
        assert (judged.known, judged.late, judged.unknown) == (2, 0, {})
        assert (await dispatcher.open(topic, "s")).cursor(0).delivery.window.acked_to == 4


async def test_a_wait_that_a_stop_ends_is_no_empty_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        waiting = asyncio.create_task(pull(dispatcher, topic, "s", None, 1, wait_s=30))
        await asyncio.wait([waiting], timeout=0.1)
        broker.begin_stop()
        with pytest.raises(NotReady, match="stopping"):
            await asyncio.wait_for(waiting, 15)
        assert await pull(dispatcher, topic, "s", None, 1, 0) == []


async def test_a_checkpoint_of_many_holes_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 1.9 MB: etcd refused it for ever, and the others of its transaction with it."""
    monkeypatch.setattr(policy, "FEW", 10_000)  # all that failed twice come at once
    async with running(tmp_path, checkpoint_s=600) as broker:
        topic = await make_topic(broker)
        for _ in range(2):
            rows = rows_of_singles([single(str(n)) for n in range(3_000)], topic.layout)
            await inside.publisher(broker).batch(topic, rows, None)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        for step in range(2):  # once more, so that every message but the acked ones has attempts
            while found := offsets(await pull(dispatcher, topic, "s", "c", 6_000, 0)):
                if not step:
                    await ack(dispatcher, topic, "s", {0: found[1::2]}, "c")
            cursor = (await dispatcher.open(topic, "s")).cursor(0)
            cursor.delivery.expire(float("inf"))
        await dispatcher.checkpoint()
        assert dispatcher.pin is None
        there = await held(broker).get(keys.CURSORS.key("t", topic.record.incarnation, "s", 0))
        assert there is not None
        assert len(there.value) < 64 * 1024
        assert len(record_of(keys.CURSORS, there.value).acked) == 3_000
        rest = offsets(await pull(dispatcher, topic, "s", "c", 6_000, 0))
        assert rest == [*range(0, 6_000, 2)]
        await ack(dispatcher, topic, "s", {0: rest}, "c")
        await dispatcher.checkpoint()
        assert dispatcher.pin is None


async def test_what_a_stream_is_about_to_get_is_free_once_its_client_has_gone(tmp_path: Path, monkeypatch: Any) -> None:
    """It was leased to nobody until the deadline, where the call came from another broker."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await subscribe(broker, topic)
        dispatcher, position = inside.dispatcher(broker), Position("stream", "connection", "mine", 10, frees=True)
        gate, read = Gate(), inside.reader(broker).read

        async def held_read(*arguments: Any) -> Any:
            await gate()
            return await read(*arguments)

        monkeypatch.setattr(inside.reader(broker), "read", held_read)
        pulling = asyncio.create_task(dispatcher.pull(topic, "s", Pull(10, 0, "mine", position=position)))
        await gate.reached.wait()
        await dispatcher.leave(topic, "s", position)
        gate.open.set()
        with pytest.raises(LeaseEnded):
            await pulling
        found = await pull(dispatcher, topic, "s", "other", 10, 0)
        assert offsets(found) == [0, 1]
        assert {attempt for one in found for attempt in one.attempts.tolist()} == {1}


async def test_a_stream_that_leaves_wakes_its_own_pull_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """It woke all that waited, each of which looked."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        dispatcher, position = inside.dispatcher(broker), Position("stream", "connection", "mine", 10)
        subscription = await dispatcher.open(topic, "s")
        others = [asyncio.create_task(pull(dispatcher, topic, "s", f"{n}", 1, 30)) for n in range(5)]
        own = asyncio.create_task(dispatcher.pull(topic, "s", Pull(1, 30, "mine", position=position)))
        await until(lambda: sum(map(len, subscription.queue._asleep.values())) == 6)
        looked: list[Pull] = []
        look = privates.leasing(privates.pulling(dispatcher)).round

        async def noted(subscription: Any, wanted: Pull, *more: Any) -> Any:
            looked.append(wanted)
            return await look(subscription, wanted, *more)

        monkeypatch.setattr(privates.leasing(privates.pulling(dispatcher)), "round", noted)
        await dispatcher.leave(topic, "s", position)
        with pytest.raises(LeaseEnded):
            await own
        assert [one.position for one in looked] == [position]
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_in_ordered_an_older_stream_of_a_consumer_gets_nothing(tmp_path: Path) -> None:
    """Its broker had died. It took the next messages, and the newer stream went on behind them."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *"012345")
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        old, new = Position("old", "connection", "mine", 2), Position("new", "another", "mine", 2, frees=True)
        await dispatcher.pull(topic, "s", Pull(2, 0, "mine", position=old))
        subscription = await dispatcher.open(topic, "s")
        freed = subscription.leases.streams.get("old").freed
        late = asyncio.create_task(dispatcher.pull(topic, "s", Pull(2, 60, "mine", position=old.at(1, 0, 1))))
        await until(lambda: len(privates.waiters(freed)) == 1)
        again = await dispatcher.pull(topic, "s", Pull(2, 0, "mine", position=new))
        await dispatcher.ack(topic, "s", Selection(ids={0: [0, 1]}))
        following = await dispatcher.pull(topic, "s", Pull(2, 30, "mine", position=new.at(1, 0, 1)))
        assert [offsets(found.messages) for found in (again, following)] == [[0, 1], [2, 3]]
        assert not late.done()
        await dispatcher.leave(topic, "s", new)
        assert offsets((await late).messages) == [2, 3]


async def test_a_stream_that_is_held_back_waits_no_more_once_the_broker_leaves(tmp_path: Path) -> None:
    """It waited until its next deadline, or the end of its poll, while the broker wanted to leave."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await subscribe(broker, topic)
        dispatcher, position = inside.dispatcher(broker), Position("stream", "connection", "mine", 1)
        first = await dispatcher.pull(topic, "s", Pull(1, 0, "mine", position=position))
        assert offsets(first.messages) == [0]
        subscription = await dispatcher.open(topic, "s")
        freed = subscription.leases.streams.get("stream").freed
        full = asyncio.create_task(dispatcher.pull(topic, "s", Pull(1, 25, "mine", position=position.at(1, 0, 0))))
        await until(lambda: len(privates.waiters(freed)) == 1)
        dispatcher.close()
        async with asyncio.timeout(30):
            with pytest.raises(NotReady):
                await full


async def test_acked_while_others_are_asked_for_the_time_it_is_not_delivered(tmp_path: Path, monkeypatch: Any) -> None:
    """The repeated pull raised an IndexError: 500, while its message was acked."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        publisher, dispatcher = inside.publisher(broker), inside.dispatcher(broker)
        for _ in range(2):
            await publisher.single(topic, replace(single("1"), expires_us=2**52), None)
        await subscribe(broker, topic)
        wanted = Pull(10, 0, lease="mine")
        assert offsets((await dispatcher.pull(topic, "s", wanted)).messages) == [0, 1]
        time, gate = privates.pulling(dispatcher)._readables.time, Gate()

        async def now_us() -> int:
            await gate()
            return 0

        clock = SimpleNamespace(now_us=lambda: 2**53, monotonic_s=broker.process.clock.monotonic_s)
        monkeypatch.setattr(privates.leasing(privates.pulling(dispatcher)), "_clock", clock)
        monkeypatch.setattr(time, "now_us", now_us)
        again = asyncio.create_task(dispatcher.pull(topic, "s", wanted))
        await gate.reached.wait()
        assert (await ack(dispatcher, topic, "s", {0: [0]}, None)).unknown == {}
        gate.open.set()
        assert offsets((await again).messages) == [1]
        gate.reached.clear()
        gate.open.clear()
        again = asyncio.create_task(dispatcher.pull(topic, "s", wanted))
        await gate.reached.wait()
        assert (await ack(dispatcher, topic, "s", {0: [1]}, None)).unknown == {}
        gate.open.set()
        with pytest.raises(LeaseEnded):
            await again
