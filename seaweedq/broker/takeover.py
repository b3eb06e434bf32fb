"""Taking over from brokers that are gone, and keeping every segment in the hands of a living one.

Order of writes for a dead broker X, by the leader: 1. X's lease is revoked (its journal's lock is ours, so it is dead:
no need to wait). 2. X's journal is worked in (broker/recover), nothing changes hands before. 3. Its segments get a
living owner, in transactions that compare the leader, the new owner and each segment. 4. X's journal files go, then its
key. A crash between any two leaves X's journal key, and the next leader begins again at 1; each step does nothing where
it was done before.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from seaweedq.broker.catalog import Catalog
from seaweedq.broker.failpoints import reach
from seaweedq.broker.journal_files import read_journal, remove_journal
from seaweedq.broker.recover import Recovery
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import JournalRecord, SegmentRecord
from seaweedq.coordination.transactions import read_all
from seaweedq.segments.frames import Frame

PAGE = 60  # segments a transaction; with their comparisons, the leader's and the owner's it stays below 128
logger = logging.getLogger(__name__)


class Takeover:
    """The leader's work for brokers that are gone. `place` is this data folder's id, whose file journals it can
    reach."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        election: Election,
        membership: Membership,
        recovery: Recovery,
        journals: Path,
        place: str,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._election = election
        self._membership = membership
        self._recovery = recovery
        self._journals = journals
        self._place = place

    async def revoke(self) -> None:
        """End the leases of the brokers whose journals are in this data folder: its lock is ours, so they are dead."""
        for broker in await self._dead():
            there = await self._coordination.get(keys.BROKERS.key(broker))
            if there:
                reach("takeover.revoke")
                await self._coordination.leases.revoke(there.lease)

    async def run(self) -> None:
        """Recover every journal of the dead, then give every segment without a living owner to this broker.

        A journal that cannot be reached is unknown, never empty: the segments of its broker wait.
        """
        dead = await self._dead()
        for broker in dead:
            await self._recover(broker)
        await self._assign(unknown=await self._out_of_reach())
        for broker in dead:
            reach("takeover.remove")
            await asyncio.to_thread(remove_journal, self._journals / broker)
            reach("takeover.removed")
            await self._coordination.commit([], [Delete(keys.JOURNALS.key(broker))])

    async def _dead(self) -> list[str]:
        """The brokers of this data folder that are not this one."""
        mine = self._membership.broker
        return [b for b, record in await self._records() if record.place == self._place and b != mine]

    async def _records(self) -> list[tuple[str, JournalRecord]]:
        entries, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        return [(keys.JOURNALS.parse(e.key)[0], keys.JOURNALS.decode(e.value)) for e in entries]

    async def _recover(self, broker: str) -> None:
        folder = self._journals / broker
        frames = await asyncio.to_thread(_frames, folder)
        done = await self._recovery.work_in(frames)
        if frames:
            logger.info(
                "recovered the journal of %s: %d segments, %d rows that were not in files yet, %d acks",
                broker,
                done.segments,
                done.rows,
                done.acks,
            )

    async def _out_of_reach(self) -> set[str]:
        return {broker for broker, record in await self._records() if record.place != self._place}

    async def _assign(self, unknown: set[str]) -> None:
        if unknown:
            logger.warning("the journals of %s are elsewhere: their segments wait", ", ".join(sorted(unknown)))
        while homeless := self._homeless(unknown):
            for start in range(0, len(homeless), PAGE):
                await self._give(homeless[start : start + PAGE])

    def _homeless(self, unknown: set[str]) -> list[tuple[str, SegmentRecord, int]]:
        found = []
        for topic in filter(None, map(self._catalog.find, self._catalog.names())):
            for segment in self._catalog.segments(topic):
                record, revision = self._catalog.segment(topic, segment)
                if record.owner != self._membership.broker and record.owner not in unknown:
                    found.append((keys.SEGMENTS.key(topic.name, topic.record.incarnation, segment), record, revision))
        return found

    async def _give(self, segments: Sequence[tuple[str, SegmentRecord, int]]) -> None:
        owner = self._membership.broker
        writes = [
            Put(key, keys.SEGMENTS.encode(msgspec.structs.replace(record, owner=owner))) for key, record, _ in segments
        ]
        compares = [
            self._election.leader_compare(),
            self._membership.compare(),
            *(Compare(key, revision) for key, _, revision in segments),
        ]
        reach("takeover.give")
        revision = await self._coordination.commit(compares, writes)
        if revision:
            self._catalog.apply([Change(put.key, put.value, revision) for put in writes])
        else:
            logger.warning("segments changed hands meanwhile, looking again")
            await self._catalog.load()


def _frames(folder: Path) -> list[Frame]:
    return [frame for commit in read_journal(folder) for frame in commit.frames]
