"""A child process of test_object_kill: `append` for ever to an object journal in a folder, or `recover` it once.

Prints what it did, a line each: `acknowledged N`, `released N` (before it is), `read N`.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

from seaweedq.clock import SystemClock, SystemIds
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.object_recovery import fence, read_slots, remove_slots
from seaweedq.journal.pacing import Pace
from seaweedq.storage.local import LocalStore
from tests.support.journal.claims import unbounded
from tests.support.journal.sim_disk import acks, payload
from tests.support.levels import newest

HEADERS = SlotHeaders("b", SystemIds(), newest)


async def append(store: LocalStore) -> None:
    journal = ObjectJournal(store, HEADERS, SystemClock(), Pace(4))

    async def one(n: int) -> None:
        number = await journal.append(acks(payload(n)))
        print(f"acknowledged {number}", flush=True)
        if number % 5 == 4:
            print(f"released {number - 3}", flush=True)
            journal.release(number - 3)

    async with asyncio.TaskGroup() as group:
        for n in count():
            await journal.pace(asyncio.Event())
            group.create_task(one(n))
            await asyncio.sleep(0)


async def recover(store: LocalStore) -> None:
    async for commit in read_slots(store, "b", await fence(store, HEADERS), unbounded):
        assert bytes(commit.frames[0].payload) == payload(commit.number)
        print(f"read {commit.number}", flush=True)
    await remove_slots(store, "b")


asyncio.run({"append": append, "recover": recover}[sys.argv[1]](LocalStore(Path(sys.argv[2]), SystemIds())))
