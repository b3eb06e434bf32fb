"""Any interleaving of two deletions of a topic, what is still under way in it, deaths, and a topic of the same name
that comes after it: nothing of the old one is left in the end, and nothing of the new one goes."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.rules import id_of, incarnation_of
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put
from seaweedq.coordination.records.topics import TopicConfig, TopicRecord
from seaweedq.coordination.records.versioned import Versioned
from tests.support.brokers.stored import record_of
from tests.support.tiers import examples
from tests.support.uploads.upload_world import BYTES, DAY_S, World, inline

KEY = keys.TOPICS.key("t")
LATER = 9


async def upload(world: World, broker: int, topic: Topic, late: bool) -> None:
    """One that is begun, put and published while its topic goes; `late`: its bytes come when all is over."""
    begun, record = await world.uploads[broker].create(topic, len(BYTES), "a/b", None, None)
    if late:
        world.late.append(record.name)
        return
    await world.store.create(record.name, BYTES)
    await world.uploads[broker].claim(topic, begun)


async def delete(world: World, broker: int, topic: Topic) -> None:
    """As a broker does it; nothing where the topic is another one by now."""
    there = await world.coordination.get(KEY)
    if there is None or (record := record_of(keys.TOPICS, there.value)).incarnation != topic.record.incarnation:
        return
    if record.state == "active":
        gone = TopicRecord(record.incarnation, "deleting", record.config, 0)
        if not await world.coordination.commit(
            [Compare(KEY, there.revision)], [Put(KEY, keys.TOPICS.encode(Versioned.new(gone)))]
        ):
            return
        there = await world.coordination.get(KEY)
    await world.uploads[broker].remove_topic(topic)
    if there:
        await world.coordination.commit([Compare(KEY, there.revision)], [Delete(KEY)])


async def born_again(world: World) -> None:
    """A topic of the same name, as soon as there can be one, with a payload that is published."""
    record = keys.TOPICS.encode(Versioned.new(TopicRecord(LATER, "active", TopicConfig(), 0)))
    for _ in range(60):
        if await world.coordination.commit([Compare(KEY, 0)], [Put(KEY, record)]):
            await world.catalog.load()
            await upload(world, 1, world.catalog.topic("t"), late=False)
            return


async def life(world: World, choose: Callable[[int], int]) -> None:
    await world.start()
    world.late = []
    topic = world.topic
    await upload(world, 0, topic, late=False)
    acts = [upload(world, n % 2, topic, late=n == 2) for n in range(choose(4))]
    acts += [delete(world, 0, topic), delete(world, 1, topic), born_again(world)]
    await world.run(acts, choose, kills=choose(3))
    await delete(world, 0, topic)  # the leader goes on with it
    for name in world.late:
        await world.store.create(name, BYTES)
    for _ in range(3):
        await world.new_sweep().records()
        world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + DAY_S + 1)
    published = {name for name in world.coordination.published if incarnation_of(id_of("t", name)) == LATER}
    assert set(await world.store.list("_payloads/")) == published
    assert not (await world.coordination.range("uploads/")).entries


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_topic_goes_whole_and_the_next_one_loses_nothing(data):
    with patch.object(asyncio, "to_thread", inline):
        asyncio.run(life(World(presigns=True), lambda count: data.draw(st.integers(0, count - 1))))
