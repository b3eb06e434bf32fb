"""The leader's sweep of uploads: removes those that were not published in time or only imported, and what removals that
were cut off have left.

It reads a page of records at a time, and does for each what broker/uploads/rules' `step` says. Each change compares the
record's revision and the leader's key, so a publish that was faster keeps its payload. The next pass continues behind a
record that failed.
"""

from collections.abc import Callable

from seaweedq.broker.imports.rules import is_over
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.uploads import rules as plan
from seaweedq.broker.uploads.records import clear, clear_folder, cleared
from seaweedq.broker.uploads.rules import Step
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Entry, Put, entries, read_all
from seaweedq.coordination.records import UploadRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import Damaged
from seaweedq.failpoints import reach
from seaweedq.storage.folders import folders
from seaweedq.storage.interface import PayloadStore

PAGE = 200


class UploadSweep:
    """The sweep over all topics, also those that are gone. `leading` holds while this broker leads."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: PayloadStore,
        clock: Clock,
        grace_s: float,
        leading: Callable[[], Compare],
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._clock = clock
        self._grace_s = grace_s
        self._leading = leading
        self._after = ""  # the last key of this pass

    async def records(self) -> None:
        """Makes one pass over all records of uploads, or the rest of the last one."""
        async for entry in entries(self._coordination, keys.UPLOADS.prefix(), self._after, PAGE):
            self._after = entry.key
            await self._one(entry)
        self._after = ""

    async def folders(self) -> int:
        """Deletes what the folders of topics that are gone still hold: a put may have ended after its record had gone.
        Returns the number of deleted objects.

        Counters are read before the topics: an incarnation that is in use is in the catalog, or not below its counter.
        """
        counters, _ = await read_all(self._coordination, keys.COUNTERS.prefix())
        under_way, _ = await read_all(self._coordination, keys.CREATIONS.prefix())
        busy = {keys.CREATIONS.parse(entry.key)[0] for entry in under_way}
        await self._catalog.load()
        known = {keys.COUNTERS.parse(e.key)[0]: keys.COUNTERS.read(e) for e in counters}
        below = {topic: one.record.next for topic, one in known.items() if isinstance(one, Versioned)}
        dead = {topic: end for topic, end in below.items() if topic not in busy and self._is_gone(topic)}
        if not dead:
            return 0
        gone = 0
        async for folder in folders(self._store, plan.FOLDER):
            topic = folder.removeprefix(plan.FOLDER).removesuffix("/")
            if topic in dead:
                gone += await clear_folder(self._store, topic, dead[topic])
        return gone

    def _is_gone(self, topic: str) -> bool:
        return self._catalog.find(topic) is None and self._catalog.is_readable(topic)

    async def _one(self, entry: Entry) -> None:
        topic, _, upload = keys.UPLOADS.parse(entry.key)
        held = keys.UPLOADS.read(entry)
        if isinstance(held, Unreadable):
            return
        record = held.record
        if plan.incarnation_of(upload) is None or record.name != plan.object_name(topic, upload):
            raise Damaged(f"the record of upload {upload!r} names the object {record.name!r}")
        match plan.step(record, self._clock.now_us(), self._grace_s):
            case Step.REMOVE:
                await self._remove(entry.key, held.with_record(plan.removed(record)))
            case Step.REMOVE_IMPORTED:
                if over := await self._over(entry.key):
                    await self._remove(entry.key, held.with_record(plan.dead(record)), over)
            case Step.CLEAR:
                await self._clear(entry.key, held)
            case Step.FORGET:
                await self._forget(entry)
            case Step.CLEAR_AND_FORGET:
                await clear(self._store, record)
                reach("sweep.again")
                await self._forget(entry)

    async def _over(self, key: str) -> Compare | None:
        """Returns a comparison that no import reads the upload any more; None where one does, or may do so."""
        imported = keys.IMPORTS.key(*keys.UPLOADS.parse(key))
        there = await self._coordination.get(imported)
        if there is None:
            return Compare(imported, 0)
        found = keys.IMPORTS.read(there)
        return Compare(imported, there.revision) if isinstance(found, Versioned) and is_over(found.record) else None

    async def _remove(self, key: str, removed: Versioned[UploadRecord], *compares: Compare) -> None:
        if revision := await self._put(key, removed, *compares):
            reach("sweep.removed")
            await self._clear(key, removed.stored(revision))

    async def _clear(self, key: str, held: Versioned[UploadRecord]) -> None:
        await clear(self._store, held.record)
        reach("sweep.cleared")
        await self._put(key, held.with_record(cleared(held.record)))

    async def _put(self, key: str, held: Versioned[UploadRecord], *compares: Compare) -> int | None:
        all_compares = [self._leading(), Compare(key, held.revision), *compares]
        return await self._coordination.commit(all_compares, [Put(key, keys.UPLOADS.encode(held))])

    async def _forget(self, entry: Entry) -> None:
        await self._coordination.commit([self._leading(), Compare(entry.key, entry.revision)], [Delete(entry.key)])
