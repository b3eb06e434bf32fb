"""A running broker: its parts, put together; started, kept going and stopped as named steps.

Start: lock → identity → probe → membership → election → journals of the dead → catalog → journal → serve.
Stop: refuse → quiet → flush → checkpoint → close the journal → leave. What a stop does not get done in time, the next
start finds in the journal.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from seaweedq.broker.catalog import Catalog, Topic
from seaweedq.broker.commit import GroupCommit
from seaweedq.broker.dispatch import Dispatcher
from seaweedq.broker.entries import EntryWriter, Source
from seaweedq.broker.file_journal import FileJournal
from seaweedq.broker.flush import Flusher
from seaweedq.broker.journal_files import remove_journal
from seaweedq.broker.lock import FolderLock, folder_identity
from seaweedq.broker.memory import Budget
from seaweedq.broker.open_segment import OpenSegment
from seaweedq.broker.publish import Publisher
from seaweedq.broker.read import GroupCache, Reader
from seaweedq.broker.recover import Recovery
from seaweedq.broker.subscriptions import SubscriptionAdmin
from seaweedq.broker.takeover import Takeover
from seaweedq.broker.topics import TopicAdmin
from seaweedq.broker.upkeep import Upkeep
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Compare, Coordination, Delete, Put
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.records import ClusterRecord, JournalRecord
from seaweedq.errors import Fenced, NotReady, SeaweedqError, TopicBeingDeleted, UnfitStore
from seaweedq.segments.chain import Chain
from seaweedq.segments.keyrange import KeyRange
from seaweedq.settings import Settings
from seaweedq.storage.identity import cluster_identity
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.probe import probe

STOP_MARGIN_S = 1.5  # of shutdown_s, kept for what comes after the flushes
logger = logging.getLogger(__name__)


class Broker:
    """One broker process, on a store and a coordination that were chosen for it. `url` is where it is reached."""

    def __init__(
        self, settings: Settings, store: ObjectStore, coordination: Coordination, clock: Clock, ids: Ids, url: str
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.url = url
        self.stopping = False
        self.ready = False
        self.budget = Budget(settings.memory_budget_bytes)
        self.catalog = Catalog(coordination, self._close_topic)
        self.cache = GroupCache(self.budget, settings.cache_bytes)
        self.reader = Reader(self.cache)
        self.lost = asyncio.Event()
        self._coordination = coordination
        self._ids = ids
        self._lock = FolderLock(settings.data_dir)
        self._journals = settings.data_dir / "journals"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dirty: set[OpenSegment] = set()
        self._stop_by_s: float | None = None  # monotonic, since the first word of stopping

    def lock(self) -> None:
        """Make the data folder this process's own. Raises DataFolderInUse."""
        self._lock.acquire()
        self._place = folder_identity(self.settings.data_dir, self._ids)

    async def start(self) -> None:
        """Everything from the lock to the first request. Raises UnfitStore, Damaged, Unavailable."""
        await self._identify()
        await probe(self.store, self._ids)
        await self._join()
        await self._recover()
        await self._open_journal()
        self.ready = True
        logger.info(
            "broker %s is ready: %d topics, store %s",
            self.membership.broker,
            len(self.catalog.names()),
            self.settings.store_path,
        )

    async def _identify(self) -> None:
        """The store and this coordination must belong together: two coordinations over one store would both own its
        segments."""
        key = keys.CLUSTER.key()
        if not await self._coordination.get(key):
            await self._coordination.commit(
                [Compare(key, 0)], [Put(key, keys.CLUSTER.encode(ClusterRecord(self._ids.nonce())))]
            )
        there = await self._coordination.get(key)
        assert there is not None
        expected = keys.CLUSTER.decode(there.value).cluster
        self.cluster = (await cluster_identity(self.store, expected, self.clock)).cluster
        if self.cluster != expected:
            raise UnfitStore(
                f"the store {self.settings.store_path} belongs to cluster {self.cluster}, "
                f"the data folder {self.settings.data_dir} to {expected}; "
                "start with the data folder that the store was made with, or with a fresh store"
            )

    async def _join(self) -> None:
        self.membership = Membership(
            self._coordination, self.clock, self._ids, self.settings.name, self.url, self.settings.lease_s, self._lose
        )
        self.election = Election(self._coordination, self.membership)
        self.entries = EntryWriter(self.cluster, self.membership.broker, self.clock, self._ids)
        self.admin = TopicAdmin(
            self.catalog, self._coordination, self.store, self.entries, self.clock, self.settings.publish_timeout_s
        )
        recovery = Recovery(self.catalog, self._coordination, self.store, self.entries)
        self.takeover = Takeover(
            self.catalog,
            self._coordination,
            self.election,
            self.membership,
            recovery,
            self._journals,
            self._place,
        )
        await self.takeover.revoke()
        await self.membership.start()
        await self._register()
        await self.election.campaign()
        self.election.start()

    async def _recover(self) -> None:
        revision = await self.catalog.load()
        self._spawn(self.catalog.follow(revision), "catalog")
        await self.election.elected()
        await self.takeover.run()
        await self.admin.sweep()

    async def _register(self) -> None:
        """Name the journal, before there is one: if this broker dies starting, the next one knows whose lease to
        end."""
        key = keys.JOURNALS.key(self.membership.broker)
        record = JournalRecord("file", self._place)
        if not await self._coordination.commit(
            [Compare(key, 0), self.membership.compare()], [Put(key, keys.JOURNALS.encode(record))]
        ):
            raise NotReady("this broker's lease ended while it was starting")

    async def _open_journal(self) -> None:
        self.journal = FileJournal(self._journals / self.membership.broker, self._ids, self.settings.journal_file_bytes)
        self.commit = GroupCommit(self.journal, self.clock, self.membership.valid)
        self.publisher = Publisher(self.commit, self._ids, self.settings.publish_timeout_s)
        self.flusher = Flusher(self.entries)
        self.dispatcher = Dispatcher(
            self.catalog, self._coordination, self.reader, self.commit, self.clock, self.open_segments
        )
        self.subscriptions = SubscriptionAdmin(
            self._coordination, self.dispatcher, self.reader, self.clock, self.open_segments
        )
        self._spawn(self.commit.run(), "group commit")
        upkeep = Upkeep(
            self.settings, self.clock, self.catalog, self.budget, self.cache, self.flusher, self.dispatcher, self.commit
        )
        self._spawn(upkeep.tick_often(self._dirty, self.journal), "ticks")
        self._spawn(upkeep.checkpoint_often(), "checkpoints")
        for name in self.catalog.names():
            topic = self.catalog.find(name)
            if topic and topic.record.state == "deleting":
                self._spawn(self.delete_topic(topic), f"deletion of {name}")

    def begin_stop(self) -> None:
        """Take nothing more, and send everybody who waits home."""
        self.stopping = True
        if self._stop_by_s is None:
            self._stop_by_s = self.clock.monotonic_s() + self.settings.shutdown_s - STOP_MARGIN_S
        if self.ready:
            self.dispatcher.closing = True
        for topic in filter(None, map(self.catalog.find, self.catalog.names())):
            topic.signal.wake()

    async def stop(self) -> None:
        """Flush, checkpoint, leave; within `shutdown_s` of `begin_stop`."""
        self.begin_stop()
        assert self._stop_by_s is not None
        if self.ready:
            self.ready = False
            clean = False
            try:
                async with asyncio.timeout(max(0.5, self._stop_by_s - self.clock.monotonic_s())):
                    clean = not self.lost.is_set() and await self._put_away()
            except TimeoutError:
                logger.warning("not everything could be flushed in time; the next start recovers it from the journal")
            await self._leave(clean)
        self._lock.release()

    async def _put_away(self) -> bool:
        """Bring everything into files and cursors: whether the journal is empty of use now."""
        self.commit.close()
        await self.commit.quiet()
        flushes = [self.flusher.flush(segment) for segment in self._dirty]
        for outcome in await asyncio.gather(*flushes, self.dispatcher.checkpoint(), return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("a flush or a checkpoint at stop failed: %s", outcome)
        return not any(segment.tail for segment in self._dirty) and self.dispatcher.pin is None

    async def _leave(self, clean: bool) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.flusher.stop(), return_exceptions=True)
        await self.journal.close()
        if clean:
            await self._remove_journal()
        await self.election.stop()
        await self.membership.stop()

    async def _remove_journal(self) -> None:
        try:
            await asyncio.to_thread(remove_journal, self._journals / self.membership.broker)
            await self._coordination.commit([], [Delete(keys.JOURNALS.key(self.membership.broker))])
        except (OSError, SeaweedqError) as error:
            logger.warning("the journal could not be removed, the next start does it: %s", error)

    def check_ready(self) -> None:
        """Raises NotReady while starting, stopping or without a lease."""
        if not self.ready or self.stopping:
            raise NotReady("the broker is stopping" if self.stopping else "the broker is starting")
        if not self.membership.valid():
            raise NotReady("this broker's lease has run out")

    async def routing(self, topic: Topic) -> tuple[list[OpenSegment], np.ndarray[Any, Any]]:
        """The topic's open segments by key range, and their lower ends; opened when first needed."""
        if topic.routing is None:
            async with topic.opening:
                if topic.routing is None:
                    topic.routing = await self._open_all(topic)
        return topic.routing

    async def open_segments(self, topic: Topic) -> Sequence[OpenSegment]:
        """All segments of a topic that can be read here."""
        return (await self.routing(topic))[0]

    async def segment(self, topic: Topic, segment: int) -> OpenSegment:
        """One segment. Raises SegmentNotFound."""
        self.catalog.segment(topic, segment)
        await self.routing(topic)
        return topic.opened[segment]

    async def flush(self, topic: Topic) -> None:
        """Everything acknowledged before the call is in files after it. Raises StoreUnavailable; goes on without us
        then."""
        patience_s = self.settings.publish_timeout_s
        await asyncio.gather(*(self.flusher.flush(segment, patience_s) for segment in await self.open_segments(topic)))

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its data. Repeatable; who asks again waits for the deletion that is under way."""
        async with topic.deleting:
            if self.catalog.find(topic.name) is not topic:
                return  # and its folder may be another one's now
            await self.admin.begin_delete(topic)
            await self.commit.quiet()
            for segment in topic.opened.values():
                await self.flusher.abandon(segment)
                segment.flushed(segment.end)
                self._dirty.discard(segment)
            await self.admin.finish_delete(topic)

    async def _open_all(self, topic: Topic) -> tuple[list[OpenSegment], np.ndarray[Any, Any]]:
        places = asyncio.Semaphore(16)

        async def open_one(number: int) -> None:
            async with places:
                if number not in topic.opened:
                    topic.opened.setdefault(number, await self._open(topic, number))

        records = self.catalog.segments(topic)
        await asyncio.gather(*(open_one(number) for number in records))
        order = sorted(records, key=lambda number: records[number].low)
        return [topic.opened[n] for n in order], np.array([records[n].low for n in order], dtype=np.int32)

    async def _open(self, topic: Topic, number: int) -> OpenSegment:
        record, _ = self.catalog.segment(topic, number)
        if record.owner != self.membership.broker:
            raise NotReady(f"segment {number} of {topic.name!r} belongs to {record.owner}")
        chain = Chain(self.store, topic.name, number)
        try:
            await chain.open()
        finally:
            self.catalog.check(topic)  # one that has been deleted meanwhile is not opened, nor damaged
        source = Source(topic.name, number, KeyRange(record.low, record.high), topic.layout)
        return OpenSegment(source, chain, self.budget, topic.signal, self._dirty.add)

    def _close_topic(self, topic: Topic) -> None:
        """The catalog says that a topic is being deleted, or gone."""
        reason = TopicBeingDeleted(f"topic {topic.name!r} is being deleted", topic=topic.name)
        for segment in topic.opened.values():
            segment.close(reason)
        if self.ready:
            self.dispatcher.forget(topic)
        topic.signal.wake()

    def _lose(self) -> None:
        """The lease has ended: nothing may be acknowledged any more; the process begins again under a new id."""
        logger.error("%s is no longer a member; stopping, to begin again under a new id", self.membership.broker)
        self.begin_stop()
        self.lost.set()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        logger.error("%s ended", task.get_name(), exc_info=task.exception())
        if isinstance(task.exception(), Fenced) or task.get_name() in ("group commit", "catalog"):
            self._lose()
