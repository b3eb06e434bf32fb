"""Two requests that complete one upload, in any interleaving: both are told that it is there."""

import asyncio
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.broker.uploads import rules as upload_plan
from tests.support.tiers import examples
from tests.support.uploads.upload_world import BYTES, SHA256, World, inline

PART = 10


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sha256=st.sampled_from([None, SHA256]), brokers=st.sampled_from([(0, 1), (0, 0)]))
def test_neither_is_told_that_parts_are_missing(data, sha256, brokers):
    found = []

    async def complete(world: World, broker: int, upload: str) -> None:
        try:
            found.append(await world.uploads[broker].complete(world.topic, upload))
        except Exception as error:
            found.append(error)

    async def run() -> None:
        world = World(presigns=True)
        await world.start()
        upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", sha256, True)
        for number, start in enumerate(range(0, len(BYTES), PART), 1):
            await world.store.put_part(record.name, number, BYTES[start : start + PART])
        choose = lambda count: data.draw(st.integers(0, count - 1))  # noqa: E731
        await world.run([complete(world, broker, upload) for broker in brokers], choose, kills=0)
        assert world.store.objects[record.name] == BYTES

    found.clear()
    small = patch.multiple(upload_plan, MIN_PART_BYTES=PART, PART_BYTES=PART, MIB=1)
    with small, patch.object(asyncio, "to_thread", inline):
        asyncio.run(run())
    assert [getattr(one, "checked", one) for one in found] == [SHA256] * 2
