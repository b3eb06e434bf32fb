"""The election of the leader: the key `leader`, tied to the winner's lease.

Safety does not depend on a broker's belief that it leads. Every transaction of a leader carries `leader_compare()`, and
is refused once another broker, or none, leads.
"""

import asyncio
from contextlib import suppress

from seaweedq.coordination.interface import Compare, Coordination, Entry, Put, WatchLost
from seaweedq.coordination.keys import LEADER
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import LeaderRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable, Fenced

KEY = LEADER.key()


class Election:
    """One broker's participation in the election, from `start` to `stop`; the end of its lease also ends its
    leadership."""

    def __init__(self, coordination: Coordination, membership: Membership, retry_s: float = 1.0) -> None:
        self._coordination = coordination
        self._membership = membership
        self._retry_s = retry_s
        self._revision = 0  # of the leader's key while it is ours
        self._elected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Starts to stand for election, after the membership has started. Returns the task, which ends before `stop`
        only by an error."""
        self._task = asyncio.create_task(self._run(), name="election")
        return self._task

    async def stop(self) -> None:
        """Stops standing for election. A leader stays leader until the membership stops, which frees the key at
        once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def is_leader(self) -> bool:
        """Tells whether this broker leads, as far as it knows."""
        return self._elected.is_set() and self._membership.valid()

    async def elected(self) -> None:
        """Waits until this broker leads."""
        await self._elected.wait()

    async def leader(self) -> str | None:
        """Returns the id of the leader, if there is one, and its record can be read."""
        there = await self._coordination.get(KEY)
        return leader_of(there) if there else None

    def leader_compare(self) -> Compare:
        """Returns a comparison that holds as long as this broker leads. Raises Fenced if it knows that it does not."""
        if not self.is_leader:
            raise Fenced(f"{self._membership.broker} is not the leader")
        return Compare(KEY, self._revision)

    async def campaign(self) -> int:
        """Reads who leads, and takes the lead if no broker does; one whose record cannot be read leads. Returns the
        revision of the read. Raises CoordinationUnavailable."""
        page = await self._coordination.range(KEY, limit=1)
        won = await self._take() if not page.entries else None
        if page.entries and leader_of(page.entries[0]) == self._membership.broker:
            won = page.entries[0].revision
        if won is None:
            self._elected.clear()
        else:
            self._revision = won
            self._elected.set()
        return page.revision

    async def _take(self) -> int | None:
        record = Versioned.new(LeaderRecord(self._membership.broker))
        put = Put(KEY, LEADER.encode(record), self._membership.lease)
        return await self._coordination.commit([Compare(KEY, 0)], [put])  # or its lease has ended

    async def _run(self) -> None:
        while True:
            with suppress(WatchLost, CoordinationUnavailable):
                revision = await self.campaign()
                async for _ in self._coordination.watch(KEY, revision):
                    await self.campaign()
            await asyncio.sleep(self._retry_s)


def leader_of(entry: Entry) -> str | None:
    """Returns the id of the broker that the leader's key names; None where its record cannot be read."""
    found = LEADER.read(entry)
    return found.record.broker if isinstance(found, Versioned) else None
