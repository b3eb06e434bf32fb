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
    """One broker's participation in the election; the end of its lease also ends its leadership."""

    def __init__(self, coordination: Coordination, membership: Membership, retry_s: float = 1.0) -> None:
        self._coordination = coordination
        self._membership = membership
        self._retry_s = retry_s
        self._revision = 0  # of the leader's key while it is ours
        self._elected = asyncio.Event()

    async def run(self) -> None:
        """Stands for election, for ever, after the membership has started. A leader stays leader until the membership
        stops, which frees the key at once."""
        while True:
            with suppress(WatchLost, CoordinationUnavailable):
                revision = await self.campaign()
                async for _ in self._coordination.watch(KEY, revision):
                    await self.campaign()
            await asyncio.sleep(self._retry_s)

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
        """Reads the leader's key, and takes the lead if no broker has it; one whose record cannot be read leads.
        Returns the revision of the read. Raises CoordinationUnavailable."""
        page = await self._coordination.range(KEY, limit=1)
        won: int | None = None
        if not page.entries:
            record = Versioned.new(LeaderRecord(self._membership.broker))
            put = Put(KEY, LEADER.encode(record), self._membership.lease)
            won = await self._coordination.commit([Compare(KEY, 0)], [put])  # or its lease has ended
        elif leader_of(page.entries[0]) == self._membership.broker:
            won = page.entries[0].revision
        if won is None:
            self._elected.clear()
        else:
            self._revision = won
            self._elected.set()
        return page.revision


def leader_of(entry: Entry) -> str | None:
    """Returns the id of the broker that the leader's key names; None if its record cannot be read."""
    found = LEADER.read(entry)
    return found.record.broker if isinstance(found, Versioned) else None
