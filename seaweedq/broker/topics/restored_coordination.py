"""Whether coordination was restored from a backup, before somebody has confirmed it.

Each round of retention leaves a number in the store that coordination has known before (broker/retention/rounds): a
store whose number is above coordination's knows rounds that coordination has forgotten. Those may have deleted files.

Retention never takes the newest file of an open segment, and leaves a sealed one its last until each successor has one.
So if it took all of a segment that coordination has as open, a descendant has files, whose id coordination does not
know: no ids are given to new segments meanwhile.
"""

import asyncio
from collections.abc import Container

from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.records import Counter
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import ChainDamaged, SegmentConflict
from seaweedq.segments.entry import segment_folder
from seaweedq.storage.identity import newest_round
from seaweedq.storage.interface import ObjectStore, folders

KEY = keys.RETENTION.key()
KNOWN_S = 5.0  # how long an answer counts: many segments are opened at once


async def known_round(coordination: Coordination) -> Versioned[Counter]:
    """Returns the number of the newest round, as coordination knows it. Raises Unavailable."""
    there = await coordination.get(KEY)
    return keys.RETENTION.require(there) if there else Versioned.new(Counter(0))


async def is_restored(coordination: Coordination, store: ObjectStore) -> bool:
    """Tells whether the store knows a later round than coordination. Raises Unavailable."""
    return await newest_round(store) > (await known_round(coordination)).record.next


class RestoredCoordination:
    """Keeps segments closed whose offsets could be given out twice."""

    def __init__(self, coordination: Coordination, store: ObjectStore, clock: Clock) -> None:
        self._coordination = coordination
        self._store = store
        self._clock = clock
        self._good_until_s = 0.0
        self._asking = asyncio.Lock()

    async def check_empty(self, topic: str, segment: int, known: Container[int]) -> None:
        """Checks that an open segment without files never had any, given the ids of the topic that are known. Else
        nobody knows which offsets it gave out. Raises ChainDamaged, Unavailable."""
        async with self._asking:
            asked_s = self._clock.monotonic_s()
            if asked_s < self._good_until_s:
                return
            if not await is_restored(self._coordination, self._store):
                self._good_until_s = asked_s + KNOWN_S
                return
        async for folder in folders(self._store, f"topics/{topic}/"):
            number = segment_in(folder)
            if number is not None and number > segment and number not in known:
                mine = segment_folder(topic, segment)
                raise ChainDamaged(
                    f"{mine} has no entries, and coordination was restored from a backup: it may have had some, whose "
                    "offsets must not be given out again; `seaweedq cluster confirm` mends it",
                    name=mine,
                )

    async def check_ids(self, topic: str) -> None:
        """Checks that new segments may get ids. Raises SegmentConflict, Unavailable."""
        if await is_restored(self._coordination, self._store):
            raise SegmentConflict(
                f"segments of {topic!r} are not replaced: coordination was restored from a backup; `seaweedq cluster "
                "confirm` lets it go on"
            )


def segment_in(folder: str) -> int | None:
    """Returns the segment whose folder this is; None if it is somebody else's."""
    _, _, number = folder.rstrip("/").rpartition("/segment=")
    return int(number) if number.isascii() and number.isdecimal() else None
