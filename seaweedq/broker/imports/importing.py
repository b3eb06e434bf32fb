"""Importing: files that were uploaded become messages, row by row, at whichever broker works on them.

Requests, joining and adoption are here; broker/imports/runner has the steps of one import. The record in coordination
is all the state of an import: docs/internals/by-reference.md ("Imports") has its states, the order of writes, and why
two brokers may work on it.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

import msgspec

from seaweedq.broker.context import Context
from seaweedq.broker.imports.reader_process import StartReader
from seaweedq.broker.imports.records import ImportId, ImportRecords, adopter, is_outlived, is_over
from seaweedq.broker.imports.runner import ImportRunner, ReaderSetup, Stopping
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.checks import reach
from seaweedq.concurrency.deadline import Deadline
from seaweedq.concurrency.futures import Signal
from seaweedq.coordination.records import ImportRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady, SeaweedqError, TopicBeingDeleted, TopicNotFound, UploadConflict, UploadNotFound

AT_ONCE = 2  # concurrent imports of a broker; each has a reader with up to MEMORY_BYTES
CHECK_S, ADOPT_EACH_S = 1.0, 60.0
POLL_S = 0.25
logger = logging.getLogger(__name__)

Format = Literal["parquet", "ndjson", "arrow"]


class Importing(Service):
    """The imports that this broker works on, each with a reader of its own, and the records of all others."""

    def __init__(
        self,
        context: Context,
        start_reader: StartReader,
        publishing: Publishing,
        reading: Reading,
        uploads: Uploads,
    ) -> None:
        self._catalog, self._clock, self._settings = context.catalog, context.clock, context.settings
        self._roster, self._membership = context.view.roster, context.membership
        self._records = ImportRecords(context.catalog, context.coordination, context.membership)
        readers = ReaderSetup(start_reader, context.settings.home)
        self._runner = ImportRunner(
            context.catalog, self._records, publishing.publisher, context.store, context.budget, readers
        )
        self._uploads = uploads
        self._cluster_us = reading.readables.time.learn
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[ImportId, asyncio.Task[None]] = {}
        self._ended = Signal()  # wakes when one of them ends
        self._stopping: Stopping = asyncio.Event()
        self._seen: frozenset[str] = frozenset()

    async def begin(self, topic: Topic, upload_id: str, format: Format, bare: bool) -> ImportRecord:
        """Begins an import, or joins it. Raises the errors of a claim of an upload, and UploadConflict if it is
        imported as another format."""
        where = ImportId.from_topic(topic, upload_id)
        held = await self._records.read(where)
        if held is None:
            held = await self._create(topic, where, format, bare)
        if (held.record.format, held.record.bare) != (format, bare):
            was = f"{held.record.format}{' (bare)' if held.record.bare else ''}"
            raise UploadConflict(f"the upload is already being imported as {was}", upload_id=upload_id)
        if not is_over(held.record):
            await self._begin_work(where, held)
        return held.record

    async def show(self, topic: Topic, upload_id: str) -> ImportRecord:
        """Returns the record of an import. Raises UploadNotFound."""
        held = await self._records.read(ImportId.from_topic(topic, upload_id))
        if held is None:
            raise UploadNotFound(
                f"upload {upload_id!r} has no import, or its import ended long ago",
                topic=topic.name,
                upload_id=upload_id,
            )
        return held.record

    async def wait(self, topic: Topic, upload_id: str, wait_s: float) -> ImportRecord:
        """Returns the record once the import is over, or `wait_s` seconds have passed."""
        async for attempt in Deadline(self._clock, wait_s).attempts(self._ended, POLL_S):
            record = await self.show(topic, upload_id)
            if is_over(record):
                break
            if self._stopping.is_set() and not attempt.is_last():
                raise NotReady("this broker is stopping; another one continues the import")
        return record

    async def run(self) -> Tasks:
        """Continues imports that no broker works on."""
        return {"imports": self._adopt_often()}

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
                    logger.warning("cannot list the imports: %s", error)
                except Exception:
                    logger.exception("cannot look after the imports; continuing")
            await asyncio.sleep(CHECK_S)

    async def adopt(self) -> None:
        """Adopts the imports that are this broker's to adopt, and drops records that nobody needs any more."""
        async for where, held in self._records.all():
            mine = held.record.broker == self._membership.broker  # perhaps one that was cut off here
            if not mine and adopter(where.upload_id, self._living()) != self._membership.broker:
                continue
            topic = self._catalog.get(where.topic)
            if topic is not None and topic.record.incarnation != where.incarnation:
                await self._records.drop(where, held)  # left by a crash during a deletion
            elif is_outlived(held.record, self._clock.now_us()):
                await self._records.drop(where, held)
            elif topic is not None and topic.record.state == "active" and not is_over(held.record):
                await self._begin_work(where, held)

    async def remove_topic(self, topic: Topic) -> None:
        """Removes the imports of a topic that is being deleted. Repeatable; a broker that works on one finds its record
        gone."""
        await self._records.drop_all(topic)

    def forget(self, topic: Topic) -> None:
        """Ends the imports into a topic that is being deleted, or gone."""
        for where, task in self._tasks.items():
            if (where.topic, where.incarnation) == (topic.name, topic.record.incarnation):
                task.cancel()

    def begin_stop(self) -> None:
        """Ends the requests that wait; running imports end with their batch."""
        self._stopping.set()

    async def hand_over(self) -> None:
        """Stops at the end of a batch, and releases all imports, so that other brokers continue them."""
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def stop(self) -> None:
        """Cancels the imports under way; the broker that adopts one continues where its record says."""
        self._stopping.set()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _living(self) -> Sequence[str]:
        """Returns the brokers that may adopt."""
        return [broker for broker, known in self._roster.brokers.items() if known.record.takes_more]

    async def _create(self, topic: Topic, where: ImportId, format: Format, bare: bool) -> Versioned[ImportRecord]:
        now_us = await self._cluster_us()
        upload = (await self._uploads.find(topic, where.upload_id)).record
        reference = await self._uploads.claim(topic, where.upload_id, "imported")
        reach("import.claimed")
        record = ImportRecord(
            format,
            bare,
            upload.name,
            reference.size,
            reference.sha256,
            now_us,
            upload.expires_us,
            self._settings.max_message_bytes,
            self._settings.import_batch_rows,
            self._membership.broker,
        )
        held = await self._records.create(topic, where, record)
        reach("import.checking")
        return held

    async def _begin_work(self, where: ImportId, held: Versioned[ImportRecord]) -> None:
        """Works on an import here, unless a living broker does so elsewhere."""
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
            logger.info("continuing the import of %s into %s", where.upload_id, where.topic)
            held = found
        task = asyncio.create_task(self._work(where, held), name=f"import of {where.upload_id}")
        self._tasks[where] = task

        def forget(_: asyncio.Task[None]) -> None:
            self._tasks.pop(where, None)
            self._ended.wake()

        task.add_done_callback(forget)

    async def _work(self, where: ImportId, held: Versioned[ImportRecord]) -> None:
        try:
            async with self._turns:
                if await self._runner.run(where, held, self._stopping):
                    return
            self._seen = frozenset()  # so that the next look finds its broker
        except (TopicNotFound, TopicBeingDeleted):
            logger.info("the import of %s ends: topic %s was deleted", where.upload_id, where.topic)
        except Exception:
            logger.exception("the import of %s into %s was interrupted by an error", where.upload_id, where.topic)
