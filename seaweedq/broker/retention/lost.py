"""Open segments that coordination has from a backup, and of which the store has no file any more.

After the backup such a one was sealed, and retention took all of it. Nobody knows where it ended, and no offset may be
given out twice: its owner keeps it closed (broker/topics/restored_coordination) until a confirmation lets it go on far
behind any end that it can have had.

Order of writes: 1. its owner says that it is closed there: one that it opens never had files, and stays; 2. an entry
without rows is put, SEQUENCES and OFFSETS behind the start that coordination knows; 3. the start is raised to it
(broker/retention/restored). A crash behind 2 leaves a file, which the next confirmation finds, and does 3. The owner
opens it only behind 2, or once the confirmation is over.
"""

import asyncio

from seaweedq.broker.log.entry_writer import EntryWriter, Source, known_producers
from seaweedq.broker.read.remote_reader import ReadableSegments
from seaweedq.broker.rpc.messages import SegmentCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.coordination.records.topics import SegmentRecord
from seaweedq.errors import ChainDamaged, CoordinationUnavailable, Fenced, StoreUnavailable
from seaweedq.failpoints import reach
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryName
from seaweedq.storage.interface import ObjectStore

# A chain is rolled once it has 10,000 entries (broker/reshape/chain_roller), of 64 MiB and far fewer rows each.
SEQUENCES = 100_000
OFFSETS = 10**12
ASK_S = 5.0
PUT_S = 10.0


class LostSegments:
    """Lets segments go on whose files are all gone, for any broker."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        readables: ReadableSegments,
        entries: EntryWriter,
        store: ObjectStore,
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._readables = readables
        self._entries = entries
        self._store = store

    async def begin_anew(self, topic: Topic, number: int, known: EntryName) -> EntryName | None:
        """Puts the entry from which on an open segment without files goes on, given the start that is known. Returns
        its name; None where it never had any file. Raises Unavailable where the owner does not answer."""
        record = self._catalog.segment(topic, number).record
        if await self._is_sound(topic, number, known, record.owner):
            return None
        begin = EntryName(known.sequence + SEQUENCES, known.first_offset + OFFSETS)
        reach("confirm.entry")
        await self._put(topic, number, record, begin)
        reach("confirm.begun")
        return begin

    async def _is_sound(self, topic: Topic, number: int, known: EntryName, owner: str | None) -> bool:
        """Tells whether a segment never had a file, so that its owner opens it."""
        try:
            if owner is None and known.sequence:
                return False
            if owner is None:
                await self._ownership.check_empty(topic, number)
            elif owner == self._ownership.broker:
                await self._ownership.opened(topic, number)
            else:
                call = SegmentCall(topic.name, topic.record.incarnation, number)
                await self._readables.ask(topic, owner, "size", call, int, ASK_S)
        except ChainDamaged:
            return False
        return True

    async def _put(self, topic: Topic, number: int, record: SegmentRecord, begin: EntryName) -> None:
        chain = Chain(self._store, topic.name, number)
        chain.begin(begin)
        source = Source.of(topic.name, number, record, topic.layout)
        producers = await known_producers(self._store, source, chain, lambda one: self._catalog.is_gone(topic, one))
        try:
            async with asyncio.timeout(PUT_S):
                await self._entries.append(source, chain, [], producers, 0)
        except Fenced as error:
            raise CoordinationUnavailable("another confirmation is under way; ask again") from error
        except TimeoutError:
            unknown = StoreUnavailable(f"the store did not confirm an entry of {chain.folder} in time")
            raise chain.failing or unknown from None
