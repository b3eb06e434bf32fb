"""What happens to a subscription while a pull reads, a checkpoint writes, and many scattered offsets are acked."""

import asyncio
import time
from pathlib import Path
from typing import Any

from seaweedq.broker.subscriptions.delivery import Delivery
from seaweedq.coordination import keys
from tests.support.brokers.in_process import Gate, held, make_topic, offsets, publish, running, subscribe


async def test_a_lease_that_ends_while_a_pull_reads_is_delivered_again_first(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, *map(str, range(20)))
        await subscribe(broker, topic)
        assert offsets(await broker.serving.subscribing.dispatcher.pull(topic, "s", None, 10, 0)) == [*range(10)]
        gate, read = Gate(), broker.core.reader.read

        async def held_read(*arguments: Any) -> Any:
            await gate()
            return await read(*arguments)

        monkeypatch.setattr(broker.core.reader, "read", held_read)
        pulling = asyncio.create_task(broker.serving.subscribing.dispatcher.pull(topic, "s", None, 10, 0))
        await gate.reached.wait()
        subscription = await broker.serving.subscribing.dispatcher.open(topic, "s")
        subscription.cursor(0).delivery.expire(float("inf"))  # as an ack that comes too late does
        gate.open.set()
        assert offsets(await pulling) == [*range(10)]
        assert offsets(await broker.serving.subscribing.dispatcher.pull(topic, "s", None, 10, 0)) == [*range(10, 20)]


async def test_an_ack_during_a_checkpoint_of_many_segments_keeps_its_commit(tmp_path: Path) -> None:
    async with running(tmp_path, checkpoint_s=600) as broker:
        topic = await make_topic(broker, segments=64)
        segments = await broker.serving.publishing.ownership.mine(topic)
        while not all(segment.end > 1 for segment in segments):
            await publish(broker, topic, *map(str, range(64)))
        await subscribe(broker, topic)
        while (
            subscription := await broker.serving.subscribing.dispatcher.open(topic, "s")
        ) and await broker.serving.subscribing.dispatcher.pull(topic, "s", None, 10_000, 0):
            pass
        last = [*subscription.cursors][-1]
        await broker.serving.subscribing.dispatcher.ack(
            topic, "s", {segment: [0] for segment in subscription.cursors}, None
        )
        gate = Gate()
        held(broker).before = gate
        writing = asyncio.create_task(broker.serving.subscribing.dispatcher.checkpoint())
        await gate.reached.wait()
        await broker.serving.subscribing.dispatcher.ack(topic, "s", {last: [1]}, None)
        gate.open.set()
        await writing
        there = await held(broker).get(keys.CURSORS.key("t", topic.record.incarnation, "s", last))
        assert there is not None
        saved = keys.CURSORS.decode(there.value).acked_to
        assert saved == 2 or broker.serving.subscribing.dispatcher.pin is not None


def test_scattered_acks_do_not_hold_the_loop_up() -> None:
    """Every other one of 10,000 messages, acked at once, delivered once more, acked again."""
    delivery = Delivery(0)
    count = 10_000
    run = delivery.available("c", count, count)
    assert run == (0, count)
    delivery.lease(run, "c", 1.0)
    began_s = time.process_time()
    odd = delivery.judge(range(1, count, 2), None).runs
    delivery.begin_ack(odd)
    delivery.end_ack(odd, durable=True)
    delivery.expire(2.0)
    while again := delivery.available("c", count, count):
        delivery.lease(again, "c", 3.0)
    even = delivery.judge(range(0, count, 2), None).runs
    delivery.begin_ack(even)
    delivery.end_ack(even, durable=True)
    assert delivery.acked_to == count
    assert time.process_time() - began_s < 1.0


async def test_another_consumer_gets_its_turn_as_soon_as_all_is_acked(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await subscribe(broker, topic)
        await broker.serving.subscribing.dispatcher.pull(topic, "s", "a", 1, 0)
        waiting = asyncio.create_task(broker.serving.subscribing.dispatcher.pull(topic, "s", "b", 1, wait_s=30))
        await asyncio.wait([waiting], timeout=0.1)
        await broker.serving.subscribing.dispatcher.ack(topic, "s", {0: [0]}, "a")
        assert offsets(await asyncio.wait_for(waiting, 5)) == [1]


def test_an_ack_repeated_while_the_first_is_on_its_way_waits_for_durability_too() -> None:
    delivery = Delivery(0)
    delivery.lease((0, 3), "a", 30)
    first = delivery.judge([0, 1, 2], "a")
    delivery.begin_ack(first.runs)
    delivery.expire(0)
    repeat = delivery.judge([1, 2, 3], "a")
    assert (repeat.runs, repeat.known, repeat.unknown) == ([(1, 3)], 2, [3])


def test_a_cursor_with_more_acked_runs_than_its_checkpoint_knows_goes_on() -> None:
    """A crash before the checkpoint: the acks come back from the journal, `delivered_to` is that of the checkpoint."""
    holes = [(offset, offset + 1) for offset in range(1, 4_000, 2)]
    delivery = Delivery(0, holes, delivered_to=0)
    given = []
    while run := delivery.available("c", 10_000, 10_000):
        delivery.lease(run, "c", 1.0)
        given += range(*run)
        acks = delivery.judge(range(*run), "c").runs
        delivery.begin_ack(acks)
        delivery.end_ack(acks, durable=True)
    assert given == [*range(0, 4_000, 2), *range(4_000, 10_000)]
