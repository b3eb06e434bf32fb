"""The identities of forwards go with the segments that they were named after, and come back under no name twice."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from seaweedq.broker.publish.forwarder import IDENTITIES, KEPT, Identities
from seaweedq.clock import SystemClock
from seaweedq.concurrency.deadline import Deadline

TOPIC: Any = object()


class Segments:
    """Segments of a topic, of which some are sealed."""

    def __init__(self) -> None:
        self.sealed: set[int] = set()
        self.identities = Identities("b", lambda topic, segment: segment not in self.sealed)

    async def lent(self, stack: AsyncExitStack, segment: int) -> str:
        """The name of an identity, lent until the stack ends."""
        identity = await stack.enter_async_context(self.identities.lend(TOPIC, segment, Deadline(SystemClock(), 10)))
        return identity.sequences(1).producer

    async def used(self, segment: int) -> str:
        async with AsyncExitStack() as stack:
            return await self.lent(stack, segment)


async def test_those_of_sealed_segments_are_forgotten() -> None:
    """A topic whose one range is split 10,000 times."""
    segments = Segments()
    for segment in range(1_000):
        await segments.used(segment)
        segments.sealed.add(segment - 1)
        assert len(segments.identities) <= KEPT + 1


async def test_those_of_open_segments_stay_and_keep_their_sequences() -> None:
    segments = Segments()
    names = [await segments.used(segment) for segment in range(4 * KEPT)]
    assert [await segments.used(segment) for segment in range(4 * KEPT)] == names


async def test_what_is_in_flight_keeps_its_identity_and_no_name_comes_back() -> None:
    """A sealed segment's successors know the sequences of its identities: a new one of that name would lose rows."""
    segments = Segments()
    async with AsyncExitStack() as flight:
        names = {await segments.lent(flight, 0)}
        segments.sealed.add(0)
        for segment in range(1, 2 * KEPT):
            names.add(await segments.used(segment))
            segments.sealed.add(segment)
        assert (TOPIC, 0) in segments.identities._free
        for _ in range(IDENTITIES - 1):
            names.add(await segments.lent(flight, 0))
    for segment in range(2 * KEPT, 4 * KEPT):
        names.add(await segments.used(segment))
        segments.sealed.add(segment)
    assert (TOPIC, 0) not in segments.identities._free
    assert await segments.used(0) not in names, "a publish that looked before the segment was sealed"


async def test_one_that_waits_during_a_sweep_gets_what_comes_back() -> None:
    segments = Segments()
    async with AsyncExitStack() as flight:
        for _ in range(IDENTITIES):
            await segments.lent(flight, 0)
        waiting = asyncio.create_task(segments.used(0))
        await asyncio.sleep(0)
        segments.sealed.add(0)
        segments.identities._sweep()
    assert await asyncio.wait_for(waiting, 10)
