"""Payloads of rows that retention has taken: those that no row can name any more are deleted.

Each entry states the date of the oldest upload that its rows name, and a payload's name has its upload's date. So
nothing of a row is read: a payload goes if its date is before those of all entries that are there. That asks no
clock.

Order: 1. after files were deleted, their segment's start notes that (`deleted`); 2. a *scan* lists payloads that have
no record in coordination, so that no publish can name them any more; 3. a later scan, a grace behind the first by the
store's clock, in which what was published before has become durable: all owners flush, which is refused if a journal
still waits for its recovery; then the entries are listed, and those payloads are deleted that both scans have found;
4. once nothing is left to wait for, the starts note that (`looked`). A crash anywhere leaves 1, and the next leader
begins with 2. Payloads of a topic that takes dead letters stay, since a letter may name one long after it was made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from seaweedq.broker.imports.records import is_over
from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.retention.rounds import Rounds
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads import rules
from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put, entries, read_all
from seaweedq.coordination.records import StartRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryName
from seaweedq.storage.interface import PayloadStore

PAGE = 1000  # of a listing
SCANNED = 10 * PAGE  # payloads of a scan
READ = 16  # entries at a time
NOW = "99999999"  # behind all dates: no row names any upload


@dataclass(slots=True)
class _Scan:
    """The last scan of a topic: when it was, by the store's clock, and the uploads without a record."""

    at_us: int
    unclaimed: set[str]


class RetainedPayloads:
    """Deletes payloads. Its memory of scans and entries costs only time when it is lost."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: PayloadStore,
        rounds: Rounds,
        positions: TopicPositions,
        grace_s: float,
    ) -> None:
        self.deleted = 0
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._rounds = rounds
        self._positions = positions
        self._grace_us = int(grace_s * 1e6)
        self._scans: dict[Topic, _Scan] = {}
        self._oldest: dict[Topic, dict[tuple[int, EntryName], str]] = {}

    def is_due(self, topic: Topic, now_us: int) -> bool:
        """Tells whether to scan a topic. Asks nobody."""
        if not self._pending(topic):
            return False
        scan = self._scans.get(topic)
        return scan is None or now_us >= scan.at_us + self._grace_us

    def forget_except(self, topics: set[Topic]) -> None:
        """Forgets topics that are gone."""
        self._scans = {topic: scan for topic, scan in self._scans.items() if topic in topics}
        self._oldest = {topic: known for topic, known in self._oldest.items() if topic in topics}

    async def any(self, topic: Topic) -> bool:
        """Tells whether a topic has payloads."""
        return bool(await self._store.list(rules.folder(topic.name), limit=1))

    async def delete_unreferenced(self, topic: Topic, now_us: int) -> None:
        """Deletes the payloads that this scan and the one before have found, in a round that began at that time of the
        store. Raises Unavailable, Fenced, ChainDamaged."""
        if await self._is_written(topic):
            return  # its files may have no records any more, if coordination was lost
        before = self._scans.pop(topic, None)
        there, is_all = await self._listed(topic)
        if (is_all and not there) or await self._takes_letters(topic):
            await self._end(topic)
            return
        recorded = entries(self._coordination, keys.UPLOADS.prefix(topic.name, topic.record.incarnation))
        claimed = {str(keys.UPLOADS.parse(entry.key)[2]) async for entry in recorded}  # a message may name these
        unclaimed = there - claimed
        if before and now_us >= before.at_us + self._grace_us:
            oldest = await self._oldest_named(topic)
            due = {upload for upload in there if rules.date_of(upload) < oldest}
            doomed = due & unclaimed & before.unclaimed
            await self._delete(topic, doomed)
            if due == doomed and (is_all or due < there):  # unlisted ones are not older than those not due
                await self._end(topic)
                return
            unclaimed -= doomed
        self._scans[topic] = _Scan(now_us, unclaimed)

    async def _listed(self, topic: Topic) -> tuple[set[str], bool]:
        """Returns the uploads of which the topic has a payload, the oldest ones, and whether that is all. Payloads of
        an earlier topic of that name may take all places."""
        found: list[str] = []
        is_all = False
        while len(found) < SCANNED and not is_all:
            page = await self._store.list(rules.folder(topic.name), found[-1] if found else "", PAGE)
            found += page
            is_all = len(page) < PAGE
        uploads = {upload for name in found if (upload := rules.id_of(topic.name, name))}
        return {upload for upload in uploads if rules.incarnation_of(upload) == topic.record.incarnation}, is_all

    async def _delete(self, topic: Topic, uploads: set[str]) -> None:
        for upload in sorted(uploads):
            reach("retention.payload")
            self._rounds.leader_compare()
            await self._store.delete(rules.object_name(topic.name, upload))
            self.deleted += 1

    async def _oldest_named(self, topic: Topic) -> str:
        """Returns the date of the oldest upload that a row of the topic names, of those that are below a start, too."""
        await self._positions.positions(topic, flush=True)
        known = self._oldest.get(topic, {})
        found: dict[tuple[int, EntryName], str] = {}
        for number in sorted(self._catalog.records(topic)):
            chain = Chain(self._store, topic.name, number)
            names = [one.name for one in await chain.listed()]
            new = [name for name in names if (number, name) not in known]
            dates = await gather_bounded(READ, partial(_named, chain), new)
            found |= {(number, name): known[number, name] for name in names if (number, name) in known}
            found |= {(number, name): date for name, date in zip(new, dates, strict=True)}
        self._oldest[topic] = found
        return min((date for date in found.values()), default=NOW)

    async def _is_written(self, topic: Topic) -> bool:
        """Tells whether a write into a topic is not over."""
        entries, _ = await read_all(self._coordination, keys.WRITES.prefix(topic.name, topic.record.incarnation))
        found = [keys.WRITES.read(entry) for entry in entries]
        return any(isinstance(one, Unreadable) or not is_over(one.record) for one in found)

    async def _takes_letters(self, topic: Topic) -> bool:
        there, _ = await read_all(self._coordination, keys.SUBSCRIPTIONS.prefix())
        found = [keys.SUBSCRIPTIONS.read(entry) for entry in there]
        return any(isinstance(one, Unreadable) or one.record.dead_letter_topic == topic.name for one in found)

    def _pending(self, topic: Topic) -> Mapping[int, Versioned[StartRecord]]:
        """Returns the starts of which files were deleted since the last scan."""
        known = self._catalog.starts.known(topic.name, topic.record.incarnation)
        return {number: held for number, held in known.items() if held.record.looked < held.record.deleted}

    async def _end(self, topic: Topic) -> None:
        reach("retention.looked")
        for number, held in self._pending(topic).items():
            key = keys.STARTS.key(topic.name, topic.record.incarnation, number)
            record = msgspec.structs.replace(held.record, looked=held.record.deleted)
            put = Put(key, keys.STARTS.encode(held.with_record(record)))
            await self._catalog.commit([self._rounds.leader_compare(), Compare(key, held.revision)], [put])
        self._scans.pop(topic, None)
        self._oldest.pop(topic, None)


async def _named(chain: Chain, name: EntryName) -> str:
    """Returns the date of the oldest upload that an entry's rows name."""
    metadata = await chain.read(chain.metadata, name)
    return metadata.oldest_upload or NOW
