"""The object journal: how long an append takes, beside how long the store's own put of as many bytes takes.

The store is a folder here, or any S3-compatible one whose put time is imitated: it answers after a fixed time, which is
what makes two runs comparable.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import uvloop

from benchmarks.result import Result
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.pacing import Pace
from seaweedq.levels import HIGHEST
from seaweedq.segments.frames import Frame, FrameKind
from seaweedq.storage.interface import Data, ObjectStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore

LINGER_S, LINGER_MAX_S, WINDOW = 0.02, 0.25, 4
APPENDS, SIZE = 150, 16_384
PUT_S = {"a put of 30 ms": 0.03, "a put of 100 ms": 0.1}


class SlowStore(MemoryStore):
    """Answers a create after a fixed time."""

    def __init__(self, put_s: float) -> None:
        super().__init__()
        self.put_s = put_s

    async def create(self, name: str, data: Data) -> bool:
        await asyncio.sleep(self.put_s)
        return await super().create(name, data)


async def put_times(store: ObjectStore) -> list[float]:
    """Seconds of each of some puts, one after the other."""
    took = []
    for number in range(APPENDS // 3):
        begun = perf_counter()
        await store.create(f"bare/{number}", os.urandom(SIZE))
        took.append(perf_counter() - begun)
    return took


async def append_times(store: ObjectStore) -> list[float]:
    """Seconds from the moment a message comes to its acknowledgement; they come as the group commit takes them."""
    journal = ObjectJournal(
        store, SlotHeaders("b", SystemIds(), lambda: HIGHEST), SystemClock(), Pace(WINDOW, LINGER_S, LINGER_MAX_S)
    )
    frame = Frame(FrameKind.ROWS, "topic", 0, 0, 1, 0, 0, (), 0, os.urandom(SIZE))
    took: list[float] = []

    async def one(waiting: list[float]) -> None:
        journal.release(await journal.append([frame]))
        took.extend(perf_counter() - came for came in waiting)

    async with asyncio.TaskGroup() as group:
        for _ in range(APPENDS):
            waiting = [perf_counter()]
            coming = asyncio.create_task(_keep_coming(waiting))
            await journal.pace(asyncio.Event())
            coming.cancel()
            group.create_task(one(waiting))
            await asyncio.sleep(0)
    await journal.close()
    return took


async def _keep_coming(waiting: list[float]) -> None:
    while True:
        await asyncio.sleep(0.001)
        waiting.append(perf_counter())


async def both(store: ObjectStore) -> tuple[float, float]:
    """Medians in ms: (append, bare put)."""
    bare = await put_times(store)
    return median(await append_times(store)) * 1000, median(bare) * 1000


def measure(where: Path) -> Iterator[Result]:
    """A message every millisecond, on stores of different speed."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        stores: dict[str, ObjectStore] = {"a local folder": LocalStore(Path(folder), SystemIds())}
        stores |= {name: SlowStore(put_s) for name, put_s in PUT_S.items()}
        for name, store in stores.items():
            figure, bare = uvloop.run(both(store))
            yield Result(
                name=f"object journal, {name}",
                figure=figure,
                unit="ms (median)",
                limit=bare,
                limit_is="median of the store's own put of as many bytes",
                target=bare + 20,
                better="lower",
            )
