"""A running broker: its parts (broker/wiring) started, kept going and stopped as named steps.

Start: lock → probe → identity → membership → views → own journals of before → journal → election → serve. What is to be
done for other brokers is the leader's (broker/leader/leader), who may be this one.
Stop: drain (hand over, while others live) → refuse → quiet → flush → checkpoint → close the journal → leave. What a
stop does not get done in time is found in the journal.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from seaweedq.broker.cluster_identity import check_secret, cluster_of
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.wiring import Parts
from seaweedq.errors import Fenced, NotReady, SeaweedqError, TopicBeingDeleted
from seaweedq.storage.probe import probe

VITAL = ("group commit", "catalog", "roster", "election", "leader", "reshaping")  # no life goes on without them
STOP_MARGIN_S = 1.5  # of shutdown_s, kept for what comes after the flushes
logger = logging.getLogger(__name__)


class Broker(Parts):
    """One broker process, on a store and a coordination that were chosen for it. `url` is where it is reached.

    `secret` is what brokers of the cluster show each other; with none, nobody gets in.
    """

    def lock(self) -> None:
        """Make the folder of this process its own; a member waits for its predecessor. Raises DataFolderInUse."""
        self._home.lock(self.settings.shutdown_s if self.settings.member else 0)

    async def start(self) -> None:
        """Everything from the lock to the first request. Raises UnfitStore, InvalidRequest, Damaged, Unavailable."""
        await probe(self.store, self._ids)
        await self._identify()
        await self._join()
        await self._look()
        await self.recovery.recover_own()
        self._open_journal()
        await self._open()
        await self._lead()
        self.ready = True
        logger.info(
            "broker %s is ready: %d topics, store %s",
            self.membership.broker,
            len(self.catalog.names()),
            self.settings.store_path,
        )

    async def _identify(self) -> None:
        """The store, this coordination and the other brokers' secret must belong together."""
        store, coordination = self.settings.store_path, self.settings.coordination
        kept = self.settings.data_dir if coordination == "embedded" else self.settings.etcd_prefix
        named = f"store {store}, coordination {coordination} ({kept})"
        self.cluster = await cluster_of(self._coordination, self.store, self._ids, self.clock, named)
        await self.roster.load()
        await check_secret(self.peers, {known.record.url for known in self.roster.brokers.values()})

    async def _join(self) -> None:
        self._make_member(self.cluster)
        await self.recovery.revoke()
        self._joined = True
        await self.membership.start()
        await self._registration.register()

    async def _look(self) -> None:
        for name, view in (("roster", self.roster), ("catalog", self.catalog)):
            self._spawn(view.follow(await view.load()), name)

    async def _open(self) -> None:
        """Whatever had to be recovered first is: from here it is given segments."""
        if not await self.membership.open():
            raise NotReady("this broker's lease expired while it was starting")
        await self.roster.load()

    def _open_journal(self) -> None:
        self._make_writers()
        self._make_readers()
        self._make_keepers()
        self._working = True
        self._spawn(self.commit.run(), "group commit")
        self._spawn(self.reshaper.run(), "reshaping")
        self._spawn(self._handover.run(), "handover")
        self._spawn(self.loads.run(), "loads")
        self._spawn(self._upkeep.tick_often(self._dirty, self.journal), "ticks")
        self._spawn(self._upkeep.checkpoint_often(), "checkpoints")
        self._spawn(self.imports.look_often(), "imports")

    async def _lead(self) -> None:
        """Stand for election. Who leads at once also does the first round before it serves."""
        await self.election.campaign()
        self._keep(self.election.start())
        self.leader = self._make_leader()
        if self.election.is_leader:
            await self.leader.round()
        self._spawn(self.leader.run(), "leader")

    async def drain(self) -> None:
        """Hand over what this broker has to others, as far as they live and the time for a stop allows."""
        if self.draining or not self.ready or self.lost.is_set() or len(self.roster.brokers) < 2:
            return
        self.draining = True
        self._begin_count()
        try:
            async with asyncio.timeout(self._left_s()):
                await asyncio.gather(self._handover.leave(), self._drain.hand_over(), self.imports.part())
        except (TimeoutError, SeaweedqError) as error:
            logger.warning(
                "could not hand over all segments and subscriptions; other brokers recover them: %s",
                str(error) or "out of time",
            )

    def _begin_count(self) -> None:
        if self._stop_by_s is None:
            self._stop_by_s = self.clock.monotonic_s() + self.settings.shutdown_s - STOP_MARGIN_S

    def _left_s(self) -> float:
        assert self._stop_by_s is not None
        return max(0.5, self._stop_by_s - self.clock.monotonic_s())

    def begin_stop(self) -> None:
        """Take nothing more, and send everybody who waits home."""
        self.stopping = True
        self._begin_count()
        if self.ready:
            self.dispatcher.closing = True
            self.imports.begin_part()
        for topic in filter(None, map(self.catalog.find, self.catalog.names())):
            topic.signal.wake()

    async def stop(self) -> None:
        """Flush, checkpoint, leave; within `shutdown_s` of `begin_stop`. One that never was ready leaves as well, so
        that nobody waits for its lease."""
        self.begin_stop()
        clean = False
        if self.ready:
            self.ready = False
            try:
                async with asyncio.timeout(self._left_s()):
                    clean = not self.lost.is_set() and await self._put_away()
            except TimeoutError:
                logger.warning("could not flush all messages in time; they are recovered from the journal later")
        if self._joined:
            await self._leave(clean)
        await self.peers.close()
        self._home.release()

    async def _put_away(self) -> bool:
        """Bring everything into files and cursors: whether the journal is empty of use now."""
        await self.imports.part()
        self.commit.close()
        await self.commit.quiet()
        flushes = [self.flusher.flush(segment) for segment in self._dirty]
        for outcome in await asyncio.gather(*flushes, self.dispatcher.checkpoint(), return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("a flush or a checkpoint at stop failed: %s", outcome)
        return not any(segment.tail for segment in self._dirty) and self.dispatcher.pin is None

    async def _leave(self, clean: bool) -> None:
        if self._working:
            self._readables.close()
            await self.imports.stop()
            await asyncio.gather(self.reshaper.stop(), self._roller.stop())
        for task in self._tasks:
            task.cancel()
        flushes = [self.flusher.stop()] if self._working else []
        await asyncio.gather(*self._tasks, *flushes, return_exceptions=True)
        if self.leader:
            await self.leader.stop()
        await self.uploads.close()
        if self._working:
            await self.journal.close()
        if clean:
            self.journal.release(self.commit.committed + 1)
            await self._registration.retire(self.journal)
        await self.election.stop()
        await self.membership.stop()

    def check_joined(self) -> None:
        """Raises NotReady unless other brokers can talk to this one."""
        if not self.ready or (self.stopping and not self.draining):
            raise NotReady("the broker is stopping" if self.stopping else "the broker is starting")

    @property
    def can_take_work(self) -> bool:
        """Whether new clients may come."""
        return self.ready and not self.stopping and not self.draining and self.membership.valid()

    def check_ready(self) -> None:
        """Raises NotReady while starting, stopping or without a lease; one that drains serves to the end."""
        if not self.ready or (self.stopping and not self.draining):
            raise NotReady("the broker is stopping" if self.stopping else "the broker is starting")
        if not self.membership.valid():
            raise NotReady("this broker's lease has expired")

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its data. Repeatable; who asks again waits for the deletion that is under way."""
        async with topic.deleting:
            if self.catalog.find(topic.name) is not topic:
                return  # and its folder may be another one's now
            await self.admin.begin_delete(topic)
            await self.everywhere.close(topic, lambda: self.close_topic(topic))
            await self.imports.remove_topic(topic)
            await self.uploads.remove_topic(topic)
            await self.admin.finish_delete(topic)

    async def close_topic(self, topic: Topic) -> None:
        """Let go of a topic that is being deleted: nothing of it is under way here any more."""
        await self.reshaper.stop(topic)
        await self.commit.quiet()
        for segment in list(topic.opened.values()):
            await self.flusher.abandon(segment)
            segment.flushed(segment.end)
            self._dirty.discard(segment)

    def _close_topic(self, topic: Topic) -> None:
        """The catalog says that a topic is being deleted, or gone."""
        reason = TopicBeingDeleted(f"topic {topic.name!r} is being deleted", topic=topic.name)
        for segment in topic.opened.values():
            segment.close(reason)
        if self.ready:
            self.dispatcher.forget(topic)
            self.imports.forget(topic)
            self.succession.forget(topic)
            self._identities.forget(topic)
        topic.signal.wake()
        topic.moved.wake()

    def _look_again(self) -> None:
        """Brokers or journals have come or gone."""
        if self.leader:
            self.leader.wake()

    def _lose(self, why: str = "its lease has expired") -> None:
        """An ordinary end of one life: nothing may be acknowledged any more; the process begins again under a new
        id."""
        if not self.lost.is_set():
            logger.warning("%s is no longer a member of the cluster and stops: %s", self.membership.broker, why)
        self.begin_stop()
        self.lost.set()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._keep(asyncio.create_task(work, name=name))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Fenced):
            self._lose(str(error))
            return
        logger.error("%s ended", task.get_name(), exc_info=error)
        if task.get_name() in VITAL:
            self._lose(f"its {task.get_name()} has ended")
