"""Any interleaving of upload, publish, abort, sweep and crash, and of two deletions of a topic: what was published is
never deleted, all else goes, and nothing of a later topic of that name.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads import rules as upload_plan
from seaweedq.broker.uploads.rules import id_of, incarnation_of
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers.stored import record_of
from tests.support.tiers import examples
from tests.support.uploads.upload_steps import PART, check, put, sweep
from tests.support.uploads.upload_world import BYTES, DAY_S, SHA256, World, inline

Choose = Callable[[int], int]


async def one(world: World, choose: Choose, multipart: bool, sha256: str | None, first: bool) -> None:
    """One upload, and all that may happen to it; `first`: the bytes are there before, and nobody puts them again."""
    await world.start()
    upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", sha256, multipart)
    if first:
        await put(world, 0, upload, BYTES)
    acts: list[Any] = [] if first else [put(world, 0, upload, BYTES), put(world, 1, upload, BYTES)]
    acts += [world.claim(0, upload), sweep(world)]
    more = [world.claim(1, upload), world.abort(0, upload)]
    acts += [act for act in more if choose(2) or act.close()]
    await world.run(acts, choose, kills=choose(3))
    await check(world, upload, record.name)


@pytest.mark.parametrize(("presigns", "multipart"), [(True, False), (True, True), (False, False)])
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sha256=st.sampled_from([None, SHA256]), first=st.booleans())
def test_what_is_published_stays_and_all_else_goes(presigns, multipart, data, sha256, first):
    """Parts are small here, so that there are several; and nothing is left to threads, so that a failure comes
    again."""

    async def run() -> None:
        world = World(presigns)
        await one(world, lambda count: data.draw(st.integers(0, count - 1)), multipart, sha256, first)

    small = patch.multiple(upload_plan, MIN_PART_BYTES=PART, PART_BYTES=PART, MIB=1)
    with small, patch.object(asyncio, "to_thread", inline):
        asyncio.run(run())


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
