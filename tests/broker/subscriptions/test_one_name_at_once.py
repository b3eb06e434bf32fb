"""Subscriptions of one name made, opened and removed at once: the cursors of one are never those of another."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.interface import Delete, Put
from seaweedq.errors import CoordinationUnavailable, SubscriptionNotFound, TopicBeingDeleted
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, ack, held, make_topic, offsets, publish, pull, running, subscribe

Wanted = Callable[[Sequence[Put | Delete]], bool]


def gate_at(broker: Broker, wanted: Wanted) -> Gate:
    """A gate behind the first commit that is wanted."""
    gate = Gate()

    async def after(writes: Sequence[Put | Delete]) -> None:
        if wanted(writes) and not gate.reached.is_set():
            await gate()

    held(broker).after = after
    return gate


def puts(kind: str) -> Wanted:
    return lambda writes: isinstance(writes[0], Put) and writes[0].key.startswith(kind)


def deletes(kind: str) -> Wanted:
    return lambda writes: isinstance(writes[0], Delete) and writes[0].key.startswith(kind)


async def delivered(broker: Broker, topic: Topic) -> list[int]:
    return offsets(await pull(inside.dispatcher(broker), topic, "s", None, 100, 0))


async def settled(work: asyncio.Task[object]) -> None:
    """Let everybody go on as far as they can while the gate is shut."""
    await asyncio.wait([work], timeout=0.2)


async def test_of_two_creations_at_once_the_winner_has_its_own_start(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2", "3")
        gate = gate_at(broker, puts("cursors/"))
        first = asyncio.create_task(subscribe(broker, topic, "earliest"))
        await gate.reached.wait()
        second = asyncio.create_task(subscribe(broker, topic, "latest"))
        await settled(second)
        gate.open.set()
        assert [await first, await second] == [True, False]
        assert await delivered(broker, topic) == [0, 1, 2]


async def test_a_deletion_leaves_the_cursors_of_the_next_of_that_name(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2", "3")
        await subscribe(broker, topic)
        gate = gate_at(broker, deletes("subscriptions/"))
        deleting = asyncio.create_task(inside.subscription_admin(broker).delete(topic, "s"))
        await gate.reached.wait()
        creating = asyncio.create_task(subscribe(broker, topic, "latest"))
        await settled(creating)
        gate.open.set()
        await deleting
        assert await creating
        assert await delivered(broker, topic) == []


async def test_an_opening_that_meets_a_deletion_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2", "3")
        await subscribe(broker, topic)
        gate = gate_at(broker, puts("subscriptions/"))
        opening = asyncio.create_task(inside.dispatcher(broker).open(topic, "s"))
        await gate.reached.wait()
        deleting = asyncio.create_task(inside.subscription_admin(broker).delete(topic, "s"))
        await settled(deleting)
        gate.open.set()
        await asyncio.gather(opening, deleting)
        with pytest.raises(SubscriptionNotFound):
            await inside.dispatcher(broker).open(topic, "s")


async def test_after_a_deletion_in_doubt_the_next_of_that_name_is_opened_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2", "3")
        await subscribe(broker, topic)
        assert await delivered(broker, topic) == [0, 1, 2]

        async def lose_the_answer(writes: Sequence[Put | Delete]) -> None:
            if deletes("subscriptions/")(writes):
                raise CoordinationUnavailable("the answer is lost")

        held(broker).after = lose_the_answer
        with pytest.raises(CoordinationUnavailable):
            await inside.subscription_admin(broker).delete(topic, "s")
        assert await subscribe(broker, topic)
        assert await delivered(broker, topic) == [0, 1, 2]
        await ack(inside.dispatcher(broker), topic, "s", {0: [0, 1]}, None)
        await inside.dispatcher(broker).checkpoint()
        assert (await inside.dispatcher(broker).open(topic, "s")).cursor(0).delivery.window.acked_to == 2


async def test_a_topic_deleted_during_an_opening_is_not_opened(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        gate = gate_at(broker, puts("subscriptions/"))
        opening = asyncio.create_task(inside.dispatcher(broker).open(topic, "s"))
        await gate.reached.wait()
        await inside.deletion(broker).delete(topic)
        gate.open.set()
        with pytest.raises(TopicBeingDeleted):
            await opening
