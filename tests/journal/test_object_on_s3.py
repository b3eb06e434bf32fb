"""An object journal on a real S3 server: while its broker appends, two recoveries fence it, and read what counts."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from seaweedq.clock import SystemClock, SystemIds
from seaweedq.errors import Fenced
from seaweedq.journal.object_format import SlotHeaders, list_slots
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import fence, read_slots, remove_slots
from seaweedq.journal.pacing import Pace
from seaweedq.segments.frames import Frame, FrameKind
from seaweedq.storage.s3 import S3Store
from tests.support.journal.claims import unbounded
from tests.support.levels import newest
from tests.support.processes.s3_service import S3Service

pytestmark = pytest.mark.service

B = "b"
RELEASE_EVERY = 10
LINGER_S = 0.1  # a recovery needs a few requests to overtake a broker that goes on


@pytest.fixture
async def stores(any_s3: S3Service) -> AsyncIterator[list[S3Store]]:
    """Three ways to one place: a broker's, and those of two recoveries."""
    place = any_s3.place()
    stores = [S3Store(f"s3://{place}/x") for _ in range(3)]
    yield stores
    for store in stores:
        await store.close()


async def append(journal: ObjectJournal, acknowledged: list[int], released: list[int], enough: asyncio.Event) -> None:
    """Until it is fenced, several slots at a time."""
    fenced = asyncio.Event()

    async def one() -> None:
        try:
            number = await journal.append([Frame(FrameKind.ACKS, "t", 1, 0, 0, 0, 0, (), 0, b"x" * 1000)])
        except Fenced:
            fenced.set()
            return
        acknowledged.append(number)
        if number % RELEASE_EVERY == 0:
            released.append(max(0, number - RELEASE_EVERY // 2))
            journal.release(released[-1])
        if number == 2 * RELEASE_EVERY:
            enough.set()

    under_way: set[asyncio.Task[None]] = set()
    while not fenced.is_set():
        await journal.pace(asyncio.Event())
        under_way.add(asyncio.create_task(one()))
        await asyncio.sleep(0)
    await asyncio.gather(*under_way)


async def recover(store: S3Store) -> tuple[range, list[int]]:
    """The slots that count, and those that were read."""
    slots = await fence(store, SlotHeaders(B, SystemIds(), newest))
    return slots, [commit.number async for commit in read_slots(store, B, slots, unbounded)]


async def test_all_that_was_acknowledged_and_is_needed_is_read_by_both(stores: list[S3Store]) -> None:
    journal = ObjectJournal(stores[0], SlotHeaders(B, SystemIds(), newest), SystemClock(), Pace(4, LINGER_S, LINGER_S))
    acknowledged: list[int] = []
    released: list[int] = []
    enough = asyncio.Event()
    broker = asyncio.create_task(append(journal, acknowledged, released, enough))
    await enough.wait()
    (slots, first), (others, second) = await asyncio.gather(*map(recover, stores[1:]))
    async with asyncio.timeout(30):
        await broker
    assert acknowledged == list(range(len(acknowledged)))
    assert slots.stop == others.stop >= len(acknowledged)
    assert (first, second) == (list(slots), list(others))
    assert {slots.start, others.start} <= {*released}, "a slot behind the fence may let go of more than those before it"
    await remove_slots(stores[1], B)
    assert await list_slots(stores[2], B) == [slots.stop], "the fence"
    await journal.close()
