"""File work: imports and writes, whose rows become messages at whichever broker works on them.

Joining and adoption are here, of both kinds; broker/imports/runner has the steps. The record in coordination is all the
state: docs/internals/by-reference.md ("Imports", "Writes") has the states, the order of writes, and why two brokers may
work on one.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Generic

import msgspec

from seaweedq.broker.context import Context
from seaweedq.broker.imports.records import Work, WorkId, WorkRecords, adopter, is_outlived, is_over
from seaweedq.broker.imports.runner import FilesOfWork, ReaderSetup, Stopping, WorkCounts, WorkRunner
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Topic
from seaweedq.concurrency.deadline import Attempts, Deadline
from seaweedq.concurrency.futures import Signal
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady, SeaweedqError, TopicBeingDeleted, TopicNotFound

CHECK_S, ADOPT_EACH_S = 1.0, 60.0
POLL_S = 0.25
logger = logging.getLogger(__name__)


class FileWork(Service, Generic[Work]):
    """The works of one kind that this broker has under way, and the records of all others."""

    def __init__(
        self,
        context: Context,
        records: WorkRecords[Work],
        files: FilesOfWork[Work],
        readers: ReaderSetup,
        publishing: Publishing,
    ) -> None:
        self._catalog, self._clock, self._settings = context.catalog, context.clock, context.settings
        self._roster, self._membership = context.roster, context.membership
        self._traces = context.traces
        self._kind, self._called = files.kind, files.called
        self._records = records
        self._runner = WorkRunner(
            context.broker,
            context.catalog,
            context.clock,
            records,
            files,
            publishing.publisher,
            context.store,
            context.budget,
            readers,
        )
        self._turns = readers.turns
        self._tasks: dict[WorkId, asyncio.Task[None]] = {}
        self._ended = Signal()  # wakes when one of them ends
        self._stopping: Stopping = asyncio.Event()
        self._seen: frozenset[str] = frozenset()

    @property
    def counts(self) -> WorkCounts:
        """The counts of the work that ended here."""
        return self._runner.counts

    @property
    def under_way(self) -> int:
        """The number of works that this broker has, those that wait for their turn too."""
        return len(self._tasks)

    async def show(self, topic: Topic, name: str) -> Work:
        """Returns the record of a work. Each kind has an error for one that is not there."""
        raise NotImplementedError

    async def wait(self, topic: Topic, name: str, wait_s: float) -> Work:
        """Returns the record once the work is over, or `wait_s` seconds have passed."""
        async for attempt in self._attempts(wait_s):
            record = await self.show(topic, name)
            if is_over(record):
                break
            if self._stopping.is_set() and not attempt.is_last():
                raise NotReady(f"this broker is stopping; another broker will continue the {self._kind}")
        return record

    def _attempts(self, wait_s: float) -> Attempts:
        """Returns the attempts of a request that waits until a work is over."""
        return Deadline(self._clock, wait_s).attempts(self._ended, POLL_S)

    async def run(self) -> Tasks:
        """Continues works that no broker has."""
        return {f"{self._kind}s": self._adopt_often()}

    async def _adopt_often(self) -> None:
        """Adopts at the start, when brokers come or go, and now and then."""
        due_s = self._clock.monotonic_s()
        while True:
            brokers = frozenset(self._living())
            if brokers != self._seen or self._clock.monotonic_s() >= due_s:
                try:
                    await self.adopt()
                    self._seen, due_s = brokers, self._clock.monotonic_s() + ADOPT_EACH_S
                except SeaweedqError as error:
                    logger.warning("cannot list the %s records: %s", self._kind, error)
                except Exception:
                    logger.exception("cannot check the %s records; trying again later", self._kind)
            await asyncio.sleep(CHECK_S)

    async def adopt(self) -> None:
        """Adopts the works that are this broker's to adopt, and drops records that nobody needs any more."""
        async for where, held in self._records.all():
            mine = held.record.broker == self._membership.broker  # perhaps one that was cut off here
            if not mine and adopter(where.name, self._living()) != self._membership.broker:
                continue
            topic = self._catalog.get(where.topic)
            if topic is not None and topic.record.incarnation != where.incarnation:
                await self._records.drop(where, held)  # left by a crash during a deletion
            elif is_outlived(held.record, self._clock.now_us()):
                await self._records.drop(where, held)
            elif topic is not None and topic.record.state == "active" and not is_over(held.record):
                await self._begin_work(where, held)

    async def remove_topic(self, topic: Topic) -> None:
        """Removes the works of a topic that is being deleted. Repeatable; a broker that has one finds it gone."""
        await self._records.drop_all(topic)

    def forget(self, topic: Topic) -> None:
        """Ends the works into a topic that is being deleted, or gone."""
        for where, task in self._tasks.items():
            if (where.topic, where.incarnation) == (topic.name, topic.record.incarnation):
                task.cancel()

    def begin_stop(self) -> None:
        """Ends the requests that wait; what runs ends with its batch."""
        self._stopping.set()

    async def hand_over(self) -> None:
        """Stops at the end of a batch, and releases all works, so that other brokers continue them."""
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def stop(self) -> None:
        """Cancels what is under way; the broker that adopts a work continues where its record says."""
        self._stopping.set()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _living(self) -> Sequence[str]:
        """Returns the brokers that may adopt."""
        return [broker for broker, known in self._roster.brokers.items() if known.record.takes_more]

    async def _begin_work(self, where: WorkId, held: Versioned[Work]) -> None:
        """Does a work here, unless a living broker does so elsewhere."""
        mine = held.record.broker == self._membership.broker
        if where in self._tasks or self._stopping.is_set():
            return
        if not mine:
            if held.record.broker is not None and not await self._roster.gone(held.record.broker):
                return
            adopted = msgspec.structs.replace(held.record, broker=self._membership.broker)
            found = await self._records.write(where, held, adopted)
            if found is None or where in self._tasks:
                return
            logger.info("continuing %s %s into topic %s", self._called, where.name, where.topic)
            held = found
        task = asyncio.create_task(self._work(where, held), name=f"{self._kind} of {where.name}")
        self._tasks[where] = task

        def forget(_: asyncio.Task[None]) -> None:
            self._tasks.pop(where, None)
            self._ended.wake()

        task.add_done_callback(forget)

    async def _work(self, where: WorkId, held: Versioned[Work]) -> None:
        try:
            async with self._turns:
                work = self._runner.run(where, held, self._stopping)
                if self._traces is not None:
                    contexts = (held.record.traceparent or "",)
                    work = self._traces.around(work, self._kind, where.topic, contexts)
                if await work:
                    return
            self._seen = frozenset()  # so that the next look finds its broker
        except (TopicNotFound, TopicBeingDeleted):
            logger.info("%s %s ends, because topic %s was deleted", self._called, where.name, where.topic)
        except Exception:
            logger.exception(
                "%s %s into topic %s was interrupted by an error",
                self._called,
                where.name,
                where.topic,
            )
