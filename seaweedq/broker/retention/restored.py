"""The confirmation of a coordination that was restored from a backup.

It may know starts from before files were deleted, which will not come back: reads below a segment's first file were
errors, and retention took nothing of its topic.

Order of writes: 1. each start that is before its segment's first file is raised to that, in a transaction that compares
the topic's record and the start; 2. coordination's number of rounds becomes the store's (broker/retention/rounds). A
crash between leaves rounds held: to confirm once more goes on.
"""

import logging

import msgspec

from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.errors import CoordinationUnavailable, NeedsNewerBroker
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.storage.interface import ObjectStore

LOOKED = 16  # segments at a time
logger = logging.getLogger(__name__)


class Restored:
    """Confirms a coordination, for any broker."""

    def __init__(self, catalog: Catalog, store: ObjectStore, rounds: Rounds) -> None:
        self._catalog = catalog
        self._store = store
        self._rounds = rounds

    async def confirm(self) -> int:
        """Makes coordination the one to go by. Returns the number of the newest round. Raises Unavailable."""
        if await self._rounds.is_restored():
            for topic in filter(None, map(self._catalog.find, self._catalog.names())):
                if topic.record.state == "active":
                    await self._raise_starts(topic)
        return await self._rounds.confirm()

    async def _raise_starts(self, topic: Topic) -> None:
        numbers = sorted(self._catalog.records(topic))
        await gather_bounded(LOOKED, lambda number: self._raise_start(topic, number), numbers)

    async def _raise_start(self, topic: Topic, number: int) -> None:
        place = (topic.name, topic.record.incarnation, number)
        try:
            held = self._catalog.starts.held(*place)
        except NeedsNewerBroker as error:
            logger.warning("the start of segment %d of %s stays: %s", number, topic.name, error)
            return
        first = await self._first(topic, number, held.record.sequence)
        if first is None or first.sequence == held.record.sequence:
            return
        known = held.record
        record = msgspec.structs.replace(
            known, sequence=first.sequence, offset=first.first_offset, deleted=max(known.deleted, first.sequence)
        )
        key = keys.STARTS.key(*place)
        compares = [Compare(keys.TOPICS.key(topic.name), topic.revision), Compare(key, held.revision)]
        if not await self._catalog.commit(compares, [Put(key, keys.STARTS.encode(held.with_record(record)))]):
            raise CoordinationUnavailable(f"topic {topic.name!r} has changed meanwhile; ask again")
        what = "segment %d of %s has no file before offset %d, and begins there: rows from %d on are gone"
        logger.warning(what, number, topic.name, first.first_offset, known.offset)

    async def _first(self, topic: Topic, number: int, sequence: int) -> EntryName | None:
        """Returns the first entry that counts; None where there is none."""
        folder = segment_folder(topic.name, number)
        names = await self._store.list(folder, after=f"{folder}{sequence:08d}" if sequence else "", limit=1)
        return EntryName.parse(names[0]) if names else None
